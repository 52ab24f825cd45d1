//! Every key with limits refuses a value beyond them by naming the key, its section and the limits.

use super::*;
use crate::setting::{Kind, Spec};
use crate::tree::{Document, Table, Value};
use std::collections::BTreeSet;

type Name = (&'static str, &'static str);

/// The dotted path of every key with limits that a table gives, its section and name, and its kind.
fn given(spec: &'static Spec, table: &Table, path: &str, into: &mut Vec<(String, Name, Kind)>) {
    for entry in &table.entries {
        let key = spec.key(&entry.key).unwrap();
        let here = format!("{path}{}", entry.key);
        let of_kind = |specs: &[&'static Spec], table: &Table| match table.get("kind").map(|e| &e.node.value) {
            Some(Value::Text(kind)) => *specs.iter().find(|s| s.name == kind).unwrap(),
            _ => specs[0],
        };
        match ((key.kind)(), &entry.node.value) {
            (Kind::Table(spec), Value::Table(table)) => given(spec, table, &format!("{here}."), into),
            (Kind::Distribution(_, specs), Value::Table(table)) => {
                given(of_kind(specs, table), table, &format!("{here}."), into);
            }
            (Kind::Tables(specs), Value::List(list)) => {
                for (i, node) in list.iter().enumerate() {
                    let Value::Table(table) = &node.value else { panic!("{here}") };
                    given(of_kind(specs, table), table, &format!("{here}.{i}."), into);
                }
            }
            (kind, _) if beyond(&kind).is_some() => into.push((here, (spec.name, key.name), kind)),
            _ => {}
        }
    }
}

/// Every key with limits.
fn all(spec: &'static Spec, into: &mut BTreeSet<Name>) {
    for key in spec.keys {
        match (key.kind)() {
            Kind::Table(spec) => all(spec, into),
            Kind::Tables(specs) | Kind::Distribution(_, specs) => specs.iter().for_each(|spec| all(spec, into)),
            kind if beyond(&kind).is_some() => drop(into.insert((spec.name, key.name))),
            _ => {}
        }
    }
}

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
        Kind::OrWord(ref kind, _) => beyond(kind)?,
        _ => return None,
    })
}

#[test]
fn every_range_is_named_with_its_place() {
    let mut seen = BTreeSet::new();
    let mut texts: Vec<String> = ["full", "files", "control", "flow_level", "hotspot", "tenants", "zfabric"]
        .iter()
        .map(|name| std::fs::read_to_string(data().join(format!("{name}.toml"))).unwrap())
        .collect();
    let tree = "kind = \"k-ary-n-tree\"\nk = 4\nn = 2\nslimmed = [2]\n";
    texts.push(MINIMAL.replace("kind = \"single-switch\"\nhosts = 4\n", tree));
    texts.push(format!("{MINIMAL}src_vm = 0\ndst_vm = 0\n{MORE}"));
    for text in texts {
        let mut keys = Vec::new();
        given(&ROOT, &Document::parse("t.toml", &text).unwrap().root, "", &mut keys);
        for (path, (section, name), kind) in keys {
            seen.insert((section, name));
            let (values, min) = beyond(&kind).unwrap();
            for value in values {
                let overrides = [format!("{path}={value}")];
                let e = Scenario::parse_in(&text, "t.toml", Some(&data()), &overrides).unwrap_err();
                let d = e.diagnostic();
                let place = if section.is_empty() { "at the top".into() } else { format!("in [{section}]") };
                assert_eq!((d.file.as_str(), d.line), ("--set", 1), "{path}={value}: {e}");
                assert!(d.message.starts_with(&format!("`{name}` of ")), "{path}={value}: {e}");
                assert!(d.message.ends_with(&format!(" is out of range {place}")), "{path}={value}: {e}");
                assert!(d.expected.starts_with(&format!("from {min} to ")), "{path}={value}: {e}");
            }
        }
    }
    let mut every = BTreeSet::new();
    all(&ROOT, &mut every);
    let untried: Vec<_> = every.difference(&seen).collect();
    assert!(untried.is_empty() && seen.len() > 130, "no text gives {untried:?}; {}", seen.len());
}

/// Keys that no other text gives.
const MORE: &str = r#"
[[workload]]
kind = "poisson"
cdf = "small_cdf.txt"
load = 0.5
until = "50 us"
priority = 1

[[workload]]
kind = "flow-file"
format = "hpcc"
file = "small_flows.txt"
priority = 1

[[workload]]
kind = "permutation"
pattern = "stride"
rate = "1 Gb/s"
transport = "udp"
"#;
