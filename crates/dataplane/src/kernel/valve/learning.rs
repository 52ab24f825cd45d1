//! A device that was switched off and on has a receive queue of another number, by which it is polled from then on.
//!
//! A socket learns such a number once. So a port has some in reserve, made while it was opened, when the switch still had the right
//! to enter the device's namespace. The tenant is held until the new number is known.

use super::ValvePort;
use super::listening::{Poller, boot_frame};
use crate::kernel::sys;
use crate::port::BrokenPort;
use sluicenet_proto::time::{Duration, Instant};
use std::os::fd::AsFd;

/// How often it is looked whether the device is on again.
const LOOK_EVERY: Duration = Duration::from_ms(50);

/// Sockets that can learn a number, and whether one has to.
#[derive(Debug)]
pub(super) struct Learning {
    reserve: Vec<Poller>,
    deadline: Option<Instant>,
    /// Numbers learned since the port was opened.
    pub learned: u64,
}

impl Learning {
    pub fn new(reserve: Vec<Poller>) -> Learning {
        Learning { reserve, deadline: None, learned: 0 }
    }

    /// The device was switched off.
    pub fn forget(&mut self, now: Instant) {
        self.deadline.get_or_insert(now);
    }

    /// When it is tried again, while there is no number.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

impl ValvePort {
    /// Has a socket in reserve learn the number, once the device is on again. Without one left the port is broken.
    pub(super) fn learn_again(&mut self) -> Result<(), BrokenPort> {
        if !self.tenant_queue.is_shut() || self.rest.is_held() {
            self.rest.end();
            // Where somebody took the queue away, the tenant is not held.
            let _ = self.tenant_queue.rest();
        }
        let Some(next) = self.learning.reserve.last() else { return Err(BrokenPort) };
        if sys::napi_id(next.fd.as_fd()).map_err(|_| BrokenPort)? == 0 {
            if self.learning.deadline.is_some_and(|due| self.now >= due) {
                self.learning.deadline = Some(self.now.saturating_add(LOOK_EVERY));
                self.boot = boot_frame(next.port);
                // One that is off throws the frame away, and counts it.
                if self.edge.borrow_mut().is_up() {
                    let _ = self.tenant_queue.send_past(&self.boot);
                }
            }
            return Ok(());
        }
        if let Some(next) = self.learning.reserve.pop() {
            self.poller = next.fd;
        }
        self.learning.deadline = None;
        self.learning.learned += 1;
        Ok(())
    }
}
