//! A device that was switched off and on has a receive queue with another number, by which it has to be polled.
//! A socket learns such a number only once. So a port has sockets in reserve, and asks for further ones when it has used them.
//! The tenant's queue is shut until the new number is known.

use super::ValvePort;
use super::listening::boot_frame;
use super::pollers::Pollers;
use crate::kernel::sys;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};
use std::os::fd::AsFd;

/// How often the port checks whether the device is on again.
const LOOK_EVERY: Duration = Duration::from_ms(50);

/// Sockets that can learn a number, and when to try.
#[derive(Debug)]
pub(super) struct Learning {
    reserve: Option<Pollers>,
    deadline: Option<Instant>,
    /// Whether the device is gone for good.
    pub gone: bool,
    /// Numbers learned since the port was opened.
    pub learned: u64,
}

impl Learning {
    pub fn new(reserve: Pollers) -> Learning {
        Learning { reserve: Some(reserve), deadline: None, gone: false, learned: 0 }
    }

    /// The device was switched off.
    pub fn forget(&mut self, now: Instant) {
        self.deadline.get_or_insert(now);
    }

    /// When to try again, while there is no number.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl ValvePort {
    /// Lets the reserve sockets learn the number, once the device is on again. If there are none, the port is broken.
    pub(super) fn learn_again(&mut self) -> Result<(), BrokenPort> {
        if !self.tenant_queue.is_shut() || self.rest.is_held() {
            self.rest.end();
            // If another program removed the queue, the tenant cannot be stopped.
            let _ = self.tenant_queue.rest();
        }
        if self.learning.reserve.is_none() {
            self.learning.reserve = self.tenant_queue.pollers().ok();
        }
        let Some(next) = &self.learning.reserve else { return Err(BrokenPort) };
        if !next.learn().map_err(|_| BrokenPort)? {
            if self.learning.deadline.is_some_and(|due| self.now >= due) {
                self.learning.deadline = Some(self.now.saturating_add(LOOK_EVERY));
                if sys::has_lost_device(self.kernel.socket.as_fd()).map_err(|_| BrokenPort)? {
                    self.learning.gone = true;
                    return Err(BrokenPort);
                }
                self.boot = boot_frame(next.port);
                // A device that is off drops the frame and counts it.
                if self.edge.borrow_mut().is_up() {
                    let _ = self.tenant_queue.send_past(&self.boot);
                }
            }
            return Ok(());
        }
        if let Some(next) = self.learning.reserve.take() {
            self.pollers = next;
        }
        // Without the privileges, as in a bump, there is no next time.
        self.learning.reserve = self.tenant_queue.pollers().ok();
        self.learning.deadline = None;
        self.learning.learned += 1;
        Ok(())
    }
}
