//! The token bucket in a scenario: each VM is limited for itself; `docs/extending/stage.md` puts it beside the tests of
//! experiments.

use sluicenet_experiment::run::{Job, Options, run};
use sluicenet_records::{Existing, FlowRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;
use std::sync::atomic::AtomicBool;

/// Two VMs of one server send to two VMs of another one.
const SCENARIO: &str = r#"
    [scenario]
    flow_control = "ZZ"
    [topology]
    kind = "single-switch"
    hosts = 2
    [server]
    vms = 2
    virtual_network = true
    [[workload]]
    kind = "flow"
    src = 0
    dst = 1
    bytes = "5 MB"
    [[workload]]
    kind = "flow"
    src = 0
    src_vm = 1
    dst = 1
    dst_vm = 1
    bytes = "5 MB"
    transport = "udp"
"#;

/// Goodput of each flow in Gb/s.
fn goodput(name: &str, settings: &[&str]) -> Vec<f64> {
    let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
    let loaded = Scenario::parse_in(SCENARIO, "stage.toml", None, &settings).unwrap();
    let dir = Dir::new(&format!("extending-stage-{name}"));
    let (out, interrupt) = (Some(dir.0.clone()), AtomicBool::new(false));
    let options = Options { threads: 2, out, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    // A run that ends has counted every frame: none is lost in a stage.
    let outcome = run(&Job::new(&loaded), options).unwrap().expect("a result");
    assert_eq!(outcome.totals.dropped, 0, "{name}");
    let flows: Vec<FlowRow> = read(&dir.0).unwrap();
    assert_eq!(flows.len(), 2);
    flows.iter().map(|f| f.bytes.unwrap() as f64 * 8e3 / f.fct_ps.expect("it ended") as f64).collect()
}

#[test]
fn each_vm_has_its_own_rate() {
    let free = goodput("free", &[]);
    assert!(free.iter().all(|&gbps| gbps > 2.0), "{free:?}");
    for (name, credits) in [("alone", "zcredit.enabled=false"), ("with-credits", "zcredit.enabled=true")] {
        let limited = goodput(name, &["vswitch.send_rate=1 Gb/s", credits]);
        // Headers and tunnels take part of the rate.
        assert!(limited.iter().all(|gbps| (0.85..1.0).contains(gbps)), "{name}: {limited:?}");
    }
}
