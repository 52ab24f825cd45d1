//! zCredit between the machines of simulated servers: the figures of Crisan 2014, chapter 5, from their scenario files, and what is
//! lost, stopped and refused on the way.

mod common;
mod worlds;

use sluicenet_lab::run::{Outcome, Stream};
use sluicenet_lab::scenario::Scenario;
use sluicenet_proto::loss::DropReason;
use std::path::{Path, PathBuf};
use worlds::{assert_same_bytes, attempt, execute};

fn figure(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/crisan2014").join(name)
}

/// Runs the file of a figure with these settings; its books are checked at the end, those of credits too.
fn run(name: &str, settings: &[&str], threads: usize, out: Option<PathBuf>) -> Outcome {
    let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
    let loaded = Scenario::load_with(figure(name), &settings).unwrap_or_else(|e| panic!("{e}"));
    attempt(&loaded, threads, out).unwrap_or_else(|e| panic!("{e}"))
}

/// The rate of a host's flows to another, in Mb/s.
fn rate(o: &Outcome, src: u32, dst: u32) -> f64 {
    let of = |s: &&Stream| (s.src_host, s.dst_host) == (src, dst);
    o.streams.each.iter().filter(of).map(|s| s.mbps).sum()
}

fn assert_lossless(o: &Outcome) {
    assert_eq!((o.totals.dropped, o.violations, o.flows.timeouts), (0, 0, 0), "{:?}", o.server_drops);
}

/// What a datagram flow that is alone gets: 1418 B of every 1538 B on a link of 10 Gb/s.
const ALONE: f64 = 10_000.0 * 1418.0 / 1538.0;

#[test]
fn figure_5_9_a_slow_receiver_stops_its_neighbour_under_pfc_alone_and_not_with_credits() {
    let pfc = run("fig-5-9.toml", &[], 1, None);
    assert_lossless(&pfc);
    let (victim, culprit) = (rate(&pfc, 0, 2), rate(&pfc, 1, 3));
    assert!((90.0..100.0).contains(&culprit), "{culprit}");
    assert!((0.9..1.1).contains(&(victim / culprit)), "the victim is as slow: {victim} and {culprit}");
    assert_eq!(pfc.received_max, None);

    let credits = run("fig-5-9.toml", &["zcredit.enabled=true"], 1, None);
    assert_lossless(&credits);
    let (victim, culprit) = (rate(&credits, 0, 2), rate(&credits, 1, 3));
    assert!((90.0..100.0).contains(&culprit), "{culprit}");
    let fair = ALONE - culprit;
    assert!(victim >= 0.95 * fair && victim <= fair, "{victim} of {fair}");
    // The slow machine's queue is as full as it may be.
    assert_eq!(credits.received_max, Some(512));
}

#[test]
fn figure_5_9_tcp_needs_no_credits_and_keeps_its_rate_with_them() {
    for enabled in [false, true] {
        let o = run("fig-5-9.toml", &["workload.0.transport=tcp", &format!("zcredit.enabled={enabled}")], 1, None);
        assert_lossless(&o);
        assert!(rate(&o, 0, 2) >= 0.95 * (ALONE - 100.0), "{enabled}: {}", rate(&o, 0, 2));
        assert!((90.0..100.0).contains(&rate(&o, 1, 3)), "{enabled}: {}", rate(&o, 1, 3));
    }
}

#[test]
fn figure_5_10_an_overloaded_link_takes_an_eighth_from_a_neighbour_under_pfc_and_half_is_its_own_with_credits() {
    let pfc = run("fig-5-10.toml", &[], 1, None);
    assert_lossless(&pfc);
    let victim = rate(&pfc, 3, 1);
    assert!((0.95..1.05).contains(&(victim / (ALONE / 8.0))), "{victim}");
    let credits = run("fig-5-10.toml", &["zcredit.enabled=true"], 1, None);
    assert_lossless(&credits);
    let [victim, near, far] = [(3, 1), (3, 2), (0, 2)].map(|(src, dst)| rate(&credits, src, dst));
    for (name, half) in [("the victim", victim), ("H4's four", near), ("H1's four", far)] {
        assert!(half >= 0.95 * ALONE / 2.0, "{name}: {half}");
    }
    // As many frames as a switch port holds are on their way at most: nobody is ever stopped.
    assert_eq!(credits.pauses, 0);
}

#[test]
fn figure_5_12_the_parking_lot_is_unfair_under_pfc_alone_and_fair_with_credits() {
    for transport in ["udp", "tcp"] {
        let run = |enabled: bool| {
            let settings = [format!("workload.0.transport={transport}"), format!("zcredit.enabled={enabled}")];
            let o = run("fig-5-12-parking-lot.toml", &settings.each_ref().map(String::as_str), 1, None);
            assert_lossless(&o);
            o
        };
        let pfc = run(false);
        // Half of the link for the near one: (1/2 + 4/8)^2 / 5 (1/4 + 4/64) = 0.64.
        assert!((0.6..0.68).contains(&pfc.streams.jain), "{transport}: {:?}", pfc.streams);
        assert!((0.48..0.52).contains(&(rate(&pfc, 3, 2) / pfc.streams.total_mbps)), "{transport}: {:?}", pfc.streams);
        let credits = run(true);
        assert!(credits.streams.jain >= 0.99, "{transport}: {:?}", credits.streams);
        assert!(credits.streams.total_mbps >= 0.95 * pfc.streams.total_mbps, "{transport}: {:?}", credits.streams);
        let sources: Vec<(u32, u8)> = credits.streams.each.iter().map(|s| (s.src_host, s.src_vm)).collect();
        assert_eq!(sources, [(0, 0), (0, 1), (0, 2), (0, 3), (3, 0)], "each of a machine of its own");
    }
}

#[test]
fn figure_5_12_sixteen_flows_stay_fair_with_credits() {
    for transport in ["udp", "tcp"] {
        let settings = ["zcredit.enabled=true".to_string(), format!("workload.0.transport={transport}")];
        let o = run("fig-5-12-sixteen.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_lossless(&o);
        assert!(o.streams.count == 16 && o.streams.jain >= 0.99, "{transport}: {:?}", o.streams);
    }
}

#[test]
fn a_receive_queue_is_never_longer_than_it_may_be() {
    for (queue, batch) in [(1, 1), (3, 2), (64, 8), (200, 200)] {
        let settings = [
            "zcredit.enabled=true".to_string(),
            "scenario.duration=\"40 ms\"".into(),
            "scenario.warmup=\"10 ms\"".into(),
            format!("zcredit.rx_queue={queue}"),
            format!("zcredit.batch={batch}"),
        ];
        let o = run("fig-5-9.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_lossless(&o);
        // The slow machine's fills up: but for what is on its way at the end of a grant, and no further.
        let longest = o.received_max.expect("credits");
        assert!(longest <= queue && longest * 10 >= queue * 9, "{longest} of {queue}");
        assert!(rate(&o, 0, 2) > 0.0 && rate(&o, 1, 3) > 0.0, "{queue}: {:?}", o.streams);
    }
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    for name in ["fig-5-9.toml", "fig-5-10.toml"] {
        let settings = ["zcredit.enabled=true", "scenario.duration=\"20 ms\"", "scenario.warmup=\"5 ms\""];
        assert_same_bytes(&format!("{name}-credits"), |threads, dir| {
            drop(run(name, &settings, threads, Some(dir.0.clone())));
        });
    }
}

/// Eleven machines answer one, all at the same time, over one switch.
fn incast(flow_control: &str, link: &str, transport: &str) -> String {
    format!(
        r#"
        [scenario]
        parameters = "crisan2014-ch3"
        flow_control = "{flow_control}"
        duration = "2 s"
        [topology]
        kind = "single-switch"
        hosts = 12
        {link}
        [vswitch]
        slots = 32
        [zcredit]
        enabled = true
        rx_queue = 40
        [[workload]]
        kind = "incast"
        senders = 11
        receiver = 11
        bytes = "120 KB"
        rounds = 10
        gap = "50 us"
        transport = "{transport}"
        "#
    )
}

#[test]
fn messages_that_are_lost_with_the_frames_stop_nobody() {
    // One frame of 140 is damaged on its way, and one message of 1,700. More are lost than there are credits: they come back.
    let o = execute(&incast("ZZ", "bit_error_rate = 3e-7", "tcp"), 1, None);
    assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 10);
    let bad = o.server_drops.frames(DropReason::BadCrc);
    assert!(bad > 40, "{bad}");
    assert_eq!(o.totals.dropped, bad, "nothing else is lost: {:?}", o.server_drops);
    assert!(o.received_max <= Some(40));
}

#[test]
fn in_a_lossy_network_credits_lose_nothing_that_fits_on_the_way() {
    // 40 frames are what may be on its way to a machine, and a switch port holds 66.
    for flow_control in ["LL", "LZ", "ZL", "ZZ"] {
        let o = execute(&incast(flow_control, "", "udp"), 1, None);
        assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 10, "{flow_control}");
        assert_lossless(&o);
        let without = execute(&incast(flow_control, "", "udp").replace("enabled = true", "enabled = false"), 1, None);
        let loses = flow_control.ends_with('L');
        assert_eq!(without.totals.dropped > 0, loses, "{flow_control}: {:?}", without.switch_drops);
    }
}

#[test]
fn machines_of_one_server_need_credits_of_each_other_too() {
    let text = r#"
        [scenario]
        parameters = "crisan2014-ch3"
        flow_control = "ZZ"
        [topology]
        kind = "single-switch"
        hosts = 4
        [server]
        vms = 3
        [zcredit]
        enabled = true
        rx_queue = 20
        [[workload]]
        kind = "partition-aggregate"
        layout = "crisan2014-ch4"
        queries = 60
        message = "20 KB"
        inter_arrival = { kind = "exponential", mean = "30 us" }
    "#;
    let o = execute(text, 1, None);
    assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 60);
    assert_lossless(&o);
    assert!((2..=20).contains(&o.received_max.expect("credits")), "{:?}", o.received_max);
}
