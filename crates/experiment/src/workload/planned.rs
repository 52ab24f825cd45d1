//! Flows that are known before the run: single flows, permutations, flows of a file, and Poisson arrivals.

use super::{
    Context, ENDLESS, FLOW, Heard, HostApp, Maker, PERMUTATION, POISSON, Ports, connect, fresh, kept, named, patterns,
    service,
};
use sluicenet_node::guest::FlowLabel;
use sluicenet_node::packet::Address;
use sluicenet_node::server::Io;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::{ConnectionMatrix, Start, TriggerKind};
use sluicenet_scenario::{Flow, FlowFile, FlowFileContent, Permutation, Poisson, Scenario, Transport, Warning};
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
}

struct Server {
    shared: Arc<Shared>,
    host: HostId,
    next: usize,
    undelivered: u64,
    /// Activations so far of the triggers this host counts.
    counts: BTreeMap<u32, u32>,
    ports: Ports,
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
    let shared = Arc::new(Shared { number, flows, triggers, by_host, owned });
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
        // Every flow has a port of its own: two flows between one pair of hosts are two connections.
        let sport = self.ports.next();
        let how = if f.kept { kept(f.transport, f.pace) } else { fresh(f.transport, f.pace) };
        let ends = (Address::new(self.host, f.src_vm), Address::new(f.dst, f.dst_vm));
        let socket = connect(now, io, ends, (sport, port), f.priority, how);
        let label = FlowLabel { kind: f.kind, query: None };
        io.send(now, socket, f.bytes.unwrap_or(ENDLESS), named(shared.number, index as u64), label);
        if !f.kept && f.transport.connects() && f.bytes.is_some() {
            io.close(now, socket);
        }
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

/// Poisson arrivals at a share of every host's links.
pub fn poisson(cx: &Context<'_>, w: &Poisson) -> Maker {
    let n = cx.inner_hosts();
    let mean_bytes = w.cdf.content.mean();
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
            });
        }
    }
    maker(cx.number, flows, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_scenario::Workload;
    use std::collections::BTreeSet;

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
