//! Any graph, with shortest paths. A link is known by its two ports: several may join the same two boxes.

use super::{Attachment, Ends, HostRouting, Plan, SwitchPlan, alike, first_links, policy};
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::dependency::Dependencies;
use sluicenet_proto::routing::table::TableBuilder;
use sluicenet_proto::routing::{Policy, Router};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::HpccTopology;
use sluicenet_scenario::{Link, Result, Scenario};
use std::collections::{BTreeMap, VecDeque};

/// Where the numbers of hosts begin among those that set the draws of tables apart: after all switches.
const HOST_DRAWS: u64 = 1 << 32;
/// The distance of a box that no way leads to.
const FAR: u32 = u32::MAX;

/// The network of a topology file.
pub(super) fn plan(scenario: &Scenario, path: &str, file: &HpccTopology) -> Result<Plan> {
    let dialect = file.dialect.described();
    let fail = |message: String| {
        scenario.locations.error("topology.file", format!("{path}: {message}")).with(&format!(" (read as {dialect})"))
    };
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
    let (hosts, switches) = ends(file);
    let host_count = file.hosts();
    if let Some(h) = hosts.iter().position(Vec::is_empty) {
        return Err(fail(format!("node {} has no link", node_of_host(h as HostId))));
    }
    let of_switches = file.switches.iter().zip(&switches).map(|(id, ports)| SwitchPlan {
        level: 0,
        fastest: Rate(ports.iter().map(|end| end.link.rate.as_bps()).max().unwrap_or(0)),
        router: Router::Table(TableBuilder::default().router(Policy::Hash, 0, 0)),
        delay: scenario.switch.delay,
        buffers: alike(scenario.switch.buffer),
        is_first: file.nvswitches.binary_search(id).is_ok(),
    });
    let of_switches = of_switches.collect();
    let all = || hosts.iter().chain(&switches);
    let mut plan = Plan {
        hosts: host_count,
        external: 0,
        switches: of_switches,
        ends: Ends::Table(all().flatten().copied().collect()),
        routing: HostRouting::Tables(BTreeMap::new()),
        first_link: first_links(all().map(|ends| ends.len() as u32)),
    };
    plan.assign_levels();
    let mut of_switches: Vec<TableBuilder> = plan.switches.iter().map(|_| TableBuilder::default()).collect();
    let several = |&h: &HostId| plan.ports(h) > 1;
    let mut of_hosts: BTreeMap<HostId, TableBuilder> =
        (0..host_count).filter(several).map(|h| (h, TableBuilder::default())).collect();
    let (mut distance, mut ports) = (Vec::new(), Vec::new());
    // The first host that has its only link to a switch. The ways to the others there are the same, except for the last link.
    let mut first_at: Vec<Option<HostId>> = vec![None; plan.switches.len()];
    for dst in 0..host_count {
        let only = plan.only_link(dst);
        if let Some((at, port)) = only {
            if let Some(first) = first_at[at] {
                of_switches.iter_mut().chain(of_hosts.values_mut()).enumerate().for_each(|(i, table)| match i == at {
                    true => table.add(&[port]),
                    false => table.add_like(first),
                });
                continue;
            }
            first_at[at] = Some(dst);
        }
        plan.distances(dst, &mut distance);
        if let Some(h) = (0..host_count).find(|&h| distance[h as usize] == FAR) {
            return Err(no_way(node_of_host(h), dst));
        }
        // A switch that leads to some hosts only, as an NVSwitch, is on no path to the others.
        for (table, node) in of_switches.iter_mut().zip(host_count..) {
            plan.nearer_ports(node, dst, &distance, &mut ports);
            table.add(&ports);
        }
        for (&h, table) in &mut of_hosts {
            plan.nearer_ports(h, dst, &distance, &mut ports);
            table.add(&ports);
        }
    }
    let (policy, seed) = (policy(scenario.topology.routing), scenario.seed);
    let of_host = |(h, table): (HostId, TableBuilder)| {
        let router = table.router(policy, seed, HOST_DRAWS + u64::from(h));
        (h, Router::Table(router))
    };
    plan.routing = HostRouting::Tables(of_hosts.into_iter().map(of_host).collect());
    for ((switch, table), i) in plan.switches.iter_mut().zip(of_switches).zip(0..) {
        switch.router = Router::Table(table.router(policy, seed, i));
    }
    Ok(plan)
}

/// The ends of every link, at its host or switch.
fn ends(file: &HpccTopology) -> (Vec<Vec<Attachment>>, Vec<Vec<Attachment>>) {
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
    (hosts, switches)
}

impl Plan {
    /// Sets the level of each switch: one more than its distance from the nearest switch with hosts.
    fn assign_levels(&mut self) {
        let first = self.hosts();
        let mut queue: VecDeque<u32> = VecDeque::new();
        let next = |plan: &mut Plan, node: NodeId, level: u8, queue: &mut VecDeque<u32>| {
            let peers: Vec<u32> = plan.ends(node).filter_map(|end| end.peer.checked_sub(first)).collect();
            for s in peers {
                if plan.switches[s as usize].level == 0 {
                    plan.switches[s as usize].level = level;
                    queue.push_back(s);
                }
            }
        };
        (0..first).for_each(|host| next(self, host, 1, &mut queue));
        while let Some(s) = queue.pop_front() {
            let level = self.switches[s as usize].level.saturating_add(1);
            next(self, first + s, level, &mut queue);
        }
    }

    /// The switch that a host has its only link to, by its place among the switches, and the port there.
    fn only_link(&self, host: HostId) -> Option<(usize, PortId)> {
        let end = (self.ports(host) == 1).then(|| self.attachment(host, 0))?;
        Some((end.peer.checked_sub(self.hosts())? as usize, end.peer_port))
    }

    /// How many links every box is from a host, as far as there is a way over switches.
    fn distances(&self, dst: HostId, distance: &mut Vec<u32>) {
        distance.clear();
        distance.resize(self.nodes(), FAR);
        distance[dst as usize] = 0;
        let mut queue = VecDeque::from([dst]);
        while let Some(node) = queue.pop_front() {
            if node < self.hosts() && node != dst {
                continue; // hosts forward nothing
            }
            for end in self.ends(node) {
                if distance[end.peer as usize] == FAR {
                    distance[end.peer as usize] = distance[node as usize] + 1;
                    queue.push_back(end.peer);
                }
            }
        }
    }

    /// The ports of a box that are on a shortest path to a host; if any leads to a switch that comes first, only such.
    fn nearer_ports(&self, node: NodeId, dst: HostId, distance: &[u32], found: &mut Vec<PortId>) {
        found.clear();
        let mine = distance[node as usize];
        let is_nearer = |end: &Attachment| {
            let is_way = end.peer == dst || end.peer >= self.hosts();
            is_way && distance[end.peer as usize].checked_add(1) == Some(mine)
        };
        found.extend((0..).zip(self.ends(node)).filter(|(_, end)| is_nearer(end)).map(|(port, _)| port));
        let is_first = |&port: &PortId| {
            let switch = self.peer(node, port).0.checked_sub(self.hosts());
            switch.is_some_and(|s| self.switches[s as usize].is_first)
        };
        if found.iter().any(is_first) {
            found.retain(is_first);
        }
    }

    /// Which outputs can wait for which, over all destinations. Nothing waits for a host's output: hosts forward nothing.
    pub(super) fn dependencies(&self) -> Dependencies {
        let mut d = Dependencies::new(self.directions());
        let mut distance = Vec::new();
        let mut towards: Vec<Vec<PortId>> = vec![Vec::new(); self.switches.len()];
        // Outputs on the ways to a switch, known from the first host that has its only link there.
        let mut leading_to: Vec<Option<Vec<u32>>> = vec![None; self.switches.len()];
        for dst in 0..self.hosts() {
            let only = self.only_link(dst);
            if let Some((at, port)) = only
                && let Some(outputs) = &leading_to[at]
            {
                let last = self.link_index(self.hosts() + at as u32, port) as u32;
                outputs.iter().for_each(|&output| d.add(output, last));
                continue;
            }
            let mut outputs = Vec::new();
            self.distances(dst, &mut distance);
            for (ports, node) in towards.iter_mut().zip(self.hosts()..) {
                self.nearer_ports(node, dst, &distance, ports);
            }
            for (ports, node) in towards.iter().zip(self.hosts()..) {
                for &p in ports {
                    let next = self.peer(node, p).0;
                    let Some(j) = next.checked_sub(self.hosts()) else { continue };
                    let output = self.link_index(node, p) as u32;
                    for &q in &towards[j as usize] {
                        d.add(output, self.link_index(next, q) as u32);
                    }
                    if only.is_some_and(|(at, _)| at == j as usize) {
                        outputs.push(output);
                    }
                }
            }
            if let Some((at, _)) = only {
                leading_to[at] = Some(outputs);
            }
        }
        d
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_node::packet::{Address, FlowKey, Kind, Packet};
    use sluicenet_scenario::formats::parse_hpcc_topology;

    /// Hosts 0 to 9 and switches 10 to 13, all of which are linked to each other but 10 and 13. Hosts 7 and 8 have links to
    /// two switches, host 9 two links to one. Hosts of one switch do not stand together.
    const GRAPH: &str = "14 4 19\n10 11 12 13\n0 10 1Gbps 1us 0\n1 11 1Gbps 1us 0\n2 10 1Gbps 1us 0\n3 12 1Gbps 1us 0\n\
                         10 11 1Gbps 1us 0\n10 12 1Gbps 1us 0\n10 12 1Gbps 1us 0\n4 11 1Gbps 1us 0\n5 13 1Gbps 1us 0\n\
                         11 12 1Gbps 1us 0\n11 13 1Gbps 1us 0\n12 13 1Gbps 1us 0\n6 10 1Gbps 1us 0\n7 10 1Gbps 1us 0\n\
                         7 13 1Gbps 1us 0\n8 11 1Gbps 1us 0\n8 12 1Gbps 1us 0\n9 13 1Gbps 1us 0\n9 13 1Gbps 1us 0\n";

    #[test]
    fn hosts_of_one_switch_have_the_ways_that_each_has_by_itself() {
        let text = "[topology]\nkind = \"single-switch\"\nhosts = 2\nrouting = \"hash\"\n\
                    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 B\"\n";
        let scenario = Scenario::parse(text, "t.toml").unwrap().scenario;
        let (file, _) = parse_hpcc_topology("graph.txt", GRAPH.as_bytes()).unwrap();
        let plan = plan(&scenario, "graph.txt", &file).unwrap();
        let (mut distance, mut ports, mut several) = (Vec::new(), Vec::new(), 0);
        let links = plan.directions();
        let mut dependencies = Dependencies::new(links);
        for dst in 0..plan.hosts() {
            plan.distances(dst, &mut distance);
            let key = FlowKey { src: Address::new(0, 0), dst: Address::new(dst, 0), sport: 1, dport: 1 };
            let frame = Packet::of_flow(key, Kind::Udp);
            for node in (0..plan.nodes() as NodeId).filter(|&node| node != dst) {
                plan.nearer_ports(node, dst, &distance, &mut ports);
                let Some(router) = plan.router(node) else { continue };
                assert_eq!(router.candidate_ports(&frame), ports, "from {node} to {dst}");
                several += usize::from(ports.len() > 1);
                for &port in ports.iter().filter(|_| node >= plan.hosts()) {
                    let (next, mut onward) = (plan.peer(node, port).0, Vec::new());
                    if next >= plan.hosts() {
                        plan.nearer_ports(next, dst, &distance, &mut onward);
                    }
                    let output = plan.link_index(node, port) as u32;
                    onward.iter().for_each(|&q| dependencies.add(output, plan.link_index(next, q) as u32));
                }
            }
        }
        assert!(several > 10, "{several} choices");
        assert_eq!(format!("{:?}", plan.dependencies()), format!("{dependencies:?}"));
    }
}
