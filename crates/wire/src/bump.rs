//! Updates of NetBump: what a bump has forwarded to the ports of a switch, for other bumps that estimate the queues there
//! (Al-Fares 2012, 5.2.2, "Distributed NetBump").
//!
//! ```text
//!  0  destination, source, type 0x88B6                       14
//! 14  "slnb"                                                  4
//! 18  version, 1                                              1
//! 19  zero                                                    1
//! 20  the sending bump                                        4
//! 24  its incarnation: another number after each start        4
//! 28  sequence number of the update, from 0                   4
//! 32  bytes in all updates before this one, modulo 2^32       4
//! 36  time since the last packet of the update, in ns         4
//! 40  time from its first packet to its last, in ns           4
//! 44  number of packets                                       2
//! 46  a packet: bytes on the wire, port                       2 + 2
//! ..  tag                                                    16
//! ..  zeros up to the shortest frame
//! ```
//!
//! Numbers are big-endian. The owner of the key makes and checks the tag: this module does not authenticate updates.

use crate::Error;
use crate::ethernet::{self, EtherType, HEADER_LEN, MIN_LEN, MacAddress};

/// 802's second "local experimental" type.
pub const ETHERTYPE: EtherType = EtherType(0x88B6);
/// Bytes of the tag: HMAC-SHA-256 cut to half, as RFC 4868 does.
pub const TAG_LEN: usize = 16;
/// Most packets of an update: a frame of 1,514 bytes has room for them.
pub const PACKETS_MAX: usize = 360;
/// The longest update, with its tag.
pub const LEN_MAX: usize = PACKETS_AT + PACKET_LEN * PACKETS_MAX + TAG_LEN;

/// Distinguishes these frames from other experiments.
const MAGIC: [u8; 4] = *b"slnb";
const VERSION: u8 = 1;
/// Bytes of a packet in an update.
const PACKET_LEN: usize = 4;
/// Bytes in front of the packets.
const PACKETS_AT: usize = HEADER_LEN + 32;

const _: () = assert!(LEN_MAX <= 1_514);

/// A packet that a bump forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Its bytes on the wire, with preamble and gap.
    pub wire_bytes: u16,
    /// The port of the next switch to which it goes.
    pub port: u16,
}

/// An update without its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The bump that is to read it.
    pub destination: MacAddress,
    /// The bump that sends it.
    pub source: MacAddress,
    /// The number of the sending bump.
    pub bump: u32,
    /// The sender's incarnation.
    pub incarnation: u32,
    /// Sequence number, from 0, modulo 2^32.
    pub sequence: u32,
    /// Bytes in all updates of this incarnation before this one, modulo 2^32.
    pub bytes_before: u32,
    /// Nanoseconds between the last packet and the departure of the update.
    pub wait_ns: u32,
    /// Nanoseconds between the first packet and the last.
    pub span_ns: u32,
}

/// An update as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update<'a> {
    /// Its fields.
    pub repr: Repr,
    packets: &'a [u8],
    /// The bytes that the tag covers.
    pub signed: &'a [u8],
    /// The tag.
    pub tag: &'a [u8; TAG_LEN],
}

impl<'a> Update<'a> {
    /// Reads a whole frame without its check sequence; does not check the tag.
    ///
    /// Another type, magic or version is [`Error::Unsupported`]; more packets than the frame has, or than
    /// [`PACKETS_MAX`], are [`Error::Length`].
    pub fn parse(bytes: &'a [u8]) -> Result<Update<'a>, Error> {
        let (header, rest) = ethernet::Repr::parse(bytes)?;
        if header.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        let (fields, _) = rest.split_first_chunk::<{ PACKETS_AT - HEADER_LEN }>().ok_or(Error::Truncated)?;
        if fields[..4] != MAGIC || fields[4] != VERSION {
            return Err(Error::Unsupported);
        }
        let word = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        let count = usize::from(u16::from_be_bytes([fields[30], fields[31]]));
        if count > PACKETS_MAX {
            return Err(Error::Length);
        }
        let end = PACKETS_AT + PACKET_LEN * count;
        let (signed, behind) = bytes.split_at_checked(end).ok_or(Error::Length)?;
        let (tag, _padding) = behind.split_first_chunk::<TAG_LEN>().ok_or(Error::Length)?;
        let repr = Repr {
            destination: header.destination,
            source: header.source,
            bump: word(6),
            incarnation: word(10),
            sequence: word(14),
            bytes_before: word(18),
            wait_ns: word(22),
            span_ns: word(26),
        };
        Ok(Update { repr, packets: &signed[PACKETS_AT..], signed, tag })
    }

    /// The packets, in the order in which the bump forwarded them.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = Forwarded> + Clone + 'a {
        self.packets
            .chunks_exact(PACKET_LEN)
            .map(|p| Forwarded { wire_bytes: u16::from_be_bytes([p[0], p[1]]), port: u16::from_be_bytes([p[2], p[3]]) })
    }
}

impl Repr {
    /// Bytes of an update with `packets` packets.
    pub const fn emitted_len(packets: usize) -> usize {
        let len = PACKETS_AT + PACKET_LEN * packets + TAG_LEN;
        if len < MIN_LEN { MIN_LEN } else { len }
    }

    /// Writes an update into the first [`Repr::emitted_len`] bytes, with `sign` for the tag; panics if there are fewer bytes or
    /// more packets than [`PACKETS_MAX`].
    pub fn emit(&self, packets: &[Forwarded], bytes: &mut [u8], sign: impl FnOnce(&[u8]) -> [u8; TAG_LEN]) {
        assert!(packets.len() <= PACKETS_MAX, "at most {PACKETS_MAX} packets");
        let bytes = &mut bytes[..Repr::emitted_len(packets.len())];
        bytes.fill(0);
        let (destination, source) = (self.destination, self.source);
        ethernet::Repr { destination, source, ethertype: ETHERTYPE }.emit(bytes);
        let fields = &mut bytes[HEADER_LEN..];
        fields[..4].copy_from_slice(&MAGIC);
        fields[4] = VERSION;
        let words = [self.bump, self.incarnation, self.sequence, self.bytes_before, self.wait_ns, self.span_ns];
        for (at, word) in words.iter().enumerate() {
            fields[6 + 4 * at..10 + 4 * at].copy_from_slice(&word.to_be_bytes());
        }
        fields[30..32].copy_from_slice(&(packets.len() as u16).to_be_bytes());
        let mut at = PACKETS_AT;
        for packet in packets {
            bytes[at..at + 2].copy_from_slice(&packet.wire_bytes.to_be_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&packet.port.to_be_bytes());
            at += PACKET_LEN;
        }
        let tag = sign(&bytes[..at]);
        bytes[at..at + TAG_LEN].copy_from_slice(&tag);
    }
}

/// Whether a frame is an update, by its type and magic.
pub fn is_update(frame: &[u8]) -> bool {
    frame.get(12..18).is_some_and(|b| b[..2] == ETHERTYPE.0.to_be_bytes() && b[2..] == MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> (Repr, Vec<Forwarded>) {
        let mut word = || random.u64() as u32;
        let (bump, incarnation, sequence, bytes_before) = (word(), word(), word(), word());
        let (wait_ns, span_ns) = (word(), word());
        let (destination, source) = (MacAddress(random.array()), MacAddress(random.array()));
        let count = random.below(PACKETS_MAX as u64 + 1) as usize;
        let packets =
            (0..count).map(|_| Forwarded { wire_bytes: random.u64() as u16, port: random.u64() as u16 }).collect();
        (Repr { destination, source, bump, incarnation, sequence, bytes_before, wait_ns, span_ns }, packets)
    }

    /// A tag that depends on each byte.
    fn sign(bytes: &[u8]) -> [u8; TAG_LEN] {
        core::array::from_fn(|i| bytes.iter().fold(i as u8, |tag, &b| tag.wrapping_mul(31).wrapping_add(b)))
    }

    fn emitted((repr, packets): &(Repr, Vec<Forwarded>)) -> Vec<u8> {
        let mut bytes = vec![0xEE; Repr::emitted_len(packets.len())];
        repr.emit(packets, &mut bytes, sign);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (repr, packets) = any(random);
            let bytes = emitted(&(repr, packets.clone()));
            assert!(is_update(&bytes) && bytes.len() >= MIN_LEN);
            let update = Update::parse(&bytes).unwrap();
            assert_eq!((update.repr, update.packets().collect::<Vec<_>>()), (repr, packets));
            assert_eq!(sign(update.signed), *update.tag);
        });
        random::never_panics(|random| emitted(&any(random)), |bytes| Update::parse(bytes).is_ok());
    }

    #[test]
    fn bytes_of_an_update() {
        let repr = Repr {
            destination: MacAddress::local(2),
            source: MacAddress::local(1),
            bump: 0x0102_0304,
            incarnation: 5,
            sequence: 6,
            bytes_before: 7,
            wait_ns: 8,
            span_ns: 9,
        };
        let bytes = emitted(&(repr, vec![Forwarded { wire_bytes: 1_538, port: 3 }]));
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB6, b's', b'l', b'n', b'b', 1, 0];
        expected.extend([1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9]);
        expected.extend([0, 1, 0x06, 0x02, 0, 3]);
        assert_eq!(bytes[..50], expected);
        assert_eq!(bytes.len(), 66);
    }

    #[test]
    fn what_is_not_one_is_refused() {
        let bytes = emitted(&any(&mut random::Random::new(1)));
        for (at, value) in [(13, 0xB5), (14, b'S'), (18, 2)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(Update::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        // More packets than may be, and more than there are.
        let mut other = bytes.clone();
        other[44..46].copy_from_slice(&(PACKETS_MAX as u16 + 1).to_be_bytes());
        assert_eq!(Update::parse(&other), Err(Error::Length));
        let mut short = bytes[..60].to_vec();
        short[44..46].copy_from_slice(&4u16.to_be_bytes());
        assert_eq!(Update::parse(&short), Err(Error::Length));
        assert_eq!(Update::parse(&bytes[..45]), Err(Error::Truncated));
    }
}
