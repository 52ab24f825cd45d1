//! Scripts with a clock.

use super::*;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Duration;

fn station(n: u8) -> Station {
    Station::new([2, 0, 0, 0, 0, n], 0)
}
fn header(from: u8, to: u8, priority: Priority) -> Header {
    Header { destination: station(to), source: station(from), priority, reserved: false }
}
const EVERYBODY: Station = Station::new([0xff; 6], 0);
fn nothing(_: u32) {
    panic!("a lossless switch dropped a frame")
}

/// A switch with station `n` at each port `n`.
fn plugged(ports: u8, config: ValeConfig) -> Vale<u32> {
    let mut vale = Vale::new(ports as usize, config);
    for n in 0..ports {
        vale.plug(n as usize);
        vale.give(Instant::ZERO, station(n), n as usize);
    }
    vale
}
fn small() -> ValeConfig {
    ValeConfig { slots: 4, ..ValeConfig::default() }
}
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Queued(u32),
    Dropped(DropReason),
    Full,
}
impl Vale<u32> {
    /// All steps of a caller that never passes a frame straight through.
    fn accept(&mut self, now: Instant, j: Port, h: &Header, frame: u32, free: &mut impl FnMut(u32)) -> Verdict {
        match self.route(now, j, h) {
            Route::To(k) => match self.queue(now, j, k, h.priority, frame, free) {
                Ok(()) => Verdict::Queued(1),
                Err(_) => Verdict::Full,
            },
            Route::All => Verdict::Queued(self.flood(now, j, h.priority, frame, &Ports::ALL)),
            Route::Drop(reason) => Verdict::Dropped(reason),
        }
    }
}
fn taken(vale: &mut Vale<u32>, now: Instant, k: Port) -> Option<u32> {
    taken_of(vale, now, k, PrioritySet::ALL).map(|(_, frame)| frame)
}
fn taken_of(vale: &mut Vale<u32>, now: Instant, k: Port, takes: PrioritySet) -> Option<(Priority, u32)> {
    let (p, frame) = vale.next(k, takes, &mut nothing)?;
    vale.take(now, k, p);
    Some((p, frame))
}
fn balanced<F: Copy>(vale: &Vale<F>) {
    let (accepted, delivered, dropped) = vale.ledger();
    assert_eq!(accepted, delivered + dropped + vale.queued());
}

#[test]
fn frames_wait_for_a_slow_receiver_and_nothing_is_lost() {
    let mut vale = plugged(3, small());
    let mut rng = Rng::from_words(&[7]);
    let (mut sent, mut seen) = ([0u32; 2], [0u32; 2]);
    for i in 0..20_000u64 {
        let now = Instant(i);
        let j = rng.below(2) as usize;
        let frame = (j as u32) << 24 | sent[j];
        match vale.accept(now, j, &header(j as u8, 2, 3), frame, &mut nothing) {
            Verdict::Queued(1) => sent[j] += 1,
            verdict => assert_eq!(verdict, Verdict::Full),
        }
        if rng.below(3) == 0
            && let Some(frame) = taken(&mut vale, now, 2)
        {
            let j = (frame >> 24) as usize;
            assert_eq!(frame & 0xff_ffff, seen[j]);
            seen[j] += 1;
        }
        balanced(&vale);
    }
    // Two senders at full speed share the receiver's capacity.
    assert!(seen[0].abs_diff(seen[1]) < seen[0] / 10, "{seen:?}");
    assert!(vale.counters(0).held_back > 100);
}

#[test]
fn a_lossless_class_waits_while_a_lossy_one_drops_by_name() {
    let mut vale = plugged(2, ValeConfig { lossless: PrioritySet(1 << 3), ..small() });
    let mut freed = 0;
    for frame in 0..20 {
        for p in [3, 0] {
            vale.accept(Instant(1), 0, &header(0, 1, p), frame, &mut |_| freed += 1);
        }
    }
    assert_eq!(freed, 16);
    assert_eq!(vale.counters(1).dropped.frames(DropReason::VswitchVm), 16);
    assert_eq!(vale.counters(0).held_back, 12);
    balanced(&vale);
    // Both classes are served in turn.
    let order: Vec<u32> = core::iter::from_fn(|| taken(&mut vale, Instant(2), 1)).collect();
    assert_eq!(order.len(), 12);
}

#[test]
fn a_flooded_copy_for_an_isolated_port_is_counted() {
    let mut vale = plugged(3, small());
    let at = Instant::ZERO + Duration::from_ms(1);
    vale.accept(at, 0, &header(0, 1, 0), 1, &mut nothing);
    let mut freed = 0;
    vale.watch(at + Duration::from_secs(11), 1, false, &mut |_| freed += 1);
    assert!(vale.is_isolated(1) && freed == 1);
    let h = Header { destination: EVERYBODY, ..header(0, 0, 0) };
    assert_eq!(vale.accept(at, 0, &h, 2, &mut nothing), Verdict::Queued(1));
    assert_eq!(vale.counters(1).dropped.frames(DropReason::Watchdog), 2);
    assert_eq!(vale.ledger(), (3, 0, 2));
    balanced(&vale);
}

#[test]
fn a_datagram_for_a_group_waits_for_copies_of_groups_only() {
    let mut vale: Vale<u32> = plugged(3, ValeConfig { slots: 64, ..ValeConfig::default() });
    let all = &Ports::ALL;
    for frame in 0..32 {
        assert_eq!(vale.flood_waits_for(0, 3, all), None, "{frame}");
        assert_eq!(vale.flood(Instant(1), 0, 3, frame, all), 2);
    }
    assert_eq!(vale.flood_waits_for(0, 3, all), Some(1));
    assert_eq!((vale.flood_waits_for(0, 2, all), vale.flood_waits_for(0, 3, &[0].into_iter().collect())), (None, None));
    // Port 1 takes one: now the other one holds it.
    assert_eq!(taken(&mut vale, Instant(2), 1), Some(0));
    assert_eq!(vale.flood_waits_for(0, 3, all), Some(2));
    // Others overload port 2, and nobody waits for it; nor for a port that is stuck.
    for frame in 0..40 {
        vale.accept(Instant(3), 1, &header(1, 2, 3), frame, &mut nothing);
    }
    assert_eq!(vale.flood_waits_for(0, 3, all), None);
    while taken(&mut vale, Instant(4), 2).is_some() {}
    while vale.flood(Instant(5), 0, 3, 99, &[2].into_iter().collect()) > 0 && vale.flood_waits_for(0, 3, all).is_none()
    {
    }
    assert_eq!(vale.flood_waits_for(0, 3, all), Some(2));
    vale.watch(Instant(5) + Duration::from_ms(300), 2, false, &mut nothing);
    assert!(vale.is_stuck(2) && vale.flood_waits_for(0, 3, all).is_none());
    balanced(&vale);
}

#[test]
fn a_port_that_invents_stations_keeps_no_other_from_being_learned() {
    // A larger configured share has no effect.
    let mut vale: Vale<u32> = Vale::new(4, ValeConfig { stations: 64, stations_per_port: 1_000, ..small() });
    (0..4).for_each(|k| vale.plug(k));
    for k in 0..3 {
        for n in 0..10_000u32 {
            let [_, _, c, d] = n.to_be_bytes();
            let source = Station::new([2, 1, k as u8, c, d, 0], 0);
            vale.route(Instant(1), k, &Header { source, ..header(0, 9, 0) });
        }
    }
    vale.route(Instant(1), 3, &header(8, 9, 0));
    assert_eq!(vale.route(Instant(1), 0, &header(7, 8, 0)), Route::To(3));
    assert!((20..84).all(|n| vale.give(Instant(1), station(n), 0)));
    assert!(!vale.give(Instant(1), station(84), 0));
}

#[test]
fn a_flood_stalls_nobody() {
    let mut vale = plugged(4, small());
    for frame in 0..10 {
        let h = Header { destination: EVERYBODY, ..header(0, 0, 0) };
        let verdict = vale.accept(Instant(1), 0, &h, frame, &mut nothing);
        assert_eq!(verdict, if frame < 4 { Verdict::Queued(3) } else { Verdict::Queued(1) });
        // Only port 3 takes its frames.
        assert_eq!(taken(&mut vale, Instant(1), 3), Some(frame));
        balanced(&vale);
    }
    assert_eq!(vale.counters(1).dropped.frames(DropReason::FloodNoRoom), 6);
    // A flood stays inside its broadcast domain.
    assert_eq!(vale.flood(Instant(1), 0, 0, 11, &[0, 3].into_iter().collect()), 1);
    assert_eq!(taken(&mut vale, Instant(1), 3), Some(11));
    // Without an uplink, frames for unknown stations go to all ports; with one, they go to the uplink.
    let mut vale = plugged(4, ValeConfig { uplink: Some(3), ..small() });
    assert_eq!(vale.accept(Instant(1), 0, &header(0, 77, 0), 5, &mut nothing), Verdict::Queued(1));
    assert_eq!(taken(&mut vale, Instant(1), 3), Some(5));
}

#[test]
fn what_a_machine_must_not_send_is_refused_by_name() {
    let mut vale = plugged(3, small());
    let mut refused = |h: Header| vale.accept(Instant(1), 0, &h, 1, &mut nothing);
    assert_eq!(refused(Header { reserved: true, ..header(0, 1, 0) }), Verdict::Dropped(DropReason::Reserved));
    assert_eq!(refused(header(2, 1, 0)), Verdict::Dropped(DropReason::ForgedSource));
    assert_eq!(refused(Header { source: EVERYBODY, ..header(0, 1, 0) }), Verdict::Dropped(DropReason::Malformed));
    assert_eq!(refused(header(0, 0, 0)), Verdict::Dropped(DropReason::NoRoute));
    assert_eq!(vale.counters(0).refused.total_frames(), 4);
    balanced(&vale);
}

#[test]
fn the_watchdog_isolates_a_stuck_port_and_restores_it() {
    let mut vale = plugged(3, small());
    let ms = |n| Instant::ZERO + Duration::from_ms(n);
    for frame in 0..8 {
        assert_eq!(vale.accept(ms(0), 0, &header(0, 2, 0), frame, &mut nothing), Verdict::Queued(1));
    }
    assert_eq!(vale.accept(ms(1), 0, &header(0, 2, 0), 8, &mut nothing), Verdict::Full);
    vale.watch(ms(199), 2, false, &mut nothing);
    assert!(!vale.is_stuck(2));
    // A program that pauses is reported, and its frames wait.
    vale.watch(ms(200), 2, false, &mut nothing);
    vale.watch(ms(9_999), 2, false, &mut nothing);
    assert!(vale.is_stuck(2) && !vale.is_isolated(2));
    assert_eq!((vale.counters(2).stuck, vale.queued()), (1, 8));
    let mut freed = 0;
    vale.watch(ms(10_000), 2, false, &mut |_| freed += 1);
    assert!(vale.is_isolated(2) && !vale.is_stuck(2));
    assert_eq!((freed, vale.queued()), (8, 0));
    let ms = |n: u64| ms(9_800 + n);
    // A sender to the isolated port goes on; frames for this port are dropped and counted.
    assert_eq!(vale.accept(ms(201), 0, &header(0, 1, 0), 9, &mut nothing), Verdict::Queued(1));
    let dropped = Verdict::Dropped(DropReason::Watchdog);
    assert_eq!(vale.accept(ms(202), 1, &header(1, 2, 0), 10, &mut nothing), dropped);
    balanced(&vale);
    // Room for a moment does not restore the port.
    vale.watch(ms(300), 2, true, &mut nothing);
    vale.watch(ms(350), 2, false, &mut nothing);
    vale.watch(ms(400), 2, true, &mut nothing);
    vale.watch(ms(599), 2, true, &mut nothing);
    assert!(vale.is_isolated(2));
    vale.watch(ms(600), 2, true, &mut nothing);
    assert!(!vale.is_isolated(2));
    assert_eq!(vale.accept(ms(601), 1, &header(1, 2, 0), 11, &mut nothing), Verdict::Queued(1));
    assert_eq!(taken(&mut vale, ms(602), 2), Some(11));
    assert_eq!(vale.counters(2).isolated, 1);
    balanced(&vale);
}

#[test]
fn the_switch_own_absence_isolates_nobody() {
    let mut vale = plugged(3, small());
    let ms = |n| Instant::ZERO + Duration::from_ms(n);
    vale.accept(ms(0), 0, &header(0, 2, 0), 1, &mut nothing);
    vale.watch(ms(10), 2, false, &mut nothing);
    vale.was_away(Duration::from_ms(500));
    vale.watch(ms(699), 2, false, &mut nothing);
    assert!(!vale.is_stuck(2));
    vale.watch(ms(700), 2, false, &mut nothing);
    assert!(vale.is_stuck(2));
    vale.was_away(Duration::from_ms(500));
    vale.watch(ms(10_999), 2, false, &mut nothing);
    assert!(!vale.is_isolated(2));
    vale.watch(ms(11_000), 2, false, &mut |_| {});
    assert!(vale.is_isolated(2));
}

#[test]
fn the_watchdog_only_says_so_if_asked_to() {
    for (action, stuck) in [(Action::Alert, 1), (Action::Off, 0)] {
        let mut vale =
            plugged(2, ValeConfig { watchdog: WatchdogConfig { action, ..WatchdogConfig::default() }, ..small() });
        vale.accept(Instant(1), 0, &header(0, 1, 0), 1, &mut nothing);
        for ms in (0..20_000).step_by(5) {
            vale.watch(Instant(1) + Duration::from_ms(ms), 1, false, &mut nothing);
        }
        assert_eq!((vale.counters(1).stuck, vale.counters(1).isolated, vale.is_stuck(1)), (stuck, 0, stuck == 1));
        assert_eq!(taken(&mut vale, Instant(2), 1), Some(1));
        assert!(!vale.is_stuck(1));
    }
}

#[test]
fn a_port_takes_only_the_classes_it_wants() {
    let mut vale = plugged(2, small());
    for p in [1, 3, 5] {
        vale.accept(Instant(1), 0, &header(0, 1, p), u32::from(p), &mut nothing);
    }
    let only = PrioritySet(1 << 3);
    assert_eq!(taken_of(&mut vale, Instant(1), 1, only), Some((3, 3)));
    assert_eq!((taken_of(&mut vale, Instant(1), 1, only), vale.is_ready(1, only)), (None, false));
    // The others still wait, and the watchdog still knows.
    vale.watch(Instant(1) + Duration::from_ms(10_000), 1, false, &mut |_| {});
    assert!(vale.is_isolated(1) && vale.queued() == 0);
    balanced(&vale);
}

#[test]
fn ports_come_and_go() {
    let mut vale = plugged(3, small());
    for frame in 0..3 {
        vale.accept(Instant(1), 0, &header(0, 2, 0), frame, &mut nothing);
    }
    let mut freed = 0;
    vale.unplug(2, &mut |_| freed += 1);
    assert_eq!((freed, vale.queued()), (3, 0));
    // The station was given to the port: no other port gets the station's frames, or can have the station.
    let gone = Verdict::Dropped(DropReason::PortGone);
    assert_eq!(vale.accept(Instant(2), 0, &header(0, 2, 0), 4, &mut nothing), gone);
    let forged = Verdict::Dropped(DropReason::ForgedSource);
    assert_eq!(vale.accept(Instant(2), 1, &header(2, 0, 0), 4, &mut nothing), forged);
    assert_eq!((taken(&mut vale, Instant(2), 1), vale.before().dropped.frames(DropReason::PortGone)), (None, 1));
    balanced(&vale);
    // Once the station is taken back it is unknown, and its frames are flooded to the ports in use.
    vale.release(station(2));
    assert_eq!(vale.accept(Instant(2), 0, &header(0, 2, 0), 4, &mut nothing), Verdict::Queued(1));
    assert_eq!(taken(&mut vale, Instant(2), 1), Some(4));
    assert!(vale.reserve(Instant(2), station(9)));
    assert_eq!(vale.accept(Instant(2), 0, &header(0, 9, 0), 4, &mut nothing), gone);
    vale.plug(2);
    vale.accept(Instant(3), 2, &header(2, 0, 0), 5, &mut nothing);
    assert_eq!(vale.accept(Instant(3), 0, &header(0, 2, 0), 6, &mut nothing), Verdict::Queued(1));
    assert_eq!(taken(&mut vale, Instant(3), 2), Some(6));
    balanced(&vale);
    // The counters of a port are of its present user; the ledger is of all users.
    assert_eq!((vale.counters(2).accepted, vale.counters(2).delivered), (1, 1));
    assert_eq!(vale.counters(2).dropped.total_frames(), 0);
    assert_eq!(vale.ledger(), (8, 2, 5));
}

#[test]
fn what_a_port_does_not_admit_waits_in_a_lossless_class_only() {
    let lossless = PrioritySet(!(1 << 3));
    let mut vale: Vale<u8> = Vale::new(2, ValeConfig { lossless, ..ValeConfig::default() });
    (0..2).for_each(|k| vale.plug(k));
    assert!(vale.leave_with_sender(0, 1, 0, true) && vale.leave_with_sender(0, 1, 0, false));
    assert!(!vale.leave_with_sender(0, 1, 3, true));
    let (sender, receiver) = (vale.counters(0), vale.counters(1));
    assert_eq!((sender.held_back, sender.accepted), (1, 1));
    assert_eq!(receiver.dropped.frames(DropReason::VswitchVm), 1);
}

#[test]
fn a_thousand_ports_send_wait_and_are_flooded() {
    let mut vale: Vale<u32> = Vale::new(PORTS_MAX, ValeConfig { stations: 2 * PORTS_MAX, ..small() });
    (0..PORTS_MAX).for_each(|k| vale.plug(k));
    let last = PORTS_MAX - 1;
    let of = |k: usize| Station::new([2, 1, 0, 0, (k >> 8) as u8, k as u8], 0);
    let frame = |from: usize, to: usize| Header { source: of(from), destination: of(to), ..header(0, 0, 0) };
    assert!((0..=last).all(|k| vale.give(Instant(1), of(k), k)));
    for n in 0..8 {
        assert_eq!(vale.accept(Instant(1), 70, &frame(70, last), n, &mut nothing), Verdict::Queued(1));
    }
    assert_eq!(vale.accept(Instant(1), 70, &frame(70, last), 8, &mut nothing), Verdict::Full);
    assert_eq!(vale.waits_for(70).iter().collect::<Vec<_>>(), [last]);
    // Others go on, and each port but the sender and the full one hears a flood.
    assert_eq!(vale.accept(Instant(1), 500, &frame(500, 0), 9, &mut nothing), Verdict::Queued(1));
    let all = Header { destination: EVERYBODY, ..frame(64, 0) };
    assert_eq!(vale.accept(Instant(1), 64, &all, 10, &mut nothing), Verdict::Queued(PORTS_MAX as u32 - 2));
    assert_eq!(
        (0..8).map(|_| taken(&mut vale, Instant(2), last).unwrap()).collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
    assert_eq!(vale.waits_for(70), Ports::NONE);
    balanced(&vale);
}
