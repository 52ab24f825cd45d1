//! Neighbour discovery for IPv6 (RFC 4861): the addresses that a message names.
//!
//! A reader gets the start of a message and needs neither the rest nor the checksum: a receiver checks both.

use core::net::Ipv6Addr;

use crate::Error;
use crate::ethernet::MacAddress;

/// The hop limit of every message: a router never forwards one (RFC 4861, 6.1, 7.1).
pub const HOP_LIMIT: u8 = 255;

/// The kind of a message: its ICMPv6 type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Asks routers to advertise themselves.
    RouterSolicitation = 133,
    /// A router advertises itself, prefixes and settings.
    RouterAdvertisement = 134,
    /// Asks for the link-layer address of the target.
    NeighbourSolicitation = 135,
    /// Tells the link-layer address of the target.
    NeighbourAdvertisement = 136,
    /// A router names a better next hop.
    Redirect = 137,
}

impl Kind {
    /// The kind of this ICMPv6 type.
    pub const fn of(icmp_type: u8) -> Option<Kind> {
        match icmp_type {
            133 => Some(Kind::RouterSolicitation),
            134 => Some(Kind::RouterAdvertisement),
            135 => Some(Kind::NeighbourSolicitation),
            136 => Some(Kind::NeighbourAdvertisement),
            137 => Some(Kind::Redirect),
            _ => None,
        }
    }

    /// Bytes in front of the options.
    const fn fixed_len(self) -> usize {
        match self {
            Kind::RouterSolicitation => 8,
            Kind::RouterAdvertisement => 16,
            Kind::NeighbourSolicitation | Kind::NeighbourAdvertisement => 24,
            Kind::Redirect => 40,
        }
    }
}

/// Option types of the two link-layer addresses (RFC 4861, 4.6.1).
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;

/// A message, in the bytes behind the IPv6 headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The kind.
    pub kind: Kind,
    /// The target of a neighbour solicitation or advertisement, or of a redirect.
    pub target: Option<Ipv6Addr>,
    options: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads a message of ICMPv6; other messages are [`Error::Unsupported`].
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, Error> {
        let kind = Kind::of(*bytes.first().ok_or(Error::Truncated)?).ok_or(Error::Unsupported)?;
        let (fixed, options) = bytes.split_at_checked(kind.fixed_len()).ok_or(Error::Truncated)?;
        let target = match kind {
            Kind::RouterSolicitation | Kind::RouterAdvertisement => None,
            _ => Some(Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| fixed[8 + i]))),
        };
        Ok(Message { kind, target, options })
    }

    /// The addresses in its options for the source or target link-layer address; an error ends them. An option of another
    /// length than that of Ethernet (RFC 2464, 6) is [`Error::Length`].
    pub fn link_layer_addresses(&self) -> impl Iterator<Item = Result<MacAddress, Error>> + 'a {
        let mut rest = self.options;
        core::iter::from_fn(move || {
            while let [kind, words, ..] = *rest {
                let Some((option, behind)) = rest.split_at_checked(usize::from(words) * 8).filter(|_| words > 0) else {
                    rest = &[];
                    return Some(Err(Error::Length));
                };
                rest = behind;
                if matches!(kind, SOURCE_LINK_LAYER | TARGET_LINK_LAYER) {
                    let address = |option: &[u8; 8]| MacAddress(core::array::from_fn(|i| option[2 + i]));
                    return Some(<&[u8; 8]>::try_from(option).map(address).map_err(|_| Error::Length));
                }
            }
            let is_cut = !core::mem::take(&mut rest).is_empty();
            is_cut.then_some(Err(Error::Length))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    const MAC: MacAddress = MacAddress::local(7);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9);

    fn message(icmp_type: u8, fixed: usize, options: &[&[u8]]) -> Vec<u8> {
        let mut bytes = std::vec![0; fixed];
        bytes[0] = icmp_type;
        if fixed >= 24 {
            bytes[8..24].copy_from_slice(&TARGET.octets());
        }
        [&bytes[..], &options.concat()].concat()
    }

    fn link_layer(kind: u8) -> [u8; 8] {
        let [a, b, c, d, e, f] = MAC.0;
        [kind, 1, a, b, c, d, e, f]
    }

    #[test]
    fn each_kind_names_its_target_and_its_link_layer_addresses() {
        let (nonce, mtu) = ([14, 1, 1, 2, 3, 4, 5, 6], [5, 1, 0, 0, 0, 0, 5, 220]);
        for (icmp_type, fixed, has_target) in
            [(133, 8, false), (134, 16, false), (135, 24, true), (136, 24, true), (137, 40, true)]
        {
            let bytes = message(icmp_type, fixed, &[&nonce, &link_layer(1), &mtu, &link_layer(2)]);
            let parsed = Message::parse(&bytes).unwrap();
            assert_eq!(parsed.target, has_target.then_some(TARGET), "{icmp_type}");
            assert_eq!(parsed.link_layer_addresses().collect::<Vec<_>>(), [Ok(MAC), Ok(MAC)]);
            assert_eq!(Message::parse(&bytes[..fixed - 1]), Err(Error::Truncated));
            assert_eq!(Message::parse(&bytes[..fixed]).unwrap().link_layer_addresses().count(), 0);
        }
        assert_eq!(Message::parse(&[128; 40]), Err(Error::Unsupported), "an echo request");
    }

    #[test]
    fn options_that_lie_about_their_length_end_in_an_error() {
        let addresses = |options: &[&[u8]]| {
            let bytes = message(135, 24, options);
            Message::parse(&bytes).unwrap().link_layer_addresses().collect::<Vec<_>>()
        };
        let good = link_layer(1);
        assert_eq!(addresses(&[&good, &[1, 0, 0, 0, 0, 0, 0, 0]]), [Ok(MAC), Err(Error::Length)], "no end");
        assert_eq!(addresses(&[&good, &[14, 2, 0, 0, 0, 0, 0, 0]]), [Ok(MAC), Err(Error::Length)], "cut short");
        assert_eq!(addresses(&[&good, &[1]]), [Ok(MAC), Err(Error::Length)]);
        assert_eq!(addresses(&[&[1, 2], &[0; 14], &good]), [Err(Error::Length), Ok(MAC)], "no address of Ethernet");
        random::never_panics(
            |_| message(136, 24, &[&link_layer(2), &link_layer(1)]),
            |bytes| Message::parse(bytes).is_ok_and(|m| m.link_layer_addresses().all(|address| address.is_ok())),
        );
    }
}
