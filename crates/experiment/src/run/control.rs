//! The control loop of a fat-tree (Al-Fares 2012, 3.1.7, 4.1), for either level: the choice of paths, and the switches
//! to inform.
//!
//! Its driver reports the counts of edge switches, and enters the resulting paths into the switches.

use super::failures::Changes;
use crate::build::Plan;
use sluicenet_node::device::PortId;
use sluicenet_node::server::App;
use sluicenet_node::steering::{Assigns, Steering};
use sluicenet_proto::hedera::detect::{Detection, FlowId, Sample};
use sluicenet_proto::hedera::scheduler::{Placement, Placer, Scheduler, Settings};
use sluicenet_proto::hedera::tree::{Link, Path, Tree};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_proto::routing::fat_tree::reporter::LargeFlows;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::{Routing, Scenario};
use sluicenet_sim::Engine;
use sluicenet_sim::world::{NetworkBox, Node, World};
use std::collections::BTreeSet;

/// Flows that are watched for each host, at most.
const FLOWS_OF_A_HOST_MAX: usize = 64;
/// Periods without a sample after which a flow has ended. A sample that is only read late does not end the flow.
const SILENT_PERIODS: u64 = 4;

/// Central controller that chooses paths.
#[derive(Debug)]
enum Central {
    /// No controller: switches choose by themselves.
    Nobody,
    /// Chapter 4.
    Hedera(Box<Scheduler>),
    /// 3.1.7.
    LargeFlows(Box<LargeFlows>),
    /// The controller has died.
    Dead,
}

/// Kind and settings of a central controller.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Nobody,
    Hedera(Settings),
    LargeFlows { fat_tree: FatTree, tree: Tree, large_bytes: u64, silence: Duration },
}

impl Kind {
    /// A new controller, which knows nothing yet.
    fn central(self, now: Instant) -> Central {
        match self {
            Kind::Nobody => Central::Nobody,
            Kind::Hedera(settings) => Central::Hedera(Box::new(Scheduler::new(settings))),
            Kind::LargeFlows { fat_tree, tree, large_bytes, silence } => {
                Central::LargeFlows(Box::new(LargeFlows::new(now, fat_tree, tree, large_bytes, silence)))
            }
        }
    }
}

/// An entry of a switch, by its number: the flow, and its port, or none where it is to be deleted.
pub(super) type Entry = (usize, u64, Option<PortId>);

/// The loop.
#[derive(Debug)]
pub(super) struct Control {
    tree: Tree,
    assigns: Assigns,
    kind: Kind,
    central: Central,
    /// Between two rounds.
    pub period: Duration,
    /// Time of the controller's death, and time at which another takes its place.
    dies: Option<Instant>,
    returns: Option<Instant>,
    /// Time of the controller's death, and the time at which switches forget its entries.
    dead_since: Option<Instant>,
    forget_at: Option<Instant>,
    /// Links that are known to be down.
    down: BTreeSet<Link>,
}

impl Control {
    /// The control loop of a scenario whose routing has one.
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
            Kind::Hedera(Settings { tree, detection, placer, period, seed: s.seed })
        };
        let (assigns, kind) = match s.topology.routing {
            Routing::GlobalFirstFit => (Assigns::Router, hedera(Placer::FirstFit)),
            Routing::SimulatedAnnealing => {
                (Assigns::Router, hedera(Placer::Annealing { iterations: settings.iterations }))
            }
            Routing::FlowScheduler => {
                let (large_bytes, silence) = (settings.large.as_bytes(), period.saturating_mul(SILENT_PERIODS));
                let fat_tree = FatTree::new(k).ok()?;
                (Assigns::LeastLoaded(period), Kind::LargeFlows { fat_tree, tree, large_bytes, silence })
            }
            _ => (Assigns::Classifier(period), Kind::Nobody),
        };
        let at = |time: Option<Duration>| time.map(|time| Instant(time.as_ps()));
        Some(Control {
            tree,
            assigns,
            kind,
            central: kind.central(Instant::ZERO),
            period,
            dies: at(settings.dies),
            returns: at(settings.returns),
            dead_since: None,
            forget_at: None,
            down: BTreeSet::new(),
        })
    }

    /// Whether the counts of edge switches are read.
    pub fn reads(&self) -> bool {
        !matches!(self.kind, Kind::Nobody)
    }

    /// Whether switches assign ports by the bytes that flows send.
    pub fn assigns_ports(&self) -> bool {
        self.assigns != Assigns::Router
    }

    /// Takes the count of a flow at an edge switch.
    pub fn hear(&mut self, now: Instant, sample: &Sample) {
        // A flow for which there is no room is one like any small one.
        match &mut self.central {
            Central::Nobody | Central::Dead => {}
            Central::Hedera(scheduler) => drop(scheduler.receive(now, sample)),
            Central::LargeFlows(flows) => drop(flows.receive(now, sample)),
        }
    }

    /// A flow is over.
    pub fn ended(&mut self, sample: &Sample) {
        match &mut self.central {
            Central::Nobody | Central::Dead => {}
            Central::Hedera(scheduler) => scheduler.handle_ended(sample.flow),
            Central::LargeFlows(flows) => flows.handle_ended(sample),
        }
    }

    /// A round over the switches of a world, whose first host-less box is number `hosts`.
    pub fn turn<A: App>(&mut self, now: Instant, engine: &mut Engine<A>, hosts: u32) {
        let edges = if self.reads() { self.tree.edges() } else { 0 };
        for edge in 0..edges {
            let mut read = of(engine, hosts + edge).map_or(Vec::new(), Steering::read);
            // Port by port, as the flow level has its flows: the first flow read has the first choice.
            read.sort_unstable_by_key(|(flow, c)| (c.src, c.dst, *flow));
            for (flow, c) in read {
                let age = Some(now.since(c.since));
                self.hear(now, &Sample { flow: FlowId(flow), src: c.src, dst: c.dst, bytes: c.bytes, age });
            }
        }
        self.timeout(now);
        self.enter(now, engine, hosts);
        if self.forgets(now) {
            for switch in 0..2 * self.tree.edges() {
                if let Some(steering) = of(engine, hosts + switch) {
                    steering.clear();
                }
            }
        }
    }

    /// Enters the placements that follow from all samples.
    fn enter<A: App>(&mut self, now: Instant, engine: &mut Engine<A>, hosts: u32) {
        for (switch, flow, port) in self.placements(now).into_iter().flat_map(|(_, entries)| entries) {
            if let Some(steering) = of(engine, hosts + switch as u32) {
                steering.set(flow, port);
            }
        }
    }

    /// A link is known to be down, or up again: flows over the link have another path at once, or none.
    pub fn handle_link(&mut self, now: Instant, link: Link, up: bool) {
        if up {
            self.down.remove(&link);
        } else {
            self.down.insert(link);
        }
        match &mut self.central {
            Central::Nobody | Central::Dead => {}
            Central::Hedera(scheduler) => drop(scheduler.handle_link(now, link, up)),
            Central::LargeFlows(flows) => drop(flows.handle_link(link, up)),
        }
    }

    /// A round: all samples were told.
    pub fn timeout(&mut self, now: Instant) {
        if self.dead_since.is_some() && self.returns.is_some_and(|at| now >= at) {
            (self.dead_since, self.dies, self.returns) = (None, None, None);
            self.central = self.kind.central(now);
            // An entry that the new controller does not know is none of its own.
            self.forget_at = Some(now);
            for link in self.down.clone() {
                self.handle_link(now, link, false);
            }
        }
        match &mut self.central {
            Central::Nobody | Central::Dead => {}
            Central::Hedera(scheduler) => scheduler.handle_timeout(now),
            Central::LargeFlows(flows) => flows.handle_timeout(now),
        }
    }

    /// Whether switches are to forget all entries: the controller has been silent for long, or a new one has started.
    pub fn forgets(&mut self, now: Instant) -> bool {
        self.forget_at.take_if(|at| now >= *at).is_some()
    }

    /// Entries to make, in order. A controller that dies in this round makes half of its placements, and only the first
    /// entry of the next one.
    pub fn placements(&mut self, now: Instant) -> Vec<(Placement, Vec<Entry>)> {
        let mut all = Vec::new();
        while let Some(placement) = match &mut self.central {
            Central::Nobody | Central::Dead => None,
            Central::Hedera(scheduler) => scheduler.poll_placement(),
            Central::LargeFlows(flows) => flows.poll_placement(),
        } {
            let entries = self.entries(&placement);
            all.push((placement, entries));
        }
        if self.dead_since.is_none() && self.reads() && self.dies.is_some_and(|at| now >= at) {
            let half = all.len() / 2;
            if let Some((_, entries)) = all.get_mut(half) {
                entries.truncate(1);
            }
            all.truncate(half + 1);
            self.central = Central::Dead;
            self.dead_since = Some(now);
            self.forget_at = Some(now.saturating_add(self.period.saturating_mul(SILENT_PERIODS)));
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

/// The parts of all switches of a fat-tree: those that the loop needs or, without a loop, those that avoid failures.
pub(super) fn steering(s: &Scenario, control: Option<&Control>) -> Vec<Steering> {
    let Some(tree) = s.topology.fat_tree_k().and_then(|k| FatTree::new(k).ok()) else { return Vec::new() };
    let (half, edges) = (tree.half() as PortId, tree.subnets());
    let assigns = control.map_or(Assigns::Router, |c| c.assigns);
    (0..tree.switches_total())
        .map(|switch| {
            // Cores have no choice.
            let (up, assigns) =
                if switch < 2 * edges { ((half, half), assigns) } else { ((tree.k() as PortId, 0), Assigns::Router) };
            let counts = switch < edges && control.is_some_and(Control::reads);
            Steering::new(up, tree.hosts(), hash_words(&[s.seed, switch.into()]), assigns, counts)
        })
        .collect()
}

/// Gives the switches of a world their parts.
pub(super) fn install<A>(s: &Scenario, control: Option<&Control>, world: &mut World<A>) {
    let mut of_switches = steering(s, control).into_iter();
    let steer = |node| match node {
        Node::Network(Some(network)) => match *network {
            NetworkBox::Switch(switch) => match of_switches.next() {
                Some(steering) => Node::switch(switch.steered(steering)),
                None => Node::switch(switch),
            },
            NetworkBox::Bump(bump) => Node::bump(bump),
        },
        other @ (Node::Server(_) | Node::Network(None)) => other,
    };
    world.nodes = std::mem::take(&mut world.nodes).into_iter().map(steer).collect();
}

fn of<A: App>(engine: &mut Engine<A>, switch: u32) -> Option<&mut Steering> {
    engine.node_mut(switch).as_switch_mut()?.steering_mut()
}

/// Applies changes to the switches of a world, and reports them to the controller.
pub(super) fn apply<A: App>(
    changes: &Changes,
    control: Option<&mut Control>,
    now: Instant,
    engine: &mut Engine<A>,
    hosts: u32,
) {
    for &((switch, port), up) in &changes.carries {
        engine.set_link((hosts + switch, port), up);
    }
    for (switch, tags) in &changes.informed {
        if let Some(steering) = of(engine, hosts + switch) {
            steering.know(tags.clone());
        }
    }
    if let Some(control) = control {
        changes.links.iter().for_each(|&(link, up)| control.handle_link(now, link, up));
        control.enter(now, engine, hosts);
    }
}
