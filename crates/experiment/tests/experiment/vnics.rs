//! Two vNICs a machine (Crisan 2014, Table 5.2) in simulated servers: one is lossless, under zFabric, and one is over a
//! stack that drops. Neither stops the other, and hosts outside reach the second alone.

use crate::worlds::{assert_same_bytes, attempt, execute, load};
use sluicenet_experiment::run::Outcome;
use sluicenet_node::device::{Device, PortId, PortSet, Wires};
use sluicenet_node::packet::{Address, FlowKey, Framing, Packet};
use sluicenet_node::pool::Pool;
use sluicenet_node::with_server;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;
use sluicenet_scenario::Scenario;
use sluicenet_sim::world::Node;
use std::path::{Path, PathBuf};

/// Half of a link of 10 Gb/s, as TCPlight's payload: 1406 B of every 1538 B.
const HALF: f64 = 5_000.0 * 1406.0 / 1538.0;

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/crisan2014/table-5-2.toml")
}

fn run(settings: &[&str], threads: usize, out: Option<PathBuf>) -> Outcome {
    let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
    let loaded = Scenario::load_with(table(), &settings).unwrap_or_else(|e| panic!("{e}"));
    attempt(&loaded, threads, out).unwrap_or_else(|e| panic!("{e}"))
}

/// The rate of a machine's flows to another machine, in Mb/s, between first vNICs or between second ones.
fn rate(o: &Outcome, src: (u32, u8), dst: (u32, u8)) -> f64 {
    let of = |s: &&sluicenet_experiment::run::Stream| ((s.src_host, s.src_vm), (s.dst_host, s.dst_vm)) == (src, dst);
    o.streams.each.iter().filter(of).map(|s| s.mbps).sum()
}

#[test]
fn table_5_2_the_lossless_vnic_keeps_its_half_while_the_lossy_one_drops() {
    for (hypervisor, least) in [("zfabric", 0.9), ("pfc", 0.99)] {
        let o = run(&[&format!("scenario.hypervisor={hypervisor}")], 1, None);
        // A stream of TCPlight ends where anything is missing: this one did not.
        let lossless = rate(&o, (0, 0), (2, 0));
        assert!(lossless >= least * HALF, "{hypervisor}: {lossless} of {HALF}");
        assert_eq!(o.violations, 0, "{hypervisor}");
        let lossy: f64 = [(1, 2), (3, 2), (4, 0)].map(|src| rate(&o, src, (2, 2))).iter().sum();
        assert!((0.95..1.05).contains(&(lossy / (5_000.0 * 1418.0 / 1538.0))), "{hypervisor}: the other half: {lossy}");
        assert!(o.totals.dropped > 100_000, "{hypervisor}: {}", o.totals.dropped);
        // Beside all that, the remote host is answered by TCP.
        assert!(rate(&o, (2, 2), (4, 0)) > 0.0, "{hypervisor}: {:?}", o.streams);
        // A machine that may not talk to the other asks it for nothing, and takes nothing from it.
        assert_eq!(rate(&o, (0, 1), (2, 0)), 0.0, "{hypervisor}");
        assert!(o.server_drops.frames(DropReason::Denied) > 20_000, "{hypervisor}: {:?}", o.server_drops);
        if let Some(z) = o.zbridge {
            // Nothing of the lossless class was lost on the way, or it would have come again.
            assert_eq!(z.resent, 0, "{z:?}");
        }
    }
}

/// Machines of one server each send to the two of the other: by the first vNIC, whose receiver is slow, and by the second one.
const SLOW: &str = "[scenario]\nparameters = \"crisan2014-ch3\"\nduration = \"60 ms\"\nwarmup = \"20 ms\"\nhypervisor = \"pfc\"\n\
    [topology]\nkind = \"single-switch\"\nhosts = 2\n[server]\nvms = 2\nlossy_vnic = 3\n\
    [[vswitch.slow]]\nhost = 1\nvm = 0\nrate = \"100 Mb/s\"\n\
    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\ntransport = \"udp\"\n\
    [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\ndst_vm = 1\ntransport = \"udp\"\npriority = 3\n";

#[test]
fn a_lossless_class_that_stands_still_does_not_stop_the_lossy_vnic_of_the_same_machine() {
    let o = execute(SLOW, 1, None);
    // The first vNIC's frames fill the switch and the adapter: its sender is paused nearly all the time.
    assert!((90.0..100.0).contains(&rate(&o, (0, 0), (1, 0))), "{:?}", o.streams);
    assert!(o.pauses > 0 && o.violations == 0, "{}", o.pauses);
    assert!(rate(&o, (0, 2), (1, 3)) > 8_900.0, "{:?}", o.streams);
    // The other way round: frames for the second vNIC of the slow machine are dropped, and stop no sender.
    let swapped = SLOW.replace("dst_vm = 1\n", "").replacen("dst = 1\n", "dst = 1\ndst_vm = 1\n", 1);
    let o = execute(&swapped, 1, None);
    assert!(rate(&o, (0, 0), (1, 1)) > 4_400.0, "{:?}", o.streams);
    assert!((90.0..100.0).contains(&rate(&o, (0, 2), (1, 2))), "{:?}", o.streams);
    // Their sender never waits, and loses frames at its own virtual switch as well.
    let [at_machine, at_uplink] = [DropReason::VswitchVm, DropReason::VswitchUplink].map(|r| o.server_drops.frames(r));
    assert_eq!(o.totals.dropped, at_machine + at_uplink, "{:?}", o.server_drops);
    assert!(at_machine > 0, "{:?}", o.server_drops);
    assert!(o.totals.dropped > 0 && o.violations == 0);
}

#[test]
fn machines_of_one_server_talk_by_either_vnic_without_a_wire() {
    for (priority, first) in [(0, 0), (3, 2)] {
        let text = SLOW.replace("[[vswitch.slow]]\nhost = 1\nvm = 0\nrate = \"100 Mb/s\"\n", "");
        let text = text[..text.find("[[workload]]").unwrap()].to_string();
        let flow =
            "[[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 1\nsrc_vm = 1\nbytes = \"3 MB\"\ntransport = \"tcp\"\n";
        let dir = sluicenet_testkit::Dir::new(&format!("vnics-local-{priority}"));
        let o = execute(&format!("{text}{flow}priority = {priority}\n"), 1, Some(dir.0.clone()));
        assert_eq!((o.hops, o.flows.finished), (0, 1), "{priority}");
        let rows: Vec<sluicenet_records::FlowRow> = sluicenet_records::read(&dir.0).expect("flows");
        assert_eq!((rows[0].src_vm, rows[0].dst_vm), (first + 1, first), "{priority}");
        assert!(rows[0].slowdown.is_some_and(|s| s >= 1.0), "{:?}", rows[0].slowdown);
    }
}

#[test]
fn two_vnics_write_the_same_bytes_on_any_number_of_threads() {
    assert_same_bytes("vnics", |threads, dir| {
        drop(run(&["scenario.duration=\"20 ms\"", "scenario.warmup=\"5 ms\""], threads, Some(dir.0.clone())));
    });
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    let text = std::fs::read_to_string(table()).expect("the table");
    let folder = table().parent().expect("a folder").to_path_buf();
    for (from, to, what) in [
        ("hypervisor = \"zfabric\"", "hypervisor = \"lossy\"", "both vNICs of a machine would be"),
        ("vms = 2\n", "vms = 32\n", "more than a virtual switch has ports"),
        ("vms = 2\n", "vms = 2\nvirtual_network = false\n", "no machine has a vNIC"),
        ("lossy_vnic = 1\n", "", "external: they have no hypervisor"),
        ("lossy_vnic = 1\n", "lossy_vnic = 8\n", "out of range"),
        ("lossy_vnic = 1\n", "lossy_vnic = 2\n", "host 4 is external: machines talk to it by their lossy vNICs alone"),
        ("[zcredit]", "[pfc]\nlossless = [0, 1]\n[zcredit]", "is in this list"),
        ("transport = \"tcplight\"\n", "transport = \"tcplight\"\npriority = 1\n", "go by the lossy vNICs"),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = text.replacen(from, to, 1);
        let Err(e) = load(&wrong, "t.toml", &folder) else { panic!("{to}") };
        assert!(e.to_string().contains(what) && e.to_string().contains("t.toml:"), "{to}: {e}");
    }
}

/// Two tenants of two machines each, on two servers, and a host outside; flows of datagrams between some of them.
fn tenants(hypervisor: &str, rules: &str) -> String {
    let flow = |src: u32, src_vm: u32, dst: u32, dst_vm: u32| {
        format!(
            "[[workload]]\nkind = \"flow\"\nsrc = {src}\nsrc_vm = {src_vm}\ndst = {dst}\ndst_vm = {dst_vm}\n\
             transport = \"udp\"\nrate = \"500 Mb/s\"\n"
        )
    };
    let flows = [flow(0, 0, 1, 0), flow(0, 1, 1, 0), flow(1, 1, 1, 0), flow(0, 1, 1, 1)].concat();
    let outside = format!("{}priority = 7\n", flow(2, 0, 1, 1));
    format!(
        "[scenario]\nparameters = \"crisan2014-ch3\"\nduration = \"20 ms\"\nhypervisor = \"{hypervisor}\"\n\
         [topology]\nkind = \"xgft\"\nm = [2]\nw = [1]\nexternal_hosts = 1\n[server]\nvms = 2\nlossy_vnic = 7\n\
         [[policy.tenant]]\nname = \"red\"\nvms = [0]\n[[policy.tenant]]\nname = \"blue\"\nvms = [1]\n{rules}\n\
         {flows}{outside}"
    )
}

/// Arrivals of the flows of [`tenants`]: red to red, blue to red of another server and of its own, blue to blue,
/// outside to blue.
fn arrives(o: &Outcome) -> [bool; 5] {
    [((0, 0), (1, 0)), ((0, 1), (1, 0)), ((1, 1), (1, 0)), ((0, 1), (1, 1)), ((2, 0), (1, 3))].map(|(src, dst)| {
        let mbps = rate(o, src, dst);
        assert!(mbps == 0.0 || mbps > 450.0, "{src:?} {dst:?}: {mbps}");
        mbps > 0.0
    })
}

#[test]
fn tenants_do_not_reach_each_other_but_as_a_rule_says() {
    let rule = |party: &str, peer: &str, allow: bool| {
        format!("[[policy.rule]]\nparty = \"{party}\"\npeer = \"{peer}\"\nallow = {allow}\n")
    };
    for hypervisor in ["pfc", "zfabric", "tcp"] {
        let run = |rules: &str| {
            let o = execute(&tenants(hypervisor, rules), 1, None);
            assert_eq!(
                (o.violations, o.totals.dropped),
                (0, o.server_drops.frames(DropReason::Denied)),
                "{hypervisor}"
            );
            (arrives(&o), o.totals.dropped)
        };
        let (seen, denied) = run("");
        assert_eq!(seen, [true, false, false, true, true], "{hypervisor}");
        // 500 Mb/s for 20 ms are some 850 frames of either flow.
        assert!((1_600..1_800).contains(&denied), "{hypervisor}: {denied}");
        // Either way round, and a machine before its tenant.
        let rules = rule("host 1 vm 1", "red", false) + &rule("red", "blue", true) + &rule("outside", "blue", false);
        assert_eq!(run(&rules).0, [true, true, false, true, false], "{hypervisor}");
        assert_eq!(run(&rule("red", "red", false)).0, [false, false, false, true, true], "{hypervisor}");
    }
}

#[test]
fn a_policy_that_means_nothing_is_refused_with_its_line() {
    let text = tenants("pfc", "[[policy.rule]]\nparty = \"red\"\npeer = \"blue\"\nallow = true\n");
    for (from, to, what) in [
        ("name = \"blue\"", "name = \"red\"", "another tenant has this name"),
        ("name = \"blue\"", "name = \"outside\"", "no name of a tenant"),
        ("vms = [1]", "vms = [0]", "machine 0 of host 0 is one of `red` already"),
        ("vms = [1]", "vms = [2]", "out of range"),
        ("vms = [1]", "hosts = [2]", "host 2 is external"),
        ("peer = \"blue\"", "peer = \"green\"", "no tenant has this name"),
        ("peer = \"blue\"", "peer = \"host 2 vm 0\"", "there is no such machine"),
        ("peer = \"blue\"", "peer = \"host x vm 0\"", "is written as"),
        ("allow = true\n", "", "`allow` is missing"),
        ("lossy_vnic = 7\n", "virtual_network = false\n", "virtual network, and there is none"),
        ("[[policy.tenant]]", "[[zcredit.weight]]\ntenant = \"green\"\nweight = 2\n[[policy.tenant]]", "has this name"),
        (
            "[[policy.tenant]]",
            "[[zcredit.weight]]\ntenant = \"red\"\nvm = 0\nweight = 2\n[[policy.tenant]]",
            "say which alone",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let wrong = text.replacen(from, to, 1);
        let Err(e) = load(&wrong, "t.toml", Path::new(".")) else { panic!("{to}") };
        assert!(e.to_string().contains(what) && e.to_string().contains("t.toml:"), "{to}: {e}");
    }
}

#[test]
fn a_tenant_has_the_weight_of_each_of_its_machines() {
    // Blue's machine of the other server has turns three times as long as red's, towards red's first: a rule lets it.
    let rule = "[[policy.rule]]\nparty = \"red\"\npeer = \"blue\"\nallow = true\n\
        [[zcredit.weight]]\ntenant = \"blue\"\nweight = 3\n";
    let text = tenants("zfabric", rule).replace("rate = \"500 Mb/s\"\n", "");
    let text = text.replace("hypervisor = \"zfabric\"\n", "hypervisor = \"zfabric\"\nwarmup = \"5 ms\"\n");
    // The first three flows, all to that machine: no link is full.
    let text = &text[..text.match_indices("[[workload]]").nth(3).expect("five workloads").0];
    let o = execute(text, 1, None);
    let [red, blue] = [rate(&o, (0, 0), (1, 0)), rate(&o, (0, 1), (1, 0))];
    assert!((2.5..3.5).contains(&(blue / red)), "{blue} and {red}: {:?}", o.streams);
}

/// Wires that never take a frame at once.
struct Busy;

impl Wires for Busy {
    fn idle(&self, _: PortId) -> bool {
        false
    }
}

#[test]
fn a_frame_that_no_hypervisor_should_have_sent_is_dropped_where_it_arrives() {
    for hypervisor in ["pfc", "zfabric"] {
        let loaded = load(&tenants(hypervisor, ""), "t.toml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"));
        let mut built = sluicenet_experiment::build::build(&loaded.scenario).unwrap_or_else(|e| panic!("{e}"));
        let Node::Server(server) = &mut built.world.nodes[1] else { panic!("a server") };
        let (mut pool, mut woke) = (Pool::default(), PortSet::default());
        let mut receive = |src: (u32, u8), dst: (u32, u8), priority: u8| {
            let [src, dst] = [src, dst].map(|(host, vm)| Address::new(host, vm));
            let packet = Packet::udp(FlowKey { src, dst, sport: 1, dport: 2 }, 0, 100, priority, Framing::ETHERNET);
            let at = pool.insert(&packet);
            with_server!(server, s => s.receive(Instant::ZERO, 0, at, &mut pool, &Busy, &mut woke));
            let ledger = server.ledger();
            assert!(ledger.balances(), "{hypervisor}: {ledger:?}");
            server.host().drops().frames(DropReason::Denied)
        };
        // Another tenant's machine, by either vNIC; a first vNIC from a second one; a first one from outside.
        let forged = [((0, 1), (1, 0), 0), ((0, 3), (1, 2), 7), ((0, 2), (1, 0), 0), ((2, 0), (1, 0), 0)];
        for (n, (src, dst, priority)) in (1..).zip(forged) {
            assert_eq!(receive(src, dst, priority), n, "{hypervisor}: {src:?} to {dst:?}");
        }
        // Permitted frames pass.
        assert_eq!(receive((0, 2), (1, 2), 7), 4, "{hypervisor}");
        assert_eq!(receive((2, 0), (1, 3), 7), 4, "{hypervisor}");
    }
}
