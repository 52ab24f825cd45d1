//! Statistics of results: percentiles, means with confidence intervals, slowdown by flow size.

use super::tables::FlowRow;

/// The summary of a set of measurements; all zero for an empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The number of measurements.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Summary {
    /// Sorts `values` and summarises them.
    pub fn of(values: &mut [f64]) -> Summary {
        sort(values);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else { return Summary::default() };
        Summary {
            count: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min,
            p50: percentile(values, 50.0),
            p95: percentile(values, 95.0),
            p99: percentile(values, 99.0),
            p999: percentile(values, 99.9),
            max,
        }
    }

    /// Summarises runs with different seeds: the means of the runs' figures, but the extremes of extremes and the sum
    /// of counts. Runs without measurements are left out.
    pub fn over_seeds(runs: &[Summary]) -> Summary {
        let runs: Vec<&Summary> = runs.iter().filter(|run| run.count > 0).collect();
        if runs.is_empty() {
            return Summary::default();
        }
        let mean = |of: fn(&Summary) -> f64| runs.iter().map(|run| of(run)).sum::<f64>() / runs.len() as f64;
        Summary {
            count: runs.iter().map(|run| run.count).sum(),
            mean: mean(|s| s.mean),
            min: runs.iter().map(|s| s.min).fold(f64::INFINITY, f64::min),
            p50: mean(|s| s.p50),
            p95: mean(|s| s.p95),
            p99: mean(|s| s.p99),
            p999: mean(|s| s.p999),
            max: runs.iter().map(|s| s.max).fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Sorts numbers in their total order, as integers in the same order: comparing these takes a fraction of the time. A stable
/// sort merges what is sorted piece by piece already.
fn sort(values: &mut [f64]) {
    let mut keys: Vec<i64> = values.iter().map(|value| ordered(value.to_bits() as i64)).collect();
    keys.sort();
    keys.iter().zip(values).for_each(|(&key, value)| *value = f64::from_bits(ordered(key) as u64));
}

/// The bits of a number in the order of [`f64::total_cmp`], and the bits of such a key.
fn ordered(bits: i64) -> i64 {
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// The nearest-rank percentile: the smallest value with at least `percent` per cent of all values at or below it.
///
/// The result is always a measured value, never an interpolation between two. `sorted` must be ascending and not empty.
/// `percent` is from 0 to 100, and is rounded to four decimals so that rounding errors never change a rank.
pub fn percentile<T: Copy>(sorted: &[T], percent: f64) -> T {
    assert!(!sorted.is_empty() && (0.0..=100.0).contains(&percent), "a percentile of nothing, or outside 0..=100");
    let parts_per_million = (percent * 10_000.0).round() as u128;
    let rank = (parts_per_million * sorted.len() as u128).div_ceil(1_000_000) as usize;
    sorted[rank.saturating_sub(1)]
}

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanInterval {
    /// Mean of the seeds' values.
    pub mean: f64,
    /// Half the width of the 95 % confidence interval; `None` with fewer than two seeds.
    pub half_width: Option<f64>,
    /// The number of seeds.
    pub seeds: usize,
}

/// The mean over independent runs with its 95 % confidence interval (Student's t); `None` without any value.
///
/// Give one value per seed, as each run's mean. Values within one run are correlated and would give a false precision.
pub fn mean_over_seeds(values: &[f64]) -> Option<MeanInterval> {
    let n = values.len();
    if n == 0 {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    let half_width = (n > 1).then(|| {
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1) as f64;
        student_t_95(n - 1) * (variance / n as f64).sqrt()
    });
    Some(MeanInterval { mean, half_width, seeds: n })
}

/// Two-sided 95 % quantile of Student's t, from 1 to 30 degrees of freedom.
const STUDENT_T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

fn student_t_95(degrees_of_freedom: usize) -> f64 {
    // Between the rows of the table the next smaller one is used: an interval that is a little too wide is still valid.
    match degrees_of_freedom {
        0 => f64::INFINITY,
        1..=30 => STUDENT_T_95[degrees_of_freedom - 1],
        31..=39 => 2.042,
        40..=59 => 2.021,
        60..=119 => 2.000,
        120..=999 => 1.980,
        _ => 1.962,
    }
}

/// Whether a flow began at or after `warmup_ps`: before this time the network has less load than later.
pub fn is_after_warmup(flow: &FlowRow, warmup_ps: u64) -> bool {
    flow.start_ps >= warmup_ps
}

/// Buckets of a curve of slowdown over flow size: as many as HPCC's `fct_analysis.py` has, 5 % of the flows each.
pub const SIZE_BUCKETS: usize = 20;

/// Slowdown of the flows of similar size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeBucket {
    /// Smallest flow in the bucket.
    pub min_bytes: u64,
    /// Largest flow in the bucket.
    pub max_bytes: u64,
    /// Completion time over the ideal one.
    pub slowdown: Summary,
}

/// The order of flows by size and then by slowdown.
pub fn by_size(a: &(u64, f64), b: &(u64, f64)) -> std::cmp::Ordering {
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}

/// Slowdown of flow completion times by flow size, in at most `buckets` buckets of about as many flows each.
///
/// The buckets are those of HPCC's `fct_analysis.py`, with one more rule: flows of one size are never in two buckets.
/// Takes `(bytes, slowdown)` of finished flows.
pub fn slowdown_by_size(flows: &mut [(u64, f64)], buckets: usize) -> Vec<SizeBucket> {
    flows.sort_by(by_size);
    let mut result = Vec::new();
    let mut start = 0;
    for bucket in 1..=buckets {
        let mut end = flows.len() * bucket / buckets;
        if end <= start {
            continue;
        }
        while end < flows.len() && flows[end].0 == flows[end - 1].0 {
            end += 1;
        }
        let slice = &flows[start..end];
        let mut slowdowns: Vec<f64> = slice.iter().map(|flow| flow.1).collect();
        result.push(SizeBucket {
            min_bytes: slice[0].0,
            max_bytes: slice[slice.len() - 1].0,
            slowdown: Summary::of(&mut slowdowns),
        });
        start = end;
    }
    result
}

/// Merges the buckets of several runs, each cut by [`slowdown_by_size`]. Neighbours in size are merged until they hold
/// their share of the flows. Their percentiles are means, weighted by the number of flows.
pub fn slowdown_over_seeds(runs: &[&[SizeBucket]], buckets: usize) -> Vec<SizeBucket> {
    if let [run] = runs {
        return run.to_vec();
    }
    let mut all: Vec<SizeBucket> = runs.concat();
    all.sort_by_key(|b| (b.max_bytes, b.min_bytes));
    let total: usize = all.iter().map(|b| b.slowdown.count).sum();
    let mut result = Vec::new();
    let (mut start, mut seen) = (0, 0);
    for (i, bucket) in all.iter().enumerate() {
        seen += bucket.slowdown.count;
        let is_last_of_size = all.get(i + 1).is_none_or(|next| next.max_bytes > bucket.max_bytes);
        if is_last_of_size && seen * buckets >= total * (result.len() + 1) {
            result.push(together(&all[start..=i]));
            start = i + 1;
        }
    }
    result
}

/// Merges one or more buckets.
fn together(parts: &[SizeBucket]) -> SizeBucket {
    let count: usize = parts.iter().map(|b| b.slowdown.count).sum();
    let mean = |of: fn(&Summary) -> f64| {
        parts.iter().map(|b| of(&b.slowdown) * b.slowdown.count as f64).sum::<f64>() / count.max(1) as f64
    };
    SizeBucket {
        min_bytes: parts.iter().map(|b| b.min_bytes).min().unwrap_or(0),
        max_bytes: parts.iter().map(|b| b.max_bytes).max().unwrap_or(0),
        slowdown: Summary {
            count,
            mean: mean(|s| s.mean),
            min: parts.iter().map(|b| b.slowdown.min).fold(f64::INFINITY, f64::min),
            p50: mean(|s| s.p50),
            p95: mean(|s| s.p95),
            p99: mean(|s| s.p99),
            p999: mean(|s| s.p999),
            max: parts.iter().map(|b| b.slowdown.max).fold(f64::NEG_INFINITY, f64::max),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_rank_takes_a_measured_value() {
        let sorted: Vec<u64> = (1..=1000).collect();
        // 99.9 % of 1000 is the 999th: floating point alone would say the 1000th.
        let expected = [(0.0, 1), (0.1, 1), (50.0, 500), (95.0, 950), (99.0, 990), (99.9, 999), (100.0, 1000)];
        for (percent, value) in expected {
            assert_eq!(percentile(&sorted, percent), value, "p{percent}");
        }
        assert_eq!(percentile(&[7], 99.9), 7);
        assert_eq!(percentile(&[1, 2], 50.0), 1);
        assert_eq!(percentile(&[1, 2], 50.1), 2);
    }

    #[test]
    fn a_summary_of_nothing_is_zero() {
        assert_eq!(Summary::of(&mut []), Summary::default());
        let s = Summary::of(&mut [4.0, 1.0, 3.0, 2.0]);
        assert_eq!((s.count, s.mean, s.min, s.p50, s.p999, s.max), (4, 2.5, 1.0, 2.0, 4.0, 4.0));
    }

    #[test]
    fn confidence_follows_students_t() {
        assert_eq!(mean_over_seeds(&[]), None);
        assert_eq!(mean_over_seeds(&[3.0]).unwrap().half_width, None);
        // Mean 2, standard deviation 1, three seeds: 4.303 / sqrt(3).
        let interval = mean_over_seeds(&[1.0, 2.0, 3.0]).unwrap();
        assert!((interval.half_width.unwrap() - 4.303 / 3f64.sqrt()).abs() < 1e-12);
        assert_eq!((interval.mean, interval.seeds), (2.0, 3));
        for n in 1..2000 {
            assert!(student_t_95(n) >= student_t_95(n + 1), "must not grow at {n}");
        }
    }

    #[test]
    fn one_size_is_one_bucket() {
        let mut flows: Vec<(u64, f64)> =
            (0..100).map(|i| (if i < 60 { 1000 } else { 1000 + i }, 1.0 + i as f64)).collect();
        let buckets = slowdown_by_size(&mut flows, 10);
        assert_eq!((buckets[0].min_bytes, buckets[0].max_bytes, buckets[0].slowdown.count), (1000, 1000, 60));
        assert_eq!(buckets.iter().map(|b| b.slowdown.count).sum::<usize>(), 100);
        assert!(buckets.windows(2).all(|w| w[0].max_bytes < w[1].min_bytes));
        assert_eq!(slowdown_by_size(&mut [], 10), []);
    }

    #[test]
    fn seeds_count_alike_whatever_they_finished() {
        let (few, many) = (Summary::of(&mut [2.0]), Summary::of(&mut [4.0; 9]));
        let both = Summary::over_seeds(&[few, many, Summary::default()]);
        assert_eq!((both.count, both.mean, both.p99, both.min, both.max), (10, 3.0, 3.0, 2.0, 4.0));
        assert_eq!(Summary::over_seeds(&[]), Summary::default());
        let run = |shift: u64| {
            let mut flows: Vec<(u64, f64)> = (0..1000).map(|i| (1000 + i + shift, 1.0 + i as f64)).collect();
            slowdown_by_size(&mut flows, 10)
        };
        let (a, b) = (run(0), run(7));
        let merged = slowdown_over_seeds(&[&a, &b], 10);
        assert_eq!(merged.iter().map(|b| b.slowdown.count).collect::<Vec<_>>(), [200; 10]);
        assert_eq!((merged[9].max_bytes, merged[9].slowdown.p50), (2006, 950.0));
        assert_eq!(slowdown_over_seeds(&[&a], 10), a);
        assert_eq!(slowdown_over_seeds(&[], 10), []);
    }

    #[test]
    fn numbers_are_sorted_in_their_total_order() {
        let mut values = [2.5, -0.0, f64::INFINITY, 0.0, -7.0, f64::NAN, -f64::INFINITY, 1e-300, -7.5, 2.5];
        let mut expected = values;
        expected.sort_by(f64::total_cmp);
        sort(&mut values);
        assert_eq!(values.map(f64::to_bits), expected.map(f64::to_bits));
    }

    #[test]
    fn warm_up_is_cut_by_start() {
        let flow = |start_ps| FlowRow { start_ps, ..FlowRow::default() };
        assert_eq!([9, 10, 11].map(|start_ps| is_after_warmup(&flow(start_ps), 10)), [false, true, true]);
    }
}
