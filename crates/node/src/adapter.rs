//! The network adapter: a virtual output queue for each destination, flow control towards the wire, a resequencing
//! buffer on receipt (Crisan 2014, 2.5.2).
//!
//! With several links one transmit buffer and one receive buffer serve them all; queues and flow control are each
//! link's own. A frame is given its link when it enters.

use crate::door::{PortId, PortSet};
use crate::pool::{Fifo, Handle, Pool};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Signal, Watermarks};
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::Full;
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::{Duration, Instant};

/// How frames wait for the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// A virtual output queue for each destination and priority, served in turn.
    Voq,
    /// One queue for each priority.
    Fifo,
}

/// Settings of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    /// Buffer in bytes, as much again for receipt.
    pub buffer: u32,
    /// How frames wait for the wire.
    pub queueing: Queueing,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Pause time sent with XOFF, in quanta.
    pub quanta: u16,
    /// Time of one pause quantum on each link.
    pub quantum: Vec<Duration>,
    /// Watermarks of the receive buffer; above XOFF it holds what all links still bring.
    pub marks: Watermarks,
    /// How long a frame waits for an earlier one; no resequencing without it.
    pub resequencing: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Voq {
    key: u32,
    list: Fifo,
}

/// A frame that came before one that was sent before it.
#[derive(Clone, Copy, Debug)]
struct Early {
    serial: u16,
    len: u32,
    since: Instant,
    frame: Handle,
}

/// Frames of one sender and priority that came too early, by serial.
#[derive(Clone, Debug)]
struct Resequencer {
    next: u16,
    early: Vec<Early>,
    /// When the one that waits longest has waited long enough.
    deadline: Instant,
}

/// Most frames that wait for an earlier one of the same sender; then the earlier one is given up.
const MAX_EARLY: usize = 1024;

/// Serial numbers of frames between two adapters, kept only where paths can reorder.
pub trait Serial: Frame {
    /// The number.
    fn serial(&self) -> u16;
    /// Sets the number.
    fn set_serial(&mut self, serial: u16);
}

/// A link of an adapter: what waits for it, and its flow control. What every frame touches stands in front.
#[derive(Clone, Debug, Default)]
#[repr(C)]
struct Link {
    /// Queues with frames, the one to be served next in front.
    active: VecDeque<Voq>,
    ready_set: PrioritySet,
    held: PrioritySet,
    signal: Signal,
    /// Queues with frames, by priority.
    ready: [u32; PRIORITIES],
    control_out: u64,
    gate: Gate,
    /// Bytes in its queues, the most there ever were, and frames taken out; not kept where it is the only link.
    used: u32,
    max_used: u32,
    frames_out: u64,
}

/// Several links, and who chooses among them.
#[derive(Clone, Debug)]
struct Several {
    router: Router,
    links: Vec<Link>,
}

/// An adapter. What every frame touches stands in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Adapter {
    config: Arc<AdapterConfig>,
    /// Bytes in the transmit queues.
    used: u32,
    max_used: u32,
    /// Received frames that the host has no room for.
    stalled: VecDeque<Handle>,
    /// None with one link, which nearly every host has.
    several: Option<Box<Several>>,
    /// Whether a link is held or pauses its other end, or a frame has come early: otherwise nothing has a deadline.
    timed: bool,
    /// Whether a frame that enters is numbered or given one of several links.
    prepares: bool,
    /// Frames in the transmit queues.
    frames: u32,
    /// The link, where there is one. Where there are several it stays empty, so that whether there are is asked only where
    /// it has nothing to send.
    only: Link,
    early: BTreeMap<u32, Resequencer>,
    /// Bytes in the receive buffer: frames that wait for the host or for an earlier frame.
    received_bytes: [u32; PRIORITIES],
    serials: BTreeMap<u32, u16>,
}

fn key(host: HostId, priority: Priority) -> u32 {
    host << 3 | priority as u32
}

impl Link {
    /// Whether one of its frames may be sent now.
    #[inline(always)]
    fn has_frames(&self) -> bool {
        self.ready_set.0 & !self.held.0 != 0
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        self.has_frames() || self.signal.is_due()
    }

    /// Appends a frame to its queue.
    #[inline(always)]
    fn push<F: Frame>(&mut self, pool: &mut Pool<F>, key: u32, at: Handle) {
        let voq = match self.active.iter().position(|v| v.key == key) {
            Some(i) => &mut self.active[i],
            None => {
                let p = (key & 7) as u8;
                self.ready[p as usize] += 1;
                self.ready_set.insert(p);
                self.active.push_back(Voq { key, list: Fifo::default() });
                self.active.back_mut().expect("a queue was just added")
            }
        };
        pool.push(&mut voq.list, at, 0);
    }

    /// Takes the next of its frames that may be sent, of which there must be one.
    #[inline(always)]
    fn pop<F: Frame>(&mut self, pool: &mut Pool<F>) -> Option<Handle> {
        // A queue of a held priority lets the next one go first and keeps its place in the round.
        let mut turn = 0;
        while self.held.contains((self.active[turn].key & 7) as u8) {
            turn += 1;
        }
        let voq = &mut self.active[turn];
        let (at, _) = pool.pop(&mut voq.list)?;
        if voq.list.is_empty() {
            let p = (voq.key & 7) as u8;
            self.active.remove(turn);
            self.ready[p as usize] -= 1;
            if self.ready[p as usize] == 0 {
                self.ready_set.remove(p);
            }
        } else if turn + 1 < self.active.len()
            && let Some(voq) = self.active.remove(turn)
        {
            self.active.push_back(voq);
        }
        Some(at)
    }

    fn poll_control<F: Frame>(&mut self, now: Instant, config: &AdapterConfig, port: PortId) -> Option<F> {
        let lasts = config.quantum[port as usize].saturating_mul(config.quanta as u64);
        let pause = self.signal.poll(now, config.quanta, lasts)?;
        self.control_out += 1;
        Some(F::from_pause(pause))
    }

    fn has_deadline(&self) -> bool {
        !self.held.is_empty() || self.signal.poll_timeout().is_some()
    }
}

impl Adapter {
    /// An adapter with nothing in it, with as many links as its settings have quanta; `router` chooses among several.
    pub fn new(config: Arc<AdapterConfig>, router: Option<Router>) -> Adapter {
        let links = config.quantum.len();
        assert!(links > 0 && (links > 1) == router.is_some(), "{links} links, {router:?}");
        let several = router.map(|router| Box::new(Several { router, links: alloc::vec![Link::default(); links] }));
        Adapter {
            prepares: several.is_some() || config.resequencing.is_some(),
            config,
            used: 0,
            max_used: 0,
            stalled: VecDeque::new(),
            several,
            timed: false,
            frames: 0,
            only: Link::default(),
            early: BTreeMap::new(),
            received_bytes: [0; PRIORITIES],
            serials: BTreeMap::new(),
        }
    }

    /// How many links it has.
    pub fn ports(&self) -> usize {
        self.config.quantum.len()
    }
    /// Free bytes of the transmit buffer.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.config.buffer - self.used
    }
    /// Most bytes that ever waited for a link.
    pub fn max_used(&self, port: PortId) -> u32 {
        self.several.as_ref().map_or(self.max_used, |s| s.links[port as usize].max_used)
    }
    /// Bytes that wait for a link.
    pub fn used(&self, port: PortId) -> u32 {
        self.several.as_ref().map_or(self.used, |s| s.links[port as usize].used)
    }
    /// Frames given to a link, pause frames included; not counted with one link.
    pub fn sent(&self, port: PortId) -> Option<u64> {
        let link = &self.several.as_ref()?.links[port as usize];
        Some(link.frames_out + link.control_out)
    }
    /// Frames that wait, for the wire or for the host.
    pub fn queued(&self) -> u64 {
        let early: usize = self.early.values().map(|r| r.early.len()).sum();
        self.frames as u64 + self.stalled.len() as u64 + early as u64
    }
    /// The gate towards a link.
    pub fn gate(&self, port: PortId) -> &Gate {
        &self.link(port).gate
    }
    /// What the receive buffer told the other end of a link.
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
    /// Priorities for which the receive buffer holds back the other ends, all of them alike.
    pub fn stopped(&self) -> PrioritySet {
        self.links()[0].signal.stopped()
    }

    /// Time that frames like `frame` have been held up to `now`: of their link, or the mean of links they take in turn.
    pub fn held_time<F: Frame>(&self, now: Instant, priority: Priority, frame: impl FnOnce() -> F) -> Duration {
        match &self.several {
            None => self.only.gate.held_time(now, priority),
            Some(several) => self.held_time_of_several(now, priority, several, &frame()),
        }
    }

    #[cold]
    fn held_time_of_several<F: Frame>(
        &self,
        now: Instant,
        priority: Priority,
        several: &Several,
        frame: &F,
    ) -> Duration {
        if several.router.divides_flows() {
            let total: u64 = self.links().iter().map(|l| l.gate.held_time(now, priority).0).sum();
            return Duration(total / self.ports() as u64);
        }
        self.link(several.port(frame)).gate.held_time(now, priority)
    }

    fn links(&self) -> &[Link] {
        self.several.as_ref().map_or(core::slice::from_ref(&self.only), |s| &s.links)
    }

    fn links_mut(&mut self) -> &mut [Link] {
        match &mut self.several {
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
    pub fn enqueue<F: Serial>(&mut self, pool: &mut Pool<F>, at: Handle) -> Result<(), Full<Handle>> {
        let frame = pool.frame(at);
        let len = frame.len();
        if len > self.room() {
            return Err(Full(at));
        }
        self.frames += 1;
        self.used += len;
        self.max_used = self.max_used.max(self.used);
        let p = frame.priority();
        let queue = match self.config.queueing {
            Queueing::Voq => key(frame.destination(), p),
            Queueing::Fifo => key(0, p),
        };
        if self.prepares {
            self.push_prepared(pool, queue, at);
        } else {
            self.only.push(pool, queue, at);
        }
        Ok(())
    }

    /// Numbers a frame where that is done, then chooses its link, which may hang on the number.
    #[cold]
    #[inline(never)]
    fn push_prepared<F: Serial>(&mut self, pool: &mut Pool<F>, queue: u32, at: Handle) {
        let frame = pool.frame_mut(at);
        if self.config.resequencing.is_some() {
            let next = self.serials.entry(key(frame.destination(), frame.priority())).or_default();
            frame.set_serial(*next);
            *next = next.wrapping_add(1);
        }
        let Some(several) = &mut self.several else { return self.only.push(pool, queue, at) };
        let port = several.port(frame);
        let link = &mut several.links[port as usize];
        link.used += frame.len();
        link.max_used = link.max_used.max(link.used);
        link.push(pool, queue, at);
    }

    /// Names the links over which a frame could be sent now.
    #[inline(always)]
    pub fn wake(&self, woke: &mut PortSet) {
        if self.only.is_ready() {
            woke.insert(0);
        } else if self.several.is_some() {
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
    pub fn poll_transmit<F: Serial>(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>) -> Option<Handle> {
        if self.only.signal.is_due() {
            return self.poll_control(now, port, pool);
        }
        if !self.only.has_frames() {
            return self.poll_transmit_of_several(now, port, pool);
        }
        let at = self.only.pop(pool)?;
        self.frames -= 1;
        self.used -= pool.frame(at).len();
        Some(at)
    }

    #[cold]
    #[inline(never)]
    fn poll_transmit_of_several<F: Frame>(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>) -> Option<Handle> {
        let link = &mut self.several.as_mut()?.links[port as usize];
        if link.signal.is_due() {
            return self.poll_control(now, port, pool);
        }
        if !link.has_frames() {
            return None;
        }
        let at = link.pop(pool)?;
        let len = pool.frame(at).len();
        link.used -= len;
        link.frames_out += 1;
        self.frames -= 1;
        self.used -= len;
        Some(at)
    }

    /// The frame that will probably be sent next over a link.
    #[inline(always)]
    pub fn upcoming(&self, port: PortId) -> Option<Handle> {
        self.link(port).active.front()?.list.front()
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
        let quantum = self.config.quantum[port as usize];
        let link = self.link_mut(port);
        link.gate.receive(now, &pause, quantum);
        link.held = link.gate.held();
        self.keep_time();
    }

    /// To be called when a deadline may have come or gone.
    fn keep_time(&mut self) {
        self.timed = !self.early.is_empty() || self.links().iter().any(Link::has_deadline);
    }

    /// Puts a received frame in its place among those of its sender; hands out by `deliver` what is in order.
    #[inline(always)]
    pub fn resequence<F: Serial>(
        &mut self,
        now: Instant,
        pool: &Pool<F>,
        at: Handle,
        deliver: &mut impl FnMut(Handle),
    ) {
        match self.config.resequencing {
            None => deliver(at),
            Some(patience) => self.resequence_slowly(now, pool.frame(at), at, patience, deliver),
        }
    }

    #[inline(never)]
    fn resequence_slowly<F: Serial>(
        &mut self,
        now: Instant,
        frame: &F,
        at: Handle,
        patience: Duration,
        deliver: &mut impl FnMut(Handle),
    ) {
        let p = frame.priority();
        let r = self.early.entry(key(frame.source(), p)).or_insert_with(|| Resequencer {
            next: 0,
            early: Vec::new(),
            deadline: Instant::MAX,
        });
        self.timed = true;
        let ahead = frame.serial().wrapping_sub(r.next) as i16;
        if ahead < 0 {
            // Its place was given up; it is late, not lost.
            deliver(at);
            return;
        }
        if ahead == 0 {
            r.next = r.next.wrapping_add(1);
            deliver(at);
            let bytes = r.release(patience, deliver);
            return self.discharge(p, bytes);
        }
        let len = frame.len();
        let place = r.early.partition_point(|e| (e.serial.wrapping_sub(frame.serial()) as i16) < 0);
        r.early.insert(place, Early { serial: frame.serial(), len, since: now, frame: at });
        r.deadline = r.deadline.min(now + patience);
        // Without room for it, or with too many, the missing ones are waited for no longer.
        let crowded = r.early.len() > MAX_EARLY || self.received_bytes[p as usize] + len > self.capacity(p);
        self.charge(p, len);
        if crowded && let Some(r) = self.early.get_mut(&key(frame.source(), p)) {
            let bytes = r.give_up(patience, deliver);
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
            self.links_mut().iter_mut().for_each(|l| _ = l.signal.on_rise(p, bytes, &marks));
        }
    }

    /// Bytes leave the receive buffer; below XON the other ends go on.
    fn discharge(&mut self, p: Priority, len: u32) {
        self.received_bytes[p as usize] -= len;
        if self.config.lossless.contains(p) {
            let (marks, bytes) = (self.config.marks, self.received_bytes[p as usize]);
            self.links_mut().iter_mut().for_each(|l| _ = l.signal.on_fall(p, bytes, &marks));
        }
    }

    /// Keeps a frame that the host has no room for; `Err` when the receive buffer is full too.
    pub fn stall<F: Serial>(&mut self, pool: &Pool<F>, at: Handle) -> Result<(), Full<Handle>> {
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
    pub fn take_stalled<F: Serial>(&mut self, pool: &Pool<F>) -> Option<Handle> {
        let at = self.stalled.pop_front()?;
        let frame = pool.frame(at);
        self.discharge(frame.priority(), frame.len());
        Some(at)
    }

    /// The earliest deadline.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.timed {
            return None;
        }
        self.next_timeout()
    }

    #[inline(never)]
    fn next_timeout(&self) -> Option<Instant> {
        let early = self.early.values().map(|r| r.deadline).min().filter(|&d| d != Instant::MAX);
        let links = self.links().iter().flat_map(|l| [l.gate.poll_timeout(), l.signal.poll_timeout()]);
        links.chain([early]).flatten().min()
    }

    /// A deadline passed.
    pub fn handle_timeout(&mut self, now: Instant, deliver: &mut impl FnMut(Handle)) {
        for link in self.links_mut() {
            if !link.gate.handle_timeout(now).is_empty() {
                link.held = link.gate.held();
            }
            link.signal.handle_timeout(now);
        }
        if let Some(patience) = self.config.resequencing {
            let mut released = [0; PRIORITIES];
            for (key, r) in self.early.iter_mut().filter(|(_, r)| r.deadline <= now) {
                while r.deadline <= now {
                    released[(key & 7) as usize] += r.give_up(patience, deliver);
                }
            }
            for (p, bytes) in released.into_iter().enumerate().filter(|&(_, bytes)| bytes > 0) {
                self.discharge(p as Priority, bytes);
            }
        }
        self.keep_time();
    }
}

impl Several {
    /// The link of a frame.
    fn port<F: Frame>(&self, frame: &F) -> PortId {
        // What has no way is dropped by name where that is done, in the switch.
        self.router.route(frame).unwrap_or(0)
    }
}

impl Resequencer {
    /// Hands out the frames that follow without a hole; returns their bytes.
    fn release(&mut self, patience: Duration, deliver: &mut impl FnMut(Handle)) -> u32 {
        let follows = |(i, e): &(usize, &Early)| e.serial == self.next.wrapping_add(*i as u16);
        let run = self.early.iter().enumerate().take_while(follows).count();
        self.next = self.next.wrapping_add(run as u16);
        let mut bytes = 0;
        for e in self.early.drain(..run) {
            bytes += e.len;
            deliver(e.frame);
        }
        self.deadline = self.early.iter().map(|e| e.since).min().map_or(Instant::MAX, |since| since + patience);
        bytes
    }

    /// Stops waiting for the missing frames before the first early one.
    fn give_up(&mut self, patience: Duration, deliver: &mut impl FnMut(Handle)) -> u32 {
        if let Some(e) = self.early.first() {
            self.next = e.serial;
        }
        self.release(patience, deliver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use alloc::vec;
    use sluicenet_proto::rng::Rng;
    use sluicenet_proto::routing::Policy;
    use sluicenet_proto::routing::tree::TreeRouter;
    use sluicenet_proto::routing::xgft::Xgft;

    fn config(queueing: Queueing, resequencing: Option<Duration>) -> Arc<AdapterConfig> {
        Arc::new(AdapterConfig {
            buffer: 10_000,
            queueing,
            lossless: PrioritySet::ALL,
            quanta: 100,
            quantum: alloc::vec![Duration(51_200)],
            marks: Watermarks { xoff: 5_000, xon: 3_000, capacity: 8_000 },
            resequencing,
        })
    }

    fn frame(dst: u32, n: u64, priority: u8) -> Packet {
        let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(dst, 0), sport: 1, dport: 1 };
        Packet::udp(flow, n, 954, priority, Framing::ETHERNET)
    }

    #[test]
    fn destinations_take_turns() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
        for (dst, n) in [(7, 0), (7, 1), (7, 2), (8, 3), (9, 4)] {
            let at = pool.insert(&frame(dst, n, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        let mut next = || a.poll_transmit(Instant(0), 0, &mut pool).map(|at| pool.frame(at).udp_offset());
        let order: Vec<u64> = core::iter::from_fn(&mut next).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
        let mut woke = PortSet::default();
        a.wake(&mut woke);
        assert!(woke.is_empty() && a.room() == 10_000);
    }

    #[test]
    fn a_held_priority_waits_and_the_others_go() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Fifo, None), None), Pool::default());
        for (n, priority) in [(0, 3), (1, 4)] {
            let at = pool.insert(&frame(7, n, priority));
            a.enqueue(&mut pool, at).unwrap();
        }
        let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
        pause.quanta[3] = 2;
        a.receive_pause(Instant(0), 0, &pause);
        let at = a.poll_transmit(Instant(0), 0, &mut pool).unwrap();
        assert_eq!(pool.frame(at).udp_offset(), 1);
        assert!(a.poll_transmit(Instant(0), 0, &mut pool).is_none());
        let mut none = |_| panic!();
        a.handle_timeout(a.poll_timeout().unwrap(), &mut none);
        let at = a.poll_transmit(Instant(0), 0, &mut pool).unwrap();
        assert_eq!(pool.frame(at).udp_offset(), 0);
    }

    #[test]
    fn a_full_buffer_hands_the_frame_back() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
        for n in 0..10 {
            let at = pool.insert(&frame(n, n as u64, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        let at = pool.insert(&frame(1, 99, 0));
        assert_eq!(a.enqueue(&mut pool, at), Err(Full(at)));
    }

    #[test]
    fn a_stalled_host_stops_the_wire_and_frees_it() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None), None), Pool::default());
        for n in 0..6 {
            let at = pool.insert(&frame(1, n, 2));
            a.stall(&pool, at).unwrap();
        }
        let pause = |a: &mut Adapter, pool: &mut Pool<Packet>| {
            let at = a.poll_transmit(Instant(0), 0, pool).unwrap();
            pool.frame(at).as_pause().unwrap()
        };
        let xoff = pause(&mut a, &mut pool);
        assert_eq!((xoff.classes, xoff.quanta[2]), (PrioritySet(4), 100));
        for n in 0..3 {
            let at = a.take_stalled(&pool).unwrap();
            assert_eq!(pool.frame(at).udp_offset(), n);
        }
        let xon = pause(&mut a, &mut pool);
        assert_eq!((xon.classes, xon.quanta[2]), (PrioritySet(4), 0));
    }

    /// An adapter of host 1 with so many links, each to an edge switch of its own.
    fn with_links(links: u32, policy: Policy, resequencing: Option<Duration>) -> Adapter {
        let tree = Xgft::new(&[16], &[links]).unwrap();
        let router = Router::Tree(TreeRouter::of_leaf(&tree, 1, policy, 7, &[]));
        let mut config = (*config(Queueing::Voq, resequencing)).clone();
        config.quantum = (1..=links as u64).map(|n| Duration(n * 51_200)).collect();
        Adapter::new(Arc::new(config), Some(router))
    }

    fn ready(a: &Adapter) -> Vec<PortId> {
        let mut woke = PortSet::default();
        a.wake(&mut woke);
        let mut ports: Vec<PortId> = core::iter::from_fn(|| woke.pop()).collect();
        ports.sort_unstable();
        ports
    }

    #[test]
    fn links_share_the_buffer_and_each_serves_its_own_frames() {
        let (mut a, mut pool) = (with_links(2, Policy::DModK, None), Pool::default());
        for (n, dst) in [6, 7, 8, 6, 9].into_iter().enumerate() {
            let at = pool.insert(&frame(dst, n as u64, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        assert_eq!((a.room(), a.used(0), a.used(1), ready(&a)), (5_000, 3_000, 2_000, vec![0, 1]));
        let mut sent = |port| {
            core::iter::from_fn(|| a.poll_transmit(Instant(0), port, &mut pool).map(|at| pool.frame(at).udp_offset()))
                .collect::<Vec<u64>>()
        };
        // Destinations mod 2, taking turns on each link.
        assert_eq!((sent(1), sent(0)), (vec![1, 4], vec![0, 2, 3]));
        assert_eq!((a.room(), a.used(0), a.max_used(0), a.max_used(1)), (10_000, 0, 3_000, 2_000));
        assert_eq!((a.sent(0), a.sent(1), ready(&a)), (Some(3), Some(2), vec![]));
    }

    #[test]
    fn a_pause_stops_its_own_link_for_its_own_quanta() {
        let (mut a, mut pool) = (with_links(2, Policy::DModK, None), Pool::default());
        for dst in [6, 7] {
            let at = pool.insert(&frame(dst, dst as u64, 3));
            a.enqueue(&mut pool, at).unwrap();
        }
        let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
        pause.quanta[3] = 2;
        a.receive_pause(Instant(0), 1, &pause);
        assert_eq!(ready(&a), [0]);
        assert!(a.poll_transmit(Instant(0), 1, &mut pool).is_none());
        assert!(a.poll_transmit(Instant(0), 0, &mut pool).is_some());
        // Two quanta of the second link, which is slower.
        let end = Instant(2 * 102_400);
        assert_eq!(a.poll_timeout(), Some(end));
        a.handle_timeout(end, &mut |_| panic!());
        assert_eq!((ready(&a), a.poll_timeout()), (vec![1], None));
        assert!(a.poll_transmit(end, 1, &mut pool).is_some());
        assert_eq!((a.gate(0).stops(), a.gate(1).stops(), a.control_in()), (0, 1, 1));
        let held = |dst: u32| a.held_time(end, 3, || frame(dst, 0, 3));
        assert_eq!((held(6), held(7)), (Duration::ZERO, Duration(2 * 102_400)));
    }

    #[test]
    fn a_stalled_host_stops_every_link_and_refreshes_each() {
        let (mut a, mut pool) = (with_links(3, Policy::Hash, None), Pool::default());
        for n in 0..6 {
            let at = pool.insert(&frame(1, n, 2));
            a.stall(&pool, at).unwrap();
        }
        assert_eq!(ready(&a), [0, 1, 2]);
        let mut pause = |a: &mut Adapter, now: Instant, port: PortId| {
            let at = a.poll_transmit(now, port, &mut pool).unwrap();
            pool.frame(at).as_pause().unwrap().quanta[2]
        };
        assert_eq!([0, 1].map(|port| pause(&mut a, Instant(0), port)), [100, 100]);
        assert_eq!((ready(&a), a.poll_timeout()), (vec![2], Some(Instant(50 * 51_200))));
        assert_eq!(pause(&mut a, Instant(0), 2), 100);
        let first = a.poll_timeout().unwrap();
        a.handle_timeout(first, &mut |_| panic!());
        // Half the time of 100 quanta, which is each link's own.
        assert_eq!((ready(&a), a.poll_timeout()), (vec![0], Some(Instant(100 * 51_200))));
        assert_eq!(pause(&mut a, first, 0), 100);
        assert_eq!([0, 1, 2].map(|port| (a.signal(port).stops(), a.signal(port).sent())), [(1, 2), (1, 1), (1, 1)]);
    }

    #[test]
    fn frames_of_links_in_turn_are_numbered_as_they_enter() {
        let (mut a, mut pool) = (with_links(3, Policy::Random, Some(Duration::from_us(100))), Pool::default());
        for n in 0..10 {
            let at = pool.insert(&frame(7, n, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        let used = [0, 1, 2].map(|port| a.used(port));
        assert!(used.iter().sum::<u32>() == 10_000 && used.iter().all(|&u| u > 0), "{used:?}");
        for port in [2, 0, 1] {
            while let Some(at) = a.poll_transmit(Instant(0), port, &mut pool) {
                assert_eq!(pool.frame(at).serial() as u64, pool.frame(at).udp_offset());
            }
        }
        assert_eq!(a.room(), 10_000);
    }

    #[test]
    fn frames_come_out_in_order_whatever_path_they_took() {
        let patience = Duration::from_us(100);
        let mut rng = Rng::from_words(&[3]);
        for case in 0..50 {
            let mut roomy = config(Queueing::Voq, Some(patience));
            Arc::make_mut(&mut roomy).marks.capacity = 1_000_000;
            let (mut a, mut pool) = (Adapter::new(roomy, None), Pool::default());
            let mut frames: Vec<Packet> = (0..500u64)
                .map(|n| {
                    let mut f = frame(1, n, 0);
                    f.set_serial(n as u16);
                    f
                })
                .collect();
            for i in 0..frames.len() {
                let j = (i + rng.below(20) as usize).min(frames.len() - 1);
                frames.swap(i, j);
            }
            let lost = (case % 2 == 1).then(|| rng.below(500));
            let mut seen = Vec::new();
            let mut now = Instant(0);
            for f in frames.into_iter().filter(|f| Some(f.udp_offset()) != lost) {
                now += Duration::from_us(1);
                let at = pool.insert(&f);
                a.resequence(now, &pool, at, &mut |at| seen.push(at));
            }
            while let Some(at) = a.poll_timeout() {
                a.handle_timeout(at, &mut |at| seen.push(at));
            }
            assert_eq!(a.received_bytes, [0; PRIORITIES]);
            let seen: Vec<u64> = seen.into_iter().map(|at| pool.frame(at).udp_offset()).collect();
            let expected: Vec<u64> = (0..500).filter(|&n| Some(n) != lost).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn no_frame_waits_longer_than_it_may() {
        let patience = Duration::from_us(100);
        let mut pool = Pool::default();
        let mut a = Adapter::new(config(Queueing::Voq, Some(patience)), None);
        let mut came = Vec::new();
        // Every other frame is lost: each one that comes has a hole of its own before it.
        for n in 0..8u16 {
            let mut f = frame(1, n as u64, 0);
            f.set_serial(2 * n + 1);
            let at = pool.insert(&f);
            let now = Instant(0) + Duration::from_us(20 * n as u64);
            while let Some(due) = a.poll_timeout().filter(|&due| due <= now) {
                a.handle_timeout(due, &mut |at| came.push((due, pool.frame(at).udp_offset())));
            }
            a.resequence(now, &pool, at, &mut |at| came.push((now, pool.frame(at).udp_offset())));
        }
        while let Some(due) = a.poll_timeout() {
            a.handle_timeout(due, &mut |at| came.push((due, pool.frame(at).udp_offset())));
        }
        let expected: Vec<_> = (0..8).map(|n| (Instant(0) + Duration::from_us(20 * n + 100), n)).collect();
        assert_eq!(came, expected);
    }

    #[test]
    fn frames_that_wait_for_an_earlier_one_fill_the_buffer_and_stop_the_wire() {
        let mut pool = Pool::default();
        let mut a = Adapter::new(config(Queueing::Voq, Some(Duration::from_ms(1))), None);
        let mut came = Vec::new();
        for n in 1..=8u16 {
            let mut f = frame(1, n as u64, 2);
            f.set_serial(n);
            let at = pool.insert(&f);
            a.resequence(Instant(0), &pool, at, &mut |at| came.push(at));
        }
        // 8 frames of 1,000 B: XOFF at 5,000, all of 8,000 in use, nothing given up.
        assert!(came.is_empty() && a.stopped().contains(2));
        let at = pool.insert(&frame(1, 0, 2));
        a.resequence(Instant(0), &pool, at, &mut |at| came.push(at));
        assert_eq!((came.len(), a.received_bytes[2]), (9, 0));
        assert!(!a.stopped().contains(2));
    }
}
