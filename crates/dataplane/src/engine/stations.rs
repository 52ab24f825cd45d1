//! The stations that have shown themselves at a port.

use sluicenet_proto::overlay::neighbours::Shown;
use sluicenet_proto::overlay::registrar::ADDRESSES_MAX;
use sluicenet_proto::time::{Duration, Instant};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Stations that one port can make known: enough for a machine with a few containers. The limits of all ports together are
/// far below a controller's limit for one server.
const STATIONS_MAX: usize = 16;
/// A station that repeats its announcement, or changes its addresses, is heard again only after this time, so that a station
/// that repeats it without end costs the controller one message per second.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// News about a station: its domain, its MAC address, an address, and whether it has the address or no longer. 0.0.0.0 is the
/// station itself.
pub(super) type News = (u16, [u8; 6], IpAddr, bool);

/// A station that has shown itself at a port.
#[derive(Clone, Debug)]
struct Known {
    domain: u16,
    mac: [u8; 6],
    /// 0.0.0.0 if the station has no address that others could resolve.
    address: Ipv4Addr,
    /// Its IPv6 addresses, the one that it showed first in front. A router has none here: it answers for itself.
    addresses: Vec<Ipv6Addr>,
    is_router: bool,
    heard: Instant,
    /// Whether the file names it. Then other servers know the station and its IPv4 address already.
    is_named: bool,
}

impl Known {
    fn is(&self, domain: u16, mac: [u8; 6]) -> bool {
        (self.domain, self.mac) == (domain, mac)
    }

    fn news(&self, address: impl Into<IpAddr>, here: bool) -> News {
        (self.domain, self.mac, address.into(), here)
    }

    /// All that other servers have to know.
    fn all(&self) -> impl Iterator<Item = News> + '_ {
        let station = (!self.is_named).then(|| self.news(self.address, true));
        station.into_iter().chain(self.addresses.iter().map(|&address| self.news(address, true)))
    }

    /// The station has shown something new.
    fn show(&mut self, shown: Shown) -> Vec<News> {
        match shown {
            // A probe without an address (RFC 5227, 2.1.1) may be about another station's address; the station keeps its own.
            Shown::Station | Shown::Address(IpAddr::V4(_)) if self.is_named => Vec::new(),
            Shown::Station => vec![self.news(self.address, true)],
            Shown::Address(IpAddr::V4(address)) => {
                self.address = address;
                vec![self.news(address, true)]
            }
            Shown::Address(IpAddr::V6(_)) if self.is_router => Vec::new(),
            Shown::Address(IpAddr::V6(address)) => {
                let oldest = (self.addresses.len() >= ADDRESSES_MAX && !self.addresses.contains(&address))
                    .then(|| self.addresses.remove(0));
                if !self.addresses.contains(&address) {
                    self.addresses.push(address);
                }
                let gone = oldest.map(|oldest| self.news(oldest, false));
                gone.into_iter().chain([self.news(address, true)]).collect()
            }
            Shown::Router => {
                self.is_router = true;
                let gone = std::mem::take(&mut self.addresses);
                gone.into_iter().map(|address| self.news(address, false)).collect()
            }
        }
    }

    /// Whether this is the first time that the station shows it, and cannot be repeated without end.
    fn is_first(&self, shown: Shown) -> bool {
        match shown {
            Shown::Station => false,
            Shown::Address(IpAddr::V4(_)) => self.address.is_unspecified() && !self.is_named,
            Shown::Address(IpAddr::V6(address)) => {
                !self.is_router && self.addresses.len() < ADDRESSES_MAX && !self.addresses.contains(&address)
            }
            Shown::Router => !self.is_router,
        }
    }
}

/// The stations of one port.
#[derive(Debug, Default)]
pub(super) struct KnownStations(Vec<Known>);

impl KnownStations {
    /// A station has shown something: the news for other servers.
    pub(super) fn hear(&mut self, now: Instant, domain: u16, mac: [u8; 6], shown: Shown, is_named: bool) -> Vec<News> {
        if let Some(known) = self.0.iter_mut().find(|known| known.is(domain, mac)) {
            if now.since(known.heard) < REPEAT_AFTER && !known.is_first(shown) {
                return Vec::new();
            }
            known.heard = now;
            return known.show(shown);
        }
        let says_nothing = is_named && !matches!(shown, Shown::Address(IpAddr::V6(_)) | Shown::Router);
        if self.0.len() >= STATIONS_MAX || says_nothing {
            return Vec::new();
        }
        let (address, addresses) = (Ipv4Addr::UNSPECIFIED, Vec::new());
        let mut known = Known { domain, mac, address, addresses, is_router: false, heard: now, is_named };
        known.show(shown);
        let news = known.all().collect();
        self.0.push(known);
        news
    }

    /// The station is at another port now.
    pub(super) fn forget(&mut self, domain: u16, mac: [u8; 6]) {
        self.0.retain(|known| !known.is(domain, mac));
    }

    /// All that other servers have to know.
    pub(super) fn all(&self) -> impl Iterator<Item = News> + '_ {
        self.0.iter().flat_map(Known::all)
    }

    /// The news when all stations leave. The addresses of a station leave with it.
    pub(super) fn leave(self) -> impl Iterator<Item = News> {
        self.0.into_iter().flat_map(|known| match known.is_named {
            true => known.addresses.iter().map(|&address| known.news(address, false)).collect(),
            false => vec![known.news(known.address, false)],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn v4(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }
    fn v6(n: u16) -> IpAddr {
        Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, n).into()
    }
    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    #[test]
    fn what_is_new_is_told_at_once_and_repetitions_once_a_second() {
        let mut stations = KnownStations::default();
        let mut hear = |ms, shown| {
            let news = stations.hear(at(ms), 5, MAC, shown, false);
            news.into_iter()
                .map(|(domain, mac, address, here)| {
                    assert_eq!((domain, mac), (5, MAC));
                    (address, here)
                })
                .collect::<Vec<_>>()
        };
        let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        assert_eq!(hear(0, Shown::Station), [(nobody, true)]);
        assert_eq!(hear(1, Shown::Address(v4(1))), [(v4(1), true)], "a lease soon after the request for it");
        assert_eq!(hear(2, Shown::Address(v4(2))), [], "it changes too often");
        assert_eq!(hear(3, Shown::Address(v6(1))), [(v6(1), true)]);
        assert_eq!(hear(4, Shown::Address(v6(1))), []);
        assert_eq!(hear(2_000, Shown::Address(v4(2))), [(v4(2), true)]);
        assert_eq!(hear(4_000, Shown::Station), [(v4(2), true)], "a probe takes no address away");
        for n in 2..=8 {
            assert_eq!(hear(4_001, Shown::Address(v6(n))), [(v6(n), true)]);
        }
        assert_eq!(hear(4_002, Shown::Address(v6(9))), [], "one more than there is room for");
        assert_eq!(hear(6_000, Shown::Address(v6(9))), [(v6(1), false), (v6(9), true)]);
        let gone = hear(6_001, Shown::Router);
        assert_eq!(gone, (2..=9).map(|n| (v6(n), false)).collect::<Vec<_>>());
        assert_eq!(hear(9_000, Shown::Address(v6(3))), [], "a router answers for itself");
        assert_eq!(stations.all().count(), 1);
        assert_eq!(stations.leave().collect::<Vec<_>>(), [(5, MAC, v4(2), false)]);
    }

    #[test]
    fn a_port_has_a_bounded_number_of_stations_and_named_ones_show_ipv6_only() {
        let mut stations = KnownStations::default();
        for n in 0..100 {
            let news = stations.hear(at(0), 5, [2, 0, 0, 0, 1, n], Shown::Station, false);
            assert_eq!(news.len(), usize::from(n < 16));
        }
        let mut stations = KnownStations::default();
        assert_eq!(stations.hear(at(0), 5, MAC, Shown::Address(v4(1)), true), []);
        assert_eq!(stations.hear(at(0), 5, MAC, Shown::Address(v6(1)), true), [(5, MAC, v6(1), true)]);
        assert_eq!(stations.all().collect::<Vec<_>>(), [(5, MAC, v6(1), true)]);
        assert_eq!(stations.leave().collect::<Vec<_>>(), [(5, MAC, v6(1), false)]);
    }
}
