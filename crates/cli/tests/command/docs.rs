//! The reference pages are made from the code: keys and defaults of scenarios, tables and columns of records.
//!
//! A page holds blocks between `<!-- made from code: WHAT -->` and `<!-- end -->`. Their text must equal the text that
//! this file makes. With `SLUICENET_DOCS=write` (that is `make docs`) the blocks are written instead.

use serde_json::Value;
use sluicenet_experiment::workload::KINDS;
use sluicenet_proto::loss::DropReason;
use sluicenet_records::Kind;
use sluicenet_records::tables::TABLES;
use sluicenet_scenario::{Scenario, json_schema};
use sluicenet_testkit::repository;
use sluicenet_vswitchd::metrics::{METRICS, Metric};

const BEGIN: &str = "<!-- made from code: ";
const END: &str = "<!-- end -->";
/// The sets of defaults, in the order of the columns.
const SETS: [&str; 3] = ["plain", "crisan2014-ch2", "crisan2014-ch3"];

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Checks, or writes, the blocks of a page; returns their names.
fn check(page: &str, make: impl Fn(&str) -> String) -> Vec<String> {
    let before = read(page);
    let mut after = String::new();
    let mut rest = before.as_str();
    let mut seen = Vec::new();
    while let Some((head, tail)) = rest.split_once(BEGIN) {
        let (what, tail) = tail.split_once(" -->").expect("the end of a marker");
        let (_, tail) = tail.split_once(END).unwrap_or_else(|| panic!("{page}: the block {what} has no end"));
        after += &format!("{head}{BEGIN}{what} -->\n{}{END}", make(what));
        seen.push(what.to_string());
        rest = tail;
    }
    after += rest;
    if std::env::var("SLUICENET_DOCS").is_ok_and(|v| v == "write") {
        std::fs::write(repository(page), after).unwrap();
    } else if before != after {
        let differs = before.lines().zip(after.lines()).find(|(a, b)| a != b);
        panic!("{page} is not what the code says; `make docs` writes it anew. The first difference: {differs:#?}");
    }
    seen
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|h| h.to_string()).collect();
    let mut out = line(&head) + &format!("|{}\n", "---|".repeat(head.len()));
    for row in rows {
        out += &line(&row);
    }
    out
}

/// Text that stands in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

// ---- scenarios

/// A scenario of nothing but defaults.
fn defaults(set: &str) -> Value {
    let text = format!(
        "[scenario]\nparameters = \"{set}\"\n[topology]\nkind = \"single-switch\"\nhosts = 2\n[[workload]]\nkind = \"flow\"\n\
         src = 0\ndst = 1\nbytes = \"1 KB\"\n"
    );
    let json = |text: &str| -> Value {
        let loaded = Scenario::parse(text, set).unwrap();
        serde_json::from_str(&loaded.scenario.canonical_json().unwrap()).unwrap()
    };
    let mut all = json(&text);
    // Sections that are absent where they are off.
    for section in ["red", "qcn"] {
        let mut on = json(&format!("{text}[{section}]\nenabled = true\n"));
        on[section]["enabled"] = false.into();
        all[section] = on[section].take();
    }
    // Sections that are absent without queue pairs.
    let roce = text.replace("bytes =", "transport = \"roce\"\nbytes =");
    let mut on = json(&format!("{roce}[server]\nvirtual_network = false\n[dcqcn]\nenabled = true\n"));
    on["dcqcn"]["enabled"] = false.into();
    for section in ["roce", "dcqcn"] {
        all[section] = on[section].take();
    }
    // Its controller is the first external host, and there is none.
    let mut on = json(&format!("{text}[xco]\nenabled = true\ncontroller = 1\n"));
    on["xco"]["enabled"] = false.into();
    on["xco"]["controller"] = Value::Null;
    all["xco"] = on["xco"].take();
    all
}

/// Kind of a key's value, from its schema.
fn kind(schema: &Value) -> String {
    if let Some(any) = schema["anyOf"].as_array() {
        let text = |s: &Value| s["pattern"].as_str().unwrap_or("").to_string();
        let is_distribution = any.iter().any(|s| s["properties"].get("kind").is_some());
        if is_distribution {
            let rate = any.iter().any(|s| s.to_string().contains("KiB"));
            return format!("distribution of {}", if rate { "sizes" } else { "durations" });
        }
        if any.iter().any(|s| s["const"] == 0) {
            let pattern: String = any.iter().map(text).collect();
            let kinds =
                [("Gb/s", "rate"), ("KiB", "size"), ("ms", "duration"), ("km", "length"), ("packet", "packets")];
            return kinds.iter().find(|k| pattern.contains(k.0)).map_or("quantity", |k| k.1).into();
        }
        if any.iter().any(|s| s["uniqueItems"] == true) {
            return "count, list, or ranges of hosts".into();
        }
        return any.iter().map(kind).collect::<Vec<_>>().join(", or ");
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
    }
    if schema["const"].is_string() {
        return format!("`{}`", schema["const"]);
    }
    if let Some(examples) = schema["examples"].as_array() {
        return examples.iter().map(|e| format!("`{e}`")).collect::<Vec<_>>().join(", ");
    }
    match schema["type"].as_str() {
        Some("string") => "text".into(),
        Some("boolean") => "`true`, `false`".into(),
        Some("integer") => format!("{} to {}", bound(&schema["minimum"]), bound(&schema["maximum"])),
        Some("number") => format!("number, {} to {}", schema["minimum"], schema["maximum"]),
        Some("array") if schema["items"]["pattern"].is_string() => "list of ports".into(),
        Some("array") if schema["items"]["type"] == "string" => "list of texts".into(),
        Some("array") if schema["items"]["oneOf"].is_array() => "tables".into(),
        Some("array") if schema["items"]["type"] == "object" => "tables".into(),
        Some("array") if schema["items"]["type"] == "array" => "lists of numbers".into(),
        Some("array") => "list of whole numbers".into(),
        _ => "table".into(),
    }
}

/// A bound, as a power of two where it is one.
fn bound(n: &Value) -> String {
    match n.as_u64() {
        Some(u64::MAX) => "2^64 - 1".into(),
        Some(n) if n >= 1 << 16 && n.is_power_of_two() => format!("2^{}", n.ilog2()),
        Some(n) if n >= 1 << 16 && (n + 1).is_power_of_two() => format!("2^{} - 1", (n + 1).ilog2()),
        Some(n) => n.to_string(),
        None => n.to_string(),
    }
}

/// A quantity in base units (as `9500000 ps`), in the largest unit that leaves it short.
fn quantity(text: &str) -> Option<String> {
    const UNITS: [(&str, &str, f64); 9] = [
        ("ps", "s", 1e12),
        ("ps", "ms", 1e9),
        ("ps", "us", 1e6),
        ("ps", "ns", 1e3),
        ("B", "MB", 1e6),
        ("B", "KB", 1e3),
        ("b/s", "Gb/s", 1e9),
        ("b/s", "Mb/s", 1e6),
        ("b/s", "Kb/s", 1e3),
    ];
    let (number, base) = text.split_once(' ').filter(|(_, unit)| ["ps", "B", "b/s"].contains(unit))?;
    let number: f64 = number.parse().ok()?;
    if number == 0.0 {
        return Some("0".into());
    }
    // A tenth is still short, and usual for durations.
    let parts = if base == "ps" { 10.0 } else { 1.0 };
    let fits = |u: &&(&str, &str, f64)| u.0 == base && number >= u.2 && (number * parts) % u.2 == 0.0;
    let (unit, size) = UNITS.iter().find(fits).map_or((base, 1.0), |u| (u.1, u.2));
    Some(format!("\"{} {unit}\"", number / size))
}

/// The default of a key, as it would stand in a file.
fn default(section: &str, key: &str, model: &Value) -> String {
    let found = match (section, key) {
        ("topology", "link_rate") => &model["topology"]["link"]["rate"],
        ("topology", "link_delay") => &model["topology"]["link"]["delay"],
        ("topology", "bit_error_rate") => &model["topology"]["link"]["bit_error_rate"],
        _ => &model[section][key],
    };
    match (section, key) {
        ("pfc", "lossless") => {
            let mask = found.as_u64().unwrap();
            return format!(
                "`[{}]`",
                (0..8).filter(|p| mask >> p & 1 == 1).map(|p| p.to_string()).collect::<Vec<_>>().join(", ")
            );
        }
        ("pfc", "headroom") if found.is_null() => return "`\"auto\"`".into(),
        ("pfc", "peer_response") if found.is_null() => return "`\"by-rate\"`".into(),
        ("adapter", "resequencing") => return format!("`{}`", !found.is_null()),
        ("tcp", "initial_window") if found.is_object() => return format!("`{}`", found["segments"]),
        _ => {}
    }
    let text = match found {
        Value::Null => return "–".into(),
        Value::String(s) => quantity(s).unwrap_or_else(|| found.to_string()),
        other => other.to_string(),
    };
    format!("`{text}`")
}

/// The keys of a section with their defaults in each set.
fn section(schema: &Value, name: &str, models: &[Value]) -> String {
    let properties =
        schema["properties"][name]["properties"].as_object().unwrap_or_else(|| panic!("no section {name}"));
    let rows = properties.iter().map(|(key, s)| {
        let mut row = vec![format!("`{key}`"), cell(&kind(s))];
        let found: Vec<String> = models.iter().map(|m| default(name, key, m)).collect();
        row.extend(found);
        row.push(cell(s["description"].as_str().unwrap_or("")));
        row
    });
    table(&["key", "value", SETS[0], SETS[1], SETS[2], "meaning"], rows)
}

/// The keys of a table whose defaults, if any, stand in their descriptions.
fn keys(schema: &Value) -> String {
    let rows = schema["properties"]
        .as_object()
        .unwrap()
        .iter()
        .filter(|(key, s)| *key != "kind" || !s["const"].is_string())
        .map(|(key, s)| vec![format!("`{key}`"), cell(&kind(s)), cell(s["description"].as_str().unwrap_or(""))]);
    table(&["key", "value", "meaning"], rows)
}

#[test]
fn scenarios_have_the_keys_and_defaults_of_the_page() {
    let schema = json_schema();
    let models: Vec<Value> = SETS.iter().map(|s| defaults(s)).collect();
    let workloads = schema["properties"]["workload"]["items"]["oneOf"].as_array().unwrap();
    let workload = |name: &str| workloads.iter().find(|w| w["properties"]["kind"]["const"] == name);
    let seen = check("docs/scenario.md", |what| match what.split_once(' ') {
        Some(("section", name)) => section(&schema, name, &models),
        Some(("keys", name)) => keys(&schema["properties"][name]),
        Some(("workload", name)) => {
            let found = workload(name).unwrap_or_else(|| panic!("no workload {name}"));
            format!("{}\n\n{}", found["description"].as_str().unwrap_or(""), keys(found))
        }
        Some(("app", name)) => {
            let apps = schema["properties"]["bump"]["items"]["properties"]["app"]["items"]["oneOf"].as_array().unwrap();
            let found = apps.iter().find(|app| app["properties"]["kind"]["const"] == name).unwrap();
            format!("{}\n\n{}", found["description"].as_str().unwrap_or(""), keys(found))
        }
        Some(("table", path)) => {
            let (name, key) = path.split_once('.').unwrap_or_else(|| panic!("no table {path}"));
            keys(&schema["properties"][name]["properties"][key])
        }
        _ if what == "only" => {
            let app = &schema["properties"]["bump"]["items"]["properties"]["app"]["items"]["oneOf"][0];
            keys(&app["properties"]["only"])
        }
        Some(("tables", path)) => {
            let Some((name, key)) = path.split_once('.') else {
                return keys(&schema["properties"][path]["items"]);
            };
            let owner = workload(name).unwrap_or(&schema["properties"][name]);
            keys(&owner["properties"][key]["items"])
        }
        _ if what == "distributions" => {
            let any = workload("background").unwrap()["properties"]["inter_arrival"]["anyOf"].as_array().unwrap();
            let rows = any.iter().filter(|d| d["properties"].get("kind").is_some()).map(|d| {
                let keys = d["properties"].as_object().unwrap().iter().filter(|k| k.0 != "kind");
                let keys = keys.map(|(k, s)| match s["description"].as_str() {
                    Some(doc) => format!("`{k}`: {doc}"),
                    None => format!("`{k}`"),
                });
                let name = d["properties"]["kind"]["const"].as_str().unwrap_or("");
                let what = d["description"].as_str().unwrap_or("");
                vec![format!("`{name}`"), what.into(), cell(&keys.collect::<Vec<_>>().join("; "))]
            });
            table(&["kind", "meaning", "keys"], rows)
        }
        _ => panic!("docs/scenario.md: nothing makes the block {what}"),
    });
    let is_told = |what: String| assert!(seen.contains(&what), "docs/scenario.md says nothing of {what}");
    for name in
        schema["properties"].as_object().unwrap().keys().filter(|n| !["workload", "sweep"].contains(&n.as_str()))
    {
        is_told(match name.as_str() {
            "scenario" => format!("keys {name}"),
            "table" | "failure" | "slowdown" | "wred" | "bump" => format!("tables {name}"),
            _ => format!("section {name}"),
        });
    }
    workloads.iter().for_each(|w| is_told(format!("workload {}", w["properties"]["kind"]["const"].as_str().unwrap())));
}

// ---- records

/// The doc comment right above the line that starts with `item`, after `from`.
fn doc_of<'a>(source: &'a str, from: &str, item: &str) -> &'a str {
    let start = source.find(from).unwrap_or_else(|| panic!("no `{from}`"));
    let mut doc = "";
    for line in source[start..].lines() {
        let line = line.trim();
        if line.starts_with(item) {
            return doc;
        }
        if let Some(text) = line.strip_prefix("/// ") {
            doc = text;
        }
    }
    panic!("no `{item}` after `{from}`");
}

#[test]
fn records_have_the_tables_and_columns_of_the_page() {
    let source = read("crates/records/src/tables.rs");
    let reasons = read("crates/proto/src/loss.rs");
    let seen = check("docs/records.md", |what| match what.split_once(' ') {
        Some(("table", name)) => {
            let spec = TABLES.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("no table {name}"));
            let head = format!("    {name}[{}] ", spec.index);
            let rows = spec.columns.iter().map(|c| {
                let kind = match c.kind {
                    Kind::U8 => "uint8",
                    Kind::U16 => "uint16",
                    Kind::U32 => "uint32",
                    Kind::U64 => "uint64",
                    Kind::F64 => "double",
                    Kind::Bool => "bool",
                    Kind::Text => "string",
                };
                let null = if c.nullable { ", may be null" } else { "" };
                vec![
                    format!("`{}`", c.name),
                    format!("{kind}{null}"),
                    cell(doc_of(&source, &head, &format!("{}:", c.name))),
                ]
            });
            let before = &source[..source.find(&head).unwrap()];
            let doc = before.lines().next_back().unwrap_or("").trim().trim_start_matches("/// ");
            format!("{doc}\n\n{}", table(&["column", "type", "meaning"], rows))
        }
        _ if what == "drop reasons" => {
            let rows = DropReason::ALL.iter().map(|r| {
                let doc = doc_of(&reasons, "pub enum DropReason", &format!("{r:?},"));
                let congestion = if r.is_congestion() { "yes" } else { "" };
                vec![format!("`{}`", r.name()), congestion.into(), cell(doc)]
            });
            table(&["reason", "buffer full", "meaning"], rows)
        }
        _ if what == "kinds" => KINDS.iter().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ") + "\n",
        _ => panic!("docs/records.md: nothing makes the block {what}"),
    });
    for t in TABLES {
        assert!(seen.contains(&format!("table {}", t.name)), "docs/records.md says nothing of {}", t.name);
    }
}

// ---- the switch

#[test]
fn the_switch_has_the_keys_and_metrics_of_the_page() {
    let schema = sluicenet_vswitchd::config::json_schema();
    let section = |name: &str| match &schema["properties"][name] {
        list if list["type"] == "array" => list["items"].clone(),
        table => table.clone(),
    };
    let seen = check("docs/switch.md", |what| match what.strip_prefix("switch section ") {
        Some(name) => {
            let section = section(name);
            let brackets = if schema["properties"][name]["type"] == "array" { "`[[" } else { "`[" };
            let close = brackets.replace('[', "]").replace('`', "") + "`";
            let head = format!("{brackets}{name}{close}: {}\n\n", section["description"].as_str().unwrap_or(""));
            head + &keys(&section)
        }
        None if what.starts_with("switch tables ") => {
            let (name, key) = what["switch tables ".len()..].split_once('.').expect("a table of a section");
            keys(&section(name)["properties"][key]["items"])
        }
        None if what == "switch metrics" => {
            let row = |m: &Metric| vec![format!("`{}`", m.name), m.kind.into(), m.labels.into(), cell(m.help)];
            table(&["metric", "type", "labels", "meaning"], METRICS.iter().map(row))
        }
        None => panic!("docs/switch.md: nothing makes the block {what}"),
    });
    for name in schema["properties"].as_object().unwrap().keys() {
        assert!(seen.contains(&format!("switch section {name}")), "docs/switch.md says nothing of {name}");
    }
    assert!(seen.contains(&"switch metrics".to_owned()));
}
