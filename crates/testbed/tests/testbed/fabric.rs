//! The simulation and the data plane agree: frames that servers send in the simulation pass the data plane's fabric in
//! virtual time. Every frame leaves every switch in the same picosecond, and all pauses are equal.

use sluicenet_dataplane::fabric::{Departure, Fabric, Outside};
use sluicenet_experiment::build;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::switch::PauseEvent;
use sluicenet_proto::frame::{Frame, Pause};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_scenario::Scenario;
use sluicenet_sim::{Captured, Control, Engine, RunEnd};
use sluicenet_testbed::fabric::spec;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::{pfc, vlan};
use std::sync::atomic::AtomicBool;

/// A frame that starts on a link: time, node, port, source, destination, length, priority, and the pause that it
/// carries.
type Seen = (u64, NodeId, PortId, u32, u32, u32, u8, Option<Pause>);

fn seen(at: u64, node: NodeId, port: PortId, frame: &impl Frame) -> Seen {
    let pause = frame.as_pause();
    let ends = if pause.is_some() { (0, 0) } else { (frame.source(), frame.destination()) };
    (at, node, port, ends.0, ends.1, frame.len(), frame.priority(), pause)
}

fn bytes_of(frame: &impl Frame, host: u32) -> Vec<u8> {
    if let Some(pause) = frame.as_pause() {
        let source = MacAddress::local(host);
        return pfc::Repr { source, class_enable: pause.classes.0, quanta: pause.quanta }.emit().to_vec();
    }
    let mut bytes = vec![0; frame.len() as usize - ethernet::FCS_LEN];
    let (source, destination) = (MacAddress::local(frame.source()), MacAddress::local(frame.destination()));
    ethernet::Repr { source, destination, ethertype: EtherType::VLAN }.emit(&mut bytes);
    let tag = vlan::Repr { priority: frame.priority(), drop_eligible: false, vid: 0, ethertype: EtherType(0x88B5) };
    tag.emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes
}

#[derive(Default)]
struct Watcher {
    departures: Vec<Seen>,
}

impl Outside for Watcher {
    fn send(&mut self, _now: Instant, _edge: NodeId, _frame: &[u8]) -> bool {
        true
    }
    fn departs(&mut self, d: &Departure<'_>) {
        self.departures.push(seen(d.at.0, d.node, d.port, d.frame));
    }
}

/// Every frame that started on a link of the simulated world, and every pause of its switches.
fn simulated(scenario: &Scenario) -> (Vec<Captured>, Vec<(u32, PauseEvent)>) {
    let built = build::build(scenario).unwrap();
    let mut engine = Engine::new(built.world, &[], 1).unwrap();
    for node in 0..engine.nodes() as u32 {
        (0..engine.ports(node)).for_each(|port| engine.capture(node, port as PortId));
    }
    let until = scenario.duration.map(|d| Instant(d.0)).unwrap();
    let (mut captured, mut pauses) = (Vec::new(), Vec::new());
    engine.run(until, &AtomicBool::new(false), &mut |_, epoch| {
        captured.extend(epoch.captured);
        pauses.extend(epoch.pauses);
        Control::Continue
    });
    captured.sort_by_key(|c| (c.at, c.node, c.port));
    (captured, pauses)
}

fn same_in_both_worlds(text: &str) -> (usize, usize) {
    let scenario = Scenario::parse(text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario;
    let (captured, pauses) = simulated(&scenario);
    let hosts = scenario.topology.counts().endpoints();
    let stations: Vec<(MacAddress, u32)> = (0..hosts).map(|h| (MacAddress::local(h), h)).collect();
    let mut fabric = Fabric::new(&spec(&scenario, &stations).unwrap()).unwrap();
    let mut watcher = Watcher::default();
    let last = captured.last().map_or(0, |c| c.at);
    for c in captured.iter().filter(|c| c.node < hosts) {
        // Advance to just before this time: a server's frame starts before other frames arrive at the same time.
        fabric.advance(Instant(c.at.saturating_sub(1)), &mut watcher);
        fabric.receive(Instant(c.at), c.node, &bytes_of(&c.packet, c.node), &mut watcher);
    }
    fabric.advance(Instant(last), &mut watcher);
    fabric.ledger();
    watcher.departures.sort_by_key(|s| (s.0, s.1, s.2));
    let expected: Vec<Seen> = captured.iter().map(|c| seen(c.at, c.node, c.port, &c.packet)).collect();
    if let Some((i, (e, g))) = expected.iter().zip(&watcher.departures).enumerate().find(|(_, (e, g))| e != g) {
        panic!("frame {i} of {}: simulated {e:?}, real {g:?}\n{text}", expected.len());
    }
    assert_eq!(expected.len(), watcher.departures.len(), "{text}");
    let mut real = Vec::new();
    for i in 0..scenario.topology.counts().switches {
        real.extend(fabric.take_pauses(i as usize).into_iter().map(|p| (hosts + i, p)));
    }
    let key = |p: &(u32, PauseEvent)| (p.1.at, p.0, p.1.port, p.1.priority, p.1.stop);
    real.sort_by_key(key);
    let mut simulated: Vec<(u32, PauseEvent)> = pauses.into_iter().filter(|p| p.0 >= hosts).collect();
    simulated.sort_by_key(key);
    // Pauses of the last instant may have been sent and not captured.
    simulated.retain(|p| p.1.at.0 <= last);
    assert_eq!(real, simulated, "{text}");
    (expected.len(), real.len())
}

#[test]
fn the_same_arrivals_give_the_same_departures_and_the_same_pauses() {
    let (mut frames, mut pauses) = (0, 0);
    for (i, (network, routing)) in [
        ("kind = \"single-switch\"\nhosts = 8\n", "d-mod-k"),
        ("kind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n", "d-mod-k"),
        ("kind = \"xgft\"\nm = [2, 2, 2]\nw = [1, 1, 2]\nexternal_hosts = 1\n", "s-mod-k"),
        ("kind = \"fat-tree\"\nk = 4\n", "two-level"),
    ]
    .into_iter()
    .enumerate()
    {
        for (mode, forwarding) in [("ZZ", "cut-through"), ("LZ", "store-and-forward"), ("LL", "cut-through")] {
            let text = format!(
                "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"{mode}\"\nduration = \"3 ms\"\nseed = {i}\n\
                 [topology]\n{network}link_rate = \"1 Gb/s\"\nrouting = \"{routing}\"\n\
                 [switch]\nforwarding = \"{forwarding}\"\n[pfc]\nxoff = \"40 KB\"\nxon = \"30 KB\"\n\
                 [record]\npauses = true\n\
                 [[workload]]\nkind = \"incast\"\nsenders = 6\nreceiver = 7\nbytes = \"100 KB\"\nrounds = 9\n\
                 transport = \"udp\"\npriority = 3\n\
                 [[workload]]\nkind = \"permutation\"\npattern = \"random\"\ntransport = \"tcp\"\npriority = \"per-host\"\n"
            );
            let (f, p) = same_in_both_worlds(&text);
            frames += f;
            pauses += p;
        }
    }
    assert!(frames > 10_000 && pauses > 100, "{frames} frames, {pauses} pauses");
}

#[test]
fn a_slow_server_pauses_its_switch_in_both_worlds() {
    let text = "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\nduration = \"10 ms\"\n\
                [topology]\nkind = \"single-switch\"\nhosts = 4\nlink_rate = \"1 Gb/s\"\n\
                [vswitch]\nvm_rate = \"200 Mb/s\"\nslots = 4\n[adapter]\nbuffer = \"30 KB\"\n[record]\npauses = true\n\
                [[workload]]\nkind = \"incast\"\nsenders = 3\nreceiver = 3\nbytes = \"200 KB\"\nrounds = 3\n\
                transport = \"udp\"\n";
    let (frames, pauses) = same_in_both_worlds(text);
    assert!(frames > 300 && pauses > 0, "{frames} frames, {pauses} pauses");
}

/// The congestion points of the fabric are the simulator's: the notifications leave at the same times.
#[test]
fn the_same_arrivals_give_the_same_notifications() {
    let text = |qcn: &str| {
        format!(
            "[scenario]\nparameters = \"crisan2014-ch3\"\nflow_control = \"ZZ\"\nduration = \"6 ms\"\n\
             [topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n[record]\npauses = true\n{qcn}\
             [[workload]]\nkind = \"incast\"\nsenders = 6\nreceiver = 7\nbytes = \"400 KB\"\nrounds = 3\n\
             transport = \"udp\"\npriority = 3\n"
        )
    };
    let (_, without) = same_in_both_worlds(&text(""));
    let (frames, with) = same_in_both_worlds(&text("[qcn]\nenabled = true\n"));
    assert!(frames > 1_000 && with < without, "{frames} frames; {without} pauses, {with} with limiters");
}

#[test]
fn what_no_fabric_can_be_is_refused_with_its_place() {
    let refused = |more: &str| {
        let text = format!(
            "[topology]\nkind = \"xgft\"\nm = [4]\nw = [1]\n{more}[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n"
        );
        let text = if more == "w" { text.replace("w = [1]\nw", "w = [2]\n") } else { text };
        spec(&Scenario::parse(&text, "t.toml").unwrap().scenario, &[]).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused("w").contains("several links"));
    assert!(refused("[framing]\nkind = \"ppp\"\n").contains("Ethernet"));
    let e = refused("link_delay = 0\n[switch]\ndelay = 0\n");
    assert!(e.contains("has no delay") && e.contains("t.toml:5"), "{e}");
}

/// Hosts send datagrams as fast as they can fill their adapters, but an event has a limited number of bits for its
/// frame's number.
#[test]
fn more_frames_than_can_be_named_end_a_run() {
    let network = "[scenario]\nduration = \"2 ms\"\n[topology]\nkind = \"fat-tree\"\nk = 4\nlink_rate = \"1 Gb/s\"\n\
                   routing = \"two-level\"\n";
    let all = "[[workload]]\nkind = \"permutation\"\npattern = \"random\"\ntransport = \"udp\"\n";
    // While one thread has no number left, the other may be in any part of a phase.
    let two = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\ntransport = \"udp\"\n\
               [[workload]]\nkind = \"flow\"\nsrc = 2\ndst = 3\ntransport = \"udp\"\nrate = \"700 Mb/s\"\n";
    for (workload, few) in [(all, 500..501), (two, 60..120)] {
        let text = format!("{network}{workload}");
        let scenario = Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario;
        let run = |threads: usize, frames_max: u32, sampled: bool| {
            let built = build::build(&scenario).unwrap();
            let part = build::parts(&built.plan, &built.bumps, threads);
            let mut engine = Engine::new(built.world, &part, threads).unwrap();
            engine.set_frames_max(frames_max);
            if sampled {
                engine.sample(Duration::from_us(1), vec![(0, 0)]);
            }
            engine.run(Instant(2_000_000_000), &AtomicBool::new(false), &mut |_, _| Control::Continue)
        };
        for threads in [1, 2, 4] {
            for frames in few.clone() {
                assert_eq!(run(threads, frames, frames % 2 == 0), RunEnd::Full, "{threads} threads, {frames} frames");
            }
            assert_eq!(run(threads, u32::MAX, true), RunEnd::Time, "{threads} threads");
        }
    }
}
