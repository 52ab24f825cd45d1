//! zBridge between the machines of different servers (Crisan 2014, 5.3.4): below credits and the vSwitch, above the adapter. What leaves a
//! server is numbered, kept until it is acknowledged, and sent again where it was lost; what comes is put in order before the vSwitch
//! sees it. Traffic within a server does not come here.

use super::{Core, ZBRIDGE_TIMER};
use crate::channels::{Channels, Sending};
use crate::packet::{Address, Kind, Packet};
use crate::pool::{Handle, Pool};
use alloc::collections::VecDeque;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::overlay::bridge::ecn_in;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::{ChannelConfig, ChannelCounters, Header, Kind as Says};

/// A channel's own machine, the other one, and the class.
type Name = (u8, Address, Priority);

/// The channels of a server's machines.
#[derive(Debug)]
pub struct ZBridge {
    channels: Channels<Name, Handle>,
    seed: u64,
    host: HostId,
    /// Parts of an answer that did not fit the frame before.
    parts: VecDeque<Packet>,
    /// A frame whose channel takes no more, and all behind it in the vSwitch wait.
    held: Option<(Handle, Name)>,
    /// Frames in their order that wait for room in the vSwitch.
    arrived: VecDeque<Handle>,
    /// Frames that it sent of itself, and that were for it.
    made: u64,
    consumed: u64,
}

impl ZBridge {
    pub(super) fn new(config: ChannelConfig, seed: u64, host: HostId) -> ZBridge {
        ZBridge {
            // A simulated server forgets nobody.
            channels: Channels::new(config, usize::MAX, |_| 0),
            seed,
            host,
            parts: VecDeque::new(),
            held: None,
            arrived: VecDeque::new(),
            made: 0,
            consumed: 0,
        }
    }

    /// Frames inside that are not on their way out: that wait to be sent for the first time, came before their turn, or wait for room.
    pub fn queued(&self) -> u64 {
        self.channels.queued() + self.held.is_some() as u64 + self.arrived.len() as u64
    }
    /// Copies of frames that were sent and not acknowledged.
    pub fn copies(&self) -> u64 {
        self.channels.copies()
    }
    /// Frames that it sent of itself, those sent again among them, and frames that were for it or of no use.
    pub fn frames(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// What all channels have counted.
    pub fn counters(&self) -> ChannelCounters {
        self.channels.counters()
    }
    pub(super) fn has_work(&self) -> bool {
        self.has_output() || !self.arrived.is_empty()
    }
    pub(super) fn has_output(&self) -> bool {
        self.channels.has_output() || !self.parts.is_empty() || self.held.is_some()
    }
    /// Whether what comes from the wire has to wait behind what waits for room.
    pub(super) fn is_stopped(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Where numbers of a channel's connections come from.
    fn random(seed: u64, host: HostId, (vm, peer, priority): Name) -> Rng {
        let own = Address::new(host, vm).to_bits();
        Rng::from_words(&[seed, 0x5a42, u64::from(own) << 32 | u64::from(peer.to_bits()), u64::from(priority)])
    }

    /// A frame leaves the vSwitch for another server.
    fn send(&mut self, now: Instant, pool: &Pool<Packet>, frame: Handle) {
        let packet = pool.frame(frame);
        self.offer(now, frame, (packet.src().vm(), packet.dst(), packet.priority()));
    }

    fn offer(&mut self, now: Instant, frame: Handle, name: Name) {
        let (seed, host) = (self.seed, self.host);
        if let Err(full) = self.channels.send(now, name, frame, || ZBridge::random(seed, host, name)) {
            self.held = Some((full.0, name));
        }
    }

    /// Whether a frame is not numbered: a message about credits where that would have to wait for a greeting. It is safe against loss by
    /// itself, and who asks for credits greets at the same time, so that the first frame waits for both in one round trip.
    fn goes_beside(&self, packet: &Packet) -> bool {
        packet.kind() == Kind::Credit && !self.channels.is_open((packet.src().vm(), packet.dst(), packet.priority()))
    }

    /// The next frame for the wire, not yet in a tunnel.
    fn poll_transmit(&mut self, now: Instant, pool: &Pool<Packet>, framing: crate::packet::Framing) -> Option<Packet> {
        if let Some(part) = self.parts.pop_front() {
            self.made += 1;
            return Some(part);
        }
        let Sending { name: (vm, peer, priority), outgoing, again } = self.channels.poll_transmit(now, |_| true)?;
        if let Some(copy) = outgoing.frame {
            self.made += u64::from(again);
            let mut packet = *pool.frame(copy);
            packet.bridge(&outgoing.header);
            return Some(packet);
        }
        let own = Address::new(self.host, vm);
        self.parts.extend(Packet::bridge_frames(own, peer, &outgoing.header, priority, framing));
        self.made += 1;
        self.parts.pop_front()
    }

    /// A frame from another server, without its header.
    fn receive(&mut self, now: Instant, pool: &mut Pool<Packet>, name: Name, header: &Header, frame: Option<Handle>) {
        let (seed, host, arrived) = (self.seed, self.host, &mut self.arrived);
        let refused = self.channels.receive(
            now,
            name,
            header,
            frame,
            || ZBridge::random(seed, host, name),
            &mut |frame| arrived.push_back(frame),
            &mut |copy| pool.release(copy),
        );
        if let Err((Some(frame), _)) = refused {
            self.consumed += 1;
            pool.release(frame);
        }
    }
}

impl Core {
    /// The channels of its machines, where frames between servers are numbered.
    pub fn zbridge(&self) -> Option<&ZBridge> {
        self.zbridge.as_deref()
    }

    /// A machine asks another for credits: it will send by the channel between them, if that is on another server.
    pub(super) fn open_zbridge(&mut self, now: Instant, vm: u8, to: Address, class: Priority) {
        let Some(z) = self.zbridge.as_mut().filter(|_| to.host() != self.id) else { return };
        let (name, seed, host) = ((vm, to, class), z.seed, z.host);
        z.channels.open(now, name, || ZBridge::random(seed, host, name));
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
            if let Some((frame, name)) = z.held.take() {
                z.offer(now, frame, name);
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
            if z.goes_beside(pool.frame(frame)) {
                if outer > 0 {
                    let packet = pool.frame_mut(frame);
                    packet.encapsulate(ecn_in(packet.ecn()), outer);
                }
                self.enter_adapter(pool, frame);
            } else {
                z.send(now, pool, frame);
            }
            self.bridge_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
        }
        let timers = z.channels.take_timers().map(|(due, at)| Reverse((due, ZBRIDGE_TIMER, at as u64)));
        self.timers.extend(timers);
        self.zbridge = Some(z);
    }

    pub(super) fn run_zbridge_timer(&mut self, now: Instant, due: Instant, at: usize) {
        let Some(z) = self.zbridge.as_mut() else { return };
        // A simulated machine never dies: who is silent is heard of again.
        let _ = z.channels.handle_timeout(now, due, at);
    }

    /// A frame from the wire goes to its channel; what that delivers waits for room in the vSwitch.
    pub(super) fn enter_zbridge(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let Some(z) = self.zbridge.as_mut() else { return };
        let packet = pool.frame_mut(at);
        let name = (packet.dst().vm(), packet.src(), packet.priority());
        if packet.kind() == Kind::Credit && packet.bridged().is_none() {
            z.arrived.push_back(at);
        } else if packet.kind() == Kind::Bridge {
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
