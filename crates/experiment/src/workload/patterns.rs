//! Senders and receivers: the communication patterns of Al-Fares 2012, 3.5.2 and 4.4.1.

use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_scenario::{Blocks, Pattern, Topology};

/// Times that a sender looks for another to exchange receivers with; after these it keeps its receiver.
const TRIES_MAX: u32 = 256;

/// Sender and receiver of each flow, senders in order; no host sends to itself. Each `number` draws its own pairs.
pub(super) fn pairs(topology: &Topology, (seed, number): (u64, u64), pattern: &Pattern) -> Vec<(HostId, HostId)> {
    let n = topology.counts().hosts;
    let draws = |name: u64| Rng::from_words(&[seed, name, number]);
    let to = match pattern {
        Pattern::Stride(s) => (0..n).map(|i| ((i as u64 + *s as u64) % n as u64) as u32).collect(),
        Pattern::Random => derangement(n, &mut draws(0x5045_524d)),
        Pattern::NonBijective => {
            let rng = &mut draws(0x4e4f_4e42);
            (0..n).map(|src| other(src, n, rng)).collect()
        }
        Pattern::Hotspot(receivers) => {
            let rng = &mut draws(0x484f_5453);
            let hot = some_of(n, *receivers, rng);
            // A receiver sends to another one, if there is one.
            let of = |src: u32| {
                let others: Vec<u32> = hot.iter().copied().filter(|&h| h != src).collect();
                (!others.is_empty()).then(|| others[src as usize % others.len()])
            };
            return (0..n).filter_map(|src| Some((src, of(src)?))).collect();
        }
        Pattern::Staggered { edge, pod } => match topology.blocks() {
            Some(blocks) => staggered(n, blocks, (*edge, *pod), &mut draws(0x5354_4147)),
            None => derangement(n, &mut draws(0x5354_4147)),
        },
        Pattern::InterPodIncoming => inter_pod_incoming(topology.fat_tree_k().unwrap_or(2), &mut draws(0x494e_5044)),
        Pattern::SameIdOutgoing => same_id_outgoing(topology.fat_tree_k().unwrap_or(2), &mut draws(0x5341_4d45)),
        Pattern::File(f) => return f.content.iter().copied().filter(|(src, dst)| src != dst).collect(),
    };
    (0..n).zip(to).filter(|(src, dst)| src != dst).collect()
}

/// A random permutation without fixed points: a single cycle (Sattolo).
fn derangement(n: u32, rng: &mut Rng) -> Vec<u32> {
    let mut to: Vec<u32> = (0..n).collect();
    for i in (1..n as usize).rev() {
        to.swap(i, rng.below(i as u64) as usize);
    }
    to
}

/// Any of `n` but `src`.
fn other(src: u32, n: u32, rng: &mut Rng) -> u32 {
    let draw = rng.below(u64::from(n) - 1) as u32;
    draw + u32::from(draw >= src)
}

/// `count` of the first `n` numbers.
fn some_of(n: u32, count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut all: Vec<u32> = (0..n).collect();
    rng.shuffle(&mut all);
    all.truncate(count as usize);
    all
}

/// Lets members exchange their receivers until all fit, as far as random partners with fitting receivers are found.
fn mend(members: &[u32], to: &mut [u32], fits: impl Fn(u32, u32) -> bool, rng: &mut Rng) {
    for &src in members {
        for _ in 0..TRIES_MAX {
            if fits(src, to[src as usize]) {
                break;
            }
            let with = members[rng.below(members.len() as u64) as usize];
            let (mine, its) = (to[src as usize], to[with as usize]);
            // An exchange never breaks a pair that fitted.
            if with != mine && fits(src, its) && (fits(with, mine) || !fits(with, its)) {
                to.swap(src as usize, with as usize);
            }
        }
    }
}

/// Hosts without a sender yet, in all and by edge switch and pod.
struct Free {
    blocks: Blocks,
    is_free: Vec<bool>,
    all: u32,
    by_edge: Vec<u32>,
    by_pod: Vec<u32>,
}

/// How far away a host is.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    Edge,
    Pod,
    Further,
}

impl Free {
    fn new(n: u32, blocks: Blocks) -> Free {
        let count = |size: u32| (0..n.div_ceil(size)).map(|i| size.min(n - i * size)).collect();
        let (by_edge, by_pod) = (count(blocks.edge), count(blocks.pod));
        Free { blocks, is_free: vec![true; n as usize], all: n, by_edge, by_pod }
    }

    fn range(&self, src: u32, size: u32) -> core::ops::Range<u32> {
        src / size * size..(src / size * size + size).min(self.is_free.len() as u32)
    }

    /// Number of hosts within a reach, without the host itself, and number of free hosts among them.
    fn counts(&self, src: u32, reach: Reach) -> (u32, u32) {
        let (n, own) = (self.is_free.len() as u32, u32::from(self.is_free[src as usize]));
        let (edge, pod) =
            (self.range(src, self.blocks.edge).len() as u32, self.range(src, self.blocks.pod).len() as u32);
        let (in_edge, in_pod) =
            (self.by_edge[(src / self.blocks.edge) as usize], self.by_pod[(src / self.blocks.pod) as usize]);
        match reach {
            Reach::Edge => (edge - 1, in_edge - own),
            Reach::Pod => (pod - edge, in_pod - in_edge),
            Reach::Further => (n - pod, self.all - in_pod),
        }
    }

    /// Takes a free host so far away, each as likely; there is one.
    fn take(&mut self, src: u32, reach: Reach, rng: &mut Rng) -> u32 {
        let (edge, pod) = (self.range(src, self.blocks.edge), self.range(src, self.blocks.pod));
        let within = match reach {
            Reach::Edge => edge.clone(),
            Reach::Pod => pod.clone(),
            Reach::Further => 0..self.is_free.len() as u32,
        };
        loop {
            let dst = within.start + rng.below(within.len() as u64) as u32;
            let fits = match reach {
                Reach::Edge => dst != src,
                Reach::Pod => !edge.contains(&dst),
                Reach::Further => !pod.contains(&dst),
            };
            if fits && self.is_free[dst as usize] {
                self.remove(dst);
                return dst;
            }
        }
    }

    fn remove(&mut self, dst: u32) {
        self.is_free[dst as usize] = false;
        self.all -= 1;
        self.by_edge[(dst / self.blocks.edge) as usize] -= 1;
        self.by_pod[(dst / self.blocks.pod) as usize] -= 1;
    }
}

/// Hosts draw in a random order. Each draws a distance and a host at that distance, and draws both again until it finds
/// a host without a sender. So the pattern is one to one, and later hosts send far a little more often than drawn. A
/// host that finds none within its reach takes the nearest free host. Where that is the host itself, it exchanges with
/// another host of its edge switch, or with any host.
fn staggered(n: u32, blocks: Blocks, (edge, pod): (f64, f64), rng: &mut Rng) -> Vec<u32> {
    let mut to: Vec<u32> = (0..n).collect();
    let mut order = to.clone();
    rng.shuffle(&mut order);
    let mut free = Free::new(n, blocks);
    let chances = [(Reach::Edge, edge), (Reach::Pod, pod), (Reach::Further, (1.0 - edge - pod).max(0.0))];
    let mut alone = Vec::new();
    for src in order {
        // To draw again and again is to draw once, with chances weighted by the free hosts.
        let weights = chances.map(|(reach, chance)| match free.counts(src, reach) {
            (_, 0) => 0.0,
            (all, free) => chance * f64::from(free) / f64::from(all),
        });
        let mut draw = rng.unit_f64() * weights.iter().sum::<f64>();
        let drawn = chances.iter().zip(weights).find(|(_, weight)| {
            draw -= weight;
            *weight > 0.0 && draw < 0.0
        });
        let left = chances.iter().zip(weights).rfind(|(_, weight)| *weight > 0.0);
        let reach = match drawn.or(left) {
            Some((&(reach, _), _)) => reach,
            None if free.is_free[src as usize] => {
                free.remove(src);
                alone.push(src);
                continue;
            }
            None => [Reach::Edge, Reach::Pod, Reach::Further]
                .into_iter()
                .find(|&reach| free.counts(src, reach).1 > 0)
                .unwrap_or(Reach::Further),
        };
        to[src as usize] = free.take(src, reach, rng);
    }
    for src in alone {
        let near = free.range(src, blocks.edge);
        let with =
            if near.len() > 1 { near.start + other(src - near.start, near.len() as u32, rng) } else { (src + 1) % n };
        to.swap(src as usize, with as usize);
    }
    to
}

/// The two halves of the pods send to each other. Edge switches of one position all send to one pod, each to one edge
/// switch there. Upward ports are the sum of ID and position at each of two switches (figures 3.5 and 3.6). So
/// two-level tables lead frames for hosts of one ID in a pod through one core. Halves, pods, edge switches and hosts
/// are drawn.
fn inter_pod_incoming(k: u32, rng: &mut Rng) -> Vec<u32> {
    let half = k / 2;
    let mut drawn = |n: u32| {
        let mut list: Vec<u32> = (0..n).collect();
        rng.shuffle(&mut list);
        list
    };
    let pods = drawn(k);
    let (one, other) = pods.split_at(half as usize);
    let mut to = vec![0; (k * half * half) as usize];
    for (senders, receivers) in [(one, other), (other, one)] {
        for (position, &pod) in (0..half).zip(receivers) {
            for (&sender, edge) in senders.iter().zip(drawn(half)) {
                for (host, id) in (0..half).zip(drawn(half)) {
                    to[((sender * half + position) * half + host) as usize] = (pod * half + edge) * half + id;
                }
            }
        }
    }
    to
}

/// Each edge switch draws an ID, each ID for as many of them; its hosts send to hosts of that ID in other pods.
fn same_id_outgoing(k: u32, rng: &mut Rng) -> Vec<u32> {
    let half = k / 2;
    let (edges, pod_hosts) = (k * half, half * half);
    let mut ids: Vec<u32> = (0..edges).map(|e| e % half).collect();
    rng.shuffle(&mut ids);
    let mut to: Vec<u32> = (0..edges * half).collect();
    for id in 0..half {
        let senders: Vec<u32> = (0..edges * half).filter(|src| ids[(src / half) as usize] == id).collect();
        let mut receivers: Vec<u32> = (0..edges).map(|e| e * half + id).collect();
        rng.shuffle(&mut receivers);
        for (&src, &dst) in senders.iter().zip(&receivers) {
            to[src as usize] = dst;
        }
        mend(&senders, &mut to, |src, dst| src / pod_hosts != dst / pod_hosts, rng);
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_scenario::Scenario;
    use std::collections::BTreeSet;

    fn topology(text: &str) -> Topology {
        let rest = "\n[scenario]\nduration = \"1 s\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
        Scenario::parse(&format!("[topology]\n{text}{rest}"), "t").unwrap().scenario.topology
    }

    fn fat_tree(k: u32) -> Topology {
        topology(&format!("kind = \"fat-tree\"\nk = {k}\n"))
    }

    fn is_one_to_one(pairs: &[(u32, u32)], n: u32) -> bool {
        let receivers: BTreeSet<u32> = pairs.iter().map(|p| p.1).collect();
        pairs.len() == n as usize && receivers.len() == n as usize && pairs.iter().all(|(a, b)| a != b)
    }

    #[test]
    fn patterns_that_are_one_to_one_are_and_repeat() {
        for (k, pattern) in [4, 6, 8].into_iter().flat_map(|k| {
            [
                Pattern::Random,
                Pattern::Stride(3),
                Pattern::Staggered { edge: 0.5, pod: 0.3 },
                Pattern::Staggered { edge: 1.0, pod: 0.0 },
                Pattern::Staggered { edge: 0.0, pod: 1.0 },
                Pattern::InterPodIncoming,
                Pattern::SameIdOutgoing,
            ]
            .map(|pattern| (k, pattern))
        }) {
            let t = fat_tree(k);
            for seed in 0..50 {
                let found = pairs(&t, (seed, 0), &pattern);
                assert!(is_one_to_one(&found, k * k * k / 4), "{k} {seed} {pattern:?}: {found:?}");
                assert_eq!(found, pairs(&t, (seed, 0), &pattern));
            }
        }
    }

    #[test]
    fn staggered_pairs_stay_near_as_often_as_drawn() {
        let t = fat_tree(16);
        let share = |edge, pod| {
            let (mut near, mut in_pod, mut all) = (0, 0, 0);
            for seed in 0..10 {
                for (a, b) in pairs(&t, (seed, 0), &Pattern::Staggered { edge, pod }) {
                    near += u32::from(a / 8 == b / 8);
                    in_pod += u32::from(a / 8 != b / 8 && a / 64 == b / 64);
                    all += 1;
                }
            }
            [near, in_pod].map(|n| f64::from(n) / f64::from(all))
        };
        for (edge, pod) in [(0.5, 0.3), (0.2, 0.3), (0.0, 0.0)] {
            let [near, in_pod] = share(edge, pod);
            // Later hosts find the places near them taken.
            assert!((edge - near) > -0.01 && (edge - near) < 0.06, "{edge}: {near}");
            assert!((in_pod - pod).abs() < 0.03, "{pod}: {in_pod}");
        }
        assert_eq!(share(1.0, 0.0), [1.0, 0.0]);
    }

    /// Al-Fares 2012, 3.5.2: the worst cases of static tables.
    #[test]
    fn the_worst_cases_meet_where_two_level_tables_send_them() {
        for k in [4, 8] {
            let (half, t) = (k / 2, fat_tree(k));
            let place = |h: u32| (h / (half * half), h / half % half, h % half);
            let core = |src: u32, dst: u32| {
                let ((_, s, _), (_, _, id)) = (place(src), place(dst));
                let upper = (id + s) % half;
                (upper, (id + upper) % half)
            };
            for seed in 0..20 {
                let found = pairs(&t, (seed, 0), &Pattern::InterPodIncoming);
                for pair in found.chunks(half as usize) {
                    assert!(pair.iter().all(|(_, dst)| dst / half == pair[0].1 / half), "{pair:?}");
                }
                for &(src, dst) in &found {
                    assert_ne!(place(src).0, place(dst).0);
                    for &(other, its) in &found {
                        let same = place(dst).0 == place(its).0 && place(dst).2 == place(its).2;
                        assert!(!same || core(src, dst) == core(other, its), "{k} {seed}: {src} {other}");
                        assert!(!same || src == other || place(src).0 != place(other).0);
                    }
                }
            }
            for seed in 0..20 {
                let found = pairs(&t, (seed, 0), &Pattern::SameIdOutgoing);
                for pair in found.chunks(half as usize) {
                    assert!(pair.iter().all(|(_, dst)| place(*dst).2 == place(pair[0].1).2), "{pair:?}");
                }
                assert!(found.iter().all(|&(src, dst)| place(src).0 != place(dst).0), "{k} {seed}");
            }
        }
    }

    #[test]
    fn others_may_meet_anywhere() {
        let t = fat_tree(4);
        let any = pairs(&t, (3, 0), &Pattern::NonBijective);
        assert!(any.len() == 16 && !is_one_to_one(&any, 16) && any.iter().all(|(a, b)| a != b));
        for receivers in [1, 3] {
            let found = pairs(&t, (3, 0), &Pattern::Hotspot(receivers));
            let hot: BTreeSet<u32> = found.iter().map(|p| p.1).collect();
            assert_eq!(hot.len(), receivers as usize);
            assert_eq!(found.len(), if receivers == 1 { 15 } else { 16 });
            assert!(found.iter().all(|(a, b)| a != b));
        }
        // Any tree has pods.
        let hierarchy = topology("kind = \"xgft\"\nm = [4, 4]\nw = [1, 1]\n");
        let near = pairs(&hierarchy, (1, 0), &Pattern::Staggered { edge: 1.0, pod: 0.0 });
        assert!(is_one_to_one(&near, 16) && near.iter().all(|(a, b)| a / 4 == b / 4));
    }
}
