//! The port for QEMU guests, with guests in this process: no losses, correct offloads when mixed, no losses when either side
//! restarts.

use crate::from_ip;
use crate::vhost_rig::{Rig, frame, mac, number};
use sluicenet_dataplane::engine::{Access, Engine};
use sluicenet_dataplane::vhost::driver::DriverConfig;
use sluicenet_dataplane::vhost::header::*;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Duration;
use std::time::Instant;

fn config() -> DriverConfig {
    DriverConfig::default()
}
fn without(features: u64) -> DriverConfig {
    DriverConfig { features: OFFERED & !features, ..config() }
}

#[test]
fn two_senders_at_full_speed_and_a_slow_receiver_lose_nothing() {
    // Experiment 1 of Crisan 2014, 4.2.3, between guests.
    let small = DriverConfig { queue_size: 64, ..config() };
    let mut rig = Rig::new(&[small, small, small]);
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let mut refused = 0;
    for turn in 0..40_000 {
        for (j, sent) in sent.iter_mut().enumerate() {
            let len = 60 + turn % 1_400;
            if rig.send(j, &frame(j, 2, *sent, len)) {
                *sent += 1;
            } else {
                refused += 1;
            }
        }
        rig.engine.round();
        if turn % 3 == 0
            && let Some(got) = rig.receive(2)
        {
            let j = usize::from(got[11]);
            assert_eq!(number(&got), seen[j], "in order, and each once");
            assert_eq!(got, frame(j, 2, seen[j], got.len()));
            seen[j] += 1;
        }
    }
    assert!(refused > 1_000, "no backpressure");
    rig.until("the rest", |rig| {
        while let Some(got) = rig.receive(2) {
            let j = usize::from(got[11]);
            assert_eq!(number(&got), seen[j]);
            seen[j] += 1;
        }
        seen == sent
    });
    let (accepted, delivered, dropped) = rig.engine.ledger();
    assert_eq!((accepted, delivered, dropped), (sent[0] + sent[1], sent[0] + sent[1], 0));
    assert!(seen[0] * 2 > seen[1] && seen[1] * 2 > seen[0], "fair between inputs: {seen:?}");
}

#[test]
fn frames_of_all_lengths_arrive_whatever_the_guests_agreed_on() {
    // Old guests, guests without indirect tables or event indices, several pairs of queues, buffers of all sizes.
    let kinds = [
        config(),
        without(VERSION_1),
        without(VERSION_1 | MRG_RXBUF),
        without(EVENT_IDX),
        without(INDIRECT_DESC | MRG_RXBUF),
        DriverConfig { pairs: 3, ..config() },
        DriverConfig { buffer_bytes: 256, ..config() },
    ];
    let mut rig = Rig::new(&kinds);
    for from in 0..kinds.len() {
        for to in (0..kinds.len()).filter(|&to| to != from) {
            for len in [60, 64, 65, 243, 244, 245, 256, 500, 1_000, 1_514] {
                let sent = frame(from, to, len as u64, len);
                assert!(rig.send(from, &sent));
                let mut got = None;
                rig.until("a frame", |rig| {
                    let mut bytes = [0; 2_000];
                    got = (0..3).find_map(|pair| {
                        let pairs = if to == 5 { 3 } else { 1 };
                        let received =
                            (pair < pairs).then(|| rig.guest(to).receive_with(pair, &mut bytes).unwrap())??;
                        Some(bytes[..received.len].to_vec())
                    });
                    rig.guest(to).publish();
                    got.is_some()
                });
                assert_eq!(got.unwrap(), sent, "from {from} to {to}");
            }
        }
    }
}

#[test]
fn what_was_decided_about_one_frame_holds_only_for_those_like_it() {
    // All frames are in the queue when the switch looks: frames passed directly between guests are checked as all others.
    let mut rig = Rig::new(&[config(), config(), config()]);
    let access = Access { domain: Some(7), ..Access::default() };
    (0..3).for_each(|k| assert!(rig.engine.set_access(k, access.clone()) && rig.engine.give(mac(k), 7, k)));
    let tagged = |number| {
        let mut bytes = frame(0, 1, number, 100);
        bytes[12..16].copy_from_slice(&[0x81, 0, 0, 9]);
        bytes
    };
    let (short, full, after, long, last) =
        (frame(0, 1, 0, 60), frame(0, 1, 1, 1_514), frame(0, 1, 5, 61), frame(0, 1, 6, 4_000), frame(0, 1, 7, 62));
    let other = frame(0, 2, 4, 60);
    // With another's address, and in another's VLAN, in between.
    for f in [&short, &full, &frame(2, 1, 2, 60), &tagged(3), &other, &after, &long] {
        assert!(rig.guest(0).send(f).unwrap());
    }
    // Of one of them something is left to be done.
    assert!(rig.guest(0).send_with(0, &left(0), &segment(0, 1, 20)).unwrap());
    assert!(rig.send(0, &last));
    let mut got = Vec::new();
    rig.until("all of them", |rig| {
        got.extend(rig.receive(1));
        got.len() == 6
    });
    assert_eq!(got, [short, full, after, long, segment(0, 1, 20), last]);
    assert_eq!(rig.receive(2), Some(other));
    assert_eq!(rig.engine.report(0).unwrap().counters.refused.frames(DropReason::ForgedSource), 2);

    // Only bytes behind the first ones differ: they are read where an address is given.
    let mut forged = segment(0, 1, 20);
    forged[29] = 9;
    assert!(rig.engine.set_access(0, Access { guard: Some(from_ip([10, 0, 0, 1])), ..access }));
    assert!(rig.guest(0).send(&segment(0, 1, 20)).unwrap());
    assert!(rig.guest(0).send(&forged).unwrap());
    assert!(rig.send(0, &segment(0, 1, 21)));
    let mut got = Vec::new();
    rig.until("both of them", |rig| {
        got.extend(rig.receive(1));
        got.len() == 2
    });
    assert_eq!(got, [segment(0, 1, 20), segment(0, 1, 21)]);
    assert_eq!(rig.engine.report(0).unwrap().counters.refused.frames(DropReason::ForgedIp), 1);
    // A checksum would be written into the source address.
    let mut header = left(0);
    (header[6], header[8]) = (14, 12);
    assert!(rig.guest(0).send_with(0, &header, &segment(0, 1, 20)).unwrap());
    assert!(rig.send(0, &segment(0, 1, 22)));
    rig.until("the next one", |rig| rig.receive(1) == Some(segment(0, 1, 22)));
    assert_eq!(rig.engine.report(0).unwrap().counters.refused.frames(DropReason::Malformed), 1);
    assert_eq!(rig.engine.ledger(), (10, 10, 0));
}

/// A TCP segment over IPv4 of `payload` bytes from guest `from` to guest `to`, its checksum left; headers are 54 bytes.
fn segment(from: usize, to: usize, payload: usize) -> Vec<u8> {
    let mut f = frame(from, to, 5, 54 + payload);
    f[12..14].copy_from_slice(&[0x08, 0x00]);
    let ip_len = (40 + payload) as u16;
    f[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 9, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f[16..18].copy_from_slice(&ip_len.to_be_bytes());
    f[24..26].fill(0);
    let sum = sluicenet_wire::checksum::checksum(&f[14..34]);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f[34..54].copy_from_slice(&[0, 80, 1, 2, 0, 0, 0, 100, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    let pseudo = pseudo(&f);
    // Not inverted: the rest is to be summed on top of it.
    f[50..52].copy_from_slice(&(!pseudo).to_be_bytes());
    f
}

/// The checksum of the pseudo header.
fn pseudo(f: &[u8]) -> u16 {
    let mut bytes = f[26..34].to_vec();
    bytes.extend([0, 6]);
    bytes.extend((f.len() as u16 - 34).to_be_bytes());
    sluicenet_wire::checksum::checksum(&bytes)
}

/// Whether a receiver finds its TCP checksum right.
fn is_right(f: &[u8]) -> bool {
    let mut bytes = f[26..34].to_vec();
    bytes.extend([0, 6]);
    bytes.extend((f.len() as u16 - 34).to_be_bytes());
    bytes.extend(&f[34..]);
    sluicenet_wire::checksum::checksum(&bytes) == 0
}

/// A header that leaves the checksum of [`segment`] to be done, and segments of `mss` when that is not 0.
fn left(mss: u16) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = 1;
    header[6..10].copy_from_slice(&[34, 0, 16, 0]);
    if mss > 0 {
        header[1] = 1;
        header[2..4].copy_from_slice(&[54, 0]);
        header[4..6].copy_from_slice(&mss.to_le_bytes());
    }
    header
}

#[test]
fn what_a_sender_leaves_is_done_for_a_receiver_that_does_not_take_it_so() {
    let kinds = [
        config(),
        config(),
        without(GUEST_TSO4 | GUEST_TSO6),
        without(GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6),
        without(GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | MRG_RXBUF),
    ];
    let mut rig = Rig::new(&kinds);
    for (payload, mss) in [(100, 0), (1_460, 0), (10_000, 1_400), (60_000, 1_448), (1_400, 1_400), (65_000, 536)] {
        for to in 1..kinds.len() {
            let sent = segment(0, to, payload);
            assert!(rig.guest(0).send_with(0, &left(mss), &sent).unwrap());
            rig.guest(0).publish();
            let (mut joined, mut frames) = (Vec::new(), 0);
            rig.until("all of it", |rig| {
                let mut bytes = vec![0; 70_000];
                while let Some(got) = rig.guest(to).receive_with(0, &mut bytes).unwrap() {
                    let f = &bytes[..got.len];
                    frames += 1;
                    let finished = got.header[0] & 1 == 0;
                    assert_eq!(finished, to >= 3, "checksums are left to those that take them");
                    if finished {
                        assert!(is_right(f));
                        assert_eq!(got.header[..10], [0; 10]);
                    } else {
                        assert_eq!(f[50..52], (!pseudo(f)).to_be_bytes());
                        assert_eq!(got.header[6..10], [34, 0, 16, 0]);
                    }
                    if to == 1 && mss > 0 {
                        assert_eq!(got.header[1..6], left(mss)[1..6]);
                    } else {
                        assert!(got.header[1] == 0 && (mss == 0 || f.len() <= 54 + usize::from(mss)));
                        assert_eq!(sluicenet_wire::checksum::checksum(&f[14..34]), 0);
                    }
                    let at = u32::from_be_bytes(f[38..42].try_into().unwrap());
                    assert_eq!(at as usize, 100 + joined.len(), "in order");
                    joined.extend_from_slice(&f[54..]);
                }
                rig.guest(to).publish();
                joined.len() >= payload
            });
            assert_eq!(joined, sent[54..]);
            let expected = if mss > 0 && to > 1 { payload.div_ceil(mss.into()) } else { 1 };
            assert_eq!(frames, expected);
        }
    }
    assert_eq!(rig.counter(1, "segmented") + rig.counter(1, "checksummed"), 0);
    assert_eq!((rig.counter(2, "segmented"), rig.counter(2, "checksummed")), (4, 0));
    assert_eq!((rig.counter(4, "segmented"), rig.counter(4, "checksummed")), (4, 2));
    let (accepted, delivered, dropped) = rig.engine.ledger();
    assert_eq!((accepted, delivered, dropped), (24, 24, 0));
}

#[test]
fn a_queue_that_is_stopped_and_started_goes_on_where_it_was() {
    let mut rig = Rig::new(&[config(), config()]);
    // The receiver's queue is stopped: frames wait, lent by the sender.
    let mut driver = rig.guests[1].take().unwrap();
    let (mut driver, next) = rig.during(move || {
        let next = driver.stop_queue(0).unwrap();
        (driver, next)
    });
    assert_eq!(next, 0);
    for n in 0..100 {
        assert!(rig.send(0, &frame(0, 1, n, 100)));
    }
    rig.until("the frames to be lent", |rig| rig.engine.report(0).unwrap().lent == 100);
    assert_eq!(rig.guest(0).free_buffers(0).unwrap(), 156);
    // Then the sender's: all that is lent is copied, and its buffers come back.
    let mut sender = rig.guests[0].take().unwrap();
    let (sender, next) = rig.during(move || {
        let next = sender.stop_queue(1).unwrap();
        (sender, next)
    });
    assert_eq!(next, 100);
    rig.guests[0] = Some(sender);
    assert_eq!(rig.guest(0).free_buffers(0).unwrap(), 256);
    assert_eq!(rig.counter(0, "evacuated"), 100);
    // Both go on.
    driver = rig.during(move || {
        driver.start_queue(0, 0).unwrap();
        driver
    });
    let mut sender = rig.guests[0].take().unwrap();
    sender = rig.during(move || {
        sender.start_queue(1, 100).unwrap();
        sender
    });
    rig.guests = vec![Some(sender), Some(driver)];
    for n in 100..200 {
        assert!(rig.send(0, &frame(0, 1, n, 100)));
    }
    let mut seen = 0;
    rig.until("all of them", |rig| {
        while let Some(got) = rig.receive(1) {
            assert_eq!(got, frame(0, 1, seen, 100));
            seen += 1;
        }
        seen == 200
    });
    assert_eq!(rig.engine.ledger(), (200, 200, 0));
}

#[test]
fn a_switch_that_died_is_followed_by_one_that_owes_what_it_owed() {
    for (inflight, killed) in [(true, true), (false, true), (false, false)] {
        let kind = DriverConfig { inflight, queue_size: 64, ..config() };
        let mut rig = Rig::new(&[kind, kind, kind]);
        // Guest 2 does not take its frames: some frames of guest 1 wait while others pass them.
        for _ in 0..64 {
            assert!(rig.send(0, &frame(0, 2, 1_000, 60)));
        }
        rig.until("its queue to be full", |rig| rig.guest(2).ring(0).used_idx() == 64);
        for n in 0..40 {
            let to = if n % 3 == 0 { 2 } else { 0 };
            assert!(rig.send(1, &frame(1, to, n, 100)));
        }
        let mut seen = Vec::new();
        rig.until("those that pass", |rig| {
            seen.extend(rig.receive(0).map(|f| number(&f)));
            seen.len() == 26
        });
        assert_eq!(rig.engine.report(1).unwrap().lent, 14);
        assert_eq!(rig.guest(1).ring(1).used_idx(), 26);
        // The switch dies as if by kill -9, without any cleanup or notice. Or it ends in order.
        let dir: Vec<_> = (0..3).map(|k| rig.path(k)).collect();
        let dead = std::mem::replace(
            &mut rig.engine,
            sluicenet_dataplane::engine::Engine::new(3, crate::vhost_rig::patient()),
        );
        if killed {
            dir.iter().for_each(|path| std::fs::remove_file(path).unwrap());
            std::mem::forget(dead);
        } else {
            drop(dead);
            assert!(dir.iter().all(|path| !path.exists()));
        }
        (0..3).for_each(|k| rig.plug(k));
        for k in 0..3 {
            let (mut driver, path) = (rig.guests[k].take().unwrap(), rig.path(k));
            rig.guests[k] = Some(rig.during(move || {
                driver.reconnect(&path).unwrap();
                driver
            }));
        }
        assert_eq!(rig.counter(1, "resumed"), 14);
        let mut late = Vec::new();
        rig.until("what was owed", |rig| {
            late.extend(rig.receive(2).map(|f| number(&f)).filter(|&n| n != 1_000));
            late.len() == 14
        });
        assert_eq!(late, (0..40).step_by(3).collect::<Vec<u64>>(), "each once, in order");
        assert_eq!(rig.receive(0), None, "nothing twice");
        rig.check_passage(1, 0);
        assert_eq!(rig.guest(1).free_buffers(0).unwrap(), 64);
        // Nothing is left behind when nothing is in flight.
        assert!(!killed || inflight || rig.path(1).with_extension("sock.inflight").exists());
        rig.until("all to come back", |rig| rig.engine.report(1).unwrap().lent == 0);
        (0..3).for_each(|k| rig.engine.unplug(k));
        assert!(!rig.path(1).with_extension("sock.inflight").exists());
    }
}

#[test]
fn a_frontend_that_listens_is_connected_to_and_again_after_it_was_gone() {
    use sluicenet_dataplane::vhost::driver::Driver;
    use sluicenet_dataplane::vhost::{Port, Socket};
    let mut rig = Rig::new(&[config()]);
    rig.engine = sluicenet_dataplane::engine::Engine::new(2, crate::vhost_rig::patient());
    rig.guests.push(None);
    rig.plug(0);
    rig.connect(0, config());
    let port = Port::open(Socket::Connect(rig.path(1))).unwrap();
    rig.engine.plug_vhost(1, "guest-1", port, Default::default()).unwrap();
    assert!(rig.engine.give(crate::vhost_rig::mac(1), 0, 1));
    for _ in 0..3 {
        let listener = std::os::unix::net::UnixListener::bind(rig.path(1)).unwrap();
        let driver = rig.during(move || Driver::over(listener.accept().unwrap().0, config()).unwrap());
        rig.guests[1] = Some(driver);
        rig.check_passage(0, 1);
        rig.check_passage(1, 0);
        std::fs::remove_file(rig.path(1)).unwrap();
        rig.guests[1] = None;
        rig.until("it to notice", |rig| rig.counter(1, "connected") == 0);
    }
    assert_eq!(rig.counter(1, "connections"), 3);
}

#[test]
fn a_guest_that_is_killed_leaves_nothing_behind_and_may_come_again() {
    let mut rig = Rig::new(&[config(), config(), config()]);
    // HOSTILE 16: with frames in flight in both directions.
    for _ in 0..20 {
        for n in 0..600 {
            rig.send(0, &frame(0, 1, n, 100));
            rig.send(1, &frame(1, 0, n, 100));
            rig.send(2, &frame(2, 1, n, 100));
            if n % 20 == 0 {
                rig.engine.round();
            }
        }
        drop(rig.guests[1].take());
        rig.until("the switch to notice", |rig| rig.counter(1, "connected") == 0);
        rig.connect(1, config());
        // Frames for the guest waited for it, and arrive.
        rig.until("what is held to be delivered", |rig| {
            while rig.receive(1).is_some() {}
            while rig.receive(0).is_some() {}
            rig.engine.queued() == 0 && (0..3).all(|k| rig.engine.report(k).unwrap().lent == 0)
        });
        for k in [0, 2] {
            rig.until("its senders' buffers", |rig| rig.guest(k).free_buffers(0).unwrap() == 256);
        }
    }
    assert!(rig.counter(1, "evacuated") > 0);
    assert_eq!(rig.counter(1, "connections"), 21);
    assert_eq!(rig.engine.ledger().2, 0);
    rig.check_passage(0, 1);
    rig.check_passage(1, 2);
}

/// Everybody who floods would wait for a port that has no guest: its queue would lend their buffers.
#[test]
fn a_port_without_a_guest_holds_nobody() {
    let broadcast = |n| {
        let mut frame = frame(0, 1, n, 60);
        frame[..6].fill(0xff);
        frame
    };
    let waits = WatchdogConfig { isolation_time: Duration::from_secs(3_600), ..WatchdogConfig::default() };
    let lossless = ValeConfig { watchdog: waits, ..ValeConfig::default() };
    for config in [ValeConfig { lossless: PrioritySet::NONE, ..lossless.clone() }, lossless] {
        let is_lossy = config.lossless.is_empty();
        let started = Instant::now();
        let mut rig = Rig::empty(2);
        rig.engine = Engine::new(2, config);
        (0..2).for_each(|k| rig.plug(k));
        rig.connect(0, DriverConfig { queue_size: 64, ..self::config() });
        for n in 0..2_000 {
            rig.until("a buffer to send with", |rig| rig.send(0, &frame(0, 1, n, 60)));
            rig.until("a buffer to send with", |rig| rig.send(0, &broadcast(n)));
        }
        rig.until("all of its buffers", |rig| rig.guest(0).free_buffers(0).unwrap() == 64);
        // In a lossless class a guest that comes back in time loses nothing.
        assert!(is_lossy || started.elapsed().as_secs() >= 3, "{:?}", started.elapsed());
        let dropped = rig.engine.report(1).unwrap().counters.dropped;
        assert_eq!(dropped.frames(DropReason::PortGone), dropped.total_frames(), "{dropped:?}");
        assert_eq!((dropped.total_frames(), rig.engine.ledger()), (4_000, (4_000, 0, 4_000)));
        // The guest that comes gets all that is sent from then on, and so does the next one.
        for _ in 0..2 {
            rig.connect(1, self::config());
            rig.check_passage(0, 1);
            rig.guests[1] = None;
            rig.until("it to notice", |rig| rig.counter(1, "connected") == 0);
        }
    }
}

#[test]
fn a_switch_that_sleeps_is_woken_by_kicks_and_finds_what_comes_without() {
    for features in [OFFERED, OFFERED & !EVENT_IDX] {
        let kind = DriverConfig { features, ..config() };
        let mut rig = Rig::new(&[kind, kind]);
        let mut engine = std::mem::replace(
            &mut rig.engine,
            sluicenet_dataplane::engine::Engine::new(1, crate::vhost_rig::patient()),
        );
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            engine.run(&stopped).unwrap();
            engine
        });
        let exchange = |rig: &mut Rig, n: u64, kick: bool| {
            let sent = frame(0, 1, n, 100);
            assert!(rig.guest(0).send(&sent).unwrap());
            if kick {
                rig.guest(0).publish();
            } else {
                // A driver that never kicks (HOSTILE 15).
                rig.guest(0).publish_silently();
            }
            let started = std::time::Instant::now();
            loop {
                if let Some(got) = rig.receive(1) {
                    assert_eq!(got, sent);
                    break;
                }
                assert!(started.elapsed().as_secs() < 60, "a lost wake-up");
                std::thread::yield_now();
            }
        };
        for n in 0..200 {
            exchange(&mut rig, n, true);
            std::thread::sleep(std::time::Duration::from_micros(n * 20));
        }
        let kicks = rig.guest(0).kicks();
        assert!(kicks > 0);
        for n in 0..20 {
            exchange(&mut rig, n, false);
        }
        // Under load hardly any are needed. Kicks without end change nothing.
        for n in 0..20_000 {
            exchange(&mut rig, n, true);
        }
        for n in 0..20_000 {
            rig.guest(0).kick(1);
            if n % 100 == 0 {
                exchange(&mut rig, n, true);
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let engine = thread.join().unwrap();
        assert!(engine.sleeps() > 10);
        assert_eq!(engine.ledger().2, 0);
    }
}
