//! Whole worlds: closed forms to the picosecond, nothing lost in lossless classes, the same bytes on any number of
//! threads, nobody favoured, deadlocks named.

mod common;

use common::Dir;
use sluicenet_lab::records::{Existing, FlowRow, PauseRow, PortRow, QueryRow, TcpRow, read};
use sluicenet_lab::run::{Job, Options, Outcome, RunError, run};
use sluicenet_lab::scenario::{Error, Loaded, Scenario};
use sluicenet_proto::rng::Rng;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A scenario whose files lie in `folder`.
fn load(text: &str, name: &str, folder: &Path) -> Result<Loaded, Error> {
    Scenario::parse_in(text, name, Some(folder), &[])
}

fn attempt(loaded: &Loaded, threads: usize, out: Option<PathBuf>) -> Result<Outcome, RunError> {
    let interrupt = AtomicBool::new(false);
    let options = Options { threads, out, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    // A run that ends has checked its own books: sent = delivered + dropped + inside, for every box.
    run(&Job::new(loaded), options).map(|o| o.expect("a result"))
}

fn execute(text: &str, threads: usize, out: Option<PathBuf>) -> Outcome {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let loaded = load(text, "test", here).unwrap_or_else(|e| panic!("{e}\n{text}"));
    attempt(&loaded, threads, out).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn flows(text: &str, name: &str) -> Vec<FlowRow> {
    let dir = Dir::new(&format!("world-{name}"));
    execute(text, 1, Some(dir.0.clone()));
    read(&dir.0).expect("flows")
}

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
    // From what is just renewed in time to what hardly ever has to be.
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

fn bytes_of(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .expect("a result")
        .map(|f| f.expect("an entry").path())
        .filter(|p| p.file_name().is_some_and(|n| n != "run.json"))
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).expect("a file")))
        .collect();
    files.sort();
    files
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    let mut rng = Rng::from_words(&[13]);
    for case in 0..6 {
        let text = lossless_scenario(&mut rng);
        let results: Vec<Vec<(String, Vec<u8>)>> = [1, 2, 3]
            .iter()
            .map(|&threads| {
                let dir = Dir::new(&format!("world-threads-{case}-{threads}"));
                execute(&text, threads, Some(dir.0.clone()));
                bytes_of(&dir.0)
            })
            .collect();
        assert!(results[0].len() > 5);
        assert!(results[0] == results[1] && results[0] == results[2], "case {case}: {text}");
    }
}

#[test]
fn no_host_is_favoured_when_all_send_at_once() {
    // Eight equal hosts, one datagram each at the same instant, over and over: everybody is first about equally often.
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
fn queues_of_a_topology_file_are_the_buffers() {
    let dir = Dir::new("world-queues");
    let outcome = |name: &str, tier0: &str, tier1: &str, more: &str| {
        let topology = format!(
            "Nodes 8\nTiers 2\nPodsize 8\nTier 0\nDownlink_speed_Gbps 10\nRadix_Down 4\nRadix_Up 4\n{tier0}\
             Tier 1\nDownlink_speed_Gbps 10\nRadix_Down 2\n{tier1}"
        );
        std::fs::write(dir.0.join(name), topology).unwrap();
        let text = format!(
            "[topology]\nkind = \"htsim\"\nfile = \"{name}\"\n[switch]\nbuffer = \"1 MB\"\n{more}[[workload]]\n\
             kind = \"incast\"\nsenders = 7\nreceiver = 7\nbytes = \"100 KB\"\ntransport = \"udp\"\n"
        );
        load(&text, "queues.toml", &dir.0).map(|loaded| attempt(&loaded, 1, None).unwrap().totals.dropped)
    };
    let dropped = |name: &str, tier0: &str, tier1: &str| outcome(name, tier0, tier1, "").unwrap();
    assert_eq!(dropped("none.topo", "", ""), 0, "the scenario's own buffer holds all");
    assert!(dropped("edge.topo", "Queue_Down 20000\nQueue_Up 20000\n", "") > 0, "three neighbours and the top at once");
    // The three neighbours do not pass the top tier, the four others reach it by as many links as leave it.
    assert_eq!(dropped("top.topo", "", "Queue_Down 20000\n"), 0);

    let refused = |name: &str, tier0: &str, tier1: &str, more: &str| {
        let e = outcome(name, tier0, tier1, more).unwrap_err();
        let d = e.diagnostic();
        (d.file.clone(), d.line, d.message.clone())
    };
    let (file, line, message) = refused("one.topo", "Queue_Down 20000\n", "", "");
    assert_eq!((&*file, line), ("one.topo", 8), "{message}");
    assert!(message.contains("`Queue_Down` (20000 B) and `Queue_Up` (0 B) of tier 0 differ"), "{message}");
    let (file, line, message) = refused("small.topo", "", "Queue_Down 100\n", "");
    assert_eq!((&*file, line), ("small.topo", 11), "{message}");
    assert!(message.contains("does not hold a frame"), "{message}");
    let (file, _, message) =
        refused("xoff.topo", "", "Queue_Down 20000\n", "[pfc]\nenabled = true\nxoff = \"50 KB\"\nxon = \"10 KB\"\n");
    assert!(file == "queues.toml" && message.contains("beyond the switch's buffer (20000 B)"), "{message}");
    let (file, line, message) = refused("bundle.topo", "", "Bundle 2\n", "");
    assert_eq!((&*file, line), ("bundle.topo", 11), "{message}");
    assert!(message.contains("bundles of parallel links are not supported"), "{message}");
}

/// What shows only when the world is built points at the scenario all the same.
#[test]
fn what_cannot_be_built_says_where() {
    let place = |text: &str, file: &str| {
        let loaded = load(text, file, Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
        let out = Some(std::env::temp_dir().join("sluicenet-world-never-written"));
        let RunError::Build(e) = attempt(&loaded, 1, out).unwrap_err() else { panic!("{text}") };
        let d = e.diagnostic();
        (d.file.clone(), d.line, d.message.clone())
    };
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 4\n";
    let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n";
    for (text, line, message) in [
        (
            format!(
                "[adapter]\ndelay = \"0 ns\"\n[switch]\ndelay = \"0 ns\"\nforwarding = \"cut-through\"\n{network}link_delay = \"0 ns\"\n{flow}"
            ),
            9,
            "has no delay",
        ),
        (format!("{network}{flow}[record]\npcapng = [\"switch 0 port 4\"]\n"), 10, "switch 0 has ports 0 to 3, not 4"),
        (
            format!("{network}{flow}[record]\nqueues = \"1 us\"\nqueue_ports = [\"switch 0 port 7\"]\n"),
            11,
            "switch 0 has ports 0 to 3, not 7",
        ),
    ] {
        let (file, at, said) = place(&text, "place.toml");
        assert!(said.contains(message), "{said}\n{text}");
        assert_eq!((&*file, at), ("place.toml", line), "{said}\n{text}");
    }
}

/// What ended is recorded as ended, though the news of it may be on its way when the run stops.
#[test]
fn flows_of_finished_rounds_are_finished() {
    let mut runs = 0;
    for seed in 0..4 {
        for (transport, duration) in [("tcp", ""), ("udp", ""), ("tcp", "duration = \"5 ms\"\n")] {
            let text = format!(
                "[scenario]\nseed = {seed}\n{duration}[topology]\nkind = \"single-switch\"\nhosts = 8\n[pfc]\nenabled = true\n\
                 [[workload]]\nkind = \"incast\"\nsenders = 7\nreceiver = 0\nbytes = \"100 KB\"\nrounds = 10\n\
                 transport = \"{transport}\"\n"
            );
            let written = |threads: usize| {
                let dir = Dir::new(&format!("world-finished-{seed}-{threads}"));
                let o = execute(&text, threads, Some(dir.0.clone()));
                let flows: Vec<FlowRow> = read(&dir.0).unwrap();
                let finished: Vec<u64> =
                    o.queries.iter().filter(|q| q.completion_ps.is_some()).map(|q| q.query_id).collect();
                assert!(!finished.is_empty() && (!duration.is_empty() || finished.len() == 10));
                for f in flows.iter().filter(|f| finished.contains(&f.query_id.unwrap())) {
                    assert!(f.fct_ps.is_some() && f.slowdown.is_some(), "seed {seed} {transport} {duration}: {f:?}");
                    assert_eq!(Some(f.delivered_bytes), f.bytes);
                }
                assert!(o.queries.iter().all(|q| q.flows == 7 || q.completion_ps.is_none()), "{:?}", o.queries);
                assert!(o.flows.finished >= 7 * finished.len() as u64);
                flows
            };
            assert_eq!(written(1), written(2), "seed {seed}");
            runs += 1;
        }
    }
    assert_eq!(runs, 12);
}

#[test]
fn datagrams_that_arrived_are_counted_though_others_did_not() {
    let text = r#"
        [scenario]
        parameters = "plain"
        duration = "3 ms"
        [topology]
        kind = "single-switch"
        hosts = 4
        [switch]
        buffer = "20 KB"
        [[workload]]
        kind = "incast"
        senders = 3
        receiver = 0
        bytes = "1 MB"
        transport = "udp"
        [[workload]]
        kind = "flow"
        src = 1
        dst = 2
        bytes = "10 MB"
        transport = "udp"
        [[workload]]
        kind = "flow"
        src = 2
        dst = 3
        transport = "udp"
    "#;
    let dir = Dir::new("world-datagrams");
    let o = execute(text, 1, Some(dir.0.clone()));
    let flows: Vec<FlowRow> = read(&dir.0).unwrap();
    assert!(o.totals.dropped > 0 && flows.len() == 5);
    assert!(flows.iter().all(|f| f.fct_ps.is_none() && f.delivered_bytes > 0), "{flows:#?}");
    let to = |host: u32| flows.iter().filter(|f| f.dst_host == host).map(|f| f.delivered_bytes).sum::<u64>();
    let capacity = 3_000_000_000 / 800;
    assert!((0.6..1.0).contains(&(to(0) as f64 / 3e6)), "a third or more is lost: {}", to(0));
    assert!(to(2) < capacity && to(3) < capacity, "{} {}", to(2), to(3));
    // A flow without an end has no size, and nothing to be compared with.
    let endless = flows.iter().find(|f| f.dst_host == 3).unwrap();
    assert_eq!((endless.bytes, endless.ideal_ps, endless.slowdown), (None, None, None));
    assert!(flows.iter().filter(|f| f.dst_host != 3).all(|f| f.bytes.is_some() && f.ideal_ps.is_some()));
}

/// Interface, direction (1 in, 2 out), picoseconds and bytes of the frames in a capture.
fn captured(path: &Path) -> Vec<(u32, u32, u64, Vec<u8>)> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let mut frames = Vec::new();
    let mut at = 0;
    while at < file.len() {
        let len = word(at + 4) as usize;
        if word(at) == 6 {
            let bytes = word(at + 20) as usize;
            let options = at + 28 + bytes.next_multiple_of(4);
            let direction = (options..at + len).step_by(4).find(|&o| word(o) == 2 | 4 << 16).map_or(0, |o| word(o + 4));
            let time = (word(at + 12) as u64) << 32 | word(at + 16) as u64;
            frames.push((word(at + 8), direction, time, file[at + 28..at + 28 + bytes].to_vec()));
        }
        at += len;
    }
    frames
}

#[test]
fn a_capture_shows_what_comes_in_when_it_has_come_in() {
    let text = r#"
        [scenario]
        parameters = "plain"
        [topology]
        kind = "single-switch"
        hosts = 2
        link_delay = "100 us"
        [record]
        pcapng = ["host 0", "host 1", "switch 0 port 0"]
        [[workload]]
        kind = "flow"
        src = 0
        dst = 1
        bytes = "300 KB"
    "#;
    let dir = Dir::new("world-capture");
    execute(text, 1, Some(dir.0.clone()));
    let frames = captured(&dir.0.join("capture.pcapng"));
    assert!(frames.windows(2).all(|w| w[0].2 <= w[1].2), "by time");
    let seen = |interface: u32, direction: u32| -> Vec<(u64, &Vec<u8>)> {
        let of = frames.iter().filter(move |f| (f.0, f.1) == (interface, direction));
        of.map(|f| (f.2, &f.3)).collect()
    };
    // Host 0 sends to the switch's port, the third of the list.
    let (sent, came) = (seen(0, 2), seen(2, 1));
    assert!(sent.len() > 200 && came.len() <= sent.len());
    for (s, c) in sent.iter().zip(&came) {
        // With four bytes of check sequence and eight of preamble, at 10 Gb/s.
        assert_eq!(c.0 - s.0, 100_000_000 + (s.1.len() as u64 + 12) * 800);
        assert_eq!(s.1, c.1);
    }
    // The SYN: two cables of 100 us, and its bits.
    let first = |interface, direction| seen(interface, direction)[0].0;
    assert!(first(1, 1) > first(0, 2) + 200_000_000);
    // Host 1, which takes no time, answers when it has come in: the file has the question before the answer.
    assert_eq!(first(1, 2), first(1, 1));
    assert_eq!(frames.iter().filter(|f| f.0 == 1).map(|f| f.1).take(2).collect::<Vec<_>>(), [1, 2]);
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

#[test]
fn damaged_pauses_stop_nobody() {
    let text = r#"
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
        [[workload]]
        kind = "flow"
        src = 0
        dst = 2
        transport = "udp"
        [[workload]]
        kind = "flow"
        src = 1
        dst = 2
        transport = "udp"
    "#;
    let dir = Dir::new("world-damaged-pauses");
    execute(text, 1, Some(dir.0.clone()));
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    let (sent, heard) = ports.iter().fold((0, 0), |(s, h), p| (s + p.xoff_sent, h + p.xoff_received));
    // 0.99^512: one pause of 171 arrives whole, and of these few none does.
    assert!(sent >= 2 && heard == 0, "{heard} of {sent}");
}

#[test]
fn windows_of_named_hosts_are_sampled() {
    let text = |tcp: &str, hosts: &str| {
        format!(
            "[scenario]\nduration = \"5 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 4\n[record]\n{tcp}{hosts}\
             [[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nstride = 1\n"
        )
    };
    let sampled = |name: &str, threads: usize, tcp: &str, hosts: &str| -> Vec<TcpRow> {
        let dir = Dir::new(&format!("world-{name}"));
        execute(&text(tcp, hosts), threads, Some(dir.0.clone()));
        read(&dir.0).unwrap()
    };
    let rows = sampled("windows", 1, "tcp = \"100 us\"\n", "tcp_hosts = [2]\n");
    // Ten whole epochs and the end, and at each the one connection on which host 2 sends.
    assert_eq!(rows.len(), 11, "{rows:#?}");
    assert!(rows.iter().all(|r| (r.src_host, r.dst_host) == (2, 3)), "{rows:#?}");
    assert!(rows.windows(2).all(|w| w[0].time_ps < w[1].time_ps && w[0].acked_bytes <= w[1].acked_bytes));
    let first = &rows[0];
    // Slow start doubles the window until the buffer is what limits; the round-trip time is four cables and some frames.
    assert!(first.ssthresh_bytes.is_none() && first.cwnd_bytes > 20_000, "{first:?}");
    assert!((4_000_000..200_000_000).contains(&first.srtt_ps.unwrap()), "{first:?}");
    assert!(rows.last().unwrap().acked_bytes > 5_000_000, "{rows:#?}");
    assert_eq!(sampled("windows-two", 2, "tcp = \"100 us\"\n", "tcp_hosts = [2]\n"), rows);
    assert_eq!(sampled("windows-seldom", 1, "tcp = \"2 ms\"\n", "tcp_hosts = [2]\n").len(), 3);
    assert_eq!(sampled("windows-all", 1, "tcp = \"1 s\"\n", "").len(), 4);
    assert_eq!(sampled("windows-none", 1, "", ""), []);
}

#[test]
fn queries_of_two_workloads_are_told_apart() {
    let incast = |senders: &str, receiver: u32, rounds: u32, bytes: &str| {
        format!(
            "[[workload]]\nkind = \"incast\"\nsenders = {senders}\nreceiver = {receiver}\nrounds = {rounds}\n\
             bytes = \"{bytes}\"\n"
        )
    };
    let text = format!(
        "[topology]\nkind = \"single-switch\"\nhosts = 8\n{}{}[[workload]]\nkind = \"partition-aggregate-2\"\n\
         aggregators = [6]\nworkers = [0, 7]\nresponse = \"5 KB\"\nqueries = 4\n",
        incast("[0, 1, 2]", 3, 5, "20 KB"),
        incast("[0, 1]", 4, 3, "1 KB"),
    );
    let dir = Dir::new("world-two");
    let o = execute(&text, 1, Some(dir.0.clone()));
    let queries: Vec<QueryRow> = read(&dir.0).unwrap();
    assert_eq!(queries, o.queries);
    let mut ids: Vec<u64> = queries.iter().map(|q| q.query_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 12, "{queries:?}");
    let of = |w: u8| -> Vec<&QueryRow> { queries.iter().filter(|q| q.workload == w).collect() };
    assert_eq!([0, 1, 2, 3].map(|w| of(w).len()), [5, 3, 4, 0]);
    assert!(of(0).iter().all(|q| (q.aggregator_host, q.flows) == (3, 3)), "{queries:?}");
    assert!(of(1).iter().all(|q| (q.aggregator_host, q.flows) == (4, 2)), "{queries:?}");
    assert!(of(2).iter().all(|q| (q.aggregator_host, q.flows) == (6, 4)), "{queries:?}");
    // A flow belongs to the query that names its receiver, or for a request its sender.
    let flows: Vec<FlowRow> = read(&dir.0).unwrap();
    assert_eq!(flows.len(), 5 * 3 + 3 * 2 + 4 * 4);
    for f in flows {
        let q = queries.iter().find(|q| Some(q.query_id) == f.query_id).expect("its query");
        assert!([f.src_host, f.dst_host].contains(&q.aggregator_host), "{f:?} {q:?}");
    }
}

#[test]
fn queries_are_recorded_and_the_seed_decides() {
    let text = |seed: u32| {
        format!(
            r#"
            [scenario]
            parameters = "crisan2014-ch3"
            seed = {seed}
            [topology]
            kind = "xgft"
            m = [4, 2]
            w = [1, 1]
            [[workload]]
            kind = "partition-aggregate"
            layout = "crisan2014-ch4"
            queries = 20
            message = "20 KB"
            inter_arrival = {{ kind = "exponential", mean = "300 us" }}
            "#
        )
    };
    let times = |seed| -> Vec<Option<u64>> {
        let dir = Dir::new(&format!("world-seed-{seed}"));
        execute(&text(seed), 1, Some(dir.0.clone()));
        let rows: Vec<QueryRow> = read(&dir.0).expect("queries");
        // Two chassis of four: two subqueries, eight requests, eight responses, two aggregates.
        assert!(rows.iter().all(|q| q.flows == 20), "{rows:?}");
        rows.iter().map(|q| q.completion_ps).collect()
    };
    assert_eq!(times(1), times(1));
    assert_ne!(times(1), times(2));
}

#[test]
fn pauses_that_could_not_be_renewed_are_refused() {
    let with = |quanta: u32| {
        format!(
            "[scenario]\nparameters = \"plain\"\nduration = \"1 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 4\n\
             [pfc]\nenabled = true\nquanta = {quanta}\n[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\n"
        )
    };
    let build = |quanta| {
        let loaded = Scenario::parse(&with(quanta), "t.toml").unwrap();
        sluicenet_lab::build::build(&loaded.scenario).map(|_| ())
    };
    let error = build(50).unwrap_err().to_string();
    assert!(error.contains("t.toml:9:1") && error.contains("at least 51"), "{error}");
    build(51).unwrap();
}
