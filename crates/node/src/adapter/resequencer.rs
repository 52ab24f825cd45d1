//! Frames that came too early, put in the order in which they were sent.

use crate::pool::Handle;
use alloc::vec::Vec;
use sluicenet_proto::time::{Duration, Instant};

/// A frame that came before one that was sent before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub serial: u16,
    pub len: u32,
    pub since: Instant,
    pub frame: Handle,
}

/// Frames of one sender and priority that came too early, by serial.
#[derive(Clone, Debug)]
pub(super) struct Resequencer {
    pub next: u16,
    pub early: Vec<Early>,
    /// When the one that waits longest has waited long enough.
    pub deadline: Instant,
}

/// Most frames that wait for an earlier one of the same sender; then the earlier one is given up.
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
