//! Priority flow control (802.1Qbb): the gate at a transmitter and the watermarks at a receiver.

use crate::frame::{PRIORITIES, Pause, Priority, PrioritySet};
use crate::time::{Duration, Instant};
use crate::units::Rate;

/// One pause quantum in bit times (802.1Qbb, 36.2.1).
pub const QUANTUM_BITS: u64 = 512;

/// Time that `quanta` last on a link of `rate`.
pub fn quanta_time(quanta: u16, rate: Rate) -> Duration {
    rate.time_for(quanta as u64 * QUANTUM_BITS / 8)
}

/// The gate of a transmitter: which classes the far end holds, and until when.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    held: PrioritySet,
    until: [Instant; PRIORITIES],
    since: [Instant; PRIORITIES],
    /// Time each class has been held so far, the running pause not included.
    total: [Duration; PRIORITIES],
    received: u64,
    stops: u64,
}

impl Gate {
    /// Classes that may not send now.
    #[inline(always)]
    pub fn held(&self) -> PrioritySet {
        self.held
    }

    /// A pause frame arrived; `quantum` is the time of one quantum on this link. Returns the classes it let go.
    pub fn receive(&mut self, now: Instant, pause: &Pause, quantum: Duration) -> PrioritySet {
        self.received += 1;
        let mut freed = PrioritySet::NONE;
        for p in pause.classes.iter() {
            let i = p as usize;
            match pause.quanta[i] {
                0 => {
                    if self.held.contains(p) {
                        self.release(now, p);
                        freed.insert(p);
                    }
                }
                n => {
                    if !self.held.contains(p) {
                        self.stops += 1;
                        self.held.insert(p);
                        self.since[i] = now;
                    }
                    self.until[i] = now + quantum.saturating_mul(n as u64);
                }
            }
        }
        freed
    }

    /// Lets go the classes whose quanta have run out; returns them.
    pub fn handle_timeout(&mut self, now: Instant) -> PrioritySet {
        let mut freed = PrioritySet::NONE;
        for p in self.held.iter() {
            if self.until[p as usize] <= now {
                self.release(now, p);
                freed.insert(p);
            }
        }
        freed
    }

    /// When the next pause runs out.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.held.is_empty() {
            return None;
        }
        self.held.iter().map(|p| self.until[p as usize]).min()
    }

    /// Time class `p` has been held up to `now`.
    pub fn held_time(&self, now: Instant, p: Priority) -> Duration {
        let i = p as usize;
        let running = if self.held.contains(p) { now.since(self.since[i]) } else { Duration::ZERO };
        self.total[i] + running
    }

    /// Since when class `p` has been held, if it is.
    pub fn held_since(&self, p: Priority) -> Option<Instant> {
        self.held.contains(p).then(|| self.since[p as usize])
    }

    /// Pause frames received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// How often a class was stopped.
    pub fn stops(&self) -> u64 {
        self.stops
    }

    fn release(&mut self, now: Instant, p: Priority) {
        self.held.remove(p);
        self.total[p as usize] += now.since(self.since[p as usize]);
    }
}

/// Watermarks of an ingress buffer, per class: bytes at which XOFF and XON are sent, and what fits in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Occupancy above which the far end is stopped.
    pub xoff: u32,
    /// Occupancy at or below which it may go on.
    pub xon: u32,
    /// XOFF plus headroom: what must never be exceeded.
    pub capacity: u32,
}

/// What an ingress buffer tells the other end of its link.
#[derive(Clone, Debug, Default)]
pub struct Signal {
    /// Classes stopped now.
    stopped: PrioritySet,
    /// Classes whose state must be told: a pause frame is due.
    due: PrioritySet,
    /// When a running pause must be refreshed, before its quanta run out.
    refresh_at: Option<Instant>,
    sent: u64,
    stops: u64,
}

impl Signal {
    /// Classes stopped now.
    #[inline(always)]
    pub fn stopped(&self) -> PrioritySet {
        self.stopped
    }

    /// Whether a pause frame is due.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Occupancy of class `p` rose to `bytes`; true when that crossed XOFF.
    #[inline(always)]
    pub fn on_rise(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> bool {
        let crossed = bytes > marks.xoff && !self.stopped.contains(p);
        if crossed {
            self.stops += 1;
            self.stopped.insert(p);
            self.due.insert(p);
        }
        crossed
    }

    /// Occupancy of class `p` fell to `bytes`; true when that crossed XON.
    #[inline(always)]
    pub fn on_fall(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> bool {
        let crossed = bytes <= marks.xon && self.stopped.contains(p);
        if crossed {
            self.stopped.remove(p);
            self.due.insert(p);
        }
        crossed
    }

    /// The pause frame that is due, with `quanta` for every stopped class; `lasts` is their time on this link.
    pub fn poll(&mut self, now: Instant, quanta: u16, lasts: Duration) -> Option<Pause> {
        if self.due.is_empty() {
            return None;
        }
        // A frame speaks of every class it must, and refreshes the others at no cost.
        let classes = PrioritySet(self.due.0 | self.stopped.0);
        let mut pause = Pause { classes, quanta: [0; PRIORITIES] };
        for p in self.stopped.iter() {
            pause.quanta[p as usize] = quanta;
        }
        self.due = PrioritySet::NONE;
        self.sent += 1;
        // Half the time leaves room for the frame on the wire and the response time of the other side.
        self.refresh_at = (!self.stopped.is_empty()).then(|| now + Duration(lasts.0 / 2));
        Some(pause)
    }

    /// When a refresh is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.refresh_at
    }

    /// Marks the refresh due; returns whether a frame is to be sent.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        match self.refresh_at {
            Some(at) if at <= now => {
                self.refresh_at = None;
                self.due.0 |= self.stopped.0;
                !self.due.is_empty()
            }
            _ => false,
        }
    }

    /// Pause frames sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// How often a class was stopped.
    pub fn stops(&self) -> u64 {
        self.stops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Watermarks = Watermarks { xoff: 97_000, xon: 80_000, capacity: 101_000 };

    #[test]
    fn xoff_and_xon_are_told_once_each() {
        let mut s = Signal::default();
        let lasts = quanta_time(65_535, Rate::gbps(10));
        assert_eq!(lasts, Duration::from_ps(65_535 * 51_200));
        assert!(!s.on_rise(3, 97_000, &MARKS));
        assert!(s.on_rise(3, 97_001, &MARKS));
        assert!(!s.on_rise(3, 98_000, &MARKS));
        let pause = s.poll(Instant(0), 65_535, lasts).unwrap();
        assert_eq!((pause.classes, pause.quanta[3]), (PrioritySet(8), 65_535));
        assert!(s.poll(Instant(0), 65_535, lasts).is_none());
        assert!(!s.on_fall(3, 80_001, &MARKS));
        assert!(s.on_fall(3, 80_000, &MARKS));
        let pause = s.poll(Instant(9), 65_535, lasts).unwrap();
        assert_eq!((pause.classes, pause.quanta[3]), (PrioritySet(8), 0));
        assert_eq!(s.poll_timeout(), None);
    }

    #[test]
    fn a_pause_is_refreshed_before_it_runs_out() {
        let (mut s, mut g) = (Signal::default(), Gate::default());
        let quantum = quanta_time(1, Rate::gbps(10));
        let lasts = quanta_time(100, Rate::gbps(10));
        s.on_rise(0, 100_000, &MARKS);
        g.receive(Instant(0), &s.poll(Instant(0), 100, lasts).unwrap(), quantum);
        let refresh = s.poll_timeout().unwrap();
        assert!(refresh < g.poll_timeout().unwrap());
        assert!(s.handle_timeout(refresh));
        g.receive(refresh, &s.poll(refresh, 100, lasts).unwrap(), quantum);
        assert_eq!(g.poll_timeout(), Some(refresh + lasts));
    }

    #[test]
    fn a_lost_xon_only_costs_the_quanta() {
        let mut g = Gate::default();
        let mut pause = Pause { classes: PrioritySet(2), quanta: [0; PRIORITIES] };
        pause.quanta[1] = 10;
        g.receive(Instant(100), &pause, Duration(51_200));
        assert!(g.held().contains(1) && !g.held().contains(0));
        assert!(g.handle_timeout(Instant(512_099)).is_empty());
        assert_eq!(g.handle_timeout(Instant(512_100)), PrioritySet(2));
        assert_eq!(g.held_time(Instant(600_000), 1), Duration(512_000));
    }
}
