//! Completion times in an empty network equal the closed form to the picosecond.

use crate::worlds::{attempt, flows, load};
use sluicenet_proto::rng::Rng;
use sluicenet_records::{FlowRow, PortRow, QueueRow, TcpRow, read};
use sluicenet_sim::RunEnd;
use sluicenet_testkit::Dir;

#[test]
fn a_datagram_takes_the_time_of_the_closed_form() {
    // One UDP datagram of 1,000 B through one switch at 10 Gb/s: every figure by hand.
    let text = r#"
        [scenario]
        parameters = "plain"
        [topology]
        kind = "single-switch"
        hosts = 2
        link_delay = "1 us"
        [switch]
        delay = "300 ns"
        [adapter]
        delay = "500 ns"
        [[workload]]
        kind = "flow"
        src = 0
        dst = 1
        bytes = "1000 B"
        transport = "udp"
    "#;
    let f = &flows(text, "closed")[0];
    // 1000 + 28 + 18 B of frame and 8 B of preamble, twice; two cables; two adapters; one switch.
    let bits = (1000 + 28 + 18 + 8) * 800;
    assert_eq!(f.fct_ps, Some(2 * bits + 2 * 1_000_000 + 2 * 500_000 + 300_000));
    assert_eq!(f.slowdown, Some(1.0));
}

#[test]
fn streams_in_an_empty_network_meet_their_ideal_to_the_picosecond() {
    // Datagrams at line rate, over trees of any shape, cut-through and not, with and without a virtual network.
    let mut rng = Rng::from_words(&[11]);
    for case in 0..24 {
        let (m, w) = [("[4]", "[1]"), ("[4, 3]", "[2, 2]"), ("[2, 3, 2]", "[1, 2, 3]")][case % 3];
        let hosts = [4, 12, 12][case % 3];
        let (src, dst) = (rng.below(hosts), rng.below(hosts));
        let dst = if dst == src { (dst + 1) % hosts } else { dst };
        let bytes = 1 + rng.below(200_000);
        let forwarding = ["cut-through", "store-and-forward"][case / 3 % 2];
        let set = ["plain", "crisan2014-ch2", "crisan2014-ch3"][case / 6 % 3];
        let text = format!(
            r#"
            [scenario]
            parameters = "{set}"
            [topology]
            kind = "xgft"
            m = {m}
            w = {w}
            [switch]
            forwarding = "{forwarding}"
            [[workload]]
            kind = "flow"
            src = {src}
            dst = {dst}
            bytes = "{bytes} B"
            transport = "udp"
            "#
        );
        let f = &flows(&text, &format!("ideal-{case}"))[0];
        assert_eq!(f.fct_ps, f.ideal_ps, "case {case}: {text}");
    }
}

/// Flows of datagrams, each in an empty network: there is a tenth of a second between two of them.
fn one_by_one(pairs: impl Iterator<Item = (u32, u32)>, bytes: u32) -> String {
    let flow = |(i, (src, dst))| {
        let start = i * 100;
        format!(
            "[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\nbytes = \"{bytes} B\"\nstart = \"{start} ms\"\n\
             transport = \"udp\"\n"
        )
    };
    (0..).zip(pairs).map(flow).collect()
}

fn every_pair(hosts: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..hosts).flat_map(move |src| (0..hosts).filter(move |&dst| dst != src).map(move |dst| (src, dst)))
}

/// Two edge switches with hosts of unlike links each, between them two switches over which the paths differ.
const UNLIKE: &str = "10 4 10\n6 7 8 9\n0 6 10Gbps 1us 0\n1 6 40Gbps 1us 0\n2 6 10Gbps 3us 0\n3 7 100Gbps 1us 0\n\
                      4 7 10Gbps 1us 0\n5 7 1Gbps 500ns 0\n6 8 10Gbps 1us 0\n8 7 10Gbps 1us 0\n6 9 40Gbps 9us 0\n\
                      9 7 40Gbps 9us 0\n";

#[test]
fn hosts_of_a_graph_are_measured_against_their_own_links() {
    let ran = |bytes: u32, forwarding: &str| {
        let dir = Dir::new(&format!("times-unlike-{bytes}-{forwarding}"));
        dir.file("graph.txt", UNLIKE);
        let text = format!(
            "[topology]\nkind = \"hpcc\"\nfile = \"graph.txt\"\n[switch]\nforwarding = \"{forwarding}\"\n{}",
            one_by_one(every_pair(6), bytes)
        );
        attempt(&load(&text, "unlike", &dir.0).unwrap(), 1, Some(dir.0.clone())).unwrap();
        read::<FlowRow>(&dir.0).unwrap()
    };
    for forwarding in ["cut-through", "store-and-forward"] {
        let (small, large) = (ran(1_000, forwarding), ran(100_000, forwarding));
        assert_eq!((small.len(), large.len()), (30, 30));
        for f in small.iter().chain(&large) {
            let slowdown = f.slowdown.unwrap();
            // One way where both are at the same switch; of two a hash takes one, and the ideal is the faster one.
            let one_way = (f.src_host < 3) == (f.dst_host < 3);
            assert!(if one_way { slowdown == 1.0 } else { slowdown >= 1.0 }, "{forwarding} {f:?}");
        }
        // The short path is faster for few bytes, the wide path for many, and some flow takes each of them.
        for flows in [&small, &large] {
            assert!(flows.iter().any(|f| f.src_host < 3 && f.dst_host == 3 && f.slowdown == Some(1.0)), "{flows:?}");
        }
    }
}

#[test]
fn nothing_is_faster_than_its_ideal_in_a_tree_with_external_hosts_and_links_of_several_speeds() {
    // With external hosts at faster links, some roots have to store frames that others cut through.
    for routing in ["d-mod-k", "s-mod-k", "hash", "hash-destination", "two-level"] {
        let text = format!(
            r#"
            [scenario]
            parameters = "plain"
            [topology]
            kind = "xgft"
            m = [2, 2, 2]
            w = [1, 2, 3]
            routing = "{routing}"
            link_rate = "100 Gb/s"
            external_hosts = 2
            [[topology.level]]
            level = 2
            rate = "25 Gb/s"
            delay = "10 ns"
            [[topology.level]]
            level = 3
            rate = "10 Gb/s"
            [switch]
            forwarding = "cut-through"
            {}
            "#,
            // External hosts are at different roots and do not reach each other.
            one_by_one(every_pair(10).filter(|&(a, b)| a.min(b) < 8), 700)
        );
        let flows = flows(&text, &format!("times-external-{routing}"));
        assert_eq!(flows.len(), 88);
        for f in &flows {
            let slowdown = f.slowdown.unwrap();
            assert!(if routing == "hash" { slowdown >= 1.0 } else { slowdown == 1.0 }, "{routing} {f:?}");
        }
    }
}

#[test]
fn the_longest_delays_of_a_path_add_up() {
    let text = r#"
        [topology]
        kind = "fat-tree"
        k = 4
        link_delay = "1 h"
        routing = "hash"
        [switch]
        delay = "1 h"
        [adapter]
        delay = "1 h"
        [udp]
        tx_delay = "1 h"
        rx_delay = "1 h"
        [[workload]]
        kind = "flow"
        src = 0
        dst = 15
        bytes = "1000 B"
        transport = "udp"
    "#;
    let f = &flows(text, "far")[0];
    // Six links, five switches, two adapters, two stacks.
    let bits = (1000 + 28 + 18 + 8) * 800;
    assert_eq!(f.fct_ps, Some(6 * bits + (6 + 5 + 2 + 2) * 3_600_000_000_000_000));
    assert_eq!(f.slowdown, Some(1.0));
}

#[test]
fn a_run_whose_work_does_not_end_ends_in_time() {
    let text = |start: u32| {
        format!(
            "[topology]\nkind = \"single-switch\"\nhosts = 2\nlink_delay = \"1 h\"\n[[workload]]\nkind = \"flow\"\nsrc = 0\n\
             dst = 1\nbytes = \"1000 B\"\ntransport = \"udp\"\nstart = \"{start} h\"\n"
        )
    };
    let folder = Dir::new("run-in-time");
    // It arrives two hours later, and its sender knows after two more.
    for (start, finished) in [(2_395, 1), (2_399, 0)] {
        let o = attempt(&load(&text(start), "t.toml", &folder.0).unwrap(), 1, None).unwrap();
        assert_eq!((o.flows.finished, o.flows.open_alone), (finished, 1 - finished), "{start}");
        let is_said = o.warnings.iter().any(|w| w.message.contains("the run has ended at 2400 h"));
        assert_eq!((o.end == RunEnd::Time, is_said), (finished == 0, finished == 0), "{start}");
        assert!(finished == 1 || o.now.as_ps() == 2_400 * 3_600_000_000_000_000);
    }
}

#[test]
fn frames_of_the_largest_mtu_take_their_time() {
    for (keys, transport) in [
        ("[framing]\nmtu = \"65517 B\"\n", "udp"),
        ("[framing]\nmtu = \"65517 B\"\n", "tcp"),
        ("[framing]\nkind = \"ppp\"\nmtu = \"65533 B\"\n", "tcp"),
        ("[framing]\nmtu = \"65517 B\"\n[server]\nvirtual_network = true\n[overlay]\nmtu = \"65463 B\"\n", "tcp"),
    ] {
        let text = format!(
            "[topology]\nkind = \"single-switch\"\nhosts = 2\n[switch]\nbuffer = \"100 MB\"\n[adapter]\nbuffer = \"10 MB\"\n\
             [udp]\nbuffer = \"10 MB\"\n[tcp]\nbuffer = \"4 MB\"\n{keys}\
             [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"2 MB\"\ntransport = \"{transport}\"\n"
        );
        let fct = flows(&text, "large-mtu")[0].fct_ps.unwrap_or_else(|| panic!("{text}"));
        // 2 MB at 10 Gb/s are 1.6 ms.
        assert!(fct > 1_600_000_000, "{fct}: {text}");
    }
}

#[test]
fn a_link_that_no_frame_uses_changes_nothing() {
    // The second round begins when the first sender knows that its message is complete: after the last byte, and not
    // earlier than light would tell it. A short link elsewhere shortens the engine's windows, but no time of a flow.
    let dir = Dir::new("unused-link");
    let rounds = |unused: &str| {
        let network = match unused {
            "" => "3 1 2\n2\n0 2 10Gbps 0.01ms 0\n1 2 10Gbps 0.01ms 0\n".into(),
            delay => format!("4 1 3\n3\n0 3 10Gbps 0.01ms 0\n1 3 10Gbps 0.01ms 0\n2 3 10Gbps {delay} 0\n"),
        };
        dir.file("network.txt", &network);
        let text = r#"
            [topology]
            kind = "hpcc"
            file = "network.txt"
            [[workload]]
            kind = "incast"
            senders = 1
            receiver = 1
            bytes = "1448 B"
            rounds = 3
            gap = "0 us"
        "#;
        let out = dir.0.join(format!("out{unused}"));
        let loaded = load(text, "unused", &dir.0).unwrap();
        attempt(&loaded, 1, Some(out.clone())).unwrap();
        let flows: Vec<FlowRow> = read(&out).unwrap();
        flows.iter().map(|f| (f.start_ps, f.fct_ps.unwrap(), f.queueing_ps)).collect::<Vec<_>>()
    };
    let alone = rounds("");
    assert_eq!(alone.len(), 3);
    assert!(alone.windows(2).all(|w| w[1].0 >= w[0].0 + w[0].1 + 20_000_000), "{alone:?}");
    assert_eq!(rounds("0.000001ms"), alone);
    assert_eq!(rounds("0.01ms"), alone);
}

#[test]
fn no_time_depends_on_the_windows_of_the_engine() {
    // A link that no frame uses sets the length of the windows. Flows without an end, a slower link, queues and their samples,
    // and the warm-up begin and end within a window.
    let dir = Dir::new("unused-window");
    let run = |unused: &str, threads: usize| {
        let network = format!(
            "7 4 8\n3 4 5 6\n0 3 10Gbps 0.01ms 0\n1 4 10Gbps 0.01ms 0\n3 5 10Gbps 0.01ms 0\n4 5 10Gbps 0.01ms 0\n\
             3 6 10Gbps 0.01ms 0\n4 6 10Gbps 0.01ms 0\n2 4 10Gbps {unused} 0\n2 6 10Gbps {unused} 0\n"
        );
        dir.file("network.txt", &network);
        let text = r#"
            [scenario]
            duration = "2345678 ns"
            warmup = "700 us"
            [topology]
            kind = "hpcc"
            file = "network.txt"
            [pfc]
            enabled = true
            [[slowdown]]
            port = "host 0"
            rate = "1 Gb/s"
            at = "1 ms"
            until = "1500 us"
            [[workload]]
            kind = "flow"
            src = 0
            dst = 1
            [[workload]]
            kind = "flow"
            src = 1
            dst = 0
            transport = "udp"
            [record]
            queues = "37 us"
            tcp = "500 us"
        "#;
        let out = dir.0.join(format!("out{unused}-{threads}"));
        let loaded = load(text, "unused", &dir.0).unwrap();
        attempt(&loaded, threads, Some(out.clone())).unwrap();
        let text = |rows: &dyn core::fmt::Debug| format!("{rows:#?}");
        let flows: Vec<FlowRow> = read(&out).unwrap();
        let ports: Vec<PortRow> = read(&out).unwrap();
        let queues: Vec<QueueRow> = read(&out).unwrap();
        let tcp: Vec<TcpRow> = read(&out).unwrap();
        assert!(flows.len() == 2 && flows.iter().all(|f| f.fct_ps.is_none() && f.delivered_bytes > 0), "{flows:?}");
        assert!(queues.iter().any(|q| q.bytes > 0) && tcp.len() > 2);
        [text(&flows), text(&ports), text(&queues), text(&tcp)]
    };
    let first = run("0.01ms", 1);
    for (unused, threads) in [("0.000001ms", 1), ("0.0073ms", 1), ("0.0073ms", 2)] {
        for (rows, expected) in run(unused, threads).iter().zip(&first) {
            assert!(
                rows == expected,
                "{unused}: {}",
                rows.lines().zip(expected.lines()).find(|(a, b)| a != b).map_or("".into(), |p| format!("{p:?}"))
            );
        }
    }
}

#[test]
fn a_change_while_nothing_happens_is_in_effect_when_something_does() {
    // The link is slower from 0.6 ms on, and its only flow begins later, at the start of an epoch or within it.
    let dir = Dir::new("idle-change");
    let fct = |unused: &str, start: &str| {
        let network = format!("4 1 3\n3\n0 3 10Gbps 0.01ms 0\n1 3 10Gbps 0.01ms 0\n2 3 10Gbps {unused} 0\n");
        dir.file("network.txt", &network);
        let text = format!(
            "[scenario]\nduration = \"9 ms\"\n[topology]\nkind = \"hpcc\"\nfile = \"network.txt\"\n[[slowdown]]\n\
             port = \"host 1\"\nrate = \"1 Gb/s\"\nat = \"600 us\"\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n\
             bytes = \"100 KB\"\nstart = \"{start}\"\n[record]\nqueues = \"370 us\"\n"
        );
        let out = dir.0.join(format!("out{unused}{start}"));
        attempt(&load(&text, "idle", &dir.0).unwrap(), 1, Some(out.clone())).unwrap();
        let queues: Vec<QueueRow> = read(&out).unwrap();
        (read::<FlowRow>(&out).unwrap()[0].fct_ps.unwrap(), queues)
    };
    for start in ["3 ms", "3005 us", "3499999 ns"] {
        let (slow, queues) = fct("0.01ms", start);
        // 100 KB at 1 Gb/s alone take 800 us.
        assert!((800_000_000..2_000_000_000).contains(&slow), "{slow} ps");
        assert!(queues.windows(2).all(|w| w[1].time_ps - w[0].time_ps <= 370_000_000), "samples are missing");
        assert!(fct("0.0001ms", start) == (slow, queues));
    }
}

#[test]
fn samples_change_nothing() {
    // In trees, whose boxes have two colours: with stops within the first window, and with control, a failure and threads.
    let dir = Dir::new("samples-change-nothing");
    let first_window = "[scenario]\nduration = \"1 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 2\nlink_delay = \"1 us\"\n\
                        [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\nstart = \"1 ns\"\n\
                        [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\nstart = \"1500 ns\"\n";
    let controlled = "[scenario]\nduration = \"1500 us\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nlink_delay = \"20 us\"\n\
                      routing = \"global-first-fit\"\n[control]\nperiod = \"10 us\"\n[[failure]]\n\
                      port = \"switch 9 port 1\"\nat = \"500 us\"\nuntil = \"1 ms\"\ndetection = \"100 us\"\n[[workload]]\n\
                      kind = \"permutation\"\npattern = \"random\"\nbytes = \"50 KB\"\n";
    for (world, text, count) in [("first-window", first_window, 2), ("controlled", controlled, 16)] {
        let run = |name: &str, record: &str, threads: usize| {
            let out = dir.0.join(format!("{world}{name}"));
            let text = format!("{text}[record]\n{record}");
            attempt(&load(&text, "samples", &dir.0).unwrap(), threads, Some(out.clone())).unwrap();
            let flows: Vec<FlowRow> = read(&out).unwrap();
            assert!(flows.len() == count && flows.iter().any(|f| f.fct_ps.is_some()), "{world}: {flows:?}");
            let ports: Vec<PortRow> = read(&out).unwrap();
            format!("{flows:#?}\n{ports:#?}")
        };
        let alone = run("", "", 1);
        for (interval, threads) in [("7 us", 1), ("100 ns", 1), ("7 us", 3), ("333333 ps", 3)] {
            let record = format!("queues = \"{interval}\"\n");
            assert!(run(&format!("{threads}{interval}"), &record, threads) == alone, "{world}: {interval}, {threads}");
        }
    }
}
