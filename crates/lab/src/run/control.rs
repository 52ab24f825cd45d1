//! The control loop of a fat-tree (Al-Fares 2012, 3.1.7, 4.1), for either level: who chooses paths, and which switches are to know.
//!
//! Whoever drives it tells what edge switches have counted, and enters what comes of it into the switches.

use crate::build::Plan;
use crate::scenario::{Routing, Scenario};
use sluicenet_node::door::PortId;
use sluicenet_node::server::App;
use sluicenet_node::steering::{Assigns, Steering};
use sluicenet_proto::hedera::detect::{Detection, FlowId, Sample};
use sluicenet_proto::hedera::scheduler::{Placement, Placer, Scheduler, Settings};
use sluicenet_proto::hedera::tree::{Path, Tree};
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_proto::routing::fat_tree::reporter::LargeFlows;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_sim::Engine;
use sluicenet_sim::world::{Node, World};

/// Flows that are watched for each host, at most.
const FLOWS_OF_A_HOST_MAX: usize = 64;
/// Periods without a sample after which a flow has ended: one that is read late is not.
const SILENT_PERIODS: u64 = 4;

/// Who chooses paths in the middle.
#[derive(Debug)]
enum Central {
    /// Nobody: switches see to themselves.
    Nobody,
    /// Chapter 4.
    Hedera(Box<Scheduler>),
    /// 3.1.7.
    LargeFlows(Box<LargeFlows>),
}

/// An entry of a switch, by its number: the flow, and its port, or none where it is to be deleted.
pub(super) type Entry = (usize, u64, Option<PortId>);

/// The loop.
#[derive(Debug)]
pub(super) struct Control {
    tree: Tree,
    assigns: Assigns,
    central: Central,
    /// Between two rounds.
    pub period: Duration,
}

impl Control {
    /// That of a scenario whose routing has one.
    pub fn of(s: &Scenario, plan: &Plan) -> Option<Control> {
        let settings = s.control.as_ref()?;
        let k = s.topology.fat_tree_k().unwrap_or(2);
        let tree = Tree::fat_tree(k).ok()?;
        let period = settings.period;
        let hedera = |placer| {
            let detection = Detection {
                link: plan.host_rate(0),
                window: period,
                idle: period.saturating_mul(SILENT_PERIODS),
                flows_max: FLOWS_OF_A_HOST_MAX * tree.hosts() as usize,
            };
            let settings = Settings { tree, detection, placer, period, seed: s.seed };
            Central::Hedera(Box::new(Scheduler::new(settings)))
        };
        let (assigns, central) = match s.topology.routing {
            Routing::GlobalFirstFit => (Assigns::Router, hedera(Placer::FirstFit)),
            Routing::SimulatedAnnealing => {
                (Assigns::Router, hedera(Placer::Annealing { iterations: settings.iterations }))
            }
            Routing::FlowScheduler => {
                let (large, silence) = (settings.large.as_bytes(), period.saturating_mul(SILENT_PERIODS));
                let flows = LargeFlows::new(Instant::ZERO, FatTree::new(k).ok()?, tree, large, silence);
                (Assigns::LeastLoaded(period), Central::LargeFlows(Box::new(flows)))
            }
            _ => (Assigns::Classifier(period), Central::Nobody),
        };
        Some(Control { tree, assigns, central, period })
    }

    /// Edge and aggregation switches, which come first among a plan's.
    fn steered(&self) -> usize {
        (self.tree.edges() + self.tree.pods * self.tree.aggregations_per_pod) as usize
    }

    /// The part of a switch, by its number among them; cores have no choice.
    pub fn steering(&self, switch: usize) -> Option<Steering> {
        let t = &self.tree;
        let is_edge = switch < t.edges() as usize;
        let up = match is_edge {
            true => (t.hosts_per_edge as PortId, t.aggregations_per_pod as u16),
            false => (t.edges_per_pod as PortId, t.cores_per_aggregation as u16),
        };
        let counts = is_edge && self.reads();
        (switch < self.steered()).then(|| Steering::new(up, t.hosts(), switch as u32, self.assigns, counts))
    }

    /// Whether somebody reads what edge switches count.
    pub fn reads(&self) -> bool {
        !matches!(self.central, Central::Nobody)
    }

    /// Whether switches assign ports by what flows send.
    pub fn assigns_ports(&self) -> bool {
        self.assigns != Assigns::Router
    }

    /// What an edge switch counted of a flow.
    pub fn hear(&mut self, now: Instant, sample: &Sample) {
        // A flow for which there is no room is one like any small one.
        match &mut self.central {
            Central::Nobody => {}
            Central::Hedera(scheduler) => drop(scheduler.receive(now, sample)),
            Central::LargeFlows(flows) => drop(flows.receive(now, sample)),
        }
    }

    /// A flow is over.
    pub fn ended(&mut self, sample: &Sample) {
        match &mut self.central {
            Central::Nobody => {}
            Central::Hedera(scheduler) => scheduler.handle_ended(sample.flow),
            Central::LargeFlows(flows) => flows.handle_ended(sample),
        }
    }

    /// Gives the switches of a world their parts.
    pub fn install<A>(&self, world: &mut World<A>, hosts: u32) {
        for (i, node) in world.nodes.iter_mut().skip(hosts as usize).enumerate() {
            if let (Node::Switch(switch), Some(steering)) = (node, self.steering(i)) {
                switch.steer(steering);
            }
        }
    }

    /// A round over the switches of a world, whose first host-less box is number `hosts`.
    pub fn turn<A: App>(&mut self, now: Instant, engine: &mut Engine<A>, hosts: u32) {
        fn of<A: App>(engine: &mut Engine<A>, switch: u32) -> Option<&mut Steering> {
            match engine.node_mut(switch) {
                Node::Switch(switch) => switch.steering_mut(),
                Node::Server(_) => None,
            }
        }
        let edges = if self.reads() { self.tree.edges() } else { 0 };
        for edge in 0..edges {
            let read = of(engine, hosts + edge).map_or(Vec::new(), Steering::read);
            for (flow, c) in read {
                let age = Some(now.since(c.since));
                self.hear(now, &Sample { flow: FlowId(flow), src: c.src, dst: c.dst, bytes: c.bytes, age });
            }
        }
        for (switch, flow, port) in self.round(now).into_iter().flat_map(|(_, entries)| entries) {
            if let Some(steering) = of(engine, hosts + switch as u32) {
                steering.set(flow, port);
            }
        }
    }

    /// What is to be entered after all that was said, in order.
    pub fn round(&mut self, now: Instant) -> Vec<(Placement, Vec<Entry>)> {
        match &mut self.central {
            Central::Nobody => {}
            Central::Hedera(scheduler) => scheduler.handle_timeout(now),
            Central::LargeFlows(flows) => flows.handle_timeout(now),
        }
        let mut all = Vec::new();
        while let Some(placement) = match &mut self.central {
            Central::Nobody => None,
            Central::Hedera(scheduler) => scheduler.poll_placement(),
            Central::LargeFlows(flows) => flows.poll_placement(),
        } {
            let entries = self.entries(&placement);
            all.push((placement, entries));
        }
        all
    }

    /// The entries of a flow: at its edge switch, and at the aggregation switches of its pod, of which one sends it on.
    fn entries(&self, p: &Placement) -> Vec<Entry> {
        let t = &self.tree;
        let port = |port: Option<u32>| port.map(|p| p as PortId);
        let edge = (t.edge_of(p.src) as usize, p.flow.0, port(p.path.and_then(|path| t.edge_port(path))));
        let of = |a: u32| (t.edges() + t.pod_of(p.src) * t.aggregations_per_pod + a) as usize;
        let at = |a: u32| match p.path {
            Some(path @ Path::Core(core)) if t.aggregation_of(core.into()) == a => port(t.aggregation_port(path)),
            _ => None,
        };
        std::iter::once(edge).chain((0..t.aggregations_per_pod).map(|a| (of(a), p.flow.0, at(a)))).collect()
    }
}
