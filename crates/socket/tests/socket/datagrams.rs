//! Datagrams that wait where there is no room.

use crate::common::{Raw, Switch, at, errno, until};
use rustix::io::Errno;
use sluicenet_socket::LightDatagram;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

#[test]
fn none_is_lost_however_slow_the_reader() {
    const DATAGRAMS: u64 = 50_000;
    let switch = Switch::start();
    let (a, b, c) = (
        switch.host(1),
        switch.host(2),
        switch.host_with(3, |config| {
            config.datagram_buffer = 20_000;
            config.stall = None;
        }),
    );
    let reader = c.bind_datagram(53).unwrap();
    std::thread::scope(|scope| {
        for host in [&a, &b] {
            scope.spawn(move || {
                let socket = host.bind_datagram(0).unwrap();
                for i in 0..DATAGRAMS {
                    let bytes = vec![i as u8; 8 + (i % 1_400) as usize];
                    let mut bytes = bytes;
                    bytes[..8].copy_from_slice(&i.to_le_bytes());
                    assert_eq!(socket.send_to(&bytes, at(3, 53)).unwrap(), bytes.len());
                }
            });
        }
        let mut next = std::collections::HashMap::new();
        let mut bytes = [0; 2_000];
        for n in 0..2 * DATAGRAMS {
            let (len, from) = reader.recv_from(&mut bytes).unwrap();
            let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let expected = next.entry(from).or_insert(0);
            assert_eq!((number, len), (*expected, 8 + (number % 1_400) as usize), "from {from}");
            *expected += 1;
            if n % 5_000 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        assert_eq!(next.len(), 2);
    });
    assert_eq!((switch.dropped(), c.counters().stalled), (0, 0));
}

/// Sends numbered datagrams to a socket that does not read, until none goes any more for longer than the receiver's interval
/// of looks; returns the number sent.
fn until_full(socket: &LightDatagram) -> u64 {
    let (mut sent, mut since) = (0u64, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        match socket.send_to(&[&sent.to_le_bytes()[..], &[0; 900]].concat(), at(2, 1)) {
            Ok(_) => (sent, since) = (sent + 1, Instant::now()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    sent
}

/// Of datagrams with a number for each, `sent` are under way: the rest is sent while all of them are read, in order.
fn all_arrive(socket: &LightDatagram, slow: &LightDatagram, sent: u64, upto: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in sent..upto {
                socket.send_to(&[&n.to_le_bytes()[..], &[0; 900]].concat(), at(2, 1)).unwrap();
            }
        });
        for n in 0..upto {
            let mut number = [0; 8];
            slow.recv_from(&mut number).unwrap();
            assert_eq!(u64::from_le_bytes(number), n);
        }
    });
}

#[test]
fn a_full_socket_is_in_nobodys_way_but_its_senders() {
    let switch = Switch::start();
    let a = switch.host(1);
    let b = switch.host_with(2, |config| {
        config.datagram_buffer = 100_000;
        config.stall = None;
    });
    let (slow, other) = (b.bind_datagram(1).unwrap(), b.bind_datagram(2).unwrap());
    let listener = b.listen(80, 1).unwrap();
    let socket = a.bind_datagram(0).unwrap();
    socket.set_nonblocking(true);
    let sent = until_full(&socket);
    // How many it took before the switch heard that its socket is full is a matter of the machine: its port's buffers bound
    // them.
    assert!(b.counters().received < sent, "some are with the sender: {:?} of {sent}", b.counters());
    // A sender that has to ask for the address first.
    let c = switch.host(3);
    let said = c.bind_datagram(0).unwrap();
    said.send_to(b"beside", at(2, 2)).unwrap();
    assert_eq!(other.recv_from(&mut [0; 10]).unwrap().0, 6);
    let stream = c.connect(at(2, 80)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let bytes = vec![7; 1 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        (&accepted).read_exact(&mut got).unwrap();
        assert!(got == bytes);
    });
    (&accepted).write_all(b"back").unwrap();
    (&stream).read_exact(&mut [0; 4]).unwrap();
    // All datagrams are there, in order, and more once they are read.
    socket.set_nonblocking(false);
    all_arrive(&socket, &slow, sent, sent + 1_000);
    assert_eq!((switch.dropped(), b.counters().stalled), (0, 0));
}

#[test]
fn who_waits_for_one_receiver_reaches_another() {
    let switch = Switch::start();
    let (a, c) = (switch.host(1), switch.host(3));
    let b = switch.host_with(2, |config| {
        config.datagram_buffer = 100_000;
        config.stall = None;
    });
    let (slow, other) = (b.bind_datagram(1).unwrap(), c.bind_datagram(1).unwrap());
    let listener = c.listen(80, 1).unwrap();
    let socket = a.bind_datagram(0).unwrap();
    socket.set_nonblocking(true);
    let sent = until_full(&socket);
    assert_eq!(errno(socket.send_to(b"one more", at(2, 1))), Errno::AGAIN);
    // Buffers in use by one receiving host are not shown to another socket as a lack of room.
    let beside = a.bind_datagram(0).unwrap();
    for n in 0..10_000u64 {
        beside.send_to(&n.to_le_bytes(), at(3, 1)).unwrap();
        let mut number = [0; 8];
        other.recv_from(&mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), n);
    }
    let stream = a.connect(at(3, 80)).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    let bytes = vec![7; 4 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&bytes).unwrap());
        let mut got = vec![0; bytes.len()];
        (&accepted).read_exact(&mut got).unwrap();
        assert!(got == bytes);
    });
    assert_eq!(errno(socket.send_to(b"one more", at(2, 1))), Errno::AGAIN);
    // A waiting sender is woken once the receiver reads.
    socket.set_nonblocking(false);
    all_arrive(&socket, &slow, sent, sent + 2_000);
    assert_eq!((switch.dropped(), b.counters().stalled), (0, 0));
}

#[test]
fn a_socket_that_nobody_reads_holds_its_senders_back_for_so_long_and_no_longer() {
    let switch = Switch::start();
    let a = switch.host(1);
    let b = switch.host_with(2, |config| {
        config.datagram_buffer = 10_000;
        config.stall = Some(Duration::from_millis(300));
    });
    let (stuck, other) = (b.bind_datagram(1).unwrap(), b.bind_datagram(2).unwrap());
    let socket = a.bind_datagram(0).unwrap();
    let sent = 100;
    for _ in 0..sent {
        socket.send_to(&[0; 936], at(2, 1)).unwrap();
    }
    let start = Instant::now();
    socket.send_to(b"behind", at(2, 2)).unwrap();
    assert_eq!(other.recv_from(&mut [0; 10]).unwrap(), (6, socket.local_addr()));
    until("lost", || b.counters().stalled == sent - 10);
    assert!(start.elapsed() >= Duration::from_millis(200), "held back first: {:?}", start.elapsed());
    // The datagrams that had room are there, and once the program reads, the socket loses nothing again.
    for _ in 0..10 {
        stuck.recv_from(&mut [0; 1]).unwrap();
    }
    for i in 0..50u8 {
        socket.send_to(&[i], at(2, 1)).unwrap();
    }
    for i in 0..50u8 {
        let mut byte = [0];
        stuck.recv_from(&mut byte).unwrap();
        assert_eq!(byte, [i]);
    }
    assert_eq!(switch.dropped(), 0);
}

#[test]
fn what_waits_for_a_socket_that_is_closed_is_for_the_next_one_at_its_port() {
    const DATAGRAMS: u64 = 60;
    let switch = Switch::start();
    let mut raw = Raw::new(&switch, 1);
    let b = switch.host_with(2, |config| {
        config.datagram_buffer = 1_000;
        config.stall = None;
    });
    let first = b.bind_datagram(1).unwrap();
    // Beside the one that is connected, another one has its port.
    first.connect(Some(at(1, 5)));
    let second = b.bind_datagram(1).unwrap();
    for n in 0..DATAGRAMS {
        let frame = raw.datagram(2, 5, 1, &n.to_le_bytes());
        assert!(raw.client.send(&frame).unwrap());
    }
    // All at once: the socket cannot report in time that it is full.
    raw.publish();
    until("there", || b.counters().received == DATAGRAMS);
    let fits = 1_000 / (8 + 64);
    drop(first);
    for n in fits..DATAGRAMS {
        let mut number = [0; 8];
        second.recv_from(&mut number).unwrap();
        assert_eq!(u64::from_le_bytes(number), n);
    }
    assert_eq!((switch.dropped(), b.counters().no_socket), (0, 0));
}

#[test]
fn connected_and_to_itself_and_to_nobody() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host(2));
    let (x, y, z) = (a.bind_datagram(5).unwrap(), b.bind_datagram(6).unwrap(), b.bind_datagram(0).unwrap());
    assert_eq!(errno(a.bind_datagram(5)), Errno::ADDRINUSE);
    assert_eq!(errno(x.send(None, &[])), Errno::DESTADDRREQ);
    x.connect(Some(at(2, 6)));
    z.send_to(b"no", at(1, 5)).unwrap();
    y.send_to(b"yes", at(1, 5)).unwrap();
    let mut bytes = [0; 3];
    assert_eq!(x.recv_from(&mut bytes).unwrap(), (3, at(2, 6)));
    assert_eq!((&bytes, a.counters().no_socket), (b"yes", 1));
    x.send(None, &[std::io::IoSlice::new(b"back")]).unwrap();
    until("there", || y.next_len() == Some(4));
    assert_eq!(y.recv_from(&mut bytes).unwrap().0, 4, "its whole length, though cut off");
    y.send_to(b"me", at(2, 6)).unwrap();
    assert_eq!(y.recv_from(&mut bytes).unwrap(), (2, at(2, 6)));
    y.set_nonblocking(true);
    assert_eq!(errno(y.recv_from(&mut bytes)), Errno::AGAIN);
    assert_eq!(errno(y.send_to(&[0; 1_473], at(1, 5))), Errno::MSGSIZE);
    y.send_to(&[0; 1_472], at(1, 9)).unwrap();
    assert_eq!(errno(y.send_to(b"x", "192.0.2.1:1".parse().unwrap())), Errno::NETUNREACH);
    // An unused address is an error of the next call.
    y.send_to(b"x", at(9, 1)).unwrap();
    until("given up", || y.ready().error);
    assert_eq!(errno(y.send_to(b"x", at(1, 5))), Errno::HOSTUNREACH);
    until("counted", || a.counters().no_socket == 2);
}

#[test]
fn a_socket_for_each_client_at_one_port() {
    let switch = Switch::start();
    let (server, client) = (switch.host(1), switch.host(2));
    let (a, b) = (client.bind_datagram(0).unwrap(), client.bind_datagram(0).unwrap());
    let first = server.bind_datagram(69).unwrap();
    assert_eq!(errno(server.bind_datagram(69)), Errno::ADDRINUSE);
    first.connect(Some(a.local_addr()));
    let rest = server.bind_datagram(69).unwrap();
    for (socket, expected) in [(&a, &first), (&b, &rest)] {
        socket.send_to(b"to mine", at(1, 69)).unwrap();
        assert_eq!(expected.recv_from(&mut [0; 10]).unwrap(), (7, socket.local_addr()));
    }
    drop(first);
    a.send_to(b"to any", at(1, 69)).unwrap();
    assert_eq!(rest.recv_from(&mut [0; 10]).unwrap().0, 6);
}

#[test]
fn a_full_socket_of_the_host_itself_holds_its_sender_back() {
    let switch = Switch::start();
    let host = switch.host_with(1, |config| config.datagram_buffer = 10_000);
    let (x, y) = (host.bind_datagram(5).unwrap(), host.bind_datagram(6).unwrap());
    x.set_nonblocking(true);
    let mut sent = 0;
    while x.send_to(&[0; 936], at(1, 6)).is_ok() {
        sent += 1;
    }
    assert!(sent == 10 && !x.ready().writable);
    y.recv_from(&mut [0; 1]).unwrap();
    assert!(x.ready().writable && x.send_to(&[0; 936], at(1, 6)).is_ok());
    y.shutdown_read();
    assert_eq!(y.recv_from(&mut [0; 1]).unwrap().0, 0);
    drop(y);
    assert!(x.send_to(b"to nobody", at(1, 6)).is_ok() && host.counters().no_socket == 1);
}
