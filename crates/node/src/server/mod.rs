//! A server: guests, vSwitch, tunnel bridge and adapter in one box, because nothing between them takes time of its
//! own but the stages that are modelled: a fixed latency of the TCP stack each way and the speed of a VM's port.
//!
//! Without a virtual network the guests share the adapter directly.

mod app;
mod config;
mod credits;
mod device;
mod down;
mod light;
mod notes;
mod time;
mod tunnel;
mod up;
mod virtual_network;
mod zbridge;

pub use app::{App, Event, Io, Open, QueryRecord};
pub use config::{Access, LossyVnics, ServerConfig, VirtualConfig, WhenFull};
pub use credits::Credits;
pub use device::Server;
pub use tunnel::{HYPERVISOR, TunnelConfig, Tunnels};
pub use zbridge::ZBridge;

use crate::adapter::Adapter;
use crate::due::{Deadlines, Line};
use crate::guest::{
    Body, DATAGRAMS, ESTABLISHED, FlowLabel, FlowRecord, Guest, LIGHT, NOTE_WORD, Outgoing, PRIORITY_SHIFT, Socket,
    SocketId, Topic, note,
};
use crate::packet::{Address, FlowKey, Packet};
use crate::pool::{Handle, Pool};
use crate::switch::PauseEvent;
use alloc::boxed::Box;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::routing::Router;
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::tcplight::Stream;
use sluicenet_proto::udp::{UdpReceiver, UdpSender};
use sluicenet_wire::zbridge::GROWTH;

/// What a VM can have due: its first packet on the way down, or its port.
const TX: u16 = 0;
/// Its port is free to receive.
const PORT_FREE: u16 = 1;
const DEADLINES: u16 = 2;

/// Timer classes, in the order they run at one instant.
const SOCKET_TIMER: u8 = 0;
const PACE_TIMER: u8 = 1;
const APP_TIMER: u8 = 2;
const CREDIT_TIMER: u8 = 3;
const ZBRIDGE_TIMER: u8 = 4;
const TUNNEL_TIMER: u8 = 5;

/// What a server counted: every packet is somewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLedger {
    /// Sent by its guests.
    pub from_guests: u64,
    /// Received by its guests.
    pub to_guests: u64,
    /// Messages and repetitions that its hypervisor sent.
    pub from_hypervisor: u64,
    /// Messages that were for it, and frames that came a second time.
    pub to_hypervisor: u64,
    /// Received from the wire, pause frames not counted.
    pub from_wire: u64,
    /// Sent to the wire, pause frames not counted.
    pub to_wire: u64,
    /// Thrown away.
    pub dropped: u64,
    /// Still inside.
    pub queued: u64,
    /// Copies of what was sent, kept in case it is lost.
    pub copies: u64,
}

impl ServerLedger {
    /// Whether what went in is what came out, was dropped or is inside.
    pub fn balances(&self) -> bool {
        let inward = self.from_guests + self.from_hypervisor + self.from_wire;
        inward == self.to_guests + self.to_hypervisor + self.to_wire + self.dropped + self.queued
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
    timers: Timers,
    events: VecDeque<Event>,
    from_guests: u64,
    to_guests: u64,
    from_wire: u64,
    to_wire: u64,
    notes: Vec<Packet>,
    pauses: Vec<PauseEvent>,
    adapter: Adapter,
    vswitch: Option<VSwitch<Handle>>,
    credits: Option<Box<Credits>>,
    zbridge: Option<Box<ZBridge>>,
    tunnels: Option<Box<Tunnels>>,
    bridge_ready: bool,
    /// The same of the bridge of second vNICs.
    lossy_ready: bool,
    /// Machines: the number of the first of their second vNICs, each of which is a guest of its own here.
    machines: usize,
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

impl Core {
    fn new(id: HostId, vms: u8, config: Arc<ServerConfig>, router: Option<Router>) -> Core {
        let machines = vms as usize;
        let lossy = config.lossy_vnics.is_some() && config.virtual_network.is_some();
        let n = if lossy { 2 * machines } else { machines };
        let vswitch = config.virtual_network.as_ref().map(|v| match lossy {
            // Two ports to the network, as each machine has two: the first of them and of the machines' hold back.
            true => VSwitch::mixed(n + 2, v.slots, if v.lossless { ((1 << machines) - 1) | (1 << n) } else { 0 }),
            false => VSwitch::new(n + 1, v.slots, v.lossless),
        });
        let credits = config.virtual_network.as_ref().and_then(|v| v.credits);
        let credits = credits.map(|config| Box::new(Credits::new(config, machines)));
        let bridging = config.virtual_network.as_ref().and_then(|v| v.zbridge);
        let zbridge = bridging.map(|channel| Box::new(ZBridge::new(channel, config.seed, id)));
        let tunnel = config.virtual_network.as_ref().and_then(|v| v.tunnel.as_ref());
        let tunnels = tunnel.map(|tunnel| Box::new(Tunnels::new(tunnel.clone())));
        let max_frame = config.framing.frame_len(config.mtu) as u32
            + config.virtual_network.as_ref().map_or(0, |v| v.encapsulation as u32)
            + if bridging.is_some() { GROWTH as u32 } else { 0 };
        let max_frame = tunnel.map_or(max_frame, |t| t.max_frame);
        Core {
            id,
            adapter: Adapter::new(config.adapter.clone(), router),
            // Every consumer starts asleep, so that the first frame wakes it.
            bridge_ready: true,
            lossy_ready: lossy,
            machines,
            vm_ready: u64::MAX,
            vswitch,
            credits,
            zbridge,
            tunnels,
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
        self.machines as u8
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
            Body::Udp(..) | Body::Light(_) => None,
        })
    }
    /// Payload bytes that arrived in order at its guests' TCP sockets.
    pub fn tcp_bytes_received(&self) -> u64 {
        self.connections().map(|(_, tcp)| tcp.bytes_received()).sum()
    }

    /// Bytes that arrived here of a flow as its sender records it, of a transport whose sender does not know; `None` for one that
    /// is not awaited here.
    pub fn bytes_received(&self, f: &FlowRecord) -> Option<u64> {
        let local = FlowKey { src: f.dst, dst: f.src, sport: f.ports.1, dport: f.ports.0 };
        let sockets = &self.guests.get(f.dst.vm() as usize)?.sockets;
        let socket = sockets.find(&local).and_then(|index| sockets.get(index))?;
        match &socket.body {
            Body::Tcp(_) => None,
            Body::Udp(..) => socket.inbox.iter().find(|m| m.end == f.offset).map(|m| m.received),
            Body::Light(_) => Some(socket.received.saturating_sub(f.offset - f.bytes).min(f.bytes)),
        }
    }

    /// What went in and out.
    pub fn ledger(&self) -> ServerLedger {
        let vswitch = self.vswitch.as_ref().map_or(0, |v| v.queued() as u64);
        let said = self.credits().map_or((0, 0), Credits::messages);
        let bridged = self.zbridge().map_or((0, 0), ZBridge::frames);
        let tunnelled = self.tunnels().map_or((0, 0), Tunnels::frames);
        let from_hypervisor = said.0 + bridged.0 + tunnelled.0;
        let to_hypervisor = said.1 + bridged.1 + tunnelled.1;
        ServerLedger {
            from_guests: self.from_guests,
            to_guests: self.to_guests,
            from_hypervisor,
            to_hypervisor,
            from_wire: self.from_wire,
            to_wire: self.to_wire,
            dropped: self.drops.total_frames(),
            queued: self.on_the_way as u64
                + vswitch
                + self.adapter.queued()
                + self.credits().map_or(0, Credits::queued)
                + self.zbridge().map_or(0, ZBridge::queued)
                + self.tunnels().map_or(0, Tunnels::queued),
            copies: self.zbridge().map_or(0, ZBridge::copies),
        }
    }

    /// Initial sequence number: from the seed and the connection's own names, as RFC 6528 makes it from a secret.
    fn iss(&self, flow: &FlowKey) -> u32 {
        let ports = (flow.sport as u64) << 16 | flow.dport as u64;
        hash_words(&[self.config.seed, (flow.src.to_bits() as u64) << 32 | flow.dst.to_bits() as u64, ports]) as u32
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
        sockets.flat_map(|s| s.unfinished(s.paused(now, &self.adapter))).collect()
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
            Body::Light(stream) => light::fill(stream.as_mut(), &mut s.pending, s.closing),
        }
    }

    /// Puts a socket into the round if it has something to send, and keeps its deadline.
    #[inline(always)]
    fn refresh(&mut self, now: Instant, id: SocketId) {
        let guest = &mut self.guests[id.vm as usize];
        let Some(s) = guest.sockets.get_mut(id.index) else { return };
        keep_deadline(&mut self.timers, s, id);
        let wants = match &s.body {
            Body::Tcp(tcp) => tcp.wants_transmit(&self.config.tcp, now),
            Body::Udp(sender, _) => sender.pending() > 0,
            Body::Light(stream) => stream.as_ref().is_some_and(Stream::wants_transmit),
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
}

impl Io for Core {
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
        let (begin, end) = (s.written, s.written + bytes);
        s.written = end;
        s.pending += bytes;
        let before = s.before(s.paused(now, &self.adapter));
        s.outbox.push_back(Outgoing { id, label, tag, start: now, begin, end, before });
        let (flow, priority) = (s.flow, s.priority);
        let how = match &s.body {
            Body::Udp(..) => DATAGRAMS,
            // A connection in its first handshake was announced by nobody: the SYN itself will open it.
            Body::Tcp(tcp) if tcp.state() == tcp::State::SynSent => 0,
            Body::Tcp(_) => ESTABLISHED,
            Body::Light(Some(stream)) if stream.is_open() => LIGHT | ESTABLISHED,
            Body::Light(_) => LIGHT,
        };
        debug_assert!(begin <= NOTE_WORD);
        let third = begin | how | (priority as u64) << PRIORITY_SHIFT;
        self.post(now, note(flow, Topic::Announce, [end, tag, third]));
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
    }

    fn tell(&mut self, now: Instant, from: Address, to: Address, words: [u64; 3]) {
        debug_assert!(words[2] <= NOTE_WORD);
        let flow = FlowKey { src: from, dst: to, sport: 0, dport: 0 };
        self.post(now, note(flow, Topic::App, words));
    }

    fn wake_at(&mut self, at: Instant, token: u64) {
        self.timers.push(Reverse((at, APP_TIMER, token)));
    }
}

/// When, whose deadline, and which of theirs: the earliest first.
type Timers = BinaryHeap<Reverse<(Instant, u8, u64)>>;

/// Has a socket looked at when its next deadline comes.
#[inline(always)]
fn keep_deadline(timers: &mut Timers, s: &mut Socket, id: SocketId) {
    if let Body::Tcp(tcp) = &s.body
        && let Some(at) = tcp.poll_timeout()
        && at < s.timer_at
    {
        // An entry that is too early costs one look when it comes up; rearming on every ACK would cost more.
        s.timer_at = at;
        timers.push(Reverse((at, SOCKET_TIMER, (id.vm as u64) << 32 | id.index as u64)));
    }
}
