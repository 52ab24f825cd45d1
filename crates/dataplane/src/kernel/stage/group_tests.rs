//! Datagrams for groups, against the table of sockets.

use super::group::GROUPS_MOST;
use super::tests::{Buffer, World, flow, id, station, to_group, us};
use super::*;

const PORT: u16 = 7000;

/// A world with sockets at one port.
fn world(watchdog: WatchdogConfig, limits: &[u32]) -> World {
    let mut w = World::with(watchdog, &[]);
    for (k, &limit) in limits.iter().enumerate() {
        let socket = Buffer::new(100 + k as u64, limit);
        match k {
            0 => drop(w.host.sockets.insert(PORT, socket)),
            _ => w.host.others.push((PORT, socket)),
        }
    }
    w
}

fn sockets(w: &mut World) -> Vec<&mut Buffer> {
    let World { host, .. } = w;
    host.sockets.get_mut(&PORT).into_iter().chain(host.others.iter_mut().map(|(_, socket)| socket)).collect()
}

/// A sender as fast as it may be.
fn send(w: &mut World, now: u64, cargo: Cargo) -> u32 {
    (0..10_000).take_while(|_| w.offer_from(us(now), station(0, 0), 0, cargo, 1514)).count() as u32
}

/// Nothing is kept for datagrams that have gone.
fn settled(w: &World) -> bool {
    w.stage.is_empty()
        && w.stage.groups.iter().flatten().all(|group| !group.holds_room() && group.waits_for().is_none())
}

#[test]
fn a_datagram_goes_when_all_sockets_have_room() {
    // Sockets of several sizes, one of which takes a datagram only when it is empty.
    let limits = [212_992, 20_000, 1_000];
    let mut w = world(WatchdogConfig::OFF, &limits);
    let mut sent = 0;
    for now in 0..100_000 {
        sent += send(&mut w, 10 * now, Cargo::Udp(to_group((now % 3) as u16, PORT)));
        w.pump(us(10 * now));
        if now % 3 != 0 {
            w.host.arrive();
        }
        // Each reads at a pace of its own.
        for (k, socket) in sockets(&mut w).into_iter().enumerate() {
            if now % [1, 7, 20][k] == 0 {
                socket.read();
            }
        }
        w.check();
    }
    w.host.arrive();
    let went = w.sent.len() as u32;
    assert_eq!((w.host.lost, sent - went < 300), (0, true));
    let received: Vec<u32> = sockets(&mut w).iter().map(|socket| socket.received).collect();
    assert_eq!(received, [went; 3]);
    assert!(went > 3_500 && w.sent.is_sorted(), "{went}: the slowest reads 5,000");
    assert_eq!(w.stage.counters.group, u64::from(went));
}

#[test]
fn a_socket_that_is_not_read_holds_the_others_back_until_it_is_isolated() {
    let mut w = world(WatchdogConfig::default(), &[212_992, 212_992]);
    let mut now = 0;
    let mut at_9_s = 0;
    while w.stage.counters.isolated == 0 {
        now += 500;
        send(&mut w, now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(now));
        w.host.arrive();
        sockets(&mut w)[1].read_all();
        if now == 9_000_000 {
            at_9_s = w.sent.len();
            assert_eq!((w.stage.counters.stuck, w.stage.stuck_now()), (1, 1));
        }
    }
    assert!((9_900_000..10_500_000).contains(&now) && at_9_s < 100, "{now} {at_9_s}");
    assert_eq!(w.host.lost, 0);
    // From now on the other one gets all; the stopped one loses its copies.
    let before = w.sent.len();
    for _ in 0..1_000 {
        now += 100;
        send(&mut w, now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(now));
        w.host.arrive();
        sockets(&mut w)[1].read_all();
    }
    assert!(w.sent.len() - before > 10_000, "{}", w.sent.len() - before);
    assert_eq!((w.stage.counters.isolated, w.stage.counters.watchdog), (1, 0));
    // It reads again: it counts again, and loses nothing.
    sockets(&mut w)[0].read_all();
    now += 20_000;
    w.pump(us(now));
    w.host.lost = 0;
    for _ in 0..1_000 {
        now += 100;
        send(&mut w, now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(now));
        w.host.arrive();
        sockets(&mut w).into_iter().for_each(Buffer::read);
    }
    assert_eq!(w.host.lost, 0);
    w.check();
}

#[test]
fn where_all_sockets_are_isolated_the_datagrams_are_dropped_by_name() {
    let mut w = world(WatchdogConfig::default(), &[20_000]);
    let mut now = 0;
    while w.stage.counters.watchdog == 0 {
        now += 1_000;
        send(&mut w, now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(now));
        w.host.arrive();
        assert!(now < 11_000_000);
    }
    assert_eq!((w.stage.counters.isolated, w.host.lost), (1, 0));
    w.check();
}

#[test]
fn a_socket_that_is_opened_amid_a_stream_loses_nothing_from_then_on() {
    // The only reader takes all at once, and has much room.
    let mut w = world(WatchdogConfig::OFF, &[8 << 20]);
    for now in 0..20_000u64 {
        if now == 5_000 {
            let late = Buffer::new(500, 212_992);
            w.host.others.push((PORT, late));
        }
        send(&mut w, 10 * now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(10 * now));
        w.host.arrive();
        w.host.socket(PORT).read_all();
        if now % 5 == 0 {
            w.host.others.iter_mut().for_each(|(_, socket)| socket.read());
        }
        // It is closed again.
        if now == 15_000 {
            w.host.others.clear();
        }
    }
    assert_eq!(w.host.lost, 0);
    w.check();
}

#[test]
fn without_a_socket_datagrams_are_handed_over() {
    let mut w = World::with(WatchdogConfig::default(), &[]);
    w.host.question_takes = Duration::from_us(40);
    let mut sent = 0;
    for now in 0..10_000 {
        sent += send(&mut w, 10 * now, Cargo::Udp(to_group(1, PORT)));
        w.pump(us(10 * now));
        w.host.on_its_way.clear();
    }
    let went = w.sent.len() as u32;
    assert!(went > 20_000 && sent - went < 300, "{went} in 100 ms");
    // A fifth of the time goes into questions.
    assert!(w.host.questions <= 100_000 / 200 + 2, "{}", w.host.questions);
    assert_eq!((w.stage.counters.no_socket, w.stage.counters.no_socket_dropped), (0, 0));
}

/// Groups with common sockets, of which each has room for one datagram, never wait for each other; and a socket's own datagrams
/// starve no group.
#[test]
fn groups_and_single_datagrams_have_turns_at_common_sockets() {
    for limits in [[1_000, 1_000], [20_000, 1_000], [20_000, 20_000]] {
        let mut w = world(WatchdogConfig::OFF, &limits);
        for now in 0..60_000 {
            let of_sender = |w: &mut World, k: u8, flow: Flow| {
                let from = station(k.into(), 0);
                (0..64).take_while(|_| w.offer_from(us(10 * now), from, 0, Cargo::Udp(flow), 1514)).for_each(drop);
            };
            for k in 0..3 {
                let group = Flow { destination: IpAddr::V4([239, 1, 1, k].into()), ..to_group(k.into(), PORT) };
                of_sender(&mut w, k, group);
            }
            of_sender(&mut w, 3, flow(9, PORT));
            w.pump(us(10 * now));
            w.host.arrive();
            if now % 4 == 0 {
                sockets(&mut w).into_iter().for_each(Buffer::read);
            }
            w.check();
        }
        assert_eq!(w.host.lost, 0, "{limits:?}");
        let went: Vec<usize> =
            (0..4).map(|k| w.sent.iter().filter(|&&b| w.source_of(b) == [0, 1, 2, 9][k]).count()).collect();
        assert!(went.iter().all(|&n| n > 800), "{limits:?}: {went:?} of 15,000 reads");
    }
}

#[test]
fn random_datagrams_for_groups_and_sockets_are_never_lost_nor_forgotten() {
    for seed in 1..=40u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut w = world(WatchdogConfig::OFF, &[212_992, 20_000, 2_304]);
        w.host.add(1, 1, 20_000);
        let mut now = 0;
        for n in 0..3_000u32 {
            now += [1, 30, 700, 2_000][random(4) as usize];
            let port = [PORT, 1][random(2) as usize];
            let its = if random(3) > 0 { to_group(random(3) as u16, port) } else { flow(random(3) as u16, port) };
            match random(10) {
                0..=3 => drop(w.offer_from(us(now), station(0, 0), 0, Cargo::Udp(its), 60 + random(1_400) as u32)),
                4 => {
                    if w.stage.waiting < 500 {
                        let id = sluicenet_wire::flow::FragmentId { destination: its.destination, ..id(n) };
                        w.insert_pieces(us(now), its, id, 1_481 + random(9_000) as u32, &[]);
                    }
                }
                5 => w.host.arrive_some(random(20) as usize),
                6 => sockets(&mut w).into_iter().take(random(4) as usize).for_each(Buffer::read),
                7 => sockets(&mut w).into_iter().take(random(4) as usize).for_each(Buffer::read_all),
                8 => w.host.socket(1).read(),
                _ => w.pump(us(now)),
            }
            w.check();
        }
        assert_eq!(w.host.lost, 0, "seed {seed}");
        for _ in 0..20_000 {
            now += 200;
            w.pump(us(now));
            w.host.arrive();
            sockets(&mut w).into_iter().for_each(Buffer::read_all);
            w.host.socket(1).read_all();
        }
        assert!(settled(&w), "seed {seed}: {:?}", w.stage.groups);
        assert_eq!((w.host.lost, w.released.len()), (0, w.frames.len()), "seed {seed}");
        now += 100_000;
        w.insert(us(now), Cargo::Udp(to_group(1, PORT)), 100);
        w.pump(us(now));
        let kept = w.stage.queues.iter().map(SocketQueue::room_of_groups);
        assert!(kept.clone().all(|(taken, kept)| taken == 0 && kept == 0), "{:?}", kept.collect::<Vec<_>>());
    }
}

#[test]
fn a_flood_to_many_groups_takes_bounded_memory_and_holds_back_who_sends_it() {
    let mut w = world(WatchdogConfig::OFF, &[212_992]);
    w.host.question_takes = Duration::from_us(100);
    let mut held = 0;
    for n in 0..200_000u32 {
        let group = Flow { destination: IpAddr::V4((0xe000_0000 + n).into()), ..to_group(1, n as u16) };
        held += u32::from(!w.offer_from(us(n.into()), station(1, 0), 0, Cargo::Udp(group), 1514));
        if n % 50 == 0 {
            // Somebody else's group, which the sockets hear.
            w.offer_from(us(n.into()), station(0, 0), 0, Cargo::Udp(to_group(1, PORT)), 1514);
            w.pump(us(n.into()));
            w.host.arrive();
            w.host.socket(PORT).read_all();
        }
        assert!(w.stage.groups_by_key.len() <= GROUPS_MOST && w.stage.groups.len() <= GROUPS_MOST);
    }
    assert!(held > 100_000, "{held}");
    assert!(w.host.questions <= 200_000 / 500 + 2, "{}", w.host.questions);
    assert!(w.host.socket(PORT).received > 20, "{}", w.host.socket(PORT).received);
    assert_eq!(w.host.lost, 0);
    w.check();
}

#[test]
fn ten_thousand_sockets_at_a_port_take_bounded_memory() {
    let limits = vec![212_992; 10_000];
    let mut w = world(WatchdogConfig::OFF, &limits);
    for n in 0..50 {
        send(&mut w, 1_000 * n, Cargo::Udp(to_group(1, PORT)));
        w.insert(us(1_000 * n), Cargo::Udp(flow(n as u16, PORT)), 100);
        w.pump(us(1_000 * n));
        w.host.on_its_way.clear();
    }
    assert!(w.stage.sockets.len() <= SOCKETS_MOST);
    assert!(w.stage.counters.group > 40, "{:?}", w.stage.counters);
    w.check();
}
