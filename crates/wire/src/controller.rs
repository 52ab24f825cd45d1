//! Messages between a server and the overlay's controller (`docs/controller.md` has them byte by byte).
//!
//! A message has 64 bytes, the size that Crisan 2014, Table 3.1 gives requests and replies. The last 16 are a tag over the
//! others, which whoever has the key makes and checks: nothing here says that a message is genuine.

use core::net::Ipv4Addr;

use crate::Error;
use crate::ethernet::MacAddress;
use crate::vxlan::MAX_VNI;

/// Bytes of a message.
pub const LEN: usize = 64;
/// Bytes that the tag is made of; the tag follows them.
pub const SIGNED_LEN: usize = LEN - TAG_LEN;
/// Bytes of the tag: HMAC-SHA-256 cut to half, as RFC 4868 does.
pub const TAG_LEN: usize = 16;
/// UDP port of the controller; of the dynamic range, because nobody has registered one.
pub const UDP_PORT: u16 = 49_789;

/// The first bytes of a message: `slc` and the version of the format.
const MAGIC: [u8; 4] = *b"slc\x01";

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A server asks where the station with a MAC address lives.
    ResolveMac = 1,
    /// A server asks which station has an IPv4 address, and where it lives.
    ResolveIp = 2,
    /// A server says that a station lives on it.
    Register = 3,
    /// A server says that a station no longer lives on it.
    Unregister = 4,
    /// The controller answers one of these.
    Answer = 5,
    /// The controller says that a mapping changed.
    Changed = 6,
    /// A server has heard of a change.
    Heard = 7,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::ResolveMac, Kind::ResolveIp, Kind::Register, Kind::Unregister, Kind::Answer, Kind::Changed, Kind::Heard];
}

/// How an answer turned out; [`Status::Done`] in all that is not one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Status {
    /// The mapping is in the message; or it was done.
    #[default]
    Done = 0,
    /// There is no such station.
    Unknown = 1,
    /// The message speaks of another start of the controller, or comes again; `epoch` and `version` say what counts.
    Stale = 2,
    /// The station moved or moves too often: ask again.
    Busy = 3,
    /// The station lives elsewhere by now.
    Moved = 4,
    /// Another station of the tenant has this IPv4 address.
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
    /// What it is.
    pub kind: Kind,
    /// How it turned out.
    pub status: Status,
    /// The station's MAC address.
    pub mac: MacAddress,
    /// The station's IPv4 address; 0.0.0.0 when it has none.
    pub ip: Ipv4Addr,
    /// The server that speaks, or is spoken to.
    pub server: Ipv4Addr,
    /// The server on which the station lives; 0.0.0.0 when nobody knows.
    pub location: Ipv4Addr,
    /// Which start of the controller is meant: a random number that is never 0.
    pub epoch: u32,
    /// VXLAN network identifier of the station's tenant, 24 bits.
    pub vni: u32,
    /// Which change of all mappings this one is; higher ones are newer.
    pub version: u64,
    /// What an answer repeats; higher with each message of its sender.
    pub request: u64,
}

impl Repr {
    /// Reads a whole message; whether its tag is right is for the caller to find out first.
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
        if message[..4] != MAGIC || message[28] != 0 {
            return Err(Error::Unsupported);
        }
        let ip = |at: usize| Ipv4Addr::from(array::<4>(message, at));
        Ok(Repr {
            kind,
            status,
            mac: MacAddress(array(message, 6)),
            ip: ip(12),
            server: ip(16),
            location: ip(20),
            epoch: u32::from_be_bytes(array(message, 24)),
            vni: u32::from_be_bytes(array(message, 28)),
            version: u64::from_be_bytes(array(message, 32)),
            request: u64::from_be_bytes(array(message, 40)),
        })
    }

    /// The message with an empty tag.
    pub fn emit(&self) -> [u8; LEN] {
        assert!(self.vni <= MAX_VNI, "a VNI has 24 bits");
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[self.kind as u8, self.status as u8]);
        bytes[6..12].copy_from_slice(&self.mac.0);
        bytes[12..16].copy_from_slice(&self.ip.octets());
        bytes[16..20].copy_from_slice(&self.server.octets());
        bytes[20..24].copy_from_slice(&self.location.octets());
        bytes[24..28].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.vni.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.version.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.request.to_be_bytes());
        bytes
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
            kind: Kind::ALL[random.below(7) as usize],
            status: Status::ALL[random.below(7) as usize],
            mac: MacAddress(random.array()),
            ip: random.ipv4(),
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
            // The tag is not looked at.
            bytes[SIGNED_LEN..].copy_from_slice(&random.array::<TAG_LEN>());
            assert_eq!(Repr::parse(&bytes), Ok(repr));
        });
        random::never_panics(|random| any(random).emit().to_vec(), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn another_format_kind_or_size_is_refused() {
        let bytes = any(&mut Random::new(1)).emit();
        for (at, value) in [(0, b'S'), (3, 2), (4, 0), (4, 8), (5, 7), (28, 1)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        assert_eq!(Repr::parse(&bytes[..LEN - 1]), Err(Error::Truncated));
        assert_eq!(Repr::parse(&[bytes, bytes].concat()), Err(Error::Length));
    }

    #[test]
    fn fields_stand_where_the_document_has_them() {
        let repr = Repr {
            kind: Kind::Register,
            status: Status::Busy,
            mac: MacAddress::local(7),
            ip: Ipv4Addr::new(10, 0, 0, 1),
            server: Ipv4Addr::new(192, 0, 2, 1),
            location: Ipv4Addr::new(192, 0, 2, 2),
            epoch: 0x0102_0304,
            vni: 0xABCDEF,
            version: 5,
            request: 6,
        };
        let mut expected = [0; LEN];
        expected[..8].copy_from_slice(&[b's', b'l', b'c', 1, 3, 3, 2, 0]);
        expected[8..16].copy_from_slice(&[0, 0, 0, 7, 10, 0, 0, 1]);
        expected[16..24].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        expected[24..32].copy_from_slice(&[1, 2, 3, 4, 0, 0xAB, 0xCD, 0xEF]);
        (expected[39], expected[47]) = (5, 6);
        assert_eq!(repr.emit(), expected);
    }
}
