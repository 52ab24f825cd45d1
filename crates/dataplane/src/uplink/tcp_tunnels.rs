//! TCP tunnels at an uplink ([`sluicenet_node::tunnels`]). The frames between the tenants of two servers are the bytes of one
//! connection, in real segments between the servers' addresses.
//! Frames of a stream are limited by its buffers and not by the receive buffer of a class, which a segment leaves at once. A
//! bounded number of frames that were read from streams waits for the switch. At this bound no stream is read, and windows
//! close.

use super::inside::{Charge, Inside, Slot, is_denied};
use super::kind::{Link, UplinkKind};
use sluicenet_node::tunnels::{Bytes, PORT, TunnelCounters, Tunnels};
use sluicenet_node::uplink::Origin;
use sluicenet_node::vtep::{Inward, Vtep};
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::overlay::tunnel::Heard;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ethernet::inner_type;
use sluicenet_wire::{stream, zcredit};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::Ipv4Addr;

/// The most frames that were read from streams and wait for the switch.
const SHOWN: u32 = 64;

/// The settings of tunnels.
#[derive(Clone, Debug)]
pub struct TcpTunnelConfig {
    /// Their TCP.
    pub tcp: tcp::Config,
    /// The class of its segments.
    pub priority: Priority,
    /// How long a server may be silent before its tunnel ends (RFC 9293, 3.10.8). Meanwhile no frame is taken from the switch.
    pub user_timeout: Duration,
    /// The classes whose frames go through streams; frames of other classes go as datagrams.
    pub classes: PrioritySet,
}

/// The tunnels of an uplink.
#[derive(Debug)]
pub(super) struct TcpTunnels {
    tunnels: Tunnels<Ipv4Addr, Bytes>,
    priority: Priority,
    classes: PrioritySet,
    /// Bytes of the longest frame in a stream.
    max_frame: u32,
    /// Frames whose tunnels are full, and all later ones. Meanwhile no frame is taken from the switch.
    waiting: VecDeque<(Ipv4Addr, Vec<u8>, Origin)>,
    /// The frames of the switch among them.
    waiting_of_switch: usize,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    rng: Rng,
    shown: u32,
    /// Frames of tenants that were written to streams, and that were read from them.
    sent: u64,
    received: u64,
    /// Messages of credits that were written to streams, and that were read from them.
    messages: (u64, u64),
    /// Frames of tenants in streams that have ended: delivered, and lost.
    acknowledged: u64,
    given_up: u64,
}

impl TcpTunnels {
    pub fn new(config: TcpTunnelConfig, max_frame: u32, rng: Rng) -> TcpTunnels {
        TcpTunnels {
            tunnels: Tunnels::new(config.tcp, config.user_timeout),
            priority: config.priority,
            classes: config.classes,
            max_frame,
            waiting: VecDeque::new(),
            waiting_of_switch: 0,
            timers: BinaryHeap::new(),
            rng,
            shown: 0,
            sent: 0,
            received: 0,
            messages: (0, 0),
            acknowledged: 0,
            given_up: 0,
        }
    }

    pub fn counters(&self) -> TunnelCounters {
        self.tunnels.counters()
    }
    /// Frames of tenants that were written to streams, and that were read from them.
    pub fn frames(&self) -> (u64, u64) {
        (self.sent, self.received)
    }
    /// Messages of credits that were written to streams, and that were read from them.
    pub fn messages(&self) -> (u64, u64) {
        self.messages
    }
    /// The number of servers with a stream.
    pub fn servers(&self) -> usize {
        self.tunnels.servers()
    }
    /// Whether every frame that was written to a stream was delivered, lost, or is in it, and the count of waiting frames is
    /// right.
    pub fn is_sound(&self) -> bool {
        let acknowledged = self.acknowledged + self.tunnels.carriers().map(Bytes::acknowledged).sum::<u64>();
        let waiting = self.waiting.iter().filter(|frame| frame.2 == Origin::Switch).count();
        self.sent == acknowledged + self.given_up + self.unacknowledged() && waiting == self.waiting_of_switch
    }
    /// Frames of the switch that are in streams and not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.tunnels.carriers().map(|bytes| bytes.unacknowledged() as u64).sum()
    }
    /// Frames of the switch that wait for room in their streams.
    pub fn unsent(&self) -> u64 {
        self.waiting_of_switch as u64
    }
    /// Bytes in buffers: sent and not acknowledged, and received and not read.
    pub fn bytes(&self) -> (u64, u64) {
        self.tunnels.carriers().map(Bytes::stored).fold((0, 0), |sum, b| (sum.0 + b.0 as u64, sum.1 + b.1 as u64))
    }
    /// The classes whose frames may be taken from the switch, if the link takes the classes `link`.
    pub fn takes(&self, link: PrioritySet) -> PrioritySet {
        let in_streams = if self.waiting.is_empty() { self.classes.0 } else { 0 };
        PrioritySet(in_streams | link.0 & !self.classes.0)
    }
    /// Whether there is work; `may_send` tells whether segments can be sent.
    pub fn has_work(&self, may_send: bool) -> bool {
        self.tunnels.has_ended()
            || may_send && self.tunnels.has_output()
            || self.shown < SHOWN && self.tunnels.has_unread()
    }
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.peek().map(|timer| timer.0.0)
    }
    /// A frame that was read from a stream has left.
    pub fn departed(&mut self) {
        self.shown -= 1;
    }

    /// The tunnel to a server.
    fn to(&mut self, server: Ipv4Addr) -> usize {
        self.tunnels.find(server).unwrap_or_else(|| {
            let tcp = Tcp::listen(self.tunnels.tcp(), self.rng.next_u64() as u32, None);
            self.tunnels.add(server, tcp, Bytes::new(self.max_frame))
        })
    }

    fn handle_timeout(&mut self, now: Instant) {
        while let Some(&Reverse((due, at))) = self.timers.peek().filter(|timer| timer.0.0 <= now) {
            self.timers.pop();
            self.tunnels.handle_timeout(now, due, at);
        }
    }

    /// Writes a frame to the stream to a server, which must have room. If the server is silent, the frame is handed back.
    fn put(&mut self, now: Instant, server: Ipv4Addr, bytes: Vec<u8>, origin: Origin) -> Result<(), Vec<u8>> {
        let at = self.to(server);
        let iss = self.rng.next_u64() as u32;
        self.tunnels.open(now, at, || iss);
        if self.tunnels.is_silent(at) {
            return Err(bytes);
        }
        self.sent += u64::from(origin == Origin::Switch);
        self.messages.0 += u64::from(origin == Origin::Own);
        self.tunnels.send(now, at, (bytes, origin));
        Ok(())
    }

    /// Counts a frame that was read from a stream.
    fn count(&mut self, bytes: &[u8]) {
        let is_message = inner_type(&bytes[stream::HEADER_LEN..]) == Some(zcredit::ETHERTYPE);
        self.messages.1 += u64::from(is_message);
        self.received += u64::from(!is_message);
    }

    /// A stream has ended: its frames are dropped by name.
    fn lose<K: UplinkKind>(&mut self, link: &mut Link<K>, ended: Bytes) {
        self.acknowledged += ended.acknowledged();
        self.given_up += ended.unacknowledged() as u64;
        for frame in ended.into_unacknowledged() {
            give_up(link, frame.origin, frame.len);
        }
    }

    fn has_room(&mut self, server: Ipv4Addr) -> bool {
        let at = self.to(server);
        self.tunnels.has_room(at)
    }
}

impl<K: UplinkKind> Inside<K> {
    /// Takes a frame for the stream to a server, with its stream header.
    pub fn put_in_stream(&mut self, server: Ipv4Addr, bytes: Vec<u8>, origin: Origin) {
        let Some(z) = &mut self.tcp_tunnels else { return };
        z.waiting_of_switch += usize::from(origin == Origin::Switch);
        z.waiting.push_back((server, bytes, origin));
        self.fill_streams();
    }

    /// Writes waiting frames to their streams, in order, until one has no room.
    fn fill_streams(&mut self) {
        let (now, Some(z), Some(overlay)) = (self.now, &mut self.tcp_tunnels, &self.overlay) else { return };
        while let Some((server, bytes, origin)) = z.waiting.pop_front() {
            // No stream is opened to a server that is gone.
            let is_known = overlay.vtep.tunnel().has_server(server);
            if is_known && !z.has_room(server) {
                z.waiting.push_front((server, bytes, origin));
                return;
            }
            z.waiting_of_switch -= usize::from(origin == Origin::Switch);
            let lost = if is_known { z.put(now, server, bytes, origin).err() } else { Some(bytes) };
            if let Some(bytes) = lost {
                give_up(&mut self.link, origin, frame_len(&bytes));
            }
        }
    }

    /// A segment of the stream from another server has arrived, in a frame of `len` bytes.
    pub fn segment(&mut self, priority: Priority, len: u32, heard: &Heard, frame: &[u8]) {
        let now = self.now;
        if self.link.charge(now, priority, len).is_err() {
            return;
        }
        self.link.release(priority, len);
        let Some(z) = &mut self.tcp_tunnels else { return };
        let at = z.to(heard.from);
        z.tunnels.receive(now, at, &heard.segment, &frame[heard.payload.clone()], heard.ce);
    }

    /// Whether there may be work for streams.
    pub fn may_run_tunnels(&self) -> bool {
        self.tcp_tunnels.as_ref().is_some_and(|z| z.has_work(self.link.takes().contains(z.priority)))
    }

    /// Sends segments while the link has room, and reads frames while the switch takes them.
    pub fn run_tunnels(&mut self) {
        let Some(z) = &mut self.tcp_tunnels else { return };
        z.handle_timeout(self.now);
        loop {
            self.fill_streams();
            self.read_streams();
            let sent = self.send_segments();
            let ended = self.begin_anew();
            if !sent && !ended {
                break;
            }
        }
        if let Some(z) = &mut self.tcp_tunnels {
            z.timers.extend(z.tunnels.take_timers().map(Reverse));
        }
    }

    fn send_segments(&mut self) -> bool {
        let (now, Some(z), Some(overlay)) = (self.now, &mut self.tcp_tunnels, &self.overlay) else { return false };
        let mut any = false;
        while self.link.takes().contains(z.priority) {
            let Some((at, sent)) = z.tunnels.poll_transmit(now) else { break };
            any = true;
            let (server, bytes) = z.tunnels.peer(at);
            let fill = |into: &mut [u8]| bytes.copy_to(sent.offset, into);
            // A server that has left the overlay gets no segments.
            let tunnel = overlay.vtep.tunnel();
            if let Ok(frame) = tunnel.segment(server, PORT, sent.segment, sent.ect, z.priority, fill) {
                self.link.enqueue_of(now, Origin::Own, z.priority, frame.len() as u32, frame);
            }
        }
        any
    }

    /// Drops the frames of ended connections by name, and begins new ones.
    fn begin_anew(&mut self) -> bool {
        let Some(z) = &mut self.tcp_tunnels else { return false };
        let mut any = false;
        while let Some(at) = z.tunnels.poll_ended() {
            any = true;
            let iss = z.rng.next_u64() as u32;
            let ended = z.tunnels.renew(at, iss, Bytes::new(z.max_frame));
            z.lose(&mut self.link, ended);
        }
        any
    }

    fn read_streams(&mut self) {
        let now = self.now;
        let mut turn = 0;
        loop {
            let (Some(z), Some(overlay)) = (&mut self.tcp_tunnels, &mut self.overlay) else { return };
            if z.shown >= SHOWN {
                return;
            }
            let Some((at, bytes)) = z.tunnels.poll_frame(now, &mut turn) else { return };
            z.count(&bytes);
            let from = z.tunnels.peer(at).0;
            let len = frame_len(&bytes);
            let (inner, asked) = match overlay.vtep.inward_of_stream(now, &bytes, from) {
                Inward::Deliver(inner) => (inner, None),
                Inward::Ask(inner, station) => (inner, Some(station)),
                Inward::Drop(reason) => {
                    self.link.refuse(reason, len);
                    continue;
                }
                Inward::Other | Inward::Segment(_) | Inward::Beside(..) => {
                    unreachable!("a frame of a stream is a tenant's or dropped")
                }
            };
            if is_denied(&mut self.gate, inner.domain, &bytes[inner.frame.clone()], inner.priority) {
                self.link.refuse(DropReason::Denied, len);
                continue;
            }
            z.shown += 1;
            let (domain, priority) = (inner.domain, inner.priority);
            let slot = self.keep(Slot { bytes, frame: inner.frame, domain, priority, charged: Charge::Stream(len) });
            match (asked, &mut self.overlay) {
                (Some(station), Some(overlay)) => {
                    // The number of frames that were read from streams is bounded.
                    if let Err(reason) = overlay.vtep.park(now, station, from, slot, true) {
                        self.link.refuse(reason, len);
                        self.release(slot);
                    }
                }
                _ => self.arrived(slot),
            }
        }
    }

    /// Ends the streams to servers that have left the overlay.
    pub fn expel(&mut self, servers: &[Ipv4Addr]) {
        let Some(z) = &mut self.tcp_tunnels else { return };
        for &server in servers {
            if let Some(at) = z.tunnels.find(server) {
                // The server knows that these frames have arrived.
                while let Some(bytes) = z.tunnels.poll_frame_of(self.now, at) {
                    z.count(&bytes);
                    self.link.refuse(DropReason::UnknownServer, frame_len(&bytes));
                }
                let ended = z.tunnels.remove(at, Bytes::new(z.max_frame));
                z.lose(&mut self.link, ended);
            }
        }
        let (mut kept, link) = (VecDeque::new(), &mut self.link);
        for (server, bytes, origin) in z.waiting.drain(..) {
            if servers.contains(&server) {
                z.waiting_of_switch -= usize::from(origin == Origin::Switch);
                give_up(link, origin, frame_len(&bytes));
            } else {
                kept.push_back((server, bytes, origin));
            }
        }
        z.waiting = kept;
    }
}

/// Counts a frame that is lost with a stream, or before it.
fn give_up<K: UplinkKind>(link: &mut Link<K>, origin: Origin, len: u32) {
    if origin == Origin::Switch {
        link.drop_out(DropReason::TunnelEnded, len);
    }
}

/// Switches the overlay to streams.
pub(super) fn set_up(vtep: &mut Vtep<u32>, config: TcpTunnelConfig, rng: Rng) -> TcpTunnels {
    vtep.use_streams(config.classes);
    TcpTunnels::new(config, vtep.tunnel().max_in_stream(), rng)
}

/// Bytes of a frame without its stream header.
fn frame_len(bytes: &[u8]) -> u32 {
    (bytes.len() - stream::HEADER_LEN) as u32
}
