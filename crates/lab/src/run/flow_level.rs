//! A scenario without packets: the same applications, over the rates of flows (`sim/src/flow_level`).
//!
//! A message is as many bits as its frames take on a wire, crosses the links that the routers of the packet level would send it
//! over, and is there when the last of it has left its slowest link and passed what an empty network takes beside that. So a
//! message that nobody disturbs takes as long as at the packet level, and whatever differs is what packets do: windows, queues,
//! pauses, losses, credits.

use super::control::{self, Control};
use super::failures::Failures;
use super::messages::{Messages, Seen};
use crate::build::{self, Bits, Ideal, Outline, Plan};
use crate::records::{RecordError, RecordWriter, Status};
use crate::scenario::{self, Scenario, SharedRates, Warning};
use crate::workload::{ENDLESS, HostApps, START};
use sluicenet_node::guest::{FlowLabel, FlowRecord, SocketId, Transport};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{Address, FlowKey, Kind, Packet};
use sluicenet_node::server::{App, Event, Io, Open};
use sluicenet_node::steering::Steering;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::hedera::detect::{FlowId, Sample};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_sim::RunEnd;
use sluicenet_sim::flow_level::{Aimd, Crossing, FlowLevel, MaxMin, Rates};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most hops of a way: no tree of eight levels has as many.
const HOPS_MAX: usize = 64;
/// Most links a flow may be spread over; a larger tree's are too many to rate for each of its flows.
const SPREAD_MAX: usize = 4096;
/// How often rows are collected, of the run's length where that is known.
const EPOCHS: u64 = 500;
/// Steps after which an interrupt is looked for, however long an epoch is.
const STEPS_MAX: u64 = 4096;
/// At least so long an epoch, as at the packet level.
const EPOCH_MIN: Duration = Duration::from_us(500);

/// A message that was written to a connection.
#[derive(Clone, Copy, Debug)]
struct Message {
    id: u64,
    label: FlowLabel,
    tag: u64,
    start: Instant,
    end: u64,
    bytes: u64,
}

/// One direction of a connection.
#[derive(Debug)]
struct Connection {
    flow: FlowKey,
    priority: Priority,
    transport: Transport,
    /// Payload a second at most.
    pace: Option<Rate>,
    /// Messages that have not left, the one under way in front.
    queue: VecDeque<Message>,
    /// Its number among the flows.
    active: Option<u32>,
    is_open: bool,
    is_closing: bool,
    /// Messages that have left and not arrived.
    travelling: u32,
    written: u64,
    /// Where there is a control loop.
    steered: Steered,
}

/// What a control loop is told of a connection, and what came of it.
#[derive(Debug, Default)]
struct Steered {
    /// When its first message began to leave.
    begun: Instant,
    /// Bytes on a wire of the messages that have left.
    left: u64,
    /// Bytes that switches have counted.
    counted: u64,
    /// The links it crosses.
    way: Vec<Crossing>,
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// An application's timer.
    Wake { host: HostId, token: u64 },
    /// A handshake is over.
    Opened { connection: u32 },
    /// All of a message is there.
    Arrived { connection: u32, message: Message },
    /// Words of an application are there.
    Told { to: Address, from: Address, words: [u64; 3] },
}

/// Rates for payload, and what a message takes beside them.
struct Network {
    plan: Arc<Plan>,
    ideal: Arc<Ideal>,
    level: FlowLevel,
    connections: Vec<Connection>,
    free: Vec<u32>,
    by_key: HashMap<(u32, u32, u32), u32>,
    /// Which connection each flow is of, what it takes after its last bit has left, and its bits on a wire for each byte.
    under_way: Vec<(u32, Duration, f64)>,
    agenda: BinaryHeap<Reverse<(Instant, u64)>>,
    happens: HashMap<u64, Happens>,
    count: u64,
    flow_counts: Vec<u64>,
    /// Virtual machines of a server, where they have ports of their own.
    vms: u32,
    first_vm_link: u32,
    ended: Vec<FlowRecord>,
    tcp_bytes: u64,
    control: Option<Control>,
    failures: Option<Failures>,
    /// By switch; none at all where routers choose alone.
    steering: Vec<Steering>,
    /// A link that carries nothing: that of a flow which no port leads any further.
    nowhere: u32,
    /// The connections that a control loop knows, by what switches tell flows apart by.
    by_hash: HashMap<u64, u32>,
    /// Those of them that ended since the last round.
    over: Vec<Sample>,
    next_round: Instant,
}

/// The network as the applications of one server see it.
struct At<'a> {
    network: &'a mut Network,
    host: HostId,
}

fn key(flow: &FlowKey) -> (u32, u32, u32) {
    (flow.src.to_bits(), flow.dst.to_bits(), u32::from(flow.sport) << 16 | u32::from(flow.dport))
}

impl Network {
    fn new(s: &Scenario, plan: Arc<Plan>, ideal: Arc<Ideal>) -> Network {
        let mut capacities: Vec<f64> = Vec::new();
        for node in 0..plan.nodes() as NodeId {
            let ports = plan.ports(node);
            capacities.extend((0..ports).map(|port| plan.rate(node, port as u16).as_bps() as f64));
        }
        let first_vm_link = capacities.len() as u32;
        let vms = if s.server.virtual_network { s.server.vms } else { 0 };
        for _ in 0..(plan.hosts() - plan.external()) * vms {
            capacities.extend([s.vswitch.vm_rate.as_bps() as f64; 2]);
        }
        for slow in s.vswitch.slow.iter().filter(|_| vms > 0) {
            let down = first_vm_link + (slow.host * vms + slow.vm) * 2 + 1;
            capacities[down as usize] = slow.rate.as_bps() as f64;
        }
        let nowhere = capacities.len() as u32;
        capacities.push(0.0);
        let rates = match s.flow_level.rates {
            SharedRates::MaxMin => Rates::MaxMin(MaxMin::new(capacities)),
            SharedRates::Aimd => {
                let tick = s.flow_level.tick;
                let segment_bps = s.framing.mtu.as_bytes() as f64 * 8.0 / tick.as_secs_f64();
                Rates::Aimd { aimd: Aimd::new(capacities, segment_bps, s.seed), tick }
            }
        };
        let control = Control::of(s, &plan);
        let failures = Failures::of(s, &plan);
        let is_steered = control.is_some() || failures.is_some();
        Network {
            steering: if is_steered { control::steering(s, control.as_ref()) } else { Vec::new() },
            failures,
            nowhere,
            next_round: Instant::ZERO + control.as_ref().map_or(Duration::ZERO, |c| c.period),
            control,
            by_hash: HashMap::new(),
            over: Vec::new(),
            level: FlowLevel::new(rates),
            flow_counts: vec![0; plan.hosts() as usize],
            connections: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::new(),
            under_way: Vec::new(),
            agenda: BinaryHeap::new(),
            happens: HashMap::new(),
            count: 0,
            vms,
            first_vm_link,
            ended: Vec::new(),
            tcp_bytes: 0,
            plan,
            ideal,
        }
    }

    fn schedule(&mut self, at: Instant, what: Happens) {
        // What is scheduled first happens first.
        self.agenda.push(Reverse((at, self.count)));
        self.happens.insert(self.count, what);
        self.count += 1;
    }

    fn connection(&mut self, flow: FlowKey, priority: Priority, transport: Transport, pace: Option<Rate>) -> u32 {
        let made = Connection {
            flow,
            priority,
            transport,
            pace,
            queue: VecDeque::new(),
            active: None,
            is_open: true,
            is_closing: false,
            travelling: 0,
            written: 0,
            steered: Steered::default(),
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.connections[index as usize] = made;
                index
            }
            None => {
                self.connections.push(made);
                self.connections.len() as u32 - 1
            }
        };
        self.by_key.insert(key(&flow), index);
        index
    }

    /// Time a message takes in an empty network.
    fn alone(&self, c: &Connection, bytes: u64) -> Duration {
        self.ideal.of_priority(c.priority).time(c.flow.src.host(), c.flow.dst.host(), bytes, c.transport)
    }

    /// The first message of a connection leaves, if it can.
    fn begin(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        if c.active.is_some() || !c.is_open {
            return;
        }
        let Some(&message) = c.queue.front() else { return };
        let is_endless = message.bytes >= ENDLESS;
        let sizes = self.ideal.of_priority(c.priority).bits_on(message.bytes, c.transport);
        let (flow, transport, pace) = (c.flow, c.transport, c.pace);
        let path = self.path(now, (flow, transport), sizes);
        let bits_per_byte = sizes.link as f64 / message.bytes.max(1) as f64;
        let limit = pace.map_or(f64::INFINITY, |pace| pace.as_bps() as f64 / 8.0 * bits_per_byte);
        let after = if is_endless {
            Duration::ZERO
        } else {
            let slowest = path.iter().map(|c| self.capacity(c)).fold(limit, f64::min);
            let fluid = Duration((sizes.link as f64 / slowest * 1e12) as u64);
            let c = &self.connections[index as usize];
            Duration(self.alone(c, message.bytes).as_ps().saturating_sub(fluid.as_ps()))
        };
        if path.is_empty() {
            // Within a machine's own server, whose ports are not modelled.
            let c = &mut self.connections[index as usize];
            c.queue.pop_front();
            c.travelling += 1;
            let at = now + if is_endless { Duration::MAX } else { after };
            return self.schedule(at, Happens::Arrived { connection: index, message });
        }
        if self.is_steered() {
            self.begin_steered(now, index, path.clone());
        }
        let flow = self.level.start(&path, (!is_endless).then_some(sizes.link), limit);
        self.under_way.resize(self.under_way.len().max(flow as usize + 1), (0, Duration::ZERO, 0.0));
        self.under_way[flow as usize] = (index, after, bits_per_byte);
        self.connections[index as usize].active = Some(flow);
    }

    fn capacity(&self, c: &Crossing) -> f64 {
        self.level.capacity(c.link) / c.share
    }

    /// The links a connection's frames cross, and what part of them crosses each.
    fn path(&mut self, now: Instant, (flow, transport): (FlowKey, Transport), sizes: Bits) -> Vec<Crossing> {
        let (src, dst) = (flow.src, flow.dst);
        let mut path = self.vm_port(src, 0, sizes).into_iter().collect::<Vec<_>>();
        if src.host() != dst.host() {
            let probe = probe(flow, transport);
            let ways = match self.is_steered() {
                true => self.walk(now, &probe, 0),
                false => ways(&self.plan, &probe),
            };
            path.extend(ways);
        }
        path.extend(self.vm_port(dst, 1, sizes));
        path
    }

    /// Whether switches choose for flows beyond what their routers say.
    fn is_steered(&self) -> bool {
        !self.steering.is_empty()
    }

    /// The links that frames like `probe` cross as switches choose now; those switches count so many bytes.
    fn walk(&mut self, now: Instant, probe: &Packet, bytes: u32) -> Vec<Crossing> {
        let (flow, dst) = (probe.flow_hash(), probe.dst().host());
        let mut way = Vec::new();
        let mut node: NodeId = probe.src().host();
        while node != dst && way.len() < HOPS_MAX {
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
                way.push(Crossing { link: self.nowhere, share: 1.0 });
                break;
            };
            way.push(Crossing { link: self.plan.link_index(node, port) as u32, share: 1.0 });
            node = self.plan.peer(node, port).0;
        }
        way
    }

    /// The control loop is to know a connection.
    fn begin_steered(&mut self, now: Instant, index: u32, way: Vec<Crossing>) {
        // Rounds that nobody needed were not made.
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
        c.steered.way = way;
    }

    /// Bytes on a wire that a connection has sent.
    fn sent(&self, index: u32) -> u64 {
        let c = &self.connections[index as usize];
        c.steered.left + c.active.map_or(0, |flow| (self.level.delivered_bits(flow) / 8.0) as u64)
    }

    /// The switches on its way count what a connection has sent since they did last.
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

    /// When the next round is due: never while nobody sends.
    fn round_due(&self) -> Instant {
        if self.control.is_some() && !self.level.is_empty() { self.next_round } else { Instant::MAX }
    }

    /// A round of the control loop, if one is due: flows that are to go another way do so at once.
    fn round(&mut self, now: Instant) {
        if now < self.round_due() {
            return;
        }
        let Some(mut control) = self.control.take() else { return };
        self.next_round = now + control.period;
        let active: Vec<u32> =
            (0..self.connections.len() as u32).filter(|&c| self.connections[c as usize].active.is_some()).collect();
        // What was sent until now is of the period that ends now.
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
    fn fail(&mut self, now: Instant) {
        let Some(failures) = self.failures.as_mut().filter(|f| now >= f.due()) else { return };
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
    fn failure_due(&self) -> Instant {
        self.failures.as_ref().map_or(Instant::MAX, Failures::due)
    }

    /// A connection's message under way goes where switches send it now.
    fn move_flow(&mut self, now: Instant, index: u32) {
        let c = &self.connections[index as usize];
        let (Some(flow), Some(message)) = (c.active, c.queue.front()) else { return };
        let sizes = self.ideal.of_priority(c.priority).bits_on(message.bytes, c.transport);
        let way = self.path(now, (c.flow, c.transport), sizes);
        if way != self.connections[index as usize].steered.way {
            self.level.reroute(flow, &way);
            self.connections[index as usize].steered.way = way;
        }
    }

    /// The port of a virtual machine, where frames have no tunnel's header yet.
    fn vm_port(&self, of: Address, direction: u32, sizes: Bits) -> Option<Crossing> {
        let is_inner = of.host() < self.plan.hosts() - self.plan.external();
        (self.vms > 0 && is_inner).then(|| {
            // The second vNIC of a machine has the port's number, too.
            let vm = u32::from(of.vm()) % self.vms;
            let link = self.first_vm_link + (of.host() * self.vms + vm) * 2 + direction;
            Crossing { link, share: sizes.port as f64 / sizes.link as f64 }
        })
    }

    /// A connection's first message has left, and is there after so long.
    fn left(&mut self, now: Instant, (index, after, bits_per_byte): (u32, Duration, f64)) {
        let c = &mut self.connections[index as usize];
        c.active = None;
        let Some(message) = c.queue.pop_front() else { return };
        c.travelling += 1;
        if !self.steering.is_empty() {
            c.steered.left += (message.bytes as f64 * bits_per_byte / 8.0) as u64;
            self.count(now, index);
        }
        self.schedule(now + after, Happens::Arrived { connection: index, message });
        self.begin(now, index);
    }

    /// All of a message is there: what its ends hear of.
    fn arrived(&mut self, now: Instant, index: u32, message: Message) -> [(HostId, Event); 2] {
        let c = &mut self.connections[index as usize];
        c.travelling -= 1;
        let (flow, priority, transport) = (c.flow, c.priority, c.transport);
        self.ended.push(record(c, &message, Some(now), message.bytes));
        if transport == Transport::Tcp {
            self.tcp_bytes += message.bytes;
        }
        let back = flow.reverse();
        let answers = match self.by_key.get(&key(&back)) {
            Some(&answers) => answers,
            None => self.connection(back, priority, transport, None),
        };
        let there = SocketId { vm: flow.dst.vm(), index: answers };
        let here = SocketId { vm: flow.src.vm(), index };
        [
            (flow.dst.host(), Event::Message { socket: there, tag: message.tag, bytes: message.bytes }),
            (flow.src.host(), Event::Delivered { tag: message.tag, socket: here }),
        ]
    }

    /// Forgets a connection that was closed and has delivered all, with the way back if nothing goes there.
    fn forget_if_over(&mut self, index: u32) {
        let is_idle = |c: &Connection| c.queue.is_empty() && c.travelling == 0 && c.is_open;
        let c = &self.connections[index as usize];
        if !c.is_closing || !is_idle(c) || self.by_key.get(&key(&c.flow)) != Some(&index) {
            return;
        }
        let (forth, back) = (c.flow, c.flow.reverse());
        if self.is_steered() && self.by_hash.remove(&probe(c.flow, c.transport).flow_hash()).is_some() {
            self.over.push(self.sample(self.level.now(), index));
        }
        self.by_key.remove(&key(&forth));
        self.free.push(index);
        if let Some(&answers) = self.by_key.get(&key(&back))
            && is_idle(&self.connections[answers as usize])
        {
            self.by_key.remove(&key(&back));
            self.free.push(answers);
        }
    }

    /// The flows that have not ended, in the order of their numbers.
    fn open(&self) -> Vec<FlowRecord> {
        let mut open = Vec::new();
        for c in self.connections.iter().filter(|c| self.by_key.contains_key(&key(&c.flow))) {
            for (i, m) in c.queue.iter().enumerate() {
                let delivered = c.active.filter(|_| i == 0).map_or(0, |flow| {
                    let (_, _, bits_per_byte) = self.under_way[flow as usize];
                    ((self.level.delivered_bits(flow) / bits_per_byte) as u64).min(m.bytes)
                });
                open.push(record(c, m, None, delivered));
            }
        }
        for what in self.happens.values() {
            if let Happens::Arrived { connection, message } = what {
                open.push(record(&self.connections[*connection as usize], message, None, message.bytes));
            }
        }
        open.sort_unstable_by_key(|f| f.id);
        open
    }
}

/// A frame of a flow, as switches see it.
fn probe(flow: FlowKey, transport: Transport) -> Packet {
    let kind = match transport {
        Transport::Tcp => Kind::Tcp,
        Transport::Udp => Kind::Udp,
        Transport::Light => Kind::Light,
    };
    Packet::of_flow(flow, kind)
}

fn record(c: &Connection, m: &Message, end: Option<Instant>, delivered: u64) -> FlowRecord {
    FlowRecord {
        id: m.id,
        label: m.label,
        transport: c.transport,
        src: c.flow.src,
        dst: c.flow.dst,
        ports: (c.flow.sport, c.flow.dport),
        offset: m.end,
        priority: c.priority,
        bytes: m.bytes,
        start: m.start,
        end,
        delivered,
        timeouts: 0,
        retransmissions: 0,
        timeout_wait: Duration::ZERO,
        queueing: Duration::ZERO,
        paused: Duration::ZERO,
    }
}

/// The links between two hosts that the routers send frames like `probe` over, and what part of them crosses each: all of them
/// where a flow keeps to one way, their share where routers choose anew for each frame.
pub(crate) fn ways(plan: &Plan, probe: &Packet) -> Vec<Crossing> {
    let (src, dst) = (probe.src().host(), probe.dst().host());
    let mut links: BTreeMap<u32, f64> = BTreeMap::new();
    let mut order = Vec::new();
    let mut at = BTreeMap::from([(src as NodeId, 1.0)]);
    for _ in 0..HOPS_MAX {
        let mut next: BTreeMap<NodeId, f64> = BTreeMap::new();
        for (node, share) in at {
            if node == dst as NodeId {
                continue;
            }
            let ports = match plan.router(node) {
                Some(r) if r.divides_flows() => r.ways(probe),
                Some(r) => r.route(probe).into_iter().collect(),
                None => vec![0],
            };
            for &port in &ports {
                let link = plan.link_index(node, port) as u32;
                let part = share / ports.len() as f64;
                if *links.entry(link).and_modify(|all| *all += part).or_insert(part) == part {
                    order.push(link);
                }
                *next.entry(plan.peer(node, port).0).or_default() += part;
            }
        }
        if next.is_empty() {
            break;
        }
        at = next;
    }
    order.dedup();
    order.into_iter().map(|link| Crossing { link, share: links[&link] }).collect()
}

impl Io for At<'_> {
    fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId {
        let vm = flow.src.vm();
        if let Some(&index) = self.network.by_key.get(&key(&flow)) {
            return SocketId { vm, index };
        }
        let (transport, pace) = match how {
            Open::Established | Open::Handshake => (Transport::Tcp, None),
            Open::LightEstablished | Open::LightHandshake => (Transport::Light, None),
            Open::Datagrams(pace) => (Transport::Udp, pace),
        };
        let index = self.network.connection(flow, priority, transport, pace);
        if matches!(how, Open::Handshake | Open::LightHandshake) {
            let c = &mut self.network.connections[index as usize];
            c.is_open = false;
            // There and back.
            let way = self.network.alone(&self.network.connections[index as usize], 0);
            self.network.schedule(now + way + way, Happens::Opened { connection: index });
        }
        SocketId { vm, index }
    }

    fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64 {
        let count = &mut self.network.flow_counts[self.host as usize];
        let id = u64::from(self.host) << 40 | *count;
        *count += 1;
        let c = &mut self.network.connections[socket.index as usize];
        c.written += bytes;
        c.queue.push_back(Message { id, label, tag, start: now, end: c.written, bytes });
        self.network.begin(now, socket.index);
        id
    }

    fn close(&mut self, _: Instant, socket: SocketId) {
        self.network.connections[socket.index as usize].is_closing = true;
        self.network.forget_if_over(socket.index);
    }

    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]) {
        let way = match from.host() == to.host() {
            true => Duration::ZERO,
            false => self.network.ideal.time(from.host(), to.host(), 0, Transport::Udp),
        };
        self.network.schedule(now + way, Happens::Told { to, from, words });
    }

    fn wake_at(&mut self, at: Instant, token: u64) {
        self.network.schedule(at, Happens::Wake { host: self.host, token });
    }
}

/// What the loop tells, and asks, between two epochs.
pub(super) struct Ends<'a> {
    pub until: Option<Instant>,
    /// Whether the run ends with its finite work.
    pub is_finite: bool,
    pub interrupt: &'a AtomicBool,
    /// Told the time and how much is left.
    pub progress: &'a mut dyn FnMut(Instant, u64),
}

/// How a run went.
pub(super) struct Ended {
    pub end: RunEnd,
    pub now: Instant,
    pub seen: Seen,
    pub tcp_bytes: u64,
}

/// What is run, and what of the scenario has no effect on it.
///
/// # Errors
/// As [`build::outline`], and a flow that would be spread over more links than can be rated for each.
pub(super) fn outline(s: &Scenario) -> scenario::Result<Outline> {
    let mut outline = build::outline(s)?;
    check_spread(s, &outline.plan)?;
    if !s.policy.is_empty() {
        let error = s.places.error("policy", "at the flow level all machines may talk to each other");
        return Err(error.hint("take [policy] out, or set scenario.level = \"packet\""));
    }
    let r = &s.record;
    let of_packets = [
        ("queues", r.queues.is_some()),
        ("tcp", r.tcp.is_some()),
        ("pauses", r.pauses),
        ("pcapng", !r.pcapng.is_empty()),
    ];
    for (key, _) in of_packets.iter().filter(|(_, is_asked)| *is_asked) {
        let place = s.places.error(&format!("record.{key}"), "");
        let (file, line) = (place.diagnostic().file.clone(), place.diagnostic().line);
        let message = format!("there are no {key} at the flow level: nothing is recorded of them");
        outline.warnings.push(Warning { file, line, message });
    }
    let of_waiting =
        [("vswitch.slow", !s.vswitch.slow.is_empty()), ("zcredit", s.zcredit.enabled), ("zbridge", s.zbridge.enabled)];
    if let Some((key, _)) = of_waiting.iter().find(|(_, is_given)| *is_given) {
        let place = s.places.error(key, "");
        let (file, line) = (place.diagnostic().file.clone(), place.diagnostic().line);
        let message = "at the flow level nobody waits behind another's frames: what a slow machine does to its neighbours, with pauses or \
                       with credits, is not in these rates";
        outline.warnings.push(Warning { file, line, message: message.into() });
    }
    Ok(outline)
}

fn check_spread(s: &Scenario, plan: &Plan) -> scenario::Result<()> {
    let hosts = plan.hosts();
    let far = Packet::of_flow(
        FlowKey { src: Address::new(0, 0), dst: Address::new(hosts - 1, 0), sport: 1, dport: 1 },
        Kind::Udp,
    );
    let links = ways(plan, &far).len();
    if links > SPREAD_MAX {
        return Err(s
            .places
            .error("topology.routing", format!("at the flow level a flow would be spread over {links} links"))
            .hint(format!(
                "at most {SPREAD_MAX}: a smaller network, another routing, or scenario.level = \"packet\""
            )));
    }
    Ok(())
}

/// Runs the applications over the rates of their flows.
pub(super) fn run(
    s: &Scenario,
    (plan, ideal): (Arc<Plan>, Ideal),
    mut apps: Vec<HostApps>,
    mut writer: Option<RecordWriter>,
    ends: Ends<'_>,
) -> Result<Ended, RecordError> {
    let ideal = Arc::new(ideal);
    let mut messages = Messages::new(s, ideal.clone());
    let mut network = Network::new(s, plan, ideal);
    let epoch = Duration((ends.until.map_or(0, |u| u.as_ps()) / EPOCHS).max(EPOCH_MIN.as_ps()));
    let warmup = Instant(s.warmup.as_ps());
    for (host, app) in apps.iter_mut().enumerate() {
        let mut io = At { network: &mut network, host: host as HostId };
        app.handle(Instant::ZERO, &mut io, Event::Wake { token: START });
    }
    let mut next_epoch = Instant::ZERO + epoch;
    let mut queries = Vec::new();
    let mut steps = 0;
    let end = loop {
        steps += 1;
        if steps % STEPS_MAX == 0 && ends.interrupt.load(Ordering::Relaxed) {
            break RunEnd::Interrupted;
        }
        let event = network
            .level
            .poll_timeout()
            .min(network.round_due())
            .min(network.failure_due())
            .min(network.agenda.peek().map_or(Instant::MAX, |Reverse(d)| d.0));
        let due = if network.level.now() < warmup { next_epoch.min(warmup) } else { next_epoch };
        let now = event.min(due).min(ends.until.unwrap_or(Instant::MAX));
        if event == Instant::MAX && ends.until.is_none() {
            break RunEnd::Idle;
        }
        step(&mut network, &mut apps, now);
        if now < due && ends.until != Some(now) {
            continue;
        }
        // A stretch is over.
        if now >= next_epoch {
            next_epoch = now + epoch;
        }
        let mut ended = std::mem::take(&mut network.ended);
        ended.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
        messages.write_flows(&mut writer, &ended)?;
        let ended = std::mem::take(&mut queries);
        messages.write_queries(&mut writer, ended)?;
        queries.extend(apps.iter_mut().flat_map(|a| a.take_queries()));
        messages.at(now, || network.open());
        let remaining = apps.iter().map(HostApps::remaining).sum();
        (ends.progress)(now, remaining);
        if ends.interrupt.load(Ordering::Relaxed) {
            break RunEnd::Interrupted;
        }
        if ends.is_finite && ends.until.is_none() && remaining == 0 {
            break RunEnd::Stopped;
        }
        if ends.until == Some(now) {
            break RunEnd::Time;
        }
    };
    let now = network.level.now();
    let mut ended = std::mem::take(&mut network.ended);
    ended.sort_unstable_by_key(|f| (f.end.unwrap_or(Instant::MAX), f.id));
    messages.write_flows(&mut writer, &ended)?;
    queries.extend(apps.iter_mut().flat_map(|a| a.take_queries()));
    let unfinished = apps.iter().enumerate();
    let unfinished = unfinished.flat_map(|(h, a)| a.open_queries().into_iter().map(move |q| (h as HostId, q)));
    let seen = messages.finish(&mut writer, now, queries, &network.open(), unfinished)?;
    if let Some(w) = writer {
        w.finish(match end {
            RunEnd::Interrupted => Status::InterruptedAt { at_ps: now.as_ps() },
            _ => Status::Complete,
        })?;
    }
    Ok(Ended { end, now, seen, tcp_bytes: network.tcp_bytes })
}

/// Time goes on to `now`, and what happens then happens.
fn step(network: &mut Network, apps: &mut [HostApps], now: Instant) {
    let mut left = Vec::new();
    // The numbers of flows that ended are those of the next that begin.
    network.level.advance(now, |_, flow| left.push(network.under_way[flow as usize]));
    left.into_iter().for_each(|of| network.left(now, of));
    while let Some(&Reverse((at, number))) = network.agenda.peek() {
        if at > now {
            break;
        }
        network.agenda.pop();
        let Some(what) = network.happens.remove(&number) else { continue };
        let mut hear = |network: &mut Network, host: HostId, event: Event| {
            apps[host as usize].handle(now, &mut At { network, host }, event);
        };
        match what {
            Happens::Wake { host, token } => hear(network, host, Event::Wake { token }),
            Happens::Told { to, from, words } => hear(network, to.host(), Event::Told { to, from, words }),
            Happens::Opened { connection } => {
                network.connections[connection as usize].is_open = true;
                network.begin(now, connection);
            }
            Happens::Arrived { connection, message } => {
                for (host, event) in network.arrived(now, connection, message) {
                    hear(network, host, event);
                }
                network.forget_if_over(connection);
            }
        }
    }
    network.fail(now);
    network.round(now);
}
