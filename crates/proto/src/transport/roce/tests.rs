use super::*;
use crate::rng::Rng;
use crate::time::Instant;
use crate::units::Rate;
use alloc::vec::Vec;

const CONFIG: Config = Config { mtu: 1024, ack_every: 4, timeout: Duration::from_us(500), dcqcn: None };
const NOW: Instant = Instant::ZERO;

fn queue_pair() -> QueuePair {
    QueuePair::new(Rate::gbps(40))
}

/// All packets that a queue pair has now.
fn sent(pair: &mut QueuePair, now: Instant) -> Vec<Packet> {
    core::iter::from_fn(|| pair.poll_transmit(&CONFIG, now)).collect()
}

fn numbers(packets: &[Packet]) -> Vec<(u32, u16)> {
    let data = packets.iter().filter_map(|p| if let Packet::Data(d) = p { Some((d.psn, d.len)) } else { None });
    data.collect()
}

fn receive(pair: &mut QueuePair, packet: &Packet) -> Heard {
    pair.receive(&CONFIG, NOW, packet, false)
}

fn reply(psn: u32, is_sequence_error: bool, msn: u32) -> Packet {
    Packet::Reply(Reply { psn, is_sequence_error, msn })
}

/// InfiniBand specification, 9.3: a message is a first packet, full packets and a last one; the last asks for an answer.
#[test]
fn messages_are_cut_into_packets_and_acknowledged() {
    let (mut a, mut b) = (queue_pair(), queue_pair());
    a.post(6 * 1024 + 1);
    a.post(10);
    let packets = sent(&mut a, NOW);
    let data = |d: &Packet| match d {
        Packet::Data(d) => (d.psn, d.len, d.is_first, d.is_last, d.ack_request, d.offset, d.message),
        other => panic!("{other:?}"),
    };
    let seen: Vec<_> = packets.iter().map(data).collect();
    let full = |n: u32, ask| (n, 1024, n == 0, false, ask, u64::from(n) * 1024, 6145);
    let first: Vec<_> = (0..6).map(|n| full(n, n == 3)).collect();
    assert_eq!(seen[..6], first);
    assert_eq!(seen[6..], [(6, 1, false, true, true, 6144, 6145), (7, 10, true, true, true, 6145, 10)]);
    let fresh: u32 = packets.iter().map(|p| u32::from(receive(&mut b, p).fresh)).sum();
    assert_eq!(fresh, 6155);
    // Four requests since the last answer, one acknowledgment.
    assert_eq!(sent(&mut b, NOW), [reply(7, false, 2)]);
    assert!(!a.is_idle());
    assert!(receive(&mut a, &reply(7, false, 2)).acknowledged);
    assert!(a.is_idle() && a.poll_timeout(NOW) == Instant::MAX);
}

/// 9.7.5.2.8: one negative acknowledgment for a gap; the requester sends everything from there again.
#[test]
fn a_gap_is_reported_once_and_the_requester_goes_back() {
    let (mut a, mut b) = (queue_pair(), queue_pair());
    a.post(8 * 1024);
    let packets = sent(&mut a, NOW);
    for (n, packet) in packets.iter().enumerate().filter(|(n, _)| *n != 2) {
        let heard = receive(&mut b, packet);
        assert_eq!(heard.fresh, if n < 2 { 1024 } else { 0 }, "packets behind a gap are discarded");
    }
    assert_eq!(sent(&mut b, NOW), [reply(2, true, 0)]);
    receive(&mut a, &reply(2, true, 0));
    let again = sent(&mut a, NOW);
    assert_eq!(numbers(&again), (2..8).map(|n| (n, 1024)).collect::<Vec<_>>());
    assert_eq!((a.stats().retransmissions, a.stats().sequence_errors, a.stats().timeouts), (6, 1, 0));
    let fresh: u32 = again.iter().map(|p| u32::from(receive(&mut b, p).fresh)).sum();
    assert_eq!(fresh, 6 * 1024);
    assert_eq!(sent(&mut b, NOW), [reply(7, false, 1)]);
}

#[test]
fn a_gap_that_closes_before_the_report_is_acknowledged() {
    let (mut a, mut b) = (queue_pair(), queue_pair());
    a.post(2 * 1024);
    let packets = sent(&mut a, NOW);
    receive(&mut b, &packets[1]);
    receive(&mut b, &packets[0]);
    assert_eq!(sent(&mut b, NOW), [reply(0, false, 0)], "the missing packet is there");
}

/// 9.7.6.1.1: a lost last packet makes no gap; the requester's timer repairs it.
#[test]
fn a_lost_last_packet_costs_a_timeout() {
    let (mut a, mut b) = (queue_pair(), queue_pair());
    a.post(3 * 1024);
    let packets = sent(&mut a, NOW);
    let fresh = [0, 1].map(|n| receive(&mut b, &packets[n]).fresh);
    assert_eq!(fresh, [1024, 1024]);
    assert_eq!(sent(&mut b, NOW), [], "nobody asked");
    let late = Instant::ZERO + CONFIG.timeout;
    assert_eq!(a.poll_timeout(NOW), late);
    a.handle_timeout(&CONFIG, Instant(late.0 - 1));
    assert!(!a.wants_transmit());
    a.handle_timeout(&CONFIG, late);
    let again = sent(&mut a, late);
    assert_eq!(numbers(&again), [(0, 1024), (1, 1024), (2, 1024)]);
    assert_eq!((a.stats().timeouts, a.stats().timeout_wait), (1, CONFIG.timeout));
    // The two that came twice are not taken twice.
    let fresh: Vec<u16> = again.iter().map(|p| receive(&mut b, p).fresh).collect();
    assert_eq!(fresh, [0, 0, 1024]);
}

/// 9.7.5.1.1: acknowledgments of packets that were never sent, or long ago, change nothing.
#[test]
fn ghost_acknowledgments_are_ignored() {
    let mut a = queue_pair();
    a.post(4 * 1024);
    assert_eq!(sent(&mut a, NOW).len(), 4);
    for ghost in [4, 5, 1 << 22, (1 << 24) - 1, (1 << 23) + 7] {
        for is_sequence_error in [false, true] {
            assert!(!receive(&mut a, &reply(ghost, is_sequence_error, 0)).acknowledged, "{ghost}");
        }
    }
    assert!(!a.wants_transmit() && !a.is_idle());
}

#[test]
fn sequence_numbers_wrap_and_no_more_than_half_of_them_are_outstanding() {
    let (mut a, mut b) = (Requester::default(), Responder::default());
    let config = Config { mtu: 256, ack_every: 1 << 16, ..CONFIG };
    let bytes = 256 * ((1 << 24) + 1000);
    a.post(bytes);
    let mut outstanding = 0;
    while a.poll_transmit(&config, NOW).is_some() {
        outstanding += 1;
    }
    assert_eq!(outstanding, OUTSTANDING_MAX);
    // Back to the start, and through all numbers.
    a.handle_timeout(&config, NOW + CONFIG.timeout);
    let mut fresh = 0;
    while let Some(data) = a.poll_transmit(&config, NOW) {
        fresh += u64::from(b.receive(&data));
        if let Some(reply) = b.poll_transmit() {
            assert!(a.receive(&config, NOW, &reply));
        }
    }
    assert_eq!(fresh, bytes);
    assert!(a.is_idle());
}

/// Two ends over a channel that loses packets of each direction; both write. Steps are microseconds.
fn over_lossy_channel(seed: u64, loss: f64) -> [(u64, Stats); 2] {
    let config = Config { dcqcn: Some(dcqcn::Config::ZHU_2015), ..CONFIG };
    let mut rng = Rng::from_words(&[seed]);
    let mut ends = [queue_pair(), queue_pair()];
    let mut written = [0u64; 2];
    let mut received = [0u64; 2];
    let mut channel: [alloc::collections::VecDeque<(Packet, bool)>; 2] = Default::default();
    for step in 0..2_000_000u64 {
        let now = Instant(step * 1_000_000);
        for me in 0..2 {
            if step < 5_000 && rng.below(50) == 0 {
                let bytes = 1 + rng.below(9_000);
                ends[me].post(bytes);
                written[me] += bytes;
            }
            ends[me].handle_timeout(&config, now);
            if let Some(packet) = ends[me].poll_transmit(&config, now) {
                if let Packet::Data(data) = packet {
                    ends[me].on_transmit(&config, now, u32::from(data.len) + 80);
                }
                if rng.unit_f64() >= loss {
                    channel[me].push_back((packet, rng.below(20) == 0));
                }
            }
            if rng.below(3) > 0
                && let Some((packet, is_marked)) = channel[1 - me].pop_front()
            {
                received[me] += u64::from(ends[me].receive(&config, now, &packet, is_marked).fresh);
            }
            assert!(received[me] <= written[1 - me], "nothing twice");
        }
        if step > 5_000 && ends.iter().all(QueuePair::is_idle) && channel.iter().all(|c| c.is_empty()) {
            break;
        }
    }
    assert_eq!(received, [written[1], written[0]], "seed {seed}: everything once");
    assert!(ends.iter().all(|e| e.is_idle() && e.limiter(&config, NOW).is_some()), "seed {seed}");
    [0, 1].map(|n| (written[n], *ends[n].stats()))
}

#[test]
fn everything_arrives_once_and_in_order_whatever_is_lost() {
    let mut total = Stats::default();
    for seed in 0..40 {
        for (_, stats) in over_lossy_channel(seed, 0.02) {
            total.timeouts += stats.timeouts;
            total.sequence_errors += stats.sequence_errors;
        }
    }
    assert!(total.timeouts > 0 && total.sequence_errors > 0, "{total:?}: both repairs were needed");
    for (_, stats) in over_lossy_channel(1, 0.0) {
        assert_eq!(stats, Stats::default(), "without loss nothing is sent twice");
    }
}

/// Whatever a peer sends: no panic, no byte more than was sent, and an honest peer's packets still arrive.
#[test]
fn random_packets_break_nothing() {
    let config = Config { dcqcn: Some(dcqcn::Config::ZHU_2015), ..CONFIG };
    let mut rng = Rng::from_words(&[13]);
    for _ in 0..200 {
        let mut pair = queue_pair();
        for step in 0..500u64 {
            let now = Instant(step * rng.below(1 << 30));
            let psn = if rng.below(2) == 0 { rng.below(40) } else { rng.below(1 << 24) } as u32;
            let packet = match rng.below(4) {
                0 => Packet::Notification,
                1 => Packet::Reply(Reply { psn, is_sequence_error: rng.below(2) == 0, msn: rng.below(1 << 24) as u32 }),
                _ => Packet::Data(Data {
                    psn,
                    is_first: rng.below(2) == 0,
                    is_last: rng.below(2) == 0,
                    ack_request: rng.below(2) == 0,
                    len: rng.next_u64() as u16,
                    offset: rng.next_u64(),
                    message: rng.next_u64() as u32,
                }),
            };
            let heard = pair.receive(&config, now, &packet, rng.below(2) == 0);
            let is_data = matches!(packet, Packet::Data(_));
            assert!(is_data || heard.fresh == 0);
            if rng.below(3) == 0 {
                pair.post(rng.below(10_000));
            }
            pair.handle_timeout(&config, now);
            if let Some(packet) = pair.poll_transmit(&config, now) {
                pair.on_transmit(&config, now, 1_100);
                let in_range = |psn: u32| psn < 1 << 24;
                assert!(match packet {
                    Packet::Data(d) => in_range(d.psn) && d.len <= config.mtu && d.len > 0,
                    Packet::Reply(r) => in_range(r.psn) && in_range(r.msn),
                    Packet::Notification => true,
                });
            }
        }
    }
}

#[test]
fn marked_data_is_answered_by_notifications_that_slow_the_sender() {
    let config = Config { dcqcn: Some(dcqcn::Config::ZHU_2015), ..CONFIG };
    let (mut a, mut b) = (queue_pair(), queue_pair());
    a.post(10 * 1024);
    let next = |a: &mut QueuePair, at| {
        let packet = a.poll_transmit(&config, at);
        if packet.is_some() {
            a.on_transmit(&config, at, 1_104);
        }
        packet
    };
    let first = next(&mut a, NOW).expect("data");
    b.receive(&config, NOW, &first, true);
    assert_eq!(b.poll_transmit(&config, NOW), Some(Packet::Notification));
    a.receive(&config, NOW, &Packet::Notification, false);
    assert_eq!(a.limiter(&config, NOW).map(|l| l.current_rate()), Some(Rate::gbps(20)));
    assert!(next(&mut a, NOW).is_some());
    assert_eq!(next(&mut a, NOW), None, "its rate");
    let then = NOW + Rate::gbps(20).time_for(1_104);
    assert_eq!((a.poll_timeout(NOW), a.poll_timeout(then)), (then, NOW + CONFIG.timeout));
    assert!(a.wants_transmit() && next(&mut a, then).is_some());
    // Without congestion control nothing answers, and nothing reacts.
    let mut plain = queue_pair();
    plain.receive(&CONFIG, NOW, &first, true);
    plain.receive(&CONFIG, NOW, &Packet::Notification, false);
    assert!(plain.limiter(&config, NOW).is_none() && sent(&mut plain, NOW).is_empty());
}
