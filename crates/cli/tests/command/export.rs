//! `export`: results for the scripts and viewers of other tools.

use crate::command::{command, expect, json};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// An incast over two levels of switches, twice: its pauses are trees.
const TREE: &str = r#"
[scenario]
name = "tree"
[topology]
kind = "xgft"
m = [4, 4]
w = [1, 2]
[pfc]
enabled = true
[record]
pauses = true
queues = "20 us"
[[workload]]
kind = "incast"
transport = "roce"
senders = 12
receiver = 15
bytes = "256 KB"
rounds = 2
"#;

/// Runs the incast with these settings, and returns its folder and its summary.
fn run(dir: &Dir, settings: &[&str]) -> (String, Value) {
    let (scenario, out) = (dir.file("tree.toml", TREE), dir.path("run"));
    let mut args = vec!["run", &scenario, "-q", "--force", "-o", &out];
    args.extend(settings.iter().flat_map(|set| ["--set", set]));
    let summary = json(0, &args);
    (out, summary)
}

/// The names in a folder.
fn names(dir: &str) -> BTreeSet<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_run_is_exported_with_everything_that_happened() {
    let dir = Dir::new("export");
    let (out, summary) = run(&dir, &[]);
    let before = names(&out);
    let told = json(0, &["export", "hpcc", &out]);
    let lines = |i: usize| told["files"][i]["lines"].as_u64().unwrap();
    // Twelve messages in each of two rounds; every pause ends before the run does.
    assert_eq!(lines(0), 24);
    let pauses = summary["pauses"].as_u64().unwrap();
    assert!(pauses > 100);
    assert_eq!(lines(1), 2 * pauses);
    // The last dump: a line for its time and one for each port of a switch. 4 edge switches have 4 + 2, two roots 4.
    let qlen = std::fs::read_to_string(format!("{out}/hpcc-qlen.txt")).unwrap();
    let last: Vec<&str> = qlen.rsplit("time: ").next().unwrap().lines().skip(1).collect();
    assert_eq!(last.len(), 4 * 6 + 2 * 4);
    let samples = |line: &&str| line.split(' ').skip(2).map(|n| n.parse::<u64>().unwrap()).sum::<u64>();
    assert_eq!(last.iter().map(samples).collect::<BTreeSet<_>>().len(), 1, "every port has as many samples");
    assert_eq!(expect(0, &["export", "htsim", &out]).0, format!("{out}/htsim-flows.txt: 48 lines\n"));
    let trace = dir.path("run.pftrace");
    let told = json(0, &["export", "perfetto", &out, "-o", &trace]);
    assert_eq!(told["pauses"].as_u64().unwrap(), pauses);
    // 16 hosts, 6 switches.
    assert_eq!(told["processes"], 22);
    assert!(told["arrows"].as_u64().unwrap() > 0, "{told}");
    let new: Vec<String> = names(&out).difference(&before).cloned().collect();
    assert_eq!(new, ["hpcc-fct.txt", "hpcc-pfc.txt", "hpcc-qlen.txt", "htsim-flows.txt"]);
    // They belong to the result: a new one replaces them.
    run(&dir, &[]);
    assert_eq!(names(&out), before);
}

#[test]
fn what_cannot_be_exported_says_why_and_writes_nothing() {
    let dir = Dir::new("export-wrong");
    let (out, _) = run(&dir, &["record.pauses=false"]);
    let before = names(&out);
    let trace = dir.path("x.pftrace");
    let run_again = "run the scenario again with `record.";
    for (args, want) in [
        (vec!["hpcc", &out], format!("{run_again}pauses = true`, or export what is there: --only fct,qlen")),
        (vec!["hpcc", &out, "--only", "pfc"], format!("{run_again}pauses = true`\n")),
        (vec!["htsim", &trace], "holds no result".into()),
        (vec!["htsim", &dir.0.display().to_string()], format!("name it, as {out}")),
        (vec!["htsim", &out, "-o", &dir.path("none/log")], "cannot write: No such file".into()),
        (vec!["htsim", &out, "-o", "/dev/full"], "/dev/full: cannot write: No space left".into()),
        (vec!["hpcc", &out, "--only", "fct", "-o", &dir.path("tree.toml")], "cannot write: Not a directory".into()),
    ] {
        let (stdout, stderr) = expect(2, &[&["export"], &args[..]].concat());
        assert!(stderr.starts_with("error: ") && stderr.contains(&want), "{args:?}: {stderr}");
        assert!(stdout.is_empty() && !Path::new(&trace).exists(), "{args:?}: {stdout}");
    }
    assert_eq!(names(&out), before);
    assert_eq!(names(&dir.0.display().to_string()), BTreeSet::from(["run".to_string(), "tree.toml".into()]));
}

#[test]
fn a_disk_that_fills_leaves_the_old_file() {
    let dir = Dir::new("export-full");
    let (out, _) = run(&dir, &[]);
    for (format, name) in [("perfetto", "trace"), ("htsim", "log")] {
        let old = dir.file(name, "the old one");
        // A limit on the size of files stands for the disk: 4 blocks of 512 or 1,024 bytes.
        let script = r#"trap '' XFSZ; ulimit -f 4; exec "$0" export "$@""#;
        let tried = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_sluicenet"), format, &out, "-o", &old])
            .output()
            .unwrap();
        let told = String::from_utf8(tried.stderr).unwrap();
        assert_eq!(tried.status.code(), Some(2), "{told}");
        assert!(told.starts_with(&format!("error: {old}: cannot write: ")), "{told}");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "the old one");
    }
    let left = names(&dir.0.display().to_string());
    assert_eq!(left, ["run", "tree.toml", "trace", "log"].map(String::from).into());
}

#[test]
fn an_interrupt_leaves_the_old_file_and_nothing_else() {
    let dir = Dir::new("export-interrupt");
    let (out, _) = run(&dir, &[]);
    let old = dir.file("trace", "the old one");
    // The export waits for someone who writes to this pipe: it is interrupted while its files are under way.
    let queues = format!("{out}/queues-00000.parquet");
    std::fs::remove_file(&queues).unwrap();
    assert!(Command::new("mkfifo").arg(&queues).status().unwrap().success());
    let dirs = [dir.0.display().to_string(), out.clone()];
    let before = dirs.each_ref().map(|dir| names(dir));
    for args in [vec!["perfetto", &out, "-o", &old], vec!["hpcc", &out]] {
        let mut export = command(&[&["export"], &args[..]].concat()).spawn().unwrap();
        let patience = std::time::Instant::now();
        while dirs.each_ref().map(|dir| names(dir)) == before {
            assert!(patience.elapsed().as_secs() < 60, "{args:?} does not begin");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(Command::new("kill").args(["-INT", &export.id().to_string()]).status().unwrap().success());
        assert_eq!(export.wait().unwrap().code(), Some(130), "{args:?}");
        assert_eq!(dirs.each_ref().map(|dir| names(dir)), before, "{args:?}");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "the old one");
    }
}

#[test]
fn of_a_network_with_bumps_hpcc_gets_all_but_pauses() {
    let dir = Dir::new("export-bumps");
    let file = dir.file("bumps.toml", &format!("{TREE}[[bump]]\nlinks = [\"switch 0 port 4\"]\n"));
    let out = dir.path("run");
    expect(0, &["run", &file, "-q", "-o", &out]);
    let (_, stderr) = expect(2, &["export", "hpcc", &out]);
    assert!(stderr.contains("[[bump]]") && stderr.contains("--only fct,qlen"), "{stderr}");
    let (told, _) = expect(0, &["export", "hpcc", &out, "--only", "fct,qlen"]);
    assert!(told.contains("hpcc-fct.txt: 24 lines") && told.contains("hpcc-qlen.txt"), "{told}");
}
