//! zFabric between the machines of simulated servers: the figures of Crisan 2014, chapter 5, from their scenario files.
//! Further tests cover frames that are lost, stopped and refused on the way.

use crate::worlds::{assert_same_bytes, attempt, execute, flows, load};
use sluicenet_experiment::run::{Outcome, Stream};
use sluicenet_proto::loss::DropReason;
use sluicenet_scenario::Scenario;
use std::path::{Path, PathBuf};

fn figure(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/crisan2014").join(name)
}

/// Runs the file of a figure with these settings; checks its sums at the end, those of credits too.
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

/// Rate of a lone TCPlight flow, in Mb/s: 1406 B of every 1538 B on a link of 10 Gb/s.
const ALONE: f64 = 10_000.0 * 1406.0 / 1538.0;

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

/// The shared link is full of frames for a receiver that sixteen bursts keep busy, and paused, although they are little of it.
#[test]
fn low_rate_bursts_take_their_neighbours_link_under_pfc_alone_and_not_with_credits() {
    let [pfc, credits] = [false, true].map(|enabled| {
        let o = run("../hostile/lordma.toml", &[&format!("zcredit.enabled={enabled}")], 1, None);
        assert_lossless(&o);
        o
    });
    // Two bursts of 128 KB, 1418 B of payload in every 1538 B, in each 4 ms and the time that a round takes.
    let times: Vec<u64> = pfc.queries.iter().filter_map(|q| q.completion_ps).collect();
    let round = 4e-3 + times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e12;
    let taken = 2.0 * 128e3 * 8.0 / round / 1e6 * 1538.0 / 1418.0;
    assert!(taken < 0.04 * 10_000.0, "the bursts are at a low rate: {taken} Mb/s");
    let fair = ALONE * (1.0 - taken / 10_000.0);
    assert!(rate(&pfc, 16, 17) < 0.8 * fair, "{} of {fair}", rate(&pfc, 16, 17));
    assert!(rate(&credits, 16, 17) > 0.95 * fair, "{} of {fair}", rate(&credits, 16, 17));
    assert!(pfc.pauses > 0 && credits.pauses == 0, "{} and {} pauses", pfc.pauses, credits.pauses);
}

/// Two machines behind a link of 100 Mb/s and one behind 10 Gb/s send to one receiver. A slow sender holds no more
/// credits than its part.
#[test]
fn slow_senders_leave_a_receivers_credits_to_a_fast_one() {
    for queue in [64, 512] {
        let settings = ["zcredit.enabled=true".to_string(), format!("zcredit.rx_queue={queue}")];
        let o = run("../hostile/slow-senders.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_lossless(&o);
        let (fast, slow) = (rate(&o, 3, 2), rate(&o, 0, 2));
        let fair = ALONE - slow;
        assert!(fast >= 0.95 * fair && slow >= 0.95 * ALONE / 100.0, "{queue}: {fast} of {fair}, {slow}");
        assert!(o.received_max <= Some(queue));
    }
}

/// Four receivers take next to nothing from one machine: the fifth receiver has the same rate as without them.
#[test]
fn receivers_that_hardly_take_anything_stop_no_other_of_their_sender() {
    let o = run("../hostile/stopped-receivers.toml", &[], 1, None);
    assert_lossless(&o);
    assert!(rate(&o, 0, 5) >= 0.95 * ALONE, "{}", rate(&o, 0, 5));
    assert!((1..=4).all(|dst| rate(&o, 0, dst) > 0.8), "{:?}", o.streams);
    // However many they are, there is a place left.
    let many = run("../hostile/many-stopped-receivers.toml", &[], 1, None);
    assert_lossless(&many);
    assert!(rate(&many, 0, 1) >= 0.4 * ALONE, "{}", rate(&many, 0, 1));
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
    for transport in ["tcplight", "tcp"] {
        let settings = ["zcredit.enabled=true".to_owned(), format!("workload.0.transport={transport}")];
        let credits = run("fig-5-10.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_lossless(&credits);
        let [victim, near, far] = [(3, 1), (3, 2), (0, 2)].map(|(src, dst)| rate(&credits, src, dst));
        for (name, half) in [("the victim", victim), ("H4's four", near), ("H1's four", far)] {
            assert!(half >= 0.95 * ALONE / 2.0, "{transport}, {name}: {half}");
        }
        // At most as many frames as a switch port holds are on their way: no sender is ever stopped.
        assert_eq!(credits.pauses, 0, "{transport}");
    }
}

#[test]
fn figure_5_12_the_parking_lot_is_unfair_under_pfc_alone_and_fair_with_credits() {
    for transport in ["tcplight", "udp", "tcp"] {
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
    for transport in ["tcplight", "udp", "tcp"] {
        let settings = ["zcredit.enabled=true".to_string(), format!("workload.0.transport={transport}")];
        let o = run("fig-5-12-sixteen.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_lossless(&o);
        assert!(o.streams.count == 16 && o.streams.jain >= 0.99, "{transport}: {:?}", o.streams);
    }
}

#[test]
fn figure_5_12_tcp_and_tcplight_share_a_link_fairly_with_credits_alone() {
    for name in ["fig-5-12-parking-lot-mixed.toml", "fig-5-12-sixteen-mixed.toml"] {
        let credits = run(name, &["zcredit.enabled=true"], 1, None);
        assert_lossless(&credits);
        assert!(credits.streams.jain >= 0.99, "{name}: {:?}", credits.streams);
        let light = credits.streams.each.iter().filter(|s| s.transport == "tcplight").count();
        assert_eq!(light as u64, if credits.streams.count == 5 { 1 } else { 8 }, "{name}");
    }
    let pfc = run("fig-5-12-parking-lot-mixed.toml", &[], 1, None);
    assert!(pfc.streams.jain < 0.9, "{:?}", pfc.streams);
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
        // The slow machine's receive queue fills up, but for frames that are on their way at the end of a grant, and no
        // further.
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
    let text = incast("ZZ", "bit_error_rate = 3e-7", "tcp").replace("duration = \"2 s\"", "duration = \"8 s\"");
    let o = execute(&text, 1, None);
    assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 10);
    let bad = o.server_drops.frames(DropReason::BadCrc);
    assert!(bad > 40, "{bad}");
    assert_eq!(o.totals.dropped, bad, "nothing else is lost: {:?}", o.server_drops);
    assert!(o.received_max <= Some(40));
}

#[test]
fn in_a_lossy_network_credits_lose_nothing_that_fits_on_the_way() {
    // At most 40 frames may be on their way to a machine, and a switch port holds 66.
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

/// A scenario of two machines on two servers, without its transport.
fn pair(network: &str, transport: &str) -> String {
    format!(
        r#"
        [scenario]
        parameters = "crisan2014-ch3"
        {network}
        [topology]
        kind = "single-switch"
        hosts = 2
        [server]
        vms = 1
        [[workload]]
        kind = "flow"
        src = 0
        dst = 1
        bytes = "30 MB"
        transport = "{transport}"
        "#
    )
}

#[test]
fn tcplight_sends_what_it_was_given_by_a_handshake_and_says_nothing_more() {
    let text = pair("flow_control = \"ZZ\"", "tcplight");
    let o = execute(&text, 1, None);
    assert_lossless(&o);
    let segments = 30_000_000u64.div_ceil(1406);
    // Each direction has a segment to open it and one to close it; the last of the data closes it here. There is a
    // limit for every 8 MB that were read.
    let said = o.totals.sent - segments;
    assert!(o.flows.finished == 1 && (3..=8).contains(&said), "{said} segments besides {segments} of data");
    let tcp = execute(&pair("flow_control = \"ZZ\"", "tcp"), 1, None);
    assert!(tcp.totals.sent > segments * 14 / 10, "TCP acknowledges every second one: {}", tcp.totals.sent);
    // Over a machine's own port a flow gets the line rate of 10 Gb/s: nothing probes the network first.
    let fct = o.flow_fct_ps[0] as f64 / 1e12;
    let ideal = 30e6 * 8.0 * 1538.0 / 1406.0 / 10e9;
    assert!(fct < ideal * 1.02 + 200e-6, "{fct} s beside {ideal}");
    assert!(o.flow_fct_ps[0] < tcp.flow_fct_ps[0]);
}

#[test]
fn tcplight_is_refused_where_frames_are_lost_and_nothing_repairs_that() {
    let refused = |network: &str| {
        let text = pair(network, "tcplight");
        let error = load(&text, "test", Path::new(".")).expect_err(network).to_string();
        assert!(error.contains("test:1") && error.contains("tcplight"), "{network}: the line of it: {error}");
        error
    };
    for (network, what) in [
        ("", "virtual switches drop"),
        ("flow_control = \"LZ\"", "virtual switches drop"),
        ("flow_control = \"ZL\"", "switches drop frames of its priority"),
        ("hypervisor = \"lossy\"", "virtual switches drop"),
        ("flow_control = \"ZZ\"\n[pfc]\nlossless = [3]", "switches drop frames of its priority"),
        ("flow_control = \"LL\"\n[zbridge]\nenabled = true", "virtual switches drop"),
    ] {
        assert!(refused(network).contains(what), "{network}: {}", refused(network));
    }
    let damaged = pair("flow_control = \"ZZ\"", "tcplight").replace("hosts = 2", "hosts = 2\nbit_error_rate = 1e-9");
    let error = load(&damaged, "test", Path::new(".")).expect_err("damaged").to_string();
    assert!(error.contains("links damage frames"), "{error}");
    for accepted in
        ["flow_control = \"ZZ\"", "hypervisor = \"zfabric\"", "flow_control = \"ZL\"\n[zbridge]\nenabled = true"]
    {
        assert!(load(&pair(accepted, "tcplight"), "test", Path::new(".")).is_ok(), "{accepted}");
    }
    for (text, what) in [
        (pair("flow_control = \"ZZ\"\nhypervisor = \"pfc\"", "tcp"), "lossless, too"),
        (pair("hypervisor = \"pfc\"\n[zcredit]\nenabled = true", "tcp"), "no zFabric"),
        (pair("[zbridge]\nperiod = 100\nbuffer = 150", "tcp"), "less than two periods"),
        (pair("[zbridge]\nenabled = true\n[adapter]\nresequencing = true", "tcp"), "zBridge puts frames in order"),
        (pair("[zbridge]\nenabled = true\n[overlay]\nmtu = \"1446 B\"", "tcp"), "overlay.mtu is at most 1424 B"),
    ] {
        let error = load(&text, "test", Path::new(".")).expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn queries_over_tcplight_are_answered_and_connections_close() {
    for connections in ["persistent", "per-query"] {
        let text = format!(
            r#"
            [scenario]
            parameters = "crisan2014-ch3"
            flow_control = "ZZ"
            [topology]
            kind = "single-switch"
            hosts = 4
            [[workload]]
            kind = "partition-aggregate-2"
            workers = 3
            response = "50 KB"
            queries = 40
            connections = "{connections}"
            transport = "tcplight"
            "#
        );
        let o = execute(&text, 1, None);
        assert_lossless(&o);
        assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 40, "{connections}");
        assert_eq!(o.flows.started, o.flows.finished, "{connections}");
    }
}

/// Asserts that zBridge repairs links that damage frames: each frame is delivered once, in its order, and none is lost.
fn assert_repaired(o: &Outcome, what: &str) {
    let z = o.zbridge.expect("zBridge");
    let bad = o.server_drops.frames(DropReason::BadCrc);
    let other: u64 = o.server_drops.total_frames() - bad;
    assert_eq!((other, o.switch_drops.total_frames(), o.violations), (0, 0, 0), "{what}: {z:?}");
    // Frames that are on their way when the run ends are neither lost nor delivered.
    assert!(z.delivered <= z.sent && z.sent - z.delivered <= 4096, "{what}: {z:?}");
    assert!(z.resent <= z.sent / 4, "{what}: {z:?}");
}

#[test]
fn figure_5_15_nothing_is_lost_twice_or_out_of_order_at_any_bit_error_rate() {
    // A stream of TCPlight ends by itself when something is missing, comes twice or early: that it ends in order is the test.
    for rate in ["0", "1e-12", "1e-10", "1e-9", "1e-8", "1e-7", "1e-6"] {
        for network in ["hypervisor = \"zfabric\"", "flow_control = \"ZZ\"\n[zbridge]\nenabled = true"] {
            let text = pair(network, "tcplight").replace("hosts = 2", &format!("hosts = 2\nbit_error_rate = {rate}"));
            let o = execute(&text, 1, None);
            assert_repaired(&o, &format!("{rate} {network}"));
            assert_eq!((o.flows.started, o.flows.finished), (1, 1), "{rate} {network}");
            let z = o.zbridge.expect("zBridge");
            assert!(z.sent - z.delivered < 64, "{rate} {network}: {z:?}");
            if rate == "1e-6" {
                let bad = o.server_drops.frames(DropReason::BadCrc);
                assert!(bad > 300 && z.resent > 300, "{rate} {network}: {bad} damaged, {z:?}");
            }
        }
    }
}

#[test]
fn figure_5_15_a_bit_error_rate_of_1e_9_costs_less_than_a_twentieth() {
    let run = |rate: &str| {
        let settings = [format!("topology.bit_error_rate={rate}"), "zbridge.period=1024".into()];
        let o = run("fig-5-15-tcplight.toml", &settings.each_ref().map(String::as_str), 1, None);
        assert_repaired(&o, rate);
        (rate_of(&o), o.zbridge.expect("zBridge").resent)
    };
    let ((clean, none), (damaged, some)) = (run("0"), run("1e-9"));
    assert!(none == 0 && some > 10, "{none} and {some} frames again");
    assert!(damaged >= 0.95 * clean && clean > 8_000.0, "{damaged} of {clean} Mb/s");
}

/// The rate of the only flow, in Mb/s.
fn rate_of(o: &Outcome) -> f64 {
    o.streams.total_mbps
}

#[test]
fn where_frames_overtake_each_other_zbridge_puts_them_in_order() {
    let text = r#"
        [scenario]
        parameters = "crisan2014-ch3"
        flow_control = "ZZ"
        [topology]
        kind = "xgft"
        m = [4, 4]
        w = [1, 4]
        routing = "random"
        bit_error_rate = 1e-8
        [zbridge]
        enabled = true
        timeout = "2 ms"
        [[workload]]
        kind = "permutation"
        pattern = "random"
        bytes = "2 MB"
        transport = "tcplight"
    "#;
    let o = execute(text, 1, None);
    assert_repaired(&o, "random");
    assert_eq!((o.flows.started, o.flows.finished), (16, 16));
    let z = o.zbridge.expect("zBridge");
    // A gap alone says nothing here. Frames that are asked for with every 1,024th frame, and are only late, are sent
    // again for nothing. No other frames are.
    assert!(
        o.server_drops.frames(DropReason::BadCrc) > 0 && z.duplicates <= z.resent && z.resent * 10 < z.sent,
        "{z:?}"
    );
}

#[test]
fn the_cold_start_costs_one_round_trip_and_no_more() {
    let time = |settings: &str| {
        let text = format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\n{settings}[topology]\nkind = \"single-switch\"\n\
             hosts = 2\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1000 B\"\ntransport = \"udp\"\n"
        );
        let flows = flows(&text, "cold-start");
        flows[0].fct_ps.expect("it came") as f64 / 1e6
    };
    let (credits, zbridge) = ("[zcredit]\nenabled = true\n", "[zbridge]\nenabled = true\n");
    let (alone, asked, greeted) = (time(""), time(credits), time(zbridge));
    let both = time(&format!("{credits}{zbridge}"));
    println!("{alone} us, with credits {asked}, with zBridge {greeted}, with both {both}");
    assert!(alone + 3.0 < asked.min(greeted));
    // The request and the greeting are a frame each on the wire.
    assert!(both < asked.max(greeted) + 0.2, "{both}");
}

#[test]
fn zbridge_writes_the_same_bytes_on_any_number_of_threads() {
    let settings = ["topology.bit_error_rate=1e-7", "scenario.duration=\"20 ms\"", "scenario.warmup=\"5 ms\""];
    assert_same_bytes("zbridge", |threads, dir| {
        drop(run("fig-5-15-tcplight.toml", &settings, threads, Some(dir.0.clone())));
    });
}

#[test]
fn figure_5_3_a_tcp_tunnel_keeps_a_slow_receiver_from_stopping_its_neighbour() {
    for transport in ["udp", "tcplight"] {
        let run = |hypervisor: &str| {
            let settings = [format!("workload.0.transport={transport}"), format!("scenario.hypervisor={hypervisor}")];
            let o = run("fig-5-3.toml", &settings.each_ref().map(String::as_str), 1, None);
            assert_eq!((o.totals.dropped, o.violations), (0, 0), "{transport} {hypervisor}: {:?}", o.server_drops);
            let (victim, culprit) = (rate(&o, 0, 2), rate(&o, 1, 3));
            assert!((88.0..100.0).contains(&culprit), "{transport} {hypervisor}: {culprit}");
            victim
        };
        let (pfc, tunnel, zfabric) = (run("pfc"), run("tcp"), run("zfabric"));
        assert!(pfc < 120.0, "{transport}: {pfc}");
        assert!(
            tunnel >= 0.9 * ALONE && zfabric >= 0.9 * ALONE,
            "{transport}: {tunnel} in tunnels, {zfabric} over zFabric"
        );
    }
}

#[test]
fn a_tcp_tunnel_brings_every_frame_once_and_in_order_whatever_the_network_does() {
    for (network, rate) in [("flow_control = \"ZZ\"", "0"), ("flow_control = \"ZL\"", "1e-7")] {
        let text = pair(&format!("{network}\n[overlay]\ntransport = \"tcp\""), "tcplight");
        let o = execute(&text.replace("hosts = 2", &format!("hosts = 2\nbit_error_rate = {rate}")), 1, None);
        assert_eq!((o.flows.started, o.flows.finished, o.violations), (1, 1, 0), "{network}");
        assert_eq!(o.totals.dropped > 0, rate != "0", "{network}: {:?}", o.server_drops);
        // A segment of the tunnel is as long as a frame, and every second one is acknowledged.
        let segments = 30_000_000u64.div_ceil(1406);
        assert!(o.hops > 2 * segments, "{} hops", o.hops);
    }
    for (text, what) in [
        (pair("hypervisor = \"zfabric\"\n[overlay]\ntransport = \"tcp\"", "tcp"), "says what is between servers"),
        (pair("[overlay]\ntransport = \"tcp\"\n[zbridge]\nenabled = true", "tcp"), "so does zBridge"),
        (pair("[overlay]\ntransport = \"tcp\"\nenabled = false", "tcp"), "needs an overlay"),
    ] {
        let error = load(&text, "test", Path::new(".")).expect_err(what).to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
}

#[test]
fn figure_5_14_what_is_lost_costs_a_query_most_and_credits_cost_it_a_round_trip() {
    let time = |name: &str, hypervisor: &str, response: &str| {
        let settings = [
            format!("scenario.hypervisor={hypervisor}"),
            format!("workload.0.response={response}"),
            "workload.0.queries=30".into(),
        ];
        let o = run(name, &settings.each_ref().map(String::as_str), 1, None);
        let times: Vec<u64> = o.queries.iter().filter_map(|q| q.completion_ps).collect();
        assert_eq!(times.len(), 30, "{name} {hypervisor}: every query is answered");
        times.iter().sum::<u64>() as f64 / times.len() as f64 / 1e6
    };
    // 128 segments of each: more than the network holds.
    let large = |name: &str, hypervisor: &str| time(name, hypervisor, "178432 B");
    let (lossy, tunnel) = (large("fig-5-13.toml", "lossy"), large("fig-5-13.toml", "tcp"));
    assert!(lossy > 2.0 * tunnel, "{lossy} us beside {tunnel} in tunnels");
    for (name, hypervisor) in [
        ("fig-5-13.toml", "pfc"),
        ("fig-5-13.toml", "zfabric"),
        ("fig-5-13-tcplight.toml", "pfc"),
        ("fig-5-13-tcplight.toml", "tcp"),
        ("fig-5-13-tcplight.toml", "zfabric"),
    ] {
        let us = large(name, hypervisor);
        assert!(
            (0.95..1.05).contains(&(us / tunnel)),
            "the aggregator's port is what counts: {name} {hypervisor}: {us} {tunnel}"
        );
    }
    // Two segments of each: a first credit is a round trip more.
    let small = |hypervisor: &str| time("fig-5-13-tcplight.toml", hypervisor, "2788 B");
    let (pfc, zfabric) = (small("pfc"), small("zfabric"));
    assert!(zfabric > pfc + 5.0 && zfabric < 1.3 * pfc, "{zfabric} us beside {pfc}");
}

#[test]
fn tunnels_write_the_same_bytes_on_any_number_of_threads() {
    let settings = ["scenario.hypervisor=tcp", "workload.0.queries=12", "workload.0.warmup_queries=2"];
    assert_same_bytes("tunnels", |threads, dir| {
        drop(run("fig-5-13.toml", &settings, threads, Some(dir.0.clone())));
    });
}

#[test]
fn a_weight_is_a_machines_share_of_what_a_receiver_grants() {
    // The machine of the fifth flow, H4's, weighs as much as the four of the others together.
    let text = std::fs::read_to_string(figure("fig-5-12-parking-lot.toml")).expect("the figure");
    let weighed = text.replace("[[workload]]", "[[zcredit.weight]]\nhost = 3\nweight = 4\n[[workload]]");
    for transport in ["tcplight", "udp"] {
        let weighed = weighed.replace("transport = \"tcplight\"", &format!("transport = \"{transport}\""));
        let settings = ["zcredit.enabled=true".to_string()];
        let folder = figure("");
        let loaded =
            Scenario::parse_in(&weighed, "weighed", Some(&folder), &settings).unwrap_or_else(|e| panic!("{e}"));
        let o = attempt(&loaded, 1, None).unwrap_or_else(|e| panic!("{e}"));
        assert_lossless(&o);
        let share = rate(&o, 3, 2) / o.streams.total_mbps;
        assert!((0.48..0.52).contains(&share), "{transport}: {share} of {:?}", o.streams);
        let others: Vec<f64> = o.streams.each.iter().take(4).map(|s| s.mbps / o.streams.total_mbps).collect();
        assert!(others.iter().all(|share| (0.12..0.13).contains(share)), "{transport}: {others:?}");
    }
    for (wrong, what) in [("host = 4", "4 servers"), ("vm = 4\nhost = 3", "4 virtual machines"), ("vm = 1", "host")] {
        let text = text.replace("[[workload]]", &format!("[[zcredit.weight]]\n{wrong}\nweight = 4\n[[workload]]"));
        let error = Scenario::parse_in(&text, "weighed", Some(&figure("")), &[]).expect_err(what).to_string();
        assert!(error.contains(what) && error.contains("weighed:"), "{what}: {error}");
    }
}

#[test]
fn a_link_that_damages_one_frame_in_ten_stops_nobody_for_good() {
    for seed in 1..=12 {
        // Handshakes, requests, grants, answers and questions are lost as well as data.
        let network = format!("hypervisor = \"zfabric\"\nseed = {seed}\n[zbridge]\nperiod = 32\ntimeout = \"1 ms\"");
        let text = pair(&network, ["tcplight", "tcp"][seed % 2])
            .replace("hosts = 2", "hosts = 2\nbit_error_rate = 8.6e-6")
            .replace("30 MB", "1 MB");
        let o = execute(&text, 1, None);
        let (z, bad) = (o.zbridge.expect("zBridge"), o.server_drops.frames(DropReason::BadCrc));
        assert_eq!((o.flows.started, o.flows.finished, o.flows.timeouts), (1, 1, 0), "seed {seed}: {z:?}");
        assert!(bad * 12 > z.sent && z.delivered <= z.sent && z.sent - z.delivered < 64, "seed {seed}: {bad} {z:?}");
        assert_eq!(o.totals.dropped, bad, "seed {seed}: nothing else is lost: {:?}", o.server_drops);
    }
}

#[test]
fn figure_5_6_a_flow_within_a_server_needs_credits_and_no_wire() {
    for transport in ["tcp", "udp", "tcplight"] {
        let run = |hypervisor: &str| {
            let settings = [format!("workload.0.transport={transport}"), format!("scenario.hypervisor={hypervisor}")];
            let o = run("fig-5-6-hairpin.toml", &settings.each_ref().map(String::as_str), 1, None);
            assert_lossless(&o);
            assert_eq!(o.hops, 0, "{transport} {hypervisor}: nothing leaves the server");
            assert!(o.zbridge.is_none_or(|z| z.sent == 0), "{transport} {hypervisor}: {:?}", o.zbridge);
            o.streams.total_mbps
        };
        let (pfc, zfabric) = (run("pfc"), run("zfabric"));
        assert!(zfabric >= 0.9 * pfc && zfabric <= pfc, "{transport}: {zfabric} of {pfc}");
    }
    for wrong in ["dst_vm = 0", "dst_vm = 2"] {
        let text = std::fs::read_to_string(figure("fig-5-6-hairpin.toml")).expect("the figure");
        let text = text.replace("dst_vm = 1", wrong);
        assert!(Scenario::parse_in(&text, "hairpin", Some(&figure("")), &[]).is_err(), "{wrong}");
    }
}
