//! The frames of a tenant that the switch has not taken yet, or not given back.

use super::pool::{Fetched, Pool};
use crate::port::{Descriptor, Offload, Segmentation};
use sluicenet_proto::frame::{Priority, PrioritySet};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

/// Frames in a [`Pool`], with a queue for each traffic class: a waiting frame does not block other classes while there are
/// buffers.
#[derive(Debug)]
pub(super) struct Inbox {
    pool: Pool,
    /// Frames that wait for the switch, with their order of arrival.
    queues: [VecDeque<(u64, Descriptor)>; 8],
    filled: PrioritySet,
    /// Classes that have to wait for the rest of this round, and those that had to in the last round.
    held: PrioritySet,
    held_before: PrioritySet,
    shown: Option<Priority>,
    arrived: u64,
    /// Received frames that are to be cut into segments.
    whole: u64,
    lent: u32,
}

/// The class of a frame by its 802.1Q tag.
fn class(first_bytes: [u64; 2]) -> Priority {
    // Type and tag, little endian: 81 00, then three bits of priority.
    if first_bytes[1] >> 32 & 0xffff == 0x0081 { (first_bytes[1] >> 53 & 7) as Priority } else { 0 }
}

impl Inbox {
    /// An empty inbox; all buffers of the pool must be free.
    pub fn new(pool: Pool) -> Inbox {
        Inbox {
            pool,
            queues: Default::default(),
            filled: PrioritySet::NONE,
            held: PrioritySet::NONE,
            held_before: PrioritySet::NONE,
            shown: None,
            arrived: 0,
            whole: 0,
            lent: 0,
        }
    }

    /// The buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A new round begins: classes that had to wait may be tried again.
    pub fn begin_round(&mut self) {
        self.held_before = std::mem::replace(&mut self.held, PrioritySet::NONE);
        self.shown = None;
    }

    /// Whether every frame here had to wait when it was last shown.
    pub fn is_quiet(&self) -> bool {
        self.filled.0 & !(self.held.0 | self.held_before.0) == 0
    }

    /// Receives a batch of frames from a packet socket and keeps those that are `wanted`.
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        headers: bool,
        mut wanted: impl FnMut(&[u8]) -> bool,
    ) -> io::Result<Fetched> {
        let Inbox { pool, queues, filled, arrived, whole, .. } = self;
        pool.receive(fd, headers, |pool, buffer| {
            let wanted = wanted(pool.frame(buffer));
            if wanted {
                *whole += u64::from(pool.offload(buffer).segmentation != Segmentation::None);
                push(pool, buffer, queues, filled, arrived);
            }
            wanted
        })
    }

    /// Reads a frame from a TAP device; `None` if there was none, otherwise whether it was `wanted` and is kept.
    pub fn read(&mut self, tap: BorrowedFd<'_>, mut wanted: impl FnMut(&[u8]) -> bool) -> io::Result<Option<bool>> {
        let Some(buffer) = self.pool.read(tap)? else { return Ok(None) };
        if !wanted(self.pool.frame(buffer)) {
            self.pool.release(buffer);
            return Ok(Some(false));
        }
        let Inbox { pool, queues, filled, arrived, whole, .. } = self;
        *whole += u64::from(pool.offload(buffer).segmentation != Segmentation::None);
        push(pool, buffer, queues, filled, arrived);
        Ok(Some(true))
    }

    /// The first frame that does not have to wait; it stays the next until [`Inbox::accept`] or [`Inbox::defer`].
    #[inline]
    pub fn next_frame(&mut self) -> Option<Descriptor> {
        if self.shown.is_none() {
            let free = self.filled.0 & !self.held.0;
            let first = |p: Priority| self.queues[usize::from(p)].front().map_or(u64::MAX, |&(number, _)| number);
            self.shown = match free.count_ones() {
                0 => None,
                1 => Some(free.trailing_zeros() as Priority),
                _ => (0..8).filter(|&p| free & 1 << p != 0).min_by_key(|&p| first(p)),
            };
        }
        self.queues[usize::from(self.shown?)].front().map(|&(_, frame)| frame)
    }

    /// The switch took the frame shown.
    #[inline]
    pub fn accept(&mut self) -> Option<Descriptor> {
        let p = self.shown.take()?;
        let queue = &mut self.queues[usize::from(p)];
        let (_, frame) = queue.pop_front()?;
        if queue.is_empty() {
            self.filled.remove(p);
        }
        self.lent += 1;
        Some(frame)
    }

    /// Defers the frame shown; returns whether there is one of another class.
    pub fn defer(&mut self) -> bool {
        if let Some(p) = self.shown.take() {
            self.held.insert(p);
        }
        self.filled.0 & !self.held.0 != 0
    }

    /// Frames that wait for the switch.
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        self.pool.first_bytes(buffer)
    }

    /// Copies the first bytes of a frame.
    pub fn copy(&self, buffer: u32, into: &mut [u8]) {
        into.copy_from_slice(&self.pool.frame(buffer)[..into.len()]);
    }

    pub fn offload(&self, buffer: u32) -> Offload {
        self.pool.offload(buffer)
    }

    /// How many of the taken frames may wait for receivers that do not admit them: half of the buffers of the scarcer kind, so
    /// that frames for other receivers can still be received.
    pub fn waiting_max(&self) -> u32 {
        self.pool.scarcer() / 2
    }

    /// A taken frame is no longer needed.
    pub fn give_back(&mut self, buffer: u32) {
        self.lent -= 1;
        self.pool.release(buffer);
    }

    /// Received frames that were to be cut into segments.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Frames taken and not given back.
    pub fn lent(&self) -> u32 {
        self.lent
    }
}

fn push(
    pool: &Pool,
    buffer: u32,
    queues: &mut [VecDeque<(u64, Descriptor)>; 8],
    filled: &mut PrioritySet,
    arrived: &mut u64,
) {
    let p = class(pool.first_bytes(buffer));
    let len = pool.frame(buffer).len() as u32;
    queues[usize::from(p)].push_back((*arrived, Descriptor { buffer, len }));
    filled.insert(p);
    *arrived += 1;
}

/// The methods of a [`Port`](crate::port::Port) that its inbox implements.
macro_rules! take_from_inbox {
    ($($inbox:ident).+) => {
        fn next_frame(&mut self) -> Result<Option<crate::port::Descriptor>, crate::port::BrokenPort> {
            Ok(self.$($inbox).+.next_frame())
        }

        fn first_bytes(&self, buffer: u32) -> [u64; 2] {
            self.$($inbox).+.first_bytes(buffer)
        }

        fn accept(&mut self) {
            self.$($inbox).+.accept();
        }

        fn defer(&mut self) -> bool {
            self.$($inbox).+.defer()
        }

        fn read(&self, buffer: u32, into: &mut [u8]) {
            self.$($inbox).+.copy(buffer, into);
        }

        fn offload(&self, buffer: u32) -> crate::port::Offload {
            self.$($inbox).+.offload(buffer)
        }

        fn give_back(&mut self, buffer: u32) {
            self.$($inbox).+.give_back(buffer);
        }

        fn lent(&self) -> u32 {
            self.$($inbox).+.lent()
        }

        fn waiting_max(&self) -> u32 {
            self.$($inbox).+.waiting_max()
        }
    };
}
pub(super) use take_from_inbox;
