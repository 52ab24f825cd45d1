//! A link of an adapter: its queues and its flow control.

use super::AdapterConfig;
use crate::device::PortId;
use crate::pool::{Fifo, Handle, Pool};
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Signal};
use sluicenet_proto::frame::{Frame, PRIORITIES, PrioritySet};
use sluicenet_proto::time::Instant;

#[derive(Clone, Copy, Debug)]
pub(super) struct Voq {
    pub key: u32,
    pub list: Fifo,
}

/// A link of an adapter: its queues and its flow control. The fields that every frame touches stand in front.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Link {
    /// Queues with frames, the one to be served next in front.
    pub active: Vec<Voq>,
    pub ready_set: PrioritySet,
    pub paused: PrioritySet,
    pub signal: Signal,
    /// Queues with frames, by priority.
    pub ready: [u32; PRIORITIES],
    pub control_out: u64,
    pub gate: Gate,
    /// Bytes in the link's queues, their maximum so far, and frames taken out; not counted where the adapter has only one
    /// link.
    pub used: u32,
    pub max_used: u32,
    pub frames_out: u64,
}

impl Link {
    /// Whether a frame of this link may be sent now.
    #[inline(always)]
    pub fn has_frames(&self) -> bool {
        self.ready_set.0 & !self.paused.0 != 0
    }

    #[inline(always)]
    pub fn is_ready(&self) -> bool {
        self.has_frames() || self.signal.is_pending()
    }

    /// Appends a frame to its queue.
    #[inline(always)]
    pub fn push<F: Frame>(&mut self, pool: &mut Pool<F>, key: u32, at: Handle) {
        match self.active.iter_mut().find(|v| v.key == key) {
            Some(voq) => pool.push(&mut voq.list, at, 0),
            None => {
                let p = (key & 7) as u8;
                self.ready[p as usize] += 1;
                self.ready_set.insert(p);
                let mut list = Fifo::default();
                pool.push(&mut list, at, 0);
                self.active.push(Voq { key, list });
            }
        }
    }

    /// Takes the link's next frame that may be sent. There must be one.
    #[inline(always)]
    pub fn pop<F: Frame>(&mut self, pool: &mut Pool<F>) -> Option<Handle> {
        self.pop_of(self.next_turn(), pool)
    }

    /// The queue whose turn it is among those that may send. There must be one.
    #[inline(always)]
    pub fn next_turn(&self) -> usize {
        // A queue of a paused priority lets the next one go first and keeps its turn in the round.
        let mut turn = 0;
        while self.paused.contains((self.active[turn].key & 7) as u8) {
            turn += 1;
        }
        turn
    }

    /// Takes the first frame of a queue with frames.
    #[inline(always)]
    pub fn pop_of<F: Frame>(&mut self, turn: usize, pool: &mut Pool<F>) -> Option<Handle> {
        let last = self.active.len() - 1;
        let voq = &mut self.active[turn];
        let (at, _) = pool.pop(&mut voq.list)?;
        if voq.list.is_empty() {
            let p = (voq.key & 7) as u8;
            // Usually it is the only queue.
            if turn == last {
                self.active.truncate(last);
            } else {
                self.active.remove(turn);
            }
            self.ready[p as usize] -= 1;
            if self.ready[p as usize] == 0 {
                self.ready_set.remove(p);
            }
        } else if turn < last {
            let voq = self.active.remove(turn);
            self.active.push(voq);
        }
        Some(at)
    }

    /// Takes a queue from those that take turns. Returns its frames.
    pub fn deactivate(&mut self, turn: usize) -> Fifo {
        let Voq { key, list } = self.active.remove(turn);
        let p = (key & 7) as u8;
        self.ready[p as usize] -= 1;
        if self.ready[p as usize] == 0 {
            self.ready_set.remove(p);
        }
        list
    }

    /// Puts a queue with frames among those that take turns.
    pub fn activate(&mut self, key: u32, list: Fifo) {
        let p = (key & 7) as u8;
        self.ready[p as usize] += 1;
        self.ready_set.insert(p);
        self.active.push(Voq { key, list });
    }

    pub fn poll_control<F: Frame>(&mut self, now: Instant, config: &AdapterConfig, port: PortId) -> Option<F> {
        let lasts = config.quantum(port).saturating_mul(config.quanta as u64);
        let pause = self.signal.poll(now, config.quanta, lasts)?;
        self.control_out += 1;
        Some(F::from_pause(pause))
    }
}
