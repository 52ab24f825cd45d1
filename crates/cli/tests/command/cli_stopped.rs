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
