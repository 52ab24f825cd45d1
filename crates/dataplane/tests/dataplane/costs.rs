//! The most that the rings of a guest, or of a program, can cost a turn (HOSTILE 15): counted, not timed. While a ring of
//! 32,768 entries is processed, a frame passes between two other guests in every turn.

use crate::vhost_rig::{Rig, frame, mac, patient};
use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::region::{Region, RingCells};
use sluicenet_dataplane::ring::Producer;
use sluicenet_dataplane::shm::Client;
use sluicenet_dataplane::vhost::driver::{DriverConfig, GUEST_AT};
use sluicenet_dataplane::vhost::memory::{Desc, Ring};
use sluicenet_dataplane::vhost::queue::MAX_CHAIN;
use std::sync::Arc;

const SEND: usize = 1;
const RECEIVE: usize = 0;
const SIZE: u16 = 1 << 15;

/// The most descriptors in a turn: the budget of a direction and the chain that exceeds it, both ways.
const MOST: u64 = 2 * (512 + MAX_CHAIN as u64);
/// Frames that are taken from a port in a turn.
const BURST: u64 = 64;

fn rig() -> Rig {
    let hostile = DriverConfig { queue_size: SIZE, buffer_bytes: 64, ..DriverConfig::default() };
    Rig::new(&[hostile, DriverConfig::default(), DriverConfig::default()])
}

/// A chain of `pieces` descriptors of `len` bytes each from descriptor 0 on; the bytes are those of `bytes`, one behind the
/// other.
fn chain(rig: &mut Rig, index: usize, pieces: u16, len: u32, bytes: &[u8]) {
    let kind = if index == RECEIVE { Desc::WRITE } else { 0 };
    // The guest's own receive buffers, without other data.
    let at = GUEST_AT + (1 << 20);
    let memory = rig.guest(0).memory().clone();
    memory.write(memory.find(at, 1 << 16).unwrap(), 0, bytes);
    let ring = rig.guest(0).ring(index);
    for i in 0..pieces {
        let flags = kind | if i + 1 < pieces { Desc::NEXT } else { 0 };
        ring.set_desc(i, Desc { addr: at + u64::from(i) * u64::from(len), len, flags, next: i + 1 });
    }
}

/// Every available entry is that chain.
fn offer_all(ring: &Ring) {
    (0..SIZE).for_each(|k| ring.set_avail_entry(k, 0));
    ring.set_avail_idx(ring.used_idx().wrapping_add(SIZE));
}

/// A turn, in which a frame of an innocent guest arrives, and which costs no more than it may.
fn turn(rig: &mut Rig, n: u64) {
    let count = |rig: &Rig| {
        let refused = rig.counter(0, "bad_length") + rig.counter(0, "bad_vnet_hdr");
        (rig.counter(0, "chained"), refused)
    };
    let before = count(rig);
    let sent = frame(1, 2, n, 100);
    assert!(rig.send(1, &sent));
    rig.engine.round();
    assert_eq!(rig.receive(2), Some(sent), "in turn {n}");
    let after = count(rig);
    assert!(after.0 - before.0 <= MOST, "{} descriptors in turn {n}", after.0 - before.0);
    assert!(after.1 - before.1 <= BURST, "{} frames refused in turn {n}", after.1 - before.1);
}

#[test]
fn chains_longer_than_any_frame_needs() {
    // The chain is as long as the ring: descriptors behind the longest allowed chain are not read.
    let mut hostile = rig();
    chain(&mut hostile, SEND, SIZE, 0, &[]);
    hostile.guest(0).ring(SEND).set_desc(MAX_CHAIN as u16, Desc { addr: 0, len: 1, flags: 0, next: 0 });
    offer_all(hostile.guest(0).ring(SEND));
    turn(&mut hostile, 0);
    assert_eq!((hostile.counter(0, "bad_chain"), hostile.counter(0, "bad_descriptor")), (1, 0));
    // The longest that is taken is.
    let mut rig = rig();
    let sent = frame(0, 1, 7, MAX_CHAIN as usize - 12);
    chain(&mut rig, SEND, MAX_CHAIN as u16, 1, &[&[0; 12][..], &sent].concat());
    rig.guest(0).ring(SEND).set_avail_entry(0, 0);
    rig.guest(0).ring(SEND).set_avail_idx(1);
    rig.engine.round();
    assert_eq!(rig.receive(1), Some(sent));
    assert_eq!(rig.counter(0, "chained"), u64::from(MAX_CHAIN));
}

#[test]
fn a_chain_that_is_too_long_a_frame_is_walked_no_further() {
    let mut rig = rig();
    chain(&mut rig, SEND, 10, 50_000, &[]);
    // A walk of the later descriptors would break the queue.
    rig.guest(0).ring(SEND).set_desc(9, Desc { addr: 0, len: 1, flags: Desc::INDIRECT, next: 0 });
    offer_all(rig.guest(0).ring(SEND));
    turn(&mut rig, 0);
    assert_eq!(rig.counter(0, "broken_queues"), 0);
    assert_eq!(rig.counter(0, "bad_length"), BURST);
}

#[test]
fn a_ring_full_of_frames_that_are_refused() {
    for (pieces, counter) in [(1, "bad_length"), (2, "bad_length"), (1, "bad_vnet_hdr"), (64, "bad_vnet_hdr")] {
        let mut rig = rig();
        match counter {
            "bad_length" => chain(&mut rig, SEND, pieces, 4, &[]),
            _ => chain(&mut rig, SEND, pieces, 64 / u32::from(pieces), &[1; 64]),
        }
        offer_all(rig.guest(0).ring(SEND));
        for n in 0..600 {
            turn(&mut rig, n);
        }
        // The frames are refused one after the other.
        assert!(rig.counter(0, "over_budget") > 500);
        if pieces <= 2 {
            assert_eq!(rig.counter(0, counter), u64::from(SIZE));
            assert_eq!(rig.guest(0).ring(SEND).used_idx(), SIZE);
        }
        assert!(rig.counter(0, counter) >= 600 * 7);
        assert_eq!(rig.counter(0, "broken_queues"), 0);
    }
}

#[test]
fn a_ring_full_of_good_frames_in_pieces_of_a_byte() {
    let mut rig = rig();
    let sent = frame(0, 1, 7, 64);
    chain(&mut rig, SEND, 76, 1, &[&[0; 12][..], &sent].concat());
    offer_all(rig.guest(0).ring(SEND));
    let mut got = 0;
    for n in 0..300 {
        turn(&mut rig, n);
        while let Some(bytes) = rig.receive(1) {
            assert_eq!(bytes, sent);
            got += 1;
        }
    }
    // The guest makes progress by the budget of a turn.
    assert!((300 * 6..=300 * 8).contains(&got), "{got}");
}

#[test]
fn receive_buffers_in_pieces_of_a_byte() {
    let mut rig = rig();
    // Chains that were read ahead are used up first.
    chain(&mut rig, RECEIVE, 1_000, 1, &[]);
    let mut n = 0;
    let chained = |rig: &Rig| rig.counter(0, "chained");
    for _ in 0..300 {
        for _ in 0..20 {
            n += 1;
            // A frame for the guest may wait; then so does the next one.
            rig.send(2, &frame(2, 0, n, 500));
        }
        turn(&mut rig, n);
        // Chains that were there are given back as they are used.
        let ring = rig.guest(0).ring(RECEIVE);
        let used = ring.used_idx();
        (0..SIZE).for_each(|k| ring.set_avail_entry(used.wrapping_add(k), 0));
        ring.set_avail_idx(used.wrapping_add(SIZE));
    }
    assert!(chained(&rig) > 100 * 512, "{}", chained(&rig));
    assert!(rig.counter(0, "over_budget") > 100);
    assert_eq!(rig.counter(0, "broken_queues"), 0);
}

#[test]
fn frames_to_be_cut_into_very_many_segments() {
    let mut rig = Rig::new(&[
        DriverConfig { buffer_bytes: 65_536, ..DriverConfig::default() },
        DriverConfig::default(),
        DriverConfig { features: 1 << 32, queue_size: 1024, ..DriverConfig::default() },
    ]);
    let send = |rig: &mut Rig, segment: u16| {
        let mut bytes = frame(0, 2, 1, 30_054);
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes[46] = 0x50;
        let mut header = [0; 12];
        (header[0], header[1]) = (1, 1);
        header[4..6].copy_from_slice(&segment.to_le_bytes());
        (header[6], header[8]) = (34, 16);
        assert!(rig.guest(0).send_with(0, &header, &bytes).unwrap());
        rig.guest(0).publish();
    };
    send(&mut rig, 1);
    rig.engine.round();
    assert_eq!(rig.counter(0, "bad_vnet_hdr"), 1);
    for _ in 0..10 {
        send(&mut rig, 50);
    }
    // 600 segments each: one frame a turn.
    for turns in 1..=10 {
        rig.engine.round();
        assert_eq!(rig.engine.report(0).unwrap().counters.accepted, turns);
        while rig.receive(2).is_some() {}
    }
}

#[test]
fn rings_in_shared_memory_full_of_entries_that_name_nothing() {
    const BUFFERS: u32 = 1 << 15;
    // The ring by which the program sends, and the one by which it gives empty buffers.
    for ring in [0, 3] {
        let mut engine = Engine::new(3, patient());
        let mut plug = |k, buffers| {
            let access = engine.plug_shm(k, &format!("test-{k}"), buffers).unwrap();
            assert!(engine.give(mac(k), 0, k));
            access
        };
        let hostile = Arc::new(Region::open(plug(0, BUFFERS).memory).unwrap());
        let [mut a, mut b] = [1, 2].map(|k| Client::open(plug(k, 64).memory).unwrap());
        let mut entries = Producer::new(RingCells::new(&hostile, 256 + ring * RingCells::bytes(BUFFERS), BUFFERS));
        (0..BUFFERS).for_each(|_| entries.push(u64::MAX));
        let _ = entries.publish();
        let mut skipped = 0;
        for n in 0..600 {
            if ring == 3 {
                // Another guest sends to it all the time.
                let _ = b.send(&frame(2, 0, n, 64)).unwrap();
                let _ = b.publish();
            }
            let sent = frame(1, 2, n, 64);
            assert!(a.send(&sent).unwrap());
            let _ = a.publish();
            engine.round();
            let mut bytes = [0; 64];
            assert_eq!(b.receive(&mut bytes).unwrap(), Some(64), "in turn {n}");
            assert_eq!(bytes[..], sent);
            let _ = b.publish();
            let now = engine.report(0).unwrap().own[0];
            assert!(now.1 - skipped <= 64, "{now:?} in turn {n}, before {skipped}");
            skipped = now.1;
        }
        assert_eq!(skipped, u64::from(BUFFERS));
        engine.ledger();
    }
}
