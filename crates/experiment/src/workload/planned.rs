//! Flows that are known before the run: single flows, permutations, flows of a file, and Poisson arrivals.

use super::{
    Context, ENDLESS, FLOW, Heard, HostApp, Maker, PERMUTATION, POISSON, Ports, carried, connect, fresh, kept, named,
    patterns, service,
};
use crate::build::Frames;
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Io;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::xgft::Xgft;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::{ConnectionMatrix, Start, TriggerKind};
use sluicenet_scenario::{
    Flow, FlowFile, FlowFileContent, LoadBasis, Permutation, Poisson, Scenario, Transport, Warning, Workload,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A flow of the plan.
#[derive(Clone, Copy, Debug)]
struct Planned {
    src: HostId,
    /// The machine there.
    src_vm: u8,
    dst: HostId,
    /// The machine there.
    dst_vm: u8,
    bytes: Option<u64>,
    /// When it starts; `None` when a trigger says so.
    start: Option<Instant>,
    transport: Transport,
    pace: Option<Rate>,
    priority: u8,
    kind: u8,
    /// Whether the connection was open before the clock started.
    kept: bool,
    send_done: Option<u32>,
    recv_done: Option<u32>,
    /// The connection whose message it is; `None` for a connection of its own.
    connection: Option<u32>,
}

#[derive(Clone, Debug)]
struct Trigger {
    kind: TriggerKind,
    targets: Vec<u32>,
    /// The host that counts its activations.
    owner: HostId,
}

struct Shared {
    number: u8,
    flows: Vec<Planned>,
    triggers: Vec<Trigger>,
    /// Flows of each host in order of start.
    by_host: BTreeMap<HostId, Vec<u32>>,
    /// Triggers each host counts.
    owned: BTreeMap<HostId, Vec<u32>>,
    /// Messages of each connection that several share.
    messages: BTreeMap<u32, u32>,
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    next: usize,
    undelivered: u64,
    /// Activations so far of the triggers this host counts.
    counts: BTreeMap<u32, u32>,
    ports: Ports,
    /// Port of each open connection that messages share, and messages to come.
    open: BTreeMap<u32, (u16, u32)>,
}

/// Messages from one host to another.
const START_FLOW: u64 = 1;
const ACTIVATE: u64 = 2;

fn maker(number: u8, flows: Vec<Planned>, triggers: Vec<Trigger>) -> Maker {
    let mut by_host: BTreeMap<HostId, Vec<u32>> = BTreeMap::new();
    let mut receives: std::collections::BTreeSet<HostId> = Default::default();
    for (i, f) in flows.iter().enumerate() {
        by_host.entry(f.src).or_default().push(i as u32);
        receives.insert(f.dst);
    }
    for list in by_host.values_mut() {
        list.sort_by_key(|&i| (flows[i as usize].start.unwrap_or(Instant::MAX), i));
    }
    let mut owned: BTreeMap<HostId, Vec<u32>> = BTreeMap::new();
    for (i, t) in triggers.iter().enumerate() {
        owned.entry(t.owner).or_default().push(i as u32);
    }
    let mut messages: BTreeMap<u32, u32> = BTreeMap::new();
    flows.iter().filter_map(|f| f.connection).for_each(|c| *messages.entry(c).or_default() += 1);
    let shared = Arc::new(Shared { number, flows, triggers, by_host, owned, messages });
    Box::new(move |host| {
        let mine = shared.by_host.get(&host);
        if mine.is_none() && !receives.contains(&host) && !shared.owned.contains_key(&host) {
            return None;
        }
        let finite = mine.map_or(0, |l| l.iter().filter(|&&i| shared.flows[i as usize].bytes.is_some()).count());
        Some(Box::new(Server {
            host,
            next: 0,
            undelivered: finite as u64,
            counts: BTreeMap::new(),
            ports: Ports::default(),
            open: BTreeMap::new(),
            shared: shared.clone(),
        }))
    })
}

impl Server {
    fn mine(&self) -> &[u32] {
        self.shared.by_host.get(&self.host).map_or(&[], Vec::as_slice)
    }

    fn schedule(&self, io: &mut dyn Io) {
        if let Some(at) = self.mine().get(self.next).and_then(|&i| self.shared.flows[i as usize].start) {
            io.wake_at(at, named(self.shared.number, 0));
        }
    }

    fn start(&mut self, now: Instant, io: &mut dyn Io, index: u32) {
        let shared = self.shared.clone();
        let f = &shared.flows[index as usize];
        let port = service(shared.number, 0);
        let (sport, is_last) = self.port(f.connection);
        let how = if f.kept { kept(f.transport, f.pace) } else { fresh(f.transport, f.pace) };
        let ends = (Address::new(self.host, f.src_vm), Address::new(f.dst, f.dst_vm));
        let socket = connect(now, io, ends, (sport, port), f.priority, how);
        let label = FlowLabel { kind: f.kind, query: None };
        io.send(now, socket, f.bytes.unwrap_or(ENDLESS), named(shared.number, index as u64), label);
        if is_last && !f.kept && f.transport.connects() && f.bytes.is_some() {
            io.close(now, socket);
        }
    }

    /// The port of a flow, and whether no other message comes on its connection. Two flows between one pair of hosts are
    /// two connections, unless they are messages on one.
    fn port(&mut self, connection: Option<u32>) -> (u16, bool) {
        let Some(connection) = connection else { return (self.ports.next(), true) };
        let messages = self.shared.messages.get(&connection).copied().unwrap_or(1);
        let open = self.open.entry(connection).or_insert_with(|| (self.ports.next(), messages));
        open.1 -= 1;
        (open.0, open.1 == 0)
    }

    /// A trigger is activated here or at the host that counts for it.
    fn activate(&mut self, now: Instant, io: &mut dyn Io, trigger: u32) {
        let shared = self.shared.clone();
        let t = &shared.triggers[trigger as usize];
        if t.owner != self.host {
            return self.tell(now, io, t.owner, ACTIVATE, trigger);
        }
        let count = self.counts.entry(trigger).or_default();
        *count += 1;
        let start: &[u32] = match t.kind {
            TriggerKind::Oneshot if *count == 1 => &t.targets,
            TriggerKind::Barrier(n) if *count == n => &t.targets,
            TriggerKind::Multishot => {
                let i = *count as usize - 1;
                t.targets.get(i..i + 1).unwrap_or(&[])
            }
            _ => &[],
        };
        for &flow in start {
            match shared.flows[flow as usize].src {
                src if src == self.host => self.start(now, io, flow),
                src => self.tell(now, io, src, START_FLOW, flow),
            }
        }
    }

    fn tell(&self, now: Instant, io: &mut dyn Io, to: HostId, what: u64, index: u32) {
        let words = [named(self.shared.number, what), index as u64, 0];
        io.tell(now, Address::new(self.host, 0), Address::new(to, 0), words);
    }
}

impl HostApp for Server {
    fn handle(&mut self, now: Instant, io: &mut dyn Io, heard: Heard) {
        match heard {
            Heard::Start => self.schedule(io),
            Heard::Wake { .. } => {
                while let Some(&i) = self.mine().get(self.next) {
                    if self.shared.flows[i as usize].start.is_none_or(|at| at > now) {
                        break;
                    }
                    self.next += 1;
                    self.start(now, io, i);
                }
                self.schedule(io);
            }
            Heard::Message { tag, .. } => {
                if let Some(t) = self.shared.flows.get(tag as usize).and_then(|f| f.recv_done) {
                    self.activate(now, io, t);
                }
            }
            Heard::Delivered { tag } => {
                self.undelivered = self.undelivered.saturating_sub(1);
                if let Some(t) = self.shared.flows.get(tag as usize).and_then(|f| f.send_done) {
                    self.activate(now, io, t);
                }
            }
            Heard::Told { words } if words[0] == START_FLOW => self.start(now, io, words[1] as u32),
            Heard::Told { words } => self.activate(now, io, words[1] as u32),
        }
    }

    fn remaining(&self) -> u64 {
        self.undelivered
    }
}

/// One flow.
pub fn single(cx: &Context<'_>, w: &Flow) -> Maker {
    let flow = Planned {
        src: w.src,
        src_vm: w.src_vm as u8,
        dst: w.dst,
        dst_vm: w.dst_vm as u8,
        bytes: w.bytes.map(|b| b.as_bytes()),
        start: Some(Instant(w.start.as_ps())),
        transport: w.transport,
        pace: w.rate,
        priority: w.priority,
        kind: FLOW,
        kept: false,
        send_done: None,
        recv_done: None,
        connection: None,
    };
    maker(cx.number, vec![flow], Vec::new())
}

/// Pairs of sender and receiver: a server with its machine, and the other server.
pub fn permutation_pairs(scenario: &Scenario, number: u8, w: &Permutation) -> Vec<(HostId, u8, HostId)> {
    let n = scenario.topology.counts().hosts;
    // The first as where there is one flow a host.
    let drawn = |nth: u32| (scenario.seed, u64::from(nth) << 8 | u64::from(number));
    let pairs = (0..w.flows).flat_map(|nth| patterns::pairs(&scenario.topology, drawn(nth), &w.pattern));
    let pairs = pairs.filter(|&(src, _)| w.senders.is_none_or(|senders| src < senders));
    // Hosts outside have one machine.
    let mut begun: BTreeMap<HostId, u32> = BTreeMap::new();
    let mut machine = |src: HostId| {
        let nth = begun.entry(src).or_default();
        *nth += 1;
        if w.per_vm && src < n { ((w.first_vm + *nth - 1) % scenario.server.vms) as u8 } else { 0 }
    };
    pairs.map(|(src, dst)| (src, machine(src), dst)).collect()
}

/// Every host to one other.
pub fn permutation(cx: &Context<'_>, w: &Permutation) -> Maker {
    let flows = permutation_pairs(cx.scenario, cx.number, w)
        .into_iter()
        .map(|(src, src_vm, dst)| Planned {
            src,
            src_vm,
            dst,
            dst_vm: 0,
            bytes: w.bytes.map(|b| b.as_bytes()),
            start: Some(Instant(w.start.as_ps() + w.stagger.as_ps() * src as u64)),
            transport: w.transport,
            pace: w.rate,
            priority: w.priority_of(src),
            kind: PERMUTATION,
            kept: false,
            send_done: None,
            recv_done: None,
            connection: None,
        })
        .collect();
    maker(cx.number, flows, Vec::new())
}

/// The flows of a file.
pub fn file(cx: &Context<'_>, w: &FlowFile, warnings: &mut Vec<Warning>) -> Maker {
    let plan = |src, dst, bytes, start, priority| Planned {
        src,
        src_vm: 0,
        dst,
        dst_vm: 0,
        bytes,
        start,
        transport: w.transport,
        pace: None,
        priority,
        kind: FLOW,
        kept: false,
        send_done: None,
        recv_done: None,
        connection: None,
    };
    match &w.content {
        FlowFileContent::Hpcc { file } => {
            // A flow file names nodes; hosts are counted without the switches among them.
            let host_of = |node: u32| match &cx.scenario.topology.shape {
                sluicenet_scenario::Shape::Hpcc { file } => file.content.host_of(node).unwrap_or(node),
                _ => node,
            };
            let flows = file
                .content
                .flows
                .iter()
                .map(|f| {
                    let priority = w.priority.unwrap_or(f.priority & 7);
                    plan(host_of(f.src), host_of(f.dst), Some(f.bytes), Some(Instant(f.start.as_ps())), priority)
                })
                .collect();
            maker(cx.number, flows, Vec::new())
        }
        FlowFileContent::Htsim { file } => {
            let matrix: &ConnectionMatrix = &file.content;
            if let Some(f) = matrix.failures.first() {
                let message = "failed links are not modelled: the links stay up".to_string();
                warnings.push(Warning { file: file.path.clone(), line: f.line, message });
            }
            let flows: Vec<Planned> = matrix
                .connections
                .iter()
                .map(|c| {
                    let start = match c.start {
                        Start::At(d) => Some(Instant(d.as_ps())),
                        Start::Trigger(_) => None,
                    };
                    Planned {
                        send_done: c.send_done,
                        recv_done: c.recv_done,
                        connection: c.is_message.then_some(c.id),
                        ..plan(c.src, c.dst, c.bytes, start, w.priority.unwrap_or(0))
                    }
                })
                .collect();
            let triggers = matrix
                .triggers
                .iter()
                .map(|t| Trigger {
                    kind: t.kind,
                    targets: t.targets.clone(),
                    owner: t.targets.first().map_or(0, |&f| flows[f as usize].src),
                })
                .collect();
            maker(cx.number, flows, triggers)
        }
    }
}

/// Flow sizes over which a mean is taken.
const MEAN_OF: u64 = 1 << 14;

/// The mean bytes of a flow on a link.
fn mean_on_wire(scenario: &Scenario, w: &Poisson) -> f64 {
    let frames = Frames::of_priority(scenario, w.priority);
    let transport = carried(w.transport);
    let step = u64::MAX / MEAN_OF;
    let sizes = (0..MEAN_OF).map(|n| w.cdf.content.sample(n * step + step / 2));
    sizes.map(|bytes| frames.bits_on((bytes as u64).max(1), transport).link as f64 / 8.0).sum::<f64>() / MEAN_OF as f64
}

/// Bytes of a workload on the links of its hosts, as a part of their rate.
fn load_on_links(scenario: &Scenario, w: &Poisson) -> f64 {
    match w.load_basis {
        LoadBasis::Payload => w.load * mean_on_wire(scenario, w) / w.cdf.content.mean(),
        LoadBasis::Wire => w.load,
    }
}

/// A warning of loads that together exceed what the links of the hosts, or those between switches, carry; the last of them
/// gives it.
fn overload(cx: &Context<'_>) -> Option<Warning> {
    let loads = cx.scenario.workloads.iter().enumerate().filter_map(|(number, w)| match w {
        Workload::Poisson(w) => Some((number, w)),
        _ => None,
    });
    let last = loads.clone().next_back().is_some_and(|(number, _)| number == usize::from(cx.number));
    if !last {
        return None;
    }
    let (plan, n) = (cx.plan, f64::from(cx.inner_hosts()));
    let on_links: f64 = loads.clone().map(|(_, w)| load_on_links(cx.scenario, w)).sum();
    let offered: f64 = (0..cx.inner_hosts()).map(|host| plan.host_rate(host).as_bps() as f64 * on_links).sum();
    let nodes = 0..plan.nodes() as NodeId;
    let ends = || nodes.clone().flat_map(|node| plan.ends(node).map(move |end| (node, end)));
    let (mut most, mut busiest) = (on_links, "the links of the hosts".to_owned());
    // Of a tree's levels: as many bits leave the subtrees of a level as flows end in another one.
    for level in 1..plan.tree().map_or(0, Xgft::levels) {
        let inside = plan.chassis(0, level).len() as f64;
        let up = ends().filter(|(node, end)| plan.level(*node) == level && plan.level(end.peer) == level + 1);
        let carried: f64 = up.map(|(_, end)| end.link.rate.as_bps() as f64).sum();
        let load = offered * (n - inside) / (n - 1.0) / carried;
        if load > most {
            (most, busiest) = (load, format!("the links from level {level} up"));
        }
    }
    let these = if loads.count() == 1 { "this load is" } else { "these loads are together" };
    let message = format!(
        "{these} {:.0} % of {busiest}, headers and gaps included: their queues grow until the last flow starts, and drain \
         after it",
        most * 100.0
    );
    (most > 1.0).then(|| cx.scenario.locations.warning(&format!("workload.{}.load", cx.number), &message))
}

/// Poisson arrivals at a share of every host's links.
pub fn poisson(cx: &Context<'_>, w: &Poisson, warnings: &mut Vec<Warning>) -> Maker {
    warnings.extend(overload(cx));
    maker(cx.number, arrivals(cx, w), Vec::new())
}

fn arrivals(cx: &Context<'_>, w: &Poisson) -> Vec<Planned> {
    let n = cx.inner_hosts();
    let mean_bytes = match w.load_basis {
        LoadBasis::Payload => w.cdf.content.mean(),
        LoadBasis::Wire => mean_on_wire(cx.scenario, w),
    };
    let mut flows = Vec::new();
    for src in 0..n {
        let mut rng = Rng::from_words(&[cx.seed(), 0x504f_4953, cx.number as u64, src as u64]);
        let rate = cx.plan.host_rate(src).as_bps() as f64;
        // Mean time between flows so that they fill `load` of the links.
        let mean_ps = mean_bytes * 8.0 / (rate * w.load) * 1e12;
        let mut at = 0.0;
        loop {
            at += -libm::log(1.0 - rng.unit_f64()) * mean_ps;
            if at >= w.until.as_ps() as f64 || n < 2 {
                break;
            }
            let draw = rng.below(n as u64 - 1) as u32;
            flows.push(Planned {
                src,
                src_vm: 0,
                dst: draw + (draw >= src) as u32,
                dst_vm: 0,
                bytes: Some((w.cdf.content.sample(rng.next_u64()) as u64).max(1)),
                start: Some(Instant::ZERO + Duration(at as u64)),
                transport: w.transport,
                pace: None,
                priority: w.priority,
                kind: POISSON,
                kept: false,
                send_done: None,
                recv_done: None,
                connection: None,
            });
        }
    }
    flows
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::Dir;
    use std::collections::BTreeSet;

    /// Flows of 1 MB between 64 hosts, eight at a leaf with so many links up.
    fn at_loads(up: u32, loads: &[f64], basis: &str) -> (usize, String) {
        let folder = Dir::new(&format!("poisson-{up}-{loads:?}-{basis}"));
        folder.file("cdf.txt", "999999 0\n1000000 100\n");
        let workload = |load: &f64| {
            let keys = format!("load = {load}\nload_basis = \"{basis}\"\nuntil = \"1 s\"");
            format!("[[workload]]\nkind = \"poisson\"\ncdf = \"cdf.txt\"\n{keys}\n")
        };
        let tree = format!("[topology]\nkind = \"xgft\"\nm = [8, 8]\nw = [1, {up}]\nrouting = \"ecmp\"\n");
        let text = tree + &loads.iter().map(workload).collect::<String>();
        folder.file("s.toml", &text);
        let scenario = Scenario::load(folder.0.join("s.toml")).unwrap().scenario;
        let plan = crate::build::Network::new(&scenario).unwrap().plan.clone();
        let Workload::Poisson(w) = &scenario.workloads[0] else { unreachable!() };
        let cx = Context { scenario: &scenario, plan: &plan, number: 0 };
        let flows = arrivals(&cx, w).len();
        let number = (scenario.workloads.len() - 1) as u8;
        assert!(number == 0 || overload(&cx).is_none());
        let warning = overload(&Context { number, ..cx }).map(|w| w.message).unwrap_or_default();
        (flows, warning)
    }

    /// Bytes on a link for each byte of these flows.
    fn growth() -> f64 {
        let text = "[topology]\nkind = \"single-switch\"\nhosts = 2\n\
                    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 MB\"\n";
        let scenario = Scenario::parse(text, "t").unwrap().scenario;
        Frames::of_priority(&scenario, 0).bits_on(1_000_000, carried(Transport::Tcp)).link as f64 / 8e6
    }

    #[test]
    fn a_load_counts_the_bytes_of_its_basis() {
        // Headers of IP, TCP and Ethernet, FCS, preamble and gap are 78 to 90 bytes for at most 1460.
        assert!((1.05..1.07).contains(&growth()), "{}", growth());
        for (basis, per_flow) in [("payload", 1.0), ("wire", growth())] {
            let flows = at_loads(8, &[0.5], basis).0 as f64;
            // 64 hosts at 10 Gb/s for a second, half of it in flows of 1 MB.
            let expected = 64.0 * 1250.0 * 0.5 / per_flow;
            assert!((flows / expected - 1.0).abs() < 0.02, "{basis}: {flows} of {expected}");
        }
    }

    #[test]
    fn a_load_that_the_links_cannot_carry_is_warned_of() {
        // 8 hosts send 56 in 63 of their flows over 4 links.
        let up = 8.0 / 4.0 * 56.0 / 63.0;
        let cases = [
            (8, 0.9, "payload", None),
            (4, 0.5, "payload", None),
            (8, 1.0, "wire", None),
            (4, 0.6, "payload", Some((0.6 * up * growth(), "the links from level 1 up"))),
            (4, 0.6, "wire", Some((0.6 * up, "the links from level 1 up"))),
            (8, 1.0, "payload", Some((growth(), "the links of the hosts"))),
        ];
        for (w, load, basis, expected) in cases {
            let said = at_loads(w, &[load], basis).1;
            match expected {
                None => assert_eq!(said, ""),
                Some((load, links)) => {
                    assert!(said.starts_with(&format!("this load is {:.0} % of {links}, ", load * 100.0)), "{said}");
                }
            }
        }
    }

    #[test]
    fn loads_of_several_workloads_are_added() {
        let up = 8.0 / 4.0 * 56.0 / 63.0;
        let said = at_loads(4, &[0.3, 0.4], "wire").1;
        let expected = format!("these loads are together {:.0} % of the links from level 1 up, ", 0.7 * up * 100.0);
        assert!(said.starts_with(&expected), "{said}");
    }

    #[test]
    fn a_pattern_is_drawn_anew_for_each_flow_of_a_host() {
        let pairs = |flows: u32| {
            let text = format!(
                "[topology]\nkind = \"fat-tree\"\nk = 4\n[scenario]\nduration = \"1 s\"\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"random\"\nflows = {flows}\n"
            );
            let scenario = Scenario::parse(&text, "t").unwrap().scenario;
            let Workload::Permutation(w) = &scenario.workloads[0] else { unreachable!() };
            permutation_pairs(&scenario, 0, w)
        };
        let three = pairs(3);
        assert_eq!(three[..16], pairs(1));
        assert_eq!(three.chunks(16).collect::<BTreeSet<_>>().len(), 3);
    }
}
