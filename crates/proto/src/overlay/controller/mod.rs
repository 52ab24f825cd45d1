//! The overlay's controller: it stores the location of each station, answers questions, and reports changes to the servers
//! that asked (Crisan 2014, 3.2.3 and 3.6.3; `docs/controller.md`).
//!
//! - The controller accepts messages only from its servers, each with its own key; each server registers only stations on
//!   itself.
//! - The numbers of a server's writes rise: a repeated or late write changes nothing. The number of the current start of
//!   the controller (`epoch`) rejects writes to an earlier start.
//! - All changes have one sequence of numbers (`version`): of two mappings of a station the higher version is newer.
//! - A station moves at most ten times a second; it belongs to the server that claimed it last.
//! - A station has one IPv4 address, and IPv6 addresses that are claimed one by one, always modestly.
//! - A server that has a network says so again and again, and learns which other servers have it.
//! - A *modest* claim, for a station that no file names, takes nothing from another server. It yields its address to a
//!   station that claims the address without modesty.

use super::mapping::{Mapping, StationId};
use super::members::Membership;
use super::registrar::{ADDRESSES_MAX, RENEW};
use super::seal::{Key, Refused};
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use sluicenet_wire::controller::{Kind, LEN, Repr, Status};

/// Time between transmissions of an unconfirmed change: the request RTO of Crisan 2014, Table 3.1.
pub const RETRANSMIT: Duration = Duration::from_ms(10);

/// The version in a [`Kind::Register`] that marks every modest claim: no change ever has it.
pub const MODEST: u64 = u64::MAX;

/// Transmissions of a change before the controller gives up. A server that missed all of them asks again when its mapping
/// is old.
const TRIES: u8 = 10;

/// Time after its start in which servers register their stations: each does so at least once in [`RENEW`], and repeats a lost
/// message for a while.
pub const LEARNS_FOR: Duration = RENEW.saturating_add(Duration::from_secs(1));

/// Time between two moves of a station.
const MOVES_APART: Duration = Duration::from_ms(100);

/// Limits of the controller.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Stations of all servers.
    pub stations: usize,
    /// Stations per server.
    pub stations_per_server: usize,
    /// Unconfirmed changes.
    pub changes: usize,
}

impl Default for ControllerConfig {
    /// A million stations, at most 4,096 of them per server.
    fn default() -> ControllerConfig {
        ControllerConfig { stations: 1 << 20, stations_per_server: 4096, changes: 1 << 16 }
    }
}

/// Counters of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerCounters {
    /// Questions answered with a mapping.
    pub known: u64,
    /// Questions about unknown stations, those included that were to be asked again.
    pub unknown: u64,
    /// Successful registrations and renewals.
    pub registered: u64,
    /// Stations removed.
    pub unregistered: u64,
    /// Stations that moved to another server.
    pub moved: u64,
    /// Writes delayed because the station moved too often.
    pub busy: u64,
    /// Writes refused because another server has the station, another station has its address, or a table is full.
    pub refused: u64,
    /// Repeated or late writes, or writes to an earlier start of the controller.
    pub stale: u64,
    /// Datagrams with a wrong size or format.
    pub malformed: u64,
    /// Datagrams with a wrong tag, or from a server in the name of another.
    pub forged: u64,
    /// Datagrams from senders outside the overlay.
    pub strangers: u64,
    /// Changes sent, repetitions included.
    pub told: u64,
    /// Changes that a server never confirmed, or for which there was no space.
    pub untold: u64,
}

#[derive(Clone, Debug)]
struct Server {
    key: Key,
    /// The highest number of the server's writes.
    last_write: u64,
    stations: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    mapping: Mapping,
    /// When the station moved to its location; `None` if it has not moved yet.
    moved_at: Option<Instant>,
    /// Whether the claim was modest.
    modest: bool,
    /// Its IPv6 addresses, which are always claimed modestly.
    addresses: BTreeSet<Ipv6Addr>,
    /// Servers that asked about the station and are told of changes.
    asked: BTreeSet<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    mapping: Mapping,
    request: u64,
    tries: u8,
    at: Instant,
}

/// The controller.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControllerConfig,
    epoch: u32,
    /// Until then the servers may not have registered all their stations.
    learns_until: Instant,
    version: u64,
    requests: u64,
    servers: BTreeMap<Ipv4Addr, Server>,
    stations: BTreeMap<StationId, Entry>,
    by_ip: BTreeMap<(u32, IpAddr), StationId>,
    members: Membership,
    /// Removed stations, with the time until which they are remembered.
    gone: BTreeSet<(Instant, StationId)>,
    changes: BTreeMap<(Ipv4Addr, StationId), Change>,
    deadlines: BTreeSet<(Instant, Ipv4Addr, StationId)>,
    counters: ControllerCounters,
}

impl Controller {
    /// A controller without servers; `epoch` is random and not 0.
    pub fn new(config: ControllerConfig, epoch: u32) -> Controller {
        assert!(epoch != 0, "0 says that a server has not heard of the controller yet");
        Controller {
            config,
            epoch,
            learns_until: Instant::ZERO,
            version: 0,
            requests: 0,
            servers: BTreeMap::new(),
            stations: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            members: Membership::default(),
            gone: BTreeSet::new(),
            changes: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            counters: ControllerCounters::default(),
        }
    }

    /// It starts at `now` while servers may have stations already. For [`LEARNS_FOR`] it says of an unknown MAC address that it
    /// is busy, so that frames of lossless classes wait rather than be dropped.
    pub fn learns(&mut self, now: Instant) {
        self.learns_until = now + LEARNS_FOR;
    }

    /// Adds a server of the overlay with its key.
    pub fn admit(&mut self, server: Ipv4Addr, key: Key) {
        self.servers.insert(server, Server { key, last_write: 0, stations: 0 });
    }

    /// The counters.
    pub fn counters(&self) -> &ControllerCounters {
        &self.counters
    }

    /// Number of known stations.
    pub fn stations(&self) -> usize {
        self.by_location().sum()
    }

    fn by_location(&self) -> impl Iterator<Item = usize> {
        self.servers.values().map(|s| s.stations)
    }

    /// Takes a datagram from `from`; returns the reply to it.
    pub fn handle(&mut self, now: Instant, from: Ipv4Addr, datagram: &[u8]) -> Option<[u8; LEN]> {
        let Some(server) = self.servers.get(&from) else {
            self.counters.strangers += 1;
            return None;
        };
        let message = match server.key.open(datagram) {
            Ok(message) if message.server == from => message,
            Ok(_) | Err(Refused::Forged) => {
                self.counters.forged += 1;
                return None;
            }
            Err(Refused::Malformed(_)) => {
                self.counters.malformed += 1;
                return None;
            }
        };
        let answer = match message.kind {
            Kind::ResolveMac => self.resolve(now, &message, Some(StationId { vni: message.vni, mac: message.mac })),
            Kind::ResolveIp => self.resolve(now, &message, self.by_ip.get(&(message.vni, message.ip)).copied()),
            Kind::Register | Kind::Unregister => self.write(now, &message),
            Kind::NextMember => {
                let status = self.members.answer(now, &message);
                let location = status.unwrap_or(Ipv4Addr::UNSPECIFIED);
                let status = if status.is_some() { Status::Done } else { Status::Unknown };
                Repr { kind: Kind::Answer, status, location, epoch: self.epoch, version: self.version, ..message }
            }
            Kind::Heard => {
                self.confirm(&message);
                return None;
            }
            Kind::Answer | Kind::Changed => {
                self.counters.malformed += 1;
                return None;
            }
        };
        Some(self.servers.get(&from)?.key.seal(&answer))
    }

    fn resolve(&mut self, now: Instant, message: &Repr, station: Option<StationId>) -> Repr {
        match station.and_then(|s| self.stations.get_mut(&s)) {
            Some(entry) if !entry.mapping.location.is_unspecified() => {
                entry.asked.insert(message.server);
                self.counters.known += 1;
                let ip = if message.kind == Kind::ResolveIp { message.ip } else { entry.mapping.ip };
                Mapping { ip, ..entry.mapping }.message(Kind::Answer, message.server, message.request)
            }
            gone => {
                self.counters.unknown += 1;
                // A question about an IP address must not wait: the server of the station that asks sends it to all servers.
                let is_busy = message.kind == Kind::ResolveMac && gone.is_none() && now < self.learns_until;
                let status = if is_busy { Status::Busy } else { Status::Unknown };
                let nowhere = Repr { location: Ipv4Addr::UNSPECIFIED, version: self.version, ..*message };
                Repr { kind: Kind::Answer, status, epoch: self.epoch, ..nowhere }
            }
        }
    }

    fn write(&mut self, now: Instant, message: &Repr) -> Repr {
        let answer = Repr { kind: Kind::Answer, epoch: self.epoch, ..*message };
        let Some(server) = self.servers.get_mut(&message.server) else { return answer };
        if message.epoch != self.epoch || message.request <= server.last_write {
            self.counters.stale += 1;
            return Repr { status: Status::Stale, version: server.last_write, ..answer };
        }
        server.last_write = message.request;
        let station = StationId { vni: message.vni, mac: message.mac };
        let done = match (message.kind, message.ip) {
            (Kind::Register, IpAddr::V4(ip)) => self.register(now, station, ip, message),
            (Kind::Register, IpAddr::V6(address)) => self.add_address(station, address, message.server),
            (_, IpAddr::V4(_)) => self.unregister(now, station, message.server),
            (_, IpAddr::V6(address)) => self.remove_address(now, station, address, message.server),
        };
        let mapping = self.stations.get(&station).map(|e| e.mapping);
        let (location, version) = mapping.map_or((Ipv4Addr::UNSPECIFIED, self.version), |m| (m.location, m.version));
        let status = done.err().unwrap_or_default();
        match status {
            Status::Done => {}
            Status::Busy => self.counters.busy += 1,
            _ => self.counters.refused += 1,
        }
        Repr { status, location, version, ..answer }
    }

    fn register(&mut self, now: Instant, station: StationId, ip: Ipv4Addr, message: &Repr) -> Result<(), Status> {
        let known = self.stations.get(&station);
        let lives = known.map_or(Ipv4Addr::UNSPECIFIED, |e| e.mapping.location);
        let is_move = lives != message.server;
        if is_move {
            // A renewal confirms an earlier registration, and takes nothing from the station's current server.
            if message.version != 0 && !lives.is_unspecified() {
                return Err(Status::Moved);
            }
            if known.and_then(|e| e.moved_at).is_some_and(|at| now.since(at) < MOVES_APART) {
                return Err(Status::Busy);
            }
            let share = self.servers.get(&message.server).map_or(0, |s| s.stations);
            let full = known.is_none() && self.stations.len() >= self.config.stations;
            if full || share >= self.config.stations_per_server {
                return Err(Status::Full);
            }
        }
        let moved_at = if is_move && known.is_some() { Some(now) } else { known.and_then(|e| e.moved_at) };
        let as_before = !is_move && known.is_some_and(|e| e.mapping.ip == message.ip);
        let modest = message.version == MODEST;
        let has_ip = !ip.is_unspecified();
        let holder = self.by_ip.get(&(station.vni, message.ip)).copied().filter(|&s| has_ip && s != station);
        if let Some(holder) = holder {
            let gives_way = self.stations.get(&holder).is_some_and(|e| e.modest);
            if modest || !gives_way {
                return Err(Status::Conflict);
            }
            self.take_off(now, holder);
        }
        self.counters.registered += 1;
        self.counters.moved += u64::from(is_move && !lives.is_unspecified());
        if !as_before {
            self.change(now, station, ip, message.server, moved_at);
        }
        if let Some(entry) = self.stations.get_mut(&station) {
            entry.modest = modest;
        }
        Ok(())
    }

    /// A station has no location from now on.
    fn take_off(&mut self, now: Instant, station: StationId) {
        let moved_at = self.stations.get(&station).and_then(|e| e.moved_at);
        self.change(now, station, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, moved_at);
        // While the controller learns it has to know which stations have left.
        self.gone.insert(((now + MOVES_APART).max(self.learns_until), station));
    }

    /// The station of a server, for a change of its addresses.
    fn own(&mut self, station: StationId, server: Ipv4Addr) -> Result<&mut Entry, Status> {
        let entry = self.stations.get_mut(&station).filter(|e| !e.mapping.location.is_unspecified());
        let entry = entry.ok_or(Status::Unknown)?;
        if entry.mapping.location == server { Ok(entry) } else { Err(Status::Moved) }
    }

    /// A station has another IPv6 address. The address is taken from no other station.
    fn add_address(&mut self, station: StationId, address: Ipv6Addr, server: Ipv4Addr) -> Result<(), Status> {
        let of = (station.vni, IpAddr::V6(address));
        let holder = self.by_ip.get(&of).copied();
        let entry = self.own(station, server)?;
        if holder.is_some_and(|holder| holder != station) {
            return Err(Status::Conflict);
        }
        if holder.is_none() && entry.addresses.len() >= ADDRESSES_MAX {
            return Err(Status::Full);
        }
        entry.addresses.insert(address);
        self.by_ip.insert(of, station);
        self.counters.registered += 1;
        Ok(())
    }

    fn remove_address(
        &mut self,
        now: Instant,
        station: StationId,
        address: Ipv6Addr,
        server: Ipv4Addr,
    ) -> Result<(), Status> {
        let entry = match self.own(station, server) {
            Err(Status::Unknown) => return Ok(()),
            entry => entry?,
        };
        let (modest, moved_at, mapping) = (entry.modest, entry.moved_at, entry.mapping);
        if entry.addresses.remove(&address) {
            self.by_ip.remove(&(station.vni, IpAddr::V6(address)));
            let IpAddr::V4(ip) = mapping.ip else { return Ok(()) };
            // Servers that know the station by this address hear of a newer version, and ask again.
            self.change(now, station, ip, server, moved_at);
            if let Some(entry) = self.stations.get_mut(&station) {
                entry.modest = modest;
            }
        }
        Ok(())
    }

    fn unregister(&mut self, now: Instant, station: StationId, server: Ipv4Addr) -> Result<(), Status> {
        let Some(entry) = self.stations.get(&station) else { return Ok(()) };
        if entry.mapping.location != server {
            return if entry.mapping.location.is_unspecified() { Ok(()) } else { Err(Status::Moved) };
        }
        self.counters.unregistered += 1;
        self.take_off(now, station);
        Ok(())
    }

    /// A station has a new location or address: informs the servers that asked about it, and its old server.
    fn change(
        &mut self,
        now: Instant,
        station: StationId,
        ip: Ipv4Addr,
        location: Ipv4Addr,
        moved_at: Option<Instant>,
    ) {
        self.version += 1;
        let mapping = Mapping { station, ip: ip.into(), location, epoch: self.epoch, version: self.version };
        let mut old = self.stations.remove(&station);
        let lived = old.as_ref().map_or(Ipv4Addr::UNSPECIFIED, |e| e.mapping.location);
        let mut addresses = BTreeSet::new();
        if let Some(old) = &mut old {
            self.by_ip.remove(&(station.vni, old.mapping.ip));
            addresses = core::mem::take(&mut old.addresses);
        }
        if lived != location {
            for address in core::mem::take(&mut addresses) {
                self.by_ip.remove(&(station.vni, IpAddr::V6(address)));
            }
        }
        if !ip.is_unspecified() {
            self.by_ip.insert((station.vni, ip.into()), station);
        }
        if lived != location {
            if let Some(server) = self.servers.get_mut(&lived) {
                server.stations -= 1;
            }
            if let Some(server) = self.servers.get_mut(&location) {
                server.stations += 1;
            }
        }
        let mut hear = old.map(|e| e.asked).unwrap_or_default();
        // A server that is told of a station's removal forgets the station, and asks again when needed.
        let asked = if location.is_unspecified() { BTreeSet::new() } else { hear.clone() };
        self.stations.insert(station, Entry { mapping, moved_at, modest: false, addresses, asked });
        hear.insert(lived);
        for server in hear.into_iter().filter(|s| !s.is_unspecified()) {
            self.tell(now, server, mapping);
        }
    }

    fn tell(&mut self, now: Instant, server: Ipv4Addr, mapping: Mapping) {
        let of = (server, mapping.station);
        if self.changes.len() >= self.config.changes && !self.changes.contains_key(&of) {
            self.counters.untold += 1;
            return;
        }
        self.requests += 1;
        let change = Change { mapping, request: self.requests, tries: 0, at: now };
        if let Some(old) = self.changes.insert(of, change) {
            self.deadlines.remove(&(old.at, of.0, of.1));
        }
        self.deadlines.insert((now, of.0, of.1));
    }

    fn confirm(&mut self, message: &Repr) {
        let of = (message.server, StationId { vni: message.vni, mac: message.mac });
        // A late confirmation of an earlier change does not confirm this change.
        if let Some(change) = self.changes.get(&of).copied().filter(|c| c.request == message.request) {
            self.changes.remove(&of);
            self.deadlines.remove(&(change.at, of.0, of.1));
        }
    }

    /// The next change to send now, and its receiver.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Ipv4Addr, [u8; LEN])> {
        loop {
            let &(at, server, station) = self.deadlines.first().filter(|(at, ..)| *at <= now)?;
            self.deadlines.remove(&(at, server, station));
            let of = (server, station);
            let change = self.changes.get_mut(&of)?;
            if change.tries >= TRIES {
                self.counters.untold += 1;
                self.changes.remove(&of);
                continue;
            }
            change.tries += 1;
            change.at = now + RETRANSMIT;
            self.deadlines.insert((change.at, server, station));
            let message = change.mapping.message(Kind::Changed, server, change.request);
            self.counters.told += 1;
            return Some((server, self.servers.get(&server)?.key.seal(&message)));
        }
    }

    /// When [`Controller::poll_transmit`] or [`Controller::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let gone = self.gone.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, ..)| *at);
        gone.into_iter().chain(deadline).min()
    }

    /// Forgets stations that were removed long enough ago.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, station)) = self.gone.first().filter(|(at, _)| *at <= now) {
            self.gone.remove(&(at, station));
            // The station may have returned and left again.
            let last_move = |e: &Entry| e.moved_at.is_some_and(|m| now.since(m) < MOVES_APART);
            if self.stations.get(&station).is_some_and(|e| e.mapping.location.is_unspecified() && !last_move(e)) {
                self.stations.remove(&station);
            }
        }
    }
}

#[cfg(test)]
mod tests;
