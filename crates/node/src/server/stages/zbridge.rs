//! zBridge between the machines of different servers (Crisan 2014, 5.3.4): a network stage. It numbers the frames that leave a server,
//! keeps them until they are acknowledged, and sends them again when they are lost. It hands received frames to the vSwitch in order.
//! Frames within a server do not come here.

use super::{Context, Flow, Lane, Report, Stage, StageConfig};
use crate::channels::{Channels, Sending};
use crate::packet::{Address, Kind, Packet};
use crate::pool::Handle;
use crate::server::PrefetchStep;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Instant;
use sluicenet_proto::transport::zbridge::{ChannelConfig, Header, Kind as Says};
use sluicenet_wire::zbridge::GROWTH;

/// A channel's own machine, its peer, and the class, in one number: it is looked up for every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Name(u64);

impl Name {
    #[inline(always)]
    fn new(vm: u8, peer: Address, priority: Priority) -> Name {
        Name(u64::from(vm) << 40 | u64::from(peer.to_bits()) << 8 | u64::from(priority))
    }
    /// The machine, its peer, and the class.
    #[inline(always)]
    fn parts(self) -> (u8, Address, Priority) {
        let peer = (self.0 >> 8) as u32;
        ((self.0 >> 40) as u8, Address::new(peer >> 8, peer as u8), self.0 as u8)
    }
}

impl StageConfig for ChannelConfig {
    fn stage(&self, host: HostId, _vms: usize, seed: u64) -> Box<dyn Stage> {
        Box::new(ZBridge::new(*self, seed, host))
    }
}

/// The channels of a server's machines.
#[derive(Debug)]
pub struct ZBridge {
    channels: Channels<Name, Handle>,
    seed: u64,
    host: HostId,
    /// Parts of an answer that did not fit the frame before.
    parts: VecDeque<Packet>,
    /// A frame whose channel takes no more: it stops all frames behind it in the vSwitch.
    stopped: Option<(Handle, Name)>,
    /// Frames in their order that wait for room in the vSwitch.
    arrived: VecDeque<Handle>,
    made: u64,
    consumed: u64,
}

/// The source of random numbers for a channel's connections.
fn random(seed: u64, host: HostId, name: Name) -> Rng {
    let (vm, peer, priority) = name.parts();
    let own = Address::new(host, vm).to_bits();
    Rng::from_words(&[seed, 0x5a42, u64::from(own) << 32 | u64::from(peer.to_bits()), u64::from(priority)])
}

impl ZBridge {
    /// No channel yet.
    pub fn new(config: ChannelConfig, seed: u64, host: HostId) -> ZBridge {
        ZBridge {
            // A simulated server forgets nobody.
            channels: Channels::new(config, usize::MAX, |_| 0),
            seed,
            host,
            parts: VecDeque::new(),
            stopped: None,
            arrived: VecDeque::new(),
            made: 0,
            consumed: 0,
        }
    }

    fn offer(&mut self, now: Instant, at: Handle, name: Name) {
        let (seed, host) = (self.seed, self.host);
        if let Err(full) = self.channels.send(now, name, at, || random(seed, host, name)) {
            self.stopped = Some((full.0, name));
        }
    }

    /// Whether a frame is not numbered: a credit message whose channel is not open yet. Credits repair the loss of their messages
    /// themselves, and the channel opens beside the request for credits, so the first frame waits one round trip for both.
    fn goes_beside(&self, packet: &Packet) -> bool {
        packet.kind() == Kind::Credit
            && !self.channels.is_open(Name::new(packet.src().vm(), packet.dst(), packet.priority()))
    }

    /// The next frame of the channels and their answers.
    #[inline(never)]
    fn poll_channels(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Handle> {
        if self.parts.is_empty()
            && let Some((_, numbered)) = self.channels.poll_frame(now)
        {
            self.made += u64::from(numbered.again);
            let copy = *cx.frame(numbered.frame);
            let at = cx.insert(&copy);
            cx.frame_mut(at).bridge(&numbered.header());
            return Some(at);
        }
        self.poll_answers(now, cx)
    }

    #[cold]
    fn poll_answers(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Handle> {
        if self.parts.is_empty() {
            let Sending { name, outgoing, .. } = self.channels.poll_transmit(now, |_| true)?;
            debug_assert!(outgoing.frame.is_none(), "a message goes before the next frame");
            let (vm, peer, priority) = name.parts();
            let own = Address::new(self.host, vm);
            self.parts.extend(Packet::bridge_frames(own, peer, &outgoing.header, priority, cx.framing()));
        }
        self.made += 1;
        self.parts.pop_front().map(|part| cx.insert(&part))
    }

    /// A frame from another server reaches its channel. Returns a frame that goes on at once.
    fn enter(
        &mut self,
        now: Instant,
        name: Name,
        header: &Header,
        frame: Option<Handle>,
        cx: &mut Context<'_>,
    ) -> Option<Handle> {
        let (seed, host, arrived) = (self.seed, self.host, &mut self.arrived);
        let mut first = None;
        let refused = self.channels.receive(
            now,
            name,
            header,
            frame,
            || random(seed, host, name),
            &mut |frame| match first {
                None if arrived.is_empty() => first = Some(frame),
                _ => arrived.push_back(frame),
            },
            &mut |copy| cx.release(copy),
        );
        if let Err((Some(frame), _)) = refused {
            self.consumed += 1;
            cx.release(frame);
        }
        if !self.arrived.is_empty() {
            // Of several frames, each waits for room.
            first.take().into_iter().for_each(|frame| self.arrived.push_front(frame));
        }
        first
    }

    #[inline(always)]
    fn set_timers(&mut self, cx: &mut Context<'_>) {
        if self.channels.has_timers() {
            self.set_new_timers(cx);
        }
    }

    #[inline(never)]
    fn set_new_timers(&mut self, cx: &mut Context<'_>) {
        self.channels.take_timers().for_each(|(at, channel)| cx.set_timer(at, channel as u64));
    }

    /// Names the memory that a frame from the network will touch.
    #[inline(always)]
    pub fn fetch(&self, step: PrefetchStep, packet: &Packet, fetch: impl Fn(*const u8)) {
        let name = Name::new(packet.dst().vm(), packet.src(), packet.priority());
        match step {
            PrefetchStep::Frames => fetch(self.channels.place_line(name)),
            PrefetchStep::Index => self.channels.lines(name).for_each(fetch),
            _ => {}
        }
    }
}

impl Stage for ZBridge {
    fn max_frame(&self, from_above: u32) -> u32 {
        from_above + GROWTH as u32
    }
    #[inline(always)]
    fn takes(&self) -> bool {
        self.stopped.is_none()
    }
    fn send(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = cx.frame(at);
        if self.goes_beside(packet) {
            return Some(at);
        }
        self.offer(now, at, Name::new(packet.src().vm(), packet.dst(), packet.priority()));
        self.set_timers(cx);
        None
    }
    /// Opens the channel, if it leads to another server.
    fn expect(&mut self, now: Instant, flow: Flow, cx: &mut Context<'_>) {
        if flow.to.host() != self.host {
            let (name, seed, host) = (Name::new(flow.vm, flow.to, flow.priority), self.seed, self.host);
            self.channels.open(now, name, || random(seed, host, name));
            self.set_timers(cx);
        }
    }
    #[inline(always)]
    fn ready(&self) -> u64 {
        u64::from(self.channels.has_output() || !self.parts.is_empty() || self.stopped.is_some())
    }
    #[inline(always)]
    fn poll_transmit(&mut self, now: Instant, _lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        loop {
            // Most channels were asked because a frame came for them, and have nothing to send.
            if self.channels.has_next() || !self.parts.is_empty() {
                let at = self.poll_channels(now, cx);
                self.set_timers(cx);
                if at.is_some() {
                    return at;
                }
            }
            let (at, name) = self.stopped.take()?;
            self.offer(now, at, name);
            if self.stopped.is_some() {
                return None;
            }
        }
    }

    /// Answers of the peer's channels, in whatever order they come.
    #[inline(always)]
    fn consumes(&self, packet: &Packet) -> bool {
        packet.kind() == Kind::Bridge && packet.bridge_header().kind != Says::Ask
    }
    #[inline(always)]
    fn is_blocked(&self) -> bool {
        !self.arrived.is_empty()
    }
    fn receive(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = cx.frame_mut(at);
        let name = Name::new(packet.dst().vm(), packet.src(), packet.priority());
        let through = if packet.kind() == Kind::Bridge {
            let header = packet.bridge_header();
            cx.release(at);
            self.consumed += 1;
            self.enter(now, name, &header, None, cx)
        } else if packet.kind() != Kind::Credit || packet.bridged().is_some() {
            let header = packet.unbridge();
            self.enter(now, name, &header, Some(at), cx)
        } else if self.arrived.is_empty() {
            return Some(at);
        } else {
            self.arrived.push_back(at);
            return None;
        };
        self.set_timers(cx);
        through
    }
    #[inline(always)]
    fn has_received(&self, _lane: Lane) -> bool {
        !self.arrived.is_empty()
    }
    #[inline(always)]
    fn poll_receive(&mut self, _now: Instant, _lane: Lane, _cx: &mut Context<'_>) -> Option<Handle> {
        self.arrived.pop_front()
    }

    fn handle_timer(&mut self, now: Instant, at: Instant, _slot: u8, token: u64, cx: &mut Context<'_>) {
        // A simulated machine never dies: a silent one answers again.
        let _ = self.channels.handle_timeout(now, at, token as usize);
        self.set_timers(cx);
    }

    fn report(&self, report: &mut Report) {
        report.made += self.made;
        report.consumed += self.consumed;
        report.queued += self.channels.queued() + u64::from(self.stopped.is_some()) + self.arrived.len() as u64;
        report.copies += self.channels.copies();
        let own = self.channels.counters();
        report.channels = Some(report.channels.map_or(own, |sum| sum + own));
    }
}
