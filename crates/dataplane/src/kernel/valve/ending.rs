//! The end of a valve: the tenant's queue is shut, and frames that had left it are fetched until no more can arrive.
//! Frames that have left the queue are in the ring, or wait in front of a full ring. So the port sends a trace behind all of
//! them. When the trace arrives, the ring is empty. All further frames wait in the tenant's queue until the next switch runs.

use super::ValvePort;
use crate::kernel::tenant_queue::Traced;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};

/// If the ring is not emptied, one or two frames are polled this often, so that the kernel does not poll. The next switch then
/// has the rest of the kernel's two seconds to start.
const KEEP_SHUT_AT_END: Duration = Duration::from_ms(200);
/// After this time the kernel has finished everything that it had begun before the switch began to end.
const SETTLES_IN: Duration = Duration::from_ms(50);
/// How often a trace is sent until then, and until one arrives.
const TRACE_EVERY: Duration = Duration::from_ms(5);

/// The progress of a port that ends.
#[derive(Debug, Default)]
pub(super) struct Ending {
    since: Option<Instant>,
    settled: bool,
    /// Traces sent, and traces received.
    sent: u32,
    back: u32,
    deadline: Option<Instant>,
    /// When the last trace was sent, unless the ring was full.
    sent_at: Option<Instant>,
}

impl Ending {
    /// A trace has arrived.
    pub fn traced(&mut self) {
        self.back += 1;
    }

    /// Whether no more frames can arrive.
    pub fn is_settled(&self) -> bool {
        self.settled
    }
}

impl ValvePort {
    /// Shuts the tenant's queue.
    pub(super) fn begin_to_end(&mut self) {
        self.ending = Some(Ending::default());
        self.rest.end();
        // If another program removed the queue, only the full ring stops the tenant, as long as the kernel does not poll.
        if self.tenant_queue.shut_again().is_err() {
            self.keep_shut();
        }
    }

    /// Fetches the frames that had left the queue.
    pub(super) fn end(&mut self) -> Result<(), BrokenPort> {
        let now = self.now;
        let Some(ending) = &mut self.ending else { return Ok(()) };
        let settles_at = ending.since.get_or_insert(now).saturating_add(SETTLES_IN);
        if !self.tenant_queue.is_shut() {
            // The next switch gets the frames in the ring.
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
            // A device that is switched off sends nothing; the frames in the ring are older.
            Traced::Off => return self.leave(),
        }
        Ok(())
    }

    fn settle(&mut self, settled: bool) {
        self.ending.iter_mut().for_each(|ending| ending.settled = settled);
    }

    /// The ring is empty and stays so. The device's interrupts are enabled again, so that the next switch learns of the first
    /// frame.
    fn leave(&mut self) -> Result<(), BrokenPort> {
        self.interrupts_on()?;
        self.settle(true);
        Ok(())
    }
}
