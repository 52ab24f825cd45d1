//! The PFC watchdog of a transmitter: it gives up a class that its neighbour pauses for too long, so that a storm of pauses
//! spreads no further (SONiC's PFC watchdog, action `drop`).

use crate::frame::{PRIORITIES, Priority, PrioritySet};
use crate::time::{Duration, Instant};

/// SONiC's default: a paused queue that has frames and sends none for this long is in a storm.
pub const DETECTION_TIME: Duration = Duration::from_ms(200);
/// SONiC's default: a storm is over when no pause arrived for this long.
pub const RESTORATION_TIME: Duration = Duration::from_ms(200);

/// A change of a class's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A storm of the class has begun.
    Detected,
    /// The storm of the class is over.
    Restored,
}

/// The watchdog.
#[derive(Clone, Debug)]
pub struct Watchdog {
    detection: Duration,
    restoration: Duration,
    /// Whether the watchdog gives up a class in a storm, or only counts storms.
    gives_up: bool,
    /// Since when each class has had frames and sent none.
    stuck: [Option<Instant>; PRIORITIES],
    storms: PrioritySet,
    /// When the last pause of a class in a storm arrived.
    paused_at: [Instant; PRIORITIES],
    detected: u64,
    restored: u64,
}

impl Watchdog {
    /// A watchdog that has seen nothing.
    pub fn new(detection: Duration, restoration: Duration) -> Watchdog {
        Watchdog {
            detection,
            restoration,
            gives_up: true,
            stuck: [None; PRIORITIES],
            storms: PrioritySet::NONE,
            paused_at: [Instant::ZERO; PRIORITIES],
            detected: 0,
            restored: 0,
        }
    }

    /// Sets new times, with [`Duration::MAX`] as detection time to disable detection. Without `gives_up` storms are only
    /// counted, once per detection time.
    pub fn set(&mut self, detection: Duration, restoration: Duration, gives_up: bool) {
        (self.detection, self.restoration, self.gives_up) = (detection, restoration, gives_up);
        if !gives_up {
            self.storms = PrioritySet::NONE;
        }
    }

    /// Classes in a storm.
    #[inline(always)]
    pub fn storms(&self) -> PrioritySet {
        self.storms
    }

    /// Numbers of storms that began and that ended.
    pub fn counts(&self) -> (u64, u64) {
        (self.detected, self.restored)
    }

    /// Class `p` has frames to send.
    #[inline]
    pub fn on_waiting(&mut self, now: Instant, p: Priority) {
        self.stuck[p as usize].get_or_insert(now);
    }

    /// A frame of class `p` was sent; `wait` says whether more frames are queued.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, p: Priority, wait: bool) {
        self.stuck[p as usize] = wait.then_some(now);
    }

    /// A frame that pauses these classes arrived.
    pub fn on_pause(&mut self, now: Instant, classes: PrioritySet) {
        for p in classes.iter() {
            self.paused_at[p as usize] = now;
        }
    }

    /// The link is down: nothing waits, and storms are over.
    pub fn forget(&mut self) {
        self.restored += self.storms.iter().count() as u64;
        (self.storms, self.stuck) = (PrioritySet::NONE, [None; PRIORITIES]);
    }

    /// When [`Watchdog::handle_timeout`] may detect a change, with these classes `paused`.
    pub fn poll_timeout(&self, paused: PrioritySet) -> Option<Instant> {
        let storms = self.storms.iter().map(|p| self.paused_at[p as usize].saturating_add(self.restoration));
        let quiet = PrioritySet(paused.0 & !self.storms.0);
        let stuck = quiet.iter().filter_map(|p| Some(self.stuck[p as usize]?.saturating_add(self.detection)));
        storms.chain(stuck).min()
    }

    /// The next class whose storm begins or ends now.
    pub fn handle_timeout(&mut self, now: Instant, paused: PrioritySet) -> Option<(Priority, Change)> {
        for p in 0..PRIORITIES as Priority {
            let i = p as usize;
            if self.storms.contains(p) {
                if now.since(self.paused_at[i]) >= self.restoration {
                    self.storms.remove(p);
                    self.stuck[i] = None;
                    self.restored += 1;
                    return Some((p, Change::Restored));
                }
            } else if paused.contains(p) && self.stuck[i].is_some_and(|since| now.since(since) >= self.detection) {
                self.detected += 1;
                if !self.gives_up {
                    self.stuck[i] = Some(now);
                    continue;
                }
                self.storms.insert(p);
                self.paused_at[i] = now;
                return Some((p, Change::Detected));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(n)
    }
    const HELD: PrioritySet = PrioritySet(1 << 3);

    #[test]
    fn a_storm_is_detected_and_over_at_its_times() {
        let mut w = Watchdog::new(DETECTION_TIME, RESTORATION_TIME);
        w.on_waiting(ms(10), 3);
        w.on_waiting(ms(50), 3);
        assert_eq!(w.poll_timeout(HELD), Some(ms(210)));
        assert_eq!(w.handle_timeout(ms(209), HELD), None);
        assert_eq!(w.handle_timeout(ms(210), HELD), Some((3, Change::Detected)));
        assert_eq!(w.handle_timeout(ms(210), HELD), None);
        w.on_pause(ms(300), HELD);
        assert_eq!(w.poll_timeout(HELD), Some(ms(500)));
        assert_eq!(w.handle_timeout(ms(499), HELD), None);
        assert_eq!(w.handle_timeout(ms(500), PrioritySet::NONE), Some((3, Change::Restored)));
        assert_eq!((w.storms(), w.counts(), w.poll_timeout(HELD)), (PrioritySet::NONE, (1, 1), None));
    }

    #[test]
    fn who_gives_nobody_up_counts_storms_or_does_not_look() {
        let mut w = Watchdog::new(DETECTION_TIME, RESTORATION_TIME);
        w.on_waiting(ms(0), 3);
        assert_eq!(w.handle_timeout(ms(200), HELD), Some((3, Change::Detected)));
        w.set(DETECTION_TIME, RESTORATION_TIME, false);
        assert_eq!((w.storms(), w.handle_timeout(ms(201), HELD)), (PrioritySet::NONE, None));
        w.on_waiting(ms(201), 3);
        assert_eq!(w.handle_timeout(ms(401), HELD), None);
        assert_eq!((w.storms(), w.counts().0, w.poll_timeout(HELD)), (PrioritySet::NONE, 3, Some(ms(601))));
        w.set(Duration::MAX, RESTORATION_TIME, true);
        assert_eq!((w.handle_timeout(ms(99_999), HELD), w.poll_timeout(HELD)), (None, Some(Instant::MAX)));
    }

    #[test]
    fn a_class_that_moves_has_nothing_to_send_or_is_not_held_is_in_no_storm() {
        let mut w = Watchdog::new(DETECTION_TIME, RESTORATION_TIME);
        w.on_waiting(ms(0), 3);
        w.on_sent(ms(150), 3, true);
        assert_eq!(w.handle_timeout(ms(349), HELD), None);
        assert_eq!(w.handle_timeout(ms(350), PrioritySet::NONE), None, "the device is what is slow");
        w.on_sent(ms(349), 3, false);
        assert_eq!(w.handle_timeout(ms(9_999), HELD), None, "nothing waits");
    }
}
