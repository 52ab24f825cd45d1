//! ICMPv6 that a switch answers itself: "Packet Too Big" (RFC 4443, 3.2), and the messages with which hosts find their
//! neighbours (RFC 4861, 4), checked as a host checks them.

use core::net::Ipv6Addr;

use crate::Error;
use crate::ethernet::MacAddress;
use crate::ipv6::{self, ICMPV6};
use crate::ndp::{HOP_LIMIT, Kind, Message};

/// Bytes in front of the quoted packet.
pub const TOO_BIG_LEN: usize = 8;
/// Bytes of a solicitation or advertisement with the option that we write.
pub const NEIGHBOUR_LEN: usize = 24 + OPTION_LEN;

const PACKET_TOO_BIG: u8 = 2;
/// Bytes of a solicitation or advertisement without options.
const TARGET_LEN: usize = 24;

const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Bytes of an option with a MAC address.
const OPTION_LEN: usize = 8;

/// The header of a "Packet Too Big".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Bytes of the largest packet that gets through.
    pub mtu: u32,
}

impl TooBig {
    /// Reads a message; returns the start of the quoted packet. Other messages are [`Error::Unsupported`].
    pub fn parse<'a>(ip: &ipv6::Repr, bytes: &'a [u8]) -> Result<(TooBig, &'a [u8]), Error> {
        let (&[kind, _, _, _, m0, m1, m2, m3], quoted) =
            bytes.split_first_chunk::<TOO_BIG_LEN>().ok_or(Error::Truncated)?;
        if ip.next_header != ICMPV6 || kind != PACKET_TOO_BIG {
            return Err(Error::Unsupported);
        }
        if ip.checksum(bytes) != 0 {
            return Err(Error::Checksum);
        }
        Ok((TooBig { mtu: u32::from_be_bytes([m0, m1, m2, m3]) }, quoted))
    }

    /// Writes the header in front of the quoted bytes, which must already be in `bytes[TOO_BIG_LEN..]`.
    pub fn emit(&self, ip: &ipv6::Repr, bytes: &mut [u8]) {
        bytes[..4].copy_from_slice(&[PACKET_TOO_BIG, 0, 0, 0]);
        bytes[4..8].copy_from_slice(&self.mtu.to_be_bytes());
        write_checksum(ip, bytes);
    }
}

/// Whether the payload of an IPv6 packet is an ICMPv6 error, about which no other error may be sent.
pub fn is_error(ip: &ipv6::Repr, payload: &[u8]) -> bool {
    ip.next_header == ICMPV6 && payload.first().is_none_or(|kind| kind & 0x80 == 0)
}

/// A message of Neighbour Discovery that a switch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Asks for the MAC address of the target, or whether the target is free.
    Solicitation {
        /// The address that is asked for.
        target: Ipv6Addr,
        /// The sender's MAC address.
        source: Option<MacAddress>,
    },
    /// Tells the MAC address of the target.
    Advertisement {
        /// Whether its sender is a router.
        router: bool,
        /// Whether it answers a solicitation.
        solicited: bool,
        /// Whether it replaces what the receiver knows.
        overrides: bool,
        /// The address.
        target: Ipv6Addr,
        /// Its MAC address.
        address: Option<MacAddress>,
    },
    /// The sender is a router.
    Router,
}

impl Neighbour {
    /// Reads a message, by the rules for valid ones (RFC 4861, 6.1.2, 7.1.1 and 7.1.2). Other messages are
    /// [`Error::Unsupported`].
    pub fn parse(ip: &ipv6::Repr, bytes: &[u8]) -> Result<Neighbour, Error> {
        let &[_, code, _, _, flags, ..] = bytes.first_chunk::<8>().ok_or(Error::Truncated)?;
        let message = Message::parse(bytes)?;
        if ip.next_header != ICMPV6 || code != 0 || ip.hop_limit != HOP_LIMIT || ip.source.is_multicast() {
            return Err(Error::Unsupported);
        }
        if ip.checksum(bytes) != 0 {
            return Err(Error::Checksum);
        }
        let mut address = None;
        for option in message.link_layer_addresses() {
            address = Some(option?);
        }
        let target = match (message.kind, message.target) {
            (Kind::RouterAdvertisement, _) if ip.source.is_unicast_link_local() => return Ok(Neighbour::Router),
            (Kind::NeighbourSolicitation | Kind::NeighbourAdvertisement, Some(target)) => target,
            _ => return Err(Error::Unsupported),
        };
        if target.is_multicast() || target.is_unspecified() {
            return Err(Error::Unsupported);
        }
        if message.kind == Kind::NeighbourSolicitation {
            let for_group = ip.destination == ipv6::solicited_node(target);
            if ip.source.is_unspecified() && (address.is_some() || !for_group) {
                return Err(Error::Unsupported);
            }
            return Ok(Neighbour::Solicitation { target, source: address });
        }
        let [router, solicited, overrides] = [0x80, 0x40, 0x20].map(|bit| flags & bit != 0);
        if ip.source.is_unspecified() || ip.destination.is_multicast() && solicited {
            return Err(Error::Unsupported);
        }
        Ok(Neighbour::Advertisement { router, solicited, overrides, target, address })
    }

    /// Writes a solicitation or an advertisement into [`NEIGHBOUR_LEN`] bytes. Its header must have the hop limit that
    /// [`Neighbour::header`] gives.
    ///
    /// # Panics
    /// A router's advertisement is never written.
    pub fn emit(&self, ip: &ipv6::Repr, bytes: &mut [u8]) {
        let (kind, flags, target, option, address) = match *self {
            Neighbour::Solicitation { target, source } => {
                (Kind::NeighbourSolicitation, 0, target, SOURCE_ADDRESS, source)
            }
            Neighbour::Advertisement { router, solicited, overrides, target, address } => {
                let flags = u8::from(router) << 7 | u8::from(solicited) << 6 | u8::from(overrides) << 5;
                (Kind::NeighbourAdvertisement, flags, target, TARGET_ADDRESS, address)
            }
            Neighbour::Router => unreachable!("a switch is no router"),
        };
        bytes[..8].copy_from_slice(&[kind as u8, 0, 0, 0, flags, 0, 0, 0]);
        bytes[8..24].copy_from_slice(&target.octets());
        if let Some(MacAddress(mac)) = address {
            bytes[24..26].copy_from_slice(&[option, 1]);
            bytes[26..32].copy_from_slice(&mac);
        }
        write_checksum(ip, bytes);
    }

    /// The header of this message.
    pub fn header(&self, source: Ipv6Addr, destination: Ipv6Addr) -> ipv6::Repr {
        let has_address = match self {
            Neighbour::Solicitation { source, .. } => source.is_some(),
            Neighbour::Advertisement { address, .. } => address.is_some(),
            Neighbour::Router => false,
        };
        let payload_len = (TARGET_LEN + if has_address { OPTION_LEN } else { 0 }) as u16;
        ipv6::Repr {
            source,
            destination,
            next_header: ICMPV6,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            payload_len,
        }
    }
}

fn write_checksum(ip: &ipv6::Repr, bytes: &mut [u8]) {
    bytes[2..4].fill(0);
    let sum = ip.checksum(bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};
    use std::vec;
    use std::vec::Vec;

    fn address(random: &mut Random) -> Ipv6Addr {
        let mut bytes = random.array::<16>();
        bytes[0] = 0x20;
        bytes.into()
    }

    /// A valid message, and the packet that carries it.
    fn any(random: &mut Random) -> (Neighbour, Vec<u8>) {
        let (from, to, target) = (address(random), address(random), address(random));
        let mac = random.bool().then(|| MacAddress(random.array()));
        let message = match random.bool() {
            true => Neighbour::Solicitation { target, source: mac },
            false => Neighbour::Advertisement {
                router: random.bool(),
                solicited: random.bool(),
                overrides: random.bool(),
                target,
                address: mac,
            },
        };
        let ip = message.header(from, to);
        let mut packet = vec![0; ipv6::HEADER_LEN + usize::from(ip.payload_len)];
        ip.emit(&mut packet);
        message.emit(&ip, &mut packet[ipv6::HEADER_LEN..]);
        (message, packet)
    }

    fn parse(packet: &[u8]) -> Result<Neighbour, Error> {
        let (ip, payload) = ipv6::Repr::parse(packet)?;
        Neighbour::parse(&ip, payload)
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (message, packet) = any(random);
            assert_eq!(parse(&packet), Ok(message));
            let mut damaged = packet.clone();
            damaged[ipv6::HEADER_LEN + 8 + random.below(16) as usize] ^= 1;
            assert_eq!(parse(&damaged), Err(Error::Checksum));
        });
        random::never_panics(|random| any(random).1, |bytes| parse(bytes).is_ok());
        random::check(|random| {
            let ip = ipv6::Repr {
                source: address(random),
                destination: address(random),
                next_header: ICMPV6,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: 64,
                payload_len: 0,
            };
            let mut bytes = random.bytes(TOO_BIG_LEN + 40);
            TooBig { mtu: 1446 }.emit(&ip, &mut bytes);
            assert_eq!(TooBig::parse(&ip, &bytes), Ok((TooBig { mtu: 1446 }, &bytes[TOO_BIG_LEN..])));
            let other = ipv6::Repr { source: address(random), ..ip };
            assert_eq!(TooBig::parse(&other, &bytes), Err(Error::Checksum), "the pseudo header is covered");
        });
    }

    /// A message with changed bytes, whose checksum is right.
    fn with(
        message: Neighbour,
        from: Ipv6Addr,
        to: Ipv6Addr,
        change: impl FnOnce(&mut ipv6::Repr, &mut Vec<u8>),
    ) -> Result<Neighbour, Error> {
        let mut ip = message.header(from, to);
        let mut bytes = vec![0; usize::from(ip.payload_len)];
        message.emit(&ip, &mut bytes);
        change(&mut ip, &mut bytes);
        write_checksum(&ip, &mut bytes);
        Neighbour::parse(&ip, &bytes)
    }

    #[test]
    fn each_rule_of_a_valid_message() {
        let a = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let (me, you, all) = (a("fe80::1"), a("fe80::2"), a("ff02::1"));
        let mac = Some(MacAddress::local(1));
        let asks = |source| Neighbour::Solicitation { target: you, source };
        let tells = |solicited| Neighbour::Advertisement {
            router: false,
            solicited,
            overrides: true,
            target: me,
            address: mac,
        };
        let group = ipv6::solicited_node(you);
        assert!(with(asks(mac), me, group, |_, _| {}).is_ok());
        assert!(with(asks(None), Ipv6Addr::UNSPECIFIED, group, |_, _| {}).is_ok(), "duplicate address detection");
        assert!(with(asks(mac), Ipv6Addr::UNSPECIFIED, group, |_, _| {}).is_err(), "with a source option");
        assert!(with(asks(None), Ipv6Addr::UNSPECIFIED, you, |_, _| {}).is_err(), "for one station");
        assert!(with(asks(mac), all, group, |_, _| {}).is_err(), "from a group");
        assert!(with(asks(mac), me, group, |ip, _| ip.hop_limit = 254).is_err(), "forwarded by a router");
        assert!(with(asks(mac), me, group, |_, bytes| bytes[1] = 1).is_err(), "another code");
        assert!(with(asks(mac), me, group, |_, bytes| bytes[8] = 0xFF).is_err(), "a group as target");
        assert!(with(asks(mac), me, group, |_, bytes| bytes[25] = 0).is_err(), "an option of no length");
        assert!(with(asks(mac), me, group, |_, bytes| bytes[25] = 2).is_err(), "a longer option than bytes");
        assert_eq!(with(asks(mac), me, group, |_, bytes| bytes[24] = 14), Ok(asks(None)), "another option is skipped");
        assert!(with(tells(true), me, you, |_, _| {}).is_ok());
        assert!(with(tells(false), me, all, |_, _| {}).is_ok(), "unsolicited");
        assert!(with(tells(true), me, all, |_, _| {}).is_err(), "solicited, for a group");
        // A router's advertisement: 16 bytes and an option.
        let router = |from| {
            with(tells(false), from, all, |_, bytes| {
                bytes[0] = Kind::RouterAdvertisement as u8;
                bytes.truncate(16);
            })
        };
        assert_eq!(router(me), Ok(Neighbour::Router));
        assert!(router(a("2001:db8::1")).is_err(), "not from a link-local address");
    }
}
