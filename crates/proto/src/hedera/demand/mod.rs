//! The demand of each elephant: its rate if only the hosts' own links limited it (Al-Fares 2012, figure 4.4).
//!
//! The figure's matrix is not stored. All unconverged flows of a source have one demand, the source's *share*; all
//! converged flows of a destination have one demand, the destination's *level*. Shares only rise and levels only fall, so a
//! host is visited again only after a change at a peer of one of its flows. The final state is max-min fair. A flow with a
//! share is among the largest of a saturated source. A flow with a level is among the largest of a saturated destination.

mod shard;

#[cfg(test)]
mod tests;

use super::{Host, LINK};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shard::Shard;

/// Rounds of EST-SRC and EST-DST after which the estimate ends in any case: where shares and levels chase each other, the
/// figure moves by one unit a round. The result after any round exceeds no link.
pub const ROUNDS_MAX: u32 = 1_000;

/// The flows between two hosts; more than 2,047 flows make several pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The sender.
    pub src: Host,
    /// The receiver.
    pub dst: Host,
    /// Number of flows.
    pub flows: u32,
    /// Demand of each flow, in parts of [`LINK`].
    pub demand: u32,
    /// Whether the receiver limits the flows; otherwise the sender does.
    pub converged: bool,
}

/// The estimator; its memory is kept from one estimate to the next.
#[derive(Debug)]
pub struct Estimator {
    board: Board,
    shards: Vec<Shard>,
}

/// The state that hosts share. In one pass each entry is written by one worker, and in the next pass all workers read it;
/// other workers only ever set marks. So the result does not depend on the number of workers.
#[derive(Debug)]
struct Board {
    /// By source: demand of each unconverged flow.
    shares: Vec<AtomicU32>,
    /// By destination: demand of each converged flow, and in the upper half the round of the last change.
    levels: Vec<AtomicU64>,
    sources: Marks,
    destinations: Marks,
    /// Whether any worker changed something in a pass, pass by pass in turn.
    changed: [AtomicBool; 3],
    rounds: AtomicU32,
}

impl Board {
    /// An index beyond all hosts, with every bit of their numbers set: combined with any host it gives no host.
    #[inline(always)]
    fn nobody(&self) -> usize {
        self.destinations.0.len() - 1
    }
}

/// Hosts to visit, with a length rounded up to a power of two and an unused entry at the end.
#[derive(Debug)]
struct Marks(Vec<AtomicBool>);

impl Marks {
    fn new(hosts: usize) -> Marks {
        Marks(core::iter::repeat_with(|| AtomicBool::new(false)).take((hosts + 1).next_power_of_two()).collect())
    }

    #[inline(always)]
    fn set(&self, host: usize) {
        self.0[host].store(true, Relaxed);
    }

    fn take(&self, hosts: core::ops::Range<usize>, mut each: impl FnMut(usize)) {
        for (host, mark) in hosts.clone().zip(&self.0[hosts]) {
            if mark.load(Relaxed) {
                mark.store(false, Relaxed);
                each(host);
            }
        }
    }
}

/// One thread's part of an estimate.
#[derive(Debug)]
pub struct Worker<'a> {
    board: &'a Board,
    shard: &'a mut Shard,
}

impl Estimator {
    /// For flows between `hosts` hosts, in as many parts as there are `workers`.
    pub fn new(hosts: u32, workers: usize) -> Estimator {
        assert!(workers > 0 && hosts <= shard::HOSTS_MAX);
        let n = hosts as usize;
        let board = Board {
            shares: core::iter::repeat_with(|| AtomicU32::new(0)).take(n).collect(),
            levels: core::iter::repeat_with(|| AtomicU64::new(0)).take(n).collect(),
            sources: Marks::new(n),
            destinations: Marks::new(n),
            changed: Default::default(),
            rounds: AtomicU32::new(0),
        };
        let begin = |worker: usize| n * worker / workers;
        Estimator { board, shards: (0..workers).map(|w| Shard::new(begin(w)..begin(w + 1), n)).collect() }
    }

    /// Estimates the demands of flows, each given by its source and destination.
    pub fn estimate(&mut self, flows: &[(Host, Host)]) {
        let mut workers: Vec<Worker> = self.workers().collect();
        workers.iter_mut().for_each(|w| w.begin(flows));
        for pass in 0.. {
            workers.iter_mut().for_each(|w| w.pass(pass));
            if workers[0].is_over(pass) {
                return;
            }
        }
    }

    /// The parts of an estimate, to be run concurrently: each [`Worker::run`] on a thread of its own.
    pub fn workers(&mut self) -> impl Iterator<Item = Worker<'_>> {
        let board = &self.board;
        self.shards.iter_mut().map(move |shard| Worker { board, shard })
    }

    /// Rounds of the last estimate; [`ROUNDS_MAX`] if it was cut short.
    pub fn rounds(&self) -> u32 {
        self.board.rounds.load(Relaxed)
    }

    /// The demands, by source.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.shards.iter().flat_map(|shard| shard.pairs(&self.board))
    }

    /// Writes the demand of each flow, in the order of the input.
    pub fn demands(&self, out: &mut Vec<u32>) {
        out.clear();
        out.resize(self.shards.iter().map(Shard::flows).sum(), 0);
        for shard in &self.shards {
            shard.demands(&self.board, out);
        }
    }

    /// Memory held, in bytes.
    pub fn state_bytes(&self) -> usize {
        let hosts = self.board.shares.len();
        let board = hosts * (size_of::<AtomicU32>() + size_of::<AtomicU64>()) + 2 * self.board.destinations.0.len();
        board + self.shards.iter().map(Shard::state_bytes).sum::<usize>()
    }
}

impl Worker<'_> {
    /// Runs the whole estimate. `barrier` waits until every worker has called it equally often, and orders their writes
    /// before it.
    pub fn run(mut self, flows: &[(Host, Host)], barrier: impl Fn()) {
        self.begin(flows);
        for pass in 0.. {
            barrier();
            self.pass(pass);
            barrier();
            if self.is_over(pass) {
                return;
            }
        }
    }

    fn begin(&mut self, flows: &[(Host, Host)]) {
        self.shard.fill(flows);
        let hosts = self.shard.hosts();
        self.board.shares[hosts.clone()].iter().for_each(|s| s.store(0, Relaxed));
        self.board.levels[hosts.clone()].iter().for_each(|l| l.store(LINK as u64, Relaxed));
        self.board.sources.take(hosts.clone(), |_| {});
        self.board.destinations.take(hosts, |_| {});
        self.board.changed[0].store(false, Relaxed);
    }

    /// EST-SRC of all sources and EST-DST of all destinations, in turn.
    fn pass(&mut self, pass: u32) {
        // The flag cleared here is that of `pass - 2`: all workers read it before the last pass began.
        self.board.changed[(pass as usize + 1) % 3].store(false, Relaxed);
        let round = pass / 2 + 1;
        let changed = match (pass, pass % 2) {
            (0, _) => self.shard.first_shares(self.board),
            (_, 0) => self.shard.sources(self.board, round),
            (_, _) => self.shard.destinations(self.board, round),
        };
        if changed {
            self.board.changed[pass as usize % 3].store(true, Relaxed);
        }
    }

    fn is_over(&self, pass: u32) -> bool {
        self.board.rounds.store(pass / 2 + 1, Relaxed);
        !self.board.changed[pass as usize % 3].load(Relaxed) || pass + 1 == 2 * ROUNDS_MAX
    }
}
