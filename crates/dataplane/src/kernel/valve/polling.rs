//! Ensures that the switch polls the device, and not the kernel.
//! The kernel polls as long as it finds 64 frames each time. A tenant whose sockets hold more than a packet socket keeps it
//! polling without end, and there is no backpressure. The kernel polls while the port sleeps, and after two seconds without a
//! poll of ours. A busy poll at that time tells the kernel to stop after the next 64 frames (`NAPI_STATE_PREFER_BUSY_POLL`).
//! The kernel forgets that if it was called again in between, so the port repeats it until no frame arrives unasked.
//! On a busy machine the switch gets a processor too late for that. So the tenant's queue is shut while interrupts are enabled:
//! one frame goes, and the kernel's poll that brings it ends there. The queue opens when the switch runs and has used up the
//! interrupt with a frame of its own. Changing the queue costs more than sleeping, so a queue with single frames is shut only
//! after a while without frames.

use super::ValvePort;
use super::listening::DEFER_INTERRUPTS;
use crate::kernel::sys;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};
use std::os::fd::AsFd;

/// How often a port without room checks whether the kernel polls.
const LOOK_EVERY: Duration = Duration::from_us(200);
/// The most frames of our smallest poll.
const LEAST: u64 = 2;

/// A port sleeps with an open queue if for this time fewer frames than in a poll of the kernel came at once, and at least one
/// came.
const WARY_FOR: Duration = Duration::from_secs(1);
const MANY: usize = 64;
const REST_AFTER: Duration = Duration::from_ms(5);
/// A queue is opened after this time at most: the frame that was to wake the port may have been dropped. All ports do so at the
/// same time, so that an idle switch wakes once for all of them.
const REST_AT_MOST: Duration = Duration::from_secs(1);

/// When a queue that was shut at `since` is opened again.
fn rest_ends(since: Instant) -> Instant {
    Instant((since.0 / REST_AT_MOST.0 + 1) * REST_AT_MOST.0)
}

/// When a port may sleep, and how.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Since when the queue is shut because no frame came, and whether one came since.
    since: Option<Instant>,
    woken: bool,
    /// When the last frame came, and when many came at once.
    came: Instant,
    flooded: Option<Instant>,
}

impl Rest {
    /// The single frame of a shut queue arrived.
    pub fn wake(&mut self) {
        self.woken = true;
    }

    /// Notes that this number of the tenant's frames arrived at once.
    pub fn came(&mut self, now: Instant, frames: usize) {
        self.woken = true;
        self.came = now;
        if frames >= MANY {
            self.flooded = Some(now);
        }
    }

    /// Whether the tenant's queue is shut.
    pub fn is_held(&self) -> bool {
        self.since.is_some()
    }

    /// The port ends.
    pub fn end(&mut self) {
        self.since = None;
    }

    fn begins(&self, now: Instant) -> bool {
        self.since.is_none()
            && (now.since(self.came) >= REST_AFTER || self.flooded.is_some_and(|at| now.since(at) < WARY_FOR))
    }

    fn is_over(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| self.woken || now >= rest_ends(since))
    }

    /// When a sleeping port has to check its queue.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let at = match self.since {
            Some(since) => rest_ends(since),
            None => self.came.saturating_add(REST_AFTER),
        };
        (at > now).then_some(at)
    }
}

/// Frames that came without a poll of ours.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    /// The most frames in the socket that a poll of ours brought.
    ours: u64,
    /// Frames that no poll of ours brought.
    pub frames: u64,
    /// Memory of the frames in the socket after the last poll, in bytes, and when that was checked.
    waited: u32,
    looked: Instant,
}

impl Unasked {
    /// Counts fetched frames; returns whether the kernel has polled.
    pub fn fetched(&mut self, frames: usize) -> bool {
        let frames = frames as u64;
        let unasked = frames.saturating_sub(self.ours);
        self.ours = self.ours.saturating_sub(frames);
        self.frames += unasked;
        unasked > 0
    }

    /// The frames of a poll of ours were fetched.
    pub fn polled(&mut self) {
        self.ours = 0;
    }
}

impl ValvePort {
    /// Lets the tenant send: at once, or after one frame if the port has just started and interrupts are enabled.
    pub(super) fn let_go(&mut self) -> Result<(), BrokenPort> {
        if self.rest.is_over(self.now) {
            self.interrupts_off();
            self.rest.since = None;
            // If another program removed the queue, nothing stops the tenant.
            let _ = self.tenant_queue.open();
        } else if self.tenant_queue.is_shut() && !self.rest.is_held() {
            self.tenant_queue.shut_again().map_err(|_| BrokenPort)?;
            (self.rest.since, self.rest.woken) = (Some(self.now), false);
        }
        Ok(())
    }

    /// Shuts the tenant's queue before the port sleeps, unless only single frames come.
    pub(super) fn rest(&mut self) {
        // A queue that another program removed cannot be shut.
        if self.rest.begins(self.now) && self.tenant_queue.rest().is_ok() {
            (self.rest.since, self.rest.woken) = (Some(self.now), false);
        }
    }

    /// Keeps the queue shut while the port has no room; returns whether a frame arrived nevertheless.
    pub(super) fn stay_shut(&mut self, at_once: bool) -> bool {
        if !at_once && self.now.since(self.unasked.looked) < LOOK_EVERY {
            return false;
        }
        self.unasked.looked = self.now;
        let came = self.waiting_memory() > self.unasked.waited;
        if came {
            self.keep_shut();
        }
        came
    }

    /// Memory of the frames in the packet socket.
    fn waiting_memory(&self) -> u32 {
        // A broken socket is found by the next receive call.
        sys::receive_memory(self.kernel.socket.as_fd()).unwrap_or(0)
    }

    /// Polls as few frames as possible and leaves them in the socket: the kernel's own poll would bring more. It also tells the
    /// kernel to stop polling.
    pub(super) fn keep_shut(&mut self) {
        sys::busy_poll(self.pollers.least.as_fd());
        self.polled = self.now;
        self.unasked.ours += LEAST;
        self.unasked.looked = self.now;
        self.unasked.waited = self.waiting_memory();
    }

    /// A frame of ours uses up the interrupt. A device that is off would drop and count it.
    pub(super) fn interrupts_off(&mut self) {
        if self.interrupts && self.learning.deadline().is_none() {
            self.tenant_queue.rouse();
        }
        self.interrupts = false;
    }

    /// Empty polls without busy-poll preference enable the interrupts again, unless frames come meanwhile.
    pub(super) fn interrupts_on(&mut self) -> Result<(), BrokenPort> {
        self.interrupts = true;
        for _ in 0..2 * DEFER_INTERRUPTS {
            self.poll(true)?;
            if !self.inbox.is_quiet() && self.ending.is_none() {
                break;
            }
        }
        Ok(())
    }
}
