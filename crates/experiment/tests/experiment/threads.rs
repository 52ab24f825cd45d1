//! Results do not depend on the number of threads, nor on how threads divide the boxes among themselves, nor on how much time
//! a box simulates at once.

use crate::worlds::{assert_same_bytes_on, attempt, execute, load};
use sluicenet_experiment::build;
use sluicenet_records::{FlowRow, PauseRow, QueueRow, TcpRow, read};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;
use std::fmt::Write;

/// With two threads by planes, with three and five by subtrees, or the other way round.
const THREADS: [usize; 4] = [1, 2, 3, 5];

/// Flows across a fat-tree, some of which end: frames and metadata pass between threads, and queues are sampled.
fn fabric(k: u32, transport: &str) -> String {
    format!(
        "[scenario]\nduration = \"3 ms\"\n[topology]\nkind = \"fat-tree\"\nk = {k}\nrouting = \"random\"\n\
         [record]\npauses = true\nqueues = \"100 us\"\ntcp = \"1 ms\"\n\
         [[workload]]\nkind = \"permutation\"\npattern = \"random\"\ntransport = \"{transport}\"\nbytes = \"200 KB\"\n\
         [[workload]]\nkind = \"permutation\"\npattern = \"stride\"\nbytes = \"3 KB\"\n"
    )
}

#[test]
fn a_fabric_writes_the_same_bytes_on_any_number_of_threads() {
    for (k, transport) in [(4, "udp"), (6, "tcp")] {
        let text = fabric(k, transport);
        assert_same_bytes_on(&THREADS, &format!("fabric-{k}"), |threads, dir| {
            drop(execute(&text, threads, Some(dir.0.clone())));
        });
    }
}

#[test]
fn virtualised_servers_write_the_same_bytes_on_any_number_of_threads() {
    for (name, w) in [("planes", "[1, 2, 2]"), ("subtrees", "[1, 3, 1]")] {
        let text = format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\n\
             [topology]\nkind = \"xgft\"\nm = [4, 2, 5]\nw = {w}\n\
             [[workload]]\nkind = \"partition-aggregate\"\nlayout = \"crisan2014-ch4\"\nqueries = 12\nwarmup_queries = 2\n\
             inter_arrival = {{ kind = \"lognormal\", median = \"12 us\", sigma = 1.8 }}\n"
        );
        assert_same_bytes_on(&THREADS, &format!("virtualised-{name}"), |threads, dir| {
            drop(execute(&text, threads, Some(dir.0.clone())));
        });
    }
}

#[test]
fn boxes_of_two_colours_do_the_same_as_boxes_in_step() {
    // Two leaves (8, 9) and two spines (10, 11): links join boxes of two colours. Then a spine has a triangle of switches on
    // top, which no flow passes: three colours would be needed, and all boxes are simulated one window at a time.
    let mut two = String::from("12 4 12\n8 9 10 11\n");
    (0..8).for_each(|h| writeln!(two, "{h} {} 10Gbps 1us 0", 8 + h / 4).unwrap());
    (0..4).for_each(|l| writeln!(two, "{} {} 10Gbps 1us 0", 8 + l / 2, 10 + l % 2).unwrap());
    let triangle = "11 12 10Gbps 1us 0\n12 13 10Gbps 1us 0\n13 14 10Gbps 1us 0\n14 12 10Gbps 1us 0\n";
    let three = two.replace("12 4 12\n8 9 10 11", "15 7 16\n8 9 10 11 12 13 14") + triangle;
    for (transport, pfc) in [("tcp", false), ("tcp", true), ("roce", true)] {
        let run = |name: &str, topology: &str, threads: usize| {
            let dir = Dir::new(&format!("colours-{transport}-{pfc}-{name}-{threads}"));
            let file = dir.file("topology.txt", topology);
            let text = format!(
                "[scenario]\nduration = \"9 ms\"\n[topology]\nkind = \"hpcc\"\nfile = \"{file}\"\nrouting = \"ecmp\"\n\
                 [pfc]\nenabled = {pfc}\n\
                 [record]\npauses = true\nqueues = \"17 us\"\nqueue_ports = [\"switch 0\", \"host 3\"]\ntcp = \"1 ms\"\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"random\"\ntransport = \"{transport}\"\nbytes = \"200 KB\"\n\
                 [[workload]]\nkind = \"incast\"\nreceiver = 7\nsenders = 6\nbytes = \"50 KB\"\nrounds = 3\ntransport = \"{transport}\"\n"
            );
            let loaded = load(&text, "t.toml", &dir.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
            attempt(&loaded, threads, Some(dir.0.clone())).unwrap_or_else(|e| panic!("{e}"));
            let flows: Vec<FlowRow> = read(&dir.0).unwrap();
            let pauses: Vec<PauseRow> = read(&dir.0).unwrap();
            let queues: Vec<QueueRow> = read(&dir.0).unwrap();
            let tcp: Vec<TcpRow> = read(&dir.0).unwrap();
            assert!(flows.len() >= 14 && pauses.is_empty() != pfc, "{} flows, {} pauses", flows.len(), pauses.len());
            assert!(queues.iter().any(|q| q.bytes > 0), "{} samples", queues.len());
            (flows, pauses, queues, tcp)
        };
        let in_phases = run("two", &two, 1);
        assert_eq!(run("three", &three, 1), in_phases);
        assert_eq!(run("three", &three, 2), in_phases);
        assert_eq!(run("two", &two, 2), in_phases);
    }
}

#[test]
fn planes_meet_only_at_edge_switches_and_all_threads_have_as_much() {
    let text = fabric(8, "udp");
    let built = build::build(&Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario).unwrap();
    let plan = &built.plan;
    let parts = build::parts(plan, &built.bumps, 4);
    let level = |node: u32| plan.level(node);
    (built.world.links)(&mut |link| {
        let levels = [link.from.0, link.to.0].map(level);
        if levels != [1, 2] && levels != [2, 1] {
            assert_eq!(parts[link.from.0 as usize], parts[link.to.0 as usize], "{link:?}");
        }
    });
    // 32 edge switches with four hosts each, and four planes of eight aggregation and four core switches.
    let mut sizes = [0; 36];
    parts.iter().for_each(|&part| sizes[part as usize] += 1);
    assert_eq!((&sizes[..32], &sizes[32..]), (&[5; 32][..], &[12; 4][..]));
    // Three threads cannot share four planes evenly: eight subtrees.
    assert_eq!(build::parts(plan, &built.bumps, 3).into_iter().max(), Some(7));
}

#[test]
fn metadata_beyond_the_end_of_an_epoch_arrives_in_time_on_any_number_of_threads() {
    // Each round begins with the confirmation of the round before, which passes between threads while epochs end.
    let text = r#"
        [scenario]
        duration = "2 ms"
        [topology]
        kind = "hpcc"
        file = "network.txt"
        [[workload]]
        kind = "incast"
        senders = 1
        receiver = 0
        bytes = "1000 B"
        rounds = 6
        start = "300 us"
        transport = "udp"
    "#;
    let network = "5 2 4\n3 4\n0 3 10Gbps 0.01ms 0\n1 4 10Gbps 0.01ms 0\n3 4 10Gbps 0.01ms 0\n2 4 10Gbps 0.000001ms 0";
    assert_same_bytes_on(&THREADS, "metadata-beyond", |threads, dir| {
        let files = Dir::new(&format!("metadata-beyond-{threads}"));
        files.file("network.txt", network);
        attempt(&load(text, "metadata", &files.0).unwrap(), threads, Some(dir.0.clone())).unwrap();
    });
}
