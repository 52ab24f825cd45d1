//! The ways of choosing among a fat-tree's paths, at both levels (Al-Fares 2012, chapters 3 and 4).

mod common;
mod worlds;

use sluicenet_lab::run::Outcome;
use worlds::{assert_same_bytes, execute};

/// A permutation over a fat-tree of four ports whose loops turn every 10 ms.
fn scenario(level: &str, routing: &str, pattern: &str, more: &str) -> String {
    format!(
        "[scenario]\nlevel = \"{level}\"\nduration = \"300 ms\"\nwarmup = \"150 ms\"\n{more}\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
         link_rate = \"96 Mb/s\"\nrouting = \"{routing}\"\n[control]\nperiod = \"10 ms\"\nlarge = \"20 KB\"\n[[workload]]\n\
         kind = \"permutation\"\npattern = \"{pattern}\"\ntransport = \"udp\"\nrate = \"92 Mb/s\"\n"
    )
}

/// Percent of what all hosts' links carry.
fn bandwidth(o: &Outcome) -> f64 {
    assert!(o.streams.count > 0);
    100.0 * o.streams.total_mbps / o.line_mbps
}

/// Al-Fares 2012, table 3.1: where static tables and one scheme of each kind stand.
#[test]
fn static_tables_meet_where_the_source_says_and_who_looks_at_flows_goes_around() {
    for level in ["flow", "packet"] {
        let of = |routing: &str, pattern: &str| bandwidth(&execute(&scenario(level, routing, pattern, ""), 1, None));
        for routing in ["two-level", "flow-classifier", "flow-scheduler", "global-first-fit", "simulated-annealing"] {
            assert!(of(routing, "stride(1)") > 99.0, "{level} {routing}");
        }
        assert!(of("two-level", "stride(4)") > 99.0);
        for pattern in ["inter-pod-incoming", "same-id-outgoing"] {
            let two_level = of("two-level", pattern);
            assert!((two_level - 50.0).abs() < 2.0, "{level} {pattern}: {two_level}");
            assert!((of("hierarchical", pattern) - 100.0 / 3.6).abs() < 2.0, "{level} {pattern}");
            assert!(of("non-blocking", pattern) > 99.0, "{level} {pattern}");
            let classified = of("flow-classifier", pattern);
            assert!(classified > two_level + 10.0, "{level} {pattern}: {classified}");
            let scheduled = of("flow-scheduler", pattern);
            assert!(scheduled > two_level + 10.0, "{level} {pattern}: {scheduled}");
        }
    }
}

/// Al-Fares 2012, 4.4: annealing finds a permutation's paths.
#[test]
fn hedera_finds_paths_for_elephants() {
    for level in ["flow", "packet"] {
        for pattern in ["stride(4)", "stride(8)", "random"] {
            let of = |routing: &str| bandwidth(&execute(&scenario(level, routing, pattern, ""), 1, None));
            let [hash, fit, annealed] = ["hash", "global-first-fit", "simulated-annealing"].map(of);
            assert!(annealed > 97.0 && fit > hash - 1.0 && hash < 90.0, "{level} {pattern}: {hash} {fit} {annealed}");
        }
    }
}

#[test]
fn control_loops_give_the_same_bytes_on_any_number_of_threads() {
    for routing in ["flow-classifier", "flow-scheduler", "global-first-fit", "simulated-annealing"] {
        let text = scenario("packet", routing, "random", "")
            .replace("duration = \"300 ms\"\nwarmup = \"150 ms\"", "duration = \"60 ms\"");
        assert_same_bytes(routing, |threads, dir| drop(execute(&text, threads, Some(dir.0.clone()))));
    }
}

/// Flows come and go, and their entries with them.
#[test]
fn flows_that_end_give_their_paths_back() {
    for level in ["flow", "packet"] {
        for routing in ["flow-scheduler", "global-first-fit", "simulated-annealing", "flow-classifier"] {
            let text = format!(
                "[scenario]\nlevel = \"{level}\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nlink_rate = \"1 Gb/s\"\nrouting = \"{routing}\"\n\
                 [control]\nperiod = \"1 ms\"\n[[workload]]\nkind = \"shuffle\"\nbytes = \"300 KB\"\n"
            );
            let o = execute(&text, 1, None);
            assert_eq!((o.flows.started, o.flows.finished), (240, 240), "{level} {routing}");
            let longest = o.queries.iter().filter_map(|q| q.completion_ps).max().expect("they ended") as f64 / 1e9;
            // 15 transfers of 2.5 ms, one after the other.
            assert!(
                longest > 36.0 && longest < if level == "flow" { 120.0 } else { 2_000.0 },
                "{level} {routing}: {longest} ms"
            );
        }
    }
}
