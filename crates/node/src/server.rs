//! A server: guests, vSwitch, tunnel bridge and adapter in one box, because nothing between them takes time of its
//! own but the stages that are modelled: a fixed latency of the TCP stack each way and the speed of a VM's port.
//!
//! Without a virtual network the guests share the adapter directly.

use crate::adapter::{Adapter, AdapterConfig};
use crate::door::{Device, PortId, PortSet, Step, Wires};
use crate::due::{Deadlines, Line, Passage};
use crate::guest::{
    Body, DATAGRAMS, ESTABLISHED, FlowLabel, FlowRecord, Guest, Incoming, NOTE_WORD, Outgoing, PRIORITY_SHIFT, Socket,
    SocketId, Topic, note, topic,
};
use crate::packet::{Address, FlowKey, Framing, IP_UDP_BYTES, Kind, Packet};
use crate::pool::{Handle, Pool};
use crate::switch::PauseEvent;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::bridge::{ecn_in, ecn_out};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::udp::{UdpReceiver, UdpSender};
use sluicenet_proto::units::Rate;
use sluicenet_wire::ipv4::Ecn;

/// What a sender does when the adapter's buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits: the adapter stops its host.
    Stop,
    /// It sends all the same and the adapter drops, as a device queue without backpressure does.
    Drop,
}

/// The virtual network of a server.
#[derive(Clone, Debug)]
pub struct VirtualConfig {
    /// Frames in each queue of the vSwitch.
    pub slots: u32,
    /// Whether the vSwitch holds frames back instead of dropping them.
    pub lossless: bool,
    /// Speed of a VM's port: picoseconds a byte, in units of 2^-16 ps.
    pub vm_ps_per_byte_q16: u64,
    /// Bytes a packet between servers carries in front for the tunnel; 0 without an overlay.
    pub encapsulation: u16,
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// What stands around a packet on the wire.
    pub framing: Framing,
    /// Largest IP packet of a guest.
    pub mtu: u16,
    /// The guests' TCP.
    pub tcp: tcp::Config,
    /// Time from a TCP socket to the guest's network port.
    pub tcp_tx_delay: Duration,
    /// Time from the guest's network port to a TCP socket.
    pub tcp_rx_delay: Duration,
    /// The same for UDP.
    pub udp_tx_delay: Duration,
    /// The same for UDP.
    pub udp_rx_delay: Duration,
    /// Send buffer of a UDP socket in bytes: how much may be on its way to the guest's network port.
    pub udp_buffer: u32,
    /// What a sender does when the adapter is full.
    pub when_full: WhenFull,
    /// The virtual network, if there is one.
    pub virtual_network: Option<VirtualConfig>,
    /// The adapter.
    pub adapter: Arc<AdapterConfig>,
    /// Seed of the run.
    pub seed: u64,
}

/// How a connection comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// It was open before the clock started.
    Established,
    /// By a handshake.
    Handshake,
    /// There is none: datagrams, at this rate of payload or as fast as they leave.
    Datagrams(Option<Rate>),
}

/// What an application hears of.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A message has arrived in full.
    Message {
        /// On this socket.
        socket: SocketId,
        /// What its sender called it.
        tag: u64,
        /// Its length.
        bytes: u64,
    },
    /// A message this server sent has arrived in full; known one lookahead later, as fast as news can travel.
    Delivered {
        /// What this server called it.
        tag: u64,
        /// On this socket.
        socket: SocketId,
    },
    /// Another application says something.
    Told {
        /// To this VM.
        to: Address,
        /// Who says it.
        from: Address,
        /// What.
        words: [u64; 3],
    },
    /// A time asked for has come.
    Wake {
        /// What was asked.
        token: u64,
    },
}

/// The applications of one server.
pub trait App: Send {
    /// Something happened; answers go through `io`.
    fn handle(&mut self, now: Instant, io: &mut Core, event: Event);
    /// Whether the application has seen query `query` end, for records; called when rows are collected.
    fn take_queries(&mut self) -> Vec<QueryRecord> {
        Vec::new()
    }
}

/// A query that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryRecord {
    /// Its number.
    pub id: u64,
    /// The server that answered it.
    pub aggregator: HostId,
    /// When it came in.
    pub start: Instant,
    /// When it was answered.
    pub end: Instant,
    /// Whether it is left out of statistics.
    pub warmup: bool,
}

/// What a VM can have due: its first packet on the way down, or its port.
const TX: u16 = 0;
/// Its port is free to receive.
const PORT_FREE: u16 = 1;
const DEADLINES: u16 = 2;

/// Cache lines of a guest that a packet touches.
const GUEST_LINES: usize = 2;

/// Cache lines of a socket that an arriving segment touches.
const SOCKET_LINES: usize = 11;

/// Timer classes, in the order they run at one instant.
const SOCKET_TIMER: u8 = 0;
const PACE_TIMER: u8 = 1;
const APP_TIMER: u8 = 2;

/// What a server counted: every packet is somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLedger {
    /// Sent by its guests.
    pub from_guests: u64,
    /// Received by its guests.
    pub to_guests: u64,
    /// Received from the wire, pause frames not counted.
    pub from_wire: u64,
    /// Sent to the wire, pause frames not counted.
    pub to_wire: u64,
    /// Thrown away.
    pub dropped: u64,
    /// Still inside.
    pub queued: u64,
}

impl ServerLedger {
    /// Whether what went in is what came out, was dropped or is inside.
    pub fn balances(&self) -> bool {
        self.from_guests + self.from_wire == self.to_guests + self.to_wire + self.dropped + self.queued
    }
}

/// A server without its applications: what they act on. What every packet touches stands in front.
#[derive(Debug)]
#[repr(C)]
pub struct Core {
    id: HostId,
    /// Largest frame of a guest on the wire.
    max_frame: u32,
    /// Bytes in transmit lines that will need room in the adapter.
    reserved: u32,
    turn: u32,
    config: Arc<ServerConfig>,
    /// VMs with a socket in the round.
    runnable: u64,
    /// VMs that wait for room below.
    blocked: u64,
    guests: Vec<Guest>,
    /// When the first packet of each VM reaches its port, and when a busy port is free that somebody waits for.
    deadlines: Deadlines,
    /// Packets on their way to the sockets.
    rx: Line,
    timers: BinaryHeap<Reverse<(Instant, u8, u64)>>,
    events: VecDeque<Event>,
    from_guests: u64,
    to_guests: u64,
    from_wire: u64,
    to_wire: u64,
    notes: Vec<Packet>,
    pauses: Vec<PauseEvent>,
    adapter: Adapter,
    vswitch: Option<VSwitch<Handle>>,
    bridge_ready: bool,
    vm_ready: u64,
    /// VMs whose busy port has a deadline in `due`.
    port_waits: u64,
    /// Packets on their way through a stage.
    on_the_way: u32,
    flows: Vec<FlowRecord>,
    flow_count: u64,
    /// Frames from the wire in the order the guests must see them.
    in_order: Vec<Handle>,
    drops: Drops,
}

/// A server.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Server<A> {
    core: Core,
    app: A,
}

impl Core {
    fn new(id: HostId, vms: u8, config: Arc<ServerConfig>) -> Core {
        let n = vms as usize;
        let vswitch = config.virtual_network.as_ref().map(|v| VSwitch::new(n + 1, v.slots, v.lossless));
        let max_frame = config.framing.frame_len(config.mtu) as u32
            + config.virtual_network.as_ref().map_or(0, |v| v.encapsulation as u32);
        Core {
            id,
            adapter: Adapter::new(config.adapter.clone()),
            // Every consumer starts asleep, so that the first frame wakes it.
            bridge_ready: true,
            vm_ready: u64::MAX,
            vswitch,
            guests: (0..n).map(|_| Guest::default()).collect(),
            runnable: 0,
            blocked: 0,
            turn: 0,
            on_the_way: 0,
            deadlines: Deadlines::default(),
            rx: Line::default(),
            port_waits: 0,
            reserved: 0,
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            notes: Vec::new(),
            flows: Vec::new(),
            pauses: Vec::new(),
            in_order: Vec::new(),
            flow_count: 0,
            from_guests: 0,
            to_guests: 0,
            from_wire: 0,
            to_wire: 0,
            drops: Drops::default(),
            max_frame,
            config,
        }
    }

    /// The server's number.
    pub fn id(&self) -> HostId {
        self.id
    }
    /// Number of VMs.
    pub fn vms(&self) -> u8 {
        self.guests.len() as u8
    }
    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.config.seed
    }
    /// What it dropped.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }
    /// The vSwitch, if there is a virtual network.
    pub fn vswitch(&self) -> Option<&VSwitch<Handle>> {
        self.vswitch.as_ref()
    }
    /// The TCP connections of its guests.
    pub fn connections(&self) -> impl Iterator<Item = (FlowKey, &Tcp)> {
        self.guests.iter().flat_map(|g| g.sockets.iter()).filter_map(|s| match &s.body {
            Body::Tcp(tcp) => Some((s.flow, tcp)),
            Body::Udp(..) => None,
        })
    }
    /// Payload bytes that arrived in order at its guests' TCP sockets.
    pub fn tcp_bytes_received(&self) -> u64 {
        self.connections().map(|(_, tcp)| tcp.bytes_received()).sum()
    }

    /// What went in and out.
    pub fn ledger(&self) -> ServerLedger {
        let vswitch = self.vswitch.as_ref().map_or(0, |v| v.queued() as u64);
        ServerLedger {
            from_guests: self.from_guests,
            to_guests: self.to_guests,
            from_wire: self.from_wire,
            to_wire: self.to_wire,
            dropped: self.drops.total_frames(),
            queued: self.on_the_way as u64 + vswitch + self.adapter.queued(),
        }
    }

    /// Opens a connection, or finds it open already.
    pub fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId {
        debug_assert_eq!(flow.src.host(), self.id);
        let vm = flow.src.vm();
        if let Some(index) = self.guests[vm as usize].sockets.find(&flow) {
            return SocketId { vm, index };
        }
        let body = match how {
            Open::Established => {
                Body::Tcp(Tcp::established(&self.config.tcp, now, self.iss(&flow), self.iss(&flow.reverse())))
            }
            Open::Handshake => {
                let cache = self.guests[vm as usize].cache.get(&flow.dst);
                Body::Tcp(Tcp::connect(&self.config.tcp, now, self.iss(&flow), cache))
            }
            Open::Datagrams(rate) => {
                Body::Udp(rate.map_or_else(UdpSender::new, UdpSender::paced), UdpReceiver::default())
            }
        };
        let index = self.guests[vm as usize].sockets.insert(Socket::new(flow, body, priority));
        let id = SocketId { vm, index };
        if matches!(how, Open::Handshake) {
            self.refresh(now, id);
        }
        id
    }

    /// Initial sequence number: from the seed and the connection's own names, as RFC 6528 makes it from a secret.
    fn iss(&self, flow: &FlowKey) -> u32 {
        let ports = (flow.sport as u64) << 16 | flow.dport as u64;
        hash_words(&[self.config.seed, (flow.src.to_bits() as u64) << 32 | flow.dst.to_bits() as u64, ports]) as u32
    }

    /// Writes a message of `bytes` to a socket; the receiving application hears of it by `tag` when all has arrived.
    /// Returns the flow's number in the records.
    pub fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64 {
        let id = (self.id as u64) << 40 | self.flow_count;
        self.flow_count += 1;
        let paused = |priority| self.adapter.gate().held_time(now, priority);
        let Some(s) = self.guests[socket.vm as usize].sockets.get_mut(socket.index) else { return id };
        let (begin, end) = (s.written, s.written + bytes);
        s.written = end;
        s.pending += bytes;
        let before = s.before(paused(s.priority));
        s.outbox.push_back(Outgoing { id, label, tag, start: now, begin, end, before });
        let (flow, priority) = (s.flow, s.priority);
        let how = match &s.body {
            Body::Udp(..) => DATAGRAMS,
            // A connection in its first handshake was announced by nobody: the SYN itself will open it.
            Body::Tcp(tcp) if tcp.state() == tcp::State::SynSent => 0,
            Body::Tcp(_) => ESTABLISHED,
        };
        debug_assert!(begin <= NOTE_WORD);
        let third = begin | how | (priority as u64) << PRIORITY_SHIFT;
        self.post(now, note(flow, Topic::Announce, [end, tag, third]));
        self.fill(now, socket);
        self.refresh(now, socket);
        id
    }

    /// Closes a connection when everything written has been confirmed.
    pub fn close(&mut self, now: Instant, socket: SocketId) {
        if let Some(s) = self.guests[socket.vm as usize].sockets.get_mut(socket.index) {
            s.closing = true;
        }
        self.fill(now, socket);
        self.refresh(now, socket);
    }

    /// Says something to the applications of another VM; it arrives one lookahead later. `words[2]` below 2^51.
    pub fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]) {
        debug_assert!(words[2] <= NOTE_WORD);
        let flow = FlowKey { src: from, dst: to, sport: 0, dport: 0 };
        self.post(now, note(flow, Topic::App, words));
    }

    /// Asks for [`Event::Wake`] at `at`.
    pub fn wake_at(&mut self, at: Instant, token: u64) {
        self.timers.push(Reverse((at, APP_TIMER, token)));
    }

    /// Sends a note; to a guest of this very server it needs no time.
    fn post(&mut self, now: Instant, packet: Packet) {
        if packet.dst().host() == self.id {
            self.receive_note(now, &packet);
        } else {
            self.notes.push(packet);
        }
    }

    /// Notes for other servers since the last call.
    pub fn take_notes(&mut self, into: &mut Vec<Packet>) {
        into.append(&mut self.notes);
    }
    /// Whether there are notes to take.
    #[inline(always)]
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }
    /// Pauses sent since the last call.
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        core::mem::take(&mut self.pauses)
    }
    /// Whether there are pauses to take.
    #[inline(always)]
    pub fn has_pauses(&self) -> bool {
        !self.pauses.is_empty()
    }
    /// Flows that ended since the last call.
    pub fn take_flows(&mut self, into: &mut Vec<FlowRecord>) {
        into.append(&mut self.flows);
    }
    /// Flows that have not ended, as they stand.
    pub fn unfinished_flows(&self, now: Instant) -> Vec<FlowRecord> {
        let sockets = self.guests.iter().flat_map(|g| g.sockets.iter());
        sockets
            .flat_map(|s| {
                s.outbox.iter().map(move |m| {
                    let so_far = match &s.body {
                        Body::Tcp(tcp) => tcp.bytes_acked(),
                        Body::Udp(..) => m.begin,
                    };
                    let delivered = so_far.clamp(m.begin, m.end) - m.begin;
                    s.record(m, None, delivered, self.adapter.gate().held_time(now, s.priority))
                })
            })
            .collect()
    }

    /// Moves what the application wrote into the socket's buffer as far as it takes it.
    #[inline]
    fn fill(&mut self, now: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        match &mut s.body {
            Body::Tcp(tcp) => {
                if s.pending > 0 {
                    s.pending -= tcp.send(&self.config.tcp, now, s.pending);
                }
                if s.closing && s.pending == 0 {
                    tcp.close(&self.config.tcp, now);
                }
            }
            Body::Udp(sender, _) => {
                sender.send(core::mem::take(&mut s.pending));
            }
        }
    }

    /// Puts a socket into the round if it has something to send, and keeps its deadline.
    #[inline(always)]
    fn refresh(&mut self, now: Instant, id: SocketId) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        let wants = match &s.body {
            Body::Tcp(tcp) => {
                if let Some(at) = tcp.poll_timeout()
                    && at < s.timer_at
                {
                    // An entry that is too early costs one look when it comes up; rearming on every ACK would cost more.
                    s.timer_at = at;
                    self.timers.push(Reverse((at, SOCKET_TIMER, (id.vm as u64) << 32 | id.index as u64)));
                }
                tcp.wants_transmit(&self.config.tcp, now)
            }
            Body::Udp(sender, _) => sender.pending() > 0,
        };
        if wants && !s.scheduled {
            s.scheduled = true;
            guest.ready.push_back(id.index);
            self.runnable |= 1 << id.vm;
        }
    }

    fn drop(&mut self, pool: &mut Pool<Packet>, reason: DropReason, at: Handle) {
        self.drops.count(reason, pool.frame(at).len() as u64);
        pool.release(at);
    }

    // ---- down: from the sockets to the wire

    /// Whether the stage below VM `vm` takes one more packet.
    #[inline(always)]
    fn has_room(&self, vm: usize) -> bool {
        match &self.vswitch {
            Some(v) => v.input_room(vm) > self.guests[vm].tx.len() as u32,
            None => self.config.when_full == WhenFull::Drop || self.adapter.room() >= self.reserved + self.max_frame,
        }
    }

    /// One packet from the next socket of VM `vm`.
    #[inline(always)]
    fn pull(&mut self, now: Instant, vm: usize) -> Option<Packet> {
        loop {
            let guest = &mut self.guests[vm];
            let index = guest.ready.pop_front()?;
            let Some(s) = guest.sockets.get_mut(index) else { continue };
            let id = SocketId { vm: vm as u8, index };
            match &mut s.body {
                Body::Tcp(tcp) => {
                    let sent = tcp.poll_transmit(&self.config.tcp, now);
                    let packet = sent.map(|t| Packet::tcp(s.flow, &t.segment, t.ect, s.priority, self.config.framing));
                    if packet.is_some() && tcp.wants_transmit(&self.config.tcp, now) {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                        self.refresh(now, id);
                    }
                    if packet.is_some() {
                        return packet;
                    }
                }
                Body::Udp(sender, _) => {
                    if guest.tx_datagram_bytes + self.max_frame > self.config.udp_buffer {
                        guest.parked.push(index);
                        continue;
                    }
                    if let Some(at) = sender.poll_timeout().filter(|&at| at > now) {
                        s.scheduled = false;
                        self.timers.push(Reverse((at, PACE_TIMER, (vm as u64) << 32 | index as u64)));
                        continue;
                    }
                    let datagram = sender.poll_transmit_at(now, self.config.mtu - IP_UDP_BYTES);
                    if sender.pending() > 0 {
                        guest.ready.push_back(index);
                    } else {
                        s.scheduled = false;
                    }
                    if let Some((offset, len)) = datagram {
                        return Some(Packet::udp(s.flow, offset, len, s.priority, self.config.framing));
                    }
                }
            }
        }
    }

    /// A packet left its socket.
    #[inline(always)]
    fn launch(&mut self, now: Instant, pool: &mut Pool<Packet>, vm: usize, packet: &Packet) {
        self.from_guests += 1;
        let at = pool.insert(packet);
        let datagram = packet.kind() == Kind::Udp;
        let delay = if datagram { self.config.udp_tx_delay } else { self.config.tcp_tx_delay };
        match &self.config.virtual_network {
            Some(v) => {
                let guest = &mut self.guests[vm];
                guest.tx_free = guest.tx_free.max(now) + Duration((packet.len() as u64 * v.vm_ps_per_byte_q16) >> 16);
                let through = guest.tx_free + delay;
                self.enter_tx(vm, datagram, through, packet.len(), at);
            }
            None if packet.dst().host() == self.id => self.loop_back(now + delay, pool, at),
            None if delay == Duration::ZERO => self.enter_adapter(pool, at),
            None => {
                self.reserved += packet.len();
                self.enter_tx(vm, datagram, now + delay, packet.len(), at);
            }
        }
    }

    /// A packet that never leaves a server without a vSwitch goes up again.
    #[cold]
    fn loop_back(&mut self, time: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let packet = pool.frame(at);
        let vm = packet.dst().vm() as usize;
        if vm >= self.guests.len() {
            return self.drop(pool, DropReason::NoRoute, at);
        }
        let through = time + self.rx_delay(packet);
        self.enter_rx(through, at);
    }

    #[inline(always)]
    fn enter_adapter(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        if let Err(Full(at)) = self.adapter.enqueue(pool, at) {
            self.drop(pool, DropReason::AdapterTx, at);
        }
    }

    /// Sends a packet from a socket on its way to the stage below.
    #[inline(always)]
    fn enter_tx(&mut self, vm: usize, datagram: bool, through: Instant, len: u32, at: Handle) {
        self.on_the_way += 1;
        let guest = &mut self.guests[vm];
        guest.tx_datagram_bytes += if datagram { len } else { 0 };
        guest.tx.push(Passage { at: through, packet: at, tag: 0 });
        if through < guest.tx_due {
            guest.tx_due = through;
            self.deadlines.insert(through, vm as u16 * DEADLINES + TX);
        }
    }

    /// Packets of a VM reach the stage below.
    fn run_tx(&mut self, now: Instant, pool: &mut Pool<Packet>, vm: usize) {
        while let Some(Passage { packet, .. }) = self.guests[vm].tx.pop(now) {
            self.on_the_way -= 1;
            self.leave_tx(pool, vm, packet);
        }
        let guest = &mut self.guests[vm];
        guest.tx_due = guest.tx.first();
        if guest.tx_due != Instant::MAX {
            self.deadlines.insert(guest.tx_due, vm as u16 * DEADLINES + TX);
        }
    }

    #[inline(always)]
    fn leave_tx(&mut self, pool: &mut Pool<Packet>, vm: usize, at: Handle) {
        let packet = pool.frame(at);
        let (len, kind) = (packet.len(), packet.kind());
        if self.vswitch.is_some() {
            let port = self.output_of(packet);
            self.enter_vswitch(pool, vm, port, at);
        } else {
            self.reserved -= len;
            self.enter_adapter(pool, at);
        }
        if kind == Kind::Udp {
            let guest = &mut self.guests[vm];
            guest.tx_datagram_bytes -= len;
            if !guest.parked.is_empty() {
                guest.ready.extend(guest.parked.drain(..));
                self.runnable |= (1 << vm) & !self.blocked;
            }
        }
    }

    /// The vSwitch port towards a packet's destination.
    fn output_of(&self, packet: &Packet) -> usize {
        let vms = self.guests.len();
        if packet.dst().host() == self.id { packet.dst().vm() as usize } else { vms }
    }

    fn enter_vswitch(&mut self, pool: &mut Pool<Packet>, input: usize, output: usize, at: Handle) {
        let uplink = self.guests.len();
        if output > uplink {
            return self.drop(pool, DropReason::NoRoute, at);
        }
        let Some(v) = self.vswitch.as_mut() else { return };
        let drops = &mut self.drops;
        let mut dropped = |k, at| count_in_vswitch(drops, pool, k == uplink, at);
        if v.send(input, output, at, &mut dropped).is_err() {
            // Every sender asks for room before it launches a packet.
            unreachable!("a vSwitch input queue overflowed");
        }
    }

    // ---- up: from the wire to the sockets

    #[inline(always)]
    fn rx_delay(&self, packet: &Packet) -> Duration {
        if packet.kind() == Kind::Udp { self.config.udp_rx_delay } else { self.config.tcp_rx_delay }
    }

    /// Sends a packet on its way to its socket.
    #[inline(always)]
    fn enter_rx(&mut self, through: Instant, at: Handle) {
        self.on_the_way += 1;
        self.rx.push(Passage { at: through, packet: at, tag: 0 });
    }

    /// A frame from the wire, in its order.
    #[inline(always)]
    fn accept(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let packet = pool.frame(at);
        let vm = packet.dst().vm() as usize;
        if packet.dst().host() != self.id || vm >= self.guests.len() {
            return self.drop(pool, DropReason::NoRoute, at);
        }
        if self.vswitch.is_some() {
            return self.accept_virtual(now, pool, at);
        }
        let delay = self.rx_delay(packet);
        if delay == Duration::ZERO {
            self.deliver(now, pool, at);
        } else {
            self.enter_rx(now + delay, at);
        }
    }

    fn accept_virtual(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let uplink = self.guests.len();
        let room = self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0);
        if room && self.adapter.stalled().is_none() {
            self.decapsulate_into_vswitch(pool, at);
        } else {
            let priority = pool.frame(at).priority();
            let before = self.adapter.signal().stopped();
            if let Err(Full(at)) = self.adapter.stall(pool, at) {
                let lossless = self.config.adapter.lossless.contains(priority);
                let reason = if lossless { DropReason::HeadroomExceeded } else { DropReason::AdapterRx };
                self.drop(pool, reason, at);
            }
            self.note_pause(now, pool, before, priority);
        }
    }

    /// Records a change of what the adapter told the wire; the VM that the first stalled frame goes to is the cause.
    fn note_pause(&mut self, now: Instant, pool: &Pool<Packet>, before: PrioritySet, priority: Priority) {
        let stop = self.adapter.signal().stopped().contains(priority);
        if stop != before.contains(priority) {
            let cause = self.adapter.stalled().map_or(0, |at| pool.frame(at).dst().vm() as PortId);
            self.pauses.push(PauseEvent { at: now, port: 0, priority, stop, cause, cause_is_held: false });
        }
    }

    fn encapsulation(&self) -> u16 {
        self.config.virtual_network.as_ref().map_or(0, |v| v.encapsulation)
    }

    fn decapsulate_into_vswitch(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        let outer = self.encapsulation();
        let packet = pool.frame_mut(at);
        if packet.is_encapsulated() {
            match ecn_out(packet.ecn(), packet.inner_ecn()) {
                Some(inner) => packet.decapsulate(inner, outer),
                None => return self.drop(pool, DropReason::BadEcn, at),
            }
        }
        let vm = packet.dst().vm() as usize;
        self.enter_vswitch(pool, self.guests.len(), vm, at);
    }

    /// A packet reaches its socket.
    #[inline(always)]
    fn deliver(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        self.to_guests += 1;
        let packet = pool.frame(at);
        let vm = packet.dst().vm();
        let local = packet.flow().reverse();
        match self.guests[vm as usize].sockets.find(&local) {
            Some(index) => self.deliver_to(now, SocketId { vm, index }, packet),
            None => self.deliver_to_nobody(now, packet, local),
        }
        pool.release(at);
    }

    #[inline(always)]
    fn deliver_to(&mut self, now: Instant, id: SocketId, packet: &Packet) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        match &mut s.body {
            Body::Tcp(tcp) => {
                let heard = tcp.receive(&self.config.tcp, now, &packet.segment(), packet.ecn() == Ecn::Ce);
                if heard.readable() {
                    s.received += tcp.recv(&self.config.tcp, now, u64::MAX);
                    if s.received >= s.next_end {
                        self.arrived(now, id);
                    }
                }
                if heard.acked() || heard.connected() {
                    self.fill(now, id);
                }
                if heard.peer_closed() || heard.closed() {
                    self.ended(now, id, heard.closed());
                }
                self.refresh(now, id);
            }
            Body::Udp(_, receiver) => {
                receiver.receive(packet.udp_offset(), packet.payload());
                self.datagram(now, id, packet.udp_offset(), packet.payload());
            }
        }
    }

    /// A segment for a socket that is not there: a SYN opens one, anything else finds nobody home.
    #[cold]
    fn deliver_to_nobody(&mut self, now: Instant, packet: &Packet, local: FlowKey) {
        if packet.kind() != Kind::Tcp || !packet.segment().flags.contains(sluicenet_wire::tcp::Flags::SYN) {
            return;
        }
        let id = self.listen(local, packet.priority());
        self.deliver_to(now, id, packet);
    }

    fn listen(&mut self, local: FlowKey, priority: Priority) -> SocketId {
        let vm = local.src.vm();
        let cache = self.guests[vm as usize].cache.get(&local.dst);
        let tcp = Tcp::listen(&self.config.tcp, self.iss(&local), cache);
        let index = self.guests[vm as usize].sockets.insert(Socket::new(local, Body::Tcp(tcp), priority));
        SocketId { vm, index }
    }

    /// The peer closed, or the connection is gone.
    #[cold]
    fn ended(&mut self, now: Instant, id: SocketId, closed: bool) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        s.closing = true;
        let Body::Tcp(tcp) = &s.body else { return };
        let (peer, remembered) = (s.flow.dst, tcp.cache_entry());
        if self.config.tcp.connection_cache
            && let Some(entry) = remembered
        {
            guest.cache.insert(peer, entry);
        }
        if closed {
            self.give_up_unfinished(now, id);
            self.guests[id.vm as usize].remove(id.index);
        } else {
            self.fill(now, id);
        }
    }

    /// Records the messages of a connection that ended before they were confirmed.
    fn give_up_unfinished(&mut self, now: Instant, id: SocketId) {
        let held = &self.adapter;
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        let Body::Tcp(tcp) = &s.body else { return };
        let acked = tcp.bytes_acked();
        let paused = held.gate().held_time(now, s.priority);
        let lost: Vec<FlowRecord> =
            s.outbox.iter().map(|m| s.record(m, None, acked.clamp(m.begin, m.end) - m.begin, paused)).collect();
        self.flows.extend(lost);
    }

    /// Hands the messages that are complete to the application.
    #[inline(never)]
    fn arrived(&mut self, now: Instant, id: SocketId) {
        loop {
            let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
            let Some(m) = s.take_complete() else { return };
            let flow = s.flow;
            let bytes = m.end - m.begin;
            self.events.push_back(Event::Message { socket: id, tag: m.tag, bytes });
            self.post(now, note(flow, Topic::Done, [m.end, now.as_ps(), bytes & NOTE_WORD]));
        }
    }

    /// Counts a datagram to its message.
    fn datagram(&mut self, now: Instant, id: SocketId, offset: u64, len: u16) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        let flow = s.flow;
        let Some(at) = s.inbox.iter().position(|m| offset >= m.begin && offset < m.end) else { return };
        let m = &mut s.inbox[at];
        m.received += len as u64;
        let m = *m;
        if m.received >= m.end - m.begin {
            s.inbox.remove(at);
            self.events.push_back(Event::Message { socket: id, tag: m.tag, bytes: m.end - m.begin });
            self.post(now, note(flow, Topic::Done, [m.end, now.as_ps(), m.received & NOTE_WORD]));
        } else if s.inbox.len() > MAX_OPEN_DATAGRAM_FLOWS {
            // Something of the oldest was lost; its sender hears how much arrived.
            if let Some(m) = s.inbox.pop_front() {
                self.post(now, note(flow, Topic::Done, [m.end, u64::MAX, m.received & NOTE_WORD]));
            }
        }
    }

    // ---- notes

    /// A note from another server, or from this one.
    pub fn receive_note(&mut self, now: Instant, packet: &Packet) {
        let words = packet.note_words();
        let local = packet.flow().reverse();
        let vm = local.src.vm();
        if vm as usize >= self.guests.len() {
            return;
        }
        match topic(&words) {
            Some(Topic::Announce) => {
                let third = words[2];
                let id = match self.guests[vm as usize].sockets.find(&local) {
                    Some(index) => SocketId { vm, index },
                    None => {
                        let priority = (third >> PRIORITY_SHIFT & 7) as u8;
                        if third & DATAGRAMS != 0 {
                            self.open(now, local, priority, Open::Datagrams(None))
                        } else if third & ESTABLISHED != 0 {
                            self.open(now, local, priority, Open::Established)
                        } else {
                            self.listen(local, priority)
                        }
                    }
                };
                let Some(s) = self.guests[vm as usize].sockets.get_mut(id.index) else { return };
                let begin = third & NOTE_WORD;
                s.expect(Incoming { tag: words[1], begin, end: words[0], received: 0 });
            }
            Some(Topic::Done) => self.confirmed(now, &local, words),
            Some(Topic::App) => {
                let words = [words[0], words[1], words[2] & NOTE_WORD];
                self.events.push_back(Event::Told { to: packet.dst(), from: packet.src(), words });
            }
            None => {}
        }
    }

    /// The receiver of a message has all of it.
    fn confirmed(&mut self, now: Instant, flow: &FlowKey, words: [u64; 3]) {
        let vm = flow.src.vm();
        let Some(index) = self.guests[vm as usize].sockets.find(flow) else { return };
        let Some(s) = self.guests[vm as usize].sockets.get_mut(index) else { return };
        let Some(at) = s.outbox.iter().position(|m| m.end == words[0]) else { return };
        let Some(m) = s.outbox.remove(at) else { return };
        // A timeout delays every message behind it on the connection but counts once: to the one that waits in front.
        let counted = s.before(Duration::ZERO);
        if let Some(next) = s.outbox.get_mut(at) {
            next.before.timeouts = counted.timeouts;
            next.before.retransmissions = counted.retransmissions;
            next.before.timeout_wait = counted.timeout_wait;
        }
        let end = (words[1] != u64::MAX).then_some(Instant(words[1]));
        let s = &*s;
        let record = s.record(&m, end, words[2] & NOTE_WORD, self.adapter.gate().held_time(now, s.priority));
        self.flows.push(record);
        if end.is_some() {
            self.events.push_back(Event::Delivered { tag: m.tag, socket: SocketId { vm, index } });
        }
    }

    // ---- time

    /// The stages and ports whose time has come.
    fn run_lines(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        while let Some((at, what)) = self.deadlines.pop(now) {
            let vm = (what / DEADLINES) as usize;
            if what % DEADLINES == PORT_FREE {
                self.port_waits &= !(1 << vm);
                self.vm_ready |= 1 << vm;
            } else if at == self.guests[vm].tx_due {
                self.run_tx(now, pool, vm);
            }
        }
        while let Some(Passage { at, packet, .. }) = self.rx.pop(now) {
            self.on_the_way -= 1;
            self.deliver(at, pool, packet);
        }
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(&Reverse((at, class, what))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let id = SocketId { vm: (what >> 32) as u8, index: what as u32 };
            match class {
                APP_TIMER => self.events.push_back(Event::Wake { token: what }),
                PACE_TIMER => self.refresh(now, id),
                _ => self.run_socket_timer(now, at, id),
            }
        }
    }

    fn run_socket_timer(&mut self, now: Instant, at: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        if s.timer_at != at {
            return; // an earlier entry took its place
        }
        s.timer_at = Instant::MAX;
        let Body::Tcp(tcp) = &mut s.body else { return };
        if tcp.poll_timeout().is_some_and(|due| due <= now) {
            tcp.handle_timeout(&self.config.tcp, now);
            if tcp.state() == tcp::State::Closed {
                return self.ended(now, id, true);
            }
        }
        self.refresh(now, id);
    }

    /// Moves everything that can move now: sockets to the stage below, vSwitch to adapter, vSwitch to VMs.
    #[inline(always)]
    fn settle(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        self.pull_all(now, pool);
        if let Some(v) = &self.vswitch {
            let vms = (1u64 << self.guests.len()) - 1;
            let ready = self.vm_ready & vms | self.blocked;
            if v.has_wakes() || self.bridge_ready || ready != 0 || self.adapter.stalled().is_some() {
                self.settle_virtual(now, pool);
            }
        }
    }

    #[inline(always)]
    fn pull_all(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        while self.runnable != 0 {
            // VMs take turns, one packet each.
            let after = self.runnable & !((2u64 << (self.turn & 63)) - 1);
            let vm = if after != 0 { after } else { self.runnable }.trailing_zeros();
            self.turn = vm;
            if !self.has_room(vm as usize) {
                self.runnable &= !(1 << vm);
                self.blocked |= 1 << vm;
                continue;
            }
            match self.pull(now, vm as usize) {
                Some(packet) => self.launch(now, pool, vm as usize, &packet),
                None => self.runnable &= !(1 << vm),
            }
        }
    }

    #[inline(never)]
    fn settle_virtual(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        loop {
            let Some(v) = self.vswitch.as_mut() else { return };
            let wakes = v.take_wakes();
            self.bridge_ready |= wakes.receivers >> uplink & 1 != 0;
            let vms = (1u64 << uplink) - 1;
            // A VM whose port is still busy is not asleep: it asks again when the port is free.
            self.vm_ready |= wakes.receivers & vms;
            if self.bridge_ready {
                self.run_bridge(pool);
            }
            if self.vm_ready & vms != 0 {
                self.run_vm_ports(now, pool);
            }
            if self.adapter.stalled().is_some() {
                self.run_stalled(now, pool);
            }
            if self.blocked != 0 {
                self.unblock();
                self.pull_all(now, pool);
            }
            // Only a frame that entered the vSwitch can have woken somebody since.
            if !self.vswitch.as_ref().is_some_and(VSwitch::has_wakes) {
                return;
            }
        }
    }

    /// VMs that waited for room below and have it now.
    fn unblock(&mut self) {
        let mut vms = self.blocked;
        while vms != 0 {
            let vm = vms.trailing_zeros() as usize;
            vms &= vms - 1;
            if self.has_room(vm) {
                self.blocked &= !(1 << vm);
                if !self.guests[vm].ready.is_empty() {
                    self.runnable |= 1 << vm;
                }
            }
        }
    }

    /// The bridge takes frames from the vSwitch while the adapter has room; a full adapter always stops it.
    fn run_bridge(&mut self, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        let outer = self.encapsulation();
        while self.bridge_ready && self.adapter.room() >= self.max_frame {
            let Some(at) = self.take_from_vswitch(pool, uplink) else {
                self.bridge_ready = false;
                return;
            };
            if outer > 0 {
                let packet = pool.frame_mut(at);
                packet.encapsulate(ecn_in(packet.ecn()), outer);
            }
            self.enter_adapter(pool, at);
            self.bridge_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
        }
    }

    /// Every VM whose port is free takes its next frame.
    fn run_vm_ports(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(ps_per_byte) = self.config.virtual_network.as_ref().map(|v| v.vm_ps_per_byte_q16) else { return };
        let mut ready = self.vm_ready & ((1u64 << self.guests.len()) - 1);
        while ready != 0 {
            let vm = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            let rx_free = self.guests[vm].rx_free;
            if rx_free > now {
                // Busy: the end of the frame asks again, but only when something waits for it.
                self.vm_ready &= !(1 << vm);
                if self.port_waits >> vm & 1 == 0 {
                    self.port_waits |= 1 << vm;
                    self.deadlines.insert(rx_free, vm as u16 * DEADLINES + PORT_FREE);
                }
                continue;
            }
            let Some(at) = self.take_from_vswitch(pool, vm) else {
                self.vm_ready &= !(1 << vm);
                continue;
            };
            let packet = pool.frame(at);
            let free = now + Duration((packet.len() as u64 * ps_per_byte) >> 16);
            self.guests[vm].rx_free = free;
            // Whether another frame waits is found out at once: the VM then sleeps, or is seen to be busy.
            if self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(vm)) {
                self.vm_ready &= !(1 << vm);
            } else {
                ready |= 1 << vm;
            }
            let delay = self.rx_delay(packet);
            self.enter_rx(free + delay, at);
        }
    }

    /// Frames that waited in the adapter for room in the vSwitch.
    fn run_stalled(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        while self.adapter.stalled().is_some() && self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0) {
            let before = self.adapter.signal().stopped();
            let Some(at) = self.adapter.take_stalled(pool) else { break };
            self.note_pause(now, pool, before, pool.frame(at).priority());
            self.decapsulate_into_vswitch(pool, at);
        }
    }

    fn take_from_vswitch(&mut self, pool: &mut Pool<Packet>, port: usize) -> Option<Handle> {
        let uplink = self.guests.len();
        let drops = &mut self.drops;
        self.vswitch.as_mut()?.receive(port, &mut |k, at| count_in_vswitch(drops, pool, k == uplink, at))
    }
}

/// The lossy vSwitch threw a frame out.
#[cold]
fn count_in_vswitch(drops: &mut Drops, pool: &mut Pool<Packet>, uplink: bool, at: Handle) {
    let reason = if uplink { DropReason::VswitchUplink } else { DropReason::VswitchVm };
    drops.count(reason, pool.frame(at).len() as u64);
    pool.release(at);
}

/// Datagram flows a socket keeps open at once; beyond that the oldest counts as having lost something.
const MAX_OPEN_DATAGRAM_FLOWS: usize = 64;

impl<A: App> Server<A> {
    /// A server with `vms` guests.
    pub fn new(id: HostId, vms: u8, config: Arc<ServerConfig>, app: A) -> Server<A> {
        assert!((1..=63).contains(&vms));
        Server { core: Core::new(id, vms, config), app }
    }

    /// What its applications act on.
    pub fn core(&self) -> &Core {
        &self.core
    }
    /// The same, to collect records.
    pub fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }
    /// Its applications, to look at.
    pub fn app(&self) -> &A {
        &self.app
    }
    /// Its applications.
    pub fn app_mut(&mut self) -> &mut A {
        &mut self.app
    }

    /// Asks the applications to begin: a wake-up with `token` at time zero.
    pub fn start(&mut self, token: u64) {
        self.core.wake_at(Instant::ZERO, token);
    }

    /// A note from another server.
    pub fn receive_note(&mut self, now: Instant, packet: &Packet, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        self.core.receive_note(now, packet);
        self.finish(now, pool, woke);
    }

    /// Lets the applications answer, then moves what can move.
    #[inline(always)]
    fn finish(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        while let Some(event) = self.core.events.pop_front() {
            self.app.handle(now, &mut self.core, event);
        }
        self.core.settle(now, pool);
        if self.core.adapter.is_ready() {
            woke.insert(0);
        }
    }
}

impl<A: App> Device<Packet> for Server<A> {
    #[inline(always)]
    fn receive(
        &mut self,
        now: Instant,
        _port: PortId,
        at: Handle,
        pool: &mut Pool<Packet>,
        _wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId> {
        let core = &mut self.core;
        let frame = pool.frame(at);
        if let Some(pause) = frame.as_pause() {
            core.adapter.receive_pause(now, &pause);
            pool.release(at);
        } else {
            core.from_wire += 1;
            if frame.is_corrupt() {
                core.drop(pool, DropReason::BadCrc, at);
                return None;
            }
            if core.config.adapter.resequencing.is_none() {
                core.accept(now, pool, at);
            } else {
                let mut in_order = core::mem::take(&mut core.in_order);
                core.adapter.resequence(now, pool, at, &mut |at| in_order.push(at));
                for at in in_order.drain(..) {
                    core.accept(now, pool, at);
                }
                core.in_order = in_order;
            }
        }
        self.finish(now, pool, woke);
        None
    }

    #[inline(always)]
    fn poll_transmit(
        &mut self,
        now: Instant,
        _port: PortId,
        pool: &mut Pool<Packet>,
        woke: &mut PortSet,
    ) -> Option<Handle> {
        let core = &mut self.core;
        let sent = core.adapter.poll_transmit(now, pool)?;
        if pool.frame(sent).kind() != Kind::Pause {
            core.to_wire += 1;
        }
        // The frame made room: the bridge, or the guests themselves, may go on.
        if core.vswitch.is_some() {
            if core.bridge_ready {
                core.settle_virtual(now, pool);
            }
        } else if core.blocked != 0 {
            core.unblock();
            core.pull_all(now, pool);
        }
        if core.adapter.is_ready() {
            woke.insert(0);
        }
        Some(sent)
    }

    #[inline(always)]
    fn upcoming(&self, _port: PortId) -> Option<Handle> {
        self.core.adapter.upcoming()
    }

    #[inline(always)]
    fn fetch(
        &self,
        step: Step,
        _until: Instant,
        mut arrivals: impl Iterator<Item = Handle>,
        pool: &Pool<Packet>,
        fetch: impl Fn(*const u8),
    ) {
        let core = &self.core;
        let fetch_guest = |guest: Option<&Guest>| {
            let Some(guest) = guest else { return };
            let first: *const u8 = core::ptr::from_ref(guest).cast();
            (0..GUEST_LINES).for_each(|line| fetch(first.wrapping_add(64 * line)));
        };
        // One packet of each sort: a window rarely has more for one server, and a burst keeps its memory at hand.
        match step {
            Step::Lists => {
                core.timers.peek().into_iter().for_each(|t| fetch(core::ptr::from_ref(t).cast()));
                core.deadlines.front().into_iter().for_each(|d| fetch(core::ptr::from_ref(d).cast()));
                core.rx.front().into_iter().for_each(|p| fetch(core::ptr::from_ref(p).cast()));
            }
            Step::Frames => {
                core.rx.front().into_iter().for_each(|p| fetch(core::ptr::from_ref(pool.frame(p.packet)).cast()));
                match core.deadlines.front() {
                    Some(&(_, what)) => fetch_guest(core.guests.get((what / DEADLINES) as usize)),
                    None => fetch_guest(core.guests.first()),
                }
            }
            Step::Index | Step::Sockets => {
                if let Some(&(_, what)) = core.deadlines.front()
                    && let Some(next) = core.guests.get((what / DEADLINES) as usize).and_then(|guest| guest.tx.front())
                {
                    match step {
                        Step::Index => fetch(core::ptr::from_ref(next).cast()),
                        _ => fetch(core::ptr::from_ref(pool.frame(next.packet)).cast()),
                    }
                }
                let packet = if core.vswitch.is_some() { core.rx.front().map(|p| p.packet) } else { arrivals.next() };
                let Some(packet) = packet else { return };
                let flow = pool.frame(packet).flow().reverse();
                let Some(guest) = core.guests.get(flow.src.vm() as usize) else { return };
                if step == Step::Index {
                    guest.sockets.index_line(&flow).into_iter().for_each(fetch);
                } else if let Some(at) = guest.sockets.find(&flow).and_then(|number| guest.sockets.socket_line(number))
                {
                    (0..SOCKET_LINES).for_each(|line| fetch(at.wrapping_add(64 * line)));
                }
            }
        }
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        let core = &mut self.core;
        core.run_lines(now, pool);
        core.run_timers(now);
        if core.adapter.poll_timeout().is_some_and(|at| at <= now) {
            let mut in_order = core::mem::take(&mut core.in_order);
            core.adapter.handle_timeout(now, &mut |at| in_order.push(at));
            for at in in_order.drain(..) {
                core.accept(now, pool, at);
            }
            core.in_order = in_order;
        }
        self.finish(now, pool, woke);
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        let core = &self.core;
        let timers = core.timers.peek().map_or(Instant::MAX, |r| r.0.0);
        core.deadlines.first().min(core.rx.first()).min(timers).min(core.adapter.poll_timeout().unwrap_or(Instant::MAX))
    }
}
