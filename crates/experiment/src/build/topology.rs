//! The network of a scenario: the links between ports of boxes, and the routing of frames.

mod graph;
mod tree;

use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::switch::PortBuffers;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::{SwitchName, Xgft};
use sluicenet_proto::routing::{Policy, Router};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Deadlock, Link, PortBuffer, PortSelector, Result, Routing, Scenario, Shape, Warning};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// One end of a link.
#[derive(Clone, Copy, Debug)]
pub struct Attachment {
    /// The box at the other end.
    pub peer: NodeId,
    /// Its port.
    pub peer_port: PortId,
    /// The link.
    pub link: Link,
}

/// A switch of the plan.
#[derive(Clone, Debug)]
pub struct SwitchPlan {
    /// 1 next to the hosts, and up.
    pub level: u8,
    /// Rate of its fastest port.
    pub fastest: Rate,
    /// Its decision.
    pub router: Router,
    /// Time a frame takes through it.
    pub delay: Duration,
    /// Buffers of its ports.
    pub buffers: PortBuffers,
    /// Whether shortest paths through it precede others, as in SimAI's simulator those through an NVSwitch.
    pub is_first: bool,
}

/// The ends of all links.
#[derive(Clone, Debug)]
enum Ends {
    /// Arithmetic in a tree.
    Tree(tree::Ends),
    /// Box after box, at [`Plan::link_index`].
    Table(Vec<Attachment>),
}

/// Choice among the links of a host that has several.
#[derive(Clone, Debug)]
enum HostRouting {
    /// Arithmetic in a tree, with the roots that external hosts are attached to.
    Tree { tree: Xgft, roots: Vec<SwitchName>, policy: Policy, seed: u64 },
    /// The tables of the hosts that have several.
    Tables(BTreeMap<HostId, Router>),
}

/// Settings of the switches of a level.
#[derive(Clone, Copy)]
struct Tier {
    delay: Duration,
    /// Buffer of a port downwards.
    down: PortBuffer,
    /// Buffer of a port upwards.
    up: PortBuffer,
}

impl Tier {
    /// The scenario's, where the topology's file gives none.
    fn of(scenario: &Scenario) -> Tier {
        let buffer = scenario.switch.buffer;
        Tier { delay: scenario.switch.delay, down: buffer, up: buffer }
    }

    /// Buffers of so many ports downwards and upwards. Ports to external hosts lead down from a root.
    fn buffers(&self, down: u32, up: u32) -> PortBuffers {
        let (PortBuffer::Bytes(of_down), PortBuffer::Bytes(of_up)) = (self.down, self.up) else {
            return alike(self.down);
        };
        if up == 0 || of_down == of_up {
            return alike(self.down);
        }
        let each = [(of_down, down), (of_up, up)];
        let each = each.into_iter().flat_map(|(bytes, n)| (0..n).map(move |_| bytes.as_bytes() as u32));
        PortBuffers::Each(each.collect())
    }
}

/// The same buffer for every port.
fn alike(buffer: PortBuffer) -> PortBuffers {
    match buffer {
        PortBuffer::Bytes(bytes) => PortBuffers::Alike(bytes.as_bytes() as u32),
        PortBuffer::Packets(packets) => PortBuffers::Frames(packets.0),
    }
}

/// A network: hosts first, then switches, edge level first.
#[derive(Clone, Debug)]
pub struct Plan {
    hosts: u32,
    external: u32,
    switches: Vec<SwitchPlan>,
    ends: Ends,
    routing: HostRouting,
    /// Of each box, and the number of all directions.
    first_link: Vec<u32>,
}

/// The first direction of each box with so many ports, and the number of all directions.
fn first_links(ports: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut first = vec![0];
    let mut all = 0;
    first.extend(ports.map(|ports| {
        all += ports;
        all
    }));
    first
}

fn policy(routing: Routing) -> Policy {
    match routing {
        // A switch without state of its own for a flow sends the flow by the tables (Al-Fares 2012, 3.1.6).
        Routing::FlowClassifier | Routing::FlowScheduler => Policy::TwoLevel,
        Routing::GlobalFirstFit | Routing::SimulatedAnnealing => Policy::Hash,
        // The path without congestion.
        Routing::SwitchAr | Routing::R2c2 | Routing::R3c2 => Policy::DModK,
        // There is one way.
        Routing::NonBlocking | Routing::Hierarchical => Policy::DModK,
        _ => Policy::named(routing.name()).expect("a routing without a control loop is the policy of its name"),
    }
}

impl Plan {
    /// The network of a scenario.
    pub fn new(scenario: &Scenario) -> Result<Plan> {
        let topology = &scenario.topology;
        match &topology.shape {
            Shape::Xgft { m, w, links } => tree::plan(scenario, (m, w, links), &|_| Tier::of(scenario)),
            Shape::Htsim { file } => {
                let (m, w, links) = file.content.as_pgft();
                let of_level = |level: u8| {
                    let (tier, own) = (&file.content.tiers[level as usize - 1], Tier::of(scenario));
                    Tier {
                        delay: tier.switch_delay.unwrap_or(own.delay),
                        down: tier.queue_down.map_or(own.down, |queue| PortBuffer::Bytes(queue.size)),
                        up: tier.queue_up.map_or(own.up, |queue| PortBuffer::Bytes(queue.size)),
                    }
                };
                tree::plan(scenario, (&m, &w, &links), &of_level)
            }
            Shape::Hpcc { file } => graph::plan(scenario, &file.path, &file.content),
        }
    }

    /// Hosts, external ones included.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }
    /// External hosts, the last ones.
    pub fn external(&self) -> u32 {
        self.external
    }
    /// Switches.
    pub fn switches(&self) -> &[SwitchPlan] {
        &self.switches
    }
    /// Boxes.
    pub fn nodes(&self) -> usize {
        self.hosts as usize + self.switches.len()
    }
    /// Speed of a host: of all its links together.
    pub fn host_rate(&self, host: HostId) -> Rate {
        self.rate_of_all(host)
    }
    /// Router that chooses among a host's links; `None` for a host with one link.
    pub fn host_router(&self, host: HostId) -> Option<Router> {
        if self.ports(host) == 1 {
            return None;
        }
        match &self.routing {
            HostRouting::Tree { tree, roots, policy, seed } => {
                Some(Router::Tree(TreeRouter::of_leaf(tree, host, *policy, *seed, roots)))
            }
            HostRouting::Tables(tables) => tables.get(&host).cloned(),
        }
    }
    /// The tree it is, if it is one.
    pub fn tree(&self) -> Option<&Xgft> {
        match &self.routing {
            HostRouting::Tree { tree, .. } => Some(tree),
            HostRouting::Tables(_) => None,
        }
    }
    /// Place of the direction that leaves a port among those of all boxes.
    pub fn link_index(&self, node: NodeId, port: PortId) -> usize {
        (self.first_link[node as usize] + port as u32) as usize
    }
    /// The box and port at the other end of a port's link.
    pub fn peer(&self, node: NodeId, port: PortId) -> (NodeId, PortId) {
        let a = self.attachment(node, port);
        (a.peer, a.peer_port)
    }
    /// Ports of a box.
    pub fn ports(&self, node: NodeId) -> usize {
        (self.first_link[node as usize + 1] - self.first_link[node as usize]) as usize
    }
    /// Router that decides where a box sends frames; `None` for a host with one link.
    pub fn router(&self, node: NodeId) -> Option<Cow<'_, Router>> {
        match node.checked_sub(self.hosts()) {
            None => self.host_router(node).map(Cow::Owned),
            Some(s) => Some(Cow::Borrowed(&self.switches[s as usize].router)),
        }
    }
    /// Speed of a port.
    pub fn rate(&self, node: NodeId, port: PortId) -> Rate {
        self.attachment(node, port).link.rate
    }
    /// Speed of all ports of a box together.
    pub fn rate_of_all(&self, node: NodeId) -> Rate {
        Rate(self.ends(node).map(|a| a.link.rate.as_bps()).sum())
    }
    /// The link of a port.
    pub fn link(&self, node: NodeId, port: PortId) -> Link {
        self.attachment(node, port).link
    }
    /// The end of a port's link.
    pub fn attachment(&self, node: NodeId, port: PortId) -> Attachment {
        debug_assert!(usize::from(port) < self.ports(node));
        match &self.ends {
            Ends::Tree(tree) => tree.of(node, port),
            Ends::Table(ends) => ends[self.link_index(node, port)],
        }
    }
    /// The links of a box, by its ports.
    pub fn ends(&self, node: NodeId) -> impl Iterator<Item = Attachment> {
        (0..self.ports(node) as PortId).map(move |port| self.attachment(node, port))
    }
    /// Directions of all links.
    pub fn directions(&self) -> usize {
        self.first_link.last().map_or(0, |&links| links as usize)
    }
    /// The sender of a direction, by its place.
    pub fn sender(&self, link: usize) -> (NodeId, PortId) {
        let node = self.first_link.partition_point(|&first| first as usize <= link) - 1;
        (node as NodeId, (link - self.first_link[node] as usize) as PortId)
    }
    /// The ports that `[record]` names under `key`; all where it names none.
    ///
    /// # Errors
    /// A port that its switch does not have.
    pub fn selected(
        &self,
        scenario: &Scenario,
        key: &str,
        selectors: &[PortSelector],
    ) -> Result<Vec<(NodeId, PortId)>> {
        let mut ports = Vec::new();
        if selectors.is_empty() {
            for node in 0..self.nodes() as NodeId {
                ports.extend((0..self.ports(node)).map(|p| (node, p as PortId)));
            }
        }
        for &selector in selectors {
            ports.extend(self.ports_of(scenario, &format!("record.{key}"), selector)?);
        }
        ports.sort_unstable();
        ports.dedup();
        Ok(ports)
    }

    /// The ports that a name selects; `key` is where it is written.
    ///
    /// # Errors
    /// A port that its switch does not have.
    pub fn ports_of(&self, scenario: &Scenario, key: &str, selector: PortSelector) -> Result<Vec<(NodeId, PortId)>> {
        let all = |node: NodeId| (0..self.ports(node) as PortId).map(move |port| (node, port)).collect();
        match selector {
            PortSelector::Host(host) => Ok(all(host)),
            PortSelector::Switch(s) => Ok(all(self.hosts() + s)),
            PortSelector::SwitchPort(s, port) => {
                let (node, ports) = (self.hosts() + s, self.ports(self.hosts() + s) as u32);
                if port >= ports {
                    let message = format!("switch {s} has ports 0 to {}, not {port}", ports - 1);
                    return Err(scenario.locations.error(key, message));
                }
                Ok(vec![(node, port as PortId)])
            }
        }
    }

    /// The name of a box in records.
    pub fn name(&self, node: NodeId) -> String {
        match node.checked_sub(self.hosts()) {
            None => format!("host {node}"),
            Some(s) => format!("switch {s}"),
        }
    }
    /// Level of a box: 0 a host, 1 the switch next to it, and up.
    pub fn level(&self, node: NodeId) -> u8 {
        match node.checked_sub(self.hosts()) {
            None => 0,
            Some(s) => self.switches[s as usize].level,
        }
    }
    /// Hosts in the same subtree of `level` as `host`, without external ones; the whole network where there is no tree.
    pub fn chassis(&self, host: HostId, level: u8) -> core::ops::Range<HostId> {
        let inner = self.hosts() - self.external;
        match self.tree() {
            Some(t) if level <= t.levels() => {
                let size = t.leaves_below(level);
                let first = host / size * size;
                first..(first + size).min(inner)
            }
            _ => 0..inner,
        }
    }

    /// The parts that `threads` threads divide among themselves. About as many frames pass between threads in the two ways to
    /// divide a tree.
    ///
    /// In planes: every edge switch with its hosts is a part, and so are all switches above that reach each other without
    /// passing an edge switch. Hosts that begin one after the other then fall to different threads. In subtrees, where the
    /// planes are no multiple of the threads: subtrees below the top, each with its share of the top. Where there is no
    /// tree, every switch with its hosts is a part.
    pub fn parts(&self, threads: usize) -> Vec<u32> {
        let Some(t) = self.tree() else {
            let of_hosts = (0..self.hosts()).map(|h| self.peer(h, 0).0.saturating_sub(self.hosts()));
            return of_hosts.chain(0..self.switches.len() as u32).collect();
        };
        let planes = if t.levels() > 1 { t.positions(2) } else { 1 };
        if threads > 1 && planes as usize % threads == 0 { self.planes(t, planes) } else { self.subtrees(t) }
    }

    fn planes(&self, t: &Xgft, planes: u32) -> Vec<u32> {
        let edges = t.groups(1);
        let of_switch = |s: SwitchName| if s.level == 1 { s.group } else { edges + s.position % planes };
        let of_switches: Vec<u32> = t.switches().map(of_switch).collect();
        let of_external = (t.leaves()..self.hosts()).map(|h| of_switches[(self.peer(h, 0).0 - self.hosts()) as usize]);
        (0..t.leaves()).map(|h| h / t.children(1)).chain(of_external).chain(of_switches.iter().copied()).collect()
    }

    fn subtrees(&self, t: &Xgft) -> Vec<u32> {
        let top = t.levels();
        let parts = if top > 1 { t.children(top) } else { 1 };
        let below = t.leaves() / parts;
        let mut part: Vec<u32> = (0..t.leaves()).map(|h| h / below).collect();
        part.extend((0..self.external).map(|e| e % parts));
        for s in t.switches() {
            part.push(if s.level == top {
                (s.position as u64 * parts as u64 / t.switches_at(top) as u64) as u32
            } else {
                s.group * t.leaves_below(s.level) / below
            });
        }
        part
    }

    /// Looks for cyclic buffer dependencies among lossless classes; as the scenario says, refuses or warns.
    pub fn check_deadlock(&self, scenario: &Scenario) -> Result<Vec<Warning>> {
        // Up and then down a tree there is no way back: no cycle is possible (Crisan 2014, 2.2.1).
        if !scenario.pfc.enabled || scenario.pfc.deadlock == Deadlock::Ignore || self.tree().is_some() {
            return Ok(Vec::new());
        }
        let Some(cycle) = self.dependencies().cycle() else { return Ok(Vec::new()) };
        let names: Vec<String> = cycle
            .iter()
            .map(|&c| {
                let (node, port) = self.sender(c as usize);
                format!("{} port {port}", self.name(node))
            })
            .collect();
        let message = format!(
            "lossless classes can deadlock: a cycle of buffers waits for each other through {}",
            names.join(" -> ")
        );
        match scenario.pfc.deadlock {
            Deadlock::Refuse => {
                Err(scenario.locations.error("pfc", message).hint("set pfc.deadlock = \"warn\" to run it all the same"))
            }
            _ => Ok(vec![scenario.locations.warning("pfc.deadlock", message)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_scenario::setting::Choice;

    #[test]
    fn every_routing_has_a_policy_and_every_policy_is_a_routing() {
        let of_routings: Vec<Policy> = Routing::ALL.iter().map(|&routing| policy(routing)).collect();
        assert!(Policy::ALL.iter().all(|policy| of_routings.contains(policy)));
    }
}
