//! The kernel's own TCP over the fabric in real time: servers are namespaces, their links AF_PACKET devices.

use sluicenet_dataplane::fabric::{Fabric, Report, Runner};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_proto::loss::DropReason;
use sluicenet_scenario::Scenario;
use sluicenet_testbed::fabric::spec;
use sluicenet_testbed::pa::{Endpoint, Endpoints, Outcome, run};
use sluicenet_testkit::netns::{Namespaces, missing, system};
use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};

const HOSTS: u32 = 6;

fn station(host: u32) -> MacAddress {
    MacAddress::local(host + 1)
}

fn address(host: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, host as u8 + 1)
}

/// Namespaces of the servers, and last the namespace of the fabric.
fn servers() -> (Namespaces, Endpoints, Vec<PacketDevice>) {
    let all = Namespaces::new("live", HOSTS as usize + 1);
    let fabric = &all.0[HOSTS as usize];
    let mut endpoints = Endpoints::default();
    for (h, name) in (0..HOSTS).zip(&all.0) {
        let mut lines = vec![
            format!("ip -n {fabric} link add edge{h} type veth peer name eth0 netns {name}"),
            format!("ip -n {name} link set eth0 address {}", station(h).to_string().replace('-', ":")),
            format!("ip -n {name} addr add {}/24 dev eth0", address(h)),
            // The fabric receives single frames with their checksums.
            format!("ip netns exec {name} ethtool -K eth0 tx off tso off gso off gro off"),
            format!("ip netns exec {fabric} ethtool -K edge{h} tx off tso off gso off gro off"),
            format!("ip -n {fabric} link set edge{h} up"),
            format!("ip -n {name} link set eth0 up"),
        ];
        for other in (0..HOSTS).filter(|&o| o != h) {
            let mac = station(other).to_string().replace('-', ":");
            lines.push(format!("ip -n {name} neigh add {} lladdr {mac} dev eth0", address(other)));
        }
        lines.iter().for_each(|line| system(line).unwrap());
        endpoints.kernel.insert((h, 0), Endpoint { namespace: Some(name.clone()), address: address(h) });
    }
    let inside = Namespace::open(fabric).unwrap();
    let devices = (0..HOSTS).map(|h| PacketDevice::open(&inside, &format!("edge{h}"), 1024).unwrap()).collect();
    (all, endpoints, devices)
}

/// Five workers answer one aggregator with 30 KB each, over a switch whose outputs hold 30 KB.
fn scenario(lossless: bool) -> Scenario {
    let text = format!(
        "[topology]\nkind = \"xgft\"\nm = [3, 2]\nw = [1, 1]\nlink_rate = \"100 Mb/s\"\n\
         [switch]\nbuffer = \"30 KB\"\n[pfc]\nenabled = {lossless}\nxoff = \"20 KB\"\nxon = \"10 KB\"\n\
         [[workload]]\nkind = \"partition-aggregate-2\"\nworkers = 5\nresponse = \"30 KB\"\nqueries = 30\n"
    );
    Scenario::parse(&text, "live.toml").unwrap().scenario
}

fn live(lossless: bool) -> (Outcome, Report) {
    let (_namespaces, endpoints, devices) = servers();
    let scenario = scenario(lossless);
    let stations: Vec<(MacAddress, u32)> = (0..HOSTS).map(|h| (station(h), h)).collect();
    let fabric = Fabric::new(&spec(&scenario, &stations).unwrap()).unwrap();
    let mut runner = Runner::new(fabric, devices);
    let stop = AtomicBool::new(false);
    let outcome = std::thread::scope(|threads| {
        let running = threads.spawn(|| runner.run(&stop));
        let outcome = run(&scenario, &endpoints, &AtomicBool::new(false));
        stop.store(true, Ordering::Relaxed);
        running.join().unwrap().unwrap();
        outcome.unwrap_or_else(|e| panic!("{e}"))
    });
    (outcome, runner.report())
}

#[test]
fn over_a_lossy_fabric_answers_are_lost_and_over_a_lossless_one_none() {
    if let Some(what) = missing() {
        println!("SKIPPED: {what}");
        return;
    }
    for lossless in [false, true] {
        let (outcome, report) = live(lossless);
        let figures = outcome.figures();
        println!("lossless {lossless}: {}", serde_json::to_string(&figures).unwrap());
        let late = &report.lateness;
        let [p50, p99, max] = [late.percentile(50.0), late.percentile(99.0), late.max()].map(|d| d.as_us());
        println!(
            "events {} late by p50 {p50} us, p99 {p99} us, max {max} us; {} by more than a frame ({} us); {:?}",
            late.count(),
            report.late,
            report.frame_time.as_us(),
            report.ledger
        );
        assert_eq!((outcome.queries.len(), outcome.unfinished), (30, 0));
        // 150 KB over one link of 100 Mb/s: it cannot be faster.
        assert!(outcome.queries.iter().all(|q| q.took.as_micros() >= 12_000), "{figures:?}");
        let lost = report.drops.frames(DropReason::SwitchBuffer);
        let pauses: u64 = report.edges.iter().map(|e| e.pauses_sent).sum();
        if lossless {
            assert!(pauses > 0);
            assert_eq!(report.drops.frames(DropReason::HeadroomExceeded) + lost, 0, "{:?}", report.drops);
        } else {
            assert!(lost > 0 && pauses == 0 && figures.retransmitted > 0, "{:?} {pauses}", report.drops);
        }
        let socket_drops = report.devices.iter().flatten().filter(|c| c.0 == "rx_socket_drops");
        assert_eq!(socket_drops.map(|c| c.1).sum::<u64>(), 0);
    }
}
