//! How a valve ends: the tenant's queue is shut, and what had left it is fetched, until nothing more can come.
//!
//! What has left the queue is in the ring, or waits in front of it where that was full. So a trace is sent behind all of it, and is
//! waited for: when it is back, the ring is empty, and whatever the next switch needs waits in the tenant's queue, for as long
//! as no switch runs.

use super::ValvePort;
use crate::kernel::tenant_queue::Traced;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};

/// How often one or two frames are polled where the ring is not emptied, so that the kernel does not poll: the next switch has
/// the rest of the kernel's two seconds to start.
const KEEP_SHUT_AT_END: Duration = Duration::from_ms(200);
/// What the kernel was about to do by itself when the switch began to end has been done by then.
const SETTLES_IN: Duration = Duration::from_ms(50);
/// How often a trace is sent until then, and until one is back.
const TRACE_EVERY: Duration = Duration::from_ms(5);

/// How far a port that ends has got.
#[derive(Debug, Default)]
pub(super) struct Ending {
    since: Option<Instant>,
    settled: bool,
    /// Traces sent, and come back.
    sent: u32,
    back: u32,
    deadline: Option<Instant>,
    /// When the last one was sent, unless the ring was full.
    sent_at: Option<Instant>,
}

impl Ending {
    /// A trace is back.
    pub fn traced(&mut self) {
        self.back += 1;
    }

    /// Whether nothing more comes.
    pub fn is_settled(&self) -> bool {
        self.settled
    }
}

impl ValvePort {
    /// Shuts the tenant's queue.
    pub(super) fn begin_to_end(&mut self) {
        self.ending = Some(Ending::default());
        self.rest.end();
        // Where somebody took the queue away, the tenant is held by the ring alone, for as long as the kernel does not poll.
        if self.tenant_queue.shut_again().is_err() {
            self.keep_shut();
        }
    }

    /// Fetches what had left the queue.
    pub(super) fn end(&mut self) -> Result<(), BrokenPort> {
        let now = self.now;
        let Some(ending) = &mut self.ending else { return Ok(()) };
        let settles_at = ending.since.get_or_insert(now).saturating_add(SETTLES_IN);
        if !self.tenant_queue.is_shut() {
            // What is in the ring is the next switch's.
            if now.since(self.polled) >= KEEP_SHUT_AT_END {
                self.keep_shut();
            }
            let all = self.drain()? == 0 && self.inbox.pool().has_room_for_any();
            self.settle(all && now >= settles_at);
            return Ok(());
        }
        if ending.settled {
            return self.drain().map(drop);
        }
        self.fetch()?;
        let has_room = self.has_room();
        if !has_room && now.since(self.polled) >= KEEP_SHUT_AT_END {
            self.keep_shut();
        }
        let Some(ending) = &mut self.ending else { return Ok(()) };
        if ending.back >= ending.sent && ending.sent_at.is_some_and(|at| at >= settles_at) {
            return self.leave();
        }
        if !has_room || ending.deadline.is_some_and(|due| now < due) {
            return Ok(());
        }
        ending.deadline = Some(now.saturating_add(TRACE_EVERY));
        match self.tenant_queue.trace() {
            Traced::Sent => {
                ending.sent += 1;
                ending.sent_at = Some(now);
            }
            Traced::Full => ending.sent_at = None,
            // Nothing comes from a device that is switched off; what is in the ring came before.
            Traced::Off => return self.leave(),
        }
        Ok(())
    }

    fn settle(&mut self, settled: bool) {
        self.ending.iter_mut().for_each(|ending| ending.settled = settled);
    }

    /// The ring is empty, and nothing goes there: the device's interrupts are on again, for the next switch to be found by.
    fn leave(&mut self) -> Result<(), BrokenPort> {
        self.interrupts_on()?;
        self.settle(true);
        Ok(())
    }
}
