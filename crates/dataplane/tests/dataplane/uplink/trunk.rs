//! A link without an overlay: overload, a device that takes nothing, storms of pauses, hostile neighbours.

use super::*;
use sluicenet_node::vale::{Action, WatchdogConfig};
use sluicenet_wire::pfc;

#[test]
fn over_a_trunk_an_overload_pauses_the_link_and_loses_nothing() {
    let (a, b) = Local::pair().unwrap();
    let mut servers = [trunk(1, a), trunk(2, b)];
    // An ARP request goes to everybody, tagged on its way.
    servers[0].send(0, &request(1, 3));
    until(&mut servers, |[_, b]| b.receive(0).is_some());
    until(&mut servers, |[_, b]| b.receive(1).is_some());
    // The tag is the link's.
    let mut seen = None;
    servers[0].send(0, &frame(1, 3, 5, 100));
    until(&mut servers, |[_, b]| {
        seen = b.receive(0);
        seen.is_some()
    });
    assert_eq!(seen.map(|f| f.len()), Some(100));
    overload(&mut servers);
}

fn watchdog(action: Action, time: Duration) -> WatchdogConfig {
    let [detection_time, isolation_time, restoration_time] = [time; 3];
    WatchdogConfig { action, detection_time, isolation_time, restoration_time }
}

#[test]
fn a_device_that_takes_nothing_holds_nobody_for_ever() {
    let (device, _neighbour) = Local::pair().unwrap();
    let mut server = Server::new(1, access);
    let times = Duration::from_ms(30);
    server.engine.set_watchdog(watchdog(Action::Drop, times));
    server.engine.plug(UPLINK, "uplink", Box::new(Uplink::trunk(device, link(1))), Access::default()).unwrap();
    let start = Instant::now();
    let (mut sent, mut here) = (0, 0);
    // More than device, uplink and switch hold together; the other station of this server is reached all the while.
    while sent < 5_000 {
        assert!(start.elapsed().as_secs() < 60, "still held back after {sent} frames");
        sent += u64::from(server.send(0, &frame(1, 50, sent, 1_400)));
        here += u64::from(server.send(1, &frame(2, 1, here, 60)));
        server.engine.round();
        while server.receive(0).is_some() {}
    }
    assert!(here > 1_000);
    let report = server.engine.report(UPLINK).unwrap();
    assert!(report.isolated && report.counters.dropped.frames(DropReason::Watchdog) > 0);
    server.engine.ledger();
}

/// Who only counts, or does not look, loses nothing to a pause however long it is.
#[test]
fn the_watchdogs_action_holds_for_an_uplink_too() {
    for (action, counts) in [(Action::Alert, true), (Action::Off, false)] {
        let (device, mut neighbour) = Local::pair().unwrap();
        let mut server = trunk(1, device);
        let times = Duration::from_ms(20);
        server.engine.set_watchdog(watchdog(action, times));
        let pause = |quanta| pfc::Repr { source: mac(9), class_enable: 1 << 3, quanta: [quanta; 8] }.emit();
        let (start, mut sent, mut arrived) = (Instant::now(), 0, 0);
        while start.elapsed().as_millis() < 200 || counts && server.own("storms_detected") == 0 {
            assert!(start.elapsed().as_secs() < 60, "no storm was counted");
            let _ = neighbour.send(&pause(u16::MAX)).unwrap();
            server.engine.round();
            if sent < 20 {
                sent += u64::from(server.send(0, &frame(1, 50, sent, 1_000)));
            }
        }
        neighbour.receive(&mut |frame| assert_ne!(frame[11], 1, "a frame of class 3")).unwrap();
        let _ = neighbour.send(&pause(0)).unwrap();
        while arrived < sent {
            assert!(start.elapsed().as_secs() < 60, "{arrived} of {sent} arrived");
            server.engine.round();
            neighbour.receive(&mut |frame| arrived += u64::from(frame[11] == 1)).unwrap();
        }
        assert_eq!((server.own("storms_detected") > 0, server.own("watchdog"), sent), (counts, 0, 20));
    }
}

#[test]
fn hostile_neighbours_at_a_port() {
    let (device, mut neighbour) = Local::pair().unwrap();
    let mut server = Server::new(1, access);
    let times = Duration::from_ms(30);
    let patience = Link { detection_time: times, restoration_time: times, ..link(1) };
    server.engine.plug(UPLINK, "uplink", Box::new(Uplink::trunk(device, patience)), Access::default()).unwrap();
    let pause = |classes, quanta| pfc::Repr { source: mac(9), class_enable: classes, quanta: [quanta; 8] }.emit();
    // It pauses class 3 for ever: class 1 goes on, and after the detection time whoever sends in class 3 does, too.
    let start = Instant::now();
    let (mut fast, mut slow, mut number) = (0, 0, 0);
    while slow < 2_000 {
        assert!(start.elapsed().as_secs() < 60, "still held back");
        let _ = neighbour.send(&pause(1 << 3, u16::MAX)).unwrap();
        slow += u64::from(server.send(0, &frame(1, 50, number, 1_000)));
        server.send(1, &frame(2, 51, number, 60));
        number += 1;
        server.engine.round();
        neighbour
            .receive(&mut |frame| {
                assert_ne!(frame[11], 1, "a frame of class 3");
                fast += u64::from(frame[11] == 2);
            })
            .unwrap();
    }
    assert!(fast > 100, "{fast}");
    assert_eq!(server.own("storms_detected"), 1);
    assert!(server.own("watchdog") > 0);
    // It stops: the class comes back.
    let (start, mut back) = (Instant::now(), 0);
    while back == 0 {
        assert!(start.elapsed().as_secs() < 60, "not restored");
        server.send(0, &frame(1, 50, 0, 1_000));
        server.engine.round();
        neighbour.receive(&mut |frame| back += u64::from(frame[11] == 1)).unwrap();
    }
    assert_eq!(server.own("storms_restored"), 1);
    // Nonsense of every kind harms nobody.
    let mut rng = unguessable().unwrap();
    for _ in 0..20_000 {
        let mut frame = match rng.below(3) {
            0 => pause(rng.next_u64() as u8 & !0b1010, 100).to_vec(),
            _ => frame(50, 1, 0, 60 + rng.below(100) as usize),
        };
        frame[rng.below(60) as usize] = rng.next_u64() as u8;
        frame.truncate(1 + rng.below(frame.len() as u64) as usize);
        let _ = neighbour.send(&frame).unwrap();
        server.engine.round();
        while server.receive(0).is_some() || server.receive(1).is_some() {}
    }
    server.engine.ledger();
    assert!(server.own("control_short") > 0 && server.own("malformed") > 0);
}
