//! TCP tunnels between servers (Crisan 2014, 5.2.3): all frames from the machines of one server to those of another are the bytes of one
//! TCP connection of their hypervisors, whatever their own transport is.
//!
//! A frame takes a length of four bytes and its own without its check sequence. A full send buffer stops the vSwitch's port; where the
//! vSwitch has no room the connection is not read, and its window closes. Simulated segments carry no bytes: a frame travels beside them
//! as a note and is there when its last byte is.

use super::{Core, TUNNEL_TIMER};
use crate::packet::{Address, FlowKey, Packet};
use crate::pool::{Handle, Pool};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::Instant;
use sluicenet_wire::ipv4::Ecn;

/// The number of a machine that stands for its server's hypervisor.
pub const HYPERVISOR: u8 = u8::MAX;
/// A port of both ends; there is one connection between two.
const PORT: u16 = 50_000;

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

#[derive(Debug)]
struct Peer {
    flow: FlowKey,
    tcp: Tcp,
    /// Bytes of the last frame that the send buffer had no room for.
    pending: u64,
    /// Number of the next frame that is sent.
    next_out: u16,
    /// Frames that were announced, from the number of the next that is delivered on.
    inbound: BTreeMap<u64, Packet>,
    next_in: u64,
    is_active: bool,
    /// The deadline that stands in the timers.
    armed_at: Instant,
}

/// A server's tunnels.
#[derive(Debug)]
pub struct Tunnels {
    config: TunnelConfig,
    peers: Vec<Peer>,
    by_host: BTreeMap<HostId, usize>,
    /// Those that may have something to send, in turn.
    active: VecDeque<usize>,
    /// Those with frames that the vSwitch has no room for.
    unread: Vec<usize>,
    /// A frame whose tunnel takes no more, and all behind it in the vSwitch wait.
    held: Option<(Handle, usize)>,
    made: u64,
    consumed: u64,
    timers: Vec<(Instant, usize)>,
}

impl Tunnels {
    pub(super) fn new(config: TunnelConfig) -> Tunnels {
        Tunnels {
            config,
            peers: Vec::new(),
            by_host: BTreeMap::new(),
            active: VecDeque::new(),
            unread: Vec::new(),
            held: None,
            made: 0,
            consumed: 0,
            timers: Vec::new(),
        }
    }

    /// Frames that left a tunnel and segments that entered the network here, and the other way round.
    pub fn frames(&self) -> (u64, u64) {
        (self.made, self.consumed)
    }
    /// Frames that wait for their tunnel.
    pub fn queued(&self) -> u64 {
        self.held.is_some() as u64
    }
    pub(super) fn has_output(&self) -> bool {
        !self.active.is_empty() || self.held.is_some()
    }
    pub(super) fn has_work(&self) -> bool {
        self.has_output() || !self.unread.is_empty()
    }

    fn touch(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        if !core::mem::replace(&mut peer.is_active, true) {
            self.active.push_back(at);
        }
        self.arm(at);
    }

    fn arm(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        // One that is too early costs a look; setting it anew with every segment would cost more.
        if let Some(due) = peer.tcp.poll_timeout()
            && due < peer.armed_at
        {
            peer.armed_at = due;
            self.timers.push((due, at));
        }
    }

    /// Puts a frame into its tunnel; what is to travel beside its bytes, or nothing where it has to wait.
    fn offer(&mut self, now: Instant, pool: &mut Pool<Packet>, frame: Handle, at: usize) -> Option<Packet> {
        let peer = &mut self.peers[at];
        if peer.pending > 0 {
            self.held = Some((frame, at));
            return None;
        }
        let packet = *pool.frame(frame);
        pool.release(frame);
        self.consumed += 1;
        peer.pending = u64::from(packet.len());
        let number = peer.next_out;
        peer.next_out = number.wrapping_add(1);
        self.push(now, at);
        Some(packet.tunnelled(number))
    }

    /// Moves what is left of a frame into the send buffer.
    fn push(&mut self, now: Instant, at: usize) {
        let peer = &mut self.peers[at];
        if peer.pending > 0 {
            peer.pending -= peer.tcp.send(&self.config.tcp, now, peer.pending);
        }
        self.touch(at);
    }

    fn poll_transmit(&mut self, now: Instant, framing: crate::packet::Framing) -> Option<Packet> {
        while let Some(at) = self.active.pop_front() {
            let peer = &mut self.peers[at];
            let Some(sent) = peer.tcp.poll_transmit(&self.config.tcp, now) else {
                peer.is_active = false;
                self.arm(at);
                continue;
            };
            let packet = Packet::tcp(peer.flow, &sent.segment, sent.ect, self.config.priority, framing);
            self.active.push_back(at);
            self.made += 1;
            return Some(packet);
        }
        None
    }

    /// The next frame whose bytes are all here.
    fn read(&mut self, now: Instant, at: usize) -> Option<Packet> {
        let peer = &mut self.peers[at];
        let len = u64::from(peer.inbound.get(&peer.next_in)?.len());
        if peer.tcp.readable() < len {
            return None;
        }
        let read = peer.tcp.recv(&self.config.tcp, now, len);
        assert_eq!(read, len, "what is readable can be read");
        let packet = peer.inbound.remove(&peer.next_in);
        peer.next_in += 1;
        self.made += 1;
        packet
    }
}

impl Core {
    /// The tunnels to other servers, where there are any.
    pub fn tunnels(&self) -> Option<&Tunnels> {
        self.tunnels.as_deref()
    }

    /// The tunnel to a server: it was open before the clock started.
    fn tunnel_to(&mut self, now: Instant, host: HostId) -> Option<usize> {
        let flow = FlowKey {
            src: Address::new(self.id, HYPERVISOR),
            dst: Address::new(host, HYPERVISOR),
            sport: PORT,
            dport: PORT,
        };
        let (own, other) = (self.iss(&flow), self.iss(&flow.reverse()));
        let t = self.tunnels.as_mut()?;
        let next = t.peers.len();
        let at = *t.by_host.entry(host).or_insert(next);
        if at == next {
            t.peers.push(Peer {
                flow,
                tcp: Tcp::established(&t.config.tcp, now, own, other),
                pending: 0,
                next_out: 0,
                inbound: BTreeMap::new(),
                next_in: 0,
                is_active: false,
                armed_at: Instant::MAX,
            });
        }
        Some(at)
    }

    /// The bridge fills tunnels from the vSwitch and sends their segments, while the adapter has room.
    pub(super) fn run_tunnels(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        while self.adapter.room() >= self.max_frame {
            let framing = self.config.framing;
            let Some(t) = self.tunnels.as_mut() else { return };
            if let Some(packet) = t.poll_transmit(now, framing) {
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
            self.timers.extend(t.timers.drain(..).map(|(due, at)| Reverse((due, TUNNEL_TIMER, at as u64))));
        }
    }

    pub(super) fn run_tunnel_timer(&mut self, now: Instant, due: Instant, at: usize) {
        let Some(t) = self.tunnels.as_mut() else { return };
        let peer = &mut t.peers[at];
        if peer.armed_at == due {
            peer.armed_at = Instant::MAX;
            if peer.tcp.poll_timeout().is_some_and(|at| at <= now) {
                peer.tcp.handle_timeout(&t.config.tcp, now);
            }
            t.touch(at);
        }
    }

    /// What travels beside the bytes of a tunnel.
    pub(super) fn announce_tunnelled(&mut self, now: Instant, packet: &Packet) {
        let Some(at) = self.tunnel_to(now, packet.src().host()) else { return };
        let Some(t) = self.tunnels.as_mut() else { return };
        let (frame, number) = packet.untunnelled();
        let peer = &mut t.peers[at];
        // 16 bits of a number tell frames apart that are on their way at one time: a buffer holds fewer.
        let ahead = number.wrapping_sub(peer.next_in as u16);
        peer.inbound.insert(peer.next_in + u64::from(ahead), frame);
    }

    /// A segment of a tunnel.
    pub(super) fn receive_tunnel(&mut self, now: Instant, pool: &mut Pool<Packet>, at: Handle) {
        let packet = *pool.frame(at);
        pool.release(at);
        let Some(at) = self.tunnel_to(now, packet.src().host()) else { return };
        let Some(t) = self.tunnels.as_mut() else { return };
        t.consumed += 1;
        let heard = t.peers[at].tcp.receive(&t.config.tcp, now, &packet.segment(), packet.ecn() == Ecn::Ce);
        t.push(now, at);
        if heard.readable() && !t.unread.contains(&at) {
            t.unread.push(at);
        }
        self.leave_tunnels(now, pool);
    }

    /// What has come whole through tunnels goes to the vSwitch while that has room, a frame of each in turn.
    pub(super) fn leave_tunnels(&mut self, now: Instant, pool: &mut Pool<Packet>) {
        let uplink = self.guests.len();
        let mut turn = 0;
        loop {
            let Some(t) = self.tunnels.as_mut() else { return };
            if t.unread.is_empty() || self.vswitch.as_ref().is_none_or(|v| v.input_room(uplink) == 0) {
                return;
            }
            turn %= t.unread.len();
            let at = t.unread[turn];
            let read = t.read(now, at);
            // Its window may have opened.
            t.touch(at);
            let Some(packet) = read else {
                t.unread.remove(turn);
                continue;
            };
            turn += 1;
            let at = pool.insert(&packet);
            self.enter_vswitch(pool, uplink, packet.dst().vm() as usize, at);
        }
    }
}
