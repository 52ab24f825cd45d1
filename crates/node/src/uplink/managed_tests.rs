//! Uplinks with rate limiters and transmission selection, in virtual time.

use super::*;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use sluicenet_proto::cee::ets::{EtsConfig, Group};
use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::cee::source_control::RateLimiters;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{HEADER_LEN, MacAddress};
use sluicenet_wire::ipv4::{self, Ecn, Protocol};
use sluicenet_wire::qcn;

const RATE: Rate = Rate::gbps(1);
const OWN: MacAddress = MacAddress::local(1);
const CLASS: Priority = 3;

type End = Uplink<u32, Vec<u8>, Managed<Vec<u8>>>;

fn link() -> Link {
    let lossless = PrioritySet(0b1010);
    Link::new(OWN, RATE, 1518, Duration::from_us(20), lossless, 150_000).unwrap()
}
/// A link with many rounds of all groups in 10 ms.
fn fast() -> Link {
    Link::new(OWN, Rate::gbps(10), 1518, Duration::from_us(20), PrioritySet(0b1010), 1_000_000).unwrap()
}
fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}

fn micros(at: Instant) -> u64 {
    at.since(Instant::ZERO).as_us()
}

fn limiters(by_flow: bool) -> Option<Limits<Vec<u8>>> {
    Some(salted(by_flow, 1))
}
fn salted(by_flow: bool, salt: u64) -> Limits<Vec<u8>> {
    let limiter = ReactionPointConfig::crisan2014(RATE);
    Limits::new(Arc::new(RateLimiters { limiter, by_flow, seed: 1 }), RATE, salt)
}
fn limited(by_flow: bool) -> End {
    Uplink::with(link(), Managed::new(limiters(by_flow), None))
}

fn station(n: u32) -> MacAddress {
    MacAddress::local(100 + n)
}

/// A datagram of 1,000 B to a station, from port `flow`, with a number.
fn frame(to: u32, flow: u16, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; 1_000];
    ethernet::Repr { destination: station(to), source: OWN, ethertype: EtherType::IPV4 }.emit(&mut bytes);
    let header = ipv4::Repr {
        source: [10, 0, 0, 1].into(),
        destination: [10, 0, 0, 2].into(),
        protocol: Protocol::UDP,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 0,
        dont_fragment: true,
        ttl: 64,
        payload_len: 966,
    };
    header.emit(&mut bytes[HEADER_LEN..]);
    bytes[34..36].copy_from_slice(&flow.to_be_bytes());
    bytes[996..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap())
}

/// A notification about frames to a station; with a CN-TAG that of the flow.
fn notification(feedback: u8, to: u32, flow: Option<u16>) -> Vec<u8> {
    let message = qcn::Repr::of(9 << 16, (feedback, 10_000, 500), CLASS, station(to));
    let frame = qcn::Frame { destination: OWN, source: MacAddress::local(9), priority: 7, flow, message };
    let mut bytes = vec![0; frame.emitted_len()];
    frame.emit(&mut bytes);
    bytes
}

fn enqueue(end: &mut End, now: Instant, p: Priority, frame: Vec<u8>) {
    end.enqueue(now, p, frame.len() as u32, frame);
}

/// All frames that leave until a time, polled each microsecond.
fn run(end: &mut End, now: &mut Instant, until: Instant) -> Vec<(Instant, Vec<u8>)> {
    let mut sent = Vec::new();
    while *now < until {
        end.on_round(*now);
        end.handle_timeout(*now);
        while let Some(front) = end.front(*now) {
            assert!(matches!(front, Front::Frame(_)));
            sent.push((*now, end.sent(*now).unwrap()));
        }
        *now += Duration::from_us(1);
    }
    sent
}

/// A limiter that lets 1/8 of the link pass: three cuts by half.
fn cut(end: &mut End, now: Instant, to: u32, flow: Option<u16>) {
    (0..3).for_each(|_| end.notify(now, &notification(63, to, flow), Some(OWN)));
}

fn state(end: &End) -> (usize, usize) {
    let (limiters, waiting, _) = end.queues().limits().unwrap().state();
    (limiters, waiting)
}

#[test]
fn frames_to_a_limited_destination_wait_in_order_and_others_pass_them() {
    let mut end = limited(false);
    let mut now = us(1);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    assert_eq!(run(&mut end, &mut now, us(20)).len(), 1);
    // Frames that wait already are limited, too, and none overtakes them.
    for n in 1..=40 {
        enqueue(&mut end, now, CLASS, frame(1 + n % 2, 0, n));
    }
    cut(&mut end, now, 1, None);
    assert_eq!(state(&end), (1, 20));
    for n in 41..=50 {
        enqueue(&mut end, now, CLASS, frame(1 + n % 2, 0, n));
    }
    assert_eq!(state(&end), (1, 25));
    let sent = run(&mut end, &mut now, us(20 + 2_000));
    let numbers = |to: u32| -> Vec<u32> {
        sent.iter().filter(|(_, f)| f[..6] == station(to).0).map(|(_, f)| number(f)).collect()
    };
    assert_eq!(numbers(1), (1..=50).filter(|n| n % 2 == 0).collect::<Vec<_>>());
    assert_eq!(numbers(2), (1..=50).filter(|n| n % 2 == 1).collect::<Vec<_>>());
    let last = |to: u32| sent.iter().rfind(|(_, f)| f[..6] == station(to).0).unwrap().0;
    // The others go at the speed of the link, beside the limited ones: 8.2 us each.
    assert!(last(2) < us(20 + 250), "{:?}", last(2));
    // At 1/8 of the link a frame of 1,004 B takes 65 us, less while the limiter recovers.
    let took = last(1).since(us(20)).as_us();
    assert!((1_200..1_640).contains(&took), "{took}");
    assert_eq!((end.inside(), end.counters().dropped_out.total_frames()), ((0, 0), 0));
}

#[test]
fn a_limited_destination_is_full_by_itself_and_holds_nobody_else() {
    let mut end = limited(false);
    let mut now = us(1);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    run(&mut end, &mut now, us(20));
    cut(&mut end, now, 1, None);
    let admits = |end: &End, p, to| end.queues().limits().unwrap().has_room(p, station(to), || 0);
    let mut held = 0;
    while admits(&end, CLASS, 1) {
        enqueue(&mut end, now, CLASS, frame(1, 0, held));
        held += 1;
    }
    assert!((65..=66).contains(&held), "64 KiB: {held}");
    assert!(end.takes().contains(CLASS) && admits(&end, CLASS, 2) && admits(&end, 1, 1));
    // It is not the neighbour that holds the frames.
    end.set_watchdog(Duration::from_ms(1), Duration::from_ms(1), true);
    let pause = pfc::Repr { source: MacAddress::local(9), class_enable: 1 << CLASS, quanta: [1_000; 8] }.emit();
    let sent = run(&mut end, &mut now, us(1_000));
    end.control(now, &pause);
    assert!(run(&mut end, &mut now, us(1_500)).is_empty(), "paused, for 512 us");
    let rest = run(&mut end, &mut now, us(10_000));
    assert_eq!((sent.len() + rest.len()) as u32, held);
    assert_eq!(end.flow_control().2, (0, 0), "no storm");
    // A pause earns no more credit than a late poll.
    let gaps: Vec<u64> = rest.windows(2).map(|w| w[1].0.since(w[0].0).as_us()).collect();
    assert!(gaps[10..].iter().all(|&gap| gap > 20), "{gaps:?}");
}

/// An uplink that is polled too seldom keeps the rate of a limiter by small bursts, but does not make up for a long time.
#[test]
fn a_late_poll_is_made_up_for_in_small_bursts() {
    let link = Link { catch_up: Duration::from_ms(50), ..link() };
    // A frame of 1,004 B each 64 us, of which 8,000 B may be late.
    for (period, least, most) in [(200, 31, 36), (2_000, 75, 100)] {
        let mut end: End = Uplink::with(link, Managed::new(limiters(false), None));
        let mut now = us(1);
        enqueue(&mut end, now, CLASS, frame(1, 0, 0));
        run(&mut end, &mut now, us(20));
        cut(&mut end, now, 1, None);
        (0..100).for_each(|n| enqueue(&mut end, now, CLASS, frame(1, 0, n)));
        let mut sent = 0;
        for _ in 0..10 {
            now += Duration::from_us(period);
            // While the link is busy it is polled in time, and then not for a while.
            loop {
                end.on_round(now);
                end.handle_timeout(now);
                while end.front(now).is_some() {
                    end.sent(now);
                    sent += 1;
                }
                match end.poll_timeout().filter(|at| at.since(now) < Duration::from_us(10)) {
                    Some(at) => now = at.max(now + Duration(1)),
                    None => break,
                }
            }
        }
        assert!((least..=most).contains(&sent), "every {period} us: {sent}");
    }
}

#[test]
fn a_limiter_ends_when_it_is_back_at_the_speed_of_the_link() {
    let mut end = limited(false);
    let mut now = us(1);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    run(&mut end, &mut now, us(20));
    cut(&mut end, now, 1, None);
    assert!(end.poll_timeout().is_some_and(|at| at <= now + Duration::from_ms(18)));
    // Only the deadlines it asks for.
    while state(&end).0 > 0 {
        now = end.poll_timeout().unwrap();
        end.handle_timeout(now);
        assert!(now < us(2_000_000));
    }
    assert_eq!(end.poll_timeout(), None);
    assert_eq!(end.queues().limits().unwrap().counters().made, 1);
}

/// Without a timer only bytes end cycles: a limiter that sends none would never end.
#[test]
fn a_limiter_of_which_nothing_is_heard_ends() {
    let limiter = ReactionPointConfig { time_reset: None, ..ReactionPointConfig::crisan2014(RATE) };
    let config = Arc::new(RateLimiters { limiter, by_flow: false, seed: 1 });
    let mut end: End = Uplink::with(link(), Managed::new(Some(Limits::new(config, RATE, 1)), None));
    let mut now = us(1);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    run(&mut end, &mut now, us(20));
    cut(&mut end, now, 1, None);
    let at = end.poll_timeout().unwrap();
    assert_eq!(at, now + Duration::from_secs(10));
    end.handle_timeout(at);
    assert_eq!(state(&end), (0, 0));
}

#[test]
fn flows_have_limiters_of_their_own_by_the_tags_of_their_frames() {
    let mut end = limited(true);
    let mut now = us(1);
    for n in 0..2 {
        enqueue(&mut end, now, CLASS, frame(1, n as u16, n));
    }
    let sent = run(&mut end, &mut now, us(30));
    let flows: Vec<u16> = sent.iter().map(|(_, f)| qcn::flow_of(f).unwrap()).collect();
    assert!(flows[0] != flows[1] && sent.iter().all(|(_, f)| f.len() == 1_004 && f[12..14] == [0x22, 0xE9]));
    cut(&mut end, now, 1, Some(flows[0]));
    for n in 2..22 {
        enqueue(&mut end, now, CLASS, frame(1, n as u16 % 2, n));
    }
    assert_eq!(state(&end), (1, 10));
    let admits = |flow: u16| {
        let flow = || sluicenet_proto::overlay::tunnel::flow_hash(&frame(1, flow, 0));
        end.queues().limits().unwrap().has_room(CLASS, station(1), flow)
    };
    assert!(admits(0) && admits(1));
    let sent = run(&mut end, &mut now, us(130));
    let of = |flow: u16| sent.iter().filter(|(_, f)| qcn::flow_of(f) == Some(flow)).count();
    assert!(of(flows[1]) == 10 && of(flows[0]) <= 4, "{} {}", of(flows[0]), of(flows[1]));
}

/// HOSTILE 33: notifications about frames that nobody sent, without feedback, for others, of random bytes.
#[test]
fn hostile_33_notifications_about_nothing_are_ignored_and_counted() {
    let mut end = limited(false);
    let mut now = us(1);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    run(&mut end, &mut now, us(20));
    for to in 2..2_000 {
        end.notify(now, &notification(63, to, None), Some(OWN));
    }
    end.notify(now, &notification(0, 1, None), Some(OWN));
    end.notify(now, &notification(63, 1, None), Some(MacAddress::local(2)));
    let valid = notification(63, 1, None);
    (0..42).for_each(|len| end.notify(now, &valid[..len], Some(OWN)));
    let counters = *end.queues().limits().unwrap().counters();
    assert_eq!((counters.ignored, counters.malformed, counters.made), (2_000, 42, 0));
    let mut rng = Rng::from_words(&[7]);
    for _ in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..=rng.below(3) {
            bytes[rng.below(60) as usize] = rng.next_u64() as u8;
        }
        bytes.truncate(rng.below(61) as usize);
        end.notify(now, &bytes, Some(OWN));
        assert!(state(&end).0 <= 1, "only what was sent is limited");
    }
    // An old frame is no reason either.
    let mut end = limited(false);
    enqueue(&mut end, now, CLASS, frame(1, 0, 0));
    run(&mut end, &mut now, us(40));
    end.notify(now + Duration::from_secs(2), &valid, Some(OWN));
    assert_eq!(state(&end), (0, 0));
}

/// HOSTILE 33: destinations with one hash do not displace each other, and endpoints do not know which have one.
#[test]
fn hostile_33_sent_frames_are_remembered_by_a_salted_hash_with_several_places() {
    // The destinations of those of so many frames that were forgotten when the last one was sent.
    let forgotten = |salt: u64, destinations: u32| {
        let mut end: End = Uplink::with(fast(), Managed::new(Some(salted(false, salt)), None));
        let mut now = us(1);
        for to in 0..destinations {
            enqueue(&mut end, now, CLASS, frame(to, 0, 0));
            let until = now + Duration::from_us(2);
            run(&mut end, &mut now, until);
        }
        let is_ignored = |to: &u32| {
            let before = end.queues().limits().unwrap().counters().ignored;
            end.notify(now, &notification(63, *to, None), Some(OWN));
            end.queues().limits().unwrap().counters().ignored > before
        };
        (0..destinations).filter(is_ignored).collect::<Vec<u32>>()
    };
    assert_eq!(forgotten(1, 400), [0; 0]);
    let (first, second) = (forgotten(1, 4_000), forgotten(2, 4_000));
    assert!((400..1_200).contains(&first.len()) && (400..1_200).contains(&second.len()), "{}", first.len());
    let both = first.iter().filter(|to| second.contains(to)).count();
    assert!(both < first.len() / 2, "{both} of {}", first.len());
    // The oldest of a hash is forgotten.
    assert!(first.iter().all(|&to| to < 3_900));
}

/// HOSTILE 33: a neighbour that notifies about every frame makes a bounded number of limiters, each with a lowest rate.
#[test]
fn hostile_33_a_flood_of_notifications_is_bounded_and_loses_nothing() {
    let mut end = limited(false);
    let mut now = us(1);
    let (mut enqueued, mut sent) = (0, 0);
    for to in 0..3_000 {
        for _ in 0..2 {
            enqueue(&mut end, now, CLASS, frame(to, 0, 0));
            enqueued += 1;
        }
        let until = now + Duration::from_us(20);
        sent += run(&mut end, &mut now, until).len();
        end.notify(now, &notification(63, to, None), Some(OWN));
        if to % 3 == 0 {
            enqueue(&mut end, now, CLASS, frame(to, 0, 0));
            enqueued += 1;
        }
        end.notify(now, &notification(63, to, None), Some(OWN));
    }
    let (limiters, _, lowest) = end.queues().limits().unwrap().state();
    assert!(limiters <= 1_024 && lowest.unwrap().as_bps() >= 100_000, "{limiters}");
    while end.inside().1 > 0 {
        let until = now + Duration::from_ms(1);
        sent += run(&mut end, &mut now, until).len();
        assert!(now < us(2_000_000));
    }
    assert_eq!(sent, enqueued);
}

/// Priority 7 is strict, the others share as 60, 30 and 10.
fn ets() -> EtsConfig {
    let group = |priorities, bandwidth| Group { priorities: PrioritySet(priorities), bandwidth };
    let groups = vec![group(0b0000_0011, 60), group(0b0001_1100, 30), group(0b0110_0000, 10)];
    EtsConfig::new(PrioritySet(0b1000_0000), groups).unwrap()
}

/// Bytes that leave in each class in 10 ms, where classes `always` have frames.
fn shares(end: &mut End, always: PrioritySet, each_us: &mut dyn FnMut(&mut End, Instant)) -> [u64; PRIORITIES] {
    let (mut now, mut bytes, mut n) = (us(1), [0; PRIORITIES], 0);
    while now < us(10_000) {
        for p in PrioritySet(always.0 & end.takes().0).iter() {
            n += 1;
            enqueue(end, now, p, frame(p.into(), n as u16 % 9, n));
        }
        each_us(end, now);
        let until = now + Duration::from_us(1);
        for (_, frame) in run(end, &mut now, until) {
            bytes[usize::from(frame[5] - 100)] += frame.len() as u64 + 4;
        }
    }
    bytes
}

#[test]
fn groups_share_the_link_by_weight_and_a_strict_class_goes_first() {
    let mut end: End = Uplink::with(fast(), Managed::new(None, Some(ets())));
    let bytes = shares(&mut end, PrioritySet(0b0010_1010), &mut |_, _| {});
    let all: u64 = bytes.iter().sum();
    // 1,024 B on the wire take 819 ns.
    assert!(all > 12_150 * 1_004, "the link is full: {all}");
    for (p, share) in [(1, 60.0), (3, 30.0), (5, 10.0)] {
        let percent = bytes[p] as f64 / all as f64 * 100.0;
        assert!((percent - share).abs() < 1.0, "{p}: {percent} %");
    }
    // A strict class beside them takes what it wants, and waits for no more than one frame.
    let mut end: End = Uplink::with(fast(), Managed::new(None, Some(ets())));
    let mut waited = 0;
    let bytes = shares(&mut end, PrioritySet(0b0000_1010), &mut |end, now| {
        if micros(now) % 100 == 0 {
            enqueue(end, now, 7, frame(7, 0, 0));
        }
        waited = waited.max(u64::from(end.queues().ready(now).contains(7)) * (micros(now) % 100));
    });
    assert!(bytes[7] >= 98 * 1_004 && waited <= 1, "{bytes:?} {waited}");
    let rest = (bytes[1] + bytes[3]) as f64;
    assert!((bytes[1] as f64 / rest - 60.0 / 90.0).abs() < 0.01, "{bytes:?}");
}

#[test]
fn pauses_and_limiters_leave_the_shares_of_the_others() {
    // A pause of class 3 each 100 us, for 51 us: it loses turns, and the others divide what it leaves.
    let mut end: End = Uplink::with(fast(), Managed::new(limiters(false), Some(ets())));
    let pause = pfc::Repr { source: MacAddress::local(9), class_enable: 1 << 3, quanta: [1_000; 8] }.emit();
    let bytes = shares(&mut end, PrioritySet(0b0010_1010), &mut |end, now| {
        if micros(now) % 100 == 0 {
            end.control(now, &pause);
        }
    });
    let ratio = bytes[1] as f64 / bytes[5] as f64;
    assert!((ratio - 6.0).abs() < 0.2 && bytes[3] > 100 * 1_004, "{bytes:?}");
    assert!(bytes.iter().sum::<u64>() > 12_150 * 1_004, "the link is full: {bytes:?}");
    // Class 1 is limited: the other groups get the rest as 30 to 10.
    let mut end: End = Uplink::with(fast(), Managed::new(limiters(false), Some(ets())));
    let message = qcn::Repr::of(9 << 16, (63, 10_000, 500), 1, station(1));
    let frame = qcn::Frame { destination: OWN, source: MacAddress::local(9), priority: 7, flow: None, message };
    let mut notification = vec![0; frame.emitted_len()];
    frame.emit(&mut notification);
    let bytes = shares(&mut end, PrioritySet(0b0010_1010), &mut |end, now| {
        if micros(now) % 100 == 51 {
            end.notify(now, &notification, Some(OWN));
        }
    });
    assert_eq!(end.queues().limits().unwrap().counters().made, 1);
    let ratio = bytes[3] as f64 / bytes[5] as f64;
    assert!(bytes[1] < 600 * 1_004 && (ratio - 3.0).abs() < 0.15, "{bytes:?}");
    assert!(bytes.iter().sum::<u64>() > 11_500 * 1_004, "the link is full: {bytes:?}");
}

#[test]
fn the_same_events_give_the_same_frames() {
    let once = || {
        let mut end: End = Uplink::with(fast(), Managed::new(limiters(true), Some(ets())));
        let mut order = Vec::new();
        shares(&mut end, PrioritySet(0b1010_1010), &mut |end, now| {
            if micros(now) % 300 == 0 {
                order.push((end.counters().sent, end.inside()));
                cut(end, now, 3, Some(micros(now) as u16));
            }
        });
        order
    };
    assert_eq!(once(), once());
}
