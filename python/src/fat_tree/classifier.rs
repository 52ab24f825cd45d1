//! The flow classifier of one switch, as one controller has it for all of them.

use super::failures::Failures;
use super::tree::{FatTree, is_below};
use super::{check_ends, instant, wrong};
use pyo3::prelude::*;
use sluicenet_proto::routing::fat_tree;
use sluicenet_proto::routing::fat_tree::classifier::{FlowClassifier, PERIOD};
use sluicenet_proto::routing::fat_tree::ports::UpPorts;
use sluicenet_proto::time::Instant;
use std::collections::BTreeMap;

/// What a classifier was told of a flow.
#[derive(Clone, Copy, Debug)]
struct Watched {
    dst: u32,
    /// As its counter said last.
    bytes: u64,
    /// The port that was told for it.
    said: Option<u16>,
    /// Whether the switch counts it.
    counted: bool,
}

/// The flow classifier of one edge or aggregation switch (3.1.6, figure 3.11), by what the switch has counted of the flows that go up there: each has
/// the least loaded upward port, and every second at most three are moved. Time is in seconds from a beginning of the caller's, and never goes back.
#[pyclass(module = "sluicenet._native")]
pub struct Classifier {
    tree: fat_tree::FatTree,
    own: fat_tree::Switch,
    number: u32,
    machine: FlowClassifier,
    moves: bool,
    flows_max: usize,
    flows: BTreeMap<u64, Watched>,
}

impl Classifier {
    /// Whether what goes from `src` to `dst` comes up to this switch and goes further up.
    fn goes_up(&self, src: u32, dst: u32) -> bool {
        is_below(self.tree, self.own, src) && !is_below(self.tree, self.own, dst)
    }

    fn check(&self, failures: &Failures) -> PyResult<()> {
        if failures.are_of(self.tree) { Ok(()) } else { Err(wrong("these are the failures of another tree")) }
    }

    /// Ends the period that is over.
    fn turn(&mut self, now: Instant, failures: &Failures) {
        if now < self.machine.poll_timeout() {
            return;
        }
        let (flows, moves, number) = (&self.flows, self.moves, self.number);
        let known = |flow| flows.get(&flow).filter(|_| moves);
        let usable = |flow| known(flow).map_or(UpPorts::NONE, |known| failures.usable(number, known.dst));
        self.machine.handle_timeout(now, usable);
    }
}

#[pymethods]
impl Classifier {
    /// Without `moves` a flow keeps its first port as long as that reaches its destination (3.1.7).
    #[new]
    #[pyo3(signature = (tree, switch, *, now = 0.0, moves = true, flows_max = 4096))]
    fn new(tree: &FatTree, switch: u32, now: f64, moves: bool, flows_max: usize) -> PyResult<Classifier> {
        let (now, own, tree) = (instant(now)?, tree.of(switch)?, tree.tree);
        if let fat_tree::Switch::Core { .. } = own {
            return Err(wrong(format!("switch {switch} is a core: there is one way from it")));
        }
        let machine = FlowClassifier::new(now, tree.half() as u16, PERIOD, flows_max, switch.into());
        Ok(Classifier { tree, own, number: switch, machine, moves, flows_max, flows: BTreeMap::new() })
    }

    /// What the switch counted of a flow so far, and for how long; whether that is a flow which goes up here, and there is room for it.
    #[allow(clippy::too_many_arguments)]
    fn sample(
        &mut self,
        now: f64,
        flow: u64,
        src: u32,
        dst: u32,
        sent_bytes: u64,
        age_s: f64,
        failures: &Failures,
    ) -> PyResult<bool> {
        let now = instant(now)?;
        self.check(failures)?;
        check_ends(self.tree.hosts(), src, dst)?;
        if !self.goes_up(src, dst) {
            return Ok(false);
        }
        let is_full = self.flows.len() >= self.flows_max;
        let new = match self.flows.get_mut(&flow) {
            // A counter that has less than before has begun anew.
            Some(known) => {
                known.counted = true;
                sent_bytes.checked_sub(std::mem::replace(&mut known.bytes, sent_bytes)).unwrap_or(sent_bytes)
            }
            None if is_full => return Ok(false),
            None => {
                self.flows.insert(flow, Watched { dst, bytes: sent_bytes, said: None, counted: true });
                // Of one that is older than a period what it sent in one.
                let period_s = PERIOD.0 as f64 / 1e12;
                let part = if age_s > period_s { period_s / age_s } else { 1.0 };
                (sent_bytes as f64 * part) as u64
            }
        };
        // Nothing new is silence, and a period that has ended is not filled any more.
        if self.machine.port_of(flow).is_none() || new > 0 {
            self.turn(now, failures);
            let usable = failures.usable(self.number, dst);
            self.machine.handle_packet(flow, u32::try_from(new).unwrap_or(u32::MAX), usable);
        }
        Ok(true)
    }

    /// Flows whose port is another one than was said before, with the port; with none those that are forgotten, or lead nowhere.
    fn advance(&mut self, now: f64, failures: &Failures) -> PyResult<Vec<(u64, Option<u16>)>> {
        let now = instant(now)?;
        self.check(failures)?;
        self.turn(now, failures);
        let half = self.tree.half() as u16;
        let mut changed = Vec::new();
        let mut gone = Vec::new();
        for (&flow, known) in &mut self.flows {
            let usable = failures.usable(self.number, known.dst);
            let port = match self.machine.port_of(flow) {
                Some(_) if !known.counted => None,
                Some(port) if usable.contains(port) => Some(port),
                // It does not wait for its next packets.
                Some(_) => self.machine.handle_packet(flow, 0, usable),
                None => {
                    gone.push(flow);
                    None
                }
            };
            let port = port.map(|port| half + port);
            if port != known.said {
                known.said = port;
                changed.push((flow, port));
            }
        }
        for flow in gone {
            self.flows.remove(&flow);
        }
        Ok(changed)
    }

    /// The switch counts a flow no more: its counter and its entry have lapsed, and its port is said again with its next packets.
    fn lapsed(&mut self, flow: u64) {
        if let Some(known) = self.flows.get_mut(&flow) {
            (known.bytes, known.said, known.counted) = (0, None, false);
        }
    }

    /// Flows that were moved at the end of a period.
    #[getter]
    fn moved(&self) -> u64 {
        self.machine.counters.moved
    }
}
