//! Stations that the configuration does not name, learned from their ARP announcements. Ports to other servers make them known
//! there.
//!
//! Three rules bound an announcement. A port with configured stations speaks for these stations only. A port with a configured
//! address speaks for that address only. No port speaks for an address that is configured at another port. On other servers a
//! learned station has the lowest precedence ([`sluicenet_proto::overlay::controller::MODEST`]).

use super::Engine;
use super::attached::{Attached, Kind, call};
use super::stations::Known;
use crate::port::{Descriptor, Port};
use sluicenet_node::vale::Header;
use sluicenet_proto::guard::Guard;
use sluicenet_proto::overlay::neighbours::arp_of;
use sluicenet_proto::time::Instant;
use sluicenet_wire::arp;
use sluicenet_wire::ethernet::{MIN_LEN, MacAddress};
use sluicenet_wire::vlan;

impl Engine {
    /// Learns the sender of a broadcast frame from port `j` if the frame is ARP.
    #[cold]
    pub(super) fn hear(
        ports: &mut [Option<Attached>],
        now: Instant,
        j: usize,
        frame: Descriptor,
        first_bytes: [u64; 2],
        header: &Header,
    ) {
        let Some(from) = ports[j].as_ref() else { return };
        // Other servers announce their own stations, and the configured ones are known already.
        let guard = from.access.guard.as_deref();
        let is_named = guard.is_some_and(|guard| guard.ipv4().is_some()) && !from.given.is_empty();
        if is_named || call!(&from.kind, domain(frame.buffer)).is_some() {
            return;
        }
        let mut bytes = [0; MIN_LEN + vlan::TAG_LEN];
        let bytes = &mut bytes[..(frame.len as usize).min(MIN_LEN + vlan::TAG_LEN)];
        from.read(frame.buffer, first_bytes, bytes);
        let Some(Ok((said, _))) = arp_of(bytes).map(arp::Repr::parse) else { return };
        let (domain, address) = (header.destination.domain(), said.sender_ip);
        let MacAddress(mac) = said.sender_mac;
        let is_address = !(address.is_multicast() || address.is_broadcast() || address.is_loopback());
        if mac != bytes[6..12] || said.sender_mac.is_group() || !is_address {
            return;
        }
        let is_given = from.given.is_empty() || from.given.contains(&(mac, domain));
        let has = |guard: &Guard| guard.hosts().any(|own| own == address);
        let of_other = |port: &Attached| {
            port.present
                && port.access.guard.as_deref().is_some_and(has)
                && port.access.domain.unwrap_or(domain) == domain
        };
        let is_taken = || (0..ports.len()).any(|k| k != j && ports[k].as_ref().is_some_and(of_other));
        // Ports with the same configured address are processes of one machine.
        let may_have_it = || match guard {
            Some(guard) => has(guard) || guard.allows_ipv4(address) && !is_taken(),
            None => !is_taken(),
        };
        if !is_given || !(address.is_unspecified() || may_have_it()) {
            return;
        }
        // The station may have been at another port before.
        for other in ports.iter_mut().enumerate().filter(|&(k, _)| k != j).filter_map(|(_, port)| port.as_mut()) {
            other.known.forget(domain, mac);
        }
        let Some(from) = ports[j].as_mut() else { return };
        let Some(known) = from.known.hear(now, domain, mac, address) else { return };
        tell(ports, now, known, true);
    }

    /// Withdraws the learned stations of port `k`.
    pub(super) fn unlearn(&mut self, k: usize) {
        let now = self.now();
        for known in self.ports[k].as_mut().map(|port| std::mem::take(&mut port.known)).unwrap_or_default().iter() {
            tell(&mut self.ports, now, known, false);
        }
    }

    /// Announces all learned stations again, for ports that have joined further networks.
    pub(super) fn tell_again(&mut self) {
        let now = self.now();
        let all: Vec<Known> = self.ports.iter().flatten().flat_map(|port| port.known.iter()).collect();
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
