//! What happens inside a server later: packets on their way through a stage of fixed latency, and the next time of each
//! VM.

use crate::pool::Handle;
use crate::ring::Ring;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use sluicenet_proto::time::Instant;

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    /// When it is through.
    pub at: Instant,
    /// The packet.
    pub packet: Handle,
}

/// Packets on their way, in the order in which they will be through; of one instant, the first to enter comes first.
#[derive(Clone, Debug)]
pub struct Line {
    first: Instant,
    /// What is new is nearly always last, or a few places before: latencies are fixed, sizes are not.
    list: Ring<Passage>,
    last: Instant,
}

impl Default for Line {
    fn default() -> Line {
        Line { first: Instant::MAX, list: Ring::default(), last: Instant::ZERO }
    }
}

impl Line {
    /// A packet enters.
    #[inline(always)]
    pub fn push(&mut self, passage: Passage) {
        self.first = self.first.min(passage.at);
        if self.last > passage.at && !self.list.is_empty() {
            self.list.insert_sorted(passage, |p| p.at <= passage.at);
        } else {
            self.last = passage.at;
            self.list.push_back(passage);
        }
    }

    /// When the first packet is through; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.first
    }

    /// Takes what is through at `now`, one at a time.
    #[inline(always)]
    pub fn pop(&mut self, now: Instant) -> Option<Passage> {
        if self.first > now {
            return None;
        }
        let passage = self.list.pop_front();
        self.first = self.list.front().map_or(Instant::MAX, |p| p.at);
        passage
    }

    /// The first packet.
    #[inline(always)]
    pub fn front(&self) -> Option<&Passage> {
        self.list.front()
    }

    /// Number of packets.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.list.len()
    }
}

/// What is due when: a short list, latest first, because there are few and the earliest is wanted most.
#[derive(Clone, Debug)]
pub struct Deadlines {
    first: Instant,
    list: Vec<(Instant, u16)>,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { first: Instant::MAX, list: Vec::new() }
    }
}

impl Deadlines {
    /// Adds a deadline for `what`.
    #[inline(always)]
    pub fn insert(&mut self, at: Instant, what: u16) {
        self.first = self.first.min(at);
        let mut i = self.list.len();
        self.list.push((at, what));
        while i > 0 && self.list[i - 1] < (at, what) {
            self.list[i] = self.list[i - 1];
            i -= 1;
        }
        self.list[i] = (at, what);
    }

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.first
    }

    /// Takes what is due at `now`, one at a time.
    #[inline(always)]
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u16)> {
        if self.first > now {
            return None;
        }
        let due = self.list.pop();
        self.first = self.list.last().map_or(Instant::MAX, |d| d.0);
        due
    }

    /// The next one; for a caller that fetches memory ahead.
    #[inline(always)]
    pub fn front(&self) -> Option<&(Instant, u16)> {
        self.list.last()
    }
}

/// A timer: when it expires, its class and its token.
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

    /// When the first one expires; [`Instant::MAX`] when there is none.
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

    /// The first one; for a caller that fetches memory ahead.
    #[inline(always)]
    pub fn front(&self) -> Option<&Timer> {
        self.heap.peek().map(|t| &t.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_in_order_and_ties_as_entered() {
        let mut line = Line::default();
        for (at, n) in [(5, 1), (3, 2), (9, 0), (3, 1), (4, 7)] {
            line.push(Passage { at: Instant(at), packet: Handle::from_index(n) });
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
        assert_eq!((d.first(), d.front()), (Instant(3), Some(&(Instant(3), 1))));
        let mut order = Vec::new();
        while let Some((at, what)) = d.pop(Instant(5)) {
            order.push((at.0, what));
        }
        assert_eq!(order, [(3, 1), (3, 2), (4, 7), (5, 1)]);
        assert_eq!(d.first(), Instant(9));
    }
}
