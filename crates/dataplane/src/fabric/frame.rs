//! A real frame as the fabric's switches see it: its header fields, and its length on a wire.
//! Its bytes are stored beside the pool by the number of its handle, so that releasing the handle frees them too.

use sluicenet_node::packet::MIN_ETHERNET_FRAME;
use sluicenet_node::switch::notification_bytes;
use sluicenet_proto::cee::qcn::Message;
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::rng::{hash_words, mix64};
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::Ecn;
use sluicenet_wire::{ipv4, pfc, qcn, vlan};
use std::collections::{BTreeMap, BTreeSet};

/// The header fields of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub(super) len: u32,
    pub(super) priority: Priority,
    pub(super) corrupt: bool,
    pub(super) source: HostId,
    pub(super) destination: HostId,
    pub(super) flow: u64,
    pub(super) serial: u64,
    pub(super) pause: Option<Pause>,
    /// Its stations: source and destination.
    pub(super) stations: [MacAddress; 2],
    /// Where its IPv4 header begins, and the ECN field there; not capable without such a header.
    pub(super) ip_at: u8,
    pub(super) ecn: Ecn,
    /// The flow in its CN-TAG. A notification about the frame has the same tag.
    pub(super) cn_flow: Option<u16>,
    /// Whether a switch has marked it: its bytes have to follow.
    pub(super) is_marked: bool,
    /// The content of a congestion notification that a switch sent: its bytes have to be made.
    pub(super) notification: Option<Message>,
}

impl Descriptor {
    /// Marks the frame as damaged by a bit error.
    pub(super) fn corrupt(&mut self) {
        self.corrupt = true;
    }

    /// Whether the bytes of the frame differ from what the descriptor says.
    pub(super) fn is_changed(&self) -> bool {
        self.is_marked || self.notification.is_some()
    }

    /// Writes what switches have changed into the bytes of the frame.
    #[cold]
    pub(super) fn write_changes(&mut self, bytes: &mut Vec<u8>) {
        if let Some(message) = self.notification {
            let [about, to] = self.stations;
            *bytes = notification_bytes(&message, self.priority, about, to, self.cn_flow);
        }
        if core::mem::take(&mut self.is_marked) {
            ipv4::set_ecn(&mut bytes[usize::from(self.ip_at)..], Ecn::Ce);
        }
    }
}

impl Frame for Descriptor {
    fn len(&self) -> u32 {
        self.len
    }
    fn priority(&self) -> Priority {
        self.priority
    }
    fn source(&self) -> HostId {
        self.source
    }
    fn destination(&self) -> HostId {
        self.destination
    }
    fn flow_hash(&self) -> u64 {
        self.flow
    }
    fn frame_hash(&self) -> u64 {
        self.flow ^ mix64(self.serial)
    }
    fn is_corrupt(&self) -> bool {
        self.corrupt
    }
    fn is_pause(&self) -> bool {
        self.pause.is_some()
    }
    fn as_pause(&self) -> Option<Pause> {
        self.pause
    }
    fn from_pause(pause: Pause) -> Descriptor {
        Descriptor {
            len: u32::from(MIN_ETHERNET_FRAME),
            priority: 0,
            corrupt: false,
            source: 0,
            destination: 0,
            flow: 0,
            serial: 0,
            pause: Some(pause),
            stations: [MacAddress([0; 6]); 2],
            ip_at: 0,
            ecn: Ecn::NotEct,
            cn_flow: None,
            is_marked: false,
            notification: None,
        }
    }
    fn mark(&mut self) -> bool {
        if self.ecn == Ecn::NotEct {
            return false;
        }
        self.is_marked |= self.ecn != Ecn::Ce;
        self.ecn = Ecn::Ce;
        true
    }
    fn notification(&self, message: &Message, priority: Priority) -> Descriptor {
        let [source, destination] = self.stations;
        Descriptor {
            cn_flow: self.cn_flow,
            priority,
            source: self.destination,
            destination: self.source,
            flow: self.flow,
            serial: self.serial,
            stations: [destination, source],
            notification: Some(*message),
            pause: None,
            ..Descriptor::from_pause(Pause::default())
        }
    }
    fn as_notification(&self) -> Option<Message> {
        self.notification
    }
}

/// The edge of each station, and the edges behind which there are other parts of the network.
#[derive(Clone, Debug, Default)]
pub struct Stations {
    edges: BTreeMap<MacAddress, HostId>,
    trunks: BTreeSet<HostId>,
}

impl Stations {
    /// A table of stations; for a station with several entries the last one counts.
    pub fn new(stations: impl IntoIterator<Item = (MacAddress, HostId)>) -> Stations {
        Stations { edges: stations.into_iter().collect(), trunks: BTreeSet::new() }
    }

    /// The same with edges that are the two ends of links through other boxes: frames of all known stations enter there, and
    /// notifications of these boxes.
    pub fn with_trunks(self, trunks: impl IntoIterator<Item = HostId>) -> Stations {
        Stations { trunks: trunks.into_iter().collect(), ..self }
    }

    /// The edge of a station.
    pub fn host_of(&self, station: MacAddress) -> Option<HostId> {
        self.edges.get(&station).copied()
    }
}

/// A frame that entered at an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// A frame for another edge.
    Data(Descriptor),
    /// A priority flow control frame.
    Pause(Pause),
}

/// Reads a frame, without its check sequence, that entered at the edge of `host`; `serial` distinguishes it from others of its
/// flow.
pub(super) fn classify(
    bytes: &[u8],
    host: HostId,
    serial: u64,
    longest: u32,
    stations: &Stations,
) -> Result<Incoming, DropReason> {
    let len = (bytes.len() as u64 + ethernet::FCS_LEN as u64).max(u64::from(MIN_ETHERNET_FRAME));
    if len > u64::from(longest) {
        return Err(DropReason::Malformed);
    }
    let (header, mut rest) = ethernet::Repr::parse(bytes).map_err(|_| DropReason::Malformed)?;
    if is_reserved(header.destination) {
        let repr = pfc::Repr::parse(bytes).map_err(|_| DropReason::Reserved)?;
        return Ok(Incoming::Pause(pause_of(&repr)));
    }
    let (mut priority, mut ethertype) = (0, header.ethertype);
    if ethertype == EtherType::VLAN {
        let (tag, inner) = vlan::Repr::parse(rest).map_err(|_| DropReason::Malformed)?;
        (priority, ethertype, rest) = (tag.priority, tag.ethertype, inner);
    }
    let mut cn_flow = None;
    if ethertype == EtherType::CN_TAG {
        let (tag, inner) = qcn::Tag::parse(rest).map_err(|_| DropReason::Malformed)?;
        (cn_flow, ethertype, rest) = (Some(tag.flow), tag.ethertype, inner);
    }
    if ethertype == EtherType::CNM && !stations.trunks.contains(&host) {
        // Only switches notify.
        return Err(DropReason::Reserved);
    }
    let source = match stations.host_of(header.source) {
        Some(own) if own == host => host,
        Some(source) if stations.trunks.contains(&host) => source,
        _ => return Err(DropReason::ForgedSource),
    };
    // The fabric does not flood: servers know each other's addresses. A switch never sends a frame back to its source.
    let destination = stations.host_of(header.destination).filter(|&d| d != host).ok_or(DropReason::NoRoute)?;
    let flow = flow_hash(&header, ethertype, rest);
    let ecn = match ipv4::Repr::parse(rest) {
        Ok((ip, _)) if ethertype == EtherType::IPV4 => ip.ecn,
        _ => Ecn::NotEct,
    };
    Ok(Incoming::Data(Descriptor {
        len: len as u32,
        priority,
        source,
        destination,
        flow,
        serial,
        pause: None,
        stations: [header.source, header.destination],
        ip_at: (bytes.len() - rest.len()) as u8,
        ecn,
        cn_flow,
        ..Descriptor::from_pause(Pause::default())
    }))
}

/// Whether an address ends at its link (802.1Q, 8.6.3).
fn is_reserved(address: MacAddress) -> bool {
    let [a, b, c, d, e, last] = address.0;
    [a, b, c, d, e] == [0x01, 0x80, 0xC2, 0x00, 0x00] && last < 0x10
}

/// Equal for all frames of a flow: a hash of the addresses, and for IPv4 also of protocol and ports. The outer source port of a
/// tunnel represents the flow inside (RFC 7348, 5).
fn flow_hash(header: &ethernet::Repr, ethertype: EtherType, rest: &[u8]) -> u64 {
    let station = |m: MacAddress| m.0.iter().fold(0u64, |all, &b| all << 8 | u64::from(b));
    let mut words = [station(header.source), station(header.destination), 0, 0];
    if ethertype == EtherType::IPV4
        && let Ok((ip, payload)) = ipv4::Repr::parse(rest)
    {
        words[2] = u64::from(ip.source.to_bits()) << 32 | u64::from(ip.destination.to_bits());
        let ports = payload.first_chunk::<4>().filter(|_| [6, 17].contains(&ip.protocol.0));
        words[3] = u64::from(ip.protocol.0) << 32 | ports.map_or(0, |p| u64::from(u32::from_be_bytes(*p)));
    }
    hash_words(&words)
}

fn pause_of(repr: &pfc::Repr) -> Pause {
    const _: () = assert!(pfc::CLASSES == PRIORITIES);
    Pause { classes: PrioritySet(repr.class_enable), quanta: repr.quanta }
}

/// The bytes of a pause frame that the edge with address `source` sends.
pub(super) fn pause_bytes(pause: &Pause, source: MacAddress) -> [u8; pfc::LEN] {
    pfc::Repr { source, class_enable: pause.classes.0, quanta: pause.quanta }.emit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::cee::qcn::Notification;

    fn frame(source: MacAddress, destination: MacAddress, priority: Option<u8>, sport: u16) -> Vec<u8> {
        let mut bytes = vec![0; 80];
        let ethertype = if priority.is_some() { EtherType::VLAN } else { EtherType::IPV4 };
        ethernet::Repr { destination, source, ethertype }.emit(&mut bytes);
        let mut at = ethernet::HEADER_LEN;
        if let Some(priority) = priority {
            let tag = vlan::Repr { priority, drop_eligible: false, vid: 0, ethertype: EtherType::IPV4 };
            tag.emit(&mut bytes[at..]);
            at += vlan::TAG_LEN;
        }
        let ip = ipv4::Repr {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: ipv4::Protocol(17),
            dscp: 0,
            ecn: ipv4::Ecn::NotEct,
            identification: sport,
            dont_fragment: true,
            ttl: 64,
            payload_len: 20,
        };
        ip.emit(&mut bytes[at..]);
        bytes[at + 20..at + 22].copy_from_slice(&sport.to_be_bytes());
        bytes
    }

    #[test]
    fn what_headers_say_is_what_the_boxes_see() {
        let [a, b, c] = [1, 2, 3].map(MacAddress::local);
        let stations = Stations::new([(a, 0), (b, 1)]);
        let read = |bytes: &[u8]| classify(bytes, 0, 7, 1522, &stations);
        let data = |bytes: &[u8]| match read(bytes) {
            Ok(Incoming::Data(d)) => d,
            other => panic!("{other:?}"),
        };
        let plain = data(&frame(a, b, None, 9));
        assert_eq!((plain.len(), plain.priority(), plain.source(), plain.destination()), (84, 0, 0, 1));
        let tagged = data(&frame(a, b, Some(5), 9));
        assert_eq!((tagged.priority(), tagged.flow_hash()), (5, plain.flow_hash()));
        assert_ne!(data(&frame(a, b, None, 10)).flow_hash(), plain.flow_hash());
        assert_eq!(data(&frame(a, b, None, 9)[..40]).len(), 64, "padded to the smallest frame");

        assert_eq!(read(&frame(a, c, None, 9)), Err(DropReason::NoRoute));
        assert_eq!(read(&frame(a, a, None, 9)), Err(DropReason::NoRoute));
        assert_eq!(read(&frame(a, MacAddress::BROADCAST, None, 9)), Err(DropReason::NoRoute));
        assert_eq!(read(&frame(b, a, None, 9)), Err(DropReason::ForgedSource));
        assert_eq!(read(&frame(a, b, None, 9)[..13]), Err(DropReason::Malformed));
        assert_eq!(read(&frame(a, b, Some(1), 9)[..16]), Err(DropReason::Malformed));
        assert_eq!(read(&vec![0; 1519]), Err(DropReason::Malformed));
        assert_eq!(read(&frame(a, MacAddress([1, 0x80, 0xC2, 0, 0, 0xE]), None, 9)), Err(DropReason::Reserved));
    }

    #[test]
    fn marks_and_notifications_reach_the_bytes() {
        let [a, b] = [1, 2].map(MacAddress::local);
        let stations = Stations::new([(a, 0), (b, 1)]);
        for priority in [None, Some(5)] {
            let mut bytes = frame(a, b, priority, 9);
            let at = bytes.len() - 80 + ethernet::HEADER_LEN + priority.map_or(0, |_| vlan::TAG_LEN);
            ipv4::set_ecn(&mut bytes[at..], Ecn::Ect0);
            let Ok(Incoming::Data(mut data)) = classify(&bytes, 0, 7, 1522, &stations) else { panic!("no data") };
            assert!(!data.is_changed() && data.mark() && data.is_changed());
            data.write_changes(&mut bytes);
            // Reading it checks the sum of the header.
            assert_eq!(ipv4::Repr::parse(&bytes[at..]).unwrap().0.ecn, Ecn::Ce);
            assert!(!data.is_changed() && data.mark() && !data.is_changed(), "marked already");

            let notification = Notification { feedback: 42, offset: 12_800, delta: -640 };
            let message = Message { cpid: 9 << 32 | 3 << 3 | 5, notification, priority: data.priority() };
            let mut made = data.notification(&message, 7);
            assert_eq!((made.source(), made.destination(), made.priority(), made.len()), (1, 0, 7, 64));
            let mut bytes = vec![0xff; 9];
            made.write_changes(&mut bytes);
            let read = qcn::Frame::parse(&bytes).unwrap();
            assert_eq!((read.destination, read.source, read.priority), (a, MacAddress::switch(9), 7));
            let repr = qcn::Repr::of(message.cpid, (42, 12_800, -640), data.priority(), b);
            assert_eq!((bytes.len(), read.message), (60, repr));
        }
        // A notification about a frame with a CN-TAG has its tag.
        let mut bytes = frame(a, b, Some(5), 9);
        bytes.splice(16..16, qcn::tag_bytes(0x1234));
        let Ok(Incoming::Data(mut data)) = classify(&bytes, 0, 7, 1522, &stations) else { panic!("no data") };
        let untagged = classify(&frame(a, b, Some(5), 9), 0, 7, 1522, &stations);
        assert!(matches!(untagged, Ok(Incoming::Data(other)) if other.flow_hash() == data.flow_hash()));
        ipv4::set_ecn(&mut bytes[22..], Ecn::Ect0);
        data.ecn = Ecn::Ect0;
        assert!(data.mark());
        data.write_changes(&mut bytes);
        assert_eq!(ipv4::Repr::parse(&bytes[22..]).unwrap().0.ecn, Ecn::Ce);
        let notification = Notification { feedback: 42, offset: 12_800, delta: -640 };
        let mut made = data.notification(&Message { cpid: 9 << 32, notification, priority: 5 }, 7);
        made.write_changes(&mut bytes);
        assert_eq!((qcn::flow_of(&bytes), bytes.len(), made.len()), (Some(0x1234), 60, 64));
        assert_eq!(qcn::Frame::parse(&bytes).unwrap().message.feedback, 42);
        // HOSTILE 17: a server that notifies.
        bytes[..6].copy_from_slice(&b.0);
        bytes[6..12].copy_from_slice(&a.0);
        assert_eq!(classify(&bytes, 0, 7, 1522, &stations), Err(DropReason::Reserved));
        let plain = frame(a, b, None, 9);
        let Ok(Incoming::Data(mut data)) = classify(&plain, 0, 7, 1522, &stations) else { panic!("no data") };
        assert!(!data.mark() && !data.is_changed(), "its transport does not support ECN");
    }

    #[test]
    fn pauses_are_frames_of_the_standard_both_ways() {
        let mut quanta = [0; PRIORITIES];
        quanta[3] = 500;
        let pause = Pause { classes: PrioritySet(0b1001), quanta };
        let bytes = pause_bytes(&pause, MacAddress::local(9));
        assert_eq!(classify(&bytes, 0, 0, 1522, &Stations::default()), Ok(Incoming::Pause(pause)));
        let mut of_the_whole_link = bytes;
        of_the_whole_link[14] = 0;
        assert_eq!(classify(&of_the_whole_link, 0, 0, 1522, &Stations::default()), Err(DropReason::Reserved));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let stations = Stations::new([(MacAddress::local(1), 0), (MacAddress::local(2), 1)]);
        let valid = frame(MacAddress::local(1), MacAddress::local(2), Some(3), 9);
        let mut rng = sluicenet_proto::rng::Rng::from_words(&[1]);
        for serial in 0..20_000 {
            let mut bytes = valid.clone();
            bytes.truncate(rng.below(90) as usize);
            for _ in 0..rng.below(4) {
                let at = rng.below(bytes.len().max(1) as u64) as usize;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.next_u64() as u8;
                }
            }
            let _ = classify(&bytes, 0, serial, 1522, &stations);
        }
    }
}
