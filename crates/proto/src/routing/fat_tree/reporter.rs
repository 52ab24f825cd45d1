//! Large flows are reported to the central flow scheduler and sent over the paths it finds (Al-Fares 2012, 3.1.7, 3.4.3:
//! FlowReporter and FlowScheduler). The interface is that of Hedera's scheduler, so that the same driver serves both.

use super::address::FatTree;
use super::scheduler::{FlowId as Request, FlowScheduler, Link, Path, Placement as Found};
use crate::hedera::detect::{FlowId, Sample};
use crate::hedera::scheduler::{Placement, Refused};
use crate::hedera::tree::{self, Tree};
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// The large flows, and the scheduler that finds their paths.
#[derive(Clone, Debug)]
pub struct LargeFlows {
    tree: Tree,
    large_bytes: u64,
    flows_max: usize,
    scheduler: FlowScheduler,
    /// Flows with a path.
    placed: BTreeMap<Request, (FlowId, Path)>,
    /// Placements that were not fetched yet.
    changed: BTreeMap<FlowId, Placement>,
    /// Requests that found no path.
    pub contended: u64,
}

impl LargeFlows {
    /// A flow is large once it has sent `large_bytes`. The number of remembered flows is limited, and flows without a
    /// report for `silence` are forgotten.
    pub fn new(now: Instant, fat_tree: FatTree, tree: Tree, large_bytes: u64, silence: Duration) -> LargeFlows {
        assert_eq!(fat_tree.hosts(), tree.hosts());
        LargeFlows {
            tree,
            large_bytes,
            flows_max: 8 * tree.hosts() as usize,
            scheduler: FlowScheduler::new(now, fat_tree, silence),
            placed: BTreeMap::new(),
            changed: BTreeMap::new(),
            contended: 0,
        }
    }

    /// Takes an edge switch's sample of a flow.
    ///
    /// # Errors
    /// Unknown hosts, a flow from a host to itself, or more flows than the limit.
    pub fn receive(&mut self, now: Instant, sample: &Sample) -> Result<(), Refused> {
        let hosts = self.tree.hosts();
        if sample.src >= hosts || sample.dst >= hosts || sample.src == sample.dst {
            return Err(Refused::Unknown);
        }
        if sample.bytes < self.large_bytes {
            return Ok(());
        }
        let request = request(sample);
        if self.placed.len() >= self.flows_max && !self.placed.contains_key(&request) {
            return Err(Refused::Full);
        }
        match self.scheduler.handle_request(now, request).map_err(|_| Refused::Unknown)? {
            Found::Placed(path) if path != Path::Switched => {
                self.placed.insert(request, (sample.flow, path));
                self.say(sample.flow, request, Some(path));
            }
            Found::Contended => self.contended += 1,
            Found::Placed(_) | Found::Kept(_) => {}
        }
        Ok(())
    }

    /// A flow has ended: releases its links and deletes its entries.
    pub fn handle_ended(&mut self, sample: &Sample) {
        let request = request(sample);
        self.scheduler.handle_end(request);
        self.forget(request);
    }

    /// A link of the tree went down or came up. Flows on a failed link have no path until their next notification.
    ///
    /// # Errors
    /// An unknown link.
    pub fn handle_link(&mut self, link: tree::Link, up: bool) -> Result<(), Refused> {
        if !self.tree.has_link(link) {
            return Err(Refused::Unknown);
        }
        let own = self.own(link);
        if up {
            self.scheduler.handle_link_up(own);
        } else {
            for request in self.scheduler.handle_link_down(own) {
                self.forget(request);
            }
        }
        Ok(())
    }

    /// Releases the links of flows without a recent report.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.scheduler.handle_timeout(now);
        let silent: Vec<Request> =
            self.placed.keys().copied().filter(|&request| self.scheduler.path(request).is_none()).collect();
        silent.into_iter().for_each(|request| self.forget(request));
    }

    /// When silent flows are searched for next.
    pub fn poll_timeout(&self) -> Instant {
        self.scheduler.poll_timeout()
    }

    /// The next changed placement.
    pub fn poll_placement(&mut self) -> Option<Placement> {
        self.changed.pop_first().map(|(_, placement)| placement)
    }

    /// Flows that have a path of their own.
    pub fn placed(&self) -> usize {
        self.placed.len()
    }

    fn forget(&mut self, request: Request) {
        if let Some((flow, _)) = self.placed.remove(&request) {
            self.say(flow, request, None);
        }
    }

    fn say(&mut self, flow: FlowId, request: Request, path: Option<Path>) {
        let path = path.map(|path| match path {
            Path::Switched => tree::Path::Edge,
            Path::Aggregation(a) => tree::Path::Aggregation(a.into()),
            Path::Core { aggregation, core } => {
                tree::Path::Core(self.tree.core(aggregation.into(), core.into()) as u16)
            }
        });
        self.changed.insert(flow, Placement { flow, src: request.source, dst: request.destination, path });
    }

    fn own(&self, link: tree::Link) -> Link {
        use super::address::Switch;
        match link {
            tree::Link::Edge { edge, aggregation } => {
                let (pod, at) = (self.tree.pod_of_edge(edge) as u8, (edge % self.tree.edges_per_pod) as u8);
                Link { lower: Switch::Edge { pod, at }, up: aggregation as u8 }
            }
            tree::Link::Core { pod, core } => {
                let at = self.tree.aggregation_of(core) as u8;
                let up = (core / self.tree.aggregations_per_pod) as u8;
                Link { lower: Switch::Aggregation { pod: pod as u8, at }, up }
            }
        }
    }
}

fn request(sample: &Sample) -> Request {
    let id = (sample.flow.0 ^ sample.flow.0 >> 32) as u32;
    Request { source: sample.src, destination: sample.dst, id }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 1_000;

    fn of(flow: u64, src: u32, dst: u32, bytes: u64) -> Sample {
        Sample { flow: FlowId(flow), src, dst, bytes, age: None }
    }

    fn at(s: u64) -> Instant {
        Instant(Duration::from_secs(s).0)
    }

    fn flows() -> LargeFlows {
        let (fat_tree, tree) = (FatTree::new(4).unwrap(), Tree::fat_tree(4).unwrap());
        LargeFlows::new(at(0), fat_tree, tree, LARGE, Duration::from_secs(10))
    }

    #[test]
    fn large_flows_have_paths_of_their_own_until_they_end_or_nobody_mentions_them() {
        let mut f = flows();
        f.receive(at(1), &of(1, 0, 4, LARGE - 1)).unwrap();
        assert_eq!(f.poll_placement(), None);
        for (flow, src, dst) in [(1, 0, 4), (2, 1, 5), (3, 2, 6), (4, 3, 7)] {
            f.receive(at(1), &of(flow, src, dst, LARGE)).unwrap();
        }
        let paths: Vec<_> = core::iter::from_fn(|| f.poll_placement()).map(|p| p.path.unwrap()).collect();
        assert_eq!(paths, [tree::Path::Core(0), tree::Path::Core(1), tree::Path::Core(2), tree::Path::Core(3)]);
        // The host's other flow finds no path: its edge switch has no free uplink.
        f.receive(at(2), &of(5, 0, 8, LARGE)).unwrap();
        assert_eq!((f.poll_placement(), f.contended), (None, 1));
        f.handle_ended(&of(2, 1, 5, LARGE));
        assert_eq!(f.poll_placement().map(|p| (p.flow, p.path)), Some((FlowId(2), None)));
        f.receive(at(3), &of(5, 0, 8, LARGE)).unwrap();
        assert_eq!(f.poll_placement().map(|p| p.path), Some(Some(tree::Path::Core(1))));
        f.handle_timeout(at(12));
        assert_eq!(f.placed(), 1, "the one that was mentioned last");
        assert_eq!(core::iter::from_fn(|| f.poll_placement()).filter(|p| p.path.is_none()).count(), 3);
        assert_eq!(f.receive(at(12), &of(9, 0, 16, LARGE)), Err(Refused::Unknown));
        assert_eq!(f.receive(at(12), &of(9, 3, 3, LARGE)), Err(Refused::Unknown));
    }

    #[test]
    fn who_goes_over_a_link_that_fails_is_placed_again_with_its_next_notification() {
        let mut f = flows();
        f.receive(at(1), &of(1, 0, 4, LARGE)).unwrap();
        assert_eq!(f.poll_placement().unwrap().path, Some(tree::Path::Core(0)));
        let link = tree::Link::Core { pod: 1, core: 0 };
        f.handle_link(link, false).unwrap();
        assert_eq!(f.poll_placement().map(|p| p.path), Some(None));
        f.receive(at(2), &of(1, 0, 4, 2 * LARGE)).unwrap();
        assert_eq!(f.poll_placement().unwrap().path, Some(tree::Path::Core(2)));
        f.handle_link(link, true).unwrap();
        f.receive(at(3), &of(2, 1, 5, LARGE)).unwrap();
        assert_eq!(f.poll_placement().unwrap().path, Some(tree::Path::Core(1)));
        assert_eq!(f.handle_link(tree::Link::Core { pod: 4, core: 0 }, false), Err(Refused::Unknown));
    }
}
