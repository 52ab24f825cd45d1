//! zBridge's header, which makes the frames between two VMs reliable, behind their Ethernet header (Crisan 2014, 5.3.4).
//!
//! ```text
//!  0  destination, source, type 0x88B6                                        14
//! 14  0x5A                                                                     1
//! 15  version, 1, in the high half; kind in the low one:                       1
//!     1 data, 2 ask, 3 ack, 4 nack, 5 syn, 6 syn-ack, 7 reset, 8 close, 9 keep
//! 16  flags: 1 an acknowledgement is asked for                                 1
//! 17  nack: ranges behind the header                                           1
//! 18  connection: the number that who gets this has given it                   4
//! 22  sequence number                                                          4
//! 26  acknowledgement number                                                   4
//! 30  CRC-32C of all other bytes of the frame                                  4
//! 34  data: the type and the payload of the frame that is carried
//!     nack: first sequence number and length of each range                 4 + 4
//! ```
//!
//! Numbers are big-endian. The carried frame has the same source and destination.

use crate::ethernet::{self, ADDRESSES_LEN, HEADER_LEN, MacAddress};
pub use crate::zcredit::ETHERTYPE;
use crate::{Error, crc};

/// Bytes from the Ethernet header to the carried bytes.
pub const OVERHEAD: usize = 20;
/// Bytes in front of the carried bytes.
pub const HEADERS_LEN: usize = HEADER_LEN + OVERHEAD;
/// Bytes by which a carried frame grows: its own type stays behind the header.
pub const GROWTH: usize = OVERHEAD + 2;
/// Most ranges of one frame.
pub const RANGES_MAX: usize = 16;

const MAGIC: u8 = 0x5A;
const VERSION: u8 = 1;
const DATA: u8 = 1;
const ASK: u8 = 2;
const ACK: u8 = 3;
const NACK: u8 = 4;
const SYN: u8 = 5;
const SYN_ACK: u8 = 6;
const RESET: u8 = 7;
const CLOSE: u8 = 8;
const KEEP: u8 = 9;
const ACK_REQUEST: u8 = 1;
/// Offset of the checksum, the header's last field.
const CHECKSUM_AT: usize = HEADERS_LEN - 4;

/// Ranges of sequence numbers: first number and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    count: u8,
    ranges: [(u32, u32); RANGES_MAX],
}

impl Ranges {
    /// Adds a range; `false` if there is no room.
    pub fn push(&mut self, first: u32, len: u32) -> bool {
        let Some(place) = self.ranges.get_mut(usize::from(self.count)) else { return false };
        *place = (first, len);
        self.count += 1;
        true
    }
    /// All ranges.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..usize::from(self.count)]
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Carries a frame.
    Data {
        /// Whether an acknowledgement is requested.
        ack_request: bool,
    },
    /// Requests an acknowledgement; the sequence number is that of the next data.
    Ask,
    /// All data before the acknowledgement number has arrived.
    Ack,
    /// The data in these ranges is missing.
    Nack(Ranges),
    /// The first frame of a connection; the sequence number is the sender's number for the connection.
    Syn,
    /// The answer to [`Kind::Syn`]; the sequence number is the sender's number for the connection.
    SynAck,
    /// The receiver has no connection with the number in the sequence number field.
    Reset,
    /// The sender has nothing to send and offers to end the connection; a [`Kind::Reset`] agrees. The sequence number
    /// counts the sender's attempts.
    Close,
    /// The closing attempt of this number is refused for good: data is in flight.
    Keep,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of frame.
    pub kind: Kind,
    /// The receiver's number for the connection; 0 in the first frame.
    pub connection: u32,
    /// Number of the carried data, or of the next data.
    pub sequence: u32,
    /// Number of the first data that has not arrived.
    pub acknowledgement: u32,
}

/// A frame that [carries](Kind::Data) another or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The receiving VM.
    pub destination: MacAddress,
    /// The sending VM.
    pub source: MacAddress,
    /// The header.
    pub header: Header,
}

impl Repr {
    /// Reads a whole frame without its check sequence. Returns the frame and its carried bytes: a type and a payload, or
    /// nothing.
    ///
    /// Another type, magic, version or kind, or a nack with too many ranges, is [`Error::Unsupported`]; damaged bytes are
    /// [`Error::Checksum`].
    pub fn parse(bytes: &[u8]) -> Result<(Repr, &[u8]), Error> {
        Repr::parse_by(bytes, crc::of)
    }

    /// Like [`Repr::parse`], with another implementation of [`crc::of`].
    pub fn parse_by(bytes: &[u8], sum: impl FnOnce([&[u8]; 2]) -> u32) -> Result<(Repr, &[u8]), Error> {
        let (ethernet, rest) = ethernet::Repr::parse(bytes)?;
        if ethernet.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        let (fields, payload) = rest.split_first_chunk::<OVERHEAD>().ok_or(Error::Truncated)?;
        if fields[0] != MAGIC || fields[1] >> 4 != VERSION {
            return Err(Error::Unsupported);
        }
        let word = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        if word(16) != sum(crc::all_but(bytes, CHECKSUM_AT)) {
            return Err(Error::Checksum);
        }
        let kind = match fields[1] & 0xF {
            DATA => Kind::Data { ack_request: fields[2] & ACK_REQUEST != 0 },
            ASK => Kind::Ask,
            ACK => Kind::Ack,
            NACK => Kind::Nack(parse_ranges(fields[3], payload)?),
            SYN => Kind::Syn,
            SYN_ACK => Kind::SynAck,
            RESET => Kind::Reset,
            CLOSE => Kind::Close,
            KEEP => Kind::Keep,
            _ => return Err(Error::Unsupported),
        };
        let header = Header { kind, connection: word(4), sequence: word(8), acknowledgement: word(12) };
        let carried = if matches!(kind, Kind::Data { .. }) { payload } else { &[] };
        Ok((Repr { destination: ethernet.destination, source: ethernet.source, header }, carried))
    }

    /// Length of the frame with `carried` bytes behind the header.
    pub fn len(&self, carried: usize) -> usize {
        let behind = match &self.header.kind {
            Kind::Data { .. } => carried,
            Kind::Nack(ranges) => ranges.as_slice().len() * 8,
            _ => 0,
        };
        HEADERS_LEN + behind
    }

    /// Writes the header and its checksum into a frame of [`Repr::len`] bytes that already holds the carried bytes.
    ///
    /// # Panics
    /// If the frame has another length.
    pub fn emit(&self, frame: &mut [u8]) {
        self.emit_by(frame, crc::of);
    }

    /// Like [`Repr::emit`], with another implementation of [`crc::of`].
    ///
    /// # Panics
    /// As [`Repr::emit`].
    pub fn emit_by(&self, frame: &mut [u8], sum: impl FnOnce([&[u8]; 2]) -> u32) {
        assert_eq!(frame.len(), self.len(frame.len().saturating_sub(HEADERS_LEN)));
        let (headers, behind) = frame.split_first_chunk_mut().expect("it has the header's length");
        if let Kind::Nack(ranges) = &self.header.kind {
            for (range, slot) in ranges.as_slice().iter().zip(behind.chunks_exact_mut(8)) {
                slot[..4].copy_from_slice(&range.0.to_be_bytes());
                slot[4..].copy_from_slice(&range.1.to_be_bytes());
            }
        }
        self.emit_headers(headers, behind, sum);
    }

    /// Writes only the header, with the checksum over the header and the separate bytes of `behind`.
    pub fn emit_headers(&self, headers: &mut [u8; HEADERS_LEN], behind: &[u8], sum: impl FnOnce([&[u8]; 2]) -> u32) {
        let (destination, source) = (self.destination, self.source);
        ethernet::Repr { destination, source, ethertype: ETHERTYPE }.emit(headers);
        let fields = &mut headers[HEADER_LEN..];
        let Header { kind, connection, sequence, acknowledgement } = &self.header;
        let (number, flags, ranges) = match kind {
            Kind::Data { ack_request } => (DATA, if *ack_request { ACK_REQUEST } else { 0 }, 0),
            Kind::Ask => (ASK, ACK_REQUEST, 0),
            Kind::Ack => (ACK, 0, 0),
            Kind::Nack(ranges) => (NACK, 0, ranges.count),
            Kind::Syn => (SYN, 0, 0),
            Kind::SynAck => (SYN_ACK, 0, 0),
            Kind::Reset => (RESET, 0, 0),
            Kind::Close => (CLOSE, 0, 0),
            Kind::Keep => (KEEP, 0, 0),
        };
        fields[..4].copy_from_slice(&[MAGIC, VERSION << 4 | number, flags, ranges]);
        fields[4..8].copy_from_slice(&connection.to_be_bytes());
        fields[8..12].copy_from_slice(&sequence.to_be_bytes());
        fields[12..16].copy_from_slice(&acknowledgement.to_be_bytes());
        let sum = sum([&headers[..CHECKSUM_AT], behind]);
        headers[CHECKSUM_AT..].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Removes the header of a frame that carries another: moves the addresses right before the carried bytes. Returns the
/// number of unused bytes at the front.
///
/// # Panics
/// If the frame is shorter than its header.
pub fn unwrap(frame: &mut [u8]) -> usize {
    let front = HEADERS_LEN - ADDRESSES_LEN;
    frame[..HEADERS_LEN].copy_within(..ADDRESSES_LEN, front);
    front
}

fn parse_ranges(count: u8, bytes: &[u8]) -> Result<Ranges, Error> {
    if usize::from(count) > RANGES_MAX {
        return Err(Error::Unsupported);
    }
    let bytes = bytes.get(..usize::from(count) * 8).ok_or(Error::Truncated)?;
    let mut ranges = Ranges::default();
    for range in bytes.chunks_exact(8) {
        let word = |at: usize| u32::from_be_bytes([range[at], range[at + 1], range[at + 2], range[at + 3]]);
        ranges.push(word(0), word(4));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec::Vec;

    fn any(random: &mut random::Random) -> (Repr, Vec<u8>) {
        let kind = match random.below(9) {
            0 => Kind::Data { ack_request: random.bool() },
            1 => Kind::Ask,
            2 => Kind::Ack,
            3 => {
                let mut ranges = Ranges::default();
                for _ in 0..random.below(RANGES_MAX as u64 + 1) {
                    assert!(ranges.push(random.u64() as u32, random.u64() as u32));
                }
                Kind::Nack(ranges)
            }
            4 => Kind::Syn,
            5 => Kind::SynAck,
            6 => Kind::Close,
            7 => Kind::Keep,
            _ => Kind::Reset,
        };
        let mut word = || random.u64() as u32;
        let header = Header { kind, connection: word(), sequence: word(), acknowledgement: word() };
        let carried = if matches!(kind, Kind::Data { .. }) { random.below(64) as usize } else { 0 };
        let carried = random.bytes(carried);
        (Repr { destination: MacAddress(random.array()), source: MacAddress(random.array()), header }, carried)
    }

    fn emitted(repr: &Repr, carried: &[u8]) -> Vec<u8> {
        let mut frame = std::vec![0; repr.len(carried.len())];
        frame[HEADER_LEN + OVERHEAD..][..carried.len()].copy_from_slice(carried);
        repr.emit(&mut frame);
        frame
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (repr, carried) = any(random);
            assert_eq!(Repr::parse(&emitted(&repr, &carried)), Ok((repr, &carried[..])));
        });
        random::never_panics(
            |random| {
                let (repr, carried) = any(random);
                emitted(&repr, &carried)
            },
            |bytes| Repr::parse(bytes).is_ok(),
        );
    }

    #[test]
    fn what_is_carried_is_taken_out_as_it_was_put_in() {
        let mut frame = std::vec![0; 60];
        let (destination, source) = (MacAddress::local(2), MacAddress::local(1));
        ethernet::Repr { destination, source, ethertype: ethernet::EtherType::IPV4 }.emit(&mut frame);
        (14..60).for_each(|at| frame[at] = at as u8);
        let header = Header { kind: Kind::Data { ack_request: true }, connection: 1, sequence: 2, acknowledgement: 3 };
        let mut sent = emitted(&Repr { destination, source, header }, &frame[ADDRESSES_LEN..]);
        assert_eq!(sent.len(), frame.len() + GROWTH);
        let front = unwrap(&mut sent);
        assert_eq!(sent[front..], frame);
    }

    #[test]
    fn one_bit_that_is_another_is_seen() {
        random::check(|random| {
            let (repr, carried) = any(random);
            let mut frame = emitted(&repr, &carried);
            let bit = random.below(frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(Repr::parse(&frame).is_err(), "bit {bit}");
        });
    }

    #[test]
    fn bytes_of_a_nack() {
        let mut ranges = Ranges::default();
        ranges.push(7, 1);
        ranges.push(0x0102_0304, 2);
        let header = Header { kind: Kind::Nack(ranges), connection: 1, sequence: 2, acknowledgement: 3 };
        let frame = emitted(&Repr { destination: MacAddress::local(2), source: MacAddress::local(1), header }, &[]);
        assert_eq!(frame[12..30], [0x88, 0xB6, 0x5A, 0x14, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
        assert_eq!(frame[34..], [0, 0, 0, 7, 0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0, 2]);
        assert!((0..14).all(|_| ranges.push(0, 0)) && !ranges.push(0, 0), "no more than {RANGES_MAX}");
    }
}
