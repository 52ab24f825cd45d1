//! Axes: where a value stands between 0 and 1, and which values get a tick.

/// A mapping of values to 0..=1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// From zero to a maximum.
    Linear(f64),
    /// Between two positive values, by ratio.
    Log(f64, f64),
}

/// Values further apart than this are shown by ratio: on a linear axis the small ones would be a line on the ground.
const LINEAR_RANGE: f64 = 20.0;

impl Scale {
    /// An axis for bars: linear from zero, unless the positive `values` differ too much.
    pub fn for_bars(values: impl Iterator<Item = f64>) -> Scale {
        let (min, max) = range(values);
        if max / min > LINEAR_RANGE { Scale::log(min / 1.5, max) } else { Scale::Linear(nice_ceiling(max)) }
    }

    /// An axis from zero that takes in the `values`.
    pub fn linear(values: impl Iterator<Item = f64>) -> Scale {
        Scale::Linear(nice_ceiling(range(values).1))
    }

    /// A logarithmic axis that takes in the positive `values`.
    pub fn for_curves(values: impl Iterator<Item = f64>) -> Scale {
        let (min, max) = range(values);
        Scale::log(min, max)
    }

    /// Widens the range to round numbers.
    fn log(min: f64, max: f64) -> Scale {
        let round = |x: f64, up: bool| {
            let decade = 10f64.powi(x.log10().floor() as i32);
            let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
            // A hair of tolerance: log10 of a power of ten may fall on either side.
            if up {
                steps.into_iter().find(|s| *s >= x * (1.0 - 1e-9)).unwrap_or(x)
            } else {
                steps.into_iter().rev().find(|s| *s <= x * (1.0 + 1e-9)).unwrap_or(x)
            }
        };
        let (min, max) = (round(min, false), round(max, true));
        Scale::Log(min, if max > min { max } else { min * 10.0 })
    }

    /// Where `value` stands; values outside stand at the end.
    pub fn place(self, value: f64) -> f64 {
        let place = match self {
            Scale::Linear(max) => value / max,
            Scale::Log(min, max) => (value.max(min) / min).ln() / (max / min).ln(),
        };
        place.clamp(0.0, 1.0)
    }

    /// Round values to label.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Linear(max) => {
                let step = nice_step(max / 4.0);
                (0..).map(|i| i as f64 * step).take_while(|x| *x <= max * (1.0 + 1e-9)).collect()
            }
            Scale::Log(min, max) => {
                let decades = (max / min).log10();
                let steps: &[f64] = if decades <= 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let every = if decades > 6.0 { 2 } else { 1 };
                let first = min.log10().floor() as i32;
                let decade = |e: i32| steps.iter().map(move |s| s * 10f64.powi(e));
                let inside = |x: &f64| *x >= min * (1.0 - 1e-9) && *x <= max * (1.0 + 1e-9);
                (first..=max.log10().ceil() as i32).step_by(every).flat_map(decade).filter(inside).collect()
            }
        }
    }

    pub fn is_log(self) -> bool {
        matches!(self, Scale::Log(..))
    }
}

/// The smallest and the largest positive value; 1 and 1 without any.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let range = values
        .filter(|v| *v > 0.0 && v.is_finite())
        .fold(None, |range: Option<(f64, f64)>, v| Some(range.map_or((v, v), |(min, max)| (min.min(v), max.max(v)))));
    range.unwrap_or((1.0, 1.0))
}

/// 1, 2 or 5 times a power of ten, at least `x`.
fn nice_step(x: f64) -> f64 {
    let decade = 10f64.powi(x.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0].map(|s| s * decade).into_iter().find(|s| *s >= x * (1.0 - 1e-9)).unwrap_or(x)
}

fn nice_ceiling(x: f64) -> f64 {
    let step = nice_step(x / 4.0);
    (x / step * (1.0 - 1e-9)).ceil() * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_values_get_a_linear_axis_from_zero() {
        let scale = Scale::for_bars([3.0, 17.0].into_iter());
        assert_eq!(scale, Scale::Linear(20.0));
        assert_eq!(scale.ticks(), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!((scale.place(0.0), scale.place(10.0), scale.place(99.0)), (0.0, 0.5, 1.0));
    }

    #[test]
    fn distant_values_get_a_logarithmic_one() {
        let scale = Scale::for_bars([3.0, 2900.0].into_iter());
        assert_eq!(scale, Scale::Log(2.0, 5000.0));
        assert_eq!(scale.ticks(), [10.0, 100.0, 1000.0]);
        assert!((scale.place(100.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn no_data_is_still_an_axis() {
        for scale in [Scale::for_bars([].into_iter()), Scale::for_curves([0.0, f64::NAN].into_iter())] {
            assert!(!scale.ticks().is_empty() && scale.place(1.0).is_finite(), "{scale:?}");
        }
        assert_eq!(Scale::for_curves([5.0, 5.0].into_iter()), Scale::Log(5.0, 50.0));
    }
}
