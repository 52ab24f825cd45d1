//! On-demand coordination (section 7): only flows through congested links are coordinated, and only large ones.
//!
//! Coordinators report the rates of large flows that send freely. A link is congested from [`CONGESTED_PERCENT`] of its
//! capacity on. It is calm when it has had less than that for [`CALM_TIME`] and has less than [`CALM_PERCENT`]. Flows through a congested link are held; from then on they wait
//! for directives like all flows without on-demand coordination. A held flow counts with the rate that its sender would
//! have alone, because its measured rate only shows what it was allowed.

use super::flows::{FlowId, Flows};
use super::topology::{LinkId, Topology};
use super::{Limits, Node, Refused, SLICE_MAX};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Load from which a link is congested: queues begin to grow a little below the full rate. Our choice.
pub const CONGESTED_PERCENT: u64 = 90;
/// Load below which a link is calm again. Our choice: between the two a link stays what it is.
pub const CALM_PERCENT: u64 = 70;
/// Time without congestion after which a link is calm: five of the longest slices, so that flows that pause between two
/// slices do not end the coordination. Our choice.
pub const CALM_TIME: Duration = Duration(5 * SLICE_MAX.0);
const _: () = assert!(CALM_PERCENT < CONGESTED_PERCENT && CONGESTED_PERCENT <= 100);

/// An order to a coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The sender.
    pub source: Node,
    /// The destination.
    pub destination: Node,
    /// Whether the flow is held, or may send freely.
    pub hold: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    rate: u32,
    is_held: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct LinkState {
    load: u64,
    is_congested: bool,
    /// When it had too much load last.
    congested_at: Instant,
}

/// Loads of links, and flows that are held because of them.
#[derive(Clone, Debug)]
pub struct Demand {
    flows: Flows<Flow>,
    links: Vec<LinkState>,
    orders: VecDeque<Order>,
}

impl Demand {
    /// No load.
    pub fn new(topology: &Topology, limits: Limits) -> Demand {
        let links = vec![LinkState::default(); topology.links()];
        Demand { flows: Flows::new(topology.nodes(), limits), links, orders: VecDeque::new() }
    }

    /// Links that are congested, each direction by itself.
    pub fn congested(&self) -> usize {
        self.links.iter().filter(|link| link.is_congested).count()
    }

    /// A large flow sends freely at this rate.
    ///
    /// # Errors
    /// There is no room for the flow.
    pub fn handle_measured(
        &mut self,
        now: Instant,
        topology: &Topology,
        (source, to): (Node, Node),
        rate: u32,
    ) -> Result<(), Refused> {
        let f = self.flow(source, to)?;
        let rate = rate.min(topology.bottleneck(source, to));
        if self.flows[f].is_held {
            // It has not heard of it.
            self.orders.push_back(Order { source, destination: to, hold: true });
            return Ok(());
        }
        self.set(now, topology, f, rate);
        if !self.flows[f].is_held && self.crosses_congestion(topology, f) {
            self.hold(now, topology, f);
        }
        Ok(())
    }

    /// A held flow has frames that wait.
    ///
    /// # Errors
    /// There is no room for the flow.
    pub fn handle_backlog(&mut self, now: Instant, topology: &Topology, source: Node, to: Node) -> Result<(), Refused> {
        let f = self.flow(source, to)?;
        if self.flows[f].is_held || self.crosses_congestion(topology, f) {
            self.flows[f].is_held = true;
            self.set(now, topology, f, topology.bottleneck(source, to));
        } else {
            self.orders.push_back(Order { source, destination: to, hold: false });
        }
        Ok(())
    }

    /// A flow has ended.
    pub fn handle_idle(&mut self, now: Instant, topology: &Topology, source: Node, to: Node) {
        if let Some(f) = self.flows.find(source, to) {
            self.remove(now, topology, f);
        }
    }

    /// A node has left.
    pub fn remove_node(&mut self, now: Instant, topology: &Topology, node: Node) {
        while let Some(f) = self.flows.first(node) {
            self.remove(now, topology, f);
        }
    }

    fn remove(&mut self, now: Instant, topology: &Topology, f: FlowId) {
        // Nothing is left to free.
        self.flows[f].is_held = false;
        self.set(now, topology, f, 0);
        self.flows.remove(f);
    }

    /// Whether a flow waits for directives.
    pub fn is_held(&self, source: Node, to: Node) -> bool {
        self.flows.find(source, to).is_some_and(|f| self.flows[f].is_held)
    }

    /// The next order to send. A flow that is freed has no slice any more.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    fn flow(&mut self, source: Node, to: Node) -> Result<FlowId, Refused> {
        let known = self.flows.find(source, to);
        known.map_or_else(|| self.flows.insert(source, to, Flow { rate: 0, is_held: false }), Ok)
    }

    fn crosses_congestion(&self, topology: &Topology, f: FlowId) -> bool {
        let (source, to) = self.flows.ends(f);
        topology.path(source, to).any(|link| self.links[link as usize].is_congested)
    }

    fn hold(&mut self, now: Instant, topology: &Topology, f: FlowId) {
        let (source, destination) = self.flows.ends(f);
        self.flows[f].is_held = true;
        self.orders.push_back(Order { source, destination, hold: true });
        self.set(now, topology, f, topology.bottleneck(source, destination));
    }

    /// Sets the rate of a flow. Holds all flows of a link that becomes congested.
    fn set(&mut self, now: Instant, topology: &Topology, f: FlowId, rate: u32) {
        let (source, to) = self.flows.ends(f);
        let before = core::mem::replace(&mut self.flows[f].rate, rate);
        let mut is_news = false;
        for link in topology.path(source, to) {
            is_news |= self.load(now, topology, link, before, rate);
        }
        // Rare: a link changes its state at most twice in CALM_TIME.
        if is_news {
            let mut place = 0;
            while let Some(f) = self.flows.at_or_after(place) {
                place = f + 1;
                if !self.flows[f].is_held && self.crosses_congestion(topology, f) {
                    self.hold(now, topology, f);
                }
            }
        }
    }

    /// Changes the load of a link; whether it becomes congested.
    fn load(&mut self, now: Instant, topology: &Topology, link: LinkId, before: u32, rate: u32) -> bool {
        let capacity = u64::from(topology.capacity(link));
        let state = &mut self.links[link as usize];
        state.load = state.load + u64::from(rate) - u64::from(before);
        if state.load * 100 < capacity * CONGESTED_PERCENT {
            return false;
        }
        state.congested_at = now;
        !core::mem::replace(&mut state.is_congested, true)
    }

    /// Finds links that are calm again, and frees their flows. The driver calls it from time to time.
    pub fn handle_timeout(&mut self, now: Instant, topology: &Topology) {
        let mut is_news = false;
        for (link, state) in (0..).zip(&mut self.links) {
            let has_room = state.load * 100 < u64::from(topology.capacity(link)) * CALM_PERCENT;
            if state.is_congested && has_room && now.since(state.congested_at) >= CALM_TIME {
                state.is_congested = false;
                is_news = true;
            }
        }
        let mut place = 0;
        while is_news && let Some(f) = self.flows.at_or_after(place) {
            place = f + 1;
            if self.flows[f].is_held && !self.crosses_congestion(topology, f) {
                let (source, destination) = self.flows.ends(f);
                self.flows[f].is_held = false;
                self.orders.push_back(Order { source, destination, hold: false });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::rows;
    use super::*;

    const GBPS: u32 = 1_000_000;
    const T: Instant = Instant(1_000);

    fn orders(demand: &mut Demand) -> Vec<(Node, Node, bool)> {
        core::iter::from_fn(|| demand.poll_order()).map(|o| (o.source, o.destination, o.hold)).collect()
    }

    #[test]
    fn only_flows_through_a_congested_link_are_held() {
        let t = rows(2, 1, 4, GBPS);
        let mut demand = Demand::new(&t, Limits { flows: 16, flows_per_node: 4 });
        demand.handle_measured(T, &t, (0, 4), 400_000).unwrap();
        demand.handle_measured(T, &t, (1, 5), 400_000).unwrap();
        demand.handle_measured(T, &t, (2, 3), 300_000).unwrap();
        assert_eq!((orders(&mut demand), demand.congested()), (Vec::new(), 0));
        // The uplink of the rack, up and at the other end down, has 1 Gb/s.
        demand.handle_measured(T, &t, (1, 5), 500_000).unwrap();
        let held = orders(&mut demand);
        assert!(held.contains(&(0, 4, true)) && held.contains(&(1, 5, true)) && held.len() == 2, "{held:?}");
        // Another one there is held at once, and again if it has not heard of it.
        demand.handle_measured(T, &t, (3, 6), 10_000).unwrap();
        demand.handle_measured(T, &t, (3, 6), 10_000).unwrap();
        assert_eq!(orders(&mut demand), [(3, 6, true), (3, 6, true)]);
        demand.handle_backlog(T, &t, 0, 4).unwrap();
        demand.handle_idle(T, &t, 1, 5);
        demand.handle_idle(T, &t, 3, 6);
        // One flow that could use all of the link.
        assert!(orders(&mut demand).is_empty() && demand.congested() > 0);
        demand.remove_node(T, &t, 0);
        demand.handle_timeout(T + Duration(CALM_TIME.0 - 1), &t);
        assert!(demand.congested() > 0);
        demand.handle_timeout(T + CALM_TIME, &t);
        assert_eq!((orders(&mut demand), demand.congested()), (Vec::new(), 0));
    }

    #[test]
    fn a_held_flow_is_freed_when_its_links_are_calm() {
        let t = rows(1, 1, 4, GBPS);
        let mut demand = Demand::new(&t, Limits { flows: 16, flows_per_node: 4 });
        demand.handle_measured(T, &t, (0, 3), 500_000).unwrap();
        demand.handle_measured(T, &t, (1, 3), 400_000).unwrap();
        orders(&mut demand);
        demand.handle_idle(T, &t, 0, 3);
        // One flow that is held could still use all of the link.
        demand.handle_timeout(T + CALM_TIME, &t);
        assert!(orders(&mut demand).is_empty() && demand.is_held(1, 3));
        demand.handle_idle(T, &t, 1, 3);
        demand.handle_timeout(T + CALM_TIME, &t);
        // A late report of backlog: nothing is congested.
        demand.handle_backlog(T, &t, 1, 3).unwrap();
        assert_eq!(orders(&mut demand), [(1, 3, false)]);
    }
}
