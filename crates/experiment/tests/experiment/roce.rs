//! Queue pairs of RoCE in whole worlds, with and without DCQCN (Zhu et al. 2015).

use crate::worlds::{assert_same_bytes, attempt, execute, flows, load};
use sluicenet_experiment::run::Outcome;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::rng::Rng;
use sluicenet_records::{LimiterRow, QueueRow, read};
use sluicenet_testkit::{Dir, repository};

/// The marks of the paper, for priority 3.
const MARKS: &str = "[[wred]]\npriorities = [3]\ngreen_min_threshold = \"5 KB\"\ngreen_max_threshold = \"200 KB\"\n\
                     green_drop_probability = 1\nwred_green_enable = false\necn = \"ecn_all\"\n";
/// PFC for priority 3, as on the paper's switches.
const PFC: &str = "[pfc]\nenabled = true\nlossless = [3]\n[buffer]\nsize = \"12 MB\"\n";

/// Senders at the ports of one switch at 40 Gb/s, each with a queue pair to the last host.
fn into_one(senders: u32, bytes: &str, sections: &str) -> String {
    let flow = |src| {
        format!(
            "[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {senders}\n{bytes}transport = \"roce\"\npriority = 3\n"
        )
    };
    let flows: String = (0..senders).map(flow).collect();
    format!(
        "[scenario]\nduration = \"60 ms\"\nwarmup = \"30 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = {}\n\
         link_rate = \"40 Gb/s\"\n{sections}{flows}[record]\nqueues = \"10 us\"\n\
         queue_ports = [\"switch 0 port {senders}\"]\nlimiters = \"1 ms\"\n",
        senders + 1
    )
}

fn dcqcn(enabled: bool) -> String {
    format!("{PFC}{MARKS}[dcqcn]\nenabled = {enabled}\n")
}

/// A scenario of this repository with other settings.
fn zhu(file: &str, overrides: &[&str]) -> Outcome {
    let path = repository("scenarios/zhu2015").join(file);
    let text = std::fs::read_to_string(&path).expect("a scenario");
    let set: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let folder = path.parent().expect("a folder");
    let loaded =
        sluicenet_scenario::Scenario::parse_in(&text, file, Some(folder), &set).unwrap_or_else(|e| panic!("{e}"));
    attempt(&loaded, 1, None).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_queue_pair_fills_its_link() {
    let outcome = execute(&into_one(1, "", PFC), 1, None);
    // The payload of every frame, of all bytes that it takes on the link.
    let line = 40_000.0 * 1024.0 / (14.0 + 20.0 + 8.0 + 12.0 + 1024.0 + 4.0 + 4.0 + 20.0);
    let rate = outcome.streams.total_mbps;
    assert!((rate / line - 1.0).abs() < 1e-3, "{rate} of {line} Mb/s");
    assert_eq!((outcome.totals.dropped, outcome.pauses, outcome.flows.retransmissions), (0, 0, 0));
}

#[test]
fn dcqcn_shares_a_link_fairly_with_a_short_queue_and_without_pauses() {
    for senders in [2, 8] {
        let run = |enabled| {
            let dir = Dir::new(&format!("roce-fair-{senders}-{enabled}"));
            let outcome = execute(&into_one(senders, "", &dcqcn(enabled)), 1, Some(dir.0.clone()));
            assert_eq!(outcome.totals.dropped, 0);
            assert_eq!((outcome.flows.timeouts, outcome.flows.retransmissions), (0, 0));
            (outcome, dir)
        };
        let ((pfc, _), (controlled, dir)) = (run(false), run(true));
        assert!(pfc.pauses > 1_000 && controlled.pauses == 0, "{} and {} pauses", pfc.pauses, controlled.pauses);
        assert!(pfc.marked == 0 && controlled.marked > 0);
        let streams = &controlled.streams;
        assert!(streams.jain > 0.97, "{senders} senders: {}", streams.jain);
        assert!(streams.total_mbps > 35_000.0, "{senders} senders: {} Mb/s", streams.total_mbps);
        // All queue pairs have a limiter, and their rates are those of the link.
        let rows: Vec<LimiterRow> = read(&dir.0).unwrap();
        let last = rows.iter().map(|row| row.time_ps).max().unwrap();
        let rates: Vec<u64> = rows.iter().filter(|row| row.time_ps == last).map(|row| row.rate_bps).collect();
        let sum = rates.iter().sum::<u64>() as f64 / 1e9;
        assert!(rates.len() == senders as usize && (30.0..50.0).contains(&sum), "{rates:?}");
    }
}

/// The mean queue of `n` flows after the warm-up, in bytes.
fn mean_queue(n: u32) -> f64 {
    let dir = Dir::new(&format!("roce-queue-{n}"));
    execute(&into_one(n, "", &dcqcn(true)), 1, Some(dir.0.clone()));
    let rows: Vec<QueueRow> = read(&dir.0).unwrap();
    let settled: Vec<f64> = rows.iter().filter(|r| r.time_ps >= 30_000_000_000).map(|r| r.bytes as f64).collect();
    settled.iter().sum::<f64>() / settled.len() as f64
}

/// Zhu et al. 2015, section 5: the marking probability at which the fluid model stands still, and with it the queue. The values
/// are those of `scripts/dcqcn_fluid.py`.
#[test]
fn the_mean_queue_of_few_flows_is_near_the_fluid_models() {
    for (n, model) in [(2, 21_800.0), (4, 45_700.0)] {
        let mean = mean_queue(n);
        assert!((0.7..1.5).contains(&(mean / model)), "{n} flows: {mean} B, the model {model} B");
    }
}

#[test]
fn pfc_alone_favours_the_near_sender_and_dcqcn_does_not() {
    let short = ["scenario.duration=\"30 ms\"", "scenario.warmup=\"10 ms\"", "scenario.seed=2"];
    let run = |enabled: &str| {
        let set: Vec<&str> = short.iter().copied().chain([enabled]).collect();
        zhu("unfairness.toml", &set)
    };
    let (pfc, controlled) = (run("dcqcn.enabled=false"), run("dcqcn.enabled=true"));
    let rates = |o: &Outcome| o.streams.each.iter().map(|s| s.mbps).collect::<Vec<f64>>();
    let (unfair, fair) = (rates(&pfc), rates(&controlled));
    // Figure 3: H4 has an input of T4 for itself. With this seed the others share one input.
    assert!(unfair[..3].iter().all(|&rate| unfair[3] > 1.9 * rate), "{unfair:?}");
    assert!((unfair[3] / 18_500.0 - 1.0).abs() < 0.02, "half of the link: {unfair:?}");
    // Figure 8.
    assert!(fair.iter().all(|&rate| (8_000.0..10_500.0).contains(&rate)), "{fair:?}");
    assert!(pfc.pauses > 1_000 && controlled.pauses == 0);
}

#[test]
fn pauses_of_another_rack_slow_a_victim_and_dcqcn_spares_it() {
    let victim = |enabled: &str| {
        let short = ["scenario.duration=\"30 ms\"", "scenario.warmup=\"10 ms\"", "workload.1.file=\"victim-2.txt\""];
        let set: Vec<&str> = short.iter().copied().chain([enabled]).collect();
        zhu("victim.toml", &set).streams.each.iter().find(|s| s.dst_host == 9).expect("VS to VR").mbps
    };
    let (pfc, controlled) = (victim("dcqcn.enabled=false"), victim("dcqcn.enabled=true"));
    assert!(pfc < 6_500.0 && controlled > 2.0 * pfc, "{pfc} and {controlled} Mb/s");
}

/// 64 senders into one host, beside a victim from another sender to another host of the receiver's leaf. 128 hosts, eight
/// spines, no oversubscription.
fn incast_beside_a_victim(gbps: u64, routing: &str) -> String {
    let flow = "bytes = \"256 KB\"\ntransport = \"roce\"\npriority = 3\n";
    format!(
        "[topology]\nkind = \"xgft\"\nm = [32, 4]\nw = [1, 8]\nlink_rate = \"{gbps} Gb/s\"\nrouting = \"{routing}\"\n\
         [[topology.level]]\nlevel = 2\nrate = \"{} Gb/s\"\n{PFC}[[workload]]\nkind = \"incast\"\nsenders = \"16-79\"\n\
         receiver = 0\n{flow}[[workload]]\nkind = \"flow\"\nsrc = 80\ndst = 1\n{flow}",
        4 * gbps
    )
}

#[test]
fn early_packets_stop_no_link_so_that_a_sprayed_incast_takes_as_long_as_its_last_link_needs() {
    // 250 packets of 1,106 B on the wire, and 16 B more in the first.
    let message = 250 * (1024 + 82) + 16;
    for (gbps, ps_per_byte) in [(10, 800), (100, 80)] {
        for routing in ["ecmp", "spray"] {
            let outcome = execute(&incast_beside_a_victim(gbps, routing), 1, None);
            let round = outcome.queries[0].completion_ps.expect("the incast ends");
            let link = 64 * message * ps_per_byte;
            // The first packet's way is 0.2 %.
            assert!((link..link + link / 400).contains(&round), "{gbps} Gb/s, {routing}: {round} ps, not {link} ps");
            // Pauses end with the incast: the victim has its own message left at most.
            let victim = outcome.flow_fct_ps[0];
            assert!(victim < round + message * ps_per_byte, "{gbps} Gb/s, {routing}: {victim} ps beside {round} ps");
            let flows = outcome.flows;
            assert_eq!((flows.retransmissions, flows.timeouts, outcome.totals.dropped), (0, 0, 0), "{routing}");
        }
    }
}

#[test]
fn without_pfc_go_back_n_delivers_every_message() {
    let lossy = "[switch]\nbuffer = \"20 KB\"\n[roce]\ntimeout = \"500 us\"\nack_every = 4\n";
    let text = into_one(4, "bytes = \"3000001 B\"\n", lossy).replace("duration = \"60 ms\"\nwarmup = \"30 ms\"\n", "");
    let outcome = execute(&text, 1, None);
    assert!(outcome.switch_drops.frames(DropReason::SwitchBuffer) > 1_000);
    assert!(outcome.flows.retransmissions > 1_000, "{:?}", outcome.flows);
    let rows = flows(&text, "roce-lossy");
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|f| f.fct_ps.is_some() && f.delivered_bytes == 3_000_001));
    // Links that damage frames, acknowledgments among them.
    let damaged = "[pfc]\nenabled = true\nlossless = [3]\n[roce]\ntimeout = \"500 us\"\n";
    let text = into_one(2, "bytes = \"3 MB\"\n", damaged).replace("duration = \"60 ms\"\nwarmup = \"30 ms\"\n", "");
    let text = text.replace("hosts = 3\n", "hosts = 3\nbit_error_rate = 1e-7\n");
    let rows = flows(&text, "roce-damaged");
    assert!(rows.iter().all(|f| f.fct_ps.is_some() && f.delivered_bytes == 3_000_000), "{rows:?}");
    assert!(rows.iter().map(|f| f.retransmissions).sum::<u32>() > 0);
}

/// Many short flows in both directions, each with a queue pair of its own that ends with it.
#[test]
fn queue_pairs_come_and_go() {
    let text = format!(
        "[topology]\nkind = \"single-switch\"\nhosts = 6\nlink_rate = \"40 Gb/s\"\n{}[[workload]]\nkind = \"shuffle\"\n\
         bytes = \"20 KB\"\nat_a_time = 2\ntransport = \"roce\"\npriority = 3\n[[workload]]\nkind = \"incast\"\nsenders = 5\n\
         receiver = 5\nbytes = \"10 KB\"\nrounds = 20\nconnections = \"new\"\ntransport = \"roce\"\npriority = 3\n",
        dcqcn(true)
    );
    let rows = flows(&text, "roce-many");
    assert_eq!(rows.len(), 6 * 5 + 20 * 5);
    assert!(rows.iter().all(|f| f.fct_ps.is_some()), "all of them end");
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    let mut rng = Rng::from_words(&[2015]);
    for case in 0..4 {
        let (seed, enabled) = (rng.below(1 << 32), case > 0);
        let routing = if case == 3 { "spray" } else { "ecmp" };
        let pfc = if case == 2 { "[switch]\nbuffer = \"30 KB\"\n" } else { PFC };
        let text = format!(
            "[scenario]\nseed = {seed}\nduration = \"3 ms\"\n[topology]\nkind = \"k-ary-n-tree\"\nk = 2\nn = 3\n\
             routing = \"{routing}\"\nlink_rate = \"40 Gb/s\"\n{pfc}{MARKS}[dcqcn]\nenabled = {enabled}\n\
             [roce]\ntimeout = \"200 us\"\n[[workload]]\nkind = \"permutation\"\npattern = \"hotspot(2)\"\n\
             transport = \"roce\"\npriority = 3\n\
             [record]\nlimiters = \"500 us\"\npauses = true\nqueues = \"10 us\"\npcapng = [\"host 1\"]\n"
        );
        assert_same_bytes(&format!("roce-{case}"), |threads, dir| drop(execute(&text, threads, Some(dir.0.clone()))));
    }
}

#[test]
fn a_lowest_rate_above_the_links_is_refused() {
    let text = into_one(1, "", &format!("{MARKS}[dcqcn]\nenabled = true\nrpg_min_rate = \"41 Gb/s\"\n"));
    let loaded = load(&text, "test", std::path::Path::new(".")).expect("a scenario");
    let error = attempt(&loaded, 1, None).map(|_| ()).expect_err("no such rate").to_string();
    assert!(error.contains("above the rate of a server's link"), "{error}");
}
