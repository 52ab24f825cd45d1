//! Reading distributions: a table with a kind, or a quantity alone for a constant.

use super::distribution::Distribution;
use super::error::Result;
use super::files::Files;
use super::keys;
use super::section::Section;
use super::tree::{Node, Value, name_hint};
use super::units::Quantity;

/// Points a distribution in a scenario may have; more belong into a file.
const POINTS_MAX: usize = 1 << 16;

/// A distribution that must be given.
pub(super) fn required<T: Quantity>(s: &Section<'_>, name: &str, files: &mut Files) -> Result<Distribution<T>> {
    read(s, name, files)?.ok_or_else(|| s.missing(name))
}

/// A distribution, where it is given; its mean is above zero.
pub(super) fn read<T: Quantity>(s: &Section<'_>, name: &str, files: &mut Files) -> Result<Option<Distribution<T>>> {
    let Some(node) = s.get(name) else { return Ok(None) };
    let distribution = match &node.value {
        Value::Table(table) => {
            let names: Vec<&'static str> = keys::DISTRIBUTIONS.iter().map(|d| d.name).collect();
            let Some(Node { value: Value::Text(kind), span }) = table.get("kind").map(|e| &e.node) else {
                return Err(s
                    .error(name, "this distribution has no `kind`")
                    .hint(format!("known kinds: {}", names.join(", "))));
            };
            let Some(spec) = keys::DISTRIBUTIONS.iter().find(|d| d.name == kind) else {
                let shown: String = kind.chars().take(40).collect();
                return Err(s
                    .doc
                    .error(*span, format!("unknown kind of distribution `{shown}`"))
                    .expected(names.join(", "))
                    .hint(name_hint(kind, &names)));
            };
            of_kind(&Section::new(s.doc, spec, table, Some(node.span))?, files)?
        }
        Value::Text(_) => Distribution::Constant(s.quantity_of::<T>(node)?),
        _ => return Err(s.wrong(node, "a distribution").hint("as { kind = \"exponential\", mean = ... }")),
    };
    // Not above zero, and not NaN either.
    if !matches!(distribution.mean().partial_cmp(&0.0), Some(core::cmp::Ordering::Greater)) {
        return Err(s.error(name, format!("the mean of `{name}` is not above 0")));
    }
    Ok(Some(distribution))
}

fn of_kind<T: Quantity>(s: &Section<'_>, files: &mut Files) -> Result<Distribution<T>> {
    let need = |name: &str| s.quantity::<T>(name)?.ok_or_else(|| s.missing(name));
    Ok(match s.spec.name {
        "constant" => Distribution::Constant(need("value")?),
        "exponential" => Distribution::Exponential { mean: need("mean")? },
        "lognormal" => Distribution::LogNormal {
            median: need("median")?,
            sigma: s.number("sigma", 0.0..=10.0)?.ok_or_else(|| s.missing("sigma"))?,
        },
        "empirical" => Distribution::Empirical { points: points(s)? },
        _ => {
            let path = s.text("file")?.ok_or_else(|| s.missing("file"))?;
            let unit = match s.text("unit")? {
                Some(unit) => T::UNITS.iter().find(|u| u.0 == unit).map(|u| u.1).ok_or_else(|| {
                    let names: Vec<_> = T::UNITS.iter().map(|u| u.0).collect();
                    s.error("unit", format!("`{unit}` is not a unit of {}", T::NAME)).expected(names.join(", "))
                })?,
                // Sizes in such files are bytes; times can be anything.
                None if T::DEFAULT_FILE_UNIT > 0 => T::DEFAULT_FILE_UNIT,
                None => return Err(s.missing("unit")),
            };
            Distribution::CdfFile { file: s.input("file", files.cdf(path))?, unit }
        }
    })
}

fn points<T: Quantity>(s: &Section<'_>) -> Result<Vec<(T, f64)>> {
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
        let point = (s.quantity_of::<T>(value)?, s.number_of(cumulative, "cumulative", 0.0..=100.0)?);
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
