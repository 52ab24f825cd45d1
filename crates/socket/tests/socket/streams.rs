//! Streams between hosts at a switch: whole and in order, half closed, many, not blocking, and with readers that stop.

use crate::common::{PATIENCE, Pattern, Switch, at, errno, until};
use rustix::io::Errno;
use sluicenet_socket::{Ready, TcplightStream};
use std::io::{IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A stream between two hosts, opened and accepted.
fn pair(switch: &Switch) -> (TcplightStream, TcplightStream) {
    let (a, b) = (switch.host(1), switch.host(2));
    let listener = b.listen(80, 1).unwrap();
    let opened = a.connect(at(2, 80)).unwrap();
    let (accepted, peer) = listener.accept().unwrap();
    assert_eq!((peer, accepted.local_addr()), (opened.local_addr(), at(2, 80)));
    (opened, accepted)
}

/// Sends `total` bytes in pieces of any size, and has the other end check them.
fn send_and_check(from: &TcplightStream, to: &TcplightStream, total: u64) {
    std::thread::scope(|scope| {
        let mut from = from;
        scope.spawn(move || {
            let (mut pattern, mut left, mut len) = (Pattern::new(1), total, 8);
            let mut bytes = vec![0; 200_000];
            while left > 0 {
                len = (len * 7 + 8) % 199_992 / 8 * 8 + 8;
                let part = &mut bytes[..len.min(left as usize)];
                pattern.fill(part);
                from.write_all(part).unwrap();
                left -= part.len() as u64;
            }
            from.shutdown(Shutdown::Write).unwrap();
        });
        let (mut pattern, mut got) = (Pattern::new(1), 0);
        let (mut bytes, mut expected) = (vec![0; 160_000], vec![0; 160_000]);
        let mut to = to;
        loop {
            // Whole words, as the pattern is made of them.
            let mut len = 0;
            while len < bytes.len() {
                match to.read(&mut bytes[len..]).unwrap() {
                    0 => break,
                    n => len += n,
                }
            }
            if len == 0 {
                break;
            }
            pattern.fill(&mut expected[..len]);
            assert!(bytes[..len] == expected[..len], "other bytes within {len} behind {got}");
            got += len as u64;
        }
        assert_eq!(got, total);
    });
}

#[test]
fn what_is_sent_arrives_whole_and_in_order() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    send_and_check(&a, &b, 50_000_000);
    send_and_check(&b, &a, 5_000_003);
    assert_eq!(switch.dropped(), 0);
}

/// `cargo test -p sluicenet-socket --release --test socket -- --ignored long_`.
#[test]
#[ignore = "long: a gigabyte takes a while where tests share two cores"]
fn long_a_gigabyte_arrives_whole() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    send_and_check(&a, &b, 1 << 30);
    assert_eq!(switch.dropped(), 0);
}

#[test]
fn half_of_it_can_be_closed() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    (&a).write_all(b"question").unwrap();
    a.shutdown(Shutdown::Write).unwrap();
    assert_eq!(errno((&a).write(b"more")), Errno::PIPE);
    let mut question = Vec::new();
    (&b).read_to_end(&mut question).unwrap();
    (&b).write_all(b"answer").unwrap();
    drop(b);
    let mut answer = Vec::new();
    (&a).read_to_end(&mut answer).unwrap();
    assert_eq!((&question[..], &answer[..]), (&b"question"[..], &b"answer"[..]));
    until("over", || a.ready().closed);
    assert_eq!((a.ready().error, (&a).read(&mut [0; 1]).unwrap()), (false, 0), "an end, and no error");
    assert_eq!(errno(a.shutdown(Shutdown::Write).and_then(|()| (&a).write(b"x"))), Errno::PIPE);
}

#[test]
fn who_closes_with_bytes_unread_resets_it() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    (&a).write_all(b"unread").unwrap();
    until("there", || b.readable_bytes() == 6);
    assert_eq!(b.peek(&mut [std::io::IoSliceMut::new(&mut [0; 3])]).unwrap(), 3);
    assert_eq!(b.readable_bytes(), 6, "what was only looked at stays");
    drop(b);
    assert_eq!(errno((&a).read(&mut [0; 1])), Errno::CONNRESET);
    assert_eq!((&a).read(&mut [0; 1]).unwrap(), 0, "said once");
    assert_eq!(errno((&a).write(b"x")), Errno::PIPE);
    // A stream that is given up, and one that is written to after its reader has gone.
    let (listener, other) = {
        let host = switch.host(3);
        (host.listen(80, 1).unwrap(), switch.host(4))
    };
    let c = other.connect(at(3, 80)).unwrap();
    let (d, _) = listener.accept().unwrap();
    drop(d);
    until("closed there", || c.ready().peer_closed);
    let mut refused = (&c).write(b"nobody reads that");
    let start = std::time::Instant::now();
    while refused.is_ok() && start.elapsed() < PATIENCE {
        refused = (&c).write(b"nor that");
    }
    assert_eq!(errno(refused), Errno::PIPE);
}

#[test]
fn many_at_once_each_with_its_own_bytes() {
    const STREAMS: u64 = 500;
    let switch = Switch::start();
    let (client, server) = (switch.host(1), switch.host(2));
    let listener = server.listen(7, 600).unwrap();
    let streams: Vec<TcplightStream> = (0..STREAMS).map(|_| client.connect_from(None, at(2, 7)).unwrap()).collect();
    std::thread::scope(|scope| {
        // Threads that echo, each a part of the streams, one stream after the other.
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..STREAMS / 4 {
                    let (stream, _) = listener.accept().unwrap();
                    let mut bytes = Vec::new();
                    (&stream).read_to_end(&mut bytes).unwrap();
                    (&stream).write_all(&bytes).unwrap();
                }
            });
        }
        for (seed, mut stream) in streams.iter().enumerate() {
            until("open", || stream.ready().writable);
            let mut bytes = vec![0; 1_000 + 8 * seed];
            Pattern::new(seed as u64).fill(&mut bytes);
            stream.write_all(&bytes).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        for (seed, mut stream) in streams.iter().enumerate() {
            let (mut bytes, mut back) = (vec![0; 1_000 + 8 * seed], Vec::new());
            Pattern::new(seed as u64).fill(&mut bytes);
            stream.read_to_end(&mut back).unwrap();
            assert!(back == bytes, "stream {seed}");
        }
    });
    assert_eq!(switch.dropped(), 0);
}

/// While the switch takes nothing, two streams send as far as they can, one after the other: the first leaves some buffers. A
/// stream that sends alone for long enough gets all buffers for one host.
#[test]
fn streams_of_a_host_share_what_it_may_send() {
    let switch = Switch::start();
    let (client, server) = (switch.host(1), switch.host(2));
    let listener = server.listen(7, 128).unwrap();
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        from.push(client.connect(at(2, 7)).unwrap());
        to.push(listener.accept().unwrap().0);
    }
    from.iter().chain(&to).for_each(|stream| stream.set_nonblocking(true));
    let mut bytes = vec![7; 128 << 10];
    let mut as_far_as_they_go = |streams: &[TcplightStream]| -> Vec<usize> {
        let sent = switch.halted(|| {
            let send = |mut stream: &TcplightStream| std::iter::from_fn(|| stream.write(&bytes).ok()).sum();
            streams.iter().map(send).collect::<Vec<usize>>()
        });
        // All bytes arrive, and the senders are told that they may go on.
        for (mut stream, sent) in to.iter().zip(&sent) {
            let mut left = *sent;
            until("read", || {
                left -= stream.read(&mut bytes).unwrap_or(0);
                left == 0
            });
        }
        until("writable", || streams.iter().all(|stream| stream.ready().writable));
        sent
    };
    let both = as_far_as_they_go(&from);
    assert!(both[0] > both[1] && both[1] > 0, "{both:?}");
    // Three times the limit of one stream is more than there are buffers.
    let alone: Vec<usize> = (0..4).map(|_| as_far_as_they_go(&from[..1])[0]).collect();
    assert!(alone[0] == both[0] && alone[3] > both[0], "{both:?}, {alone:?}");
    let again = as_far_as_they_go(&from);
    assert!(again[1] == 0, "who comes beside one that is alone waits once: {again:?}");
    let shared = as_far_as_they_go(&from);
    assert!(shared[0] <= both[0] && shared[1] > 0, "{both:?}, {shared:?}");
}

#[test]
fn without_blocking() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host(2));
    let listener = b.listen(80, 1).unwrap();
    listener.set_nonblocking(true);
    assert_eq!(errno(listener.accept()), Errno::AGAIN);
    let seen = Arc::new(Mutex::new(Vec::<Ready>::new()));
    let opened = a.connect_from(None, at(2, 80)).unwrap();
    opened.set_nonblocking(true);
    let tell = seen.clone();
    opened.set_watch(Some(Box::new(move |ready| tell.lock().unwrap().push(ready))));
    until("open", || opened.ready().writable);
    assert!(opened.take_error().is_none() && !opened.is_opening());
    until("there to accept", || listener.ready().readable);
    let (accepted, _) = listener.accept().unwrap();
    assert_eq!(errno((&opened).read(&mut [0; 1])), Errno::AGAIN);
    // As much as the other end takes, and no more, until that reads.
    let mut sent = 0;
    loop {
        match (&opened).write(&[7; 10_000]) {
            Ok(n) => sent += n,
            Err(e) => {
                assert_eq!(errno::<()>(Err(e)), Errno::AGAIN);
                if sent == 1 << 20 {
                    break;
                }
                until("writable", || opened.ready().writable);
            }
        }
    }
    assert!(!opened.ready().writable);
    until("all there", || accepted.readable_bytes() == sent);
    let mut bytes = vec![0; sent];
    (&accepted).read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 7));
    until("writable again", || opened.ready().writable);
    (&accepted).write_all(b"x").unwrap();
    until("readable", || opened.ready().readable);
    opened.set_watch(None);
    let seen = seen.lock().unwrap();
    assert!(seen.windows(2).all(|two| two[0] != two[1]), "told of changes only: {seen:?}");
    // Whether the observer saw the opening stream depends on which thread was first.
    assert!(seen.iter().any(|r| r.writable) && seen.last().unwrap().readable, "{seen:?}");
}

#[test]
fn pieces_of_memory_go_as_one() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    let parts: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; usize::from(i) * 37]).collect();
    let whole = parts.concat();
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let sent = a.send(rest).unwrap();
        IoSlice::advance_slices(&mut rest, sent);
    }
    let mut got = vec![0; whole.len()];
    (&b).read_exact(&mut got).unwrap();
    assert!(got == whole);
}

#[test]
fn one_that_nobody_reads_stops_itself_and_no_other() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host(2));
    let listener = b.listen(80, 10).unwrap();
    let streams: Vec<_> = (0..2).map(|_| a.connect(at(2, 80)).unwrap()).collect();
    let accepted: Vec<_> = (0..2).map(|_| listener.accept().unwrap().0).collect();
    streams[0].set_nonblocking(true);
    let mut sent = 0;
    let stuck = || accepted[0].readable_bytes();
    until("full", || {
        sent += (&streams[0]).write(&[1; 4096]).unwrap_or(0);
        stuck() == 1 << 20
    });
    assert_eq!(sent, 1 << 20, "no more than its receiver takes");
    streams[0].set_nonblocking(false);
    streams[0].set_write_timeout(Some(Duration::from_millis(50)));
    assert_eq!(errno((&streams[0]).write(b"x")), Errno::AGAIN);
    // Another one of the same hosts, both ways.
    send_and_check(&streams[1], &accepted[1], 10_000_000);
    send_and_check(&accepted[1], &streams[1], 10_000_000);
    assert_eq!((stuck(), switch.dropped()), (1 << 20, 0));
}

#[test]
fn a_host_reaches_itself() {
    let switch = Switch::start();
    let host = switch.host(1);
    let listener = host.listen(0, 1).unwrap();
    let a = host.connect(listener.local_addr()).unwrap();
    let (b, _) = listener.accept().unwrap();
    send_and_check(&a, &b, 3_000_000);
    assert_eq!(errno(host.connect(at(1, 9))), Errno::CONNREFUSED);
}

#[test]
fn what_was_sent_before_the_host_ended_arrives() {
    let switch = Switch::start();
    let server = switch.host(2);
    let listener = server.listen(80, 1).unwrap();
    for n in [3, 4, 5] {
        let client = switch.host(n);
        let stream = client.connect(at(2, 80)).unwrap();
        (&stream).write_all(&[9; 100_000]).unwrap();
        // The stream first, the host first, and at the end of a process that holds both.
        let mut left = None;
        match n {
            3 => drop((stream, client)),
            4 => drop((client, stream)),
            _ => {
                client.end();
                left = Some((stream, client));
            }
        }
        switch.unplug(n);
        let (accepted, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        (&accepted).read_to_end(&mut bytes).unwrap();
        assert!(bytes == [9; 100_000]);
        drop(left);
    }
}

#[test]
fn threads_share_a_stream() {
    let switch = Switch::start();
    let (a, b) = pair(&switch);
    std::thread::scope(|scope| {
        for i in 0..4u8 {
            let mut a = &a;
            scope.spawn(move || (0..500).for_each(|_| a.write_all(&[i; 100]).unwrap()));
        }
        let mut b = &b;
        let mut counts = [0; 4];
        let mut bytes = [0; 100];
        for _ in 0..2_000 {
            b.read_exact(&mut bytes).unwrap();
            bytes.iter().for_each(|&i| counts[usize::from(i)] += 1);
        }
        assert_eq!(counts, [50_000; 4]);
    });
}

#[test]
fn another_host_of_the_address_accepts() {
    let switch = Switch::start();
    let (master, client) = (switch.host(2), switch.host(1));
    // A worker: another port of the switch, the same address.
    let worker = switch.host_with(3, |config| {
        config.address = crate::common::ip(2);
        config.answers = false;
    });
    let listener = master.listen(80, 1).unwrap();
    let early = client.connect(at(2, 80)).unwrap();
    let (attempts, attempted) = std::sync::mpsc::sync_channel(2);
    (&early).write_all(b"early").unwrap();
    let waited = listener.divert(Box::new(move |attempt| attempts.try_send(attempt).is_ok()));
    let [waited] = &waited[..] else { panic!("what waited to be accepted is handed out: {waited:?}") };
    let mut said = [0; 5];
    { waited }.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"early");
    send_and_check(waited, &early, 500_000);
    let streams: Vec<_> = (0..3).map(|_| client.connect_from(None, at(2, 80)).unwrap()).collect();
    until("the third one refused", || streams.iter().any(|stream| stream.ready().error));
    for host in [&worker, &master] {
        let attempt = sluicenet_socket::Attempt::from_bytes(&attempted.recv().unwrap().to_bytes());
        let accepted = host.take_attempt(attempt).unwrap();
        let opened = streams.iter().find(|stream| stream.local_addr() == accepted.peer_addr()).unwrap();
        assert_eq!(accepted.local_addr(), at(2, 80));
        until("open", || opened.ready().writable);
        send_and_check(opened, &accepted, 500_000);
        send_and_check(&accepted, opened, 500_000);
    }
    // The worker can open streams of its own, also to its own address.
    let served = master.listen(81, 1).unwrap();
    let from_worker = worker.connect(at(2, 81)).unwrap();
    let (accepted, peer) = served.accept().unwrap();
    assert_eq!(*peer.ip(), crate::common::ip(2));
    send_and_check(&from_worker, &accepted, 100_000);
    assert!(worker.connect(at(1, 80)).is_err() && master.connect(at(2, 81)).is_ok());
}
