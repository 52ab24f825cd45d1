use super::*;
use crate::rng::Rng;
use alloc::collections::BTreeMap;
use alloc::vec;
use std::collections::BTreeSet;

extern crate std;

type Flows = Vec<(Host, Host)>;

fn random(rng: &mut Rng, hosts: u32, flows: u32) -> Flows {
    let mut draw = || rng.below(hosts as u64) as u32;
    (0..flows).map(|_| (draw(), draw())).filter(|(src, dst)| src != dst).collect()
}

/// Figure 4.4 line by line, on its matrix, in whole parts of a link.
struct Dense {
    hosts: usize,
    flows: Vec<u64>,
    demand: Vec<u64>,
    converged: Vec<bool>,
}

impl Dense {
    fn new(hosts: u32, flows: &[(Host, Host)]) -> Dense {
        let n = hosts as usize;
        let mut m = Dense { hosts: n, flows: vec![0; n * n], demand: vec![0; n * n], converged: vec![false; n * n] };
        flows.iter().for_each(|&(src, dst)| m.flows[src as usize * n + dst as usize] += 1);
        m
    }

    fn est_src(&mut self, src: usize) {
        let row = || (src * self.hosts..(src + 1) * self.hosts).filter(|&at| self.flows[at] > 0);
        let (mut d_f, mut n_u) = (0, 0);
        for at in row() {
            if self.converged[at] {
                d_f += self.flows[at] * self.demand[at];
            } else {
                n_u += self.flows[at];
            }
        }
        if let Some(e_s) = (LINK as u64 - d_f).checked_div(n_u) {
            for at in row().filter(|&at| !self.converged[at]).collect::<Vec<_>>() {
                self.demand[at] = e_s;
            }
        }
    }

    fn est_dst(&mut self, dst: usize) {
        let n = self.hosts;
        let column: Vec<usize> = (0..n).map(|src| src * n + dst).filter(|&at| self.flows[at] > 0).collect();
        let mut rl: BTreeSet<usize> = column.iter().copied().collect();
        let d_t: u64 = column.iter().map(|&at| self.flows[at] * self.demand[at]).sum();
        let (mut d_s, mut n_r) = (0, column.iter().map(|&at| self.flows[at]).sum::<u64>());
        if d_t <= LINK as u64 {
            return;
        }
        let mut e_s = LINK as u64 / n_r;
        loop {
            n_r = 0;
            let before = rl.len();
            for at in column.iter().filter(|at| rl.contains(at)).copied().collect::<Vec<_>>() {
                if self.demand[at] < e_s {
                    d_s += self.flows[at] * self.demand[at];
                    rl.remove(&at);
                } else {
                    n_r += self.flows[at];
                }
            }
            e_s = (LINK as u64 - d_s) / n_r;
            if rl.len() == before {
                break;
            }
        }
        for at in rl {
            self.demand[at] = e_s;
            self.converged[at] = true;
        }
    }

    fn estimate(mut self) -> Vec<Pair> {
        for _ in 0..ROUNDS_MAX {
            let before = self.demand.clone();
            (0..self.hosts).for_each(|h| self.est_src(h));
            (0..self.hosts).for_each(|h| self.est_dst(h));
            if self.demand == before {
                break;
            }
        }
        let at = |at: usize| Pair {
            src: (at / self.hosts) as u32,
            dst: (at % self.hosts) as u32,
            flows: self.flows[at] as u32,
            demand: self.demand[at] as u32,
            converged: self.converged[at],
        };
        (0..self.flows.len()).filter(|&i| self.flows[i] > 0).map(at).collect()
    }
}

fn sorted(estimator: &Estimator) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = estimator.pairs().collect();
    pairs.sort_by_key(|p| (p.src, p.dst));
    pairs
}

/// The max-min fair rates of flows over their two hosts' links: all rates rise until a link is full, then the others rise.
fn filled(hosts: u32, flows: &[(Host, Host)]) -> Vec<f64> {
    let mut rate = vec![None; flows.len()];
    let mut left: Vec<(f64, u32)> = vec![(1.0, 0); 2 * hosts as usize];
    let ends = |&(src, dst): &(Host, Host)| [src as usize, hosts as usize + dst as usize];
    flows.iter().flat_map(ends).for_each(|link| left[link].1 += 1);
    let mut level = 0.0;
    while rate.contains(&None) {
        let full = |&(room, open): &(f64, u32)| if open > 0 { room / open as f64 } else { f64::MAX };
        let step = left.iter().map(full).fold(f64::MAX, f64::min);
        level += step;
        left.iter_mut().for_each(|(room, open)| *room -= step * *open as f64);
        for (flow, rate) in flows.iter().zip(&mut rate) {
            if rate.is_none() && ends(flow).iter().any(|&link| left[link].0 < 1e-12) {
                *rate = Some(level);
                ends(flow).iter().for_each(|&link| left[link].1 -= 1);
            }
        }
    }
    rate.into_iter().flatten().collect()
}

/// Al-Fares 2012, figure 4.1. Demands are in thirds and halves; entries with a bar have converged.
#[test]
fn figure_4_1_matrix_by_matrix() {
    let flows = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 0), (1, 2), (2, 0), (2, 3), (3, 1), (3, 1)];
    let mut estimator = Estimator::new(4, 1);
    let mut seen = Vec::new();
    {
        let mut worker = estimator.workers().next().unwrap();
        worker.begin(&flows);
    }
    for pass in 0..4 {
        {
            let mut worker = estimator.workers().next().unwrap();
            worker.pass(pass);
            assert_eq!(worker.is_over(pass), pass == 3, "it ends with a pass that changes nothing");
        }
        let name = |p: &Pair| {
            let of = |n: u32, d: u32| (p.demand as i64 - n as i64 * LINK as i64 / d as i64).abs() < 4;
            let demand = [(1, 3, "1/3"), (1, 2, "1/2"), (2, 3, "2/3")].into_iter().find(|&(n, d, _)| of(n, d));
            std::format!("{}{}:{}x{}{}", p.src, p.dst, p.flows, demand.unwrap().2, if p.converged { "|" } else { "" })
        };
        seen.push(sorted(&estimator).iter().map(name).collect::<Vec<_>>().join(" "));
    }
    assert_eq!(seen[0], "01:1x1/3 02:1x1/3 03:1x1/3 10:2x1/3 12:1x1/3 20:1x1/2 23:1x1/2 31:2x1/2");
    assert_eq!(seen[1], "01:1x1/3| 02:1x1/3 03:1x1/3 10:2x1/3| 12:1x1/3 20:1x1/3| 23:1x1/2 31:2x1/3|");
    assert_eq!(seen[2], "01:1x1/3| 02:1x1/3 03:1x1/3 10:2x1/3| 12:1x1/3 20:1x1/3| 23:1x2/3 31:2x1/3|");
    // The figure brackets the column of host 3 here; figure 4.4 returns at a demand of exactly 1 without brackets.
    assert_eq!(seen[3], seen[2]);
}

#[test]
fn figure_4_4_line_by_line_gives_the_same_numbers() {
    let mut rng = Rng::from_words(&[44]);
    for case in 0..400 {
        let hosts = 2 + rng.below(14) as u32;
        let wanted = rng.below(hosts as u64 * 6) as u32;
        let mut flows = random(&mut rng, hosts, wanted);
        if case % 4 == 0 {
            // Hotspots: long water-filling and long rows.
            let half = flows.len() / 2;
            flows[half..].iter_mut().filter(|f| f.0 != 0).for_each(|f| f.1 = 0);
        }
        let dense = Dense::new(hosts, &flows).estimate();
        for workers in 1..4 {
            let mut estimator = Estimator::new(hosts, workers);
            estimator.estimate(&random(&mut rng, hosts, 20));
            estimator.estimate(&flows);
            assert_eq!(sorted(&estimator), dense, "case {case}, {workers} workers: {flows:?}");
            let by_pair: BTreeMap<_, _> = dense.iter().map(|p| ((p.src, p.dst), p.demand)).collect();
            let mut demands = Vec::new();
            estimator.demands(&mut demands);
            assert!(flows.iter().zip(&demands).all(|(flow, demand)| by_pair[flow] == *demand));
        }
    }
}

#[test]
fn what_it_ends_with_is_max_min_fair() {
    let mut rng = Rng::from_words(&[45]);
    let (mut most, mut worst) = (0, 0f64);
    for case in 0..300 {
        let hosts = 2 + rng.below(40) as u32;
        let wanted = rng.below(hosts as u64 * 8) as u32;
        let flows = random(&mut rng, hosts, wanted);
        let mut estimator = Estimator::new(hosts, 1);
        estimator.estimate(&flows);
        most = most.max(estimator.rounds());
        let mut demands = Vec::new();
        estimator.demands(&mut demands);
        for (demand, fair) in demands.iter().zip(filled(hosts, &flows)) {
            let error = (*demand as f64 / LINK as f64 - fair).abs();
            worst = worst.max(error);
            assert!(error < 1e-6, "case {case}: {error}");
        }
    }
    std::println!("{most} rounds at most, {worst:e} of a link at most from progressive filling");
}

#[test]
fn no_link_is_exceeded_however_flows_are_drawn() {
    let mut rng = Rng::from_words(&[46]);
    for _ in 0..50 {
        let hosts = 2 + rng.below(500) as u32;
        let wanted = rng.below(hosts as u64 * 12) as u32;
        let flows = random(&mut rng, hosts, wanted);
        let mut estimator = Estimator::new(hosts, 1);
        estimator.estimate(&flows);
        let mut sums = vec![0u64; 2 * hosts as usize];
        for p in estimator.pairs() {
            sums[p.src as usize] += p.flows as u64 * p.demand as u64;
            sums[(hosts + p.dst) as usize] += p.flows as u64 * p.demand as u64;
            assert!(p.demand > 0);
        }
        assert!(sums.iter().all(|&s| s <= LINK as u64));
        assert!(estimator.rounds() < 100, "{}", estimator.rounds());
    }
}

#[test]
fn threads_give_what_one_gives() {
    let flows = random(&mut Rng::from_words(&[47]), 2_000, 12_000);
    let (mut one, mut three) = (Estimator::new(2_000, 1), Estimator::new(2_000, 3));
    one.estimate(&flows);
    for _ in 0..3 {
        let barrier = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            for worker in three.workers() {
                let (flows, barrier) = (&flows, &barrier);
                scope.spawn(move || worker.run(flows, || _ = barrier.wait()));
            }
        });
        assert!(three.pairs().eq(one.pairs()) && three.rounds() == one.rounds());
    }
}

#[test]
fn no_flows_at_all() {
    let mut estimator = Estimator::new(10, 2);
    estimator.estimate(&[]);
    assert_eq!(estimator.pairs().count(), 0);
    assert_eq!(Estimator::new(10, 2).pairs().count(), 0);
}
