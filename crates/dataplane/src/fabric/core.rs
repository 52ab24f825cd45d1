//! The switches, edges and links of a fabric, and the order of their events; without a clock.

use super::edge::Edge;
use super::frame::{Descriptor, Incoming, Stations, classify};
use super::ledger::{EdgeCounters, Ledger};
use super::outside::{Departure, Outside};
use super::wire::{Class, Event, PortView, Wire, wires};
use super::{FabricSpec, SpecError};
use sluicenet_node::device::{Device as _, PortId, PortSet, TieBreak};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::Framing;
use sluicenet_node::pool::{Handle, Pool};
use sluicenet_node::switch::{PauseEvent, Switch};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The framing of real frames on a link.
const FRAMING: Framing = Framing::ETHERNET;

/// A box at the end of a link.
#[derive(Debug)]
enum Node {
    Edge(Box<Edge>),
    Switch(Box<Switch>),
}

/// A fabric.
#[derive(Debug)]
pub struct Fabric {
    nodes: Vec<Node>,
    edges: u32,
    wires: Vec<Vec<Wire>>,
    timer_at: Vec<u64>,
    pool: Pool<Descriptor>,
    /// The bytes of each frame, by the number of its handle.
    bytes: Vec<Vec<u8>>,
    agenda: BinaryHeap<Reverse<Event>>,
    woke: PortSet,
    now: Instant,
    seed: u64,
    stations: Stations,
    longest_frame: u32,
    received: u64,
    on_links: u64,
    pauses_on_links: u64,
    /// Frames that were dropped on entry at an edge, or arrived there damaged.
    refused: Drops,
}

impl Fabric {
    /// Builds a fabric; its time starts at 0.
    ///
    /// # Errors
    /// A link without delay, a port without a link.
    pub fn new(spec: &FabricSpec) -> Result<Fabric, SpecError> {
        let edges = spec.edges.len() as u32;
        let edge = |e: &super::EdgeSpec| Node::Edge(Box::new(Edge::new(&e.config, e.address)));
        let switch = |s: &super::SwitchSpec| {
            Node::Switch(Box::new(Switch::new(&s.config, s.route.clone(), &s.ports, spec.record_pauses)))
        };
        let nodes: Vec<Node> = spec.edges.iter().map(edge).chain(spec.switches.iter().map(switch)).collect();
        let fabric = Fabric {
            edges,
            wires: wires(spec)?,
            timer_at: vec![u64::MAX; nodes.len()],
            nodes,
            pool: Pool::default(),
            bytes: Vec::new(),
            agenda: BinaryHeap::new(),
            woke: PortSet::with_capacity(8),
            now: Instant::ZERO,
            seed: spec.seed,
            stations: spec.stations.clone(),
            longest_frame: spec.longest_frame,
            received: 0,
            on_links: 0,
            pauses_on_links: 0,
            refused: Drops::default(),
        };
        Ok(fabric)
    }

    /// The number of edges.
    pub fn edges(&self) -> u32 {
        self.edges
    }

    /// The time up to which all events have happened.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Instant> {
        self.agenda.peek().map(|Reverse(e)| Instant(e.at))
    }

    /// The transmission time of the longest frame on an edge's link: a longer delay counts as late.
    pub fn frame_time(&self) -> Duration {
        let wires = self.wires[..self.edges as usize].iter().flatten();
        let bytes = u64::from(self.longest_frame) + u64::from(FRAMING.overhead());
        Duration(wires.map(|w| (bytes * w.ps_per_byte_q16) >> 16).min().unwrap_or(0))
    }

    /// Executes all events up to `now`.
    pub fn advance(&mut self, now: Instant, outside: &mut impl Outside) {
        while self.next_event().is_some_and(|at| at <= now) {
            self.step(outside);
        }
        self.now = self.now.max(now);
    }

    /// Executes the next event.
    pub fn step(&mut self, outside: &mut impl Outside) {
        let Some(Reverse(e)) = self.agenda.pop() else { return };
        debug_assert!(e.at >= self.now.0);
        self.now = self.now.max(Instant(e.at));
        match &self.nodes[e.node as usize] {
            Node::Edge(_) => self.at_edge(e, outside),
            Node::Switch(_) => self.at_switch(e, outside),
        }
    }

    /// The server at `edge` sent a frame, without its check sequence. All events before `now` must have been executed.
    pub fn receive(&mut self, now: Instant, edge: NodeId, frame: &[u8], outside: &mut impl Outside) {
        assert!(now >= self.now && self.next_event().is_none_or(|at| at >= now), "time goes forward");
        self.now = now;
        let serial = self.received;
        let incoming = classify(frame, edge, serial, self.longest_frame, &self.stations);
        let Node::Edge(device) = &mut self.nodes[edge as usize] else { panic!("{edge} is no edge") };
        if let Ok(Incoming::Pause(pause)) = incoming {
            device.counters.pauses_received += 1;
            device.down.on_pause(now, &pause);
            return self.settle_edge(now.0, edge, outside);
        }
        self.received += 1;
        device.counters.received.0 += 1;
        device.counters.received.1 += frame.len() as u64;
        match incoming {
            Ok(Incoming::Data(descriptor)) => {
                device.hears(now, descriptor.priority());
                let at = self.pool.insert(&descriptor);
                let slot = at.index() as usize;
                if self.bytes.len() <= slot {
                    self.bytes.resize_with(slot + 1, Vec::new);
                }
                self.bytes[slot].clear();
                self.bytes[slot].extend_from_slice(frame);
                device.up.accept(now, at, &mut self.pool);
                self.settle_edge(now.0, edge, outside);
            }
            Ok(Incoming::Pause(_)) => unreachable!("handled above"),
            Err(reason) => self.refused.count(reason, frame.len() as u64),
        }
    }

    /// The server at `edge` has room again.
    pub fn has_room(&mut self, now: Instant, edge: NodeId, outside: &mut impl Outside) {
        assert!(now >= self.now && self.next_event().is_none_or(|at| at >= now), "time goes forward");
        self.now = now;
        if let Node::Edge(device) = &mut self.nodes[edge as usize] {
            device.blocked = false;
            self.settle_edge(now.0, edge, outside);
        }
    }

    /// Whether the server at `edge` had no room for the last frame offered.
    pub fn is_blocked(&self, edge: NodeId) -> bool {
        matches!(self.nodes.get(edge as usize), Some(Node::Edge(e)) if e.blocked)
    }

    /// A switch, counted from 0.
    pub fn switch(&self, switch: usize) -> Option<&Switch> {
        match self.nodes.get(self.edges as usize + switch) {
            Some(Node::Switch(s)) => Some(s),
            _ => None,
        }
    }

    /// The pauses that a switch sent since the last call.
    pub fn take_pauses(&mut self, switch: usize) -> Vec<PauseEvent> {
        match self.nodes.get_mut(self.edges as usize + switch) {
            Some(Node::Switch(s)) => s.take_pauses(),
            _ => Vec::new(),
        }
    }

    /// The counters of an edge.
    pub fn counters(&self, edge: NodeId) -> EdgeCounters {
        match &self.nodes[edge as usize] {
            Node::Edge(e) => e.counters(),
            Node::Switch(_) => EdgeCounters::default(),
        }
    }

    /// Everything that was dropped, by reason.
    pub fn drops(&self) -> Drops {
        let mut all = self.refused;
        for node in &self.nodes {
            match node {
                Node::Edge(edge) => {
                    all.add(&edge.up.drops);
                    all.add(&edge.down.drops);
                }
                Node::Switch(s) => {
                    for (&(_, _, reason), &(frames, bytes)) in s.drops() {
                        all.count_many(reason, frames, bytes);
                    }
                }
            }
        }
        all
    }

    /// The account of all frames.
    ///
    /// # Panics
    /// A frame is missing or counted twice, which is a bug of this program.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger {
            received: self.received,
            emitted: (0..).map_while(|n| self.switch(n)).map(Switch::emitted).sum(),
            delivered: (0..self.edges).map(|e| self.counters(e).delivered.0).sum(),
            dropped: self.drops().total_frames(),
            queued: 0,
            on_links: self.on_links,
        };
        for node in &self.nodes {
            ledger.queued += match node {
                Node::Edge(edge) => edge.up.frames() + edge.down.frames(),
                Node::Switch(s) => s.queued(),
            };
        }
        assert!(ledger.balance(), "frames are missing or counted twice: {ledger:?}");
        let held = ledger.queued + ledger.on_links + self.pauses_on_links;
        assert_eq!(u64::from(self.pool.in_use()), held, "frames are lost or kept: {ledger:?}");
        ledger
    }

    fn at_edge(&mut self, e: Event, outside: &mut impl Outside) {
        let now = Instant(e.at);
        let Node::Edge(edge) = &mut self.nodes[e.node as usize] else { unreachable!("an edge") };
        match e.class {
            Class::WireFree => self.wires[e.node as usize][0].armed = false,
            Class::Timer => {
                if self.timer_at[e.node as usize] == e.at {
                    self.timer_at[e.node as usize] = u64::MAX;
                    edge.handle_timeout(now, &mut self.pool);
                }
            }
            Class::Arrival => {
                let frame = *self.pool.frame(e.frame);
                match frame.pause {
                    Some(pause) => {
                        self.pauses_on_links -= 1;
                        self.pool.release(e.frame);
                        // A damaged pause is dropped unread.
                        if !frame.is_corrupt() {
                            edge.up.on_pause(now, &pause);
                        }
                    }
                    None => {
                        self.on_links -= 1;
                        if frame.is_corrupt() {
                            self.refused.count(DropReason::BadCrc, u64::from(frame.len()));
                            self.pool.release(e.frame);
                        } else {
                            edge.down.accept(now, e.frame, &mut self.pool);
                        }
                    }
                }
            }
        }
        self.settle_edge(e.at, e.node, outside);
    }

    /// After an event at an edge: sends the frames that can go.
    fn settle_edge(&mut self, now: u64, node: NodeId, outside: &mut impl Outside) {
        let Node::Edge(edge) = &mut self.nodes[node as usize] else { unreachable!("an edge") };
        edge.hand_out(Instant(now), node, &mut self.pool, &self.bytes, outside);
        let wire = &mut self.wires[node as usize][0];
        if edge.is_ready() {
            if wire.free_at <= now {
                if let Some(frame) = edge.poll_transmit(Instant(now), &mut self.pool) {
                    self.transmit(now, node, 0, frame, outside);
                }
            }
            let Node::Edge(edge) = &self.nodes[node as usize] else { unreachable!("an edge") };
            let ready = edge.is_ready();
            self.arm(now, node, 0, ready);
        }
        let Node::Edge(edge) = &self.nodes[node as usize] else { unreachable!("an edge") };
        self.schedule_timer(now, node, edge.poll_timeout());
    }

    fn at_switch(&mut self, e: Event, outside: &mut impl Outside) {
        let (now, node) = (e.at, e.node as usize);
        let Node::Switch(switch) = &mut self.nodes[node] else { unreachable!("a switch") };
        let mut ready = None;
        match e.class {
            Class::WireFree => {
                self.wires[node][e.port as usize].armed = false;
                ready = Some(e.port);
            }
            Class::Arrival => {
                let is_pause = self.pool.frame(e.frame).is_pause();
                if is_pause {
                    self.pauses_on_links -= 1;
                } else {
                    self.on_links -= 1;
                }
                let view = PortView(&self.wires[node], now);
                let through = switch.receive(Instant(now), e.port, e.frame, &mut self.pool, &view, &mut self.woke);
                if let Some(port) = through {
                    return self.transmit(now, e.node, port, e.frame, outside);
                }
            }
            Class::Timer if self.timer_at[node] == now => {
                self.timer_at[node] = u64::MAX;
                switch.handle_timeout(Instant(now), &mut self.pool, &mut self.woke);
            }
            Class::Timer => {}
        }
        while let Some(port) = ready.take().or_else(|| self.woke.pop()) {
            if self.wires[node][port as usize].free_at <= now {
                let Node::Switch(switch) = &mut self.nodes[node] else { unreachable!("a switch") };
                if let Some(frame) = switch.poll_transmit(Instant(now), port, &mut self.pool, &mut self.woke) {
                    self.transmit(now, e.node, port, frame, outside);
                }
            } else {
                self.arm(now, e.node, port, true);
            }
        }
        let Node::Switch(switch) = &self.nodes[node] else { unreachable!("a switch") };
        let deadline = sluicenet_node::device::Device::<Descriptor>::poll_timeout(&**switch);
        self.schedule_timer(now, e.node, deadline);
    }

    /// Schedules an event for when the wire of a `ready` port is free.
    fn arm(&mut self, now: u64, node: NodeId, port: PortId, ready: bool) {
        let wire = &mut self.wires[node as usize][port as usize];
        if !ready || wire.armed {
            return;
        }
        wire.armed = true;
        let at = wire.free_at.max(now);
        self.push(Event { at, node, class: Class::WireFree, tie_rank: 0, port, is_data: false, frame: Handle::NONE });
    }

    fn schedule_timer(&mut self, now: u64, node: NodeId, deadline: Instant) {
        if deadline.0 < self.timer_at[node as usize] {
            let at = deadline.0.max(now);
            self.timer_at[node as usize] = at;
            self.push(Event {
                at,
                node,
                class: Class::Timer,
                tie_rank: 0,
                port: 0,
                is_data: false,
                frame: Handle::NONE,
            });
        }
    }

    fn push(&mut self, e: Event) {
        self.agenda.push(Reverse(e));
    }

    /// Starts a frame on a wire that is free.
    fn transmit(&mut self, now: u64, node: NodeId, port: PortId, at: Handle, outside: &mut impl Outside) {
        let wire = &mut self.wires[node as usize][port as usize];
        debug_assert!(wire.free_at <= now);
        let frame = self.pool.frame_mut(at);
        let time = |bytes: u32| (u64::from(bytes) * wire.ps_per_byte_q16) >> 16;
        let end = now + time(frame.len() + u32::from(FRAMING.overhead()));
        let last_bit = end - time(u32::from(FRAMING.gap));
        wire.free_at = end;
        wire.frames += 1;
        let is_pause = frame.is_pause();
        let arrives = match (is_pause, wire.first_bit) {
            (true, _) => last_bit + wire.pause_latency,
            (false, true) => now + wire.latency,
            (false, false) => last_bit + wire.latency,
        };
        if wire.bit_error_rate > 0.0 {
            let bits = 8.0 * f64::from(frame.len());
            let damaged = -(bits * (-wire.bit_error_rate).ln_1p()).exp_m1();
            let draw = hash_words(&[self.seed, u64::from(node), u64::from(port), wire.frames]) >> 11;
            if (draw as f64) < damaged * (1u64 << 53) as f64 {
                frame.corrupt();
            }
        }
        if frame.is_changed() {
            let slot = at.index() as usize;
            if self.bytes.len() <= slot {
                self.bytes.resize_with(slot + 1, Vec::new);
            }
            frame.write_changes(&mut self.bytes[slot]);
        }
        let bytes: &[u8] = if is_pause { &[] } else { &self.bytes[at.index() as usize] };
        outside.departs(&Departure { at: Instant(now), node, port, frame, bytes });
        if is_pause {
            self.pauses_on_links += 1;
        } else {
            self.on_links += 1;
        }
        let (peer, peer_port) = wire.peer;
        let tie_rank = TieBreak::new(self.seed, peer, arrives).of(peer_port);
        let (class, is_data) = (Class::Arrival, !is_pause);
        self.push(Event { at: arrives, node: peer, class, tie_rank, port: peer_port, is_data, frame: at });
    }
}
