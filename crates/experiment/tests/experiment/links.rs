//! Hosts with several links: XGFTs with w_1 above 1, and graphs.

use crate::worlds::{assert_same_bytes, load};
use sluicenet_experiment::run::{Outcome, RunError};
use sluicenet_records::{FlowRow, PauseRow, PortRow, QueueRow, read};
use sluicenet_testkit::Dir;
use std::collections::BTreeSet;

fn attempt(text: &str, dir: &Dir, threads: usize) -> Result<Outcome, RunError> {
    let loaded = load(text, "links", &dir.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
    crate::worlds::attempt(&loaded, threads, Some(dir.0.clone()))
}

fn execute(text: &str, dir: &Dir) -> Outcome {
    attempt(text, dir, 1).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// A lossless tree; every flow ends.
fn lossless(m: &str, w: &str, routing: &str, workloads: &str) -> String {
    format!(
        r#"
        [topology]
        kind = "xgft"
        m = {m}
        w = {w}
        routing = "{routing}"
        [pfc]
        enabled = true
        xoff = "40 KB"
        xon = "30 KB"
        [record]
        pauses = true
        {workloads}
        "#
    )
}

fn incast(senders: &str, receiver: u32, bytes: &str, transport: &str) -> String {
    format!(
        "[[workload]]\nkind = \"incast\"\nsenders = {senders}\nreceiver = {receiver}\nbytes = \"{bytes}\"\nrounds = 4\n\
         transport = \"{transport}\"\n"
    )
}

fn flow(src: u32, dst: u32, bytes: &str, transport: &str) -> String {
    format!(
        "[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\nbytes = \"{bytes}\"\ntransport = \"{transport}\"\n"
    )
}

/// Everything arrived, once and in order: late or doubled frames make TCP send again, and the counters have the rest.
fn assert_whole(o: &Outcome, flows: &[FlowRow], text: &str) {
    assert_eq!((o.totals.dropped, o.violations, o.totals.inside), (0, 0, 0), "{text}");
    assert_eq!((o.flows.timeouts, o.flows.retransmissions), (0, 0), "{text}");
    assert_eq!(o.totals.sent, o.totals.delivered, "{text}");
    assert!(
        !flows.is_empty() && flows.iter().all(|f| f.fct_ps.is_some() && Some(f.delivered_bytes) == f.bytes),
        "{text}"
    );
}

/// Frames that left and reached a host, by link.
fn frames(ports: &[PortRow], host: u32) -> (Vec<u64>, Vec<u64>) {
    let name = format!("host {host}");
    let mut of_host: Vec<&PortRow> = ports.iter().filter(|p| *p.node == *name).collect();
    of_host.sort_by_key(|p| p.port);
    (of_host.iter().map(|p| p.tx_frames).collect(), of_host.iter().map(|p| p.rx_frames).collect())
}

#[test]
fn nothing_is_lost_twice_or_out_of_order_over_several_links() {
    let shapes = [("[4, 4]", "[2, 2]", 16), ("[4]", "[2]", 4), ("[3, 2, 2]", "[3, 1, 2]", 12)];
    let routings = ["d-mod-k", "s-mod-k", "hash", "random", "hash-destination", "two-level"];
    for ((m, w, hosts), routing) in shapes.into_iter().flat_map(|shape| routings.map(|routing| (shape, routing))) {
        let mut loads = String::new();
        for receiver in [0, hosts - 1] {
            let senders: Vec<u32> = (0..hosts).filter(|&h| h != receiver).collect();
            loads += &incast(&format!("{senders:?}"), receiver, "60 KB", if receiver == 0 { "tcp" } else { "udp" });
        }
        let text = lossless(m, w, routing, &loads);
        let dir = Dir::new(&format!("links-whole-{hosts}-{routing}"));
        let o = execute(&text, &dir);
        assert_whole(&o, &read(&dir.0).unwrap(), &text);
        // Three senders to each of two links do not press on any.
        assert!(o.totals.pauses > 0 || hosts == 4, "{text}");
        let ports: Vec<PortRow> = read(&dir.0).unwrap();
        // A receiver hears over every link it can, by destination over one alone; but for pauses, which come over all.
        let (_, heard) = frames(&ports, hosts - 1);
        let used = heard.iter().filter(|&&n| n > 100).count();
        assert!(hosts == 4 || (used > 1) == (routing != "d-mod-k"), "{heard:?} {text}");
    }
}

#[test]
fn each_link_carries_the_share_that_d_mod_k_gives_it() {
    for (m, w, hosts) in [("[4, 4]", "[2, 2]", 16u32), ("[4]", "[2]", 4), ("[6]", "[3]", 6)] {
        let links = if w == "[3]" { 3 } else { 2 };
        // Every host sends 30 datagrams of 1,000 B to every other.
        let loads: String = (0..hosts)
            .flat_map(|src| (0..hosts).filter(move |&dst| dst != src).map(move |dst| flow(src, dst, "30000 B", "udp")))
            .collect();
        let text = lossless(m, w, "d-mod-k", &loads) + "[framing]\nmtu = \"1028 B\"\n";
        let dir = Dir::new(&format!("links-shares-{hosts}"));
        assert_whole(&execute(&text, &dir), &read(&dir.0).unwrap(), &text);
        let ports: Vec<PortRow> = read(&dir.0).unwrap();
        for host in 0..hosts {
            let (sent, heard) = frames(&ports, host);
            let pauses: u64 = ports.iter().filter(|p| *p.node == *format!("host {host}")).map(|p| p.xoff_sent).sum();
            assert_eq!(pauses, 0, "frames of hosts are data");
            let to = |link: u32| (0..hosts).filter(|&dst| dst != host && dst % links == link).count() as u64;
            assert_eq!(sent, (0..links).map(|link| 30 * to(link)).collect::<Vec<u64>>(), "host {host} of {text}");
            for (link, &heard) in heard.iter().enumerate() {
                // Pause frames come over every link.
                let data = if link as u32 == host % links { 30 * (hosts as u64 - 1) } else { 0 };
                assert!(heard >= data && (data > 0 || heard < 30), "host {host} link {link}: {heard}");
            }
        }
    }
}

#[test]
fn a_pause_on_one_link_does_not_stop_the_other() {
    // Hosts 0, 1 and 4 press on the first link of host 2; the flow from host 0 to host 3 takes host 0's second link.
    let loads = incast("[0, 1, 4]", 2, "300 KB", "udp") + &flow(0, 3, "300 KB", "udp");
    let text = lossless("[5]", "[2]", "d-mod-k", &loads) + "[adapter]\nbuffer = \"4 MB\"\n";
    let dir = Dir::new("links-pause");
    let o = execute(&text, &dir);
    let flows: Vec<FlowRow> = read(&dir.0).unwrap();
    assert_whole(&o, &flows, &text);
    let pauses: Vec<PauseRow> = read(&dir.0).unwrap();
    assert!(!pauses.is_empty() && pauses.iter().all(|p| &*p.node == "switch 0"), "{pauses:?}");
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    let of = |port: u16| ports.iter().find(|p| &*p.node == "host 0" && p.port == port).unwrap();
    assert!(of(0).xoff_received > 0 && of(0).paused_ps > 0, "{:?}", of(0));
    assert_eq!((of(1).xoff_received, of(1).paused_ps), (0, 0), "{:?}", of(1));
    // The flow meets no other: its time is that of an empty network, to the picosecond.
    let free = flows.iter().find(|f| f.dst_host == 3).unwrap();
    assert_eq!((free.slowdown, free.paused_ps), (Some(1.0), 0), "{free:?}");
    assert!(flows.iter().any(|f| f.src_host == 0 && f.dst_host == 2 && f.paused_ps > 0));
}

#[test]
fn a_stalled_server_pauses_all_its_links() {
    // The receiving VM is slower than one link; its lossless vSwitch fills and the adapter holds both switches back.
    let text = r#"
        [scenario]
        parameters = "crisan2014-ch3"
        flow_control = "ZZ"
        [topology]
        kind = "xgft"
        m = [5]
        w = [2]
        routing = "s-mod-k"
        [vswitch]
        slots = 16
        vm_rate = "4 Gb/s"
        [adapter]
        buffer = "20 KB"
        [server]
        vms = 1
        [record]
        pauses = true
        [[workload]]
        kind = "incast"
        senders = [0, 1, 2, 3]
        receiver = 4
        bytes = "200 KB"
        rounds = 2
        transport = "udp"
    "#;
    let dir = Dir::new("links-stall");
    let o = execute(text, &dir);
    assert_whole(&o, &read(&dir.0).unwrap(), text);
    let pauses: Vec<PauseRow> = read(&dir.0).unwrap();
    let starts = |port: u16| -> Vec<u64> {
        pauses.iter().filter(|p| &*p.node == "host 4" && p.port == port).map(|p| p.start_ps).collect()
    };
    assert!(!starts(0).is_empty());
    assert_eq!(starts(0), starts(1));
    let peers: BTreeSet<&str> = pauses.iter().filter(|p| &*p.node == "host 4").map(|p| &*p.peer).collect();
    assert_eq!(peers, BTreeSet::from(["switch 0", "switch 1"]));
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    for switch in ["switch 0", "switch 1"] {
        let port = ports.iter().find(|p| &*p.node == switch && &*p.peer == "host 4").unwrap();
        assert!(port.xoff_received > 0 && port.paused_ps > 0, "{port:?}");
    }
}

#[test]
fn two_links_halve_the_bound_of_an_incast_and_the_incast() {
    let round = |w: &str, routing: &str| {
        let text = lossless("[9]", w, routing, &incast("8", 8, "100 KB", "udp"));
        let dir = Dir::new(&format!("links-bound-{routing}-{}", w.len() + w.matches('2').count()));
        let o = execute(&text, &dir);
        assert_whole(&o, &read(&dir.0).unwrap(), &text);
        let bound = o.incast_bound.unwrap().as_ps() as f64;
        let mean = o.queries.iter().map(|q| q.completion_ps.unwrap() as f64).sum::<f64>() / o.queries.len() as f64;
        assert!(mean >= bound && mean < 1.01 * bound, "{mean} {bound} {text}");
        mean
    };
    // By source every second sender has the other link; by destination all share one.
    let one = round("[1]", "s-mod-k");
    assert!((1.98..2.0).contains(&(one / round("[2]", "s-mod-k"))));
    assert_eq!(one, round("[2]", "d-mod-k"));
}

#[test]
fn external_hosts_are_reached_over_the_links_that_lead_there() {
    for routing in ["d-mod-k", "s-mod-k", "hash", "random", "hash-destination", "two-level"] {
        let loads =
            incast("[0, 1, 2, 3, 16, 17, 18]", 9, "20 KB", "tcp") + &incast("[0, 5, 10, 15]", 17, "20 KB", "tcp");
        let text = lossless("[4, 4]", "[2, 2]", routing, &loads).replace("routing =", "external_hosts = 5\nrouting =");
        let dir = Dir::new(&format!("links-external-{routing}"));
        assert_whole(&execute(&text, &dir), &read(&dir.0).unwrap(), &text);
    }
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    for routing in ["d-mod-k", "random"] {
        let loads = incast("[1, 2, 5, 9, 13, 14]", 0, "50 KB", "tcp") + &incast("[0, 3, 7, 11]", 15, "50 KB", "udp");
        let text = lossless("[4, 4]", "[2, 2]", routing, &loads);
        assert_same_bytes(routing, |threads, dir| drop(attempt(&text, dir, threads).unwrap()));
    }
    // A graph, too: every switch can be with another thread than its neighbours, and so can two hosts with a cable.
    let loads = incast("[1, 2, 3]", 0, "50 KB", "tcp") + &incast("[0, 1, 2]", 3, "50 KB", "udp");
    let text = format!(
        "[topology]\nkind = \"hpcc\"\nfile = \"graph.txt\"\n[pfc]\nenabled = true\n[record]\npauses = true\n{loads}"
    );
    assert_same_bytes("graph", |threads, dir| {
        dir.file("graph.txt", GRAPH);
        attempt(&text, dir, threads).unwrap();
    });
}

#[test]
fn all_links_of_a_named_host_are_sampled() {
    let loads = incast("[1, 2, 3]", 0, "200 KB", "udp") + &flow(0, 1, "100 KB", "udp") + &flow(0, 2, "100 KB", "udp");
    let text = lossless("[4]", "[2]", "d-mod-k", &loads)
        .replace("pauses = true", "queues = \"10 us\"\nqueue_ports = [\"host 0\"]");
    let dir = Dir::new("links-sampled");
    execute(&text, &dir);
    let rows: Vec<QueueRow> = read(&dir.0).unwrap();
    let most = |port: u16| rows.iter().filter(|r| r.port == port).map(|r| r.bytes).max();
    assert!(most(0) > Some(50_000) && most(1) > Some(50_000) && most(2).is_none(), "{rows:?}");
}

/// Two switches with a cable between them. Hosts 0 and 1 are on both switches, host 2 is on the first. Host 3 is on the
/// second and, by a cable of its own, on host 0.
const GRAPH: &str = "6 2 8\n4 5\n0 4 10Gbps 1000ns 0\n0 5 40Gbps 1000ns 0\n1 4 10Gbps 1000ns 0\n1 5 10Gbps 1000ns 0\n\
                     2 4 10Gbps 1000ns 0\n3 5 10Gbps 1000ns 0\n4 5 10Gbps 1000ns 0\n0 3 10Gbps 500ns 0\n";

#[test]
fn a_host_of_a_graph_takes_the_shortest_of_its_links() {
    let dir = Dir::new("links-graph");
    dir.file("graph.txt", GRAPH);
    let mut loads = flow(0, 3, "100 KB", "udp") + &flow(3, 0, "100 KB", "udp") + &flow(0, 2, "100 KB", "udp");
    for _ in 0..20 {
        loads += &flow(0, 1, "20 KB", "tcp");
    }
    loads += &flow(2, 1, "20 KB", "tcp");
    let text = format!(
        "[topology]\nkind = \"hpcc\"\nfile = \"graph.txt\"\n[pfc]\nenabled = true\n[record]\npauses = true\n{loads}"
    );
    let o = execute(&text, &dir);
    assert_whole(&o, &read(&dir.0).unwrap(), &text);
    let ports: Vec<PortRow> = read(&dir.0).unwrap();
    let (sent, _) = frames(&ports, 0);
    // Links in the order of the file. To host 2 over the first switch, to host 3 over the cable, to host 1 over both switches.
    assert!(sent[0] >= 68 && sent[1] > 20 && sent[2] == 68, "{sent:?}");
    let (sent, _) = frames(&ports, 3);
    assert_eq!(sent, [0, 68]);
    // The cable between the switches is on no shortest path: every host has a link to the switch of its receiver.
    let trunk = ports.iter().find(|p| &*p.node == "switch 0" && &*p.peer == "switch 1").unwrap();
    assert_eq!(trunk.tx_frames, 0);
    // Alone on its way, over 10 Gb/s and 500 ns and nothing else.
    let alone = |src: u32, dst: u32| {
        let dir = Dir::new(&format!("links-graph-{src}-{dst}"));
        dir.file("graph.txt", GRAPH);
        let text = format!("[topology]\nkind = \"hpcc\"\nfile = \"graph.txt\"\n{}", flow(src, dst, "1000 B", "udp"));
        execute(&text, &dir);
        let flows: Vec<FlowRow> = read(&dir.0).unwrap();
        assert_eq!(flows[0].fct_ps, flows[0].ideal_ps);
        flows[0].ideal_ps
    };
    assert_eq!(alone(0, 3), Some((1000 + 28 + 18 + 8) * 800 + 500_000));
    assert!(alone(0, 2) > Some(2 * 1_000_000));
    // Not between 0 and 1: of two paths of different speed, the ideal is that of the faster one, whichever path a flow
    // gets.
    for (src, dst) in [(2, 3), (3, 2), (1, 3), (3, 1)] {
        alone(src, dst);
    }

    // Hosts forward nothing: a host that hangs on another alone is out of reach of the rest.
    dir.file("graph.txt", "5 1 4\n4\n0 4 10Gbps 1us 0\n1 4 10Gbps 1us 0\n2 4 10Gbps 1us 0\n2 3 10Gbps 1us 0\n");
    let text = format!("[topology]\nkind = \"hpcc\"\nfile = \"graph.txt\"\n{}", flow(0, 1, "1 KB", "udp"));
    let RunError::Build(e) = attempt(&text, &dir, 1).unwrap_err() else { panic!("it was built") };
    // By the numbers and the lines of the file.
    let text = e.to_string();
    assert!(text.contains("graph.txt: node 3 has no way to node 0: hosts forward nothing"), "{text}");
    assert!(text.contains("line 6 links nodes 2 and 3, which are both hosts"), "{text}");
}
