//! Flows without an end between real sockets of a testbed, with and without credits.

mod common;

use common::netns::missing;
use serde_json::Value;
use std::process::Command;

/// One of two senders over a shared link has a receiver that reads slowly.
const SLOW: &str = r#"
[scenario]
name = "slow"
parameters = "crisan2014-ch3"
flow_control = "ZZ"
duration = "60 ms"
warmup = "30 ms"
[topology]
kind = "hpcc"
file = "TOPOLOGY"
[server]
vms = 1
[[vswitch.slow]]
host = 3
rate = "100 Mb/s"
[[workload]]
kind = "permutation"
pattern = "file"
file = "FLOWS"
transport = "udp"
[zcredit]
rx_queue = 64
[testbed]
slowdown = 100
response = "200 ms"
[sweep]
"zcredit.enabled" = [false, true]
"#;

/// Figure 5.9 between real sockets: without credits the flow beside falls to the level of the slow one, with them it does not, and the
/// slow one's receive queue is never longer than it may be.
#[test]
fn a_slow_receiver_costs_the_flow_beside_nothing_where_there_are_credits() {
    if let Some(what) = missing() {
        println!("skipped: {what}");
        return;
    }
    let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014");
    let text = SLOW.replace("TOPOLOGY", &format!("{scenarios}/two-switches.txt"));
    let text = text.replace("FLOWS", &format!("{scenarios}/fig-5-9-flows.txt"));
    let file = std::env::temp_dir().join(format!("sluicenet-testbed-slow-{}.toml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let mut sluicenet = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let run = sluicenet.args(["--quiet", "--json", "testbed", "flows"]).arg(&file).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed: Value = serde_json::from_slice(&run.stdout).unwrap();
    let rate = |cell: usize, flow: usize| printed["cells"][cell]["streams"]["each"][flow]["mbps"].as_f64().unwrap();
    let rates = [[rate(0, 0), rate(0, 1)], [rate(1, 0), rate(1, 1)]];
    println!("victim and culprit, without and with credits, Mb/s: {rates:?}");
    let [[without, slow], [with, _]] = rates;
    assert!(without < 10.0 * slow && with > 5.0 * without, "{rates:?}");
    for (cell, credits) in [(0, false), (1, true)] {
        let cell = &printed["cells"][cell];
        for place in ["virtual_network", "physical_network", "edges"] {
            assert_eq!(cell["lost"][place], 0, "{cell}");
        }
        assert_eq!(cell["credits"], credits);
    }
    let stops = [0, 1].map(|cell: usize| printed["cells"][cell]["fabric"]["stops"].as_u64().unwrap());
    println!("times PFC stopped somebody, without and with credits: {stops:?}");
    assert!(stops[0] > 4 * stops[1], "{stops:?}");
    let longest = printed["cells"][1]["received_max_frames"].as_u64().unwrap();
    assert!((1..=64).contains(&longest), "a receive queue of {longest} frames");
}
