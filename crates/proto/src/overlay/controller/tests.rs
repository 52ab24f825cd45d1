//! The controller and its servers in one world with a clock and a network that loses, duplicates and delays.

use super::*;
use crate::overlay::cache::{Cache, CacheConfig, Found};
use crate::overlay::mapping::{By, Question};
use crate::overlay::registrar::{Lost, RENEW, Registrar};
use crate::rng::Rng;
use alloc::vec::Vec;
use core::net::Ipv6Addr;
use sluicenet_wire::ethernet::MacAddress;

fn ms(n: u64) -> Duration {
    Duration::from_ms(n)
}
fn ip(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + n)
}
fn server(n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0xc000_0200 + n)
}
fn station(n: u32) -> StationId {
    StationId { vni: 7, mac: MacAddress::local(n) }
}
fn by_mac(n: u32) -> Question {
    Question { vni: 7, by: By::Mac(MacAddress::local(n)) }
}
fn key(of: Ipv4Addr) -> Key {
    Key::new(&core::array::from_fn(|i| of.octets()[i % 4] ^ i as u8))
}

struct Host {
    address: Ipv4Addr,
    cache: Cache,
    registrar: Registrar,
    resolved: Vec<(Question, Option<Ipv4Addr>)>,
    lost: Vec<(StationId, Lost)>,
}

/// A datagram in flight: its arrival time, its sender and its receiver (the controller is 0.0.0.0).
type Flight = (Instant, u64, Ipv4Addr, Ipv4Addr, [u8; LEN]);

struct World {
    now: Instant,
    rng: Rng,
    controller: Option<Controller>,
    hosts: Vec<Host>,
    flights: BTreeSet<Flight>,
    sent: u64,
    /// Percentage of datagrams lost.
    loss: u64,
    doubled: u64,
    /// All datagrams ever sent, for replays.
    log: Vec<Flight>,
}

const CONTROLLER: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

fn controller(epoch: u32, servers: u32) -> Controller {
    let mut controller = Controller::new(ControllerConfig::default(), epoch);
    (1..=servers).for_each(|n| controller.admit(server(n), key(server(n))));
    controller
}

impl World {
    fn new(servers: u32) -> World {
        let host = |n| Host {
            address: server(n),
            cache: Cache::new(CacheConfig::default(), server(n), Rng::from_words(&[n.into()])),
            registrar: Registrar::new(server(n), 1_000),
            resolved: Vec::new(),
            lost: Vec::new(),
        };
        World {
            now: Instant::ZERO,
            rng: Rng::from_words(&[1]),
            controller: Some(controller(11, servers)),
            hosts: (1..=servers).map(host).collect(),
            flights: BTreeSet::new(),
            sent: 0,
            loss: 0,
            doubled: 0,
            log: Vec::new(),
        }
    }

    fn send(&mut self, from: Ipv4Addr, to: Ipv4Addr, bytes: [u8; LEN]) {
        let copies = 1 + u64::from(self.rng.below(100) < self.doubled);
        for _ in 0..copies {
            self.sent += 1;
            let at = self.now + Duration::from_us(20 + self.rng.below(100));
            if self.rng.below(100) >= self.loss {
                self.flights.insert((at, self.sent, from, to, bytes));
            }
            self.log.push((at, self.sent, from, to, bytes));
        }
    }

    fn deliver(&mut self, from: Ipv4Addr, to: Ipv4Addr, bytes: &[u8]) {
        if to == CONTROLLER {
            let answer = self.controller.as_mut().and_then(|c| c.handle(self.now, from, bytes));
            if let Some(answer) = answer {
                self.send(CONTROLLER, from, answer);
            }
            return;
        }
        let now = self.now;
        for host in self.hosts.iter_mut().filter(|h| h.address == to) {
            if let Ok(message) = key(to).open(bytes) {
                if host.registrar.handle(now, &message) {
                    host.cache.heard_of(now, host.registrar.epoch());
                } else {
                    host.cache.handle(now, &message);
                }
            }
        }
    }

    /// One step of 50 us.
    fn step(&mut self) {
        self.now += Duration::from_us(50);
        let now = self.now;
        while let Some(flight) = self.flights.first().copied().filter(|f| f.0 <= now) {
            self.flights.remove(&flight);
            self.deliver(flight.2, flight.3, &flight.4);
        }
        let mut out = Vec::new();
        for host in &mut self.hosts {
            host.cache.handle_timeout(now);
            let messages =
                core::iter::from_fn(|| host.cache.poll_transmit(now).or_else(|| host.registrar.poll_transmit(now)));
            out.extend(messages.map(|m| (host.address, CONTROLLER, key(host.address).seal(&m))));
            while let Some((question, answer)) = host.cache.poll_resolved() {
                host.resolved.push((question, answer.mapping().map(|m| m.location)));
            }
            host.lost.extend(core::iter::from_fn(|| host.registrar.poll_lost()));
        }
        if let Some(controller) = &mut self.controller {
            controller.handle_timeout(now);
            out.extend(
                core::iter::from_fn(|| controller.poll_transmit(now)).map(|(to, bytes)| (CONTROLLER, to, bytes)),
            );
        }
        for (from, to, bytes) in out {
            self.send(from, to, bytes);
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn host(&mut self, n: u32) -> &mut Host {
        &mut self.hosts[n as usize - 1]
    }
    fn add(&mut self, host: u32, n: u32) {
        let now = self.now;
        self.host(host).registrar.add(now, station(n), ip(n));
    }
    fn lookup(&mut self, host: u32, question: Question) -> Found {
        let now = self.now;
        self.host(host).cache.lookup(now, question)
    }
    fn lives(&mut self, host: u32, n: u32) -> Option<Ipv4Addr> {
        self.host(host).cache.peek(by_mac(n)).map(|m| m.location)
    }
    fn counters(&self) -> ControllerCounters {
        self.controller.as_ref().map(|c| *c.counters()).unwrap_or_default()
    }
}

#[test]
fn a_station_is_registered_found_by_either_address_and_missed_when_it_left() {
    let mut w = World::new(2);
    w.add(1, 5);
    w.run(ms(5));
    assert_eq!(w.lookup(2, by_mac(5)), Found::Asked);
    assert_eq!(w.lookup(2, Question { vni: 7, by: By::Ip(ip(6).into()) }), Found::Asked);
    w.run(ms(5));
    assert_eq!(
        w.host(2).resolved,
        [(by_mac(5), Some(server(1))), (Question { vni: 7, by: By::Ip(ip(6).into()) }, None)]
    );
    // By its other address, from the table.
    assert!(
        matches!(w.lookup(2, Question { vni: 7, by: By::Ip(ip(5).into()) }), Found::Known(m) if m.location == server(1))
    );
    // Another tenant has no such station.
    assert_eq!(w.lookup(2, Question { vni: 8, ..by_mac(5) }), Found::Asked);
    let now = w.now;
    w.host(1).registrar.remove(now, station(5));
    w.run(ms(5));
    assert_eq!(w.lives(2, 5), None, "who asked is told");
    assert_eq!(w.lookup(2, Question { vni: 8, ..by_mac(5) }), Found::Unknown);
    assert_eq!((w.counters().registered, w.counters().unregistered), (1, 1));
}

fn six(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
}
fn by_six(n: u16) -> Question {
    Question { vni: 7, by: By::Ip(six(n).into()) }
}

impl World {
    /// Station `n` of a host shows an IPv6 address.
    fn show(&mut self, host: u32, n: u32, address: u16) {
        let now = self.now;
        self.host(host).registrar.learn_address(now, station(n), six(address));
    }

    /// The station that a host finds by an IPv6 address.
    fn finds(&mut self, host: u32, address: u16) -> Option<StationId> {
        // A failure is remembered for a second.
        self.run(ms(1_001));
        self.lookup(host, by_six(address));
        self.run(ms(50));
        let Found::Known(mapping) = self.lookup(host, by_six(address)) else { return None };
        assert_eq!((mapping.ip, mapping.location), (six(address).into(), server(1)));
        Some(mapping.station)
    }
}

#[test]
fn a_station_is_found_by_each_of_its_addresses_until_it_has_them_no_longer() {
    let mut w = World::new(2);
    (w.loss, w.doubled) = (10, 10);
    w.add(1, 5);
    // One that the file does not name: its address makes it known.
    w.show(1, 6, 60);
    (1..=8).for_each(|address| w.show(1, 5, address));
    w.run(ms(200));
    assert_eq!(w.finds(2, 60), Some(station(6)));
    for address in 1..=8 {
        assert_eq!(w.finds(2, address), Some(station(5)), "{address}");
    }
    assert!(matches!(w.lookup(2, Question { vni: 7, by: By::Ip(ip(5).into()) }), Found::Asked | Found::Known(_)));
    w.run(ms(50));
    let now = w.now;
    assert!(!w.host(1).registrar.learn_address(now, station(5), six(9)), "one more than there is room for");
    // One goes, and another takes its room. Who knew the station by it is told.
    w.host(1).registrar.unlearn_address(now, station(5), six(1));
    w.show(1, 5, 9);
    w.run(ms(200));
    assert_eq!(w.finds(2, 1), None);
    assert_eq!((w.finds(2, 9), w.finds(2, 8)), (Some(station(5)), Some(station(5))));
    // A restarted controller hears of all of them again.
    w.controller = Some(controller(12, 2));
    w.run(RENEW + ms(500));
    w.host(2).cache = Cache::new(CacheConfig::default(), server(2), Rng::from_words(&[9]));
    for (address, of) in [(60, 6), (2, 5), (9, 5)] {
        assert_eq!(w.finds(2, address), Some(station(of)), "{address}");
    }
    // The station leaves with all of them.
    let now = w.now;
    w.host(1).registrar.remove(now, station(5));
    w.run(ms(200));
    assert_eq!([2, 9, 60].map(|address| w.finds(2, address)), [None, None, Some(station(6))]);
    assert!(w.host(1).lost.is_empty());
}

#[test]
fn an_address_is_taken_from_no_other_station_and_by_no_other_server() {
    let mut w = World::new(2);
    w.add(1, 5);
    w.show(1, 5, 1);
    w.run(ms(50));
    w.add(2, 6);
    w.show(2, 6, 1);
    w.run(ms(50));
    assert_eq!(w.finds(2, 1), Some(station(5)));
    assert_eq!((w.host(2).registrar.refused(), w.counters().refused), (1, 1));
    assert!(w.host(2).lost.is_empty(), "the station itself stays");
    // Server 2 claims an address for a station of server 1, and removes one of its addresses: nothing happens.
    let claim = Repr {
        kind: Kind::Register,
        status: Status::Done,
        mac: MacAddress::local(5),
        ip: six(2).into(),
        server: server(2),
        location: server(2),
        epoch: 11,
        vni: 7,
        version: 0,
        request: 1 << 60,
    };
    w.deliver(server(2), CONTROLLER, &key(server(2)).seal(&claim));
    let remove = Repr { kind: Kind::Unregister, ip: six(1).into(), request: (1 << 60) + 1, ..claim };
    w.deliver(server(2), CONTROLLER, &key(server(2)).seal(&remove));
    w.run(ms(50));
    assert_eq!((w.finds(2, 2), w.finds(2, 1)), (None, Some(station(5))));
    // An address that is free again.
    let now = w.now;
    w.host(1).registrar.unlearn_address(now, station(5), six(1));
    w.run(ms(50));
    assert_eq!(w.finds(1, 1), None);
    // The station moves to another server: its addresses have to be shown there.
    w.show(1, 5, 3);
    w.run(ms(50));
    assert_eq!(w.finds(2, 3), Some(station(5)));
    w.add(2, 5);
    w.run(ms(200));
    w.run(ms(1_001));
    assert_eq!(w.lookup(2, by_six(3)), Found::Asked);
    w.run(ms(50));
    assert_eq!(w.lookup(2, by_six(3)), Found::Unknown);
    let host = w.host(1).lost.clone();
    assert_eq!(host, [(station(5), Lost::Moved)]);
}

#[test]
fn a_lossy_network_delays_and_nothing_else() {
    let mut w = World::new(3);
    (w.loss, w.doubled) = (30, 20);
    for n in 0..60 {
        w.add(1 + n % 2, n);
    }
    w.run(ms(2_000));
    assert_eq!(w.controller.as_ref().unwrap().stations(), 60);
    for n in 0..60 {
        assert_eq!(w.lookup(3, by_mac(n)), Found::Asked);
    }
    w.run(ms(60));
    let mut right = 0;
    for n in 0..60 {
        if w.lives(3, n).is_some() {
            assert_eq!(w.lives(3, n), Some(server(1 + n % 2)));
            right += 1;
        }
    }
    assert!(right >= 55, "{right} of 60 within 5 transmissions, each lost with 51 %");
    // All stations move, and the servers that asked are informed.
    for n in 0..60 {
        w.add(2 - n % 2, n);
    }
    w.run(ms(1_500));
    let wrong = (0..60).filter(|&n| w.lives(3, n).is_some_and(|at| at != server(2 - n % 2))).count();
    assert_eq!(wrong, 0);
    assert!(w.host(3).cache.counters().changed >= 55 && w.host(3).cache.counters().repeated > 0);
    assert_eq!(w.host(1).lost.len() + w.host(2).lost.len(), 60, "where they lived has heard it too");
}

#[test]
fn a_question_is_repeated_every_10_ms() {
    let mut w = World::new(1);
    w.controller = None;
    assert_eq!(w.lookup(1, by_mac(1)), Found::Asked);
    let mut times = Vec::new();
    while w.host(1).resolved.is_empty() {
        let sent = w.sent;
        w.step();
        if w.sent > sent {
            times.push(w.now);
        }
    }
    assert_eq!(times.len(), 5);
    assert!(times.windows(2).all(|t| t[1].since(t[0]) == ms(10)), "{times:?}");
    assert_eq!(w.host(1).resolved, [(by_mac(1), None)]);
    // A dead controller is not asked again at once.
    assert_eq!(w.lookup(1, by_mac(1)), Found::Silent);
    w.run(ms(1_000));
    assert_eq!(w.lookup(1, by_mac(1)), Found::Asked);
}

#[test]
fn a_dead_controller_leaves_the_cache_in_use_and_one_that_starts_anew_learns_all_again() {
    let mut w = World::new(2);
    (0..10).for_each(|n| w.add(1, n));
    w.run(ms(20));
    (0..10).for_each(|n| assert_eq!(w.lookup(2, by_mac(n)), Found::Asked));
    w.run(ms(20));
    w.controller = None;
    // Far beyond the time after which a mapping is asked about again.
    for _ in 0..60 {
        w.run(ms(1_000));
        assert!((0..10).all(|n| matches!(w.lookup(2, by_mac(n)), Found::Known(m) if m.location == server(1))));
    }
    assert!(w.host(2).cache.counters().silent > 0);
    w.controller = Some(controller(12, 2));
    // The restarted controller does not know the stations yet; while it learns, its answers remove no mapping from use.
    for _ in 0..600 {
        w.run(ms(10));
        assert!((0..10).all(|n| matches!(w.lookup(2, by_mac(n)), Found::Known(_))));
    }
    assert_eq!(w.controller.as_ref().unwrap().stations(), 10);
    w.add(2, 3);
    w.run(ms(1_200));
    w.lookup(2, by_mac(3));
    w.run(ms(10));
    assert_eq!(w.lives(2, 3), Some(server(2)));
}

#[test]
fn a_controller_that_starts_says_of_no_station_that_it_is_unknown_before_its_server_could_register_it() {
    let mut w = World::new(2);
    w.controller = None;
    w.add(1, 1);
    w.run(ms(2_000));
    let mut controller = controller(12, 2);
    controller.learns(w.now);
    w.controller = Some(controller);
    // Of an address it says so at once. The server asks again for the others, as frames that wait do.
    let nobody = Question { by: By::Ip(ip(2).into()), ..by_mac(0) };
    assert_eq!(w.lookup(2, nobody), Found::Asked);
    w.run(ms(1));
    assert_eq!(w.lookup(2, nobody), Found::Unknown);
    let started = w.now;
    while w.lookup(2, by_mac(2)) != Found::Unknown {
        w.lookup(2, by_mac(1));
        w.run(ms(10));
        assert!(w.now.since(started) < ms(6_100), "it learns for ever");
    }
    assert!(w.now.since(started) >= ms(5_990));
    assert_eq!(w.lives(2, 1), Some(server(1)));
    assert_eq!(w.host(2).cache.counters().silent, 0);
}

#[test]
fn a_controller_that_starts_knows_which_stations_have_left_since() {
    let mut w = World::new(2);
    let now = w.now;
    w.controller.as_mut().unwrap().learns(now);
    w.add(1, 1);
    w.run(ms(5));
    w.host(1).registrar.remove(now + ms(5), station(1));
    w.run(ms(500));
    assert_eq!(w.lookup(2, by_mac(1)), Found::Asked);
    w.run(ms(5));
    assert_eq!(w.lookup(2, by_mac(1)), Found::Unknown);
    w.run(LEARNS_FOR);
    assert!(w.controller.unwrap().gone.is_empty());
}

#[test]
fn hostile_23_forged_and_replayed_messages_change_nothing() {
    let mut w = World::new(3);
    w.add(1, 5);
    w.run(ms(5));
    w.lookup(3, by_mac(5));
    w.run(ms(5));
    w.add(2, 5);
    w.run(ms(5));
    assert_eq!(w.lives(3, 5), Some(server(2)));
    // Every datagram ever sent is replayed in both orders to every receiver.
    let log = w.log.clone();
    let before = w.counters();
    for flight in log.iter().chain(log.iter().rev()) {
        for to in [CONTROLLER, server(1), server(2), server(3)] {
            for from in [flight.2, server(1), server(2)] {
                w.deliver(from, to, &flight.4);
            }
        }
    }
    w.run(ms(300));
    assert_eq!(w.lives(3, 5), Some(server(2)));
    let after = w.counters();
    assert_eq!((after.moved, after.unregistered), (before.moved, before.unregistered));
    assert!(after.stale > before.stale && after.forged > before.forged);
    // A stranger; a server in the name of another; a claim without the key; a claim with another server's key.
    let claim = Repr {
        kind: Kind::Register,
        status: Status::Done,
        mac: MacAddress::local(5),
        ip: ip(5).into(),
        server: server(1),
        location: server(1),
        epoch: 11,
        vni: 7,
        version: 0,
        request: 1 << 60,
    };
    w.deliver(server(9), CONTROLLER, &key(server(9)).seal(&claim));
    w.deliver(server(3), CONTROLLER, &key(server(3)).seal(&claim));
    w.deliver(server(1), CONTROLLER, &key(server(3)).seal(&claim));
    w.deliver(server(1), CONTROLLER, &claim.emit());
    // An unsolicited answer and an old change, both with the right key.
    let mapping = Repr { kind: Kind::Answer, server: server(3), version: 1 << 40, ..claim };
    w.deliver(CONTROLLER, server(3), &key(server(3)).seal(&mapping));
    let change = Repr { kind: Kind::Changed, server: server(3), version: 1, ..claim };
    w.deliver(CONTROLLER, server(3), &key(server(3)).seal(&change));
    // The server does not believe a change from another start of the controller, but asks about it.
    let change = Repr { kind: Kind::Changed, server: server(3), version: 1 << 40, epoch: 10, ..claim };
    w.run(ms(1_000));
    w.deliver(CONTROLLER, server(3), &key(server(3)).seal(&change));
    assert_eq!(w.lives(3, 5), Some(server(2)));
    w.run(ms(20));
    assert_eq!(w.lives(3, 5), Some(server(2)));
    assert_eq!(w.counters().strangers - after.strangers, 1);
    assert_eq!(w.counters().forged - after.forged, 3);
}

#[test]
fn hostile_25_a_station_that_jumps_is_followed_slowly_and_the_last_claim_counts() {
    let mut w = World::new(3);
    w.add(1, 5);
    w.run(ms(5));
    w.lookup(3, by_mac(5));
    w.run(ms(5));
    for n in 0..1_000 {
        w.add(1 + n % 2, 5);
        w.run(ms(1));
    }
    let moved = w.counters().moved;
    assert!((5..=11).contains(&moved), "{moved} moves in a second");
    assert!(w.counters().told <= 60, "{}", w.counters().told);
    let now = w.now;
    w.host(1).registrar.remove(now, station(5));
    w.add(2, 5);
    w.run(ms(300));
    w.lookup(3, by_mac(5));
    w.run(ms(10));
    assert_eq!(w.lives(3, 5), Some(server(2)));
}

#[test]
fn a_renewal_takes_nothing_from_who_has_the_station_now() {
    let mut w = World::new(2);
    w.add(1, 5);
    w.run(ms(5));
    // Server 1 misses the news of the move, and renews.
    w.host(1).address = server(99);
    w.add(2, 5);
    w.run(ms(200));
    w.host(1).address = server(1);
    w.run(ms(6_000));
    assert_eq!(w.host(1).lost, [(station(5), Lost::Moved)]);
    assert_eq!(w.host(2).lost, []);
    assert_eq!(w.counters().moved, 1);
}

#[test]
fn a_modest_claim_takes_nothing_and_gives_way() {
    let home = |w: &World, n: u32| {
        let entry = w.controller.as_ref()?.stations.get(&station(n))?;
        Some(entry.mapping.location).filter(|location| !location.is_unspecified())
    };
    let mut w = World::new(2);
    w.add(1, 1);
    w.run(ms(50));
    // Another server learns the same station, and a station with the same address: both claims fail.
    let learn = |w: &mut World, host: u32, n: u32, address: u32| {
        let now = w.now;
        w.host(host).registrar.learn(now, station(n), ip(address));
        w.run(ms(50));
    };
    learn(&mut w, 2, 1, 1);
    learn(&mut w, 2, 9, 1);
    assert_eq!(w.host(2).lost, [(station(1), Lost::Moved), (station(9), Lost::Conflict)]);
    assert_eq!(home(&w, 1), Some(server(1)));
    // A modest claim of a free station succeeds. It lasts through renewals and a restart of the controller.
    learn(&mut w, 2, 2, 2);
    assert_eq!(home(&w, 2), Some(server(2)));
    w.controller = Some(controller(12, 2));
    w.run(RENEW + RENEW);
    assert_eq!((home(&w, 2), w.host(2).registrar.station(station(2))), (Some(server(2)), Some(ip(2))));
    // A repeated claim changes nothing; a claim with another address changes the address.
    learn(&mut w, 2, 2, 2);
    learn(&mut w, 2, 2, 5);
    assert_eq!(w.host(2).registrar.station(station(2)), Some(ip(5)));
    let now = w.now;
    w.host(1).registrar.add(now, station(3), ip(5));
    w.run(ms(50));
    assert_eq!(w.host(1).lost, [], "who has the address by right gets it");
    assert_eq!((home(&w, 3), home(&w, 2)), (Some(server(1)), None));
    w.run(RENEW);
    assert_eq!(w.host(2).lost.last(), Some(&(station(2), Lost::Conflict)));
    // A named station takes precedence over a modest claim, too.
    learn(&mut w, 2, 4, 4);
    let now = w.now;
    w.host(1).registrar.add(now, station(4), ip(4));
    w.run(ms(200));
    assert_eq!(home(&w, 4), Some(server(1)));
    // A server cannot remove a station from another server by unlearning it.
    w.host(1).registrar.unlearn(now, station(4));
    w.run(ms(200));
    assert_eq!(home(&w, 4), Some(server(1)));
    assert_eq!(w.controller.as_ref().unwrap().stations(), 3);
}

#[test]
fn an_address_belongs_to_one_station_and_tables_are_bounded() {
    let mut w = World::new(2);
    let small = ControllerConfig { stations: 10, stations_per_server: 8, changes: 4 };
    let mut controller = Controller::new(small, 5);
    (1..=2).for_each(|n| controller.admit(server(n), key(server(n))));
    w.controller = Some(controller);
    w.add(1, 1);
    w.run(ms(50));
    let now = w.now;
    w.host(2).registrar.add(now, station(2), ip(1));
    w.run(ms(50));
    assert_eq!(w.host(2).lost, [(station(2), Lost::Conflict)]);
    (2..20).for_each(|n| w.add(1, n));
    w.run(ms(50));
    assert_eq!(w.controller.as_ref().unwrap().stations(), 8);
    (20..40).for_each(|n| w.add(2, n));
    w.run(ms(50));
    assert_eq!(w.controller.as_ref().unwrap().stations(), 10);
}

#[test]
fn mutated_datagrams_never_panic() {
    let mut w = World::new(2);
    (0..20).for_each(|n| w.add(1 + n % 2, n));
    w.run(ms(20));
    let log = w.log.clone();
    let mut rng = Rng::from_words(&[3]);
    for _ in 0..20_000 {
        let mut bytes = log[rng.below(log.len() as u64) as usize].4.to_vec();
        for _ in 0..rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        // Half of the datagrams have a valid tag, as from a server under an attacker's control.
        if rng.below(2) == 0
            && let Ok(message) = Repr::parse(&bytes)
        {
            bytes = key(server(1)).seal(&Repr { server: server(1), ..message }).to_vec();
        }
        bytes.truncate(rng.below(LEN as u64 * 4) as usize);
        for to in [CONTROLLER, server(1)] {
            w.deliver(server(1), to, &bytes);
        }
    }
    w.run(ms(100));
    let stations = w.controller.as_ref().unwrap().stations();
    assert!(stations <= 20 + 4096, "{stations}");
    // Server 1's messages do not affect server 2's stations, except by claims.
    assert!(w.counters().stale > 0 && w.counters().forged > 0);
}
