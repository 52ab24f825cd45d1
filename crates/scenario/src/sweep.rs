//! `[sweep]`: dotted keys, each with a list of values; all combinations are variants of the scenario.

use super::error::{Result, Warning};
use super::files::Files;
use super::load;
use super::model::{Scenario, TableAxis};
use super::sonic;
use super::tree::{Document, Node, Span, Table, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Variants a sweep may have.
pub const VARIANTS_MAX: usize = 1 << 16;
/// Bytes of scenario text all variants together may be made of: each is a scenario in memory.
const VARIANT_BYTES_MAX: usize = 1 << 30;

/// The key of the seed.
const SEED: &str = "scenario.seed";
/// The key of LL, LZ, ZL and ZZ.
pub const FLOW_CONTROL_KEY: &str = "scenario.flow_control";
/// The key of the congestion control.
pub const CONGESTION_KEY: &str = "tcp.congestion";

/// The longest name of a folder, in characters: file systems take 255 bytes.
const FOLDER_CHARS_MAX: usize = 120;

/// One combination of a sweep.
#[derive(Clone, Debug)]
pub struct Variant {
    /// A readable name, as `flow_control=LZ seed=2`: the last parts of the keys that differ between variants; empty
    /// where there is no sweep.
    pub label: String,
    /// Name of its folder: as the label, with a comma between settings and nothing that a file system or shell minds.
    pub folder: String,
    /// The keys in the order of the file, each with its value as text.
    pub settings: Vec<(String, String)>,
    /// The scenario.
    pub scenario: Scenario,
    /// Warnings about the variant. Input files that other variants share warned when they were first read.
    pub warnings: Vec<Warning>,
}

impl Variant {
    /// Settings that tell the configuration of this variant from others: all settings but the seed.
    fn of_configuration(&self) -> impl Iterator<Item = &(String, String)> {
        self.settings.iter().filter(|(key, _)| key != SEED)
    }

    /// The settings by the last part of their keys, as records know them; by the whole key where two last parts are
    /// equal. The seed is left out: variants with the same axes are seeds of one configuration.
    pub fn axes(&self) -> Vec<(String, String)> {
        let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
        let alone = |key: &str| self.of_configuration().filter(|(other, _)| last(other) == last(key)).count() == 1;
        self.of_configuration().map(|(k, value)| (if alone(k) { last(k) } else { k.clone() }, value.clone())).collect()
    }

    /// The whole keys of [`Variant::axes`], in their order.
    pub fn axis_keys(&self) -> Vec<String> {
        self.of_configuration().map(|(key, _)| key.clone()).collect()
    }
}

/// Settings, each `name=value`, as a name that every file system and shell takes: that of a variant's folder.
pub fn folder_name(settings: &[String]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "=._-+".contains(c) { c } else { '_' };
    let plain = |setting: &String| setting.chars().map(plain).collect::<String>();
    let name = settings.iter().map(plain).collect::<Vec<_>>().join(",");
    if name.is_empty() { "run".into() } else { name.chars().take(FOLDER_CHARS_MAX).collect() }
}

struct Axis<'a> {
    /// The dotted key, part by part.
    parts: Vec<(String, Span)>,
    values: &'a [Node],
}

impl Axis<'_> {
    fn key(&self) -> String {
        self.parts.iter().map(|p| p.0.as_str()).collect::<Vec<_>>().join(".")
    }
    /// Whether it is given on top of the file; its first parts may then be those of a table in the file.
    fn is_override(&self) -> bool {
        self.parts.iter().any(|part| part.1.is_override())
    }
}

/// Overrides win over the sweep of the file: a value fixes a key that the file varies, and a list replaces the file's
/// list.
fn overrule(doc: &Document, axes: &mut Vec<Axis<'_>>) {
    let (others, mut of_file): (Vec<_>, Vec<_>) = axes.drain(..).partition(Axis::is_override);
    of_file.retain(|axis| doc.override_of(&axis.key()).is_none());
    for other in others {
        match of_file.iter_mut().find(|axis| !axis.is_override() && axis.key() == other.key()) {
            Some(axis) => *axis = other,
            None => of_file.push(other),
        }
    }
    *axes = of_file;
}

/// The scenario without the variations of its sweep: a list of one value varies nothing and is a setting. A sweep that could
/// not be expanded is refused, before anyone tries.
pub(super) fn base(doc: &Document) -> Result<Document> {
    let mut base = doc.clone();
    for axis in axes(doc)? {
        if let [value] = axis.values {
            base.set(&axis.parts, value.clone())?;
        }
    }
    Ok(base)
}

/// Refuses an axis or an override of a seed where other seeds are given.
pub(super) fn check_seeds(doc: &Document) -> Result<()> {
    const HINT: &str = "leave one of the two out";
    if let Some(axis) = axes(doc)?.iter().find(|axis| axis.key() == SEED) {
        let message = format!("`{SEED}` is varied here, and seeds are given as well");
        return Err(doc.error(axis.parts[0].1, message).hint(HINT));
    }
    match doc.override_of(SEED) {
        Some(span) => Err(doc.error(span, format!("`{SEED}` is set here, and seeds are given as well")).hint(HINT)),
        None => Ok(()),
    }
}

/// The axes as they stand: the file's in their order, and those of overrides beside them.
fn written(doc: &Document) -> Result<Vec<Axis<'_>>> {
    let mut axes = Vec::new();
    let Some(entry) = doc.root.get("sweep") else { return Ok(axes) };
    let Value::Table(table) = &entry.node.value else {
        return Err(doc.error(entry.node.span, "`sweep` is a table of keys and lists"));
    };
    collect(doc, table, &[], &mut axes)?;
    Ok(axes)
}

/// The axes in the order of the file.
fn axes(doc: &Document) -> Result<Vec<Axis<'_>>> {
    let mut axes = written(doc)?;
    overrule(doc, &mut axes);
    let mut variants = 1usize;
    for axis in &axes {
        let key = axis.key();
        if key.starts_with("sweep") {
            return Err(doc.error(axis.parts[0].1, "a sweep cannot vary a sweep"));
        }
        if let Some(other) = axes.iter().find(|o| !core::ptr::eq(*o, axis) && o.key() == key) {
            return Err(doc.error(other.parts[0].1, format!("`{key}` is swept twice")));
        }
        // Runs of one seed would count as independent ones.
        let mut seen = BTreeSet::new();
        if let Some(again) = axis.values.iter().find(|value| !seen.insert(value.label())) {
            return Err(doc.error(again.span, format!("`{key}` has this value twice")).hint("remove one of the two"));
        }
        variants = variants.saturating_mul(axis.values.len());
        if variants > VARIANTS_MAX {
            return Err(doc
                .error(axis.parts[0].1, format!("this sweep has more than {VARIANTS_MAX} variants"))
                .hint("the number of variants is the product of the lists' lengths"));
        }
        if variants.saturating_mul(doc.sources.iter().map(|s| s.text.len()).sum()) > VARIANT_BYTES_MAX {
            return Err(doc
                .error(axis.parts[0].1, format!("{variants} variants of so long a scenario are too many"))
                .hint("move long lists into files, which variants share"));
        }
    }
    Ok(axes)
}

/// An axis as tables show it, and the file's own values.
pub(super) struct Shown {
    /// The axis.
    pub axis: TableAxis,
    /// How many values the file gives.
    pub in_file: usize,
    /// Which of those each value of the axis is; none where an override brings a new one.
    pub indices: Vec<Option<usize>>,
}

/// The axes, and those of the file that overrides fix.
pub(super) fn shown(doc: &Document) -> Result<Vec<Shown>> {
    let labels = |values: &[Node]| values.iter().map(Node::label).collect::<Vec<_>>();
    let of_file: Vec<(String, Vec<String>)> =
        written(doc)?.iter().filter(|axis| !axis.is_override()).map(|axis| (axis.key(), labels(axis.values))).collect();
    let show = |key: String, values: Vec<String>, is_fixed: bool| {
        let in_file = of_file.iter().find(|axis| axis.0 == key).map_or(&values, |axis| &axis.1);
        // The first of equal values.
        let found: BTreeMap<&String, usize> = in_file.iter().enumerate().rev().map(|(i, value)| (value, i)).collect();
        let indices = values.iter().map(|value| found.get(value).copied()).collect();
        Shown { in_file: in_file.len(), indices, axis: TableAxis { key, values, is_fixed } }
    };
    let varied = axes(doc)?;
    let mut all: Vec<Shown> = varied.iter().map(|axis| show(axis.key(), labels(axis.values), false)).collect();
    for (key, _) in &of_file {
        if let (false, Some(entry)) = (varied.iter().any(|axis| axis.key() == *key), doc.overridden(key)) {
            all.push(show(key.clone(), vec![entry.node.label()], true));
        }
    }
    Ok(all)
}

/// Keys may be quoted ("scenario.seed") or dotted (scenario.seed): both end at a list.
fn collect<'a>(doc: &Document, table: &'a Table, path: &[(String, Span)], axes: &mut Vec<Axis<'a>>) -> Result<()> {
    for entry in &table.entries {
        let mut parts = path.to_vec();
        parts.extend(entry.key.split('.').map(|p| (p.trim().to_string(), entry.key_span)));
        match &entry.node.value {
            Value::Table(inner) => collect(doc, inner, &parts, axes)?,
            Value::List(values) if values.is_empty() => {
                return Err(doc.error(entry.node.span, "a sweep over no values has no variants"));
            }
            Value::List(values) => axes.push(Axis { parts, values }),
            _ => {
                return Err(doc
                    .error(entry.node.span, format!("{} where a list of values should be", entry.node.kind()))
                    .hint("as \"scenario.seed\" = [1, 2, 3]"));
            }
        }
    }
    Ok(())
}

/// Every combination, the last axis varying fastest.
pub(super) fn expand(doc: &Document, files: &mut Files) -> Result<Vec<Variant>> {
    let axes = axes(doc)?;
    let names = short_names(&axes);
    let count: usize = axes.iter().map(|a| a.values.len()).product();
    // One tree for all: each variant sets the same keys again.
    let mut variant = doc.clone();
    let mut variants = Vec::new();
    for number in 0..count {
        // The number's digits, in a base that is each axis's length.
        let mut rest = number;
        let mut picked: Vec<usize> = axes
            .iter()
            .rev()
            .map(|a| {
                let digit = rest % a.values.len();
                rest /= a.values.len();
                digit
            })
            .collect();
        picked.reverse();
        let mut settings = Vec::new();
        let mut label = Vec::new();
        for ((axis, i), name) in axes.iter().zip(&picked).zip(&names) {
            let value = &axis.values[*i];
            variant.set(&axis.parts, value.clone())?;
            label.push(format!("{name}={}", value.label()));
            settings.push((axis.key(), value.label()));
        }
        let mut warnings = Vec::new();
        let outcome = sonic::merged(&variant, files, &mut warnings)
            .and_then(|merged| load::read(&merged, files, &mut warnings))
            .map_err(|e| e.in_variant(&label.join(" ")));
        warnings.append(&mut files.warnings);
        let scenario = match outcome {
            Ok(scenario) => scenario,
            Err(e) => return Err(e.after(warnings)),
        };
        variants.push(Variant { label: label.join(" "), folder: folder_name(&label), settings, scenario, warnings });
    }
    Ok(variants)
}

/// The last part of each key, or all of it where two would be the same.
fn short_names(axes: &[Axis<'_>]) -> Vec<String> {
    let last = |a: &Axis<'_>| a.parts.last().map(|p| p.0.clone()).unwrap_or_default();
    axes.iter()
        .map(|a| if axes.iter().filter(|o| last(o) == last(a)).count() > 1 { a.key() } else { last(a) })
        .collect()
}
