//! Every key of the schema with values that are wrong, or right and extreme: refused with a place, or run; never a panic,
//! never long, never with much memory.

use sluicenet_experiment::run::{self, Job, Options, RunError};
use sluicenet_records::Existing;
use sluicenet_scenario::setting::{Kind, Spec};
use sluicenet_scenario::tree::{Document, Table, Value};
use sluicenet_scenario::{ROOT, Scenario};
use sluicenet_testkit::repository;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Scenarios that give all keys between them, with those in [`bases`].
const FULL: &str = include_str!("../../../scenario/tests/data/full.toml");
const BUMPS: &str = include_str!("../../../scenario/tests/data/bumps.toml");
const CLASSES: &str = include_str!("../../../scenario/tests/data/classes.toml");
const CONGESTION: &str = include_str!("../../../scenario/tests/data/congestion.toml");
const CONTROL: &str = include_str!("../../../scenario/tests/data/control.toml");
const FLOW_LEVEL: &str = include_str!("../../../scenario/tests/data/flow_level.toml");
const HOTSPOT: &str = include_str!("../../../scenario/tests/data/hotspot.toml");
const TENANTS: &str = include_str!("../../../scenario/tests/data/tenants.toml");
const XCO: &str = include_str!("../../../scenario/tests/data/xco.toml");
const ZFABRIC: &str = include_str!("../../../scenario/tests/data/zfabric.toml");

/// Time for a value with its key: none takes so long, by orders of magnitude.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory that all of these values together may add to this process.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Values as they would stand in a file.
const VALUES: &[&str] = &[
    "nan",
    "inf",
    "-inf",
    "-1",
    "-0.0",
    "0",
    "1",
    "0.5",
    "5",
    "1e308",
    "1e-308",
    "4294967295",
    "4294967296",
    "1099511627776",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "true",
    "false",
    "1979-05-27",
    "\"\"",
    "\"x\"",
    "\"host 0\"",
    "\"-1 ms\"",
    "\"NaN B\"",
    "\"5\"",
    "\"0 ms\"",
    "\"1 ps\"",
    "\"1 s\"",
    "\"2400 h\"",
    "\"2401 h\"",
    "\"0 B\"",
    "\"1 B\"",
    "\"65536 B\"",
    "\"1 GiB\"",
    "\"4 GiB\"",
    "\"4294967297 B\"",
    "\"1000 TB\"",
    "\"1200 TB\"",
    "\"0 b/s\"",
    "\"1 b/s\"",
    "\"7 b/s\"",
    "\"100 Tb/s\"",
    "\"101 Tb/s\"",
    "\"\\u0000\"",
    "\"no-such-file\"",
    "\".\"",
    "[]",
    "[0]",
    "[1]",
    "[-1]",
    "[nan]",
    "[4, 4]",
    "[[]]",
    "[1048576, 1048576, 1048576]",
    "[1, 4294967296]",
    "[\"switch 0 port 65536\"]",
    "[\"host 4294967296\"]",
    "{}",
    "{ kind = 1 }",
    "[{}]",
    "{ kind = \"exponential\", mean = \"1 ps\" }",
    "{ kind = \"exponential\", mean = \"2400 h\" }",
    "{ kind = \"exponential\", mean = \"1000 TB\" }",
    "{ kind = \"lognormal\", median = \"2400 h\", sigma = 10 }",
    "{ kind = \"lognormal\", median = \"1 B\", sigma = 10 }",
    "{ kind = \"empirical\", points = [[\"1 B\", 1]] }",
];

/// Scenarios that give every key between them, each with overrides that make it short.
pub(super) fn bases() -> Vec<(String, Vec<String>)> {
    let own = |o: &[&str]| o.iter().map(|o| o.to_string()).collect::<Vec<_>>();
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 MB\"\n";
    let shape = |text: &str| (format!("[scenario]\nduration = \"100 us\"\n[topology]\n{text}{flow}"), Vec::new());
    let full = own(&[
        "scenario.warmup=1 us",
        "scenario.duration=100 us",
        "workload.0.inter_arrival.mean=20 us",
        "workload.3.start=0",
        "workload.4.start=0",
        "workload.4.stagger=1 ns",
    ]);
    let files = std::fs::read_to_string(repository("crates/scenario/tests/data").join("files.toml")).unwrap();
    let more = "transport = \"udp\"\npriority = 1\n";
    let files = files
        .replacen("file = \"small_flows.txt\"\n", &format!("file = \"small_flows.txt\"\n{more}"), 1)
        .replacen("load = 0.5\n", &format!("load = 0.5\nuntil = \"50 us\"\n{more}"), 1);
    vec![
        (by_dscp(FULL), full.clone()),
        (by_dscp(&files), own(&["scenario.duration=100 us"])),
        (by_dscp(HOTSPOT), Vec::new()),
        (by_dscp(FLOW_LEVEL), Vec::new()),
        (CLASSES.into(), Vec::new()),
        (FULL.into(), full),
        (files, own(&["scenario.duration=100 us"])),
        shape("kind = \"k-ary-n-tree\"\nk = 4\nn = 2\nslimmed = [2]\n"),
        shape("kind = \"fat-tree\"\nk = 4\n"),
        shape("kind = \"single-switch\"\nhosts = 4\n"),
        shape("kind = \"htsim\"\nfile = \"small.topo\"\n"),
        shape(
            "kind = \"single-switch\"\nhosts = 4\n[pfc]\nenabled = true\n[pfc.watchdog]\nenabled = true\n\
             detection_time = \"2 us\"\nrestoration_time = \"5 us\"\naction = \"drop\"\n",
        ),
        (BUMPS.into(), Vec::new()),
        // No program, which the run refuses.
        shape(
            "kind = \"single-switch\"\nhosts = 4\n[[bump]]\nlinks = [\"host 0\"]\n[[bump.app]]\nkind = \"program\"\n\
             file = \"small_flows.txt\"\narguments = \"1 2\"\n",
        ),
        (XCO.into(), Vec::new()),
        (HOTSPOT.into(), Vec::new()),
        (ZFABRIC.into(), Vec::new()),
        (TENANTS.into(), Vec::new()),
        (FLOW_LEVEL.into(), Vec::new()),
        (CONTROL.into(), Vec::new()),
        (CONGESTION.into(), Vec::new()),
        (
            CONGESTION.replace("\"bytes\"", "\"frames\"").replace("sample_bytes = \"15 KB\"", "sample_frames = 10"),
            Vec::new(),
        ),
    ]
}

/// The text with DSCPs in place of the priorities of workloads.
fn by_dscp(text: &str) -> String {
    let (head, workloads) = text.split_once("[[workload]]").unwrap();
    let map = format!("dscp_to_tc = {:?}\n", [3; 64]);
    let head = match head.contains("[switch]\n") {
        true => head.replacen("[switch]\n", &format!("[switch]\n{map}"), 1),
        false => format!("{head}[switch]\n{map}"),
    };
    let line = |line: &str| if line.starts_with("priority = ") { "dscp = 26\n".into() } else { format!("{line}\n") };
    format!("{head}[[workload]]{}", workloads.lines().map(line).collect::<String>())
}

/// The names of a table and of a key in it.
pub(super) type Name = (&'static str, &'static str);

/// A key that a base gives.
pub(super) struct Given {
    /// Its dotted path.
    pub path: String,
    pub key: Name,
    pub kind: Kind,
}

pub(super) fn given(spec: &'static Spec, table: &Table, path: &str, into: &mut Vec<Given>) {
    for entry in &table.entries {
        let key = spec.key(&entry.key).unwrap_or_else(|| panic!("{path}{}", entry.key));
        let here = format!("{path}{}", entry.key);
        into.push(Given { path: here.clone(), key: (spec.name, key.name), kind: (key.kind)() });
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
            _ => {}
        }
    }
}

/// Every key there is.
pub(super) fn all(spec: &'static Spec, into: &mut BTreeMap<Name, Kind>) {
    for key in spec.keys {
        let kind = (key.kind)();
        // Sweeps have tests of their own.
        if matches!(kind, Kind::Axes) || into.insert((spec.name, key.name), kind.clone()).is_some() {
            continue;
        }
        match kind {
            Kind::Table(spec) => all(spec, into),
            Kind::Tables(specs) | Kind::Distribution(_, specs) => specs.iter().for_each(|s| all(s, into)),
            _ => {}
        }
    }
}

/// The fault in the treatment of a scenario with these overrides, if there is one.
fn wrong(text: &str, overrides: &[String]) -> Option<String> {
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let loaded = match Scenario::parse_in(
            text,
            "hostile.toml",
            Some(&repository("crates/scenario/tests/data")),
            overrides,
        ) {
            Ok(loaded) => loaded,
            Err(e) => return Err(e),
        };
        // Each run is interrupted at the end of its second epoch: two epochs are enough to show a fault.
        let interrupt = AtomicBool::new(false);
        let mut epochs = 0;
        let progress = &mut |_: &run::Progress| {
            epochs += 1;
            interrupt.store(epochs >= 2, Ordering::Relaxed);
        };
        let options = Options { threads: 1, out: None, existing: Existing::Force, interrupt: &interrupt, progress };
        match run::run(&Job::new(&loaded), options) {
            Err(RunError::Build(e)) => Err(e),
            Err(e) => panic!("{e}"),
            Ok(_) => Ok(()),
        }
    }));
    match outcome {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            Some(format!("panics: {}", text.unwrap_or_default()))
        }
        Ok(Err(e)) if e.diagnostic().line == 0 || e.diagnostic().message.is_empty() => Some(format!("no place: {e}")),
        Ok(Err(e)) if e.diagnostic().message.len() > 400 => Some(format!("not short: {e}")),
        _ if start.elapsed() > PATIENCE => Some(format!("takes {:?}", start.elapsed())),
        _ => None,
    }
}

#[test]
fn any_value_of_any_key_is_refused_with_its_place_or_runs() {
    let before = sluicenet_records::peak_rss_bytes();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let mut tried = 0;
    for (text, overrides) in bases() {
        if let Some(what) = wrong(&text, &overrides) {
            panic!("the base itself: {what}\n{text}");
        }
        let document = Document::parse("hostile.toml", &text).unwrap();
        let mut keys = Vec::new();
        given(&ROOT, &document.root, "", &mut keys);
        for Given { path, key, .. } in keys {
            // A key that several bases give is tried in the first.
            if !seen.insert(key) {
                continue;
            }
            for value in VALUES {
                let mut with = overrides.clone();
                with.push(format!("{path}={value}"));
                tried += 1;
                if let Some(what) = wrong(&text, &with) {
                    found.push(format!("{path} = {value}: {what}"));
                }
            }
        }
    }
    let mut every = BTreeMap::new();
    all(&ROOT, &mut every);
    let untried: Vec<_> = every.keys().filter(|key| !seen.contains(*key)).collect();
    assert!(untried.is_empty(), "no base gives {untried:?}");
    assert!(tried > 10_000, "{tried}");
    assert!(found.is_empty(), "{} of {tried}:\n{}", found.len(), found.join("\n"));
    let grown = sluicenet_records::peak_rss_bytes() - before;
    assert!(grown < MEMORY_BYTES_MAX, "{grown} bytes");
}
