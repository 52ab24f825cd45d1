//! TCP tunnels between two servers over a link that loses, damages and forgets, and a server that is none.

use super::credits::{Leaky, of_one_class, patient};
use super::*;
use sluicenet_dataplane::port::OverlayChange;
use sluicenet_dataplane::uplink::TcpTunnelConfig;
use sluicenet_node::tunnels::PORT;
use sluicenet_proto::overlay::tunnel::Tunnel;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::tcp::{self, State, Tcp};
use sluicenet_wire::stream;
use sluicenet_wire::tcp::Flags;

const CLASS: u8 = 3;
/// The longest frame that there is room for: the tunnel of datagrams carries no longer one.
const LONGEST: usize = 14 + 1_446;

fn tcp() -> tcp::Config {
    // Ten in a row are lost once in many millions of runs, at one in ten either way.
    tcp::Config { connection_cache: false, syn_retries: 4, max_retries: 10, ..tcp::Config::crisan2014_tuned() }
}

pub fn config() -> TcpTunnelConfig {
    TcpTunnelConfig { tcp: tcp(), priority: CLASS, user_timeout: Duration::from_secs(5), classes: PrioritySet::ALL }
}

fn tunnelled(n: usize, device: impl Device + Send + 'static, address: &impl Fn(u8) -> Ipv4Addr) -> Server {
    overlay_with(n, device, address, access, Stack { tcp_tunnels: true, ..Stack::default() })
}

/// What was put into streams at the one end has come out at the other.
fn ledger(servers: &[Server; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let [from, to] = [from, to].map(|n: usize| &servers[n]);
        assert_eq!(from.own("tcp_tunnel_sent"), to.own("tcp_tunnel_received"));
        assert_eq!(from.own("tcp_tunnel_messages_sent"), to.own("tcp_tunnel_messages_received"));
    }
    for server in servers {
        server.engine.ledger();
        assert_eq!(server.engine.queued(), 0);
        for inside in ["tcp_tunnel_unsent", "tcp_tunnel_unacknowledged", "tcp_tunnel_bytes_out", "tcp_tunnel_bytes_in"]
        {
            assert_eq!(server.own(inside), 0, "{inside}");
        }
        for loss in ["tunnel_ended", "headroom_exceeded", "watchdog"] {
            assert_eq!(server.own(loss), 0, "{loss}");
        }
    }
}

fn over_a_bad_link(damages: bool, credits: bool) {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let bad = |device, seed| Leaky { device, rng: Rng::from_words(&[seed]), one_in: 10, lost: 0, damages };
    let stack = || Stack { tcp_tunnels: true, credits: credits.then(patient), ..Stack::default() };
    let mut servers = [
        overlay_with(1, bad(a, 3), &address, of_one_class, stack()),
        overlay_with(2, bad(b, 4), &address, of_one_class, stack()),
    ];
    ask_first(&mut servers);
    send_to_both(&mut servers, 3_000);
    until(&mut servers, |servers| {
        servers.iter().all(|s| s.own("tcp_tunnel_bytes_out") + s.own("tcp_tunnel_bytes_in") == 0)
    });
    ledger(&servers);
    let [a, b] = &servers;
    assert_eq!(a.own("tcp_tunnel_sent"), 6_000, "what is said of credits is counted by itself");
    assert_eq!((a.own("tcp_tunnel_messages_sent") > 0, a.own("credit_unsent")), (credits, 0));
    println!(
        "damages: {damages}: {} segments, {} sent again, {} timeouts, {} damaged",
        a.own("tcp_tunnel_segments_sent"),
        a.own("tcp_tunnel_resent"),
        a.own("tcp_tunnel_timeouts"),
        b.own("bad_crc")
    );
    assert!(a.own("tcp_tunnel_resent") > 100);
    assert_eq!((b.own("bad_crc") > 50, b.own("tcp_tunnel_ended")), (damages, 0));
}

#[test]
fn a_link_that_loses_one_frame_in_ten_loses_none_and_keeps_their_order() {
    over_a_bad_link(false, false);
    over_a_bad_link(false, true);
}

#[test]
fn a_link_that_corrupts_one_frame_in_ten_changes_none() {
    over_a_bad_link(true, false);
    over_a_bad_link(true, true);
}

/// A slow station stops those who send through the same tunnel, and nothing is lost; a good link sends nothing again.
#[test]
fn who_takes_nothing_stops_the_tunnel_and_loses_nothing() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [tunnelled(1, a, &address), tunnelled(2, b, &address)];
    ask_first(&mut servers);
    let (mut sent, mut seen, mut held_back) = ([0u64; 2], [0u64; 2], 0);
    for turn in 0..60_000usize {
        let [a, b] = &mut servers;
        for (k, to) in [(0, 3), (1, 4)] {
            let is_sent = a.send(k, &frame(k + 1, to, sent[k], 100 + turn % 1_300));
            sent[k] += u64::from(is_sent);
            held_back += u64::from(!is_sent);
        }
        a.engine.round();
        b.engine.round();
        for k in [0, 1] {
            // The slow one takes nothing at all for a while, and a frame in 20 turns then.
            if k == 1 || turn > 20_000 && turn % 20 == 0 {
                while let Some(number) = b.number(k) {
                    assert_eq!(number, seen[k], "in order, each once");
                    seen[k] += 1;
                    if k == 0 {
                        break;
                    }
                }
            }
        }
        let most = u64::from(tcp().max_buffer);
        assert!(b.own("tcp_tunnel_bytes_in") <= most && a.own("tcp_tunnel_bytes_out") <= most + 1_500);
    }
    assert!(held_back > 10_000, "held back {held_back} times");
    take_the_rest(&mut servers, sent, seen);
    until(&mut servers, |[a, _]| a.own("tcp_tunnel_unacknowledged") == 0);
    println!("sent = received = {sent:?} (slow, fast), held back {held_back} times");
    ledger(&servers);
    // The longest frame that there is room for, and one that is answered.
    servers[0].send(0, &frame(1, 3, 77, LONGEST));
    until(&mut servers, |[_, b]| b.number(0) == Some(77));
    servers[0].send(0, &frame(1, 3, 0, LONGEST + 1));
    is_told(&mut servers, 1446);
}

#[test]
fn a_server_that_starts_again_is_opened_to_again() {
    let address = network();
    let _controller = controller(&address);
    let devices = kept();
    let new = |n: usize| tunnelled(n, Kept(devices[n - 1].clone()), &address);
    start_each_again(new, |other| other.own("tcp_tunnel_ended") > 0);
}

/// One that is of the overlay no longer: what was on its way to it is dropped by name, its place is free, and nothing that comes makes it
/// another. Readmitted, it is as any.
#[test]
fn a_server_that_is_expelled_leaves_no_place_behind() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [tunnelled(1, a, &address), tunnelled(2, b, &address)];
    ask_first(&mut servers);
    let mut number = 0;
    for _ in 0..3 {
        let first = number;
        until(&mut servers, |[a, b]| {
            number += u64::from(a.send(0, &frame(1, 3, number, 100)));
            b.number(0).is_some_and(|seen| seen > first + 200)
        });
        // The other one reads no more, so that something is in the stream.
        for _ in 0..200 {
            number += u64::from(servers[0].send(0, &frame(1, 3, number, 1_400)));
            servers[0].engine.round();
        }
        let (held, lost) = (servers[0].own("tcp_tunnel_unacknowledged"), servers[0].own("tunnel_ended"));
        assert!(held > 0 && servers[0].own("tcp_tunnel_servers") == 1);
        servers[0].engine.change_overlay(&OverlayChange { expelled: vec![address(2)], ..OverlayChange::default() });
        for _ in 0..100 {
            // Neither what it says nor what is sent to it.
            servers[0].send(1, &frame(2, 4, 0, 100));
            servers.iter_mut().for_each(|server| _ = server.engine.round());
            while servers[1].number(0).is_some() {}
            assert_eq!(servers[0].own("tcp_tunnel_servers"), 0);
        }
        assert!(servers[0].own("tunnel_ended") >= lost + held);
        assert_eq!((servers[0].own("tcp_tunnel_unacknowledged"), servers[0].own("tcp_tunnel_unsent")), (0, 0));
        servers[0].engine.ledger();
        let admitted = vec![(address(2), mac(102).0)];
        servers[0].engine.change_overlay(&OverlayChange { admitted, ..OverlayChange::default() });
    }
}

/// A server that speaks TCP and does not say frames: what it says is refused by name, and its connection reset.
struct Stranger {
    device: Local,
    tunnel: Tunnel,
    to: Ipv4Addr,
    tcp: Tcp,
    stream: Vec<u8>,
    /// Frames of the server's that were seen.
    heard: Vec<Vec<u8>>,
}

impl Stranger {
    fn new(device: Local, from: Ipv4Addr, to: Ipv4Addr) -> Stranger {
        let mut tunnel = Tunnel::new(TunnelConfig { server: from, mac: mac(102), mtu: 1500, reserved: 0 });
        tunnel.admit(to, mac(101));
        let tcp = Tcp::connect(&tcp(), sluicenet_proto::time::Instant::ZERO, 7, None);
        Stranger { device, tunnel, to, tcp, stream: Vec::new(), heard: Vec::new() }
    }

    fn say(&mut self, bytes: &[u8]) {
        let now = sluicenet_proto::time::Instant::ZERO;
        assert_eq!(self.tcp.send(&tcp(), now, bytes.len() as u64), bytes.len() as u64);
        self.stream.extend(bytes);
    }

    fn round(&mut self) {
        let now = sluicenet_proto::time::Instant::ZERO;
        while let Some(sent) = self.tcp.poll_transmit(&tcp(), now) {
            let at = sent.offset as usize;
            let fill = |into: &mut [u8]| into.copy_from_slice(&self.stream[at..][..into.len()]);
            let frame = self.tunnel.segment(self.to, PORT, sent.segment, false, CLASS, fill).unwrap();
            assert!(self.device.send(&frame).unwrap());
        }
        self.device.flush().unwrap();
        let heard = &mut self.heard;
        self.device.receive(&mut |frame| heard.push(frame.to_vec())).unwrap();
        for frame in self.heard.drain(..) {
            if let Ok(Some(heard)) = self.tunnel.find_segment(&frame, PORT) {
                self.tcp.receive(&tcp(), now, &heard.segment, false);
            }
        }
    }
}

#[test]
fn what_is_no_frame_resets_the_connection_and_what_is_no_servers_is_refused() {
    let address = network();
    let _controller = controller(&address);
    let (device, neighbour) = Local::pair().unwrap();
    let mut server = tunnelled(1, device, &address);
    let mut stranger = Stranger::new(neighbour, address(2), address(1));
    let start = Instant::now();
    let in_time = || assert!(start.elapsed().as_secs() < 60, "it did not come");
    let headers = [
        // Longer than any frame, shorter than any, of no class.
        ([0, 0, 0x10, 0, 0, 0, 0, 0], "tcp_tunnel_broken"),
        ([0xFF; 8], "tcp_tunnel_broken"),
        ([0, 0, 0, 13, 0, 0, 0, 0], "tcp_tunnel_broken"),
        ([0, 0, 0, 60, 8, 0, 0, 0], "tcp_tunnel_broken"),
        // Of no network, and one of a network from a station that nobody knows; the connection stays.
        ([0, 0, 0, 60, 3, 0, 0, 9], "unknown_vni"),
        ([0, 0, 0, 60, 3, 0, 2, 0xBC], "unresolved"),
    ];
    for (n, (header, counted)) in headers.into_iter().enumerate() {
        let before = server.own(counted);
        stranger.tcp = Tcp::connect(&tcp(), sluicenet_proto::time::Instant::ZERO, 1_000_000 * n as u32, None);
        stranger.stream.clear();
        while stranger.tcp.state() != State::Established {
            in_time();
            stranger.round();
            server.engine.round();
        }
        stranger.say(&header);
        stranger.say(&frame(50, 1, 0, 60));
        while server.own(counted) == before {
            in_time();
            stranger.round();
            server.engine.round();
        }
        if counted != "tcp_tunnel_broken" {
            stranger.tcp.abort();
        }
        let ended = n as u64 + 1;
        while stranger.tcp.state() != State::Closed || server.own("tcp_tunnel_ended") < ended {
            in_time();
            stranger.round();
            server.engine.round();
        }
    }
    assert!(server.clients.iter_mut().all(|client| client.receive(&mut [0; 2048]).unwrap().is_none()));
    // Not from a server of the overlay, and with a wrong checksum.
    let mut other = Tunnel::new(TunnelConfig { server: address(9), mac: mac(102), mtu: 1500, reserved: 0 });
    other.admit(address(1), mac(101));
    let syn = sluicenet_wire::tcp::Segment { flags: Flags::SYN, ..Default::default() };
    let of_other = other.segment(address(1), PORT, syn, false, CLASS, |_| {}).unwrap();
    let mut damaged = stranger.tunnel.segment(address(1), PORT, syn, false, CLASS, |_| {}).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    // A datagram of the tunnel that this server does not speak.
    let mut datagram = Vec::new();
    stranger.tunnel.encapsulate([&frame(3, 1, 0, 60), &[]], VNI, CLASS, address(1), &mut datagram).unwrap();
    for (frame, counted) in [(&of_other, "unknown_server"), (&damaged, "bad_crc"), (&datagram, "malformed")] {
        let before = server.own(counted);
        assert!(stranger.device.send(frame).unwrap());
        stranger.device.flush().unwrap();
        while server.own(counted) == before {
            in_time();
            server.engine.round();
        }
    }
    // Nonsense of every kind.
    let mut rng = unguessable().unwrap();
    let mut bytes = stream::HEADER_LEN;
    for _ in 0..20_000 {
        bytes = (bytes * 7 + 1) % 1_400;
        let segment = sluicenet_wire::tcp::Segment {
            seq: sluicenet_wire::seq::SeqNumber(rng.below(1 << 17) as u32),
            ack: sluicenet_wire::seq::SeqNumber(rng.next_u64() as u32),
            flags: Flags(rng.next_u64() as u8),
            window: rng.next_u64() as u16,
            len: bytes as u16,
            ..Default::default()
        };
        let mut frame = stranger.tunnel.segment(address(1), PORT, segment, false, CLASS, |into| into.fill(1)).unwrap();
        if rng.below(2) == 0 {
            let at = rng.below(frame.len() as u64) as usize;
            frame[at] ^= 1 << rng.below(8);
        }
        let _ = stranger.device.send(&frame).unwrap();
        stranger.device.flush().unwrap();
        server.engine.round();
        stranger.device.receive(&mut |_| {}).unwrap();
    }
    server.engine.ledger();
    assert!(server.own("tcp_tunnel_bytes_in") <= u64::from(tcp().max_buffer));
}

/// Who does not answer is given up: what was sent to it is dropped by name, and nobody waits for it any more.
#[test]
fn a_server_that_does_not_answer_holds_nobody_for_ever() {
    let address = network();
    let _controller = controller(&address);
    let devices = kept();
    let mut servers =
        [tunnelled(1, Kept(devices[0].clone()), &address), tunnelled(2, Kept(devices[1].clone()), &address)];
    ask_first(&mut servers);
    let [mut a, b] = servers;
    drop(b);
    let start = Instant::now();
    let mut sent = 0;
    while sent < 5_000 {
        assert!(start.elapsed().as_secs() < 60, "still held back after {sent} frames");
        sent += u64::from(a.send(0, &frame(1, 3, sent, 1_400)));
        a.engine.round();
        // Nobody is there.
        devices[1].lock().unwrap().receive(&mut |_| {}).unwrap();
    }
    let lost = a.own("tunnel_ended");
    println!("{lost} of {sent} frames were dropped");
    assert!(lost > 4_000);
    a.engine.ledger();
}
