//! Addresses and routes, as they are written.

use sluicenet_dataplane::kernel::link;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address in a network of so many bits: `10.0.0.1/24`, `fd00::1/64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network's prefix.
    pub bits: u8,
}

/// A route: `192.168.0.0/16` on the link, `192.168.0.0/16,10.0.0.254` through a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its destinations.
    pub to: Prefix,
    /// The next hop; none if the destinations are on the link.
    pub via: Option<IpAddr>,
    /// The MTU of the path.
    pub mtu: Option<u32>,
    /// The largest TCP segment to announce.
    pub advmss: Option<u32>,
    /// Its priority; the lowest one counts.
    pub priority: Option<u32>,
    /// Its table; default the main one.
    pub table: Option<u32>,
    /// How far its destinations are: 0 anywhere, 253 on the link, 254 the host; default by the next hop.
    pub scope: Option<u8>,
}

impl Route {
    /// A route with nothing more than its destinations and a next hop.
    pub fn plain(to: Prefix, via: Option<IpAddr>) -> Route {
        Route { to, via, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }

    /// As the kernel takes it.
    pub(super) fn of_the_kernel(&self) -> link::Route {
        let Route { to, via, mtu, advmss, priority, table, scope } = *self;
        link::Route { to: (to.address, to.bits), via, mtu, advmss, priority, table, scope }
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Prefix, String> {
        let wrong =
            |why: &str| format!("{text}: {why}; expected: an address and the bits of its network, as 10.0.0.1/24");
        let (address, bits) = text.split_once('/').ok_or_else(|| wrong("the bits of the network are missing"))?;
        let address: IpAddr = address.parse().map_err(|_| wrong("this is no address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits.parse::<u8>() {
            Ok(n) if n <= most && n.to_string() == bits => Ok(Prefix { address, bits: n }),
            _ => Err(wrong(&format!("a network has 0 to {most} bits"))),
        }
    }
}

impl Prefix {
    /// Whether the address can be that of a device.
    ///
    /// # Errors
    /// The reason.
    pub fn of_a_device(self) -> Result<Prefix, String> {
        let broadcast = matches!(self.address, IpAddr::V4(a) if a.is_broadcast());
        match self.address.is_unspecified() || self.address.is_multicast() || self.address.is_loopback() || broadcast {
            true => Err(format!("{self}: this is not the address of one device")),
            false => Ok(self),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Route, String> {
        let (to, via) = match text.split_once(',') {
            Some((to, via)) => (to, Some(via)),
            None => (text, None),
        };
        let to: Prefix = to.parse()?;
        let via =
            via.map(|via| via.parse::<IpAddr>().map_err(|_| format!("{text}: {via} is no address"))).transpose()?;
        match via {
            Some(via) if via.is_ipv4() != to.address.is_ipv4() => {
                Err(format!("{text}: destination and next hop are of different families"))
            }
            _ => Ok(Route::plain(to, via)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_routes_are_read() {
        let prefix: Prefix = "10.0.0.1/24".parse().unwrap();
        assert_eq!((prefix.address, prefix.bits), ([10, 0, 0, 1].into(), 24));
        assert_eq!("fd00::1/64".parse::<Prefix>().unwrap().to_string(), "fd00::1/64");
        for wrong in ["10.0.0.1", "10.0.0.1/33", "10.0.0.1/-1", "10.0.0.1/024", "x/24", "10.0.0.1/", "fd00::1/129"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
        for wrong in ["0.0.0.0/0", "224.0.0.1/24", "127.0.0.1/8", "255.255.255.255/32", "ff02::1/64"] {
            assert!(wrong.parse::<Prefix>().unwrap().of_a_device().is_err(), "{wrong}");
        }
        let route: Route = "192.168.0.0/16,10.0.0.254".parse().unwrap();
        assert_eq!(route.via, Some([10, 0, 0, 254].into()));
        assert_eq!("192.168.0.0/16".parse::<Route>().unwrap().via, None);
        assert!("192.168.0.0/16,fd00::1".parse::<Route>().is_err());
    }
}
