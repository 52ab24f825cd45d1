//! Ports that have frames and take none.

use super::{Action, Port, Vale};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(super) enum Health {
    /// It takes frames, or has none; since when it has had some and taken none.
    Moving(Option<Instant>),
    /// Nothing reaches it; since when it has had room.
    Isolated(Option<Instant>),
    /// Nobody is there.
    Absent,
}

impl<F: Copy> Vale<F> {
    /// The caller did not come round for `gap`: nobody is stuck for that.
    #[cold]
    pub fn was_away(&mut self, gap: Duration) {
        for port in &mut self.ports {
            match &mut port.health {
                Health::Moving(Some(since)) | Health::Isolated(Some(since)) => *since += gap,
                _ => {}
            }
        }
    }

    /// Looks after port `k`, which has room now or has not; `free` gets what is given up.
    pub fn watch(&mut self, now: Instant, k: Port, has_room: bool, free: &mut impl FnMut(F)) {
        match self.ports[k].health {
            Health::Moving(Some(since)) if now.since(since) >= self.config.detection_time => {
                if self.ports[k].ready.is_empty() || has_room {
                    // It is we who did not come to it.
                    self.ports[k].health = Health::Moving(Some(now));
                    return;
                }
                match self.config.action {
                    Action::Off => {}
                    Action::Alert => {
                        // Counted anew for each detection time that it stays so.
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

    /// Whether the watchdog keeps everything from port `k`.
    pub fn is_isolated(&self, k: Port) -> bool {
        matches!(self.ports[k].health, Health::Isolated(_))
    }

    /// What becomes of a port that takes nothing, after how long, and for how long it has to take something again.
    pub fn watchdog(&self) -> (Action, Duration, Duration) {
        (self.config.action, self.config.detection_time, self.config.restoration_time)
    }

    /// Changes the watchdog while traffic runs; what is isolated stays so until it moves.
    pub fn set_watchdog(&mut self, action: Action, detection_time: Duration, restoration_time: Duration) {
        self.config.action = action;
        self.config.detection_time = detection_time;
        self.config.restoration_time = restoration_time;
    }
}
