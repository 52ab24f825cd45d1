//! State after an interrupt and after a kill.

use crate::command::{ENDLESS, command, expect, records};
use serde_json::Value;
use sluicenet_testkit::Dir;
use std::path::Path;
use std::process::{Command, Stdio};

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_readable_records() {
    let dir = Dir::new("cli-interrupt");
    dir.file("sizes.txt", "1000 0\n100000 100\n");
    let file = dir.file("endless.toml", ENDLESS);
    let out = dir.path("out");
    let child = command(&["run", &file, "-o", &out]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let manifest = Path::new(&out).join("manifest.json");
    let patience = std::time::Instant::now();
    while !manifest.exists() {
        assert!(patience.elapsed().as_secs() < 60, "the run does not begin");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("readable"), "{stderr}");
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    assert!(manifest["status"].as_str().unwrap().starts_with("interrupted at "), "{}", manifest["status"]);
    assert!(!records(&out).is_empty());
    expect(0, &["report", &out]);
    expect(0, &["diff", &out, &out]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_benchmark_is_of_the_time_that_it_reached() {
    let dir = Dir::new("cli-interrupt-ft");
    let pairs: String = (0..16).map(|i| format!("{i} {}\n", (i + 8) % 16)).collect();
    let (pairs, out) = (dir.file("stride.txt", &pairs), dir.path("out"));
    let args = ["bench", "ft", "--k", "4", "--perm", &pairs, "--ms", "100000", "--json", "--quiet", "--out", &out];
    let child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let patience = std::time::Instant::now();
    while !Path::new(&out).join("manifest.json").exists() {
        assert!(patience.elapsed().as_secs() < 60, "the run does not begin");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    std::thread::sleep(std::time::Duration::from_millis(1_000));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let figures: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let (ms, goodput) = (figures["simulated_ms"].as_f64().unwrap(), figures["goodput_gbps"].as_f64().unwrap());
    assert!(ms > 0.0 && ms < 100_000.0, "{figures}");
    // 16 links of 10 Gb/s are nearly full; over the planned time they would seem empty.
    assert!(goodput > 10.0, "{figures}");
}

#[cfg(unix)]
#[test]
fn a_kill_leaves_what_was_flushed_and_every_verb_says_so() {
    let dir = Dir::new("cli-kill");
    dir.file("sizes.txt", "1000 0\n100000 100\n");
    let file = dir.file("endless.toml", &format!("{ENDLESS}part_rows = 1000\n"));
    let out = dir.path("out");
    let mut child = command(&["run", &file, "-o", &out, "--quiet"]).spawn().unwrap();
    let part = Path::new(&out).join("queues-00003.parquet");
    let patience = std::time::Instant::now();
    while !part.exists() {
        assert!(patience.elapsed().as_secs() < 60, "the run does not begin");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SIGKILL: nothing is told, nothing is closed.
    child.kill().unwrap();
    child.wait().unwrap();
    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(Path::new(&out).join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["status"], "running");
    let (_, said) = expect(0, &["report", &out]);
    assert!(said.contains("was killed"), "{said}");
    assert!(std::fs::read_to_string(Path::new(&out).join("report.html")).unwrap().contains("Its results are partial"));
    let (table, said) = expect(0, &["diff", &out, &out]);
    assert!(
        table.starts_with("identical: ") && !table.contains(" 0 rows") && said.contains("was killed"),
        "{table}{said}"
    );
}
