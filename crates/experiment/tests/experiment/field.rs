//! Files of other simulators: each is run, and its flows take the times that the file's text predicts.

use crate::worlds::{attempt, load};
use sluicenet_records::{FlowRow, PortRow, read};
use sluicenet_testkit::{Dir, repository};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Payload of a full datagram: 1,500 B less the headers of IP and UDP.
const PAYLOAD: u64 = 1472;
/// Bytes of a datagram on a link beside its payload: IP and UDP, Ethernet, preamble and gap.
const OVERHEAD: u64 = 28 + 18 + 8 + 12;
/// Those of them after its last bit.
const GAP: u64 = 12;

/// Time of `frames` full datagrams over `links` links alike: the first one crosses all links, the others follow at the
/// rate of a link.
fn stream(frames: u64, links: u64, ps_per_byte: f64, delay_ps: u64) -> u64 {
    let of = |bytes: u64| bytes as f64 * ps_per_byte;
    let crossing = links as f64 * (of(PAYLOAD + OVERHEAD - GAP) + delay_ps as f64);
    ((frames - 1) as f64 * of(PAYLOAD + OVERHEAD) + crossing).round() as u64
}

/// Our copy of a small file of the field, and the file of the field itself where it is at hand.
fn copies(name: &str) -> Vec<PathBuf> {
    let own = repository("crates/scenario/tests/data").join(name);
    let shared = repository("../shared/data/field").join(name);
    [own].into_iter().chain(shared.is_file().then_some(shared)).collect()
}

/// The flows of a run over a topology file beside other text.
fn run(kind: &str, topology: &PathBuf, rest: &str, more: &[(&str, &str)]) -> (Vec<FlowRow>, Vec<PortRow>) {
    let name = topology.file_name().unwrap().to_string_lossy().into_owned();
    let dir = Dir::new(&format!("field-{name}-{}", rest.len()));
    std::fs::copy(topology, dir.0.join("network")).unwrap();
    more.iter().for_each(|(name, text)| _ = dir.file(name, text));
    let text = format!("[topology]\nkind = \"{kind}\"\nfile = \"network\"\n{rest}");
    let loaded = load(&text, "field", &dir.0).unwrap_or_else(|e| panic!("{e}\n{text}"));
    attempt(&loaded, 1, Some(dir.0.join("out"))).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let out = dir.0.join("out");
    let mut flows: Vec<FlowRow> = read(&out).unwrap();
    flows.sort_by_key(|f| f.flow_id);
    (flows, read(&out).unwrap())
}

fn flow(src: u32, dst: u32, frames: u64) -> String {
    let bytes = frames * PAYLOAD;
    format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\nbytes = \"{bytes} B\"\ntransport = \"udp\"\n")
}

/// The time of the only flow between two hosts.
fn alone(kind: &str, topology: &PathBuf, (src, dst): (u32, u32), frames: u64) -> u64 {
    let (flows, _) = run(kind, topology, &flow(src, dst, frames), &[]);
    assert_eq!(flows[0].fct_ps, flows[0].ideal_ps, "{topology:?} {src} {dst}");
    flows[0].fct_ps.unwrap()
}

#[test]
fn flows_over_powertcps_and_reveries_files_take_the_times_of_their_links() {
    // Eight hosts at two switches, with two switches above; all links have 25 Gb/s, so 320 ps a byte, and 1 us or 2 us.
    for (name, delay) in [("powertcp-8.txt", 1_000_000), ("reverie-8.txt", 2_000_000)] {
        for topology in copies(name) {
            for (ends, links) in [((0, 1), 2), ((0, 4), 4), ((7, 2), 4)] {
                assert_eq!(alone("hpcc", &topology, ends, 100), stream(100, links, 320.0, delay));
            }
            // A file of flows names nodes: 3 and 6 are hosts 3 and 6. The second one starts at 1 ms.
            let flows = format!("2\n3 6 3 100 {} 0\n6 7 3 100 {} 0.001\n", 50 * PAYLOAD, PAYLOAD);
            let text = "[[workload]]\nkind = \"flow-file\"\nformat = \"hpcc\"\nfile = \"flows\"\ntransport = \"udp\"\n";
            let (rows, _) = run("hpcc", &topology, text, &[("flows", &flows)]);
            let fcts: Vec<Option<u64>> = rows.iter().map(|f| f.fct_ps).collect();
            assert_eq!(fcts, [Some(stream(50, 4, 320.0, delay)), Some(stream(1, 2, 320.0, delay))]);
        }
    }
}

#[test]
fn a_gpu_of_simais_file_has_an_nvswitch_and_a_rail() {
    // Two servers of eight GPUs: 2,880 Gb/s and 25 ns to the NVSwitch, 400 Gb/s and 500 ns to the switch of the rail.
    let nvlink = |frames| stream(frames, 2, 8_000.0 / 2_880.0, 25_000);
    let rail = |frames, links| stream(frames, links, 8_000.0 / 400.0, 500_000);
    // The simulator counts in 1/65536 ps a byte, and rounds once a frame and link.
    let is = |found: u64, predicted: u64, frames: u64| {
        assert!(found.abs_diff(predicted) <= 2 * frames, "{found} {predicted}")
    };
    for topology in copies("simai-16.txt") {
        is(alone("hpcc", &topology, (0, 7), 100), nvlink(100), 100);
        // GPU 0 of the other server is on the same rail; GPU 1 there is reached over a switch of the second level.
        is(alone("hpcc", &topology, (0, 8), 100), rail(100, 2), 100);
        is(alone("hpcc", &topology, (0, 9), 100), rail(100, 4), 100);
        // Both links of GPU 0 at once: neither flow waits for the other.
        let (flows, ports) = run("hpcc", &topology, &(flow(0, 1, 400) + &flow(0, 8, 100)), &[]);
        is(flows[0].fct_ps.unwrap(), nvlink(400), 400);
        is(flows[1].fct_ps.unwrap(), rail(100, 2), 100);
        let sent: Vec<u64> = ports.iter().filter(|p| &*p.node == "host 0").map(|p| p.tx_frames).collect();
        assert_eq!(sent, [400, 100]);
        // Hosts forward nothing: what one rail sends to another goes over the second level, not through a server.
        let (_, ports) = run("hpcc", &topology, &flow(0, 9, 10), &[]);
        assert!(ports.iter().filter(|p| &*p.node == "host 1" || &*p.node == "host 8").all(|p| p.tx_frames == 0));
    }
}

#[test]
fn gpus_with_equal_ways_take_the_nvswitch() {
    // Four GPUs at one NVSwitch (4) and one switch (5), both two links away: SimAI's simulator takes the NVSwitch.
    let dir = Dir::new("field-nvswitch");
    let mut text = String::from("6 4 1 1 8 A100\n4 5\n");
    (0..4).for_each(|gpu| write!(text, "{gpu} 5 400Gbps 500ns 0\n{gpu} 4 2400Gbps 25ns 0\n").unwrap());
    let topology = PathBuf::from(dir.file("one-server.txt", &text));
    let (_, ports) = run("hpcc", &topology, &(0..3).map(|src| flow(src, 3, 20)).collect::<String>(), &[]);
    let through = |switch: &str| ports.iter().filter(|p| &*p.node == switch).map(|p| p.tx_frames).sum::<u64>();
    assert_eq!((through("switch 0"), through("switch 1")), (60, 0));
}

#[test]
fn links_between_the_same_two_nodes_share_flows_by_their_hash() {
    // Two switches (8, 9) with four hosts each, and two links between them; 10 Gb/s, so 800 ps a byte, and 1 us.
    let dir = Dir::new("field-twice");
    let mut text = String::from("10 2 10\n8 9\n");
    (0..8).for_each(|h| writeln!(text, "{h} {} 10Gbps 1us 0", 8 + h / 4).unwrap());
    text += "8 9 10Gbps 1us 0\n9 8 10Gbps 1us 0\n";
    let graph = PathBuf::from(dir.file("twice.txt", &text));
    assert_eq!(alone("hpcc", &graph, (0, 4), 100), stream(100, 3, 800.0, 1_000_000));
    // The same network as a tree: a root, two parallel links to each switch below it.
    let tree =
        "[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 1]\nlevel = [{ level = 2, links = 2 }]\nrouting = \"hash\"\n";
    let flows: String = "[switch]\nbuffer = \"10 MB\"\n".to_owned()
        + &(0..40).map(|i| flow(i % 4, 4 + i / 4 % 4, 20)).collect::<String>();
    let (rows, ports) = run("hpcc", &graph, &flows, &[]);
    let of_tree = Dir::new("field-tree");
    let loaded = load(&format!("{tree}link_delay = \"1 us\"\n{flows}"), "tree", &of_tree.0).unwrap();
    attempt(&loaded, 1, Some(of_tree.0.clone())).unwrap();
    let of_tree = (read::<FlowRow>(&of_tree.0).unwrap(), read::<PortRow>(&of_tree.0).unwrap());
    for (rows, ports, upper, links) in [(rows, ports, "switch 1", 3), (of_tree.0, of_tree.1, "switch 2", 4)] {
        let trunks: Vec<u64> =
            ports.iter().filter(|p| &*p.node == "switch 0" && &*p.peer == upper).map(|p| p.tx_frames).collect();
        assert!(trunks.len() == 2 && trunks.iter().sum::<u64>() == 800, "{trunks:?}");
        assert!(trunks.iter().all(|frames| (200..=600).contains(frames)), "each flow has one link: {trunks:?}");
        // Each flow keeps to one link, so its datagrams arrive in order and it is never faster than alone.
        assert!(rows.iter().all(|f| f.fct_ps >= Some(stream(20, links, 800.0, 1_000_000))));
    }
}

#[test]
fn flows_over_bundles_of_htsim_take_the_times_of_their_links() {
    // Four hosts a switch of tier 0, two of these a pod, two pods; 100 Gb/s, so 80 ps a byte, and 500 ns.
    for topology in copies("bundle-16.topo") {
        for routing in ["hash", "d-mod-k", "random"] {
            for (ends, links) in [((0, 3), 2), ((0, 4), 4), ((0, 9), 6), ((15, 1), 6)] {
                let rest = format!("routing = \"{routing}\"\n{}", flow(ends.0, ends.1, 50));
                let (flows, _) = run("htsim", &topology, &rest, &[]);
                assert_eq!(flows[0].fct_ps, Some(stream(50, links, 80.0, 500_000)), "{routing} {ends:?}");
                assert_eq!(flows[0].fct_ps, flows[0].ideal_ps);
            }
        }
        // Sixteen flows between the pods, by a hash: all four links up of the first switch of tier 0 are used.
        let rest: String =
            "routing = \"hash\"\n".to_owned() + &(0..64).map(|i| flow(i % 4, 8 + i / 8, 5)).collect::<String>();
        let (_, ports) = run("htsim", &topology, &rest, &[]);
        let ups: Vec<(String, u64)> = ports
            .iter()
            .filter(|p| &*p.node == "switch 0" && p.peer.starts_with("switch"))
            .map(|p| (p.peer.to_string(), p.tx_frames))
            .collect();
        let peers: Vec<&str> = ups.iter().map(|up| &up.0[..]).collect();
        assert_eq!(peers, ["switch 4", "switch 5", "switch 4", "switch 5"]);
        assert!(ups.iter().map(|up| up.1).sum::<u64>() == 320 && ups.iter().all(|up| up.1 > 30), "{ups:?}");
    }
}

#[test]
fn messages_of_one_connection_follow_each_other() {
    let topology = &copies("bundle-16.topo")[0];
    for matrix in copies("messages.cm") {
        let messages = std::fs::read_to_string(&matrix).unwrap();
        let rest = |transport: &str| {
            format!(
                "[[workload]]\nkind = \"flow-file\"\nformat = \"htsim\"\nfile = \"m.cm\"\ntransport = \"{transport}\"\n"
            )
        };
        let (rows, _) = run("htsim", topology, &rest("udp"), &[("m.cm", &messages)]);
        let of = |bytes: u64| rows.iter().find(|f| f.bytes == Some(bytes)).unwrap();
        // Six links of 80 ps a byte and 500 ns. `full` datagrams of 1,472 B and one of the rest: the last one leaves the
        // last link when the full ones have, as it is never the slower one.
        let time = |full: u64, rest: u64| {
            let crossing = 5 * ((PAYLOAD + OVERHEAD - GAP) * 80 + 500_000) + full * (PAYLOAD + OVERHEAD) * 80;
            crossing + (rest + OVERHEAD - GAP) * 80 + 500_000
        };
        assert_eq!(of(20_000).fct_ps, Some(time(13, 20_000 - 13 * PAYLOAD)));
        assert_eq!((of(60_000).start_ps, of(60_000).fct_ps), (5_000_000, Some(time(40, 60_000 - 40 * PAYLOAD))));
        let megabyte = time(679, 1_000_000 - 679 * PAYLOAD);
        assert_eq!(of(1_000_000).fct_ps, Some(megabyte));
        // The message of 1,000 B waits for the megabyte before it: 679 full datagrams and one of 512 B.
        let last = 1_000_000 - 679 * PAYLOAD;
        assert_eq!(of(1_000).fct_ps, Some(time(679, 1_000) + (last + OVERHEAD) * 80));
        // A stream keeps the order, too; two connections of their own share the link.
        let ends = |text: &str| {
            let (rows, _) = run("htsim", topology, &rest("tcp"), &[("m.cm", text)]);
            let end = |bytes: u64| rows.iter().find(|f| f.bytes == Some(bytes)).unwrap().fct_ps.unwrap();
            (end(1_000_000), end(1_000))
        };
        let (long, short) = ends(&messages);
        assert!(short >= long, "{short} {long}");
        let apart = messages.replace("id 1 msg ", "").replace("id 2 msg ", "");
        let (long, short) = ends(&apart);
        assert!(short < long / 2, "{short} {long}");
    }
}

#[test]
fn queues_up_and_down_have_their_own_sizes() {
    // Four hosts at two leaves, two spines, 100 Gb/s.
    let topology = |queues: &str| {
        format!(
            "Nodes 4\nTiers 2\nPodsize 4\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 2\nRadix_Up 2\n{queues}Tier 1\n\
             Downlink_speed_Gbps 100\nRadix_Down 2\n"
        )
    };
    let most = |queues: &str, rest: &str, node: &str, peer: &str| {
        let dir = Dir::new("field-queues");
        let file = PathBuf::from(dir.file("queues.topo", &topology(queues)));
        let flows = [(0, 2), (1, 2)].map(|(src, dst)| flow(src, dst, 200)).concat();
        let (_, ports) = run("htsim", &file, &format!("routing = \"d-mod-k\"\n{rest}{flows}"), &[]);
        let mut of_port = ports.iter().filter(|p| &*p.node == node && p.peer.starts_with(peer));
        of_port.by_ref().map(|p| p.max_queue_bytes).max().unwrap()
    };
    // By the destination, 300 KB each from hosts 0 and 1 to host 2 take the same link up: its queue fills to the last frame
    // that fits. A frame has 1,518 B with its header and check sequence.
    let frame = PAYLOAD + 28 + 18;
    for (queues, rest, limit) in [
        ("Queue_Up 40000\nQueue_Down 90000\n", "", 40_000),
        ("Queue_Up 90000\nQueue_Down 40000\n", "", 90_000),
        ("Queue_Down 40000\n", "[switch]\nbuffer = \"60000 B\"\n", 60_000),
    ] {
        let found = most(queues, rest, "switch 0", "switch");
        assert!(found <= limit && found + frame > limit, "{queues}: {found}");
    }
    // Three of a leaf's hosts send to the fourth: the queue down fills.
    let incast = |queues: &str| {
        let dir = Dir::new("field-queues-down");
        let text = format!(
            "Nodes 8\nTiers 2\nPodsize 8\nTier 0\nDownlink_speed_Gbps 100\nRadix_Down 4\nRadix_Up 4\n{queues}Tier 1\n\
             Downlink_speed_Gbps 100\nRadix_Down 2\n"
        );
        let file = PathBuf::from(dir.file("queues.topo", &text));
        let (_, ports) = run("htsim", &file, &(1..4).map(|src| flow(src, 0, 200)).collect::<String>(), &[]);
        ports
            .iter()
            .filter(|p| &*p.node == "switch 0" && &*p.peer == "host 0")
            .map(|p| p.max_queue_bytes)
            .max()
            .unwrap()
    };
    for (queues, limit) in
        [("Queue_Up 40000\nQueue_Down 90000\n", 90_000), ("Queue_Up 90000\nQueue_Down 40000\n", 40_000)]
    {
        let found = incast(queues);
        assert!(found <= limit && found + frame > limit, "{queues}: {found}");
    }
}

#[test]
fn parallel_links_where_they_cannot_be_are_refused() {
    let refused = |text: &str, place: &str, message: &str| {
        let e = match load(text, "t.toml", &repository("crates/scenario")) {
            Err(e) => e.to_string(),
            Ok(loaded) => match attempt(&loaded, 1, None) {
                Err(e) => e.to_string(),
                Ok(_) => panic!("accepted, wanted: {message}"),
            },
        };
        assert!(e.contains(message) && e.contains(place), "{e}");
    };
    let tree = |more: &str, links: &str| {
        format!(
            "[topology]\nkind = \"fat-tree\"\nk = 4\n{more}\n[[topology.level]]\nlevel = 2\nlinks = {links}\n{}",
            flow(0, 9, 1)
        )
    };
    refused(&tree("", "1000000000"), "t.toml:7", "out of range");
    refused(&tree("", "4094"), "t.toml:5", "ports is too large");
    refused(&tree("routing = \"flow-scheduler\"", "2"), "t.toml:7", "a fat-tree with one link between two switches");
    refused(&tree("routing = \"switch-ar\"", "2"), "t.toml:4", "parallel links join the same two");
    refused(
        &tree("[[failure]]\nport = \"switch 0 port 2\"\nat = \"1 ms\"", "2"),
        "t.toml:4",
        "a fat-tree with one link between two switches",
    );
    refused(&tree("[xco]\nenabled = true\ncontroller = 0", "2"), "t.toml", "which of several paths");
}
