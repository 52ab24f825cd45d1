//! The network adapter: a virtual output queue for each destination, flow control towards the wire, a resequencing
//! buffer on receipt (Crisan 2014, 2.5.2).
//!
//! With several links, one transmit buffer and one receive buffer serve all of them. Each link has its own queues and
//! flow control. A frame is assigned its link when it enters.
//!
//! A server is compiled for a [`Kind`] of adapter. A [`Basic`] adapter has one link, one transmit buffer and no
//! resequencing; the code for it contains nothing else. [`Any`] adapter may have [`Extended`] parts.

mod extended;
mod link;
mod resequencer;
mod source;
#[cfg(test)]
mod tests;

use crate::device::{PortId, PortSet};
use crate::pool::{Handle, Pool};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::cee::ets::EtsConfig;
use sluicenet_proto::cee::pfc::{Gate, Repetition, Rise, Signal, Watermarks, quanta_time};
use sluicenet_proto::cee::source_control::{QueueName, SourceConfig};
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::Full;
use sluicenet_proto::routing::Router;
use sluicenet_proto::routing::paths::Path;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;

use extended::Several;
pub use extended::{Any, Basic, Extended, Kind};
use link::Link;
use resequencer::Early;

/// Queueing of frames for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// A virtual output queue for each destination and priority, served in turn.
    Voq,
    /// One queue for each priority.
    Fifo,
}

/// Longest wait of a frame for an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// In the receive buffer, and of classes that lose frames.
    pub buffered: Duration,
    /// In the host's memory, of classes under flow control: an earlier frame is rather late than lost.
    pub placed: Duration,
}

impl Patience {
    /// The same for all frames.
    pub fn alike(longest: Duration) -> Patience {
        Patience { buffered: longest, placed: longest }
    }
}

/// Settings of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    /// Size of the transmit buffer and of the receive buffer, in bytes each.
    pub buffer: u32,
    /// Queueing of frames for the wire.
    pub queueing: Queueing,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Priorities with a transmit buffer of their own, of the same size: neither buffer's frames can fill the other.
    pub apart: PrioritySet,
    /// Pause time sent with XOFF, in quanta.
    pub quanta: u16,
    /// Rate of each link.
    pub rate: Vec<Rate>,
    /// Repetition of pause messages on each link, where the link damages frames.
    pub repetition: Vec<Option<Repetition>>,
    /// Watermarks of the receive buffer. Above XOFF it holds the frames that all links still bring.
    pub marks: Watermarks,
    /// How long frames wait for earlier ones. Without this setting there is no resequencing.
    pub resequencing: Option<Patience>,
    /// Enhanced transmission selection among priorities; the queues take turns without it.
    pub ets: Option<Arc<EtsConfig>>,
    /// Whether there are congestion notifications, which end in the adapter.
    pub notifications: bool,
    /// Control of the queues about which notifications come; without it notifications have no effect.
    pub source: Option<Arc<dyn SourceConfig>>,
}

impl AdapterConfig {
    /// Whether an adapter with these settings needs no [`Extended`] parts.
    pub fn is_basic(&self) -> bool {
        let is_managed = self.ets.is_some() || self.notifications;
        self.rate.len() == 1 && self.apart.is_empty() && self.resequencing.is_none() && !is_managed
    }

    /// Time of one pause quantum on a link.
    fn quantum(&self, port: PortId) -> Duration {
        quanta_time(1, self.rate[port as usize])
    }
}

/// A frame between two adapters.
pub trait AdapterFrame: Frame {
    /// Its serial number, which counts only where paths can reorder.
    fn serial(&self) -> u16;
    /// Whether the adapter places its payload in the host's memory as it comes, early or not.
    fn is_placed(&self) -> bool;
    /// Sets the number.
    fn set_serial(&mut self, serial: u16);
    /// Sets the path. A frame without room for it keeps the default path.
    fn set_path(&mut self, path: Path);
    /// A number of its flow, in 29 bits; for a notification that of the sampled frame.
    fn flow_number(&self) -> u32;
}

/// An adapter. The fields that every frame touches stand in front.
#[derive(Debug)]
#[repr(C)]
pub struct Adapter {
    config: Arc<AdapterConfig>,
    /// Bytes that fit in each transmit buffer.
    buffer: u32,
    /// Bytes in the transmit queues.
    used: u32,
    max_used: u32,
    /// The bits of a destination that choose its queue: all with virtual output queues, none with a queue for each
    /// priority.
    queue_mask: HostId,
    /// Received frames that the host has no room for.
    stalled: VecDeque<Handle>,
    /// No deadline of a link, of a frame that came early or of a held queue is before this time.
    deadline: Instant,
    /// Frames in the transmit queues.
    frames: u32,
    /// The link, where there is only one. Where there are several it stays empty, so that the others are examined only
    /// when this link has nothing to send.
    only: Link,
    /// Bytes in the receive buffer: frames that wait for the host or for an earlier frame.
    received_bytes: [u32; PRIORITIES],
    /// Pause messages to the other ends since the last [`Adapter::take_told`]: the priority, and whether the other ends
    /// are stopped.
    told: Vec<(Priority, bool)>,
    /// Parts that few adapters have.
    extended: Option<Box<Extended>>,
}

fn key(host: HostId, priority: Priority) -> u32 {
    host << 3 | priority as u32
}

impl Adapter {
    /// An empty adapter of a host with as many links as its settings have rates; `router` chooses among several.
    pub fn new(host: HostId, config: Arc<AdapterConfig>, router: Option<Router>) -> Adapter {
        let links = config.rate.len();
        assert!(links > 0 && (links > 1) == router.is_some(), "{links} links, {router:?}");
        assert_eq!(config.repetition.len(), links);
        let link = |&repetition: &Option<Repetition>| Link { signal: Signal::new(repetition), ..Link::default() };
        let several = router.map(|router| Several { router, links: config.repetition.iter().map(link).collect() });
        let only = if several.is_some() { Link::default() } else { link(&config.repetition[0]) };
        let queue_mask = match config.queueing {
            Queueing::Voq => HostId::MAX,
            Queueing::Fifo => 0,
        };
        Adapter {
            extended: (!config.is_basic()).then(|| Box::new(Extended::new(host, &config, several))),
            buffer: config.buffer,
            config,
            used: 0,
            max_used: 0,
            queue_mask,
            stalled: VecDeque::new(),
            deadline: Instant::MAX,
            frames: 0,
            only,
            received_bytes: [0; PRIORITIES],
            told: Vec::new(),
        }
    }

    /// Number of links.
    pub fn ports(&self) -> usize {
        self.config.rate.len()
    }
    /// Free bytes of the transmit buffer.
    #[inline(always)]
    pub fn room<K: Kind>(&self) -> u32 {
        self.buffer - (self.used - K::of(self).map_or(0, |extended| extended.used_apart))
    }
    /// Free bytes of the separate transmit buffer.
    pub fn room_apart<K: Kind>(&self) -> u32 {
        self.buffer - K::of(self).map_or(0, |extended| extended.used_apart)
    }
    /// Most bytes that ever waited for a link.
    pub fn max_used(&self, port: PortId) -> u32 {
        self.several().map_or(self.max_used, |s| s.links[port as usize].max_used)
    }
    /// Bytes that wait for a link.
    pub fn used(&self, port: PortId) -> u32 {
        self.several().map_or(self.used, |s| s.links[port as usize].used)
    }
    /// Frames given to a link, pause frames included; not counted with one link.
    pub fn sent(&self, port: PortId) -> Option<u64> {
        let link = &self.several()?.links[port as usize];
        Some(link.frames_out + link.control_out)
    }
    /// Frames that wait, for the wire or for the host.
    pub fn queued(&self) -> u64 {
        let early = self.extended.as_ref().map_or(0, |extended| extended.early());
        self.frames as u64 + self.stalled.len() as u64 + early
    }
    /// The gate towards a link.
    pub fn gate(&self, port: PortId) -> &Gate {
        &self.link(port).gate
    }
    /// The flow control signal of the receive buffer to the other end of a link.
    pub fn signal(&self, port: PortId) -> &Signal {
        &self.link(port).signal
    }
    /// Pause frames received.
    pub fn control_in(&self) -> u64 {
        self.links().iter().map(|l| l.gate.received()).sum()
    }
    /// Pause frames sent.
    pub fn control_out(&self) -> u64 {
        self.links().iter().map(|l| l.control_out).sum()
    }
    /// Priorities in which the receive buffer stops the other ends, all of them alike.
    pub fn stopped(&self) -> PrioritySet {
        self.links()[0].signal.stopped()
    }
    /// Pause messages to all the other ends since the last call, in order: the priority, and whether the other ends are
    /// stopped.
    #[inline(always)]
    pub fn take_told(&mut self) -> Vec<(Priority, bool)> {
        core::mem::take(&mut self.told)
    }

    /// Time that frames like `frame` have been paused up to `now`: on their link, or the mean over links that take turns.
    pub fn paused_time<F: Frame>(&self, now: Instant, priority: Priority, frame: impl FnOnce() -> F) -> Duration {
        match self.several() {
            None => self.only.gate.paused_time(now, priority),
            Some(several) => self.paused_time_of_several(now, priority, several, &frame()),
        }
    }

    #[cold]
    fn paused_time_of_several<F: Frame>(
        &self,
        now: Instant,
        priority: Priority,
        several: &Several,
        frame: &F,
    ) -> Duration {
        if several.router.divides_flows() {
            let total: u64 = self.links().iter().map(|l| l.gate.paused_time(now, priority).0).sum();
            return Duration(total / self.ports() as u64);
        }
        self.link(several.port(frame)).gate.paused_time(now, priority)
    }

    fn several(&self) -> Option<&Several> {
        self.extended.as_ref()?.several.as_ref()
    }

    fn links(&self) -> &[Link] {
        self.several().map_or(core::slice::from_ref(&self.only), |s| &s.links)
    }

    fn links_mut(&mut self) -> &mut [Link] {
        match self.extended.as_mut().and_then(|extended| extended.several.as_mut()) {
            None => core::slice::from_mut(&mut self.only),
            Some(s) => &mut s.links,
        }
    }

    fn link(&self, port: PortId) -> &Link {
        &self.links()[port as usize]
    }

    fn link_mut(&mut self, port: PortId) -> &mut Link {
        &mut self.links_mut()[port as usize]
    }

    /// Queues a frame for its link, or hands it back.
    #[inline(always)]
    pub fn enqueue<K: Kind, F: AdapterFrame>(&mut self, pool: &mut Pool<F>, at: Handle) -> Result<(), Full<Handle>> {
        let frame = pool.frame(at);
        let (len, p) = (frame.len(), frame.priority());
        let queue = key(frame.destination() & self.queue_mask, p);
        let is_apart = K::of(self).is_some_and(|extended| extended.apart.contains(p));
        if len > if is_apart { self.room_apart::<K>() } else { self.room::<K>() } {
            return Err(Full(at));
        }
        self.frames += 1;
        self.used += len;
        self.max_used = self.max_used.max(self.used);
        match K::of_mut(self) {
            None => self.only.push(pool, queue, at),
            Some(extended) => {
                extended.used_apart += if is_apart { len } else { 0 };
                self.push_prepared(pool, queue, at);
            }
        }
        Ok(())
    }

    /// Numbers a frame if frames are numbered, then chooses its link. The choice may depend on the number.
    #[inline(never)]
    fn push_prepared<F: AdapterFrame>(&mut self, pool: &mut Pool<F>, queue: u32, at: Handle) {
        let Some(extended) = &mut self.extended else { return };
        let frame = pool.frame_mut(at);
        if let Some(sequence) = &mut extended.sequence {
            sequence.number(frame);
        }
        let by_flow = extended.source.as_ref().is_some_and(|source| source.config.by_flow());
        let queue = if by_flow { frame.flow_number() << 3 | queue & 7 } else { queue };
        let (port, link) = match &mut extended.several {
            None => (0, &mut self.only),
            Some(several) => {
                let port = several.port(frame) as usize;
                let link = &mut several.links[port];
                link.used += frame.len();
                link.max_used = link.max_used.max(link.used);
                (port, link)
            }
        };
        if let Some(source) = &mut extended.source
            && source.links[port].push_held(pool, queue, at)
        {
            return;
        }
        link.push(pool, queue, at);
    }

    /// A congestion notification came in.
    pub fn on_notification<F: AdapterFrame>(&mut self, now: Instant, frame: &F) {
        let Some(message) = frame.as_notification() else { return };
        let Some(source) = self.extended.as_mut().and_then(|extended| extended.source.as_mut()) else { return };
        // The sampled frame went to the source of its notification.
        let (to, priority) = (frame.source(), message.priority);
        let queue = match source.config.by_flow() {
            true => frame.flow_number() << 3 | u32::from(priority),
            false => key(to & self.queue_mask, priority),
        };
        for (controls, &rate) in source.links.iter_mut().zip(&self.config.rate) {
            let new = || source.config.control(now, QueueName { host: source.host, to, priority }, rate);
            controls.on_notification(now, (queue, frame.path()), &message, new);
        }
        self.keep_time();
    }

    /// The rate limiters of a link: the key of each queue, its path, its rate and its target rate.
    pub fn limiters(&self, port: PortId, each: impl FnMut(u32, Path, Rate, Rate)) {
        if let Some(source) = self.extended.as_ref().and_then(|extended| extended.source.as_ref()) {
            source.links[port as usize].rates(each);
        }
    }

    /// Names the links over which a frame could be sent now.
    #[inline(always)]
    pub fn wake<K: Kind>(&self, woke: &mut PortSet) {
        if self.only.is_ready() {
            woke.insert(0);
        } else if K::of(self).is_some() {
            self.wake_several(woke);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_several(&self, woke: &mut PortSet) {
        self.links().iter().zip(0..).filter(|(link, _)| link.is_ready()).for_each(|(_, port)| woke.insert(port));
    }

    /// The next frame for a link.
    #[inline(always)]
    pub fn poll_transmit<K: Kind, F: AdapterFrame>(
        &mut self,
        now: Instant,
        port: PortId,
        pool: &mut Pool<F>,
    ) -> Option<Handle> {
        if self.only.signal.is_pending() {
            return self.poll_control(now, port, pool);
        }
        if K::of(self).is_some_and(Extended::is_managed) {
            return self.poll_transmit_managed(now, port, pool);
        }
        if !self.only.has_frames() {
            return None;
        }
        let at = self.only.pop(pool)?;
        self.leave::<K, F>(pool.frame(at));
        Some(at)
    }

    #[cold]
    #[inline(never)]
    fn poll_transmit_managed<F: AdapterFrame>(
        &mut self,
        now: Instant,
        port: PortId,
        pool: &mut Pool<F>,
    ) -> Option<Handle> {
        if self.link(port).signal.is_pending() {
            return self.poll_control(now, port, pool);
        }
        let extended = self.extended.as_mut()?;
        let at = extended.take_next(now, port as usize, &mut self.only, pool);
        self.deadline = extended.source_deadline().map_or(self.deadline, |at| self.deadline.min(at));
        let at = at?;
        self.leave::<Any, F>(pool.frame(at));
        Some(at)
    }

    /// A frame leaves the transmit buffer.
    #[inline(always)]
    fn leave<K: Kind, F: Frame>(&mut self, frame: &F) {
        self.frames -= 1;
        self.used -= frame.len();
        if let Some(extended) = K::of_mut(self)
            && extended.apart.contains(frame.priority())
        {
            extended.used_apart -= frame.len();
        }
    }

    /// The frame that the link probably sends next, for a caller that prefetches memory.
    #[inline(always)]
    pub fn front(&self) -> Handle {
        self.only.active.first().and_then(|queue| queue.list.front()).unwrap_or(Handle::NONE)
    }

    /// The address of the link's queues, for a caller that prefetches memory.
    #[inline(always)]
    pub fn address(&self) -> *const u8 {
        self.only.active.as_ptr().cast()
    }

    #[cold]
    fn poll_control<F: Frame>(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>) -> Option<Handle> {
        let config = self.config.clone();
        let pause = self.link_mut(port).poll_control::<F>(now, &config, port)?;
        self.keep_time();
        Some(pool.insert(&pause))
    }

    /// A pause frame came in over a link.
    pub fn receive_pause(&mut self, now: Instant, port: PortId, pause: &Pause) {
        let mut pause = *pause;
        pause.classes.0 &= self.config.lossless.0;
        let quantum = self.config.quantum(port);
        let link = self.link_mut(port);
        link.gate.receive(now, &pause, quantum);
        link.paused = link.gate.paused();
        self.keep_time();
    }

    /// Updates the deadline; to be called when one may have been set or cleared.
    fn keep_time(&mut self) {
        self.deadline = self.next_timeout().unwrap_or(Instant::MAX);
    }

    /// Puts a received frame in its place among its sender's frames; passes the frames that are in order to `deliver`.
    #[inline(never)]
    pub fn resequence<F: AdapterFrame>(
        &mut self,
        now: Instant,
        pool: &Pool<F>,
        at: Handle,
        deliver: &mut impl FnMut(Handle),
    ) {
        let frame = pool.frame(at);
        let p = frame.priority();
        // A frame in the host's memory takes no room in the receive buffer, so that its wait stops no link.
        let is_placed = frame.is_placed();
        let len = if is_placed { 0 } else { frame.len() };
        let is_late = is_placed && self.config.lossless.contains(p);
        let room = self.capacity(p).saturating_sub(self.received_bytes[p as usize]);
        let Some(sequence) = self.extended.as_mut().and_then(|extended| extended.sequence.as_mut()) else {
            return deliver(at);
        };
        let until = now + if is_late { sequence.patience.placed } else { sequence.patience.buffered };
        let r = sequence.of_sender(frame);
        let ahead = frame.serial().wrapping_sub(r.next) as i16;
        if ahead < 0 {
            // Its place was given up: the frame is late, not lost.
            deliver(at);
            return;
        }
        if ahead == 0 {
            r.next = r.next.wrapping_add(1);
            deliver(at);
            let bytes = r.release(deliver);
            return self.discharge(p, bytes);
        }
        let index = r.early.partition_point(|e| (e.serial.wrapping_sub(frame.serial()) as i16) < 0);
        r.early.insert(index, Early { serial: frame.serial(), len, until, frame: at });
        r.deadline = r.deadline.min(until);
        self.deadline = self.deadline.min(r.deadline);
        // When the buffer is full, or too many frames are early, the missing frames are given up.
        let crowded = r.is_crowded(is_placed) || len > room;
        self.charge(p, len);
        if crowded && let Some(sequence) = self.extended.as_mut().and_then(|extended| extended.sequence.as_mut()) {
            let bytes = sequence.of_sender(frame).give_up(deliver);
            self.discharge(p, bytes);
        }
    }

    /// Bytes of a priority the receive buffer holds.
    fn capacity(&self, p: Priority) -> u32 {
        if self.config.lossless.contains(p) { self.config.marks.capacity } else { self.config.buffer }
    }

    /// Bytes enter the receive buffer; above XOFF the other ends are stopped.
    fn charge(&mut self, p: Priority, len: u32) {
        self.received_bytes[p as usize] += len;
        if self.config.lossless.contains(p) {
            let (marks, bytes) = (self.config.marks, self.received_bytes[p as usize]);
            let stops = |told, l: &mut Link| l.signal.on_rise(p, bytes, &marks) == Some(Rise::Stopped) || told;
            if self.links_mut().iter_mut().fold(false, stops) {
                self.told.push((p, true));
            }
        }
    }

    /// Bytes leave the receive buffer; below XON the other ends go on.
    fn discharge(&mut self, p: Priority, len: u32) {
        self.received_bytes[p as usize] -= len;
        if self.config.lossless.contains(p) {
            let (marks, bytes) = (self.config.marks, self.received_bytes[p as usize]);
            if self.links_mut().iter_mut().fold(false, |told, l| l.signal.on_fall(p, bytes, &marks) | told) {
                self.told.push((p, false));
            }
        }
    }

    /// Keeps a frame that the host has no room for; `Err` when the receive buffer is full too.
    pub fn stall<F: AdapterFrame>(&mut self, pool: &Pool<F>, at: Handle) -> Result<(), Full<Handle>> {
        let frame = pool.frame(at);
        let (p, len) = (frame.priority(), frame.len());
        if self.received_bytes[p as usize] + len > self.capacity(p) {
            return Err(Full(at));
        }
        self.stalled.push_back(at);
        self.charge(p, len);
        Ok(())
    }

    /// The first frame that waits for the host.
    pub fn stalled(&self) -> Option<Handle> {
        self.stalled.front().copied()
    }

    /// Takes the first frame that waits for the host.
    pub fn take_stalled<F: AdapterFrame>(&mut self, pool: &Pool<F>) -> Option<Handle> {
        let at = self.stalled.pop_front()?;
        let frame = pool.frame(at);
        self.discharge(frame.priority(), frame.len());
        Some(at)
    }

    /// The earliest deadline. It may be too early.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.deadline != Instant::MAX).then_some(self.deadline)
    }

    #[inline(never)]
    fn next_timeout(&self) -> Option<Instant> {
        let extended = self.extended.as_ref();
        let early = extended.and_then(|extended| extended.deadline());
        let source = extended.and_then(|extended| extended.source_deadline());
        let links = self.links().iter().flat_map(|l| [l.gate.poll_timeout(), l.signal.poll_timeout()]);
        links.chain([early, source]).flatten().min()
    }

    /// A deadline passed.
    pub fn handle_timeout(&mut self, now: Instant, deliver: &mut impl FnMut(Handle)) {
        for link in self.links_mut() {
            if !link.gate.handle_timeout(now).is_empty() {
                link.paused = link.gate.paused();
            }
            link.signal.handle_timeout(now);
        }
        if let Some(extended) = &mut self.extended {
            extended.release_held(now, &mut self.only);
        }
        if let Some(sequence) = self.extended.as_mut().and_then(|extended| extended.sequence.as_mut()) {
            let released = sequence.give_up(now, deliver);
            for (p, bytes) in released.into_iter().enumerate().filter(|&(_, bytes)| bytes > 0) {
                self.discharge(p as Priority, bytes);
            }
        }
        self.keep_time();
    }
}
