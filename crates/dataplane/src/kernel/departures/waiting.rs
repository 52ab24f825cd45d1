//! How many bytes wait for a destination whose frames have departure times.

use super::program::INVERSE_BITS;
use std::collections::VecDeque;

/// Former rates that are remembered: a controller changes them every 1 to 10 ms, and most queues are shorter than 64 of these
/// times. Of a longer queue the oldest frames count at the rate of the next ones.
const FORMER_MAX: usize = 64;

/// The times given to the frames of a destination: until when at which rate.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The end of the times that were given at a former rate, and the time of a byte.
    former: VecDeque<(u64, u64)>,
    /// The time of a byte.
    inverse: u64,
}

impl Waiting {
    pub fn new(inverse: u64) -> Waiting {
        Waiting { former: VecDeque::new(), inverse }
    }

    /// The rate changes; times were given until `next`.
    pub fn change(&mut self, now: u64, next: u64, inverse: u64) {
        if inverse == self.inverse {
            return;
        }
        self.forget(now);
        if next > self.former.back().map_or(now, |&(end, _)| end) {
            if self.former.len() == FORMER_MAX {
                self.former.pop_front();
            }
            self.former.push_back((next, self.inverse));
        }
        self.inverse = inverse;
    }

    /// The bytes of the frames that depart after `now`, where times were given until `next`. The last one that has departed counts
    /// in part.
    pub fn bytes(&mut self, now: u64, next: u64) -> u64 {
        self.forget(now);
        let (mut from, mut bytes) = (now, 0);
        for (end, inverse) in self.former.iter().copied().chain([(next, self.inverse)]) {
            let span = u128::from(end.saturating_sub(from)) << INVERSE_BITS;
            bytes += u64::try_from(span / u128::from(inverse.max(1))).unwrap_or(u64::MAX);
            from = from.max(end);
        }
        bytes
    }

    fn forget(&mut self, now: u64) {
        while self.former.front().is_some_and(|&(end, _)| end <= now) {
            self.former.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_counts_at_the_rate_at_which_it_got_its_time() {
        let (slow, fast) = (100 << INVERSE_BITS, 8 << INVERSE_BITS);
        let mut waiting = Waiting::new(slow);
        assert_eq!(waiting.bytes(1_000, 500), 0);
        // 50 bytes at the slow rate, then 1,000 at the fast one.
        assert_eq!(waiting.bytes(1_000, 6_000), 50);
        waiting.change(1_000, 6_000, fast);
        assert_eq!(waiting.bytes(1_000, 14_000), 1_050);
        assert_eq!(waiting.bytes(5_900, 14_000), 1_001);
        assert_eq!(waiting.bytes(10_000, 14_000), 500);
        assert_eq!(waiting.bytes(20_000, 14_000), 0);
        // A rate that is changed while nothing waits leaves no trace.
        waiting.change(20_000, 14_000, slow);
        assert_eq!((waiting.bytes(20_000, 20_000), waiting.former.len()), (0, 0));
    }

    #[test]
    fn more_rates_than_are_remembered_do_not_grow_it() {
        let mut waiting = Waiting::new(8 << INVERSE_BITS);
        for k in 1..=200 {
            waiting.change(0, 1_000 * k, (8 + k % 2) << INVERSE_BITS);
        }
        assert_eq!(waiting.former.len(), FORMER_MAX);
        let bytes = waiting.bytes(0, 200_000);
        assert!((20_000..=25_000).contains(&bytes), "{bytes}");
    }
}
