//! Every key with limits refuses a value beyond them by naming the key, its section and the limits.

use super::hostile::{Given, all, bases, given};
use sluicenet_scenario::setting::Kind;
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::{Quantity, ROOT, Scenario};
use sluicenet_testkit::repository;
use std::collections::{BTreeMap, BTreeSet};

/// Values just beyond the limits, and the least value as an error names it; none of a kind without limits.
fn beyond(kind: &Kind) -> Option<(Vec<String>, String)> {
    fn quantity<T: Quantity>(min: T, max: T) -> (Vec<String>, String) {
        let unit = T::UNITS[0].0;
        let below = min.base().checked_sub(1).map(|n| format!("\"{n} {unit}\""));
        let above = format!("\"{} {unit}\"", max.base() + 1);
        (below.into_iter().chain([above]).collect(), min.written())
    }
    let whole = |min: u64, max: u64| {
        let (below, above) = (i128::from(min) - 1, i128::from(max) + 1);
        (vec![below.to_string(), above.to_string()], min.to_string())
    };
    Some(match *kind {
        Kind::Count(min, max) => whole(min, max),
        Kind::Counts(min, max) => {
            let (values, min) = whole(min, max);
            (values.into_iter().map(|value| format!("[{value}]")).collect(), min)
        }
        Kind::Number(min, max) => {
            (vec![format!("{:?}", min - 1.0), format!("{:?}", max * 2.0), "nan".into()], min.to_string())
        }
        Kind::Rate(min, max) => quantity(min, max),
        Kind::Size(min, max) => quantity(min, max),
        Kind::Duration(min, max) => quantity(min, max),
        Kind::Length(min, max) => quantity(min, max),
        Kind::Packets(min, max) => quantity(min, max),
        Kind::OrWord(ref kind, _) | Kind::Either(ref kind, _) => beyond(kind)?,
        _ => return None,
    })
}

#[test]
fn every_range_is_named_with_its_place() {
    let mut seen = BTreeSet::new();
    for (text, _) in bases() {
        let mut keys = Vec::new();
        given(&ROOT, &Document::parse("ranges.toml", &text).unwrap().root, "", &mut keys);
        for Given { path, key, kind } in keys {
            let Some((values, min)) = beyond(&kind) else { continue };
            seen.insert(key);
            let (section, name) = key;
            for value in values {
                let overrides = [format!("{path}={value}")];
                let data = repository("crates/scenario/tests/data");
                let e = Scenario::parse_in(&text, "ranges.toml", Some(&data), &overrides).unwrap_err();
                let d = e.diagnostic();
                let place = if section.is_empty() { "at the top".into() } else { format!("in [{section}]") };
                assert_eq!((d.file.as_str(), d.line), ("--set", 1), "{path}={value}: {e}");
                assert!(d.message.starts_with(&format!("`{name}` of ")), "{path}={value}: {e}");
                assert!(d.message.ends_with(&format!(" is out of range {place}")), "{path}={value}: {e}");
                assert!(d.expected.starts_with(&format!("from {min} to ")), "{path}={value}: {e}");
            }
        }
    }
    let mut every = BTreeMap::new();
    all(&ROOT, &mut every);
    let untried: Vec<_> = every.iter().filter(|(key, kind)| beyond(kind).is_some() && !seen.contains(*key)).collect();
    assert!(untried.is_empty() && seen.len() > 130, "no text gives {untried:?}; {}", seen.len());
}
