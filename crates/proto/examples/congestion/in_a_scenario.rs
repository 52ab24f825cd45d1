//! Scalable TCP by its name in a scenario; `docs/extending.md` puts it beside the tests of experiments.

use sluicenet_experiment::run::{Job, Options, run};
use sluicenet_records::Existing;
use sluicenet_scenario::Scenario;
use std::sync::atomic::AtomicBool;

#[test]
fn a_scenario_names_it() {
    let file = sluicenet_testkit::repository("scenarios/incast-32.toml");
    let settings = ["tcp.congestion=scalable", "workload.0.rounds=3"].map(str::to_string);
    let loaded = Scenario::load_with(file, &settings).unwrap();
    let interrupt = AtomicBool::new(false);
    let options =
        Options { threads: 1, out: None, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    let outcome = run(&Job::new(&loaded), options).unwrap().expect("a result");
    assert_eq!(outcome.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 3);
    assert_eq!(outcome.totals.dropped, 0);
}
