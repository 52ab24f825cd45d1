//! XCo's coordinators and controllers, and the network as the controllers know it.

use super::{Plan, framing};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{Address, FlowKey, Kind, Packet};
use sluicenet_node::server::{StageConfig, XcoControllerConfig, XcoGateConfig};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::controller::{ControllerConfig, Peer, PolicyConfig, Weights};
use sluicenet_proto::xco::hierarchy::{HierarchyConfig, LEVELS_MAX};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{Link, Topology, TopologyError};
use sluicenet_proto::xco::{Limits, Node, SMALL_PERCENT};
use sluicenet_scenario::{Error, Result, Routing, Scenario, Xco, XcoKind};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Slices of a period in which the levels of a hierarchy take turns. A level with little load has a sixteenth of it.
const PERIOD_SLICES: u64 = 10;

/// What a host does for XCo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Its traffic is coordinated.
    Coordinated,
    /// It is the controller.
    Controller,
    /// It is the standby.
    Standby,
}

/// The stages of XCo.
#[derive(Debug)]
pub(super) struct XcoStages {
    gate: Arc<XcoGateConfig>,
    controller: Arc<XcoControllerConfig>,
    standby: Option<Arc<XcoControllerConfig>>,
    hosts: (HostId, Option<HostId>),
}

impl XcoStages {
    /// The stages of a scenario, if it has XCo.
    ///
    /// # Errors
    /// A network that is no tree, or in which whole timeslices overload a link.
    pub fn of(scenario: &Scenario, plan: &Plan) -> Result<Option<XcoStages>> {
        let Some(xco) = &scenario.xco else { return Ok(None) };
        let topology = Arc::new(topology(scenario, plan, xco)?);
        let host_kbps = |host: Node| topology.capacity(topology.first_link(host, host));
        let small = |kbps: u32| match xco.small_flow {
            Some(rate) => rate.as_kbps(),
            None => (u64::from(kbps) * SMALL_PERCENT / 100) as u32,
        };
        let rates_kbps = (0..plan.hosts()).map(|host| (host_kbps(host), small(host_kbps(host)))).collect();
        let outer = if scenario.overlay.enabled { scenario.overlay.encapsulation.as_bytes() } else { 0 };
        let secret = hash_words(&[scenario.seed, 0x7863]) as u32;
        let groups = if xco.hierarchical { groups(scenario, plan, xco)? } else { Vec::new() };
        let place = |level: usize, hosts: &Range<HostId>| -> Option<HierarchyConfig> {
            let mac = |host: HostId| Address::new(host, 0).mac();
            let above =
                groups.get(level + 1).and_then(|groups| groups.iter().find(|(all, _)| all.contains(&hosts.start)));
            let below = level.checked_sub(1).and_then(|below| groups.get(below)).into_iter().flatten();
            xco.hierarchical.then(|| HierarchyConfig {
                level,
                parent: (level < groups.len())
                    .then(|| mac(above.map_or(xco.controller, |&(_, controller)| controller))),
                children: below.filter(|(part, _)| hosts.contains(&part.start)).map(|&(_, host)| mac(host)).collect(),
                secret,
                period: xco.slice.saturating_mul(PERIOD_SLICES),
            })
        };
        let beside =
            groups.iter().enumerate().flat_map(|(level, groups)| groups.iter().map(move |group| (level, group)));
        let beside = beside.map(|(level, (hosts, host))| {
            let controller = ControllerConfig { hierarchy: place(level, hosts), ..config(scenario, hosts.len(), xco) };
            let (topology, priority) = (topology.clone(), xco.priority);
            (*host, XcoControllerConfig { topology, controller, is_standby: false, priority, dies: None })
        });
        let whole = 0..plan.hosts();
        let top = (whole.clone(), std::iter::once(xco.controller).chain(xco.standby).collect());
        let lower =
            groups.iter().map(|groups| groups.iter().map(|(hosts, host)| (hosts.clone(), vec![*host])).collect());
        let gate = XcoGateConfig {
            levels: lower.chain([vec![top]]).collect(),
            beside: beside.collect(),
            rates_kbps: Arc::new(rates_kbps),
            overhead: u32::from(framing(scenario).overhead()) + outer as u32,
            lease: xco.lease,
            hysteresis: xco.hysteresis,
            priority: xco.priority,
        };
        let peer = |host: HostId| Peer { mac: Address::new(host, 0).mac(), secret };
        let controller = |peer: Option<Peer>, is_standby: bool| XcoControllerConfig {
            topology: topology.clone(),
            controller: ControllerConfig {
                peer,
                hierarchy: place(groups.len(), &whole),
                ..config(scenario, whole.len(), xco)
            },
            is_standby,
            priority: xco.priority,
            dies: xco.dies.filter(|_| !is_standby).map(|time| Instant(time.as_ps())),
        };
        Ok(Some(XcoStages {
            gate: Arc::new(gate),
            controller: Arc::new(controller(xco.standby.map(peer), false)),
            standby: xco.standby.map(|_| Arc::new(controller(Some(peer(xco.controller)), true))),
            hosts: (xco.controller, xco.standby),
        }))
    }

    pub fn role(&self, host: HostId) -> Role {
        if host == self.hosts.0 {
            Role::Controller
        } else if Some(host) == self.hosts.1 {
            Role::Standby
        } else {
            Role::Coordinated
        }
    }

    /// The stage of a host; other external hosts send without coordination.
    pub fn stage(&self, role: Role, inside: bool) -> Option<Arc<dyn StageConfig>> {
        match role {
            Role::Coordinated if !inside => None,
            Role::Coordinated => Some(self.gate.clone()),
            Role::Controller => Some(self.controller.clone()),
            Role::Standby => self.standby.clone().map(|standby| standby as Arc<dyn StageConfig>),
        }
    }
}

/// The racks, rows and so on of a tree, the lowest level first: the hosts of each, and the one that has its controller.
type Groups = Vec<Vec<(Range<HostId>, HostId)>>;

fn groups(scenario: &Scenario, plan: &Plan, xco: &Xco) -> Result<Groups> {
    let error = |message: String| scenario.locations.error("xco.hierarchical", message);
    let top = plan.switches().iter().map(|switch| switch.level).max().unwrap_or(0);
    let inside = plan.hosts() - plan.external();
    let is_tree = plan.tree().is_some() && plan.switches().iter().filter(|switch| switch.level == top).count() == 1;
    if !is_tree || !(2..=LEVELS_MAX as u8).contains(&top) {
        return Err(error(format!("the network is no tree with 2 to {LEVELS_MAX} levels of switches"))
            .hint("topology.kind = \"xgft\" with w = [1, 1, ...], or no xco.hierarchical"));
    }
    let mut taken = BTreeSet::from([xco.controller]);
    let mut levels = Vec::new();
    for level in 1..top {
        let (mut groups, mut first) = (Vec::new(), 0);
        while first < inside {
            let hosts = plan.chassis(first, level);
            let Some(host) = hosts.clone().find(|host| taken.insert(*host)) else {
                let message =
                    format!("hosts {} to {} are too few for a controller of each level", first, hosts.end - 1);
                return Err(error(message));
            };
            first = hosts.end;
            groups.push((hosts, host));
        }
        levels.push(groups);
    }
    Ok(levels)
}

/// Settings of a controller of so many hosts.
fn config(scenario: &Scenario, hosts: usize, xco: &Xco) -> ControllerConfig {
    let slices =
        SliceConfig { min_run: xco.min_run, rates: xco.kind == XcoKind::Hybrid, ..SliceConfig::new(xco.slice) };
    let mut weights = Weights::default();
    for weight in &xco.weight {
        match weight.to {
            Some(to) => _ = weights.flows.insert((weight.host, to), weight.weight),
            None => _ = weights.nodes.insert(weight.host, weight.weight),
        }
    }
    ControllerConfig {
        policy: match xco.kind {
            XcoKind::Rate => PolicyConfig::Rates(xco.slice),
            XcoKind::Timeslice | XcoKind::Hybrid => PolicyConfig::Slices(slices),
        },
        limits: Limits::of_nodes(hosts),
        lease: xco.lease,
        on_demand: xco.on_demand,
        weights,
        nodes: Vec::new(),
        peer: None,
        hierarchy: None,
        seed: scenario.seed,
    }
}

/// Vertices of all spanning trees together, at most: some 200 MB.
const TREES_MAX: usize = 1 << 24;

/// The network of a plan: a tree, or one whose paths depend on the destination alone. Then there is a spanning tree for each
/// switch of the top level.
fn topology(scenario: &Scenario, plan: &Plan, xco: &Xco) -> Result<Topology> {
    let error = |message: String| scenario.locations.error("xco.enabled", message);
    let mut links = Vec::new();
    for node in 0..plan.nodes() as NodeId {
        for port in 0..plan.ports(node) as u16 {
            let (peer, peer_port) = plan.peer(node, port);
            if (node, port) < (peer, peer_port) {
                links.push(Link { ends: [node, peer], kbps: plan.rate(node, port).as_kbps() });
            }
        }
    }
    let invalid = |e: TopologyError| -> Error { error(format!("the network is none that XCo can coordinate: {e:?}")) };
    let mut topology = Topology::new(plan.hosts(), plan.nodes(), &links).map_err(invalid)?;
    if links.len() + 1 == plan.nodes() {
        topology.add_tree(plan.nodes() as u32 - 1).map_err(invalid)?;
    } else {
        // A spanning tree has one link between two boxes.
        let by_destination =
            scenario.topology.routing == Routing::DModK && plan.tree().is_some_and(|tree| !tree.has_parallel_links());
        if !by_destination || plan.external() > 0 || (0..plan.hosts()).any(|host| plan.ports(host) > 1) {
            return Err(error("XCo does not know which of several paths a frame takes".to_owned()).hint(
                "a network with one path, or routing = \"d-mod-k\" with one link a host, no parallel links and no \
                     external hosts",
            ));
        }
        add_trees(&mut topology, plan).map_err(invalid)?;
    }
    let inside = 0..plan.hosts() - plan.external();
    let coordinated = inside.filter(|&host| host != xco.controller && Some(host) != xco.standby);
    let fastest = coordinated.map(|host| topology.capacity(topology.first_link(host, host))).max();
    let slowest = topology.capacities().first().copied();
    if xco.kind == XcoKind::Timeslice && fastest > slowest {
        let error = scenario.locations.error(
            "xco.kind",
            "a server sends at the rate of its link in its timeslice, and another link is slower".to_owned(),
        );
        return Err(error.hint("set xco.kind = \"hybrid\": then timeslices have rates"));
    }
    Ok(topology)
}

/// A spanning tree from each switch of the top level, and the one that frames to each host take.
fn add_trees(topology: &mut Topology, plan: &Plan) -> core::result::Result<(), TopologyError> {
    let top = plan.switches().iter().map(|switch| switch.level).max();
    let tops = (0..).zip(plan.switches()).filter(|(_, switch)| Some(switch.level) == top);
    let roots: Vec<u32> = tops.map(|(n, _)| plan.hosts() + n).collect();
    if roots.len() * plan.nodes() > TREES_MAX || roots.len() > usize::from(u16::MAX) {
        return Err(TopologyError::Size);
    }
    for &root in &roots {
        topology.add_tree(root)?;
    }
    let root_of = |to: HostId| -> Option<u16> {
        // From a host on the other side of the network.
        let from = (to + plan.hosts() / 2) % plan.hosts();
        let flow = FlowKey { src: Address::new(from, 0), dst: Address::new(to, 0), sport: 0, dport: 0 };
        let packet = Packet::of_flow(flow, Kind::Udp);
        let mut at = plan.peer(from, 0).0;
        while let Some(switch) = at.checked_sub(plan.hosts()) {
            if let Some(root) = roots.iter().position(|&root| root == at) {
                return Some(root as u16);
            }
            at = plan.peer(at, plan.switches()[switch as usize].router.route(&packet)?).0;
        }
        None
    };
    // A top level with a single part below it is on no path.
    let of_host = |host: HostId| root_of(host).ok_or(TopologyError::NotATree { node: host });
    topology.assign_trees((0..plan.hosts()).map(of_host).collect::<core::result::Result<_, _>>()?);
    Ok(())
}
