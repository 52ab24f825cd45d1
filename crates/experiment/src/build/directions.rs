//! Both directions of every link, computed from the plan: a table would need more memory than the wires.

use super::Plan;
use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::{Forwarding, Scenario};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The directions of all links.
#[derive(Clone)]
pub struct Directions {
    plan: Arc<Plan>,
    cut_through: bool,
    adapter_delay: Duration,
    pause_response: Duration,
    /// Those that are not as in the plan, by their places.
    changed: BTreeMap<usize, Direction>,
    /// Those that the plan does not have.
    added: Vec<Direction>,
}

impl Directions {
    /// The directions of a plan.
    pub fn new(scenario: &Scenario, plan: Arc<Plan>) -> Directions {
        Directions {
            plan,
            cut_through: scenario.switch.forwarding == Forwarding::CutThrough,
            adapter_delay: scenario.adapter.delay,
            pause_response: scenario.pfc.response,
            changed: BTreeMap::new(),
            added: Vec::new(),
        }
    }

    /// The direction that leaves a port of the plan.
    pub fn of(&self, node: NodeId, port: PortId) -> Direction {
        if !self.changed.is_empty()
            && let Some(changed) = self.changed.get(&self.plan.link_index(node, port))
        {
            return *changed;
        }
        let (plan, end) = (&*self.plan, self.plan.attachment(node, port));
        let adapter = |node: NodeId| if node < plan.hosts() { self.adapter_delay } else { Duration::ZERO };
        let to_switch = end.peer.checked_sub(plan.hosts()).map(|s| &plan.switches()[s as usize]);
        // A frame is forwarded on its first bit only if no output could overtake its last.
        let first_bit = self.cut_through && to_switch.is_some_and(|s| end.link.rate.as_bps() >= s.fastest.as_bps());
        let through = to_switch.map_or(Duration::ZERO, |s| s.delay);
        Direction {
            from: (node, port),
            to: (end.peer, end.peer_port),
            rate: end.link.rate,
            latency: end.link.delay + adapter(node) + adapter(end.peer) + through,
            first_bit,
            pause_latency: end.link.delay + self.pause_response,
            bit_error_rate: end.link.bit_error_rate,
        }
    }

    /// The other direction of a link of the plan.
    pub fn back(&self, of: &Direction) -> Direction {
        self.of(of.to.0, of.to.1)
    }

    /// All directions: those of the plan by [`Plan::link_index`], then those that were added.
    pub fn iter(&self) -> impl Iterator<Item = Direction> {
        let of_box = move |node: NodeId| (0..self.plan.ports(node) as PortId).map(move |port| self.of(node, port));
        (0..self.plan.nodes() as NodeId).flat_map(of_box).chain(self.added.iter().copied())
    }

    /// Replaces the direction that leaves a port of the plan.
    pub fn change(&mut self, (node, port): (NodeId, PortId), direction: Direction) {
        self.changed.insert(self.plan.link_index(node, port), direction);
    }

    /// Adds a direction that the plan does not have.
    pub fn add(&mut self, direction: Direction) {
        self.added.push(direction);
    }
}
