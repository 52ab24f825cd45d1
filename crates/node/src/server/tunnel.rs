//! TCP tunnels between servers ([`crate::tunnels`]) at a simulated server.
//!
//! A frame takes a length of four bytes and its own without its check sequence. Simulated segments carry no bytes: a frame travels beside
//! them as a note and is there when its last byte is.

use super::{Core, TUNNEL_TIMER};
use crate::packet::{Address, FlowKey, Packet};
use crate::pool::{Handle, Pool};
use crate::tunnels::{self, Broken, Carrier, PORT};
use alloc::collections::BTreeMap;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ipv4::Ecn;

/// The number of a machine that stands for its server's hypervisor.
pub const HYPERVISOR: u8 = u8::MAX;

/// How hypervisors speak to each other.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Their TCP.
    pub tcp: tcp::Config,
    /// Class of its segments.
    pub priority: Priority,
    /// Bytes of its longest frame.
    pub max_frame: u32,
}

/// Frames beside the segments of a tunnel, told apart by numbers.
#[derive(Debug, Default)]
struct Notes {
    /// Number of the next frame that is sent.
    next_out: u16,
    /// Frames that were announced, from the number of the next that is delivered on.
    inbound: BTreeMap<u64, Packet>,
    next_in: u64,
}

impl Notes {
    fn announce(&mut self, note: &Packet) {
        let (frame, number) = note.untunnelled();
        // 16 bits of a number tell frames apart that are on their way at one time: a buffer holds fewer.
        let ahead = number.wrapping_sub(self.next_in as u16);
        self.inbound.insert(self.next_in + u64::from(ahead), frame);
    }
}

impl Carrier for Notes {
    type Frame = Packet;
    type Arrived = Packet;
    type Beside = Packet;

    fn put(&mut self, frame: Packet) -> (u64, Packet) {
        let number = self.next_out;
        self.next_out = number.wrapping_add(1);
        (u64::from(frame.len()), frame.tunnelled(number))
    }
    fn acknowledged(&mut self, _upto: u64) {}
    fn store(&mut self, _offset: u64, _bytes: &[u8]) {}
    fn next(&self, readable: u64) -> Result<Option<u64>, Broken> {
        let len = self.inbound.get(&self.next_in).map(|frame| u64::from(frame.len()));
        Ok(len.filter(|&len| len <= readable))
    }
    fn take(&mut self, _len: u64) -> Packet {
        let frame = self.inbound.remove(&self.next_in).expect("it is there whole");
        self.next_in += 1;
        frame
    }
}

/// A server's tunnels.
#[derive(Debug)]
pub struct Tunnels {
    config: TunnelConfig,
    tunnels: tunnels::Tunnels<HostId, Notes>,
    /// A frame whose tunnel takes no more, and all behind it in the vSwitch wait.
    held: Option<(Handle, usize)>,
    made: u64,
    consumed: u64,
    /// Frames that went into tunnels here, and that came out.
    put: u64,
    taken: u64,
}

impl Tunnels {
    pub(super) fn new(config: TunnelConfig) -> Tunnels {
        // A simulated server never dies: who is silent is heard of again.
        let tunnels = tunnels::Tunnels::new(config.tcp.clone(), Duration::MAX);
        Tunnels { config, tunnels, held: None, made: 0, consumed: 0, put: 0, taken: 0 }
    }

    /// Frames that left a tunnel and segments that entered the network here, and the other way round.
    pub fn frames(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// Frames that went into tunnels here, that came out here, and that have been announced and are not out yet.
    pub fn inside(&self) -> (u64, u64, u64) {
        (self.put, self.taken, self.tunnels.carriers().map(|notes| notes.inbound.len() as u64).sum())
    }
    /// Frames that wait for their tunnel.
    pub fn queued(&self) -> u64 {
        self.held.is_some() as u64
    }
    pub(super) fn has_output(&self) -> bool {
        self.tunnels.has_output() || self.held.is_some()
    }
    pub(super) fn has_work(&self) -> bool {
        self.has_output() || self.tunnels.has_unread()
    }

    /// Puts a frame into its tunnel; what is to travel beside its bytes, or nothing where it has to wait.
    fn offer(&mut self, now: Instant, pool: &mut Pool<Packet>, frame: Handle, at: usize) -> Option<Packet> {
        if !self.tunnels.has_room(at) {
            self.held = Some((frame, at));
            return None;
        }
        let packet = *pool.frame(frame);
        pool.release(frame);
        self.consumed += 1;
        self.put += 1;
        Some(self.tunnels.send(now, at, packet))
    }
}

impl Core {
    /// The tunnels to other servers, where there are any.
    pub fn tunnels(&self) -> Option<&Tunnels> {
        self.tunnels.as_deref()
    }

    fn tunnel_flow(&self, host: HostId) -> FlowKey {
        let [src, dst] = [self.id, host].map(|host| Address::new(host, HYPERVISOR));
        FlowKey { src, dst, sport: PORT, dport: PORT }
    }

    /// The tunnel to a server: it was open before the clock started.
    fn tunnel_to(&mut self, now: Instant, host: HostId) -> Option<usize> {
        if let Some(at) = self.tunnels.as_ref()?.tunnels.find(host) {
            return Some(at);
        }
        let flow = self.tunnel_flow(host);
        let (own, other) = (self.iss(&flow), self.iss(&flow.reverse()));
        let t = self.tunnels.as_mut()?;
        Some(t.tunnels.add(host, Tcp::established(&t.config.tcp, now, own, other), Notes::default()))
    }

    /// The bridge fills tunnels from the vSwitch and sends their segments, while the adapter has room.
    pub(super) fn run_tunnels(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        while self.adapter.room() >= self.max_frame {
            let framing = self.config.framing;
            let Some(t) = self.tunnels.as_mut() else { return };
            if let Some((at, sent)) = t.tunnels.poll_transmit(now) {
                t.made += 1;
                let (host, priority) = (t.tunnels.peer(at).0, t.config.priority);
                let packet = Packet::tcp(self.tunnel_flow(host), &sent.segment, sent.ect, priority, framing);
                let at = pool.insert(&packet);
                self.enter_adapter(pool, at);
                continue;
            }
            let (frame, at) = match t.held.take() {
                Some(held) => held,
                None => {
                    let taken = if self.bridge_ready { self.take_from_vswitch(pool, uplink) } else { None };
                    let Some(frame) = taken else {
                        self.bridge_ready = false;
                        break;
                    };
                    self.bridge_ready = !self.vswitch.as_mut().is_some_and(|v| v.sleep_if_empty(uplink));
                    let Some(at) = self.tunnel_to(now, pool.frame(frame).dst().host()) else { return };
                    (frame, at)
                }
            };
            let Some(t) = self.tunnels.as_mut() else { return };
            let Some(beside) = t.offer(now, pool, frame, at) else { break };
            self.notes.push(beside);
        }
        if let Some(t) = self.tunnels.as_mut() {
            self.timers.extend(t.tunnels.take_timers().map(|(due, at)| Reverse((due, TUNNEL_TIMER, at as u64))));
        }
    }

    pub(super) fn run_tunnel_timer(&mut self, now: Instant, due: Instant, at: usize) {
        if let Some(t) = self.tunnels.as_mut() {
            t.tunnels.handle_timeout(now, due, at);
        }
    }

    /// What travels beside the bytes of a tunnel.
    pub(super) fn announce_tunnelled(&mut self, now: Instant, packet: &Packet) {
        let Some(at) = self.tunnel_to(now, packet.src().host()) else { return };
        if let Some(t) = self.tunnels.as_mut() {
            t.tunnels.carrier_mut(at).announce(packet);
        }
    }

    /// A segment of a tunnel.
    pub(super) fn receive_tunnel(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let packet = *pool.frame(at);
        pool.release(at);
        let Some(at) = self.tunnel_to(now, packet.src().host()) else { return };
        let Some(t) = self.tunnels.as_mut() else { return };
        t.consumed += 1;
        t.tunnels.receive(now, at, &packet.segment(), &[], packet.ecn() == Ecn::Ce);
        self.leave_tunnels(now, pool);
    }

    /// What has come whole through tunnels goes to the vSwitch while that has room, a frame of each in turn.
    pub(super) fn leave_tunnels(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        let mut turn = 0;
        while self.vswitch.as_ref().is_some_and(|v| v.input_room(uplink) > 0) {
            let Some(t) = self.tunnels.as_mut() else { return };
            let Some((_, packet)) = t.tunnels.poll_frame(now, &mut turn) else { return };
            t.made += 1;
            t.taken += 1;
            let at = pool.insert(&packet);
            self.enter_vswitch(pool, uplink, packet.dst().vm() as usize, at);
        }
    }
}
