//! Coordinators, controllers, and a network between them that loses, repeats and reorders their messages.

use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::xco::Node;
use crate::xco::controller::{Controller, ControllerConfig, Peer};
use crate::xco::coordinator::{Body, Coordinator, CoordinatorConfig, LATE, Permit};
use crate::xco::topology::Topology;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Frame, Message, Repr};

/// A full frame on the wire.
pub const FRAME: u64 = 1_538;
/// One way between a coordinator and a controller of an idle network.
pub const DELAY: Duration = Duration::from_us(20);
pub const LEASE: Duration = Duration::from_ms(40);
/// Addresses of controllers are those from here on.
const CONTROLLERS: u32 = 1 << 20;
/// Time over which the load of a link is measured.
const WINDOW: Duration = Duration::from_ms(10);

pub fn mac(node: Node) -> MacAddress {
    MacAddress::local(node + 1)
}

pub fn controller_mac(n: usize) -> MacAddress {
    MacAddress::local(CONTROLLERS + n as u32)
}

/// Frames that wait, and frames that have left.
#[derive(Clone, Copy, Default)]
pub struct Queue {
    pub waiting: u64,
    pub sent: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// In a thousand messages.
    pub lost: u64,
    pub repeated: u64,
    pub late: u64,
}

pub struct World {
    pub now: Instant,
    pub topology: Topology,
    pub controllers: Vec<Option<Controller>>,
    pub coordinators: Vec<Coordinator>,
    pub queues: BTreeMap<(Node, Node), Queue>,
    pub faults: Faults,
    /// One way between a coordinator and a controller.
    pub delay: Duration,
    silent: BTreeSet<Node>,
    /// Whether controllers send no directives.
    pub stingy: bool,
    rng: Rng,
    wire: Vec<(Instant, u64, MacAddress, Frame)>,
    count: u64,
    /// When each queue may be asked again.
    next_at: BTreeMap<(Node, Node), Instant>,
    /// Bytes in this window, and the most in any.
    window: (Instant, Vec<u64>),
    pub most: Vec<u64>,
}

impl World {
    pub fn new(topology: Topology, config: ControllerConfig, controllers: usize, seed: u64) -> World {
        let now = Instant::ZERO + Duration::from_ms(1);
        let of = |n: usize| {
            let mac = controller_mac(1 - n.min(1));
            let peer = (controllers > 1).then_some(Peer { mac, secret: 99 });
            let config = ControllerConfig { peer, ..config.clone() };
            Some(Controller::new(now, topology.clone(), config, 1, n > 0))
        };
        let coordinator = |node: Node| {
            let rate_kbps = topology.capacity(topology.first_link(node, node));
            Coordinator::new(
                now,
                CoordinatorConfig {
                    node,
                    rate_kbps,
                    controllers: (0..controllers).map(controller_mac).collect(),
                    lease: LEASE,
                    hysteresis: Some(Duration::from_us(50)),
                    small_kbps: 0,
                    entries: 4,
                    flows: 64,
                    late: LATE,
                    nonce: 1_000 + node,
                },
            )
        };
        let links = topology.links();
        World {
            now,
            controllers: (0..controllers).map(of).collect(),
            coordinators: (0..topology.nodes()).map(coordinator).collect(),
            queues: BTreeMap::new(),
            faults: Faults::default(),
            delay: DELAY,
            silent: BTreeSet::new(),
            stingy: false,
            rng: Rng::from_words(&[seed, 7]),
            wire: Vec::new(),
            count: 0,
            next_at: BTreeMap::new(),
            window: (now, vec![0; links]),
            most: vec![0; links],
            topology,
        }
    }

    pub fn controller(&mut self) -> &mut Controller {
        self.controllers[0].as_mut().unwrap()
    }

    /// A node gets frames for a destination.
    pub fn offer(&mut self, from: Node, to: Node, frames: u64) {
        self.queues.entry((from, to)).or_default().waiting += frames;
        self.next_at.insert((from, to), self.now);
    }

    pub fn sent(&self, from: Node, to: Node) -> u64 {
        self.queues.get(&(from, to)).map_or(0, |queue| queue.sent)
    }

    pub fn waiting(&self) -> u64 {
        self.queues.values().map(|queue| queue.waiting).sum()
    }

    /// Sends a frame as if it came from the network.
    pub fn inject(&mut self, to: MacAddress, frame: Frame) {
        self.count += 1;
        self.wire.push((self.now, self.count, to, frame));
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(next) = self.next().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.step();
            self.settle();
        }
        self.now = end;
    }

    /// Runs until no frame waits; whether that was so in time.
    pub fn drain(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        while self.waiting() > 0 && self.now < end {
            self.run(Duration::from_ms(1));
        }
        self.waiting() == 0
    }

    /// Runs until so many frames have left; whether that was so in time.
    pub fn run_until_sent(&mut self, from: Node, to: Node, frames: u64, limit: Duration) -> bool {
        let end = self.now + limit;
        while self.sent(from, to) < frames && self.now < end {
            self.run(Duration::from_us(100));
        }
        self.sent(from, to) >= frames
    }

    /// From now on a node neither sends nor hears messages.
    pub fn silence(&mut self, node: Node) {
        self.silent.insert(node);
    }

    fn next(&self) -> Option<Instant> {
        let wire = self.wire.iter().map(|message| message.0);
        let controllers = self.controllers.iter().flatten().map(Controller::poll_timeout);
        let coordinators = self.coordinators.iter().map(Coordinator::poll_timeout);
        let queues = self.next_at.values().copied();
        wire.chain(controllers).chain(coordinators).chain(queues).min().filter(|&at| at != Instant::MAX)
    }

    fn step(&mut self) {
        let now = self.now;
        self.wire.sort_by_key(|message| (message.0, message.1));
        let due = self.wire.partition_point(|message| message.0 <= now);
        for (_, _, to, frame) in self.wire.drain(..due).collect::<Vec<_>>() {
            let repr = Repr::parse(frame.as_bytes()).unwrap();
            let node = (0..self.coordinators.len()).find(|&node| mac(node as Node) == to);
            if let Some(node) = node {
                if self.silent.contains(&(node as Node)) {
                    continue;
                }
                self.coordinators[node].handle(now, repr.source, &repr.head, &repr.message);
                self.ask_again(node as Node);
            } else if let Some(n) = (0..self.controllers.len()).find(|&n| controller_mac(n) == to)
                && let Some(controller) = &mut self.controllers[n]
            {
                controller.handle(now, repr.source, &repr.head, &repr.message);
            }
        }
        for controller in self.controllers.iter_mut().flatten() {
            if controller.poll_timeout() <= now {
                controller.handle_timeout(now);
            }
        }
        for node in 0..self.coordinators.len() {
            if self.coordinators[node].poll_timeout() <= now {
                self.coordinators[node].handle_timeout(now);
                self.ask_again(node as Node);
            }
        }
    }

    fn ask_again(&mut self, node: Node) {
        let queues = self.queues.range((node, 0)..=(node, Node::MAX));
        let waiting: Vec<_> = queues.filter(|(_, queue)| queue.waiting > 0).map(|(ends, _)| *ends).collect();
        waiting.into_iter().for_each(|ends| _ = self.next_at.insert(ends, self.now));
    }

    fn settle(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.next_at.iter().filter(|(_, at)| **at <= now).map(|(ends, _)| *ends).collect();
        for (from, to) in due {
            self.next_at.remove(&(from, to));
            while self.queues[&(from, to)].waiting > 0 {
                match self.coordinators[from as usize].permit(now, to, FRAME) {
                    Permit::Now => self.depart(from, to),
                    Permit::At(at) => {
                        self.next_at.insert((from, to), at);
                        break;
                    }
                    Permit::Wait => break,
                }
            }
        }
        for node in 0..self.coordinators.len() {
            let mut frames = Vec::new();
            while let Some(outgoing) = self.coordinators[node].poll_transmit(now) {
                assert!(!matches!(outgoing.body, Body::Report(entries) if entries.is_empty()));
                frames.push((outgoing.to, outgoing.emit(mac(node as Node))));
            }
            if !self.silent.contains(&(node as Node)) {
                frames.into_iter().for_each(|(to, frame)| self.send(to, frame));
            }
        }
        for n in 0..self.controllers.len() {
            let mut frames = Vec::new();
            while let Some(out) = self.controllers[n].as_mut().and_then(|controller| controller.poll_transmit(now)) {
                if !self.stingy || !matches!(out.message, Message::Directive { .. }) {
                    frames.push((out.to, Frame::emit(out.to, controller_mac(n), &out.head, &out.message)));
                }
            }
            frames.into_iter().for_each(|(to, frame)| self.send(to, frame));
        }
    }

    fn depart(&mut self, from: Node, to: Node) {
        let queue = self.queues.get_mut(&(from, to)).unwrap();
        queue.waiting -= 1;
        queue.sent += 1;
        if queue.waiting == 0 {
            self.coordinators[from as usize].handle_empty(self.now, to);
        }
        if self.now.since(self.window.0) >= WINDOW {
            self.window = (self.now, vec![0; self.most.len()]);
        }
        for link in self.topology.path(from, to) {
            let bytes = &mut self.window.1[link as usize];
            *bytes += FRAME;
            self.most[link as usize] = self.most[link as usize].max(*bytes);
        }
    }

    fn send(&mut self, to: MacAddress, frame: Frame) {
        let mut draw = |per_mille| self.rng.below(1_000) < per_mille;
        let Faults { lost, repeated, late } = self.faults;
        let copies = if draw(lost) { 0 } else { 1 + u64::from(draw(repeated)) };
        for _ in 0..copies {
            let extra = if draw(late) { 400 } else { 0 };
            self.count += 1;
            self.wire.push((self.now + self.delay + Duration::from_us(extra), self.count, to, frame));
        }
    }

    /// The most that a link carried in a window, in percent of its capacity.
    pub fn most_percent(&self) -> u64 {
        let of = |(link, &bytes): (usize, &u64)| {
            let kbps = u64::from(self.topology.capacity(link as u32));
            bytes * 8_000_000_000 * 100 / kbps / WINDOW.0
        };
        self.most.iter().enumerate().map(of).max().unwrap_or(0)
    }
}
