//! What each elephant would get if only the hosts' own links limited it (Al-Fares 2012, figure 4.4).
//!
//! The figure's matrix is not stored. All flows of a source that have not converged have one demand, the source's *share*;
//! all that have converged at a destination have one, the destination's *level*. Shares only rise and levels only fall, so a
//! host is looked at again only where one of its flows' other ends changed, and what is left when nothing changes any more is
//! max-min fair: a flow with a share is among the largest of a source without rest, one with a level among the largest of a
//! destination without rest.

mod shard;

#[cfg(test)]
mod tests;

use super::{Host, LINK};
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use shard::Shard;

/// Rounds of EST-SRC and EST-DST after which it ends in any case: where shares and levels chase each other the figure moves
/// by one unit a round. What a round leaves exceeds no link.
pub const ROUNDS_MAX: u32 = 1_000;

/// The flows between two hosts, or 2,047 of them where they are more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Who sends.
    pub src: Host,
    /// Who receives.
    pub dst: Host,
    /// How many they are.
    pub flows: u32,
    /// Of each, in parts of [`LINK`].
    pub demand: u32,
    /// Limited by the receiver; otherwise by the sender.
    pub converged: bool,
}

/// The estimator; its memory is kept from one estimate to the next.
#[derive(Debug)]
pub struct Estimator {
    board: Board,
    shards: Vec<Shard>,
}

/// What hosts say to each other. Each place is written by one worker in one pass and read by all in the next, and marks are
/// only ever set by others: the result does not depend on how many workers there are.
#[derive(Debug)]
struct Board {
    /// Of a source: demand of each flow that has not converged.
    shares: Vec<AtomicU32>,
    /// Of a destination: demand of each flow that has, and in the upper half the round of the last change.
    levels: Vec<AtomicU64>,
    sources: Marks,
    destinations: Marks,
    /// Whether any worker changed something in a pass, pass by pass in turn.
    changed: [AtomicBool; 3],
    rounds: AtomicU32,
}

impl Board {
    /// A place beyond all hosts, with every bit of their numbers: who is combined with it is nobody.
    #[inline(always)]
    fn nobody(&self) -> usize {
        self.destinations.0.len() - 1
    }
}

/// Hosts to be looked at, up to a power of two, and nobody at the end.
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

/// What one thread does of an estimate.
#[derive(Debug)]
pub struct Worker<'a> {
    board: &'a Board,
    shard: &'a mut Shard,
}

impl Estimator {
    /// For flows between so many hosts, in as many parts as can be worked on at once.
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

    /// Estimates the demands of flows, each a source and a destination.
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

    /// The parts of an estimate, to be run at once: each [`Worker::run`] on a thread of its own.
    pub fn workers(&mut self) -> impl Iterator<Item = Worker<'_>> {
        let board = &self.board;
        self.shards.iter_mut().map(move |shard| Worker { board, shard })
    }

    /// Rounds of the last estimate; as many as [`ROUNDS_MAX`] if it was cut short.
    pub fn rounds(&self) -> u32 {
        self.board.rounds.load(Relaxed)
    }

    /// The demands, by source.
    pub fn pairs(&self) -> impl Iterator<Item = Pair> + '_ {
        self.shards.iter().flat_map(|shard| shard.pairs(&self.board))
    }

    /// Writes the demand of each flow, in the order in which they were given.
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
    /// All of it. `barrier` waits until every worker has called it as often, and orders what they did before it.
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

    /// EST-SRC of all sources and EST-DST of all destinations by turns.
    fn pass(&mut self, pass: u32) {
        // That of the pass before the last was read before the last pass began.
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
