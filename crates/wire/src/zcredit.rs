//! zCredit's messages: requests for credits and grants of credits, between the hypervisors of two VMs, in frames with an
//! EtherType of their own (Crisan 2014, 5.3.3).
//!
//! ```text
//!  0  destination, source, type 0x88B6                       14
//! 14  "slzc"                                                  4
//! 18  version, 1                                              1
//! 19  kind: 1 request, 2 grant, 3 probe, 4 reset, 5 close     1
//! 20  channel                                                 4
//! 24  request: wanted; grant: granted; close: spent;         4
//!     reset: last
//! 28  request: spent;                  close: returned        4
//! 32  request: granted                                        4
//! 36  request: returned                                       4
//! 40  CRC-32C of all other bytes of the frame                 4
//! 44  zeros up to the shortest frame                         16
//! ```
//!
//! Numbers are big-endian. Source and destination are the two VMs: their hypervisors recognise the frames by their type.

use crate::ethernet::{self, EtherType, HEADER_LEN, MIN_LEN, MacAddress};
use crate::{Error, crc};

/// 802's second "local experimental" type.
pub const ETHERTYPE: EtherType = EtherType(0x88B6);
/// Bytes of a frame without its check sequence: it is always of the smallest size.
pub const LEN: usize = MIN_LEN;

/// Distinguishes these frames from other experiments.
const MAGIC: [u8; 4] = *b"slzc";
const VERSION: u8 = 1;
const REQUEST: u8 = 1;
const GRANT: u8 = 2;
const PROBE: u8 = 3;
const RESET: u8 = 4;
const CLOSE: u8 = 5;
const CHECKSUM_AT: usize = HEADER_LEN + 26;

/// The content of a message. Counts are of credits since the channel began, starting at the channel's number, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the data sender.
    Request {
        /// Total credits that the sender wants.
        wanted: u32,
        /// Credits that the sender has spent on frames, or returned.
        spent: u32,
        /// Credits that the sender knows to be granted.
        granted: u32,
        /// Credits that the sender has returned, counted from 0.
        returned: u32,
    },
    /// From the data receiver: granted credits.
    Grant {
        /// Total credits granted since the channel began.
        granted: u32,
    },
    /// From the data receiver: asks for the sender's state.
    Probe,
    /// From the data receiver: the channel is unknown here; the sender must begin another.
    Reset {
        /// A remembered channel: a new channel's number must be later, modulo 2^32.
        last: u32,
    },
    /// From the data sender: it will send no more data.
    Close {
        /// Credits that the sender has spent on frames, or returned.
        spent: u32,
        /// Credits that the sender has returned, counted from 0.
        returned: u32,
    },
}

/// A frame, from its destination to its padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The receiving VM.
    pub destination: MacAddress,
    /// The sending VM.
    pub source: MacAddress,
    /// The channel: a number chosen by the data sender.
    pub channel: u32,
    /// The message.
    pub message: Message,
}

impl Repr {
    /// Reads a whole frame without its check sequence.
    ///
    /// Another type, magic, version or kind is [`Error::Unsupported`]; damaged bytes are [`Error::Checksum`].
    pub fn parse(bytes: &[u8]) -> Result<Repr, Error> {
        let (header, rest) = ethernet::Repr::parse(bytes)?;
        if header.ethertype != ETHERTYPE {
            return Err(Error::Unsupported);
        }
        let (fields, _padding) = rest.split_first_chunk::<30>().ok_or(Error::Truncated)?;
        if fields[..4] != MAGIC || fields[4] != VERSION {
            return Err(Error::Unsupported);
        }
        let word = |at: usize| u32::from_be_bytes([fields[at], fields[at + 1], fields[at + 2], fields[at + 3]]);
        if word(26) != crc::of(crc::all_but(bytes, CHECKSUM_AT)) {
            return Err(Error::Checksum);
        }
        let message = match fields[5] {
            REQUEST => Message::Request { wanted: word(10), spent: word(14), granted: word(18), returned: word(22) },
            GRANT => Message::Grant { granted: word(10) },
            PROBE => Message::Probe,
            RESET => Message::Reset { last: word(10) },
            CLOSE => Message::Close { spent: word(10), returned: word(14) },
            _ => return Err(Error::Unsupported),
        };
        Ok(Repr { destination: header.destination, source: header.source, channel: word(6), message })
    }

    /// The whole frame without its check sequence.
    pub fn emit(&self) -> [u8; LEN] {
        let mut frame = [0; LEN];
        let (destination, source) = (self.destination, self.source);
        ethernet::Repr { destination, source, ethertype: ETHERTYPE }.emit(&mut frame);
        let fields = &mut frame[HEADER_LEN..];
        let (kind, words) = match self.message {
            Message::Request { wanted, spent, granted, returned } => (REQUEST, [wanted, spent, granted, returned]),
            Message::Grant { granted } => (GRANT, [granted, 0, 0, 0]),
            Message::Probe => (PROBE, [0; 4]),
            Message::Reset { last } => (RESET, [last, 0, 0, 0]),
            Message::Close { spent, returned } => (CLOSE, [spent, returned, 0, 0]),
        };
        fields[..4].copy_from_slice(&MAGIC);
        fields[4..6].copy_from_slice(&[VERSION, kind]);
        fields[6..10].copy_from_slice(&self.channel.to_be_bytes());
        for (at, word) in words.iter().enumerate() {
            fields[10 + 4 * at..14 + 4 * at].copy_from_slice(&word.to_be_bytes());
        }
        let sum = crc::of(crc::all_but(&frame, CHECKSUM_AT));
        frame[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn any(random: &mut random::Random) -> Repr {
        let mut word = || random.u64() as u32;
        let (a, b, c, d) = (word(), word(), word(), word());
        let message = match random.below(5) {
            0 => Message::Request { wanted: a, spent: b, granted: c, returned: d },
            1 => Message::Grant { granted: a },
            2 => Message::Probe,
            3 => Message::Reset { last: a },
            _ => Message::Close { spent: a, returned: b },
        };
        let (destination, source) = (MacAddress(random.array()), MacAddress(random.array()));
        Repr { destination, source, channel: random.u64() as u32, message }
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
    fn bytes_of_a_request() {
        let message = Message::Request { wanted: 0x0102_0304, spent: 5, granted: 6, returned: 7 };
        let repr =
            Repr { destination: MacAddress::local(2), source: MacAddress::local(1), channel: 0xAABB_CCDD, message };
        let mut expected = [0; LEN];
        expected[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xB6]);
        expected[14..24].copy_from_slice(&[b's', b'l', b'z', b'c', 1, 1, 0xAA, 0xBB, 0xCC, 0xDD]);
        expected[24..40].copy_from_slice(&[1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7]);
        // Apart from the checksum.
        let mut frame = repr.emit();
        assert_ne!(frame[40..44], [0; 4]);
        frame[40..44].fill(0);
        assert_eq!(frame, expected);
    }

    #[test]
    fn what_is_not_one_is_refused() {
        let (destination, source) = (MacAddress::local(2), MacAddress::local(1));
        let frame = Repr { destination, source, channel: 1, message: Message::Probe }.emit();
        for (at, value) in [(13, 0xB5), (14, b'S'), (18, 2), (19, 0), (19, 6)] {
            let mut other = frame;
            other[at] = value;
            assert!(Repr::parse(&other).is_err(), "byte {at}");
            let sum = crc::of(crc::all_but(&other, CHECKSUM_AT));
            other[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
            assert_eq!(Repr::parse(&other), Err(Error::Unsupported), "byte {at}");
        }
        assert_eq!(Repr::parse(&frame[..43]), Err(Error::Truncated));
    }

    #[test]
    fn one_bit_that_is_another_is_seen() {
        random::check(|random| {
            let mut frame = any(random).emit();
            let bit = random.below(frame.len() as u64 * 8) as usize;
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(Repr::parse(&frame).is_err(), "bit {bit}");
        });
    }
}
