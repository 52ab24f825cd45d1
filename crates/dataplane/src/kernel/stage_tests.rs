//! The stage against a kernel that is a table of sockets.

use super::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

/// Sockets as Linux has them: a datagram goes in while the buffer is not over its limit, or is empty.
#[derive(Default)]
struct Table {
    /// By port: cookie, limit, and the charges of what waits.
    sockets: BTreeMap<u16, (u64, u32, VecDeque<u32>)>,
    lost: u32,
    questions: u32,
    /// What was sent and is on its way: port and charge.
    on_its_way: VecDeque<(u16, u32)>,
}

impl Table {
    fn used(&self, port: u16) -> u32 {
        self.sockets[&port].2.iter().sum()
    }
    fn arrive(&mut self) {
        for (port, charge) in std::mem::take(&mut self.on_its_way) {
            let used = self.sockets.get(&port).map_or(0, |_| self.used(port));
            match self.sockets.get_mut(&port) {
                Some((_, limit, waiting)) if used + charge <= *limit || used == 0 => waiting.push_back(charge),
                Some(_) => self.lost += 1,
                None => {}
            }
        }
    }
}

impl Host for Table {
    fn socket(&mut self, flow: &Flow) -> io::Result<Option<Socket>> {
        self.questions += 1;
        let port = flow.destination_port;
        let Some(&(cookie, limit, _)) = self.sockets.get(&port) else { return Ok(None) };
        Ok(Some(Socket { cookie, used: self.used(port), limit }))
    }
    fn in_flight(&mut self) -> io::Result<u32> {
        Ok(self.on_its_way.iter().map(|&(_, charge)| charge).sum())
    }
}

fn flow(source: u16, port: u16) -> Flow {
    let address = |n| IpAddr::V4(Ipv4Addr::new(10, 0, 0, n));
    Flow { source: address(1), destination: address(2), source_port: source, destination_port: port }
}
fn charges() -> TrueSize {
    TrueSize::find(1514, |len| Ok::<_, ()>(if len <= 200 { 832 } else { 2304 })).unwrap()
}
fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}

/// A stage, and what became of its buffers.
struct World {
    stage: Stage,
    host: Table,
    /// Frames put in: port and charge, by buffer.
    frames: Vec<(Cargo, u32)>,
    released: Vec<u32>,
    sent: Vec<u32>,
}

impl World {
    fn new(deadline: Option<Duration>, sockets: &[(u16, u32)]) -> World {
        let mut host = Table::default();
        for (i, &(port, limit)) in sockets.iter().enumerate() {
            host.sockets.insert(port, (i as u64 + 1, limit, VecDeque::new()));
        }
        let stage = Stage::new(charges(), 1500, deadline);
        World { stage, host, frames: Vec::new(), released: Vec::new(), sent: Vec::new() }
    }

    fn insert(&mut self, now: Instant, cargo: Cargo, len: u32) {
        let buffer = self.frames.len() as u32;
        self.frames.push((cargo, charges().of(len)));
        let released = &mut self.released;
        self.stage.insert(now, buffer, len, cargo, &mut self.host, &mut |b| released.push(b)).unwrap();
    }

    /// One round; what is sent is on its way until [`Table::arrive`].
    fn pump(&mut self, now: Instant) {
        let World { stage, host, frames, released, sent } = self;
        let mut buffers = Vec::new();
        for _ in 0..stage.places() {
            let Some(place) = stage.offer(now, host, 64, &mut buffers, &mut |b| released.push(b)).unwrap() else {
                break;
            };
            for &buffer in &buffers {
                let (cargo, charge) = frames[buffer as usize];
                if let Cargo::Udp(flow) = cargo {
                    host.on_its_way.push_back((flow.destination_port, charge));
                }
                sent.push(buffer);
            }
            stage.sent(now, place, buffers.len(), &mut |b| released.push(b));
        }
    }
}

#[test]
fn no_socket_is_sent_more_than_it_has_room_for() {
    for limit in [212_992, 20_000, 2_304, 1_000] {
        let mut w = World::new(None, &[(7000, limit), (7001, limit)]);
        let (mut now, mut inserted) = (0, 0);
        while w.sent.len() < 3_000 {
            now += 30;
            while inserted < 3_000 && w.frames.len() - w.released.len() < 100 {
                let port = 7000 + (inserted % 2) as u16;
                w.insert(us(now), Cargo::Udp(flow(port, port)), if inserted % 3 == 0 { 100 } else { 1514 });
                inserted += 1;
            }
            w.pump(us(now));
            // The stack is behind now and then; programs take one datagram at a time.
            if now % 4 != 0 {
                w.host.arrive();
            }
            for (_, _, waiting) in w.host.sockets.values_mut() {
                waiting.pop_front();
            }
            assert_eq!(w.host.lost, 0, "limit {limit}");
        }
        // In order for each socket.
        for parity in 0..2 {
            let of_one: Vec<_> = w.sent.iter().filter(|&&b| b % 2 == parity).collect();
            assert!(of_one.is_sorted());
        }
        assert_eq!(w.stage.counters.watchdog, 0);
    }
}

#[test]
fn two_flows_to_one_socket_have_one_credit() {
    let mut w = World::new(None, &[(7000, 10 * 2304)]);
    for i in 0..40 {
        w.insert(us(1), Cargo::Udp(flow(i % 2, 7000)), 1514);
    }
    w.pump(us(1));
    assert_eq!(w.sent.len(), 9, "all but the one that is kept free");
    // What is on its way counts as if it were there.
    w.pump(us(2_000));
    assert_eq!(w.sent.len(), 9);
    w.host.arrive();
    assert_eq!(w.host.lost, 0);
}

#[test]
fn a_stuck_socket_loses_its_own_frames_only_and_is_restored_when_it_moves() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 2304 * 8), (7001, 212_992)]);
    for _ in 0..20 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    let mut now = 0;
    while w.stage.counters.isolated == 0 {
        now += 100;
        w.insert(us(now), Cargo::Udp(flow(2, 7001)), 1514);
        w.pump(us(now));
        w.host.arrive();
        w.host.sockets.get_mut(&7001).unwrap().2.clear();
    }
    assert!((200_000..=201_000).contains(&now), "{now}");
    let counters = w.stage.counters;
    assert_eq!((counters.watchdog, w.host.lost), (20 - 7, 0));
    w.insert(us(now + 1), Cargo::Udp(flow(1, 7000)), 1514);
    assert_eq!(w.stage.counters.watchdog, 14, "as long as it is stuck");
    w.host.sockets.get_mut(&7000).unwrap().2.pop_front();
    now += 20_000;
    w.insert(us(now), Cargo::Udp(flow(1, 7000)), 1514);
    w.pump(us(now));
    w.host.arrive();
    assert_eq!((w.stage.counters.watchdog, w.host.lost), (14, 0));
    assert_eq!(w.released.len(), w.frames.len());
}

#[test]
fn who_was_away_has_not_seen_a_socket_stuck() {
    let mut w = World::new(Some(Duration::from_ms(200)), &[(7000, 2304)]);
    for _ in 0..5 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.pump(us(0));
    w.host.arrive();
    w.pump(us(10_000_000));
    assert_eq!(w.stage.counters.watchdog, 0);
}

#[test]
fn for_nobody_frames_go_at_a_bounded_rate_and_whoever_comes_gets_them_in_order() {
    let mut w = World::new(None, &[]);
    for _ in 0..100 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    assert_eq!(w.stage.counters.no_socket_dropped, 36);
    for ms in 0..10 {
        w.pump(us(1_000 * ms));
        w.pump(us(1_000 * ms + 500));
    }
    assert_eq!((w.stage.counters.no_socket, w.sent.len()), (10, 10));
    w.host.on_its_way.clear();
    w.host.sockets.insert(7000, (9, 212_992, VecDeque::new()));
    // The first question finds it; from then on all have a place there.
    for step in 0..3 {
        w.pump(us(20_000 + step));
    }
    w.host.arrive();
    assert_eq!((w.sent.len(), w.host.lost), (64, 0));
    assert!(w.sent.is_sorted());
}

#[test]
fn a_socket_that_is_closed_leaves_its_frames_to_nobody() {
    let mut w = World::new(None, &[(7000, 2304)]);
    for _ in 0..100 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.pump(us(0));
    w.host.arrive();
    w.host.sockets.clear();
    for ms in 1..100 {
        w.pump(us(1_000 * ms));
    }
    assert!(w.stage.is_empty());
    let c = w.stage.counters;
    assert_eq!((c.no_socket + c.no_socket_dropped, w.released.len()), (99, 100));
}

#[test]
fn a_datagram_in_fragments_is_charged_whole_until_its_last_has_gone() {
    let id = |id| FragmentId { source: flow(1, 1).source, destination: flow(1, 1).destination, id };
    // Room for the longest datagram there is, and one frame that is kept free; not for two.
    let whole = 65_535u32.div_ceil(1480) * 2304;
    let mut w = World::new(None, &[(7000, whole + 2304)]);
    w.insert(us(0), Cargo::First(flow(1, 7000), id(1)), 1514);
    w.insert(us(0), Cargo::Udp(flow(2, 7000)), 1514);
    w.pump(us(0));
    assert_eq!(w.sent, [0], "what it may need is reserved");
    w.insert(us(1), Cargo::Later(id(1), true), 1514);
    w.pump(us(2_000));
    w.pump(us(2_001));
    assert_eq!(w.sent, [0, 2, 1], "it is not kept up by one that waits for it");
    // It is not in the socket and not on its way: the kernel holds it. Its last fragment settles it.
    let mut w = World::new(None, &[(7000, whole + 2304)]);
    for (cargo, len) in [
        (Cargo::First(flow(1, 7000), id(1)), 1514),
        (Cargo::Later(id(1), false), 1514),
        (Cargo::Later(id(1), true), 1000),
    ] {
        w.insert(us(0), cargo, len);
    }
    w.insert(us(0), Cargo::Udp(flow(2, 7000)), 1514);
    w.pump(us(0));
    w.pump(us(1));
    assert_eq!(w.sent, [0, 1, 2, 3]);
    // A fragment of which the first was never seen goes with what needs no credit.
    w.insert(us(2), Cargo::Later(id(7), true), 100);
    w.pump(us(2));
    assert_eq!((w.sent.len(), w.stage.counters.stray_fragments), (5, 1));
}

#[test]
fn many_datagrams_in_fragments_at_once_all_get_through() {
    let id = |id| FragmentId { id, ..some_id() };
    let mut w = World::new(None, &[(7000, 212_992)]);
    // Eight senders at once: all first fragments come before any other.
    for k in 0..8 {
        w.insert(us(0), Cargo::First(flow(k, 7000), id(k.into())), 1514);
    }
    for part in 1..=4 {
        (0..8).for_each(|k| w.insert(us(0), Cargo::Later(id(k), part == 4), 1514));
    }
    for step in 0..100 {
        w.pump(us(100 * step));
    }
    assert_eq!(w.sent.len(), 40);
    assert!(w.stage.is_empty() && w.stage.partial.is_empty());
    assert!(w.stage.places.iter().all(|p| p.reserved == 0));
}

#[test]
fn what_needs_no_credit_waits_for_nobody() {
    let mut w = World::new(None, &[(7000, 2304)]);
    for _ in 0..10 {
        w.insert(us(0), Cargo::Udp(flow(1, 7000)), 1514);
    }
    w.insert(us(0), Cargo::Other, 1514);
    w.insert(us(0), Cargo::Group, 1514);
    w.pump(us(0));
    assert_eq!(w.sent, [0, 10, 11]);
    assert_eq!(w.stage.counters.group, 1);
}

#[test]
fn a_million_flows_take_bounded_memory() {
    let mut w = World::new(None, &[]);
    for i in 0..100_000u32 {
        w.insert(us(i.into()), Cargo::Udp(flow(i as u16, (i >> 8) as u16)), 100);
        w.insert(us(i.into()), Cargo::First(flow(i as u16, 1), FragmentId { id: i, ..some_id() }), 100);
    }
    assert!(w.stage.flows.len() <= FLOWS_MOST && w.stage.partial.len() <= PARTIAL_MOST);
    assert!(w.frames.len() - w.released.len() <= NOBODY_MOST);
    w.host.on_its_way.clear();
    for i in 0..5_000u16 {
        w.host.sockets.insert(i, (u64::from(i) + 1, 212_992, VecDeque::new()));
        w.insert(us(200_000 + u64::from(i)), Cargo::Udp(flow(i, i)), 100);
        w.pump(us(200_000 + u64::from(i)));
        w.host.arrive();
    }
    assert!(w.stage.sockets.len() <= SOCKETS_MOST && w.stage.places.len() <= SOCKETS_MOST + 2);
}

fn some_id() -> FragmentId {
    FragmentId { source: flow(1, 1).source, destination: flow(1, 1).destination, id: 0 }
}
