//! The network of a scenario: the links between ports of boxes, and the routing of frames.

use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::dependency::Dependencies;
use sluicenet_proto::routing::table::TableRouter;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::{SwitchName, Xgft};
use sluicenet_proto::routing::{Policy, Router};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::HpccTopology;
use sluicenet_scenario::{Bytes, Deadlock, Forwarding, Link, PortSelector, Result, Routing, Scenario, Shape, Warning};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

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
    /// Its ports.
    pub ports: Vec<Attachment>,
    /// Its decision.
    pub router: Router,
    /// Time a frame takes through it.
    pub delay: Duration,
    /// Buffer of a port.
    pub buffer: Bytes,
}

/// The links of hosts, one host after the other.
#[derive(Clone, Debug)]
struct HostLinks {
    ends: Vec<Attachment>,
    /// Start of each host's links, and end of the last host's links.
    first: Vec<u32>,
}

impl HostLinks {
    fn new(hosts: impl Iterator<Item = Vec<Attachment>>) -> HostLinks {
        let mut links = HostLinks { ends: Vec::new(), first: vec![0] };
        for ends in hosts {
            links.ends.extend(ends);
            links.first.push(links.ends.len() as u32);
        }
        links
    }
    fn len(&self) -> u32 {
        self.first.len() as u32 - 1
    }
    fn of(&self, host: HostId) -> &[Attachment] {
        &self.ends[self.first[host as usize] as usize..self.first[host as usize + 1] as usize]
    }
}

/// Choice among the links of a host that has several.
#[derive(Clone, Debug)]
enum HostRouting {
    /// Arithmetic in a tree, with the roots that external hosts are attached to.
    Tree { tree: Xgft, roots: Vec<SwitchName>, policy: Policy, seed: u64 },
    /// The tables of the hosts that have several.
    Tables(BTreeMap<HostId, Router>),
}

/// A network: hosts first, then switches, edge level first.
#[derive(Clone, Debug)]
pub struct Plan {
    hosts: HostLinks,
    external: u32,
    switches: Vec<SwitchPlan>,
    routing: HostRouting,
    first_link: Vec<u32>,
}

/// Where the numbers of hosts begin among those that set the draws of tables apart: after all switches.
const HOST_DRAWS: u64 = 1 << 32;

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

/// Delay and buffer of a switch, where the topology's file gives none.
fn own(scenario: &Scenario) -> (Duration, Bytes) {
    (scenario.switch.delay, scenario.switch.buffer)
}

impl Plan {
    /// The network of a scenario.
    pub fn new(scenario: &Scenario) -> Result<Plan> {
        let topology = &scenario.topology;
        let mut plan = match &topology.shape {
            Shape::Xgft { m, w } => tree(scenario, m, w, &topology.levels, &|_| own(scenario))?,
            Shape::Htsim { file } => {
                let (m, w) = file.content.as_xgft();
                let of_level = |level: u8| {
                    let tier = &file.content.tiers[level as usize - 1];
                    let (delay, buffer) = own(scenario);
                    (tier.switch_delay.unwrap_or(delay), tier.buffer.map_or(buffer, |b| b.0))
                };
                tree(scenario, &m, &w, &topology.levels, &of_level)?
            }
            Shape::Hpcc { file } => graph(scenario, &file.path, &file.content)?,
        };
        plan.first_link = plan.link_starts();
        Ok(plan)
    }

    fn link_starts(&self) -> Vec<u32> {
        let mut starts = self.hosts.first.clone();
        let mut at = starts.pop().unwrap_or(0);
        for s in &self.switches {
            starts.push(at);
            at += s.ports.len() as u32;
        }
        starts
    }

    /// Hosts, external ones included.
    pub fn hosts(&self) -> u32 {
        self.hosts.len()
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
        self.hosts.len() as usize + self.switches.len()
    }
    /// A host's links.
    pub fn host(&self, host: HostId) -> &[Attachment] {
        self.hosts.of(host)
    }
    /// Speed of a host: of all its links together.
    pub fn host_rate(&self, host: HostId) -> Rate {
        self.rate_of_all(host)
    }
    /// Router that chooses among a host's links; `None` for a host with one link.
    pub fn host_router(&self, host: HostId) -> Option<Router> {
        if self.host(host).len() == 1 {
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
    /// Place of the direction that leaves a port in [`Plan::directions`].
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
        match node.checked_sub(self.hosts()) {
            None => self.hosts.of(node).len(),
            Some(s) => self.switches[s as usize].ports.len(),
        }
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
        let ends = match node.checked_sub(self.hosts()) {
            None => self.host(node),
            Some(s) => &self.switches[s as usize].ports,
        };
        Rate(ends.iter().map(|a| a.link.rate.as_bps()).sum())
    }
    /// The link of a port.
    pub fn link(&self, node: NodeId, port: PortId) -> Link {
        self.attachment(node, port).link
    }
    fn attachment(&self, node: NodeId, port: PortId) -> &Attachment {
        match node.checked_sub(self.hosts()) {
            None => &self.hosts.of(node)[port as usize],
            Some(s) => &self.switches[s as usize].ports[port as usize],
        }
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

    /// The parts that threads divide among themselves: subtrees below the top, each with its share of the top; where there
    /// is no tree, every switch with the hosts at it.
    pub fn parts(&self) -> Vec<u32> {
        let Some(t) = self.tree() else {
            let of_hosts = (0..self.hosts()).map(|h| self.host(h)[0].peer.saturating_sub(self.hosts()));
            return of_hosts.chain(0..self.switches.len() as u32).collect();
        };
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

    /// Both directions of every link, in the order of [`Plan::link_index`].
    pub fn directions(&self, scenario: &Scenario) -> Vec<Direction> {
        let cut_through = scenario.switch.forwarding == Forwarding::CutThrough;
        let fastest: Vec<u64> =
            self.switches.iter().map(|s| s.ports.iter().map(|p| p.link.rate.as_bps()).max().unwrap_or(0)).collect();
        let ends = (0..self.hosts()).flat_map(|h| (0u16..).zip(self.host(h)).map(move |(p, a)| (h, p, a)));
        let ports =
            self.switches.iter().enumerate().flat_map(|(i, s)| {
                s.ports.iter().enumerate().map(move |(p, a)| (self.hosts() + i as u32, p as u16, a))
            });
        ends.chain(ports)
            .map(|(node, port, a)| {
                let adapter = |n: NodeId| if n < self.hosts() { scenario.adapter.delay } else { Duration::ZERO };
                let through = match a.peer.checked_sub(self.hosts()) {
                    Some(s) => self.switches[s as usize].delay,
                    None => Duration::ZERO,
                };
                let to_switch = a.peer.checked_sub(self.hosts());
                // A frame is forwarded on its first bit only if no output could overtake its last.
                let first_bit = cut_through && to_switch.is_some_and(|s| a.link.rate.as_bps() >= fastest[s as usize]);
                Direction {
                    from: (node, port),
                    to: (a.peer, a.peer_port),
                    rate: a.link.rate,
                    latency: a.link.delay + adapter(node) + adapter(a.peer) + through,
                    first_bit,
                    pause_latency: a.link.delay + scenario.pfc.response,
                    bit_error_rate: a.link.bit_error_rate,
                }
            })
            .collect()
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
                let node = self.first_link.partition_point(|&f| f <= c) as u32 - 1;
                format!("{} port {}", self.name(node), c - self.first_link[node as usize])
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

    /// Which outputs can wait for which, over all destinations. Nothing waits for a host's output: hosts forward nothing.
    fn dependencies(&self) -> Dependencies {
        let links =
            self.first_link.last().map_or(0, |&l| l as usize) + self.switches.last().map_or(1, |s| s.ports.len());
        let mut d = Dependencies::new(links);
        for dst in 0..self.hosts() {
            let distance = distances(&self.hosts, &self.switches, dst);
            let towards = shortest_ports(&self.hosts, &self.switches, dst, &distance);
            for (i, ports) in towards.iter().enumerate() {
                let node = self.hosts() + i as u32;
                for &p in ports {
                    let next = self.switches[i].ports[p as usize].peer;
                    let Some(j) = next.checked_sub(self.hosts()) else { continue };
                    for &q in &towards[j as usize] {
                        d.add(self.link_index(node, p) as u32, self.link_index(next, q) as u32);
                    }
                }
            }
        }
        d
    }
}

/// An extended generalised fat-tree with external hosts at its roots.
fn tree(
    scenario: &Scenario,
    m: &[u32],
    w: &[u32],
    levels: &[Link],
    of_level: &dyn Fn(u8) -> (Duration, Bytes),
) -> Result<Plan> {
    let t = Xgft::new(m, w).map_err(|e| scenario.locations.error("topology", format!("this is no tree: {e:?}")))?;
    let topology = &scenario.topology;
    let external = topology.external_hosts;
    let leaves = t.leaves();
    let hosts_total = leaves + external;
    let names: Vec<SwitchName> = t.switches().collect();
    let roots: Vec<SwitchName> = names.iter().copied().filter(|s| s.level == t.levels()).collect();
    let root_of: Vec<SwitchName> = (0..external).map(|e| roots[e as usize % roots.len()]).collect();
    let link = |level: u8| levels.get(level as usize - 1).copied().unwrap_or(topology.link);
    let node = |s: SwitchName| hosts_total + t.index(s);

    let of_leaf = |h: HostId| {
        let end = |j| Attachment { peer: node(t.leaf_parent(h, j)), peer_port: (h % m[0]) as u16, link: link(1) };
        (0..t.parents(0)).map(end).collect()
    };
    let mut switches: Vec<SwitchPlan> = names
        .iter()
        .map(|&s| {
            let down = (0..t.children(s.level)).map(|c| {
                let (peer, peer_port) = if s.level == 1 {
                    (s.group * t.children(1) + c, s.position as u16)
                } else {
                    let below = t.positions(s.level - 1);
                    let child = SwitchName {
                        level: s.level - 1,
                        group: s.group * t.children(s.level) + c,
                        position: s.position % below,
                    };
                    (node(child), (t.children(child.level) + s.position / below) as u16)
                };
                Attachment { peer, peer_port, link: link(s.level) }
            });
            let up = (0..t.parents(s.level)).map(|j| {
                let parent = t.parent(s, j);
                let peer_port = (s.group % t.children(parent.level)) as u16;
                Attachment { peer: node(parent), peer_port, link: link(parent.level) }
            });
            let router = TreeRouter::new(&t, s, policy(topology.routing), scenario.seed, &root_of);
            let (delay, buffer) = of_level(s.level);
            SwitchPlan { level: s.level, ports: down.chain(up).collect(), router: Router::Tree(router), delay, buffer }
        })
        .collect();
    let mut clients = Vec::new();
    for (e, root) in root_of.iter().enumerate() {
        let s = &mut switches[t.index(*root) as usize];
        let port = s.ports.len() as u16;
        s.ports.push(Attachment { peer: leaves + e as u32, peer_port: 0, link: topology.link });
        clients.push(vec![Attachment { peer: node(*root), peer_port: port, link: topology.link }]);
    }
    let hosts = HostLinks::new((0..leaves).map(of_leaf).chain(clients));
    let routing = HostRouting::Tree { tree: t, roots: root_of, policy: policy(topology.routing), seed: scenario.seed };
    Ok(Plan { hosts, external, switches, routing, first_link: Vec::new() })
}

/// Any graph, with shortest paths.
fn graph(scenario: &Scenario, path: &str, file: &HpccTopology) -> Result<Plan> {
    let fail = |message: String| scenario.locations.error("topology.file", format!("{path}: {message}"));
    // As the file numbers it: hosts and switches alike.
    let node_of_host = |h: HostId| (0..file.nodes).filter(|&n| file.host_of(n).is_some()).nth(h as usize).unwrap_or(h);
    let no_way = |node: u32, dst: HostId| {
        let e = fail(format!("node {node} has no way to node {}: hosts forward nothing", node_of_host(dst)));
        let is_host = |n: u32| file.host_of(n).is_some();
        match file.links.iter().find(|l| is_host(l.a) && is_host(l.b)) {
            Some(l) => e.hint(format!("line {} links nodes {} and {}, which are both hosts", l.line, l.a, l.b)),
            None => e.hint("some other host would have to forward between them"),
        }
    };
    let host_count = file.hosts();
    let mut hosts: Vec<Vec<Attachment>> = vec![Vec::new(); host_count as usize];
    let mut switches: Vec<Vec<Attachment>> = vec![Vec::new(); file.switches.len()];
    let id = |n: u32| file.host_of(n).or_else(|| file.switch_of(n).map(|s| host_count + s));
    for l in &file.links {
        let (Some(a), Some(b)) = (id(l.a), id(l.b)) else { continue };
        let port = |n: u32| match n.checked_sub(host_count) {
            Some(s) => switches[s as usize].len() as u16,
            None => hosts[n as usize].len() as u16,
        };
        let (pa, pb) = (port(a), port(b));
        // The file gives the chance that a packet of 1,000 bytes (its own default) is damaged; a link has one per bit.
        let bit_error_rate = -libm::expm1(libm::log1p(-l.packet_error_rate) / 8_000.0);
        let link = Link { rate: l.rate, delay: l.delay, bit_error_rate };
        for (me, peer, peer_port) in [(a, b, pb), (b, a, pa)] {
            let end = Attachment { peer, peer_port, link };
            match me.checked_sub(host_count) {
                Some(s) => switches[s as usize].push(end),
                None => hosts[me as usize].push(end),
            }
        }
    }
    if let Some(h) = hosts.iter().position(Vec::is_empty) {
        return Err(fail(format!("node {} has no link", node_of_host(h as HostId))));
    }
    let hosts = HostLinks::new(hosts.into_iter());
    let mut plans: Vec<SwitchPlan> = switches
        .into_iter()
        .map(|ports| SwitchPlan {
            level: 0,
            ports,
            router: Router::Table(TableRouter::new(core::iter::empty(), Policy::Hash, 0, 0)),
            delay: scenario.switch.delay,
            buffer: scenario.switch.buffer,
        })
        .collect();
    assign_levels(&hosts, &mut plans);
    let mut towards: Vec<Vec<Vec<u16>>> = vec![Vec::with_capacity(host_count as usize); plans.len()];
    let several = |&h: &HostId| hosts.of(h).len() > 1;
    let mut from_hosts: BTreeMap<HostId, Vec<Vec<u16>>> =
        (0..host_count).filter(several).map(|h| (h, vec![])).collect();
    for dst in 0..host_count {
        let distance = distances(&hosts, &plans, dst);
        for (i, ports) in shortest_ports(&hosts, &plans, dst, &distance).into_iter().enumerate() {
            if ports.is_empty() {
                return Err(no_way(file.switches[i], dst));
            }
            towards[i].push(ports);
        }
        if let Some(h) = (0..host_count).find(|h| !distance.contains_key(h)) {
            return Err(no_way(node_of_host(h), dst));
        }
        for (&h, lists) in &mut from_hosts {
            lists.push(nearer_ports(hosts.of(h), h, dst, host_count, &distance));
        }
    }
    let policy = policy(scenario.topology.routing);
    let seed = scenario.seed;
    let tables = from_hosts
        .into_iter()
        .map(|(h, lists)| (h, Router::Table(TableRouter::new(lists.into_iter(), policy, seed, HOST_DRAWS + h as u64))))
        .collect();
    for (i, lists) in towards.into_iter().enumerate() {
        plans[i].router = Router::Table(TableRouter::new(lists.into_iter(), policy, seed, i as u64));
    }
    let routing = HostRouting::Tables(tables);
    Ok(Plan { hosts, external: 0, switches: plans, routing, first_link: Vec::new() })
}

/// Level of a switch in a graph: one more than its distance from the nearest switch with hosts.
fn assign_levels(hosts: &HostLinks, switches: &mut [SwitchPlan]) {
    let first = hosts.len();
    let mut queue: VecDeque<u32> = VecDeque::new();
    for h in &hosts.ends {
        let Some(s) = h.peer.checked_sub(first) else { continue };
        if switches[s as usize].level == 0 {
            switches[s as usize].level = 1;
            queue.push_back(s);
        }
    }
    while let Some(s) = queue.pop_front() {
        let level = switches[s as usize].level;
        let peers: Vec<u32> = switches[s as usize].ports.iter().filter_map(|a| a.peer.checked_sub(first)).collect();
        for p in peers {
            if switches[p as usize].level == 0 {
                switches[p as usize].level = level.saturating_add(1);
                queue.push_back(p);
            }
        }
    }
}

/// How many links every box is from a host, as far as there is a way over switches.
fn distances(hosts: &HostLinks, switches: &[SwitchPlan], dst: HostId) -> BTreeMap<NodeId, u32> {
    let mut distance: BTreeMap<NodeId, u32> = BTreeMap::from([(dst, 0)]);
    let mut queue = VecDeque::from([dst]);
    while let Some(n) = queue.pop_front() {
        let d = distance[&n];
        let ends = match n.checked_sub(hosts.len()) {
            None if n == dst => hosts.of(n),
            None => continue, // hosts forward nothing
            Some(s) => &switches[s as usize].ports,
        };
        for e in ends.iter().map(|a| a.peer) {
            distance.entry(e).or_insert_with(|| {
                queue.push_back(e);
                d + 1
            });
        }
    }
    distance
}

/// For every switch the ports on a shortest path to a host.
fn shortest_ports(
    hosts: &HostLinks,
    switches: &[SwitchPlan],
    dst: HostId,
    distance: &BTreeMap<NodeId, u32>,
) -> Vec<Vec<u16>> {
    let of_switch = |(s, node): (&SwitchPlan, NodeId)| nearer_ports(&s.ports, node, dst, hosts.len(), distance);
    switches.iter().zip(hosts.len()..).map(of_switch).collect()
}

/// The ports of a box that are on a shortest path to a host.
fn nearer_ports(
    ports: &[Attachment],
    node: NodeId,
    dst: HostId,
    hosts: u32,
    distance: &BTreeMap<NodeId, u32>,
) -> Vec<u16> {
    let Some(&mine) = distance.get(&node) else { return Vec::new() };
    let nearer = |a: &Attachment| {
        let is_way = a.peer == dst || a.peer >= hosts;
        is_way && distance.get(&a.peer).is_some_and(|&d| d + 1 == mine)
    };
    (0..ports.len() as u16).filter(|&p| nearer(&ports[p as usize])).collect()
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
