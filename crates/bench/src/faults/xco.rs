//! XCo's coordinators and controllers, whose messages are lost and damaged, and start again; and a node that lies.
//!
//! The model is a queue for each flow, and the capacity of each link: all frames of honest nodes leave, and links are given
//! no more than they have.

use super::wire::Faults;
use super::{Broken, Tally, Wire};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, Peer, PolicyConfig, Weights};
use sluicenet_proto::xco::coordinator::{Coordinator, CoordinatorConfig, LATE, Permit};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{Link, LinkId, Topology};
use sluicenet_proto::xco::{Limits, Node};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Change, Entry, Frame, Head, Message, NOWHERE, Repr};
use std::collections::BTreeMap;

/// Faults end at this time, and the run must end after so much more.
const TROUBLE: Duration = Duration::from_ms(120);
const REST: Duration = Duration::from_secs(8);
/// Nodes of each of two racks; the last one may lie.
const RACK: Node = 4;
const NODES: Node = 2 * RACK;
const KBPS: u32 = 1_000_000;
/// A full frame on the wire.
const BYTES: u64 = 1_538;
const LEASE: Duration = Duration::from_ms(40);
/// Flows of the node that lies.
const FLOWS: usize = 5;
/// A message has been changed in one of so many that are lost on average.
const FLIPPED: u64 = 4;

fn node_mac(node: Node) -> MacAddress {
    MacAddress::local(node + 1)
}

fn controller_mac(n: usize) -> MacAddress {
    MacAddress::local(1_000 + n as u32)
}

fn topology() -> Topology {
    let link = |a, b, kbps| Link { ends: [a, b], kbps };
    let mut links: Vec<Link> = (0..NODES).map(|n| link(n, NODES + n / RACK, KBPS)).collect();
    links.extend([link(NODES, NODES + 2, 2 * KBPS), link(NODES + 1, NODES + 2, 2 * KBPS)]);
    let mut topology = Topology::new(NODES, NODES as usize + 3, &links).expect("a tree");
    topology.add_tree(NODES + 2).expect("a tree");
    topology
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    offered: u64,
    left: u64,
    /// When the coordinator is asked again.
    next: Option<Instant>,
}

struct Run<'a> {
    rng: Rng,
    tally: &'a mut Tally,
    now: Instant,
    faults: Faults,
    rates: bool,
    topology: Topology,
    controllers: Vec<Controller>,
    coordinators: Vec<Coordinator>,
    /// Starts of controllers and coordinators.
    lives: u32,
    is_hostile: bool,
    /// The session of the node that lies.
    own: Head,
    queues: BTreeMap<(Node, Node), Queue>,
    wire: Wire<(MacAddress, Frame)>,
    /// When the next fault of a box, and the next lie, comes.
    trouble_at: Instant,
}

pub(super) fn run(seed: u64, tally: &mut Tally) -> Result<(), Broken> {
    let mut run = Run::new(seed, tally);
    let start = run.now;
    loop {
        run.settle();
        run.check()?;
        let is_trouble = run.now.since(start) < TROUBLE;
        if !is_trouble {
            run.faults = Faults::default();
            if run.queues.values().all(|queue| queue.left == queue.offered) {
                break;
            }
        }
        if run.now.since(start) > TROUBLE + REST {
            let left: Vec<_> = run.queues.iter().filter(|(_, queue)| queue.left < queue.offered).collect();
            return Err(format!("frames never left: {left:?}"));
        }
        run.now = run.next(is_trouble).max(run.now);
        run.step(is_trouble);
    }
    for queue in run.queues.values() {
        run.tally.sent += queue.offered;
        run.tally.received += queue.left;
    }
    run.forget()
}

impl<'a> Run<'a> {
    fn new(seed: u64, tally: &'a mut Tally) -> Run<'a> {
        let mut rng = Rng::from_words(&[seed, 0x7863]);
        let now = Instant::ZERO + Duration::from_ms(1);
        let (rates, two, is_hostile) = (rng.below(4) == 0, rng.below(2) == 0, rng.below(2) == 0);
        let mut run = Run {
            faults: Faults::any(&mut rng),
            rates,
            topology: topology(),
            controllers: Vec::new(),
            coordinators: Vec::new(),
            lives: 0,
            is_hostile,
            own: Head::default(),
            queues: BTreeMap::new(),
            wire: Wire::new(),
            trouble_at: now,
            rng,
            tally,
            now,
        };
        for n in 0..if two { 2 } else { 1 } {
            let controller = run.controller(n, two, n > 0);
            run.controllers.push(controller);
        }
        for node in 0..NODES {
            let coordinator = run.coordinator(node);
            run.coordinators.push(coordinator);
        }
        let honest = NODES - Node::from(is_hostile);
        for from in 0..honest {
            for _ in 0..1 + run.rng.below(3) {
                let to = run.rng.below(NODES.into()) as Node;
                if to != from {
                    let queue = Queue { offered: 1 + run.rng.below(400), next: Some(now), ..Queue::default() };
                    run.queues.insert((from, to), queue);
                }
            }
        }
        run
    }

    fn controller(&mut self, n: usize, has_peer: bool, is_standby: bool) -> Controller {
        self.lives += 1;
        let policy = match self.rates {
            true => PolicyConfig::Rates(Duration::from_ms(1)),
            false => PolicyConfig::Slices(SliceConfig::new(Duration::from_ms(1))),
        };
        let config = ControllerConfig {
            policy,
            limits: Limits { flows: 64, flows_per_node: FLOWS },
            lease: LEASE,
            on_demand: false,
            weights: Weights::default(),
            nodes: (0..NODES).map(node_mac).collect(),
            peer: has_peer.then(|| Peer { mac: controller_mac(1 - n), secret: 11 }),
            hierarchy: None,
            seed: u64::from(self.lives),
        };
        // A start has a later epoch than all before it.
        Controller::new(self.now, self.topology.clone(), config, 4 * self.lives as u16, is_standby)
    }

    fn coordinator(&mut self, node: Node) -> Coordinator {
        self.lives += 1;
        let controllers = if self.controllers.is_empty() { 1 } else { self.controllers.len() };
        Coordinator::new(
            self.now,
            CoordinatorConfig {
                node,
                rate_kbps: KBPS,
                controllers: (0..controllers).map(controller_mac).collect(),
                lease: LEASE,
                hysteresis: Some(Duration::from_us(50)),
                small_kbps: 0,
                entries: 3,
                flows: 16,
                late: LATE,
                nonce: self.lives,
            },
        )
    }

    /// When something happens next.
    fn next(&self, is_trouble: bool) -> Instant {
        let timers = self.coordinators.iter().map(Coordinator::poll_timeout);
        let timers = timers.chain(self.controllers.iter().map(Controller::poll_timeout));
        let queues = self.queues.values().filter_map(|queue| queue.next);
        let trouble = is_trouble.then_some(self.trouble_at);
        timers.chain(queues).chain(self.wire.next()).chain(trouble).min().unwrap_or(Instant::MAX)
    }

    fn step(&mut self, is_trouble: bool) {
        let now = self.now;
        while let Some((to, frame)) = self.wire.pop_arrived(now) {
            self.receive(to, &frame);
        }
        for controller in &mut self.controllers {
            if controller.poll_timeout() <= now {
                controller.handle_timeout(now);
            }
        }
        for node in 0..NODES {
            if self.coordinators[node as usize].poll_timeout() <= now {
                self.coordinators[node as usize].handle_timeout(now);
                self.ask_again(node);
            }
        }
        if is_trouble && self.trouble_at <= now {
            self.trouble_at = now + Duration::from_us(1 + self.rng.below(2_000));
            if self.is_hostile {
                self.lie();
            }
            if self.rng.below(60) == 0 {
                self.restart();
            }
        }
    }

    fn receive(&mut self, to: MacAddress, frame: &Frame) {
        let mut bytes = frame.as_bytes().to_vec();
        if self.faults.lost > 0 && self.rng.below(1_000) < self.faults.lost / FLIPPED {
            self.tally.count("bits flipped");
            let bit = self.rng.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let Ok(repr) = Repr::parse(&bytes) else { return };
        if let Some(node) = (0..NODES).find(|&node| node_mac(node) == to) {
            if node == NODES - 1 {
                self.own = Head { sequence: self.own.sequence, ..repr.head };
            }
            self.coordinators[node as usize].handle(self.now, repr.source, &repr.head, &repr.message);
            self.ask_again(node);
        } else if let Some(n) = (0..self.controllers.len()).find(|&n| controller_mac(n) == to) {
            self.controllers[n].handle(self.now, repr.source, &repr.head, &repr.message);
        }
    }

    fn ask_again(&mut self, node: Node) {
        for (_, queue) in self.queues.range_mut((node, 0)..=(node, Node::MAX)) {
            queue.next = (queue.left < queue.offered).then_some(self.now);
        }
    }

    /// Frames that may leave do, and messages are sent.
    fn settle(&mut self) {
        let now = self.now;
        for (&(from, to), queue) in &mut self.queues {
            let coordinator = &mut self.coordinators[from as usize];
            while queue.left < queue.offered && queue.next.is_some_and(|at| at <= now) {
                match coordinator.permit(now, to, BYTES) {
                    Permit::Now => queue.left += 1,
                    Permit::At(at) => queue.next = Some(at),
                    Permit::Wait => queue.next = None,
                }
                if queue.left == queue.offered {
                    queue.next = None;
                    coordinator.handle_empty(now, to);
                }
            }
        }
        let mut frames = Vec::new();
        for (node, coordinator) in (0..).zip(&mut self.coordinators) {
            while let Some(out) = coordinator.poll_transmit(now) {
                frames.push((out.to, out.emit(node_mac(node))));
            }
        }
        for (n, controller) in self.controllers.iter_mut().enumerate() {
            while let Some(out) = controller.poll_transmit(now) {
                frames.push((out.to, Frame::emit(out.to, controller_mac(n), &out.head, &out.message)));
            }
        }
        for frame in frames {
            self.wire.send(now, frame, self.faults, &mut self.rng, self.tally);
        }
    }

    /// A box forgets everything.
    fn restart(&mut self) {
        self.tally.count("restarts");
        if self.rng.below(2) == 0 {
            let n = self.rng.below(self.controllers.len() as u64) as usize;
            self.controllers[n] = self.controller(n, self.controllers.len() > 1, false);
        } else {
            let node = self.rng.below(NODES.into()) as Node;
            self.coordinators[node as usize] = self.coordinator(node);
            self.ask_again(node);
        }
    }

    /// The last node says anything, to controllers in its own session, and to anybody in the name of others.
    fn lie(&mut self) {
        self.own.sequence += 1;
        let (own, session, rng) = (NODES - 1, self.own, &mut self.rng);
        let mut word = |n: u64| rng.below(n) as u32;
        let is_own = word(2) == 0;
        let head = Head {
            epoch: word(16) as u16,
            sequence: word(1 << 20),
            token: word(u64::from(u32::MAX)),
            clock_ns: u64::from(word(1 << 31)),
        };
        let head = if is_own { Head { sequence: (1 << 20) + session.sequence, ..session } } else { head };
        let message = match word(7) {
            0 => Message::Join { node: word(2 * u64::from(NODES)), rate_kbps: word(1 << 24), nonce: word(1 << 31) },
            1 => Message::Leave,
            2 => Message::Return { destination: word(16), directive: word(64) },
            3 => Message::Alive { is_controller: word(2) == 0 },
            4 => Message::Welcome { node: word(8), lease_us: word(1 << 31), nonce: word(64), on_demand: true },
            5 => Message::Directive {
                destination: word(8),
                instead_of: [NOWHERE, word(8)][word(2) as usize],
                rate_kbps: word(1 << 22),
                length_ns: word(1 << 31),
            },
            _ => Message::Free { destination: word(8) },
        };
        let to_controller = is_own || word(2) == 0;
        let (to, from) = match to_controller {
            true => (controller_mac(0), node_mac(if is_own { own } else { word(NODES.into()) })),
            false => (node_mac(word(u64::from(own))), controller_mac(word(2) as usize)),
        };
        let entry = |n: u32| Entry { destination: (n * 7 + head.sequence) % 12, change: Change::Backlogged };
        let entries: Vec<Entry> = (0..word(20)).map(entry).collect();
        let frame = match word(2) {
            0 if to_controller => Frame::report(to, from, &head, &entries),
            _ => Frame::emit(to, from, &head, &message),
        };
        self.tally.count("forged");
        self.wire.send(self.now, (to, frame), Faults::default(), &mut self.rng, self.tally);
    }

    /// No controller gives a link more than it has.
    fn check(&self) -> Result<(), Broken> {
        for link in 0..self.topology.links() as LinkId {
            let capacity = u64::from(self.topology.capacity(link));
            if let Some(allowed) = self.controllers.iter().map(|c| c.allowed_kbps(link)).find(|&kbps| kbps > capacity) {
                return Err(format!("link {link} of {capacity} kb/s is given {allowed}"));
            }
        }
        Ok(())
    }

    /// In the end the active controllers know of no flow, but for those that the last node has invented.
    fn forget(&mut self) -> Result<(), Broken> {
        let end = self.now + LEASE.saturating_mul(4);
        while self.now < end {
            self.settle();
            self.check()?;
            self.now = self.next(false).clamp(self.now, end);
            self.step(false);
        }
        let invented = if self.is_hostile { FLOWS } else { 0 };
        match self.controllers.iter().filter(|c| c.is_active()).map(Controller::flows).max() {
            Some(flows) if flows <= invented => Ok(()),
            Some(flows) => Err(format!("{flows} flows are left in a controller")),
            None => Err("no controller is active".into()),
        }
    }
}
