//! The queues of outputs: one for each class, first in first out.

use crate::device::PortId;
use crate::pool::{Fifo, Pool};
use sluicenet_proto::frame::{Frame, Priority, PrioritySet};

/// The part of an output that every frame touches: marker, scheduler and flow control in `M`, `S` and `C`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Egress<M, S, C> {
    pub marker: M,
    pub scheduler: S,
    pub flow: C,
    /// Classes with frames in their queues.
    pub backlogged: PrioritySet,
    /// Whether the output's link is down.
    pub is_dead: bool,
    pub queued_bytes: u32,
    pub max_bytes: u32,
}

/// The frames of one class at one output.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    pub list: Fifo,
    pub bytes: u32,
}

/// The queues of an output, as the output's scheduler sees them.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a, F> {
    pub(super) backlogged: PrioritySet,
    pub(super) paused: PrioritySet,
    /// The queues of all outputs: the queue of class `c` is at `c * ports + port`.
    pub(super) queues: &'a [Queue],
    pub(super) ports: usize,
    pub(super) port: PortId,
    pub(super) pool: &'a Pool<F>,
}

impl<F: Frame> Waiting<'_, F> {
    /// Classes with frames that flow control does not stop.
    #[inline(always)]
    pub fn ready(&self) -> PrioritySet {
        PrioritySet(self.backlogged.0 & !self.paused.0)
    }

    /// Classes with frames.
    #[inline(always)]
    pub fn backlogged(&self) -> PrioritySet {
        self.backlogged
    }

    /// Classes that flow control stops, with frames or without.
    #[inline(always)]
    pub fn paused(&self) -> PrioritySet {
        self.paused
    }

    /// Waiting bytes of a class.
    #[inline(always)]
    pub fn bytes(&self, class: Priority) -> u32 {
        self.queue(class).bytes
    }

    /// Length of the first frame of a class in bytes; 0 if no frame waits.
    #[inline(always)]
    pub fn first_bytes(&self, class: Priority) -> u32 {
        self.queue(class).list.front().map_or(0, |at| self.pool.frame(at).len())
    }

    #[inline(always)]
    fn queue(&self, class: Priority) -> &Queue {
        &self.queues[class as usize * self.ports + self.port as usize]
    }
}
