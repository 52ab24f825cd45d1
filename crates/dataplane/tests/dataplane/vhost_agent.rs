//! A guest whose agent reports its free room, and guests that abuse that.

use crate::vhost_rig::{Rig, frame, mac, number};
use sluicenet_dataplane::vhost::driver::DriverConfig;
use sluicenet_proto::agent::talk::Marks;
use sluicenet_proto::loss::DropReason;
use sluicenet_wire::agent::{LEN, Message, Repr};
use sluicenet_wire::ethernet::MacAddress;

fn word(k: usize, number: u64, room: u32, lifetime_ms: u16) -> [u8; LEN] {
    Repr { source: MacAddress(mac(k)), message: Message::Grant { number, lifetime_ms, room } }.emit()
}

/// A switch with a plain guest, and a guest with an agent and this number of queue pairs.
fn rig(pairs: usize) -> Rig {
    let mut rig = Rig::empty(2);
    rig.plug(0);
    rig.connect(0, DriverConfig::default());
    rig.plug_with_agent(1);
    rig.connect(1, DriverConfig { pairs: pairs as u16, ..DriverConfig::default() });
    rig
}

/// The next frame that guest 1 has in one of its queues.
fn receive(rig: &mut Rig, pair: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 2_000];
    let got = rig.guest(1).receive_with(pair, &mut bytes).unwrap()?;
    rig.guest(1).publish();
    bytes.truncate(got.len);
    Some(bytes)
}

/// The guest's agent answers marks, as soon as there are any, until it is believed.
fn grant(rig: &mut Rig, pairs: usize, marks: &mut Marks, room: u32, lifetime_ms: u16) {
    rig.until("the grant", |rig| {
        drain(rig, pairs, &mut Vec::new(), marks);
        if marks.last() != 0 {
            rig.send(1, &word(1, marks.last(), room, lifetime_ms));
        }
        rig.counter(1, "agent") == 1
    });
}

/// Receives at guest 1 until nothing more arrives: frames by number, and marks.
fn drain(rig: &mut Rig, pairs: usize, seen: &mut Vec<u64>, marks: &mut Marks) {
    for _ in 0..200 {
        rig.engine.round();
        while let Some(got) = (0..pairs).find_map(|pair| receive(rig, pair)) {
            match Repr::parse(&got) {
                Ok(Repr { message: Message::Mark { number, part, parts }, .. }) => {
                    marks.take(number, part, parts);
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => seen.push(number(&got)),
            }
        }
    }
}

#[test]
fn a_guest_gets_what_its_agent_granted_and_no_more() {
    for pairs in [1, 3] {
        let mut rig = rig(pairs);
        let (mut seen, mut marks) = (Vec::new(), Marks::default());
        let mut sent = 0;
        let mut send = |rig: &mut Rig, count: u64| {
            for _ in 0..count {
                assert!(rig.send(0, &frame(0, 1, sent, 100)));
                sent += 1;
                rig.engine.round();
            }
        };
        // A guest whose agent was not heard in time is not limited, nor is one whose grant answers no mark.
        rig.send(1, &word(1, 12345, 3, 60_000));
        rig.until("the word", |rig| rig.counter(1, "agent_grants") == 1);
        // As many as were granted behind a mark that came through each queue, however many there are.
        grant(&mut rig, pairs, &mut marks, 5, 60_000);
        send(&mut rig, 60);
        let before = marks.last();
        drain(&mut rig, pairs, &mut seen, &mut marks);
        assert_eq!(seen.len(), 5, "{seen:?}");
        assert!(marks.last() != before, "it is asked for more");
        assert_eq!((rig.counter(1, "agent_granted"), rig.counter(1, "agent_held")), (0, 1));
        // The mark came before the last frames, so the new grant covers some of them.
        rig.send(1, &word(1, marks.last(), 20, 60_000));
        drain(&mut rig, pairs, &mut seen, &mut marks);
        assert!((21..=25).contains(&seen.len()), "{seen:?}");
        // The agent leaves: all other frames arrive, and nothing was lost.
        rig.send(1, &word(1, marks.last(), 0, 0));
        drain(&mut rig, pairs, &mut seen, &mut marks);
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<u64>>());
        assert_eq!((rig.counter(1, "agent"), rig.counter(1, "agent_lost")), (0, 0));
    }
}

#[test]
fn an_agent_that_falls_silent_is_lost_and_its_port_goes_on() {
    let (mut rig, pairs) = (rig(1), 1);
    let (mut seen, mut marks) = (Vec::new(), Marks::default());
    grant(&mut rig, pairs, &mut marks, 2, 1_000);
    for n in 0..50 {
        assert!(rig.send(0, &frame(0, 1, n, 100)));
    }
    rig.until("all of it", |rig| {
        while let Some(got) = rig.receive(1) {
            if Repr::parse(&got).is_err() {
                seen.push(number(&got));
            }
        }
        seen.len() == 50
    });
    assert_eq!((rig.counter(1, "agent_lost"), rig.counter(1, "agent_bad")), (1, 0));
}

#[test]
fn an_agents_words_go_nowhere_and_too_many_of_them_hold_nobody_up() {
    let mut rig = rig(1);
    // A port without an agent takes no such word: HOSTILE 17.
    assert!(rig.send(0, &word(0, 1, 0, 1_000)));
    rig.until("its refusal", |rig| rig.engine.report(0).unwrap().counters.refused.frames(DropReason::Reserved) == 1);
    // A port with an agent takes in all messages, good or bad, and goes on.
    let good = word(1, 7, u32::MAX, 60_000);
    let mut bad = good;
    bad[18] = 99;
    let mut sent = 0;
    for round in 0..2_000 {
        for _ in 0..200 {
            sent += u64::from(rig.send(1, if round % 2 == 0 { &good } else { &bad }));
        }
        rig.engine.round();
    }
    rig.until("the last word", |rig| rig.counter(1, "agent_grants") + rig.counter(1, "agent_bad") == sent);
    assert!(rig.counter(1, "agent_grants") > 1_000 && rig.counter(1, "agent_bad") > 1_000);
    assert_eq!(rig.counter(1, "agent"), 0);
    rig.check_passage(1, 0);
    let sent = frame(0, 1, 77, 300);
    assert!(rig.send(0, &sent));
    rig.until("a frame towards it", |rig| std::iter::from_fn(|| rig.receive(1)).any(|got| got == sent));
    // Nothing else came to the other one.
    assert_eq!(rig.engine.report(0).unwrap().counters.delivered, 1);
}

#[test]
fn a_switch_that_starts_again_asks_anew_and_believes_nothing_older() {
    let (mut rig, pairs) = (rig(1), 1);
    let (mut seen, mut marks) = (Vec::new(), Marks::default());
    grant(&mut rig, pairs, &mut marks, 1_000, 60_000);
    let old = marks.last();
    rig.engine = sluicenet_dataplane::engine::Engine::new(2, crate::vhost_rig::patient());
    rig.plug(0);
    rig.plug_with_agent(1);
    for k in 0..2 {
        let (mut driver, path) = (rig.guests[k].take().unwrap(), rig.path(k));
        rig.guests[k] = Some(rig.during(move || {
            driver.reconnect(&path).unwrap();
            driver
        }));
    }
    // Grants to the previous driver are worth nothing. A new mark arrives as soon as the guest receives.
    rig.send(1, &word(1, old, 1_000, 60_000));
    rig.until("the word", |rig| rig.counter(1, "agent_unmatched") == 1);
    assert_eq!(rig.counter(1, "agent"), 0);
    rig.until("a mark", |rig| {
        drain(rig, pairs, &mut Vec::new(), &mut marks);
        marks.last() != old
    });
    grant(&mut rig, pairs, &mut marks, 2, 60_000);
    (0..9).for_each(|n| assert!(rig.send(0, &frame(0, 1, n, 100))));
    drain(&mut rig, pairs, &mut seen, &mut marks);
    assert_eq!(seen, [0, 1]);
}
