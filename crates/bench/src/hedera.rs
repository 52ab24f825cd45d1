//! How long the control loop computes: demands of elephants, and paths for them (Al-Fares 2012, tables 4.5 and 4.6).

use sluicenet_proto::hedera::demand::Estimator;
use sluicenet_proto::hedera::placement::annealing::Annealing;
use sluicenet_proto::hedera::placement::first_fit::FirstFit;
use sluicenet_proto::hedera::tree::{Faults, Tree};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_proto::routing::fat_tree::scheduler::{FlowId, FlowScheduler, Placement, SILENCE};
use sluicenet_proto::time;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Settings of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Hedera {
    /// The fat-tree.
    pub tree: Tree,
    /// Ports of its switches.
    pub k: u32,
    /// Elephants between random pairs of hosts.
    pub flows: u32,
    /// Steps of annealing.
    pub iterations: u32,
    /// Threads of demand estimation.
    pub threads: usize,
    /// Times everything is measured.
    pub turns: u32,
    /// Seed of the flows and of annealing.
    pub seed: u64,
}

/// Medians of all turns, and the least where it says so. Memory is made before.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// Ports of a switch.
    pub k: u32,
    /// Hosts.
    pub hosts: u32,
    /// Elephants.
    pub flows: u32,
    /// Times everything was measured.
    pub turns: u32,
    /// Threads of demand estimation.
    pub threads: usize,
    /// From a list of flows to the demand of each pair, on these threads; they are started within it.
    pub demand_ms: f64,
    /// The least of it.
    pub demand_ms_min: f64,
    /// Time of demand estimation on one thread.
    pub demand_1_ms: f64,
    /// The least of it.
    pub demand_1_ms_min: f64,
    /// Rounds of EST-SRC and EST-DST.
    pub demand_rounds: u32,
    /// From the demands to the best assignment of cores, from the first state on.
    pub annealing_ms: f64,
    /// The least of it.
    pub annealing_ms_min: f64,
    /// Steps that were asked for.
    pub iterations: u32,
    /// Steps until nothing was exceeded, or all.
    pub iterations_done: u32,
    /// Exceeded capacity before, in links.
    pub energy_before: f64,
    /// Exceeded capacity after annealing, in links.
    pub energy: f64,
    /// A request of Global First Fit, all flows one after the other on an empty network.
    pub placement_us: f64,
    /// The least of it.
    pub placement_us_min: f64,
    /// Number of flows that found room.
    pub placed: u32,
    /// A request of the central flow scheduler (Al-Fares 2012, 3.1.7), in the same way.
    pub flow_scheduler_us: f64,
    /// The least of it.
    pub flow_scheduler_us_min: f64,
    /// Number of flows that found a path of their own.
    pub flow_scheduler_placed: u32,
    /// Bytes of estimator, annealing and Global First Fit together.
    pub state_bytes: usize,
    /// Bytes of the estimator, on these threads.
    pub demand_bytes: usize,
    /// Bytes of annealing.
    pub annealing_bytes: usize,
    /// Reservations of Global First Fit.
    pub placement_bytes: usize,
    /// The flow scheduler's links.
    pub flow_scheduler_bytes: usize,
}

/// Barrier for threads that meet some dozens of times within milliseconds: to sleep would take longer than the wait.
#[derive(Default)]
struct Barrier(AtomicUsize);

impl Barrier {
    fn wait(&self, threads: usize) {
        /// Looks before others are let run: there may be fewer cores than threads.
        const PATIENCE: u32 = 2_000;
        let round = self.0.fetch_add(1, Ordering::AcqRel) / threads + 1;
        let mut looks = 0;
        while self.0.load(Ordering::Acquire) < round * threads {
            looks += 1;
            if looks < PATIENCE { spin_loop() } else { std::thread::yield_now() }
        }
    }
}

fn estimate(estimator: &mut Estimator, flows: &[(u32, u32)], threads: usize) {
    let barrier = &Barrier::default();
    std::thread::scope(|scope| {
        let mut workers = estimator.workers();
        let own = workers.next();
        for worker in workers {
            scope.spawn(move || worker.run(flows, || barrier.wait(threads)));
        }
        if let Some(worker) = own {
            worker.run(flows, || barrier.wait(threads));
        }
    });
}

/// Times in seconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn take<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let out = what();
        self.0.push(begun.elapsed().as_secs_f64());
        out
    }

    /// Median and least, in parts of a second.
    fn of(mut self, parts: f64) -> [f64; 2] {
        self.0.sort_by(f64::total_cmp);
        [self.0[self.0.len() / 2] * parts, self.0[0] * parts]
    }
}

/// Measures in turns; each does the same.
pub fn run(what: &Hedera) -> Figures {
    let Hedera { tree, k, flows: number, iterations, threads, turns, seed } = *what;
    let hosts = tree.hosts();
    let mut rng = Rng::from_words(&[seed, number.into()]);
    let mut draw = |n: u32| rng.below(n.into()) as u32;
    let flows: Vec<(u32, u32)> = (0..number)
        .map(|_| {
            let src = draw(hosts);
            (src, (src + 1 + draw(hosts - 1)) % hosts)
        })
        .collect();
    let faults = Faults::new(tree);
    let (mut one, mut many) = (Estimator::new(hosts, 1), Estimator::new(hosts, threads));
    let [mut one_s, mut many_s, mut annealing_s, mut placement_s, mut scheduler_s]: [Times; 5] = Default::default();
    let (mut done, mut annealing_bytes) = Default::default();
    let (mut placed, mut placement_bytes, mut scheduled, mut scheduler_bytes) = (0, 0, 0, 0);
    let mut demands = Vec::new();
    for turn in 0..=turns {
        // The first turn makes the memory.
        if turn == 1 {
            for times in [&mut one_s, &mut many_s, &mut annealing_s, &mut placement_s, &mut scheduler_s] {
                times.0.clear();
            }
        }
        one_s.take(|| one.estimate(&flows));
        many_s.take(|| estimate(&mut many, &flows, threads));
        one.demands(&mut demands);

        let mut annealing = Annealing::new(tree);
        let mut rng = Rng::from_words(&[seed]);
        done = annealing_s.take(|| annealing.run(many.pairs(), &faults, iterations, &mut rng));
        annealing_bytes = annealing.state_bytes();

        let mut first_fit = FirstFit::new(tree);
        let fits = |(&(src, dst), &demand): (&(u32, u32), &u32)| first_fit.place(src, dst, demand).is_some();
        placed = placement_s.take(|| flows.iter().zip(&demands).map(fits).filter(|&fits| fits).count());
        placement_bytes = first_fit.state_bytes();

        if let Ok(tree) = FatTree::new(k) {
            let now = time::Instant::ZERO;
            let mut scheduler = FlowScheduler::new(now, tree, SILENCE);
            let ids = (0..).zip(&flows).map(|(id, &(source, destination))| FlowId { source, destination, id });
            let is_placed = |id| matches!(scheduler.handle_request(now, id), Ok(Placement::Placed(_)));
            scheduled = scheduler_s.take(|| ids.map(is_placed).filter(|&is_placed| is_placed).count());
            scheduler_bytes = scheduler.link_state_bytes();
        }
    }
    let [demand_ms, demand_ms_min] = many_s.of(1e3);
    let [demand_1_ms, demand_1_ms_min] = one_s.of(1e3);
    let [annealing_ms, annealing_ms_min] = annealing_s.of(1e3);
    let [placement_us, placement_us_min] = placement_s.of(1e6 / f64::from(number));
    let [flow_scheduler_us, flow_scheduler_us_min] = scheduler_s.of(1e6 / f64::from(number));
    let demand_bytes = many.state_bytes();
    Figures {
        k,
        hosts,
        flows: number,
        turns,
        threads,
        demand_ms,
        demand_ms_min,
        demand_1_ms,
        demand_1_ms_min,
        demand_rounds: many.rounds(),
        annealing_ms,
        annealing_ms_min,
        iterations,
        iterations_done: done.iterations,
        energy_before: done.initial_energy,
        energy: done.energy,
        placement_us,
        placement_us_min,
        placed: placed as u32,
        flow_scheduler_us,
        flow_scheduler_us_min,
        flow_scheduler_placed: scheduled as u32,
        state_bytes: demand_bytes + annealing_bytes + placement_bytes,
        demand_bytes,
        annealing_bytes,
        placement_bytes,
        flow_scheduler_bytes: scheduler_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_tree() {
        let tree = Tree::fat_tree(4).unwrap();
        let what = Hedera { tree, k: 4, flows: 20, iterations: 500, threads: 3, turns: 2, seed: 1 };
        let f = run(&what);
        assert_eq!((f.hosts, f.turns, f.iterations), (16, 2, 500));
        assert!(f.demand_rounds >= 2 && f.energy <= f.energy_before && f.iterations_done <= 500);
        assert!((1..=20).contains(&f.placed) && (1..=20).contains(&f.flow_scheduler_placed));
        assert!(f.demand_ms >= f.demand_ms_min && f.annealing_ms >= f.annealing_ms_min && f.demand_ms_min > 0.0);
        // Whatever is measured is the same each time.
        let again = run(&what);
        assert_eq!((f.energy, f.placed, f.demand_rounds), (again.energy, again.placed, again.demand_rounds));
    }
}
