//! Nothing is lost in lossless networks, pauses form trees, frames die where the configuration says, no sender is
//! favoured, and deadlocks are named. All results are the same on any number of threads.

use crate::worlds::{assert_same_bytes, attempt, execute, flows, load};
use sluicenet_proto::rng::Rng;
use sluicenet_records::{PauseRow, PortRow, StormRow, read};
use sluicenet_testkit::Dir;

/// A random scenario in which every class is lossless.
fn lossless_scenario(rng: &mut Rng) -> String {
    let shapes = [("[8]", ""), ("[4, 4]", ", 2"), ("[3, 2, 3]", ", 2, 1"), ("[4, 2, 2]", ", 1, 2")];
    let (m, above) = shapes[rng.below(4) as usize];
    let links = 1 + rng.below(3);
    let routing = ["d-mod-k", "s-mod-k", "hash", "random", "two-level"][rng.below(5) as usize];
    let xoff = 5 + rng.below(100);
    let xon = 1 + rng.below(xoff);
    let set = ["plain", "crisan2014-ch2", "crisan2014-ch3"][rng.below(3) as usize];
    let tcp = ["newreno", "cubic", "vegas"][rng.below(3) as usize];
    let transport = ["tcp", "udp"][rng.below(2) as usize];
    let delay = [0, 50, 700, 5_000][rng.below(4) as usize];
    let switch_delay = 100 + rng.below(500);
    let buffer = xoff.max(100);
    let flow_control = if set == "crisan2014-ch3" { "flow_control = \"ZZ\"" } else { "" };
    let enabled = if set == "crisan2014-ch3" { "" } else { "enabled = true" };
    let seed = rng.below(1 << 30);
    // From pauses that are just renewed in time to pauses that hardly ever have to be.
    let quanta = [60, 200, 65_535][rng.below(3) as usize];
    let rate = [10, 40][rng.below(2) as usize];
    let slots = [1, 4, 64, 1024][rng.below(4) as usize];
    let vswitch = if set == "crisan2014-ch3" {
        format!("[vswitch]\nslots = {slots}\nvm_rate = \"{} Gb/s\"", [1, 5, 10][rng.below(3) as usize])
    } else {
        String::new()
    };
    format!(
        r#"
        [scenario]
        parameters = "{set}"
        seed = {seed}
        duration = "4 ms"
        {flow_control}
        [topology]
        kind = "xgft"
        m = {m}
        w = [{links}{above}]
        routing = "{routing}"
        link_delay = "{delay} ns"
        link_rate = "{rate} Gb/s"
        {vswitch}
        [switch]
        buffer = "{buffer} KB"
        delay = "{switch_delay} ns"
        [pfc]
        {enabled}
        xoff = "{xoff} KB"
        xon = "{xon} KB"
        quanta = {quanta}
        [tcp]
        congestion = "{tcp}"
        [record]
        pauses = true
        [[workload]]
        kind = "incast"
        senders = 6
        receiver = 7
        bytes = "60 KB"
        rounds = 20
        gap = "20 us"
        transport = "{transport}"
        [[workload]]
        kind = "permutation"
        pattern = "random"
        transport = "tcp"
        priority = "per-host"
        "#
    )
}

#[test]
fn nothing_is_lost_in_lossless_classes_whatever_the_thresholds() {
    let mut rng = Rng::from_words(&[12]);
    let mut pauses = 0;
    for case in 0..40 {
        let text = lossless_scenario(&mut rng);
        let o = execute(&text, 1, None);
        assert_eq!(o.totals.dropped, 0, "case {case}: {text}\n{:?} {:?}", o.switch_drops, o.server_drops);
        assert_eq!(o.violations, 0);
        pauses += o.totals.pauses;
    }
    assert!(pauses > 1_000, "the scenarios must pause: {pauses}");
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    let mut rng = Rng::from_words(&[13]);
    for case in 0..6 {
        let text = lossless_scenario(&mut rng);
        assert_same_bytes(&format!("lossless-{case}"), |threads, dir| {
            drop(execute(&text, threads, Some(dir.0.clone())))
        });
    }
}

#[test]
fn no_host_is_favoured_when_all_send_at_once() {
    // Eight equal hosts send one datagram each at the same instant, over and over: each host is first about equally
    // often.
    let mut first = [0u32; 8];
    for seed in 0..400 {
        let text = format!(
            r#"
            [scenario]
            parameters = "plain"
            seed = {seed}
            [topology]
            kind = "single-switch"
            hosts = 9
            [[workload]]
            kind = "incast"
            senders = 8
            receiver = 8
            bytes = "1000 B"
            rounds = 1
            gap = "1 us"
            start = "1 us"
            transport = "udp"
            "#
        );
        let rows = flows(&text, "fair");
        let winner = rows.iter().min_by_key(|f| f.fct_ps).expect("a flow");
        first[winner.src_host as usize] += 1;
    }
    assert!(first.iter().all(|&n| (25..=80).contains(&n)), "{first:?}");
}

#[test]
fn a_ring_of_switches_is_refused_and_if_run_ends_with_the_circle_named() {
    let dir = Dir::new("world-ring");
    // Four switches in a ring, one host each; host i sends to host i + 2: every link waits for the next.
    let mut topology = String::from("8 4 8\n4 5 6 7\n");
    for i in 0..4 {
        topology += &format!("{i} {} 10Gbps 1000ns 0\n", 4 + i);
    }
    for i in 0..4 {
        topology += &format!("{} {} 10Gbps 1000ns 0\n", 4 + i, 4 + (i + 1) % 4);
    }
    std::fs::write(dir.0.join("ring.txt"), topology).unwrap();
    let scenario = |deadlock: &str, seed: u32| {
        format!(
            r#"
            [scenario]
            parameters = "plain"
            seed = {seed}
            duration = "50 ms"
            [topology]
            kind = "hpcc"
            file = "{}/ring.txt"
            [pfc]
            enabled = true
            xoff = "20 KB"
            xon = "10 KB"
            deadlock = "{deadlock}"
            [[workload]]
            kind = "permutation"
            pattern = "stride"
            stride = 2
            transport = "udp"
            "#,
            dir.0.display()
        )
    };
    let loaded = load(&scenario("refuse", 1), "ring", &dir.0).unwrap_or_else(|e| panic!("{e}"));
    let refused = attempt(&loaded, 1, None).expect_err("a cycle must be refused").to_string();
    assert!(refused.contains("cycle") && refused.contains("switch") && refused.contains("--> ring:9:"), "{refused}");
    // Which way round a flow goes is drawn; with one draw in eight all go the same way and the ring locks.
    let (circle, now) = (1..200)
        .find_map(|seed| {
            let o = execute(&scenario("warn", seed), 1, None);
            o.deadlock.map(|circle| (circle, o.now))
        })
        .expect("the ring deadlocks");
    assert!(circle.matches("switch").count() >= 4, "{circle}");
    assert!(now.as_ps() < 50_000_000_000, "it ended when it was found");
}

#[test]
fn pauses_form_trees_from_root_to_leaves() {
    let text = r#"
        [scenario]
        parameters = "crisan2014-ch2"
        duration = "3 ms"
        [topology]
        kind = "xgft"
        m = [4, 4]
        w = [1, 1]
        [pfc]
        enabled = true
        [record]
        pauses = true
        [[workload]]
        kind = "incast"
        senders = [1, 2, 3, 4, 5, 8]
        receiver = 0
        bytes = "400 KB"
        rounds = 2
        gap = "10 us"
        transport = "udp"
    "#;
    let dir = Dir::new("world-trees");
    execute(text, 1, Some(dir.0.clone()));
    let pauses: Vec<PauseRow> = read(&dir.0).expect("pauses");
    let roots = pauses.iter().filter(|p| p.parent_pause_id.is_none()).count();
    let leaves: Vec<&PauseRow> = pauses.iter().filter(|p| p.parent_pause_id.is_some()).collect();
    assert!(roots > 0 && !leaves.is_empty(), "{roots} roots, {} leaves", leaves.len());
    // The first root is the edge switch whose output towards host 0 is the bottleneck.
    let root = pauses.iter().filter(|p| p.parent_pause_id.is_none()).min_by_key(|p| p.start_ps).unwrap();
    assert_eq!((&*root.node, &*root.cause_peer), ("switch 0", "host 0"));
    for leaf in leaves {
        let parent = pauses.iter().find(|p| Some(p.pause_id) == leaf.parent_pause_id).expect("its parent");
        // The parent holds the very output that filled this buffer.
        assert_eq!(parent.peer, leaf.node);
        assert_eq!(leaf.cause_peer, parent.node);
        assert!(parent.start_ps <= leaf.start_ps);
    }
}

#[test]
fn a_pause_is_a_cause_until_its_xon_has_arrived() {
    let text = r#"
        [topology]
        kind = "xgft"
        m = [4, 4]
        w = [1, 2]
        link_delay = "5 us"
        [pfc]
        enabled = true
        [record]
        pauses = true
        [[workload]]
        kind = "incast"
        transport = "roce"
        senders = 12
        receiver = 15
        bytes = "256 KB"
        rounds = 4
    "#;
    let dir = Dir::new("world-xon");
    execute(text, 1, Some(dir.0.clone()));
    let pauses: Vec<PauseRow> = read(&dir.0).expect("pauses");
    // How long after its cause's XON a pause began.
    let late = |p: &PauseRow| {
        let parent = pauses.iter().find(|q| Some(q.pause_id) == p.parent_pause_id)?;
        p.start_ps.checked_sub(parent.start_ps + parent.duration_ps?).filter(|&late_ps| late_ps > 0)
    };
    let late: Vec<u64> = pauses.iter().filter_map(late).collect();
    // XON waits for a frame that has begun: 4 KB at 10 Gb/s take 3.3 us.
    assert!(!late.is_empty() && late.iter().all(|&late_ps| late_ps < 5_000_000 + 3_300_000), "{late:?}");
}

#[test]
fn where_frames_die_is_what_the_letters_say() {
    // MODEL: LZ drops only in the vSwitch, ZL only in the fabric, ZZ nowhere, LL in both.
    let losses = |letters: &str| {
        let text = format!(
            r#"
            [scenario]
            parameters = "crisan2014-ch3"
            flow_control = "{letters}"
            [topology]
            kind = "xgft"
            m = [4, 4]
            w = [1, 1]
            [switch]
            policy = "input"
            [vswitch]
            slots = 64
            [adapter]
            buffer = "64 KB"
            [[workload]]
            kind = "partition-aggregate"
            layout = "crisan2014-ch4"
            queries = 150
            message = "40 KB"
            inter_arrival = {{ kind = "exponential", mean = "30 us" }}
            "#
        );
        let o = execute(&text, 1, None);
        assert_eq!(o.queries.iter().filter(|q| q.completion_ps.is_some()).count(), 150);
        (o.virtual_losses() > 0, o.physical_losses() > 0)
    };
    assert_eq!(losses("LL"), (true, true));
    assert_eq!(losses("LZ"), (true, false));
    assert_eq!(losses("ZL"), (false, true));
    assert_eq!(losses("ZZ"), (false, false));
}

#[test]
fn bit_errors_are_counted_at_the_adapter_and_nothing_else_is_lost() {
    let text = r#"
        [scenario]
        parameters = "crisan2014-ch2"
        duration = "20 ms"
        [topology]
        kind = "xgft"
        m = [4, 2]
        w = [1, 1]
        bit_error_rate = 1e-7
        [pfc]
        enabled = true
        [[workload]]
        kind = "permutation"
        pattern = "stride"
        stride = 4
        transport = "udp"
    "#;
    let o = execute(text, 1, None);
    let bad = o.server_drops.frames(sluicenet_proto::loss::DropReason::BadCrc);
    // Four links a frame of about 12,000 bits: near 0.48 % of the frames.
    let share = bad as f64 / o.totals.sent as f64;
    assert!((0.003..0.007).contains(&share), "{share}");
    assert_eq!(o.totals.dropped, bad);
}

/// Datagrams from one host to another, as many as its link takes.
fn datagrams(src: u32, dst: u32) -> String {
    format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\ntransport = \"udp\"\n")
}

#[test]
fn pauses_that_are_damaged_cost_no_frame_its_room() {
    for (rate, headroom) in [("1e-7", "auto"), ("1e-6", "auto"), ("1e-5", "auto"), ("1e-6", "8500 B")] {
        let flows: String = (0..4).map(|src| datagrams(src, 4)).collect();
        let text = format!(
            "[scenario]\nduration = \"300 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 5\nbit_error_rate = {rate}\n\
             [pfc]\nenabled = true\nheadroom = \"{headroom}\"\n{flows}"
        );
        let o = execute(&text, 1, None);
        let bad = sluicenet_proto::loss::DropReason::BadCrc;
        let damaged = o.switch_drops.frames(bad) + o.server_drops.frames(bad);
        println!("{rate} {headroom}: {damaged} damaged, {} had no room", o.violations);
        // Room for one XOFF alone, which is about 8 KB here, is not enough.
        assert_eq!(o.violations > 0, headroom != "auto", "{rate}: {:?}", o.switch_drops);
        assert_eq!(o.totals.dropped, damaged + o.violations);
    }
}

#[test]
fn headroom_that_is_too_small_is_a_warning_and_its_loss_names_the_port() {
    let of = |keys: &str| {
        let flows: String = (0..4).map(|src| datagrams(src, 4)).collect();
        let text = format!(
            "[scenario]\nduration = \"5 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 5\n[pfc]\nenabled = true\n\
             {keys}{flows}"
        );
        execute(&text, 1, None)
    };
    let small = of("headroom = \"1 KB\"\n");
    let warnings: Vec<String> = small.warnings.iter().map(|w| w.to_string()).collect();
    // Three frames of 1,538 B, a pause of 84 B, 67 quanta of 64 B and 2 us of delay at 10 Gb/s.
    let expected = "1000 B of headroom are fewer than the 11486 B that can still arrive at ";
    assert!(warnings.iter().any(|w| w.contains(expected)), "{warnings:?}");
    let overrun = small.overrun.as_deref().unwrap();
    assert!(small.violations > 0 && overrun.contains(" at switch 0 port "), "{overrun}");
    assert!(overrun.ends_with("priority 0, which has 1000 B of headroom and can need 11486 B"), "{overrun}");
    for keys in ["", "peer_response = \"614.4 ns\"\n", "headroom = \"20 KB\"\n"] {
        let enough = of(keys);
        assert_eq!((enough.violations, enough.overrun, enough.warnings.len()), (0, None, 0), "{keys}");
    }
}

/// Notifications about nearly every frame, which no source obeys, in a permutation that pauses links: 6,453 frames of lossless
/// classes were lost when the notifications of a switch filled the buffers of its inputs.
#[test]
fn a_switch_never_fills_a_neighbours_headroom_with_its_own_notifications() {
    let text = "[scenario]\nparameters = \"crisan2014-ch2\"\nduration = \"6 ms\"\nseed = 5\n[topology]\n\
                kind = \"k-ary-n-tree\"\nk = 2\nn = 3\nrouting = \"switch-ar\"\n[pfc]\nenabled = true\n[qcn]\nenabled = true\n\
                limiters = \"off\"\nsample_bytes = \"1500 B\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n\
                transport = \"udp\"\nrate = \"9 Gb/s\"\n";
    let o = execute(text, 1, None);
    assert!(o.notifications > 10_000 && o.pauses > 0, "{} notifications, {} pauses", o.notifications, o.pauses);
    assert_eq!((o.violations, o.overrun), (0, None), "{:?}", o.switch_drops);
    // A notification that finds its memory full is lost for congestion, as no other frame is.
    let lost = o.switch_drops.frames(sluicenet_proto::loss::DropReason::SwitchBuffer);
    assert_eq!(o.totals.dropped, lost);
}

/// A receiver takes next to nothing for thousands of refreshes, of which one in twenty is damaged. With two refreshes
/// in the time of a pause, 2,009 frames had no room.
#[test]
fn a_stop_that_lasts_costs_no_frame_its_room() {
    let flow = datagrams(0, 1);
    let text = format!(
        "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\nduration = \"20 s\"\n\
         [topology]\nkind = \"single-switch\"\nhosts = 2\nbit_error_rate = 1e-4\n\
         [server]\nvms = 1\n[[vswitch.slow]]\nhost = 1\nrate = \"1 Mb/s\"\n{flow}"
    );
    let o = execute(&text, 1, None);
    println!("{} stops, {} frames had no room", o.pauses, o.violations);
    assert!((1..100).contains(&o.pauses), "{}", o.pauses);
    assert_eq!(o.violations, 0, "{:?} {:?}", o.switch_drops, o.server_drops);
}

#[test]
fn damaged_pauses_stop_nobody() {
    let flows: String = (0..2).map(|src| datagrams(src, 2)).collect();
    let text = format!(
        r#"
        [scenario]
        duration = "5 ms"
        [topology]
        kind = "single-switch"
        hosts = 3
        bit_error_rate = 0.01
        [switch]
        forwarding = "cut-through"
        [pfc]
        enabled = true
        xoff = "5 KB"
        xon = "3 KB"
        {flows}"#
    );
    let dir = Dir::new("world-damaged-pauses");
    execute(&text, 1, Some(dir.0.clone()));
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    let (sent, heard) = ports.iter().fold((0, 0), |(s, h), p| (s + p.xoff_sent, h + p.xoff_received));
    // 0.99^512: one pause of 171 arrives whole, and of these few none does.
    assert!(sent >= 2 && heard == 0, "{heard} of {sent}");
}

/// The link of host 2 is slow for 20 ms, so that its leaf pauses the spine, whose queue for the leaf then sends a frame in
/// 12 ms: a storm for a watchdog of 2 ms.
fn storm(watchdog: &str) -> String {
    format!(
        "[scenario]\nduration = \"40 ms\"\n[topology]\nkind = \"xgft\"\nm = [2, 2]\nw = [1, 1]\n[pfc]\nenabled = true\n\
         {watchdog}[[slowdown]]\nport = \"host 2\"\nuntil = \"20 ms\"\nrate = \"1 Mb/s\"\n\
         [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 2\ntransport = \"udp\"\nrate = \"2 Gb/s\"\npriority = 3\n\
         [[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 3\ntransport = \"udp\"\nrate = \"2 Gb/s\"\npriority = 3\n"
    )
}

#[test]
fn a_watchdog_acts_on_a_storm_and_the_records_say_so() {
    let of = |action: &str| {
        let keys = "detection_time = \"2 ms\"\nrestoration_time = \"5 ms\"";
        storm(&format!("[pfc.watchdog]\n{keys}\naction = \"{action}\"\n"))
    };
    let run = |text: &str, name: &str| {
        let dir = Dir::new(&format!("watchdog-{name}"));
        let outcome = execute(text, 1, Some(dir.0.clone()));
        let storms: Vec<StormRow> = read(&dir.0).unwrap();
        (outcome.totals.dropped, outcome.violations, storms.iter().map(|s| s.detected).sum::<u64>())
    };
    let (dropped, violations, storms) = run(&of("drop"), "drop");
    assert!(dropped > 0 && violations == 0 && storms > 0, "{dropped} {violations} {storms}");
    let (dropped, _, storms) = run(&of("alert"), "alert");
    assert!(dropped == 0 && storms > 0, "{dropped} {storms}");
    assert_eq!(run(&storm(""), "off"), (0, 0, 0));
    assert_same_bytes("watchdog", |threads, dir| {
        execute(&of("drop"), threads, Some(dir.0.clone()));
    });
}
