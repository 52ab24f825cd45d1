//! Stations and addresses that the configuration does not name, learned from the frames by which stations show themselves: ARP,
//! neighbour discovery, any other frame for a group, and the first frame to another server. Ports to other servers make them
//! known there.
//!
//! Three rules bound what a station shows. A port with configured stations speaks for these stations only. A port with
//! configured addresses speaks for these only. No port speaks for an address that is configured at another port. On other servers a learned station has the lowest precedence ([`sluicenet_proto::overlay::controller::MODEST`]).

use super::Engine;
use super::attached::{Attached, Kind, call};
use super::stations::News;
use crate::port::{Descriptor, Port};
use sluicenet_node::vale::Header;
use sluicenet_proto::guard::Guard;
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::neighbours::{Shown, shown};
use sluicenet_proto::time::Instant;
use sluicenet_wire::ethernet::MacAddress;
use std::net::IpAddr;

/// First bytes of a frame by which a station shows itself: a router's advertisement with many options, and a tag.
const SHOWING: usize = 512;

impl Engine {
    /// Learns the sender of a frame for a group from port `j`.
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
        // Other servers announce their own stations.
        if call!(&from.kind, domain(frame.buffer)).is_some() {
            return;
        }
        let mut bytes = [0; SHOWING];
        let bytes = &mut bytes[..(frame.len as usize).min(SHOWING)];
        from.read(frame.buffer, first_bytes, bytes);
        let Some(shown) = shown(bytes) else { return };
        let Ok(mac) = bytes[6..12].try_into() else { return };
        learn(ports, now, j, header.destination.domain(), mac, shown);
    }

    /// Learns the stations whose frames a port to other servers refused, because nobody has announced them there.
    #[cold]
    pub(super) fn learn_strangers(&mut self, now: Instant) {
        for k in 0..self.ports.len() {
            while let Some((domain, mac, address)) =
                self.ports[k].as_mut().filter(|port| port.present).and_then(|port| port.kind.get_mut().poll_stranger())
            {
                let shown = address.map_or(Shown::Station, |address| Shown::Address(address.into()));
                let at = self.vale.port_of(Station::new(mac, domain)).filter(|&j| j != k && j < self.ports.len());
                if let Some(j) = at {
                    learn(&mut self.ports, now, j, domain, mac, shown);
                }
            }
        }
    }

    /// Withdraws the learned stations of port `k`.
    pub(super) fn unlearn(&mut self, k: usize) {
        let now = self.now();
        let known = self.ports[k].as_mut().map(|port| std::mem::take(&mut port.known)).unwrap_or_default();
        known.leave().for_each(|news| tell(&mut self.ports, now, news));
    }

    /// Announces all learned stations again, for ports that have joined further networks.
    pub(super) fn tell_again(&mut self) {
        let now = self.now();
        let all: Vec<News> = self.ports.iter().flatten().flat_map(|port| port.known.all()).collect();
        all.into_iter().for_each(|news| tell(&mut self.ports, now, news));
    }
}

/// A station of port `j` has shown something.
fn learn(ports: &mut [Option<Attached>], now: Instant, j: usize, domain: u16, mac: [u8; 6], shown: Shown) {
    let Some(from) = ports[j].as_ref() else { return };
    let guard = from.access.guard.as_deref();
    let is_given = from.given.is_empty() || from.given.contains(&(mac, domain));
    let may_have_it = match shown {
        Shown::Station | Shown::Router => true,
        Shown::Address(address) => {
            let has = |guard: &Guard| guard.hosts().any(|own| own == address);
            let of_other = |port: &Attached| {
                port.present
                    && port.access.guard.as_deref().is_some_and(has)
                    && port.access.domain.unwrap_or(domain) == domain
            };
            let is_taken = || (0..ports.len()).any(|k| k != j && ports[k].as_ref().is_some_and(of_other));
            let allows = |guard: &Guard| match address {
                IpAddr::V4(address) => guard.allows_ipv4(address),
                IpAddr::V6(address) => guard.allows_ipv6(MacAddress(mac), address),
            };
            // Ports with the same configured address are processes of one machine.
            match guard {
                Some(guard) => has(guard) || allows(guard) && !is_taken(),
                None => !is_taken(),
            }
        }
    };
    if !is_given || !may_have_it {
        return;
    }
    let is_named = guard.is_some_and(|guard| guard.ipv4().is_some()) && !from.given.is_empty();
    // The station may have been at another port before.
    for other in ports.iter_mut().enumerate().filter(|&(k, _)| k != j).filter_map(|(_, port)| port.as_mut()) {
        other.known.forget(domain, mac);
    }
    let Some(from) = ports[j].as_mut() else { return };
    for news in from.known.hear(now, domain, mac, shown, is_named) {
        tell(ports, now, news);
    }
}

fn tell(ports: &mut [Option<Attached>], now: Instant, (domain, mac, address, here): News) {
    for attached in ports.iter_mut().flatten().filter(|a| a.present) {
        if let Kind::Other(port) = &mut attached.kind {
            port.learn(now, domain, mac, address, here);
        }
    }
}
