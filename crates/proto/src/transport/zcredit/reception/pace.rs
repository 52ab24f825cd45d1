//! How soon credits come back, for one source and for the quickest of all sources.

use super::super::{QUEUE_MAX, smooth};
use crate::time::{Duration, Instant};

/// Parts of a credit.
pub(super) const PARTS: u64 = 256;

/// A source has earned its arrivals in this many times the least time for which any source's credits are out.
pub(super) const TIMES: u64 = 8;

/// Shortest time for which the least time is remembered: a path may become longer.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Rounds of each source that measure the least time anew, with hardly any frames in flight.
const ROUNDS_OF_PROBE: u32 = 32;

/// The measured pace of a source is forgotten after this time without credits.
const FORGOTTEN_AFTER: Duration = Duration::from_ms(10);

/// A source's pace, measured in rounds from a grant until its last credit is back. By Little's law, the rate of a
/// source is its credits out divided by the time one credit is out. The most credits out in a round count, since a
/// source may get them in turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The last grant: its time, its credits, and the credits out after it.
    granted: (Instant, u32, u32),
    /// The present round: its start, the credits still to come back, and the most credits out.
    round: Option<(Instant, u32, u32)>,
    /// `most`: most credits out in the last round. `took`: smoothed time for which a credit is out; 0 before the end of
    /// the first round. Where programs share processors, one credit may be out ten times as long as the next.
    most: u32,
    took: Duration,
    /// Credits earned at this pace, in parts of a credit.
    earned: u64,
    /// End of the last round.
    ended: Instant,
}

impl Pace {
    /// Whether no round has ended yet.
    #[inline(always)]
    pub fn is_new(&self) -> bool {
        self.took == Duration::ZERO
    }

    /// The source wants credits, and none is out.
    #[inline]
    pub fn on_wanted(&mut self, now: Instant) {
        if now.since(self.ended) >= FORGOTTEN_AFTER {
            *self = Pace::default();
        }
    }

    /// The source is granted `credits`; `out` credits are out now.
    #[inline]
    pub fn on_granted(&mut self, now: Instant, credits: u32, out: u32) {
        self.granted = (now, credits, out);
        match &mut self.round {
            Some((.., most)) => *most = out.max(*most),
            None => self.begin(out),
        }
    }

    /// `credits` are back, as frames or otherwise, and `out` are still out. `sources` is the number of active sources.
    #[inline]
    pub fn on_back(&mut self, now: Instant, credits: u32, out: u32, least: &mut Least, sources: u32) {
        let Some((since, left, most)) = &mut self.round else { return };
        if credits < *left {
            *left -= credits;
            return;
        }
        let took = now.since(*since).max(Duration(1));
        self.took = if self.took == Duration::ZERO { took } else { smooth(self.took, took) };
        (self.most, self.round, self.ended) = (*most, None, now);
        least.on_round(now, self.took, sources);
        self.earned = self.of(self.took, least);
        if out > 0 {
            self.begin(out);
        }
    }

    /// Begins a round of the credits that are out, up to the middle one of the last grant. On a slow link they come
    /// back one after the other.
    fn begin(&mut self, out: u32) {
        let (since, credits, most) = self.granted;
        self.round = Some((since, out.saturating_sub(credits / 2).max(1), most));
    }

    /// Credits earned in [`TIMES`] the least time, in parts of a credit. A source whose credits are out for longer than
    /// before has earned less.
    #[inline]
    pub fn earned(&self, now: Instant, least: &Least) -> u64 {
        match self.round {
            Some((since, ..)) if now.since(since) > self.took => self.of(now.since(since), least).min(self.earned),
            _ => self.earned,
        }
    }

    fn of(&self, took: Duration, least: &Least) -> u64 {
        let all = u128::from(u64::from(self.most) * TIMES * PARTS) * u128::from(least.get().0);
        (all / u128::from(took.0.max(1))).min(u128::from(u64::from(QUEUE_MAX) * PARTS)) as u64
    }
}

/// The least time that credits of any source were out. If frames have always waited in front of the last link since the
/// last measurement, the time is measured anew: fewer credits are granted for a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    before: Duration,
    now: Duration,
    since: Instant,
    last: Instant,
    /// Rounds of all sources until the measurement ends.
    probe: u32,
}

impl Least {
    pub fn new() -> Least {
        Least { before: Duration::MAX, now: Duration::MAX, since: Instant::ZERO, last: Instant::ZERO, probe: 0 }
    }

    fn on_round(&mut self, now: Instant, took: Duration, sources: u32) {
        self.probe = self.probe.saturating_sub(1);
        if now.since(self.since) >= REMEMBERED {
            let was_idle = now.since(self.last) >= FORGOTTEN_AFTER;
            self.probe = if was_idle { 0 } else { sources.saturating_mul(ROUNDS_OF_PROBE) };
            (self.before, self.now, self.since) = (self.now, Duration::MAX, now);
        }
        self.last = now;
        self.now = self.now.min(took);
    }

    fn get(&self) -> Duration {
        self.before.min(self.now)
    }

    /// Whether the least time is being measured anew.
    pub fn is_probing(&self) -> bool {
        self.probe > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue is never empty, so a credit is out four times as long as it needs. Fewer credits are granted then, and
    /// the least time is measured again. Where the path has become longer, the old least time is forgotten.
    #[test]
    fn the_least_is_looked_for_again_and_what_it_was_is_forgotten() {
        let (quick, full, longer) = (Duration::from_us(10), Duration::from_us(40), Duration::from_us(30));
        let mut least = Least::new();
        let mut now = Instant::ZERO;
        let mut probes = alloc::vec::Vec::new();
        least.on_round(now, quick, 3);
        for at_rest in [quick, longer, longer] {
            while !least.is_probing() {
                now = now.saturating_add(Duration::from_ms(1));
                least.on_round(now, full, 3);
            }
            let before = least.get();
            let mut rounds = 0;
            while least.is_probing() {
                now = now.saturating_add(at_rest);
                least.on_round(now, at_rest, 3);
                rounds += 1;
            }
            probes.push((before, rounds, least.get()));
        }
        assert_eq!(probes, [(quick, 96, quick), (quick, 96, quick), (longer, 96, longer)]);
        // A source that sends after a rest finds the network empty, so no credits are held back.
        least.on_round(now.saturating_add(REMEMBERED), full, 3);
        assert!(!least.is_probing());
    }
}
