//! Sets of IP addresses.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// All addresses that begin with the same bits; one address if these are all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// The addresses whose first `len` bits are those of `address`; `None` if the address has fewer bits, or other bits behind
    /// them.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let (bits, rest) = match address {
            IpAddr::V4(v4) => (32, u128::from(u32::from(v4)) << 96),
            IpAddr::V6(v6) => (128, u128::from(v6)),
        };
        let is_clear = len <= bits && rest.checked_shl(len.into()).unwrap_or(0) == 0;
        is_clear.then_some(Prefix { address, len })
    }

    /// The only address, if there is only one.
    pub fn host(&self) -> Option<IpAddr> {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        (self.len == bits).then_some(self.address)
    }

    /// Whether these are all addresses of a family.
    pub fn is_all(&self) -> bool {
        self.len == 0
    }

    /// Whether the addresses are link-local ones of IPv6 (RFC 4291, 2.5.6).
    pub fn is_link_local(&self) -> bool {
        self.len >= 10 && matches!(self.address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
    }

    /// The addresses that both have: these or the others, or none.
    pub fn shared_with(&self, other: &Prefix) -> Option<Prefix> {
        let (wide, narrow) = if self.len <= other.len { (self, other) } else { (other, self) };
        let has = match narrow.address {
            IpAddr::V4(address) => wide.has_ipv4(address),
            IpAddr::V6(address) => wide.has_ipv6(address),
        };
        has.then_some(*narrow)
    }

    /// Whether an IPv4 address is one of them.
    #[inline]
    pub fn has_ipv4(&self, address: Ipv4Addr) -> bool {
        let IpAddr::V4(own) = self.address else { return false };
        (u64::from(u32::from(own) ^ u32::from(address)) << self.len) >> 32 == 0
    }

    /// Whether an IPv6 address is one of them.
    #[inline]
    pub fn has_ipv6(&self, address: Ipv6Addr) -> bool {
        let IpAddr::V6(own) = self.address else { return false };
        let other_bits = u128::from(own) ^ u128::from(address);
        other_bits.checked_shr(128 - u32::from(self.len)).unwrap_or(0) == 0
    }
}

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Prefix {
        Prefix { address, len: if address.is_ipv4() { 32 } else { 128 } }
    }
}

/// An address, or an address, `/` and the number of bits.
impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Prefix, BadPrefix> {
        let Some((address, len)) = text.split_once('/') else {
            return text.parse::<IpAddr>().map(Prefix::from).map_err(|_| BadPrefix::Unreadable);
        };
        let address: IpAddr = address.parse().map_err(|_| BadPrefix::Unreadable)?;
        // A sign or a leading zero is no number of bits.
        let is_number = len.bytes().all(|digit| digit.is_ascii_digit()) && (len == "0" || !len.starts_with('0'));
        let len: u8 = len.parse().ok().filter(|_| is_number).ok_or(BadPrefix::Unreadable)?;
        if len > if address.is_ipv4() { 32 } else { 128 } {
            return Err(BadPrefix::Unreadable);
        }
        Prefix::new(address, len).ok_or(BadPrefix::Host)
    }
}

/// Why a text is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPrefix {
    /// It is neither an address nor a prefix.
    Unreadable,
    /// The address has bits behind the prefix: it is that of a machine in a network.
    Host,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}/{}", self.address, self.len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_prefix_has_the_addresses_with_its_bits() {
        for (text, inside, outside) in [
            ("10.0.0.1", "10.0.0.1", "10.0.0.0"),
            ("10.0.1.0/24", "10.0.1.255", "10.0.2.0"),
            ("10.0.0.0/31", "10.0.0.1", "10.0.0.2"),
            ("128.0.0.0/1", "255.0.0.0", "127.255.255.255"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("fe80::/10", "febf::1", "fec0::1"),
            ("8000::/1", "ffff::", "7fff::"),
        ] {
            let prefix: Prefix = text.parse().unwrap();
            assert_eq!(prefix.to_string(), text);
            let has = |address: &str| match address.parse().unwrap() {
                IpAddr::V4(address) => prefix.has_ipv4(address),
                IpAddr::V6(address) => prefix.has_ipv6(address),
            };
            assert_eq!((has(inside), has(outside)), (true, false), "{text}");
            assert_eq!(prefix.host().is_some(), !text.contains('/'));
        }
        let all: [Prefix; 2] = ["0.0.0.0/0", "::/0"].map(|text| text.parse().unwrap());
        assert!(all[0].has_ipv4(Ipv4Addr::BROADCAST) && !all[1].has_ipv4(Ipv4Addr::BROADCAST));
        assert!(all[1].has_ipv6(Ipv6Addr::LOCALHOST) && !all[0].has_ipv6(Ipv6Addr::LOCALHOST));
        assert_eq!("10.0.0.1/32".parse::<Prefix>().unwrap().to_string(), "10.0.0.1");
    }

    #[test]
    fn two_prefixes_share_the_narrower_one_or_nothing() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        for (a, b, shared) in [
            ("10.0.0.1", "10.0.0.1", Some("10.0.0.1")),
            ("10.0.0.0/24", "10.0.0.7", Some("10.0.0.7")),
            ("10.0.0.0/8", "10.1.0.0/16", Some("10.1.0.0/16")),
            ("10.0.0.0/24", "10.0.1.0/24", None),
            ("0.0.0.0/0", "::1", None),
            ("::/0", "2001:db8::/32", Some("2001:db8::/32")),
            ("2001:db8::1", "2001:db8::2", None),
        ] {
            for (a, b) in [(a, b), (b, a)] {
                assert_eq!(prefix(a).shared_with(&prefix(b)), shared.map(prefix), "{a} {b}");
            }
        }
        assert!(prefix("::/0").is_all() && !prefix("::/1").is_all());
        let link_local = ["fe80::1", "fe80::/64", "fe80::/10", "fec0::/10", "fe00::/9", "10.0.0.1"];
        let is = link_local.map(|text| prefix(text).is_link_local());
        assert_eq!(is, [true, true, true, false, false, false]);
    }

    #[test]
    fn what_is_no_prefix_says_why() {
        for text in ["", "10.0.0", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/08", "::/1/1", "/0"] {
            assert_eq!(text.parse::<Prefix>(), Err(BadPrefix::Unreadable), "{text}");
        }
        for text in ["10.0.0.1/24", "2001:db8::1/64", "0.0.0.1/0", "::1/0"] {
            assert_eq!(text.parse::<Prefix>(), Err(BadPrefix::Host), "{text}");
        }
    }
}
