//! Servers of an overlay, their controller, and what waits for it.

use super::credits::{of_one_class, patient};
use super::zbridge::channel;
use super::*;
use sluicenet_dataplane::port::{Offload, Port};
use sluicenet_wire::checksum::checksum;

#[test]
fn over_the_overlay_an_overload_pauses_the_link_and_loses_nothing() {
    let address = network();
    let mut controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [overlay(1, a, &address), overlay(2, b, &address)];
    ask_first(&mut servers);
    overload(&mut servers);
    assert_eq!(servers[0].own("encapsulated"), servers[1].own("decapsulated"));
    // A frame that does not fit is answered.
    servers[0].send(0, &frame(1, 3, 0, 1_500 + 14));
    is_told(&mut servers, 1446);
    assert_eq!(servers[0].own("too_big"), 1);
    // The controller dies: who is known is still reached, and what is for who is not waits until somebody knows.
    assert_eq!(controller.stop(), 4);
    let [unresolved, silent] = ["unresolved", "cache_silent"].map(|name| servers[0].own(name));
    servers[0].send(0, &frame(1, 3, 77, 100));
    servers[0].send(1, &frame(2, 99, 0, 100));
    until(&mut servers, |[_, b]| b.number(0) == Some(77));
    until(&mut servers, |[a, _]| a.own("cache_silent") > silent);
    assert_eq!(servers[0].own("unresolved"), unresolved);
    let _controller = self::controller(&address);
    until(&mut servers, |[a, _]| a.own("unresolved") == unresolved + 1);
    assert!(servers[0].own("parked_on") > 0);
    for server in &mut servers {
        server.engine.ledger();
    }
}

/// The first frames from a station come when nobody can be asked about it: they wait in nobody's way, and arrive.
#[test]
fn what_comes_from_who_is_not_known_waits_for_a_silent_controller() {
    const MANY: u64 = 200;
    let address = network();
    let mut controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [overlay(1, a, &address), overlay(2, b, &address)];
    ask_first(&mut servers);
    // One of them has been heard.
    servers[0].send(1, &frame(2, 4, 0, 100));
    until(&mut servers, |[_, b]| b.number(1) == Some(0));
    let unresolved = servers.each_ref().map(|s| s.own("unresolved"));
    let paused = controller.pause().unwrap();
    let mut sent = 0;
    until(&mut servers, |[a, b]| {
        while sent < MANY && a.send(0, &frame(1, 3, sent, 1_000)) {
            sent += 1;
        }
        sent == MANY && b.own("parked") >= MANY && b.own("cache_silent") > 0
    });
    servers[0].send(1, &frame(2, 4, 1, 100));
    until(&mut servers, |[_, b]| b.number(1) == Some(1));
    assert_eq!(servers[1].number(0), None);
    let _controller = Running::run(paused);
    until_all(&mut servers, 0, MANY);
    assert_eq!(servers.each_ref().map(|s| s.own("unresolved")), unresolved);
    for server in &mut servers {
        server.engine.ledger();
        assert_eq!(server.engine.queued(), 0);
    }
}

/// A station is sent to before the controller can be heard, and by more than may wait in the overlay: it gets all of it.
#[test]
fn what_is_sent_before_the_controller_is_there_arrives() {
    let address = network();
    let (a, b) = Local::pair().unwrap();
    let mut servers = [overlay(1, a, &address), overlay(2, b, &address)];
    let mut sent = 0;
    let start = Instant::now();
    // Twice as long as the controller may say nothing before it counts as silent.
    while start.elapsed().as_millis() < 100 || sent <= 256 {
        assert!(start.elapsed().as_secs() < 60, "{sent}");
        sent += u64::from(servers[0].send(0, &frame(1, 3, sent, 100)));
        servers.iter_mut().for_each(|server| _ = server.engine.round());
    }
    // The receiver's server registers first: a question about a station that nobody has registered is answered with no.
    let mut daemon = daemon(&address);
    let start = Instant::now();
    while daemon.stations() < 2 {
        assert!(start.elapsed().as_secs() < 60, "{} stations", daemon.stations());
        servers[1].engine.round();
        daemon.round().unwrap();
    }
    let _controller = Running::run(daemon);
    until_all(&mut servers, 0, sent);
    assert_eq!(servers.each_ref().map(|s| s.own("unresolved")), [0, 0]);
    for server in &mut servers {
        server.engine.ledger();
    }
}

/// Those that are sent while nobody is registered are lost.
#[test]
fn switches_that_sleep_wake_for_frames_of_the_link_and_answers_of_the_controller() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    between_sleepers([overlay(1, a, &address), overlay(2, b, &address)], true);
}

/// The same datagram, which a router may cut.
fn may_be_cut(mut frame: Vec<u8>) -> Vec<u8> {
    frame[20] = 0;
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A stack sends large datagrams to a station of the other server: each arrives in two fragments, with all its bytes and in
/// order, and nothing is lost.
fn large_datagrams_are_cut(stack: impl Fn() -> Stack) {
    const MANY: u64 = 300;
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers =
        [overlay_with(1, a, &address, of_one_class, stack()), overlay_with(2, b, &address, of_one_class, stack())];
    ask_first(&mut servers);
    let (mut sent, mut seen) = (0, 0);
    let mut first: Option<Vec<u8>> = None;
    until(&mut servers, |[a, b]| {
        let mut datagram = may_be_cut(frame(1, 3, sent, 1_800));
        (100..1_800).for_each(|at| datagram[at] = (at as u64 + sent) as u8);
        sent += u64::from(sent < MANY && a.send(0, &datagram));
        while let Some(fragment) = b.receive(0) {
            if is_request(&fragment) {
                continue;
            }
            assert!(fragment.len() <= 14 + 1_446);
            let len = usize::from(u16::from_be_bytes([fragment[16], fragment[17]]));
            let payload = &fragment[34..14 + len];
            let Some(start) = first.take() else {
                assert_eq!(u16::from_be_bytes([fragment[20], fragment[21]]), 0x2000, "more follow");
                first = Some(payload.to_vec());
                continue;
            };
            assert_eq!(usize::from(u16::from_be_bytes([fragment[20], fragment[21]])) * 8, start.len());
            let joined = [&start, payload].concat();
            assert_eq!(joined.len(), 1_800 - 34);
            assert_eq!(u64::from_le_bytes(joined[..8].try_into().unwrap()), seen);
            assert!((100..1_800).all(|at| joined[at - 34] == (at as u64 + seen) as u8));
            seen += 1;
        }
        seen == MANY
    });
    assert_eq!((servers[0].own("fragmented"), servers[0].own("fragments")), (MANY, 2 * MANY));
    assert_eq!(servers[0].own("too_big"), 0);
    for server in &mut servers {
        server.engine.ledger();
    }
}

#[test]
fn large_datagrams_are_cut_with_and_without_credits_numbers_and_streams() {
    large_datagrams_are_cut(Stack::default);
    let credits = || Some(patient());
    large_datagrams_are_cut(|| Stack { credits: credits(), ..Stack::default() });
    large_datagrams_are_cut(|| Stack { credits: credits(), zbridge: Some(channel()), ..Stack::default() });
    large_datagrams_are_cut(|| Stack { tcp_tunnels: true, credits: credits(), ..Stack::default() });
}

#[test]
fn a_checksum_is_finished_before_the_uplink_gets_a_frame() {
    let address = network();
    let (a, _) = Local::pair().unwrap();
    let tunnel = TunnelConfig { server: address(1), mac: mac(101), mtu: 1500, reserved: 0 };
    let vtep = Vtep::new(VtepConfig::new(tunnel), Key::new(&[1; 32]), unguessable().unwrap(), first_request());
    let to = ControllerLink::open(SocketAddrV4::new(address(1), 0), SocketAddrV4::new(address(3), UDP_PORT)).unwrap();
    let uplink = Uplink::overlay_of(a, link(1), vtep, to, Queues::default());
    let udp = Offload { checksum: Some((34, 6)), ..Offload::NONE };
    assert!(!uplink.takes_offload(&udp), "a fragment of the datagram could not be summed any more");
}

fn reply(request: &[u8], from: usize) -> Vec<u8> {
    let (asked, _) = arp::Repr::parse(&request[14..]).unwrap();
    let mut frame = vec![0; 60];
    ethernet::Repr { destination: asked.sender_mac, source: mac(from), ethertype: EtherType::ARP }.emit(&mut frame);
    let message = arp::Repr {
        operation: Operation::Reply,
        sender_mac: mac(from),
        sender_ip: ip(from),
        target_mac: asked.sender_mac,
        target_ip: asked.sender_ip,
    };
    message.emit(&mut frame[14..]);
    frame
}

/// A station that never spoke is found by its reply. A frame for all stations then reaches each station of both servers once.
fn a_silent_station_is_found(stack: impl Fn() -> Stack) {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers =
        [overlay_with(1, a, &address, of_one_class, stack()), overlay_with(2, b, &address, of_one_class, stack())];
    // The first port of server 2 is anybody's.
    let engine = &mut servers[1].engine;
    engine.announce(DOMAIN, mac(3).0, ip(3), false);
    engine.forget(0);
    engine.set_access(0, Access { guard: None, ..of_one_class(3) });
    let mut asked = None::<Instant>;
    until(&mut servers, |[a, b]| {
        // As a kernel repeats it.
        if asked.is_none_or(|at| at.elapsed().as_millis() > 1_000) {
            asked = Some(Instant::now());
            a.send(0, &request(1, 3));
        }
        if let Some(request) = b.receive(0).filter(|frame| is_request(frame)) {
            b.send(0, &reply(&request, 3));
        }
        let told = a.receive(0).filter(|frame| frame[..6] == mac(1).0 && frame[12..14] == [8, 6]);
        told.is_some_and(|told| arp::Repr::parse(&told[14..]).unwrap().0.sender_mac == mac(3))
    });
    for n in 0..100 {
        until(&mut servers, |[a, _]| a.send(0, &frame(1, 3, n, 100)));
    }
    until_all(&mut servers, 0, 100);
    let mut for_all = frame(1, 3, 4_711, 100);
    for_all[..6].fill(0xFF);
    servers[0].send(0, &for_all);
    let mut heard = [0; 4];
    until(&mut servers, |servers| {
        for (n, k) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            heard[2 * n + k] += u32::from(servers[n].number(k) == Some(4_711));
        }
        heard[2..] == [1, 1]
    });
    (0..1_000).for_each(|_| servers.iter_mut().for_each(|server| _ = server.engine.round()));
    assert_eq!(heard, [0, 1, 1, 1], "not its sender");
    assert!(servers.iter_mut().all(|server| server.number(0).is_none() && server.number(1).is_none()), "once");
    for server in &mut servers {
        server.engine.ledger();
    }
}

#[test]
fn a_silent_station_is_found_with_and_without_credits_numbers_and_streams() {
    a_silent_station_is_found(Stack::default);
    let credits = || Some(patient());
    a_silent_station_is_found(|| Stack { credits: credits(), ..Stack::default() });
    a_silent_station_is_found(|| Stack { credits: credits(), zbridge: Some(channel()), ..Stack::default() });
    a_silent_station_is_found(|| Stack { tcp_tunnels: true, credits: credits(), ..Stack::default() });
}
