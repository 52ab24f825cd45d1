//! Many streams that are never read: the memory that their host keeps for them is bounded, and no byte is lost or waits for
//! ever.

use crate::common::{Pattern, Switch, at, until};
use sluicenet_socket::{Config, Counters, TcplightStream};
use std::io::{ErrorKind, Read, Write};

/// The memory of all streams of the receiving host, and their highest number: a floor of 16 KiB.
const MEMORY: u64 = 4 << 20;
const STREAMS: usize = 128;
const FLOOR: u64 = MEMORY / 2 / STREAMS as u64;
/// Bytes that each sender has: together four times the bound.
const EACH: usize = 128 << 10;

fn bounded(config: &mut Config) {
    (config.memory, config.streams, config.receive_buffer) = (MEMORY, STREAMS, 1 << 20);
}

fn bytes_of(seed: usize) -> Vec<u8> {
    let mut bytes = vec![0; EACH];
    Pattern::new(seed as u64 + 1).fill(&mut bytes);
    bytes
}

/// Writes `bytes` from `at` on, as far as possible; returns the new position.
fn push(mut stream: &TcplightStream, bytes: &[u8], at: usize) -> usize {
    let mut done = at;
    while done < bytes.len() {
        match stream.write(&bytes[done..]) {
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    done
}

#[test]
fn streams_that_nobody_reads_have_a_bound_and_all_arrives_once_they_are_read() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host_with(2, bounded));
    let listener = b.listen(80, STREAMS).unwrap();
    let ends: Vec<(TcplightStream, TcplightStream)> = (0..STREAMS)
        .map(|_| {
            let sender = a.connect(at(2, 80)).unwrap();
            sender.set_nonblocking(true);
            (sender, listener.accept().unwrap().0)
        })
        .collect();
    let all: Vec<Vec<u8>> = (0..STREAMS).map(bytes_of).collect();
    let promised = || {
        let Counters { promised, .. } = b.counters();
        assert!(promised + STREAMS as u64 * FLOOR <= MEMORY, "{promised}");
        promised
    };
    // All senders send until each stream has its floor, and then for longer than the interval of looks at the port.
    let mut sent = vec![0; STREAMS];
    let mut send = || {
        for (i, (sender, _)) in ends.iter().enumerate() {
            sent[i] = push(sender, &all[i], sent[i]);
        }
        promised();
        sent.iter().all(|&n| n as u64 >= FLOOR)
    };
    until("each has its floor", &mut send);
    for _ in 0..20 {
        send();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kept: u64 = sent.iter().map(|&n| n as u64).sum();
    assert!(kept <= MEMORY, "{kept} of {MEMORY}");
    assert!(sent.iter().all(|&n| n < EACH), "none has all: {sent:?}");
    assert!(promised() > 0);
    // The last streams came when nearly all memory was promised: a new stream's window shrinks.
    assert!(sent[0] > sent[STREAMS - 1], "{sent:?}");

    // Read, one after the other in small pieces: each stream goes on, whatever the others keep.
    let mut got = vec![Vec::new(); STREAMS];
    let mut piece = [0; 3_000];
    for i in [STREAMS - 1, 0, 7] {
        while got[i].len() < EACH {
            sent[i] = push(&ends[i].0, &all[i], sent[i]);
            // The new window is on its way to the sender, which is this thread, too.
            if ends[i].1.ready().readable {
                let n = (&ends[i].1).read(&mut piece).unwrap();
                got[i].extend_from_slice(&piece[..n]);
            }
            promised();
        }
    }
    // Then all at once.
    std::thread::scope(|threads| {
        for (i, (got, (_, receiver))) in got.iter_mut().zip(&ends).enumerate() {
            if got.len() == EACH {
                continue;
            }
            let want = &all[i];
            threads.spawn(move || {
                let mut rest = vec![0; want.len()];
                let mut stream: &TcplightStream = receiver;
                stream.read_exact(&mut rest).unwrap();
                *got = rest;
            });
        }
        until("all sent", || {
            for (i, (sender, _)) in ends.iter().enumerate() {
                sent[i] = push(sender, &all[i], sent[i]);
            }
            promised();
            sent.iter().all(|&n| n == EACH)
        });
    });
    assert!(got == all, "every byte, once and in order");
    // Memory of bytes that were read is free, and streams that are gone have none.
    drop(ends);
    until("all gone", || b.counters().promised == 0);
    assert_eq!(switch.dropped(), 0);
}

#[test]
fn a_stream_that_is_read_has_more_ahead_than_one_that_is_not() {
    let switch = Switch::start();
    let (a, b) = (switch.host(1), switch.host_with(2, |config| (config.memory, config.streams) = (64 << 20, 2_048)));
    let listener = b.listen(80, 8).unwrap();
    let open = || {
        let sender = a.connect(at(2, 80)).unwrap();
        sender.set_nonblocking(true);
        (sender, listener.accept().unwrap().0)
    };
    let zeros = vec![0; 4 << 20];
    let fill = |sender: &TcplightStream| {
        let (mut sent, mut quiet) = (0, 0);
        // The switch and the host process their frames meanwhile.
        while quiet < 50 {
            let more = push(sender, &zeros, sent);
            quiet = if more > sent { 0 } else { quiet + 1 };
            sent = more;
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        sent
    };
    let (stranger, unread) = open();
    let first = fill(&stranger);
    assert_eq!(first, 128 << 10, "what one has before anything was read: a part of half of the bound");
    let (sender, reader) = open();
    let (mut sent, mut got) = (0, 0);
    let mut read = vec![0; 64 << 10];
    while sent < 3 << 20 {
        sent = push(&sender, &zeros, sent);
        if reader.ready().readable {
            let n = (&reader).read(&mut read).unwrap();
            assert!(n > 0);
            got += n;
        }
    }
    let ahead = sent + fill(&sender) - got;
    assert!(ahead >= 512 << 10, "{ahead} bytes ahead of a program that read");
    drop((unread, reader));
}
