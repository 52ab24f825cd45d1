//! The network adapter: a virtual output queue for each destination, flow control towards the wire, a resequencing
//! buffer on receipt (Crisan 2014, 2.5.2).

use crate::pool::{Fifo, Handle, Pool};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Signal, Watermarks};
use sluicenet_proto::frame::{Frame, HostId, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::Full;
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
    /// Time of one pause quantum on this link.
    pub quantum: Duration,
    /// Watermarks of the receive buffer.
    pub marks: Watermarks,
    /// How long a frame waits for an earlier one; no resequencing without it.
    pub resequencing: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Voq {
    key: u32,
    list: Fifo,
}

/// Frames of one sender and priority that came too early.
#[derive(Clone, Debug)]
struct Resequencer {
    next: u16,
    early: Vec<(u16, Handle)>,
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

/// An adapter with one wire. What every frame touches stands in front.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Adapter {
    config: Arc<AdapterConfig>,
    /// Queues with frames, the one to be served next in front.
    active: VecDeque<Voq>,
    /// Frames in those queues, and their bytes.
    frames: u32,
    used: u32,
    max_used: u32,
    ready_set: PrioritySet,
    held: PrioritySet,
    signal: Signal,
    early: BTreeMap<u32, Resequencer>,
    /// Received frames that the host has no room for.
    stalled: VecDeque<Handle>,
    /// Queues with frames, by priority.
    ready: [u32; PRIORITIES],
    stalled_bytes: [u32; PRIORITIES],
    control_out: u64,
    serials: BTreeMap<u32, u16>,
    gate: Gate,
}

fn key(host: HostId, priority: Priority) -> u32 {
    host << 3 | priority as u32
}

impl Adapter {
    /// An adapter with nothing in it.
    pub fn new(config: Arc<AdapterConfig>) -> Adapter {
        Adapter {
            config,
            active: VecDeque::new(),
            ready: [0; PRIORITIES],
            ready_set: PrioritySet::NONE,
            held: PrioritySet::NONE,
            frames: 0,
            used: 0,
            max_used: 0,
            stalled: VecDeque::new(),
            stalled_bytes: [0; PRIORITIES],
            gate: Gate::default(),
            signal: Signal::default(),
            control_out: 0,
            serials: BTreeMap::new(),
            early: BTreeMap::new(),
        }
    }

    /// Free bytes of the transmit buffer.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.config.buffer - self.used
    }
    /// Most bytes that ever waited for the wire.
    pub fn max_used(&self) -> u32 {
        self.max_used
    }
    /// Bytes that wait for the wire.
    pub fn used(&self) -> u32 {
        self.used
    }
    /// Frames that wait, for the wire or for the host.
    pub fn queued(&self) -> u64 {
        let early: usize = self.early.values().map(|r| r.early.len()).sum();
        self.frames as u64 + self.stalled.len() as u64 + early as u64
    }
    /// The gate towards the wire.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }
    /// What the receive buffer told the other end.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }
    /// Pause frames sent.
    pub fn control_out(&self) -> u64 {
        self.control_out
    }

    /// Queues a frame for the wire, or hands it back.
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
        let key = match self.config.queueing {
            Queueing::Voq => key(frame.destination(), p),
            Queueing::Fifo => key(0, p),
        };
        let voq = match self.active.iter().position(|v| v.key == key) {
            Some(i) => &mut self.active[i],
            None => {
                self.ready[p as usize] += 1;
                self.ready_set.insert(p);
                self.active.push_back(Voq { key, list: Fifo::default() });
                self.active.back_mut().expect("a queue was just added")
            }
        };
        pool.push(&mut voq.list, at, 0);
        Ok(())
    }

    /// Whether a frame could be sent now.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.ready_set.0 & !self.held.0 != 0 || self.signal.is_due()
    }

    /// The next frame for the wire.
    #[inline(always)]
    pub fn poll_transmit<F: Serial>(&mut self, now: Instant, pool: &mut Pool<F>) -> Option<Handle> {
        if self.signal.is_due() {
            return self.poll_control(now, pool);
        }
        if self.ready_set.0 & !self.held.0 == 0 {
            return None;
        }
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
        let frame = pool.frame_mut(at);
        self.frames -= 1;
        self.used -= frame.len();
        if self.config.resequencing.is_some() {
            let next = self.serials.entry(key(frame.destination(), frame.priority())).or_default();
            frame.set_serial(*next);
            *next = next.wrapping_add(1);
        }
        Some(at)
    }

    /// The frame that will probably be sent next.
    #[inline(always)]
    pub fn upcoming(&self) -> Option<Handle> {
        self.active.front()?.list.front()
    }

    #[cold]
    fn poll_control<F: Serial>(&mut self, now: Instant, pool: &mut Pool<F>) -> Option<Handle> {
        let lasts = self.config.quantum.saturating_mul(self.config.quanta as u64);
        let pause = self.signal.poll(now, self.config.quanta, lasts)?;
        self.control_out += 1;
        Some(pool.insert(&F::from_pause(pause)))
    }

    /// A pause frame came in.
    pub fn receive_pause(&mut self, now: Instant, pause: &Pause) {
        let mut pause = *pause;
        pause.classes.0 &= self.config.lossless.0;
        self.gate.receive(now, &pause, self.config.quantum);
        self.held = self.gate.held();
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
        let r = self.early.entry(key(frame.source(), frame.priority())).or_insert_with(|| Resequencer {
            next: 0,
            early: Vec::new(),
            deadline: Instant::MAX,
        });
        let ahead = frame.serial().wrapping_sub(r.next) as i16;
        if ahead < 0 {
            // Its place was given up; it is late, not lost.
            deliver(at);
            return;
        }
        if ahead > 0 {
            let place = r.early.partition_point(|(s, _)| (s.wrapping_sub(frame.serial()) as i16) < 0);
            r.early.insert(place, (frame.serial(), at));
            if r.deadline == Instant::MAX {
                r.deadline = now + patience;
            }
            if r.early.len() > MAX_EARLY {
                r.give_up(now, patience, deliver);
            }
            return;
        }
        r.next = r.next.wrapping_add(1);
        deliver(at);
        r.release(now, patience, deliver);
    }

    /// Keeps a frame that the host has no room for; `Err` when the receive buffer is full too.
    pub fn stall<F: Serial>(&mut self, pool: &Pool<F>, at: Handle) -> Result<(), Full<Handle>> {
        let frame = pool.frame(at);
        let (p, len) = (frame.priority(), frame.len());
        let bytes = self.stalled_bytes[p as usize] + len;
        let lossless = self.config.lossless.contains(p);
        if bytes > if lossless { self.config.marks.capacity } else { self.config.buffer } {
            return Err(Full(at));
        }
        self.stalled_bytes[p as usize] = bytes;
        self.stalled.push_back(at);
        if lossless {
            self.signal.on_rise(p, bytes, &self.config.marks);
        }
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
        let p = frame.priority();
        self.stalled_bytes[p as usize] -= frame.len();
        if self.config.lossless.contains(p) {
            self.signal.on_fall(p, self.stalled_bytes[p as usize], &self.config.marks);
        }
        Some(at)
    }

    /// The earliest deadline.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.held.is_empty() && self.signal.poll_timeout().is_none() && self.early.is_empty() {
            return None;
        }
        self.next_timeout()
    }

    #[inline(never)]
    fn next_timeout(&self) -> Option<Instant> {
        let early = self.early.values().map(|r| r.deadline).min().filter(|&d| d != Instant::MAX);
        [self.gate.poll_timeout(), self.signal.poll_timeout(), early].into_iter().flatten().min()
    }

    /// A deadline passed.
    pub fn handle_timeout(&mut self, now: Instant, deliver: &mut impl FnMut(Handle)) {
        if !self.gate.handle_timeout(now).is_empty() {
            self.held = self.gate.held();
        }
        self.signal.handle_timeout(now);
        if let Some(patience) = self.config.resequencing {
            for r in self.early.values_mut().filter(|r| r.deadline <= now) {
                r.give_up(now, patience, deliver);
            }
        }
    }
}

impl Resequencer {
    /// Hands out the frames that follow without a hole.
    fn release(&mut self, now: Instant, patience: Duration, deliver: &mut impl FnMut(Handle)) {
        let run =
            self.early.iter().enumerate().take_while(|(i, (s, _))| *s == self.next.wrapping_add(*i as u16)).count();
        for (_, at) in self.early.drain(..run) {
            deliver(at);
        }
        self.next = self.next.wrapping_add(run as u16);
        self.deadline = if self.early.is_empty() { Instant::MAX } else { now + patience };
    }

    /// Stops waiting for the missing frames before the first early one.
    fn give_up(&mut self, now: Instant, patience: Duration, deliver: &mut impl FnMut(Handle)) {
        if let Some(&(serial, _)) = self.early.first() {
            self.next = serial;
        }
        self.release(now, patience, deliver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Address, FlowKey, Framing, Packet};
    use sluicenet_proto::rng::Rng;

    fn config(queueing: Queueing, resequencing: Option<Duration>) -> Arc<AdapterConfig> {
        Arc::new(AdapterConfig {
            buffer: 10_000,
            queueing,
            lossless: PrioritySet::ALL,
            quanta: 100,
            quantum: Duration(51_200),
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
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None)), Pool::default());
        for (dst, n) in [(7, 0), (7, 1), (7, 2), (8, 3), (9, 4)] {
            let at = pool.insert(&frame(dst, n, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        let mut next = || a.poll_transmit(Instant(0), &mut pool).map(|at| pool.frame(at).udp_offset());
        let order: Vec<u64> = core::iter::from_fn(&mut next).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
        assert!(!a.is_ready() && a.room() == 10_000);
    }

    #[test]
    fn a_held_priority_waits_and_the_others_go() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Fifo, None)), Pool::default());
        for (n, priority) in [(0, 3), (1, 4)] {
            let at = pool.insert(&frame(7, n, priority));
            a.enqueue(&mut pool, at).unwrap();
        }
        let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
        pause.quanta[3] = 2;
        a.receive_pause(Instant(0), &pause);
        let at = a.poll_transmit(Instant(0), &mut pool).unwrap();
        assert_eq!(pool.frame(at).udp_offset(), 1);
        assert!(a.poll_transmit(Instant(0), &mut pool).is_none());
        let mut none = |_| panic!();
        a.handle_timeout(a.poll_timeout().unwrap(), &mut none);
        let at = a.poll_transmit(Instant(0), &mut pool).unwrap();
        assert_eq!(pool.frame(at).udp_offset(), 0);
    }

    #[test]
    fn a_full_buffer_hands_the_frame_back() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None)), Pool::default());
        for n in 0..10 {
            let at = pool.insert(&frame(n, n as u64, 0));
            a.enqueue(&mut pool, at).unwrap();
        }
        let at = pool.insert(&frame(1, 99, 0));
        assert_eq!(a.enqueue(&mut pool, at), Err(Full(at)));
    }

    #[test]
    fn a_stalled_host_stops_the_wire_and_frees_it() {
        let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, None)), Pool::default());
        for n in 0..6 {
            let at = pool.insert(&frame(1, n, 2));
            a.stall(&pool, at).unwrap();
        }
        let pause = |a: &mut Adapter, pool: &mut Pool<Packet>| {
            let at = a.poll_transmit(Instant(0), pool).unwrap();
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

    #[test]
    fn frames_come_out_in_order_whatever_path_they_took() {
        let patience = Duration::from_us(100);
        let mut rng = Rng::from_words(&[3]);
        for case in 0..50 {
            let (mut a, mut pool) = (Adapter::new(config(Queueing::Voq, Some(patience))), Pool::default());
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
            let seen: Vec<u64> = seen.into_iter().map(|at| pool.frame(at).udp_offset()).collect();
            let expected: Vec<u64> = (0..500).filter(|&n| Some(n) != lost).collect();
            assert_eq!(seen, expected);
        }
    }
}
