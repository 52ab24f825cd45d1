//! The notification point: the receiver of a queue pair (Zhu et al. 2015, 3.1).

use super::Config;
use crate::time::Instant;

/// Decides which marked packets are answered by a CNP.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    /// When the next CNP may be sent.
    next: Instant,
}

impl NotificationPoint {
    /// A marked packet arrived. Returns whether a CNP answers it.
    pub fn on_marked(&mut self, config: &Config, now: Instant) -> bool {
        let answers = now >= self.next;
        if answers {
            self.next = now.saturating_add(config.min_time_between_cnps);
        }
        answers
    }
}
