//! Output of this project in an independent reader: frames of `wire` in Wireshark's dissectors.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use sluicenet_wire::checksum::PseudoHeader;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::{self, Flags, Segment, SynOptions};
use sluicenet_wire::{arp, pfc, qcn, udp, vlan, vxlan};

use super::*;

const ADDRESSES: PseudoHeader =
    PseudoHeader { source: Ipv4Addr::new(10, 0, 0, 1), destination: Ipv4Addr::new(10, 0, 1, 2) };

fn ethernet(ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; ethernet::HEADER_LEN];
    let header = ethernet::Repr { destination: MacAddress::local(2), source: MacAddress::local(1), ethertype };
    header.emit(&mut frame);
    frame.extend_from_slice(payload);
    frame
}

fn tagged(priority: u8, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut tag = [0; vlan::TAG_LEN];
    vlan::Repr { priority, drop_eligible: false, vid: 0, ethertype }.emit(&mut tag);
    ethernet(EtherType::VLAN, &[&tag, payload].concat())
}

fn ip(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ipv4::HEADER_LEN];
    let header = ipv4::Repr {
        source: ADDRESSES.source,
        destination: ADDRESSES.destination,
        protocol,
        dscp: 26,
        ecn: Ecn::Ect0,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: payload.len() as u16,
    };
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn udp(source_port: u16, destination_port: u16, payload: &[u8], checked: bool) -> Vec<u8> {
    let mut bytes = [&[0; udp::HEADER_LEN], payload].concat();
    udp::Repr { source_port, destination_port }.emit(&mut bytes, checked.then_some(&ADDRESSES));
    bytes
}

fn tcp(segment: Segment) -> Vec<u8> {
    let repr = tcp::Repr { source_port: 40_000, destination_port: 5001, segment };
    let mut bytes = vec![0x5A; repr.header_len() + segment.len as usize];
    repr.emit(&mut bytes, &ADDRESSES);
    bytes
}

fn syn() -> Segment {
    let syn = SynOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true };
    Segment {
        seq: SeqNumber(9),
        flags: Flags::SYN,
        timestamps: Some((7, 0)),
        syn,
        window: 64_240,
        ..Segment::default()
    }
}

fn data() -> Segment {
    let mut segment = Segment {
        seq: SeqNumber(10),
        ack: SeqNumber(77),
        len: 1001,
        flags: Flags::ACK.with(Flags::PSH),
        timestamps: Some((8, 9)),
        ..Segment::default()
    };
    segment.sack.push(SeqNumber(100), SeqNumber(200));
    segment.sack.push(SeqNumber(300), SeqNumber(400));
    segment
}

/// The values of `fields` that tshark prints for every packet of `capture`, with `|` between them.
fn tshark(capture: &[u8], fields: &[&str]) -> Option<Vec<String>> {
    tshark_with(&[], capture, fields)
}

/// The same, with more options.
fn tshark_with(options: &[&str], capture: &[u8], fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.args(options);
    command.args(["-n", "-r", "-", "-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    command.args(["-o", "tcp.relative_sequence_numbers:FALSE"]);
    for protocol in ["ip", "tcp", "udp"] {
        command.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("SKIPPED: captures are not checked, because tshark cannot be started: {error}");
            return None;
        }
    };
    child.stdin.take().unwrap().write_all(capture).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn wireshark_reads_every_kind_of_frame() {
    let mut quanta = [0; pfc::CLASSES];
    quanta[3] = 0xFFFF;
    let xoff = pfc::Repr { source: MacAddress::local(1), class_enable: 1 << 3, quanta }.emit();
    let mut request = [0; arp::LEN];
    arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: MacAddress::local(1),
        sender_ip: ADDRESSES.source,
        target_mac: MacAddress::default(),
        target_ip: ADDRESSES.destination,
    }
    .emit(&mut request);
    let inner = ethernet(EtherType::IPV4, &ip(Protocol::UDP, &udp(40_001, 40_002, b"inner", true)));
    let mut overlay = vec![0; vxlan::HEADER_LEN];
    vxlan::Repr { vni: 0xABCDE }.emit(&mut overlay);
    overlay.extend(inner);
    let overlay = ip(Protocol::UDP, &udp(50_000, vxlan::UDP_PORT, &overlay, false));
    let ppp = [&[0x00, 0x21][..], &ip(Protocol::TCP, &tcp(data()))].concat();
    let long = ethernet(EtherType::IPV4, &ip(Protocol::TCP, &tcp(data())));

    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let link = |name, link| Interface::simulated(name, link, 10_000_000_000);
    let port = writer.interface(&link("switch 12 port 3", LinkType::Ethernet)).unwrap();
    let wire = writer.interface(&link("host 3", LinkType::Ppp)).unwrap();
    let mut time_ps = 0;
    let mut write = |interface, bytes: &[u8], len: usize, comment| {
        time_ps += 1_000_000_007_000;
        let (direction, original_len) = (Direction::Outbound, bytes.len() as u32);
        let packet = Packet { interface, time_ps, direction, bytes: &bytes[..len], original_len, comment };
        writer.packet(&packet).unwrap();
    };
    let frames = [
        tagged(3, EtherType::IPV4, &ip(Protocol::TCP, &tcp(syn()))),
        long.clone(),
        ethernet(EtherType::IPV4, &overlay),
        xoff.to_vec(),
        ethernet(EtherType::ARP, &request),
    ];
    for frame in &frames {
        write(port, frame, frame.len(), None);
    }
    write(wire, &ppp, ppp.len(), None);
    write(port, &long, 64, Some("dropped: switch_buffer, bei 3 \u{b5}s"));
    let capture = writer.into_inner().unwrap();

    let fields = [
        "frame.time_epoch",
        "frame.interface_name",
        "frame.protocols",
        "frame.len",
        "frame.cap_len",
        "ip.checksum.status",
        "tcp.checksum.status",
        "udp.checksum.status",
        "frame.comment",
    ];
    let Some(lines) = tshark(&capture, &fields) else { return };
    // Status 1 is "good", 2 "unverified", 3 "not present"; the overlay has two of each header. To Wireshark, the packet of
    // host 3 is a retransmission of the second packet, whose data it does not show again.
    let expected = [
        "1.000000007|switch 12 port 3|eth:ethertype:vlan:ethertype:ip:tcp|78|78|1|1||",
        "2.000000014|switch 12 port 3|eth:ethertype:ip:tcp:data|1087|1087|1|1||",
        "3.000000021|switch 12 port 3|eth:ethertype:ip:udp:vxlan:eth:ethertype:ip:udp:data|97|97|1,1||3,1|",
        "4.000000028|switch 12 port 3|eth:ethertype:macc|60|60||||",
        "5.000000035|switch 12 port 3|eth:ethertype:arp|42|42||||",
        "6.000000042|host 3|ppp:ip:tcp|1075|1075|1|1||",
        "7.000000049|switch 12 port 3|eth:ethertype:ip:tcp|1087|64|1|2||dropped: switch_buffer, bei 3 \u{b5}s",
    ];
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(expected) {
        // Versions of tshark print more or fewer digits than nanoseconds have.
        let (time, rest) = line.split_once('|').unwrap();
        let (expected_time, expected_rest) = expected.split_once('|').unwrap();
        assert!(time.starts_with(expected_time), "{time} for {expected_time}");
        assert_eq!(rest, expected_rest);
    }

    let fields = [
        "vlan.priority",
        "tcp.options.mss_val",
        "tcp.options.wscale.shift",
        "tcp.options.sack_perm",
        "tcp.options.timestamp.tsval",
        "tcp.options.sack_le",
        "vxlan.vni",
        "macc.opcode",
        "macc.cbfc.enbv.c3",
        "macc.cbfc.pause_time.c3",
        "_ws.malformed",
    ];
    let lines = tshark(&capture, &fields).unwrap();
    // Versions differ in the colons between bytes.
    assert_eq!(lines[0].replace(':', ""), "3|1460|7|0402|7||||||");
    assert_eq!(lines[1], "||||8|100,300|||||");
    assert_eq!(lines[2], "||||||703710||||");
    assert_eq!(lines[3], "|||||||0x0101|1|65535|");
    assert!(lines.iter().all(|line| line.ends_with('|')), "nothing malformed: {lines:?}");
}

/// The dissector of this project for congestion notification.
const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wireshark/congestion_notification.lua");

#[test]
fn wireshark_reads_congestion_notifications_and_tags_by_our_dissector() {
    // The vector that `wire` has by hand: feedback 42, 12,800 B beyond the set point, 640 B shorter than before.
    let message = qcn::Repr {
        feedback: 42,
        cpid: [0x02, 0, 0, 0, 0, 9, 0, 3],
        offset: qcn::queue_units(12_800),
        delta: qcn::queue_units(-640),
        priority: 3,
        destination: MacAddress::local(7),
        data: &[0x45, 0x00, 0x05, 0xDC],
    };
    let notification = |message, flow| {
        let [destination, source] = [1, 9].map(MacAddress::local);
        let frame = qcn::Frame { destination, source, priority: 7, flow, message };
        let mut bytes = vec![0; frame.emitted_len()];
        frame.emit(&mut bytes);
        bytes
    };
    let of_flow = |mut bytes: Vec<u8>, flow| {
        let at = qcn::tag_position(&bytes);
        bytes.splice(at..at, qcn::tag_bytes(flow));
        bytes
    };
    let plain = notification(message, None);
    // What a congestion point of the simulator says.
    let of_switch = qcn::Repr::of(12 << 32 | 3 << 3 | 5, (63, 100_000, 30_000), 5, MacAddress::local(8));
    let mut other_version = plain.clone();
    other_version[18] = 0x10;
    let frames = [
        plain.clone(),
        notification(of_switch, Some(0x1234)),
        of_flow(tagged(3, EtherType::IPV4, &ip(Protocol::UDP, &udp(40_001, 40_002, b"data", true))), 77),
        other_version,
        plain[..30].to_vec(),
    ];
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = writer.interface(&Interface::simulated("x", LinkType::Ethernet, 1)).unwrap();
    for bytes in &frames {
        let (direction, original_len) = (Direction::Inbound, bytes.len() as u32);
        let packet = Packet { interface, time_ps: 0, direction, bytes, original_len, comment: None };
        writer.packet(&packet).unwrap();
    }
    let fields = [
        "frame.protocols",
        "cn_tag.flow",
        "cnm.version",
        "cnm.feedback",
        "cnm.cpid",
        "cnm.qoffset_bytes",
        "cnm.qdelta_bytes",
        "cnm.priority",
        "cnm.dst",
        "cnm.data",
        "udp.dstport",
        "cnm.malformed",
    ];
    let script = format!("lua_script:{DISSECTOR}");
    let capture = writer.into_inner().unwrap();
    let has_lua = Command::new("tshark").arg("--version").output().is_ok_and(|output| {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.contains("with Lua")
    });
    if !has_lua {
        eprintln!("SKIPPED: congestion notifications are not checked, because there is no tshark with Lua");
        return;
    }
    let lines = tshark_with(&["-X", &script], &capture, &fields).unwrap();
    // Versions differ in the colons between bytes, and in how they show that there is an expert's note.
    let shown: Vec<String> = lines.iter().map(|line| line.replace(':', "")).collect();
    let expected = [
        "ethethertypevlanethertypecnm||0|42|0200000000090003|12800|-640|3|020000000007|450005dc||",
        "ethethertypevlanethertypecn_tagcnm|4660|0|63|0000000c0000001d|99968|29952|5|020000000008|||",
        "ethethertypevlanethertypecn_tagipudpdata|77|||||||||40002|",
        "ethethertypevlanethertypecnm||1|42|",
        "ethethertypevlanethertypecnm|||",
    ];
    assert_eq!(shown.len(), expected.len());
    shown.iter().zip(expected).for_each(|(line, start)| assert!(line.starts_with(start), "{line} for {start}"));
    let is_noted: Vec<bool> = shown.iter().map(|line| !line.ends_with('|')).collect();
    assert_eq!(is_noted, [false, false, false, true, true], "{shown:?}");
}

#[test]
fn wireshark_reads_packets_of_roce() {
    use sluicenet_node::packet::{Address, FlowKey, Framing, Packet as Simulated};
    use sluicenet_proto::transport::roce::{Data, Packet as Sent, Reply};
    let flow = FlowKey { src: Address::new(3, 0), dst: Address::new(7, 0), sport: 9, dport: 10 };
    let data = |psn, is_first, is_last, len| {
        let (offset, message) = (1 << 33, 2_049);
        Sent::Data(Data { psn, is_first, is_last, ack_request: is_last, len, offset, message })
    };
    let sent = [
        data(0xFF_FFFF, true, false, 1024),
        data(0, false, false, 1024),
        data(1, false, true, 1),
        Sent::Reply(Reply { psn: 1, is_sequence_error: false, msn: 1 }),
        Sent::Reply(Reply { psn: 0, is_sequence_error: true, msn: 0 }),
        Sent::Notification,
    ];
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = writer.interface(&Interface::simulated("x", LinkType::Ethernet, 1)).unwrap();
    for packet in &sent {
        let packet = Simulated::roce(flow, packet, true, 3, Framing::ETHERNET);
        let bytes = frame::bytes(&packet, Framing::ETHERNET, 0);
        let (direction, original_len) = (Direction::Outbound, bytes.len() as u32);
        writer
            .packet(&Packet { interface, time_ps: 0, direction, bytes: &bytes, original_len, comment: None })
            .unwrap();
    }
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.bth.padcnt",
        "infiniband.bth.a",
        "infiniband.reth.va",
        "infiniband.reth.dmalen",
        "infiniband.aeth.msn",
        "ip.dsfield.ecn",
        "_ws.malformed",
    ];
    let Some(lines) = tshark(&writer.into_inner().unwrap(), &fields) else { return };
    // Versions differ in how they show flags and addresses.
    let lines: Vec<String> = lines.iter().map(|line| line.replace("True", "1").replace("False", "0")).collect();
    let expected = [
        "6|16777215|0|0|0x0000000200000000|2049||2|",
        "7|0|0|0||||2|",
        "8|1|3|1||||2|",
        "17|1|0|0|||1|2|",
        "17|0|0|0|||0|2|",
        "129|0|0|0||||2|",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn wireshark_agrees_about_every_checksum() {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = Interface::simulated("x", LinkType::Ethernet, 1);
    let interface = writer.interface(&interface).unwrap();
    for i in 0..100u32 {
        let noise = i.wrapping_mul(0x9E37_79B9);
        let segment = Segment { seq: SeqNumber(noise), window: noise as u16, len: (i % 7) as u16, ..data() };
        let bytes = match i % 2 {
            0 => ip(Protocol::TCP, &tcp(segment)),
            _ => ip(Protocol::UDP, &udp(noise as u16, 9, &noise.to_be_bytes()[..(i % 4) as usize], true)),
        };
        let bytes = ethernet(EtherType::IPV4, &bytes);
        let (direction, original_len) = (Direction::Inbound, bytes.len() as u32);
        let packet = Packet { interface, time_ps: i as u64, direction, bytes: &bytes, original_len, comment: None };
        writer.packet(&packet).unwrap();
    }
    let fields = ["ip.checksum.status", "tcp.checksum.status", "udp.checksum.status"];
    let Some(lines) = tshark(&writer.into_inner().unwrap(), &fields) else { return };
    assert_eq!(lines.len(), 100);
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line, if i % 2 == 0 { "1|1|" } else { "1||1" }, "packet {i}");
    }
}

/// A capture of one frame at each of these times.
fn at_times(times_ps: &[u64]) -> Vec<u8> {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = Interface::simulated("x", LinkType::Ethernet, 1);
    let interface = writer.interface(&interface).unwrap();
    let bytes = &ethernet(EtherType::IPV4, &ip(Protocol::TCP, &tcp(data())));
    for &time_ps in times_ps {
        let (direction, original_len) = (Direction::Inbound, bytes.len() as u32);
        writer.packet(&Packet { interface, time_ps, direction, bytes, original_len, comment: None }).unwrap();
    }
    writer.into_inner().unwrap()
}

/// Around the 18.447 ms at which Wireshark 4.0 shows wrong picoseconds, in the first second and in a later one.
const TIMES_PS: [u64; 5] = [999, 18_446_000_001, 18_448_000_999, 999_999_999_999, 3_020_500_001_234];

#[test]
fn wireshark_shows_times_beyond_18_ms() {
    let Some(lines) = tshark(&at_times(&TIMES_PS), &["frame.time_epoch"]) else { return };
    let shown = ["0.000000000", "0.018446000", "0.018448000", "0.999999999", "3.020500001"];
    assert_eq!(lines.len(), shown.len());
    // Versions of tshark print more or fewer digits than nanoseconds have.
    assert!(lines.iter().zip(shown).all(|(line, time)| line.starts_with(time)), "{lines:?}");
}

#[test]
fn times_are_nanoseconds_rounded_down() {
    let capture = at_times(&TIMES_PS);
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap());
    let (mut at, mut times, mut resolutions) = (0, Vec::new(), 0);
    while at < capture.len() {
        let len = word(at + 4) as usize;
        match word(at) {
            ENHANCED_PACKET => times.push(u64::from(word(at + 12)) << 32 | u64::from(word(at + 16))),
            // if_tsresol: code 9, one byte, 10^-9 s; options are aligned to words.
            INTERFACE_DESCRIPTION => {
                resolutions +=
                    (at + 16..at + len - 4).step_by(4).filter(|&o| word(o) == 9 | 1 << 16 && word(o + 4) == 9).count();
            }
            _ => {}
        }
        at += len;
    }
    assert_eq!((times, resolutions), (TIMES_PS.map(|ps| ps / 1_000).to_vec(), 1));
}

#[test]
fn blocks_are_whole_and_aligned() {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let interface = Interface::simulated("odd", LinkType::Ethernet, 1);
    let interface = writer.interface(&interface).unwrap();
    let long = "\u{e9}".repeat(40_000);
    for (len, comment) in [(0, None), (1, Some("a")), (3, Some(long.as_str())), (4, Some(""))] {
        let bytes = &[1, 2, 3, 4][..len];
        let packet =
            Packet { interface, time_ps: u64::MAX, direction: Direction::Inbound, bytes, original_len: 4, comment };
        writer.packet(&packet).unwrap();
    }
    let capture = writer.into_inner().unwrap();
    let word = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().unwrap());
    let mut types = Vec::new();
    let mut at = 0;
    while at < capture.len() {
        let len = word(at + 4) as usize;
        assert!(len % 4 == 0 && word(at + len - 4) as usize == len, "block at {at}");
        types.push(word(at));
        at += len;
    }
    assert_eq!(types, [SECTION_HEADER, INTERFACE_DESCRIPTION, 6, 6, 6, 6]);
}
