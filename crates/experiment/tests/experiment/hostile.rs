//! Every key of the schema with values that are wrong, or right and extreme: refused with a place, or run; never a panic,
//! never long, never with much memory.

use sluicenet_experiment::run::{self, Job, Options, RunError};
use sluicenet_records::Existing;
use sluicenet_scenario::Scenario;
use sluicenet_scenario::keys::{DISTRIBUTIONS, Kind, ROOT, Spec};
use sluicenet_scenario::tree::{Document, Table, Value};
use sluicenet_testkit::repository;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A scenario that gives every key of every section.
const FULL: &str = include_str!("../../../scenario/tests/data/full.toml");

/// A value with its key: none of these takes so long, by orders of magnitude.
const PATIENCE: Duration = Duration::from_secs(10);
/// What all of them together may add to the memory of this process.
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

/// Scenarios that give every key between them, each with what makes it short.
fn bases() -> Vec<(String, Vec<String>)> {
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
        (FULL.into(), full),
        (files, own(&["scenario.duration=100 us"])),
        shape("kind = \"k-ary-n-tree\"\nk = 4\nn = 2\nslimmed = [2]\n"),
        shape("kind = \"fat-tree\"\nk = 4\n"),
        shape("kind = \"single-switch\"\nhosts = 4\n"),
        shape("kind = \"htsim\"\nfile = \"small.topo\"\n"),
        (HOTSPOT.into(), Vec::new()),
        (ZFABRIC.into(), Vec::new()),
        (TENANTS.into(), Vec::new()),
        (FLOW_LEVEL.into(), Vec::new()),
        (CONTROL.into(), Vec::new()),
    ]
}

const FLOW_LEVEL: &str = r#"
[scenario]
duration = "10 ms"
level = "flow"
[flow_level]
rates = "aimd"
tick = "100 us"
[topology]
kind = "fat-tree"
k = 4
routing = "random"
[[workload]]
kind = "permutation"
pattern = "stride"
stride = 4
bytes = "1 MB"
[[workload]]
kind = "shuffle"
hosts = 4
bytes = "10 KB"
at_a_time = 2
start = "1 us"
transport = "udp"
priority = 1
"#;

const CONTROL: &str = r#"
[scenario]
duration = "10 ms"
level = "flow"
[topology]
kind = "fat-tree"
k = 4
routing = "simulated-annealing"
oversubscription = 3.6
[control]
period = "1 ms"
iterations = 100
large = "10 KB"
dies = "4 ms"
returns = "8 ms"
[[failure]]
port = "switch 0 port 2"
at = "1 ms"
until = "5 ms"
detection = "100 us"
[[workload]]
kind = "permutation"
pattern = "staggered(0.5, 0.3)"
flows = 2
[sweep]
"topology.routing" = ["global-first-fit", "simulated-annealing"]
"scenario.seed" = [1, 2]
[[table]]
title = "Rows are seeds"
figure = "bandwidth"
rows = "scenario.seed"
columns = "topology.routing"
source = [[1.5, 2], [3, ""]]
"#;

const TENANTS: &str = r#"
[scenario]
duration = "100 us"
parameters = "crisan2014-ch3"
hypervisor = "zfabric"
[topology]
kind = "xgft"
m = [2, 2]
w = [1, 1]
external_hosts = 1
[server]
vms = 2
lossy_vnic = 1
[[policy.tenant]]
name = "red"
hosts = [0, 1]
vms = [0]
[[policy.tenant]]
name = "blue"
vms = [1]
[[policy.rule]]
party = "red"
peer = "blue"
allow = true
[[zcredit.weight]]
tenant = "red"
weight = 2
[[workload]]
kind = "flow"
src = 0
dst = 2
transport = "tcplight"
[[workload]]
kind = "flow"
src = 0
src_vm = 1
dst = 4
transport = "udp"
priority = 1
"#;

const ZFABRIC: &str = r#"
[scenario]
duration = "100 us"
parameters = "crisan2014-ch3"
hypervisor = "zfabric"
[topology]
kind = "xgft"
m = [2, 2]
w = [1, 1]
[zcredit]
rx_queue = 64
[[zcredit.weight]]
host = 1
vm = 1
weight = 2
[zbridge]
enabled = true
period = 16
buffer = 64
timeout = "50 us"
[overlay]
transport = "udp"
[tcplight]
buffer = "1 MB"
tx_delay = "1 us"
rx_delay = "2 us"
[[workload]]
kind = "permutation"
pattern = "random"
per_vm = true
first_vm = 1
transport = "tcplight"
[[workload]]
kind = "partition-aggregate"
layout = "crisan2014-ch4"
queries = 5
inter_arrival = { kind = "constant", value = "10 us" }
transport = "tcplight"
[[workload]]
kind = "partition-aggregate-2"
workers = 3
response = "10 KB"
queries = 5
transport = "tcplight"
[[workload]]
kind = "flow"
src = 1
src_vm = 2
dst = 1
dst_vm = 3
bytes = "100 KB"
"#;

const HOTSPOT: &str = r#"
[scenario]
duration = "100 us"
[topology]
kind = "single-switch"
hosts = 4
[tcp]
prr = true
[[workload]]
kind = "hotspot"
sources = [0, 1]
destination = 3
message = "10 KB"
phases = [{ until = "20 us", rate = "1 Gb/s" }, { until = "100 us", rate = "4 Gb/s" }]
transport = "udp"
priority = 1
[[workload]]
kind = "background"
flow_size = { kind = "cdf-file", file = "small_cdf.txt", unit = "B" }
inter_arrival = { kind = "exponential", mean = "10 us" }
"#;

/// A key that a base gives: where, and of which table it is.
struct Given {
    path: String,
    key: (&'static str, &'static str),
}

fn given(spec: &'static Spec, table: &Table, path: &str, into: &mut Vec<Given>) {
    for entry in &table.entries {
        let key = spec.keys.iter().find(|k| k.name == entry.key).unwrap_or_else(|| panic!("{path}{}", entry.key));
        let here = format!("{path}{}", entry.key);
        into.push(Given { path: here.clone(), key: (spec.name, key.name) });
        let of_kind = |specs: &[&'static Spec], table: &Table| match table.get("kind").map(|e| &e.node.value) {
            Some(Value::Text(kind)) => *specs.iter().find(|s| s.name == kind).unwrap(),
            _ => specs[0],
        };
        match (&key.kind, &entry.node.value) {
            (Kind::Table(spec), Value::Table(table)) => given(spec, table, &format!("{here}."), into),
            (Kind::SizeDistribution | Kind::TimeDistribution, Value::Table(table)) => {
                given(of_kind(&DISTRIBUTIONS, table), table, &format!("{here}."), into);
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

/// Every key there is, with the table it is of.
fn all(spec: &'static Spec, into: &mut BTreeSet<(&'static str, &'static str)>) {
    for key in spec.keys {
        // What is swept are other keys; tests of sweeps are their own.
        if matches!(key.kind, Kind::Axes) || !into.insert((spec.name, key.name)) {
            continue;
        }
        match key.kind {
            Kind::Table(spec) => all(spec, into),
            Kind::Tables(specs) => specs.iter().for_each(|s| all(s, into)),
            Kind::SizeDistribution | Kind::TimeDistribution => DISTRIBUTIONS.iter().for_each(|s| all(s, into)),
            _ => {}
        }
    }
}

/// What is wrong with how a scenario with these overrides is taken, if anything.
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
        // A run is looked at where it ends an epoch: after two of them it has shown what it does.
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
        for Given { path, key } in keys {
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
    let mut every = BTreeSet::new();
    all(&ROOT, &mut every);
    let untried: Vec<_> = every.difference(&seen).collect();
    assert!(untried.is_empty(), "no base gives {untried:?}");
    assert!(tried > 10_000, "{tried}");
    assert!(found.is_empty(), "{} of {tried}:\n{}", found.len(), found.join("\n"));
    let grown = sluicenet_records::peak_rss_bytes() - before;
    assert!(grown < MEMORY_BYTES_MAX, "{grown} bytes");
}
