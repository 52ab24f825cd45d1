//! TCPlight's header, behind an IPv4 header with protocol 253 (RFC 3692): the part of TCP's header that is needed over a
//! network that delivers every byte once and in order (Crisan 2014, 5.3.2).
//!
//! ```text
//!  0  source port, destination port                             2 + 2
//!  4  version, 1, in the high half; flags in the low one:           1
//!     1 syn, 2 answer, 4 fin, 8 reset
//!  5  zero                                                          3
//!  8  connection: the number that who opened it has given it        4
//! 12  offset of the payload in its stream, modulo 2^32              4
//! 16  limit: the offset up to which the other end may send          4
//! ```
//!
//! Numbers are big-endian. There is no checksum: the network below protects every byte.

use crate::Error;
use crate::ipv4::Protocol;

/// "Use for experimentation and testing" (RFC 3692).
pub const PROTOCOL: Protocol = Protocol(253);
/// Bytes of the header.
pub const HEADER_LEN: usize = 20;

const VERSION: u8 = 1;

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The segment opens a connection.
    pub const SYN: Flags = Flags(1);
    /// With [`Flags::SYN`]: the segment answers one that opens a connection.
    pub const ANSWER: Flags = Flags(2);
    /// No data follows the segment's payload.
    pub const FIN: Flags = Flags(4);
    /// The connection does not exist, or no longer exists.
    pub const RESET: Flags = Flags(8);

    /// Whether all bits of `other` are set.
    #[inline(always)]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// A header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// The control bits.
    pub flags: Flags,
    /// The number that the opener of the connection has given it.
    pub connection: u32,
    /// Offset of the payload in its stream.
    pub offset: u32,
    /// Offset up to which the other end may send.
    pub limit: u32,
}

impl Repr {
    /// Reads a header; returns the payload.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (fields, payload) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if fields[4] >> 4 != VERSION {
            return Err(Error::Unsupported);
        }
        let half = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
        let word = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let repr = Repr {
            source_port: half(0),
            destination_port: half(2),
            flags: Flags(fields[4] & 0xF),
            connection: word(8),
            offset: word(12),
            limit: word(16),
        };
        Ok((repr, payload))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        let fields = &mut bytes[..HEADER_LEN];
        fields[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        fields[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        fields[4..8].copy_from_slice(&[VERSION << 4 | self.flags.0 & 0xF, 0, 0, 0]);
        fields[8..12].copy_from_slice(&self.connection.to_be_bytes());
        fields[12..16].copy_from_slice(&self.offset.to_be_bytes());
        fields[16..20].copy_from_slice(&self.limit.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> (Repr, Vec<u8>) {
        let mut word = || random.u64() as u32;
        let repr = Repr {
            source_port: word() as u16,
            destination_port: word() as u16,
            flags: Flags(word() as u8 & 0xF),
            connection: word(),
            offset: word(),
            limit: word(),
        };
        let payload = random.below(50) as usize;
        (repr, random.bytes(payload))
    }

    fn emitted((repr, payload): (Repr, Vec<u8>)) -> Vec<u8> {
        let mut bytes = std::vec![0xFF; HEADER_LEN];
        repr.emit(&mut bytes);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (repr, payload) = any(random);
            assert_eq!(Repr::parse(&emitted((repr, payload.clone()))), Ok((repr, &payload[..])));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bytes_of_a_fin() {
        let flags = Flags::FIN;
        let repr =
            Repr { source_port: 0x1234, destination_port: 80, flags, connection: 7, offset: 8, limit: 0x0A0B_0C0D };
        let expected = [0x12, 0x34, 0, 80, 0x14, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8, 0x0A, 0x0B, 0x0C, 0x0D];
        assert_eq!(emitted((repr, Vec::new())), expected);
        assert!((Flags::SYN | Flags::ANSWER).contains(Flags::ANSWER) && !flags.contains(Flags::SYN));
    }
}
