//! Later events inside a server: packets on their way through a stage of fixed latency, and the next deadline of each VM.

use crate::pool::Handle;
use crate::ring::Ring;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::time::Instant;

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delayed {
    /// Time at which the packet leaves the stage.
    pub at: Instant,
    /// The packet.
    pub packet: Handle,
}

impl Delayed {
    /// No packet.
    const NONE: Delayed = Delayed { at: Instant::MAX, packet: Handle::NONE };
}

/// Packets on their way, in the order in which they leave the stage. At equal times, the first to enter leaves first.
#[derive(Clone, Debug)]
pub struct DelayLine {
    /// The first packet, or [`Delayed::NONE`] if there is none: often it is the only one.
    first: Delayed,
    /// The other packets. A new one is nearly always last, or a few slots before: latencies are fixed, sizes are not.
    others: Ring<Delayed>,
    /// Time at which the last packet leaves the stage.
    last: Instant,
}

impl Default for DelayLine {
    fn default() -> DelayLine {
        DelayLine { first: Delayed::NONE, others: Ring::default(), last: Instant::ZERO }
    }
}

impl DelayLine {
    /// A packet enters.
    #[inline(always)]
    pub fn push(&mut self, delayed: Delayed) {
        let last = if self.others.is_empty() { self.first.at } else { self.last };
        if last <= delayed.at {
            self.last = delayed.at;
            self.others.push_back(delayed);
        } else if last == Instant::MAX {
            self.first = delayed;
        } else {
            self.push_before_last(delayed);
        }
    }

    #[inline(never)]
    fn push_before_last(&mut self, delayed: Delayed) {
        let is_first = delayed.at < self.first.at;
        let other = if is_first { core::mem::replace(&mut self.first, delayed) } else { delayed };
        if self.others.is_empty() {
            self.last = other.at;
        }
        self.last = self.last.max(other.at);
        // The former first packet entered before all others.
        self.others.insert_sorted(other, |p| if is_first { p.at < other.at } else { p.at <= other.at });
    }

    /// Time at which the first packet leaves the stage; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.first.at
    }

    /// Takes the packets that have left the stage by `now`, one at a time.
    #[inline(always)]
    pub fn pop(&mut self, now: Instant) -> Option<Delayed> {
        if self.first.at > now {
            return None;
        }
        let next = self.others.pop_front().unwrap_or(Delayed::NONE);
        Some(core::mem::replace(&mut self.first, next))
    }

    /// The first packet; [`Handle::NONE`] when there is none.
    #[inline(always)]
    pub fn front(&self) -> Handle {
        self.first.packet
    }

    /// The address of the second packet's entry, which becomes the first: for a caller that prefetches memory.
    #[inline(always)]
    pub fn second_line(&self) -> *const u8 {
        self.others.first_line()
    }

    /// The packets behind the first one that leave the stage before `end`: for a caller that prefetches memory.
    #[inline(always)]
    pub fn others(&self, end: Instant) -> impl Iterator<Item = Handle> {
        self.others.iter().take_while(move |other| other.at < end).map(|other| other.packet)
    }

    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.others.len() + usize::from(self.first.at != Instant::MAX)
    }
}

/// Deadlines by time: the first one, and a short list of the others, latest first.
#[derive(Clone, Debug)]
pub struct Deadlines {
    first: (Instant, u16),
    others: Vec<(Instant, u16)>,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { first: Deadlines::NONE, others: Vec::new() }
    }
}

impl Deadlines {
    const NONE: (Instant, u16) = (Instant::MAX, 0);

    /// Adds a deadline for `what`.
    #[inline(always)]
    pub fn insert(&mut self, at: Instant, what: u16) {
        let new = (at, what);
        if new < self.first {
            let second = core::mem::replace(&mut self.first, new);
            if second.0 != Instant::MAX {
                self.others.push(second);
            }
        } else if self.others.last().is_none_or(|&second| new < second) {
            self.others.push(new);
        } else {
            self.insert_later(new);
        }
    }

    #[inline(never)]
    fn insert_later(&mut self, new: (Instant, u16)) {
        let index = self.others.partition_point(|&d| d > new);
        self.others.insert(index, new);
    }

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.first.0
    }

    /// Takes the deadlines that have passed at `now`, one at a time.
    #[inline(always)]
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u16)> {
        if self.first.0 > now {
            return None;
        }
        let next = self.others.pop().unwrap_or(Deadlines::NONE);
        Some(core::mem::replace(&mut self.first, next))
    }

    /// The subject of the first deadline; for a caller that prefetches memory.
    #[inline(always)]
    pub fn front(&self) -> u16 {
        self.first.1
    }

    /// The address of the second deadline, for a caller that prefetches memory.
    #[inline(always)]
    pub fn second_line(&self) -> *const u8 {
        self.others.as_ptr().wrapping_add(self.others.len()).wrapping_sub(1).cast()
    }

    /// The subjects of the deadlines behind the first one and before `end`, for a caller that prefetches memory.
    #[inline(always)]
    pub fn others(&self, end: Instant) -> impl Iterator<Item = u16> {
        self.others.iter().rev().take_while(move |other| other.0 < end).map(|other| other.1)
    }
}

/// A timer: its expiry time, its class and its token.
pub type Timer = (Instant, u8, u64);

/// Timers that wait, in the order of [`Timer`].
#[derive(Clone, Debug)]
pub struct Timers {
    first: Instant,
    heap: BinaryHeap<Reverse<Timer>>,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers { first: Instant::MAX, heap: BinaryHeap::new() }
    }
}

impl Timers {
    /// Sets a timer.
    pub fn push(&mut self, timer: Timer) {
        self.first = self.first.min(timer.0);
        self.heap.push(Reverse(timer));
    }

    /// Expiry time of the first timer; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.first
    }

    /// Takes the timers that have expired at `now`, one at a time.
    pub fn pop(&mut self, now: Instant) -> Option<Timer> {
        if self.first > now {
            return None;
        }
        let Reverse(timer) = self.heap.pop()?;
        self.first = self.heap.peek().map_or(Instant::MAX, |t| t.0.0);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;

    #[test]
    fn packets_come_in_order_and_ties_as_entered() {
        let mut line = DelayLine::default();
        for (at, n) in [(5, 1), (3, 2), (9, 0), (3, 1), (4, 7)] {
            line.push(Delayed { at: Instant(at), packet: Handle::from_index(n) });
        }
        assert_eq!(line.first(), Instant(3));
        let mut order = Vec::new();
        while let Some(p) = line.pop(Instant(5)) {
            order.push((p.at.0, p.packet.index()));
        }
        assert_eq!(order, [(3, 2), (3, 1), (4, 7), (5, 1)]);
        assert_eq!((line.first(), line.len()), (Instant(9), 1));
    }

    #[test]
    fn deadlines_come_in_order_and_ties_by_what() {
        let mut d = Deadlines::default();
        for (at, what) in [(5, 1), (3, 2), (9, 0), (3, 1), (4, 7)] {
            d.insert(Instant(at), what);
        }
        assert_eq!((d.first(), d.front()), (Instant(3), 1));
        let mut order = Vec::new();
        while let Some((at, what)) = d.pop(Instant(5)) {
            order.push((at.0, what));
        }
        assert_eq!(order, [(3, 1), (3, 2), (4, 7), (5, 1)]);
        assert_eq!(d.first(), Instant(9));
    }

    #[test]
    fn packets_and_deadlines_come_in_order() {
        let mut rng = Rng::from_words(&[12]);
        let (mut line, mut deadlines, mut timers) = (DelayLine::default(), Deadlines::default(), Timers::default());
        let (mut packets, mut times) = (Vec::new(), Vec::new());
        for n in 0..20_000 {
            let at = Instant(rng.below(30));
            if rng.below(9) < 5 {
                line.push(Delayed { at, packet: Handle::from_index(n) });
                deadlines.insert(at, n as u16);
                timers.push((at, 0, u64::from(n)));
                // A stable sort: at equal times, the first to enter comes first.
                packets.push((at, n));
                packets.sort_by_key(|p| p.0);
                times.push((at, n as u16));
                times.sort();
            } else {
                let is_through = packets.first().is_some_and(|p| p.0 <= at);
                let packet = is_through.then(|| packets.remove(0));
                assert_eq!(line.pop(at).map(|p| (p.at, p.packet.index())), packet);
                let expired = is_through.then(|| times.remove(0));
                assert_eq!((deadlines.pop(at), timers.pop(at).map(|t| (t.0, t.2 as u16))), (expired, expired));
            }
            let first = packets.first().map_or(Instant::MAX, |p| p.0);
            assert_eq!([line.first(), deadlines.first(), timers.first()], [first; 3]);
            assert_eq!(line.len(), packets.len());
            // Of the lists that prefetching reads, those before a time.
            let before = |time: Instant| time < at;
            let others: Vec<u32> = line.others(at).map(Handle::index).collect();
            let expected = packets.iter().skip(1).take_while(|p| before(p.0)).map(|p| p.1);
            assert!(others.into_iter().eq(expected));
            let expected = times.iter().skip(1).take_while(|d| before(d.0)).map(|d| d.1);
            assert!(deadlines.others(at).eq(expected));
        }
    }
}
