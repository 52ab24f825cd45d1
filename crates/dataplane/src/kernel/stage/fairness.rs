//! Fairness in the stage: among the unfinished datagrams of senders, and among the traffic classes of a socket.

use super::tests::{World, flow, id, station, us};
use super::*;
use sluicenet_wire::flow::{FragmentId, Piece};

const FIRST: Piece = Piece { offset: 0, len: 80, last: false };
const DATAGRAM: u32 = 8_000;

/// Fragments of a datagram without beginning, one of them.
fn orphan(id: FragmentId, k: u32) -> Cargo {
    Cargo::Piece(id, Piece { offset: 8 * (k + 1), len: 8, last: false }, None)
}

/// Sends one datagram of a sender, and calls `others` between its fragments; returns the number of requests until its first
/// fragment was admitted.
fn datagram(
    w: &mut World,
    now: &mut u64,
    sender: Sender,
    number: u32,
    others: &mut impl FnMut(&mut World, u64),
) -> u32 {
    let its = flow(sender.port as u16, 7000);
    let mut asked = 0;
    for offset in (0..DATAGRAM).step_by(1480) {
        let len = (DATAGRAM - offset).min(1480);
        let piece = Piece { offset, len, last: offset + len == DATAGRAM };
        loop {
            others(w, *now);
            *now += 1;
            asked += u32::from(offset == 0);
            let cargo = Cargo::Piece(id(number), piece, (offset == 0).then_some(its));
            if w.offer_from(us(*now), sender, 0, cargo, len + 34) {
                break;
            }
            assert!(offset == 0, "the rest of what has begun is not held");
        }
    }
    w.pump(us(*now));
    w.host.arrive();
    w.host.socket(7000).read_all();
    asked
}

/// Floods of fragments that once held back all fragmented datagrams, and with them all other frames of their senders.
#[test]
fn fragments_without_a_rest_hold_and_cost_nobody_elses() {
    type Flood = fn(&mut World, u64, u32);
    let first: Flood = |w, now, n| {
        w.offer_from(us(now), station(9, 1), 0, Cargo::Piece(id(n), FIRST, Some(flow(9, 7000))), 114);
    };
    let many_stations: Flood = |w, now, n| {
        let sender = station(9, n as u8);
        w.offer_from(us(now), sender, 0, Cargo::Piece(id(n), FIRST, Some(flow(9, 7000))), 114);
    };
    let no_first: Flood = |w, now, n| {
        w.offer_from(us(now), station(9, 1), 0, orphan(id(n), 0), 60);
    };
    let one_endless: Flood = |w, now, n| {
        w.offer_from(us(now), station(9, 1), 0, orphan(id(n / 1_000), n % 1_000), 60);
    };
    // The address and the numbers of the innocent's.
    let in_its_name: Flood = |w, now, n| {
        let piece = Piece { offset: 1480, len: 1400 + n % 80 / 8 * 8, last: false };
        w.offer_from(us(now), station(9, 1), 0, Cargo::Piece(id(n % 100), piece, None), 1514);
    };
    for (k, flood) in [first, many_stations, no_first, one_endless, in_its_name].into_iter().enumerate() {
        let mut w = World::new(None, &[(7000, 212_992)]);
        let (mut now, mut n) = (0, 1 << 16);
        let mut others = |w: &mut World, now: u64| {
            for _ in 0..300 {
                flood(w, now, n);
                n += 1;
            }
            assert!(w.stage.pieces.frames() <= 256);
        };
        others(&mut w, 0);
        for number in 0..100 {
            assert_eq!(
                datagram(&mut w, &mut now, station(1, 0), number, &mut others),
                1,
                "flood {k}, datagram {number}"
            );
        }
        assert_eq!((w.sent.len(), w.host.lost), (100 * 6, 0), "flood {k}");
        w.check();
    }
}

/// Behind an uplink many stations share a port.
#[test]
fn at_one_port_a_station_loses_nothing_to_another_either() {
    let mut w = World::new(None, &[(7000, 212_992)]);
    let (mut now, mut n) = (0, 1 << 16);
    let mut others = |w: &mut World, now: u64| {
        for _ in 0..300 {
            w.offer_from(us(now), station(1, 9), 0, Cargo::Piece(id(n), FIRST, Some(flow(9, 7000))), 114);
            n += 1;
        }
    };
    for number in 0..100 {
        assert_eq!(datagram(&mut w, &mut now, station(1, 0), number, &mut others), 1);
    }
    assert_eq!((w.sent.len(), w.host.lost), (100 * 6, 0));
    w.check();
}

/// However many senders act together, others do not wait long for them, and their own fragments are given up.
#[test]
fn those_who_act_together_make_others_wait_a_while_at_most() {
    let mut w = World::new(None, &[(7000, 212_992)]);
    let (mut now, mut n) = (0, 1 << 16);
    let mut others = |w: &mut World, now: u64| {
        for port in (20..60).filter(|_| now % 100 == 0) {
            for _ in 0..10 {
                w.offer_from(us(now), station(port, 1), 0, Cargo::Piece(id(n), FIRST, Some(flow(9, 7000))), 114);
                n += 1;
            }
        }
    };
    others(&mut w, 0);
    for number in 0..20 {
        let asked = datagram(&mut w, &mut now, station(1, 0), number, &mut others);
        // Once each microsecond, for 5 ms.
        assert!(asked > 1 && asked <= 5_002, "{asked}");
    }
    assert_eq!((w.sent.len(), w.host.lost), (20 * 6, 0));
    w.check();
}

/// Other senders wait for fragments of datagrams that will be finished: one datagram more does not cost them theirs.
#[test]
fn a_crowd_that_finishes_loses_nothing() {
    let mut w = World::new(None, &[(7000, 4 << 20)]);
    let pieces = |port: usize| {
        (0..60_000).step_by(1480).map(move |offset: u32| {
            let len = (60_000 - offset).min(1480);
            let piece = Piece { offset, len, last: offset + len == 60_000 };
            (Cargo::Piece(id(port as u32), piece, (offset == 0).then_some(flow(port as u16, 7000))), len + 34)
        })
    };
    // All at once, three fragments of each at a time; a sender that has to wait asks again.
    let mut left: Vec<_> = (0..40).map(|port| (port, pieces(port).peekable())).collect();
    let (mut now, mut held) = (0, 0);
    while !left.is_empty() {
        now += 10;
        for (port, its) in &mut left {
            for _ in 0..3 {
                let Some(&(cargo, len)) = its.peek() else { break };
                if !w.offer_from(us(now), station(*port, 0), 0, cargo, len) {
                    held += 1;
                    break;
                }
                its.next();
            }
        }
        left.retain_mut(|(_, its)| its.peek().is_some());
        w.pump(us(now));
        w.host.arrive();
        w.host.socket(7000).read_all();
        w.check();
    }
    while !w.stage.is_empty() {
        now += 1_000;
        w.pump(us(now));
        w.host.arrive();
        w.host.socket(7000).read_all();
    }
    assert!(held > 0);
    assert_eq!((w.sent.len(), w.host.lost, w.stage.counters.stray_fragments), (40 * 41, 0, 0));
}

#[test]
fn who_waits_to_begin_is_woken_and_forgotten_if_it_does_not_come() {
    let mut w = World::new(None, &[(7000, 212_992)]);
    for port in 20..60 {
        for k in 0..10 {
            let cargo = Cargo::Piece(id(100 * port + k), FIRST, Some(flow(9, 7000)));
            w.insert_from(us(0), station(port as usize, 1), 0, cargo, 114);
        }
    }
    let first = Cargo::Piece(id(1), FIRST, Some(flow(1, 7000)));
    assert!(!w.offer_from(us(1_000), station(1, 0), 0, first, 114));
    assert_eq!(w.stage.poll_timeout(), Some(us(6_000)), "when it may go on");
    let round = |w: &mut World, now| w.stage.expire(us(now), &mut |_| unreachable!());
    round(&mut w, 6_000);
    // The sender could have asked in that round.
    round(&mut w, 6_001);
    assert_eq!(w.stage.poll_timeout(), Some(us(30_000_000)));
}

/// Senders of a lossless class wait and take free room at once; senders of a lossy class do not wait.
#[test]
fn at_a_slow_socket_each_class_has_its_turn() {
    const LOSSLESS: Priority = 3;
    const LOSSY: Priority = 0;
    let mut w = World::new(None, &[(7000, 212_992)]);
    let (mut sent, mut wanted) = ([0u32; 8], [0u32; 8]);
    for now in 0..20_000 {
        // The first class sends 300 frames in each step, the other sends one.
        for class in [LOSSLESS, LOSSY] {
            for _ in 0..if class == LOSSLESS { 300 } else { 1 } {
                wanted[usize::from(class)] += 1;
                let cargo = Cargo::Udp(flow(class.into(), 7000));
                if !w.offer_from(us(50 * now), station(class.into(), 0), class, cargo, 1514) {
                    break;
                }
                sent[usize::from(class)] += 1;
            }
        }
        w.pump(us(50 * now));
        w.host.arrive();
        if now % 4 == 0 {
            w.host.socket(7000).read();
        }
    }
    assert_eq!(w.host.lost, 0);
    let (lossless, lossy) = (sent[usize::from(LOSSLESS)], sent[usize::from(LOSSY)]);
    // The lossy class gets one of two shares of the 5,000 datagrams that were read, and of the two that wait.
    assert!(lossless + lossy >= 5_000 && lossy * 5 >= lossless * 2, "{lossless} and {lossy}");
    assert!(wanted[usize::from(LOSSY)] == 20_000 && lossy < 20_000);
    w.check();
}
