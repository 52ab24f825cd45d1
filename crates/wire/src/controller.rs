//! Messages between a server and the overlay's controller (`docs/controller.md` defines each byte).
//!
//! A message has 80 bytes: the 64 of requests and replies in Crisan 2014, Table 3.1, and room for an IPv6 address. The last 16
//! bytes are a tag over the others. The owner of the key makes and checks the tag: this module does not authenticate messages.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::ethernet::MacAddress;
use crate::vxlan::MAX_VNI;

/// Bytes of a message.
pub const LEN: usize = 80;
/// Bytes covered by the tag, which follows them.
pub const SIGNED_LEN: usize = LEN - TAG_LEN;
/// Bytes of the tag: HMAC-SHA-256 cut to half, as RFC 4868 does.
pub const TAG_LEN: usize = 16;
/// UDP port of the controller; from the dynamic range, because no port is registered for it.
pub const UDP_PORT: u16 = 49_789;

/// The first bytes of a message: `slc` and the version of the format.
const MAGIC: [u8; 4] = *b"slc\x02";
/// Reserved bytes, which are 0.
const RESERVED: [usize; 5] = [40, 44, 45, 46, 47];

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A server asks for the location of the station with a MAC address.
    ResolveMac = 1,
    /// A server asks for the station with an IP address, and for its location.
    ResolveIp = 2,
    /// A server registers a station on itself, with its IPv4 address; or an IPv6 address of such a station.
    Register = 3,
    /// A server removes a station of its own; or an IPv6 address of such a station.
    Unregister = 4,
    /// The controller's answer to one of these messages.
    Answer = 5,
    /// The controller reports a changed mapping.
    Changed = 6,
    /// A server confirms a change.
    Heard = 7,
    /// A server says that it has a network, and asks for the next server with this network, by address.
    NextMember = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::ResolveMac,
        Kind::ResolveIp,
        Kind::Register,
        Kind::Unregister,
        Kind::Answer,
        Kind::Changed,
        Kind::Heard,
        Kind::NextMember,
    ];
}

/// The result in an answer; [`Status::Done`] in all other messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Status {
    /// The mapping is in the message, or the request was carried out.
    #[default]
    Done = 0,
    /// The station is unknown.
    Unknown = 1,
    /// The message is for another start of the controller, or repeated; `epoch` and `version` have the current values.
    Stale = 2,
    /// The station moves too often, or the controller has just started and does not know it: try again.
    Busy = 3,
    /// The station is on another server by now.
    Moved = 4,
    /// Another station of the tenant has this IP address.
    Conflict = 5,
    /// The table, or this server's share of it, is full.
    Full = 6,
}

impl Status {
    const ALL: [Status; 7] =
        [Status::Done, Status::Unknown, Status::Stale, Status::Busy, Status::Moved, Status::Conflict, Status::Full];
}

/// A message without its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repr {
    /// The kind of message.
    pub kind: Kind,
    /// The result.
    pub status: Status,
    /// The station's MAC address.
    pub mac: MacAddress,
    /// An IP address of the station; 0.0.0.0 when it has none.
    pub ip: IpAddr,
    /// The server that sends or receives the message.
    pub server: Ipv4Addr,
    /// The server of the station; 0.0.0.0 if it is unknown. Or a server with the network.
    pub location: Ipv4Addr,
    /// The start of the controller: a random number that is never 0.
    pub epoch: u32,
    /// VXLAN network identifier of the station's tenant, 24 bits.
    pub vni: u32,
    /// The number of this change among all changes of mappings; higher numbers are newer.
    pub version: u64,
    /// A number that the answer repeats; it rises with each message of a sender.
    pub request: u64,
}

impl Repr {
    /// Reads a whole message; the caller must check its tag first.
    ///
    /// Another magic, version, kind or status, and reserved bytes that are set, are [`Error::Unsupported`]; another size is
    /// [`Error::Truncated`] or [`Error::Length`].
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let (message, rest) = bytes.split_first_chunk::<LEN>().ok_or(Error::Truncated)?;
        if !rest.is_empty() {
            return Err(Error::Length);
        }
        let kind = Kind::ALL.into_iter().find(|&k| k as u8 == message[4]);
        let status = Status::ALL.into_iter().find(|&s| s as u8 == message[5]);
        let (Some(kind), Some(status)) = (kind, status) else { return Err(Error::Unsupported) };
        if message[..4] != MAGIC || RESERVED.iter().any(|&at| message[at] != 0) {
            return Err(Error::Unsupported);
        }
        let server = |at: usize| Ipv4Addr::from(array::<4>(message, at));
        let ip = address(Ipv6Addr::from(array::<16>(message, 12))).ok_or(Error::Unsupported)?;
        Ok(Repr {
            kind,
            status,
            mac: MacAddress(array(message, 6)),
            ip,
            server: server(28),
            location: server(32),
            epoch: u32::from_be_bytes(array(message, 36)),
            vni: u32::from_be_bytes(array(message, 40)),
            version: u64::from_be_bytes(array(message, 48)),
            request: u64::from_be_bytes(array(message, 56)),
        })
    }

    /// The message with an empty tag.
    pub fn emit(&self) -> [u8; LEN] {
        assert!(self.vni <= MAX_VNI, "a VNI has 24 bits");
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[self.kind as u8, self.status as u8]);
        bytes[6..12].copy_from_slice(&self.mac.0);
        bytes[12..28].copy_from_slice(&sixteen(self.ip).octets());
        bytes[28..32].copy_from_slice(&self.server.octets());
        bytes[32..36].copy_from_slice(&self.location.octets());
        bytes[36..40].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[40..44].copy_from_slice(&self.vni.to_be_bytes());
        bytes[48..56].copy_from_slice(&self.version.to_be_bytes());
        bytes[56..64].copy_from_slice(&self.request.to_be_bytes());
        bytes
    }
}

/// An address in 16 bytes: IPv4 as an IPv4-mapped address (RFC 4291, 2.5.5.2), and no address as zeros.
fn sixteen(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The address in 16 bytes; none if the bytes are another form of an address.
fn address(bytes: Ipv6Addr) -> Option<IpAddr> {
    match bytes.to_ipv4_mapped() {
        Some(ip) => Some(IpAddr::V4(ip)).filter(|ip| !ip.is_unspecified()),
        None if bytes.is_unspecified() => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        None => Some(IpAddr::V6(bytes)),
    }
}

fn array<const N: usize>(message: &[u8; LEN], at: usize) -> [u8; N] {
    core::array::from_fn(|i| message[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};

    fn any(random: &mut Random) -> Repr {
        Repr {
            kind: Kind::ALL[random.below(8) as usize],
            status: Status::ALL[random.below(7) as usize],
            mac: MacAddress(random.array()),
            ip: match random.below(3) {
                0 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                1 => IpAddr::V4(random.ipv4()),
                _ => IpAddr::V6(random.array::<16>().into()),
            },
            server: random.ipv4(),
            location: random.ipv4(),
            epoch: random.u64() as u32,
            vni: random.below(1 << 24) as u32,
            version: random.u64(),
            request: random.u64(),
        }
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            let mut bytes = repr.emit();
            // The tag is ignored.
            bytes[SIGNED_LEN..].copy_from_slice(&random.array::<TAG_LEN>());
            assert_eq!(Repr::parse(&bytes), Ok(repr));
        });
        random::never_panics(|random| any(random).emit().to_vec(), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn another_format_kind_or_size_is_refused() {
        let bytes = any(&mut Random::new(1)).emit();
        for (at, value) in [(0, b'S'), (3, 1), (4, 0), (4, 9), (5, 7), (40, 1), (44, 1), (47, 1)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        assert_eq!(Repr::parse(&bytes[..LEN - 1]), Err(Error::Truncated));
        assert_eq!(Repr::parse(&[bytes, bytes].concat()), Err(Error::Length));
        // 0.0.0.0 has one form.
        let mut mapped = bytes;
        mapped[12..28].copy_from_slice(&Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets());
        assert_eq!(Repr::parse(&mapped), Err(Error::Unsupported));
    }

    #[test]
    fn fields_stand_where_the_document_has_them() {
        let repr = Repr {
            kind: Kind::Register,
            status: Status::Busy,
            mac: MacAddress::local(7),
            ip: Ipv4Addr::new(10, 0, 0, 1).into(),
            server: Ipv4Addr::new(192, 0, 2, 1),
            location: Ipv4Addr::new(192, 0, 2, 2),
            epoch: 0x0102_0304,
            vni: 0xABCDEF,
            version: 5,
            request: 6,
        };
        let mut expected = [0; LEN];
        expected[..12].copy_from_slice(&[b's', b'l', b'c', 2, 3, 3, 2, 0, 0, 0, 0, 7]);
        expected[22..28].copy_from_slice(&[0xFF, 0xFF, 10, 0, 0, 1]);
        expected[28..36].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        expected[36..44].copy_from_slice(&[1, 2, 3, 4, 0, 0xAB, 0xCD, 0xEF]);
        (expected[55], expected[63]) = (5, 6);
        assert_eq!(repr.emit(), expected);
        let six: Ipv6Addr = "2001:db8::7".parse().unwrap();
        expected[12..28].copy_from_slice(&six.octets());
        assert_eq!(Repr { ip: six.into(), ..repr }.emit(), expected);
    }
}
