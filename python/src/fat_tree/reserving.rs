//! The flow scheduler of 3.1.7, which edge switches ask for paths of their large flows; these are found as Hedera's are.

use super::tree::is_below;
use sluicenet_proto::hedera::detect::{Change, Detection, Detector, FlowId, Sample};
use sluicenet_proto::routing::fat_tree::scheduler::{self as reserved, FlowScheduler, Path, SILENCE};
use sluicenet_proto::routing::fat_tree::{FatTree, Switch};
use sluicenet_proto::time::{Duration, Instant};
use std::collections::BTreeMap;

/// Flows about whose paths there is something to say, and their ends.
type Changed = BTreeMap<u64, (u32, u32)>;

#[derive(Debug)]
pub(super) struct Reserving {
    tree: FatTree,
    detector: Detector,
    flows: FlowScheduler,
    placed: BTreeMap<u64, Reserved>,
    changed: Changed,
    /// When edge switches ask for paths next, and how often they do.
    next: Instant,
    period: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    flow: reserved::FlowId,
    path: Option<Path>,
}

impl Reserving {
    /// Nothing is known; edge switches ask every `period`.
    pub(super) fn new(tree: FatTree, detection: Detection, period: Duration) -> Reserving {
        Reserving {
            tree,
            detector: Detector::new(detection),
            flows: FlowScheduler::new(Instant::ZERO, tree, SILENCE),
            placed: BTreeMap::new(),
            changed: Changed::new(),
            next: Instant::ZERO + period,
            period,
        }
    }

    /// What an edge switch counted of a flow; whether it is watched.
    pub(super) fn receive(&mut self, now: Instant, sample: &Sample) -> bool {
        let Sample { flow: FlowId(flow), src, dst, .. } = *sample;
        match self.detector.receive(now, sample) {
            Err(_) => return false,
            Ok(Some(Change::Elephant)) => {
                // Numbers of flows are hashes of their addresses and ports.
                let key = reserved::FlowId { source: src, destination: dst, id: (flow ^ flow >> 32) as u32 };
                self.placed.insert(flow, Reserved { flow: key, path: None });
            }
            Ok(Some(Change::Mouse)) => self.end(flow),
            Ok(None) => {}
        }
        true
    }

    pub(super) fn handle_link(&mut self, link: reserved::Link, up: bool) {
        if up {
            self.flows.handle_link_up(link);
            return;
        }
        let gone = self.flows.handle_link_down(link);
        for (&flow, reserved) in self.placed.iter_mut().filter(|(_, r)| gone.contains(&r.flow)) {
            reserved.path = None;
            self.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
        }
    }

    /// A switch has lost its entries.
    pub(super) fn handle_forgotten(&mut self, switch: Switch) {
        let is_there = |r: &Reserved| r.path.is_some() && is_below(self.tree, switch, r.flow.source);
        let lost = self.placed.iter().filter(|(_, r)| is_there(r));
        self.changed.extend(lost.map(|(&flow, r)| (flow, (r.flow.source, r.flow.destination))));
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for gone in self.detector.expire(now) {
            self.end(gone.0);
        }
        self.flows.handle_timeout(now);
        if now >= self.next {
            self.next = now + self.period;
            self.ask(now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.flows.poll_timeout().min(if self.placed.is_empty() { Instant::MAX } else { self.next })
    }

    /// A flow, its ends and its path, where that differs from what was said before.
    pub(super) fn poll_placement(&mut self) -> Option<(u64, (u32, u32), Option<Path>)> {
        let (flow, ends) = self.changed.pop_first()?;
        Some((flow, ends, self.placed.get(&flow).and_then(|r| r.path)))
    }

    /// Number of large flows.
    pub(super) fn len(&self) -> usize {
        self.placed.len()
    }

    /// A large flow is none any more.
    fn end(&mut self, flow: u64) {
        if let Some(reserved) = self.placed.remove(&flow) {
            self.flows.handle_end(reserved.flow);
            self.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
        }
    }

    /// Edge switches ask for all their large flows, one after the other, each for one port after the other.
    fn ask(&mut self, now: Instant) {
        let mut order: Vec<u64> = self.placed.keys().copied().collect();
        order.sort_by_key(|flow| (self.placed[flow].flow.source, *flow));
        for flow in order {
            let Some(reserved) = self.placed.get_mut(&flow) else { continue };
            let path = match self.flows.handle_request(now, reserved.flow) {
                Ok(reserved::Placement::Placed(path) | reserved::Placement::Kept(path)) => Some(path),
                Ok(reserved::Placement::Contended) | Err(_) => None,
            };
            if path != reserved.path {
                reserved.path = path;
                self.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
            }
        }
    }
}
