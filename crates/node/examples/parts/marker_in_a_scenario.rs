//! The marker in a scenario: frames arrive with a mark, and TCP slows down; `docs/extending/marker.md` puts it beside the
//! tests of experiments.

use sluicenet_experiment::run::{Job, Options, Outcome, run};
use sluicenet_records::{Existing, FlowRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;
use sluicenet_wire::ipv4::Ecn;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const SCENARIO: &str = r#"
    [scenario]
    parameters = "plain"
    [topology]
    kind = "single-switch"
    hosts = 2
    link_delay = "100 us"
    [tcp]
    ecn = true
    [record]
    pcapng = ["host 1"]
    [[workload]]
    kind = "flow"
    src = 0
    dst = 1
    bytes = "20 MB"
"#;

/// Runs the scenario with this probability.
fn run_with(probability: f64, threads: usize, dir: &Dir) -> Outcome {
    let settings = [format!("switch.mark_probability={probability}")];
    let loaded = Scenario::parse_in(SCENARIO, "marker.toml", None, &settings).unwrap();
    let (out, interrupt) = (Some(dir.0.clone()), AtomicBool::new(false));
    let options = Options { threads, out, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    run(&Job::new(&loaded), options).unwrap().expect("a result")
}

/// The ECN fields of the frames in a capture.
fn ecn_fields(capture: &Path) -> Vec<Ecn> {
    let file = std::fs::read(capture).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut fields) = (0, Vec::new());
    while at < file.len() {
        // An enhanced packet block: 28 bytes, an Ethernet header of 14, and the second byte of the IPv4 header.
        if word(at) == 6 {
            fields.push(Ecn::from_bits(file[at + 28 + 14 + 1]));
        }
        at += word(at + 4) as usize;
    }
    fields
}

#[test]
fn frames_arrive_with_a_mark_and_tcp_slows_down() {
    let mut times = Vec::new();
    for probability in [0.0, 0.02] {
        let dir = Dir::new(&format!("extending-marker-{probability}"));
        let outcome = run_with(probability, 1, &dir);
        assert_eq!(outcome.totals.dropped, 0);
        let fields = ecn_fields(&dir.0.join("capture.pcapng"));
        let data = fields.iter().filter(|&&ecn| ecn != Ecn::NotEct).count();
        let marked = fields.iter().filter(|&&ecn| ecn == Ecn::Ce).count();
        let portion = marked as f64 / data as f64;
        assert!(data > 10_000 && (portion - probability).abs() <= probability / 4.0, "{marked} of {data} are marked");
        let flows: Vec<FlowRow> = read(&dir.0).unwrap();
        times.push(flows[0].fct_ps.expect("it ended"));
    }
    assert!(times[1] > 2 * times[0], "the marks halve the window again and again: {times:?}");
}

#[test]
fn marks_are_the_same_on_any_number_of_threads() {
    let captures = [1, 2].map(|threads| {
        let dir = Dir::new(&format!("extending-marker-threads-{threads}"));
        run_with(0.02, threads, &dir);
        std::fs::read(dir.0.join("capture.pcapng")).unwrap()
    });
    assert!(captures[0] == captures[1]);
}
