//! Who polls the device: the switch, and not the kernel.
//!
//! A poll of the kernel's goes on for as long as each finds 64 frames. Against a tenant whose sockets hold more than a packet
//! socket that is no end, and nothing is held back. The kernel polls when the port sleeps, and after two seconds without a
//! poll of ours; a busy poll that finds it at work tells it to leave off after the next 64 (`NAPI_STATE_PREFER_BUSY_POLL`). It
//! forgets that where it was called again in between, so it is told until nothing comes unasked.
//!
//! That takes a processor, which a switch on a busy machine gets too late. So the tenant's queue is held while interrupts are on:
//! one frame goes, the kernel's poll that brings it ends there, and the queue opens when the switch is there and has spent the
//! interrupt by a frame of its own. Changing the queue costs more than sleeping does, so a port where single frames come is held
//! only when none came for a while.

use super::ValvePort;
use super::listening::DEFER_INTERRUPTS;
use crate::kernel::sys;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};
use std::os::fd::AsFd;

/// How often a port that is shut looks whether the kernel polls, while turns are made.
const LOOK_EVERY: Duration = Duration::from_us(200);
/// Frames that the smallest poll of ours brings at most.
const LEAST: u64 = 2;

/// A port sleeps without its tenant held when less than a poll of the kernel's came at once for so long, unless nothing came.
const WARY_FOR: Duration = Duration::from_secs(1);
const MANY: usize = 64;
const REST_AFTER: Duration = Duration::from_ms(5);
/// A tenant that is held is let go after so long: the frame that was to wake the port may have been thrown away.
const REST_AT_MOST: Duration = Duration::from_secs(1);

/// When a port may sleep, and how.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Since when the tenant is held because nothing came, and whether something did since.
    since: Option<Instant>,
    woken: bool,
    /// When something came last, and many at once.
    came: Instant,
    flooded: Option<Instant>,
}

impl Rest {
    /// The frame that a queue lets go once came.
    pub fn wake(&mut self) {
        self.woken = true;
    }

    /// So many frames of the tenant's came at once.
    pub fn came(&mut self, now: Instant, frames: usize) {
        self.woken = true;
        self.came = now;
        if frames >= MANY {
            self.flooded = Some(now);
        }
    }

    /// Whether the tenant is held.
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
        self.since.is_some_and(|since| self.woken || now.since(since) >= REST_AT_MOST)
    }

    /// When a port that sleeps is to look whether it is held, or has been for long enough.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let at = match self.since {
            Some(since) => since.saturating_add(REST_AT_MOST),
            None => self.came.saturating_add(REST_AFTER),
        };
        (at > now).then_some(at)
    }
}

/// What has come of the device by itself.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    /// Frames in the socket at most that a poll of ours brought.
    ours: u64,
    /// Frames that none of ours brought.
    pub frames: u64,
    /// Bytes of memory that waited in the socket after the last poll, and when that was looked at.
    waited: u32,
    looked: Instant,
}

impl Unasked {
    /// So many frames were fetched; whether the kernel has polled.
    pub fn fetched(&mut self, frames: usize) -> bool {
        let frames = frames as u64;
        let unasked = frames.saturating_sub(self.ours);
        self.ours = self.ours.saturating_sub(frames);
        self.frames += unasked;
        unasked > 0
    }

    /// What a poll of ours brought was fetched.
    pub fn polled(&mut self) {
        self.ours = 0;
    }
}

impl ValvePort {
    /// The tenant may send: at once, or after one frame of a port that begins, whose interrupts are on.
    pub(super) fn let_go(&mut self) -> Result<(), BrokenPort> {
        if self.rest.is_over(self.now) {
            self.interrupts_off();
            self.rest.since = None;
            // Where somebody took the queue away, nothing holds him.
            let _ = self.tenant_queue.open();
        } else if self.tenant_queue.is_shut() && !self.rest.is_held() {
            self.tenant_queue.shut_again().map_err(|_| BrokenPort)?;
            (self.rest.since, self.rest.woken) = (Some(self.now), false);
        }
        Ok(())
    }

    /// Before the port sleeps: its tenant is held, unless only single frames come.
    pub(super) fn rest(&mut self) {
        // A queue that somebody took away cannot be held.
        if self.rest.begins(self.now) && self.tenant_queue.rest().is_ok() {
            (self.rest.since, self.rest.woken) = (Some(self.now), false);
        }
    }

    /// While the port is shut nothing may come; whether something did.
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

    /// Memory of what waits in the packet socket.
    fn waiting_memory(&self) -> u32 {
        // A socket that does not say it is found broken by whoever receives from it.
        sys::receive_memory(self.kernel.socket.as_fd()).unwrap_or(0)
    }

    /// Polls as little as can be, and leaves it in the socket: the kernel's own poll would bring more. Where that goes on, it
    /// is told to leave off.
    pub(super) fn keep_shut(&mut self) {
        // Options that this socket has; if they could not be set, the poll would bring more.
        let budget = |n| drop(sys::set_option(self.poller.as_fd(), libc::SOL_SOCKET, sys::BUSY_POLL_BUDGET, n));
        budget(1);
        sys::busy_poll(self.poller.as_fd());
        budget(self.budget);
        self.polled = self.now;
        self.unasked.ours += LEAST;
        self.unasked.looked = self.now;
        self.unasked.waited = self.waiting_memory();
    }

    /// A frame of ours spends the interrupt. At a device that is off it would be lost, and counted.
    pub(super) fn interrupts_off(&mut self) {
        if self.interrupts && self.learning.deadline().is_none() {
            self.tenant_queue.rouse();
        }
        self.interrupts = false;
    }

    /// Empty polls, without preference for ours, have the interrupts on again; not if something comes while the port is in use.
    pub(super) fn interrupts_on(&mut self) -> Result<(), BrokenPort> {
        sys::set_option(self.poller.as_fd(), libc::SOL_SOCKET, sys::PREFER_BUSY_POLL, 0).map_err(|_| BrokenPort)?;
        self.interrupts = true;
        for _ in 0..2 * DEFER_INTERRUPTS {
            self.poll()?;
            if !self.inbox.is_quiet() && self.ending.is_none() {
                break;
            }
        }
        Ok(())
    }
}
