//! Reading distributions: a table with a kind, or a quantity alone for a constant.

use super::distribution::Distribution;
use super::error::Result;
use super::files::Files;
use super::setting::{Kind, Section, Setting, Settings, Spec, shown};
use super::settings;
use super::tree::{Node, Value};
use super::units::Quantity;

/// Points a distribution in a scenario may have; more belong into a file.
const POINTS_MAX: usize = 1 << 16;

/// Cumulative probabilities, of 1 or in percent.
const CUMULATIVE: core::ops::RangeInclusive<f64> = 0.0..=100.0;

settings! {
    /// always the same
    struct Constant<T> in kind "constant" (s) {
        /// the value, with its unit
        value: T,
    }
}

settings! {
    /// memoryless
    struct Exponential<T> in kind "exponential" (s) {
        /// the mean, with its unit
        mean: T,
    }
}

settings! {
    /// the logarithm is normal
    struct LogNormal<T> in kind "lognormal" (s) {
        /// the median, with its unit
        median: T,
        /// standard deviation of the natural logarithm
        sigma: f64 [0.0..=10.0],
    }
}

settings! {
    /// linear between points
    struct Empirical<T> in kind "empirical" (s) {
        /// [[value, cumulative], ...], ending at 1 or at 100
        points: Vec<(T, f64)> as (Kind::Points(Box::new(T::kind(&T::ANY)))) = points(s)?,
    }
}

settings! {
    /// linear between the points of a file
    struct CdfFile in kind "cdf-file" (s) {
        /// the file, with a value and its cumulative percentage on each line
        file: String,
        /// the values' unit, as "us"; default B for sizes
        unit: Option<String>,
    }
}

/// The tables of the kinds of distribution.
struct Kinds<T>(core::marker::PhantomData<T>);

impl<T: Quantity + Setting> Kinds<T> {
    const SPECS: &'static [&'static Spec] =
        &[Constant::<T>::SPEC, Exponential::<T>::SPEC, LogNormal::<T>::SPEC, Empirical::<T>::SPEC, CdfFile::SPEC];
}

/// The values of a key that is a distribution.
pub(super) fn kind_of<T: Quantity + Setting>() -> Kind {
    Kind::Distribution(Box::new(T::kind(&T::ANY)), Kinds::<T>::SPECS)
}

/// A distribution that must be given.
pub(super) fn required<T: Quantity + Setting>(
    s: &Section<'_>,
    name: &str,
    files: &mut Files,
) -> Result<Distribution<T>> {
    read(s, name, files)?.ok_or_else(|| s.missing(name))
}

/// A distribution, where it is given; its mean is above zero.
pub(super) fn read<T: Quantity + Setting>(
    s: &Section<'_>,
    name: &str,
    files: &mut Files,
) -> Result<Option<Distribution<T>>> {
    let Some(node) = s.get(name) else { return Ok(None) };
    let distribution = match &node.value {
        Value::Table(table) => {
            let names: Vec<&'static str> = Kinds::<T>::SPECS.iter().map(|d| d.name).collect();
            let Some(Node { value: Value::Text(kind), span }) = table.get("kind").map(|e| &e.node) else {
                return Err(s
                    .error(name, "this distribution has no `kind`")
                    .hint(format!("known kinds: {}", names.join(", "))));
            };
            let Some(spec) = Kinds::<T>::SPECS.iter().find(|d| d.name == kind) else {
                return Err(s
                    .doc
                    .error(*span, format!("unknown kind of distribution `{}`", shown(kind)))
                    .none_of(kind, &names));
            };
            of_kind(&Section::new(s.doc, spec, table, Some(node.span))?, files)?
        }
        Value::Text(_) => Distribution::Constant(T::read(s, name, node, &T::ANY)?),
        _ => return Err(s.wrong(node, "a distribution").hint("as { kind = \"exponential\", mean = ... }")),
    };
    // Not above zero, and not NaN either.
    if !matches!(distribution.mean().partial_cmp(&0.0), Some(core::cmp::Ordering::Greater)) {
        return Err(s.error(name, format!("the mean of `{name}` is not above 0")));
    }
    Ok(Some(distribution))
}

fn of_kind<T: Quantity + Setting>(s: &Section<'_>, files: &mut Files) -> Result<Distribution<T>> {
    Ok(match s.spec.name {
        "constant" => Distribution::Constant(Constant::<T>::read(s)?.value),
        "exponential" => Distribution::Exponential { mean: Exponential::<T>::read(s)?.mean },
        "lognormal" => {
            let LogNormal { median, sigma } = LogNormal::<T>::read(s)?;
            Distribution::LogNormal { median, sigma }
        }
        "empirical" => Distribution::Empirical { points: Empirical::<T>::read(s)?.points },
        _ => {
            let CdfFile { file, unit } = CdfFile::read(s)?;
            let unit = match unit {
                Some(unit) => T::UNITS.iter().find(|u| u.0 == unit).map(|u| u.1).ok_or_else(|| {
                    let names: Vec<_> = T::UNITS.iter().map(|u| u.0).collect();
                    s.error("unit", format!("`{unit}` is not a unit of {}", T::NAME)).expected(names.join(", "))
                })?,
                // Sizes in such files are bytes; times can be anything.
                None if T::DEFAULT_FILE_UNIT > 0 => T::DEFAULT_FILE_UNIT,
                None => return Err(s.missing("unit")),
            };
            Distribution::CdfFile { file: s.input("file", files.cdf(&file))?, unit }
        }
    })
}

fn points<T: Quantity + Setting>(s: &Section<'_>) -> Result<Vec<(T, f64)>> {
    let Some(node) = s.get("points") else { return Err(s.missing("points")) };
    let Value::List(list) = &node.value else { return Err(s.wrong(node, "a list of [value, cumulative]")) };
    if list.len() > POINTS_MAX {
        return Err(s.error("points", format!("{} points are too many", list.len())).hint("use a cdf-file"));
    }
    let mut points: Vec<(T, f64)> = Vec::new();
    for node in list {
        let (value, cumulative) = match &node.value {
            Value::List(pair) if pair.len() == 2 => (&pair[0], &pair[1]),
            _ => return Err(s.wrong(node, "a pair [value, cumulative]")),
        };
        let point = (T::read(s, "value", value, &T::ANY)?, f64::read(s, "cumulative", cumulative, &CUMULATIVE)?);
        if let Some(before) = points.last() {
            if point.0 < before.0 {
                return Err(s.doc.error(value.span, "the values descend").expected("values that ascend"));
            }
            if point.1 < before.1 {
                return Err(s
                    .doc
                    .error(cumulative.span, "the cumulative distribution descends")
                    .expected("numbers that ascend"));
            }
        }
        points.push(point);
    }
    let scale = match points.last() {
        Some((_, 1.0)) => 1.0,
        Some((_, 100.0)) => 100.0,
        Some((_, end)) => {
            return Err(s
                .error("points", format!("the distribution ends at {end}"))
                .expected("an end at 1, or at 100 (percent)"));
        }
        None => return Err(s.error("points", "this distribution has no points")),
    };
    for point in &mut points {
        point.1 /= scale;
    }
    Ok(points)
}
