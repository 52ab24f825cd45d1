//! Timeslices: Figure 10, fairness, pre-emption, and a campaign beside Algorithm 1.

use super::literal::Literal;
use super::{GBPS, rows};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::xco::slices::{SliceConfig, Slices};
use crate::xco::topology::{Link, Topology};
use crate::xco::{Limits, Node, Refused};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

const SLICE: Duration = Duration::from_ms(2);

fn ms(n: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(n)
}

fn scheduler(topology: Topology) -> Slices {
    let limits = Limits { flows: 4096, flows_per_node: 64 };
    Slices::new(topology, SliceConfig::new(SLICE), limits)
}

/// The sources of the grants so far.
fn granted(slices: &mut Slices) -> Vec<Node> {
    let mut sources: Vec<Node> = core::iter::from_fn(|| slices.poll_grant()).map(|grant| grant.source).collect();
    sources.sort_unstable();
    sources
}

/// Figure 1(a) and 10(a): five senders and one receiver at one switch.
#[test]
fn one_of_five_senders_at_a_time() {
    let mut slices = scheduler(rows(1, 1, 6, 10 * GBPS));
    for n in 1..6 {
        slices.handle_backlog(ms(0), n, 0, 1).unwrap();
    }
    let mut turns = granted(&mut slices);
    for turn in 1..10 {
        slices.handle_timeout(ms(2 * turn));
        slices.check();
        turns.extend(granted(&mut slices));
    }
    assert_eq!(turns, [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]);
}

/// Figure 1(b) and 10(b): thirteen senders behind one link of 10 Gb/s.
#[test]
fn ten_of_thirteen_senders_at_a_time() {
    let mut slices = scheduler(rows(2, 1, 13, 10 * GBPS));
    for n in 0..13 {
        slices.handle_backlog(ms(0), n, 13 + n, 1).unwrap();
    }
    let mut turns = [0; 13];
    for turn in 1..=130u64 {
        let now = granted(&mut slices);
        now.iter().for_each(|&n| turns[n as usize] += 1);
        assert_eq!(slices.active().len(), 10);
        slices.handle_timeout(ms(2 * turn));
        slices.check();
    }
    assert!(turns.iter().all(|turns| (99..=101).contains(turns)), "{turns:?}");
}

/// 3.2, work conservation: the next node gets the rest.
#[test]
fn a_slice_that_is_given_back_goes_to_the_next() {
    let mut slices = scheduler(rows(1, 1, 4, 10 * GBPS));
    for n in 1..4 {
        slices.handle_backlog(ms(0), n, 0, 1).unwrap();
    }
    assert_eq!(granted(&mut slices), [1]);
    slices.set_directive(1, 0, 7);
    assert!(slices.has_slice(1, 0, 7) && !slices.has_slice(1, 0, 6) && !slices.has_slice(2, 0, 0));
    slices.handle_idle(ms(1), 1, 0);
    assert_eq!((granted(&mut slices), slices.poll_timeout()), (vec![2], Some(ms(3))));
    // It has something again: it comes last.
    slices.handle_backlog(ms(2), 1, 0, 1).unwrap();
    slices.handle_timeout(ms(3));
    slices.handle_timeout(ms(5));
    assert_eq!(granted(&mut slices), [1, 3]);
    assert_eq!(slices.counters().returned, 1);
}

#[test]
fn a_weight_makes_turns_longer() {
    let mut slices = scheduler(rows(1, 1, 3, 10 * GBPS));
    slices.handle_backlog(ms(0), 1, 0, 3).unwrap();
    slices.handle_backlog(ms(0), 2, 0, 1).unwrap();
    let mut ends = Vec::new();
    for _ in 0..4 {
        let end = slices.poll_timeout().unwrap();
        ends.push(end.since(ms(0)).as_us() / 1000);
        slices.handle_timeout(end);
    }
    assert_eq!(ends, [6, 8, 14, 16]);
}

/// Lines 40 to 46: node 0 sends to the second of its destinations when it has become free.
#[test]
fn a_node_is_preempted_for_a_destination_that_became_free() {
    let mut slices = scheduler(rows(1, 1, 4, 10 * GBPS));
    slices.handle_backlog(ms(0), 3, 2, 1).unwrap();
    slices.handle_backlog(ms(0), 0, 1, 1).unwrap();
    slices.handle_backlog(ms(0), 0, 2, 1).unwrap();
    assert_eq!(slices.active(), [(0, 1), (3, 2)]);
    while slices.poll_grant().is_some() {}
    // Too early: a quarter of the slice has not passed.
    let early = Instant::ZERO + Duration::from_us(400);
    slices.clone().handle_idle(early, 3, 2);
    let mut later = slices.clone();
    later.handle_idle(early, 3, 2);
    assert_eq!(later.active(), [(0, 1)]);
    slices.handle_idle(ms(1), 3, 2);
    let grant = slices.poll_grant().unwrap();
    assert_eq!((grant.source, grant.destination, grant.instead_of), (0, 2, Some(1)));
    // The slice ends when the first one would have.
    assert_eq!((grant.length, slices.poll_timeout()), (Duration::from_ms(1), Some(ms(2))));
    assert_eq!(slices.counters().preempted, 1);
    slices.check();
}

/// Section 7: a node that is faster than the bottleneck.
#[test]
fn rates_within_slices_let_a_fast_node_send() {
    let links = [(0, 10), (1, 1), (2, 1), (3, 10)].map(|(n, gbps)| Link { ends: [n, 4], kbps: gbps * GBPS });
    let mut topology = Topology::new(4, 5, &links).unwrap();
    topology.add_tree(4).unwrap();
    let mut slices = scheduler(topology.clone());
    assert_eq!(slices.handle_backlog(ms(0), 0, 1, 1), Err(Refused::TooFast));
    assert_eq!(slices.handle_backlog(ms(0), 0, 3, 1), Ok(()));
    let mut config = SliceConfig::new(SLICE);
    config.rates = true;
    let mut slices = Slices::new(topology, config, Limits { flows: 8, flows_per_node: 8 });
    slices.handle_backlog(ms(0), 0, 1, 1).unwrap();
    slices.handle_backlog(ms(0), 0, 2, 1).unwrap();
    let grants: Vec<u32> = core::iter::from_fn(|| slices.poll_grant()).map(|grant| grant.rate_kbps).collect();
    // Both at once: its link has room for both.
    assert_eq!((grants, slices.active().len()), (vec![GBPS; 2], 2));
    // A flow at the full rate waits until both are over, and then gets its turn.
    slices.handle_backlog(ms(1), 0, 3, 1).unwrap();
    slices.check();
    (1..20).for_each(|n| slices.handle_timeout(ms(2 * n)));
    let rates: Vec<u32> = core::iter::from_fn(|| slices.poll_grant()).map(|grant| grant.rate_kbps).collect();
    assert!(rates.contains(&(10 * GBPS)) && rates.contains(&GBPS), "{rates:?}");
}

/// A flow that needs two links is not starved by flows that need one each and whose slices overlap.
#[test]
fn nobody_starves_between_two_links() {
    let mut slices = scheduler(rows(1, 1, 6, 10 * GBPS));
    // 1 and 2 share receiver 0; 3 and 4 have 5 as theirs; 2 also has to get past its own link.
    slices.handle_backlog(ms(0), 1, 0, 1).unwrap();
    slices.handle_backlog(ms(1), 2, 3, 1).unwrap();
    slices.handle_backlog(ms(1), 2, 0, 1).unwrap();
    slices.handle_backlog(ms(1), 4, 3, 1).unwrap();
    let mut last = BTreeMap::new();
    for n in 2..400 {
        slices.handle_timeout(ms(n));
        slices.check();
        while let Some(grant) = slices.poll_grant() {
            let before = last.insert((grant.source, grant.destination), n).unwrap_or(0);
            assert!(n - before <= 8, "{:?} waited for {} ms", (grant.source, grant.destination), n - before);
        }
    }
    assert_eq!(last.len(), 4);
}

/// What happens at random, and the same in the model.
struct Campaign {
    slices: Slices,
    now: Instant,
    rng: Rng,
    /// Since when each node waits.
    waits: BTreeMap<Node, Instant>,
    longest: Duration,
}

impl Campaign {
    fn note(&mut self) {
        while let Some(grant) = self.slices.poll_grant() {
            self.waits.remove(&grant.source);
        }
        let active = self.slices.active();
        let is_active = |n: Node| active.iter().any(|&(source, _)| source == n);
        self.waits.retain(|&n, _| !is_active(n));
        for n in 0..self.slices.topology().nodes() {
            if self.slices.has_backlog(n) && !is_active(n) {
                let since = *self.waits.entry(n).or_insert(self.now);
                self.longest = self.longest.max(self.now.since(since));
            } else {
                self.waits.remove(&n);
            }
        }
    }
}

#[test]
fn feasible_maximal_and_fair_in_any_tree() {
    for seed in 0..60 {
        let mut rng = Rng::from_words(&[seed]);
        let (racks, hosts) = (1 + rng.below(3) as u32, 2 + rng.below(4) as u32);
        let up = (1 + rng.below(3) as u32) * GBPS;
        let topology = rows(2, racks, hosts, up);
        let nodes = topology.nodes();
        let mut c = Campaign {
            slices: scheduler(topology),
            now: Instant::ZERO,
            rng,
            waits: BTreeMap::new(),
            longest: Duration::ZERO,
        };
        // Flows that never end, so that every wait counts.
        for _ in 0..3 * nodes {
            let (a, b) = (c.rng.below(nodes.into()) as Node, c.rng.below(nodes.into()) as Node);
            let _ = c.slices.handle_backlog(c.now, a, b, 1);
            c.slices.check();
            c.note();
        }
        for _ in 0..400 {
            let next = c.slices.poll_timeout().unwrap();
            c.now = if c.rng.below(3) == 0 { next } else { next.min(c.now + Duration::from_us(c.rng.below(900))) };
            c.slices.handle_timeout(c.now);
            if c.rng.below(4) == 0 {
                // A flow ends early and begins again at once: slices get out of step.
                let active = c.slices.active();
                let (a, b) = active[c.rng.below(active.len() as u64) as usize];
                c.slices.handle_idle(c.now, a, b);
                c.slices.check();
                c.note();
                c.slices.handle_backlog(c.now, a, b, 1).unwrap();
            }
            c.slices.check();
            c.note();
        }
        let bound = SLICE.saturating_mul(nodes.into());
        assert!(c.longest <= bound, "seed {seed}: a node of {nodes} waited for {:?}", c.longest);
    }
}

/// Flows begin and end at any time, whether they wait, send, or have reserved a place; nodes leave.
#[test]
fn feasible_and_maximal_while_flows_come_and_go() {
    for seed in 0..40 {
        let mut rng = Rng::from_words(&[seed, 2]);
        let topology = rows(2, 2, 1 + rng.below(4) as u32, (1 + rng.below(3) as u32) * GBPS);
        let nodes = u64::from(topology.nodes());
        let mut config = SliceConfig::new(SLICE);
        config.rates = seed % 2 == 1;
        let mut slices = Slices::new(topology, config, Limits { flows: 64, flows_per_node: 8 });
        let mut now = Instant::ZERO;
        for _ in 0..600 {
            now += Duration::from_us(rng.below(700));
            slices.handle_timeout(now);
            let (a, b) = (rng.below(nodes) as Node, rng.below(nodes) as Node);
            match rng.below(40) {
                0 => slices.remove_node(now, a),
                1..20 => slices.handle_idle(now, a, b),
                _ => _ = slices.handle_backlog(now, a, b, 1 + rng.below(3) as u8),
            }
            slices.check();
        }
        for n in 0..nodes as Node {
            slices.remove_node(now, n);
        }
        slices.check();
        assert_eq!((slices.flows(), slices.poll_timeout()), (0, None));
        assert!((0..slices.topology().links() as u32).all(|link| slices.used_kbps(link) == 0));
    }
}

/// The same events in both: each is feasible and maximal after each, and both give as many permissions.
#[test]
fn as_algorithm_1() {
    let (mut ours, mut theirs) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::from_words(&[seed, 1]);
        let topology = rows(2, 2, 3, (1 + rng.below(3) as u32) * GBPS);
        let nodes = u64::from(topology.nodes());
        let mut slices = scheduler(topology.clone());
        let mut model =
            Literal { topology: &topology, backlog: BTreeMap::new(), directives: BTreeMap::new(), rotation: 0 };
        let mut now = Instant::ZERO;
        for _ in 0..150 {
            now += Duration::from_us(rng.below(400));
            // Slices of ours that expired; any slice of theirs can.
            slices.handle_timeout(now);
            let sending: Vec<Node> = model.directives.keys().copied().collect();
            if !sending.is_empty() && rng.below(2) == 0 {
                model.event(sending[rng.below(sending.len() as u64) as usize], false);
            }
            let (a, b) = (rng.below(nodes) as Node, rng.below(nodes) as Node);
            let has = model.backlog.get(&a).is_some_and(|of| of.contains(&b));
            if a != b && !has && slices.flows() < 20 {
                slices.handle_backlog(now, a, b, 1).unwrap();
                model.backlog.entry(a).or_default().insert(b);
                if !model.directives.contains_key(&a) {
                    model.event(a, false);
                }
            } else if has && model.directives.get(&a) == Some(&b) {
                slices.handle_idle(now, a, b);
                model.event(a, true);
            }
            slices.check();
            for link in 0..topology.links() as u32 {
                let used: u32 =
                    model.directives.iter().filter(|(s, d)| topology.path(**s, **d).any(|l| l == link)).count() as u32
                        * GBPS;
                assert!(used <= topology.capacity(link), "seed {seed}: the model overloads a link");
            }
            // Theirs is maximal among the affected nodes; after an event of a node without backlog nobody was affected.
            ours += slices.active().len();
            theirs += model.directives.len();
        }
    }
    let ratio = ours as f64 / theirs as f64;
    assert!(ratio > 0.97, "{ours} permissions, and {theirs} by Algorithm 1");
}
