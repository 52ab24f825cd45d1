//! IPv4 headers (RFC 791), with the ECN field of RFC 3168.

use core::net::Ipv4Addr;

use crate::Error;
use crate::checksum::checksum;

/// Bytes of a header without options; options are skipped.
pub const HEADER_LEN: usize = 20;

/// The protocol of a datagram's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
}

/// The ECN field (RFC 3168, 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// The transport does not support ECN.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, ECT(1).
    Ect1 = 0b01,
    /// ECN-capable transport, ECT(0).
    Ect0 = 0b10,
    /// Congestion experienced.
    Ce = 0b11,
}

impl Ecn {
    /// From the two low bits of the traffic class octet; higher bits are ignored.
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Ecn {
        match bits & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }
}

/// A header without options, of an unfragmented datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
    /// The protocol of the payload.
    pub protocol: Protocol,
    /// Differentiated services code point, 0 to 63 (RFC 2474).
    pub dscp: u8,
    /// Explicit congestion notification.
    pub ecn: Ecn,
    /// Identification; undefined in a datagram that may not be fragmented (RFC 6864).
    pub identification: u16,
    /// Whether routers must drop the datagram rather than fragment it.
    pub dont_fragment: bool,
    /// Time to live, in hops.
    pub ttl: u8,
    /// Bytes behind the header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads a header and checks its checksum; returns the payload without the padding of a short Ethernet frame.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let fixed = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let [vihl, tos, l0, l1, id0, id1, f0, f1, ttl, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *fixed;
        if vihl >> 4 != 4 {
            return Err(Error::Unsupported);
        }
        let header_len = (vihl & 0x0F) as usize * 4;
        let total_len = u16::from_be_bytes([l0, l1]) as usize;
        if header_len < HEADER_LEN || total_len < header_len {
            return Err(Error::Length);
        }
        let datagram = bytes.get(..total_len).ok_or(Error::Truncated)?;
        let (header, payload) = datagram.split_at(header_len);
        if checksum(header) != 0 {
            return Err(Error::Checksum);
        }
        let flags_and_offset = u16::from_be_bytes([f0, f1]);
        // More fragments, or an offset.
        if flags_and_offset & 0x3FFF != 0 {
            return Err(Error::Fragment);
        }
        let repr = Repr {
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
            protocol: Protocol(protocol),
            dscp: tos >> 2,
            ecn: Ecn::from_bits(tos),
            identification: u16::from_be_bytes([id0, id1]),
            dont_fragment: flags_and_offset & 0x4000 != 0,
            ttl,
            payload_len: payload.len() as u16,
        };
        Ok((repr, payload))
    }

    /// Writes the header with its checksum into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.dscp < 64 && self.payload_len <= u16::MAX - HEADER_LEN as u16, "fields that fit their bits");
        let header = &mut bytes[..HEADER_LEN];
        header[0] = 0x45;
        header[1] = self.dscp << 2 | self.ecn as u8;
        header[2..4].copy_from_slice(&(self.payload_len + HEADER_LEN as u16).to_be_bytes());
        header[4..6].copy_from_slice(&self.identification.to_be_bytes());
        header[6..8].copy_from_slice(&[if self.dont_fragment { 0x40 } else { 0 }, 0]);
        header[8] = self.ttl;
        header[9] = self.protocol.0;
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Sets the ECN field of the header in front of `bytes` and adjusts its checksum by the difference (RFC 1624, 3), so that a
/// wrong checksum stays wrong. Bytes without an IPv4 header stay unchanged.
pub fn set_ecn(bytes: &mut [u8], ecn: Ecn) {
    if bytes.len() < HEADER_LEN || bytes[0] >> 4 != 4 {
        return;
    }
    let old = u16::from_be_bytes([bytes[0], bytes[1]]);
    bytes[1] = bytes[1] & !0b11 | ecn as u8;
    let new = u16::from_be_bytes([bytes[0], bytes[1]]);
    let sum = u16::from_be_bytes([bytes[10], bytes[11]]);
    // HC' = ~(~HC + ~m + m')
    let mut sum = u32::from(!sum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    bytes[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            source: random.ipv4(),
            destination: random.ipv4(),
            protocol: Protocol(random.u64() as u8),
            dscp: random.below(64) as u8,
            ecn: Ecn::from_bits(random.u64() as u8),
            identification: random.u64() as u16,
            dont_fragment: random.bool(),
            ttl: random.u64() as u8,
            payload_len: random.below(40) as u16,
        }
    }

    fn emitted(repr: Repr) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + repr.payload_len as usize];
        repr.emit(&mut bytes);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            let mut bytes = emitted(repr);
            // Padding of the Ethernet frame is not payload.
            bytes.resize(bytes.len() + random.below(10) as usize, 0xEE);
            let (parsed, payload) = Repr::parse(&bytes).unwrap();
            assert_eq!((parsed, payload.len()), (repr, repr.payload_len as usize));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn a_mark_on_the_way_keeps_the_checksum() {
        random::check(|random| {
            let repr = any(random);
            let ecn = Ecn::from_bits(random.u64() as u8);
            let mut bytes = emitted(repr);
            set_ecn(&mut bytes, ecn);
            assert_eq!(Repr::parse(&bytes).unwrap().0, Repr { ecn, ..repr });
            // A damaged header stays damaged.
            bytes[11] ^= 1;
            set_ecn(&mut bytes, Ecn::Ce);
            assert_eq!(Repr::parse(&bytes), Err(Error::Checksum));
        });
        let mut short = [0x45; HEADER_LEN - 1];
        set_ecn(&mut short, Ecn::Ce);
        assert_eq!(short, [0x45; HEADER_LEN - 1]);
    }

    #[test]
    fn lying_lengths_and_damage_are_errors() {
        random::check(|random| {
            let repr = any(random);
            let bytes = emitted(repr);
            assert_eq!(Repr::parse(&bytes[..random.below(bytes.len() as u64) as usize]), Err(Error::Truncated));
            let mut damaged = bytes;
            damaged[random.below(HEADER_LEN as u64) as usize] ^= 1 << random.below(8);
            assert!(Repr::parse(&damaged).is_err(), "one flipped bit in the header");
        });
    }

    /// Sets bytes of a valid header and repairs its checksum.
    fn with(changes: &[(usize, u8)]) -> Vec<u8> {
        let mut bytes = emitted(any(&mut random::Random::new(1)));
        for &(at, value) in changes {
            bytes[at] = value;
        }
        let header_len = ((bytes[0] & 0x0F) as usize * 4).min(bytes.len());
        bytes[10..12].fill(0);
        let sum = checksum(&bytes[..header_len]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    #[test]
    fn each_rule_has_its_error() {
        assert_eq!(Repr::parse(&with(&[(0, 0x65)])), Err(Error::Unsupported), "version 6");
        assert_eq!(Repr::parse(&with(&[(0, 0x44)])), Err(Error::Length), "a header of 16 bytes");
        assert_eq!(Repr::parse(&with(&[(2, 0), (3, 19)])), Err(Error::Length), "shorter than its header");
        assert_eq!(Repr::parse(&with(&[(6, 0x20), (7, 0)])), Err(Error::Fragment), "more fragments");
        assert_eq!(Repr::parse(&with(&[(6, 0), (7, 1)])), Err(Error::Fragment), "an offset");
        // Options are skipped: 24 bytes of header, 0 of payload.
        let with_options = with(&[(0, 0x46), (2, 0), (3, 24)]);
        let (repr, payload) = Repr::parse(&with_options).unwrap();
        assert_eq!((repr.payload_len, payload.len()), (0, 0));
    }
}
