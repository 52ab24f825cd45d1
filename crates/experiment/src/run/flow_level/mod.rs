//! A scenario without packets: the same applications, over the rates of flows (`sim/src/flow_level`).
//!
//! A message has as many bits as its frames take on a wire. It crosses the links over which the routers of the packet
//! level would send it. It arrives when its last bit has left its slowest link and the remaining delays of an empty
//! network have passed. So an undisturbed message takes as long as at the packet level. Any difference comes from
//! effects of packets: windows, queues, pauses, losses, credits.

mod drive;
mod io;
mod outline;
mod paths;
mod steered;

pub(super) use drive::{Ends, run};
pub(super) use outline::outline;

use super::control::{self, Control};
use super::failures::Failures;
use crate::build::{Bits, Ideal, Plan};
use crate::workload::ENDLESS;
use paths::{crossings, probe};
use sluicenet_node::guest::{FlowLabel, FlowRecord, SocketId, Transport};
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{Address, FlowKey};
use sluicenet_node::server::Event;
use sluicenet_node::steering::Steering;
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::hedera::detect::Sample;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Scenario, SharedRates};
use sluicenet_sim::flow_level::{Aimd, Crossing, FlowLevel, MaxMin, Rates};
use sluicenet_sim::slots::insert;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use steered::Steered;

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

/// Rates for payload, and the other delays of a message.
struct Network {
    plan: Arc<Plan>,
    ideal: Arc<Ideal>,
    level: FlowLevel,
    connections: Vec<Connection>,
    free: Vec<u32>,
    by_key: HashMap<(u32, u32, u32), u32>,
    /// For each flow, its connection, its delay after the last bit has left, and its bits on a wire for each byte.
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
    /// A link that carries nothing, for flows that no port leads any further.
    nowhere: u32,
    /// The connections that a control loop knows, by the hash with which switches tell flows apart.
    by_hash: HashMap<u64, u32>,
    /// Known connections that ended since the last round.
    over: Vec<Sample>,
    next_round: Instant,
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
        // Of two events at one time, the one that is scheduled first happens first.
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
        let index = insert(&mut self.connections, &mut self.free, made);
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
        let sizes = self.ideal.of_priority(c.priority).frames.bits_on(message.bytes, c.transport);
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
            // Within a machine's own server, the ports are not modelled.
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

    /// The links that a connection's frames cross, and the part of the frames on each.
    fn path(&mut self, now: Instant, (flow, transport): (FlowKey, Transport), sizes: Bits) -> Vec<Crossing> {
        let (src, dst) = (flow.src, flow.dst);
        let mut path = self.vm_port(src, 0, sizes).into_iter().collect::<Vec<_>>();
        if src.host() != dst.host() {
            let probe = probe(flow, transport);
            let crossings = match self.is_steered() {
                true => self.walk(now, &probe, 0),
                false => crossings(&self.plan, &probe),
            };
            path.extend(crossings);
        }
        path.extend(self.vm_port(dst, 1, sizes));
        path
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

    /// A connection's first message has left, and arrives after the time `after`.
    fn left(&mut self, now: Instant, (index, after, bits_per_byte): (u32, Duration, f64)) {
        let c = &mut self.connections[index as usize];
        c.active = None;
        let Some(message) = c.queue.pop_front() else { return };
        c.travelling += 1;
        if self.is_steered() {
            self.left_steered(now, index, (message.bytes as f64 * bits_per_byte / 8.0) as u64);
        }
        self.schedule(now + after, Happens::Arrived { connection: index, message });
        self.begin(now, index);
    }

    /// All of a message has arrived: the events for its two ends.
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

    /// Forgets a connection that was closed and has delivered all, with the path back if nothing goes there.
    fn forget_if_over(&mut self, index: u32) {
        let is_idle = |c: &Connection| c.queue.is_empty() && c.travelling == 0 && c.is_open;
        let c = &self.connections[index as usize];
        if !c.is_closing || !is_idle(c) || self.by_key.get(&key(&c.flow)) != Some(&index) {
            return;
        }
        let (forth, back) = (c.flow, c.flow.reverse());
        if self.is_steered() {
            self.over_steered(index);
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
