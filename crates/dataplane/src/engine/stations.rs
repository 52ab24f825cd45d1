//! The stations that have shown themselves at a port by ARP.

use sluicenet_proto::time::{Duration, Instant};
use std::net::Ipv4Addr;

/// Stations that one port can make known: enough for a machine with a few containers. The limits of all ports together are
/// far below a controller's limit for one server.
const STATIONS_MAX: usize = 16;
/// A station that repeats its announcement is heard again only after this time, so that a station that repeats it without end
/// costs the controller one message per second.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// A station that has shown itself at a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) domain: u16,
    pub(super) mac: [u8; 6],
    /// 0.0.0.0 if the station has no address that others could resolve.
    pub(super) address: Ipv4Addr,
    heard: Instant,
}

impl Known {
    fn is(&self, domain: u16, mac: [u8; 6]) -> bool {
        (self.domain, self.mac) == (domain, mac)
    }
}

/// The stations of one port.
#[derive(Debug, Default)]
pub(super) struct KnownStations(Vec<Known>);

impl KnownStations {
    /// A station has announced itself: its entry if other servers have to be told.
    pub(super) fn hear(&mut self, now: Instant, domain: u16, mac: [u8; 6], address: Ipv4Addr) -> Option<Known> {
        if let Some(known) = self.0.iter_mut().find(|known| known.is(domain, mac)) {
            if now.since(known.heard) < REPEAT_AFTER {
                return None;
            }
            // A probe without an address (RFC 5227, 2.1.1) may be about another station's address; the station keeps its own.
            known.address = if address.is_unspecified() { known.address } else { address };
            known.heard = now;
            return Some(*known);
        }
        if self.0.len() >= STATIONS_MAX {
            return None;
        }
        let known = Known { domain, mac, address, heard: now };
        self.0.push(known);
        Some(known)
    }

    /// The station is at another port now.
    pub(super) fn forget(&mut self, domain: u16, mac: [u8; 6]) {
        self.0.retain(|known| !known.is(domain, mac));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Known> + '_ {
        self.0.iter().copied()
    }
}
