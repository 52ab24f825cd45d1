//! Messages between a switch and the agent in a guest at one of its ports: one Ethernet frame each, on their link only.
//!
//! ```text
//!  0  destination 01-80-C2-00-00-0E, source, type 0x88B5    14
//! 14  "slag"                                                 4
//! 18  version, 1                                             1
//! 19  kind: 1 mark, 2 grant                                  1
//! 20  number of the mark; in a grant that of the last one    8
//! 28  mark: part, parts; grant: lifetime in ms               2
//! 30  grant: frames it has room for                          4
//! 34  zeros up to the shortest frame                        26
//! ```
//!
//! Numbers are big-endian.

use crate::Error;
use crate::ethernet::{self, EtherType, HEADER_LEN, MIN_LEN, MacAddress};

/// The nearest bridge (802.1Q, table 8-1): no bridge forwards the frame.
pub const DESTINATION: MacAddress = MacAddress([0x01, 0x80, 0xC2, 0x00, 0x00, 0x0E]);
/// 802's first "local experimental" type.
pub const ETHERTYPE: EtherType = EtherType(0x88B5);
/// Bytes of a frame without its check sequence: it is always of the smallest size.
pub const LEN: usize = MIN_LEN;
/// Most queues through which a mark may have to pass.
pub const PARTS_MAX: u8 = 64;

/// Distinguishes these frames from other experiments.
const MAGIC: [u8; 4] = *b"slag";
const VERSION: u8 = 1;
const MARK: u8 = 1;
const GRANT: u8 = 2;

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the switch: all frames handed over earlier precede this mark.
    Mark {
        /// The mark's number.
        number: u64,
        /// The number of this part, from 0: one part goes through each receive queue.
        part: u8,
        /// Number of parts, 1 to [`PARTS_MAX`].
        parts: u8,
    },
    /// From the agent: the room of the guest's sockets.
    Grant {
        /// The last mark that arrived with all its parts.
        number: u64,
        /// Lifetime of the grant in milliseconds; 0 when the agent leaves.
        lifetime_ms: u16,
        /// Frames behind this mark for which there is room.
        room: u32,
    },
}

/// A frame, from its destination to its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender.
    pub source: MacAddress,
    /// The message.
    pub message: Message,
}

impl Repr {
    /// Reads a whole frame without its check sequence.
    ///
    /// Another destination, type, magic, version or kind, or an invalid part number, is [`Error::Unsupported`]; bytes
    /// behind the fields are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let (header, rest) = ethernet::Repr::parse(bytes)?;
        if header.destination != DESTINATION || header.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        let (fields, _padding) = rest.split_first_chunk::<20>().ok_or(Error::Truncated)?;
        let [m0, m1, m2, m3, version, kind, n0, n1, n2, n3, n4, n5, n6, n7, a0, a1, r0, r1, r2, r3] = *fields;
        if [m0, m1, m2, m3] != MAGIC || version != VERSION {
            return Err(Error::Unsupported);
        }
        let number = u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let message = match kind {
            MARK if a0 < a1 && a1 <= PARTS_MAX => Message::Mark { number, part: a0, parts: a1 },
            GRANT => Message::Grant {
                number,
                lifetime_ms: u16::from_be_bytes([a0, a1]),
                room: u32::from_be_bytes([r0, r1, r2, r3]),
            },
            _ => return Err(Error::Unsupported),
        };
        Ok(Repr { source: header.source, message })
    }

    /// The whole frame without its check sequence.
    pub fn emit(&self) -> [u8; LEN] {
        let mut frame = [0; LEN];
        ethernet::Repr { destination: DESTINATION, source: self.source, ethertype: ETHERTYPE }.emit(&mut frame);
        let fields = &mut frame[HEADER_LEN..];
        fields[..4].copy_from_slice(&MAGIC);
        fields[4] = VERSION;
        match self.message {
            Message::Mark { number, part, parts } => {
                fields[5] = MARK;
                fields[6..14].copy_from_slice(&number.to_be_bytes());
                fields[14..16].copy_from_slice(&[part, parts]);
            }
            Message::Grant { number, lifetime_ms, room } => {
                fields[5] = GRANT;
                fields[6..14].copy_from_slice(&number.to_be_bytes());
                fields[14..16].copy_from_slice(&lifetime_ms.to_be_bytes());
                fields[16..20].copy_from_slice(&room.to_be_bytes());
            }
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn any(random: &mut random::Random) -> Repr {
        let number = random.u64();
        let message = if random.bool() {
            let parts = 1 + random.below(PARTS_MAX.into()) as u8;
            Message::Mark { number, part: random.below(parts.into()) as u8, parts }
        } else {
            Message::Grant { number, lifetime_ms: random.u64() as u16, room: random.u64() as u32 }
        };
        Repr { source: MacAddress(random.array()), message }
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let repr = any(random);
            assert_eq!(Repr::parse(&repr.emit()), Ok(repr));
        });
        random::never_panics(|random| any(random).emit().to_vec(), |bytes| Repr::parse(bytes).is_ok());
    }

    #[test]
    fn bytes_of_a_grant() {
        let message = Message::Grant { number: 0x0102_0304_0506_0708, lifetime_ms: 1000, room: 38 };
        let mut expected = [0; LEN];
        expected[..14].copy_from_slice(&[0x01, 0x80, 0xC2, 0, 0, 0x0E, 2, 0, 0, 0, 0, 1, 0x88, 0xB5]);
        expected[14..20].copy_from_slice(&[b's', b'l', b'a', b'g', 1, 2]);
        expected[20..28].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[28..34].copy_from_slice(&[0x03, 0xE8, 0, 0, 0, 38]);
        assert_eq!(Repr { source: MacAddress::local(1), message }.emit(), expected);
    }

    #[test]
    fn what_is_not_one_is_refused() {
        let mark =
            |part, parts| Repr { source: MacAddress::local(1), message: Message::Mark { number: 1, part, parts } };
        for (part, parts) in [(0, 0), (1, 1), (2, 1), (0, PARTS_MAX + 1)] {
            assert_eq!(Repr::parse(&mark(part, parts).emit()), Err(Error::Unsupported));
        }
        let frame = mark(0, 1).emit();
        for (at, value) in [(0, 0xFF), (5, 1), (13, 0xB6), (14, b'S'), (18, 2), (19, 0), (19, 3)] {
            let mut other = frame;
            other[at] = value;
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        assert_eq!(Repr::parse(&frame[..33]), Err(Error::Truncated));
    }
}
