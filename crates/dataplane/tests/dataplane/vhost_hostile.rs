//! Guests and frontends that break the rules (HOSTILE 1-13, 15): contained, counted, and without harm to others.

use crate::vhost_rig::{Rig, frame, number};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sluicenet_dataplane::vhost::driver::{DriverConfig, GUEST_AT};
use sluicenet_dataplane::vhost::header::{INDIRECT_DESC, OFFERED};
use sluicenet_dataplane::vhost::memory::{Desc, Layout, Memory, Ring};
use sluicenet_dataplane::vhost::queue::{Fault, Queue, Setup, Spans};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vhost::{VhostBackend, VringConfigData};

/// A switch with a hostile guest at port 0 and two that are innocent.
fn rig(hostile: DriverConfig) -> Rig {
    Rig::new(&[hostile, DriverConfig::default(), DriverConfig::default()])
}

const SEND: usize = 1;
const RECEIVE: usize = 0;

/// Where there is nothing but buffers.
const BUFFER: u64 = GUEST_AT + 0x10000;

/// Turns until a counter of the hostile guest's port is above `before`.
fn until_counted(rig: &mut Rig, name: &str, before: u64) {
    rig.until(name, |rig| rig.counter(0, name) > before);
}

/// Does something in the queue of the hostile guest that must break it and be counted by this name; then restarts the queue.
fn breaks(rig: &mut Rig, index: usize, name: &str, deed: impl FnOnce(&Ring)) {
    let before = rig.counter(0, name);
    deed(rig.guest(0).ring(index));
    rig.until(name, |rig| {
        if index == RECEIVE && rig.engine.queued() == 0 {
            // Looked at when those buffers are used up that were looked at before.
            rig.send(1, &frame(1, 0, 0, 100));
        }
        rig.counter(0, name) > before
    });
    assert_eq!(rig.counter(0, "broken_queues"), 1, "{name}");
    assert_eq!(rig.counter(0, name), before + 1);
    rig.check_passage(1, 2);
    // Later writes to the broken queue have no effect.
    let ring = rig.guest(0).ring(index).clone();
    ring.set_avail_idx(ring.avail_idx().wrapping_add(1));
    for _ in 0..10 {
        rig.engine.round();
    }
    assert_eq!(rig.counter(0, name), before + 1);
    // A full reset, as by a driver that is loaded again.
    let mut driver = rig.guests[0].take().unwrap();
    rig.guests[0] = Some(rig.during(move || {
        driver.stop_queue(index).unwrap();
        for i in 0..driver.ring(index).size() {
            let kind = if index == RECEIVE { Desc::WRITE } else { 0 };
            let len = if index == RECEIVE { 2048 } else { 0 };
            driver.ring(index).set_desc(i, Desc { addr: BUFFER, len, flags: kind, next: 0 });
            driver.ring(index).set_avail_entry(i, i);
        }
        let used = driver.ring(index).used_idx();
        let room = if index == RECEIVE { 16 } else { 0 };
        driver.ring(index).set_avail_idx(used.wrapping_add(room));
        driver.start_queue(index, used).unwrap();
        driver
    }));
    assert_eq!(rig.counter(0, "broken_queues"), 0);
    rig.until("what waited", |rig| rig.engine.queued() == 0);
}

/// Makes chains available that begin with descriptor 0, but no more than there may be.
fn offer(ring: &Ring, chains: u16) {
    let at = ring.avail_idx();
    let chains = chains.min(ring.size() - at.wrapping_sub(ring.used_idx()));
    (0..chains).for_each(|k| ring.set_avail_entry(at.wrapping_add(k), 0));
    ring.set_avail_idx(at.wrapping_add(chains));
}

fn desc(addr: u64, len: u32, flags: u16, next: u16) -> Desc {
    Desc { addr, len, flags, next }
}

#[test]
fn descriptors_outside_of_the_memory() {
    // HOSTILE 1.
    let mut rig = rig(DriverConfig::default());
    let end = GUEST_AT + rustix::fs::fstat(rig.guest(0).file()).unwrap().st_size as u64;
    for (index, kind) in [(SEND, 0), (RECEIVE, Desc::WRITE)] {
        for (addr, len) in [
            (0, 100),
            (end, 100),
            (end - 50, 100),
            (GUEST_AT - 1, 100),
            (u64::MAX, 100),
            (u64::MAX - 50, 100),
            (GUEST_AT, u32::MAX),
        ] {
            breaks(&mut rig, index, "bad_descriptor", |ring| {
                // The receive queue already has buffers: every one of them is such.
                (0..ring.size()).for_each(|i| ring.set_desc(i, desc(addr, len, kind, 0)));
                offer(ring, 1);
            });
        }
    }
}

#[test]
fn chains_that_loop_leave_their_table_or_go_the_wrong_way() {
    // HOSTILE 3 and 5.
    let mut rig = rig(DriverConfig::default());
    let n = Desc::NEXT;
    let (w, r) = (Desc::WRITE, 0);
    let chains: [&[Desc]; 6] = [
        &[desc(GUEST_AT, 64, n, 0)],
        &[desc(GUEST_AT, 64, n, 1), desc(GUEST_AT, 64, n, 2), desc(GUEST_AT, 64, n, 0)],
        &[desc(GUEST_AT, 0, n, 1), desc(GUEST_AT, 0, n, 0)],
        &[desc(GUEST_AT, 64, n, 256)],
        &[desc(GUEST_AT, 64, n, u16::MAX)],
        &[desc(GUEST_AT, 64, n, 1), desc(GUEST_AT, 64, w, 0)],
    ];
    for chain in chains {
        breaks(&mut rig, SEND, "bad_chain", |ring| {
            chain.iter().zip(0..).for_each(|(d, i)| ring.set_desc(i, *d));
            offer(ring, 1);
        });
    }
    // Nothing to be read may be given for writing, nor a buffer without room for a header.
    for bad in [desc(GUEST_AT, 2048, r, 0), desc(GUEST_AT, 12, w, 0), desc(GUEST_AT, 0, w, 0)] {
        breaks(&mut rig, RECEIVE, "bad_chain", |ring| {
            (0..ring.size()).for_each(|i| ring.set_desc(i, bad));
            offer(ring, 1);
        });
    }
    for entry in [256, 257, u16::MAX] {
        for index in [SEND, RECEIVE] {
            breaks(&mut rig, index, "bad_entry", |ring| {
                (0..ring.size()).for_each(|i| ring.set_avail_entry(i, entry));
                ring.set_avail_idx(ring.avail_idx().wrapping_add(1));
            });
        }
    }
}

#[test]
fn an_index_that_jumps() {
    // HOSTILE 4.
    let mut rig = rig(DriverConfig::default());
    for index in [SEND, RECEIVE] {
        // To the receive queue it has not jumped when as much was used meanwhile.
        for jump in [if index == SEND { 257 } else { 400 }, 1_000, 32_768, 65_535] {
            breaks(&mut rig, index, "bad_index", |ring| ring.set_avail_idx(ring.used_idx().wrapping_add(jump)));
        }
    }
}

#[test]
fn tables_of_descriptors_that_are_nested_empty_odd_or_huge() {
    // HOSTILE 7.
    let mut rig = rig(DriverConfig::default());
    let table = |rig: &mut Rig, entries: &[Desc]| {
        let memory = rig.guest(0).memory().clone();
        let place = memory.find(GUEST_AT + 0x10000, 0x10000).unwrap();
        for (d, i) in entries.iter().zip(0..) {
            memory.write(place, 16 * i, &d.addr.to_le_bytes());
            memory.write(place, 16 * i + 8, &d.rest().to_le_bytes());
        }
        GUEST_AT + 0x10000
    };
    let i = Desc::INDIRECT;
    let plain = desc(GUEST_AT, 100, 0, 0);
    let at = table(&mut rig, &[plain; 300]);
    for bad in [
        desc(at, 0, i, 0),
        desc(at, 15, i, 0),
        desc(at, 17, i, 0),
        desc(at, 16 * 257, i, 0),
        desc(at, u32::MAX, i, 0),
        desc(at, 1 << 31, i, 0),
        desc(at, 16, i | Desc::NEXT, 1),
    ] {
        breaks(&mut rig, SEND, "bad_indirect", |ring| {
            ring.set_desc(0, bad);
            offer(ring, 1);
        });
    }
    for (name, entries) in [
        ("bad_indirect", [desc(GUEST_AT + 0x10000, 32, i, 0), plain]),
        ("bad_indirect", [desc(GUEST_AT, 100, Desc::NEXT, 1), desc(GUEST_AT + 0x10000, 32, i, 0)]),
        ("bad_chain", [desc(GUEST_AT, 100, Desc::NEXT, 0), plain]),
        ("bad_chain", [desc(GUEST_AT, 100, Desc::NEXT, 2), plain]),
        ("bad_chain", [desc(GUEST_AT, 100, Desc::NEXT, 1), desc(GUEST_AT, 100, Desc::WRITE, 0)]),
        ("bad_descriptor", [desc(GUEST_AT, 100, Desc::NEXT, 1), desc(0, 100, 0, 0)]),
    ] {
        let at = table(&mut rig, &entries);
        breaks(&mut rig, SEND, name, |ring| {
            ring.set_desc(0, desc(at, 32, i, 0));
            offer(ring, 1);
        });
    }
    breaks(&mut rig, SEND, "bad_descriptor", |ring| {
        ring.set_desc(0, desc(GUEST_AT - 16, 32, i, 0));
        offer(ring, 1);
    });
    // A valid chain, behind a descriptor that stands by itself.
    let sent = frame(0, 1, 5, 200);
    let memory = rig.guest(0).memory().clone();
    let place = memory.find(GUEST_AT + 0x20000, 4096).unwrap();
    memory.write(place, 0, &[0; 12]);
    memory.write(place, 12, &sent);
    let at =
        table(&mut rig, &[desc(GUEST_AT + 0x20005, 107, Desc::NEXT, 2), plain, desc(GUEST_AT + 0x20070, 100, 0, 0)]);
    let ring = rig.guest(0).ring(SEND).clone();
    ring.set_desc(0, desc(GUEST_AT + 0x20000, 5, Desc::NEXT, 1));
    ring.set_desc(1, desc(at, 48, i, 0));
    offer(&ring, 1);
    let mut got = None;
    rig.until("it to arrive", |rig| {
        got = rig.receive(1);
        got.is_some()
    });
    assert_eq!(got.unwrap(), sent);
    // A guest that did not negotiate tables may not use them.
    let mut rig = self::rig(DriverConfig { features: OFFERED & !INDIRECT_DESC, ..DriverConfig::default() });
    let at = table(&mut rig, &[plain]);
    breaks(&mut rig, SEND, "bad_indirect", |ring| {
        ring.set_desc(0, desc(at, 16, i, 0));
        offer(ring, 1);
    });
}

#[test]
fn frames_of_no_length_or_of_more_than_there_can_be() {
    // HOSTILE 8: such a frame is dropped, and the queue goes on.
    let mut rig = rig(DriverConfig { buffer_bytes: 65_536, ..DriverConfig::default() });
    let size = rustix::fs::fstat(rig.guest(0).file()).unwrap().st_size as u32;
    assert!(u64::from(size) * 256 > 1 << 32);
    for (n, len) in [0, 1, 11, 12, 13, 25, size].into_iter().enumerate() {
        let ring = rig.guest(0).ring(SEND).clone();
        ring.set_desc(0, desc(GUEST_AT, len, 0, 0));
        offer(&ring, 1);
        until_counted(&mut rig, "bad_length", n as u64);
    }
    let ring = rig.guest(0).ring(SEND).clone();
    for i in 0..256u16 {
        ring.set_desc(i, desc(GUEST_AT, size, if i < 255 { Desc::NEXT } else { 0 }, i + 1));
    }
    offer(&ring, 1);
    until_counted(&mut rig, "bad_length", 7);
    rig.until("its buffers to come back", |rig| rig.guest(0).ring(SEND).used_idx() == 8);
    assert_eq!(rig.counter(0, "broken_queues"), 0);
    assert_eq!(rig.engine.report(0).unwrap().lent, 0);
    rig.check_passage(1, 2);
}

#[test]
fn headers_that_ask_for_what_cannot_be() {
    // HOSTILE 9.
    let mut rig = rig(DriverConfig::default());
    let header = |flags: u8, gso: u8, mss: u16, start: u16, offset: u16| {
        let mut h = [0; 12];
        (h[0], h[1]) = (flags, gso);
        h[4..6].copy_from_slice(&mss.to_le_bytes());
        h[6..8].copy_from_slice(&start.to_le_bytes());
        h[8..10].copy_from_slice(&offset.to_le_bytes());
        h
    };
    let bad = [
        header(1, 0, 0, 60_000, 16),
        header(1, 0, 0, 99, 0),
        header(1, 0, 0, 34, 65_535),
        header(1, 1, 0, 34, 16),
        header(0, 1, 1_460, 34, 16),
        header(1, 3, 1_460, 34, 6),
        header(1, 255, 1_460, 34, 16),
        header(1, 1, 1_460, 90, 16),
    ];
    for (n, header) in bad.iter().enumerate() {
        assert!(rig.guest(0).send_with(0, header, &frame(0, 1, 1, 100)).unwrap());
        rig.guest(0).publish();
        until_counted(&mut rig, "bad_vnet_hdr", n as u64);
    }
    // A valid header for a frame that contradicts it: found where the frame is cut.
    let mut rig = Rig::new(&[
        DriverConfig::default(),
        DriverConfig { features: OFFERED & !sluicenet_dataplane::vhost::header::GUEST_TSO4, ..DriverConfig::default() },
    ]);
    let mut lie = frame(0, 1, 1, 3_000);
    lie[46] = 0x50;
    assert!(rig.guest(0).send_with(0, &header(1, 1, 1_460, 34, 16), &lie).unwrap());
    rig.guest(0).publish();
    rig.until("it to be dropped", |rig| rig.counter(1, "bad_vnet_hdr") == 1);
    rig.check_passage(0, 1);
}

#[test]
fn a_guest_that_changes_everything_while_it_is_read() {
    // HOSTILE 6: nothing is checked in the guest's memory. A thread writes there without end.
    let mut rig = rig(DriverConfig::default());
    let (send, receive) = (rig.guest(0).ring(SEND).clone(), rig.guest(0).ring(RECEIVE).clone());
    let memory = rig.guest(0).memory().clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let vandal = std::thread::spawn(move || {
        let buffer = memory.find(GUEST_AT + 0x8000, 4096).unwrap();
        let mut n = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let i = (n >> 60) as u16;
            let flags = (n >> 50) as u16 & 7;
            let len = (n >> 20) as u32 & 0xfff;
            let next = (n >> 40) as u16 & 0xf;
            send.set_desc(i, desc(GUEST_AT + 0x8000 + (n >> 33 & 0xff0), len, flags, next));
            receive.set_desc(i, desc(GUEST_AT + 0x8000, len | 64, flags | Desc::WRITE, next));
            memory.write(buffer, len as usize & 0xff0, &n.to_le_bytes());
        }
    });
    let mut broken = 0;
    for round in 0..3_000 {
        let ring = rig.guest(0).ring(SEND).clone();
        let room = 256 - ring.avail_idx().wrapping_sub(ring.used_idx());
        for _ in 0..room.min(8) {
            let at = ring.avail_idx();
            ring.set_avail_entry(at, at & 0xf);
            ring.set_avail_idx(at.wrapping_add(1));
        }
        if rig.engine.queued() == 0 {
            rig.send(1, &frame(1, 0, 1, 500));
        }
        rig.engine.round();
        while rig.receive(1).is_some() {}
        while rig.receive(2).is_some() {}
        if rig.counter(0, "broken_queues") > 0 && round % 8 == 0 {
            broken += 1;
            let mut driver = rig.guests[0].take().unwrap();
            rig.guests[0] = Some(rig.during(move || {
                for index in [SEND, RECEIVE] {
                    driver.stop_queue(index).unwrap();
                    let used = driver.ring(index).used_idx();
                    driver.ring(index).set_avail_idx(used);
                    driver.start_queue(index, used).unwrap();
                }
                driver
            }));
        }
    }
    stop.store(true, Ordering::Relaxed);
    vandal.join().unwrap();
    assert!(broken > 10, "the vandal did nothing: {broken}");
    rig.engine.ledger();
    while rig.receive(2).is_some() {}
    rig.check_passage(1, 2);
}

/// A queue of 8 over memory of two regions that touch, which lie in different files.
fn two_regions() -> (Arc<Memory>, Queue) {
    let file = || {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        file
    };
    let memory = Memory::default().with(Layout { guest: 0, user: 0x10_0000, len: 0x4000, offset: 0 }, file()).unwrap();
    let memory = memory.with(Layout { guest: 0x4000, user: 0x80_0000, len: 0x4000, offset: 0 }, file()).unwrap();
    let memory = Arc::new(memory);
    let ring = Ring::new(&memory, 8, 0x10_0000, 0x10_1000, 0x10_2000).unwrap();
    let (kick, call, error, record) = (None, None, None, None);
    let setup = Setup { ring, next: 0, call, kick, error, event_idx: false, indirect: true, enabled: true, record };
    (memory, Queue::new(setup))
}

#[test]
fn a_buffer_across_two_regions_is_split_and_beyond_them_refused() {
    // HOSTILE 2.
    let (memory, queue) = two_regions();
    let bytes: Vec<u8> = (0..200).collect();
    memory.write(memory.find(0x4000 - 120, 120).unwrap(), 0, &bytes[..120]);
    memory.write(memory.find(0x4000, 80).unwrap(), 0, &bytes[120..]);
    let mut spans = Spans::default();
    queue.setup.ring.set_desc(3, desc(0x4000 - 120, 200, 0, 0));
    assert_eq!(queue.walk(&memory, 3, false, &mut spans).map(|w| w.bytes), Ok(200));
    let mut read = [0; 200];
    spans.read(&memory, &mut read);
    assert_eq!(read[..], bytes);
    // Written in pieces the same way.
    spans.write(&memory, 100, &[0xee; 50]);
    spans.read(&memory, &mut read);
    assert!(read[..100] == bytes[..100] && read[100..150] == [0xee; 50] && read[150..] == bytes[150..]);
    spans.skip(130);
    spans.read(&memory, &mut read[..70]);
    assert!(read[..20] == [0xee; 20] && read[20..70] == bytes[150..]);
    for (addr, len) in [(0x8000 - 100, 101), (0x4000, 0x4001), (0x3fff, u32::MAX), (0x8000, 1)] {
        queue.setup.ring.set_desc(3, desc(addr, len, 0, 0));
        assert_eq!(queue.walk(&memory, 3, false, &mut spans), Err(Fault::Descriptor));
    }
    // A table of descriptors lies in one piece.
    queue.setup.ring.set_desc(3, desc(0x4000 - 16, 32, Desc::INDIRECT, 0));
    assert_eq!(queue.walk(&memory, 3, false, &mut spans), Err(Fault::Descriptor));
}

#[test]
fn whatever_a_ring_holds_it_is_walked_within_bounds() {
    // A fuzz target without a fuzzer: thousands of rings of random and nearly right descriptors.
    let (memory, queue) = two_regions();
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut spans = Spans::default();
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..100_000 {
        let mut any = |k: u64| match k {
            0 => desc(random(1 << 31) << 33, random(1 << 31) as u32, random(1 << 16) as u16, random(1 << 16) as u16),
            _ => desc(0x3000 + random(0x5010), random(700) as u32, random(6) as u16, random(9) as u16),
        };
        for i in 0..8 {
            let d = any(u64::from(i) % 8);
            queue.setup.ring.set_desc(i, d);
        }
        let table = memory.find(0x3000, 128).unwrap();
        for i in 0..8 {
            let d = any(1);
            memory.write(table, 16 * i, &d.addr.to_le_bytes());
            memory.write(table, 16 * i + 8, &d.rest().to_le_bytes());
        }
        queue.setup.ring.set_desc(7, desc(0x3000, random(160) as u32 & !7, Desc::INDIRECT, 0));
        for head in 0..8 {
            let write = random(2) == 1;
            let walked = queue.walk(&memory, head, write, &mut spans);
            if let Ok(total) = walked.map(|w| w.bytes) {
                assert!(total <= 8 * 0x8000 * 2);
                let mut bytes = vec![0; total as usize];
                spans.read(&memory, &mut bytes);
                if write && total > 30 {
                    spans.write(&memory, total as usize - 30, &bytes[..30]);
                }
                if total > 13 {
                    spans.skip(12);
                    let mut header = [0; 12];
                    header.copy_from_slice(&bytes[..12]);
                    let byte = |at: u32| bytes[12 + at as usize];
                    let parsed = sluicenet_dataplane::vhost::header::parse(&header, total as u32 - 12, OFFERED, byte);
                    if let Ok(offload) = parsed {
                        assert!(offload.checksum.is_none_or(|(s, o)| u64::from(s) + u64::from(o) + 14 <= total));
                    }
                }
            }
            *seen.entry(format!("{:?}", walked.map(drop))).or_default() += 1;
        }
    }
    // The refusals had several reasons.
    for outcome in ["Ok(())", "Err(Descriptor)", "Err(Chain)", "Err(Indirect)"] {
        assert!(seen.get(outcome).is_some_and(|&n| n > 1_000), "{seen:?}");
    }
}

#[test]
fn memory_that_is_truncated_under_the_switch() {
    // HOSTILE 12.
    let mut rig = rig(DriverConfig::default());
    for n in 0..100 {
        assert!(rig.send(0, &frame(0, 1, n, 100)));
        assert!(rig.send(1, &frame(1, 0, n, 100)));
    }
    ftruncate(rig.guest(0).file(), 4096).unwrap();
    until_counted(&mut rig, "memory_lost", 0);
    rig.until("the connection to end", |rig| rig.counter(0, "connected") == 0);
    while rig.receive(1).is_some() {}
    rig.check_passage(1, 2);
    assert_eq!(rig.engine.report(0).unwrap().lent, 0);
    rig.engine.ledger();
    // The guest may come again, with lasting memory, and finds the frames that waited for it.
    rig.connect(0, DriverConfig::default());
    rig.check_passage(2, 1);
    assert!(rig.send(0, &frame(0, 1, 5, 100)));
    rig.until("its frame", |rig| rig.receive(1).is_some());
}

/// A message of the vhost-user protocol.
fn message(request: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [request, 1, body.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

#[test]
fn messages_of_the_wrong_size_unknown_out_of_order_or_byte_by_byte() {
    // HOSTILE 10: the connection ends, with all that came by it; the next one is served.
    let mut rig = Rig::empty(3);
    (0..3).for_each(|k| rig.plug(k));
    (1..3).for_each(|k| rig.connect(k, DriverConfig::default()));
    let u64s = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let index = |index: u32, value: u32| [index.to_le_bytes(), value.to_le_bytes()].concat();
    let owner = message(3, &[]);
    let mut wrong_version = message(1, &[]);
    wrong_version[4] = 2;
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("garbage", vec![0xff; 12]),
        ("unknown", message(999, &[])),
        ("request 0", message(0, &[])),
        ("another version", wrong_version),
        ("longer than its kind", message(8, &u64s(&[8, 8]))),
        ("shorter than its kind", message(8, &[1, 2, 3])),
        ("longer than any", [999u32, 1, u32::MAX].map(u32::to_le_bytes).concat()),
        ("features that were not offered", message(2, &u64s(&[u64::MAX]))),
        ("protocol features that were not offered", message(16, &u64s(&[u64::MAX]))),
        ("memory without files", message(5, &u64s(&[1, 0, 4096, 0, 0]))),
        ("a queue that is none", message(8, &index(500, 256))),
        ("a size that is no power of two", message(8, &index(0, 100))),
        ("a size of nothing", message(8, &index(0, 0))),
        ("a size beyond any", message(8, &index(0, 1 << 20))),
        ("a queue started before all was said", message(12, &u64s(&[0x100]))),
        ("an event without a file", message(13, &u64s(&[0]))),
        ("an event for no queue", message(13, &u64s(&[0x1ff]))),
        ("the base of a queue that is none", message(11, &index(77, 0))),
        ("enabled with a number", message(18, &index(0, 7))),
        ("what was not agreed on", message(17, &[])),
        ("what is not offered", message(24, &u64s(&[0, 0]))),
        ("a body that never comes", [8u32, 1, 8].map(u32::to_le_bytes).concat()),
    ];
    let many = bad.len() as u64;
    for (n, (what, bytes)) in bad.into_iter().enumerate() {
        let mut socket = UnixStream::connect(rig.path(0)).unwrap();
        socket.write_all(&owner).unwrap();
        socket.write_all(&bytes).unwrap();
        if what == "a body that never comes" {
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        }
        // The connection ends by itself, whatever is answered before.
        let ended = rig.during(move || socket.read_to_end(&mut Vec::new()).is_ok_and(|n| n == 0));
        assert!(ended, "{what}");
        rig.until(what, |rig| rig.counter(0, "connected") == 0);
        assert_eq!(rig.counter(0, "bad_message"), n as u64 + 1, "{what}");
    }
    // A header byte by byte is a header; a body in pieces is none.
    let mut socket = UnixStream::connect(rig.path(0)).unwrap();
    for byte in message(1, &[]) {
        socket.write_all(&[byte]).unwrap();
        rig.engine.round();
    }
    let answer = rig.during(move || {
        let mut answer = [0; 20];
        socket.read_exact(&mut answer).map(|()| (answer, socket)).unwrap()
    });
    assert_eq!(answer.0[12..], OFFERED.to_le_bytes());
    let mut socket = answer.1;
    let slow = message(2, &u64s(&[0]));
    for byte in &slow {
        // The connection may be gone already.
        let _ = socket.write_all(&[*byte]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    rig.during(move || drop(socket.read_to_end(&mut Vec::new())));
    rig.until("its end", |rig| rig.counter(0, "connected") == 0);
    // Nor does one that says nothing hold up anything but its own port.
    let silent = UnixStream::connect(rig.path(0)).unwrap();
    rig.check_passage(1, 2);
    drop(silent);
    rig.connect(0, DriverConfig::default());
    rig.check_passage(0, 1);
    assert!(rig.counter(0, "bad_message") >= many);
}

#[test]
fn a_queue_is_not_changed_while_it_runs() {
    // HOSTILE 13.
    for deed in 0..4 {
        let mut rig = rig(DriverConfig::default());
        let mut driver = rig.guests[0].take().unwrap();
        let refused = rig.during(move || {
            let addresses = VringConfigData {
                queue_max_size: 256,
                queue_size: 256,
                flags: 0,
                desc_table_addr: 0x7000_0000_0000,
                used_ring_addr: 0x7000_0000_8000,
                avail_ring_addr: 0x7000_0000_4000,
                log_addr: None,
            };
            match deed {
                0 => driver.frontend().set_vring_num(1, 128).is_err(),
                1 => driver.frontend().set_vring_base(1, 5).is_err(),
                2 => driver.frontend().set_vring_addr(1, &addresses).is_err(),
                _ => driver.frontend().set_features(0).is_err(),
            }
        });
        assert!(refused);
        rig.until("the connection to end", |rig| rig.counter(0, "connected") == 0);
        assert_eq!(rig.counter(0, "bad_message"), 1);
        rig.check_passage(1, 2);
        rig.connect(0, DriverConfig::default());
        rig.check_passage(0, 1);
    }
}

#[test]
fn memory_that_is_changed_while_queues_run_loses_nothing() {
    // A frontend that gives its guest more memory (hotplug).
    let mut rig = rig(DriverConfig::default());
    let mut sent = 0;
    for round in 0..5u64 {
        for _ in 0..50 {
            assert!(rig.send(0, &frame(0, 1, sent, 100)));
            sent += 1;
        }
        if round % 2 == 0 {
            rig.engine.round();
        }
        let mut driver = rig.guests[0].take().unwrap();
        rig.guests[0] = Some(rig.during(move || {
            driver.add_memory(GUEST_AT + (1 << 40) + round * 4096).unwrap();
            driver
        }));
    }
    let mut seen = 0;
    rig.until("all of them", |rig| {
        while let Some(got) = rig.receive(1) {
            assert_eq!(number(&got), seen);
            seen += 1;
        }
        seen == sent
    });
    rig.until("its buffers", |rig| rig.guest(0).free_buffers(0).unwrap() == 256);
}

#[test]
fn the_socket_is_for_its_owner_only_and_not_taken_from_anybody() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let mut rig = Rig::empty(2);
    rig.plug(0);
    let kind = std::fs::metadata(rig.path(0)).unwrap();
    assert!(kind.file_type().is_socket());
    assert_eq!(kind.permissions().mode() & 0o777, 0o600);
    let open = |path| sluicenet_dataplane::vhost::Port::open(sluicenet_dataplane::vhost::Socket::Listen(path));
    assert!(open(rig.path(0)).unwrap_err().to_string().contains("somebody listens there"));
    std::fs::write(rig.path(1), "precious").unwrap();
    assert!(open(rig.path(1)).is_err());
    assert_eq!(std::fs::read(rig.path(1)).unwrap(), b"precious");
    rig.engine.unplug(0);
    assert!(!rig.path(0).exists());
}
