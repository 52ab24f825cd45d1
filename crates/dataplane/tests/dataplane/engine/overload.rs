//! Overload of a receiver: waiting frames, lost frames, and resumed senders.

use super::*;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::loss::DropReason;

#[test]
fn two_senders_at_full_speed_and_a_slow_receiver_lose_nothing() {
    // Experiment 1 of Crisan 2014, 4.2.3, between the ports of the switch.
    let (mut engine, mut clients) = switch(3, 64, patient());
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let mut refused = 0;
    for turn in 0..40_000 {
        for (j, client) in clients[..2].iter_mut().enumerate() {
            if client.send(&frame(j, 2, sent[j], 64 + turn % 1_400)).unwrap() {
                sent[j] += 1;
            } else {
                refused += 1;
            }
            let _ = client.publish();
        }
        engine.round();
        if turn % 3 == 0
            && let Some((j, number)) = received(&mut clients[2])
        {
            assert_eq!(number, seen[j], "in order, and each once");
            seen[j] += 1;
        }
    }
    assert!(refused > 10_000, "the senders were held back {refused} times");
    while engine.round() > 0 || engine.queued() > 0 {
        while let Some((j, number)) = received(&mut clients[2]) {
            assert_eq!(number, seen[j]);
            seen[j] += 1;
        }
    }
    while let Some((j, _)) = received(&mut clients[2]) {
        seen[j] += 1;
    }
    assert_eq!(sent, seen);
    assert!(sent[0].abs_diff(sent[1]) < sent[0] / 10, "{sent:?}");
    let (accepted, delivered, dropped) = engine.ledger();
    assert_eq!((accepted, delivered, dropped), (sent[0] + sent[1], sent[0] + sent[1], 0));
}

#[test]
fn the_lossy_twin_loses_more_than_half() {
    let config = ValeConfig { lossless: PrioritySet::NONE, slots: 16, ..patient() };
    let (mut engine, mut clients) = switch(3, 64, config);
    let mut sent = 0;
    for turn in 0..10_000 {
        for (j, client) in clients[..2].iter_mut().enumerate() {
            sent += u64::from(client.send(&frame(j, 2, 0, 64)).unwrap());
            let _ = client.publish();
        }
        engine.round();
        if turn % 3 == 0 {
            received(&mut clients[2]);
        }
    }
    let lost = engine.report(2).unwrap().counters.dropped.frames(DropReason::VswitchVm);
    assert!(sent == 20_000 && lost > sent / 2, "{lost} of {sent}");
    engine.ledger();
}

#[test]
fn a_stopped_receiver_stops_nobody_else() {
    let (mut engine, mut clients) = switch(4, 64, ValeConfig { slots: 32, ..patient() });
    let mut through = 0;
    for number in 0..20_000 {
        // Port 0 sends to the one that never takes anything, port 1 to one that does.
        clients[0].send(&frame(0, 2, number, 64)).unwrap();
        clients[1].send(&frame(1, 3, number, 64)).unwrap();
        let _ = (clients[0].publish(), clients[1].publish());
        engine.round();
        through += u64::from(received(&mut clients[3]).is_some());
    }
    assert_eq!(through, 20_000);
    assert_eq!(engine.report(2).unwrap().counters.dropped.total_frames(), 0);
    engine.ledger();
}

#[test]
fn the_watchdog_frees_who_waits_for_a_stuck_receiver() {
    let config = ValeConfig { slots: 16, watchdog: quick(Duration::from_ms(20)), ..patient() };
    let (mut engine, mut clients) = switch(3, 64, config);
    let start = std::time::Instant::now();
    let mut through = 0;
    while through < 100 {
        assert!(start.elapsed().as_secs() < 60, "still held back");
        clients[0].send(&frame(0, 2, 0, 64)).unwrap();
        clients[0].send(&frame(0, 1, 0, 64)).unwrap();
        let _ = clients[0].publish();
        engine.round();
        // The sender goes on only when its frames for port 2 are dropped.
        if engine.report(2).unwrap().isolated {
            through += u64::from(received(&mut clients[1]).is_some());
        }
    }
    let stuck = engine.report(2).unwrap();
    assert!(stuck.counters.isolated == 1 && stuck.counters.dropped.frames(DropReason::Watchdog) > 0);
    // The port takes frames again, and is restored.
    while engine.report(2).unwrap().isolated {
        assert!(start.elapsed().as_secs() < 60, "never restored");
        received(&mut clients[2]);
        engine.round();
    }
    engine.ledger();
}

#[test]
fn a_port_with_a_limit_sends_no_more_and_loses_nothing() {
    use sluicenet_proto::units::Rate;
    const FRAMES: u64 = 400;
    let (mut engine, mut clients) = switch(3, 64, patient());
    // 1,000 bytes and their check sequence at 8.032 Mb/s take a millisecond.
    assert!(engine.set_send_rate(0, Some(Rate(8_032_000))));
    assert_eq!(engine.report(0).unwrap().send_rate, Some(Rate(8_032_000)));
    let started = std::time::Instant::now();
    let (mut sent, mut seen, mut others, mut refused) = (0, 0, 0, 0);
    while seen < FRAMES {
        if sent < FRAMES {
            match clients[0].send(&frame(0, 2, sent, 1_000)).unwrap() {
                true => sent += 1,
                false => refused += 1,
            }
            let _ = clients[0].publish();
        }
        // The other sender has no limit.
        clients[1].send(&frame(1, 2, others, 64)).unwrap();
        let _ = clients[1].publish();
        engine.round();
        while let Some((from, number)) = received(&mut clients[2]) {
            match from {
                0 => {
                    assert_eq!(number, seen, "in order, and each once");
                    seen += 1;
                }
                _ => others += 1,
            }
        }
        // A late loop catches up by a millisecond, and the first frame needs no wait.
        assert!(u128::from(seen) <= started.elapsed().as_millis() + 2, "{seen} after {:?}", started.elapsed());
    }
    assert!(refused > 0, "the sender was not held back");
    assert_eq!(engine.report(0).unwrap().counters.refused.total_frames(), 0);
    // Without a limit it goes on at once.
    assert!(engine.set_send_rate(0, None));
    for number in 0..32 {
        assert!(clients[0].send(&frame(0, 2, number, 1_000)).unwrap());
    }
    let _ = clients[0].publish();
    while engine.round() > 0 {}
    engine.ledger();
    assert_eq!((0..).take_while(|_| received(&mut clients[2]).is_some()).count(), 32);
}
