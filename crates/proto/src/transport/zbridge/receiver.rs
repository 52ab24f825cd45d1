//! The receiving half: the next frame, and frames that came before their turn.

use alloc::collections::VecDeque;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::zbridge::Ranges;

/// Outcome of a received frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate<F> {
    /// The frame was next, or waits for earlier frames.
    Taken,
    /// The frame had come before.
    Twice(F),
    /// The frame is further ahead than a sender may be.
    TooFar(F),
}

#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Receiver<F> {
    /// Frames that came before their turn, from `next` on. The last entry is always filled.
    early: VecDeque<Option<F>>,
    window: usize,
    /// The first missing frame.
    next: SeqNumber,
    /// Every frame before this number was sent.
    end: SeqNumber,
    /// Missing frames before this number have been reported unasked.
    said: SeqNumber,
    /// Start of the rest of an answer that takes several frames.
    answer: Option<SeqNumber>,
}

impl<F> Receiver<F> {
    pub(super) fn new(window: usize, next: SeqNumber) -> Receiver<F> {
        Receiver { window, next, early: VecDeque::new(), end: next, said: next, answer: None }
    }

    pub(super) fn next(&self) -> SeqNumber {
        self.next
    }
    /// Frames that wait for others.
    pub(super) fn early(&self) -> usize {
        self.early.iter().flatten().count()
    }

    /// A frame came.
    pub(super) fn take(&mut self, number: SeqNumber, frame: F, deliver: &mut impl FnMut(F)) -> Fate<F> {
        let ahead = number.since(self.next);
        if ahead < 0 {
            return Fate::Twice(frame);
        }
        let ahead = ahead as usize;
        if ahead >= self.window {
            return Fate::TooFar(frame);
        }
        self.expect(number + 1);
        if ahead > 0 {
            if self.early.len() <= ahead {
                self.early.resize_with(ahead + 1, || None);
            }
            let slot = &mut self.early[ahead];
            if slot.is_some() {
                return Fate::Twice(frame);
            }
            *slot = Some(frame);
            return Fate::Taken;
        }
        deliver(frame);
        self.next = self.next + 1;
        self.early.pop_front();
        while let Some(Some(_)) = self.early.front() {
            self.early.pop_front().flatten().into_iter().for_each(&mut *deliver);
            self.next = self.next + 1;
        }
        Fate::Taken
    }

    /// Every frame before `end` was sent. A claim beyond the window is not believed.
    pub(super) fn expect(&mut self, end: SeqNumber) {
        if end > self.end && end.since(self.next) <= self.window as i32 {
            self.end = end;
        }
    }

    /// An answer is due, from the first missing frame on.
    pub(super) fn ask(&mut self) {
        self.answer = Some(self.next);
    }

    /// Starts a report of newly missing frames, where all frames take one path. A missing frame that was sent before a
    /// received frame will not come.
    pub(super) fn ask_for_new_gaps(&mut self) {
        let from = if self.said > self.next { self.said } else { self.next };
        if self.end > from {
            let gap =
                (from.since(self.next) as usize..self.end.since(self.next) as usize).any(|at| self.is_missing(at));
            if gap && self.answer.is_none() {
                self.answer = Some(from);
            }
            self.said = self.end;
        }
    }

    fn is_missing(&self, at: usize) -> bool {
        !matches!(self.early.get(at), Some(Some(_)))
    }

    /// Whether an answer is due.
    #[inline]
    pub(super) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The next part of an answer, if an answer is due: the missing frames, and no range if none is missing.
    pub(super) fn poll_answer(&mut self) -> Option<Ranges> {
        let from = self.answer.take()?;
        let mut ranges = Ranges::default();
        let mut at = from.since(self.next).max(0) as usize;
        let end = self.end.since(self.next).max(0) as usize;
        while at < end {
            if !self.is_missing(at) {
                at += 1;
                continue;
            }
            let len = (at..end).take_while(|&k| self.is_missing(k)).count();
            if !ranges.push((self.next + at as u32).0, len as u32) {
                self.answer = Some(self.next + at as u32);
                break;
            }
            at += len;
        }
        Some(ranges)
    }

    /// Frees the frames that wait for earlier frames and will never be delivered.
    pub(super) fn give_up(&mut self, free: &mut impl FnMut(F)) {
        self.early.drain(..).flatten().for_each(free);
    }
}
