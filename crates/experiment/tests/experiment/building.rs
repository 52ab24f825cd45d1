//! Scenarios are built, or refused with the place of the fault.

use crate::worlds::{attempt, load};
use sluicenet_experiment::run::{Outcome, RunError};
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;
use std::path::Path;

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
    assert!(dropped("down.topo", "Queue_Down 20000\n", "") > 0, "the receiver's queue is one downwards");
    assert!(dropped("up.topo", "Queue_Up 20000\n", "") > 0, "what four hosts send to one takes one link up");
    let pooled = "policy = \"pooled\"\n";
    assert_eq!(outcome("pool.topo", "Queue_Down 20000\nQueue_Up 400000\n", "", pooled), Ok(0), "all ports' together");
    let (file, line, message) = refused("one.topo", "Queue_Down 20000\n", "", "policy = \"input\"\n");
    assert_eq!((&*file, line), ("one.topo", 8), "{message}");
    assert!(message.contains("queues up and down differ"), "{message}");
    let (file, line, message) = refused("small.topo", "", "Queue_Down 100\n", "");
    assert_eq!((&*file, line), ("small.topo", 11), "{message}");
    assert!(message.contains("does not hold a frame"), "{message}");
    let (file, _, message) =
        refused("xoff.topo", "", "Queue_Down 20000\n", "[pfc]\nenabled = true\nxoff = \"50 KB\"\nxon = \"10 KB\"\n");
    assert!(file == "queues.toml" && message.contains("beyond the switch's buffer (20000 B)"), "{message}");
    let (file, line, message) = refused("bundle.topo", "", "Bundle 3\n", "");
    assert_eq!((&*file, line), ("bundle.topo", 11), "{message}");
    assert!(message.contains("a `Bundle` of 3 does not divide `Radix_Down 2` of tier 1"), "{message}");
}

#[test]
fn endless_flows_end_with_the_finite_work() {
    let dir = Dir::new("world-endless");
    dir.file("m.cm", "Nodes 4\nConnections 2\n0->1 start 0 size 0\n2->3 start 0 size 1000000\n");
    let network = "[topology]\nkind = \"single-switch\"\nhosts = 4\n";
    let endless = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n";
    let finite = "[[workload]]\nkind = \"incast\"\nsenders = \"2-3\"\nreceiver = 1\nbytes = \"1 MB\"\n";
    let file = "[[workload]]\nkind = \"flow-file\"\nformat = \"htsim\"\nfile = \"m.cm\"\n";
    for level in ["packet", "flow"] {
        for (work, finished) in [(format!("{endless}{finite}"), 2), (file.to_owned(), 1)] {
            let text = format!("[scenario]\nlevel = \"{level}\"\n{network}{work}");
            let o = attempt(&load(&text, "endless", &dir.0).unwrap_or_else(|e| panic!("{e}")), 1, None).unwrap();
            assert_eq!((o.flows.started, o.flows.finished), (finished + 1, finished), "{text}");
        }
    }
    dir.file("m.cm", "Nodes 4\nConnections 1\n0->1 start 0 size 0\n");
    let e = load(&format!("{network}{file}"), "endless", &dir.0).unwrap_err();
    assert!(e.to_string().contains("no workload of this scenario ends"), "{e}");
}

/// Faults that show only when the world is built point at the scenario all the same.
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
        sluicenet_experiment::build::build(&loaded.scenario).map(|_| ())
    };
    let error = build(50).unwrap_err().to_string();
    assert!(error.contains("t.toml:9:1") && error.contains("at least 51"), "{error}");
    build(51).unwrap();
}

#[test]
fn too_much_headroom_is_refused_at_the_delay_that_causes_it() {
    let file = |link: &str, level: &str, section: &str| {
        format!(
            "[scenario]\nparameters = \"plain\"\nduration = \"1 ms\"\n[topology]\nkind = \"xgft\"\nm = [2, 2]\nw = [1, 1]\n\
             {link}\n[pfc]\nenabled = true\nresponse = \"1 us\"\n{section}\n[[workload]]\nkind = \"permutation\"\n\
             pattern = \"stride\"\n{level}"
        )
    };
    for (text, at) in [
        (file("link_delay = \"3 s\"", "", ""), "t.toml:8:"),
        (file("", "", "[adapter]\ndelay = \"2 s\""), "t.toml:13:"),
        (file("", "", "[switch]\ndelay = \"5 s\""), "t.toml:13:"),
        (file("", "", "headroom = \"auto\"").replace("1 us", "3 s"), "t.toml:11:"),
        // No key of its own causes it: a level of the network does.
        (file("", "[[topology.level]]\nlevel = 2\ndelay = \"2 s\"\n", ""), "t.toml:16:"),
    ] {
        let loaded = Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}"));
        let error = sluicenet_experiment::build::build(&loaded.scenario).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("of headroom: at most 1073741824 B") && error.contains(at), "{at}: {error}");
    }
}

/// A host has 55,536 ports for new connections of a workload. The next flow has those of the first one.
#[test]
fn ports_are_used_again_and_flows_without_a_free_one_are_named() {
    const FLOWS: u64 = 55_537;
    let dir = Dir::new("world-ports");
    let outcome = |apart_ns: u64, duration: &str| {
        let flow =
            |i: u64| format!("0 1 3 100 100 {}.{:09}\n", i * apart_ns / 1_000_000_000, i * apart_ns % 1_000_000_000);
        dir.file("flows", &format!("{FLOWS}\n{}", (0..FLOWS).map(flow).collect::<String>()));
        let text = format!(
            "[scenario]\n{duration}[topology]\nkind = \"single-switch\"\nhosts = 2\n[[workload]]\nkind = \"flow-file\"\n\
             format = \"hpcc\"\nfile = \"flows\"\n"
        );
        attempt(&load(&text, "ports.toml", &dir.0).unwrap(), 1, None).unwrap()
    };
    let named = |o: &Outcome| o.warnings.iter().find(|w| w.message.contains("did not end")).cloned();
    // The first flow has ended when the last one begins, a quarter of a second later.
    let o = outcome(5_000, "");
    assert_eq!((o.flows.finished, named(&o)), (FLOWS, None));
    // It has not.
    let w = named(&outcome(1, "duration = \"56 us\"\n")).unwrap();
    assert!(w.message.starts_with("1 flow did not end, opened with"), "{w:?}");
    assert_eq!((&*w.file, w.line), ("ports.toml", 6), "{w:?}");
}
