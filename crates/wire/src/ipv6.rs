//! IPv6 headers (RFC 8200), and the extension headers in front of the payload.

use core::net::Ipv6Addr;

use crate::Error;
use crate::checksum::Sum;
use crate::ethernet::MacAddress;

/// Bytes of a header without extension headers.
pub const HEADER_LEN: usize = 40;
/// The packet that every link carries (RFC 8200, 5).
pub const MIN_MTU: u16 = 1280;

/// Next headers that may precede the payload (RFC 8200, 4.3 to 4.6; RFC 4302), and no next header (RFC 8200, 4.7).
pub const HOP_BY_HOP: u8 = 0;
/// A routing header.
pub const ROUTING: u8 = 43;
/// A fragment header.
pub const FRAGMENT: u8 = 44;
/// An authentication header, whose length counts words of four bytes.
pub const AUTHENTICATION: u8 = 51;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// Options of the destination.
pub const DESTINATION_OPTIONS: u8 = 60;

/// Whether a next header is an extension header that a receiver skips or obeys, and not the payload.
pub const fn is_extension(next_header: u8) -> bool {
    matches!(next_header, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS)
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
    /// Differentiated services and ECN.
    pub traffic_class: u8,
    /// The label of the flow, 20 bits.
    pub flow_label: u32,
    /// The type of the header behind this one.
    pub next_header: u8,
    /// Time to live, in hops.
    pub hop_limit: u8,
    /// Bytes behind this header.
    pub payload_len: u16,
}

impl Repr {
    /// Reads a header; returns the payload without the padding of a short Ethernet frame.
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (repr, rest) = Repr::parse_start(bytes)?;
        Ok((repr, rest.get(..repr.payload_len.into()).ok_or(Error::Truncated)?))
    }

    /// Reads a header from the first bytes of a packet; returns the bytes behind the header, as many of the payload as there
    /// are.
    pub fn parse_start(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        if header[0] >> 4 != 6 {
            return Err(Error::Unsupported);
        }
        let address = |at: usize| Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(|i| header[at + i]));
        let repr = Repr {
            source: address(8),
            destination: address(24),
            traffic_class: header[0] << 4 | header[1] >> 4,
            flow_label: u32::from_be_bytes([0, header[1] & 0x0F, header[2], header[3]]),
            next_header: header[6],
            hop_limit: header[7],
            payload_len: u16::from_be_bytes([header[4], header[5]]),
        };
        let known = rest.len().min(repr.payload_len.into());
        Ok((repr, &rest[..known]))
    }

    /// Writes the header into the first [`HEADER_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.flow_label < 1 << 20, "a flow label has 20 bits");
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
        bytes[0..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        bytes[6..8].copy_from_slice(&[self.next_header, self.hop_limit]);
        bytes[8..24].copy_from_slice(&self.source.octets());
        bytes[24..40].copy_from_slice(&self.destination.octets());
    }

    /// The checksum over the pseudo header (RFC 8200, 8.1) and the payload `bytes`, which no extension header precedes; 0 if
    /// `bytes` already hold a correct checksum.
    pub(crate) fn checksum(&self, bytes: &[u8]) -> u16 {
        let mut sum = Sum::default();
        sum.add(&self.source.octets());
        sum.add(&self.destination.octets());
        sum.add(&(bytes.len() as u32).to_be_bytes());
        sum.add(&[0, 0, 0, self.next_header]);
        sum.add(bytes);
        sum.checksum()
    }
}

/// The group of the solicitations for an address (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// The MAC address of a group (RFC 2464, 7).
pub fn group_mac(group: Ipv6Addr) -> MacAddress {
    let [.., a, b, c, d] = group.octets();
    MacAddress([0x33, 0x33, a, b, c, d])
}

/// A fragment header (RFC 8200, 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The sender's number for the packet.
    pub identification: u32,
    /// Offset of the fragment in bytes, a multiple of 8.
    pub offset: u32,
    /// Whether more fragments follow.
    pub more: bool,
}

/// What follows the header and its extension headers: the payload, or a fragment of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper<'a> {
    /// The protocol of the payload. In a fragment, the type of the header at the start of the fragmented part.
    pub protocol: u8,
    /// The fragment header, if there is one; extension headers behind it are not skipped.
    pub fragment: Option<Fragment>,
    /// The payload.
    pub payload: &'a [u8],
}

/// Skips extension headers up to the payload or a fragment header; `next_header` is the type of the first one.
pub fn upper(mut next_header: u8, mut bytes: &[u8]) -> Result<Upper<'_>, Error> {
    while is_extension(next_header) {
        let &[next, size, o0, o1, i0, i1, i2, i3] = bytes.first_chunk().ok_or(Error::Truncated)?;
        let len = match next_header {
            FRAGMENT => 8,
            AUTHENTICATION => (usize::from(size) + 2) * 4,
            _ => (usize::from(size) + 1) * 8,
        };
        let payload = bytes.get(len..).ok_or(Error::Truncated)?;
        if next_header == FRAGMENT {
            let (offset, identification) = (u16::from_be_bytes([o0, o1]), u32::from_be_bytes([i0, i1, i2, i3]));
            let fragment = Fragment { identification, offset: u32::from(offset & !7), more: offset & 1 != 0 };
            return Ok(Upper { protocol: next, fragment: Some(fragment), payload });
        }
        (next_header, bytes) = (next, payload);
    }
    Ok(Upper { protocol: next_header, fragment: None, payload: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> Repr {
        Repr {
            source: Ipv6Addr::from(random.array::<16>()),
            destination: Ipv6Addr::from(random.array::<16>()),
            traffic_class: random.u64() as u8,
            flow_label: random.below(1 << 20) as u32,
            next_header: random.u64() as u8,
            hop_limit: random.u64() as u8,
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
            bytes.resize(bytes.len() + random.below(10) as usize, 0xEE);
            assert_eq!(Repr::parse(&bytes), Ok((repr, &vec![0; repr.payload_len.into()][..])));
            // Its start says as much as is there.
            let known = random.below(u64::from(repr.payload_len) + 1) as usize;
            assert_eq!(Repr::parse_start(&bytes[..HEADER_LEN + known]), Ok((repr, &vec![0; known][..])));
        });
        random::never_panics(|random| emitted(any(random)), |bytes| Repr::parse(bytes).is_ok());
        let mut four = emitted(any(&mut random::Random::new(1)));
        four[0] = 0x45;
        assert_eq!(Repr::parse(&four), Err(Error::Unsupported));
    }

    #[test]
    fn extension_headers_end_at_the_payload_or_at_a_fragment_header() {
        let plain = upper(17, &[1, 2]).unwrap();
        assert_eq!(plain, Upper { protocol: 17, fragment: None, payload: &[1, 2] });
        let chain = [
            &[DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0][..],
            &[AUTHENTICATION, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[ROUTING, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[ICMPV6, 0, 0, 0, 0, 0, 0, 0],
            &[134, 0],
        ]
        .concat();
        assert_eq!(upper(HOP_BY_HOP, &chain), Ok(Upper { protocol: ICMPV6, fragment: None, payload: &[134, 0] }));
        for len in 0..48 {
            assert_eq!(upper(HOP_BY_HOP, &chain[..len]), Err(Error::Truncated), "{len} bytes");
        }
        // A later fragment's bytes are no header, whatever they look like.
        let fragment = [DESTINATION_OPTIONS, 0, 5, 0xA9, 0, 0, 0, 9, 255, 255];
        let expected = Fragment { identification: 9, offset: 1448, more: true };
        let found = Upper { protocol: DESTINATION_OPTIONS, fragment: Some(expected), payload: &[255, 255] };
        assert_eq!(upper(FRAGMENT, &fragment), Ok(found));
        random::never_panics(|_| chain.clone(), |bytes| upper(HOP_BY_HOP, bytes).is_ok());
    }

    #[test]
    fn the_groups_of_the_rfcs() {
        let address: Ipv6Addr = "4037::01:800:200e:8c6c".parse().unwrap();
        let group = solicited_node(address);
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group).0, [0x33, 0x33, 0xFF, 0x0E, 0x8C, 0x6C]);
    }
}
