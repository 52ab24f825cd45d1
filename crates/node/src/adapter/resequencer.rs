//! Early frames, put in the order in which they were sent.

use crate::pool::Handle;
use alloc::vec::Vec;
use sluicenet_proto::time::{Duration, Instant};

/// A frame that arrived before an earlier frame of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub serial: u16,
    pub len: u32,
    pub since: Instant,
    pub frame: Handle,
}

/// Early frames of one sender and priority, by serial number.
#[derive(Clone, Debug)]
pub(super) struct Resequencer {
    pub next: u16,
    pub early: Vec<Early>,
    /// Deadline of the frame that has waited longest.
    pub deadline: Instant,
}

/// Most frames that wait for an earlier one of the same sender; beyond this number the earlier one is given up.
pub(super) const MAX_EARLY: usize = 1024;

impl Resequencer {
    /// Hands out the frames that follow without a hole; returns their bytes.
    pub fn release(&mut self, patience: Duration, deliver: &mut impl FnMut(Handle)) -> u32 {
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
    pub fn give_up(&mut self, patience: Duration, deliver: &mut impl FnMut(Handle)) -> u32 {
        if let Some(e) = self.early.first() {
            self.next = e.serial;
        }
        self.release(patience, deliver)
    }
}
