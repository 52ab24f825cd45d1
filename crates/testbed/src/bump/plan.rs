//! The plan of a network with bumps, computed only from the scenario.

use crate::{fabric, flows, slowed, stack};
use sluicenet_dataplane::fabric::{EdgeConfig, EdgeSpec, FabricSpec, Stations};
use sluicenet_experiment::build::{self, Bumps, Hop, Watched, lossless};
use sluicenet_experiment::workload::two_tier;
use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::frame::{HostId, PrioritySet};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Result, Scenario, Warning, Workload};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The most hosts, and the most bumps.
const HOSTS_MAX: u32 = 200;
const BUMPS_MAX: usize = 16;
/// The most ports whose queues are compared with their estimates.
const COMPARED_MAX: usize = 16;
/// Room of the two ends of a cut link, in bytes: the link's switch has sent these frames at the link's rate, so that only the
/// kernel's delays collect some.
const TRUNK_BYTES: u32 = 8 << 20;

/// A host: a namespace with one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The host's address, with a prefix of [`crate::Plan::OVERLAY_PREFIX`] bits.
    pub address: Ipv4Addr,
    /// The host's MAC address.
    pub mac: MacAddress,
    /// The speed of the host's link.
    pub rate: Rate,
}

/// A port whose queue a bump estimates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downstream {
    /// The switch and its port, as boxes of the simulated network.
    pub at: Watched,
    /// The port's number in the bumps' maps.
    pub number: u16,
    /// The speed of the port's link.
    pub rate: Rate,
    /// The hosts behind the port.
    pub hosts: Vec<HostId>,
}

/// A bump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bump {
    /// The bump's address.
    pub mac: MacAddress,
    /// The number of the bump's links.
    pub links: usize,
    /// The ports whose queues it estimates.
    pub downstream: Vec<Downstream>,
    /// The bumps that it exchanges updates with, and whether it tells them.
    pub neighbours: Vec<(usize, bool)>,
}

/// A link with bumps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    /// Its two ends: boxes of the simulated network and their ports.
    pub ends: [Watched; 2],
    /// The bumps in it, from the first end to the second.
    pub hops: Vec<Hop>,
}

/// The plan of a network with bumps.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario in slow motion, as it is run, and as it is simulated for comparison.
    pub scenario: Scenario,
    /// The factor of the slow motion.
    pub slowdown: u64,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The bumps, in the order of the scenario.
    pub bumps: Vec<Bump>,
    /// The links with bumps.
    pub cables: Vec<Cable>,
    /// The switches and links. The edges of host `i` and of the two ends of cable `c` are `i`, and `hosts + 2 c` and the next.
    pub fabric: FabricSpec,
    /// The ports whose queues are compared with their estimates, each with its name.
    pub compared: Vec<(Watched, String)>,
    /// The flows without an end, if there are any: the scenario without its queries.
    pub flows: Option<Scenario>,
    /// The queries, if there are any: the scenario without its flows.
    pub queries: Option<Scenario>,
    /// Warnings about settings that the kernel's sockets ignore.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// Makes the plan of a scenario.
    ///
    /// # Errors
    /// A scenario without bumps, or one that can only be simulated.
    pub fn new(scenario: &Scenario) -> Result<Plan> {
        refuse(scenario)?;
        let slow = slowed(scenario);
        crate::plan::links_are_possible(scenario, &slow)?;
        let (flows, queries) = applications(&slow)?;
        let network = Arc::new(build::Plan::new(&slow)?);
        let mut links = build::Directions::new(&slow, network.clone());
        let placed = Bumps::place(&slow, &network, &mut links)?;
        let bumps = bumps(&slow, &network, &placed)?;
        let cables = cables(&network, &placed);
        let hosts: Vec<Host> = (0..network.hosts()).map(|host| self::host(host, network.rate(host, 0))).collect();
        let compared = compared(&slow, &network, &bumps, flows.as_ref(), queries.as_ref())?;
        let fabric = fabric_spec(&slow, &hosts, &bumps, &cables, &placed)?;
        Ok(Plan {
            slowdown: scenario.testbed.slowdown,
            warnings: stack::not_taken(scenario),
            scenario: slow,
            hosts,
            bumps,
            cables,
            fabric,
            compared,
            flows,
            queries,
        })
    }

    /// The largest IP packet, in bytes.
    pub fn mtu(&self) -> u32 {
        self.scenario.framing.mtu.as_bytes() as u32
    }

    /// Whether hosts have connections.
    pub(super) fn connects(&self) -> bool {
        self.scenario.workloads.iter().any(|workload| match workload {
            Workload::Permutation(w) => w.transport.connects(),
            Workload::Flow(w) => w.transport.connects(),
            _ => true,
        })
    }

    /// The box of the fabric that is box `node` of the simulated network.
    pub(super) fn node(&self, node: NodeId) -> NodeId {
        shifted(node, self.hosts.len() as NodeId, self.cables.len())
    }
}

/// The number of a box behind the edges of the cables.
fn shifted(node: NodeId, hosts: NodeId, cables: usize) -> NodeId {
    if node < hosts { node } else { node + 2 * cables as NodeId }
}

/// Refuses scenarios that only the simulator runs, each with its location.
fn refuse(scenario: &Scenario) -> Result<()> {
    let refuse = |key: &str, message: &str, expected: &str| {
        Err(scenario.locations.error(key, message.to_owned()).expected(expected.to_owned()))
    };
    if scenario.bumps.is_empty() {
        return refuse("bump", "there is no bump in this scenario", "[[bump]], or `sluicenet testbed flows`");
    }
    if scenario.bumps.len() > BUMPS_MAX {
        return refuse("bump", "each bump is a process", &format!("at most {BUMPS_MAX} bumps"));
    }
    if !scenario.level.is_packet() {
        return refuse("scenario.level", "a testbed has packets", "\"packet\"");
    }
    if scenario.topology.routing.has_control() {
        return refuse("topology.routing", "the testbed's switches have no control loop", "another routing");
    }
    let counts = scenario.topology.counts();
    if counts.endpoints() > HOSTS_MAX {
        return refuse("topology", "each host is a namespace", &format!("at most {HOSTS_MAX} hosts"));
    }
    if scenario.server.vms > 1 || scenario.server.virtual_network {
        return refuse("server", "hosts beside bumps have no virtual switch", "one machine, and no virtual network");
    }
    if lossless(scenario) != PrioritySet::NONE {
        return refuse("scenario.flow_control", "the kernel's hosts do not obey pauses", "\"LL\"");
    }
    if scenario.roce.is_some() {
        return refuse("workload", "the hosts' adapters have no queue pairs of RoCE", "transport = \"tcp\" or \"udp\"");
    }
    if scenario.xco.is_some() {
        return refuse("xco", "the hosts have no gates of XCo", "no [xco]: `sluicenet testbed xco`");
    }
    Ok(())
}

/// The flows and the queries of a scenario, each as a scenario of its own.
fn applications(slow: &Scenario) -> Result<(Option<Scenario>, Option<Scenario>)> {
    let is_flows = |w: &Workload| matches!(w, Workload::Permutation(_) | Workload::Flow(_));
    let part = |wanted: bool| {
        let workloads: Vec<Workload> = slow.workloads.iter().filter(|w| is_flows(w) == wanted).cloned().collect();
        (!workloads.is_empty()).then(|| Scenario { workloads, ..slow.clone() })
    };
    let (flows, queries) = (part(true), part(false));
    for (number, workload) in slow.workloads.iter().enumerate() {
        if !is_flows(workload) && !matches!(workload, Workload::PartitionAggregate2(_)) {
            let message = format!("the testbed has no real application for workload `{}`", workload.kind());
            let error = slow.locations.error(&format!("workload.{number}"), message);
            return Err(error.expected("flow or permutation without an end, partition-aggregate-2"));
        }
    }
    if let Some(flows) = &flows {
        flows::flows(flows)?;
        if queries.is_none() && slow.duration.is_none() {
            return Err(slow.locations.error("scenario.duration", "flows without an end need a duration"));
        }
    }
    if flows.is_none() && queries.is_none() {
        return Err(slow.locations.error("workload", "nobody sends anything"));
    }
    Ok((flows, queries))
}

fn host(host: HostId, rate: Rate) -> Host {
    let [_, _, high, low] = host.to_be_bytes();
    Host { address: Ipv4Addr::new(10, 0, high, low + 1), mac: MacAddress::local(host + 1), rate }
}

/// The bumps of a scenario, with the ports that they estimate.
fn bumps(slow: &Scenario, network: &build::Plan, placed: &Bumps) -> Result<Vec<Bump>> {
    let numbers = placed.port_numbers();
    let mut all = Vec::new();
    for (i, place) in placed.plans.iter().enumerate() {
        let mut downstream: Vec<Downstream> = placed
            .destinations(network, i)
            .into_iter()
            .map(|(at, hosts)| Downstream { at, number: numbers[&at], rate: network.rate(at.0, at.1), hosts })
            .collect();
        one_port_each(network, &mut downstream);
        let mut seen = BTreeSet::new();
        if let Some(host) = downstream.iter().flat_map(|port| &port.hosts).find(|&&host| !seen.insert(host)) {
            let message = format!("host {host} is behind two ports that the bump in these links estimates");
            return Err(slow.locations.error(&format!("bump.{i}.links"), message).hint("one bump for each link"));
        }
        if downstream.is_empty() {
            let message = "all frames that pass here may take several ports: there is no queue to estimate";
            return Err(slow.locations.error(&format!("bump.{i}.links"), message));
        }
        let near = |bump: usize| placed.plans[bump].links[0][0].0;
        let tells = |a: usize, b: usize| slow.bumps[a].neighbours.contains(&(b as u32));
        let partners = (0..placed.plans.len()).filter(|&other| tells(i, other) || tells(other, i));
        let neighbours: Vec<(usize, bool)> = partners.map(|other| (other, tells(i, other))).collect();
        if let Some((other, _)) = neighbours.iter().find(|(other, _)| near(*other) != near(i)) {
            let message = format!("updates between bumps {i} and {other} cross the switch that both name in `links`");
            let error = slow.locations.error(&format!("bump.{i}.neighbours"), message);
            return Err(error.expected("links of one switch, as links = [\"switch 2 port 0\"]"));
        }
        let mac = MacAddress([0x06, 0x01, 0, 0, 0, i as u8]);
        all.push(Bump { mac, links: place.links.len(), downstream, neighbours });
    }
    Ok(all)
}

/// A bump in two links may see frames to one host on their way to two ports, and its map has one: the host's own.
fn one_port_each(network: &build::Plan, downstream: &mut Vec<Downstream>) {
    let mut ports: BTreeMap<HostId, usize> = BTreeMap::new();
    downstream.iter().flat_map(|port| &port.hosts).for_each(|&host| *ports.entry(host).or_default() += 1);
    for port in downstream.iter_mut() {
        let behind = network.peer(port.at.0, port.at.1).0;
        port.hosts.retain(|&host| ports[&host] == 1 || behind == host);
    }
    downstream.retain(|port| !port.hosts.is_empty());
}

/// The links with bumps, each once.
fn cables(network: &build::Plan, placed: &Bumps) -> Vec<Cable> {
    let mut cables: Vec<Cable> = Vec::new();
    for ends in placed.plans.iter().flat_map(|plan| &plan.links) {
        if cables.iter().all(|cable| !cable.ends.contains(&ends[0])) {
            let hops = placed.through[&network.link_index(ends[0].0, ends[0].1)].hops.clone();
            cables.push(Cable { ends: *ends, hops });
        }
    }
    cables
}

/// The ports whose queues are compared: those of `record.queue_ports`, or those to hosts that receive.
fn compared(
    slow: &Scenario,
    network: &build::Plan,
    bumps: &[Bump],
    flows: Option<&Scenario>,
    queries: Option<&Scenario>,
) -> Result<Vec<(Watched, String)>> {
    let estimated = || bumps.iter().flat_map(|bump| &bump.downstream);
    let mut ports: Vec<Watched> = if slow.record.queue_ports.is_empty() {
        let mut receivers: BTreeSet<HostId> = BTreeSet::new();
        if let Some(flows) = flows {
            receivers.extend(flows::flows(flows)?.iter().map(|flow| flow.to.0));
        }
        for workload in queries.iter().flat_map(|queries| &queries.workloads) {
            if let Workload::PartitionAggregate2(w) = workload {
                receivers.extend(two_tier::roles(slow, w, network.hosts()).0.iter().map(|vm| vm.0));
            }
        }
        let receives = |port: &&Downstream| port.hosts.iter().any(|host| receivers.contains(host));
        estimated().filter(receives).map(|port| port.at).collect()
    } else {
        network.selected(slow, "queue_ports", &slow.record.queue_ports)?
    };
    ports.sort_unstable();
    ports.dedup();
    ports.retain(|port| estimated().any(|downstream| downstream.at == *port));
    if ports.is_empty() || ports.len() > COMPARED_MAX {
        let message = format!("bumps estimate {} of these ports", ports.len());
        let error = slow.locations.error("record.queue_ports", message);
        return Err(error.expected(format!("1 to {COMPARED_MAX} ports behind bumps: [\"switch 1 port 0\"]")));
    }
    Ok(ports.into_iter().map(|port| (port, format!("{} port {}", network.name(port.0), port.1))).collect())
}

/// The switches of a scenario, with links that are cut where bumps are.
fn fabric_spec(
    slow: &Scenario,
    hosts: &[Host],
    bumps: &[Bump],
    cables: &[Cable],
    placed: &Bumps,
) -> Result<FabricSpec> {
    let mut stations: Vec<(MacAddress, HostId)> = (0..).zip(hosts).map(|(i, host)| (host.mac, i)).collect();
    for (bump, place) in bumps.iter().zip(&placed.plans) {
        // Updates for a bump go towards the hosts behind its first link.
        let far = place.links[0][1].0;
        let behind = bump.downstream.iter().find(|port| port.at.0 == far).map(|port| port.hosts[0]);
        stations.extend(behind.or((far < hosts.len() as u32).then_some(far)).map(|host| (bump.mac, host)));
    }
    let bare = Scenario { bumps: Vec::new(), ..slow.clone() };
    let mut spec = fabric::spec(&bare, &stations)?;
    let first = hosts.len() as NodeId;
    for edge in &mut spec.edges {
        edge.config.stops_server = PrioritySet::NONE;
    }
    let config = spec.edges[0].config;
    let room = |marks: Watermarks| Watermarks { capacity: TRUNK_BYTES, ..marks };
    let config = EdgeConfig { up: room(config.up), down: room(config.down), ..config };
    for link in &mut spec.links {
        for end in [&mut link.from, &mut link.to] {
            end.0 = shifted(end.0, first, cables.len());
        }
    }
    let mut trunks = Vec::new();
    for (cable, edge) in cables.iter().zip((first..).step_by(2)) {
        let ends = cable.ends.map(|(node, port)| (shifted(node, first, cables.len()), port));
        for (edge, own, other) in [(edge, ends[0], ends[1]), (edge + 1, ends[1], ends[0])] {
            spec.edges.push(EdgeSpec { config, address: fabric::own_address(edge) });
            trunks.push(edge);
            cut(&mut spec.links, edge, own, other);
        }
    }
    spec.stations = Stations::new(stations).with_trunks(trunks);
    Ok(spec)
}

/// Cuts the link between two ports: `edge` takes the place of the other port at `own`. Half of the link's delay is at each end.
fn cut(links: &mut Vec<Direction>, edge: NodeId, own: Watched, other: Watched) {
    let half = |delay: Duration| Duration((delay.0 / 2).max(1));
    // A frame is stored before it goes to a bump.
    let shorten = |link: &mut Direction| {
        link.first_bit = false;
        (link.latency, link.pause_latency) = (half(link.latency), half(link.pause_latency));
    };
    let edge: (NodeId, PortId) = (edge, 0);
    let mut back = Vec::new();
    for link in links.iter_mut() {
        if link.from == own && link.to == other {
            let mut rest = Direction { from: edge, to: own, ..*link };
            shorten(&mut rest);
            back.push(rest);
            link.to = edge;
            shorten(link);
        }
    }
    links.extend(back);
}
