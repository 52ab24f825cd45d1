//! XCo in whole worlds (Rajanna et al. 2012): loss, shares, and the effect of each setting.

use crate::worlds::{assert_same_bytes, execute};
use sluicenet_experiment::build;
use sluicenet_experiment::run::{Outcome, XcoTotals};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::Scenario;
use sluicenet_testkit::Dir;

/// Payload of a link of 1 Gb/s with full datagrams, in Mb/s.
const LINE: f64 = 1000.0 * 1472.0 / 1538.0;

/// Figure 1(a): five senders and one receiver at a switch, and the controller beside them. `flow` is what each sends.
fn five(xco: &str, flow: &str) -> String {
    let flows: String =
        (1..6).map(|n| format!("[[workload]]\nkind = \"flow\"\nsrc = {n}\ndst = 0\n{flow}\n")).collect();
    scenario("hosts = 7\n", &format!("controller = 6\n{xco}"), &flows)
}

fn scenario(topology: &str, xco: &str, rest: &str) -> String {
    format!(
        "[scenario]\nduration = \"60 ms\"\nwarmup = \"10 ms\"\n[topology]\nkind = \"single-switch\"\nlink_rate = \"1 Gb/s\"\n\
         {topology}[adapter]\nbuffer = \"16 KB\"\n[server]\nvirtual_network = false\n[xco]\nenabled = true\n{xco}\n{rest}"
    )
}

fn udp(xco: &str) -> String {
    five(xco, "transport = \"udp\"")
}

fn rates(outcome: &Outcome) -> Vec<f64> {
    outcome.streams.each.iter().map(|stream| stream.mbps).collect()
}

fn run(text: &str) -> (Outcome, XcoTotals) {
    let outcome = execute(text, 1, None);
    let totals = outcome.xco.unwrap_or_default();
    (outcome, totals)
}

/// Figures 15 and 23.
#[test]
fn nothing_is_lost_and_the_link_is_full() {
    let (without, totals) = run(&udp("").replace("enabled = true", "enabled = false"));
    assert!(without.totals.dropped * 10 > without.totals.sent * 7 && without.xco.is_none() && totals.slices == 0);
    let (with, totals) = run(&udp("small_flow = \"0 b/s\""));
    assert_eq!((with.totals.dropped, totals.uncontrolled, totals.joined), (0, 0, 6));
    let rates = rates(&with);
    let total: f64 = rates.iter().sum();
    assert!(total > 0.96 * LINE && total <= LINE * 1.001, "{rates:?}");
    assert!(rates.iter().all(|rate| (rate / LINE * 5.0 - 1.0).abs() < 0.15), "{rates:?}");
}

/// Figure 20: TCP gets its share beside UDP.
#[test]
fn tcp_has_its_share_beside_udp() {
    let text = udp("small_flow = \"40 Mb/s\"").replacen("transport = \"udp\"", "transport = \"tcp\"", 3);
    let (outcome, totals) = run(&text);
    let rates = rates(&outcome);
    assert!(rates.iter().all(|rate| *rate > 0.12 * LINE), "{rates:?}");
    assert!(totals.small > 1_000, "acknowledgements do not wait: {totals:?}");
}

#[test]
fn rates_are_shares_of_the_bottleneck() {
    let (outcome, totals) = run(&udp("kind = \"rate\"\nsmall_flow = \"0 b/s\""));
    let rates = rates(&outcome);
    assert!(rates.iter().all(|rate| (rate / LINE * 5.0 - 1.0).abs() < 0.03), "{rates:?}");
    // Senders that are paced alike can meet at the switch, which has room for that.
    assert_eq!((outcome.totals.dropped, totals.slices), (0, 0));
}

/// Paths that depend on the destination: a spanning tree for each core of a fat-tree.
#[test]
fn a_fat_tree_has_several_spanning_trees() {
    let flows = "[[workload]]\nkind = \"permutation\"\npattern = \"random\"\ntransport = \"udp\"\n";
    let text = scenario("k = 4\nrouting = \"d-mod-k\"\n", "controller = 15\nsmall_flow = \"0 b/s\"", flows)
        .replace("single-switch", "fat-tree");
    let (without, _) = run(&text.replace("enabled = true", "enabled = false"));
    assert!(without.totals.dropped > 10_000, "{:?}", without.totals);
    // The controller sends nothing else: its frames are not coordinated.
    let quiet = text.replace("pattern = \"random\"", "pattern = \"random\"\nsenders = 15");
    let (with, totals) = run(&quiet);
    assert_eq!((with.totals.dropped, totals.uncontrolled, totals.joined), (0, 0, 15));
    assert!(with.streams.min_mbps > 0.2 * LINE && with.streams.total_mbps > 7.0 * LINE, "{:?}", with.streams);
}

/// Section 7: a host that is faster than its receiver.
#[test]
fn a_hybrid_lets_a_fast_server_send() {
    let levels = "m = [3, 2]\nw = [1, 1]\n";
    let flows = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 3\ntransport = \"udp\"\n[[workload]]\nkind = \"flow\"\nsrc = 1\n\
                 dst = 4\ntransport = \"udp\"\n[[topology.level]]\nlevel = 2\nrate = \"500 Mb/s\"\n";
    let text = |kind: &str| {
        scenario(levels, &format!("controller = 2\nkind = \"{kind}\"\nsmall_flow = \"0 b/s\""), flows)
            .replace("single-switch", "xgft")
    };
    let timeslice =
        Scenario::parse(&text("timeslice"), "test").map(|loaded| build::build(&loaded.scenario).map(|_| ()));
    let refused = timeslice.expect("a scenario").expect_err("a link is too slow").to_string();
    assert!(refused.contains("hybrid"), "{refused}");
    let (outcome, totals) = run(&text("hybrid"));
    let rates = rates(&outcome);
    assert!(rates.iter().all(|rate| (rate / LINE * 4.0 - 1.0).abs() < 0.15), "{rates:?}");
    assert!(outcome.totals.dropped == 0 && totals.slices > 20);
}

#[test]
fn settings_have_effects() {
    let base = "small_flow = \"0 b/s\"\n";
    let with = |more: &str| run(&udp(&format!("{base}{more}"))).1;
    let usual = with("");
    assert!(with("slice = \"10 ms\"\nlease = \"200 ms\"").slices * 4 < usual.slices);
    assert!(run(&udp("small_flow = \"100 Mb/s\"")).1.small > 0 && usual.small == 0);
    // Slow senders keep their slices, or give them back.
    let slow = |more: &str| run(&five(&format!("{base}{more}"), "transport = \"udp\"\nrate = \"50 Mb/s\""));
    let (keep, give) = (slow("hysteresis = \"off\""), slow("hysteresis = \"20 us\""));
    assert!(keep.1.returned == 0 && give.1.returned > 100, "{:?} {:?}", keep.1, give.1);
    assert!(rates(&give.0).iter().sum::<f64>() > rates(&keep.0).iter().sum::<f64>());
    // Little traffic, and on demand: nobody is held.
    let (calm, totals) = slow("on_demand = true");
    assert_eq!((totals.slices, calm.totals.dropped), (0, 0));
    assert!(with("on_demand = true").slices > 20);
    // A weight of 3.
    let weighted = run(&udp(&format!("{base}[[xco.weight]]\nhost = 1\nweight = 3\n")));
    let shares = rates(&weighted.0);
    assert!((shares[0] / shares[1] / 3.0 - 1.0).abs() < 0.25, "{shares:?}");
    let one = run(&udp(&format!("{base}[[xco.weight]]\nhost = 1\nto = 2\nweight = 3\n")));
    assert!((rates(&one.0)[0] / rates(&one.0)[1] - 1.0).abs() < 0.25);
}

#[test]
fn a_server_is_preempted_for_another_destination() {
    let flow = |src: u32, dst: u32, rate: &str| {
        format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = {dst}\ntransport = \"udp\"\n{rate}")
    };
    let flows =
        flow(0, 1, "") + &flow(0, 2, "") + &flow(3, 1, "rate = \"200 Mb/s\"\n") + &flow(4, 2, "rate = \"300 Mb/s\"\n");
    let preempted = |min_run: &str| {
        let xco = format!("controller = 5\nsmall_flow = \"0 b/s\"\nmin_run = \"{min_run}\"");
        run(&scenario("hosts = 6\n", &xco, &flows)).1.preempted
    };
    assert!(preempted("100 us") > 10 && preempted("2 ms") == 0);
}

/// Section 7: without a controller the network stays alive, and a standby keeps it coordinated.
#[test]
fn the_controller_dies() {
    let (outcome, totals) = run(&udp("dies = \"5 ms\"\nlease = \"10 ms\"\nsmall_flow = \"0 b/s\""));
    assert!(totals.uncontrolled > 1_000 && outcome.totals.dropped > 1_000 && totals.takeovers == 0);
    let standby = udp("dies = \"5 ms\"\nlease = \"10 ms\"\nsmall_flow = \"0 b/s\"\nstandby = 7")
        .replace("hosts = 7", "hosts = 8");
    let (outcome, totals) = run(&standby);
    assert_eq!((totals.takeovers, totals.uncontrolled, outcome.totals.dropped), (1, 0, 0));
    assert!(rates(&outcome).iter().sum::<f64>() > 0.9 * LINE);
}

#[test]
fn below_virtual_machines() {
    let text = udp("small_flow = \"0 b/s\"").replace("virtual_network = false", "vms = 4").replacen(
        "dst = 0",
        "dst = 0\nsrc_vm = 2",
        2,
    );
    let (outcome, totals) = run(&text);
    assert_eq!((outcome.totals.dropped, totals.joined), (0, 6));
    assert!(rates(&outcome).iter().sum::<f64>() > 0.88 * LINE, "{:?}", rates(&outcome));
}

/// "A new flow without contention is scheduled within 1 ms" (4.8), and one with contention within the turns of the others.
#[test]
fn a_new_flow_is_served_in_time() {
    let new = "[[workload]]\nkind = \"flow\"\nsrc = 5\ndst = 0\ntransport = \"udp\"\nbytes = \"14720 B\"\nstart = \"20300 us\"\n";
    let xco = "controller = 6\nsmall_flow = \"0 b/s\"";
    let time = |others: u32| {
        let other = |n| format!("[[workload]]\nkind = \"flow\"\nsrc = {n}\ndst = 0\ntransport = \"udp\"\n");
        let others: String = (1..=others).map(other).collect();
        let outcome = execute(&scenario("hosts = 7\n", xco, &(others + new)), 1, None);
        assert_eq!((outcome.totals.dropped, outcome.flow_fct_ps.len()), (0, 1));
        Duration(outcome.flow_fct_ps[0])
    };
    // Ten frames take 123 us.
    assert!(time(0) < Duration::from_us(300), "{:?}", time(0));
    assert!(time(4) < Duration::from_us(4 * 2_000 + 300), "{:?}", time(4));
}

/// Messages are frames of their own, with the priority of the section: a capture has them.
#[test]
fn messages_have_a_priority() {
    let dir = Dir::new("xco-priority");
    let text = udp("priority = 5\nsmall_flow = \"0 b/s\"").replace("virtual_network = false", "virtual_network = true");
    execute(&format!("{text}[record]\npcapng = [\"switch 0\"]\n"), 1, Some(dir.0.clone()));
    let captured = std::fs::read(dir.0.join("capture.pcapng")).expect("a capture");
    // The inner frame is behind an outer header: Ethernet, its tag, IP, UDP and VXLAN. The tag begins 12 bytes into the frame.
    const MAGIC_AT: usize = 12 + 4 + 2 + 20 + 8 + 8 + 14;
    let found = captured.windows(4).enumerate().filter(|(_, bytes)| *bytes == b"slxc").map(|(at, _)| at);
    let priorities: Vec<u8> = found.map(|at| captured[at - MAGIC_AT + 14] >> 5).collect();
    assert!(priorities.len() > 50 && priorities.iter().all(|&priority| priority == 5), "{priorities:?}");
}

#[test]
fn one_thread_or_several_write_the_same_bytes() {
    let text = udp("priority = 5\n[record]\npcapng = [\"switch 0\"]");
    assert_same_bytes("xco", |threads, dir| drop(execute(&text, threads, Some(dir.0.clone()))));
}

/// Two rows of two racks of four servers, and the core's controller beside the top switch.
fn rows(xco: &str) -> String {
    let flow = |(src, dst): (u32, u32)| {
        format!("[[workload]]\nkind = \"flow\"\ntransport = \"udp\"\nsrc = {src}\ndst = {dst}\n")
    };
    // Within a rack, between racks, and between rows; to the servers with controllers, too.
    let flows: String = [(2, 1), (3, 1), (2, 5), (6, 3), (7, 4), (1, 9), (5, 13), (10, 0), (14, 8)].map(flow).concat();
    scenario("m = [4, 2, 2]\nw = [1, 1, 1]\nexternal_hosts = 1\n", &format!("small_flow = \"0 b/s\"\n{xco}"), &flows)
        .replace("single-switch", "xgft")
        .replace("60 ms", "210 ms")
}

/// Section 7: controllers of racks, rows and the core.
#[test]
fn racks_rows_and_the_core_have_controllers() {
    let (central, one) = run(&rows(""));
    let (outcome, totals) = run(&rows("hierarchical = true"));
    assert_eq!((central.totals.dropped, outcome.totals.dropped, totals.uncontrolled, totals.starved), (0, 0, 0, 0));
    // A server joins a controller of each level.
    assert_eq!((one.joined, totals.joined), (16, 3 * 16));
    let (central, rates) = (rates(&central), rates(&outcome));
    assert!(rates.iter().all(|rate| *rate > 0.03 * LINE), "{rates:?}");
    // Levels take turns, so links have less to do than with one controller, but most of the time they do something.
    let (all, of_central): (f64, f64) = (rates.iter().sum(), central.iter().sum());
    assert!(all > 0.5 * of_central && all < of_central, "{rates:?} {central:?}");
    assert_same_bytes("xco-hierarchical", |threads, dir| {
        drop(execute(&rows("hierarchical = true"), threads, Some(dir.0.clone())));
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let error = |text: &str| match Scenario::parse(text, "test") {
        Err(e) => e.to_string(),
        Ok(loaded) => build::build(&loaded.scenario).map(|_| ()).expect_err("it does not fit").to_string(),
    };
    for (text, says) in [
        (udp("").replace("controller = 6\n", ""), "controller"),
        (udp("").replace("controller = 6", "controller = 60"), "there are hosts 0 to 6"),
        (udp("standby = 6"), "own standby"),
        (udp("slice = \"20 ms\""), "slice"),
        (udp("hierarchical = true"), "no tree with 2 to 4 levels"),
        (rows("hierarchical = true\nkind = \"rate\""), "take turns"),
        (rows("hierarchical = true\nstandby = 3"), "no standby"),
        (
            rows("hierarchical = true").replace("m = [4, 2, 2]", "m = [1, 8, 2]"),
            "too few for a controller of each level",
        ),
        (udp("slice = \"10 ms\"\nlease = \"20 ms\""), "half a lease"),
        (udp("kind = \"rate\"\nmin_run = \"3 ms\""), "pre-empted"),
        (udp("[[xco.weight]]\nhost = 9\nweight = 2\n"), "there are hosts 0 to 6"),
        (udp("[[xco.weight]]\nhost = 1\nweight = 2\n[[xco.weight]]\nhost = 1\nweight = 3\n"), "weight already"),
        (
            udp("").replace("virtual_network = false", "virtual_network = true\n[zcredit]\nenabled = true"),
            "hypervisors",
        ),
        (
            udp("").replace("single-switch", "k-ary-n-tree").replace("hosts = 7", "k = 4\nn = 2\nrouting = \"hash\""),
            "which of several paths",
        ),
        (
            udp("")
                .replace("single-switch", "xgft")
                .replace("hosts = 7", "m = [4, 2, 1]\nw = [1, 2, 2]\nrouting = \"d-mod-k\""),
            "none that XCo",
        ),
    ] {
        let found = error(&text);
        assert!(found.contains(says), "`{says}` in: {found}");
    }
}
