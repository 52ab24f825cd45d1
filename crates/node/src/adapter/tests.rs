//! Guarantees of an adapter with one link and with several.

use super::*;
use crate::packet::{Address, FlowKey, Framing, Packet};
use alloc::vec;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::Policy;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::Xgft;

fn config(queueing: Queueing, resequencing: Option<Duration>) -> Arc<AdapterConfig> {
    Arc::new(AdapterConfig {
        buffer: 10_000,
        queueing,
        lossless: PrioritySet::ALL,
        apart: PrioritySet::NONE,
        quanta: 100,
        quantum: alloc::vec![Duration(51_200)],
        repetition: alloc::vec![None],
        marks: Watermarks { xoff: 5_000, xon: 3_000, capacity: 8_000, headroom: 3_000 },
        resequencing,
    })
}

fn frame(dst: u32, n: u64, priority: u8) -> Packet {
    let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(dst, 0), sport: 1, dport: 1 };
    Packet::udp(flow, n, 954, priority, Framing::ETHERNET)
}

#[test]
fn destinations_take_turns() {
    let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
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
    let (mut a, mut pool) = (Adapter::new(Arc::new(apart), None), Pool::default());
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
    let (mut a, mut pool) = (Adapter::new(config(Queueing::Fifo, None), None), Pool::default());
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
    let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
    for n in 0..10 {
        let at = pool.insert(&frame(n, n as u64, 0));
        a.enqueue::<Any, _>(&mut pool, at).unwrap();
    }
    let at = pool.insert(&frame(1, 99, 0));
    assert_eq!(a.enqueue::<Any, _>(&mut pool, at), Err(Full(at)));
}

#[test]
fn a_stalled_host_stops_the_wire_and_frees_it() {
    let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
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
    config.quantum = (1..=links as u64).map(|n| Duration(n * 51_200)).collect();
    config.repetition = alloc::vec![None; links as usize];
    Adapter::new(Arc::new(config), Some(router))
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
        let (mut a, mut pool) = (Adapter::new(roomy, None), Pool::default());
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
    let mut a = Adapter::new(config(Queueing::Voq, Some(patience)), None);
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
    let mut a = Adapter::new(config(Queueing::Voq, Some(Duration::from_ms(1))), None);
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
