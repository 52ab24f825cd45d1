//! The table of virtual queues, as a loop reaches it: its own, or shared with other loops and locked for each queue.

use sluicenet_proto::netbump::{QueueId, Slot};
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use std::ops::DerefMut;
use std::sync::Arc;

/// The virtual queues of a bump.
pub trait Queues<S>: Send {
    /// The right to use a queue, alone.
    type Slot<'a>: DerefMut<Target = Slot<S>>
    where
        Self: 'a;

    /// A virtual queue.
    fn slot(&mut self, queue: QueueId) -> Self::Slot<'_>;

    /// Number of queues.
    fn count(&self) -> usize;
}

/// The table of a bump with one loop.
#[derive(Debug)]
pub struct Own<S>(pub Vec<Slot<S>>);

impl<S: Send> Queues<S> for Own<S> {
    type Slot<'a>
        = &'a mut Slot<S>
    where
        S: 'a;

    #[inline(always)]
    fn slot(&mut self, queue: QueueId) -> &mut Slot<S> {
        &mut self.0[usize::from(queue)]
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

/// Attempts to get a queue before a loop gives up its core: some microseconds.
const PATIENCE: usize = 100;

/// A queue in cache lines of its own: two loops that use neighbouring queues do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
struct Apart<S>(SpinMutex<Slot<S>, Yield>);

/// The table of a bump with several loops.
#[derive(Debug)]
pub struct Shared<S>(Arc<[Apart<S>]>);

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Shared<S> {
        Shared(Arc::clone(&self.0))
    }
}

impl<S> Shared<S> {
    /// A table of these queues.
    pub fn new(slots: Vec<Slot<S>>) -> Shared<S> {
        Shared(slots.into_iter().map(|slot| Apart(SpinMutex::new(slot))).collect())
    }
}

/// Waits for another loop, which needs a queue for some 20 ns.
#[cold]
fn wait<S>(lock: &SpinMutex<S, Yield>) -> SpinMutexGuard<'_, S, Yield> {
    for _ in 0..PATIENCE {
        std::hint::spin_loop();
        if let Some(slot) = lock.try_lock() {
            return slot;
        }
    }
    // The other loop lost its core while it had the queue: this one gives up its own, time after time.
    lock.lock()
}

impl<S: Send> Queues<S> for Shared<S> {
    type Slot<'a>
        = SpinMutexGuard<'a, Slot<S>, Yield>
    where
        S: 'a;

    #[inline(always)]
    fn slot(&mut self, queue: QueueId) -> SpinMutexGuard<'_, Slot<S>, Yield> {
        let lock = &self.0[usize::from(queue)].0;
        match lock.try_lock() {
            Some(slot) => slot,
            None => wait(lock),
        }
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}
