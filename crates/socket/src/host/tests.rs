//! A host without its thread: between two calls no buffers are taken back, so that the test decides about events in between.

#[path = "../../tests/socket/common.rs"]
mod common;

use super::{BATCH, Patience, Shared};
use crate::core::{Core, Socket, Wakers};
use crate::{Config, Ready};
use common::{PATIENCE, Raw, Switch, ip, mac, until};
use rustix::io::Errno;
use sluicenet_dataplane::shm::Client;
use sluicenet_wire::tcplight::{Flags, Repr};
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where the host listens, and how far the program lets it send.
const PORT: u16 = 80;
const LIMIT: u32 = 1 << 30;
/// Buffers of the host's port.
const BUFFERS: u32 = 128;

/// A host at port 1 that listens, and a program at port 2 that writes its own frames.
fn host_and_raw(switch: &Switch) -> (Shared, Raw) {
    let port = switch.port(1, BUFFERS);
    let client = Client::open(port.access.memory.try_clone().unwrap()).unwrap();
    let wakers = Arc::new(Wakers { kick: port.access.kick, wake: port.access.wake });
    let shared = Shared::new(Core::new(client, wakers.clone(), mac(1), Config::new(ip(1), 24), true), wakers);
    shared.call(|core| core.listen(PORT, 128)).unwrap();
    (shared, Raw::new(switch, 2))
}

/// The program opens a stream; the host has taken that in.
fn open(shared: &Shared, raw: &mut Raw, from: u16) {
    let before = shared.lock().counters.received;
    let syn = Repr {
        source_port: from,
        destination_port: PORT,
        flags: Flags::SYN,
        connection: from.into(),
        offset: 0,
        limit: LIMIT,
    };
    let frame = raw.segment(1, syn, &[]);
    raw.send(&frame);
    until("taken in", || {
        shared.call(|core| {
            core.pump(BATCH);
            core.counters.received > before
        })
    });
}

fn accept(shared: &Shared) -> usize {
    shared.call(|core| core.accept(PORT)).unwrap().unwrap()
}

/// Sends until the switch has given no buffer back for a while.
fn fill(shared: &Shared, id: usize) -> usize {
    let (mut sent, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        match shared.call(|core| core.send(id, &[IoSlice::new(&[1; 1000])])) {
            Some(n) => (sent, since) = (sent + n.unwrap(), Instant::now()),
            None => std::thread::yield_now(),
        }
    }
    sent
}

/// The program receives its frames, as far as they arrive soon.
fn drain(raw: &mut Raw) -> Vec<(Repr, Vec<u8>)> {
    std::iter::from_fn(|| raw.receive(Duration::from_millis(300))).collect()
}

#[test]
fn the_answer_to_a_syn_that_had_no_buffer_goes_before_the_bytes() {
    const MORE: u16 = 60;
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    open(&shared, &mut raw, 1);
    let first = accept(&shared);
    fill(&shared, first);
    // More streams than there are buffers for, including those kept for the host's own messages.
    (2..2 + MORE).for_each(|from| open(&shared, &mut raw, from));
    let last = (2..2 + MORE).map(|_| accept(&shared)).last().unwrap();
    let mut came = drain(&mut raw);
    let answers = |came: &[(Repr, Vec<u8>)]| came.iter().filter(|(s, _)| s.flags.contains(Flags::SYN)).count();
    assert!(answers(&came) < usize::from(MORE), "some had no buffer");
    // No buffers were taken back since.
    let sent = shared.lock().send(last, &[IoSlice::new(&[7; 5_000])]);
    // Half of the buffers at a time.
    for _ in 0..3 {
        shared.lock().finish();
        came.extend(drain(&mut raw));
    }
    assert_eq!(answers(&came), 1 + usize::from(MORE));
    let of_last: Vec<_> = came.iter().filter(|(s, _)| s.destination_port == 1 + MORE).collect();
    assert!(of_last[0].1.is_empty() && of_last[0].0.flags == Flags::SYN | Flags::ANSWER, "{:?}", of_last[0].0);
    let bytes: usize = of_last.iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!((sent.unwrap().unwrap(), bytes), (5_000, 5_000));
    assert!(came.iter().all(|(s, payload)| !s.flags.contains(Flags::SYN) || payload.is_empty()));
}

/// A host's own segments have the same limit as a program's bytes. The switch would set no more of them aside, and a frame
/// that it cannot set aside holds up all others.
#[test]
fn who_takes_nothing_is_neither_answered_nor_asked_beyond_its_part_of_the_buffers() {
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    open(&shared, &mut raw, 1);
    let first = accept(&shared);
    fill(&shared, first);
    // The buffers of the second stream are no longer free for the first.
    let mut second = Raw::new(&switch, 3);
    open(&shared, &mut second, 1);
    let id = accept(&shared);
    fill(&shared, id);
    let question =
        Repr { source_port: 1, destination_port: PORT, flags: Flags::default(), connection: 1, offset: 0, limit: 0 };
    let upto = shared.lock().counters.received + u64::from(BUFFERS / 2);
    (0..BUFFERS / 2).for_each(|_| raw.send(&raw.segment(1, question, &[])));
    until("taken in", || {
        shared.call(|core| {
            core.pump(BATCH);
            core.counters.received == upto
        })
    });
    open(&shared, &mut raw, 2);
    // A third peer is answered meanwhile, and asked after it was silent for a while, as the first would be.
    shared.lock().config.dead_after = Duration::from_secs(4);
    let mut third = Raw::new(&switch, 4);
    open(&shared, &mut third, 1);
    assert_eq!(third.receive(PATIENCE).unwrap().0.flags, Flags::SYN | Flags::ANSWER);
    for _ in 0..2 {
        let mut asked = None;
        until("asked", || {
            shared.call(|core| core.look());
            asked = third.receive(Duration::from_millis(10));
            asked.is_some()
        });
        assert_eq!(asked.unwrap().0.flags, Flags::default());
    }
    // So is the first stream, once its peer has taken its data.
    let is_data = |(s, payload): &(Repr, Vec<u8>)| s.destination_port == 1 && !payload.is_empty();
    let before = drain(&mut raw);
    assert!(is_opened(&before[0], 1) && before[1..].iter().all(is_data), "{before:?}");
    assert!(!shared.lock().is_flushed(), "an answer waits");
    shared.call(|_| ());
    assert!(drain(&mut raw).iter().any(|came| is_opened(came, 2)));
}

/// Receivers that take nothing, one after the other: the next one is still sent to.
#[test]
fn however_many_take_nothing_another_one_is_sent_to() {
    const MANY: u8 = 12;
    let switch = Switch::start();
    let (shared, mut last) = host_and_raw(&switch);
    let stopped: Vec<Raw> = (3..3 + MANY)
        .map(|n| {
            let mut raw = Raw::new(&switch, n);
            open(&shared, &mut raw, 1);
            let id = accept(&shared);
            fill(&shared, id);
            raw
        })
        .collect();
    open(&shared, &mut last, 1);
    let id = accept(&shared);
    let (mut sent, mut came) = (0, 0);
    until("sent and received", || {
        sent += shared.call(|core| core.send(id, &[IoSlice::new(&[1; 1000])])).map_or(0, |n| n.unwrap());
        came += last.receive(Duration::ZERO).map_or(0, |(_, payload)| payload.len());
        came >= 50_000
    });
    assert!(came <= sent);
    drop(stopped);
}

/// A peer that takes nothing, and opens and resets streams for ever, makes nothing grow.
#[test]
fn streams_that_end_before_they_were_answered_leave_nothing_behind() {
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    open(&shared, &mut raw, 1);
    let first = accept(&shared);
    fill(&shared, first);
    let say = |raw: &mut Raw, flags, connection| {
        let said = Repr { source_port: 7, destination_port: PORT, flags, connection, offset: 0, limit: LIMIT };
        let upto = shared.lock().counters.received + 1;
        raw.send(&raw.segment(1, said, &[]));
        until("taken in", || {
            shared.call(|core| {
                core.pump(BATCH);
                core.counters.received >= upto
            })
        });
    };
    for connection in 2..2_000 {
        say(&mut raw, Flags::SYN, connection);
        // Every second one is accepted, wants to send, and is closed.
        let accepted = (connection % 2 == 0).then(|| accept(&shared));
        if let Some(id) = accepted {
            assert!(shared.call(|core| core.send(id, &[IoSlice::new(b"x")])).is_none());
        }
        say(&mut raw, Flags::RESET, connection);
        if let Some(id) = accepted {
            shared.call(|core| core.close(id, false));
        }
    }
    let waits = shared.lock().waits();
    assert!(waits[0] <= 1 && waits[1] <= 1, "{waits:?}");
}

/// Whether the segment tells the peer at `port` that its stream is open.
fn is_opened((said, _): &(Repr, Vec<u8>), port: u16) -> bool {
    said.destination_port == port && said.flags == Flags::SYN | Flags::ANSWER
}

/// A stream that has not tried to send, beside one that has taken all buffers.
fn one_without_buffers(shared: &Shared, raw: &mut Raw) -> usize {
    open(shared, raw, 1);
    open(shared, raw, 2);
    let (first, second) = (accept(shared), accept(shared));
    fill(shared, first);
    second
}

/// Sends, and has all buffers come back after the second time there was none: when nothing is tried again before the call is
/// finished.
fn send_as_buffers_come(shared: &Shared, raw: &mut Raw, id: usize, patience: Patience) -> std::io::Result<usize> {
    let mut refused = 0;
    shared.wait(Socket::Stream(id), patience, |core| {
        let done = core.send(id, &[IoSlice::new(b"late")]);
        refused += u32::from(done.is_none());
        if done.is_none() && refused == 2 {
            drain(raw);
        }
        done
    })
}

#[test]
fn who_waits_for_buffers_does_not_miss_those_that_come_before_it_sleeps() {
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    let id = one_without_buffers(&shared, &mut raw);
    let start = Instant::now();
    let sent = send_as_buffers_come(&shared, &mut raw, id, Patience::Until(Some(PATIENCE)));
    assert_eq!(sent.unwrap(), 4);
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn who_was_refused_is_told_of_buffers_that_come_before_the_call_returns() {
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    let id = one_without_buffers(&shared, &mut raw);
    let told = Arc::new(Mutex::new(Vec::<Ready>::new()));
    let tell = told.clone();
    shared
        .call(|core| core.set_watch(Socket::Stream(id), Some(Box::new(move |ready| tell.lock().unwrap().push(ready)))));
    assert!(told.lock().unwrap()[0].writable, "it has not tried");
    let refused = send_as_buffers_come(&shared, &mut raw, id, Patience::Nonblocking);
    assert_eq!(common::errno(refused), rustix::io::Errno::AGAIN);
    let told = told.lock().unwrap();
    assert!(told.len() > 1 && told.last().unwrap().writable, "{told:?}");
}

#[test]
fn who_ends_with_the_lock_held_does_not_wait_for_itself_for_ever() {
    let switch = Switch::start();
    let (shared, _raw) = host_and_raw(&switch);
    // As a handler of a signal does that ends the process in the middle of a call.
    let held = shared.lock();
    shared.end();
    drop(held);
    shared.end();
}

#[test]
fn what_waits_in_a_port_that_ends_is_read_and_the_next_port_begins_empty() {
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    shared.lock().config.datagram_buffer = 4_000;
    let datagrams = shared.call(|core| core.bind(9)).unwrap();
    let other = shared.call(|core| core.bind(10)).unwrap();
    open(&shared, &mut raw, 1);
    open(&shared, &mut raw, 2);
    let stream = accept(&shared);
    fill(&shared, stream);
    shared.call(|core| {
        assert!(core.send_to(other, common::at(2, 9), &[IoSlice::new(&[1; 100])]).is_some_and(|sent| sent.is_ok()));
        assert!(core.send_to(other, common::at(7, 9), &[IoSlice::new(&[1; 100])]).is_some_and(|sent| sent.is_ok()));
    });
    // More than the socket has room for: some wait in the port's memory, and the last ones have not been looked at.
    const MANY: u8 = 40;
    (0..MANY).for_each(|i| raw.send(&raw.datagram(1, 5, 9, &[i; 1000])));
    until("all delivered", || raw.client.sendable(u32::MAX).unwrap() == raw.client.half());
    shared.call(|core| core.pump(u32::from(MANY) / 2));
    shared.call(Core::end);
    let mut into = [0; 1000];
    for i in 0..MANY {
        let got = shared.call(|core| core.receive_from(datagrams, &mut [IoSliceMut::new(&mut into)], false));
        assert_eq!((got.unwrap().unwrap().0, into[0]), (1000, i));
    }
    shared.call(|core| {
        let read = core.receive_from(datagrams, &mut [IoSliceMut::new(&mut into)], false);
        assert!(read.is_none() && core.accept(PORT).is_none());
        assert_eq!(core.ready(Socket::Listener(PORT)), Ready { news: 2, ..Ready::default() });
        // The sender of a datagram that waited for an address learns that the datagram did not go.
        let why = core.receive_from(other, &mut [IoSliceMut::new(&mut into)], false);
        assert_eq!(common::errno(why.unwrap()), Errno::NETDOWN);
        let sent = core.send(stream, &[IoSlice::new(b"x")]);
        assert_eq!(common::errno(sent.unwrap()), Errno::CONNRESET);
        assert_eq!(common::errno(core.connect(common::at(2, 80), None)), Errno::NETDOWN);
        assert!(core.is_flushed() && core.fall_asleep(), "there is nothing to do");
    });
    let next = Switch::start();
    let (port, mut raw) = (next.port(1, BUFFERS), Raw::new(&next, 2));
    super::put_behind(&port.access.kick, &shared.wakers.kick).unwrap();
    let client = Client::open(port.access.memory).unwrap();
    shared.call(|core| core.revive(client, None, 1400));
    let (own, mtu) = shared.call(|core| (core.mac, core.config.mtu));
    assert_eq!((own, mtu), (mac(1), 1400));
    // The ports from before, and all buffers.
    open(&shared, &mut raw, 1);
    let again = accept(&shared);
    assert_ne!(again, stream);
    let sent = fill(&shared, again);
    assert!(sent > 20_000, "{sent}");
    let bytes: usize = drain(&mut raw).iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(bytes, sent);
}

/// The host had no processor while the switch filled its port for a socket that nobody reads.
#[test]
fn a_port_full_of_frames_for_one_socket_is_in_no_other_sockets_way() {
    const MANY: u32 = BUFFERS / 2;
    let switch = Switch::start();
    let (shared, mut raw) = host_and_raw(&switch);
    {
        let config = &mut shared.lock().config;
        (config.datagram_buffer, config.stall) = (4_000, None);
    }
    let [slow, other] = [9, 10].map(|port| shared.call(|core| core.bind(port)).unwrap());
    for n in 0..MANY {
        let frame = raw.datagram(1, 5, 9, &[&n.to_be_bytes()[..], &[0; 1_000]].concat());
        raw.send(&frame);
    }
    until("all delivered", || raw.client.sendable(u32::MAX).unwrap() == raw.client.half());
    let receive = |socket: usize| {
        let mut into = [0; 1_100];
        let got = shared.call(|core| {
            core.pump(BATCH);
            core.receive_from(socket, &mut [IoSliceMut::new(&mut into)], false)
        });
        got.map(|got| (got.unwrap().0, into))
    };
    shared.call(|core| core.pump(BATCH));
    let frame = raw.datagram(1, 5, 10, b"beside");
    raw.send(&frame);
    let mut beside = None;
    until("the other socket has its datagram", || {
        beside = receive(other);
        beside.is_some()
    });
    assert_eq!(&beside.unwrap().1[..6], b"beside");
    // And those of the first socket are there, in order.
    for n in 0..MANY {
        let mut got = None;
        until("one more", || {
            got = receive(slow);
            got.is_some()
        });
        assert_eq!(got.unwrap().1[..4], n.to_be_bytes());
    }
    assert_eq!((switch.dropped(), shared.lock().counters().stalled), (0, 0));
}
