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

/// The gate of a transmitter: the classes that the peer paused, and the end of each pause.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    paused: PrioritySet,
    until: [Instant; PRIORITIES],
    since: [Instant; PRIORITIES],
    /// Total time each class has been paused, without the current pause.
    total: [Duration; PRIORITIES],
    received: u64,
    stops: u64,
}

impl Gate {
    /// Classes that may not send now.
    #[inline(always)]
    pub fn paused(&self) -> PrioritySet {
        self.paused
    }

    /// A pause frame arrived; `quantum` is the time of one quantum on this link. Returns the released classes.
    pub fn receive(&mut self, now: Instant, pause: &Pause, quantum: Duration) -> PrioritySet {
        self.received += 1;
        let mut freed = PrioritySet::NONE;
        for p in pause.classes.iter() {
            let i = p as usize;
            match pause.quanta[i] {
                0 => {
                    if self.paused.contains(p) {
                        self.release(now, p);
                        freed.insert(p);
                    }
                }
                n => {
                    if !self.paused.contains(p) {
                        self.stops += 1;
                        self.paused.insert(p);
                        self.since[i] = now;
                    }
                    self.until[i] = now + quantum.saturating_mul(n as u64);
                }
            }
        }
        freed
    }

    /// Releases the classes whose quanta have run out; returns them.
    pub fn handle_timeout(&mut self, now: Instant) -> PrioritySet {
        let mut freed = PrioritySet::NONE;
        for p in self.paused.iter() {
            if self.until[p as usize] <= now {
                self.release(now, p);
                freed.insert(p);
            }
        }
        freed
    }

    /// The link is down: releases all classes.
    pub fn open(&mut self, now: Instant) {
        self.paused.iter().for_each(|p| self.release(now, p));
    }

    /// The link is up again: `classes` wait for the peer's pause frames, but no longer than `until`.
    pub fn wait_for_peer(&mut self, now: Instant, classes: PrioritySet, until: Instant) {
        for p in classes.iter() {
            if !self.paused.contains(p) {
                self.paused.insert(p);
                self.since[p as usize] = now;
            }
            self.until[p as usize] = until;
        }
    }

    /// When the next pause runs out.
    #[inline(always)]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.paused.is_empty() {
            return None;
        }
        self.paused.iter().map(|p| self.until[p as usize]).min()
    }

    /// Time class `p` has been paused up to `now`.
    pub fn paused_time(&self, now: Instant, p: Priority) -> Duration {
        let i = p as usize;
        let running = if self.paused.contains(p) { now.since(self.since[i]) } else { Duration::ZERO };
        self.total[i] + running
    }

    /// When the current pause of class `p` began, if it is paused.
    pub fn paused_since(&self, p: Priority) -> Option<Instant> {
        self.paused.contains(p).then(|| self.since[p as usize])
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
        self.paused.remove(p);
        self.total[p as usize] += now.since(self.since[p as usize]);
    }
}

/// Watermarks of an ingress buffer, per class: the byte counts at which XOFF and XON are sent, and the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Occupancy above which the peer is stopped.
    pub xoff: u32,
    /// Occupancy at or below which the peer may resume.
    pub xon: u32,
    /// XOFF plus headroom, and one headroom more for each XOFF that may be lost: a limit that must never be exceeded.
    pub capacity: u32,
    /// Most bytes that still arrive after an XOFF that reaches the peer ([`Headroom`](super::headroom::Headroom)).
    pub headroom: u32,
}

/// Reason to send a pause frame after a rise of the occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rise {
    /// The occupancy crossed XOFF: the peer has to stop.
    Stopped,
    /// More bytes arrived than can have been in flight: the XOFF was lost, and is sent again.
    Unheard,
}

/// Repetition of pause frames on a link that damages frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetition {
    /// Time after which XON is repeated.
    pub xon_again: Duration,
    /// Number of repetitions of a lasting XOFF before its quanta run out.
    pub refreshes: u32,
}

/// The signals that an ingress buffer sends to the other end of its link.
///
/// A pause frame is not acknowledged. A peer that goes on sending has missed an XOFF: the buffer repeats the XOFF for every
/// headroom that fills beyond the first. A silent peer may have nothing to send, so XON is sent twice where frames are
/// damaged. A silent peer may also resume when its quanta run out; there the XOFF is refreshed often enough for one refresh
/// to arrive.
#[derive(Clone, Debug, Default)]
pub struct Signal {
    /// Classes stopped now.
    stopped: PrioritySet,
    /// Classes whose state must be sent: a pause frame is pending.
    pending: PrioritySet,
    /// Released classes whose XON was sent only once of two times.
    told_once: PrioritySet,
    /// Number of XOFFs for each class since it is stopped, without refreshes.
    times: [u8; PRIORITIES],
    /// Set if the link damages frames.
    repetition: Option<Repetition>,
    /// When a running pause must be refreshed, before its quanta run out, or an XON is repeated.
    refresh_at: Option<Instant>,
    sent: u64,
    stops: u64,
}

impl Signal {
    /// A signal that has sent nothing.
    pub fn new(repetition: Option<Repetition>) -> Signal {
        Signal { repetition, ..Signal::default() }
    }

    /// Classes stopped now.
    #[inline(always)]
    pub fn stopped(&self) -> PrioritySet {
        self.stopped
    }

    /// Whether a pause frame is pending.
    #[inline(always)]
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The occupancy of class `p` rose to `bytes`; returns the reason if a pause frame is pending for it.
    #[inline(always)]
    pub fn on_rise(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> Option<Rise> {
        if bytes <= marks.xoff {
            return None;
        }
        if self.stopped.contains(p) {
            return self.on_unheard(p, bytes, marks);
        }
        self.stops += 1;
        self.stopped.insert(p);
        self.told_once.remove(p);
        self.pending.insert(p);
        self.times[p as usize] = 1;
        Some(Rise::Stopped)
    }

    fn on_unheard(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> Option<Rise> {
        let times = &mut self.times[p as usize];
        let under_way = u64::from(*times) * u64::from(marks.headroom);
        if u64::from(bytes) <= u64::from(marks.xoff) + under_way || *times == u8::MAX {
            return None;
        }
        *times += 1;
        self.pending.insert(p);
        Some(Rise::Unheard)
    }

    /// The peer of class `p` still sends: if the class is stopped, its XOFF is sent again.
    pub fn tell_again(&mut self, p: Priority) {
        if self.stopped.contains(p) {
            self.pending.insert(p);
        }
    }

    /// The occupancy of class `p` fell to `bytes`; returns whether it crossed XON.
    #[inline(always)]
    pub fn on_fall(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> bool {
        let crossed = bytes <= marks.xon && self.stopped.contains(p);
        if crossed {
            self.stopped.remove(p);
            self.pending.insert(p);
        }
        crossed
    }

    /// The link is down: forgets everything that was sent over it.
    pub fn forget(&mut self) {
        (self.stopped, self.pending, self.told_once) = (PrioritySet::NONE, PrioritySet::NONE, PrioritySet::NONE);
        self.refresh_at = None;
    }

    /// The link is up again: the peer waits for the state of class `p`, which has `bytes` in the buffer. Returns whether
    /// the class is stopped.
    pub fn greet(&mut self, p: Priority, bytes: u32, marks: &Watermarks) -> bool {
        self.pending.insert(p);
        self.on_rise(p, bytes, marks).is_some()
    }

    /// The pause frame to send, with `quanta` for every stopped class; `lasts` is their time on this link.
    pub fn poll(&mut self, now: Instant, quanta: u16, lasts: Duration) -> Option<Pause> {
        if self.pending.is_empty() {
            return None;
        }
        // A frame includes every pending class, and refreshes the others at no cost.
        let classes = PrioritySet(self.pending.0 | self.stopped.0 | self.told_once.0);
        let mut pause = Pause { classes, quanta: [0; PRIORITIES] };
        for p in self.stopped.iter() {
            pause.quanta[p as usize] = quanta;
        }
        self.pending = PrioritySet::NONE;
        self.sent += 1;
        // Half the time, or less, leaves room for the frame on the wire and the peer's response time.
        let refreshes = self.repetition.map_or(1, |repetition| u64::from(repetition.refreshes));
        let refresh_at = (!self.stopped.is_empty()).then(|| now + Duration(lasts.0 / (1 + refreshes)));
        let again_at = self.repetition.and_then(|Repetition { xon_again, .. }| {
            self.told_once = PrioritySet(classes.0 & !self.stopped.0 & !self.told_once.0);
            (!self.told_once.is_empty()).then(|| now + xon_again)
        });
        self.refresh_at = [refresh_at, again_at].into_iter().flatten().min();
        Some(pause)
    }

    /// When the next refresh or repetition is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.refresh_at
    }

    /// Marks the refresh pending; returns whether a frame is to be sent.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        match self.refresh_at {
            Some(at) if at <= now => {
                self.refresh_at = None;
                self.pending.0 |= self.stopped.0 | self.told_once.0;
                !self.pending.is_empty()
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

    const MARKS: Watermarks = Watermarks { xoff: 97_000, xon: 80_000, capacity: 101_000, headroom: 4_000 };

    #[test]
    fn xoff_and_xon_are_told_once_each() {
        let mut s = Signal::default();
        let lasts = quanta_time(65_535, Rate::gbps(10));
        assert_eq!(lasts, Duration::from_ps(65_535 * 51_200));
        assert_eq!(s.on_rise(3, 97_000, &MARKS), None);
        assert_eq!(s.on_rise(3, 97_001, &MARKS), Some(Rise::Stopped));
        assert_eq!(s.on_rise(3, 101_000, &MARKS), None);
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
    fn who_still_sends_when_all_that_was_under_way_is_there_is_told_again() {
        let mut s = Signal::default();
        let told = |s: &mut Signal, bytes| {
            let rise = s.on_rise(3, bytes, &MARKS);
            (rise, s.poll(Instant(0), 9, Duration(900)).map(|pause| pause.quanta[3]))
        };
        assert_eq!(told(&mut s, 97_001), (Some(Rise::Stopped), Some(9)));
        assert_eq!(told(&mut s, 101_000), (None, None));
        assert_eq!(told(&mut s, 101_001), (Some(Rise::Unheard), Some(9)));
        assert_eq!(told(&mut s, 105_000), (None, None));
        assert_eq!(told(&mut s, 105_001), (Some(Rise::Unheard), Some(9)));
        assert_eq!(s.stops(), 1);
        // After a release, counting begins anew.
        assert!(s.on_fall(3, 80_000, &MARKS));
        s.poll(Instant(0), 9, Duration(900));
        assert_eq!(told(&mut s, 97_001), (Some(Rise::Stopped), Some(9)));
        assert_eq!(told(&mut s, 101_000), (None, None));
        // A peer that ignores XOFF is not told for ever.
        (0..1_000).for_each(|n| assert!(told(&mut s, 101_001 + n * 4_000).0.is_none() || n < 254));
        assert_eq!(told(&mut s, u32::MAX), (None, None));
    }

    #[test]
    fn where_frames_are_damaged_xon_is_said_twice_unless_it_is_no_longer_true() {
        let after = Duration(50);
        let lasts = Duration(900);
        let mut s = Signal::new(Some(Repetition { xon_again: after, refreshes: 1 }));
        let poll = |s: &mut Signal, now| s.poll(Instant(now), 9, lasts).map(|p| (p.classes, p.quanta[3]));
        let of_3 = PrioritySet(8);
        s.on_rise(3, 97_001, &MARKS);
        assert_eq!((poll(&mut s, 0), s.poll_timeout()), (Some((of_3, 9)), Some(Instant(450))));
        s.on_fall(3, 80_000, &MARKS);
        assert_eq!((poll(&mut s, 100), s.poll_timeout()), (Some((of_3, 0)), Some(Instant(150))));
        assert!(!s.handle_timeout(Instant(149)) && s.handle_timeout(Instant(150)));
        assert_eq!((poll(&mut s, 150), s.poll_timeout()), (Some((of_3, 0)), None));
        // Another class has a pending frame meanwhile: that frame repeats the XON, too.
        s.on_rise(3, 97_001, &MARKS);
        poll(&mut s, 200);
        s.on_fall(3, 80_000, &MARKS);
        poll(&mut s, 300);
        s.on_rise(1, 97_001, &MARKS);
        assert_eq!((poll(&mut s, 310), s.poll_timeout()), (Some((PrioritySet(0b1010), 0)), Some(Instant(760))));
        // The class is stopped again before the repetition.
        s.on_rise(3, 97_001, &MARKS);
        poll(&mut s, 400);
        s.on_fall(3, 80_000, &MARKS);
        poll(&mut s, 410);
        s.on_rise(3, 97_001, &MARKS);
        assert_eq!((poll(&mut s, 420), s.poll_timeout()), (Some((PrioritySet(0b1010), 9)), Some(Instant(870))));
    }

    /// Runs slots of one frame each: a sender that sends whenever it may, a receiver that takes nothing, and a link that
    /// loses the first `lost` pauses of each stop. Returns the highest occupancy in frames.
    fn fills(marks: &Watermarks, under_way: u64, lost: u64) -> u32 {
        const FRAME: u32 = 1_000;
        let (mut s, mut g) = (Signal::default(), Gate::default());
        let (mut bytes, mut heard) = (0, alloc::collections::VecDeque::new());
        let mut pauses = 0;
        for slot in 0..1_000 {
            if heard.front().is_some_and(|&(at, _)| at <= slot)
                && let Some((_, pause)) = heard.pop_front()
            {
                g.receive(Instant(slot), &pause, Duration(1 << 30));
            }
            if g.paused().contains(0) {
                continue;
            }
            bytes += FRAME;
            s.on_rise(0, bytes, marks);
            if let Some(pause) = s.poll(Instant(slot), u16::MAX, Duration::from_secs(9)) {
                pauses += 1;
                if pauses > lost {
                    heard.push_back((slot + under_way, pause));
                }
            }
        }
        assert!(g.paused().contains(0), "{lost}: it was never heard");
        bytes
    }

    #[test]
    fn room_for_so_many_lost_pauses_is_enough_for_so_many_and_for_no_more() {
        let marks =
            |rooms: u32| Watermarks { xoff: 20_000, xon: 9_000, capacity: 20_000 + rooms * 8_000, headroom: 8_000 };
        for lost in 0..20 {
            // The frame that crosses XOFF, and the frames in flight until the pause arrives.
            let most = fills(&marks(lost + 1), 8, u64::from(lost));
            assert!(most <= marks(lost + 1).capacity && most > marks(lost).capacity, "{lost}: {most}");
        }
    }

    #[test]
    fn a_pause_that_lasts_holds_as_long_as_one_of_its_refreshes_is_heard() {
        let (quantum, lasts) = (Duration(10), Duration(1_000));
        for refreshes in 1..=17 {
            // This many frames in a row are lost, again and again.
            let is_let_go = |lost: u32| {
                let (mut s, mut g) = (Signal::new(Some(Repetition { xon_again: lasts, refreshes })), Gate::default());
                s.on_rise(0, 100_000, &MARKS);
                g.receive(Instant(0), &s.poll(Instant(0), 100, lasts).unwrap(), quantum);
                (1..1_000u32).any(|n| {
                    let now = s.poll_timeout().unwrap();
                    assert!(s.handle_timeout(now));
                    let pause = s.poll(now, 100, lasts).unwrap();
                    let freed = g.handle_timeout(now);
                    if n % (lost + 1) == 0 {
                        g.receive(now, &pause, quantum);
                    }
                    !freed.is_empty()
                })
            };
            assert!(!is_let_go(refreshes - 1) && is_let_go(refreshes + 1), "{refreshes}");
        }
    }

    #[test]
    fn a_lost_xon_only_costs_the_quanta() {
        let mut g = Gate::default();
        let mut pause = Pause { classes: PrioritySet(2), quanta: [0; PRIORITIES] };
        pause.quanta[1] = 10;
        g.receive(Instant(100), &pause, Duration(51_200));
        assert!(g.paused().contains(1) && !g.paused().contains(0));
        assert!(g.handle_timeout(Instant(512_099)).is_empty());
        assert_eq!(g.handle_timeout(Instant(512_100)), PrioritySet(2));
        assert_eq!(g.paused_time(Instant(600_000), 1), Duration(512_000));
    }
}
