//! What the service manager hears (sd_notify(3)); nothing if none has started the switch.

use super::status::counted;
use sd_notify::NotifyState;
use std::sync::{Mutex, PoisonError};
use tracing::warn;

/// The last line of state that the service manager was told.
#[derive(Debug, Default)]
pub(crate) struct Notify(Mutex<String>);

impl Notify {
    /// The switch serves its ports: at the start, and after a reload.
    pub fn ready(&self, ports: usize, absent: &[String]) {
        send(&[NotifyState::Ready]);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.state(ports, absent);
    }

    /// Tells the number of ports and the absent ones, if either has changed.
    pub fn state(&self, ports: usize, absent: &[String]) {
        let mut line = counted(ports as u64, "port", "ports");
        if !absent.is_empty() {
            line += &format!(", absent: {}", absent.join(", "));
        }
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != line {
            send(&[NotifyState::Status(&line)]);
            *last = line;
        }
    }

    /// A reload begins.
    pub fn reloading(&self) {
        let Ok(now) = NotifyState::monotonic_usec_now() else { return };
        send(&[NotifyState::Reloading, now]);
    }

    /// The switch delivers the frames that it holds and ends.
    pub fn stopping(&self) {
        send(&[NotifyState::Stopping, NotifyState::Status("delivers the frames that it holds")]);
    }
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "service manager not told");
    }
}
