//! Frames for a group of stations: a server sends a copy to each other server of the network (head-end replication), and
//! hands copies from other servers to its own stations only. ARP requests and neighbour solicitations are answered here
//! where the mapping knows the answer.
//!
//! Copies are bounded by a rate for each tenant. They need no credit, have no number and go through no stream, so they wait
//! for nobody. The receiving server checks their senders as it does for other frames.

use super::parked::Parked;
use super::{Inward, Outward, Vtep, mac_at};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use sluicenet_proto::frame::Priority;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::bucket::Bucket;
use sluicenet_proto::overlay::cache::Found;
use sluicenet_proto::overlay::mapping::{By, Mapping, Question, StationId};
use sluicenet_proto::overlay::neighbours::{self, Asked};
use sluicenet_proto::overlay::tunnel::Inner;
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::{MacAddress, inner_type};
use sluicenet_wire::zcredit;

/// Rate of a tenant's copies, per second and at once: 120 Mb/s of full frames, and 3 ms of a link of 1 Gb/s.
const COPIES_PER_SECOND: u64 = 10_000;
const COPIES_AT_ONCE: u64 = 256;

/// Stations whose registration waits for the switch.
const STRANGERS_MAX: usize = 64;

impl<C: Copy> Vtep<C> {
    /// Refuses a frame of a station that is not registered here. The switch may [register](Vtep::poll_stranger) it.
    #[cold]
    pub(super) fn refuse_stranger(&mut self, domain: u16, mac: MacAddress, frame: &[u8]) -> Outward {
        let is_valid = !matches!(neighbours::ask(frame, None), Asked::Forged | Asked::Malformed);
        self.note_stranger(domain, mac, neighbours::claimed(frame).filter(|_| is_valid));
        Outward::Drop(DropReason::ForgedSource, None)
    }

    /// Returns whether there was room for it.
    pub(super) fn note_stranger(&mut self, domain: u16, mac: MacAddress, ip: Option<Ipv4Addr>) -> bool {
        let is_noted = self.strangers.contains_key(&(domain, mac));
        let has_room = !mac.is_group() && (is_noted || self.strangers.len() < STRANGERS_MAX);
        if has_room {
            let noted = self.strangers.entry((domain, mac)).or_default();
            *noted = ip.or(*noted);
        }
        has_room
    }

    /// The next station of this switch that sent a frame and is not registered, or not with this address.
    pub fn poll_stranger(&mut self) -> Option<(u16, MacAddress, Option<Ipv4Addr>)> {
        let ((domain, mac), ip) = self.strangers.pop_first()?;
        // Until the switch registers it.
        if let Some(vni) = self.tunnel.network(domain) {
            let station = StationId { vni, mac };
            if self.registrar.station(station).is_none() {
                self.turn_from(station);
            }
        }
        Some((domain, mac, ip))
    }

    /// Frames of a station no longer wait for the switch's decision.
    pub(super) fn turn_from(&mut self, station: StationId) {
        if self.unwelcome.len() >= STRANGERS_MAX {
            self.unwelcome.pop_first();
        }
        self.unwelcome.insert(station);
    }

    /// Handles the ARP message of a station.
    pub(super) fn arp(
        &mut self,
        now: Instant,
        frame: &[u8],
        from: StationId,
        address: Ipv4Addr,
        priority: Priority,
        out: &mut Vec<u8>,
    ) -> Outward {
        match neighbours::ask(frame, Some(address)) {
            Asked::Reply => match mac_at(frame, 0) {
                Some(to) if !to.is_group() => self.send_beside(now, frame, from, to, priority, out),
                _ => self.ask_all(now, frame, from),
            },
            asked => self.asked(now, frame, from, asked, priority),
        }
    }

    /// Sends a request, or an announcement, to all servers of the network. Stations of other servers would believe what an
    /// ARP message says about its sender: its address has to be registered.
    pub(super) fn ask_all(&mut self, now: Instant, frame: &[u8], from: StationId) -> Outward {
        if !self.may_claim(frame, from) {
            return Outward::Drop(DropReason::Unresolved, None);
        }
        self.flood(now, [frame, &[]], from.vni)
    }

    /// Whether the address that an ARP message claims is registered for its sender. The switch hears of it otherwise.
    fn may_claim(&mut self, frame: &[u8], from: StationId) -> bool {
        let Some(ip) = neighbours::claimed(frame) else { return true };
        let is_registered = self.registrar.station(from) == Some(ip);
        if !is_registered && let Some(domain) = self.tunnel.domain(from.vni) {
            self.note_stranger(domain, from.mac, Some(ip));
        }
        is_registered
    }

    /// Handles a frame of a station for a group.
    #[cold]
    pub(super) fn for_group(
        &mut self,
        now: Instant,
        frame: [&[u8]; 2],
        from: StationId,
        priority: Priority,
    ) -> Outward {
        match neighbours::solicits(frame[0]) {
            Some(asked) => self.asked(now, frame[0], from, asked, priority),
            None => self.flood(now, frame, from.vni),
        }
    }

    fn asked(&mut self, now: Instant, frame: &[u8], from: StationId, asked: Asked, priority: Priority) -> Outward {
        let (ip, request) = match asked {
            Asked::For(ip, request) => (ip, request),
            Asked::Nothing | Asked::Reply => return self.ask_all(now, frame, from),
            Asked::Forged => return Outward::Drop(DropReason::ForgedSource, None),
            Asked::Malformed => return Outward::Drop(DropReason::Malformed, None),
        };
        let question = Question { vni: from.vni, by: By::Ip(ip) };
        match self.cache.lookup(now, question) {
            // The station asks whether its own address is free.
            Found::Known(mapping) if mapping.station == from => self.ask_all(now, frame, from),
            Found::Known(mapping) => self.answer(&request, &mapping),
            Found::Asked if self.wait(question, || Parked::Request(request, frame.to_vec(), priority)) => {
                Outward::Parked
            }
            // Its neighbours may know what the controller does not.
            Found::Asked | Found::Unknown | Found::Silent | Found::Limited => self.ask_all(now, frame, from),
        }
    }

    pub(super) fn answer(&mut self, request: &neighbours::Request, mapping: &Mapping) -> Outward {
        if mapping.location == self.tunnel.server() {
            // The request was also flooded to its target here.
            self.counters.arp_ended += 1;
            return Outward::Ended;
        }
        self.counters.arp_answered += 1;
        Outward::Reply(neighbours::reply(request, mapping))
    }

    /// The servers that get a copy of a frame.
    pub(super) fn flood(&mut self, now: Instant, frame: [&[u8]; 2], vni: u32) -> Outward {
        if let Some(reason) = self.tunnel.objection(frame) {
            return self.refuse(now, frame, vni, reason);
        }
        let members = &self.members;
        let servers: Vec<Ipv4Addr> =
            self.tunnel.servers().filter(|&server| members.has(vni, server) != Some(false)).collect();
        if servers.is_empty() {
            self.counters.arp_ended += u64::from(neighbours::arp_of(frame[0]).is_some());
            return Outward::Ended;
        }
        if !self.may_copy(now, vni, servers.len() as u64) {
            return Outward::Drop(DropReason::FloodNoRoom, None);
        }
        self.counters.group_sent += 1;
        Outward::Copies(servers)
    }

    fn may_copy(&mut self, now: Instant, vni: u32, copies: u64) -> bool {
        let new = || Bucket::new(COPIES_PER_SECOND, COPIES_AT_ONCE);
        let may = self.group_limits.entry(vni).or_insert_with(new).take_several(now, copies);
        self.counters.group_limited += u64::from(!may);
        may
    }

    /// Writes the copy of a frame for a server into `out`; returns whether there is one.
    pub fn copy(&mut self, frame: &[u8], domain: u16, priority: Priority, to: Ipv4Addr, out: &mut Vec<u8>) -> bool {
        let Some(vni) = self.tunnel.network(domain) else { return false };
        let sent = self.tunnel.encapsulate([frame, &[]], vni, priority, to, out).is_ok();
        self.counters.group_copies += u64::from(sent);
        sent
    }

    /// Sends an ARP reply to the station that asked, whose server is known since its request came.
    fn send_beside(
        &mut self,
        now: Instant,
        frame: &[u8],
        from: StationId,
        to: MacAddress,
        priority: Priority,
        out: &mut Vec<u8>,
    ) -> Outward {
        if !self.may_claim(frame, from) {
            // The asker repeats its request.
            return Outward::Drop(DropReason::Unresolved, None);
        }
        let vni = from.vni;
        let Found::Known(mapping) = self.cache.lookup(now, Question { vni, by: By::Mac(to) }) else {
            return Outward::Drop(DropReason::Unresolved, None);
        };
        if mapping.location == self.tunnel.server() {
            return Outward::Drop(DropReason::NoRoute, None);
        }
        if !self.may_copy(now, vni, 1) {
            return Outward::Drop(DropReason::FloodNoRoom, None);
        }
        match self.tunnel.encapsulate([frame, &[]], vni, priority, mapping.location, out) {
            Ok(()) => {
                self.counters.encapsulated += 1;
                Outward::Send
            }
            Err(reason) => Outward::Drop(reason, None),
        }
    }

    /// Checks the sender of a frame for a group, or of an ARP reply, from another server.
    #[cold]
    pub(super) fn beside(&mut self, now: Instant, inner: Inner, station: StationId, bytes: &[u8]) -> Inward {
        let is_forged = match neighbours::arp_of(bytes) {
            Some(_) => matches!(neighbours::ask(bytes, None), Asked::Forged | Asked::Malformed),
            None => station.mac.is_group(),
        };
        if is_forged {
            return Inward::Drop(DropReason::ForgedSource);
        }
        // Numbers and messages of credits are for one station: the address is damaged.
        if inner_type(bytes) == Some(zcredit::ETHERTYPE) {
            return Inward::Drop(DropReason::Malformed);
        }
        let asked = match self.cache.lookup(now, Question { vni: station.vni, by: By::Mac(station.mac) }) {
            Found::Known(mapping) if mapping.location == inner.from => {
                self.members.heard(now, inner.vni, inner.from);
                self.counters.group_received += 1;
                None
            }
            // The station may have moved a moment ago.
            Found::Known(_) if self.cache.doubt(now, station) => Some(station),
            Found::Known(_) => return Inward::Drop(DropReason::ForgedSource),
            Found::Asked => Some(station),
            Found::Unknown | Found::Silent | Found::Limited => return Inward::Drop(DropReason::Unresolved),
        };
        Inward::Beside(inner, asked)
    }
}

/// Whether a frame goes beside credits, numbers and streams.
pub fn is_beside(frame: &[u8]) -> bool {
    mac_at(frame, 0).is_some_and(MacAddress::is_group) || neighbours::arp_of(frame).is_some()
}
