//! The headers of a real frame, as the applications of a bump see them.
//!
//! A frame's first bytes are copied once into private memory and parsed once. The applications read and change this copy, and
//! the bump delivers it in front of the rest of the frame. So a sender that changes its buffer meanwhile changes only payload.

use crate::port::Offload;
use sluicenet_proto::cee::qcn::{Message, Notification};
use sluicenet_proto::netbump::{self, Fields};
use sluicenet_wire::ethernet::{ADDRESSES_LEN, EtherType, HEADER_LEN, MIN_LEN};
use sluicenet_wire::ipv4::{Ecn, Protocol};
use sluicenet_wire::{bump, ipv4, lldp, qcn};

/// Bytes that are read of every frame: one cache line, which holds the headers of nearly all frames.
pub const LINE: usize = 64;
/// Bytes that are read of a frame whose headers are longer: two tags, and an IP header with all options, and ports.
pub const HEADER_BYTES: usize = 128;
/// Bytes on the wire beside those of the frame: check sequence, preamble and gap (802.3, 3.1.1 and 4.4.2).
pub const WIRE_OVERHEAD: u32 = 4 + 8 + 12;

/// Bytes of an IPv6 header.
const IPV6_LEN: usize = 40;

/// The name of a flow: two stations, and the flow in the sender's congestion notification tag, if it sends one. A notification
/// names no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The sender.
    pub source: [u8; 6],
    /// The receiver.
    pub destination: [u8; 6],
    /// The flow in the sender's numbering.
    pub tag: Option<u16>,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Content {
    /// No content that a bump knows.
    #[default]
    Other,
    /// An IPv4 packet at this offset.
    Ipv4(u8),
    /// An IPv6 packet at this offset.
    Ipv6(u8),
    /// A congestion notification.
    Notification,
    /// An update of a bump.
    Update,
    /// What a neighbour says about itself.
    Lldp,
}

/// The first bytes of a frame.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub struct Frame {
    bytes: [u8; HEADER_BYTES],
    len: u32,
    /// How many of the bytes are the frame's.
    known: u32,
    wire_bytes: u32,
    content: Content,
}

impl Default for Frame {
    fn default() -> Frame {
        Frame { bytes: [0; HEADER_BYTES], len: 0, known: 0, wire_bytes: 0, content: Content::Other }
    }
}

/// A MAC address as a number, as maps list it.
#[inline(always)]
pub fn number_of(mac: [u8; 6]) -> u64 {
    u64::from_le_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0])
}

impl Frame {
    /// Reads a frame of `len` bytes, not less than an Ethernet header; `read` copies its first bytes into a piece of memory
    /// that is not longer than the frame, or than [`LINE`] where it is.
    #[inline(always)]
    pub fn read(&mut self, len: u32, mut read: impl FnMut(&mut [u8])) {
        read(&mut self.bytes[..LINE]);
        (self.len, self.known) = (len, len.min(LINE as u32));
        self.wire_bytes = len.max(MIN_LEN as u32) + WIRE_OVERHEAD;
        // An IPv4 header without options behind no tag.
        if self.pair(ADDRESSES_LEN) == EtherType::IPV4.0 && self.bytes[HEADER_LEN] == 0x45 && len >= 34 {
            self.content = Content::Ipv4(HEADER_LEN as u8);
            return;
        }
        self.read_other(&mut read);
    }

    /// Reads any other frame.
    #[cold]
    fn read_other(&mut self, read: &mut dyn FnMut(&mut [u8])) {
        let known = (self.len as usize).min(HEADER_BYTES);
        if known > LINE {
            read(&mut self.bytes[..known]);
        }
        self.known = known as u32;
        // Bytes behind the frame are not its own.
        self.bytes[known..].fill(0);
        self.content = self.parse(known).unwrap_or_default();
    }

    fn parse(&self, known: usize) -> Option<Content> {
        let bytes = &self.bytes[..known];
        if qcn::is_notification(bytes) {
            return qcn::Frame::parse(bytes).is_ok().then_some(Content::Notification);
        }
        if bump::is_update(bytes) {
            return Some(Content::Update);
        }
        if self.pair(ADDRESSES_LEN) == lldp::ETHERTYPE.0 {
            return Some(Content::Lldp);
        }
        let mut at = ADDRESSES_LEN;
        // Up to two tags, then the tag of the flow.
        for _ in 0..3 {
            match EtherType(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?)) {
                EtherType::VLAN | EtherType::SERVICE_VLAN | EtherType::CN_TAG => at += 4,
                _ => break,
            }
        }
        let ip = at + 2;
        match EtherType(u16::from_be_bytes(bytes.get(at..ip)?.try_into().ok()?)) {
            EtherType::IPV4 => {
                let first = *bytes.get(ip)?;
                let header = usize::from(first & 0xf) * 4;
                let fits = first >> 4 == 4 && header >= ipv4::HEADER_LEN && ip + header <= bytes.len();
                fits.then_some(Content::Ipv4(ip as u8))
            }
            EtherType::IPV6 => {
                (bytes.get(ip)? >> 4 == 6 && ip + IPV6_LEN <= bytes.len()).then_some(Content::Ipv6(ip as u8))
            }
            _ => None,
        }
    }

    /// Counts the frame as the segments into which it will be cut.
    #[cold]
    pub fn count_segments(&mut self, offload: &Offload) {
        let segments = offload.segments(self.len);
        let headers = u32::from(offload.headers);
        self.wire_bytes = self.len.saturating_add((segments - 1).saturating_mul(headers));
        self.wire_bytes = self.wire_bytes.saturating_add(segments.saturating_mul(WIRE_OVERHEAD));
    }

    /// Bytes of the whole frame without its check sequence.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first bytes of the frame: its headers, at least [`LINE`] bytes or all that it has.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.known as usize]
    }

    /// The same bytes, for an application that changes them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.known as usize]
    }

    /// The first cache line, behind a short frame filled with any bytes.
    #[inline(always)]
    pub(super) fn line(&self) -> &[u8; LINE] {
        self.bytes.first_chunk().expect("longer")
    }

    /// Whether it is a bump's update for the station `mac`.
    #[inline(always)]
    pub(super) fn is_update_for(&self, mac: [u8; 6]) -> bool {
        self.content == Content::Update && self.bytes[..6] == mac
    }

    /// Whether a neighbour says in it what it is.
    #[inline(always)]
    pub(super) fn is_lldp(&self) -> bool {
        self.content == Content::Lldp
    }

    /// Whether it is a congestion notification.
    #[inline(always)]
    pub fn is_notification(&self) -> bool {
        self.content == Content::Notification
    }

    /// The 802.1Q priority.
    #[inline(always)]
    pub fn priority(&self) -> u8 {
        if self.pair(ADDRESSES_LEN) == EtherType::VLAN.0 && self.len >= 16 { self.bytes[14] >> 5 } else { 0 }
    }

    #[inline(always)]
    fn pair(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    #[inline(always)]
    fn long(&self, at: usize) -> u64 {
        u32::from_be_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]]).into()
    }

    fn mac(&self, at: usize) -> [u8; 6] {
        let b = &self.bytes[at..at + 6];
        [b[0], b[1], b[2], b[3], b[4], b[5]]
    }

    fn cnm(&self) -> Option<qcn::Frame<'_>> {
        if !self.is_notification() {
            return None;
        }
        qcn::Frame::parse(self.bytes()).ok()
    }

    /// The ports of TCP, UDP and their kin behind an IP header, if they are among the first bytes.
    fn ports(&self, at: usize) -> (u16, u16) {
        if at + 4 <= self.bytes().len() { (self.pair(at), self.pair(at + 2)) } else { (0, 0) }
    }
}

/// Whether a protocol begins with two ports.
fn has_ports(protocol: u8) -> bool {
    // DCCP, SCTP and UDP-Lite too.
    [Protocol::TCP.0, Protocol::UDP.0, 33, 132, 136].contains(&protocol)
}

impl netbump::Packet for Frame {
    type Flow = Flow;

    #[inline(always)]
    fn wire_bytes(&self) -> u64 {
        self.wire_bytes.into()
    }

    #[inline(always)]
    fn destination(&self) -> u64 {
        if let Some(cnm) = self.cnm() {
            return number_of(cnm.message.destination.0);
        }
        let b = &self.bytes;
        number_of([b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    fn flow(&self) -> Flow {
        if let Some(cnm) = self.cnm() {
            // A notification goes to the sender of the frame that it is about.
            return Flow { source: cnm.destination.0, destination: cnm.message.destination.0, tag: cnm.flow };
        }
        Flow { source: self.mac(6), destination: self.mac(0), tag: qcn::flow_of(self.bytes()) }
    }

    fn fields(&self) -> Fields {
        let mut fields = Fields { priority: self.priority(), ..Fields::default() };
        let ports_at = match self.content {
            Content::Ipv4(at) => {
                let at = usize::from(at);
                (fields.source, fields.destination) = (self.long(at + 12), self.long(at + 16));
                fields.protocol = self.bytes[at + 9];
                // Only the first fragment has ports.
                let first = self.pair(at + 6) & 0x1fff == 0;
                first.then_some(at + usize::from(self.bytes[at] & 0xf) * 4)
            }
            Content::Ipv6(at) => {
                let at = usize::from(at);
                fields.protocol = self.bytes[at + 6];
                Some(at + IPV6_LEN)
            }
            _ => None,
        };
        if let Some(at) = ports_at.filter(|_| has_ports(fields.protocol)) {
            (fields.source_port, fields.destination_port) = self.ports(at);
        }
        fields
    }

    #[inline(always)]
    fn ecn(&self) -> Ecn {
        match self.content {
            Content::Ipv4(at) => Ecn::from_bits(self.bytes[usize::from(at) + 1]),
            Content::Ipv6(at) => Ecn::from_bits(self.bytes[usize::from(at) + 1] >> 4),
            _ => Ecn::NotEct,
        }
    }

    fn mark(&mut self) -> bool {
        if netbump::Packet::ecn(self) == Ecn::NotEct {
            return false;
        }
        match self.content {
            Content::Ipv4(at) => ipv4::set_ecn(&mut self.bytes[at.into()..], Ecn::Ce),
            Content::Ipv6(at) => self.bytes[usize::from(at) + 1] |= (Ecn::Ce as u8) << 4,
            _ => {}
        }
        true
    }

    #[inline(always)]
    fn notification(&self) -> Option<Message> {
        let cnm = self.cnm()?;
        let message = cnm.message;
        let of = |units: i16| i64::from(units) * qcn::QUEUE_UNIT;
        let notification =
            Notification { feedback: message.feedback, offset: of(message.offset), delta: of(message.delta) };
        Some(Message { cpid: u64::from_be_bytes(message.cpid), notification, priority: message.priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::netbump::Packet;
    use sluicenet_proto::rng::Rng;
    use sluicenet_wire::checksum::checksum;
    use sluicenet_wire::ethernet::MacAddress;

    fn frame(bytes: &[u8]) -> Frame {
        let mut frame = Frame::default();
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().max(LINE), 0xEE);
        frame.read(bytes.len() as u32, |into| into.copy_from_slice(&padded[..into.len()]));
        frame
    }

    fn ipv4_frame(tags: &[u16], ecn: Ecn, options: usize) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7];
        tags.iter().for_each(|&kind| bytes.extend([kind.to_be_bytes(), [0x60, 5]].concat()));
        bytes.extend([0x08, 0x00]);
        let at = bytes.len();
        let repr = ipv4::Repr {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: Protocol::UDP,
            dscp: 0,
            ecn,
            identification: 3,
            dont_fragment: true,
            ttl: 64,
            payload_len: 8 + options as u16,
        };
        bytes.resize(at + 20, 0);
        repr.emit(&mut bytes[at..]);
        bytes.resize(at + 20 + options, 1);
        bytes[at] += (options / 4) as u8;
        bytes[at + 10..at + 12].fill(0);
        let sum = checksum(&bytes[at..at + 20 + options]);
        bytes[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([0x12, 0x34, 0x12, 0xB5, 0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn an_ipv4_frame_is_read_and_marked_behind_any_tags_and_options() {
        for (tags, options) in
            [(&[][..], 0), (&[0x8100], 0), (&[0x88A8, 0x8100], 0), (&[0x22E9], 0), (&[], 40), (&[0x8100, 0x22E9], 40)]
        {
            let bytes = ipv4_frame(tags, Ecn::Ect0, options);
            let mut read = frame(&bytes);
            let fields = read.fields();
            let expected = (0x0A00_0001, 0x0A00_0002, 0x1234, 0x12B5, 17);
            let Fields { source, destination, source_port, destination_port, protocol, priority } = fields;
            assert_eq!((source, destination, source_port, destination_port, protocol), expected, "{tags:?} {options}");
            assert_eq!(priority, if tags.first() == Some(&0x8100) { 3 } else { 0 });
            assert_eq!(read.destination(), number_of([2, 0, 0, 0, 0, 9]));
            assert_eq!(read.wire_bytes(), bytes.len().max(60) as u64 + 24);
            assert_eq!(read.flow().tag, (tags.last() == Some(&0x22E9)).then_some(0x6005));
            assert!(read.ecn() == Ecn::Ect0 && read.mark() && read.ecn() == Ecn::Ce);
            let at = bytes.len() - 8 - 20 - options;
            assert_eq!(checksum(&read.bytes()[at..at + 20 + options]), 0, "the checksum is still right");
            let changed = bytes.iter().zip(read.bytes()).filter(|(a, b)| a != b).count();
            assert!((2..=3).contains(&changed), "only the mark and the checksum change: {changed}");
            let mut classic = frame(&ipv4_frame(tags, Ecn::NotEct, options));
            assert!(!classic.mark() && classic.ecn() == Ecn::NotEct);
        }
    }

    #[test]
    fn an_ipv6_frame_is_read_and_marked() {
        let mut bytes = vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 7, 0x86, 0xDD, 0x60, 0x20, 0, 0, 0, 8, 6, 64];
        bytes.extend([0; 32]);
        bytes.extend([0, 80, 1, 0xBB]);
        let mut read = frame(&bytes);
        let fields = read.fields();
        assert_eq!((fields.protocol, fields.source_port, fields.destination_port), (6, 80, 443));
        assert!(read.ecn() == Ecn::Ect0 && read.mark() && read.ecn() == Ecn::Ce);
        assert_eq!(read.bytes()[14..16], [0x60, 0x30]);
    }

    #[test]
    fn a_notification_is_about_the_frames_of_the_other_direction() {
        let cnm = qcn::Frame {
            destination: MacAddress([2, 0, 0, 0, 0, 7]),
            source: MacAddress::switch(1),
            priority: 7,
            flow: Some(5),
            message: qcn::Repr::of(0x77, (32, 640, -64), 3, MacAddress([2, 0, 0, 0, 0, 9])),
        };
        let mut bytes = vec![0; cnm.emitted_len()];
        cnm.emit(&mut bytes);
        let read = frame(&bytes);
        let flow = Flow { source: [2, 0, 0, 0, 0, 7], destination: [2, 0, 0, 0, 0, 9], tag: Some(5) };
        assert_eq!((read.flow(), read.destination()), (flow, number_of(flow.destination)));
        let Some(Message { cpid, notification, priority }) = read.notification() else { panic!("a notification") };
        assert_eq!((cpid, priority), (0x77, 3));
        assert_eq!(notification, Notification { feedback: 32, offset: 640, delta: -64 });
        // A CNM that is none is a frame like any other.
        bytes[18 + 4] = 0x10;
        assert!(frame(&bytes).notification().is_none());
    }

    #[test]
    fn a_frame_to_be_cut_counts_as_its_segments() {
        let mut bytes = ipv4_frame(&[], Ecn::Ect0, 0);
        bytes.resize(54 + 3_000, 0);
        let mut read = frame(&bytes);
        let offload =
            Offload { segmentation: crate::port::Segmentation::Tcp4, segment: 1_000, headers: 54, ..Offload::NONE };
        read.count_segments(&offload);
        assert_eq!(read.wire_bytes(), 3 * (1_054 + 24));
    }

    #[test]
    fn hostile_bytes_never_panic() {
        let mut rng = Rng::from_words(&[1]);
        for n in 0..300_000u64 {
            let mut bytes =
                ipv4_frame(&[[0x8100, 0x88A8, 0x22E9, 0x22E7][n as usize % 4]][..n as usize % 2], Ecn::Ect1, 0);
            for _ in 0..rng.below(8) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            if n % 5 == 0 {
                bytes[12..14].copy_from_slice(&[[0x22, 0xE7], [0x86, 0xDD], [0x88, 0xB6]][n as usize % 3]);
            }
            bytes.truncate(14 + rng.below(bytes.len() as u64 - 13) as usize);
            let mut read = frame(&bytes);
            let _ = (read.fields(), read.flow(), read.destination(), read.notification(), read.mark(), read.ecn());
            assert_eq!(read.len() as usize, bytes.len());
        }
    }
}
