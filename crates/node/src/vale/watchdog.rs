//! Ports that have frames and take none.

use super::{Action, Port, Vale};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(super) enum Health {
    /// The port takes frames, or has none. The time is the moment since which it has had frames and taken none.
    Moving(Option<Instant>),
    /// No frame reaches the port. The time is the moment since which it has had room.
    Isolated(Option<Instant>),
    /// The port is unused.
    Absent,
}

impl<F: Copy> Vale<F> {
    /// Excuses a `gap` in which the caller did not poll: no port is stuck because of it.
    #[cold]
    pub fn was_away(&mut self, gap: Duration) {
        for port in &mut self.ports {
            match &mut port.health {
                Health::Moving(Some(since)) | Health::Isolated(Some(since)) => *since += gap,
                _ => {}
            }
        }
    }

    /// Checks port `k`, which has room now or not; `free` gets the dropped frames.
    pub fn watch(&mut self, now: Instant, k: Port, has_room: bool, free: &mut impl FnMut(F)) {
        match self.ports[k].health {
            Health::Moving(Some(since)) if now.since(since) >= self.config.detection_time => {
                if self.ports[k].ready.is_empty() || has_room {
                    // The port can take frames: the delay was the caller's.
                    self.ports[k].health = Health::Moving(Some(now));
                    return;
                }
                match self.config.action {
                    Action::Off => {}
                    Action::Alert => {
                        // Counted again for each detection time in which the port stays stuck.
                        self.ports[k].counters.stuck += 1;
                        self.ports[k].health = Health::Moving(Some(now));
                    }
                    Action::Drop => {
                        self.give_up(k, DropReason::Watchdog, free);
                        self.ports[k].counters.stuck += 1;
                        self.ports[k].counters.isolated += 1;
                        self.ports[k].health = Health::Isolated(None);
                    }
                }
            }
            Health::Isolated(since) => {
                self.ports[k].health = match (has_room, since) {
                    (false, _) => Health::Isolated(None),
                    (true, Some(since)) if now.since(since) >= self.config.restoration_time => Health::Moving(None),
                    (true, since) => Health::Isolated(since.or(Some(now))),
                };
            }
            _ => {}
        }
    }

    /// Whether the watchdog keeps all frames from port `k`.
    pub fn is_isolated(&self, k: Port) -> bool {
        matches!(self.ports[k].health, Health::Isolated(_))
    }

    /// The action on a stuck port, the detection time, and the restoration time.
    pub fn watchdog(&self) -> (Action, Duration, Duration) {
        (self.config.action, self.config.detection_time, self.config.restoration_time)
    }

    /// Changes the watchdog while traffic runs; an isolated port stays isolated until it moves.
    pub fn set_watchdog(&mut self, action: Action, detection_time: Duration, restoration_time: Duration) {
        self.config.action = action;
        self.config.detection_time = detection_time;
        self.config.restoration_time = restoration_time;
    }
}
