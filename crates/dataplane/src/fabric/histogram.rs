//! A histogram of delays.

use sluicenet_proto::time::Duration;

/// Durations counted in buckets that are no more than 1/16 wide.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max: u64,
}

/// Buckets for each power of two; the exponent of their number.
const FINE: u32 = 4;

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: vec![0; (64 - FINE as usize + 1) << FINE], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, d: Duration) {
        self.counts[bucket(d.0)] += 1;
        self.count += 1;
        self.max = self.max.max(d.0);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration(self.max)
    }

    /// The percentile `percent`: the upper end of its bucket, and at most the longest duration.
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return Duration(upper(i).min(self.max));
            }
        }
        Duration(self.max)
    }
}

fn bucket(ps: u64) -> usize {
    let power = (64 - FINE).saturating_sub(ps.leading_zeros());
    // Small values have a bucket each; for larger ones, the leading bits choose the bucket.
    if power == 0 {
        ps as usize
    } else {
        ((power as usize) << FINE) + ((ps >> (power - 1)) as usize & ((1 << FINE) - 1))
    }
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let (power, rest) = ((bucket >> FINE) as u32, (bucket & ((1 << FINE) - 1)) as u64);
    match power {
        0 => rest,
        power => ((((1 << FINE) | rest) + 1) as u128 * (1u128 << (power - 1)) - 1).min(u128::from(u64::MAX)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_a_bucket_that_is_narrow() {
        let values = (0..200).chain((0..64).flat_map(|p| [(1u64 << p) - 1, 1 << p, (1 << p) + 1])).chain([u64::MAX]);
        for v in values {
            let b = bucket(v);
            assert!(upper(b) >= v && (b == 0 || upper(b - 1) < v), "{v} is not in bucket {b}");
            assert!(upper(b) - v <= v / 16, "{v}: the bucket reaches to {}", upper(b));
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut h = Histogram::default();
        (1..=1000).for_each(|n| h.record(Duration::from_us(n)));
        for (percent, us) in [(50.0, 500), (99.0, 990), (100.0, 1000)] {
            let got = h.percentile(percent).as_us();
            assert!((us..=us + us / 16 + 1).contains(&got), "{percent} %: {got}");
        }
        assert_eq!((h.count(), h.max()), (1000, Duration::from_us(1000)));
        assert_eq!(Histogram::default().percentile(99.0), Duration::ZERO);
    }
}
