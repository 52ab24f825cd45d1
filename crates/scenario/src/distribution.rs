//! Distributions of sizes and times, sampled by inverse transform from one 64-bit random number.
//!
//! `exp` and `ln` of one platform differ from another's in the last bit: these are the `libm` crate's, the same
//! everywhere.

use core::fmt;
use serde::{Serialize, Serializer};

use super::model::InputFile;
use super::units::Quantity;
use crate::formats::Cdf;

/// A distribution of sizes (`Bytes`) or of times (`Duration`).
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution<T> {
    /// Always the same.
    Constant(T),
    /// Memoryless, with this mean.
    Exponential {
        /// The mean.
        mean: T,
    },
    /// The logarithm is normal.
    LogNormal {
        /// The median.
        median: T,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Linear between points of the cumulative distribution.
    Empirical {
        /// Value and cumulative probability; both ascend, the last probability is 1.
        points: Vec<(T, f64)>,
    },
    /// As `Empirical`, from a file.
    CdfFile {
        /// The file.
        file: InputFile<Cdf>,
        /// Base units (bytes, picoseconds) of one of its values.
        unit: u64,
    },
}

/// The largest sample in base units, where larger ones would be possible: a tail never overflows a clock.
const SAMPLE_MAX: u64 = 1_000_000_000_000_000_000;

impl<T: Quantity> Distribution<T> {
    /// The value at which `random`, read as a fraction of 2^64, is the cumulative probability.
    pub fn sample(&self, random: u64) -> T {
        let u = uniform(random);
        let value = match self {
            Distribution::Constant(value) => return *value,
            Distribution::Exponential { mean } => -(mean.base() as f64) * libm::log1p(-u),
            Distribution::LogNormal { median, sigma } => median.base() as f64 * libm::exp(sigma * normal_quantile(u)),
            Distribution::Empirical { points } => quantile(points.iter().map(|(v, c)| (v.base() as f64, *c)), u),
            Distribution::CdfFile { file, unit } => quantile(file.content.points.iter().copied(), u) * *unit as f64,
        };
        // `as` saturates and turns NaN into zero.
        T::from_base(libm::round(value.clamp(0.0, T::MAX.min(SAMPLE_MAX) as f64)) as u64)
    }

    /// The distribution of values `factor` times as large, or as large as can be.
    pub fn times(&self, factor: u64) -> Distribution<T> {
        let grow = |v: &T| T::from_base(v.base().saturating_mul(factor).min(T::MAX));
        match self {
            Distribution::Constant(value) => Distribution::Constant(grow(value)),
            Distribution::Exponential { mean } => Distribution::Exponential { mean: grow(mean) },
            Distribution::LogNormal { median, sigma } => {
                Distribution::LogNormal { median: grow(median), sigma: *sigma }
            }
            Distribution::Empirical { points } => {
                Distribution::Empirical { points: points.iter().map(|(v, c)| (grow(v), *c)).collect() }
            }
            Distribution::CdfFile { file, unit } => {
                Distribution::CdfFile { file: file.clone(), unit: unit.saturating_mul(factor) }
            }
        }
    }

    /// The mean in base units (bytes, picoseconds), before rounding.
    pub fn mean(&self) -> f64 {
        match self {
            Distribution::Constant(value) => value.base() as f64,
            Distribution::Exponential { mean } => mean.base() as f64,
            Distribution::LogNormal { median, sigma } => median.base() as f64 * libm::exp(sigma * sigma / 2.0),
            Distribution::Empirical { points } => mean_of(points.iter().map(|(v, c)| (v.base() as f64, *c))),
            Distribution::CdfFile { file, unit } => mean_of(file.content.points.iter().copied()) * *unit as f64,
        }
    }
}

/// `random` as a number within (0, 1): never 0 and never 1.
pub fn uniform(random: u64) -> f64 {
    // 52 bits and a half are exact in the type; 53 and a half would round up to 1.
    ((random >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// The value at cumulative probability `u`, linear between points.
pub fn quantile(points: impl Iterator<Item = (f64, f64)>, u: f64) -> f64 {
    let mut before: Option<(f64, f64)> = None;
    for (value, cumulative) in points {
        if u <= cumulative {
            return match before {
                Some((v0, c0)) if cumulative > c0 => v0 + (value - v0) * ((u - c0) / (cumulative - c0)),
                _ => value,
            };
        }
        before = Some((value, cumulative));
    }
    before.map_or(0.0, |b| b.0)
}

/// The mean of a distribution linear between points; the probability at the first point is all at its value.
pub fn mean_of(points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let mut sum = 0.0;
    let mut before: Option<(f64, f64)> = None;
    for (value, cumulative) in points {
        sum += match before {
            None => value * cumulative,
            Some((v0, c0)) => (v0 + value) / 2.0 * (cumulative - c0),
        };
        before = Some((value, cumulative));
    }
    sum
}

/// The standard normal distribution's quantile: Acklam's rational approximation (relative error 1.15e-9), then one step
/// of Halley's method with `erfc`, which brings it to the precision of the type.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -39.69683028665376,
        220.9460984245205,
        -275.9285104469687,
        138.357751867269,
        -30.66479806614716,
        2.506628277459239,
    ];
    const B: [f64; 5] =
        [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572];
    const C: [f64; 6] = [
        -0.007784894002430293,
        -0.3223964580411365,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
    const LOW: f64 = 0.02425;
    let tail = |q: f64| {
        (((((C[0] * q + C[1]) * q + C[2]) * q + C[3]) * q + C[4]) * q + C[5])
            / ((((D[0] * q + D[1]) * q + D[2]) * q + D[3]) * q + 1.0)
    };
    let x = if p < LOW {
        tail(libm::sqrt(-2.0 * libm::log(p)))
    } else if p > 1.0 - LOW {
        -tail(libm::sqrt(-2.0 * libm::log1p(-p)))
    } else {
        let q = p - 0.5;
        let r = q * q;
        (((((A[0] * r + A[1]) * r + A[2]) * r + A[3]) * r + A[4]) * r + A[5]) * q
            / (((((B[0] * r + B[1]) * r + B[2]) * r + B[3]) * r + B[4]) * r + 1.0)
    };
    let e = 0.5 * libm::erfc(-x / core::f64::consts::SQRT_2) - p;
    let u = e * libm::sqrt(2.0 * core::f64::consts::PI) * libm::exp(x * x / 2.0);
    x - u / (1.0 + x * u / 2.0)
}

impl<T: Quantity> Serialize for Distribution<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = s.serialize_map(None)?;
        match self {
            Distribution::Constant(value) => {
                map.serialize_entry("kind", "constant")?;
                map.serialize_entry("value", &value.text())?;
            }
            Distribution::Exponential { mean } => {
                map.serialize_entry("kind", "exponential")?;
                map.serialize_entry("mean", &mean.text())?;
            }
            Distribution::LogNormal { median, sigma } => {
                map.serialize_entry("kind", "lognormal")?;
                map.serialize_entry("median", &median.text())?;
                map.serialize_entry("sigma", sigma)?;
            }
            Distribution::Empirical { points } => {
                map.serialize_entry("kind", "empirical")?;
                let points: Vec<_> = points.iter().map(|(v, c)| (v.text(), c)).collect();
                map.serialize_entry("points", &points)?;
            }
            Distribution::CdfFile { file, unit } => {
                map.serialize_entry("kind", "cdf-file")?;
                map.serialize_entry("file", &file.path)?;
                map.serialize_entry("unit", &T::from_base(*unit).text())?;
            }
        }
        map.end()
    }
}

impl<T: Quantity> fmt::Display for Distribution<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Constant(value) => write!(f, "{}", value.text()),
            Distribution::Exponential { mean } => write!(f, "exponential, mean {}", mean.text()),
            Distribution::LogNormal { median, sigma } => {
                write!(f, "lognormal, median {}, sigma {sigma}", median.text())
            }
            Distribution::Empirical { points } => write!(f, "empirical, {} points", points.len()),
            Distribution::CdfFile { file, .. } => write!(f, "{}", file.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::Bytes;
    use super::*;
    use sluicenet_proto::time::Duration;
    use std::sync::Arc;

    /// Weyl sequence of the golden ratio: fills the unit interval evenly, so that means converge as 1/n.
    fn even(n: u64) -> impl Iterator<Item = u64> {
        (0..n).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn assert_mean<T: Quantity>(d: &Distribution<T>, tolerance: f64) {
        let n = 200_000;
        let sum: f64 = even(n).map(|r| d.sample(r).base() as f64).sum();
        let (mean, want) = (sum / n as f64, d.mean());
        assert!((mean - want).abs() <= tolerance * want, "{d:?}: {mean} is not {want}");
    }

    #[test]
    fn every_mean_is_met() {
        let us = Duration::from_us;
        assert_mean(&Distribution::Constant(us(7)), 0.0);
        assert_mean(&Distribution::Exponential { mean: us(100) }, 1e-3);
        assert_mean(&Distribution::LogNormal { median: us(30), sigma: 1.0 }, 2e-3);
        assert_mean(&Distribution::LogNormal { median: us(30), sigma: 0.0 }, 1e-6);
        let points = vec![(Bytes(0), 0.0), (Bytes(10_000), 0.5), (Bytes(1_000_000), 1.0)];
        assert_mean(&Distribution::Empirical { points }, 1e-3);
        let points = vec![(Bytes(1_000), 0.25), (Bytes(1_000), 0.75), (Bytes(9_000), 1.0)];
        assert_mean(&Distribution::Empirical { points }, 1e-3);
        let content = Arc::new(Cdf { points: vec![(0.0, 0.0), (4000.0, 0.25), (2e6, 1.0)] });
        let file = InputFile { path: "x".into(), content };
        assert_mean(&Distribution::<Bytes>::CdfFile { file: file.clone(), unit: 1 }, 1e-3);
        let ns = Distribution::<Duration>::CdfFile { file, unit: 1_000 };
        assert_mean(&ns, 1e-3);
        assert_eq!(ns.sample(u64::MAX).as_us(), 2000);
    }

    #[test]
    fn a_multiple_is_the_multiple_of_every_sample() {
        let file = InputFile { path: "x".into(), content: Arc::new(Cdf { points: vec![(0.0, 0.0), (5.0, 1.0)] }) };
        for d in [
            Distribution::Constant(Duration::from_us(7)),
            Distribution::Exponential { mean: Duration::from_us(100) },
            Distribution::LogNormal { median: Duration::from_us(30), sigma: 1.0 },
            Distribution::Empirical { points: vec![(Duration(0), 0.0), (Duration::from_us(9), 1.0)] },
            Distribution::CdfFile { file, unit: 1_000_000 },
        ] {
            for r in even(100) {
                let (one, many) = (d.sample(r).0, d.times(50).sample(r).0);
                assert!(many.abs_diff(one * 50) <= 50, "{d:?}: {one}, {many}");
            }
        }
    }

    #[test]
    fn samples_are_the_same_everywhere() {
        let d = Distribution::LogNormal { median: Duration::from_us(30), sigma: 1.3 };
        let e = Distribution::Exponential { mean: Duration::from_us(30) };
        let seen: Vec<u64> = [0, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX]
            .iter()
            .flat_map(|r| [d.sample(*r).0, e.sample(*r).0])
            .collect();
        // Written down on x86-64; another platform must agree to the picosecond.
        assert_eq!(seen, SEEN);
    }
    const SEEN: [u64; 10] =
        [695, 0, 30_748, 2, 30_000_000, 20_794_415, 1_294_447_304_807, 1_102_104_017, 1_294_447_304_807, 1_102_104_017];

    #[test]
    fn the_normal_quantile_is_the_inverse() {
        for i in 1..1000 {
            let p = f64::from(i) / 1000.0;
            let back = 0.5 * libm::erfc(-normal_quantile(p) / core::f64::consts::SQRT_2);
            assert!((back - p).abs() < 1e-14, "{p}: {back}");
        }
    }

    #[test]
    fn extremes_neither_panic_nor_overflow() {
        let d = Distribution::LogNormal { median: Duration(1 << 62), sigma: 50.0 };
        for r in [0, 1, u64::MAX, 1 << 63] {
            assert!(d.sample(r).0 <= 1_000_000_000_000_000_000);
        }
        let none = Distribution::<Bytes>::Empirical { points: vec![] };
        assert_eq!(none.sample(5), Bytes(0));
    }
}
