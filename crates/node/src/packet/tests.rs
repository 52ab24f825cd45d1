//! A packet returns the values that were put into it.

use super::*;
use sluicenet_proto::overlay::bridge::ENCAPSULATION_BYTES;
use sluicenet_proto::transport::roce::{self, Data, Reply};
use sluicenet_proto::transport::tcplight;
use sluicenet_wire::tcp::SackBlocks;
use sluicenet_wire::tcplight::Flags as LightFlags;
use sluicenet_wire::zcredit::Message;

pub(super) fn flow() -> FlowKey {
    FlowKey { src: Address::new(1, 2), dst: Address::new(70_000, 3), sport: 9, dport: 10 }
}

#[test]
fn a_segment_comes_out_as_it_went_in() {
    let mut sack = SackBlocks::EMPTY;
    sack.push(SeqNumber(u32::MAX - 5), SeqNumber(100));
    sack.push(SeqNumber(5_000), SeqNumber(1_000_000));
    sack.push(SeqNumber(1_100_000), SeqNumber(2_000_000));
    let data = Segment {
        seq: SeqNumber(77),
        ack: SeqNumber(u32::MAX - 1_000),
        window: 500,
        len: 1448,
        flags: Flags::ACK,
        timestamps: Some((3, 4)),
        sack,
        syn: SynOptions::default(),
    };
    let p = Packet::tcp(flow(), &data, true, 5, Framing::ETHERNET);
    assert_eq!(p.segment(), data);
    assert_eq!((p.priority(), p.ecn(), p.flow()), (5, Ecn::Ect0, flow()));
    assert_eq!(p.len(), 1448 + 12 + 28 + 40 + 18);
    let syn = SynOptions { mss: Some(1406), window_scale: Some(7), sack_permitted: true };
    let open = Segment { flags: Flags::SYN, syn, timestamps: Some((1, 0)), ..Segment::default() };
    let p = Packet::tcp(flow(), &open, false, 0, Framing::ETHERNET);
    assert_eq!(p.segment(), open);
    assert_eq!(p.len(), 78);
}

#[test]
fn the_tunnel_costs_54_bytes_and_keeps_ecn() {
    let data = Segment { len: 1446 - 52, timestamps: Some((0, 0)), flags: Flags::ACK, ..Segment::default() };
    let mut p = Packet::tcp(flow(), &data, true, 0, Framing::ETHERNET);
    p.encapsulate(Ecn::Ect0, ENCAPSULATION_BYTES);
    assert_eq!(p.len(), 1518);
    p.set_ecn(Ecn::Ce);
    assert_eq!(p.inner_ecn(), Ecn::Ect0);
    p.decapsulate(Ecn::Ce, ENCAPSULATION_BYTES);
    assert_eq!((p.len(), p.ecn(), p.is_encapsulated()), (1464, Ecn::Ce, false));
}

#[test]
fn a_segment_of_tcplight_comes_out_as_it_went_in() {
    let flags = LightFlags::SYN | LightFlags::ANSWER;
    let data = tcplight::Segment { flags, connection: u32::MAX, offset: 7, limit: 1 << 31, len: 1406 };
    let p = Packet::light(flow(), &data, 3, Framing::ETHERNET);
    assert_eq!((p.light_segment(), p.kind(), p.priority(), p.flow()), (data, Kind::Light, 3, flow()));
    assert_eq!(p.len(), 1406 + 40 + 18);
}

#[test]
fn a_frame_in_a_tunnel_comes_out_as_it_went_in() {
    let light = tcplight::Segment { connection: 7, len: 9, ..Default::default() };
    let message = Message::Grant { granted: 7 };
    let all = [
        Packet::tcp(flow(), &Segment { timestamps: Some((1, 2)), ..Segment::default() }, true, 3, Framing::ETHERNET),
        Packet::udp(flow(), 1, 2, 3, Framing::ETHERNET),
        Packet::light(flow(), &light, 3, Framing::ETHERNET),
        Packet::credit(flow().src, flow().dst, 1, &message, 3, Framing::ETHERNET),
    ];
    for packet in all {
        let (out, number) = packet.tunnelled(65_535).untunnelled();
        assert_eq!((alloc::format!("{out:?}"), number), (alloc::format!("{packet:?}"), 65_535));
    }
}

#[test]
fn a_pause_comes_out_as_it_went_in() {
    let pause = Pause { classes: PrioritySet(0x81), quanta: [1, 2, 3, 4, 5, 6, 7, 65_535] };
    let p = Packet::from_pause(pause);
    assert_eq!((p.as_pause(), p.len()), (Some(pause), 64));
}

#[test]
fn only_a_frame_whose_transport_supports_ecn_is_marked() {
    let cases = [(Ecn::NotEct, Ecn::NotEct), (Ecn::Ect0, Ecn::Ce), (Ecn::Ect1, Ecn::Ce), (Ecn::Ce, Ecn::Ce)];
    for (before, after) in cases {
        let mut packet = Packet::udp(flow(), 1, 2, 3, Framing::ETHERNET);
        packet.set_ecn(before);
        assert_eq!((packet.mark(), packet.ecn(), packet.priority()), (after == Ecn::Ce, after, 3));
    }
}

#[test]
fn a_packet_of_roce_comes_out_as_it_went_in() {
    let data = |is_first, is_last| {
        let (psn, offset, message, len) = (0xAB_CDEF, 3 << 40 | 9, 1 << 31, 1_000);
        roce::Packet::Data(Data { psn, is_first, is_last, ack_request: is_last, len, offset, message })
    };
    let reply = |is_sequence_error| roce::Packet::Reply(Reply { psn: 0xFF_FFFF, is_sequence_error, msn: 0xFF_FFFE });
    // Ethernet, IP, UDP, BTH and CRC; then RETH, AETH or the bytes of a CNP, and the payload.
    let lower = 18 + 20 + 8 + 12 + 4;
    for (packet, len) in [
        (data(true, true), 16 + 1_000),
        (data(true, false), 16 + 1_000),
        (data(false, false), 1_000),
        (data(false, true), 1_000),
        (reply(false), 4),
        (reply(true), 4),
        (roce::Packet::Notification, 16),
    ] {
        let mut p = Packet::roce(flow(), &packet, true, 5, Framing::ETHERNET);
        assert_eq!((p.roce_packet(), p.len()), (packet, lower + len));
        assert_eq!((p.priority(), p.ecn(), p.flow(), p.kind()), (5, Ecn::Ect0, flow(), Kind::Roce));
        assert!(p.mark() && p.ecn() == Ecn::Ce);
        p.set_path(Some(77));
        assert_eq!((p.path(), p.roce_packet()), (Some(77), packet), "a source may choose its path");
        assert!(!Packet::roce(flow(), &packet, false, 5, Framing::ETHERNET).mark(), "without ECN");
    }
    let odd = roce::Packet::Data(Data {
        psn: 0,
        is_first: false,
        is_last: true,
        ack_request: true,
        len: 1,
        offset: 0,
        message: 1025,
    });
    let padded = Packet::roce(flow(), &odd, true, 0, Framing::ETHERNET);
    assert_eq!((padded.payload(), padded.len()), (1, lower + 4), "padded to four bytes");
}

#[test]
fn the_longest_frame_has_16_bits() {
    for (framing, mtu) in [(Framing::ETHERNET, 65_517), (Framing::CN_TAGGED, 65_513), (Framing::PPP, 65_533)] {
        framing.assert_fits(mtu.into());
        assert_eq!(framing.frame_len(mtu), u16::MAX);
    }
}

#[test]
#[should_panic(expected = "more than 65,535 B")]
fn a_longer_frame_is_no_frame() {
    Framing::ETHERNET.assert_fits(65_518);
}
