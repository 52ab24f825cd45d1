//! Flows whose paths switches choose: samples for a control loop, its moves, and paths around failures.

use super::paths::{HOPS_MAX, probe};
use super::{Control, Failures, Network};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::Packet;
use sluicenet_node::steering::Steering;
use sluicenet_proto::frame::Frame;
use sluicenet_proto::hedera::detect::{FlowId, Sample};
use sluicenet_proto::time::Instant;
use sluicenet_sim::flow_level::Crossing;

/// State of a connection for the control loop, and the connection's path.
#[derive(Debug, Default)]
pub(super) struct Steered {
    /// When its first message began to leave.
    begun: Instant,
    /// Bytes on a wire of the messages that have left.
    left: u64,
    /// Bytes that switches have counted.
    counted: u64,
    /// The links it crosses.
    path: Vec<Crossing>,
}

impl Network {
    /// Whether switches choose paths of flows beyond the choice of their routers.
    pub(super) fn is_steered(&self) -> bool {
        !self.steering.is_empty()
    }

    /// The links that frames like `probe` cross by the switches' present choice. The switches on the path count
    /// `bytes`.
    pub(super) fn walk(&mut self, now: Instant, probe: &Packet, bytes: u32) -> Vec<Crossing> {
        let (flow, dst) = (probe.flow_hash(), probe.dst().host());
        let mut path = Vec::new();
        let mut node: NodeId = probe.src().host();
        while node != dst && path.len() < HOPS_MAX {
            let routed = match self.plan.router(node) {
                Some(router) => router.route(probe),
                None => Some(0),
            };
            let Some(routed) = routed else { break };
            let port = match node.checked_sub(self.plan.hosts()) {
                Some(switch) => self.steering[switch as usize].steer(now, flow, dst, bytes, routed),
                None => Some(routed),
            };
            let Some(port) = port else {
                path.push(Crossing { link: self.nowhere, share: 1.0 });
                break;
            };
            path.push(Crossing { link: self.plan.link_index(node, port) as u32, share: 1.0 });
            node = self.plan.peer(node, port).0;
        }
        path
    }

    /// The control loop is to know a connection.
    pub(super) fn begin_steered(&mut self, now: Instant, index: u32, path: Vec<Crossing>) {
        // Rounds without need were not made.
        if let Some(period) = self.control.as_ref().map(|c| c.period.as_ps())
            && self.next_round <= now
        {
            self.next_round = Instant((now.as_ps() / period + 1).saturating_mul(period));
        }
        let c = &mut self.connections[index as usize];
        let hash = probe(c.flow, c.transport).flow_hash();
        if self.by_hash.insert(hash, index).is_none() {
            c.steered.begun = now;
        }
        c.steered.path = path;
    }

    /// So many bytes on a wire of a connection's first message have left.
    pub(super) fn left_steered(&mut self, now: Instant, index: u32, bytes: u64) {
        self.connections[index as usize].steered.left += bytes;
        self.count(now, index);
    }

    /// A connection is over.
    pub(super) fn over_steered(&mut self, index: u32) {
        let c = &self.connections[index as usize];
        if self.by_hash.remove(&probe(c.flow, c.transport).flow_hash()).is_some() {
            self.over.push(self.sample(self.level.now(), index));
        }
    }

    /// Bytes on a wire that a connection has sent.
    fn sent(&self, index: u32) -> u64 {
        let c = &self.connections[index as usize];
        c.steered.left + c.active.map_or(0, |flow| (self.level.delivered_bits(flow) / 8.0) as u64)
    }

    /// The switches on a connection's path count the bytes that it has sent since their last count.
    fn count(&mut self, now: Instant, index: u32) {
        let sent = self.sent(index);
        let c = &mut self.connections[index as usize];
        let mut more = sent.saturating_sub(std::mem::replace(&mut c.steered.counted, sent));
        let probe = probe(c.flow, c.transport);
        while more > 0 {
            let bytes = more.min(u32::MAX.into());
            self.walk(now, &probe, bytes as u32);
            more -= bytes;
        }
    }

    fn sample(&self, now: Instant, index: u32) -> Sample {
        let c = &self.connections[index as usize];
        Sample {
            flow: FlowId(probe(c.flow, c.transport).flow_hash()),
            src: c.flow.src.host(),
            dst: c.flow.dst.host(),
            bytes: self.sent(index),
            age: Some(now.since(c.steered.begun)),
        }
    }

    /// When the next round is due: never while no flow sends.
    pub(super) fn next_round_at(&self) -> Instant {
        if self.control.is_some() && !self.level.is_empty() { self.next_round } else { Instant::MAX }
    }

    /// A round of the control loop, if one is due: flows that are to take another path do so at once.
    pub(super) fn round(&mut self, now: Instant) {
        if now < self.next_round_at() {
            return;
        }
        let Some(mut control) = self.control.take() else { return };
        self.next_round = now + control.period;
        let active: Vec<u32> =
            (0..self.connections.len() as u32).filter(|&c| self.connections[c as usize].active.is_some()).collect();
        // Bytes sent until now belong to the period that ends now.
        let before = Instant(now.as_ps().saturating_sub(1));
        for &index in &active {
            if control.assigns_ports() {
                self.count(before, index);
            }
            if control.reads() {
                control.hear(now, &self.sample(now, index));
            }
        }
        for sample in self.over.drain(..) {
            control.ended(&sample);
        }
        control.timeout(now);
        let placed = self.enter(now, &mut control);
        let mut moved = if control.reads() { placed } else { active.clone() };
        if control.forgets(now) {
            self.steering.iter_mut().for_each(Steering::clear);
            moved = active;
        }
        self.control = Some(control);
        for index in moved {
            self.move_flow(now, index);
        }
    }

    /// Switches have the entries that a control loop wants; the connections these are for.
    fn enter(&mut self, now: Instant, control: &mut Control) -> Vec<u32> {
        let mut of = Vec::new();
        for (placement, entries) in control.placements(now) {
            for (switch, flow, port) in entries {
                self.steering[switch].set(flow, port);
            }
            of.extend(self.by_hash.get(&placement.flow.0));
        }
        of
    }

    /// Links fail or come back, or their ends notice.
    pub(super) fn fail(&mut self, now: Instant) {
        let Some(failures) = self.failures.as_mut().filter(|f| now >= f.next_event()) else { return };
        let changes = failures.turn(now);
        for &((switch, port), up) in &changes.carries {
            let node = self.plan.hosts() + switch;
            let capacity = if up { self.plan.rate(node, port).as_bps() as f64 } else { 0.0 };
            self.level.set_capacity(self.plan.link_index(node, port) as u32, capacity);
        }
        if changes.informed.is_empty() {
            return;
        }
        for (switch, tags) in changes.informed {
            self.steering[switch as usize].know(tags);
        }
        if let Some(mut control) = self.control.take() {
            changes.links.into_iter().for_each(|(link, up)| control.handle_link(now, link, up));
            self.enter(now, &mut control);
            self.control = Some(control);
        }
        for index in 0..self.connections.len() as u32 {
            self.move_flow(now, index);
        }
    }

    /// When something fails next, or is noticed.
    pub(super) fn next_failure_at(&self) -> Instant {
        self.failures.as_ref().map_or(Instant::MAX, Failures::next_event)
    }

    /// A connection's message under way goes where switches send it now.
    fn move_flow(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        let (Some(flow), Some(message)) = (c.active, c.queue.front()) else { return };
        let sizes = self.ideal.of_priority(c.priority).frames.bits_on(message.bytes, c.transport);
        let path = self.path(now, (c.flow, c.transport), sizes);
        if path != self.connections[index as usize].steered.path {
            self.level.reroute(flow, &path);
            self.connections[index as usize].steered.path = path;
        }
    }
}
