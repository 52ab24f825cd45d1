//! Ports that come, go, sleep and break the rules.

use super::*;
use sluicenet_dataplane::region::{Region, RingCells};
use sluicenet_dataplane::ring::{Cells, Producer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn broadcasts_reach_all_and_come_back_once() {
    let (mut engine, mut clients) = switch(4, 16, patient());
    for number in 0..1_000 {
        let mut all = frame(0, 1, number, 64);
        all[..6].fill(0xff);
        assert!(clients[0].send(&all).unwrap(), "its buffers came back");
        let _ = clients[0].publish();
        engine.round();
        for client in &mut clients[1..] {
            assert_eq!(received(client), Some((0, number)));
        }
        engine.round();
    }
    assert_eq!(engine.ledger(), (3_000, 3_000, 0));
}

#[test]
fn a_port_that_leaves_leaves_nothing_behind() {
    let (mut engine, mut clients) = switch(3, 16, patient());
    for number in 0..8 {
        clients[1].send(&frame(1, 2, number, 64)).unwrap();
        clients[0].send(&frame(0, 1, number, 64)).unwrap();
    }
    let _ = (clients[0].publish(), clients[1].publish());
    // Port 1 goes away with frames on their way to and from it.
    for _ in 0..3 {
        engine.round();
    }
    engine.unplug(1);
    drop(clients.remove(1));
    let mut seen = 0;
    for _ in 0..10 {
        engine.round();
        while received(&mut clients[1]).is_some() {
            seen += 1;
        }
    }
    assert_eq!(seen, 8);
    engine.ledger();
    assert!(engine.report(1).is_none());
    // Another client is plugged in there.
    let mut newcomer = open(plug(&mut engine, 1, 32));
    assert!(clients[0].send(&frame(0, 1, 7, 64)).unwrap());
    let _ = clients[0].publish();
    engine.round();
    assert_eq!(received(&mut newcomer), Some((0, 7)));
}

/// The producing end of the ring of a port by which its program sends, for one that keeps no rules.
fn rogue(access: &Access, buffers: u32) -> (Arc<Region>, RingCells) {
    let region = Arc::new(Region::open(access.memory.try_clone().unwrap()).unwrap());
    let send = RingCells::new(&region, 256, buffers);
    (region, send)
}

#[test]
fn entries_that_name_nothing_are_counted_and_skipped() {
    let mut engine = Engine::new(2, patient());
    let access = plug(&mut engine, 0, 16);
    let (_region, cells) = rogue(&access, 16);
    let mut good = open(plug(&mut engine, 1, 16));
    let mut send = Producer::new(cells);
    for entry in [16, u64::MAX, 3, 3 | 13 << 32, 3 | 2_049 << 32, 5 | 60 << 32] {
        send.push(entry);
    }
    let _ = send.publish();
    engine.round();
    // The last entry is a frame of zeros, for a station that no port has, and from an address that is no machine's.
    let report = engine.report(0).unwrap();
    assert_eq!(
        report.own,
        [("bad_entries", 5), ("sockets_stuck", 0), ("sockets_stuck_now", 0), ("sockets_ignored", 0)]
    );
    assert_eq!(report.counters.refused.total_frames() + report.counters.accepted, 1);
    assert!(good.send(&frame(1, 0, 1, 64)).unwrap());
    engine.ledger();
}

#[test]
fn an_index_that_jumps_costs_the_port_and_nothing_else() {
    for (ring, word) in [(0, 0), (1, 1), (2, 1), (3, 0)] {
        let mut engine = Engine::new(3, patient());
        let accesses: Vec<Access> = (0..3).map(|k| plug(&mut engine, k, 16)).collect();
        let region = Arc::new(Region::open(accesses[0].memory.try_clone().unwrap()).unwrap());
        let mut clients: Vec<Client> = accesses.into_iter().map(open).collect();
        let cells = RingCells::new(&region, 256 + ring * RingCells::bytes(16), 16);
        let index = if word == 0 { cells.produced() } else { cells.consumed() };
        index.store(1_000_000, Ordering::Relaxed);
        for number in 0..200 {
            // The client goes on sending, others send to it, and two others send to each other.
            let _ = clients[0].send(&frame(0, 2, number, 64));
            let _ = clients[0].publish();
            clients[1].send(&frame(1, 0, number, 64)).unwrap();
            clients[1].send(&frame(1, 2, number, 64)).unwrap();
            clients[2].send(&frame(2, 1, number, 64)).unwrap();
            let _ = (clients[1].publish(), clients[2].publish());
            engine.round();
            engine.round();
            while received(&mut clients[2]).is_some() {}
            while received(&mut clients[1]).is_some() {}
        }
        let report = |k| engine.report(k).unwrap().counters;
        assert!(report(2).delivered >= 180 && report(1).delivered >= 180, "ring {ring}: {}", report(2).delivered);
        engine.ledger();
    }
}

#[test]
fn a_program_that_sleeps_is_woken_and_so_is_the_switch() {
    let mut engine = Engine::new(2, patient());
    let (a, b) = (plug(&mut engine, 0, 16), plug(&mut engine, 1, 16));
    let (kick_a, wake_b, kick_b) =
        (a.kick.try_clone().unwrap(), b.wake.try_clone().unwrap(), b.kick.try_clone().unwrap());
    let (mut sender, mut receiver) = (open(a), open(b));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let switch = std::thread::spawn(move || {
        engine.run(&stopped).unwrap();
        engine.ledger()
    });
    let wait = |fd: &std::os::fd::OwnedFd| {
        let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "nobody woke the program");
        rustix::io::read(fd, &mut [0u8; 8]).unwrap();
    };
    let ring = |fd: &std::os::fd::OwnedFd| assert!(rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok());
    for number in 0..200 {
        // Long enough for all to fall asleep, now and then.
        if number % 20 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        assert!(sender.send(&frame(0, 1, number, 64)).unwrap());
        if sender.publish() {
            ring(&kick_a);
        }
        loop {
            let mut bytes = [0; 2048];
            if receiver.receive(&mut bytes).unwrap().is_some() {
                assert_eq!(bytes[14..22], number.to_le_bytes());
                if receiver.publish() {
                    ring(&kick_b);
                }
                break;
            }
            if receiver.fall_asleep().unwrap() {
                wait(&wake_b);
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    ring(&kick_a);
    assert_eq!(switch.join().unwrap(), (200, 200, 0));
}

#[test]
fn a_thousand_ports_are_served() {
    const PORTS: usize = sluicenet_node::vale::PORTS_MAX;
    let mac = |k: usize| [2, 1, 0, 0, (k >> 8) as u8, k as u8];
    let mut engine = Engine::new(PORTS, ValeConfig { stations: 2 * PORTS, ..patient() });
    let mut plug = |k: usize| {
        let access = engine.plug_shm(k, &format!("test-{k}"), 4).unwrap();
        assert!(engine.give(mac(k), 0, k));
        open(access)
    };
    let mut clients: Vec<Client> = (0..PORTS).map(&mut plug).collect();
    // Each port sends to the next one.
    for (k, client) in clients.iter_mut().enumerate() {
        let mut frame = frame(0, 0, k as u64, 64);
        frame[..6].copy_from_slice(&mac((k + 1) % PORTS));
        frame[6..12].copy_from_slice(&mac(k));
        assert!(client.send(&frame).unwrap());
        let _ = client.publish();
    }
    while engine.round() > 0 {}
    for k in 0..PORTS {
        let (_, number) = received(&mut clients[(k + 1) % PORTS]).expect("a frame");
        assert_eq!(number, k as u64);
    }
    // A flood reaches all others; its buffer comes back after the last copy.
    for _ in 0..8 {
        let mut all = frame(0, 0, 7, 64);
        all[..6].fill(0xff);
        all[6..12].copy_from_slice(&mac(PORTS - 1));
        assert!(clients[PORTS - 1].send(&all).unwrap());
        let _ = clients[PORTS - 1].publish();
        while engine.round() > 0 {}
        assert!((0..PORTS - 1).all(|k| received(&mut clients[k]).is_some_and(|(_, number)| number == 7)));
        engine.round();
    }
    let (accepted, delivered, dropped) = engine.ledger();
    assert_eq!((accepted, delivered, dropped), (1_024 + 8 * 1_023, 1_024 + 8 * 1_023, 0));
}
