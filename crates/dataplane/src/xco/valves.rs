//! The queues of an agent.

use crate::kernel::classes::{Backlog, Classes};
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::coordinator::Valve;
use std::io;

/// The queues that an agent opens and shuts, one for each destination.
pub trait Valves {
    /// Lets a queue send at a rate in bytes per second, with bursts of so many bytes.
    ///
    /// # Errors
    /// The queues are gone.
    fn open(&mut self, n: usize, rate: u64, burst: u32) -> io::Result<()>;
    /// Shuts a queue.
    ///
    /// # Errors
    /// The queues are gone.
    fn shut(&mut self, n: usize) -> io::Result<()>;
    /// Has opened queues send.
    fn look(&self);
    /// What waits in each queue, and what has left it.
    ///
    /// # Errors
    /// The queues are gone.
    fn backlogs(&mut self) -> io::Result<&[Backlog]>;
    /// What the queue can carry out of that which its flow may send; `waiting` bytes wait.
    fn carries(&mut self, _n: usize, _now: Instant, valve: Valve, _waiting: u64) -> Valve {
        valve
    }
    /// Shows the counters that only this kind of queues has.
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

impl Valves for Classes {
    fn open(&mut self, n: usize, rate: u64, burst: u32) -> io::Result<()> {
        Classes::open(self, n, rate, burst)
    }
    fn shut(&mut self, n: usize) -> io::Result<()> {
        Classes::shut(self, n)
    }
    fn look(&self) {
        Classes::look(self);
    }
    fn backlogs(&mut self) -> io::Result<&[Backlog]> {
        Classes::backlogs(self)
    }
}
