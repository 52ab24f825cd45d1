//! Tests of every format: valid, lying, hostile, and the field's own files where they are at hand.

use super::*;
use crate::{Error, Warning};
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_testkit::{Dir, mutated};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// Our own samples.
fn own(name: &str) -> Vec<u8> {
    let path = root().join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The field's files, which are not the project's to ship.
fn shared(name: &str) -> Option<Vec<u8>> {
    let path = root().join("../../../shared/data").join(name);
    let bytes = std::fs::read(&path).ok();
    if bytes.is_none() {
        eprintln!("not checked: {} is not there", path.display());
    }
    bytes
}

#[track_caller]
fn error<T>(outcome: crate::Result<T>, line: u32, column: u32, message: &str) {
    let Err(e) = outcome else { panic!("accepted, wanted: {message}") };
    let d = e.diagnostic();
    assert!(d.message.contains(message), "{e}");
    assert_eq!((d.line, d.column), (line, column), "{e}");
}

fn topology(text: &str) -> crate::Result<(HpccTopology, Vec<Warning>)> {
    parse_hpcc_topology("t", text.as_bytes())
}
fn flows(text: &str) -> crate::Result<(HpccFlows, Vec<Warning>)> {
    parse_hpcc_flows("t", text.as_bytes())
}
fn cdf(text: &str) -> crate::Result<(Cdf, Vec<Warning>)> {
    parse_cdf("t", text.as_bytes())
}
fn matrix(text: &str) -> crate::Result<(ConnectionMatrix, Vec<Warning>)> {
    parse_connection_matrix("t", text.as_bytes())
}
fn topo(text: &str) -> crate::Result<(HtsimTopology, Vec<Warning>)> {
    parse_htsim_topology("t", text.as_bytes())
}

#[test]
fn our_own_samples() {
    let (t, w) = parse_hpcc_topology("t", &own("small_topology.txt")).unwrap();
    assert_eq!((t.nodes, t.hosts(), t.links.len(), w.len()), (6, 4, 5, 0));
    assert_eq!((t.host_of(3), t.host_of(4), t.host_of(6), t.switch_of(5)), (Some(3), None, None, Some(1)));
    assert_eq!((t.links[0].rate, t.links[0].delay), (Rate::gbps(25), Duration::from_us(1)));
    let (f, w) = parse_hpcc_flows("t", &own("small_flows.txt")).unwrap();
    assert_eq!((f.flows[1].start, w.len()), (Duration(2_000_001_000_000), 0));
    let (c, _) = parse_cdf("t", &own("small_cdf.txt")).unwrap();
    assert!((c.mean() - (0.5 * 500.0 + 0.4 * 5_500.0 + 0.1 * 505_000.0)).abs() < 1e-9);
    assert_eq!(c.sample(1 << 63).round(), 1000.0);
    let (m, w) = parse_connection_matrix("t", &own("small.cm")).unwrap();
    assert_eq!((m.connections.len(), m.triggers.len(), w.len()), (5, 3, 0), "{w:?}");
    assert_eq!(m.triggers[1].kind, TriggerKind::Barrier(2));
    assert_eq!(m.triggers[1].targets, [3]);
    assert_eq!(m.connections[1].start, Start::Trigger(0));
    assert_eq!(m.connections[2].recv_done, Some(1));
    let (t, w) = parse_htsim_topology("t", &own("small.topo")).unwrap();
    assert_eq!((t.hosts, t.switches(), w.len()), (4, 4, 0));
    assert_eq!(t.as_pgft(), (vec![2, 2], vec![1, 2], vec![1, 1]));
}

#[test]
fn the_fields_files() {
    for (name, points, mean) in [
        ("AliStorage2019.txt", 9, None),
        ("FbHdp_distribution.txt", 20, None),
        ("GoogleRPC2008.txt", 843, None),
        // 1.7 MB, as papers that use it say.
        ("WebSearch_distribution.txt", 12, Some(1_711_250.0)),
    ] {
        let Some(bytes) = shared(&format!("hpcc/{name}")) else { continue };
        let (cdf, warnings) = parse_cdf(name, &bytes).unwrap();
        assert_eq!((cdf.points.len(), warnings.len()), (points, 0), "{name} {warnings:?}");
        if let Some(mean) = mean {
            assert!((cdf.mean() - mean).abs() < 1.0, "{}", cdf.mean());
        }
    }
    if let Some(bytes) = shared("hpcc/fat.txt") {
        let (t, w) = parse_hpcc_topology("fat.txt", &bytes).unwrap();
        assert_eq!((t.nodes, t.hosts(), t.switches.len(), t.links.len(), w.len()), (376, 320, 56, 480, 0));
    }
    for (name, dialect, nodes, links) in [
        ("powertcp-8.txt", Dialect::PowerTcp, 12, 12),
        ("reverie-8.txt", Dialect::Reverie, 12, 12),
        ("simai-16.txt", Dialect::SimAi, 28, 48),
    ] {
        let Some(bytes) = shared(&format!("field/{name}")) else { continue };
        let (t, w) = parse_hpcc_topology(name, &bytes).unwrap();
        assert_eq!((t.dialect, t.nodes, t.links.len(), w.len()), (dialect, nodes, links, 0), "{name}");
    }
    if let Some(bytes) = shared("hpcc/flow.txt") {
        let (f, w) = parse_hpcc_flows("flow.txt", &bytes).unwrap();
        assert_eq!((f.flows.len(), w.len(), w[0].line), (2, 1, 4));
        assert!(w[0].message.contains("the header says 2 flows"));
    }
    for (name, nodes, connections, triggers, warned) in [
        ("a2a.cm", 16, 240, 224, vec![2, 3, 4]),
        ("alltoall_serial_16n.cm", 16, 240, 224, vec![]),
        ("bidir.cm", 16, 2, 0, vec![]),
        ("gen_random_incast_8192n_128c_0us_1Ms.cm", 8192, 128, 0, vec![]),
        ("incast.cm", 16, 15, 0, vec![]),
    ] {
        let Some(bytes) = shared(&format!("htsim/{name}")) else { continue };
        let (m, mut w) = parse_connection_matrix(name, &bytes).unwrap();
        w.sort_by_key(|w| w.line);
        let lines: Vec<u32> = w.iter().map(|w| w.line).collect();
        assert_eq!((m.nodes, m.connections.len(), m.triggers.len()), (nodes, connections, triggers), "{name}");
        assert_eq!(lines, warned, "{name} {w:?}");
    }
    for (name, hosts, switches, m, w) in [
        ("fat_tree_1024_1os.topo", 1024, 320, vec![8, 8, 16], vec![1, 8, 8]),
        ("fat_tree_1024_4os.topo", 1024, 176, vec![8, 8, 16], vec![1, 2, 8]),
        ("fat_tree_128_1os.topo", 128, 80, vec![4, 4, 8], vec![1, 4, 4]),
        ("leaf_spine_1024.topo", 1024, 64, vec![32, 32], vec![1, 32]),
        ("leaf_spine_8192_400g.topo", 8192, 192, vec![64, 128], vec![1, 64]),
    ] {
        let Some(bytes) = shared(&format!("htsim/{name}")) else { continue };
        let (t, warnings) = parse_htsim_topology(name, &bytes).unwrap();
        assert_eq!((t.hosts, t.switches(), warnings.len()), (hosts, switches, 0), "{name}");
        let links = vec![1; m.len()];
        assert_eq!(t.as_pgft(), (m, w, links), "{name}");
    }
}

#[test]
fn a_matrix_belongs_to_a_network() {
    let (m, _) = matrix("# a comment\nNodes 16\nConnections 1\n0->15 start 0 size 1000\n").unwrap();
    assert_eq!(m.check_nodes("t", 16), Ok(None));
    error(m.check_nodes("t", 8), 2, 1, "this matrix is of 16 nodes, and the network has 8 hosts");
    let warning = m.check_nodes("t", 128).unwrap().unwrap();
    assert_eq!((warning.line, warning.message.contains("16 nodes, and the network has 128 hosts")), (2, true));
}

#[test]
fn hpcc_topologies_refused() {
    error(topology("4000000000 1 1\n"), 1, 1, "the number of nodes of 4000000000 is too large");
    error(topology("3 1 4000000000\n2\n"), 1, 5, "the number of links of 4000000000 is too large");
    error(topology("10000000 1 1\n"), 1, 10, "9999999 hosts are too many");
    error(topology("2 3 1\n"), 1, 3, "too large");
    error(topology("2 2 1\n0 1\n0 1 1Gbps 1us 0\n"), 1, 3, "leave no host");
    error(topology("3 1 2\n2\n0 2 10Gbps 1us 0\n"), 3, 1, "the file ends where the source of link 2 of 2");
    error(topology("3 1 2\n2\n0 0 10Gbps 1us 0\n"), 3, 3, "node 0 is linked to itself");
    error(topology("3 1 2\n2\n0 3 10Gbps 1us 0\n"), 3, 3, "a link's destination of 3 is too large");
    error(topology("3 1 2\n2\n0 2 10Gigs 1us 0\n"), 3, 5, "unknown unit `Gigs`");
    error(topology("3 1 2\n2\n0 2 0Gbps 1us 0\n"), 3, 5, "a link's rate is at least 10000 b/s");
    error(topology("3 1 2\n2\n0 2 10Gbps -1us 0\n"), 3, 12, "negative");
    error(topology("3 1 2\n2\n0 2 10Gbps 1 0\n"), 3, 12, "a duration needs a unit");
    error(topology("3 1 2\n2\n0 2 10Gbps 1us NaN\n"), 3, 16, "`NaN` is not a link's error rate");
    error(topology("4 2 1\n2 2\n"), 2, 3, "switch 2 is listed twice");
    error(topology("3 1 1\n2\n0 2 10Gbps 1us 0\n"), 0, 0, "no path leads from node 0 to node 1");
    error(topology("x"), 1, 1, "`x` is not the number of nodes");
    error(topology(""), 1, 1, "the file ends where the number of nodes should be");
    let (t, w) = topology("3 1 2\n2\n0 2 10Gbps 1us 0 1 2 10Gbps 1us 0.5\nmore\n").unwrap();
    assert_eq!((t.links[1].packet_error_rate, w[0].line), (0.5, 4));
    // As many ports as a switch can have, and one more.
    let of = |links: u32| {
        let text = "0 2 10Gbps 1us 0\n".repeat(links as usize - 1);
        topology(&format!("3 1 {links}\n2\n1 2 10Gbps 1us 0\n{text}"))
    };
    assert_eq!(of(crate::SWITCH_PORTS_MAX).unwrap().0.links.len(), crate::SWITCH_PORTS_MAX as usize);
    error(of(crate::SWITCH_PORTS_MAX + 1), crate::SWITCH_PORTS_MAX + 3, 1, "node 2 has more than 4094 links");
}

#[test]
fn a_dialect_is_recognised_by_header_and_body() {
    let read = |name: &str| parse_hpcc_topology(name, &own(name)).unwrap();
    let (t, w) = read("small_topology.txt");
    assert_eq!((t.dialect, t.nvswitches.len(), w.len()), (Dialect::Hpcc, 0, 0));
    // 25000000000.0 and 25000000000: bits a second, as ns-3 reads a rate without a unit.
    for (name, dialect, delay) in [("powertcp-8.txt", Dialect::PowerTcp, 1), ("reverie-8.txt", Dialect::Reverie, 2)] {
        let (t, w) = read(name);
        assert_eq!((t.dialect, t.hosts(), t.switches.len(), t.links.len(), w.len()), (dialect, 8, 4, 12, 0), "{w:?}");
        assert!(t.links.iter().all(|l| l.rate == Rate::gbps(25) && l.delay == Duration::from_us(delay)));
    }
    let (t, w) = read("simai-16.txt");
    assert_eq!((t.dialect, t.hosts(), &t.nvswitches[..], w.len()), (Dialect::SimAi, 16, &[16, 17][..], 0));
    assert_eq!((t.switches.len(), t.links.len()), (12, 48));
    assert_eq!((t.links[0].rate, t.links[0].delay), (Rate::gbps(2880), Duration::from_ns(25)));
    // Line breaks mean nothing where the words tell.
    for name in ["small_topology.txt", "powertcp-8.txt", "reverie-8.txt", "simai-16.txt"] {
        let text = String::from_utf8(own(name)).unwrap();
        let one_line = text.replace('\n', " ");
        let other_lines = text.replacen(' ', "\n", 1);
        for text in [one_line, other_lines] {
            let read_again = topology(&text).unwrap().0;
            assert_eq!((read_again.dialect, read_again.links.len()), (read(name).0.dialect, read(name).0.links.len()));
        }
    }
    // Two links between the same two nodes are two links.
    let (t, w) = topology("3 1 3\n2\n0 2 10Gbps 1us 0\n2 0 10Gbps 1us 0\n1 2 10Gbps 1us 0\n").unwrap();
    assert_eq!((t.links.len(), w.len()), (3, 0));
}

#[test]
fn errors_name_the_dialect() {
    let of = |name: &str, from: &str, to: &str| {
        let text = String::from_utf8(own(name)).unwrap();
        assert!(text.contains(from), "{from}");
        topology(&text.replacen(from, to, 1))
    };
    let named = |outcome: crate::Result<(HpccTopology, Vec<Warning>)>, place: (u32, u32), message: &str, who: &str| {
        let shown = outcome.as_ref().unwrap_err().to_string();
        assert!(shown.contains(&format!("(read as a topology of {who})")), "{shown}");
        error(outcome, place.0, place.1, message);
    };
    let (hpcc, powertcp) = ("HPCC: nodes switches links", "PowerTCP: nodes switches tors links");
    let reverie = "Reverie: nodes switches tors links server_bps spine_bps";
    let simai = "SimAI: nodes gpus_per_server nvswitches switches links gpu_type";
    named(topology("3 1 4000000000\n2\n"), (1, 5), "the number of links of 4000000000 is too large", hpcc);
    let p = |from: &str, to: &str| of("powertcp-8.txt", from, to);
    named(p("12 4 2 12", "12 5 2 12"), (1, 4), "the header says 5 switches, and 4 ids come before", powertcp);
    named(p("12 4 2 12", "12 3 2 12"), (1, 4), "the header says 3 switches, and 4 ids come before", powertcp);
    named(p("12 4 2 12", "11 4 2 12"), (2, 8), "the id of switch 3 of 4 of 11 is too large", powertcp);
    named(p("12 4 2 12", "12 4 5 12"), (1, 6), "the number of ToR switches of 5 is too large", powertcp);
    named(p("12 4 2 12", "12 4 2 13"), (14, 1), "the file ends where the source of link 13 of 13", powertcp);
    named(p("12 4 2 12", "12 4 2 1000000000"), (1, 8), "the number of links of 1000000000 is too large", powertcp);
    named(p("12 4 2 12", "13 4 2 12"), (0, 0), "no path leads from node 0 to node 12", powertcp);
    named(p("25000000000.0", "25000000000.0.0"), (3, 5), "is not a number", powertcp);
    named(p("25000000000.0", "25Gbits"), (3, 5), "unknown unit `Gbits`", powertcp);
    // A first link whose delay is none is not one of the ids.
    for (delay, message) in [("0", "a duration needs a unit"), ("nanus", "nanus"), ("1", "a duration needs a unit")] {
        named(p("1us", delay), (3, 19), message, powertcp);
        named(of("reverie-8.txt", "2us", delay), (3, 17), message, reverie);
        named(of("simai-16.txt", "0.000025ms", delay), (3, 15), message, simai);
        named(topology(&format!("3 1 2\n2\n0 2 10Gbps {delay} 0\n1 2 10Gbps 1us 0\n")), (3, 12), message, hpcc);
    }
    // Rates of a header may have units, as those of links.
    let rates = |rates: &str| of("reverie-8.txt", "25000000000 25000000000", rates);
    for ours in ["25Gbps 25Gbps", "25000000000 25Gbps", "25Gbps 25000000000"] {
        let (t, w) = rates(ours).unwrap();
        assert_eq!((t.dialect, t.links.len(), w.len()), (Dialect::Reverie, 12, 0), "{w:?}");
    }
    let (t, w) = rates("100Gbps 25Gbps").unwrap();
    assert_eq!((t.dialect, w.len(), w[0].message.contains("the header says 100 Gb/s")), (Dialect::Reverie, 1, true));
    named(rates("100Gigs 25Gbps"), (1, 11), "unknown unit `Gigs`", reverie);
    named(rates("25000000000 25Gigs"), (1, 23), "unknown unit `Gigs`", reverie);
    named(of("reverie-8.txt", "25000000000", "9"), (1, 11), "a link's rate is at least 10000 b/s", reverie);
    let s = |from: &str, to: &str| of("simai-16.txt", from, to);
    named(s("28 8 2 10 48", "28 8 2 10 49"), (50, 1), "the source of link 49 of 49", simai);
    named(s("28 8 2 10 48", "28 8 3 10 48"), (1, 8), "the header says 13 switches, and 12 ids come before", simai);
    named(s("28 8 2 10 48", "28 0 2 10 48"), (1, 4), "a server without GPUs", simai);
    named(s("28 8 2 10 48", "28 16 2 10 48"), (1, 1), "no NVSwitch joins nodes 7 and 8 of one server", simai);
    // The warnings before it say why: the last links are not read.
    let e = s("28 8 2 10 48", "28 8 2 10 30").unwrap_err();
    let warnings = &e.diagnostic().warnings;
    assert!(e.diagnostic().message.contains("falls apart"), "{e}");
    assert!(warnings.len() == 1 && warnings[0].message.contains("the header says 30 links: from here on"), "{e:?}");
    // None fits: the header's words are told.
    for text in ["12 4\n8 9\n0 8 25Gbps 1us 0\n", "12 4 2 12 5\n8 9 10 11\n0 8 25Gbps 1us 0\n"] {
        let words = text.lines().next().unwrap().split(' ').count();
        error(topology(text), 1, 1, &format!("a header of {words} words, which fits no dialect"));
        let shown = topology(text).unwrap_err().to_string();
        assert!(
            [hpcc, powertcp, reverie, simai].iter().all(|d| shown.contains(d.split_once(": ").unwrap().1)),
            "{shown}"
        );
    }
}

#[test]
fn what_a_header_says_wrongly_and_nobody_needs_is_a_warning() {
    let read = |name: &str, from: &str, to: &str| {
        let text = String::from_utf8(own(name)).unwrap();
        assert!(text.contains(from), "{from}");
        let (t, w) = topology(&text.replacen(from, to, 1)).unwrap();
        assert_eq!(w.len(), 1, "{w:?}");
        (t, w[0].line, w[0].message.clone())
    };
    // SimAI's own simulator stops after as many links as the header says; here the last one is a second way.
    let (t, line, message) = read("simai-16.txt", "28 8 2 10 48", "28 8 2 10 47");
    assert_eq!((t.links.len(), line), (47, 50));
    assert!(
        message.contains("the header says 47 links: from here on the file is not read, as by SimAI's"),
        "{message}"
    );
    let (_, line, message) = read("powertcp-8.txt", "12 4 2 12", "12 4 3 12");
    assert_eq!((line, &message[..]), (1, "the header says 3 ToR switches, and 2 switches have hosts"));
    let (_, line, message) = read("reverie-8.txt", "25000000000\n", "40000000000\n");
    assert_eq!(line, 11);
    assert!(message.contains("the header says 40 Gb/s for this link, which has 25 Gb/s"), "{message}");
}

#[test]
fn hpcc_flows_refused() {
    error(flows("4000000000\n"), 1, 1, "too large");
    error(flows("2\n0 1 3 100 10 2\n"), 2, 1, "the source of flow 2 of 2");
    error(flows("1\n0 0 3 100 10 2\n"), 2, 3, "from host 0 to itself");
    error(flows("1\n0 1 8 100 10 2\n"), 2, 5, "a flow's priority of 8");
    error(flows("1\n0 1 3 70000 10 2\n"), 2, 7, "a flow's port");
    error(flows("1\n0 1 3 100 -10 2\n"), 2, 11, "`-10` is not a flow's size");
    error(flows("1\n0 1 3 100 10 nan\n"), 2, 14, "not a duration");
    let (f, w) = flows("2\n0 1 3 100 10 2\n1 9 3 100 10 1.5\n").unwrap();
    assert_eq!((w.len(), w[0].line), (1, 3));
    error(f.check("t", |n| n < 4), 3, 1, "there is no host 9");
}

#[test]
fn distributions_refused() {
    error(cdf("0 0\n10 50\n5 100\n"), 3, 1, "the values descend: 5 after 10");
    error(cdf("0 0\n10 50\n20 40\n"), 3, 4, "the percentages descend: 40 after 50");
    error(cdf("0 0\n10 99\n"), 2, 4, "the distribution ends at 99");
    error(cdf("0 0\n10\n"), 2, 1, "one number");
    error(cdf("0 0\n10 20 30\n"), 2, 7, "a third column");
    error(cdf("0 0\nnan 100\n"), 2, 1, "`nan` is not a value");
    error(cdf("0 0\n10 inf\n"), 2, 4, "not a cumulative percentage");
    error(cdf("0 0\n-10 100\n"), 2, 1, "not a value");
    error(cdf("# nothing\n\n"), 0, 0, "no points");
    error(cdf("0 0\n0 100\n"), 2, 3, "every value of this distribution is 0");
    let (c, w) = cdf("10 0.5 # half\n10 0.5\n20 1\n").unwrap();
    assert_eq!(c.points, [(10.0, 0.5), (20.0, 1.0)]);
    assert_eq!(w.iter().map(|w| w.line).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn connection_matrices_refused() {
    let body = |text: &str| matrix(&format!("Nodes 4\nConnections 1\n{text}\n"));
    error(body("0->4 start 0 size 1"), 3, 1, "there is no host 4: the network has 4");
    error(body("0->0 start 0 size 1"), 3, 4, "from host 0 to itself");
    error(body("0->x start 0 size 1"), 3, 4, "`x` is not a destination host");
    error(body("0->1 size 1"), 3, 1, "never starts");
    error(body("0->1 start 0"), 3, 1, "no size");
    error(body("0->1 start 0 trigger 1 size 1"), 3, 1, "a start and a trigger");
    error(body("0->1 start 0 szie 1"), 3, 14, "unknown word `szie`");
    error(body("0->1 start 1e9 size 1"), 3, 12, "not a start");
    error(body("0->1 start"), 3, 1, "`start` has no value");
    error(body("0->1 id 0 start 0 size 1"), 3, 1, "cannot be 0");
    error(body("0->1 id 5 start 0 size 1\n1->2 id 5 start 0 size 1"), 4, 1, "flow 5 is given twice");
    error(body("0->1 id 5 start 0 size 1\n1->2 id 5 msg start 0 size 1"), 4, 1, "connection 5 leads from host 0 to");
    error(body("0->1 msg start 0 size 1"), 3, 1, "a message needs the `id` of its connection");
    error(body("0->1 id 5 msg 0 start 0 size 1"), 3, 1, "a message's number cannot be 0");
    error(body("0->1 id 5 msg start 0 size 0"), 3, 1, "a message without end");
    error(body("0->1 id 5 start 0 size 0\n0->1 id 5 msg start 0 size 1"), 4, 1, "begins with a flow without end");
    error(body("0->1 start 0 size 1\nhello"), 4, 1, "unknown word `hello`");
    error(body("trigger id 1"), 3, 1, "no kind");
    error(body("trigger oneshot"), 3, 1, "no id");
    error(body("trigger id 1 barrier"), 3, 1, "needs `count`");
    error(body("trigger id 1 oneshot barrier"), 3, 22, "two kinds");
    error(body("trigger id 1 oneshot\ntrigger id 1 oneshot"), 4, 1, "specified twice");
    error(body("failure switch_type TOP"), 3, 21, "unknown word `TOP`");
    error(body("failure switch_type TOR"), 3, 1, "a failure needs");
    error(matrix("Connections 1\n"), 0, 0, "`Nodes` is missing");
    error(matrix("Nodes 4000000000\n"), 1, 7, "too large");
    error(matrix("Nodes\n"), 1, 1, "has no value");
    // A header of 4e9 connections allocates nothing and only disagrees.
    let (m, w) = matrix("Nodes 4\nConnections 4000000000\n0->1 start 2.5 size 0\n").unwrap();
    assert_eq!((m.connections[0].bytes, m.connections[0].start, w.len()), (None, Start::At(Duration(2)), 1));
    let (m, _) = body("0->1 start 0 size 1\nfailure switch_type AGG switch_id 1 link_id 2").unwrap();
    assert_eq!(m.failures[0].switch_type, FailureSwitch::Agg);
}

#[test]
fn messages_of_one_id_share_a_connection() {
    let (m, w) = parse_connection_matrix("t", &own("messages.cm")).unwrap();
    let seen: Vec<_> = m.connections.iter().map(|c| (c.id, c.is_message, c.src, c.dst, c.bytes)).collect();
    let of = |id: u32, dst: u32, bytes: u64| (id, true, if id == 1 { 0 } else { 3 }, dst, Some(bytes));
    assert_eq!(seen, [of(1, 9, 20_000), of(1, 9, 60_000), of(2, 12, 1_000_000), of(2, 12, 1_000)]);
    assert_eq!((m.connections[1].start, w.len()), (Start::At(Duration::from_us(5)), 0), "{w:?}");
    // The first flow of a connection may be without the word, and a message may have a number.
    let (m, _) = matrix("Nodes 4\nConnections 2\n0->1 id 7 start 0 size 1\n0->1 id 7 msg 2 start 0 size 1\n").unwrap();
    assert!(m.connections.iter().all(|c| c.is_message));
    let (m, _) = matrix("Nodes 4\nConnections 1\n0->1 id 7 start 0 size 1\n").unwrap();
    assert!(!m.connections[0].is_message);
}

#[test]
fn flows_that_wait_for_ever_are_refused() {
    let body = |text: &str| matrix(&format!("Nodes 8\n{text}\n"));
    let cycle = "0->1 trigger 3 size 1 send_done_trigger 7\n1->2 trigger 7 size 1 send_done_trigger 9\n\
                 2->3 trigger 9 size 1 recv_done_trigger 3\ntrigger id 3 oneshot\n\
                 trigger id 7 oneshot\ntrigger id 9 oneshot";
    error(body(cycle), 5, 1, "triggers wait for each other: 7 -> 9 -> 3 -> 7");
    // The cycle with a start of its own is no cycle.
    assert!(body(&format!("{cycle}\n4->5 start 0 size 1 send_done_trigger 3")).is_ok());
    error(body("0->1 trigger 1 size 1\ntrigger id 1 oneshot"), 3, 1, "trigger 1 is activated 0 times and needs 1");
    let barrier = "0->1 start 0 size 1 send_done_trigger 1\n1->2 trigger 1 size 1\ntrigger id 1 barrier count 2";
    error(body(barrier), 4, 1, "trigger 1 is activated 1 times and needs 2: the flow in line 3 never starts");
    let endless = "0->1 start 0 size 0 send_done_trigger 1\n1->2 trigger 1 size 1\ntrigger id 1 oneshot";
    error(body(endless), 4, 1, "activated 0 times");
    let multi =
        "0->1 start 0 size 1 send_done_trigger 1\n1->2 trigger 1 size 1\n2->3 trigger 1 size 1\ntrigger id 1 multishot";
    error(body(multi), 5, 1, "activated 1 times and needs 2: the flow in line 4");
    let twice =
        "0->1 start 0 size 1 send_done_trigger 1 recv_done_trigger 1\n1->2 trigger 1 size 1\ntrigger id 1 oneshot";
    let (_, w) = body(twice).unwrap();
    assert!(w.iter().any(|w| w.line == 4 && w.message.contains("htsim would abort")), "{w:?}");
}

#[test]
fn htsim_topologies_refused() {
    let good = String::from_utf8(own("small.topo")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        topo(&good.replacen(from, to, 1))
    };
    error(with("Nodes 4", "Nodes 4000000000"), 2, 7, "too large");
    error(with("Nodes 4\n", ""), 0, 0, "`Nodes` is missing");
    error(with("Tiers 2", "Tiers 1"), 0, 0, "2 or 3 tiers");
    error(with("Tiers 2", "Tiers 3"), 12, 1, "`Radix_Up` of tier 1 is missing or 0");
    error(with("Tier 1", "Tier 2"), 0, 0, "`Tier 1` is missing");
    error(with("Radix_Up 2", "Radix_Upp 2"), 9, 1, "unknown attribute `Radix_Upp`");
    error(with("Radix_Up 2", "Radix_Up 2\nRadix_Up 2"), 10, 1, "given twice for tier 0");
    error(with("Radix_Up 2", "Radix_Up 0"), 6, 1, "missing or 0");
    error(with("Radix_Up 2", "Radix_Up 1"), 6, 1, "not oversubscribed 1:1");
    error(with("Radix_Up 2", "Radix_Up"), 9, 1, "has no value");
    error(with("Podsize 4", "Podsize 2"), 12, 1, "1 switches of tier 0 in a pod do not fill 2 ports");
    let queues = with("Radix_Up 2", "Radix_Up 2\nQueue_Up 10000\nQueue_Down 20000").unwrap().0;
    let of = |size: u64, line: u32| Some(TierQueue { size: crate::Bytes(size), line });
    assert_eq!((queues.tiers[0].queue_up, queues.tiers[0].queue_down), (of(10_000, 10), of(20_000, 11)));
    error(with("Radix_Down 2", "Radix_Down 2\nBundle 2"), 9, 1, "a `Bundle` of 2 to each host");
    error(topo(&format!("{good}Bundle 3\n")), 15, 1, "a `Bundle` of 3 does not divide `Radix_Down 2` of tier 1");
    error(topo(&format!("{good}Bundle 0\n")), 12, 1, "at least 1");
    error(
        topo(&format!("{good}Bundle 2\n")),
        12,
        1,
        "2 switches of tier 0 in a pod do not fill 2 ports in bundles of 2",
    );
    error(topo(&format!("{good}Bundle 1000000000\n")), 15, 8, "Bundle of 1000000000 is too large");
    let bundles = String::from_utf8(own("bundle-16.topo")).unwrap();
    let (t, w) = topo(&bundles).unwrap();
    assert_eq!((t.hosts, t.switches(), w.len()), (16, 12, 0));
    assert_eq!(t.as_pgft(), (vec![4, 2, 2], vec![1, 2, 2], vec![1, 2, 2]));
    let odd = bundles.replacen("Radix_Up 4", "Radix_Up 3", 1).replacen("Bundle 2", "Bundle 4", 1);
    error(topo(&odd), 16, 1, "a `Bundle` of 4 does not divide `Radix_Up 3` of tier 0");
    let two_pods = good.replacen("Nodes 4", "Nodes 8", 1);
    error(topo(&two_pods), 0, 0, "2 pods of 4 would not be joined");
    error(with("Podsize 4", "Podsize 3"), 0, 0, "4 nodes are not pods of 3");
    error(with("Tier 1", "Tier 7"), 12, 6, "a tier of 7");
    error(topo(&format!("{good}Radix_Down 2")), 15, 1, "given twice");
    assert!(with("Tiers 2", "Tiers 2\nHello 5").unwrap().1[0].message.contains("unknown and not read"));
    let big = "Nodes 1048576\nTiers 2\nPodsize 1048576\nTier 0\nDownlink_speed_Gbps 1\nRadix_Down 1\nRadix_Up 1048576\n\
               Oversubscribed 1\nTier 1\nDownlink_speed_Gbps 1\nRadix_Down 1048576\n";
    assert!(topo(big).is_err());
}

#[test]
fn a_line_without_end_is_refused_where_it_begins() {
    let long = format!("0 0\n{}\n", "1".repeat(LINE_BYTES_MAX + 1));
    error(cdf(&long), 2, 1, "this line is too long");
    assert!(cdf(&format!("0 0\n{}", "1".repeat(LINE_BYTES_MAX))).is_err());
    error(parse_cdf("t", b"0 0\n\xff\xfe 100\n"), 2, 1, "not text");
    error(parse_cdf("t", &vec![b'7'; 1 << 20]), 1, 1, "too long");
}

#[test]
fn large_files_are_refused_before_reading() {
    let dir = Dir::new("large-cm");
    let path = dir.0.join("large.cm");
    // A hole of 10 GB: nothing is written, and nothing must be read.
    std::fs::File::create(&path).unwrap().set_len(10_000_000_000).unwrap();
    let e: Error = read_bounded(&path, "large.cm", FILE_BYTES_MAX).unwrap_err();
    assert!(e.to_string().contains("too large: 10000000000 bytes"), "{e}");
    assert!(read_bounded(&root(), "x", 1).unwrap_err().to_string().contains("a folder"));
}

/// Mutated files give a value or an error with a place, never a panic.
#[test]
fn mutated_files_never_panic() {
    let mut rng = Rng::from_words(&[0xf11e]);
    let words =
        ["0", "-1", "4000000000", "->", "trigger", "nan", "\n", " ", "#", "id 3", "\u{1F600}", "99999999999999999999"];
    for name in [
        "small_topology.txt",
        "powertcp-8.txt",
        "reverie-8.txt",
        "simai-16.txt",
        "small_flows.txt",
        "small_cdf.txt",
        "small.pairs",
        "small.cm",
        "messages.cm",
        "small.topo",
        "bundle-16.topo",
    ] {
        let valid = own(name);
        for _ in 0..4000 {
            let bytes = mutated(&valid, &words, &mut rng);
            let outcomes = [
                parse_hpcc_topology("t", &bytes).err(),
                parse_hpcc_flows("t", &bytes).err(),
                parse_cdf("t", &bytes).err(),
                parse_connection_matrix("t", &bytes).err(),
                parse_htsim_topology("t", &bytes).err(),
                parse_pairs("t", &bytes, 4).err(),
            ];
            for e in outcomes.into_iter().flatten() {
                assert!(!e.to_string().is_empty());
            }
        }
    }
}
