//! zBridge between the machines of different servers (Crisan 2014, 5.3.4): below credits and the vSwitch, above the adapter. What leaves a
//! server is numbered, kept until it is acknowledged, and sent again where it was lost; what comes is put in order before the vSwitch
//! sees it.
//!
//! A channel is between two machines and of one traffic class: classes overtake each other. Traffic within a server does not come here.

use super::{Core, ZBRIDGE_TIMER};
use crate::packet::{Address, Kind, Packet};
use crate::pool::{Handle, Pool};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::overlay::bridge::ecn_in;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::{Channel, ChannelConfig, ChannelCounters, Header, Kind as Says};

/// A channel's own machine, the other one, and the class.
type Name = (u8, Address, Priority);

#[derive(Debug)]
struct Pair {
    name: Name,
    channel: Channel<Handle>,
    is_active: bool,
    /// The deadline that stands in the timers.
    armed_at: Instant,
}

/// The channels of a server's machines.
#[derive(Debug)]
pub struct ZBridge {
    config: ChannelConfig,
    seed: u64,
    host: HostId,
    pairs: Vec<Pair>,
    by_name: BTreeMap<Name, usize>,
    /// Channels that may have something to send, in turn.
    active: VecDeque<usize>,
    /// Parts of an answer that did not fit the frame before.
    parts: VecDeque<Packet>,
    /// A frame whose channel takes no more, and all behind it in the vSwitch wait.
    held: Option<(Handle, usize)>,
    /// Frames in their order that wait for room in the vSwitch.
    arrived: VecDeque<Handle>,
    /// Frames that it sent of itself, and that were for it.
    made: u64,
    consumed: u64,
    timers: Vec<(Instant, usize)>,
}

impl ZBridge {
    pub(super) fn new(config: ChannelConfig, seed: u64, host: HostId) -> ZBridge {
        ZBridge {
            config,
            seed,
            host,
            pairs: Vec::new(),
            by_name: BTreeMap::new(),
            active: VecDeque::new(),
            parts: VecDeque::new(),
            held: None,
            arrived: VecDeque::new(),
            made: 0,
            consumed: 0,
            timers: Vec::new(),
        }
    }

    /// Frames inside that are not on their way out: that wait to be sent for the first time, came before their turn, or wait for room.
    pub fn queued(&self) -> u64 {
        let inside = |p: &Pair| p.channel.unsent_and_in_flight() - p.channel.in_flight() + p.channel.early();
        let inside: usize = self.pairs.iter().map(inside).sum();
        inside as u64 + self.held.is_some() as u64 + self.arrived.len() as u64
    }
    /// Copies of frames that were sent and not acknowledged.
    pub fn copies(&self) -> u64 {
        self.pairs.iter().map(|p| p.channel.in_flight() as u64).sum()
    }
    /// Frames that it sent of itself, those sent again among them, and frames that were for it or of no use.
    pub fn frames(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// What all channels have counted.
    pub fn counters(&self) -> ChannelCounters {
        self.pairs.iter().map(|p| p.channel.counters()).fold(ChannelCounters::default(), |a, b| ChannelCounters {
            sent: a.sent + b.sent,
            resent: a.resent + b.resent,
            delivered: a.delivered + b.delivered,
            duplicates: a.duplicates + b.duplicates,
            too_far: a.too_far + b.too_far,
            stale: a.stale + b.stale,
            timeouts: a.timeouts + b.timeouts,
            connections: a.connections + b.connections,
        })
    }
    pub(super) fn has_work(&self) -> bool {
        self.has_output() || !self.arrived.is_empty()
    }
    pub(super) fn has_output(&self) -> bool {
        !self.active.is_empty() || !self.parts.is_empty() || self.held.is_some()
    }
    /// Whether what comes from the wire has to wait behind what waits for room.
    pub(super) fn is_stopped(&self) -> bool {
        !self.arrived.is_empty()
    }

    fn pair(&mut self, name: Name) -> usize {
        let next = self.pairs.len();
        let at = *self.by_name.entry(name).or_insert(next);
        if at == next {
            let (vm, peer, priority) = name;
            let own = Address::new(self.host, vm).to_bits();
            let words = [self.seed, 0x5a42, u64::from(own) << 32 | u64::from(peer.to_bits()), u64::from(priority)];
            let channel = Channel::new(self.config, Rng::from_words(&words));
            self.pairs.push(Pair { name, channel, is_active: false, armed_at: Instant::MAX });
        }
        at
    }

    /// Something happened to a channel: it may have something to say, now or later.
    fn touch(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        if !core::mem::replace(&mut pair.is_active, true) {
            self.active.push_back(at);
        }
        self.arm(at);
    }

    fn arm(&mut self, at: usize) {
        let pair = &mut self.pairs[at];
        // One that is too early costs a look; setting it anew with every frame would cost more.
        if let Some(due) = pair.channel.poll_timeout()
            && due < pair.armed_at
        {
            pair.armed_at = due;
            self.timers.push((due, at));
        }
    }

    /// A frame leaves the vSwitch for another server.
    fn send(&mut self, now: Instant, pool: &Pool<Packet>, frame: Handle) {
        let packet = pool.frame(frame);
        let at = self.pair((packet.src().vm(), packet.dst(), packet.priority()));
        self.offer(now, frame, at);
    }

    fn offer(&mut self, now: Instant, frame: Handle, at: usize) {
        match self.pairs[at].channel.send(now, frame) {
            Ok(()) => self.touch(at),
            Err(full) => self.held = Some((full.0, at)),
        }
    }

    /// The next frame for the wire, not yet in a tunnel.
    fn poll_transmit(&mut self, now: Instant, pool: &Pool<Packet>, framing: crate::packet::Framing) -> Option<Packet> {
        if let Some(part) = self.parts.pop_front() {
            self.made += 1;
            return Some(part);
        }
        while let Some(at) = self.active.pop_front() {
            let pair = &mut self.pairs[at];
            let resent = pair.channel.counters().resent;
            let Some(out) = pair.channel.poll_transmit(now) else {
                pair.is_active = false;
                continue;
            };
            self.active.push_back(at);
            if let Some(copy) = out.frame {
                self.made += pair.channel.counters().resent - resent;
                let mut packet = *pool.frame(copy);
                packet.bridge(&out.header);
                self.arm(at);
                return Some(packet);
            }
            let (vm, peer, priority) = pair.name;
            let own = Address::new(self.host, vm);
            self.parts.extend(Packet::bridge_frames(own, peer, &out.header, priority, framing));
            self.arm(at);
            self.made += 1;
            return self.parts.pop_front();
        }
        None
    }

    /// A frame from another server, without its header.
    fn receive(&mut self, now: Instant, pool: &mut Pool<Packet>, name: Name, header: &Header, frame: Option<Handle>) {
        let at = self.pair(name);
        let arrived = &mut self.arrived;
        let refused =
            self.pairs[at].channel.receive(now, header, frame, &mut |frame| arrived.push_back(frame), &mut |copy| {
                pool.release(copy);
            });
        if let Err((Some(frame), _)) = refused {
            self.consumed += 1;
            pool.release(frame);
        }
        self.touch(at);
    }
}

impl Core {
    /// The channels of its machines, where frames between servers are numbered.
    pub fn zbridge(&self) -> Option<&ZBridge> {
        self.zbridge.as_deref()
    }

    /// The bridge takes frames from the vSwitch, and sends what channels have to send, while the adapter has room.
    pub(super) fn run_zbridge(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let Some(mut z) = self.zbridge.take() else { return };
        let (uplink, outer) = (self.guests.len(), self.encapsulation());
        while self.adapter.room() >= self.max_frame {
            if let Some(mut packet) = z.poll_transmit(now, pool, self.config.framing) {
                if outer > 0 {
                    packet.encapsulate(ecn_in(packet.ecn()), outer);
                }
                let at = pool.insert(&packet);
                self.enter_adapter(pool, at);
                continue;
            }
            if let Some((frame, at)) = z.held.take() {
                z.offer(now, frame, at);
                if z.held.is_some() {
                    break;
                }
                continue;
            }
            let taken = if self.bridge_ready { self.take_from_vswitch(pool, uplink) } else { None };
            let Some(frame) = taken else {
                self.bridge_ready = false;
                break;
            };
            z.send(now, pool, frame);
            self.bridge_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
        }
        let timers = z.timers.drain(..).map(|(due, at)| Reverse((due, ZBRIDGE_TIMER, at as u64)));
        self.timers.extend(timers);
        self.zbridge = Some(z);
    }

    pub(super) fn run_zbridge_timer(&mut self, now: Instant, due: Instant, at: usize) {
        let Some(z) = self.zbridge.as_mut() else { return };
        let pair = &mut z.pairs[at];
        if pair.armed_at == due {
            pair.armed_at = Instant::MAX;
            pair.channel.handle_timeout(now);
            z.touch(at);
        }
    }

    /// A frame from the wire goes to its channel; what that delivers waits for room in the vSwitch.
    pub(super) fn enter_zbridge(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let Some(z) = self.zbridge.as_mut() else { return };
        let packet = pool.frame_mut(at);
        let name = (packet.dst().vm(), packet.src(), packet.priority());
        if packet.kind() == Kind::Bridge {
            let header = packet.bridge_header();
            pool.release(at);
            z.consumed += 1;
            z.receive(now, pool, name, &header, None);
        } else {
            let header = packet.unbridge();
            z.receive(now, pool, name, &header, Some(at));
        }
        self.leave_zbridge(pool);
    }

    /// What is in order goes to the vSwitch while that has room.
    pub(super) fn leave_zbridge(&mut self, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        while self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0) {
            let Some(at) = self.zbridge.as_mut().and_then(|z| z.arrived.pop_front()) else { return };
            self.decapsulate_into_vswitch(pool, at);
        }
    }
}

/// Whether a frame from the wire need not wait for room: it is for nobody but zBridge, and its order does not matter.
pub(super) fn passes(packet: &Packet) -> bool {
    packet.kind() == Kind::Bridge && packet.bridge_header().kind != Says::Ask
}
