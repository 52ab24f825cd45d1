//! Missing hosts, hosts that went away, no ports left, and frames that no host would send.

use crate::common::{Raw, Switch, at, errno, ip, mac, until};
use rustix::io::Errno;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Duration as Time;
use sluicenet_socket::{Config, Host};
use sluicenet_wire::arp;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::tcplight::{Flags, Repr};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn nobody_there() {
    let switch = Switch::start();
    let a = switch.host(1);
    let _b = switch.host(2);
    assert_eq!(errno(a.connect(at(2, 80))), Errno::CONNREFUSED);
    assert_eq!(errno(a.connect("192.0.2.1:80".parse().unwrap())), Errno::NETUNREACH);
    assert_eq!(errno(a.connect(at(2, 0))), Errno::ADDRNOTAVAIL);
    let start = Instant::now();
    assert_eq!(errno(a.connect(at(9, 80))), Errno::HOSTUNREACH);
    assert!(start.elapsed() >= Duration::from_secs(2), "asked more than once");
    // A host that answers for the address, and says nothing else.
    let c = switch.host_with(3, |config| config.connect_timeout = Duration::from_millis(300));
    let mut raw = Raw::new(&switch, 4);
    let answer = std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        until("asked for its address", || raw.client.receive(&mut bytes).unwrap().is_some());
        let mut reply = bytes[..60].to_vec();
        reply[..6].copy_from_slice(&bytes[6..12]);
        reply[6..12].copy_from_slice(&mac(4).0);
        reply[21] = 2;
        reply.copy_within(22..32, 32);
        reply[22..28].copy_from_slice(&mac(4).0);
        reply[28..32].copy_from_slice(&ip(4).octets());
        raw.send(&reply);
        raw
    });
    assert_eq!(errno(c.connect(at(4, 80))), Errno::TIMEDOUT);
    answer.join().unwrap();
}

#[test]
fn an_attempt_that_was_given_up_is_not_taken_for_the_next_one() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host(2));
    let listener = b.listen(80, 10).unwrap();
    // No host has that address: the stream waits, and is closed while it does; the next one gets its place.
    drop(a.connect_from(None, at(9, 80)).unwrap());
    let late = a.connect_from(None, at(8, 80)).unwrap();
    let other = a.connect(at(2, 80)).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    assert_eq!(peer, other.local_addr());
    // A host that claims all addresses.
    let mut raw = Raw::new(&switch, 9);
    let mut claim = vec![0; 60];
    claim[..6].copy_from_slice(&mac(1).0);
    claim[6..12].copy_from_slice(&mac(9).0);
    claim[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    claim[22..28].copy_from_slice(&mac(9).0);
    claim[28..32].copy_from_slice(&ip(9).octets());
    claim[32..38].copy_from_slice(&mac(1).0);
    claim[38..42].copy_from_slice(&ip(1).octets());
    raw.send(&claim);
    assert!(raw.receive(Duration::from_millis(500)).is_none(), "the stream to another address is not his");
    assert!(late.is_opening() && !other.ready().closed);
    drop(accepted);
}

#[test]
fn ports_run_out_and_are_not_given_twice() {
    let switch = Switch::start();
    let a = switch.host_with(1, |config| config.streams = 40_000);
    let b = switch.host(2);
    let listener = b.listen(80, 4096).unwrap();
    assert_eq!(errno(b.listen(80, 1)), Errno::ADDRINUSE);
    let first = a.connect_from(Some(700), at(2, 80)).unwrap();
    assert_eq!(errno(a.connect_from(Some(700), at(2, 80))), Errno::ADDRINUSE);
    assert_eq!(first.local_addr(), at(1, 700));
    // To no host, so that nothing happens to the streams.
    let mut streams = Vec::new();
    let why = loop {
        match a.connect_from(None, at(9, 80)) {
            Ok(stream) => streams.push(stream),
            Err(e) => break errno::<()>(Err(e)),
        }
    };
    assert_eq!((why, streams.len()), (Errno::ADDRNOTAVAIL, 28_232));
    drop((streams, listener));
    let few = switch.host_with(3, |config| config.streams = 5);
    let streams: Vec<_> = (0..5).map(|_| few.connect_from(None, at(9, 80)).unwrap()).collect();
    assert_eq!(errno(few.connect_from(None, at(9, 80))), Errno::NOBUFS);
    drop(streams);
    assert!(few.connect_from(None, at(9, 80)).is_ok(), "those that are closed count no more");
}

#[test]
fn a_killed_host_ends_its_streams_with_the_right_error() {
    let switch = Switch::start();
    let a = switch.host_with(1, |config| config.dead_after = Duration::from_millis(800));
    let b = switch.host_with(2, |config| config.dead_after = Duration::from_millis(800));
    let listener = b.listen(80, 10).unwrap();
    let reader = a.connect(at(2, 80)).unwrap();
    let writer = a.connect(at(2, 80)).unwrap();
    let served: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    (&served[0]).write_all(b"last words").unwrap();
    until("heard", || reader.readable_bytes() == 10);
    // Streams live for as long as both hosts are there, whether they send anything or not.
    std::thread::sleep(Duration::from_millis(2_000));
    assert!(!reader.ready().closed && !writer.ready().closed);
    switch.unplug(2);
    let mut words = [0; 10];
    (&reader).read_exact(&mut words).unwrap();
    assert_eq!(errno((&reader).read(&mut [0; 1])), Errno::TIMEDOUT);
    let failed = loop {
        if let Err(e) = (&writer).write(&[0; 1000]) {
            break errno::<()>(Err(e));
        }
    };
    assert!(failed == Errno::TIMEDOUT && a.counters().dead == 2, "{failed} {:?}", a.counters());
    drop(served);
}

#[test]
fn nobody_keeps_a_dead_host_alive_by_speaking_in_its_name() {
    let switch = Switch::start();
    let a = switch.host_with(1, |config| config.dead_after = Duration::from_millis(800));
    let b = switch.host(2);
    let listener = b.listen(80, 10).unwrap();
    let stream = a.connect(at(2, 80)).unwrap();
    let accepted = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(8)));
    switch.unplug(2);
    // ARP of station 2, as it says, in frames of station 3.
    let mut raw = Raw::new(&switch, 3);
    let mut claim = vec![0; 60];
    claim[..6].copy_from_slice(&mac(1).0);
    claim[6..12].copy_from_slice(&mac(3).0);
    claim[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    claim[22..28].copy_from_slice(&mac(2).0);
    claim[28..32].copy_from_slice(&ip(2).octets());
    claim[32..38].copy_from_slice(&mac(1).0);
    claim[38..42].copy_from_slice(&ip(1).octets());
    let before = a.counters().received;
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| (&stream).read(&mut [0; 1]));
        while !reader.is_finished() {
            raw.send(&claim);
            std::thread::sleep(Duration::from_millis(50));
        }
        reader.join().unwrap()
    });
    assert_eq!((errno(read), a.counters().dead), (Errno::TIMEDOUT, 1));
    assert!(a.counters().received >= before + 10, "it has heard them");
    drop(accepted);
}

#[test]
fn a_host_that_was_started_anew_does_not_have_the_streams_of_the_old_one() {
    let switch = Switch::start();
    let a = switch.host_with(1, |config| config.dead_after = Duration::from_secs(2));
    let b = switch.host(2);
    let listener = b.listen(80, 10).unwrap();
    let old = a.connect(at(2, 80)).unwrap();
    let served = listener.accept().unwrap();
    switch.unplug(2);
    let again = switch.host_with(2, |_| ());
    let listening = again.listen(80, 10).unwrap();
    assert_eq!(errno((&old).read(&mut [0; 1])), Errno::CONNRESET);
    let new = a.connect(at(2, 80)).unwrap();
    listening.accept().unwrap();
    drop((new, served, listener));
}

/// An overlay answers ARP for stations elsewhere, whether they live or not.
#[test]
fn a_stream_is_what_shows_that_a_host_lives_and_not_what_answers_arp() {
    let switch = Switch::start();
    let dead_after = Duration::from_millis(800);
    let (host, stream, mut raw, data) = open_with(&switch, |config| config.dead_after = dead_after);
    stream.set_read_timeout(Some(crate::common::PATIENCE));
    let mut claim = vec![0; 60];
    ethernet::Repr { destination: mac(1), source: mac(2), ethertype: EtherType::ARP }.emit(&mut claim);
    let said = arp::Repr {
        operation: arp::Operation::Reply,
        sender_mac: mac(2),
        sender_ip: ip(2),
        target_mac: mac(1),
        target_ip: ip(1),
    };
    said.emit(&mut claim[14..]);
    // As long as its questions on the stream are answered, the other end counts as alive.
    let start = Instant::now();
    let mut probes = 0;
    while start.elapsed() < 3 * dead_after {
        if let Some((asked, _)) = raw.receive(Duration::from_millis(20)) {
            assert_eq!((asked.flags, asked.connection), (Flags::default(), 77));
            let answer = raw.segment(1, Repr { flags: Flags::ANSWER, ..data }, &[]);
            raw.send(&answer);
            probes += 1;
        }
    }
    assert!(probes > 2 && !stream.ready().closed, "{probes}");
    // And it answers.
    let probe = raw.segment(1, Repr { limit: 0, ..data }, &[]);
    raw.send(&probe);
    while raw.receive(crate::common::PATIENCE).unwrap().0.flags != Flags::ANSWER {}
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| (&stream).read(&mut [0; 1]));
        while !reader.is_finished() {
            raw.send(&claim);
            while raw.receive(Duration::from_millis(10)).is_some() {}
        }
        reader.join().unwrap()
    });
    assert_eq!((errno(read), host.counters().dead), (Errno::TIMEDOUT, 1));
}

#[test]
fn a_host_announces_itself_with_its_address_if_it_answers_for_it() {
    let switch = Switch::start();
    let mut raw = Raw::new(&switch, 9);
    for (n, answers) in [(1, true), (2, false)] {
        let _host = switch.host_with(n, |config| config.answers = answers);
        // Once more a while later: the address's previous owner may not have been given up yet.
        for _ in 0..2 {
            let mut bytes = [0; 2048];
            let start = Instant::now();
            let len = loop {
                if let Some(len) = raw.client.receive(&mut bytes).unwrap() {
                    break len;
                }
                assert!(start.elapsed() < crate::common::PATIENCE);
                raw.publish();
            };
            let (header, packet) = ethernet::Repr::parse(&bytes[..len]).unwrap();
            let (said, _) = arp::Repr::parse(packet).unwrap();
            assert_eq!((header.destination, header.source, said.sender_mac), (MacAddress::BROADCAST, mac(n), mac(n)));
            let own = if answers { ip(n) } else { std::net::Ipv4Addr::UNSPECIFIED };
            assert_eq!((said.operation, said.sender_ip, said.target_ip), (arp::Operation::Request, own, ip(n)));
        }
    }
}

#[test]
fn the_largest_packet_is_what_the_switch_leaves_or_less() {
    let switch = Switch::start();
    let open = |n, told, wanted| {
        let mut port = switch.port(n, 1024);
        port.mtu = told;
        Host::open(port, Config { mtu: wanted, ..Config::new(ip(n), 24) })
    };
    let host = open(1, Some(1424), 1500).unwrap();
    assert_eq!(host.mtu(), 1424);
    let socket = host.bind_datagram(1).unwrap();
    assert_eq!(errno(socket.send_to(&[0; 1424 - 27], at(2, 1))), Errno::MSGSIZE);
    assert!(socket.send_to(&[0; 1424 - 28], at(2, 1)).is_ok());
    assert_eq!(open(2, Some(1424), 1000).unwrap().mtu(), 1000);
    assert_eq!(open(3, Some(9000), 1500).unwrap().mtu(), 1500);
    assert_eq!(open(4, None, 2034).unwrap().mtu(), 2034);
    assert!(open(5, Some(500), 1500).is_err());
}

#[test]
fn a_broken_port_ends_everything() {
    let switch = Switch::start();
    let port = switch.port(1, 1024);
    let memory = port.access.memory.try_clone().unwrap();
    let host = sluicenet_socket::Host::open(port, sluicenet_socket::Config::new(ip(1), 24)).unwrap();
    let listener = host.listen(80, 1).unwrap();
    let datagram = host.bind_datagram(80).unwrap();
    // A switch that reports more entries than there is room for.
    let region = sluicenet_dataplane::region::Region::open(memory).unwrap();
    let receive = 256 + 2 * sluicenet_dataplane::region::RingCells::bytes(1024);
    region.word(receive).store(100_000, std::sync::atomic::Ordering::Release);
    until("noticed", || errno(host.connect(at(2, 80))) == Errno::NETDOWN);
    assert!(listener.ready().readable && datagram.ready().readable && datagram.ready().writable);
    assert_eq!(errno(listener.accept()), Errno::NETDOWN);
    assert_eq!(errno(datagram.recv_from(&mut [0; 1])), Errno::NETDOWN);
    assert_eq!(errno(datagram.send_to(b"x", at(2, 80))), Errno::NETDOWN);
}

/// A connection of a raw program to a host, open.
fn open(switch: &Switch) -> (sluicenet_socket::Host, sluicenet_socket::TcplightStream, Raw, Repr) {
    open_with(switch, |_| ())
}

fn open_with(
    switch: &Switch,
    change: impl FnOnce(&mut Config),
) -> (sluicenet_socket::Host, sluicenet_socket::TcplightStream, Raw, Repr) {
    let host = switch.host_with(1, change);
    let listener = host.listen(80, 1).unwrap();
    let mut raw = Raw::new(switch, 2);
    let (flags, connection) = (Flags::SYN, 77);
    let syn = Repr { source_port: 5, destination_port: 80, flags, connection, offset: 0, limit: 100_000 };
    let frame = raw.segment(1, syn, &[]);
    raw.send(&frame);
    let (answer, _) = raw.receive(crate::common::PATIENCE).unwrap();
    assert_eq!((answer.flags, answer.connection, answer.limit), (Flags::SYN | Flags::ANSWER, 77, 1 << 20));
    let (stream, peer) = listener.accept().unwrap();
    assert_eq!(peer, at(2, 5));
    (host, stream, raw, Repr { flags: Flags::default(), ..syn })
}

/// A name, the change of a good segment, its bytes, and the error that the reader sees.
type Forged = (&'static str, fn(Repr) -> Repr, usize, Option<Errno>);

#[test]
fn segments_that_may_not_be() {
    let switch = Switch::start();
    let cases: [Forged; 6] = [
        ("another connection's", |data| Repr { connection: 78, ..data }, 10, None),
        ("from another port", |data| Repr { source_port: 6, ..data }, 10, None),
        ("a gap", |data| Repr { offset: 11, ..data }, 10, Some(Errno::PROTO)),
        ("before what was", |data| Repr { offset: u32::MAX - 20, ..data }, 10, None),
        ("a reset", |data| Repr { flags: Flags::RESET, ..data }, 0, Some(Errno::CONNRESET)),
        ("a reset of another connection", |data| Repr { flags: Flags::RESET, connection: 1, ..data }, 0, None),
    ];
    for (what, forge, len, expected) in cases {
        let (host, stream, mut raw, data) = open(&switch);
        stream.set_nonblocking(true);
        let before = host.counters().received;
        let forged = raw.segment(1, forge(data), &vec![1; len]);
        let good = raw.segment(1, data, b"good");
        raw.send(&forged);
        raw.send(&good);
        until("taken in", || {
            stream.ready();
            host.counters().received >= before + 2
        });
        let read = (&stream).read(&mut [0; 100]);
        match expected {
            Some(error) => assert_eq!(errno(read), error, "{what}"),
            None => assert_eq!(read.unwrap(), 4, "{what}"),
        }
        drop((host, stream));
        switch.unplug(1);
        switch.unplug(2);
        drop(raw);
        // Ports are free again when the switch has given all back.
        until("gone", || switch_is_free(&switch));
    }
}

fn switch_is_free(switch: &Switch) -> bool {
    switch.vacant(1) && switch.vacant(2)
}

#[test]
fn more_than_is_allowed_ends_it() {
    let switch = Switch::start();
    let (_host, stream, mut raw, data) = open(&switch);
    let mut offset = 0;
    while offset <= 1 << 20 {
        let frame = raw.segment(1, Repr { offset, ..data }, &[0; 1400]);
        raw.send(&frame);
        offset += 1400;
    }
    until("ended", || stream.ready().closed);
    let mut bytes = Vec::new();
    assert_eq!(errno((&stream).read_to_end(&mut bytes)), Errno::PROTO);
    assert!(bytes.len() <= 1 << 20, "{} bytes", bytes.len());
    let reset = std::iter::from_fn(|| raw.receive(Duration::from_secs(5))).find(|(s, _)| s.flags == Flags::RESET);
    assert_eq!(reset.unwrap().0.connection, 77);
}

#[test]
fn a_flood_of_connections_is_bounded() {
    let switch = Switch::start();
    let host = switch.host_with(1, |config| config.streams = 300);
    let listener = host.listen(80, 200).unwrap();
    let _other = host.listen(81, 200).unwrap();
    let mut raw = Raw::new(&switch, 2);
    let (mut answers, mut refusals) = (0, 0);
    for i in 0..2_000u16 {
        let header = Repr {
            source_port: i,
            destination_port: 80 + i % 2,
            flags: Flags::SYN,
            connection: i.into(),
            offset: 0,
            limit: 1,
        };
        let frame = raw.segment(1, header, &[]);
        raw.send(&frame);
        while let Some((answer, _)) = raw.receive(Duration::ZERO) {
            answers += u32::from(answer.flags.contains(Flags::ANSWER));
            refusals += u32::from(answer.flags.contains(Flags::RESET));
        }
    }
    while answers + refusals < 2_000
        && let Some((answer, _)) = raw.receive(Duration::from_secs(5))
    {
        answers += u32::from(answer.flags.contains(Flags::ANSWER));
        refusals += u32::from(answer.flags.contains(Flags::RESET));
    }
    assert_eq!((answers, host.counters().overflows), (300, 1_700));
    // Refusals that wait for their destination are bounded, too: some are lost if this thread does not read for a while.
    assert!((1..=1_700).contains(&refusals), "{refusals}");
    // A peer that resets its waiting attempts makes room.
    for i in (0..2_000u16).step_by(2) {
        let header =
            Repr { source_port: i, destination_port: 80, flags: Flags::RESET, connection: i.into(), ..Repr::default() };
        let frame = raw.segment(1, header, &[]);
        raw.send(&frame);
    }
    let third = switch.host(3);
    let start = Instant::now();
    while third.connect(at(1, 80)).is_err() {
        assert!(start.elapsed() < crate::common::PATIENCE);
    }
    listener.accept().unwrap();
}

#[test]
fn garbage_is_counted_and_nothing_else() {
    let switch = Switch::start();
    let (host, stream, mut raw, data) = open(&switch);
    let mut random = Rng::from_words(&[3]);
    let good = raw.segment(1, data, &[5; 200]);
    for _ in 0..20_000 {
        let mut frame = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = 12 + random.below(frame.len() as u64 - 12) as usize;
            frame[at] = random.next_u64() as u8;
        }
        // Never a segment of the stream: of one that is, something is believed.
        frame[45] = good[45] ^ 0x80;
        frame.truncate(14 + random.below(frame.len() as u64 - 13) as usize);
        raw.send(&frame);
        while raw.receive(Duration::ZERO).is_some() {}
    }
    raw.send(&good);
    let mut bytes = [0; 200];
    (&stream).read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [5; 200]);
    let counters = host.counters();
    assert!(counters.malformed > 1_000 && counters.elsewhere > 0 && counters.received > 20_000, "{counters:?}");
}

#[test]
fn the_watchdog_does_not_find_a_host_whose_program_sleeps() {
    let config = ValeConfig {
        watchdog: WatchdogConfig {
            detection_time: Time::from_ms(100),
            isolation_time: Time::from_ms(100),
            ..WatchdogConfig::default()
        },
        ..ValeConfig::default()
    };
    let switch = Switch::with(config);
    let (a, b) = (switch.host(1), switch.host(2));
    let listener = b.listen(80, 1).unwrap();
    let stream = a.connect(at(2, 80)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(600)));
    let mut sent = 0;
    while let Ok(n) = (&stream).write(&[3; 10_000]) {
        sent += n;
    }
    let mut bytes = vec![0; sent];
    (&accepted).read_exact(&mut bytes).unwrap();
    assert_eq!((sent, switch.dropped()), (1 << 20, 0));
}
