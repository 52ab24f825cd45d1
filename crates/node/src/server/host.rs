//! The part of a server that is common to every chain: guests with their sockets and timers, and the adapter.

use super::ServerLedger;
use super::app::{Event, Io, Open};
use super::config::ServerConfig;
use super::light;
use super::stages::{FIRST_SLOT, Report};
use crate::adapter::Adapter;
use crate::deadlines::{Deadlines, DelayLine, Timers};
use crate::guest::{
    Body, DATAGRAMS, ESTABLISHED, FlowLabel, FlowRecord, Guest, LIGHT, METADATA_WORD, Outgoing, PRIORITY_SHIFT,
    QUEUE_PAIR, Socket, SocketId, Topic, metadata,
};
use crate::packet::{Address, FlowKey, Packet};
use crate::pool::{Handle, Pool};
use crate::switch::PauseEvent;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::routing::Router;
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::tcplight::Stream;
use sluicenet_proto::udp::{UdpReceiver, UdpSender};

/// A deadline of a VM: its first packet leaves its network stack.
pub(super) const TX: u16 = 0;
/// A deadline of a VM: its port is free to receive.
pub(super) const PORT_FREE: u16 = 1;
/// Number of deadlines of a VM.
pub(super) const DEADLINES: u16 = 2;

/// Timer classes, in the order they run at one instant; those of stages follow.
pub(super) const SOCKET_TIMER: u8 = 0;
pub(super) const PACE_TIMER: u8 = 1;
pub(super) const APP_TIMER: u8 = 2;
const _: () = assert!(APP_TIMER < FIRST_SLOT);

/// The guests and the adapter of a server: all but its chain and its applications. The fields that every packet touches
/// stand in front.
#[derive(Debug)]
#[repr(C)]
pub struct Host {
    pub(super) id: HostId,
    /// Longest frame to the network.
    pub(super) max_frame: u32,
    pub(super) turn: u32,
    /// Packets on their way through a guest's network stack.
    pub(super) in_stacks: u32,
    pub(super) config: Arc<ServerConfig>,
    /// VMs with a socket in the round.
    pub(super) runnable: u64,
    /// VMs that wait for room below.
    pub(super) blocked: u64,
    pub(super) guests: Vec<Guest>,
    /// Time at which each VM's first packet leaves its stack, and time at which a busy port with a waiting frame is free.
    pub(super) deadlines: Deadlines,
    /// Packets on their way to the sockets.
    pub(super) rx: DelayLine,
    pub(super) timers: Timers,
    pub(super) events: VecDeque<Event>,
    pub(super) from_guests: u64,
    pub(super) to_guests: u64,
    pub(super) from_wire: u64,
    pub(super) to_wire: u64,
    /// Congestion notifications, which end in the adapter.
    pub(super) notified: u64,
    pub(super) metadata: Vec<(Instant, Packet)>,
    pub(super) pauses: Vec<PauseEvent>,
    pub(super) adapter: Adapter,
    machines: u8,
    pub(super) flows: Vec<FlowRecord>,
    flow_count: u64,
    /// Frames from the wire in the order the guests must see them.
    pub(super) in_order: Vec<Handle>,
    pub(super) drops: Drops,
}

impl Host {
    /// A host with `machines` VMs. Second vNICs are guests of their own here, numbered after the first ones.
    pub(super) fn new(id: HostId, machines: u8, config: Arc<ServerConfig>, router: Option<Router>) -> Host {
        let vnics = if config.lossy_vnics.is_some() && config.virtual_network.is_some() { 2 } else { 1 };
        Host {
            id,
            adapter: Adapter::new(id, config.adapter.clone(), router),
            guests: (0..vnics * machines as usize).map(|_| Guest::default()).collect(),
            machines,
            runnable: 0,
            blocked: 0,
            turn: 0,
            in_stacks: 0,
            deadlines: Deadlines::default(),
            rx: DelayLine::default(),
            timers: Timers::default(),
            events: VecDeque::new(),
            metadata: Vec::new(),
            flows: Vec::new(),
            pauses: Vec::new(),
            in_order: Vec::new(),
            flow_count: 0,
            from_guests: 0,
            to_guests: 0,
            from_wire: 0,
            to_wire: 0,
            notified: 0,
            drops: Drops::default(),
            max_frame: u32::from(config.framing.frame_len(config.mtu)),
            config,
        }
    }

    /// The server's number.
    pub fn id(&self) -> HostId {
        self.id
    }
    /// Number of VMs.
    pub fn vms(&self) -> u8 {
        self.machines
    }
    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.config.seed
    }
    /// Frames that the server dropped.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
    /// The adapter.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }
    /// The TCP connections of its guests.
    pub fn connections(&self) -> impl Iterator<Item = (FlowKey, &Tcp)> {
        self.guests.iter().flat_map(|g| g.sockets.iter()).filter_map(|s| match &s.body {
            Body::Tcp(tcp) => Some((s.flow, tcp)),
            Body::Udp(..) | Body::Light(_) | Body::Roce(_) => None,
        })
    }
    /// Payload bytes that arrived in order at its guests' TCP sockets.
    pub fn tcp_bytes_received(&self) -> u64 {
        self.connections().map(|(_, tcp)| tcp.bytes_received()).sum()
    }

    /// Bytes of a flow that arrived at this server, for transports whose sender does not know this number. `None` for a
    /// flow that is not awaited here.
    pub fn bytes_received(&self, f: &FlowRecord) -> Option<u64> {
        let local = FlowKey { src: f.dst, dst: f.src, sport: f.ports.1, dport: f.ports.0 };
        let sockets = &self.guests.get(f.dst.vm() as usize)?.sockets;
        let socket = sockets.find(&local).and_then(|index| sockets.get(index))?;
        match &socket.body {
            Body::Tcp(_) => None,
            Body::Udp(..) => socket.messages.inbox.iter().find(|m| m.end == f.offset).map(|m| m.received),
            Body::Light(_) | Body::Roce(_) => Some(socket.received.saturating_sub(f.offset - f.bytes).min(f.bytes)),
        }
    }

    /// The ledger of the server's packets, with the accounts of its stages.
    pub(super) fn ledger(&self, stages: &Report) -> ServerLedger {
        ServerLedger {
            from_guests: self.from_guests,
            to_guests: self.to_guests,
            from_hypervisor: stages.made,
            to_hypervisor: stages.consumed + self.notified,
            from_wire: self.from_wire,
            to_wire: self.to_wire,
            dropped: self.drops.total_frames(),
            queued: u64::from(self.in_stacks) + self.adapter.queued() + stages.queued,
            copies: stages.copies,
        }
    }

    pub(super) fn iss(&self, flow: &FlowKey) -> u32 {
        initial_sequence(self.config.seed, flow)
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
    /// Records of the flows that have not ended, in their current state.
    pub fn unfinished_flows(&self, now: Instant) -> Vec<FlowRecord> {
        let sockets = self.guests.iter().flat_map(|g| g.sockets.iter());
        sockets.flat_map(|s| s.unfinished(s.paused(now, &self.adapter))).collect()
    }

    /// Moves written bytes into the socket's buffer as far as there is room.
    #[inline]
    pub(super) fn fill(&mut self, now: Instant, id: SocketId) {
        let Some(s) = self.guests[id.vm as usize].sockets.get_mut(id.index) else { return };
        match &mut s.body {
            Body::Tcp(tcp) => fill_tcp(tcp, &mut s.pending, s.closing, &self.config.tcp, now),
            Body::Udp(sender, _) => {
                sender.send(core::mem::take(&mut s.pending));
            }
            Body::Light(stream) => light::fill(stream.as_mut(), &mut s.pending, s.closing),
            Body::Roce(pair) => pair.post(core::mem::take(&mut s.pending)),
        }
    }

    /// Puts a socket into the round if it has something to send, and updates its deadline.
    #[inline(always)]
    pub(super) fn refresh(&mut self, now: Instant, id: SocketId) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        keep_deadline(&mut self.timers, s, id);
        if s.scheduled {
            return;
        }
        s.scheduled = match &s.body {
            Body::Tcp(tcp) => tcp.wants_transmit(&self.config.tcp, now),
            Body::Udp(sender, _) => sender.pending() > 0,
            Body::Light(stream) => stream.as_ref().is_some_and(Stream::wants_transmit),
            Body::Roce(pair) => pair.wants_transmit(),
        };
        if s.scheduled {
            guest.ready.push_back(id.index);
            self.runnable |= 1 << id.vm;
        }
    }

    /// Drops a frame and counts it.
    #[cold]
    pub(super) fn drop(&mut self, pool: &mut Pool<Packet>, reason: DropReason, at: Handle) {
        self.drops.count(reason, pool.frame(at).len() as u64);
        pool.release(at);
    }
    /// Drops a frame whose destination does not exist.
    #[cold]
    pub(super) fn drop_unroutable(&mut self, pool: &mut Pool<Packet>, at: Handle) {
        self.drop(pool, DropReason::NoRoute, at);
    }
}

impl Io for Host {
    fn open(&mut self, now: Instant, flow: FlowKey, priority: Priority, how: Open) -> SocketId {
        let flow = match &self.config.lossy_vnics {
            Some(v) if v.priority == priority => FlowKey { src: v.second(flow.src), dst: v.second(flow.dst), ..flow },
            _ => flow,
        };
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
            Open::LightEstablished | Open::LightHandshake => Body::Light(Some(self.light_stream(&flow, how))),
            Open::QueuePair => self.queue_pair(),
            Open::Datagrams(rate) => {
                Body::Udp(rate.map_or_else(UdpSender::new, UdpSender::paced), UdpReceiver::default())
            }
        };
        let index = self.guests[vm as usize].sockets.insert(Socket::new(flow, body, priority));
        let id = SocketId { vm, index };
        if matches!(how, Open::Handshake | Open::LightHandshake) {
            self.refresh(now, id);
        }
        id
    }

    fn send(&mut self, now: Instant, socket: SocketId, bytes: u64, tag: u64, label: FlowLabel) -> u64 {
        let id = (self.id as u64) << 40 | self.flow_count;
        self.flow_count += 1;
        let Some(s) = self.guests[socket.vm as usize].sockets.get_mut(socket.index) else { return id };
        let (begin, end) = (s.messages.written, s.messages.written + bytes);
        s.messages.written = end;
        s.pending += bytes;
        let before = s.before(s.paused(now, &self.adapter));
        s.messages.outbox.push_back(Outgoing { id, label, tag, start: now, begin, end, before });
        let (flow, priority) = (s.flow, s.priority);
        let how = match &s.body {
            Body::Udp(..) => DATAGRAMS,
            // A connection in its first handshake needs no announcement of its state: the SYN itself will open the
            // socket.
            Body::Tcp(tcp) if tcp.state() == tcp::State::SynSent => 0,
            Body::Tcp(_) => ESTABLISHED,
            Body::Light(Some(stream)) if stream.is_open() => LIGHT | ESTABLISHED,
            Body::Light(_) => LIGHT,
            Body::Roce(_) => QUEUE_PAIR,
        };
        debug_assert!(begin <= METADATA_WORD);
        let third = begin | how | (priority as u64) << PRIORITY_SHIFT;
        self.post_metadata(now, metadata(flow, Topic::Announce, [end, tag, third]));
        self.fill(now, socket);
        self.refresh(now, socket);
        id
    }

    fn close(&mut self, now: Instant, socket: SocketId) {
        if let Some(s) = self.guests[socket.vm as usize].sockets.get_mut(socket.index) {
            s.closing = true;
        }
        self.fill(now, socket);
        self.refresh(now, socket);
        self.disconnect_if_over(now, socket);
    }

    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]) {
        debug_assert!(words[2] <= METADATA_WORD);
        let flow = FlowKey { src: from, dst: to, sport: 0, dport: 0 };
        self.post_metadata(now, metadata(flow, Topic::App, words));
    }

    fn wake_at(&mut self, at: Instant, token: u64) {
        self.timers.push((at, APP_TIMER, token));
    }
}

/// Initial sequence number of a connection: from the seed and the connection's own names, as RFC 6528 makes it from a secret.
pub(super) fn initial_sequence(seed: u64, flow: &FlowKey) -> u32 {
    let ports = (flow.sport as u64) << 16 | flow.dport as u64;
    hash_words(&[seed, (flow.src.to_bits() as u64) << 32 | flow.dst.to_bits() as u64, ports]) as u32
}

/// Moves written bytes into the buffer of a connection as far as there is room; closes it after the last one.
#[inline(always)]
pub(super) fn fill_tcp(tcp: &mut Tcp, pending: &mut u64, closing: bool, config: &tcp::Config, now: Instant) {
    if *pending > 0 {
        *pending -= tcp.send(config, now, *pending);
    }
    if closing && *pending == 0 {
        tcp.close(config, now);
    }
}

/// Schedules a check of a socket at its next deadline.
#[inline(always)]
pub(super) fn keep_deadline(timers: &mut Timers, s: &mut Socket, id: SocketId) {
    if let Body::Tcp(tcp) = &s.body {
        keep_tcp_deadline(timers, tcp, &mut s.timer_at, id);
    }
}

/// The same for a connection whose check is at `timer_at`.
#[inline(always)]
pub(super) fn keep_tcp_deadline(timers: &mut Timers, tcp: &Tcp, timer_at: &mut Instant, id: SocketId) {
    let at = tcp.deadline();
    if at < *timer_at {
        // A timer that is too early costs one check; rearming on every ACK would cost more.
        *timer_at = at;
        timers.push((at, SOCKET_TIMER, (id.vm as u64) << 32 | id.index as u64));
    }
}
