use super::*;
use crate::hedera::LINK;
use crate::units::Rate;
use alloc::collections::BTreeSet;

const PERIOD: Duration = Duration::from_ms(100);

fn settings(k: u32, placer: Placer) -> Settings {
    let detection =
        Detection { link: Rate::gbps(1), window: Duration::from_ms(100), idle: Duration::from_secs(1), flows_max: 200 };
    Settings { tree: Tree::fat_tree(k).unwrap(), detection, placer, period: PERIOD, seed: 1 }
}

const PLACERS: [Placer; 2] = [Placer::FirstFit, Placer::Annealing { iterations: 1_000 }];

/// The scheduler, the time, and the placements sent to the switches.
struct World {
    s: Scheduler,
    now: Instant,
    told: BTreeMap<FlowId, Path>,
}

impl World {
    fn new(k: u32, placer: Placer) -> World {
        World { s: Scheduler::new(settings(k, placer)), now: Instant::ZERO, told: BTreeMap::new() }
    }

    /// Reports a sample of a flow.
    fn say(&mut self, flow: u64, src: Host, dst: Host, bytes: u64) -> Result<(), Refused> {
        let sample = Sample { flow: FlowId(flow), src, dst, bytes, age: None };
        self.s.receive(self.now, &sample)
    }

    fn elephant(&mut self, flow: u64, src: Host, dst: Host) {
        self.say(flow, src, dst, 0).unwrap();
        self.say(flow, src, dst, 1 << 30).unwrap();
    }

    /// Runs the rounds due within `ms`; returns the changed placements.
    fn step(&mut self, ms: u64) -> Vec<(u64, Option<Path>)> {
        let end = self.now + Duration::from_ms(ms);
        while self.s.poll_timeout() <= end {
            self.now = self.now.max(self.s.poll_timeout());
            self.s.handle_timeout(self.now);
        }
        self.now = end;
        self.fetch()
    }

    fn fetch(&mut self) -> Vec<(u64, Option<Path>)> {
        let mut fetched = Vec::new();
        while let Some(placement) = self.s.poll_placement() {
            match placement.path {
                Some(path) => self.told.insert(placement.flow, path),
                None => self.told.remove(&placement.flow),
            };
            fetched.push((placement.flow.0, placement.path));
        }
        fetched
    }
}

/// Al-Fares 2012, 4.1 and figure 4.2.
#[test]
fn first_fit_from_detection_to_the_end_of_a_flow() {
    let mut w = World::new(4, Placer::FirstFit);
    assert_eq!(w.s.poll_timeout(), Instant::MAX, "nothing happens by itself");
    // Small flows change nothing.
    w.say(1, 0, 4, 0).unwrap();
    w.say(1, 0, 4, 100).unwrap();
    assert_eq!(w.step(50), []);
    // Two elephants from one edge switch: each demands a whole link and is placed at once.
    w.elephant(2, 0, 4);
    w.elephant(3, 1, 8);
    assert_eq!(w.s.poll_timeout(), w.now);
    assert_eq!(w.step(0), [(2, Some(Path::Core(0))), (3, Some(Path::Core(1)))]);
    assert_eq!((w.s.last_round().elephants, w.s.last_round().hashed), (2, 0));
    // A third elephant shares host 0's link. It fits on the first elephant's path, where half of the capacity is free now.
    w.elephant(4, 0, 12);
    assert_eq!(w.step(10), [(4, Some(Path::Core(0)))]);
    // Below one edge switch there is no placement to send.
    w.elephant(5, 14, 15);
    assert_eq!(w.step(10), []);
    assert_eq!(w.s.path(FlowId(5)), Some(Path::Edge));
    // One elephant ends and the others fall silent: their entries are deleted, and others can use their capacity.
    w.s.handle_ended(FlowId(3));
    assert_eq!(w.fetch(), [(3, None)]);
    w.elephant(6, 1, 5);
    assert_eq!(w.step(10), [(6, Some(Path::Core(1)))]);
    assert_eq!(w.step(1_000), [(2, None), (4, None), (6, None)]);
    assert_eq!((w.s.flows(), w.s.poll_timeout()), (0, Instant::MAX));
    let Engine::FirstFit(links) = &w.s.engine else { panic!() };
    assert!(links.clone().reserve(0, 4, Path::Core(0), LINK), "all is given back");
}

/// Al-Fares 2012, 4.2.5: annealing waits for the next tick.
#[test]
fn annealing_places_once_a_period_and_keeps_what_it_has() {
    let mut w = World::new(4, Placer::Annealing { iterations: 1_000 });
    for host in 0..16 {
        w.elephant(host as u64, host, (host + 4) % 16);
    }
    assert_eq!(w.step(99), []);
    assert_eq!(w.step(1).len(), 16);
    assert_eq!(w.s.last_round().energy, 0.0);
    assert_eq!(w.step(300), [], "nothing is gained by a change");
}

#[test]
fn what_goes_over_a_link_that_fails_is_placed_again_at_once() {
    for placer in PLACERS {
        let mut w = World::new(4, placer);
        w.elephant(1, 0, 4);
        w.elephant(2, 8, 12);
        w.step(100);
        let Path::Core(core) = w.told[&FlowId(1)] else { panic!() };
        let (core, untouched) = (core as u32, w.told[&FlowId(2)]);
        w.s.handle_link(w.now, Link::Core { pod: 1, core }, false).unwrap();
        let moved = w.fetch();
        assert!(matches!(moved[..], [(1, Some(Path::Core(c)))] if c as u32 != core), "{placer:?} {moved:?}");
        assert!(w.s.poll_timeout() <= w.now + PERIOD);
        w.say(1, 0, 4, 2 << 30).unwrap();
        w.say(2, 8, 12, 2 << 30).unwrap();
        w.step(200);
        assert_ne!(w.told[&FlowId(1)], Path::Core(core as u16));
        assert_eq!(w.told[&FlowId(2)], untouched);
        // Without any path no placement is sent.
        w.s.handle_switch(w.now, Switch::Edge(0), false).unwrap();
        assert_eq!(w.fetch(), [(1, None)]);
        w.step(100);
        assert!(!w.told.contains_key(&FlowId(1)));
        w.s.handle_switch(w.now, Switch::Edge(0), true).unwrap();
        w.s.handle_link(w.now, Link::Core { pod: 1, core }, true).unwrap();
        w.say(1, 0, 4, 3 << 30).unwrap();
        w.step(200);
        assert!(w.told.contains_key(&FlowId(1)), "{placer:?}");
    }
}

#[test]
fn a_switch_that_lost_its_entries_is_told_again() {
    let mut w = World::new(4, Placer::FirstFit);
    w.elephant(1, 0, 4);
    w.elephant(2, 8, 12);
    let told = w.step(0);
    w.s.handle_forgotten(Switch::Edge(4)).unwrap();
    assert_eq!(w.fetch(), told[1..]);
    w.s.handle_forgotten(Switch::Aggregation { pod: 0, position: 1 }).unwrap();
    assert_eq!(w.fetch(), told[..1]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut w = World::new(4, Placer::FirstFit);
    for (src, dst) in [(16, 0), (0, 16), (3, 3), (u32::MAX, 0)] {
        assert_eq!(w.say(1, src, dst, 0), Err(Refused::Unknown));
    }
    let link = Link::Edge { edge: 8, aggregation: 0 };
    assert_eq!(w.s.handle_link(w.now, link, false), Err(Refused::Unknown));
    assert_eq!(w.s.handle_switch(w.now, Switch::Core(4), false), Err(Refused::Unknown));
    assert_eq!(w.s.handle_forgotten(Switch::Edge(u32::MAX)), Err(Refused::Unknown));
    for flow in 0..200 {
        w.elephant(flow, 0, 4);
    }
    assert_eq!(w.say(200, 0, 4, 0), Err(Refused::Full));
    // A consumer that fetches no placements does not make the scheduler store more than its limit.
    w.step(0);
    for flow in 0..10_000 {
        w.s.handle_ended(FlowId(flow));
        if w.say(flow + 1_000, 0, 4, 0).is_ok() {
            w.say(flow + 1_000, 0, 4, 1 << 30).unwrap();
        }
        w.s.handle_timeout(w.now);
    }
    assert!(w.s.changed.len() <= 600);
}

#[test]
fn a_number_that_is_given_to_another_flow_is_another_flow() {
    let mut w = World::new(4, Placer::FirstFit);
    w.elephant(1, 0, 4);
    w.step(0);
    w.say(1, 0, 8, 0).unwrap();
    assert_eq!(w.fetch(), [(1, None)]);
    assert_eq!(w.s.path(FlowId(1)), None);
}

/// With random flows and faults: no elephant stays on a failed link, no capacity is reserved twice, the sent placements
/// match the state, and a second scheduler does the same.
#[test]
fn a_thousand_things_happen() {
    for case in 0..24 {
        let placer = PLACERS[case % 2];
        let mut w = World::new([4, 6][case % 4 / 2], placer);
        let mut twin = Scheduler::new(w.s.settings);
        let tree = w.s.settings.tree;
        let mut rng = Rng::from_words(&[case as u64]);
        let mut bytes = 0;
        for _ in 0..600 {
            let host = |rng: &mut Rng| rng.below(tree.hosts() as u64) as u32;
            let (src, dst) = (host(&mut rng), host(&mut rng));
            let up = rng.below(3) > 0;
            bytes += 1 << 30;
            match rng.below(8) {
                0 => {
                    let link = Link::Core { pod: rng.below(tree.pods as u64) as u32, core: rng.below(4) as u32 };
                    assert_eq!(w.s.handle_link(w.now, link, up), twin.handle_link(w.now, link, up));
                }
                1 => {
                    let link =
                        Link::Edge { edge: rng.below(tree.edges() as u64) as u32, aggregation: rng.below(2) as u32 };
                    assert_eq!(w.s.handle_link(w.now, link, up), twin.handle_link(w.now, link, up));
                }
                2 => {
                    let switch = Switch::Core(rng.below(4) as u32);
                    assert_eq!(w.s.handle_switch(w.now, switch, up), twin.handle_switch(w.now, switch, up));
                }
                3 => {
                    let flow = FlowId(rng.below(60));
                    w.s.handle_ended(flow);
                    twin.handle_ended(flow);
                }
                4 => {
                    w.now += Duration::from_ms(rng.below(300));
                    w.s.handle_timeout(w.now);
                    twin.handle_timeout(w.now);
                }
                _ => {
                    let flow = rng.below(60);
                    let ends = w.s.detector.ends(FlowId(flow)).unwrap_or((src, dst));
                    let bytes = if rng.below(4) == 0 { 0 } else { bytes };
                    let sample = Sample { flow: FlowId(flow), src: ends.0, dst: ends.1, bytes, age: None };
                    assert_eq!(w.s.receive(w.now, &sample), twin.receive(w.now, &sample));
                }
            }
            assert_eq!((w.s.poll_timeout(), &w.s.changed), (twin.poll_timeout(), &twin.changed));
            w.fetch();
            while twin.poll_placement().is_some() {}
            let placed = w.s.elephants.iter().filter_map(|(&flow, e)| Some((flow, e.path?)));
            let placed: BTreeSet<_> = placed.filter(|&(_, path)| path != Path::Edge).collect();
            assert!(w.told.iter().map(|(&flow, &path)| (flow, path)).eq(placed), "case {case}");
            for e in w.s.elephants.values() {
                assert!(e.path.is_none_or(|path| w.s.faults.leaves(e.src, e.dst, path)));
            }
            if let Engine::FirstFit(links) = &mut w.s.engine {
                let mut empty = links.clone();
                for e in w.s.elephants.values().filter(|e| e.is_reserved) {
                    empty.release(e.src, e.dst, e.path.unwrap(), e.demand);
                }
                let mut cleared = empty.clone();
                cleared.clear();
                assert_eq!(empty, cleared, "what is reserved is what elephants hold");
            }
        }
    }
}
