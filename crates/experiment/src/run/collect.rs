//! From events to rows: the rows and their order do not depend on the number of threads.

use super::capture::Capture;
use super::messages::{Messages, Seen};
use super::{XcoTotals, ZBridgeTotals};
use crate::build::{self, Bumps, Ideal, Plan};
use crate::workload::{HostApps, workload_at};
use sluicenet_node::adapter::AdapterFrame;
use sluicenet_node::device::PortId;
use sluicenet_node::guest::{FlowRecord, Transport};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{FlowKey, Kind, Packet};
use sluicenet_node::server::{App, QueryRecord};
use sluicenet_node::switch::{Cause, MarkCounts, PauseEvent, StormCounts};
use sluicenet_proto::frame::{PRIORITIES, Priority};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::netbump::QueueId;
use sluicenet_proto::tcp::Tcp;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_records::{
    BumpRow, DropRow, EstimateRow, LastParts, LimiterRow, MarkRow, PauseRow, PortRow, QueueRow, RecordError,
    RecordWriter, Status, StormRow, TcpRow, Text,
};
use sluicenet_scenario::{EPHEMERAL, Hosts, Record, Scenario};
use sluicenet_sim::world::{Node, NodeRef};
use sluicenet_sim::{Engine, Epoch, QueueSample};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How much simulated time passes between two flushes of the records, in epochs.
const FLUSH_EPOCHS: u64 = 200;

/// Pieces of finite work left.
pub fn remaining(engine: &Engine<HostApps>) -> u64 {
    servers(engine).map(|(_, s)| s.app().remaining()).sum()
}

/// Packet-hops so far: frames sent on links. Pause frames are left out: they carry nothing.
pub fn hops(engine: &Engine<HostApps>) -> u64 {
    let pauses = (0..engine.nodes() as NodeId).map(|n| match engine.node(n).kind() {
        NodeRef::Switch(s) => s.control_out(),
        NodeRef::Server(s) => s.host().adapter().control_out(),
        NodeRef::Bump(bump) => bump.ledger().pauses_out,
        NodeRef::Idle => 0,
    });
    engine.hops() - pauses.sum::<u64>()
}

/// Payload bytes that reached TCP sockets in order.
pub fn tcp_bytes(engine: &Engine<HostApps>) -> u64 {
    servers(engine).map(|(_, s)| s.host().tcp_bytes_received()).sum()
}

/// The most frames that a machine's receive queue held, where there are credits.
pub fn received_max(engine: &Engine<HostApps>) -> Option<u32> {
    servers(engine).filter_map(|(_, s)| s.report().receive_queue_max).max()
}

/// Totals of zBridge over all servers; `None` without zBridge.
pub fn zbridge(engine: &Engine<HostApps>) -> Option<ZBridgeTotals> {
    let counters = servers(engine).filter_map(|(_, s)| s.report().channels);
    counters.reduce(|a, b| a + b).map(ZBridgeTotals::from)
}

/// What XCo did until `now`, over all servers; `None` without it.
pub fn xco(engine: &Engine<HostApps>, plan: &Plan, s: &Scenario, now: Instant) -> Option<XcoTotals> {
    let mut totals: Option<XcoTotals> = None;
    for (_, server) in servers(engine) {
        for report in server.report().xco {
            totals.get_or_insert_default().add(&report);
        }
    }
    let overhead = u64::from(build::framing(s).overhead());
    let part = |node: NodeId, port: PortId| {
        let (frames, bytes) = engine.sent(node, port);
        let time = plan.rate(node, port).time_for(bytes + frames * overhead);
        100.0 * time.as_secs_f64() / now.since(Instant::ZERO).as_secs_f64()
    };
    let ports = (0..plan.nodes() as NodeId).flat_map(|node| (0..plan.ports(node) as PortId).map(move |p| (node, p)));
    let totals = totals.as_mut()?;
    totals.fullest_link_percent = ports.map(|(node, port)| part(node, port)).fold(0.0, f64::max);
    Some(*totals)
}

/// Drops of switches and bumps, and of servers.
pub fn drops(engine: &Engine<HostApps>) -> (Drops, Drops) {
    let (mut switches, mut servers) = (Drops::default(), Drops::default());
    for n in 0..engine.nodes() as NodeId {
        match engine.node(n).kind() {
            NodeRef::Switch(s) => {
                for (&(_, _, reason), &(frames, bytes)) in s.drops() {
                    switches.count_many(reason, frames, bytes);
                }
            }
            NodeRef::Server(s) => servers.add(s.host().drops()),
            NodeRef::Bump(bump) => switches.add(bump.drops()),
            NodeRef::Idle => {}
        }
    }
    (switches, servers)
}

fn servers(engine: &Engine<HostApps>) -> impl Iterator<Item = (NodeId, &sluicenet_node::server::AnyServer<HostApps>)> {
    (0..engine.nodes() as NodeId).filter_map(|n| engine.node(n).as_server().map(|s| (n, s)))
}

/// A pause that has not ended.
#[derive(Clone, Copy, Debug)]
struct OpenPause {
    id: u64,
    start: Instant,
    cause: Cause,
    parent: Option<u64>,
}

/// The samples of epochs: when the next one is due.
struct Sampling {
    interval: Duration,
    next: Instant,
}

impl Sampling {
    fn new(interval: Duration) -> Sampling {
        Sampling { interval, next: Instant::ZERO }
    }

    /// Whether a sample is due at the end of an epoch.
    fn is_due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        // The next multiple of the interval.
        self.next = Instant((now.as_ps() / self.interval.as_ps() + 1).saturating_mul(self.interval.as_ps()));
        true
    }
}

/// When which hosts' connections are sampled.
struct TcpSampling {
    sampling: Sampling,
    hosts: Vec<NodeId>,
}

impl TcpSampling {
    fn new(s: &Scenario, plan: &Plan) -> Option<TcpSampling> {
        let interval = s.record.tcp?;
        let hosts = match &s.record.tcp_hosts {
            None => (0..plan.hosts()).collect(),
            Some(Hosts::Count(n)) => (0..*n).collect(),
            Some(Hosts::List(list)) => {
                let mut list = list.clone();
                list.sort_unstable();
                list
            }
        };
        Some(TcpSampling { sampling: Sampling::new(interval), hosts })
    }

    /// The sample that is due at the end of an epoch, if one is.
    fn take(&mut self, engine: &Engine<HostApps>, now: Instant) -> Vec<TcpRow> {
        if !self.sampling.is_due(now) {
            return Vec::new();
        }
        let ends = self.hosts.iter().filter_map(|&h| engine.node(h).as_server()).flat_map(|s| s.host().connections());
        let sent = ends.filter(|(_, tcp)| tcp.bytes_acked() > 0 || tcp.flight() > 0);
        let mut rows: Vec<TcpRow> = sent.map(|(flow, tcp)| tcp_row(now, flow, tcp)).collect();
        rows.sort_by_key(|r| (r.src_host, r.src_vm, r.dst_host, r.dst_vm, r.src_port, r.dst_port));
        rows
    }
}

/// The rate limiters of all adapters.
fn limiters(engine: &Engine<HostApps>, now: Instant) -> Vec<LimiterRow> {
    let mut rows = Vec::new();
    for (host, server) in servers(engine) {
        let adapter = server.host().adapter();
        for port in 0..adapter.ports() as PortId {
            adapter.limiters(port, |key, path, rate, target| {
                let (queue, priority) = (key >> 3, (key & 7) as u8);
                let (rate_bps, target_bps) = (rate.as_bps(), target.as_bps());
                let time_ps = now.as_ps();
                rows.push(LimiterRow { time_ps, host, port, queue, priority, path, rate_bps, target_bps });
            });
        }
        server.host().roce_limiters(now, |flow, priority, rate, target| {
            let (queue, path, port) = (Packet::of_flow(flow, Kind::Roce).flow_number(), None, 0);
            let (rate_bps, target_bps, time_ps) = (rate.as_bps(), target.as_bps(), now.as_ps());
            rows.push(LimiterRow { time_ps, host, port, queue, priority, path, rate_bps, target_bps });
        });
    }
    rows
}

fn tcp_row(now: Instant, flow: FlowKey, tcp: &Tcp) -> TcpRow {
    TcpRow {
        time_ps: now.as_ps(),
        src_host: flow.src.host(),
        src_vm: flow.src.vm(),
        src_port: flow.sport,
        dst_host: flow.dst.host(),
        dst_vm: flow.dst.vm(),
        dst_port: flow.dport,
        cwnd_bytes: tcp.cwnd(),
        ssthresh_bytes: Some(tcp.ssthresh()).filter(|&t| t < u32::MAX),
        flight_bytes: tcp.flight(),
        send_buffer_bytes: tcp.buffers().0,
        acked_bytes: tcp.bytes_acked(),
        srtt_ps: Some(tcp.srtt().as_ps()).filter(|&t| t > 0),
        rto_ps: tcp.rto().as_ps(),
        timeouts: tcp.stats().timeouts,
        retransmissions: tcp.stats().retransmissions,
    }
}

/// Results that a run leaves in memory.
pub struct Collected {
    pub seen: Seen,
    pub pauses: u64,
    /// Frames that switches marked.
    pub marked: u64,
    /// Congestion notifications that switches sent.
    pub notifications: u64,
    /// Unfinished flows on a connection that began with an earlier flow, by workload.
    pub reused: BTreeMap<u8, u64>,
    /// The records that are still in memory.
    pub records: LastParts,
}

/// Turns epochs into rows.
pub struct Collector {
    record: Record,
    plan: Arc<Plan>,
    messages: Messages,
    writer: Option<RecordWriter>,
    capture: Capture,
    tcp: Option<TcpSampling>,
    limiters: Option<Sampling>,
    /// Names of the boxes, bumps last.
    names: Vec<Text>,
    bumps: Bumps,
    wire_overhead: u64,
    now: Instant,
    epochs: u64,
    /// Queries that ended in the epoch before: the last of their flows is known one lookahead later.
    ended: Vec<QueryRecord>,
    pauses: u64,
    open: BTreeMap<(NodeId, PortId, Priority), OpenPause>,
    /// Number of the newest pause of each port and priority: it holds its peer until XON has arrived there.
    newest: BTreeMap<(NodeId, PortId, Priority), u64>,
    scratch: Vec<FlowRecord>,
}

impl Collector {
    pub fn new(
        s: &Scenario,
        plan: Arc<Plan>,
        bumps: Bumps,
        ideal: Ideal,
        writer: Option<RecordWriter>,
        capture: Capture,
    ) -> Collector {
        Collector {
            record: s.record.clone(),
            tcp: TcpSampling::new(s, &plan),
            limiters: s.record.limiters.map(Sampling::new),
            names: {
                let of_bumps = (0..bumps.plans.len()).map(|i| Text::from(format!("bump {i}")));
                (0..plan.nodes() as NodeId).map(|n| Text::from(plan.name(n))).chain(of_bumps).collect()
            },
            bumps,
            wire_overhead: s.framing.gap_bytes(),
            plan,
            messages: Messages::new(s, Arc::new(ideal)),
            writer,
            capture,
            now: Instant::ZERO,
            epochs: 0,
            ended: Vec::new(),
            pauses: 0,
            open: BTreeMap::new(),
            newest: BTreeMap::new(),
            scratch: Vec::new(),
        }
    }

    /// Simulated time up to which everything is collected.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Takes in the events of an epoch.
    pub fn epoch(&mut self, engine: &mut Engine<HostApps>, epoch: Epoch) -> Result<(), RecordError> {
        self.now = epoch.now;
        self.epochs += 1;
        let ended = std::mem::take(&mut self.ended);
        let mut scratch = std::mem::take(&mut self.scratch);
        for n in 0..self.plan.hosts() {
            if let Node::Server(s) = engine.node_mut(n) {
                s.host_mut().take_flows(&mut scratch);
                self.ended.extend(s.app_mut().take_queries());
            }
        }
        scratch.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
        self.messages.write_flows(&mut self.writer, &scratch)?;
        scratch.clear();
        self.scratch = scratch;
        self.messages.write_queries(&mut self.writer, ended)?;
        self.messages.at(self.now, || open_flows(engine, self.now));
        let pauses: Vec<PauseRow> = epoch.pauses.iter().filter_map(|(n, p)| self.pause(*n, p)).collect();
        self.capture.write(epoch.captured, epoch.now)?;
        let (samples, estimates) = self.samples(&epoch.samples);
        if let Some(w) = &mut self.writer {
            if self.record.pauses {
                w.write(&pauses)?;
            }
            w.write(&samples)?;
            w.write(&estimates)?;
            if let Some(tcp) = &mut self.tcp {
                w.write(&tcp.take(engine, epoch.now))?;
            }
            if self.limiters.as_mut().is_some_and(|sampling| sampling.is_due(epoch.now)) {
                w.write(&limiters(engine, epoch.now))?;
            }
            if self.epochs % FLUSH_EPOCHS == 0 {
                w.flush()?;
                self.capture.flush()?;
            }
        }
        Ok(())
    }

    /// The rows of samples: of queues, and of the estimates of bumps.
    fn samples(&self, samples: &[QueueSample]) -> (Vec<QueueRow>, Vec<EstimateRow>) {
        let (queues, estimates): (Vec<_>, Vec<_>) =
            samples.iter().partition(|sample| (sample.node as usize) < self.plan.nodes());
        let queue = |sample: &QueueSample| {
            let &QueueSample { at, node, port, bytes } = sample;
            QueueRow { time_ps: at.as_ps(), node: self.names[node as usize].clone(), port, bytes }
        };
        let estimate = |sample: &QueueSample| {
            let (time_ps, bump) = (sample.at.as_ps(), self.names[sample.node as usize].clone());
            let (node, port) = self.watched(sample.node, sample.port);
            EstimateRow { time_ps, bump, node, port, bytes: sample.bytes }
        };
        (queues.into_iter().map(queue).collect(), estimates.into_iter().map(estimate).collect())
    }

    /// The switch and port of a virtual queue of a bump.
    fn watched(&self, bump: NodeId, queue: QueueId) -> (Text, PortId) {
        let place = &self.bumps.plans[bump as usize - self.plan.nodes()];
        let (node, port) = place.watched[usize::from(queue)];
        (self.names[node as usize].clone(), port)
    }

    /// A pause that ended becomes a row; one that began is remembered with the pause that caused it.
    fn pause(&mut self, node: NodeId, p: &PauseEvent) -> Option<PauseRow> {
        let key = (node, p.port, p.priority);
        if !p.stop {
            let open = self.open.remove(&key)?;
            return Some(self.pause_row(key, &open, Some(p.at)));
        }
        // The output that holds the bytes is itself paused: the pause of its peer is the one to follow.
        let parent = match p.cause {
            Cause::Output(port) if p.cause_is_paused => {
                let peer = self.plan.peer(node, port);
                self.newest.get(&(peer.0, peer.1, p.priority)).copied()
            }
            _ => None,
        };
        let id = self.pauses;
        self.pauses += 1;
        self.open.insert(key, OpenPause { id, start: p.at, cause: p.cause, parent });
        self.newest.insert(key, id);
        None
    }

    fn pause_row(
        &self,
        (node, port, priority): (NodeId, PortId, Priority),
        o: &OpenPause,
        end: Option<Instant>,
    ) -> PauseRow {
        let name = |n: NodeId| self.names[n as usize].clone();
        let (cause_port, cause_peer) = match o.cause {
            Cause::Vm(vm) => (vm.into(), Text::from(format!("vm {vm}"))),
            Cause::Output(port) | Cause::Link(port) => (port, name(self.plan.peer(node, port).0)),
        };
        PauseRow {
            pause_id: o.id,
            node: name(node),
            port,
            priority,
            start_ps: o.start.as_ps(),
            duration_ps: end.map(|e| e.since(o.start).as_ps()),
            peer: name(self.plan.peer(node, port).0),
            cause_port,
            cause_peer,
            parent_pause_id: o.parent,
        }
    }

    /// Keeps the collected records as far as possible.
    pub fn give_up(mut self, why: &RecordError) {
        if let Some(w) = self.writer.take() {
            w.give_up(why);
        }
    }

    /// The last rows: messages under way, and the counts of every port.
    pub fn finish(
        mut self,
        mut engine: Engine<HostApps>,
        now: Instant,
        status: Status,
    ) -> Result<Collected, RecordError> {
        let ended = std::mem::take(&mut self.ended);
        let last = last_metadata(&mut engine, now);
        self.messages.write_flows(&mut self.writer, &last)?;
        let open = open_flows(&engine, now);
        let reused = reused(&open);
        let unfinished = servers(&engine).flat_map(|(n, s)| s.app().open_queries().into_iter().map(move |q| (n, q)));
        let seen = self.messages.finish(&mut self.writer, now, ended, &open, unfinished)?;
        let pauses: Vec<PauseRow> = self.open.iter().map(|(&key, o)| self.pause_row(key, o, None)).collect();
        self.capture.finish(now)?;
        let mut writer = self.writer.take();
        if let Some(w) = writer.as_mut().filter(|_| self.record.pauses) {
            w.write(&pauses)?;
        }
        // Every port counts its own, whether or not each pause is recorded.
        let (mut pauses, mut marked, mut notifications) = (0, 0, 0);
        let flying = flying(&engine);
        for n in 0..engine.nodes() as NodeId {
            let (ports, drops) = self.ports(&engine, now, n, &flying);
            pauses += ports.iter().map(|p| p.xoff_sent).sum::<u64>();
            let marks = self.marks(&engine, n);
            marked += marks.iter().map(|m| m.frames).sum::<u64>();
            notifications += marks.iter().map(|m| m.notifications).sum::<u64>();
            let virtual_queues = self.virtual_queues(&engine, n);
            marked += virtual_queues.iter().map(|q| q.marked).sum::<u64>();
            notifications += virtual_queues.iter().map(|q| q.notifications).sum::<u64>();
            if let Some(w) = writer.as_mut().filter(|_| self.record.ports) {
                w.write(&ports)?;
                w.write(&drops)?;
                w.write(&marks)?;
                w.write(&virtual_queues)?;
                w.write(&self.storms(&engine, n))?;
            }
        }
        // Only rows are left: they need not share the memory with the world.
        drop(engine);
        let records = writer.map(|w| w.finish(status)).transpose()?.map_or_else(LastParts::default, |(_, last)| last);
        Ok(Collected { seen, pauses, marked, notifications, reused, records })
    }

    /// The rows of the markers of box `n`.
    fn marks(&self, engine: &Engine<HostApps>, n: NodeId) -> Vec<MarkRow> {
        let Some(s) = engine.node(n).as_switch() else { return Vec::new() };
        let classes = (0..s.ports() as PortId).flat_map(|port| (0..PRIORITIES as Priority).map(move |p| (port, p)));
        let row = |(port, priority)| {
            let MarkCounts { frames, bytes, notifications } = s.mark_counts(port, priority);
            let node = self.names[n as usize].clone();
            (frames + notifications > 0).then_some(MarkRow { node, port, priority, frames, bytes, notifications })
        };
        classes.filter_map(row).collect()
    }

    /// The rows of the storms of box `n`.
    fn storms(&self, engine: &Engine<HostApps>, n: NodeId) -> Vec<StormRow> {
        let Some(s) = engine.node(n).as_switch() else { return Vec::new() };
        let row = |(port, priority, StormCounts { detected, restored })| {
            let node = self.names[n as usize].clone();
            StormRow { node, port, priority, detected, restored }
        };
        s.storms().map(row).collect()
    }

    /// The rows of the virtual queues of box `n`.
    fn virtual_queues(&self, engine: &Engine<HostApps>, n: NodeId) -> Vec<BumpRow> {
        let Some(bump) = engine.node(n).as_bump() else { return Vec::new() };
        let row = |queue: QueueId| {
            let ((node, port), counts) = (self.watched(n, queue), bump.counts(queue));
            BumpRow {
                bump: self.names[n as usize].clone(),
                node,
                port,
                frames: counts.packets,
                marked: counts.marked,
                dropped: counts.dropped,
                notifications: counts.notices,
                consumed: counts.consumed,
                reported: counts.reported,
            }
        };
        (0..bump.queues() as QueueId).map(row).collect()
    }

    /// The rows of the ports of box `n`, and of its drops.
    fn ports(
        &self,
        engine: &Engine<HostApps>,
        now: Instant,
        n: NodeId,
        flying: &Flying,
    ) -> (Vec<PortRow>, Vec<DropRow>) {
        let name = &self.names[n as usize];
        let of_node: Vec<(PortId, Priority, DropReason, u64, u64)> = match engine.node(n).kind() {
            NodeRef::Switch(s) => s.drops().iter().map(|(&(p, q, r), &(f, b))| (p, q, r, f, b)).collect(),
            // A server's drops happen inside it, on no priority's account.
            NodeRef::Server(s) => DropReason::ALL
                .iter()
                .map(|&r| (0, 0, r, s.host().drops().frames(r), s.host().drops().bytes(r)))
                .filter(|d| d.3 > 0)
                .collect(),
            NodeRef::Bump(bump) => DropReason::ALL
                .iter()
                .map(|&r| (0, 0, r, bump.drops().frames(r), bump.drops().bytes(r)))
                .filter(|d| d.3 > 0)
                .collect(),
            NodeRef::Idle => Vec::new(),
        };
        let drop_row = |&(port, priority, reason, frames, bytes): &(PortId, Priority, DropReason, u64, u64)| {
            let reason = reason.name().into();
            DropRow { node: name.clone(), port, priority, reason, frames, bytes }
        };
        let port_row = |port: PortId| {
            let (tx_frames, tx_bytes) = engine.sent(n, port);
            let peer = engine.peer(n, port);
            let sent = engine.sent(peer.0, peer.1);
            let air = flying.get(&(n, port)).copied().unwrap_or_default();
            let (gate, signal, max_queue) = match engine.node(n).kind() {
                NodeRef::Switch(s) => (s.gate(port), s.signal(port), s.max_queue_bytes(port)),
                NodeRef::Server(s) => {
                    let a = s.host().adapter();
                    (Some(a.gate(port)), Some(a.signal(port)), a.max_used(port))
                }
                NodeRef::Idle => (None, None, 0),
                NodeRef::Bump(_) => unreachable!("a bump has no rows of ports"),
            };
            let paused = |p: Priority| gate.map_or(0, |g| g.paused_time(now, p).as_ps());
            let rate = self.plan.rate(n, port);
            let busy = rate.time_for(tx_bytes + tx_frames * self.wire_overhead).as_ps();
            let mine = || of_node.iter().filter(|d| d.0 == port);
            PortRow {
                node: name.clone(),
                level: self.plan.level(n),
                port,
                peer: self.names[peer.0 as usize].clone(),
                tx_frames,
                tx_bytes,
                rx_frames: sent.0 - air.0,
                rx_bytes: sent.1 - air.1,
                drops: mine().map(|d| d.3).sum(),
                drop_bytes: mine().map(|d| d.4).sum(),
                paused_ps: (0..PRIORITIES as u8).map(paused).max().unwrap_or(0),
                xoff_sent: signal.map_or(0, |s| s.stops()),
                xoff_received: gate.map_or(0, |g| g.stops()),
                max_queue_bytes: max_queue as u64,
                utilisation: (busy as f64 / now.as_ps().max(1) as f64).min(1.0),
            }
        };
        // The ports of a bump have no queues and no pauses: their counts are those of the link's ends.
        let ports = if engine.node(n).as_bump().is_some() { 0 } else { engine.ports(n) as PortId };
        ((0..ports).map(port_row).collect(), of_node.iter().map(drop_row).collect())
    }
}

/// The flows that have not ended, and how much of each was delivered.
fn open_flows(engine: &Engine<HostApps>, now: Instant) -> Vec<FlowRecord> {
    let mut open: Vec<FlowRecord> = servers(engine).flat_map(|(_, s)| s.host().unfinished_flows(now)).collect();
    open.sort_unstable_by_key(|f| f.id);
    for f in open.iter_mut().filter(|f| f.transport != Transport::Tcp) {
        // The sender of these does not learn how many bytes arrived until all of them have.
        let receiver = engine.node(f.dst.host()).as_server();
        f.delivered = receiver.and_then(|s| s.host().bytes_received(f)).unwrap_or(0);
    }
    open
}

/// How many of the unfinished flows have the connection of an earlier flow although they opened one anew, by workload.
fn reused(open: &[FlowRecord]) -> BTreeMap<u8, u64> {
    let mut reused = BTreeMap::new();
    let streams = open.iter().filter(|f| matches!(f.transport, Transport::Tcp | Transport::Light));
    for f in streams.filter(|f| f.ports.0 >= EPHEMERAL && f.offset > f.bytes) {
        *reused.entry(workload_at(f.ports.1)).or_default() += 1;
    }
    reused
}

/// The flows that had ended when the run did, and whose metadata was still on its way to the sender.
fn last_metadata(engine: &mut Engine<HostApps>, now: Instant) -> Vec<FlowRecord> {
    let metadata = engine.in_flight().filter(|(_, _, p)| p.kind() == Kind::Metadata);
    let mut metadata: Vec<(NodeId, Packet)> = metadata.map(|(node, _, p)| (node, *p)).collect();
    // The order does not depend on the number of threads.
    metadata.sort_by_key(|(node, p)| {
        let flow = p.flow();
        (*node, flow.src.to_bits(), flow.dst.to_bits(), flow.sport, flow.dport, p.metadata_words())
    });
    let mut flows = Vec::new();
    for (node, packet) in metadata {
        if let Node::Server(s) = engine.made(node) {
            // The applications hear of it no more: late metadata changes the records, not the run.
            s.host_mut().receive_metadata(now, &packet);
            s.host_mut().take_flows(&mut flows);
        }
    }
    flows.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
    flows
}

/// Frames and bytes on their way to each port.
type Flying = HashMap<(NodeId, PortId), (u64, u64)>;

fn flying(engine: &Engine<HostApps>) -> Flying {
    let mut flying = Flying::new();
    for (node, port, packet) in engine.in_flight() {
        let entry = flying.entry((node, port)).or_default();
        entry.0 += 1;
        entry.1 += sluicenet_proto::frame::Frame::len(packet) as u64;
    }
    flying
}
