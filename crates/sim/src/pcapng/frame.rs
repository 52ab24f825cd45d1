//! The bytes a simulated packet would have on the wire: real headers and checksums around a payload of zeros.

use sluicenet_node::adapter::AdapterFrame;
use sluicenet_node::packet::{Address, FlowKey, Framing, Kind, Packet};
use sluicenet_node::server::HYPERVISOR;
use sluicenet_node::switch::notification_bytes;
use sluicenet_proto::frame::{Frame, HostId};
use sluicenet_proto::transport::roce::Packet as Sent;
use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::roce::{self, Extension};
use sluicenet_wire::{bump, pfc, qcn, tcp, tcplight, udp, vlan, vxlan, xco, zbridge, zcredit};
use std::net::Ipv4Addr;

/// Hop limit of a packet; no switch here decrements it.
const TTL: u8 = 64;
/// Bit that distinguishes the address of a VM's interface from its server's.
const VM_MAC: u32 = 1 << 31;

/// Address of a VM: 10.0.0.0/8, with the server in the middle and VMs from 1. A hypervisor has the address of its tunnel
/// endpoint.
fn guest_ip(a: Address) -> Ipv4Addr {
    let h = a.host();
    if a.vm() == HYPERVISOR {
        return server_ip(h);
    }
    Ipv4Addr::new(10 + (h >> 16) as u8, (h >> 8) as u8, h as u8, a.vm().wrapping_add(1))
}

/// Address of a server's tunnel endpoint: 172.16.0.0/12.
fn server_ip(host: HostId) -> Ipv4Addr {
    Ipv4Addr::new(172, 16 + (host >> 16) as u8, (host >> 8) as u8, host as u8)
}

fn ip_packet(source: Ipv4Addr, destination: Ipv4Addr, protocol: Protocol, ecn: Ecn, payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Repr {
        source,
        destination,
        protocol,
        dscp: 0,
        ecn,
        identification: 0,
        dont_fragment: true,
        ttl: TTL,
        payload_len: payload.len() as u16,
    };
    let mut bytes = vec![0; ipv4::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn ethernet_frame(source: u32, destination: u32, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let header =
        ethernet::Repr { source: MacAddress::local(source), destination: MacAddress::local(destination), ethertype };
    let mut bytes = vec![0; ethernet::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// The guest's IP packet.
fn inner_ip(packet: &Packet) -> Vec<u8> {
    let flow = packet.flow();
    let (source, destination) = (guest_ip(flow.src), guest_ip(flow.dst));
    let pseudo = PseudoHeader { source, destination };
    let ecn = if packet.is_encapsulated() { packet.inner_ecn() } else { packet.ecn() };
    if packet.kind() == Kind::Udp {
        let mut bytes = vec![0; udp::HEADER_LEN + packet.payload() as usize];
        udp::Repr { source_port: flow.sport, destination_port: flow.dport }.emit(&mut bytes, Some(&pseudo));
        return ip_packet(source, destination, Protocol::UDP, ecn, &bytes);
    }
    if packet.kind() == Kind::Light {
        let segment = packet.light_segment();
        let header = tcplight::Repr {
            source_port: flow.sport,
            destination_port: flow.dport,
            flags: segment.flags,
            connection: segment.connection,
            offset: segment.offset,
            limit: segment.limit,
        };
        let mut bytes = vec![0; tcplight::HEADER_LEN + packet.payload() as usize];
        header.emit(&mut bytes);
        return ip_packet(source, destination, tcplight::PROTOCOL, ecn, &bytes);
    }
    if packet.kind() == Kind::Roce {
        return roce_packet(packet, ecn);
    }
    let header = tcp::Repr { source_port: flow.sport, destination_port: flow.dport, segment: packet.segment() };
    let mut bytes = vec![0; header.header_len() + packet.payload() as usize];
    header.emit(&mut bytes, &pseudo);
    ip_packet(source, destination, Protocol::TCP, ecn, &bytes)
}

/// The number of a queue pair, in 24 bits. 0 and 1 are taken by management.
fn queue_pair(local: FlowKey) -> u32 {
    Packet::of_flow(local, Kind::Roce).flow_number() % ((1 << 24) - 2) + 2
}

/// An IP packet of RoCE, with its invariant CRC. The source port carries the flow's entropy (annex A17).
fn roce_packet(packet: &Packet, ecn: Ecn) -> Vec<u8> {
    let flow = packet.flow();
    let opcode = packet.roce_opcode();
    let (psn, flag, extension) = match packet.roce_packet() {
        Sent::Data(d) if opcode.is_first() => {
            (d.psn, d.ack_request, Extension::Write { address: d.offset, key: 0, length: d.message })
        }
        Sent::Data(d) => (d.psn, d.ack_request, Extension::None),
        Sent::Reply(r) => (r.psn, false, Extension::Acknowledge { is_sequence_error: r.is_sequence_error, msn: r.msn }),
        Sent::Notification => (0, false, Extension::Notification),
    };
    let repr = roce::Repr { opcode, destination: queue_pair(flow.reverse()), ack_request: flag, psn, extension };
    let payload = packet.payload() as usize;
    let mut bytes = vec![0; udp::HEADER_LEN + repr.len(payload)];
    repr.emit(&mut bytes[udp::HEADER_LEN..], payload);
    let source_port = 0xc000 | queue_pair(flow) as u16;
    udp::Repr { source_port, destination_port: roce::UDP_PORT }.emit(&mut bytes, None);
    let mut ip = ip_packet(guest_ip(flow.src), guest_ip(flow.dst), Protocol::UDP, ecn, &bytes);
    roce::emit_icrc(&mut ip);
    ip
}

/// The bytes of a packet in `framing`, without the frame check sequence; `sender` is the box that sends a pause frame.
pub fn bytes(packet: &Packet, framing: Framing, sender: u32) -> Vec<u8> {
    if let Some(pause) = packet.as_pause() {
        let source = MacAddress::local(sender);
        return pfc::Repr { source, class_enable: pause.classes.0, quanta: pause.quanta }.emit().to_vec();
    }
    let cn_flow = (framing == Framing::CN_TAGGED).then(|| packet.flow_number() as u16);
    if let Some(message) = packet.as_notification() {
        let [about, to] = [packet.src(), packet.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
        return notification_bytes(&message, packet.priority(), about, to, cn_flow);
    }
    let mut frame = untagged(packet, framing);
    if let Some(flow) = cn_flow {
        let at = qcn::tag_position(&frame);
        frame.splice(at..at, qcn::tag_bytes(flow));
        // Padding gives way to the tag.
        frame.resize(usize::from(packet.len() as u16) - ethernet::FCS_LEN, 0);
    }
    frame
}

/// The bytes of a packet without a CN-TAG.
fn untagged(packet: &Packet, framing: Framing) -> Vec<u8> {
    if packet.kind() == Kind::Credit {
        return credit(packet);
    }
    if packet.kind() == Kind::Xco {
        return xco(packet);
    }
    if packet.kind() == Kind::Bridge {
        return padded(bridge(packet));
    }
    if packet.kind() == Kind::Update {
        return update(packet);
    }
    let ip = inner_ip(packet);
    if framing == Framing::PPP {
        let mut bytes = vec![0x00, 0x21]; // the PPP protocol number of IPv4
        bytes.extend_from_slice(&ip);
        return bytes;
    }
    let flow = packet.flow();
    let inner = ethernet_frame(flow.src.to_bits() | VM_MAC, flow.dst.to_bits() | VM_MAC, EtherType::IPV4, &ip);
    let inner = carried(packet, inner);
    padded(if packet.is_encapsulated() { tunnel(packet, &inner) } else { inner })
}

/// An update between bumps, which have no addresses here.
fn update(packet: &Packet) -> Vec<u8> {
    let Some((fields, packets)) = packet.as_update() else { return Vec::new() };
    let packets: Vec<_> = packets.collect();
    let ns = |d: sluicenet_proto::time::Duration| u32::try_from(d.as_ps() / 1_000).unwrap_or(u32::MAX);
    let repr = bump::Repr {
        destination: MacAddress::BROADCAST,
        source: MacAddress::default(),
        bump: 0,
        incarnation: 0,
        sequence: fields.sequence,
        bytes_before: fields.bytes_before,
        wait_ns: ns(fields.wait),
        span_ns: ns(fields.span),
    };
    let mut bytes = vec![0; bump::Repr::emitted_len(packets.len())];
    repr.emit(&packets, &mut bytes, |_| [0; bump::TAG_LEN]);
    bytes
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(ethernet::MIN_LEN), 0);
    frame
}

/// A frame in zBridge's encapsulation, if zBridge carries it.
fn carried(packet: &Packet, frame: Vec<u8>) -> Vec<u8> {
    let Some(header) = packet.bridged() else { return frame };
    let [source, destination] = [packet.src(), packet.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
    // The type and payload of the frame; the addresses stand in front only once.
    let carried = &frame[ethernet::HEADER_LEN - 2..];
    let mut bytes = vec![0; ethernet::HEADER_LEN + zbridge::OVERHEAD];
    bytes.extend_from_slice(carried);
    zbridge::Repr { destination, source, header }.emit(&mut bytes);
    bytes
}

/// A frame of zBridge that carries no other frame.
fn bridge(packet: &Packet) -> Vec<u8> {
    let [source, destination] = [packet.src(), packet.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
    let repr = zbridge::Repr { destination, source, header: packet.bridge_header() };
    let mut inner = vec![0; repr.len(0)];
    repr.emit(&mut inner);
    if packet.is_encapsulated() { tunnel(packet, &inner) } else { inner }
}

/// A message of zCredit.
fn credit(packet: &Packet) -> Vec<u8> {
    let (channel, message) = packet.credit_message();
    let [source, destination] = [packet.src(), packet.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
    let inner = carried(packet, zcredit::Repr { destination, source, channel, message }.emit().to_vec());
    if packet.is_encapsulated() { tunnel(packet, &inner) } else { inner }
}

/// A message of XCo.
fn xco(packet: &Packet) -> Vec<u8> {
    let [source, destination] = [packet.src(), packet.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
    let mut bytes = Default::default();
    let (head, message) = packet.xco_message(&mut bytes);
    let frame = match message {
        xco::Message::Report(entries) => {
            let entries: Vec<xco::Entry> = entries.iter().collect();
            xco::Frame::report(destination, source, &head, &entries)
        }
        message => xco::Frame::emit(destination, source, &head, &message),
    };
    let inner = frame.as_bytes().to_vec();
    if packet.is_encapsulated() { tunnel(packet, &inner) } else { inner }
}

/// The outer headers: Ethernet with its 802.1Q tag, IP, UDP, VXLAN.
fn tunnel(packet: &Packet, inner: &[u8]) -> Vec<u8> {
    let (src, dst) = (packet.source(), packet.destination());
    let mut payload = vec![0; udp::HEADER_LEN + vxlan::HEADER_LEN];
    vxlan::Repr { vni: 1 }.emit(&mut payload[udp::HEADER_LEN..]);
    payload.extend_from_slice(inner);
    // The source port carries the flow's entropy (RFC 7348, 5).
    let source_port = 0xc000 | packet.flow_hash() as u16;
    udp::Repr { source_port, destination_port: vxlan::UDP_PORT }.emit(&mut payload, None);
    let ip = ip_packet(server_ip(src), server_ip(dst), Protocol::UDP, packet.ecn(), &payload);
    let tag = vlan::Repr { priority: packet.priority(), drop_eligible: false, vid: 1, ethertype: EtherType::IPV4 };
    let mut tagged = vec![0; vlan::TAG_LEN];
    tag.emit(&mut tagged);
    tagged.extend_from_slice(&ip);
    ethernet_frame(src, dst, EtherType::VLAN, &tagged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::cee::qcn::{Message, Notification};
    use sluicenet_proto::overlay::bridge::ENCAPSULATION_BYTES;
    use sluicenet_proto::transport::roce::{Data, Reply};
    use sluicenet_wire::seq::SeqNumber;
    use sluicenet_wire::tcp::{Flags, SackBlocks, Segment, SynOptions};

    fn packets() -> Vec<Packet> {
        let flow = FlowKey { src: Address::new(3, 0), dst: Address::new(300, 2), sport: 9, dport: 10 };
        let mut sack = SackBlocks::EMPTY;
        sack.push(SeqNumber(5_000), SeqNumber(9_000));
        sack.push(SeqNumber(15_000), SeqNumber(19_000));
        let data = Segment { len: 1000, flags: Flags::ACK, timestamps: Some((1, 2)), ..Segment::default() };
        let segments = [
            data,
            Segment { len: 0, ..data },
            Segment { len: 0, sack, ..data },
            Segment { len: 0, sack, timestamps: None, ..data },
            Segment {
                flags: Flags::SYN,
                len: 0,
                timestamps: Some((0, 0)),
                syn: SynOptions { mss: Some(1406), window_scale: Some(3), sack_permitted: true },
                ..data
            },
            Segment {
                flags: Flags::SYN,
                len: 0,
                timestamps: None,
                syn: SynOptions { mss: Some(1406), window_scale: Some(3), sack_permitted: true },
                ..data
            },
        ];
        let mut all: Vec<Packet> = segments.iter().map(|s| Packet::tcp(flow, s, true, 3, Framing::ETHERNET)).collect();
        all.push(Packet::udp(flow, 0, 700, 3, Framing::ETHERNET));
        let light = sluicenet_proto::transport::tcplight::Segment { connection: 7, len: 900, ..Default::default() };
        all.push(Packet::light(flow, &light, 3, Framing::ETHERNET));
        all
    }

    /// Every kind of RoCE packet.
    fn roce_packets() -> Vec<Packet> {
        let flow = FlowKey { src: Address::new(3, 0), dst: Address::new(300, 0), sport: 9, dport: 10 };
        let data = |is_first, is_last, len| {
            let (psn, offset, message) = (0xAB_CDEF, 5 << 32 | 7, 3_000);
            Sent::Data(Data { psn, is_first, is_last, ack_request: is_last, len, offset, message })
        };
        let reply = |is_sequence_error| Sent::Reply(Reply { psn: 0xFF_FFFF, is_sequence_error, msn: 0x12_3456 });
        let all = [
            data(true, false, 1024),
            data(false, false, 1024),
            data(false, true, 101),
            data(true, true, 1),
            reply(false),
            reply(true),
            Sent::Notification,
        ];
        all.map(|packet| Packet::roce(flow, &packet, true, 3, Framing::ETHERNET)).to_vec()
    }

    #[test]
    fn a_packet_of_roce_has_the_bytes_of_the_specification() {
        for packet in roce_packets() {
            let real = bytes(&packet, Framing::ETHERNET, 0);
            assert_eq!(real.len() + ethernet::FCS_LEN, packet.len() as usize, "{packet:?}");
            let (_, ip) = ethernet::Repr::parse(&real).unwrap();
            let (header, datagram) = ipv4::Repr::parse(ip).unwrap();
            let pseudo = PseudoHeader { source: header.source, destination: header.destination };
            let (ports, payload) = udp::Repr::parse(datagram, &pseudo).unwrap();
            assert_eq!((ports.destination_port, header.ecn), (4791, Ecn::Ect0));
            let (repr, data) = roce::Repr::parse(payload).unwrap();
            assert_eq!((repr.opcode, data.len()), (packet.roce_opcode(), packet.payload() as usize));
            let crc = &ip[ip.len() - 4..];
            assert_eq!(Some(u32::from_le_bytes(crc.try_into().unwrap())), roce::icrc(ip));
            let fields = match packet.roce_packet() {
                Sent::Data(d) => (d.psn, d.ack_request),
                Sent::Reply(r) => (r.psn, false),
                Sent::Notification => (0, false),
            };
            assert_eq!((repr.psn, repr.ack_request), fields);
            let extension = match packet.roce_packet() {
                Sent::Data(d) if d.is_first => Extension::Write { address: d.offset, key: 0, length: 3_000 },
                Sent::Data(_) => Extension::None,
                Sent::Reply(Reply { is_sequence_error, msn, .. }) => Extension::Acknowledge { is_sequence_error, msn },
                Sent::Notification => Extension::Notification,
            };
            assert_eq!(repr.extension, extension);
        }
    }

    #[test]
    fn a_notification_has_the_bytes_of_the_standard() {
        for sampled in packets() {
            let notification = Notification { feedback: 42, offset: 12_800, delta: -640 };
            let message = Message { cpid: 9 << 32 | 3 << 3 | 5, notification, priority: sampled.priority() };
            let packet = sampled.notification(&message, 7);
            let real = bytes(&packet, Framing::ETHERNET, 0);
            assert_eq!(real.len() + ethernet::FCS_LEN, packet.len() as usize);
            let frame = qcn::Frame::parse(&real).unwrap();
            let [from, to] = [sampled.src(), sampled.dst()].map(|a| MacAddress::local(a.to_bits() | VM_MAC));
            assert_eq!((frame.destination, frame.source, frame.priority), (from, MacAddress::switch(9), 7));
            assert_eq!(frame.message, qcn::Repr::of(message.cpid, (42, 12_800, -640), sampled.priority(), to));
        }
    }

    #[test]
    fn frames_have_their_cn_tag_and_notifications_that_of_the_sampled_frame() {
        let flow = FlowKey { src: Address::new(3, 0), dst: Address::new(300, 2), sport: 9, dport: 10 };
        let framing = Framing::CN_TAGGED;
        let long = Packet::udp(flow, 0, 700, 3, framing);
        let short = Packet::udp(flow, 0, 1, 3, framing);
        let mut tunnelled = long;
        tunnelled.encapsulate(Ecn::NotEct, ENCAPSULATION_BYTES);
        let number = Some(long.flow_number() as u16);
        for packet in [long, short, tunnelled] {
            let real = bytes(&packet, framing, 0);
            assert_eq!(real.len() + ethernet::FCS_LEN, packet.len() as usize, "{packet:?}");
            assert_eq!(qcn::flow_of(&real), number);
        }
        assert_eq!((long.len(), short.len()), (750, 64));
        let message =
            Message { cpid: 7, notification: Notification { feedback: 1, offset: 64, delta: 0 }, priority: 3 };
        let notification = long.notification(&message, 7);
        let real = bytes(&notification, framing, 0);
        assert_eq!((real.len() + ethernet::FCS_LEN, qcn::flow_of(&real)), (notification.len() as usize, number));
        assert_eq!(qcn::Frame::parse(&real).unwrap().message.feedback, 1);
    }

    #[test]
    fn the_simulated_length_is_the_real_one() {
        let kind = zbridge::Kind::Data { ack_request: true };
        let header = zbridge::Header { kind, connection: 1 << 31, sequence: 2, acknowledgement: 3 };
        for p in packets() {
            assert_eq!(bytes(&p, Framing::ETHERNET, 0).len() + ethernet::FCS_LEN, p.len() as usize, "{p:?}");
            let mut tunnelled = p;
            tunnelled.encapsulate(p.ecn(), ENCAPSULATION_BYTES);
            // A guest's own frame may be padded; the tunnel carries the padding.
            let real = bytes(&tunnelled, Framing::ETHERNET, 0).len() + ethernet::FCS_LEN;
            assert!(tunnelled.len() as usize - real <= 6, "{real} {p:?}");
            let mut carried = p;
            carried.bridge(&header);
            let real = bytes(&carried, Framing::ETHERNET, 0);
            // A frame of the shortest length was padded before it was carried, and only one of its SACK blocks is left.
            let blocks = if p.kind() == Kind::Tcp { p.segment().sack.as_slice().len() } else { 0 };
            let short = 6 + 8 * blocks.saturating_sub(1);
            assert!(carried.len() as usize - real.len() - ethernet::FCS_LEN <= short, "{} {p:?}", real.len());
            let (repr, _) = zbridge::Repr::parse(&real).expect("a frame of zBridge");
            assert_eq!(repr.header, header);
        }
    }
}
