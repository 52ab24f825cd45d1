//! Scalable TCP by its name in a scenario; `docs/extending.md` puts it beside the command line's tests.

use std::path::Path;
use std::process::Command;

#[test]
fn a_scenario_names_it() {
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/incast-32.toml");
    let run = Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["run", "--json", "--set", "tcp.congestion=scalable", "--set", "workload.0.rounds=3"])
        .arg(scenario)
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{stdout}{stderr}");
    let figures: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(figures["queries"]["finished"], 3);
    assert_eq!(figures["drops"], 0);
}
