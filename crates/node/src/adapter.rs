//! The network adapter: a virtual output queue for each destination, flow control towards the wire, a resequencing
//! buffer on receipt (Crisan 2014, 2.5.2).

use crate::slab::{Fifo, Slab};
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
struct Resequencer<F> {
    next: u16,
    early: Vec<(u16, F)>,
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

/// An adapter with one wire.
#[derive(Clone, Debug)]
pub struct Adapter<F> {
    config: Arc<AdapterConfig>,
    /// Queues with frames, the one to be served next in front.
    active: VecDeque<Voq>,
    /// Queues with frames, by priority.
    ready: [u32; PRIORITIES],
    ready_set: PrioritySet,
    held: PrioritySet,
    slab: Slab<F>,
    used: u32,
    max_used: u32,
    /// Received frames that the host has no room for.
    stalled: VecDeque<F>,
    stalled_bytes: [u32; PRIORITIES],
    gate: Gate,
    signal: Signal,
    control_out: u64,
    serials: BTreeMap<u32, u16>,
    early: BTreeMap<u32, Resequencer<F>>,
    /// The pause frame sent last.
    control: F,
}

fn key(host: HostId, priority: Priority) -> u32 {
    host << 3 | priority as u32
}

impl<F: Serial> Adapter<F> {
    /// An adapter with nothing in it.
    pub fn new(config: Arc<AdapterConfig>) -> Adapter<F> {
        Adapter {
            config,
            active: VecDeque::new(),
            ready: [0; PRIORITIES],
            ready_set: PrioritySet::NONE,
            held: PrioritySet::NONE,
            slab: Slab::default(),
            used: 0,
            max_used: 0,
            stalled: VecDeque::new(),
            stalled_bytes: [0; PRIORITIES],
            gate: Gate::default(),
            signal: Signal::default(),
            control_out: 0,
            serials: BTreeMap::new(),
            early: BTreeMap::new(),
            control: F::from_pause(Pause::default()),
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
        self.slab.in_use() as u64 + self.stalled.len() as u64 + early as u64
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
    pub fn enqueue(&mut self, frame: &F) -> Result<(), Full<F>> {
        let len = frame.len();
        if len > self.room() {
            return Err(Full(*frame));
        }
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
        self.slab.push(&mut voq.list, frame, 0);
        Ok(())
    }

    /// Whether a frame could be sent now.
    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.ready_set.0 & !self.held.0 != 0 || self.signal.is_due()
    }

    /// The next frame for the wire.
    #[inline(always)]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<&F> {
        if self.signal.is_due() {
            return self.poll_control(now);
        }
        if self.ready_set.0 & !self.held.0 == 0 {
            return None;
        }
        // A queue of a held priority lets the next one go first and keeps its place in the round.
        let mut at = 0;
        while self.held.contains((self.active[at].key & 7) as u8) {
            at += 1;
        }
        let mut voq = self.active.remove(at)?;
        let (place, _) = self.slab.pop(&mut voq.list)?;
        let frame = self.slab.frame(place);
        self.used -= frame.len();
        if voq.list.is_empty() {
            let p = (voq.key & 7) as u8;
            self.ready[p as usize] -= 1;
            if self.ready[p as usize] == 0 {
                self.ready_set.remove(p);
            }
        } else {
            self.active.push_back(voq);
        }
        if self.config.resequencing.is_some() {
            let next = self.serials.entry(key(frame.destination(), frame.priority())).or_default();
            frame.set_serial(*next);
            *next = next.wrapping_add(1);
        }
        Some(frame)
    }

    /// The frame that will probably be sent next.
    #[inline(always)]
    pub fn upcoming(&self) -> Option<&F> {
        self.slab.front(&self.active.front()?.list)
    }

    #[cold]
    fn poll_control(&mut self, now: Instant) -> Option<&F> {
        let lasts = self.config.quantum.saturating_mul(self.config.quanta as u64);
        let pause = self.signal.poll(now, self.config.quanta, lasts)?;
        self.control_out += 1;
        self.control = F::from_pause(pause);
        Some(&self.control)
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
    pub fn resequence(&mut self, now: Instant, frame: F, deliver: &mut impl FnMut(F)) {
        match self.config.resequencing {
            None => deliver(frame),
            Some(patience) => self.resequence_slowly(now, frame, patience, deliver),
        }
    }

    #[inline(never)]
    fn resequence_slowly(&mut self, now: Instant, frame: F, patience: Duration, deliver: &mut impl FnMut(F)) {
        let r = self.early.entry(key(frame.source(), frame.priority())).or_insert_with(|| Resequencer {
            next: 0,
            early: Vec::new(),
            deadline: Instant::MAX,
        });
        let ahead = frame.serial().wrapping_sub(r.next) as i16;
        if ahead < 0 {
            // Its place was given up; it is late, not lost.
            deliver(frame);
            return;
        }
        if ahead > 0 {
            let at = r.early.partition_point(|(s, _)| (s.wrapping_sub(frame.serial()) as i16) < 0);
            r.early.insert(at, (frame.serial(), frame));
            if r.deadline == Instant::MAX {
                r.deadline = now + patience;
            }
            if r.early.len() > MAX_EARLY {
                r.give_up(now, patience, deliver);
            }
            return;
        }
        r.next = r.next.wrapping_add(1);
        deliver(frame);
        r.release(now, patience, deliver);
    }

    /// Keeps a frame that the host has no room for; `Err` when the receive buffer is full too.
    pub fn stall(&mut self, frame: F) -> Result<(), Full<F>> {
        let (p, len) = (frame.priority(), frame.len());
        let bytes = self.stalled_bytes[p as usize] + len;
        let lossless = self.config.lossless.contains(p);
        if bytes > if lossless { self.config.marks.capacity } else { self.config.buffer } {
            return Err(Full(frame));
        }
        self.stalled_bytes[p as usize] = bytes;
        self.stalled.push_back(frame);
        if lossless {
            self.signal.on_rise(p, bytes, &self.config.marks);
        }
        Ok(())
    }

    /// The first frame that waits for the host.
    pub fn stalled(&self) -> Option<&F> {
        self.stalled.front()
    }

    /// Takes the first frame that waits for the host.
    pub fn take_stalled(&mut self) -> Option<F> {
        let frame = self.stalled.pop_front()?;
        let p = frame.priority();
        self.stalled_bytes[p as usize] -= frame.len();
        if self.config.lossless.contains(p) {
            self.signal.on_fall(p, self.stalled_bytes[p as usize], &self.config.marks);
        }
        Some(frame)
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
    pub fn handle_timeout(&mut self, now: Instant, deliver: &mut impl FnMut(F)) {
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

impl<F: Serial> Resequencer<F> {
    /// Hands out the frames that follow without a hole.
    fn release(&mut self, now: Instant, patience: Duration, deliver: &mut impl FnMut(F)) {
        let run =
            self.early.iter().enumerate().take_while(|(i, (s, _))| *s == self.next.wrapping_add(*i as u16)).count();
        for (_, frame) in self.early.drain(..run) {
            deliver(frame);
        }
        self.next = self.next.wrapping_add(run as u16);
        self.deadline = if self.early.is_empty() { Instant::MAX } else { now + patience };
    }

    /// Stops waiting for the missing frames before the first early one.
    fn give_up(&mut self, now: Instant, patience: Duration, deliver: &mut impl FnMut(F)) {
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
        let mut a = Adapter::new(config(Queueing::Voq, None));
        for (dst, n) in [(7, 0), (7, 1), (7, 2), (8, 3), (9, 4)] {
            a.enqueue(&frame(dst, n, 0)).unwrap();
        }
        let order: Vec<u64> = core::iter::from_fn(|| a.poll_transmit(Instant(0)).map(Packet::udp_offset)).collect();
        assert_eq!(order, [0, 3, 4, 1, 2]);
        assert!(!a.is_ready() && a.room() == 10_000);
    }

    #[test]
    fn a_held_priority_waits_and_the_others_go() {
        let mut a = Adapter::new(config(Queueing::Fifo, None));
        a.enqueue(&frame(7, 0, 3)).unwrap();
        a.enqueue(&frame(7, 1, 4)).unwrap();
        let mut pause = Pause { classes: PrioritySet(8), quanta: [0; 8] };
        pause.quanta[3] = 2;
        a.receive_pause(Instant(0), &pause);
        assert_eq!(a.poll_transmit(Instant(0)).unwrap().udp_offset(), 1);
        assert!(a.poll_transmit(Instant(0)).is_none());
        let mut none = |_| panic!();
        a.handle_timeout(a.poll_timeout().unwrap(), &mut none);
        assert_eq!(a.poll_transmit(Instant(0)).unwrap().udp_offset(), 0);
    }

    #[test]
    fn a_full_buffer_hands_the_frame_back() {
        let mut a = Adapter::new(config(Queueing::Voq, None));
        for n in 0..10 {
            a.enqueue(&frame(n, n as u64, 0)).unwrap();
        }
        assert_eq!(a.enqueue(&frame(1, 99, 0)).unwrap_err().0.udp_offset(), 99);
    }

    #[test]
    fn a_stalled_host_stops_the_wire_and_frees_it() {
        let mut a = Adapter::new(config(Queueing::Voq, None));
        for n in 0..6 {
            a.stall(frame(1, n, 2)).unwrap();
        }
        let xoff = a.poll_transmit(Instant(0)).unwrap().as_pause().unwrap();
        assert_eq!((xoff.classes, xoff.quanta[2]), (PrioritySet(4), 100));
        for n in 0..3 {
            assert_eq!(a.take_stalled().unwrap().udp_offset(), n);
        }
        let xon = a.poll_transmit(Instant(0)).unwrap().as_pause().unwrap();
        assert_eq!((xon.classes, xon.quanta[2]), (PrioritySet(4), 0));
    }

    #[test]
    fn frames_come_out_in_order_whatever_path_they_took() {
        let patience = Duration::from_us(100);
        let mut rng = Rng::from_words(&[3]);
        for case in 0..50 {
            let mut a = Adapter::new(config(Queueing::Voq, Some(patience)));
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
                a.resequence(now, f, &mut |f: Packet| seen.push(f.udp_offset()));
            }
            while let Some(at) = a.poll_timeout() {
                a.handle_timeout(at, &mut |f: Packet| seen.push(f.udp_offset()));
            }
            let expected: Vec<u64> = (0..500).filter(|&n| Some(n) != lost).collect();
            assert_eq!(seen, expected);
        }
    }
}
