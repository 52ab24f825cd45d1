//! The control loop (Al-Fares 2012, 4.1): it finds elephants, estimates their demands and chooses their paths.

#[cfg(test)]
mod tests;

use super::Host;
use super::demand::Estimator;
use super::detect::{Change, Detection, Detector, FlowId, Sample};
use super::placement::annealing::Annealing;
use super::placement::first_fit::FirstFit;
use super::tree::{Faults, Link, Path, Switch, Tree};
use crate::rng::{Rng, hash_words};
use crate::time::{Duration, Instant};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Shortest time between two rounds, as a fraction of the period, however many events there are.
const ROUNDS_PER_PERIOD_MAX: u64 = 10;

/// How paths are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placer {
    /// Global First Fit: an elephant gets a path as soon as it is found, and keeps the path while it fits.
    FirstFit,
    /// Simulated Annealing, once a period.
    Annealing {
        /// Steps a round.
        iterations: u32,
    },
}

/// The network and the parameters of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The network.
    pub tree: Tree,
    /// Parameters of the detection of elephants.
    pub detection: Detection,
    /// How paths are chosen.
    pub placer: Placer,
    /// Time between rounds.
    pub period: Duration,
    /// Seed of annealing and of hashes.
    pub seed: u64,
}

/// An instruction to the edge and aggregation switch of a flow's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The flow.
    pub flow: FlowId,
    /// The sender.
    pub src: Host,
    /// The receiver.
    pub dst: Host,
    /// The flow's path; the ports are [`Tree::edge_port`] and [`Tree::aggregation_port`]. `None` deletes the flow's
    /// entries, so that it is hashed as a small flow is.
    pub path: Option<Path>,
}

/// Reason for refusing an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The host, link or switch does not exist, or a flow goes from a host to itself.
    Unknown,
    /// The limit on flows in the table or on unfetched placements is reached.
    Full,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Number of elephants.
    pub elephants: usize,
    /// Rounds of demand estimation.
    pub estimate_rounds: u32,
    /// Elephants on a hashed path: no path had room, or the path over their destination's core was down.
    pub hashed: usize,
    /// Exceeded capacity over all links, in links; with annealing only.
    pub energy: f64,
}

#[derive(Clone, Copy, Debug)]
struct Elephant {
    src: Host,
    dst: Host,
    path: Option<Path>,
    /// Demand in the last estimate.
    demand: u32,
    is_reserved: bool,
}

#[derive(Debug)]
enum Engine {
    FirstFit(FirstFit),
    Annealing { state: Box<Annealing>, iterations: u32, rng: Rng },
}

/// The central scheduler. Its state is soft: a new scheduler learns it from the switches, which hash flows meanwhile
/// (4.1.2).
///
/// Time must not advance before all samples of a reply are given: a round is due when the first elephant is found.
#[derive(Debug)]
pub struct Scheduler {
    settings: Settings,
    detector: Detector,
    faults: Faults,
    engine: Engine,
    estimator: Estimator,
    elephants: BTreeMap<FlowId, Elephant>,
    /// Placements that were not fetched yet.
    changed: BTreeMap<FlowId, Placement>,
    next_run: Instant,
    last_round: Option<Instant>,
    last: Round,
    /// Memory reused by the rounds.
    flows: Vec<(Host, Host)>,
    demands: Vec<u32>,
}

impl Scheduler {
    /// A scheduler without flows and without faults.
    pub fn new(settings: Settings) -> Scheduler {
        assert!(settings.period >= Duration(ROUNDS_PER_PERIOD_MAX));
        let tree = settings.tree;
        let engine = match settings.placer {
            Placer::FirstFit => Engine::FirstFit(FirstFit::new(tree)),
            Placer::Annealing { iterations } => Engine::Annealing {
                state: Box::new(Annealing::new(tree)),
                iterations,
                rng: Rng::from_words(&[settings.seed, u64::from_be_bytes(*b"anneals.")]),
            },
        };
        Scheduler {
            settings,
            detector: Detector::new(settings.detection),
            faults: Faults::new(tree),
            engine,
            estimator: Estimator::new(tree.hosts(), 1),
            elephants: BTreeMap::new(),
            changed: BTreeMap::new(),
            next_run: Instant::MAX,
            last_round: None,
            last: Round::default(),
            flows: Vec::new(),
            demands: Vec::new(),
        }
    }

    /// Takes an edge switch's sample of a flow.
    pub fn receive(&mut self, now: Instant, sample: &Sample) -> Result<(), Refused> {
        let hosts = self.settings.tree.hosts();
        if sample.src >= hosts || sample.dst >= hosts || sample.src == sample.dst {
            return Err(Refused::Unknown);
        }
        let ends = self.detector.ends(sample.flow);
        if ends.is_some_and(|ends| ends != (sample.src, sample.dst)) {
            // The number now belongs to another flow.
            self.handle_ended(sample.flow);
        } else if ends.is_none() && self.changed.len() >= 2 * self.settings.detection.flows_max {
            return Err(Refused::Full);
        }
        match self.detector.receive(now, sample).map_err(|_| Refused::Full)? {
            Some(Change::Elephant) => {
                let Sample { src, dst, .. } = *sample;
                let elephant = Elephant { src, dst, path: None, demand: 0, is_reserved: false };
                self.elephants.insert(sample.flow, elephant);
                if matches!(self.engine, Engine::FirstFit(_)) {
                    self.hurry(now);
                }
            }
            Some(Change::Mouse) => self.release(sample.flow),
            None => {}
        }
        self.next_run = self.next_run.min(now.saturating_add(self.settings.period));
        Ok(())
    }

    /// A flow has ended, or its switch has deleted its entries.
    pub fn handle_ended(&mut self, flow: FlowId) {
        self.detector.remove(flow);
        self.release(flow);
    }

    /// A link went down or came up. Flows on a failed link are placed again at once.
    pub fn handle_link(&mut self, now: Instant, link: Link, up: bool) -> Result<(), Refused> {
        if !self.settings.tree.has_link(link) {
            return Err(Refused::Unknown);
        }
        if self.faults.set_link(link, up) {
            self.on_faults(now, &[link]);
        }
        Ok(())
    }

    /// A switch went down or came up, and its links with it.
    pub fn handle_switch(&mut self, now: Instant, switch: Switch, up: bool) -> Result<(), Refused> {
        if !self.settings.tree.has_switch(switch) {
            return Err(Refused::Unknown);
        }
        let links = self.faults.set_switch(switch, up);
        if !links.is_empty() {
            self.on_faults(now, &links);
        }
        Ok(())
    }

    /// A switch has lost its entries: placements of flows that begin below it will be returned again.
    pub fn handle_forgotten(&mut self, switch: Switch) -> Result<(), Refused> {
        let tree = self.settings.tree;
        if !tree.has_switch(switch) {
            return Err(Refused::Unknown);
        }
        for (&flow, e) in &self.elephants {
            let is_there = match switch {
                Switch::Edge(edge) => tree.edge_of(e.src) == edge,
                Switch::Aggregation { pod, .. } => tree.pod_of(e.src) == pod,
                Switch::Core(_) => false,
            };
            if is_there && e.path.is_some_and(|path| path != Path::Edge) {
                self.changed.insert(flow, Placement { flow, src: e.src, dst: e.dst, path: e.path });
            }
        }
        Ok(())
    }

    /// The next changed placement.
    pub fn poll_placement(&mut self) -> Option<Placement> {
        self.changed.pop_first().map(|(_, placement)| placement)
    }

    /// When the next round is due.
    pub fn poll_timeout(&self) -> Instant {
        self.next_run
    }

    /// Runs a round if one is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.next_run {
            return;
        }
        for flow in self.detector.expire(now) {
            self.release(flow);
        }
        self.round();
        self.last_round = Some(now);
        let is_idle = self.detector.is_empty();
        self.next_run = if is_idle { Instant::MAX } else { now.saturating_add(self.settings.period) };
    }

    /// The path of an elephant.
    pub fn path(&self, flow: FlowId) -> Option<Path> {
        self.elephants.get(&flow)?.path
    }

    /// The result of the last round.
    pub fn last_round(&self) -> Round {
        self.last
    }

    /// Flows in the table, elephants included.
    pub fn flows(&self) -> usize {
        self.detector.len()
    }

    /// Counters that went backwards.
    pub fn restarted(&self) -> u64 {
        self.detector.restarted
    }

    fn hurry(&mut self, now: Instant) {
        let gap = Duration(self.settings.period.0 / ROUNDS_PER_PERIOD_MAX);
        let earliest = self.last_round.map_or(now, |last| last.saturating_add(gap).max(now));
        self.next_run = self.next_run.min(earliest);
    }

    fn hash(&self, flow: FlowId) -> u64 {
        hash_words(&[self.settings.seed, flow.0])
    }

    fn set_path(&mut self, flow: FlowId, path: Option<Path>, is_reserved: bool) {
        let Some(e) = self.elephants.get_mut(&flow) else { return };
        e.is_reserved = is_reserved;
        if e.path != path {
            e.path = path;
            // Below one edge switch there is no choice of path.
            if path != Some(Path::Edge) {
                self.changed.insert(flow, Placement { flow, src: e.src, dst: e.dst, path });
            }
        }
    }

    /// A flow is no longer an elephant.
    fn release(&mut self, flow: FlowId) {
        let Some(e) = self.elephants.remove(&flow) else { return };
        let Some(path) = e.path else { return };
        if let (Engine::FirstFit(links), true) = (&mut self.engine, e.is_reserved) {
            links.release(e.src, e.dst, path, e.demand);
        }
        if path != Path::Edge {
            self.changed.insert(flow, Placement { flow, src: e.src, dst: e.dst, path: None });
        }
    }

    fn on_faults(&mut self, now: Instant, links: &[Link]) {
        if let Engine::FirstFit(first_fit) = &mut self.engine {
            links.iter().for_each(|&link| first_fit.set_link(link, &self.faults));
        }
        let broken = |(&flow, e): (&FlowId, &Elephant)| {
            let path = e.path.filter(|&path| !self.faults.leaves(e.src, e.dst, path))?;
            Some((flow, *e, path))
        };
        for (flow, e, path) in self.elephants.iter().filter_map(broken).collect::<Vec<_>>() {
            let mut next = None;
            if let Engine::FirstFit(links) = &mut self.engine {
                if e.is_reserved {
                    links.release(e.src, e.dst, path, e.demand);
                }
                next = links.place(e.src, e.dst, e.demand);
            }
            let hashed = self.faults.hashed(e.src, e.dst, self.hash(flow));
            self.set_path(flow, next.or(hashed), next.is_some());
        }
        if !self.elephants.is_empty() {
            self.hurry(now);
        }
    }

    fn round(&mut self) {
        self.flows.clear();
        self.flows.extend(self.elephants.values().map(|e| (e.src, e.dst)));
        self.last = Round { elephants: self.flows.len(), ..Round::default() };
        if self.flows.is_empty() {
            return;
        }
        self.estimator.estimate(&self.flows);
        self.last.estimate_rounds = self.estimator.rounds();
        self.estimator.demands(&mut self.demands);
        let demands = core::mem::take(&mut self.demands);
        match self.engine {
            Engine::FirstFit(_) => self.fit(&demands),
            Engine::Annealing { .. } => self.anneal(&demands),
        }
        self.demands = demands;
    }

    /// Elephants that still fit on their paths keep them (figure 4.2, line 2); then the others are placed.
    fn fit(&mut self, demands: &[u32]) {
        let Engine::FirstFit(links) = &mut self.engine else { return };
        links.clear();
        let mut moves = Vec::new();
        for ((&flow, e), &demand) in self.elephants.iter_mut().zip(demands) {
            e.demand = demand;
            let has_path = e.path.filter(|_| e.is_reserved);
            e.is_reserved = has_path.is_some_and(|path| links.reserve(e.src, e.dst, path, demand));
            if !e.is_reserved {
                moves.push((flow, *e));
            }
        }
        for (flow, e) in moves {
            let Engine::FirstFit(links) = &mut self.engine else { return };
            let placed = links.place(e.src, e.dst, e.demand);
            let hashed = self.faults.hashed(e.src, e.dst, self.hash(flow));
            self.last.hashed += placed.is_none() as usize;
            self.set_path(flow, placed.or(hashed), placed.is_some());
        }
    }

    fn anneal(&mut self, demands: &[u32]) {
        let Engine::Annealing { state, iterations, rng } = &mut self.engine else { return };
        self.last.energy = state.run(self.estimator.pairs(), &self.faults, *iterations, rng).energy;
        let path = |e: &Elephant| state.path(e.src, e.dst);
        let paths: Vec<(FlowId, Path)> = self.elephants.iter().map(|(&flow, e)| (flow, path(e))).collect();
        for ((flow, path), &demand) in paths.into_iter().zip(demands) {
            let Some(e) = self.elephants.get_mut(&flow) else { continue };
            e.demand = demand;
            let (src, dst) = (e.src, e.dst);
            if self.faults.leaves(src, dst, path) {
                self.set_path(flow, Some(path), false);
            } else {
                self.last.hashed += 1;
                self.set_path(flow, self.faults.hashed(src, dst, self.hash(flow)), false);
            }
        }
    }
}
