//! A token bucket.

use crate::time::{Duration, Instant};

/// A limit on the rate of events, with bursts up to a maximum.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    apart: Duration,
    burst: Duration,
    /// Virtual time up to which tokens are taken: ahead of the present by the tokens in use.
    taken: Instant,
}

impl Bucket {
    /// A full bucket.
    pub const fn new(per_second: u64, burst: u64) -> Bucket {
        let apart = Duration(1_000_000_000_000 / per_second);
        Bucket { apart, burst: Duration(apart.0 * burst), taken: Instant::ZERO }
    }

    /// Whether a token is available.
    pub fn has(&self, now: Instant) -> bool {
        (self.taken.max(now) + self.apart).since(now) <= self.burst
    }

    /// Takes `tokens` if one is available; the others are taken from the future. Returns whether one was available.
    pub fn take_several(&mut self, now: Instant, tokens: u64) -> bool {
        let there = self.has(now);
        if there {
            self.taken = self.taken.max(now) + Duration(self.apart.0 * tokens);
        }
        there
    }

    /// Takes a token; returns whether one was available.
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_several(now, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut bucket = Bucket::new(100, 5);
        let mut taken = |ms| (0..1_000).filter(|_| bucket.take(Instant::ZERO + Duration::from_ms(ms))).count();
        assert_eq!([taken(0), taken(9), taken(10), taken(35), taken(10_000)], [5, 0, 1, 2, 5]);
    }

    #[test]
    fn several_tokens_at_once_leave_a_debt() {
        let mut bucket = Bucket::new(100, 5);
        let mut take = |ms, tokens| bucket.take_several(Instant::ZERO + Duration::from_ms(ms), tokens);
        assert_eq!([take(0, 12), take(79, 1), take(80, 1)], [true, false, true]);
    }
}
