//! The length of a queue over time, and the distance of its estimates.

use serde::Serialize;
use sluicenet_records::stats::{Summary, percentile};

/// A full frame on a wire: with preamble, check sequence and gap.
pub const MTU_BYTES: u64 = 1_538;

/// The length of a queue after each change, in the order of time: nanoseconds, and bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace(Vec<(u64, u64)>);

impl Trace {
    /// The queue has `bytes` from now on.
    pub fn record(&mut self, at_ns: u64, bytes: u64) {
        if self.0.last().map_or(0, |last| last.1) != bytes {
            self.0.push((at_ns, bytes));
        }
    }

    /// The length at an instant.
    pub fn at(&self, at_ns: u64) -> u64 {
        let after = self.0.partition_point(|change| change.0 <= at_ns);
        after.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// How long the queue had each length between two instants: bytes and nanoseconds, the shortest queue first.
    fn lengths(&self, from_ns: u64, to_ns: u64) -> Vec<(u64, u64)> {
        let first = self.0.partition_point(|change| change.0 <= from_ns);
        let last = self.0.partition_point(|change| change.0 < to_ns);
        let inside = self.0.get(first..last).unwrap_or_default();
        let starts = [(from_ns, self.at(from_ns))].into_iter().chain(inside.iter().copied());
        let ends = inside.iter().map(|change| change.0).chain([to_ns]);
        let mut lengths: Vec<(u64, u64)> =
            starts.zip(ends).map(|((start, bytes), end)| (bytes, end.saturating_sub(start))).collect();
        lengths.sort_unstable();
        lengths
    }
}

/// An estimate at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub at_ns: u64,
    pub bytes: u64,
}

/// A queue of the network, and its estimates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Queue {
    /// The switch and the port.
    pub port: String,
    /// The speed of the port's link.
    pub rate_bps: u64,
    /// The mean of the queue over time, in bytes.
    pub mean_bytes: f64,
    /// The length that the queue did not exceed in half of the time.
    pub p50_bytes: u64,
    /// The length that the queue did not exceed in 99 % of the time.
    pub p99_bytes: u64,
    /// The longest queue.
    pub max_bytes: u64,
    /// The estimates of each bump that sees the port.
    pub estimates: Vec<Estimate>,
}

impl Queue {
    /// The queue at `port` between two instants.
    pub(super) fn of(port: &str, rate_bps: u64, trace: &Trace, (from_ns, to_ns): (u64, u64)) -> Queue {
        let lengths = trace.lengths(from_ns, to_ns);
        let all: u64 = lengths.iter().map(|l| l.1).sum();
        let percentile = |percent: u64| {
            let mut left = all * percent / 100;
            let found = lengths.iter().find(|(_, time)| {
                let here = left <= *time;
                left = left.saturating_sub(*time);
                here
            });
            found.map_or(0, |l| l.0)
        };
        let weighted: f64 = lengths.iter().map(|&(bytes, time)| bytes as f64 * time as f64).sum();
        Queue {
            port: port.into(),
            rate_bps,
            mean_bytes: weighted / all.max(1) as f64,
            p50_bytes: percentile(50),
            p99_bytes: percentile(99),
            max_bytes: lengths.last().map_or(0, |l| l.0),
            estimates: Vec::new(),
        }
    }
}

/// The estimates of a bump for one queue, and their distances from it where the queue was not empty.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The number of the bump.
    pub bump: usize,
    /// The samples at which the queue was not empty.
    pub samples: usize,
    /// The median distance from the queue, in bytes.
    pub p50_bytes: f64,
    /// The 90th percentile.
    pub p90_bytes: f64,
    /// The 95th percentile.
    pub p95_bytes: f64,
    /// The 99th percentile.
    pub p99_bytes: f64,
    /// The largest distance.
    pub max_bytes: f64,
    /// The shares of the samples within one, two and three full frames ([`MTU_BYTES`]).
    pub within_frames: [f64; 3],
    /// The longest estimate, in bytes.
    pub longest_bytes: u64,
    /// All samples: microseconds since the start, bytes in the queue, bytes as estimated.
    pub course: Vec<[u64; 3]>,
}

impl Estimate {
    /// The estimates of bump `bump` for the queue of `trace`; times are on the trace's clock, and the course begins at `from_ns`.
    pub(super) fn of(bump: usize, samples: &[Sample], trace: &Trace, from_ns: u64) -> Estimate {
        let course: Vec<[u64; 3]> =
            samples.iter().map(|s| [s.at_ns.saturating_sub(from_ns) / 1_000, trace.at(s.at_ns), s.bytes]).collect();
        let busy = course.iter().filter(|point| point[1] > 0);
        let mut distances: Vec<f64> = busy.map(|point| point[1].abs_diff(point[2]) as f64).collect();
        let within = |frames: u64| {
            let near = distances.iter().filter(|d| **d <= (frames * MTU_BYTES) as f64).count();
            near as f64 / distances.len().max(1) as f64
        };
        let within_frames = [1, 2, 3].map(within);
        let all = Summary::of(&mut distances);
        let p90_bytes = if distances.is_empty() { 0.0 } else { percentile(&distances, 90.0) };
        Estimate {
            bump,
            samples: all.count,
            p50_bytes: all.p50,
            p90_bytes,
            p95_bytes: all.p95,
            p99_bytes: all.p99,
            max_bytes: all.max,
            within_frames,
            longest_bytes: samples.iter().map(|s| s.bytes).max().unwrap_or(0),
            course,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let mut trace = Trace::default();
        for (at, bytes) in [(10, 0), (100, 1_500), (200, 3_000), (250, 3_000), (300, 1_500), (1_000, 0)] {
            trace.record(at, bytes);
        }
        trace
    }

    #[test]
    fn a_queue_has_a_length_at_each_instant() {
        let trace = trace();
        let at = [0, 99, 100, 199, 200, 299, 300, 999, 1_000, 9_000].map(|at| trace.at(at));
        assert_eq!(at, [0, 0, 1_500, 1_500, 3_000, 3_000, 1_500, 1_500, 0, 0]);
        let queue = Queue::of("switch 1 port 0", 1_000, &trace, (100, 1_000));
        assert_eq!((queue.p50_bytes, queue.p99_bytes, queue.max_bytes), (1_500, 3_000, 3_000));
        assert!((queue.mean_bytes - (1_500.0 * 800.0 + 3_000.0 * 100.0) / 900.0).abs() < 1e-9);
        let nothing = Queue::of("", 1, &Trace::default(), (0, 1_000));
        assert_eq!((nothing.mean_bytes, nothing.max_bytes), (0.0, 0));
        assert_eq!(Queue::of("", 1, &trace, (5, 5)).max_bytes, 0);
    }

    #[test]
    fn distances_count_where_the_queue_is_not_empty() {
        let samples = [(50, 900), (150, 1_500), (250, 5_000), (400, 6_200), (2_000, 10)];
        let samples = samples.map(|(at_ns, bytes)| Sample { at_ns, bytes });
        let e = Estimate::of(3, &samples, &trace(), 0);
        assert_eq!((e.samples, e.p50_bytes, e.max_bytes, e.longest_bytes), (3, 2_000.0, 4_700.0, 6_200));
        assert_eq!((e.p90_bytes, e.p95_bytes), (4_700.0, 4_700.0));
        assert_eq!(e.within_frames.map(|share| (share * 3.0).round()), [1.0, 2.0, 2.0]);
        assert_eq!(e.course[2], [0, 3_000, 5_000]);
        assert_eq!(Estimate::of(0, &[], &trace(), 0).samples, 0);
    }
}
