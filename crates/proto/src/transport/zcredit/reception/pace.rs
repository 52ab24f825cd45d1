//! How soon credits come back: of one source, and of the quickest of all.

use super::super::{QUEUE_MAX, smooth};
use crate::time::{Duration, Instant};

/// Parts of a credit.
pub(super) const PARTS: u64 = 256;

/// A source has earned what comes of it in so many times the least that anybody's credits are out.
pub(super) const TIMES: u64 = 8;

/// For how long the least is remembered, at least: a path may become longer.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Rounds of each source that show the least anew, with hardly anything on its way.
const ROUNDS_OF_PROBE: u32 = 32;

/// What is known of a source that had nothing for so long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_ms(10);

/// From a grant until its last credit is back, again and again. By Little's law credits that are out over the time that one is out are
/// a source's rate; the most of them, since it may have them in turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// When it was last granted some, how many, and how many were out then.
    granted: (Instant, u32, u32),
    /// The round that goes on: since when, how many are still to come back, and the most there were.
    round: Option<(Instant, u32, u32)>,
    /// The most of the last one, and for how long a credit is out, smoothed: where programs share processors, one is
    /// out for ten times as long as the next. No time before the first has ended.
    most: u32,
    took: Duration,
    /// What it has earned by that, in parts of a credit.
    earned: u64,
    /// When that was.
    ended: Instant,
}

impl Pace {
    /// Whether nothing is known of it.
    #[inline(always)]
    pub fn is_new(&self) -> bool {
        self.took == Duration::ZERO
    }

    /// It wants some, and none is out.
    #[inline]
    pub fn on_wanted(&mut self, now: Instant) {
        if now.since(self.ended) >= FORGOTTEN_AFTER {
            *self = Pace::default();
        }
    }

    /// It is granted some: now so many are out.
    #[inline]
    pub fn on_granted(&mut self, now: Instant, credits: u32, out: u32) {
        self.granted = (now, credits, out);
        match &mut self.round {
            Some((.., most)) => *most = out.max(*most),
            None => self.begin(out),
        }
    }

    /// Some are back, whether as frames or not, of as many `sources` as there are: so many are out still.
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

    /// A round of those that are out, up to the middle one of those that were granted last: on a slow link they go one after the other.
    fn begin(&mut self, out: u32) {
        let (since, credits, most) = self.granted;
        self.round = Some((since, out.saturating_sub(credits / 2).max(1), most));
    }

    /// What came of it in [`TIMES`] the least time, in parts of a credit. Whose credits are out for longer than they were has earned less.
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

/// The least time that credits of any source were out. Where there has always been something in front of the last link since it was last seen,
/// it is looked for: less is granted for a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Least {
    before: Duration,
    now: Duration,
    since: Instant,
    last: Instant,
    /// Rounds of all until it has been found.
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

    /// Whether it is looked for.
    pub fn is_probing(&self) -> bool {
        self.probe > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue is never empty, so that a credit is out for four times as long as it needs: then less is granted, and it is seen again;
    /// and where the path has become longer, what was the least before is no more.
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
        // Who comes after a rest finds the network empty: nothing has to be held back for that.
        least.on_round(now.saturating_add(REMEMBERED), full, 3);
        assert!(!least.is_probing());
    }
}
