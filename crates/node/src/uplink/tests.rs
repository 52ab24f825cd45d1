//! Two uplinks back to back in virtual time, and misbehaviour of a neighbour.

use super::*;
use alloc::vec::Vec;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::MacAddress;

const RATE: Rate = Rate::gbps(1);
const MAX_FRAME: u32 = 1518;
const RESPONSE: Duration = Duration::from_us(20);
/// Class 3 is under flow control, class 0 is not.
const LOSSLESS: PrioritySet = PrioritySet(0b1010);

type End = Uplink<(u32, u32), (u32, u32)>;

fn link(buffer: u32) -> Link {
    Link::new(MacAddress::local(1), RATE, MAX_FRAME, RESPONSE, LOSSLESS, buffer).unwrap()
}
fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}
fn ms(n: u64) -> Instant {
    us(n * 1_000)
}

/// A pause frame as bytes.
fn pause(classes: u8, quanta: u16) -> [u8; 60] {
    pfc::Repr { source: MacAddress::local(2), class_enable: classes, quanta: [quanta; 8] }.emit()
}

#[derive(Clone, Debug)]
enum OnWire {
    Pause([u8; 60]),
    /// Class, length, number.
    Frame(Priority, u32, u32),
}

/// Sender and receiver with a wire each way. Random traffic in two lossless classes and a lossy one is taken slowly.
struct Pair {
    now: Instant,
    rng: Rng,
    ends: [End; 2],
    wires: [VecDeque<(Instant, OnWire)>; 2],
    delay: Duration,
    /// Lost control frames out of 10,000.
    loses: u64,
    numbers: [u32; PRIORITIES],
    seen: [Vec<u32>; PRIORITIES],
    /// Frames that the receiver's switch holds, and the time at which each is given back.
    held: VecDeque<(Instant, Priority, u32)>,
    /// The receiver's switch takes a frame in one of so many steps.
    slowness: u64,
}

impl Pair {
    fn new(seed: u64, link: Link) -> Pair {
        Pair {
            now: Instant::ZERO,
            rng: Rng::from_words(&[seed]),
            ends: [Uplink::new(link), Uplink::new(link)],
            wires: Default::default(),
            delay: Duration::from_us(5),
            loses: 0,
            numbers: [0; PRIORITIES],
            seen: Default::default(),
            held: VecDeque::new(),
            slowness: 40,
        }
    }

    fn offer(&mut self, p: Priority) {
        if self.ends[0].takes().contains(p) {
            let len = 60 + self.rng.below(1_455) as u32;
            let number = self.numbers[p as usize];
            self.numbers[p as usize] += 1;
            self.ends[0].enqueue(self.now, p, len, (u32::from(p) << 24 | number, len));
        }
    }

    fn transmit(&mut self, end: usize) {
        let now = self.now;
        while let Some(front) = self.ends[end].front(now) {
            let on_wire = match front {
                Front::Pause(bytes) => OnWire::Pause(*bytes),
                Front::Frame(&(number, len)) => OnWire::Frame((number >> 24) as u8, len, number & 0xff_ffff),
            };
            self.ends[end].sent(now);
            let lost = matches!(on_wire, OnWire::Pause(_)) && self.rng.below(10_000) < self.loses;
            if !lost {
                self.wires[end].push_back((now + self.delay + Duration::from_us(12), on_wire));
            }
        }
    }

    fn receive(&mut self, end: usize) {
        let now = self.now;
        while self.wires[1 - end].front().is_some_and(|(at, _)| *at <= now) {
            match self.wires[1 - end].pop_front() {
                Some((_, OnWire::Pause(bytes))) => self.ends[end].control(now, &bytes),
                Some((_, OnWire::Frame(p, len, number))) => {
                    if self.ends[end].charge(self.now, p, len).is_ok() {
                        self.ends[end].show(p, (number, len));
                    }
                }
                None => unreachable!(),
            }
        }
    }

    /// One microsecond.
    fn step(&mut self) {
        self.now += Duration::from_us(1);
        let now = self.now;
        for p in [0, 1, 3] {
            if self.rng.below(8) == 0 {
                self.offer(p);
            }
        }
        for end in 0..2 {
            self.receive(end);
            self.ends[end].handle_timeout(now);
            self.transmit(end);
        }
        self.ends[1].begin_round();
        if self.rng.below(self.slowness) == 0 {
            // Now and then a class has to wait.
            if self.rng.below(4) == 0 && self.ends[1].next_frame().is_some() {
                self.ends[1].defer();
            }
            if let Some((p, (number, len))) = self.ends[1].next_frame() {
                self.ends[1].accept();
                self.seen[p as usize].push(number);
                let until = now + Duration::from_us(self.rng.below(200));
                self.held.push_back((until, p, len));
            }
        }
        while self.held.front().is_some_and(|(until, ..)| *until <= now) {
            if let Some((_, p, len)) = self.held.pop_front() {
                self.ends[1].release(p, len);
            }
        }
        self.check();
    }

    fn check(&self) {
        let [from, to] = &self.ends;
        let sum = |of: &[u64; PRIORITIES]| of.iter().sum::<u64>();
        let taken = self.numbers.iter().map(|&n| u64::from(n)).sum::<u64>();
        assert_eq!(taken, sum(&from.counters.sent) + from.counters.dropped_out.total_frames() + from.inside().1 as u64);
        let seen = self.seen.iter().map(|s| s.len() as u64).sum::<u64>();
        let received = sum(&to.counters.received);
        assert_eq!(received, seen + to.counters.dropped_in.total_frames() + to.inside().0 as u64);
    }
}

#[test]
fn with_headroom_as_computed_a_lossless_class_loses_nothing() {
    let smallest = link(1 << 20);
    let smallest = smallest.marks.capacity - smallest.marks.xoff + 2 * MAX_FRAME;
    for seed in 0..6 {
        let mut pair = Pair::new(seed, link(smallest + 10_000 * seed as u32));
        pair.delay = Duration::from_us(1 + 3 * seed % 8);
        for _ in 0..200_000 {
            pair.step();
        }
        let counters = *pair.ends[1].counters();
        assert_eq!(counters.dropped_in.frames(DropReason::HeadroomExceeded), 0, "seed {seed}");
        assert!(counters.dropped_in.frames(DropReason::AdapterRx) > 100, "the lossy class beside them overflows");
        assert!(counters.pauses_sent > 20 && pair.ends[0].counters().pauses_received > 20);
        for p in [1, 3] {
            // Each once, in order.
            assert!(pair.seen[p].len() > 1_000, "class {p}: {}", pair.seen[p].len());
            assert!(pair.seen[p].iter().copied().eq(0..pair.seen[p].len() as u32), "class {p}");
        }
        assert_eq!(pair.ends[0].counters().dropped_out.total_frames(), 0);
        // The headroom is not a waste: most of it is used.
        let most = pair.ends[1].charged(3).1.max(pair.ends[1].charged(1).1);
        assert!(most > pair.ends[1].link.marks.xoff, "{most}");
    }
}

#[test]
fn with_less_headroom_than_computed_the_violation_shows() {
    // The link is set up for a response within 1 us, which neither end achieves.
    let link = Link::new(MacAddress::local(1), RATE, MAX_FRAME, Duration::from_us(1), LOSSLESS, 9_000).unwrap();
    let mut pair = Pair::new(1, Link { catch_up: RESPONSE, ..link });
    pair.delay = Duration::from_us(60);
    (0..200_000).for_each(|_| pair.step());
    assert!(pair.ends[1].counters().dropped_in.frames(DropReason::HeadroomExceeded) > 0);
}

#[test]
fn with_one_control_frame_in_a_hundred_lost_traffic_goes_on_and_every_loss_is_counted() {
    let mut pair = Pair::new(1, Link { quanta: 2_000, ..link(200_000) });
    pair.loses = 100;
    let mut before = 0;
    for round in 0..20 {
        for _ in 0..50_000 {
            pair.step();
        }
        let seen = pair.seen[3].len();
        assert!(seen > before + 100, "round {round}: {} frames", seen - before);
        before = seen;
    }
    // check() has compared the sums after each step; frames came in order.
    assert!([1, 3].iter().all(|&p| pair.seen[p].is_sorted()));
}

#[test]
fn hostile_26_a_neighbour_that_pauses_for_ever_is_given_up_and_taken_back() {
    let mut pair = Pair::new(1, link(200_000));
    pair.slowness = 2;
    let mut storm_began = None;
    for n in 0..600_000u64 {
        // Class 3 is paused again and again for 400 ms.
        if n % 10_000 == 0 && n < 400_000 {
            pair.ends[0].control(pair.now, &pause(1 << 3, u16::MAX));
        }
        pair.step();
        let end = &pair.ends[0];
        if storm_began.is_none() && !end.watchdog.storms().is_empty() {
            storm_began = Some(pair.now);
            assert_eq!(end.watchdog.storms(), PrioritySet(1 << 3), "no other class");
            assert!(end.takes().contains(3), "whoever sends in this class goes on");
        }
    }
    let began = storm_began.unwrap();
    assert!(began >= ms(200) && began < ms(202), "{began:?}");
    let end = &pair.ends[0];
    assert_eq!(end.flow_control().2, (1, 1));
    let given_up = end.counters().dropped_out.frames(DropReason::Watchdog);
    assert!(given_up > 1_000, "{given_up}");
    // The class came back: 200 ms after the last pause, which was at 390 ms.
    let after = pair.seen[3].len();
    for _ in 0..20_000 {
        pair.step();
    }
    assert!(pair.seen[3].len() > after + 20);
    // The other class never waited for it.
    assert!(pair.seen[1].len() > 4_000, "{}", pair.seen[1].len());
}

#[test]
fn hostile_27_pauses_that_are_none_are_ignored_and_counted() {
    let mut end: End = Uplink::new(link(200_000));
    let now = us(1);
    end.control(now, &pause(1 << 0, 100));
    assert_eq!((end.counters().pauses_lossy, end.gate.paused()), (1, PrioritySet::NONE));
    let mut frame = pause(1 << 3, 100);
    frame[16] = 0xFF;
    end.control(now, &frame);
    assert_eq!((end.counters().pauses_high_bits, end.gate.paused()), (1, PrioritySet(1 << 3)));
    end.control(now, &pause(1 << 3, 0));
    for at in 0..6 {
        let mut elsewhere = pause(1 << 3, 100);
        elsewhere[at] ^= 2;
        end.control(now, &elsewhere);
    }
    assert_eq!((end.counters().control_elsewhere, end.gate.paused()), (6, PrioritySet::NONE));
    for len in 14..60 {
        end.control(now, &pause(1 << 3, 100)[..len]);
    }
    assert_eq!((end.counters().control_short, end.gate.paused()), (46, PrioritySet::NONE));
    let mut whole_link = pause(1 << 3, 100);
    whole_link[15] = 1;
    whole_link[14] = 0;
    end.control(now, &whole_link);
    assert_eq!((end.counters().control_other, end.gate.paused()), (1, PrioritySet::NONE));
    let mut rng = Rng::from_words(&[27]);
    for _ in 0..20_000 {
        let mut frame = pause(rng.next_u64() as u8, rng.next_u64() as u16).to_vec();
        frame[rng.below(60) as usize] = rng.next_u64() as u8;
        frame.truncate(rng.below(62) as usize);
        end.control(now, &frame);
        assert_eq!(end.gate.paused().0 & !LOSSLESS.0, 0);
    }
}

#[test]
fn hostile_28_after_a_lost_xon_the_quanta_run_out() {
    let mut end: End = Uplink::new(link(200_000));
    end.control(us(0), &pause(1 << 3, 1_000));
    end.enqueue(us(1), 3, 100, (1, 100));
    end.enqueue(us(1), 0, 100, (2, 100));
    // A lossy class goes on beside it.
    assert_eq!(end.front(us(1)), Some(Front::Frame(&(2, 100))));
    end.sent(us(1));
    // 1,000 quanta of 512 bits at 1 Gb/s.
    assert_eq!(end.poll_timeout(), Some(us(512)));
    end.handle_timeout(us(511));
    assert_eq!(end.front(us(511)), None);
    end.handle_timeout(us(512));
    assert_eq!(end.front(us(512)), Some(Front::Frame(&(1, 100))));
}

#[test]
fn hostile_29_who_ignores_pauses_exceeds_the_headroom_and_is_counted() {
    let link = link(200_000);
    let mut end: End = Uplink::new(link);
    let mut fitted = 0;
    for _ in 0..1_000 {
        if end.charge(us(0), 3, 1_514).is_ok() {
            fitted += 1;
        }
    }
    assert_eq!(fitted, link.marks.capacity / 1_518);
    assert_eq!(end.counters().dropped_in.frames(DropReason::HeadroomExceeded), u64::from(1_000 - fitted));
    assert_eq!(end.counters().dropped_in.bytes(DropReason::HeadroomExceeded), u64::from(1_000 - fitted) * 1_518);
    // The neighbour was told.
    let Some(Front::Pause(frame)) = end.front(us(1)) else { panic!() };
    assert_eq!(pfc::Repr::parse(frame).unwrap().quanta_of(3), Some(u16::MAX));
}

#[test]
fn who_still_sends_when_it_should_have_answered_is_told_again() {
    let mut end: End = Uplink::new(link(200_000));
    while !matches!(end.front(us(0)), Some(Front::Pause(_))) {
        end.charge(us(0), 3, 1_514).unwrap();
    }
    end.sent(us(0));
    let told_at = |end: &mut End, now: Instant| {
        end.charge(now, 3, 100).unwrap();
        let told = matches!(end.front(now), Some(Front::Pause(_)));
        if told {
            end.sent(now);
        }
        told
    };
    let late = us(1) + RESPONSE;
    assert_eq!([us(1), us(0) + RESPONSE, late].map(|now| told_at(&mut end, now)), [false, false, true]);
    // The next pause comes no sooner than the neighbour's response time.
    assert_eq!(
        [late + RESPONSE, late + RESPONSE + Duration::from_us(1)].map(|now| told_at(&mut end, now)),
        [false, true]
    );
    assert_eq!(end.flow_control().1.stops(), 1);
}

/// Found on a testbed: a switch without a processor for half a second let its pauses run out, and the frames that had
/// arrived found no room.
#[test]
fn what_came_while_nobody_asked_has_room_and_no_more_than_that() {
    let mut end: End = Uplink::new(link(200_000));
    let xoff = end.link.marks.xoff;
    let mut held = 0;
    let mut fill = |end: &mut End, bytes: u64| {
        let frames = bytes / 1_518;
        let fitted = (0..frames).filter(|_| end.charge(end.asked_at, 3, 1_514).is_ok()).count() as u64;
        held += fitted;
        (frames - fitted, held)
    };
    end.on_round(us(0));
    assert_eq!(fill(&mut end, u64::from(xoff) + 2_000).0, 0);
    assert!(matches!(end.front(us(0)), Some(Front::Pause(_))));
    end.sent(us(0));
    // Within the response time there is no extra room.
    end.on_round(us(0) + RESPONSE);
    assert!(fill(&mut end, 400_000).0 > 0);
    // Half a second: there is room for all frames that the link can have brought, and for frames until the neighbour
    // hears of the pause.
    let away = Duration::from_ms(500);
    end.on_round(us(0) + RESPONSE + away);
    let headroom = u64::from(end.link.marks.headroom);
    assert_eq!(fill(&mut end, RATE.bytes_in(away)).0, 0);
    assert!(matches!(end.front(end.asked_at), Some(Front::Pause(_))), "it is told at once");
    assert_eq!(fill(&mut end, headroom).0, 0);
    // A neighbour that ignores pauses gets no more room.
    end.on_round(end.asked_at + RESPONSE);
    end.on_drained();
    let (lost, held) = fill(&mut end, 400_000);
    assert!(lost > 200, "{lost}");
    // When the buffer has drained, all is as before.
    (0..held).for_each(|_| end.release(3, 1_514));
    end.on_drained();
    let (lost, more) = fill(&mut end, 400_000);
    assert_eq!((more - held, lost > 0), (u64::from(end.link.marks.capacity) / 1_518, true));
}

#[test]
fn a_pause_frame_that_could_not_be_sent_says_the_latest() {
    let mut end: End = Uplink::new(link(200_000));
    let fill = |end: &mut End, p| {
        let mut n = 0;
        while !end.signal.stopped().contains(p) {
            end.charge(us(0), p, 1_514).unwrap();
            n += 1;
        }
        n
    };
    let three = fill(&mut end, 3);
    assert!(matches!(end.front(us(1)), Some(Front::Pause(_))));
    // The device takes nothing; meanwhile class 3 drains and class 1 fills.
    (0..three).for_each(|_| end.release(3, 1_514));
    fill(&mut end, 1);
    let Some(Front::Pause(frame)) = end.front(us(2)) else { panic!() };
    let told = pfc::Repr::parse(frame).unwrap();
    assert_eq!((told.quanta_of(3), told.quanta_of(1)), (Some(0), Some(u16::MAX)));
    end.sent(us(2));
    assert_eq!((end.counters().pauses_sent, end.front(us(900))), (1, None));
}

#[test]
fn it_sends_at_the_speed_of_its_link_and_catches_up_no_further_than_it_may() {
    let mut end: End = Uplink::new(Link { transmit: 10_000_000, ..link(200_000) });
    (0..2_000).for_each(|n| end.enqueue(us(0), 3, 1_514, (n, 1_514)));
    let send = |end: &mut End, now| {
        let mut sent = 0;
        while end.front(now).is_some() {
            end.sent(now);
            sent += 1;
        }
        sent
    };
    // A frame takes 12.304 us.
    let sent: u64 = (0..10_000).map(|t| send(&mut end, us(t))).sum();
    assert!((812..=816).contains(&sent), "{sent}");
    assert!(send(&mut end, us(50_000)) <= 3, "40 ms late, 20 us caught up");
}

#[test]
fn what_it_had_nothing_to_send_in_it_does_not_make_up_for() {
    let mut end: End = Uplink::new(Link { transmit: 10_000_000, catch_up: Duration::from_ms(50), ..link(200_000) });
    let send = |end: &mut End, now| core::iter::from_fn(|| end.front(now).is_some().then(|| end.sent(now))).count();
    // Idle, and paused: at 1 Gb/s, 40 ms are 3,251 frames.
    assert_eq!(send(&mut end, us(0)), 0);
    (0..9_000).for_each(|n| end.enqueue(ms(40), 3, 1_514, (n, 1_514)));
    assert_eq!(send(&mut end, ms(40)), 1);
    assert_eq!(send(&mut end, us(40_013)), 1);
    end.control(us(40_020), &pause(1 << 3, u16::MAX));
    assert_eq!(send(&mut end, us(40_030)), 0);
    end.control(ms(80), &pause(1 << 3, 0));
    assert_eq!(send(&mut end, ms(80)), 1);
    // Late itself: the end sends all frames that it should have sent.
    let caught_up = send(&mut end, ms(100));
    assert!((1_620..=1_630).contains(&caught_up), "{caught_up}");
}

#[test]
fn a_burst_goes_at_once_and_counts_as_sent_at_the_links_speed() {
    let slow = Link { transmit: 10_000_000, catch_up: Duration::from_ms(20), ..link(200_000) };
    let mut end: End = Uplink::new(slow.with_bursts(64 << 10));
    let send = |end: &mut End, now| core::iter::from_fn(|| end.front(now).is_some().then(|| end.sent(now))).count();
    (0..9_000).for_each(|n| end.enqueue(us(0), 3, 1_514, (n, 1_514)));
    // 64 KB take 524 us, a frame 12.304.
    assert_eq!(send(&mut end, us(0)), 43);
    assert_eq!(send(&mut end, us(1)), 0);
    assert_eq!(send(&mut end, us(524)), 43);
    let later: usize = (525..10_525).map(|t| send(&mut end, us(t))).sum();
    assert!((812..=814).contains(&later), "{later}");
    // A short idle time does not begin a burst anew.
    let mut end: End = Uplink::new(slow.with_bursts(64 << 10));
    let bursts = (0..100).map(|t| {
        (0..5).for_each(|n| end.enqueue(us(t), 3, 1_514, (n, 1_514)));
        send(&mut end, us(t))
    });
    assert!((50..=52).contains(&bursts.sum::<usize>()));
    // The bursts are small beside the response time.
    let quick = link(200_000).with_bursts(64 << 10);
    assert_eq!(quick.ahead, Duration(RESPONSE.0 / 16));
}

#[test]
fn the_neighbours_response_is_seen() {
    let mut end: End = Uplink::new(link(200_000));
    let mut told = 0;
    while !matches!(end.front(us(10)), Some(Front::Pause(_))) {
        end.charge(us(10), 3, 1_514).unwrap();
        told += 1;
    }
    end.sent(us(10));
    end.charge(us(25), 3, 1_514).unwrap();
    end.charge(us(30), 1, 1_514).unwrap();
    assert_eq!(end.longest_response(), Duration::from_us(15), "of the class that was told to stop");
    (0..=told).for_each(|_| end.release(3, 1_514));
    assert!(matches!(end.front(ms(1)), Some(Front::Pause(_))));
    end.sent(ms(1));
    end.charge(ms(2), 3, 1_514).unwrap();
    assert_eq!(end.longest_response(), Duration::from_us(15), "it may send again");
}

#[test]
fn a_neighbour_that_takes_too_long_to_hold_a_class_is_counted() {
    let mut end: End = Uplink::new(link(200_000));
    while !matches!(end.front(us(10)), Some(Front::Pause(_))) {
        end.charge(us(10), 3, 1_514).unwrap();
    }
    end.sent(us(10));
    end.charge(us(10) + RESPONSE, 3, 1_514).unwrap();
    assert_eq!(end.late(), 0);
    end.charge(us(11) + RESPONSE, 3, 1_514).unwrap();
    assert_eq!(end.late(), 1);
}

#[test]
fn a_pause_is_no_storm_while_a_slow_receiver_takes_what_came_before_it() {
    let slow = Duration::from_ms(20);
    let make = |buffer| Link::new(MacAddress::local(1), RATE, MAX_FRAME, slow, LOSSLESS, buffer);
    let NoHeadroom { needs, .. } = make(0).unwrap_err();
    let mut end: End = Uplink::new(make(needs as u32).unwrap());
    end.set_watchdog(Duration::from_ms(200), Duration::from_ms(200), true);
    end.control(us(0), &pause(1 << 3, u16::MAX));
    end.enqueue(us(0), 3, 1_514, (1, 1_514));
    let storms = |end: &mut End, from: u64, to: u64| {
        for t in from..to {
            end.control(ms(t), &pause(1 << 3, u16::MAX));
            end.handle_timeout(ms(t));
        }
        end.flow_control().2.0
    };
    assert_eq!(storms(&mut end, 0, 1_000), 0);
    assert_eq!(storms(&mut end, 1_000, 1_010), 1);
    // A longer detection time can be requested.
    let mut end: End = Uplink::new(make(needs as u32).unwrap());
    end.set_watchdog(Duration::from_ms(3_000), Duration::from_ms(200), true);
    end.control(us(0), &pause(1 << 3, u16::MAX));
    end.enqueue(us(0), 3, 1_514, (1, 1_514));
    assert_eq!((storms(&mut end, 0, 3_000), storms(&mut end, 3_000, 3_010)), (0, 1));
}

#[test]
fn a_pause_that_ran_out_before_it_was_renewed_is_counted() {
    let mut end: End = Uplink::new(link(200_000));
    while !matches!(end.front(us(0)), Some(Front::Pause(_))) {
        end.charge(us(0), 3, 1_514).unwrap();
    }
    end.sent(us(0));
    // 65,535 quanta.
    let lasts = RATE.time_for(u64::from(u16::MAX) * 64);
    let mut renew = |at: Instant| {
        end.handle_timeout(at);
        assert!(matches!(end.front(at), Some(Front::Pause(_))));
        end.sent(at);
        end.counters().pauses_run_out
    };
    let almost = Instant::ZERO + Duration(lasts.0 - lasts.0 / 100);
    assert_eq!(renew(almost), 0);
    assert_eq!(renew(almost + lasts + Duration::from_us(1)), 1);
}

#[test]
fn a_buffer_without_headroom_is_refused() {
    let link = |buffer| Link::new(MacAddress::local(1), RATE, MAX_FRAME, RESPONSE, LOSSLESS, buffer);
    let NoHeadroom { needs, .. } = link(10_000).unwrap_err();
    assert!(link(needs as u32 - 1).is_err());
    let fits = link(needs as u32).unwrap();
    assert!(fits.marks.xon < fits.marks.xoff && fits.marks.xoff < fits.marks.capacity);
}
