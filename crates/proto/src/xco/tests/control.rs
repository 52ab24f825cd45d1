//! Controllers and coordinators together: turns, joining and leaving, death and takeover, liars, and a campaign of faults.

use super::world::{DELAY, FRAME, Faults, LEASE, World, controller_mac, mac};
use super::{GBPS, rows};
use crate::time::Duration;
use crate::xco::controller::{ControllerConfig, PolicyConfig, Weights};
use crate::xco::coordinator::{SMALL_BURST_BYTES, STARVED};
use crate::xco::slices::SliceConfig;
use crate::xco::topology::Topology;
use crate::xco::{Limits, Node};
use sluicenet_wire::xco::{Change, Entry, Frame, Head, Message, NOWHERE};

const SLICE: Duration = Duration::from_ms(2);

fn config() -> ControllerConfig {
    ControllerConfig {
        policy: PolicyConfig::Slices(SliceConfig::new(SLICE)),
        limits: Limits { flows: 512, flows_per_node: 16 },
        lease: LEASE,
        on_demand: false,
        weights: Weights::default(),
        nodes: alloc::vec::Vec::new(),
        peer: None,
        hierarchy: None,
        seed: 5,
    }
}

fn world(topology: Topology, config: ControllerConfig) -> World {
    World::new(topology, config, 1, 1)
}

/// Frames of 1 Gb/s in so much time.
fn frames(time: Duration) -> u64 {
    time.0 / (FRAME * 8_000)
}

#[test]
fn senders_take_turns_and_the_link_is_full() {
    let mut w = world(rows(1, 1, 6, 10 * GBPS), config());
    (1..6).for_each(|n| w.offer(n, 0, 100_000));
    w.run(Duration::from_ms(200));
    let sent: alloc::vec::Vec<u64> = (1..6).map(|n| w.sent(n, 0)).collect();
    let (total, share) = (sent.iter().sum::<u64>(), frames(Duration::from_ms(40)));
    assert!(total * 100 >= 97 * frames(Duration::from_ms(200)), "{sent:?}");
    assert!(sent.iter().all(|sent| sent.abs_diff(share) <= share / 10), "{sent:?}");
    assert!(w.most_percent() <= 101, "{}", w.most_percent());
}

/// A new flow without contention sends within 1 ms (4.8).
#[test]
fn a_new_flow_without_contention_sends_at_once() {
    let mut w = world(rows(1, 1, 4, 10 * GBPS), config());
    w.run(Duration::from_ms(5));
    w.offer(1, 0, 50);
    w.run(DELAY + DELAY + Duration::from_us(20));
    assert!(w.sent(1, 0) > 0);
    assert!(w.drain(Duration::from_ms(2)));
}

/// 4.7: three slow senders give their slices back, and the others have the rest.
#[test]
fn what_slow_senders_leave_goes_to_the_others() {
    let run = |conserves: bool| {
        let mut w = world(rows(1, 1, 6, 10 * GBPS), config());
        if !conserves {
            let without = |c: &crate::xco::coordinator::Coordinator| c.without_hysteresis();
            w.coordinators = w.coordinators.iter().map(without).collect();
        }
        (4..6).for_each(|n| w.offer(n, 0, 1_000_000));
        for _ in 0..200 {
            // A frame in 246 us: 50 Mb/s.
            (1..4).for_each(|n| w.offer(n, 0, 4));
            w.run(Duration::from_us(984));
        }
        (1..6).map(|n| w.sent(n, 0)).sum::<u64>() * 100 / frames(Duration::from_us(984 * 200))
    };
    let (without, with) = (run(false), run(true));
    assert!(without < 70 && with > 90, "{without} % without, {with} % with work conservation");
}

#[test]
fn a_small_flow_does_not_ask() {
    let mut w = world(rows(1, 1, 4, 10 * GBPS), config());
    let small = |c: &crate::xco::coordinator::Coordinator| c.with_small(40_000);
    w.coordinators = w.coordinators.iter().map(small).collect();
    (1..3).for_each(|n| w.offer(n, 0, 100_000));
    w.run(Duration::from_ms(1));
    for _ in 0..100 {
        let before = w.sent(3, 0);
        w.offer(3, 0, 1);
        w.run(Duration::from_us(500));
        assert_eq!(w.sent(3, 0), before + 1);
    }
    // More than a burst waits for its turn.
    let burst = SMALL_BURST_BYTES / FRAME;
    w.run(Duration::from_ms(10));
    let before = w.sent(3, 0);
    w.offer(3, 0, 3 * burst);
    w.run(Duration::from_us(10));
    assert_eq!(w.sent(3, 0), before + burst);
    assert!(w.run_until_sent(3, 0, before + 3 * burst, Duration::from_ms(20)));
}

/// On real hosts a round trip can take longer than a report waits for its repetition.
#[test]
fn reports_are_heard_where_a_round_trip_takes_longer_than_their_repetition() {
    let mut w = world(rows(1, 1, 4, 10 * GBPS), config());
    w.delay = Duration::from_us(400);
    w.run(Duration::from_ms(20));
    w.offer(1, 0, 50);
    w.run(Duration::from_ms(10));
    // The next report begins when this one is acknowledged.
    w.offer(1, 2, 50);
    assert!(w.drain(Duration::from_ms(50)));
    w.run(Duration::from_ms(20));
    let reports = w.coordinators[1].counters().reports;
    w.run(Duration::from_ms(20));
    assert_eq!(w.coordinators[1].counters().reports, reports, "an acknowledged report is repeated");
    assert_eq!(w.controller().flows(), 0);
}

#[test]
fn a_node_that_leaves_or_dies_gets_no_slices() {
    let mut w = world(rows(1, 1, 4, 10 * GBPS), config());
    (1..4).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(20));
    w.coordinators[1].leave();
    w.run(Duration::from_ms(1));
    let c = w.controller();
    assert_eq!((c.counters().left, c.members(), c.flows()), (1, 3, 2));
    // The third is not heard any more.
    w.silence(3);
    w.run(LEASE + LEASE);
    let c = w.controller();
    assert_eq!((c.counters().silent, c.members(), c.flows()), (1, 2, 1));
}

/// Section 7: the network stays alive without a controller.
#[test]
fn without_a_controller_all_send_after_a_lease() {
    let mut w = world(rows(1, 1, 4, 10 * GBPS), config());
    (1..4).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(20));
    let dead = w.controllers[0].take();
    w.run(Duration(LEASE.0 / 2));
    assert!((1..4).all(|n| !w.coordinators[n].is_uncontrolled(w.now)) && w.waiting() > 0);
    w.run(LEASE);
    assert!((1..4).all(|n| w.coordinators[n].is_uncontrolled(w.now)) && w.waiting() == 0);
    // It is back: its directives are obeyed.
    w.controllers[0] = dead;
    (1..4).for_each(|n| w.queues.get_mut(&(n, 0)).unwrap().waiting = 1_000_000);
    w.run(Duration::from_ms(150));
    assert!((1..4).all(|n| !w.coordinators[n].is_uncontrolled(w.now)));
}

#[test]
fn a_standby_takes_over_and_nobody_goes_uncontrolled() {
    let mut w = World::new(rows(1, 1, 4, 10 * GBPS), config(), 2, 3);
    (1..4).for_each(|n| w.offer(n, 0, 10_000_000));
    w.run(Duration::from_ms(30));
    assert!(!w.controllers[1].as_ref().unwrap().is_active());
    let mut old = w.controllers[0].take();
    w.run(LEASE + LEASE + Duration::from_ms(70));
    let standby = w.controllers[1].as_ref().unwrap();
    assert_eq!((standby.is_active(), standby.epoch(), standby.members()), (true, 2, 4));
    assert!((1..4).all(|n| !w.coordinators[n].is_uncontrolled(w.now)));
    let before = [1, 2, 3].map(|n| w.sent(n, 0));
    w.run(Duration::from_ms(30));
    let sent = [1, 2, 3].map(|n| w.sent(n, 0) - before[n as usize - 1]);
    assert!(sent.iter().all(|&sent| sent > frames(Duration::from_ms(8))), "{sent:?}");
    // The first one is back and finds that another is active.
    core::mem::swap(&mut w.controllers[0], &mut old);
    w.run(Duration::from_ms(20));
    let first = w.controllers[0].as_ref().unwrap();
    assert_eq!((first.is_active(), first.epoch()), (false, 2));
}

#[test]
fn weights_are_shares() {
    let mut weighted = config();
    weighted.weights.flows.insert((1, 0), 3);
    weighted.weights.nodes.insert(2, 2);
    let mut w = world(rows(1, 1, 4, 10 * GBPS), weighted);
    (1..4).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(240));
    let unit = frames(Duration::from_ms(40));
    let shares = [1, 2, 3].map(|n| (w.sent(n, 0) + unit / 2) / unit);
    assert_eq!(shares, [3, 2, 1]);
}

#[test]
fn rates_are_kept() {
    let mut rates = config();
    rates.policy = PolicyConfig::Rates(SLICE);
    let mut w = world(rows(1, 1, 6, 10 * GBPS), rates);
    (1..6).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(100));
    let share = frames(Duration::from_ms(20));
    assert!((1..6).all(|n| w.sent(n, 0).abs_diff(share) < share / 5), "{:?}", [1, 2, 3, 4, 5].map(|n| w.sent(n, 0)));
    assert!(w.most_percent() <= 102, "{}", w.most_percent());
}

/// Section 7: a flow is held only while a link of its path is congested.
#[test]
fn on_demand_only_congested_links_are_coordinated() {
    let mut on_demand = config();
    on_demand.on_demand = true;
    let mut w = world(rows(1, 1, 6, 10 * GBPS), on_demand);
    let small = |c: &crate::xco::coordinator::Coordinator| c.with_small(40_000);
    w.coordinators = w.coordinators.iter().map(small).collect();
    w.run(Duration::from_ms(1));
    // 400 Mb/s alone: free.
    for _ in 0..100 {
        w.offer(1, 0, 8);
        w.run(Duration::from_us(246));
    }
    assert_eq!((w.controller().congested(), w.controller().slice_counters().unwrap().granted), (Some(0), 0));
    assert!(w.controller().counters().reports > 0);
    // A second sender makes the link to node 0 congested; the flow from 3 to 4 stays free.
    for _ in 0..100 {
        w.offer(1, 0, 8);
        w.offer(2, 0, 16);
        w.offer(3, 4, 8);
        w.run(Duration::from_us(246));
    }
    assert!(w.controller().congested() > Some(0));
    let granted = w.controller().slice_counters().unwrap().granted;
    assert!(granted > 0);
    assert_eq!(w.coordinators[3].counters().directives, 0);
    assert!(w.coordinators[1].counters().directives + w.coordinators[2].counters().directives > 0);
    assert!(w.drain(Duration::from_ms(50)));
}

/// Whatever happens to messages, frames leave, no link gets much more than it has, and in the end all is as without faults.
#[test]
fn a_campaign_of_faults() {
    for seed in 0..12 {
        let mut w = World::new(rows(2, 1, 5, 2 * GBPS), config(), 1, seed);
        w.faults = Faults { lost: 20 * (seed % 4), repeated: 30, late: 30 * (seed % 3) };
        for n in 0..5 {
            w.offer(n, 5 + (n + seed as Node) % 5, 400);
            w.offer(n, 5 + (n + 1 + seed as Node) % 5, 400);
        }
        assert!(w.drain(Duration::from_ms(400)), "seed {seed}: {} frames wait", w.waiting());
        assert!(w.most_percent() <= 130, "seed {seed}: {} %", w.most_percent());
        w.faults = Faults::default();
        w.run(Duration::from_ms(20));
        let c = w.controller();
        assert_eq!((c.flows(), c.members(), c.counters().forged), (0, 10, 0), "seed {seed}");
    }
}

// Liars.

/// A head of node 3, whose coordinator lies.
fn stolen(w: &World, sequence: u32) -> Head {
    Head { sequence, ..w.coordinators[3].head() }
}

fn report(head: &Head, entries: &[Entry]) -> Frame {
    Frame::report(controller_mac(0), mac(3), head, entries)
}

#[test]
fn a_million_backlogs_harm_only_their_node() {
    let mut w = world(rows(1, 1, 200, 10 * GBPS), config());
    w.run(Duration::from_ms(1));
    (1..3).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(4));
    let mut sequence = 1_000_000;
    // As many as a second has room for at the rate that is allowed.
    for round in 0..300u32 {
        let entry = |n: u32| Entry { destination: (round * 100 + n) % 210, change: Change::Backlogged };
        let entries: alloc::vec::Vec<Entry> = (0..128).map(entry).collect();
        for _ in 0..30 {
            sequence += 1;
            let head = stolen(&w, sequence);
            w.inject(controller_mac(0), report(&head, &entries));
        }
        w.run(Duration::from_us(100));
    }
    let c = *w.controller().counters();
    assert!(c.node_full > 100_000 && c.no_such_node > 1_000 && c.flooded > 1_000, "{c:?}");
    // It has sixteen flows, and no more turns than each other node.
    assert_eq!(w.controller().flows(), 2 + 16);
    let before = [1, 2].map(|n| w.sent(n, 0));
    w.run(Duration::from_ms(60));
    let sent = [1, 2].map(|n| w.sent(n, 0) - before[n as usize - 1]);
    assert!(sent.iter().all(|&sent| sent > frames(Duration::from_ms(18))), "{sent:?}");
}

#[test]
fn a_slice_that_is_not_returned_ends() {
    let mut w = world(rows(1, 1, 5, 10 * GBPS), config());
    w.run(Duration::from_ms(1));
    let head = stolen(&w, 1_000);
    w.inject(controller_mac(0), report(&head, &[Entry { destination: 0, change: Change::Backlogged }]));
    w.silence(3);
    (1..3).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(30));
    let sent = [1, 2].map(|n| w.sent(n, 0));
    assert!(sent.iter().all(|&sent| sent > frames(Duration::from_ms(7))), "{sent:?}");
}

#[test]
fn nobody_speaks_for_another() {
    let mut w = world(rows(1, 1, 5, 10 * GBPS), config());
    w.run(Duration::from_ms(1));
    (1..3).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(3));
    let (good, before) = (w.coordinators[1].head(), *w.controller().counters());
    let frame = |head: &Head, message: Message<'_>| Frame::emit(controller_mac(0), mac(1), head, &message);
    // Another token; a repeated number; a join in its name, from its address and from another.
    w.inject(controller_mac(0), frame(&Head { token: good.token ^ 2, sequence: 900, ..good }, Message::Leave));
    w.inject(controller_mac(0), frame(&Head { sequence: good.sequence, ..good }, Message::Leave));
    let join = Message::Join { node: 1, rate_kbps: GBPS, nonce: 1 };
    w.inject(controller_mac(0), frame(&Head::default(), join));
    w.inject(controller_mac(0), Frame::emit(controller_mac(0), mac(77), &Head::default(), &join));
    let nowhere = Message::Join { node: 500, rate_kbps: GBPS, nonce: 1 };
    w.inject(controller_mac(0), Frame::emit(controller_mac(0), mac(78), &Head::default(), &nowhere));
    let peer = Message::Alive { is_controller: true };
    w.inject(controller_mac(0), Frame::emit(controller_mac(0), mac(79), &Head { epoch: 9, ..good }, &peer));
    w.run(Duration::from_us(100));
    let c = w.controller();
    assert_eq!(c.counters().forged, before.forged + 2);
    assert_eq!(c.counters().stale, before.stale + 1);
    assert_eq!(c.counters().impostors, before.impostors + 3);
    assert_eq!((c.members(), c.flows(), c.epoch()), (5, 2, 1));
}

#[test]
fn directives_of_others_and_of_the_past_are_ignored() {
    let mut w = world(rows(1, 1, 5, 10 * GBPS), config());
    (1..4).for_each(|n| w.offer(n, 0, 1_000_000));
    w.run(Duration::from_ms(20));
    let good = w.coordinators[1].heard();
    let before = *w.coordinators[1].counters();
    let slice = Message::Directive { destination: 0, instead_of: NOWHERE, rate_kbps: 0, length_ns: 100_000_000 };
    let mut send = |from, head: Head, message: Message<'_>| {
        w.inject(mac(1), Frame::emit(mac(1), from, &head, &message));
        w.run(Duration::from_us(1));
        *w.coordinators[1].counters()
    };
    let next = Head { sequence: good.sequence + 10, ..good };
    assert_eq!(send(mac(2), next, slice).strangers, before.strangers + 1);
    assert_eq!(send(controller_mac(0), Head { token: 3, ..next }, slice).forged, before.forged + 1);
    assert_eq!(send(controller_mac(0), Head { epoch: 0, ..next }, slice).forged, before.forged + 2);
    assert_eq!(send(controller_mac(0), good, slice).stale, before.stale + 1);
    let past = Head { clock_ns: good.clock_ns - 1, ..next };
    assert_eq!(send(controller_mac(0), past, slice).backwards, before.backwards + 1);
    assert_eq!(send(controller_mac(0), next, Message::Leave).misdirected, before.misdirected + 1);
    let next = Head { sequence: good.sequence + 11, ..good };
    let unknown = Message::Directive { destination: 4, instead_of: NOWHERE, rate_kbps: 0, length_ns: 1_000 };
    assert_eq!(send(controller_mac(0), next, unknown).unknown, before.unknown + 1);
    // A slice of four seconds is cut.
    let long = Message::Directive { destination: 0, instead_of: NOWHERE, rate_kbps: 0, length_ns: u32::MAX };
    let next = Head { sequence: good.sequence + 12, clock_ns: w.now.0 / 1_000, ..good };
    w.inject(mac(1), Frame::emit(mac(1), controller_mac(0), &next, &long));
    w.run(Duration::from_us(1));
    assert_eq!(w.coordinators[1].counters().too_long, before.too_long + 1);
}

/// A controller that answers but gives no slices.
#[test]
fn a_flow_that_is_never_served_sends_anyway() {
    let mut w = world(rows(1, 1, 3, 10 * GBPS), config());
    w.run(Duration::from_ms(1));
    w.stingy = true;
    w.offer(1, 0, 1_000);
    w.run(Duration::from_ms(100));
    assert_eq!(w.sent(1, 0), 0);
    w.run(STARVED);
    assert!(w.sent(1, 0) > 0 && w.coordinators[1].counters().starved > 0);
}

/// A controller that asks for more patience than anybody has.
#[test]
fn a_lease_is_bounded() {
    let mut long = config();
    long.lease = Duration::from_secs(4_000);
    let mut w = world(rows(1, 1, 3, 10 * GBPS), long);
    w.run(Duration::from_ms(1));
    w.controllers[0] = None;
    w.offer(1, 0, 1_000);
    w.run(Duration(STARVED.0 / 2));
    assert_eq!(w.sent(1, 0), 0);
    w.run(STARVED);
    assert!(w.sent(1, 0) > 0);
}
