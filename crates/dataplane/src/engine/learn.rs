//! Machines that no file names, known by what they say of themselves by ARP: ports that lead elsewhere make them known there.
//!
//! A port to which a station was given speaks for that one only, one with an address for that address only, and nobody for an address
//! that another port here has. Beyond this server such a station takes nothing from anybody
//! ([`sluicenet_proto::overlay::controller::MODEST`]).

use super::Engine;
use super::attached::{Attached, Kind, call};
use super::head::put_head;
use crate::port::{Descriptor, Port};
use sluicenet_node::vale::Header;
use sluicenet_proto::overlay::neighbours::arp_of;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::arp;
use sluicenet_wire::ethernet::{MIN_LEN, MacAddress};
use sluicenet_wire::vlan;
use std::net::Ipv4Addr;

/// Stations that a port can make known: those of a machine with a few more inside it. All ports' fit a controller's share of a server
/// many times.
const STATIONS_MAX: usize = 16;
/// What a station says of itself again is heard again after so long: a machine that says it without end costs the controller a message.
const APART: Duration = Duration::from_secs(1);

/// A station that has shown itself at a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    domain: u16,
    mac: [u8; 6],
    /// 0.0.0.0 where it has none that others could ask for.
    address: Ipv4Addr,
    heard: Instant,
}

impl Engine {
    /// A frame of port `j` is for everybody: what it says of its sender, if it is ARP.
    #[cold]
    pub(super) fn hear(
        ports: &mut [Option<Attached>],
        now: Instant,
        j: usize,
        frame: Descriptor,
        head: [u64; 2],
        header: &Header,
    ) {
        let Some(from) = ports[j].as_ref() else { return };
        // What comes from elsewhere is said there, and what the file says is known.
        let is_named = from.access.address.is_some() && !from.given.is_empty();
        if is_named || call!(&from.kind, domain(frame.buffer)).is_some() {
            return;
        }
        let mut bytes = [0; MIN_LEN + vlan::TAG_LEN];
        let bytes = &mut bytes[..(frame.len as usize).min(MIN_LEN + vlan::TAG_LEN)];
        call!(&from.kind, read(frame.buffer, bytes));
        put_head(head, bytes);
        let Some(Ok((said, _))) = arp_of(bytes).map(arp::Repr::parse) else { return };
        let (domain, address) = (header.destination.domain(), said.sender_ip);
        let MacAddress(mac) = said.sender_mac;
        let is_address = !(address.is_multicast() || address.is_broadcast() || address.is_loopback());
        if mac != bytes[6..12] || said.sender_mac.is_group() || !is_address {
            return;
        }
        let is_given = from.given.is_empty() || from.given.contains(&(mac, domain));
        let of_other = |port: &Attached| {
            port.present && port.access.address == Some(address) && port.access.domain.unwrap_or(domain) == domain
        };
        let is_taken = || (0..ports.len()).any(|k| k != j && ports[k].as_ref().is_some_and(of_other));
        // Ports to which a file gives the same address are processes of one machine.
        let may_have_it = || from.access.address.map_or_else(|| !is_taken(), |own| own == address);
        if !is_given || !(address.is_unspecified() || may_have_it()) {
            return;
        }
        let is_it = |known: &Known| (known.domain, known.mac) == (domain, mac);
        // It may have been at another port before.
        for other in ports.iter_mut().enumerate().filter(|&(k, _)| k != j).filter_map(|(_, port)| port.as_mut()) {
            other.known.retain(|known| !is_it(known));
        }
        let Some(from) = ports[j].as_mut() else { return };
        let known = match from.known.iter().position(is_it) {
            Some(i) if now.since(from.known[i].heard) < APART => return,
            Some(i) => {
                let known = &mut from.known[i];
                // One that asks without its address, which may be another's just now, has not lost it (RFC 5227, 2.1.1).
                known.address = if address.is_unspecified() { known.address } else { address };
                known.heard = now;
                *known
            }
            None if from.known.len() >= STATIONS_MAX => return,
            None => {
                let known = Known { domain, mac, address, heard: now };
                from.known.push(known);
                known
            }
        };
        tell(ports, now, known, true);
    }

    /// What has shown itself at port `k` is gone, or may no longer be there.
    pub(super) fn unlearn(&mut self, k: usize) {
        let now = self.now();
        for known in self.ports[k].as_mut().map(|port| std::mem::take(&mut port.known)).unwrap_or_default() {
            tell(&mut self.ports, now, known, false);
        }
    }

    /// Says again what has shown itself, to ports that lead into networks they did not lead into before.
    pub(super) fn tell_again(&mut self) {
        let now = self.now();
        let all: Vec<Known> = self.ports.iter().flatten().flat_map(|port| port.known.iter().copied()).collect();
        all.into_iter().for_each(|known| tell(&mut self.ports, now, known, true));
    }
}

fn tell(ports: &mut [Option<Attached>], now: Instant, known: Known, here: bool) {
    for attached in ports.iter_mut().flatten().filter(|a| a.present) {
        if let Kind::Other(port) = &mut attached.kind {
            port.learn(now, known.domain, known.mac, known.address, here);
        }
    }
}
