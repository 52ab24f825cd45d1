//! The plan of a testbed for XCo, computed only from the scenario: hosts, their addresses, and their traffic.

use super::PREFIX;
use crate::flows::{FLOWS_MAX, Flow, real};
use sluicenet_experiment::build;
use sluicenet_experiment::workload::incast_senders;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Connections, FlowControl, FramingKind, Result, Scenario, Transport, Workload};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// The most hosts: each has a namespace, and up to two programs.
pub const HOSTS_MAX: u32 = 64;
/// The most connections of all incasts together, and the most finite flows: each has two threads.
const PAIRS_MAX: usize = 1024;
/// Bytes of a time.
const STAMP_BYTES: u64 = 8;

/// A host of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its namespace.
    pub namespace: String,
    /// Its address, with a prefix of [`Plan::PREFIX`] bits.
    pub address: Ipv4Addr,
    /// Its station.
    pub mac: MacAddress,
    /// The rate of its link.
    pub rate: Rate,
    /// The hosts that it sends to: data or acknowledgements.
    pub peers: BTreeSet<HostId>,
}

/// Rounds in which some hosts send to one at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The hosts that send.
    pub senders: Vec<HostId>,
    /// The host that receives.
    pub receiver: HostId,
    /// Bytes from each sender in a round.
    pub bytes: u64,
    /// How many rounds.
    pub rounds: u64,
    /// Time from the end of a round to the start of the next.
    pub gap: Duration,
    /// When the first begins.
    pub start: Duration,
    /// Whether each round has connections of its own.
    pub fresh: bool,
    /// The priority of the frames.
    pub priority: u8,
}

/// A flow with an end.
#[derive(Clone, Debug, PartialEq)]
pub struct Finite {
    /// Its ends, its transport, its rate, its priority and its start.
    pub flow: Flow,
    /// Its bytes.
    pub bytes: u64,
}

/// The traffic of all hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Flows without an end.
    pub endless: Vec<Flow>,
    /// Flows with an end.
    pub finite: Vec<Finite>,
    /// Rounds.
    pub rounds: Vec<Rounds>,
}

/// The plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The scenario.
    pub scenario: Scenario,
    /// The namespace of the fabric.
    pub fabric: String,
    /// The hosts in their order, external ones last.
    pub hosts: Vec<Host>,
    /// The links of the network: two boxes, the smaller number first, and a rate. Hosts have the first numbers, then switches.
    pub links: Vec<(u32, u32, Rate)>,
    /// Switches.
    pub switches: u32,
    /// The traffic.
    pub traffic: Traffic,
    /// Bytes of the largest IP packet.
    pub mtu: u32,
}

impl Plan {
    /// The prefix length of the hosts' network, 10.0.0.0.
    pub const PREFIX: u8 = 8;

    /// Makes the plan of a scenario. `run` tells its namespaces from those of others.
    ///
    /// # Errors
    /// A scenario with a virtual network, without a duration, or with traffic for which there is no real program.
    pub fn new(scenario: &Scenario, run: u32) -> Result<Plan> {
        refused(scenario)?;
        let network = build::Network::new(scenario)?;
        let net = &network.plan;
        if net.hosts() > HOSTS_MAX {
            let why = format!("a testbed of {} hosts: at most {HOSTS_MAX}", net.hosts());
            return Err(scenario.locations.error("topology", why));
        }
        let traffic = traffic(scenario, net.hosts() - net.external())?;
        let mut peers: BTreeMap<HostId, BTreeSet<HostId>> = BTreeMap::new();
        for (a, b) in traffic.pairs() {
            peers.entry(a).or_default().insert(b);
            peers.entry(b).or_default().insert(a);
        }
        let controller = scenario.xco.as_ref().map(|xco| xco.controller);
        if let Some(host) = controller.filter(|host| peers.contains_key(host)) {
            let why = format!("host {host} is the controller, which has no coordinator for its own traffic");
            return Err(scenario.locations.error("xco.controller", why).hint("name a host without traffic"));
        }
        let host = |host: HostId| Host {
            namespace: format!("{PREFIX}{run}-h{host}"),
            address: Ipv4Addr::new(10, (host >> 8) as u8, host as u8, 1),
            mac: MacAddress::local(host + 1),
            rate: net.rate(host, 0),
            peers: peers.remove(&host).unwrap_or_default(),
        };
        let mut links = Vec::new();
        for node in 0..net.nodes() as u32 {
            for port in 0..net.ports(node) as u16 {
                let (peer, peer_port) = net.peer(node, port);
                if (node, port) < (peer, peer_port) {
                    links.push((node, peer, net.rate(node, port)));
                }
            }
        }
        Ok(Plan {
            fabric: format!("{PREFIX}{run}-fabric"),
            hosts: (0..net.hosts()).map(host).collect(),
            links,
            switches: net.switches().len() as u32,
            traffic,
            mtu: scenario.framing.mtu.as_bytes() as u32,
            scenario: scenario.clone(),
        })
    }

    /// The hosts that have an agent: those with traffic, if there is a controller.
    pub fn agents(&self) -> impl Iterator<Item = (HostId, &Host)> {
        (0..).zip(&self.hosts).filter(|&(number, _)| self.has_agent(number))
    }

    /// Whether a host has an agent.
    pub fn has_agent(&self, number: HostId) -> bool {
        self.scenario.xco.is_some() && !self.hosts[number as usize].peers.is_empty()
    }
}

impl Traffic {
    /// The hosts of each sender and receiver.
    fn pairs(&self) -> impl Iterator<Item = (HostId, HostId)> {
        let flows = self.endless.iter().chain(self.finite.iter().map(|finite| &finite.flow));
        let rounds = self.rounds.iter().flat_map(|r| r.senders.iter().map(|&sender| (sender, r.receiver)));
        flows.map(|flow| (flow.from.0, flow.to.0)).chain(rounds)
    }
}

fn refused(scenario: &Scenario) -> Result<()> {
    let error = |key: &str, why: &str| scenario.locations.error(key, why);
    if !scenario.level.is_packet() {
        return Err(error("scenario.level", "a testbed has packets").hint("set scenario.level = \"packet\""));
    }
    if scenario.framing.kind != FramingKind::Ethernet {
        return Err(error("framing.kind", "real frames are Ethernet's"));
    }
    if scenario.server.virtual_network {
        let e = error("server.virtual_network", "the hosts of XCo's testbed have no virtual network");
        return Err(e.expected("false"));
    }
    if scenario.flow_control() != FlowControl::Ll {
        let e = error("scenario.flow_control", "the hosts of XCo's testbed do not obey pauses");
        return Err(e.expected("\"LL\""));
    }
    if scenario.testbed.slowdown != 1 {
        let e = error("testbed.slowdown", "slices and leases are not slowed down");
        return Err(e.hint("scale the rates and slices of the file together"));
    }
    if scenario.duration.is_none() {
        return Err(error("scenario.duration", "a testbed needs a duration").expected("duration = \"2 s\""));
    }
    let Some(xco) = &scenario.xco else { return Ok(()) };
    for (key, is_there) in [("xco.standby", xco.standby.is_some()), ("xco.dies", xco.dies.is_some())] {
        if is_there {
            return Err(error(key, "the testbed has one controller, which lives").hint("`sluicenet run` simulates it"));
        }
    }
    Ok(())
}

fn traffic(scenario: &Scenario, inner: u32) -> Result<Traffic> {
    let mut traffic = Traffic::default();
    for (number, workload) in scenario.workloads.iter().enumerate() {
        let error = |why: String| scenario.locations.error(&format!("workload.{number}"), why);
        let transport = match workload {
            Workload::Flow(w) => w.transport,
            Workload::Incast(w) => w.transport,
            other => {
                let e = error(format!("XCo's testbed has no real program for workload `{}`", other.kind()));
                return Err(e.expected("flow or incast"));
            }
        };
        match workload {
            _ if !matches!(transport, Transport::Tcp | Transport::Udp) => {
                let e = error(format!("the hosts have no {}", transport.name()));
                return Err(e.expected("transport = \"tcp\" or \"udp\""));
            }
            Workload::Flow(w) => {
                if (w.src_vm, w.dst_vm) != (0, 0) || w.src >= inner || w.dst >= inner || w.src == w.dst {
                    return Err(error("a flow is between two hosts of the network, each without machines".into()));
                }
                let (from, to) = ((w.src, 0), (w.dst, 0));
                let flow = Flow { from, to, transport, rate: w.rate, priority: w.priority, start: real(w.start) };
                match w.bytes {
                    Some(bytes) => traffic.finite.push(Finite { flow, bytes: bytes.as_bytes() }),
                    None => traffic.endless.push(flow),
                }
            }
            Workload::Incast(w) => {
                if transport == Transport::Udp {
                    let e = error("a round in which a datagram is lost would never end".into());
                    return Err(e.expected("transport = \"tcp\""));
                }
                let senders = incast_senders(inner, w);
                if senders.iter().chain([&w.receiver]).any(|&host| host >= inner) {
                    return Err(error("rounds are between hosts of the network".into()));
                }
                if w.bytes.as_bytes() < STAMP_BYTES {
                    let e = error("a message carries the time of its sending".into());
                    return Err(e.expected(format!("bytes of at least {STAMP_BYTES} B")));
                }
                traffic.rounds.push(Rounds {
                    senders,
                    receiver: w.receiver,
                    bytes: w.bytes.as_bytes(),
                    rounds: w.rounds,
                    gap: w.gap,
                    start: w.start,
                    fresh: w.connections == Connections::New,
                    priority: w.priority,
                });
            }
            _ => {}
        }
        let pairs = traffic.finite.len() + traffic.rounds.iter().map(|r| r.senders.len()).sum::<usize>();
        if pairs > PAIRS_MAX || traffic.endless.len() > FLOWS_MAX {
            let why = format!("too many flows: at most {FLOWS_MAX} without an end, and {PAIRS_MAX} others");
            return Err(error(why));
        }
    }
    Ok(traffic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespaces::counted;

    const FILE: &str = r#"
        [scenario]
        duration = "1 s"
        [topology]
        kind = "xgft"
        m = [2, 2]
        w = [1, 1]
        link_rate = "100 Mb/s"
        external_hosts = 1
        [server]
        virtual_network = false
        [xco]
        enabled = true
        slice = "10 ms"
        [[workload]]
        kind = "flow"
        src = 0
        dst = 2
        transport = "udp"
        [[workload]]
        kind = "incast"
        senders = [1]
        receiver = 3
        bytes = "30 KB"
        rounds = 10
        connections = "new"
    "#;

    fn plan(text: &str) -> Result<Plan> {
        Plan::new(&Scenario::parse(text, "t.toml")?.scenario, 7)
    }

    #[test]
    fn two_racks_with_a_link_between_them() {
        let plan = plan(FILE).unwrap();
        assert_eq!((plan.hosts.len(), plan.switches, plan.links.len()), (5, 3, 7));
        assert_eq!(plan.hosts[2].namespace, "sluice-xco7-h2");
        assert_eq!(plan.hosts[2].peers, BTreeSet::from([0]));
        // The external host is the controller, and has no agent.
        assert_eq!(plan.agents().map(|(host, _)| host).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(counted(&plan.scenario, Rate::mbps(100)).as_bps(), 98_439_531);
        assert!(plan.traffic.rounds[0].fresh && plan.traffic.endless.len() == 1);
    }

    #[test]
    fn without_xco_there_are_no_agents() {
        let plan = plan(&FILE.replace("enabled = true", "enabled = false")).unwrap();
        assert_eq!((plan.agents().count(), plan.hosts.len(), plan.links.len()), (0, 5, 7));
    }

    #[test]
    fn what_no_testbed_can_be_is_refused_with_its_place() {
        for (from, to, why) in [
            ("virtual_network = false", "virtual_network = true", "virtual network"),
            ("enabled = true", "enabled = true\ncontroller = 0", "host 0 is the controller"),
            ("enabled = true", "enabled = true\nstandby = 3", "one controller"),
            ("connections = \"new\"", "transport = \"udp\"", "would never end"),
            ("[server]", "[testbed]\nslowdown = 2\n[server]", "not slowed down"),
            ("m = [2, 2]", "m = [40, 2]", "81 hosts: at most 64"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = plan(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(why), "{why}: {error}");
            assert_eq!(error.diagnostic().file, "t.toml", "{error}");
        }
    }
}
