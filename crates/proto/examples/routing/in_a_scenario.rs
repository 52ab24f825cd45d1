//! The policy in a scenario: all flows of two hosts take one path; `docs/extending/routing.md` puts it beside the tests of
//! experiments.

use sluicenet_experiment::run::{Job, Options, run};
use sluicenet_records::{Existing, PortRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;
use std::sync::atomic::AtomicBool;

/// Eight flows from host 0 to host 15, at the other end of a fat-tree.
fn scenario() -> String {
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 15\nbytes = \"100 KB\"\n";
    format!("[topology]\nkind = \"fat-tree\"\nk = 4\n{}", flow.repeat(8))
}

/// Ports of switches of a level that sent more than acknowledgements.
fn ports_used(routing: &str, level: u8) -> usize {
    let settings = [format!("topology.routing={routing}")];
    let loaded = Scenario::parse_in(&scenario(), "routing.toml", None, &settings).unwrap();
    let dir = Dir::new(&format!("extending-routing-{routing}-{level}"));
    let (out, interrupt) = (Some(dir.0.clone()), AtomicBool::new(false));
    let options = Options { threads: 1, out, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    run(&Job::new(&loaded), options).unwrap().expect("a result");
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    ports.iter().filter(|port| port.level == level && port.tx_bytes > 90_000).count()
}

#[test]
fn all_flows_of_two_hosts_take_one_path() {
    // Up and down at the edge and in the pods, one core.
    assert_eq!([1, 2, 3].map(|level| ports_used("hash-pair", level)), [2, 2, 1]);
    assert!(ports_used("hash", 3) > 1, "flows by their hash take several cores");
}
