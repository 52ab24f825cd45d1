//! The testbed: servers, tenants and fabric on one machine; queries between real sockets; gone without a trace.

use serde_json::Value;
use sluicenet_testkit::netns::missing;
use std::process::{Command, Output};

/// Two servers of two tenants, one asking three for 20 KB each, nothing lost.
const SCENARIO: &str = r#"
[scenario]
name = "small"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
[topology]
kind = "single-switch"
hosts = 2
link_rate = "1 Gb/s"
link_delay = "1 us"
[server]
vms = 2
[[workload]]
kind = "partition-aggregate-2"
among = "vms"
workers = 3
response = "20 KB"
queries = 30
warmup_queries = 5
[testbed]
slowdown = 20
response = "200 ms"
"#;

fn sluicenet(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluicenet")).args(words).output().unwrap()
}

fn namespaces() -> Vec<String> {
    let all = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = all.map(|e| e.file_name().to_string_lossy().into_owned());
    // Other tests run meanwhile, with namespaces of their own: `sluice-sockets-...`.
    let is_server =
        |n: &str| n.strip_prefix("sluice-s").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    names.filter(|n| is_server(n) || n.starts_with("sluice-fabric") || n.starts_with("sluice-control")).collect()
}

#[test]
fn queries_run_without_loss_and_a_killed_testbed_is_cleaned_up() {
    if let Some(what) = missing() {
        println!("skipped: {what}");
        return;
    }
    let _alone = crate::testbed_lock();
    let file = std::env::temp_dir().join(format!("sluicenet-testbed-{}.toml", std::process::id()));
    std::fs::write(&file, SCENARIO).unwrap();
    let file_name = file.display().to_string();

    let run = sluicenet(&["--quiet", "--json", "testbed", "pa", &file_name, "--simulate"]);
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stdout));
    let printed: Value = serde_json::from_slice(&run.stdout).unwrap();
    let cell = &printed["cells"][0];
    assert_eq!((&printed["servers"], &printed["tenants"]), (&2.into(), &4.into()));
    assert_eq!((&cell["figures"]["queries"], &cell["figures"]["unfinished"]), (&25.into(), &0.into()));
    for place in ["virtual_network", "physical_network", "edges"] {
        assert_eq!(cell["lost"][place], 0, "{cell}");
    }
    // Two of the three answers come over one link of 50 Mb/s: 6.4 ms, in both worlds.
    for mean in [&cell["figures"]["mean_ms"], &cell["simulated"]["mean_ms"]] {
        assert!(mean.as_f64().unwrap() > 6.4, "{cell}");
    }
    assert!(namespaces().is_empty(), "{:?}", namespaces());

    // Over Linux bridges: the same queries over the same links, and no programs but the fabric's.
    let bridged = ["--set", "testbed.switch=bridge", "--set", "scenario.flow_control=LL"];
    let run = sluicenet(&[&["--quiet", "--json", "testbed", "pa", &file_name][..], &bridged].concat());
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed: Value = serde_json::from_slice(&run.stdout).unwrap();
    let figures = &printed["cells"][0]["figures"];
    assert_eq!((&figures["queries"], &figures["unfinished"]), (&25.into(), &0.into()));
    assert!(figures["mean_ms"].as_f64().unwrap() > 6.4, "{figures}");
    assert!(
        printed["cells"][0]["fabric"]["delivered"].as_u64().unwrap() > 25 * 2 * 14,
        "the answers of two went over it"
    );
    assert!(namespaces().is_empty(), "{:?}", namespaces());

    // Left up, its programs killed: `clean` finds all of it.
    let up = sluicenet(&["--quiet", "testbed", "up", &file_name]);
    assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(namespaces().len(), 2 + 2 + 4);
    let again = sluicenet(&["testbed", "up", &file_name]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("a testbed is up already"));
    let programs = std::fs::read_to_string("/run/sluicenet/testbed/programs").unwrap();
    let pids: Vec<&str> = programs.lines().filter_map(|l| l.split(' ').nth(1)).collect();
    assert_eq!(pids.len(), 4);
    // Two of them at once; the others are still there.
    assert!(Command::new("kill").arg("-9").args(&pids[..2]).status().unwrap().success());
    let clean = sluicenet(&["clean"]);
    assert!(clean.status.success(), "{}", String::from_utf8_lossy(&clean.stderr));
    assert!(namespaces().is_empty(), "{:?}", namespaces());
    assert!(!std::path::Path::new("/run/sluicenet/testbed").exists());
    let down = sluicenet(&["testbed", "down"]);
    assert!(String::from_utf8_lossy(&down.stderr).contains("no testbed is up"));
    std::fs::remove_file(&file).unwrap();
}
