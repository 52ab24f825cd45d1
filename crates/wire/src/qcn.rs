//! Congestion notification messages and tags (IEEE 802.1Q, clause 33; formerly 802.1Qau).
//!
//! A congestion notification message (CNM) tells the sender of a frame about the queue that the frame entered. A congestion
//! notification tag (CN-TAG) names the flow that a frame belongs to; a CNM about the frame returns the tag.

use crate::ethernet::{self, ADDRESSES_LEN, EtherType, HEADER_LEN, MacAddress};
use crate::{Error, vlan};

/// Bytes of a CNM behind its EtherType, without the encapsulated data.
pub const FIELDS_LEN: usize = 24;
/// Most bytes of a frame's data that a CNM returns.
pub const DATA_MAX: usize = 64;
/// The unit of queue lengths in a CNM, in bytes.
pub const QUEUE_UNIT: i64 = 64;
/// Bytes that a CN-TAG adds to a frame, counted from behind the tag's EtherType: the flow and the inner type.
pub const TAG_LEN: usize = 4;

/// A congestion notification message: the bytes behind [`EtherType::CNM`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// The quantised feedback, 6 bits: the larger, the more congestion.
    pub feedback: u8,
    /// Identifier of the congestion point.
    pub cpid: [u8; 8],
    /// Length of the queue minus the set point, in units of [`QUEUE_UNIT`].
    pub offset: i16,
    /// Growth of the queue since the sample before, in units of [`QUEUE_UNIT`].
    pub delta: i16,
    /// Priority of the sampled frame.
    pub priority: u8,
    /// Destination of the sampled frame.
    pub destination: MacAddress,
    /// The first bytes of the sampled frame's data, [`DATA_MAX`] at most.
    pub data: &'a [u8],
}

impl<'a> Repr<'a> {
    /// Reads the bytes behind the EtherType. Padding behind the data is ignored, and so are reserved bits.
    ///
    /// Another version is [`Error::Unsupported`]; more data than [`DATA_MAX`], or than there is, is [`Error::Length`].
    pub fn parse(bytes: &'a [u8]) -> Result<Repr<'a>, Error> {
        let (fields, rest) = bytes.split_first_chunk::<FIELDS_LEN>().ok_or(Error::Truncated)?;
        let pair = |at: usize| [fields[at], fields[at + 1]];
        if fields[0] >> 4 != 0 {
            return Err(Error::Unsupported);
        }
        let length = usize::from(u16::from_be_bytes(pair(22)));
        if length > DATA_MAX {
            return Err(Error::Length);
        }
        let mut repr = Repr {
            feedback: fields[1] & 0x3F,
            cpid: [0; 8],
            offset: i16::from_be_bytes(pair(10)),
            delta: i16::from_be_bytes(pair(12)),
            priority: fields[14] >> 5,
            destination: MacAddress([0; 6]),
            data: rest.get(..length).ok_or(Error::Length)?,
        };
        repr.cpid.copy_from_slice(&fields[2..10]);
        repr.destination.0.copy_from_slice(&fields[16..22]);
        Ok(repr)
    }

    /// The message of congestion point `cpid` about a frame of `priority` to `destination`, without data. The queue is
    /// described by feedback, offset and growth, the latter two in bytes.
    pub fn of(
        cpid: u64,
        (feedback, offset, delta): (u8, i64, i64),
        priority: u8,
        destination: MacAddress,
    ) -> Repr<'static> {
        let (cpid, offset, delta) = (cpid.to_be_bytes(), queue_units(offset), queue_units(delta));
        Repr { feedback, cpid, offset, delta, priority, destination, data: &[] }
    }

    /// Bytes of the message behind the EtherType.
    pub fn emitted_len(&self) -> usize {
        FIELDS_LEN + self.data.len()
    }

    /// Writes the message into the first [`Repr::emitted_len`] bytes; panics if there are fewer, or if a field does not fit.
    pub fn emit(&self, bytes: &mut [u8]) {
        assert!(self.feedback <= 0x3F && self.priority <= 7, "a feedback of 6 bits and a priority of 3");
        assert!(self.data.len() <= DATA_MAX, "at most {DATA_MAX} bytes of data");
        bytes[0..2].copy_from_slice(&[0, self.feedback]);
        bytes[2..10].copy_from_slice(&self.cpid);
        bytes[10..12].copy_from_slice(&self.offset.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.delta.to_be_bytes());
        bytes[14..16].copy_from_slice(&[self.priority << 5, 0]);
        bytes[16..22].copy_from_slice(&self.destination.0);
        bytes[22..24].copy_from_slice(&(self.data.len() as u16).to_be_bytes());
        bytes[FIELDS_LEN..self.emitted_len()].copy_from_slice(self.data);
    }
}

/// A CNM in its frame, with a priority tag and without the check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The source of the sampled frame.
    pub destination: MacAddress,
    /// The switch of the congestion point.
    pub source: MacAddress,
    /// Priority of this frame.
    pub priority: u8,
    /// The flow in the CN-TAG of the sampled frame, if that had one.
    pub flow: Option<u16>,
    /// The message.
    pub message: Repr<'a>,
}

impl<'a> Frame<'a> {
    /// Reads a frame with any tag or none, and with a CN-TAG or none.
    ///
    /// [`Error::Unsupported`] if the frame is no CNM.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Error> {
        let (header, mut rest) = ethernet::Repr::parse(bytes)?;
        let (mut priority, mut ethertype) = (0, header.ethertype);
        if ethertype == EtherType::VLAN {
            let (tag, inner) = vlan::Repr::parse(rest)?;
            (priority, ethertype, rest) = (tag.priority, tag.ethertype, inner);
        }
        let mut flow = None;
        if ethertype == EtherType::CN_TAG {
            let (tag, inner) = Tag::parse(rest)?;
            (flow, ethertype, rest) = (Some(tag.flow), tag.ethertype, inner);
        }
        if ethertype != EtherType::CNM {
            return Err(Error::Unsupported);
        }
        let message = Repr::parse(rest)?;
        Ok(Frame { destination: header.destination, source: header.source, priority, flow, message })
    }

    /// Bytes of the frame: at least those of the shortest frame.
    pub fn emitted_len(&self) -> usize {
        (self.header_len() + self.message.emitted_len()).max(ethernet::MIN_LEN)
    }

    /// Writes the frame into the first [`Frame::emitted_len`] bytes; panics if there are fewer, or if a field does not fit.
    pub fn emit(&self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..self.emitted_len()];
        bytes.fill(0);
        let header = ethernet::Repr { destination: self.destination, source: self.source, ethertype: EtherType::VLAN };
        header.emit(bytes);
        let ethertype = if self.flow.is_some() { EtherType::CN_TAG } else { EtherType::CNM };
        let tag = vlan::Repr { priority: self.priority, drop_eligible: false, vid: 0, ethertype };
        tag.emit(&mut bytes[HEADER_LEN..]);
        if let Some(flow) = self.flow {
            Tag { flow, ethertype: EtherType::CNM }.emit(&mut bytes[HEADER_LEN + vlan::TAG_LEN..]);
        }
        self.message.emit(&mut bytes[self.header_len()..]);
    }

    /// Bytes in front of the message.
    fn header_len(&self) -> usize {
        HEADER_LEN + vlan::TAG_LEN + self.flow.map_or(0, |_| TAG_LEN)
    }
}

/// A queue length in the unit of a CNM, rounded towards zero; the largest or smallest value where it does not fit.
pub fn queue_units(bytes: i64) -> i16 {
    (bytes / QUEUE_UNIT).clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16
}

/// A congestion notification tag: the bytes behind [`EtherType::CN_TAG`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The flow, in a numbering of its sender.
    pub flow: u16,
    /// The type behind the tag.
    pub ethertype: EtherType,
}

impl Tag {
    /// Reads a tag; returns the bytes behind it.
    pub fn parse(bytes: &[u8]) -> Result<(Tag, &[u8]), Error> {
        let (&[f0, f1, t0, t1], rest) = bytes.split_first_chunk::<TAG_LEN>().ok_or(Error::Truncated)?;
        let (flow, ethertype) = (u16::from_be_bytes([f0, f1]), EtherType(u16::from_be_bytes([t0, t1])));
        Ok((Tag { flow, ethertype }, rest))
    }

    /// Writes the tag into the first [`TAG_LEN`] bytes; panics if there are fewer.
    pub fn emit(&self, bytes: &mut [u8]) {
        bytes[0..2].copy_from_slice(&self.flow.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

/// The position of a frame's CN-TAG, or the position where it belongs: behind the addresses and an 802.1Q tag.
pub fn tag_position(frame: &[u8]) -> usize {
    let is_tagged = frame.get(ADDRESSES_LEN..HEADER_LEN) == Some(&EtherType::VLAN.0.to_be_bytes());
    if is_tagged { ADDRESSES_LEN + vlan::TAG_LEN } else { ADDRESSES_LEN }
}

/// The bytes of a CN-TAG as they stand in a frame: its EtherType, then the flow.
pub fn tag_bytes(flow: u16) -> [u8; TAG_LEN] {
    let ([t0, t1], [f0, f1]) = (EtherType::CN_TAG.0.to_be_bytes(), flow.to_be_bytes());
    [t0, t1, f0, f1]
}

/// The flow in a frame's CN-TAG, if it has one.
pub fn flow_of(frame: &[u8]) -> Option<u16> {
    let at = tag_position(frame);
    let (tag, _) = frame.get(at..)?.split_first_chunk::<TAG_LEN>()?;
    let flow = u16::from_be_bytes([tag[2], tag[3]]);
    (*tag == tag_bytes(flow)).then_some(flow)
}

/// Whether a frame is a CNM, behind any of the tags that [`Frame::parse`] reads.
pub fn is_notification(frame: &[u8]) -> bool {
    let at = tag_position(frame) + if flow_of(frame).is_some() { TAG_LEN } else { 0 };
    frame.get(at..at + 2) == Some(&EtherType::CNM.0.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;
    use std::vec;
    use std::vec::Vec;

    fn emitted(repr: &Repr<'_>) -> Vec<u8> {
        let mut bytes = vec![0; repr.emitted_len()];
        repr.emit(&mut bytes);
        bytes
    }

    /// Written by hand: version 0, feedback 42, congestion point 02:00:00:00:00:09 output 3, queue
    /// 12,800 B above its set point and 640 B shorter than before, about a frame of priority 3.
    const VECTOR: [u8; 28] = [
        0x00, 0x2A, 0x02, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x03, 0x00, 0xC8, 0xFF, 0xF6, 0x60, 0x00, 0x02, 0x00,
        0x00, 0x00, 0x00, 0x07, 0x00, 0x04, 0x45, 0x00, 0x05, 0xDC,
    ];

    fn of_vector() -> Repr<'static> {
        Repr {
            feedback: 42,
            cpid: [0x02, 0, 0, 0, 0, 9, 0, 3],
            offset: queue_units(12_800),
            delta: queue_units(-640),
            priority: 3,
            destination: MacAddress::local(7),
            data: &VECTOR[24..],
        }
    }

    #[test]
    fn bytes_of_a_notification() {
        assert_eq!(emitted(&of_vector()), VECTOR);
        assert_eq!(Repr::parse(&VECTOR), Ok(of_vector()));
    }

    #[test]
    fn bytes_of_a_frame() {
        let (destination, source) = (MacAddress::local(1), MacAddress::local(9));
        let frame = Frame { destination, source, priority: 7, flow: None, message: Repr { data: &[], ..of_vector() } };
        let mut bytes = [0xff; 60];
        frame.emit(&mut bytes);
        assert_eq!(bytes[..18], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x81, 0, 0xE0, 0, 0x22, 0xE7]);
        assert_eq!(bytes[18..40], VECTOR[..22]);
        assert_eq!(bytes[40..], [0; 20], "no data, and padding to 60 bytes");
        assert_eq!(Frame::parse(&bytes), Ok(frame));
        let with_flow = Frame { flow: Some(0x1234), ..frame };
        let mut longer = [0xff; 60];
        with_flow.emit(&mut longer);
        assert_eq!(longer[..22], [&bytes[..16], &[0x22, 0xE9, 0x12, 0x34], &bytes[16..18]].concat());
        assert_eq!(longer[22..], bytes[18..56], "padding gives way to the CN-TAG");
        assert_eq!(Frame::parse(&longer), Ok(with_flow));
        let mut untagged = [0; 60];
        untagged[..12].copy_from_slice(&bytes[..12]);
        untagged[12..56].copy_from_slice(&bytes[16..]);
        assert_eq!(Frame::parse(&untagged), Ok(Frame { priority: 0, ..frame }));
        bytes[17] = 0xE9;
        assert_eq!(Frame::parse(&bytes), Err(Error::Unsupported));
        assert!((0..38).all(|len| Frame::parse(&untagged[..len]).is_err()));
    }

    #[test]
    fn round_trip() {
        let any = |random: &mut random::Random| {
            let data: [u8; DATA_MAX] = core::array::from_fn(|_| random.u64() as u8);
            let length = random.u64() as usize % (DATA_MAX + 1);
            let repr = Repr {
                feedback: random.u64() as u8 & 0x3F,
                cpid: random.array(),
                offset: random.u64() as i16,
                delta: random.u64() as i16,
                priority: random.u64() as u8 & 7,
                destination: MacAddress(random.array()),
                data: &data[..length],
            };
            let mut bytes = emitted(&repr);
            assert_eq!(Repr::parse(&bytes), Ok(repr));
            bytes.extend([0; 20]);
            assert_eq!(Repr::parse(&bytes), Ok(repr), "padding");
            let tag = Tag { flow: random.u64() as u16, ethertype: EtherType(random.u64() as u16) };
            let mut tagged = [0; TAG_LEN + 1];
            tag.emit(&mut tagged);
            assert_eq!(Tag::parse(&tagged), Ok((tag, &[0][..])));
            bytes
        };
        random::check(|random| _ = any(random));
        random::never_panics(any, |bytes| Repr::parse(bytes).is_ok() || Tag::parse(bytes).is_ok());
    }

    #[test]
    fn other_versions_and_false_lengths_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = VECTOR;
            bytes[at] = value;
            Repr::parse(&bytes).map(|repr| repr.data.len())
        };
        assert_eq!(with(0, 0x10), Err(Error::Unsupported));
        assert_eq!(with(0, 0x0F), Ok(4), "reserved bits");
        assert_eq!(
            (with(23, 5), with(23, 65), with(22, 1)),
            (Err(Error::Length), Err(Error::Length), Err(Error::Length))
        );
        assert_eq!(Repr::parse(&VECTOR[..FIELDS_LEN - 1]), Err(Error::Truncated));
        assert_eq!(Tag::parse(&VECTOR[..3]), Err(Error::Truncated));
    }

    #[test]
    fn a_tag_stands_behind_the_addresses_and_an_802_1q_tag() {
        let frame = Frame {
            destination: MacAddress::local(1),
            source: MacAddress::local(9),
            priority: 7,
            flow: None,
            message: Repr { data: &[], ..of_vector() },
        };
        let mut bytes = [0; 60];
        frame.emit(&mut bytes);
        let untagged = [&bytes[..12], &bytes[16..]].concat();
        for (bytes, at) in [(&bytes[..], 16), (&untagged, 12)] {
            assert_eq!((tag_position(bytes), flow_of(bytes), is_notification(bytes)), (at, None, true));
            let tagged = [&bytes[..at], &[0x22, 0xE9, 0x12, 0x34], &bytes[at..]].concat();
            assert_eq!(tagged[at..at + 4], tag_bytes(0x1234));
            assert_eq!((tag_position(&tagged), flow_of(&tagged), is_notification(&tagged)), (at, Some(0x1234), true));
            assert_eq!(Frame::parse(&tagged).unwrap(), Frame { flow: Some(0x1234), ..Frame::parse(bytes).unwrap() });
            // Not whole: no tag, and no notification.
            assert!((0..at + 6).all(|len| !is_notification(&tagged[..len])));
            assert!((0..at + 4).all(|len| flow_of(&tagged[..len]).is_none()));
        }
        // Two CN-TAGs are none of the forms.
        let twice = [&untagged[..12], &tag_bytes(1), &tag_bytes(2), &untagged[12..]].concat();
        assert!(!is_notification(&twice) && Frame::parse(&twice).is_err());
    }

    #[test]
    fn queue_lengths_saturate() {
        assert_eq!([0, 63, 64, -64, 1 << 40, -(1 << 40)].map(queue_units), [0, 0, 1, -1, i16::MAX, i16::MIN]);
    }
}
