//! Records of a run: flows, queries, windows, captures.

use crate::worlds::execute;
use sluicenet_experiment::run::Figures;
use sluicenet_records::{FlowRow, PauseRow, PortRow, QueryRow, TcpRow, read};
use sluicenet_testkit::Dir;
use std::collections::BTreeSet;
use std::path::Path;

/// Flows that ended are recorded as ended, though their metadata may be on its way when the run stops.
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

/// Interface, direction (1 in, 2 out), nanoseconds and bytes of the frames in a capture.
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
        let way_ps = 100_000_000 + (s.1.len() as u64 + 12) * 800;
        // Both times are rounded down.
        assert!((way_ps / 1_000..=way_ps.div_ceil(1_000)).contains(&(c.0 - s.0)), "{} {}", s.0, c.0);
        assert_eq!(s.1, c.1);
    }
    // The SYN: two cables of 100 us, and its bits.
    let first = |interface, direction| seen(interface, direction)[0].0;
    assert!(first(1, 1) > first(0, 2) + 200_000);
    // Host 1, which takes no time, answers when it has come in: the file has the question before the answer.
    assert_eq!(first(1, 2), first(1, 1));
    assert_eq!(frames.iter().filter(|f| f.0 == 1).map(|f| f.1).take(2).collect::<Vec<_>>(), [1, 2]);
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
    // Ten epochs, and at the end of each the one connection on which host 2 sends.
    assert_eq!(
        rows.iter().map(|r| r.time_ps).collect::<Vec<_>>(),
        (1..=10).map(|n| n * 500_000_000).collect::<Vec<_>>()
    );
    assert!(rows.iter().all(|r| (r.src_host, r.dst_host) == (2, 3)), "{rows:#?}");
    assert!(rows.windows(2).all(|w| w[0].time_ps < w[1].time_ps && w[0].acked_bytes <= w[1].acked_bytes));
    let first = &rows[0];
    // Slow start doubles the window until the buffer is the limit; the round-trip time is four cables and some frames.
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

/// The hosts of the flows of a workload, and of their other ends.
fn ends(text: &str, name: &str) -> (BTreeSet<u32>, BTreeSet<u32>, Vec<QueryRow>) {
    let dir = Dir::new(name);
    execute(text, 1, Some(dir.0.clone()));
    let flows: Vec<FlowRow> = read(&dir.0).unwrap();
    (
        flows.iter().map(|f| f.src_host).collect(),
        flows.iter().map(|f| f.dst_host).collect(),
        read(&dir.0).unwrap_or_default(),
    )
}

#[test]
fn only_members_of_a_chassis_have_roles_in_queries_and_send_background_flows() {
    let text = |duration: &str, workload: &str| {
        format!(
            "[scenario]\n{duration}[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 1]\n[server]\nvms = 3\n[[workload]]\n\
             inter_arrival = {{ kind = \"exponential\", mean = \"100 us\" }}\n{workload}"
        )
    };
    let members = BTreeSet::from([1, 2, 5, 6]);
    let queries = "kind = \"partition-aggregate\"\nlayout = \"crisan2014-ch4\"\nqueries = 40\nmembers = [1, 2]\n";
    let (from, to, rows) = ends(&text("", queries), "world-members-queries");
    assert_eq!((from, to), (members.clone(), members.clone()));
    // Two chassis of two: two subqueries, four requests, four responses, two aggregates.
    assert!(rows.len() == 40 && rows.iter().all(|q| q.flows == 12), "{rows:?}");
    let flows = "kind = \"background\"\nflow_size = \"1 KB\"\nmembers = [1, 2]\n";
    let (from, to, _) = ends(&text("duration = \"5 ms\"\n", flows), "world-members-flows");
    assert_eq!((from, to), (members, (0..8).collect()));
}

#[test]
fn queries_of_the_warm_up_are_left_out_though_they_do_not_end() {
    // No query is done after 2 ms. Queries that begin in the first millisecond, or are among the first of their
    // workload, are warm-up.
    let text = r#"
        [scenario]
        duration = "2 ms"
        warmup = "1 ms"
        [topology]
        kind = "xgft"
        m = [4, 2]
        w = [1, 1]
        [server]
        vms = 3
        [[workload]]
        kind = "incast"
        senders = [0, 1]
        receiver = 7
        bytes = "10 MB"
        [[workload]]
        kind = "incast"
        senders = [0, 1]
        receiver = 6
        bytes = "10 MB"
        start = "1500 us"
        [[workload]]
        kind = "partition-aggregate-2"
        aggregators = [5]
        workers = [0, 1]
        response = "10 MB"
        queries = 6
        inter_arrival = "390 us"
        warmup_queries = 4
        [[workload]]
        kind = "partition-aggregate"
        layout = "crisan2014-ch4"
        queries = 3
        message = "10 MB"
        inter_arrival = "900 us"
        warmup_queries = 2
    "#;
    let dir = Dir::new("world-open-warmup");
    let o = execute(text, 1, Some(dir.0.clone()));
    let of = |w: u8| o.queries.iter().filter(move |q| q.workload == w).collect::<Vec<_>>();
    assert!([0, 1, 2, 3].iter().all(|&w| !of(w).is_empty()), "{:?}", o.queries);
    let mut seen = [0, 0];
    for q in &o.queries {
        let count = q.query_id & 0xff_ffff;
        let among_the_first = count < [0, 0, 4, 2][q.workload as usize];
        assert!(q.completion_ps.is_none() && q.warmup == (among_the_first || q.start_ps < 1_000_000_000), "{q:?}");
        seen[usize::from(q.warmup)] += 1;
    }
    let queries = Figures::saved(&dir.0).unwrap().queries.unwrap();
    assert_eq!((queries.finished, queries.unfinished), (0, seen[0]));
    assert!(seen[0] > 1 && seen[1] > 2, "{seen:?}");
}

#[test]
fn timeouts_of_the_flows_that_count_leave_the_warm_up_out() {
    // Three times five flows of no query onto a switch of few frames, once in the warm-up; and an incast, which is queries.
    let flows: String = [0, 200, 400]
        .iter()
        .flat_map(|start| {
            (1..6).map(move |src| {
                format!(
                    "[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = 0\nbytes = \"100 KB\"\nstart = \"{start} ms\"\n"
                )
            })
        })
        .collect();
    let text = format!(
        "[scenario]\nwarmup = \"100 ms\"\n[topology]\nkind = \"single-switch\"\nhosts = 8\n[switch]\nbuffer = \"10 KB\"\n\
         {flows}[[workload]]\nkind = \"incast\"\nsenders = 6\nreceiver = 7\nbytes = \"50 KB\"\nrounds = 3\n"
    );
    let dir = Dir::new("world-warmup-timeouts");
    execute(&text, 1, Some(dir.0.clone()));
    let rows: Vec<FlowRow> = read(&dir.0).unwrap();
    let figures = Figures::saved(&dir.0).unwrap();
    let sums = |counts: &dyn Fn(&FlowRow) -> bool| -> (u64, u64) {
        let of = || rows.iter().filter(|f| counts(f));
        (of().map(|f| u64::from(f.timeouts)).sum(), of().map(|f| u64::from(f.retransmissions)).sum())
    };
    let alone = |f: &FlowRow| f.query_id.is_none();
    let counting = sums(&|f| alone(f) && f.start_ps >= 100_000_000_000);
    let warmup = sums(&|f| alone(f) && f.start_ps < 100_000_000_000);
    let flows = figures.flows.unwrap();
    assert_eq!((flows.timeouts, flows.retransmissions), counting);
    assert!(counting.0 > 0 && warmup.0 > 0 && sums(&|f| !alone(f)).1 > 0, "{counting:?} {warmup:?}");
    // Counts of all messages include the warm-up.
    assert_eq!((figures.timeouts, figures.retransmissions), sums(&|_| true));
}

#[test]
fn every_pause_is_recorded_with_its_cause() {
    // Frames of one flow over paths of unlike queues: adapters with little room wait for missing frames and pause their
    // link.
    let text = |pauses: bool| {
        format!(
            r#"
            [scenario]
            parameters = "crisan2014-ch2"
            duration = "20 ms"
            [topology]
            kind = "fat-tree"
            k = 4
            routing = "random"
            link_delay = "1 us"
            [switch]
            buffer = "20 KB"
            [pfc]
            enabled = true
            quanta = 2000
            xoff = "20 KB"
            xon = "0 B"
            [adapter]
            buffer = "5 KB"
            [server]
            virtual_network = false
            [record]
            pauses = {pauses}
            [[workload]]
            kind = "partition-aggregate-2"
            aggregators = 2
            workers = 14
            response = "40 KB"
            queries = 5
            [[workload]]
            kind = "incast"
            senders = [1, 2, 3]
            receiver = 15
            bytes = "200 KB"
            transport = "udp"
            "#
        )
    };
    let dir = Dir::new("world-pauses");
    let o = execute(&text(true), 1, Some(dir.0.clone()));
    let pauses: Vec<PauseRow> = read(&dir.0).unwrap();
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    for port in &ports {
        let rows = pauses.iter().filter(|p| p.node == port.node && p.port == port.port);
        assert_eq!(rows.count() as u64, port.xoff_sent, "{port:?}");
    }
    assert_eq!(pauses.len() as u64, o.pauses);
    let (of_servers, of_switches): (Vec<&PauseRow>, _) = pauses.iter().partition(|p| p.node.starts_with("host"));
    assert!(of_servers.len() > 10 && !of_switches.is_empty(), "{} {}", of_servers.len(), of_switches.len());
    for p in of_servers {
        assert_eq!((p.cause_port, &p.cause_peer, p.parent_pause_id), (p.port, &p.peer, None), "{p:?}");
    }
    // A server that holds a switch back is where a tree of pauses begins.
    let blames_a_server =
        |p: &&PauseRow| pauses.iter().any(|q| Some(q.pause_id) == p.parent_pause_id && q.peer == p.node);
    assert!(of_switches.iter().any(blames_a_server));
    // Without a wish for such rows there are none, of servers either.
    let dir = Dir::new("world-no-pauses");
    execute(&text(false), 1, Some(dir.0.clone()));
    assert!(read::<PauseRow>(&dir.0).unwrap().is_empty());
}
