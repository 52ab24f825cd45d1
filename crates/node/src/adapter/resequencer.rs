//! Early frames, put in the order in which they were sent.

use crate::pool::Handle;
use alloc::vec::Vec;
use sluicenet_proto::time::Instant;

/// A frame that arrived before an earlier frame of its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Early {
    pub serial: u16,
    /// Its bytes in the receive buffer.
    pub len: u32,
    /// When it stops waiting.
    pub until: Instant,
    pub frame: Handle,
}

/// Early frames of one sender and priority, by serial number.
#[derive(Clone, Debug)]
pub(super) struct Resequencer {
    pub next: u16,
    pub early: Vec<Early>,
    /// When the first of them stops waiting.
    pub deadline: Instant,
}

/// Most frames that wait for an earlier one of the same sender; beyond this number the earlier one is given up.
const MAX_EARLY: usize = 1024;

/// The same for frames that the adapter places in the host's memory: a bit each in a map of 2 KB. Half the distance at which
/// serial numbers stop telling early from late.
pub(super) const MAX_PLACED: usize = 1 << 14;
const _: () = assert!(MAX_PLACED < i16::MAX as usize);

impl Resequencer {
    /// Whether more frames wait than may, of those in the receive buffer or of those in the host's memory.
    pub fn is_crowded(&self, is_placed: bool) -> bool {
        let most = if is_placed { MAX_PLACED } else { MAX_EARLY };
        self.early.len() > most && self.early.iter().filter(|e| (e.len == 0) == is_placed).count() > most
    }

    /// Hands out the frames that follow without a hole; returns their bytes in the receive buffer.
    pub fn release(&mut self, deliver: &mut impl FnMut(Handle)) -> u32 {
        let follows = |(i, e): &(usize, &Early)| e.serial == self.next.wrapping_add(*i as u16);
        let run = self.early.iter().enumerate().take_while(follows).count();
        self.next = self.next.wrapping_add(run as u16);
        let mut bytes = 0;
        for e in self.early.drain(..run) {
            bytes += e.len;
            deliver(e.frame);
        }
        self.deadline = self.early.iter().map(|e| e.until).min().unwrap_or(Instant::MAX);
        bytes
    }

    /// Stops waiting for the missing frames before the first early one.
    pub fn give_up(&mut self, deliver: &mut impl FnMut(Handle)) -> u32 {
        if let Some(e) = self.early.first() {
            self.next = e.serial;
        }
        self.release(deliver)
    }
}
