//! Senders and receivers of a permutation: `pattern` and its numbers.

use super::error::{Error, Result};
use super::files::Files;
use super::model::*;
use super::setting::{Section, shown};
use crate::formats;

/// Patterns, each with the meanings of its numbers in parentheses.
pub(super) const PATTERNS: [(&str, &[&str]); 8] = [
    ("stride", &["the stride"]),
    ("random", &[]),
    ("non-bijective", &[]),
    ("staggered", &["the chance of the same edge switch", "that of the same pod"]),
    ("inter-pod-incoming", &[]),
    ("same-id-outgoing", &[]),
    ("hotspot", &["the hosts that receive"]),
    ("file", &[]),
];

/// How those with numbers are written.
pub(super) const EXAMPLES: [&str; 3] = ["stride(8)", "staggered(0.5, 0.3)", "hotspot(2)"];

/// A pattern as it is written, `name` or `name(1, 2)`: its name and its numbers.
fn parts<'a>(s: &Section<'_>, text: &'a str) -> Result<(&'static str, Vec<&'a str>)> {
    let (name, numbers) = match text.split_once('(') {
        None => (text, Vec::new()),
        Some((name, rest)) => match rest.strip_suffix(')') {
            Some(list) => (name, list.split(',').map(str::trim).collect()),
            None => return Err(s.error("pattern", "a parenthesis is not closed")),
        },
    };
    let Some(&(known, expected)) = PATTERNS.iter().find(|p| p.0 == name) else {
        let error = s.error("pattern", format!("unknown pattern `{}`", shown(name)));
        return Err(error.none_of(name, &PATTERNS.map(|p| p.0)));
    };
    if !numbers.is_empty() && numbers.len() != expected.len() {
        let error = s.error("pattern", format!("`{known}` takes {} numbers, not {}", expected.len(), numbers.len()));
        return Err(if expected.is_empty() {
            error
        } else {
            error.expected(format!("{known}({})", expected.join(", ")))
        });
    }
    Ok((known, numbers))
}

fn whole(s: &Section<'_>, text: &str, max: u32) -> Result<u32> {
    match text.parse::<u32>() {
        Ok(n) if (1..=max).contains(&n) => Ok(n),
        _ => Err(number(s, text, format!("a whole number from 1 to {max}"))),
    }
}

fn chance(s: &Section<'_>, text: &str) -> Result<f64> {
    match text.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(number(s, text, "a number from 0 to 1".into())),
    }
}

fn number(s: &Section<'_>, text: &str, expected: String) -> Error {
    s.error("pattern", format!("`{}` in a pattern", shown(text))).expected(expected)
}

/// The pattern; `stride` and `file` are the keys that two of them take.
pub(super) fn read(
    s: &Section<'_>,
    world: &World<'_>,
    files: &mut Files,
    (stride, file): (Option<u32>, Option<String>),
) -> Result<Pattern> {
    let hosts = world.counts.hosts;
    let text: String = s.value("pattern")?.ok_or_else(|| s.missing("pattern"))?;
    let (name, numbers) = parts(s, &text)?;
    for key in ["stride", "file"] {
        if s.has(key) && (name != key || !numbers.is_empty()) {
            return Err(s.error(key, format!("`{key}` means nothing to this pattern")));
        }
    }
    if hosts < 2 && name != "file" {
        return Err(s.error("pattern", "a permutation needs two hosts"));
    }
    Ok(match name {
        "stride" => {
            let stride = match numbers.first() {
                Some(text) => whole(s, text, super::HOSTS_MAX - 1)?,
                None => stride.unwrap_or((hosts / 2).max(1)),
            };
            if stride >= hosts {
                let key: &[&str] = if numbers.is_empty() { &["stride"] } else { &["pattern"] };
                let would_be = match stride % hosts {
                    0 => "send to themselves".to_owned(),
                    same => format!("would send as with one of {same}"),
                };
                let error = s.error_at(key, format!("with a stride of {stride}, {hosts} hosts {would_be}"));
                return Err(error.expected(format!("a stride from 1 to {}", hosts - 1)));
            }
            Pattern::Stride(stride)
        }
        "random" => Pattern::Random,
        "non-bijective" => Pattern::NonBijective,
        "hotspot" => Pattern::Hotspot(numbers.first().map_or(Ok(1), |n| whole(s, n, hosts - 1))?),
        "staggered" => {
            let [edge, pod] = numbers[..] else {
                return Err(s.error("pattern", "`staggered` needs two chances").expected("as staggered(0.5, 0.3)"));
            };
            let (edge, pod) = (chance(s, edge)?, chance(s, pod)?);
            if edge + pod > 1.0 + 1e-9 {
                return Err(s.error("pattern", format!("{edge} and {pod} are more than 1 together")));
            }
            if world.topology.blocks().is_none() {
                let error = s.error("pattern", "this pattern needs pods, and this network has none");
                return Err(error.hint("a fat-tree has pods, and any tree of two levels"));
            }
            Pattern::Staggered { edge, pod }
        }
        "inter-pod-incoming" | "same-id-outgoing" => {
            if world.topology.fat_tree_k().is_none() {
                let error = s.error("pattern", "this pattern is about the two-level tables of a fat-tree");
                return Err(error.hint("topology.kind = \"fat-tree\", of 4 ports or more"));
            }
            if name == "same-id-outgoing" { Pattern::SameIdOutgoing } else { Pattern::InterPodIncoming }
        }
        _ => {
            let path = file.ok_or_else(|| s.missing("file"))?;
            let bytes = s.input("file", files.bytes(&path))?;
            let (pairs, warnings) = s.input("file", formats::parse_pairs(&path, &bytes, world.counts.endpoints()))?;
            files.warnings.extend(warnings);
            Pattern::File(InputFile { path, content: std::sync::Arc::new(pairs) })
        }
    })
}
