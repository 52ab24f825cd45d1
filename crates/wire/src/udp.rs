//! UDP datagrams (RFC 768).

use crate::Error;
use crate::checksum::PseudoHeader;
use crate::ipv4::Protocol;

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// The ports of a datagram; the length comes from the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
}

impl Repr {
    /// Reads a header and checks the checksum, unless there is none; returns the payload.
    pub fn parse<'a>(bytes: &'a [u8], pseudo: &PseudoHeader) -> Result<(Repr, &'a [u8]), Error> {
        let (&[s0, s1, d0, d1, l0, l1, c0, c1], _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let len = u16::from_be_bytes([l0, l1]) as usize;
        if len < HEADER_LEN {
            return Err(Error::Length);
        }
        let datagram = bytes.get(..len).ok_or(Error::Truncated)?;
        // "An all zero transmitted checksum value means that the transmitter generated no checksum" (RFC 768).
        if [c0, c1] != [0, 0] && pseudo.checksum(Protocol::UDP.0, datagram) != 0 {
            return Err(Error::Checksum);
        }
        let ports = [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])];
        Ok((Repr { source_port: ports[0], destination_port: ports[1] }, &datagram[HEADER_LEN..]))
    }

    /// Writes the header in front of the payload, which must already be in `bytes[HEADER_LEN..]`.
    ///
    /// Without a pseudo header the checksum is absent, as RFC 7348, 5 wants it outside of VXLAN. Panics when `bytes` is
    /// shorter than the header or longer than a datagram can be.
    pub fn emit(&self, bytes: &mut [u8], pseudo: Option<&PseudoHeader>) {
        assert!(bytes.len() <= u16::MAX as usize, "a datagram has at most 65,535 bytes");
        let len = bytes.len() as u16;
        bytes[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
        bytes[6..8].fill(0);
        if let Some(pseudo) = pseudo {
            // A sum of zero is sent in its other form, because zero means that there is no checksum (RFC 768).
            let sum = match pseudo.checksum(Protocol::UDP.0, bytes) {
                0 => u16::MAX,
                sum => sum,
            };
            bytes[6..8].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};
    use std::vec::Vec;

    fn any(random: &mut Random, pseudo: Option<&PseudoHeader>) -> (Repr, Vec<u8>) {
        let repr = Repr { source_port: random.u64() as u16, destination_port: random.u64() as u16 };
        let len = HEADER_LEN + random.below(60) as usize;
        let mut bytes = random.bytes(len);
        repr.emit(&mut bytes, pseudo);
        (repr, bytes)
    }

    fn any_pseudo(random: &mut Random) -> PseudoHeader {
        PseudoHeader { source: random.ipv4(), destination: random.ipv4() }
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let pseudo = any_pseudo(random);
            let with_checksum = random.bool();
            let (repr, bytes) = any(random, with_checksum.then_some(&pseudo));
            assert_eq!(Repr::parse(&bytes, &pseudo), Ok((repr, &bytes[HEADER_LEN..])));
            assert_eq!(bytes[6..8] != [0, 0], with_checksum);
            let other = PseudoHeader { source: core::net::Ipv4Addr::from(u32::from(pseudo.source) ^ 1), ..pseudo };
            let expected = if with_checksum { Err(Error::Checksum) } else { Ok((repr, &bytes[HEADER_LEN..])) };
            assert_eq!(Repr::parse(&bytes, &other), expected);
        });
        let pseudo = any_pseudo(&mut Random::new(0));
        random::never_panics(|random| any(random, Some(&pseudo)).1, |bytes| Repr::parse(bytes, &pseudo).is_ok());
    }

    #[test]
    fn lying_lengths_are_errors() {
        let mut bytes = [0; 12];
        Repr::default().emit(&mut bytes, None);
        let pseudo = any_pseudo(&mut Random::new(0));
        for (len, expected) in [(7, Err(Error::Length)), (8, Ok(0)), (12, Ok(4)), (13, Err(Error::Truncated))] {
            bytes[5] = len;
            assert_eq!(Repr::parse(&bytes, &pseudo).map(|(_, payload)| payload.len()), expected, "length {len}");
        }
    }
}
