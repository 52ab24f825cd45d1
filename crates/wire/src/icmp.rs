//! The one ICMP message a switch sends: "fragmentation needed and DF set" (RFC 792, RFC 1191, 4).

use crate::Error;
use crate::checksum::checksum;

/// Bytes in front of the quoted datagram.
pub const HEADER_LEN: usize = 8;

/// Destination unreachable: fragmentation needed and DF set.
const TYPE_AND_CODE: [u8; 2] = [3, 4];

/// The message, in front of the start of the datagram that was too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// Bytes of the largest datagram that gets through.
    pub mtu: u16,
}

impl TooBig {
    /// Reads a message; returns the start of the quoted datagram. Other messages are [`Error::Unsupported`].
    pub fn parse(bytes: &[u8]) -> Result<(TooBig, &[u8]), Error> {
        let (&[kind, code, _, _, _, _, m0, m1], quoted) =
            bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if [kind, code] != TYPE_AND_CODE {
            return Err(Error::Unsupported);
        }
        if checksum(bytes) != 0 {
            return Err(Error::Checksum);
        }
        Ok((TooBig { mtu: u16::from_be_bytes([m0, m1]) }, quoted))
    }

    /// Writes the header in front of the quoted bytes, which must already be in `bytes[HEADER_LEN..]`.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[..HEADER_LEN].fill(0);
        bytes[..2].copy_from_slice(&TYPE_AND_CODE);
        bytes[6..8].copy_from_slice(&self.mtu.to_be_bytes());
        let sum = checksum(bytes);
        bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn round_trip() {
        let emitted = |random: &mut random::Random| {
            let mut bytes = random.bytes(HEADER_LEN + 28);
            TooBig { mtu: 1446 }.emit(&mut bytes);
            bytes
        };
        random::check(|random| {
            let bytes = emitted(random);
            assert_eq!(TooBig::parse(&bytes), Ok((TooBig { mtu: 1446 }, &bytes[HEADER_LEN..])));
        });
        random::never_panics(emitted, |bytes| TooBig::parse(bytes).is_ok());
    }
}
