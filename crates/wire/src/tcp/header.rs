//! A segment as bytes: header, options, checksum.

use super::{Flags, SackBlocks, Segment, SynOptions};
use crate::Error;
use crate::checksum::PseudoHeader;
use crate::ipv4::Protocol;
use crate::seq::SeqNumber;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Most bytes of a header: the data offset has four bits and counts words of four bytes.
pub const MAX_HEADER_LEN: usize = 60;
/// Largest shift of the window (RFC 7323, 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

/// Option kinds (RFC 9293, 3.1; RFC 7323, 2.2 and 3.2; RFC 2018, 2 and 3).
mod kind {
    pub const END: u8 = 0;
    pub const NOP: u8 = 1;
    pub const MSS: u8 = 2;
    pub const WINDOW_SCALE: u8 = 3;
    pub const SACK_PERMITTED: u8 = 4;
    pub const SACK: u8 = 5;
    pub const TIMESTAMPS: u8 = 8;
}

/// A segment with the ports it travels between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// The rest of the header, and the length of the payload.
    pub segment: Segment,
}

impl Repr {
    /// Bytes of the header with its options, a multiple of four.
    pub fn header_len(&self) -> usize {
        let segment = &self.segment;
        let syn = segment.syn;
        let sack = match segment.sack.as_slice().len() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        // Two bytes of "SACK permitted" fit into the padding of the timestamps.
        let timestamps = if segment.timestamps.is_some() { 12 } else { 0 };
        let permitted = if syn.sack_permitted && segment.timestamps.is_none() { 4 } else { 0 };
        HEADER_LEN
            + 4 * syn.mss.is_some() as usize
            + permitted
            + timestamps
            + 4 * syn.window_scale.is_some() as usize
            + sack
    }

    /// Reads a segment and checks its checksum; returns the payload.
    ///
    /// Reserved bits and the urgent pointer are ignored. So are unknown options, known ones of a wrong length, and those
    /// of a SYN in any other segment. A length that leaves the options is [`Error::Length`]: "TCP implementations MUST
    /// be prepared to handle an illegal option length (e.g., zero)" (RFC 9293, MUST-7).
    pub fn parse<'a>(bytes: &'a [u8], pseudo: &PseudoHeader) -> Result<(Repr, &'a [u8]), Error> {
        let fixed = bytes.first_chunk::<HEADER_LEN>().ok_or(Error::Truncated)?;
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = *fixed;
        let header_len = (offset >> 4) as usize * 4;
        if header_len < HEADER_LEN || bytes.len() > u16::MAX as usize {
            return Err(Error::Length);
        }
        let options = bytes.get(HEADER_LEN..header_len).ok_or(Error::Truncated)?;
        if pseudo.checksum(Protocol::TCP.0, bytes) != 0 {
            return Err(Error::Checksum);
        }
        let payload = &bytes[header_len..];
        let mut segment = Segment {
            seq: SeqNumber(u32::from_be_bytes([q0, q1, q2, q3])),
            ack: SeqNumber(u32::from_be_bytes([a0, a1, a2, a3])),
            window: u16::from_be_bytes([w0, w1]),
            len: payload.len() as u16,
            flags: Flags(flags),
            ..Segment::default()
        };
        parse_options(options, &mut segment)?;
        let [source_port, destination_port] = [u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])];
        Ok((Repr { source_port, destination_port, segment }, payload))
    }

    /// Writes header, options and checksum in front of the payload, which must already be in `bytes[header_len()..]`.
    ///
    /// Panics unless `bytes` has exactly the length of header and payload, or when the options take more than 40 bytes.
    pub fn emit(&self, bytes: &mut [u8], pseudo: &PseudoHeader) {
        let segment = &self.segment;
        let header_len = self.header_len();
        assert!(header_len <= MAX_HEADER_LEN, "the options of a SYN and SACK blocks never stand together");
        assert_eq!(bytes.len(), header_len + segment.len as usize, "a buffer for header and payload");
        bytes[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes[4..8].copy_from_slice(&segment.seq.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&segment.ack.0.to_be_bytes());
        bytes[12] = (header_len as u8 / 4) << 4;
        bytes[13] = segment.flags.0;
        bytes[14..16].copy_from_slice(&segment.window.to_be_bytes());
        // Checksum, and an unused urgent pointer.
        bytes[16..20].fill(0);
        emit_options(segment, &mut bytes[HEADER_LEN..header_len]);
        let sum = pseudo.checksum(Protocol::TCP.0, bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Reads options into `segment`. Each iteration consumes at least a byte.
fn parse_options(mut options: &[u8], segment: &mut Segment) -> Result<(), Error> {
    let is_syn = segment.flags.contains(Flags::SYN);
    while let [kind, rest @ ..] = options {
        match *kind {
            kind::END => break,
            kind::NOP => options = rest,
            kind => {
                // The length includes the kind and the length byte.
                let len = *rest.first().ok_or(Error::Length)? as usize;
                let data = options.get(2..len).ok_or(Error::Length)?;
                parse_option(kind, data, is_syn, segment);
                options = &options[len..];
            }
        }
    }
    Ok(())
}

fn parse_option(kind: u8, data: &[u8], is_syn: bool, segment: &mut Segment) {
    let word = |bytes: &[u8]| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    match (kind, data) {
        (kind::MSS, &[high, low]) if is_syn => segment.syn.mss = Some(u16::from_be_bytes([high, low])),
        // A larger shift is taken as 14 (RFC 7323, 2.3).
        (kind::WINDOW_SCALE, &[shift]) if is_syn => segment.syn.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
        (kind::SACK_PERMITTED, []) if is_syn => segment.syn.sack_permitted = true,
        (kind::TIMESTAMPS, data) if data.len() == 8 => {
            segment.timestamps = Some((word(&data[..4]), word(&data[4..])));
        }
        (kind::SACK, data) if data.len() % 8 == 0 => {
            segment.sack = SackBlocks::EMPTY;
            for block in data.chunks_exact(8) {
                segment.sack.push(SeqNumber(word(&block[..4])), SeqNumber(word(&block[4..])));
            }
        }
        _ => {}
    }
}

/// Writes the options in Linux's order, each group on a word boundary; `bytes` has exactly their length.
fn emit_options(segment: &Segment, bytes: &mut [u8]) {
    let SynOptions { mss, window_scale, sack_permitted } = segment.syn;
    let mut out = Output { bytes, at: 0 };
    if let Some(mss) = mss {
        out.put(&[kind::MSS, 4]);
        out.put(&mss.to_be_bytes());
    }
    if sack_permitted {
        out.put(&[kind::SACK_PERMITTED, 2]);
    }
    if let Some((value, echo)) = segment.timestamps {
        if !sack_permitted {
            out.put(&[kind::NOP; 2]);
        }
        out.put(&[kind::TIMESTAMPS, 10]);
        out.put(&value.to_be_bytes());
        out.put(&echo.to_be_bytes());
    } else if sack_permitted {
        out.put(&[kind::NOP; 2]);
    }
    if let Some(shift) = window_scale {
        assert!(shift <= MAX_WINDOW_SCALE, "a window is shifted by 14 at most");
        out.put(&[kind::NOP, kind::WINDOW_SCALE, 3, shift]);
    }
    let blocks = segment.sack.as_slice();
    if !blocks.is_empty() {
        out.put(&[kind::NOP, kind::NOP, kind::SACK, 2 + 8 * blocks.len() as u8]);
        for (left, right) in blocks {
            out.put(&left.0.to_be_bytes());
            out.put(&right.0.to_be_bytes());
        }
    }
    assert_eq!(out.at, out.bytes.len(), "header_len() counts what is written");
}

/// A buffer that fills from the front.
struct Output<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{self, Random};
    use std::vec::Vec;

    fn any_pseudo(random: &mut Random) -> PseudoHeader {
        PseudoHeader { source: random.ipv4(), destination: random.ipv4() }
    }

    fn any(random: &mut Random) -> Repr {
        let mut segment = Segment {
            seq: SeqNumber(random.u64() as u32),
            ack: SeqNumber(random.u64() as u32),
            window: random.u64() as u16,
            len: random.below(50) as u16,
            flags: Flags(random.u64() as u8),
            timestamps: random.bool().then(|| (random.u64() as u32, random.u64() as u32)),
            ..Segment::default()
        };
        if segment.flags.contains(Flags::SYN) {
            segment.syn = SynOptions {
                mss: random.bool().then(|| random.u64() as u16),
                window_scale: random.bool().then(|| random.below(15) as u8),
                sack_permitted: random.bool(),
            };
        } else {
            for _ in 0..random.below(4) {
                segment.sack.push(SeqNumber(random.u64() as u32), SeqNumber(random.u64() as u32));
            }
        }
        Repr { source_port: random.u64() as u16, destination_port: random.u64() as u16, segment }
    }

    fn emitted(repr: &Repr, pseudo: &PseudoHeader, random: &mut Random) -> Vec<u8> {
        let mut bytes = random.bytes(repr.header_len() + repr.segment.len as usize);
        repr.emit(&mut bytes, pseudo);
        bytes
    }

    #[test]
    fn round_trip() {
        random::check(|random| {
            let (repr, pseudo) = (any(random), any_pseudo(random));
            let mut bytes = emitted(&repr, &pseudo, random);
            assert_eq!(Repr::parse(&bytes, &pseudo), Ok((repr, &bytes[repr.header_len()..])));
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
            assert!(Repr::parse(&bytes, &pseudo).is_err(), "one flipped bit at {at}");
        });
    }

    #[test]
    fn random_options_never_panic_or_loop() {
        let pseudo = any_pseudo(&mut Random::new(0));
        let valid = |random: &mut Random| emitted(&any(random), &pseudo, random);
        random::never_panics(valid, |bytes| Repr::parse(bytes, &pseudo).is_ok());
        // Random bytes never pass the checksum, so options are tested separately.
        random::check(|random| {
            let flags = Flags(random.u64() as u8);
            let mut segment = Segment { flags, ..Segment::default() };
            let len = random.below(41) as usize;
            let small = random.bool();
            let options: Vec<u8> = random.bytes(len).iter().map(|byte| if small { byte % 12 } else { *byte }).collect();
            let _ = parse_options(&options, &mut segment);
        });
    }

    fn options(flags: Flags, bytes: &[u8]) -> Result<Segment, Error> {
        let mut segment = Segment { flags, ..Segment::default() };
        parse_options(bytes, &mut segment).map(|()| segment)
    }

    #[test]
    fn options_obey_the_standards() {
        let syn = |bytes| options(Flags::SYN, bytes).map(|segment| segment.syn);
        // Every known option behind an unknown one, and nothing behind the end.
        let known = syn(&[254, 4, 0, 0, 2, 4, 0x05, 0xB4, 4, 2, 3, 3, 7, 0, 2, 4, 0, 1]);
        assert_eq!(known, Ok(SynOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true }));
        assert_eq!(syn(&[3, 3, 200]).unwrap().window_scale, Some(14), "RFC 7323, 2.3");
        assert_eq!(syn(&[2, 3, 9]), Ok(SynOptions::default()), "an MSS of three bytes is skipped");
        for illegal in [&[2][..], &[2, 0, 0, 0], &[2, 1, 0, 0], &[1, 1, 2, 4, 0], &[8, 255]] {
            assert_eq!(options(Flags::SYN, illegal), Err(Error::Length), "{illegal:?}");
        }
        let ack = options(Flags::ACK, &[2, 4, 0x05, 0xB4, 4, 2, 3, 3, 7]).unwrap();
        assert_eq!(ack.syn, SynOptions::default(), "only a SYN carries them");
    }

    #[test]
    fn four_sack_blocks_give_the_first_three() {
        let mut bytes = std::vec![5, 34];
        bytes.extend((0u32..8).flat_map(u32::to_be_bytes));
        let sack = options(Flags::ACK, &bytes).unwrap().sack;
        let block = |left, right| (SeqNumber(left), SeqNumber(right));
        assert_eq!(sack.as_slice(), [block(0, 1), block(2, 3), block(4, 5)]);
    }

    #[test]
    fn a_header_shorter_or_longer_than_it_can_be() {
        let pseudo = any_pseudo(&mut Random::new(0));
        let mut bytes = [0; HEADER_LEN];
        Repr::default().emit(&mut bytes, &pseudo);
        assert_eq!(Repr::parse(&bytes[..19], &pseudo), Err(Error::Truncated));
        bytes[12] = 4 << 4;
        assert_eq!(Repr::parse(&bytes, &pseudo), Err(Error::Length));
        bytes[12] = 6 << 4;
        assert_eq!(Repr::parse(&bytes, &pseudo), Err(Error::Truncated));
    }

    #[test]
    fn the_fullest_headers_fit() {
        let syn = SynOptions { mss: Some(1460), window_scale: Some(9), sack_permitted: true };
        let mut segment = Segment { flags: Flags::SYN, timestamps: Some((1, 0)), syn, ..Segment::default() };
        assert_eq!(Repr { segment, ..Repr::default() }.header_len(), 40);
        segment.syn = SynOptions::default();
        for i in 0..3 {
            segment.sack.push(SeqNumber(i), SeqNumber(i + 1));
        }
        assert_eq!(Repr { segment, ..Repr::default() }.header_len(), MAX_HEADER_LEN);
    }
}
