//! Guarantees of an adapter with one link and with several.

use super::resequencer::MAX_PLACED;
use super::*;
use crate::packet::{Address, FlowKey, Framing, Packet};
use alloc::vec;
use sluicenet_proto::cee::ets::Group;
use sluicenet_proto::cee::qcn::{Message, Notification, ReactionPointConfig};
use sluicenet_proto::cee::source_control::RateLimiters;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::Policy;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::Xgft;
use sluicenet_proto::transport::roce::{self, Data};

fn config(queueing: Queueing, resequencing: Option<Duration>) -> Arc<AdapterConfig> {
    Arc::new(AdapterConfig {
        buffer: 10_000,
        queueing,
        lossless: PrioritySet::ALL,
        apart: PrioritySet::NONE,
        quanta: 100,
        repetition: alloc::vec![None],
        marks: Watermarks { xoff: 5_000, xon: 3_000, capacity: 8_000, headroom: 3_000 },
        resequencing: resequencing.map(Patience::alike),
        rate: alloc::vec![Rate::gbps(10)],
        ets: None,
        notifications: false,
        source: None,
    })
}

fn frame(dst: u32, n: u64, priority: u8) -> Packet {
    let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(dst, 0), sport: 1, dport: 1 };
    Packet::udp(flow, n, 954, priority, Framing::ETHERNET)
}

#[test]
fn destinations_take_turns() {
    let (mut a, mut pool) = (Adapter::new(1, config(Queueing::Voq, None), None), Pool::default());
    for (dst, n) in [(7, 0), (7, 1), (7, 2), (8, 3), (9, 4)] {
        let at = pool.insert(&frame(dst, n, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let mut next = || a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).map(|at| pool.frame(at).udp_offset());
    let order: Vec<u64> = core::iter::from_fn(&mut next).collect();
    assert_eq!(order, [0, 3, 4, 1, 2]);
    let mut woke = PortSet::default();
    a.wake::<Any>(&mut woke);
    assert!(woke.is_empty() && a.room::<Any>() == 10_000);
}

#[test]
fn a_class_with_a_buffer_of_its_own_is_not_stopped_by_the_others_nor_stops_them() {
    let mut apart = (*config(Queueing::Voq, None)).clone();
    apart.apart = PrioritySet(2);
    let (mut a, mut pool) = (Adapter::new(1, Arc::new(apart), None), Pool::default());
    for priority in [0, 1] {
        // 10,000 B hold ten frames of 1,000 B.
        for n in 0..10 {
            let at = pool.insert(&frame(7, n, priority));
            a.enqueue::<Any, _>(&mut pool, at).unwrap();
        }
        let at = pool.insert(&frame(7, 10, priority));
        assert!(a.enqueue::<Any, _>(&mut pool, at).is_err(), "{priority}");
    }
    assert_eq!((a.room::<Any>(), a.room_apart::<Any>(), a.used(0)), (0, 0, 20_000));
    while a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).is_some() {}
    assert_eq!((a.room::<Any>(), a.room_apart::<Any>(), a.used(0)), (10_000, 10_000, 0));
}

#[test]
fn a_held_priority_waits_and_the_others_go() {
    let (mut a, mut pool) = (Adapter::new(1, config(Queueing::Fifo, None), None), Pool::default());
    for (n, priority) in [(0, 3), (1, 4)] {
        let at = pool.insert(&frame(7, n, priority));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
    pause.quanta[3] = 2;
    a.receive_pause(Instant(0), 0, &pause);
    let at = a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).unwrap();
    assert_eq!(pool.frame(at).udp_offset(), 1);
    assert!(a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).is_none());
    let mut none = |_| panic!();
    a.handle_timeout(a.poll_timeout().unwrap(), &mut none);
    let at = a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).unwrap();
    assert_eq!(pool.frame(at).udp_offset(), 0);
}

#[test]
fn a_full_buffer_hands_the_frame_back() {
    let (mut a, mut pool) = (Adapter::new(1, config(Queueing::Voq, None), None), Pool::default());
    for n in 0..10 {
        let at = pool.insert(&frame(n, n as u64, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let at = pool.insert(&frame(1, 99, 0));
    assert_eq!(a.enqueue::<Any, _>(&mut pool, at), Err(Full(at)));
}

#[test]
fn a_stalled_host_stops_the_wire_and_frees_it() {
    let (mut a, mut pool) = (Adapter::new(1, config(Queueing::Voq, None), None), Pool::default());
    for n in 0..6 {
        let at = pool.insert(&frame(1, n, 2));
        a.stall(&pool, at).unwrap();
    }
    let pause = |a: &mut Adapter, pool: &mut Pool<Packet>| {
        let at = a.poll_transmit::<Any, _>(Instant(0), 0, pool).unwrap();
        pool.frame(at).as_pause().unwrap()
    };
    let xoff = pause(&mut a, &mut pool);
    assert_eq!((xoff.classes, xoff.quanta[2]), (PrioritySet(4), 100));
    for n in 0..3 {
        let at = a.take_stalled(&pool).unwrap();
        assert_eq!(pool.frame(at).udp_offset(), n);
    }
    let xon = pause(&mut a, &mut pool);
    assert_eq!((xon.classes, xon.quanta[2]), (PrioritySet(4), 0));
}

/// An adapter of host 1 with `links` links, each to an edge switch of its own.
fn with_links(links: u32, policy: Policy, resequencing: Option<Duration>) -> Adapter {
    let tree = Xgft::new(&[16], &[links]).unwrap();
    let router = Router::Tree(TreeRouter::of_leaf(&tree, 1, policy, 7, &[]));
    let mut config = (*config(Queueing::Voq, resequencing)).clone();
    config.rate = (1..=links as u64).map(|n| Rate(10_000_000_000 / n)).collect();
    config.repetition = alloc::vec![None; links as usize];
    Adapter::new(1, Arc::new(config), Some(router))
}

fn ready(a: &Adapter) -> Vec<PortId> {
    let mut woke = PortSet::default();
    a.wake::<Any>(&mut woke);
    let mut ports: Vec<PortId> = core::iter::from_fn(|| woke.pop()).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn links_share_the_buffer_and_each_serves_its_own_frames() {
    let (mut a, mut pool) = (with_links(2, Policy::DModK, None), Pool::default());
    for (n, dst) in [6, 7, 8, 6, 9].into_iter().enumerate() {
        let at = pool.insert(&frame(dst, n as u64, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    assert_eq!((a.room::<Any>(), a.used(0), a.used(1), ready(&a)), (5_000, 3_000, 2_000, vec![0, 1]));
    let mut sent = |port| {
        core::iter::from_fn(|| {
            a.poll_transmit::<Any, _>(Instant(0), port, &mut pool).map(|at| pool.frame(at).udp_offset())
        })
        .collect::<Vec<u64>>()
    };
    // Destinations mod 2; the destinations of each link take turns.
    assert_eq!((sent(1), sent(0)), (vec![1, 4], vec![0, 2, 3]));
    assert_eq!((a.room::<Any>(), a.used(0), a.max_used(0), a.max_used(1)), (10_000, 0, 3_000, 2_000));
    assert_eq!((a.sent(0), a.sent(1), ready(&a)), (Some(3), Some(2), vec![]));
}

#[test]
fn a_pause_stops_its_own_link_for_its_own_quanta() {
    let (mut a, mut pool) = (with_links(2, Policy::DModK, None), Pool::default());
    for dst in [6, 7] {
        let at = pool.insert(&frame(dst, dst as u64, 3));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
    pause.quanta[3] = 2;
    a.receive_pause(Instant(0), 1, &pause);
    assert_eq!(ready(&a), [0]);
    assert!(a.poll_transmit::<Any, _>(Instant(0), 1, &mut pool).is_none());
    assert!(a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).is_some());
    // Two quanta of the second link, which is slower.
    let end = Instant(2 * 102_400);
    assert_eq!(a.poll_timeout(), Some(end));
    a.handle_timeout(end, &mut |_| panic!());
    assert_eq!((ready(&a), a.poll_timeout()), (vec![1], None));
    assert!(a.poll_transmit::<Any, _>(end, 1, &mut pool).is_some());
    assert_eq!((a.gate(0).stops(), a.gate(1).stops(), a.control_in()), (0, 1, 1));
    let paused = |dst: u32| a.paused_time(end, 3, || frame(dst, 0, 3));
    assert_eq!((paused(6), paused(7)), (Duration::ZERO, Duration(2 * 102_400)));
}

#[test]
fn a_stalled_host_stops_every_link_and_refreshes_each() {
    let (mut a, mut pool) = (with_links(3, Policy::Hash, None), Pool::default());
    for n in 0..6 {
        let at = pool.insert(&frame(1, n, 2));
        a.stall(&pool, at).unwrap();
    }
    assert_eq!(ready(&a), [0, 1, 2]);
    let mut pause = |a: &mut Adapter, now: Instant, port: PortId| {
        let at = a.poll_transmit::<Any, _>(now, port, &mut pool).unwrap();
        pool.frame(at).as_pause().unwrap().quanta[2]
    };
    assert_eq!([0, 1].map(|port| pause(&mut a, Instant(0), port)), [100, 100]);
    assert_eq!((ready(&a), a.poll_timeout()), (vec![2], Some(Instant(50 * 51_200))));
    assert_eq!(pause(&mut a, Instant(0), 2), 100);
    let first = a.poll_timeout().unwrap();
    a.handle_timeout(first, &mut |_| panic!());
    // Half the time of 100 quanta; each link has its own quantum.
    assert_eq!((ready(&a), a.poll_timeout()), (vec![0], Some(Instant(100 * 51_200))));
    assert_eq!(pause(&mut a, first, 0), 100);
    assert_eq!([0, 1, 2].map(|port| (a.signal(port).stops(), a.signal(port).sent())), [(1, 2), (1, 1), (1, 1)]);
}

#[test]
fn frames_of_links_in_turn_are_numbered_as_they_enter() {
    let (mut a, mut pool) = (with_links(3, Policy::Random, Some(Duration::from_us(100))), Pool::default());
    for n in 0..10 {
        let at = pool.insert(&frame(7, n, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let used = [0, 1, 2].map(|port| a.used(port));
    assert!(used.iter().sum::<u32>() == 10_000 && used.iter().all(|&u| u > 0), "{used:?}");
    for port in [2, 0, 1] {
        while let Some(at) = a.poll_transmit::<Any, _>(Instant(0), port, &mut pool) {
            assert_eq!(pool.frame(at).serial() as u64, pool.frame(at).udp_offset());
        }
    }
    assert_eq!(a.room::<Any>(), 10_000);
}

#[test]
fn frames_come_out_in_order_whatever_path_they_took() {
    let patience = Duration::from_us(100);
    let mut rng = Rng::from_words(&[3]);
    for case in 0..50 {
        let mut roomy = config(Queueing::Voq, Some(patience));
        Arc::make_mut(&mut roomy).marks.capacity = 1_000_000;
        let (mut a, mut pool) = (Adapter::new(1, roomy, None), Pool::default());
        let mut frames: Vec<Packet> = (0..500u64)
            .map(|n| {
                let mut f = frame(1, n, 0);
                f.set_serial(n as u16);
                f
            })
            .collect();
        for i in 0..frames.len() {
            let j = (i + rng.below(20) as usize).min(frames.len() - 1);
            frames.swap(i, j);
        }
        let lost = (case % 2 == 1).then(|| rng.below(500));
        let mut seen = Vec::new();
        let mut now = Instant(0);
        for f in frames.into_iter().filter(|f| Some(f.udp_offset()) != lost) {
            now += Duration::from_us(1);
            let at = pool.insert(&f);
            a.resequence(now, &pool, at, &mut |at| seen.push(at));
        }
        while let Some(at) = a.poll_timeout() {
            a.handle_timeout(at, &mut |at| seen.push(at));
        }
        assert_eq!(a.received_bytes, [0; PRIORITIES]);
        let seen: Vec<u64> = seen.into_iter().map(|at| pool.frame(at).udp_offset()).collect();
        let expected: Vec<u64> = (0..500).filter(|&n| Some(n) != lost).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn no_frame_waits_longer_than_it_may() {
    let patience = Duration::from_us(100);
    let mut pool = Pool::default();
    let mut a = Adapter::new(1, config(Queueing::Voq, Some(patience)), None);
    let mut came = Vec::new();
    // Every other frame is lost: each received frame follows a gap of its own.
    for n in 0..8u16 {
        let mut f = frame(1, n as u64, 0);
        f.set_serial(2 * n + 1);
        let at = pool.insert(&f);
        let now = Instant(0) + Duration::from_us(20 * n as u64);
        while let Some(deadline) = a.poll_timeout().filter(|&deadline| deadline <= now) {
            a.handle_timeout(deadline, &mut |at| came.push((deadline, pool.frame(at).udp_offset())));
        }
        a.resequence(now, &pool, at, &mut |at| came.push((now, pool.frame(at).udp_offset())));
    }
    while let Some(deadline) = a.poll_timeout() {
        a.handle_timeout(deadline, &mut |at| came.push((deadline, pool.frame(at).udp_offset())));
    }
    let expected: Vec<_> = (0..8).map(|n| (Instant(0) + Duration::from_us(20 * n + 100), n)).collect();
    assert_eq!(came, expected);
}

#[test]
fn frames_that_wait_for_an_earlier_one_fill_the_buffer_and_stop_the_wire() {
    let mut pool = Pool::default();
    let mut a = Adapter::new(1, config(Queueing::Voq, Some(Duration::from_ms(1))), None);
    let mut came = Vec::new();
    for n in 1..=8u16 {
        let mut f = frame(1, n as u64, 2);
        f.set_serial(n);
        let at = pool.insert(&f);
        a.resequence(Instant(0), &pool, at, &mut |at| came.push(at));
    }
    // 8 frames of 1,000 B: XOFF at 5,000, all of 8,000 in use, nothing given up.
    assert!(came.is_empty() && a.stopped().contains(2));
    let at = pool.insert(&frame(1, 0, 2));
    a.resequence(Instant(0), &pool, at, &mut |at| came.push(at));
    assert_eq!((came.len(), a.received_bytes[2]), (9, 0));
    assert!(!a.stopped().contains(2));
}

/// A packet of a queue pair of host 1, with a serial number.
fn of_queue_pair(serial: u16) -> Packet {
    let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(1, 0), sport: 1, dport: 1 };
    let psn = serial.into();
    let data = Data { psn, is_first: false, is_last: false, ack_request: false, len: 1024, offset: 0, message: 0 };
    let mut packet = Packet::roce(flow, &roce::Packet::Data(data), false, 2, Framing::ETHERNET);
    packet.set_serial(serial);
    packet
}

#[test]
fn early_packets_of_queue_pairs_take_no_room_and_stop_no_link() {
    let mut pool = Pool::default();
    let mut a = Adapter::new(1, config(Queueing::Voq, Some(Duration::from_ms(1))), None);
    let mut came = Vec::new();
    let mut receive = |a: &mut Adapter, packet: &Packet| {
        let at = pool.insert(packet);
        a.resequence(Instant(0), &pool, at, &mut |at| came.push(pool.frame(at).serial()));
        came.len()
    };
    let most = MAX_PLACED as u16;
    // 17 MB wait; the receive buffer holds 8,000 B. It holds a datagram that waits with them.
    for serial in 2..=most {
        assert_eq!(receive(&mut a, &of_queue_pair(serial)), 0);
    }
    assert_eq!((a.received_bytes[2], a.queued()), (0, u64::from(most) - 1));
    let mut datagram = frame(1, 0, 2);
    datagram.set_serial(1);
    assert_eq!((receive(&mut a, &datagram), a.received_bytes[2]), (0, 1_000));
    assert!(!a.stopped().contains(2));
    assert_eq!((receive(&mut a, &of_queue_pair(0)), a.received_bytes[2]), (usize::from(most) + 1, 0));
    // One more than may wait: the first gap is given up.
    for serial in most + 2..=2 * most + 1 {
        assert_eq!(receive(&mut a, &of_queue_pair(serial)), usize::from(most) + 1);
    }
    assert_eq!(receive(&mut a, &of_queue_pair(2 * most + 2)), 2 * usize::from(most) + 2);
    assert_eq!((a.queued(), a.received_bytes[2]), (0, 0));
    assert!(came.is_sorted());
}

#[test]
fn packets_of_queue_pairs_wait_longer_where_none_is_lost() {
    let patience = Patience { buffered: Duration::from_us(100), placed: Duration::from_ms(1) };
    let deadline = |packet: &mut Packet, lossless: PrioritySet| {
        let config = AdapterConfig { resequencing: Some(patience), lossless, ..(*config(Queueing::Voq, None)).clone() };
        let (mut a, mut pool) = (Adapter::new(1, Arc::new(config), None), Pool::default());
        packet.set_serial(1);
        let at = pool.insert(packet);
        a.resequence(Instant(0), &pool, at, &mut |_| panic!("early"));
        a.poll_timeout().map(|at| Duration::from_ps(at.0))
    };
    let of_pair = |lossless| deadline(&mut of_queue_pair(1), PrioritySet(lossless));
    assert_eq!((of_pair(1 << 2), of_pair(0)), (Some(patience.placed), Some(patience.buffered)));
    assert_eq!(deadline(&mut frame(1, 0, 2), PrioritySet::ALL), Some(patience.buffered));
}

/// An adapter whose queues are limited by QCN.
fn limited(by_flow: bool) -> Adapter {
    let limiter = ReactionPointConfig::crisan2014(Rate::gbps(10));
    let source: Arc<dyn SourceConfig> = Arc::new(RateLimiters { limiter, by_flow, seed: 1 });
    let config = (*config(Queueing::Voq, None)).clone();
    Adapter::new(1, Arc::new(AdapterConfig { notifications: true, source: Some(source), ..config }), None)
}

fn notification(about: &Packet, feedback: u8) -> Packet {
    let notification = Notification { feedback, offset: 0, delta: 0 };
    about.notification(&Message { cpid: 0, notification, priority: about.priority() }, 7)
}

/// The next frames of the adapter at `now`, by destination.
fn next(a: &mut Adapter, pool: &mut Pool<Packet>, now: Instant) -> Vec<u32> {
    let mut sent = Vec::new();
    while let Some(at) = a.poll_transmit::<Any, _>(now, 0, pool) {
        sent.push(pool.frame(at).destination());
        pool.release(at);
    }
    sent
}

#[test]
fn a_limited_queue_waits_for_its_rate_and_others_pass_it() {
    let (mut a, mut pool) = (limited(false), Pool::default());
    let start = Instant(0);
    // Five notifications at full feedback: about 330 Mb/s, so that a frame of 1,000 B takes some 24 us.
    (0..5).for_each(|_| a.on_notification(start, &notification(&frame(7, 0, 0), 63)));
    for (dst, n) in [(7, 0), (7, 1), (7, 2), (8, 3)] {
        let at = pool.insert(&frame(dst, n, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let other_priority = pool.insert(&frame(7, 4, 1));
    a.enqueue::<Any, _>(&mut pool, other_priority).unwrap();
    assert_eq!(next(&mut a, &mut pool, start), [7, 8, 7], "the first limited frame, and those that are not limited");
    assert_eq!((a.queued(), a.room::<Any>()), (2, 8_000), "held frames stay in the buffer");
    // A frame that comes meanwhile waits behind the held ones.
    let later = pool.insert(&frame(7, 5, 0));
    a.enqueue::<Any, _>(&mut pool, later).unwrap();
    let mut gaps = Vec::new();
    let (mut now, mut order) = (start, Vec::new());
    while a.queued() > 0 {
        let due = a.poll_timeout().expect("a held queue has a deadline");
        a.handle_timeout(due, &mut |_| panic!("nothing is delivered"));
        while let Some(at) = a.poll_transmit::<Any, _>(due, 0, &mut pool) {
            gaps.push(due.since(now).0 / 1_000);
            order.push(pool.frame(at).udp_offset());
            (now, _) = (due, pool.release(at));
        }
    }
    assert_eq!(order, [1, 2, 5]);
    assert!(gaps.iter().all(|ns| (20_000..30_000).contains(ns)), "{gaps:?}");
    let mut rates = Vec::new();
    a.limiters(0, |key, path, rate, _| rates.push((key, path, rate.as_bps() / 1_000_000)));
    assert!(matches!(rates[..], [(key, None, 300..400)] if key == 7 << 3), "{rates:?}");
}

#[test]
fn a_limiter_of_a_flow_leaves_other_flows_to_its_destination_alone() {
    let (mut a, mut pool) = (limited(true), Pool::default());
    let of_flow = |sport: u16, n: u64| {
        let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(7, 0), sport, dport: 1 };
        Packet::udp(flow, n, 954, 0, Framing::ETHERNET)
    };
    (0..5).for_each(|_| a.on_notification(Instant(0), &notification(&of_flow(10, 0), 63)));
    for (sport, n) in [(10, 0), (10, 1), (20, 2), (20, 3)] {
        let at = pool.insert(&of_flow(sport, n));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let mut sent = Vec::new();
    while let Some(at) = a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool) {
        sent.push(pool.frame(at).udp_offset());
    }
    assert_eq!(sent, [0, 2, 3]);
}

#[test]
fn a_limiter_that_has_recovered_is_forgotten() {
    let (mut a, mut pool) = (limited(false), Pool::default());
    a.on_notification(Instant(0), &notification(&frame(7, 0, 0), 1));
    let mut turns = 0;
    while let Some(due) = a.poll_timeout() {
        a.handle_timeout(due, &mut |_| panic!("nothing is delivered"));
        let at = pool.insert(&frame(7, turns, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
        next(&mut a, &mut pool, due);
        turns += 1;
        assert!(turns < 100);
    }
    a.limiters(0, |_, _, _, _| panic!("no limiter is left"));
}

#[test]
fn priorities_share_the_link_by_transmission_selection() {
    let groups = vec![
        Group { priorities: PrioritySet(0b0000_0001), bandwidth: 75 },
        Group { priorities: PrioritySet(0b0111_1110), bandwidth: 25 },
    ];
    let ets = EtsConfig::new(PrioritySet(0b1000_0000), groups).unwrap();
    let base = (*config(Queueing::Voq, None)).clone();
    let config = AdapterConfig { ets: Some(Arc::new(ets)), buffer: 1_000_000, ..base };
    let (mut a, mut pool) = (Adapter::new(1, Arc::new(config), None), Pool::default());
    for n in 0..300 {
        for (dst, priority) in [(7, 0), (8, 0), (7, 1)] {
            let at = pool.insert(&frame(dst, n, priority));
            a.enqueue::<Any, _>(&mut pool, at).unwrap();
        }
    }
    let strict = pool.insert(&frame(9, 0, 7));
    a.enqueue::<Any, _>(&mut pool, strict).unwrap();
    let mut sent = [0; 8];
    for n in 0..600 {
        let at = a.poll_transmit::<Any, _>(Instant(0), 0, &mut pool).unwrap();
        let priority = pool.frame(at).priority() as usize;
        assert_eq!(priority == 7, n == 0, "the strict one is the first");
        sent[priority] += 1;
    }
    // Rounds of 160 frames: up to 40 frames more or less.
    assert!((410..=490).contains(&sent[0]) && sent[0] + sent[1] == 599, "{sent:?}");
}
