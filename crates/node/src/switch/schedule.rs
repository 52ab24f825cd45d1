//! The scheduler: it chooses the class of an output that sends next.

use super::queue::Waiting;
use alloc::sync::Arc;
use sluicenet_proto::cee::ets::{Ets, EtsConfig};
use sluicenet_proto::frame::{Frame, Priority};

/// Chooses among the classes of one output. Every output has a scheduler of its own, which may keep weights and deficits.
pub trait Schedule {
    /// The class whose first frame is sent now, one of [`Waiting::ready`]. The frame leaves its queue right after the
    /// call.
    fn next<F: Frame>(&mut self, waiting: &Waiting<'_, F>) -> Option<Priority>;
}

/// One of the available schedulers.
#[derive(Clone, Debug)]
pub enum Scheduler {
    /// Round robin.
    RoundRobin(RoundRobin),
    /// Enhanced transmission selection.
    Ets(Ets, Arc<EtsConfig>),
}

impl Scheduler {
    /// The scheduler of an output: enhanced transmission selection, if there are settings for it.
    pub fn new(ets: Option<&Arc<EtsConfig>>) -> Scheduler {
        match ets {
            Some(config) => Scheduler::Ets(Ets::default(), config.clone()),
            None => Scheduler::RoundRobin(RoundRobin::default()),
        }
    }
}

impl Schedule for Scheduler {
    #[inline(always)]
    fn next<F: Frame>(&mut self, waiting: &Waiting<'_, F>) -> Option<Priority> {
        match self {
            Scheduler::RoundRobin(robin) => robin.next(waiting),
            Scheduler::Ets(ets, config) => {
                ets.next(config, waiting.backlogged(), waiting.ready(), |class| waiting.first_bytes(class))
            }
        }
    }
}

/// Round robin over classes, a frame each.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    /// The class that was served last.
    last: Priority,
}

impl Schedule for RoundRobin {
    #[inline(always)]
    fn next<F: Frame>(&mut self, waiting: &Waiting<'_, F>) -> Option<Priority> {
        self.last = waiting.ready().next_after(self.last)?;
        Some(self.last)
    }
}
