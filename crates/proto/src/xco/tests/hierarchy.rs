//! Controllers of two racks in each of two rows, of the rows, and of the core.

use super::world::{FRAME, LEASE, mac};
use super::{GBPS, rows};
use crate::time::{Duration, Instant};
use crate::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use crate::xco::coordinator::{Coordinator, CoordinatorConfig, LATE, Permit};
use crate::xco::hierarchy::{Coordinators, Hierarchy, HierarchyConfig};
use crate::xco::slices::SliceConfig;
use crate::xco::topology::Topology;
use crate::xco::{Limits, Node};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Frame, Head, Message, Repr};

const SLICE: Duration = Duration::from_ms(1);
const PERIOD: Duration = Duration::from_ms(20);
const DELAY: Duration = Duration::from_us(20);
const SECRET: u32 = 77;
/// Nodes of a rack and of a row.
const RACK: Node = 3;
const ROW: Node = 6;

/// The address of the controller of a level over a node.
fn of(level: usize, node: Node) -> MacAddress {
    let place = [node / RACK, node / ROW, 0][level];
    MacAddress::local(1 << 20 | (level as u32) << 8 | place)
}

struct World {
    now: Instant,
    topology: Topology,
    controllers: BTreeMap<MacAddress, Controller>,
    nodes: Vec<Coordinators>,
    queues: BTreeMap<(Node, Node), (u64, u64)>,
    next_at: BTreeMap<(Node, Node), Instant>,
    wire: BTreeMap<(Instant, u64), (MacAddress, Frame)>,
    count: u64,
    window: (Instant, Vec<u64>),
    most: u64,
}

impl World {
    fn new() -> World {
        let topology = rows(2, 2, RACK, 2 * GBPS);
        let now = Instant::ZERO + Duration::from_ms(1);
        let mut controllers = BTreeMap::new();
        for node in 0..topology.nodes() {
            for level in 0..3 {
                let children: Vec<MacAddress> = match level {
                    0 => vec![],
                    1 => vec![of(0, node / ROW * ROW), of(0, node / ROW * ROW + RACK)],
                    _ => vec![of(1, 0), of(1, ROW)],
                };
                let parent = (level < 2).then(|| of(level + 1, node));
                let place = HierarchyConfig { level, parent, children, secret: SECRET, period: PERIOD };
                let config = ControllerConfig {
                    policy: PolicyConfig::Slices(SliceConfig::new(SLICE)),
                    limits: Limits { flows: 256, flows_per_node: 16 },
                    lease: LEASE,
                    on_demand: false,
                    weights: Weights::default(),
                    nodes: Vec::new(),
                    peer: None,
                    hierarchy: Some(place),
                    seed: 3,
                };
                let new = || Controller::new(now, topology.clone(), config, 1, false);
                controllers.entry(of(level, node)).or_insert_with(new);
            }
        }
        let coordinators = |node: Node| {
            let level = |level: usize| {
                let size = [RACK, ROW, topology.nodes()][level];
                let config = CoordinatorConfig {
                    node,
                    rate_kbps: GBPS,
                    controllers: vec![of(level, node)],
                    lease: LEASE,
                    hysteresis: Some(Duration::from_us(50)),
                    small_kbps: 0,
                    entries: 8,
                    flows: 64,
                    late: LATE,
                    nonce: node * 4 + level as u32,
                };
                (node / size * size..(node / size + 1) * size, Coordinator::new(now, config))
            };
            Coordinators::new((0..3).map(level).collect())
        };
        let links = topology.links();
        World {
            now,
            controllers,
            nodes: (0..topology.nodes()).map(coordinators).collect(),
            topology,
            queues: BTreeMap::new(),
            next_at: BTreeMap::new(),
            wire: BTreeMap::new(),
            count: 0,
            window: (now, vec![0; links]),
            most: 0,
        }
    }

    fn offer(&mut self, from: Node, to: Node) {
        self.queues.insert((from, to), (u64::MAX / 2, 0));
        self.next_at.insert((from, to), self.now);
    }

    fn sent(&self, from: Node, to: Node) -> u64 {
        self.queues[&(from, to)].1
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let next = [
                self.wire.keys().next().map(|key| key.0),
                self.controllers.values().map(Controller::poll_timeout).min(),
                self.nodes.iter().map(Coordinators::poll_timeout).min(),
                self.next_at.values().copied().min(),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(Instant::MAX).max(self.now);
            if next > end {
                break;
            }
            self.now = next;
            self.step();
        }
        self.now = end;
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(entry) = self.wire.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to, frame) = entry.remove();
            let repr = Repr::parse(frame.as_bytes()).unwrap();
            if let Some(controller) = self.controllers.get_mut(&to) {
                controller.handle(now, repr.source, &repr.head, &repr.message);
            } else if let Some(node) = (0..self.nodes.len()).find(|&node| mac(node as Node) == to) {
                self.nodes[node].handle(now, repr.source, &repr.head, &repr.message);
                self.ask_again(node as Node);
            }
        }
        self.controllers.values_mut().filter(|c| c.poll_timeout() <= now).for_each(|c| c.handle_timeout(now));
        for node in 0..self.nodes.len() {
            if self.nodes[node].poll_timeout() <= now {
                self.nodes[node].handle_timeout(now);
                self.ask_again(node as Node);
            }
        }
    }

    fn ask_again(&mut self, node: Node) {
        let queues: Vec<_> = self.queues.range((node, 0)..=(node, Node::MAX)).map(|(ends, _)| *ends).collect();
        queues.into_iter().for_each(|ends| _ = self.next_at.insert(ends, self.now));
    }

    fn settle(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.next_at.iter().filter(|(_, at)| **at <= now).map(|(ends, _)| *ends).collect();
        for (from, to) in due {
            self.next_at.remove(&(from, to));
            loop {
                match self.nodes[from as usize].permit(now, to, FRAME) {
                    Permit::Now => self.depart(from, to),
                    Permit::At(at) => {
                        self.next_at.insert((from, to), at);
                        break;
                    }
                    Permit::Wait => break,
                }
            }
        }
        let mut frames = Vec::new();
        for node in 0..self.nodes.len() {
            while let Some(out) = self.nodes[node].poll_transmit(now) {
                frames.push((out.to, out.emit(mac(node as Node))));
            }
        }
        for (&own, controller) in &mut self.controllers {
            while let Some(out) = controller.poll_transmit(now) {
                frames.push((out.to, Frame::emit(out.to, own, &out.head, &out.message)));
            }
        }
        for frame in frames {
            self.count += 1;
            self.wire.insert((now + DELAY, self.count), frame);
        }
    }

    fn depart(&mut self, from: Node, to: Node) {
        let queue = self.queues.get_mut(&(from, to)).unwrap();
        (queue.0, queue.1) = (queue.0 - 1, queue.1 + 1);
        if self.now.since(self.window.0) >= PERIOD {
            self.window = (self.now, vec![0; self.topology.links()]);
        }
        for link in self.topology.path(from, to) {
            let bytes = &mut self.window.1[link as usize];
            *bytes += FRAME;
            let kbps = u64::from(self.topology.capacity(link));
            let percent = *bytes * 8_000_000_000 * 100 / kbps / PERIOD.0;
            self.most = self.most.max(percent);
        }
    }
}

/// Frames of 1 Gb/s in so much time.
fn frames(time: Duration) -> u64 {
    time.0 / (FRAME * 8_000)
}

#[test]
fn levels_share_links_without_overload() {
    let mut w = World::new();
    // Within a rack, between racks, and between rows; all to node 0 or from node 3.
    for (from, to) in [(1, 0), (3, 0), (6, 0), (3, 4), (3, 9), (7, 8)] {
        w.offer(from, to);
    }
    w.run(Duration::from_ms(400));
    assert!(w.most <= 102, "a link carried {} % of its capacity", w.most);
    let sent: BTreeMap<_, _> = w.queues.iter().map(|(ends, queue)| (*ends, queue.1)).collect();
    // Each has a share of what it would have alone, and nobody starves.
    assert!(sent.values().all(|&sent| sent > frames(Duration::from_ms(30))), "{sent:?}");
    let into_0 = w.sent(1, 0) + w.sent(3, 0) + w.sent(6, 0);
    assert!(into_0 > frames(Duration::from_ms(250)), "{sent:?}");
}

/// Levels without load have no window, so that nothing is left unused.
#[test]
fn one_level_alone_has_almost_all_of_a_period() {
    let mut w = World::new();
    w.offer(1, 7);
    w.offer(2, 8);
    w.run(Duration::from_ms(100));
    let before = w.sent(1, 7);
    w.run(Duration::from_ms(200));
    let share = (w.sent(1, 7) - before) * 100 / frames(Duration::from_ms(200));
    assert!(share > 93, "{share} %");
}

#[test]
fn only_controllers_of_the_hierarchy_are_heard() {
    let now = Instant::ZERO + Duration::from_ms(5);
    let (parent, child) = (MacAddress::local(1), MacAddress::local(2));
    let config =
        HierarchyConfig { level: 1, parent: Some(parent), children: vec![child], secret: SECRET, period: PERIOD };
    let mut h = Hierarchy::new(now, config);
    let windows = Message::Windows { period_us: 20_000, since_ns: 5_000, parts: [100, 56, 100, 0] };
    let head = |sequence| Head { sequence, token: SECRET, ..Head::default() };
    let too_much = Message::Windows { period_us: 20_000, since_ns: 5_000, parts: [200, 56, 100, 0] };
    for (from, head, message) in [
        (child, head(1), windows),
        (MacAddress::local(3), head(1), windows),
        (parent, Head { token: 1, ..head(1) }, windows),
        (parent, head(1), too_much),
        (parent, head(1), Message::Load { level: 0, load: 5 }),
        (child, head(1), Message::Load { level: 1, load: 5 }),
    ] {
        let before = h.refused();
        h.handle(now, from, &head, &message);
        assert_eq!(h.refused(), before + 1);
    }
    h.handle(now, parent, &head(2), &windows);
    h.handle(now, parent, &head(2), &Message::Windows { period_us: 20_000, since_ns: 0, parts: [1, 1, 1, 0] });
    assert_eq!(h.refused(), 7);
    // From the next period on, its level is open from 100/256 of it on.
    assert_eq!(h.windows(now).parts, [64; 4]);
    let start = now + PERIOD - Duration::from_us(5);
    assert_eq!(h.windows(start).parts, [100, 56, 100, 0]);
    let (from, until) = h.window(start).unwrap();
    assert_eq!((from.since(start), until > from), (Duration(PERIOD.0 / 256 * 100), true));
}
