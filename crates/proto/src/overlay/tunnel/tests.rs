//! Both ends of a tunnel, and the frames that must not pass through it.

use super::*;
use crate::rng::Rng;
use sluicenet_wire::checksum::checksum;
use sluicenet_wire::icmp::TooBig;
use sluicenet_wire::{icmpv6, ipv6};

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const VNI: u32 = 0x01_0203;

fn tunnel(server: Ipv4Addr, peer: Ipv4Addr) -> Tunnel {
    let mac = |ip: Ipv4Addr| MacAddress::local(ip.to_bits());
    let mut tunnel = Tunnel::new(TunnelConfig { server, mac: mac(server), mtu: 1500, reserved: 0 });
    tunnel.admit(peer, mac(peer));
    tunnel
}

fn ends() -> (Tunnel, Tunnel) {
    let (mut a, mut b) = (tunnel(HERE, THERE), tunnel(THERE, HERE));
    // The same tenant has another domain on each server.
    a.bind(5, VNI).unwrap();
    b.bind(9, VNI).unwrap();
    (a, b)
}

/// A tenant's frame with a datagram of `payload` bytes.
fn frame(payload: usize, ecn: Ecn, port: u16) -> Vec<u8> {
    let mut frame = alloc::vec![0xAB; 42 + payload];
    let header =
        ethernet::Repr { destination: MacAddress::local(2), source: MacAddress::local(1), ethertype: EtherType::IPV4 };
    header.emit(&mut frame);
    let ip = ipv4::Repr {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(10, 0, 0, 2),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn,
        identification: 7,
        dont_fragment: true,
        ttl: 64,
        payload_len: 8 + payload as u16,
    };
    ip.emit(&mut frame[14..]);
    udp::Repr { source_port: 1000, destination_port: port }.emit(&mut frame[34..], None);
    frame
}

fn all(fragments: &FrameFragments<'_>) -> Vec<Vec<u8>> {
    let one = |k| {
        let mut out = Vec::new();
        fragments.emit(k, &mut out);
        out
    };
    (0..fragments.count()).map(one).collect()
}

fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

fn encapsulated(frame: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ends().0.encapsulate([frame, &[]], VNI, 3, THERE, &mut out).unwrap();
    out
}

fn decapsulated(outer: &mut [u8]) -> Outer {
    ends().1.decapsulate(outer)
}

/// Changes an outer frame and repairs the checksum of its IPv4 header.
fn with(outer: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut outer = outer.to_vec();
    for &(at, value) in changes {
        outer[at] = value;
    }
    outer[28..30].fill(0);
    let sum = checksum(&outer[18..38]);
    outer[28..30].copy_from_slice(&sum.to_be_bytes());
    outer
}

#[test]
fn a_frame_crosses_the_tunnel_unchanged_but_for_its_tag() {
    for len in [0, 1, 18, 1404, 1418] {
        let sent = frame(len, Ecn::Ect0, 80);
        for sent_as in [sent.clone(), tagged(&sent, 0xA005)] {
            let mut outer = encapsulated(&sent_as);
            assert_eq!(outer.len(), sent.len() + usize::from(ENCAPSULATION_BYTES));
            outer.resize(outer.len().max(120), 0xEE);
            let Outer::Inner(inner) = decapsulated(&mut outer) else { panic!("{len} bytes were dropped") };
            assert_eq!((inner.from, inner.vni, inner.domain, inner.priority), (HERE, VNI, 9, 3));
            assert_eq!(outer[inner.frame], sent);
        }
    }
}

#[test]
fn outer_headers_are_as_rfc_7348_wants_them() {
    let outer = encapsulated(&frame(10, Ecn::Ce, 80));
    let (_, rest) = ethernet::Repr::parse(&outer).unwrap();
    let (tag, rest) = vlan::Repr::parse(rest).unwrap();
    assert_eq!((tag.priority, tag.vid), (3, 0));
    let (ip, rest) = ipv4::Repr::parse(rest).unwrap();
    assert_eq!((ip.source, ip.destination, ip.ttl, ip.dscp), (HERE, THERE, 64, 24));
    assert!(ip.dont_fragment && ip.ecn == Ecn::Ce);
    let pseudo = PseudoHeader { source: HERE, destination: THERE };
    let (udp, _) = udp::Repr::parse(rest, &pseudo).unwrap();
    assert!(udp.destination_port == 4789 && udp.source_port >= 49_152);
    assert_eq!(rest[6..8], [0, 0], "the checksum is absent");
}

#[test]
fn a_flow_keeps_its_source_port_and_flows_spread() {
    let port = |f: &[u8]| u16::from_be_bytes([encapsulated(f)[38], encapsulated(f)[39]]);
    let ports: alloc::collections::BTreeSet<u16> = (0..500).map(|n| port(&frame(4, Ecn::NotEct, 5_000 + n))).collect();
    assert!(ports.len() > 450, "{}", ports.len());
    assert_eq!(port(&frame(4, Ecn::NotEct, 80)), port(&frame(900, Ecn::Ce, 80)));
}

#[test]
fn ecn_crosses_as_rfc_6040_says() {
    for inner in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        for outer in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            let mut bytes = with(&encapsulated(&frame(10, inner, 80)), &[(19, 24 << 2 | outer as u8)]);
            match (ecn_out(outer, inner), decapsulated(&mut bytes)) {
                (None, Outer::Drop(DropReason::BadEcn)) => {}
                (Some(after), Outer::Inner(i)) => {
                    let (ip, _) = ipv4::Repr::parse(&bytes[i.frame][14..]).unwrap();
                    assert_eq!(ip.ecn, after);
                }
                other => panic!("{inner:?} {outer:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn ecn_of_ipv6_crosses_too() {
    let mut sent = frame(60, Ecn::NotEct, 80);
    sent[12..14].copy_from_slice(&[0x86, 0xDD]);
    // Version 6, traffic class ECT(0), a next header that is not UDP.
    (sent[14], sent[15], sent[20]) = (0x60, 0x20, 59);
    let mut bytes = with(&encapsulated(&sent), &[(19, 24 << 2 | 3)]);
    let Outer::Inner(inner) = decapsulated(&mut bytes) else { panic!() };
    sent[15] = 0x30;
    assert_eq!(bytes[inner.frame], sent);
}

#[test]
fn what_does_not_belong_into_the_tunnel_is_dropped_by_name() {
    let (a, _) = ends();
    let mut out = Vec::new();
    let mut sent = |frame: &[u8], to| a.encapsulate([frame, &[]], VNI, 0, to, &mut out);
    let good = frame(10, Ecn::NotEct, 80);
    assert_eq!(sent(&good, THERE), Ok(()));
    assert_eq!(sent(&good, Ipv4Addr::new(192, 0, 2, 99)), Err(DropReason::UnknownServer));
    assert_eq!(sent(&frame(1418, Ecn::NotEct, 80), THERE), Ok(()));
    assert_eq!(sent(&frame(1419, Ecn::NotEct, 80), THERE), Err(DropReason::TooBig));
    assert_eq!(sent(&good[..13], THERE), Err(DropReason::Malformed));
    assert_eq!(sent(&tagged(&tagged(&good, 5), 5), THERE), Err(DropReason::Malformed));
    let llc = [&tagged(&good, 5)[..16], &[0, 40], &good[14..]].concat();
    assert_eq!(sent(&llc, THERE), Err(DropReason::Malformed), "a length behind the tag");
    assert_eq!(sent(&frame(10, Ecn::NotEct, 4789), THERE), Err(DropReason::NestedTunnel));
    let to = |destination: [u8; 6]| [&destination, &good[6..]].concat();
    assert_eq!(sent(&to([0x01, 0x80, 0xC2, 0, 0, 1]), THERE), Err(DropReason::Reserved));
    let from_all = [&good[..6], &[0xFF; 6], &good[12..]].concat();
    assert_eq!(sent(&from_all, THERE), Err(DropReason::Malformed));
}

#[test]
fn hostile_19_to_22_at_the_exit() {
    let good = encapsulated(&frame(10, Ecn::NotEct, 80));
    let dropped = |bytes: Vec<u8>| match decapsulated(&mut bytes.clone()) {
        Outer::Drop(reason) => reason,
        other => panic!("{other:?}"),
    };
    // A frame truncated anywhere is dropped or not the tunnel's.
    for len in 0..good.len() {
        let mut cut = good[..len].to_vec();
        let outer = decapsulated(&mut cut);
        assert!(outer == Outer::Drop(DropReason::Malformed) || outer == Outer::Other && len < 18, "{len}: {outer:?}");
    }
    // Wrong lengths: of the header, the datagram (too long, too short), UDP.
    assert_eq!(dropped(with(&good, &[(18, 0x44)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(20, 0x7F)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(20, 0), (21, 19)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(20, 0), (21, 40)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(42, 0xFF)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(42, 0), (43, 7)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(42, 0), (43, 20)])), DropReason::Malformed, "an inner frame of 4 bytes");
    // Fragments; a wrong checksum of IP and of UDP.
    assert_eq!(dropped(with(&good, &[(24, 0x20)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(24, 0), (25, 1)])), DropReason::Malformed);
    let mut damaged = good.clone();
    damaged[28] ^= 1;
    assert_eq!(dropped(damaged), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(44, 0x12), (45, 0x34)])), DropReason::Malformed);
    // IP protocol 0, another port, another server: no frames of the tunnel.
    for change in [(27, 0), (40, 0), (37, 77), (5, 77), (16, 0x86)] {
        assert_eq!(decapsulated(&mut with(&good, &[change])), Outer::Other, "{change:?}");
    }
    // I flag clear; reserved bits are ignored.
    assert_eq!(dropped(with(&good, &[(46, 0)])), DropReason::Malformed);
    let reserved = [(46, 0xFF), (47, 1), (48, 2), (49, 3), (53, 4)];
    assert!(matches!(decapsulated(&mut with(&good, &reserved)), Outer::Inner(_)));
    // An unknown network; an unregistered server.
    assert_eq!(dropped(with(&good, &[(52, 0xEE)])), DropReason::UnknownVni);
    assert_eq!(dropped(with(&good, &[(33, 99)])), DropReason::UnknownServer);
    // Nested, tagged, from a group, to a control address.
    let at = OUTER;
    assert_eq!(dropped(with(&good, &[(at + 36, 0x12), (at + 37, 0xB5)])), DropReason::NestedTunnel);
    assert_eq!(dropped(with(&good, &[(at + 12, 0x81), (at + 13, 0x00)])), DropReason::Malformed);
    assert_eq!(dropped(with(&good, &[(at + 6, 0x03)])), DropReason::Malformed);
    let bpdu = [(at, 1), (at + 1, 0x80), (at + 2, 0xC2), (at + 3, 0), (at + 4, 0), (at + 5, 0)];
    assert_eq!(dropped(with(&good, &bpdu)), DropReason::Reserved);
}

#[test]
fn mutated_frames_never_panic_and_never_leave_their_bounds() {
    let mut rng = Rng::from_words(&[19]);
    let (_, b) = ends();
    let mut seen = [0; 3];
    for case in 0..40_000u32 {
        let ecn = Ecn::from_bits(rng.next_u64() as u8);
        let mut bytes = encapsulated(&frame(rng.below(60) as usize, ecn, rng.next_u64() as u16));
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        if case % 2 == 0 {
            bytes = with(&bytes, &[]);
        }
        if case % 3 == 0 {
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
        }
        match b.decapsulate(&mut bytes) {
            Outer::Inner(inner) => {
                assert!(inner.frame.end <= bytes.len() && inner.frame.len() >= 14);
                seen[0] += 1;
            }
            Outer::Other => seen[1] += 1,
            Outer::Drop(_) => seen[2] += 1,
        }
        let mut out = Vec::new();
        let _ = b.encapsulate([&bytes, &[]], VNI, 7, HERE, &mut out);
        too_big_answer(&bytes, 1446);
        if let Some(fragments) = FrameFragments::of(&bytes, 1446) {
            assert!(all(&fragments).iter().all(|f| f.len() <= 14 + 1446));
        }
    }
    assert!(seen.iter().all(|&n| n > 1_000), "{seen:?}");
}

#[test]
fn a_sender_is_told_what_fits() {
    let sent = frame(1_500, Ecn::NotEct, 80);
    let answer = too_big_answer(&tagged(&sent, 5), 1446).unwrap();
    let (header, packet) = ethernet::Repr::parse(&answer).unwrap();
    assert_eq!((header.destination, header.source), (MacAddress::local(1), MacAddress::local(2)));
    let (ip, payload) = ipv4::Repr::parse(packet).unwrap();
    assert_eq!((ip.source, ip.destination), (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1)));
    let (TooBig { mtu }, quoted) = TooBig::parse(payload).unwrap();
    assert_eq!((mtu, quoted), (1446, &sent[14..42]));
    // No message if fragmentation is allowed, about errors, from invalid addresses, or for other protocols.
    for changes in
        [&[(20, 0)][..], &[(23, 1), (34, 3)], &[(26, 0), (27, 0), (28, 0), (29, 0)], &[(26, 224)], &[(12, 9)]]
    {
        let mut other = sent.clone();
        changes.iter().for_each(|&(at, value)| other[at] = value);
        other[24..26].fill(0);
        let sum = checksum(&other[14..34]);
        other[24..26].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(too_big_answer(&other, 1446), None, "{changes:?}");
    }
}

#[test]
fn a_sender_of_ipv6_is_told_what_fits() {
    let addresses = ["2001:db8::1", "2001:db8::2"].map(|a| a.parse::<core::net::Ipv6Addr>().unwrap());
    let packet = |source, destination, next_header, kind: u8| {
        let mut frame = alloc::vec![kind; 54 + 1_446];
        let header = ethernet::Repr {
            destination: MacAddress::local(2),
            source: MacAddress::local(1),
            ethertype: EtherType::IPV6,
        };
        header.emit(&mut frame);
        let payload_len = (frame.len() - 54) as u16;
        ipv6::Repr { source, destination, next_header, traffic_class: 0xB9, flow_label: 0, hop_limit: 64, payload_len }
            .emit(&mut frame[14..]);
        frame
    };
    let [source, destination] = addresses;
    let sent = packet(source, destination, 17, 0);
    let answer = too_big_answer(&tagged(&sent, 5), 1446).unwrap();
    assert_eq!(answer.len(), 14 + 1280, "no longer than the datagram that every link carries");
    let (header, packet_back) = ethernet::Repr::parse(&answer).unwrap();
    assert_eq!((header.destination, header.source), (MacAddress::local(1), MacAddress::local(2)));
    let (ip, message) = ipv6::Repr::parse(packet_back).unwrap();
    assert_eq!((ip.source, ip.destination, ip.traffic_class), (destination, source, 0xB8));
    let (icmpv6::TooBig { mtu }, quoted) = icmpv6::TooBig::parse(&ip, message).unwrap();
    assert_eq!((mtu, quoted), (1446, &sent[14..14 + 1280 - 48]));
    // Not about errors, nor to or from an address of no host. A message that is no error gets one.
    let group = "ff02::1".parse().unwrap();
    for refused in [
        packet(source, destination, ipv6::ICMPV6, 1),
        packet(source, group, 17, 0),
        packet(group, destination, 17, 0),
        packet(core::net::Ipv6Addr::UNSPECIFIED, destination, 17, 0),
    ] {
        assert_eq!(too_big_answer(&refused, 1446), None);
    }
    assert!(too_big_answer(&packet(source, destination, ipv6::ICMPV6, 128), 1446).is_some());
}

#[test]
fn a_packet_that_may_be_cut_goes_through_in_fragments() {
    let mut sent = frame(4_000, Ecn::Ect0, 80);
    sent[20] = 0;
    sent[24..26].fill(0);
    let sum = checksum(&sent[14..34]);
    sent[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(ends().0.objection([&sent, &[]]), Some(DropReason::TooBig));
    for frame in [sent.clone(), tagged(&sent, 0x6005)] {
        let cut = all(&FrameFragments::of(&frame, 1446).unwrap());
        let lens: Vec<usize> = cut.iter().map(|f| f.len() - 34).collect();
        assert_eq!(lens, [1_424, 1_424, 1_160]);
        assert_eq!(cut.iter().flat_map(|f| &f[34..]).copied().collect::<Vec<u8>>(), sent[34..]);
        for fragment in cut {
            assert_eq!(fragment[..14], sent[..14]);
            let Outer::Inner(inner) = decapsulated(&mut encapsulated(&fragment)) else { panic!() };
            assert_eq!(inner.frame.len(), fragment.len());
        }
    }
    // Not one that forbids it, and nothing but IPv4.
    assert!(FrameFragments::of(&frame(4_000, Ecn::Ect0, 80), 1446).is_none());
    sent[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
    assert!(FrameFragments::of(&sent, 1446).is_none());
}

#[test]
fn an_underlay_that_carries_no_more_than_headers_carries_nothing() {
    for mtu in [0, 53, 54, 68] {
        let mut narrow = Tunnel::new(TunnelConfig { server: HERE, mac: MacAddress::local(1), mtu, reserved: 0 });
        narrow.admit(THERE, MacAddress::local(2));
        let sent = narrow.encapsulate([&frame(0, Ecn::NotEct, 80), &[]], VNI, 0, THERE, &mut Vec::new());
        assert_eq!(sent, Err(DropReason::TooBig), "{mtu}");
    }
}

#[test]
fn a_domain_and_a_network_belong_to_each_other_only() {
    let (mut a, _) = ends();
    assert_eq!(a.bind(5, VNI), Ok(()));
    assert_eq!(a.bind(5, 7), Err(NotBound::Taken));
    assert_eq!(a.bind(6, VNI), Err(NotBound::Taken));
    assert_eq!(a.bind(4096, 7), Err(NotBound::TooLarge));
    assert_eq!(a.bind(6, 1 << 24), Err(NotBound::TooLarge));
    assert_eq!((a.network(5), a.domain(VNI), a.inner_mtu()), (Some(VNI), Some(5), 1446));
    a.expel(THERE);
    let good = frame(10, Ecn::NotEct, 80);
    assert_eq!(a.encapsulate([&good, &[]], VNI, 0, THERE, &mut Vec::new()), Err(DropReason::UnknownServer));
}

#[test]
fn a_stream_has_frames_without_their_tags_and_segments_between_servers_alone() {
    use sluicenet_wire::tcp::{Flags, Segment};
    let (a, b) = ends();
    let plain = frame(100, Ecn::NotEct, 2_000);
    let mut out = Vec::new();
    a.put_in_stream([&tagged(&plain, 5 << 13 | 77), &[]], VNI, 3, THERE, &mut out).unwrap();
    let inner = b.take_from_stream(&out, HERE).unwrap();
    assert_eq!((&out[inner.frame.clone()], inner.from, inner.domain, inner.priority), (&plain[..], HERE, 9, 3));
    // A stream refuses the same frames as a datagram of the tunnel.
    let nested = frame(100, Ecn::NotEct, vxlan::UDP_PORT);
    assert_eq!(a.put_in_stream([&nested, &[]], VNI, 3, THERE, &mut out), Err(DropReason::NestedTunnel));
    assert_eq!(a.put_in_stream([&plain, &[]], VNI, 3, Ipv4Addr::LOCALHOST, &mut out), Err(DropReason::UnknownServer));
    a.put_in_stream([&plain, &[]], VNI + 1, 3, THERE, &mut out).unwrap();
    assert_eq!(b.take_from_stream(&out, HERE), Err(DropReason::UnknownVni));
    out.truncate(12);
    assert!(b.take_from_stream(&out, HERE).is_err());

    let segment = Segment { len: 5, flags: Flags::ACK, timestamps: Some((1, 2)), ..Segment::default() };
    let fill = |into: &mut [u8]| into.copy_from_slice(b"bytes");
    let sent = a.segment(THERE, 50_000, segment, true, 3, fill).unwrap();
    let heard = b.find_segment(&sent, 50_000).unwrap().unwrap();
    assert_eq!((heard.from, heard.segment, heard.ce), (HERE, segment, false));
    assert_eq!(&sent[heard.payload], b"bytes");
    assert_eq!(a.segment(HERE, 50_000, segment, true, 3, fill), Err(DropReason::UnknownServer));
    // Another port; another receiver; an unknown sender; a damaged segment.
    assert_eq!(b.find_segment(&sent, 50_001), Ok(None));
    assert_eq!(a.find_segment(&sent, 50_000), Ok(None));
    let stranger = tunnel(THERE, Ipv4Addr::LOCALHOST);
    assert_eq!(stranger.find_segment(&sent, 50_000), Err(DropReason::UnknownServer));
    for at in [18 + 20, 18 + 20 + 14, sent.len() - 1] {
        let mut damaged = sent.clone();
        damaged[at] ^= 0x04;
        assert!(matches!(b.find_segment(&damaged, 50_000), Err(DropReason::BadCrc) | Ok(None)), "{at}");
    }
    // A datagram is no segment, and a segment no datagram.
    assert_eq!(b.find_segment(&encapsulated(&plain), 50_000), Ok(None));
    assert_eq!(b.decapsulate(&mut sent.clone()), Outer::Other);
}
