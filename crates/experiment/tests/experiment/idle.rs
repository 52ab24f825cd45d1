//! Boxes that nothing reaches: they are not made, and nobody can tell.

use crate::worlds::{assert_same_bytes, execute, load};
use sluicenet_experiment::build::build;
use sluicenet_experiment::workload::HostApps;
use sluicenet_node::link::NodeId;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_sim::world::World;
use sluicenet_sim::{Control, Engine, audit};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Boxes of a fat-tree of k = 6.
const BOXES: usize = 54 + 45;

/// A fat-tree of k = 6 with these sections.
fn fat_tree(rest: &str) -> String {
    format!("[scenario]\nduration = \"400 us\"\n[topology]\nkind = \"fat-tree\"\nk = 6\n{rest}")
}

fn world(text: &str) -> World<HostApps> {
    let loaded = load(text, "idle.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}\n{text}"));
    build(&loaded.scenario).unwrap_or_else(|e| panic!("{e}\n{text}")).world
}

fn run(world: World<HostApps>) -> Engine<HostApps> {
    let mut engine = Engine::new(world, &[], 1).unwrap_or_else(|e| panic!("{e}"));
    let until = Instant(Duration::from_us(400).0);
    engine.run(until, &AtomicBool::new(false), &mut |_, _| Control::Continue);
    engine
}

fn idle(engine: &Engine<HostApps>) -> usize {
    (0..engine.nodes() as NodeId).filter(|&node| engine.node(node).is_idle()).count()
}

const FLOW: &str = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 53\nbytes = \"100 KB\"\n";

#[test]
fn only_boxes_on_the_way_of_frames_are_made() {
    let world = world(&fat_tree(FLOW));
    assert_eq!(world.nodes.iter().filter(|node| node.is_idle()).count(), BOXES - 2, "all but the hosts of the flow");
    // Two edge switches; an aggregation switch and a core each way.
    let engine = run(world);
    assert!((BOXES - 10..=BOXES - 7).contains(&idle(&engine)), "{}", idle(&engine));
    assert!(engine.hops() > 400 && audit::check(&engine).is_ok());
}

#[test]
fn a_world_with_idle_boxes_is_the_same_world() {
    let incast =
        "[[workload]]\nkind = \"incast\"\nsenders = [1, 20, 40, 50]\nreceiver = 7\nbytes = \"200 KB\"\nrounds = 2\n";
    let virtualised = "[server]\nvirtual_network = true\nvms = 2\n";
    for rest in [
        incast.to_owned(),
        format!("[pfc]\nenabled = true\n{incast}"),
        format!("[pfc]\nenabled = true\n[qcn]\n{incast}"),
        format!("{virtualised}{FLOW}"),
        format!("{FLOW}transport = \"udp\"\nrate = \"1 Gb/s\"\n"),
        format!("{FLOW}transport = \"roce\"\n[pfc]\nenabled = true\n"),
        // The end of a host's link that damages frames is that of an idle host at first.
        format!("{incast}[[topology.level]]\nlevel = 1\nbit_error_rate = 1e-7\n"),
    ] {
        let text = fat_tree(&rest);
        let mut awake = world(&text);
        for (n, node) in (0..).zip(&mut awake.nodes).filter(|(_, node)| node.is_idle()) {
            *node = (awake.make)(n);
        }
        let (awake, idle_at_first) = (run(awake), run(world(&text)));
        assert!(idle(&awake) == 0 && idle(&idle_at_first) > BOXES / 4, "{text}");
        let sent = |engine: &Engine<HostApps>| {
            let ports = |node: NodeId| (0..engine.ports(node) as u16).map(move |port| (node, port));
            let all = (0..engine.nodes() as NodeId).flat_map(ports);
            all.map(|(node, port)| engine.sent(node, port)).collect::<Vec<_>>()
        };
        assert_eq!(sent(&awake), sent(&idle_at_first), "{text}");
        assert_eq!(audit::check(&awake), audit::check(&idle_at_first), "{text}");
    }
}

#[test]
fn idle_boxes_have_their_rows_on_any_number_of_threads() {
    let incast =
        "[[workload]]\nkind = \"incast\"\nsenders = [1, 20, 40]\nreceiver = 7\nbytes = \"64 KB\"\nrounds = 2\n";
    let text = fat_tree(&format!("[pfc]\nenabled = true\n[record]\nqueues = \"20 us\"\n{incast}"));
    assert_same_bytes("idle", |threads, dir| {
        execute(&text, threads, Some(dir.0.clone()));
    });
}
