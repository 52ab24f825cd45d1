//! The frames of an uplink that wait for the link, and the choice among them.
//!
//! An uplink is compiled for its kind of choice. With [`Queues`] the classes take turns, and the code contains nothing
//! else. [`Managed`](super::Managed) queues also have rate limiters and transmission selection.

use super::Origin;
use alloc::collections::VecDeque;
use core::fmt::Debug;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::time::Instant;

/// A frame that waits, with its length in bytes without the check sequence.
#[derive(Clone, Debug)]
pub struct Waiting<T> {
    /// The frame.
    pub frame: T,
    /// Its length in bytes, without the check sequence.
    pub len: u32,
    /// Its origin.
    pub origin: Origin,
}

/// The frames that wait for a link, and the choice among them.
pub trait Outgoing<T>: Debug {
    /// Whether there is more than turns of the classes: frames that are held back, or another choice.
    const IS_MANAGED: bool;

    /// Takes a frame of class `p`.
    fn push(&mut self, now: Instant, p: Priority, frame: Waiting<T>);
    /// Whether class `p` takes frames: it has less than `most` bytes.
    fn has_room(&self, p: Priority, most: u64) -> bool;
    /// Classes with a frame that may leave, if their class is not paused.
    fn ready(&self, now: Instant) -> PrioritySet;
    /// Chooses the next frame, of one of these classes of [`Outgoing::ready`]. The choice holds until
    /// [`Outgoing::pop`] or [`Outgoing::unchoose`].
    fn choose(&mut self, now: Instant, among: PrioritySet) -> Option<Priority>;
    /// Takes the choice back.
    fn unchoose(&mut self);
    /// The chosen frame, of class `p`.
    fn front(&self, p: Priority) -> Option<&T>;
    /// Takes the chosen frame, of class `p`.
    fn pop(&mut self, now: Instant, p: Priority) -> Option<Waiting<T>>;
    /// Takes all frames of class `p`.
    fn clear(&mut self, p: Priority, each: &mut dyn FnMut(Waiting<T>));
    /// Frames that wait.
    fn frames(&self) -> usize;
    /// A time before which no frame of a class that is not `paused` may leave.
    fn next_departure(&self, paused: PrioritySet) -> Option<Instant>;
    /// The time for the next [`Outgoing::handle_timeout`].
    fn poll_timeout(&self) -> Option<Instant>;
    /// A deadline may have passed.
    fn handle_timeout(&mut self, now: Instant);
}

#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    pub frames: VecDeque<Waiting<T>>,
    pub bytes: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { frames: VecDeque::new(), bytes: 0 }
    }
}

impl<T> Queue<T> {
    #[inline]
    pub fn push(&mut self, frame: Waiting<T>) {
        self.bytes += u64::from(frame.len);
        self.frames.push_back(frame);
    }

    #[inline]
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= u64::from(frame.len);
        Some(frame)
    }
}

/// A queue for each class; the classes take turns.
#[derive(Clone, Debug)]
pub struct Queues<T> {
    pub(super) queues: [Queue<T>; PRIORITIES],
    /// Classes with frames.
    pub(super) ready: PrioritySet,
    pub(super) turn: Priority,
}

impl<T> Default for Queues<T> {
    fn default() -> Queues<T> {
        Queues { queues: Default::default(), ready: PrioritySet::NONE, turn: 0 }
    }
}

impl<T: Debug> Outgoing<T> for Queues<T> {
    const IS_MANAGED: bool = false;

    #[inline]
    fn push(&mut self, _now: Instant, p: Priority, frame: Waiting<T>) {
        self.queues[p as usize].push(frame);
        self.ready.insert(p);
    }
    #[inline]
    fn has_room(&self, p: Priority, most: u64) -> bool {
        self.queues[p as usize].bytes < most
    }
    #[inline]
    fn ready(&self, _now: Instant) -> PrioritySet {
        self.ready
    }
    #[inline]
    fn choose(&mut self, _now: Instant, among: PrioritySet) -> Option<Priority> {
        among.next_after(self.turn)
    }
    #[inline]
    fn unchoose(&mut self) {}
    #[inline]
    fn front(&self, p: Priority) -> Option<&T> {
        self.queues[p as usize].frames.front().map(|waiting| &waiting.frame)
    }
    #[inline]
    fn pop(&mut self, _now: Instant, p: Priority) -> Option<Waiting<T>> {
        let queue = &mut self.queues[p as usize];
        let frame = queue.pop()?;
        if queue.frames.is_empty() {
            self.ready.remove(p);
        }
        self.turn = p;
        Some(frame)
    }
    fn clear(&mut self, p: Priority, each: &mut dyn FnMut(Waiting<T>)) {
        core::mem::take(&mut self.queues[p as usize]).frames.into_iter().for_each(each);
        self.ready.remove(p);
    }
    fn frames(&self) -> usize {
        self.queues.iter().map(|queue| queue.frames.len()).sum()
    }
    #[inline]
    fn next_departure(&self, paused: PrioritySet) -> Option<Instant> {
        (self.ready.0 & !paused.0 != 0).then_some(Instant::ZERO)
    }
    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    #[inline]
    fn handle_timeout(&mut self, _now: Instant) {}
}
