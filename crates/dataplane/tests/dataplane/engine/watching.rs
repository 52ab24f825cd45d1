//! Observers: captures and events.

use super::*;
use sluicenet_dataplane::engine::Happened;
use sluicenet_dataplane::tap::Direction;
use sluicenet_proto::loss::DropReason;

#[test]
fn who_looks_on_sees_what_passes_and_what_is_dropped() {
    let (mut engine, mut clients) = switch(3, 8, ValeConfig { slots: 4, ..patient() });
    let (tap_a, at_a) = sluicenet_dataplane::tap::tap(40);
    let (tap_b, at_b) = sluicenet_dataplane::tap::tap(2048);
    assert!(engine.set_tap(0, tap_a) && engine.set_tap(1, tap_b));
    let next = |capture: &sluicenet_dataplane::tap::Capture| capture.next(std::time::Duration::ZERO).ok();
    // Straight through: in at one, out at the other.
    assert!(clients[0].send(&frame(0, 1, 1, 100)).unwrap());
    let _ = clients[0].publish();
    engine.round();
    let (a, b) = (next(&at_a).unwrap(), next(&at_b).unwrap());
    assert_eq!((a.direction, a.len, a.dropped, &a.bytes[..]), (Direction::In, 100, None, &frame(0, 1, 1, 100)[..40]));
    assert_eq!((b.direction, b.len, b.dropped, &b.bytes[..]), (Direction::Out, 100, None, &frame(0, 1, 1, 100)[..]));
    assert_eq!(received(&mut clients[1]), Some((0, 1)));
    // Refused on arrival: the address of another port.
    assert!(clients[0].send(&frame(2, 1, 2, 60)).unwrap());
    let _ = clients[0].publish();
    engine.round();
    assert_eq!(next(&at_a).unwrap().dropped, Some(DropReason::ForgedSource));
    // Four of six are delivered into the four buffers to receive with; the others are seen when they are.
    for number in 3..9 {
        assert!(clients[2].send(&frame(2, 1, number, 60)).unwrap());
        let _ = clients[2].publish();
        engine.round();
    }
    let outs = |capture| std::iter::from_fn(|| next(capture)).filter(|f| f.direction == Direction::Out).count();
    assert_eq!((outs(&at_b), engine.report(1).unwrap().output[0]), (4, 2));
    assert_eq!(received(&mut clients[1]), Some((2, 3)));
    engine.round();
    assert_eq!((outs(&at_b), engine.report(1).unwrap().output[0]), (1, 1));
    // Frames that wait for an unplugged port are dropped by name before the port's captures end.
    let waiting: u32 = engine.report(1).unwrap().output.iter().sum();
    assert_eq!(waiting, 1);
    engine.unplug(1);
    let gone = std::iter::from_fn(|| next(&at_b)).filter(|f| f.dropped == Some(DropReason::PortGone)).count();
    assert_eq!(gone as u32, waiting);
    assert_eq!(
        at_b.next(std::time::Duration::ZERO),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected),
        "a capture ends with its port"
    );
    // Only one capture at a time.
    assert!(
        !engine.set_tap(0, sluicenet_dataplane::tap::tap(60).0)
            && !engine.set_tap(1, sluicenet_dataplane::tap::tap(60).0)
    );
    at_a.close();
    assert!(engine.set_tap(0, sluicenet_dataplane::tap::tap(60).0));
    let (a, c) = (engine.report(0).unwrap(), engine.report(2).unwrap());
    assert_eq!((a.bytes_from, c.bytes_from), (100 + 60, 6 * 60));
    engine.ledger();
}

#[test]
fn what_happens_seldom_is_told() {
    let config = ValeConfig { watchdog: quick(Duration::from_ms(1)), ..patient() };
    let (mut engine, mut clients) = switch(2, 2, config);
    let events = engine.events();
    let told = |engine: &mut Engine, wanted: Happened| loop {
        engine.round();
        match events.try_recv() {
            Ok(event) => break assert_eq!((event.port.as_str(), event.what), ("test-1", wanted)),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    // One buffer to receive with: the second frame waits until the first is received.
    for number in 0..2 {
        while !clients[0].send(&frame(0, 1, number, 60)).unwrap() {
            engine.round();
        }
        let _ = clients[0].publish();
        engine.round();
    }
    told(&mut engine, Happened::Isolated);
    assert!(received(&mut clients[1]).is_some());
    told(&mut engine, Happened::Restored);
    engine.ledger();
}
