//! The ways of choosing among a fat-tree's paths, at both levels (Al-Fares 2012, chapters 3 and 4).

use crate::worlds::{assert_same_bytes, execute};
use sluicenet_experiment::run::Outcome;
use sluicenet_proto::loss::DropReason;

/// A permutation over a fat-tree of four ports whose loops turn every 10 ms.
fn scenario(level: &str, routing: &str, pattern: &str, more: &str) -> String {
    format!(
        "[scenario]\nlevel = \"{level}\"\nduration = \"300 ms\"\nwarmup = \"150 ms\"\n{more}\n[topology]\nkind = \"fat-tree\"\nk = 4\n\
         link_rate = \"96 Mb/s\"\nrouting = \"{routing}\"\n[control]\nperiod = \"10 ms\"\nlarge = \"20 KB\"\n[[workload]]\n\
         kind = \"permutation\"\npattern = \"{pattern}\"\ntransport = \"udp\"\nrate = \"92 Mb/s\"\n"
    )
}

/// Throughput in percent of the capacity of all hosts' links.
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
            // Mean where chance has its part: single permutations have 50 to 100.
            let mean = |routing: &str| {
                let with = |seed: u64| scenario(level, routing, pattern, &format!("seed = {seed}\n"));
                (1..=8).map(|seed| bandwidth(&execute(&with(seed), 1, None))).sum::<f64>() / 8.0
            };
            let (classified, scheduled) = (mean("flow-classifier"), mean("flow-scheduler"));
            assert!(classified > two_level + 5.0 && classified < 90.0, "{level} {pattern}: {classified}");
            assert!(scheduled > classified + 5.0, "{level} {pattern}: {scheduled} {classified}");
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

const ROUTINGS: [&str; 6] =
    ["two-level", "hash", "flow-classifier", "flow-scheduler", "global-first-fit", "simulated-annealing"];

/// Al-Fares 2012, 3.1.8 and 4.2.6: a link and a switch fail and come back. Within the time of detection all hosts are
/// reached again.
#[test]
fn what_fails_is_gone_around_as_soon_as_it_is_noticed() {
    for level in ["flow", "packet"] {
        for routing in ROUTINGS {
            // An upward link of pod 0, then an aggregation switch of pod 1 (10 is the third), then a core.
            for port in ["switch 0 port 2", "switch 10", "switch 16"] {
                let run = |failure: &str| {
                    let text = scenario(level, routing, "stride(4)", "")
                        .replace("[control]", &format!("{failure}\n[control]"));
                    execute(&text, 1, None)
                };
                let failure = |until: &str| {
                    format!("[[failure]]\nport = \"{port}\"\nat = \"20 ms\"\n{until}detection = \"5 ms\"\n")
                };
                let forever = run(&failure(""));
                // In stride(4) every host sends to another pod, over links that are all in use where nothing fails.
                let slowest = forever.streams.min_mbps;
                assert!(slowest > 10.0, "{level} {routing} {port}: somebody is cut off, {slowest} Mb/s");
                let whole = bandwidth(&run(""));
                let for_a_while = bandwidth(&run(&failure("until = \"60 ms\"\n")));
                // The measurement begins long after. A flow that went around stays on its new path where no switch has
                // a reason to move the flow, and may meet other flows there.
                let most = if routing.starts_with("flow") { 45.0 } else { 15.0 };
                assert!(whole - for_a_while < most, "{level} {routing} {port}: {whole} {for_a_while}");
            }
        }
    }
}

/// No frame goes to a dead port for longer than noticing takes.
#[test]
fn frames_are_lost_for_as_long_as_nobody_has_noticed() {
    let lost = |routing: &str, detection: &str| {
        let failure =
            format!("[[failure]]\nport = \"switch 0 port 2\"\nat = \"50 ms\"\ndetection = \"{detection}\"\n[control]");
        let o = execute(&scenario("packet", routing, "stride(4)", "").replace("[control]", &failure), 1, None);
        o.switch_drops.frames(DropReason::PortGone)
    };
    for routing in ROUTINGS {
        // At most two flows of 96 Mb/s go out over the link and two come in; an epoch is half a millisecond. Frames in
        // the queues of two cores above, of 150 KB each, are on their way to the link, too. Frames in the queues of
        // both ends are lost with the link.
        let frames = |ms: f64| (4.0 * 96e3 * ms / 8.0 / 1538.0 + 4.0 * 150e3 / 1538.0) as u64;
        let [short, long] = [lost(routing, "2 ms"), lost(routing, "20 ms")];
        assert!(short <= frames(3.0) && long <= frames(21.0), "{routing}: {short} {long}");
        assert!(long > short, "{routing}: {short} {long}");
    }
}

/// Frames in the queue of a port whose link fails do not leave any more, and are no loss by congestion.
#[test]
fn a_link_takes_what_waits_for_it_along() {
    let failure = |port: u8| {
        format!("[[failure]]\nport = \"switch 0 port {port}\"\nat = \"200 ms\"\nuntil = \"200500 us\"\n[control]")
    };
    let run = |ports: &[u8]| {
        // Two flows of an edge switch share a port, in whose queue 150 KB wait.
        let mut text = scenario("packet", "two-level", "same-id-outgoing", "");
        for &port in ports {
            text = text.replacen("[control]", &failure(port), 1);
        }
        execute(&text, 1, None)
    };
    let gone = |o: &Outcome| o.switch_drops.frames(DropReason::PortGone);
    let (whole, failed) = (run(&[]), run(&[2, 3]));
    // Half a millisecond of two flows, and a queue.
    let (sent, queue) = (2.0 * 92e6 * 0.5e-3 / 8.0 / 1518.0, 150e3 / 1518.0);
    let gone_by = gone(&failed) as f64;
    assert!(gone_by > queue - 2.0 && gone_by < queue + sent + 8.0, "{gone_by}");
    assert_eq!(gone(&whole), 0);
    assert!(failed.physical_losses() <= whole.physical_losses(), "they are no losses by congestion");
}

/// Links fail and come back under pauses. A lossless class loses frames on them and no others.
#[test]
fn a_lossless_class_loses_what_a_link_takes_along_and_nothing_for_want_of_room() {
    for (pattern, seed) in [("hotspot(2)", 1), ("hotspot(2)", 2), ("random", 3), ("same-id-outgoing", 4)] {
        let flaps: String = (0..12)
            .map(|i| {
                let (switch, port) = ([0, 3, 8, 9, 16][i % 5], 2 + i % 2);
                let port = if switch == 16 { i % 4 } else { port };
                let (down, up) = (5 + 4 * i, 6 + 5 * i);
                format!("[[failure]]\nport = \"switch {switch} port {port}\"\nat = \"{down} ms\"\nuntil = \"{up} ms\"\ndetection = \"2 ms\"\n")
            })
            .collect();
        let text = scenario("packet", "hash", pattern, &format!("seed = {seed}"))
            .replace("duration = \"300 ms\"\nwarmup = \"150 ms\"", "duration = \"90 ms\"")
            .replace("transport = \"udp\"\nrate = \"92 Mb/s\"", "")
            .replace("[control]", &format!("{flaps}[pfc]\nenabled = true\n[control]"));
        let o = execute(&text, 1, None);
        assert!(o.pauses > 0 && o.deadlock.is_none(), "{pattern} {seed}");
        assert_eq!((o.violations, o.physical_losses()), (0, 0), "{pattern} {seed}");
        assert!(o.switch_drops.frames(DropReason::PortGone) > 0, "{pattern} {seed}");
        assert_same_bytes(&format!("lossless-failures-{seed}"), |threads, dir| {
            drop(execute(&text, threads, Some(dir.0.clone())))
        });
    }
}

/// A link that flaps faster than switches notice loses the frames that cross it, and moves no flow. At slower flaps,
/// flows avoid the link each time.
#[test]
fn a_link_that_flaps_leaves_no_flow_behind() {
    for level in ["flow", "packet"] {
        for routing in ROUTINGS {
            let flaps: String = (0..5)
                .map(|i| {
                    let (down, up) = (20 + 20 * i, 30 + 20 * i);
                    format!("[[failure]]\nport = \"switch 8 port 3\"\nat = \"{down} ms\"\nuntil = \"{up} ms\"\ndetection = \"2 ms\"\n")
                })
                .collect();
            let text = scenario(level, routing, "random", "").replace("[control]", &format!("{flaps}[control]"));
            let o = execute(&text, 1, None);
            assert!(o.streams.min_mbps > 5.0, "{level} {routing}: {}", o.streams.min_mbps);
        }
    }
}

#[test]
fn failures_give_the_same_bytes_on_any_number_of_threads() {
    for routing in ["two-level", "flow-scheduler", "global-first-fit"] {
        let failure =
            "[[failure]]\nport = \"switch 9\"\nat = \"10 ms\"\nuntil = \"30 ms\"\ndetection = \"3 ms\"\n[control]";
        let text = scenario("packet", routing, "random", "").replace("[control]", failure);
        let text = text.replace("duration = \"300 ms\"\nwarmup = \"150 ms\"", "duration = \"60 ms\"");
        assert_same_bytes(&format!("failures-{routing}"), |threads, dir| {
            drop(execute(&text, threads, Some(dir.0.clone())))
        });
    }
}

/// Al-Fares 2012, 4.2.6: a scheduler's entries are soft. Without the scheduler, switches treat its flows like any flow.
#[test]
fn a_scheduler_that_dies_over_a_round_leaves_nobody_behind_and_another_takes_over() {
    for level in ["flow", "packet"] {
        for routing in ["flow-scheduler", "global-first-fit", "simulated-annealing"] {
            let run = |life: &str| {
                let text =
                    scenario(level, routing, "stride(8)", "").replace("[control]", &format!("[control]\n{life}"));
                execute(&text, 1, None)
            };
            // Two rounds are entered, and half of the third. All entries are forgotten before the measurement begins.
            let dead = run("dies = \"30 ms\"\n");
            assert!(dead.streams.min_mbps > 10.0, "{level} {routing}: {}", dead.streams.min_mbps);
            if routing != "flow-scheduler" {
                let hash = bandwidth(&execute(&scenario(level, "hash", "stride(8)", ""), 1, None));
                assert!((bandwidth(&dead) - hash).abs() < 3.0, "{level} {routing}: {} {hash}", bandwidth(&dead));
            }
            let back = bandwidth(&run("dies = \"30 ms\"\nreturns = \"80 ms\"\n"));
            assert!(routing != "simulated-annealing" || back > 97.0, "{level} {routing}: {back}");
            assert!(back > bandwidth(&dead) - 1.0, "{level} {routing}: {back}");
        }
    }
}
