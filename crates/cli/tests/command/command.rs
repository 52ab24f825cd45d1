//! Shared parts of tests that run the command as a user does.
// Each test uses a part of this module.
#![allow(dead_code)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

/// The built binary with arguments.
pub fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    c.args(args);
    c
}

/// Runs it.
pub fn sluicenet(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs it, expects this exit code, and returns stdout and stderr.
#[track_caller]
pub fn expect(code: i32, args: &[&str]) -> (String, String) {
    let out = sluicenet(args);
    let (stdout, stderr) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert_eq!(out.status.code(), Some(code), "{args:?}\nstdout: {stdout}\nstderr: {stderr}");
    (stdout, stderr)
}

/// Runs the command with `--json` and returns its output, which is JSON and nothing else.
#[track_caller]
pub fn json(code: i32, args: &[&str]) -> Value {
    let mut all = args.to_vec();
    all.push("--json");
    let (stdout, _) = expect(code, &all);
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{stdout}"))
}

/// A file of the repository, as an argument.
pub fn repository(path: &str) -> String {
    sluicenet_testkit::repository(path).display().to_string()
}

/// The Parquet files and manifests below a directory, by name.
pub fn records(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::from(dir)];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(".parquet") || name.ends_with("manifest.json") || name.ends_with("summary.json") {
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    assert!(found.keys().any(|n| n.ends_with(".parquet")), "no records in {dir}");
    found
}

/// Two results have the same files.
#[track_caller]
pub fn same_files(a: &str, b: &str) {
    let (left, right) = (records(a), records(b));
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (name, bytes) in &left {
        assert!(right[name] == *bytes, "{name} differs");
    }
}

/// 16 virtualised servers, four queries' worth of flow controls.
pub const SMALL: &str = r#"
[scenario]
name = "small"
parameters = "crisan2014-ch3"
[topology]
kind = "xgft"
m = [4, 4]
w = [1, 2]
[record]
pauses = true
[[workload]]
kind = "partition-aggregate"
layout = "crisan2014-ch4"
queries = 24
warmup_queries = 4
inter_arrival = { kind = "exponential", mean = "50 us" }
[sweep]
"tcp.congestion" = ["newreno", "vegas"]
"scenario.flow_control" = ["LL", "ZZ"]
"#;

/// Flows that never end, for tests with an interrupt.
pub const ENDLESS: &str = r#"
[scenario]
name = "endless"
duration = "1000 s"
[topology]
kind = "fat-tree"
k = 4
[[workload]]
kind = "permutation"
pattern = "stride"
[[workload]]
kind = "poisson"
cdf = "sizes.txt"
load = 0.1
until = "1 s"
[record]
queues = "100 us"
"#;
