//! TCP tunnels between servers ([`crate::tunnels`]): a network stage.
//!
//! A frame takes a length of four bytes and its own without its check sequence. Simulated segments carry no bytes: a frame travels beside
//! them as metadata, and it has arrived when its last byte has.

use super::{Context, Lane, Report, Stage, StageConfig};
use crate::packet::{Address, FlowKey, Kind, Packet};
use crate::pool::Handle;
use crate::tunnels::{self, Broken, Carrier, PORT};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::tcp::{self, Tcp};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ipv4::Ecn;

/// The machine number of a server's hypervisor.
pub const HYPERVISOR: u8 = u8::MAX;

/// The TCP connections of hypervisors.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// Their TCP.
    pub tcp: tcp::Config,
    /// Class of its segments.
    pub priority: Priority,
    /// Bytes of its longest frame.
    pub max_frame: u32,
}

impl StageConfig for TunnelConfig {
    fn stage(&self, host: HostId, _vms: usize, _seed: u64) -> Box<dyn Stage> {
        Box::new(Tunnels::new(self.clone(), host))
    }
}

/// Frames beside the segments of a tunnel, told apart by numbers.
#[derive(Debug, Default)]
struct Beside {
    /// Number of the next frame that is sent.
    next_out: u16,
    /// Frames that were announced, from the number of the next that is delivered on.
    inbound: BTreeMap<u64, Packet>,
    next_in: u64,
}

impl Beside {
    fn announce(&mut self, packet: &Packet) {
        let (frame, number) = packet.untunnelled();
        // 16 bits of a number tell frames apart that are on their way at one time: a buffer holds fewer.
        let ahead = number.wrapping_sub(self.next_in as u16);
        self.inbound.insert(self.next_in + u64::from(ahead), frame);
    }
}

impl Carrier for Beside {
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
    host: HostId,
    tunnels: tunnels::Tunnels<HostId, Beside>,
    /// A frame whose tunnel takes no more: it stops all frames behind it in the vSwitch.
    stopped: Option<(Handle, usize)>,
    /// The tunnel whose turn it is to hand out a frame.
    turn: usize,
    made: u64,
    consumed: u64,
    /// Frames that went into tunnels here, and frames that came out.
    put: u64,
    taken: u64,
}

impl Tunnels {
    /// No tunnel yet.
    pub fn new(config: TunnelConfig, host: HostId) -> Tunnels {
        // A simulated server never dies: a silent one answers again.
        let tunnels = tunnels::Tunnels::new(config.tcp.clone(), Duration::MAX);
        Tunnels { config, host, tunnels, stopped: None, turn: 0, made: 0, consumed: 0, put: 0, taken: 0 }
    }

    /// Puts a frame into its tunnel, or stops if the tunnel has no room.
    fn offer(&mut self, now: Instant, at: Handle, tunnel: usize, cx: &mut Context<'_>) {
        if !self.tunnels.has_room(tunnel) {
            self.stopped = Some((at, tunnel));
            return;
        }
        let packet = *cx.frame(at);
        cx.release(at);
        self.consumed += 1;
        self.put += 1;
        cx.send_metadata(now, self.tunnels.send(now, tunnel, packet));
    }

    fn flow(&self, to: HostId) -> FlowKey {
        let [src, dst] = [self.host, to].map(|host| Address::new(host, HYPERVISOR));
        FlowKey { src, dst, sport: PORT, dport: PORT }
    }

    /// The tunnel to a server: it was open before the clock started.
    fn tunnel_to(&mut self, now: Instant, host: HostId, cx: &Context<'_>) -> usize {
        if let Some(tunnel) = self.tunnels.find(host) {
            return tunnel;
        }
        let flow = self.flow(host);
        let (own, peer) = (cx.initial_sequence(&flow), cx.initial_sequence(&flow.reverse()));
        self.tunnels.add(host, Tcp::established(&self.config.tcp, now, own, peer), Beside::default())
    }

    fn set_timers(&mut self, cx: &mut Context<'_>) {
        self.tunnels.take_timers().for_each(|(at, tunnel)| cx.set_timer(at, tunnel as u64));
    }
}

impl Stage for Tunnels {
    fn max_frame(&self, _from_above: u32) -> u32 {
        self.config.max_frame
    }
    #[inline(always)]
    fn takes(&self) -> bool {
        self.stopped.is_none()
    }
    fn send(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let tunnel = self.tunnel_to(now, cx.frame(at).dst().host(), cx);
        self.offer(now, at, tunnel, cx);
        self.set_timers(cx);
        None
    }
    #[inline(always)]
    fn ready(&self) -> u64 {
        u64::from(self.tunnels.has_output() || self.stopped.is_some())
    }
    fn poll_transmit(&mut self, now: Instant, _lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        loop {
            let sent = self.tunnels.poll_transmit(now);
            self.set_timers(cx);
            if let Some((tunnel, sent)) = sent {
                self.made += 1;
                let flow = self.flow(self.tunnels.peer(tunnel).0);
                let packet = Packet::tcp(flow, &sent.segment, sent.ect, self.config.priority, cx.framing());
                return Some(cx.insert(&packet));
            }
            let (at, tunnel) = self.stopped.take()?;
            self.offer(now, at, tunnel, cx);
            if self.stopped.is_some() {
                return None;
            }
        }
    }

    /// Segments of the tunnels.
    #[inline(always)]
    fn consumes(&self, packet: &Packet) -> bool {
        packet.dst() == Address::new(self.host, HYPERVISOR)
    }
    fn receive(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = *cx.frame(at);
        if !self.consumes(&packet) {
            return Some(at);
        }
        cx.release(at);
        self.consumed += 1;
        let tunnel = self.tunnel_to(now, packet.src().host(), cx);
        self.tunnels.receive(now, tunnel, &packet.segment(), &[], packet.ecn() == Ecn::Ce);
        self.turn = 0;
        self.set_timers(cx);
        None
    }
    #[inline(always)]
    fn has_received(&self, _lane: Lane) -> bool {
        self.tunnels.has_unread()
    }
    /// Whole frames of each tunnel in turn.
    fn poll_receive(&mut self, now: Instant, _lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        let frame = self.tunnels.poll_frame(now, &mut self.turn);
        self.set_timers(cx);
        let Some((_, packet)) = frame else {
            self.turn = 0;
            return None;
        };
        self.made += 1;
        self.taken += 1;
        Some(cx.insert(&packet))
    }
    fn receive_metadata(&mut self, now: Instant, packet: &Packet, cx: &mut Context<'_>) {
        if packet.kind() == Kind::Tunnelled {
            let tunnel = self.tunnel_to(now, packet.src().host(), cx);
            self.tunnels.carrier_mut(tunnel).announce(packet);
        }
    }

    fn handle_timer(&mut self, now: Instant, at: Instant, _slot: u8, token: u64, cx: &mut Context<'_>) {
        self.tunnels.handle_timeout(now, at, token as usize);
        self.set_timers(cx);
    }

    fn report(&self, report: &mut Report) {
        report.made += self.made;
        report.consumed += self.consumed;
        report.queued += u64::from(self.stopped.is_some());
        report.tunnels_in += self.put;
        report.tunnels_out +=
            self.taken + self.tunnels.carriers().map(|beside| beside.inbound.len() as u64).sum::<u64>();
    }
}
