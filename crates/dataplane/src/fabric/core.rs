//! The boxes and links of a fabric, and what happens at them in which order; no clock.

use super::edge::Edge;
use super::frame::{Descriptor, Incoming, Stations, classify, pause_bytes};
use super::{FabricSpec, NodeId, SpecError};
use sluicenet_node::door::{Device as _, Lots, PortId, PortSet, Wires};
use sluicenet_node::packet::Framing;
use sluicenet_node::pool::{Handle, Pool};
use sluicenet_node::switch::{PauseEvent, Switch};
use sluicenet_proto::frame::Frame;
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ethernet::MacAddress;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What stands around a real frame.
const FRAMING: Framing = Framing::ETHERNET;

/// What a fabric hands out.
pub trait Outside {
    /// A frame, without its check sequence, leaves the fabric for the server at `edge`; whether there was room for it. Where
    /// there was none it is offered again after [`Fabric::has_room`].
    fn send(&mut self, now: Instant, edge: NodeId, frame: &[u8]) -> bool;

    /// A frame starts on a link inside.
    fn departs(&mut self, _departure: &Departure<'_>) {}
}

/// A frame that starts on a link.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    /// When its first bit is sent.
    pub at: Instant,
    /// The box that sends it.
    pub node: NodeId,
    /// The port.
    pub port: PortId,
    /// What it is.
    pub frame: &'a Descriptor,
    /// Its bytes without its check sequence; none of a pause, which is all in its descriptor.
    pub bytes: &'a [u8],
}

/// Where all frames are that ever came in; pause frames, which end at each link, are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Came in at edges.
    pub received: u64,
    /// Went out at edges.
    pub delivered: u64,
    /// Thrown away, at edges and in switches.
    pub dropped: u64,
    /// In queues of edges and switches.
    pub queued: u64,
    /// On links.
    pub on_links: u64,
}

impl Books {
    /// Whether what came in is what went out, was dropped by name, or is inside.
    pub fn balance(&self) -> bool {
        self.received == self.delivered + self.dropped + self.queued + self.on_links
    }
}

/// What an edge counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Frames and bytes from the server, pauses not counted.
    pub received: (u64, u64),
    /// Frames and bytes to the server, pauses not counted.
    pub delivered: (u64, u64),
    /// Pause frames from the server.
    pub pauses_received: u64,
    /// Pause frames to the server.
    pub pauses_sent: u64,
    /// How often the fabric stopped a priority of what the server sends.
    pub stops: u64,
    /// How often the edge's own buffer did.
    pub own_stops: u64,
    /// How often the server stopped a priority of what it receives.
    pub server_stops: u64,
    /// How often the edge's own buffer for that did.
    pub own_server_stops: u64,
    /// Most bytes of a priority that waited for the link, and for the server.
    pub max_bytes: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
struct Wire {
    free_at: u64,
    ps_per_byte_q16: u64,
    latency: u64,
    pause_latency: u64,
    first_bit: bool,
    bit_error_rate: f64,
    peer: (NodeId, PortId),
    frames: u64,
    /// Whether an event for when it is free is in the agenda.
    armed: bool,
}

struct PortView<'a>(&'a [Wire], u64);

impl Wires for PortView<'_> {
    fn idle(&self, port: PortId) -> bool {
        self.0[port as usize].free_at <= self.1
    }
}

/// At one instant a box first learns that wires are free, by port; then takes what arrives, in drawn order; then runs its
/// timers. As in the simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    WireFree,
    Arrival,
    Timer,
}

/// Ordered by its fields, top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    node: NodeId,
    class: Class,
    lot: u64,
    port: PortId,
    /// Of what arrives at one port in one instant a pause goes first.
    is_data: bool,
    frame: Handle,
}

/// What stands at one end of links.
#[derive(Debug)]
enum Node {
    Edge { edge: Box<Edge>, address: MacAddress, blocked: bool, owed: Option<[u8; sluicenet_wire::pfc::LEN]> },
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
    /// The bytes of each frame, at the number of its handle.
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
    /// What came in at edges and was thrown away at once, or arrived there damaged.
    refused: Drops,
    counters: Vec<EdgeCounters>,
}

impl Fabric {
    /// Builds a fabric; its time starts at 0.
    ///
    /// # Errors
    /// A link without delay, a port without a link.
    pub fn new(spec: &FabricSpec) -> Result<Fabric, SpecError> {
        let edges = spec.edges.len() as u32;
        let edge = |e: &super::EdgeSpec| Node::Edge {
            edge: Box::new(Edge::new(&e.config)),
            address: e.address,
            blocked: false,
            owed: None,
        };
        let switch = |s: &super::SwitchSpec| {
            Node::Switch(Box::new(Switch::new(&s.config, s.router.clone(), &s.ports, spec.record_pauses)))
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
            counters: vec![EdgeCounters::default(); edges as usize],
        };
        Ok(fabric)
    }

    /// How many edges there are.
    pub fn edges(&self) -> u32 {
        self.edges
    }

    /// Up to when everything has happened.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When something happens next.
    pub fn next_event(&self) -> Option<Instant> {
        self.agenda.peek().map(|Reverse(e)| Instant(e.at))
    }

    /// The time in which the longest frame is sent over an edge's link: what counts as late.
    pub fn frame_time(&self) -> Duration {
        let wires = self.wires[..self.edges as usize].iter().flatten();
        let bytes = u64::from(self.longest_frame) + u64::from(FRAMING.overhead());
        Duration(wires.map(|w| (bytes * w.ps_per_byte_q16) >> 16).min().unwrap_or(0))
    }

    /// Lets everything happen that is due by `now`.
    pub fn advance(&mut self, now: Instant, outside: &mut impl Outside) {
        while self.next_event().is_some_and(|at| at <= now) {
            self.step(outside);
        }
        self.now = self.now.max(now);
    }

    /// Lets the next thing happen.
    pub fn step(&mut self, outside: &mut impl Outside) {
        let Some(Reverse(e)) = self.agenda.pop() else { return };
        debug_assert!(e.at >= self.now.0);
        self.now = self.now.max(Instant(e.at));
        match &self.nodes[e.node as usize] {
            Node::Edge { .. } => self.at_edge(e, outside),
            Node::Switch(_) => self.at_switch(e, outside),
        }
    }

    /// The server at `edge` sent a frame, without its check sequence. What is due by `now` must have happened.
    pub fn receive(&mut self, now: Instant, edge: NodeId, frame: &[u8], outside: &mut impl Outside) {
        assert!(now >= self.now && self.next_event().is_none_or(|at| at >= now), "time goes forward");
        self.now = now;
        let serial = self.received;
        let incoming = classify(frame, edge, serial, self.longest_frame, &self.stations);
        let Node::Edge { edge: device, .. } = &mut self.nodes[edge as usize] else { panic!("{edge} is no edge") };
        let counters = &mut self.counters[edge as usize];
        if let Ok(Incoming::Pause(pause)) = incoming {
            counters.pauses_received += 1;
            device.down.hold(now, &pause);
            return self.settle_edge(now.0, edge, outside);
        }
        self.received += 1;
        counters.received.0 += 1;
        counters.received.1 += frame.len() as u64;
        match incoming {
            Ok(Incoming::Data(descriptor)) => {
                let at = self.pool.insert(&descriptor);
                let place = at.index() as usize;
                if self.bytes.len() <= place {
                    self.bytes.resize_with(place + 1, Vec::new);
                }
                self.bytes[place].clear();
                self.bytes[place].extend_from_slice(frame);
                device.up.accept(at, &mut self.pool);
                self.settle_edge(now.0, edge, outside);
            }
            Ok(Incoming::Pause(_)) => unreachable!("handled above"),
            Err(reason) => self.refused.count(reason, frame.len() as u64),
        }
    }

    /// The server at `edge` takes frames again, after it did not.
    pub fn has_room(&mut self, now: Instant, edge: NodeId, outside: &mut impl Outside) {
        assert!(now >= self.now && self.next_event().is_none_or(|at| at >= now), "time goes forward");
        self.now = now;
        if let Node::Edge { blocked, .. } = &mut self.nodes[edge as usize] {
            *blocked = false;
            self.settle_edge(now.0, edge, outside);
        }
    }

    /// Whether the server at `edge` had no room for what was offered last.
    pub fn is_blocked(&self, edge: NodeId) -> bool {
        matches!(self.nodes.get(edge as usize), Some(Node::Edge { blocked: true, .. }))
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

    /// What an edge counted.
    pub fn counters(&self, edge: NodeId) -> EdgeCounters {
        let mut counters = self.counters[edge as usize];
        if let Node::Edge { edge, .. } = &self.nodes[edge as usize] {
            counters.stops = edge.up.gate().stops();
            counters.own_stops = edge.up.own_stops();
            counters.server_stops = edge.down.gate().stops();
            counters.own_server_stops = edge.down.own_stops();
            counters.max_bytes = (edge.up.max_bytes(), edge.down.max_bytes());
        }
        counters
    }

    /// Everything that was dropped, by reason.
    pub fn drops(&self) -> Drops {
        let mut all = self.refused;
        for node in &self.nodes {
            match node {
                Node::Edge { edge, .. } => {
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

    /// Where all frames are.
    ///
    /// # Panics
    /// When one is missing or counted twice, which only we can cause.
    pub fn books(&self) -> Books {
        let mut books = Books {
            received: self.received,
            delivered: self.counters.iter().map(|c| c.delivered.0).sum(),
            dropped: self.drops().total_frames(),
            queued: 0,
            on_links: self.on_links,
        };
        for node in &self.nodes {
            books.queued += match node {
                Node::Edge { edge, .. } => edge.up.frames() + edge.down.frames(),
                Node::Switch(s) => s.queued(),
            };
        }
        assert!(books.balance(), "frames are missing or counted twice: {books:?}");
        let held = books.queued + books.on_links + self.pauses_on_links;
        assert_eq!(u64::from(self.pool.in_use()), held, "frames are lost or kept: {books:?}");
        books
    }

    fn at_edge(&mut self, e: Event, outside: &mut impl Outside) {
        let now = Instant(e.at);
        let Node::Edge { edge, .. } = &mut self.nodes[e.node as usize] else { unreachable!("an edge") };
        match e.class {
            Class::WireFree => self.wires[e.node as usize][0].armed = false,
            Class::Timer => {
                if self.timer_at[e.node as usize] == e.at {
                    self.timer_at[e.node as usize] = u64::MAX;
                    edge.handle_timeout(now);
                }
            }
            Class::Arrival => {
                let frame = *self.pool.frame(e.frame);
                match frame.pause {
                    Some(pause) => {
                        self.pauses_on_links -= 1;
                        self.pool.release(e.frame);
                        // What fails its check sequence is thrown away unread.
                        if !frame.is_corrupt() {
                            edge.up.hold(now, &pause);
                        }
                    }
                    None => {
                        self.on_links -= 1;
                        if frame.is_corrupt() {
                            self.refused.count(DropReason::BadCrc, u64::from(frame.len()));
                            self.pool.release(e.frame);
                        } else {
                            edge.down.accept(e.frame, &mut self.pool);
                        }
                    }
                }
            }
        }
        self.settle_edge(e.at, e.node, outside);
    }

    /// After anything happened at an edge: what can go, goes.
    fn settle_edge(&mut self, now: u64, node: NodeId, outside: &mut impl Outside) {
        self.hand_out(now, node, outside);
        let Node::Edge { edge, .. } = &mut self.nodes[node as usize] else { unreachable!("an edge") };
        let wire = &mut self.wires[node as usize][0];
        if edge.is_ready() {
            if wire.free_at <= now {
                if let Some(frame) = edge.poll_transmit(Instant(now), &mut self.pool) {
                    self.transmit(now, node, 0, frame, outside);
                }
            }
            let Node::Edge { edge, .. } = &self.nodes[node as usize] else { unreachable!("an edge") };
            let ready = edge.is_ready();
            self.arm(now, node, 0, ready);
        }
        let Node::Edge { edge, .. } = &self.nodes[node as usize] else { unreachable!("an edge") };
        self.schedule_timer(now, node, edge.poll_timeout());
    }

    /// Offers the server what waits for it, pauses first, as long as it takes any.
    fn hand_out(&mut self, now: u64, node: NodeId, outside: &mut impl Outside) {
        let counters = &mut self.counters[node as usize];
        let Node::Edge { edge, address, blocked, owed } = &mut self.nodes[node as usize] else {
            unreachable!("an edge")
        };
        let now = Instant(now);
        while !*blocked {
            // What was to be said and found no room may be out of date; what is said now is added to it, not dropped.
            if owed.is_none() && edge.up.owes_pause() {
                *owed = edge.up.poll_pause(now).map(|pause| pause_bytes(&pause, *address));
            }
            if let Some(pause) = owed {
                *blocked = !outside.send(now, node, &*pause);
                if !*blocked {
                    counters.pauses_sent += 1;
                    *owed = None;
                }
                continue;
            }
            let Some(front) = edge.down.front() else { break };
            let bytes = &self.bytes[front.index() as usize];
            *blocked = !outside.send(now, node, bytes);
            if !*blocked {
                counters.delivered.0 += 1;
                counters.delivered.1 += bytes.len() as u64;
                let taken = edge.down.take(&mut self.pool);
                debug_assert_eq!(taken, Some(front));
                self.pool.release(front);
            }
        }
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
        let due = sluicenet_node::door::Device::<Descriptor>::poll_timeout(&**switch);
        self.schedule_timer(now, e.node, due);
    }

    /// Sees to it that a port that is `ready` is asked when its wire is free.
    fn arm(&mut self, now: u64, node: NodeId, port: PortId, ready: bool) {
        let wire = &mut self.wires[node as usize][port as usize];
        if !ready || wire.armed {
            return;
        }
        wire.armed = true;
        let at = wire.free_at.max(now);
        self.push(Event { at, node, class: Class::WireFree, lot: 0, port, is_data: false, frame: Handle::NONE });
    }

    fn schedule_timer(&mut self, now: u64, node: NodeId, due: Instant) {
        if due.0 < self.timer_at[node as usize] {
            let at = due.0.max(now);
            self.timer_at[node as usize] = at;
            self.push(Event { at, node, class: Class::Timer, lot: 0, port: 0, is_data: false, frame: Handle::NONE });
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
        let bytes: &[u8] = if is_pause { &[] } else { &self.bytes[at.index() as usize] };
        outside.departs(&Departure { at: Instant(now), node, port, frame, bytes });
        if is_pause {
            self.pauses_on_links += 1;
        } else {
            self.on_links += 1;
        }
        let (peer, peer_port) = wire.peer;
        let lot = Lots::new(self.seed, peer, arrives).of(peer_port);
        let (class, is_data) = (Class::Arrival, !is_pause);
        self.push(Event { at: arrives, node: peer, class, lot, port: peer_port, is_data, frame: at });
    }
}

/// The wires of every box, by port.
fn wires(spec: &FabricSpec) -> Result<Vec<Vec<Wire>>, SpecError> {
    let ports = spec.edges.iter().map(|_| 1).chain(spec.switches.iter().map(|s| s.ports.len()));
    let mut wires: Vec<Vec<Option<Wire>>> = ports.map(|n| vec![None; n]).collect();
    let exists = |wires: &[Vec<Option<Wire>>], (node, port): (NodeId, PortId)| {
        wires.get(node as usize).is_some_and(|w| w.len() > port as usize)
    };
    for l in &spec.links {
        for end in [l.from, l.to] {
            if !exists(&wires, end) {
                return Err(SpecError::Port { at: end });
            }
        }
        if l.latency == Duration::ZERO || l.pause_latency == Duration::ZERO {
            return Err(SpecError::NoDelay { from: l.from });
        }
        let wire = Wire {
            free_at: 0,
            ps_per_byte_q16: l.rate.ps_per_byte_q16(),
            latency: l.latency.0,
            pause_latency: l.pause_latency.0,
            first_bit: l.first_bit,
            bit_error_rate: l.bit_error_rate,
            peer: l.to,
            frames: 0,
            armed: false,
        };
        if wires[l.from.0 as usize][l.from.1 as usize].replace(wire).is_some() {
            return Err(SpecError::Port { at: l.from });
        }
    }
    let whole = |(node, wires): (usize, Vec<Option<Wire>>)| {
        let of_port =
            |(port, wire): (usize, Option<Wire>)| wire.ok_or(SpecError::Port { at: (node as NodeId, port as PortId) });
        wires.into_iter().enumerate().map(of_port).collect()
    };
    wires.into_iter().enumerate().map(whole).collect()
}
