//! Ports that have frames and take none.

use super::{Action, Port, Vale, WatchdogConfig};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(super) enum Health {
    /// The port takes frames, or has none. The time is the moment since which it has had frames and taken none.
    Moving(Option<Instant>),
    /// The port has taken no frame for the detection time. The time is the moment since which it has had frames.
    Stuck(Instant),
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
                Health::Moving(Some(since)) | Health::Stuck(since) | Health::Isolated(Some(since)) => *since += gap,
                Health::Moving(None) | Health::Isolated(None) | Health::Absent => {}
            }
        }
    }

    /// Checks port `k`, which has room now or not; `free` gets the dropped frames.
    pub fn watch(&mut self, now: Instant, k: Port, has_room: bool, free: &mut impl FnMut(F)) {
        match self.ports[k].health {
            Health::Moving(Some(since)) | Health::Stuck(since) => {
                let (waited, watchdog) = (now.since(since), self.config.watchdog);
                if watchdog.reports_after().is_none_or(|time| waited < time) {
                    return;
                }
                if self.ports[k].ready.is_empty() || has_room {
                    // The port can take frames: the delay was the caller's.
                    self.ports[k].health = Health::Moving(Some(now));
                    return;
                }
                if let Health::Moving(_) = self.ports[k].health {
                    self.ports[k].counters.stuck += 1;
                    self.ports[k].health = Health::Stuck(since);
                }
                if watchdog.isolates_after().is_some_and(|time| waited >= time) {
                    self.give_up(k, DropReason::Watchdog, free);
                    self.ports[k].counters.isolated += 1;
                    self.ports[k].health = Health::Isolated(None);
                }
            }
            Health::Isolated(since) => {
                self.ports[k].health = match (has_room, since) {
                    (false, _) => Health::Isolated(None),
                    (true, Some(since)) if now.since(since) >= self.config.watchdog.restoration_time => {
                        Health::Moving(None)
                    }
                    (true, since) => Health::Isolated(since.or(Some(now))),
                };
            }
            Health::Moving(None) | Health::Absent => {}
        }
    }

    /// Whether port `k` has frames and has taken none for the detection time, and still gets frames.
    pub fn is_stuck(&self, k: Port) -> bool {
        matches!(self.ports[k].health, Health::Stuck(_))
    }

    /// Whether the watchdog keeps all frames from port `k`.
    pub fn is_isolated(&self, k: Port) -> bool {
        matches!(self.ports[k].health, Health::Isolated(_))
    }

    /// The settings of the watchdog.
    pub fn watchdog(&self) -> WatchdogConfig {
        self.config.watchdog
    }

    /// Changes the watchdog while traffic runs; an isolated port stays isolated until it moves.
    pub fn set_watchdog(&mut self, watchdog: WatchdogConfig) {
        self.config.watchdog = watchdog;
        if watchdog.action == Action::Off {
            for port in &mut self.ports {
                if let Health::Stuck(since) = port.health {
                    port.health = Health::Moving(Some(since));
                }
            }
        }
    }
}
