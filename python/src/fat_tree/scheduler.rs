//! Who finds large flows and places them: Hedera's schedulers, or that of 3.1.7.

use super::reserving::Reserving;
use super::tree::{FatTree, named, with_port};
use super::{SECONDS_MAX, check_ends, duration, instant, wrong};
use pyo3::prelude::*;
use sluicenet_proto::hedera::detect::{Detection, FlowId, Sample};
use sluicenet_proto::hedera::scheduler::{Placer, Scheduler as Hedera, Settings};
use sluicenet_proto::hedera::tree::{self, Path, Tree};
use sluicenet_proto::routing::fat_tree::scheduler as reserved;
use sluicenet_proto::routing::fat_tree::{self, Peer as TreePeer};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;

/// What switches are to do with a flow.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Placement {
    /// The number the flow was given.
    flow: u64,
    src: u32,
    dst: u32,
    /// Switches by number and their ports, on the way up. Nothing: as any small flow, its entries are deleted.
    hops: Option<Vec<(u32, u16)>>,
}

#[pymethods]
impl Placement {
    fn __repr__(&self) -> String {
        format!("Placement({:#x}, {} to {}, {:?})", self.flow, self.src, self.dst, self.hops)
    }
}

#[derive(Debug)]
enum Engine {
    /// Chapter 4.
    Hedera(Box<Hedera>),
    /// 3.1.7.
    Reserving(Box<Reserving>),
}

/// Finds large flows in what edge switches counted, and says by which path each is to go. Time is in seconds from a beginning of the
/// caller's, and never goes back.
#[pyclass(module = "sluicenet._native")]
pub struct Scheduler {
    tree: fat_tree::FatTree,
    engine: Engine,
}

#[pymethods]
impl Scheduler {
    /// `placer` is `gff` (Global First Fit), `sa` (Simulated Annealing, of so many `iterations` a round) or `reserve` (the flow scheduler of 3.1.7).
    #[new]
    #[pyo3(signature = (tree, placer, *, link_bps, window_s = 0.1, period_s = 0.1, idle_s = 2.0, flows_max = 4096, iterations = 1000, seed = 0))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        tree: &FatTree,
        placer: &str,
        link_bps: u64,
        window_s: f64,
        period_s: f64,
        idle_s: f64,
        flows_max: usize,
        iterations: u32,
        seed: u64,
    ) -> PyResult<Scheduler> {
        let tree = tree.tree;
        if !(1_000..=10_000_000_000_000).contains(&link_bps) {
            return Err(wrong(format!("link_bps is from 1e3 to 1e13, not {link_bps}")));
        }
        let (window, period) = (duration("window_s", window_s)?, duration("period_s", period_s)?);
        if period < Duration::from_ms(1) {
            return Err(wrong("period_s is at least 0.001"));
        }
        let idle = duration("idle_s", idle_s)?;
        let detection = Detection { link: Rate(link_bps), window, idle, flows_max };
        let placer = match placer {
            "gff" => Placer::FirstFit,
            "sa" => Placer::Annealing { iterations },
            "reserve" => {
                let engine = Engine::Reserving(Box::new(Reserving::new(tree, detection, period)));
                return Ok(Scheduler { tree, engine });
            }
            other => return Err(wrong(format!("placer is gff, sa or reserve, not {other:?}"))),
        };
        let wide =
            Tree::fat_tree(tree.k()).map_err(|_| wrong(format!("k = {} is too large to place flows", tree.k())))?;
        let settings = Settings { tree: wide, detection, placer, period, seed };
        Ok(Scheduler { tree, engine: Engine::Hedera(Box::new(Hedera::new(settings))) })
    }

    /// What an edge switch counted of a flow so far, and for how long; whether it is watched: the table may be full.
    fn sample(&mut self, now: f64, flow: u64, src: u32, dst: u32, sent_bytes: u64, age_s: f64) -> PyResult<bool> {
        let now = instant(now)?;
        check_ends(self.tree.hosts(), src, dst)?;
        let age = Duration((age_s.clamp(0.0, SECONDS_MAX) * 1e12) as u64);
        let sample = Sample { flow: FlowId(flow), src, dst, bytes: sent_bytes, age: Some(age) };
        Ok(match &mut self.engine {
            Engine::Hedera(hedera) => hedera.receive(now, &sample).is_ok(),
            Engine::Reserving(reserving) => reserving.receive(now, &sample),
        })
    }

    /// The link at a switch's port went down or came up; flows that went over it get another path at once.
    fn set_link(&mut self, now: f64, switch: u32, port: u16, up: bool) -> PyResult<()> {
        let now = instant(now)?;
        let (own, peer) = with_port(self.tree, switch, port)?;
        let TreePeer::Switch(other, at) = peer else { return Ok(()) };
        let is_lower = self.tree.index(own) < self.tree.index(other);
        let (lower, port) = if is_lower { (own, port) } else { (other, at) };
        let position = port - self.tree.half() as u16;
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                let link = match lower {
                    fat_tree::Switch::Edge { pod, at } => {
                        tree::Link::Edge { edge: self.tree.subnet(pod, at), aggregation: position.into() }
                    }
                    fat_tree::Switch::Aggregation { pod, at } => {
                        let core = fat_tree::Switch::Core { row: position as u8, column: at };
                        tree::Link::Core { pod: pod.into(), core: self.tree.index(core) - 2 * self.tree.subnets() }
                    }
                    fat_tree::Switch::Core { .. } => return Ok(()),
                };
                hedera.handle_link(now, link, up).map_err(|_| wrong("there is no such link"))
            }
            Engine::Reserving(reserving) => {
                reserving.handle_link(reserved::Link { lower, up: position as u8 }, up);
                Ok(())
            }
        }
    }

    /// A switch is gone, or there again, and its links with it.
    fn set_switch(&mut self, now: f64, switch: u32, up: bool) -> PyResult<()> {
        let own = named(self.tree, switch)?;
        if let Engine::Hedera(hedera) = &mut self.engine {
            return hedera
                .handle_switch(instant(now)?, wide(self.tree, own), up)
                .map_err(|_| wrong("there is no such switch"));
        }
        (0..self.tree.k() as u16).try_for_each(|port| self.set_link(now, switch, port, up))
    }

    /// A switch has lost its entries: placements of flows that begin below it are said again.
    fn forgotten(&mut self, switch: u32) -> PyResult<()> {
        let own = named(self.tree, switch)?;
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                hedera.handle_forgotten(wide(self.tree, own)).map_err(|_| wrong("there is no such switch"))
            }
            Engine::Reserving(reserving) => {
                reserving.handle_forgotten(own);
                Ok(())
            }
        }
    }

    /// Runs a round if one is due.
    fn advance(&mut self, now: f64) -> PyResult<()> {
        let now = instant(now)?;
        match &mut self.engine {
            Engine::Hedera(hedera) => hedera.handle_timeout(now),
            Engine::Reserving(reserving) => reserving.handle_timeout(now),
        }
        Ok(())
    }

    /// When the next round is due; nothing while nothing is.
    #[getter]
    fn due(&self) -> Option<f64> {
        let due = match &self.engine {
            Engine::Hedera(hedera) => hedera.poll_timeout(),
            Engine::Reserving(reserving) => reserving.poll_timeout(),
        };
        (due != Instant::MAX).then_some(due.0 as f64 / 1e12)
    }

    /// Placements that differ from what was said before.
    fn placements(&mut self) -> Vec<Placement> {
        let (k, half) = (self.tree, self.tree.half() as u16);
        let mut out = Vec::new();
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                while let Some(p) = hedera.poll_placement() {
                    let hops = p.path.map(|path| match path {
                        Path::Edge => Vec::new(),
                        Path::Aggregation(a) => hops(k, p.src, a, None),
                        Path::Core(core) => hops(k, p.src, core % half, Some(core / half)),
                    });
                    out.push(Placement { flow: p.flow.0, src: p.src, dst: p.dst, hops });
                }
            }
            Engine::Reserving(reserving) => {
                while let Some((flow, (src, dst), path)) = reserving.poll_placement() {
                    let hops = path.map(|path| match path {
                        reserved::Path::Switched => Vec::new(),
                        reserved::Path::Aggregation(a) => hops(k, src, a.into(), None),
                        reserved::Path::Core { aggregation, core } => {
                            hops(k, src, aggregation.into(), Some(core.into()))
                        }
                    });
                    out.push(Placement { flow, src, dst, hops });
                }
            }
        }
        out
    }

    /// Flows that are large now.
    #[getter]
    fn elephants(&self) -> usize {
        match &self.engine {
            Engine::Hedera(hedera) => hedera.last_round().elephants,
            Engine::Reserving(reserving) => reserving.len(),
        }
    }
}

/// Up from a host: by aggregation switch `aggregation` of its pod and that switch's upward port `core`.
fn hops(k: fat_tree::FatTree, src: u32, aggregation: u16, core: Option<u16>) -> Vec<(u32, u16)> {
    let (half, edge) = (k.half() as u16, k.subnet_of(src));
    let upper = k.subnets() + edge / k.half() * k.half() + u32::from(aggregation);
    let first = (edge, half + aggregation);
    [Some(first), core.map(|core| (upper, half + core))].into_iter().flatten().collect()
}

/// A switch as Hedera calls it.
fn wide(k: fat_tree::FatTree, switch: fat_tree::Switch) -> tree::Switch {
    match switch {
        fat_tree::Switch::Edge { pod, at } => tree::Switch::Edge(k.subnet(pod, at)),
        fat_tree::Switch::Aggregation { pod, at } => tree::Switch::Aggregation { pod: pod.into(), position: at.into() },
        core => tree::Switch::Core(k.index(core) - 2 * k.subnets()),
    }
}
