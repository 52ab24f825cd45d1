//! Frames through small fabrics: in virtual time, and in real.

use super::*;
use sluicenet_node::switch::{BufferPolicy, PortBuffers};
use sluicenet_proto::cee::headroom::Headroom;
use sluicenet_proto::cee::pfc::{Watermarks, quanta_time};
use sluicenet_proto::frame::{Frame, PRIORITIES, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::{SwitchName, Xgft};
use sluicenet_proto::routing::{Policy, Router};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::{self, EtherType};
use sluicenet_wire::{pfc, vlan};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const LATENCY: Duration = Duration::from_us(1);

/// A tree of `[m]` hosts an edge switch and `w` roots, with the headroom that its links and its servers need.
fn tree(m: &[u32], w: &[u32], rate: Rate, xoff: u32, response: Duration, lossless: PrioritySet) -> FabricSpec {
    let tree = Xgft::new(m, w).unwrap();
    let hosts = tree.leaves();
    let headroom = |pause_delay, rate| {
        let (max_frame, pfc_frame) = (1542, 84);
        Headroom { rate, data_delay: LATENCY, pause_delay, max_frame, pfc_frame }.bytes() as u32
    };
    let marks = |headroom: u32| Watermarks { xoff, xon: xoff / 2, capacity: xoff + headroom, headroom };
    let quantum = quanta_time(1, rate);
    let config = EdgeConfig {
        lossless,
        stops_server: lossless,
        // A server may send at memory speed until the pause reaches it.
        up: marks(headroom(response, Rate::gbps(10))),
        down: marks(headroom(LATENCY, rate)),
        quanta: 65_535,
        quantum,
        // Servers here may pause for as long as they like.
        detection_time: Duration::from_secs(3_600),
        restoration_time: Duration::from_ms(200),
    };
    let mut links = Vec::new();
    let mut link = |from: (NodeId, PortId), to: (NodeId, PortId)| {
        for (from, to) in [(from, to), (to, from)] {
            let (latency, pause_latency) = (LATENCY, LATENCY);
            links.push(Direction { from, to, rate, latency, first_bit: false, pause_latency, bit_error_rate: 0.0 });
        }
    };
    let names: Vec<SwitchName> = tree.switches().collect();
    for h in 0..hosts {
        link((h, 0), (hosts + tree.index(tree.leaf_parent(h, 0)), (h % m[0]) as PortId));
    }
    for s in &names {
        for j in 0..tree.parents(s.level) {
            let parent = tree.parent(*s, j);
            let port = (s.group % tree.children(parent.level)) as PortId;
            let mine = (tree.children(s.level) + j) as PortId;
            link((hosts + tree.index(*s), mine), (hosts + tree.index(parent), port));
        }
    }
    let switch = |s: &SwitchName| SwitchSpec {
        config: SwitchConfig {
            buffer: PortBuffers::Alike(20_000),
            policy: BufferPolicy::Output,
            shared: None,
            lossless,
            quanta: 65_535,
            cut_through: false,
            markers: Vec::new(),
            ets: None,
            watchdog: None,
        },
        route: Router::Tree(TreeRouter::new(&tree, *s, Policy::Hash, 1, &[])).into(),
        ports: vec![
            PortConfig { marks: marks(headroom(LATENCY, rate)), quantum, repetition: None };
            (tree.children(s.level) + tree.parents(s.level)) as usize
        ],
    };
    FabricSpec {
        edges: (0..hosts).map(|h| EdgeSpec { config, address: MacAddress::local(0x1000 + h) }).collect(),
        switches: names.iter().map(switch).collect(),
        links,
        stations: Stations::new((0..hosts).map(|h| (MacAddress::local(h), h))),
        longest_frame: 1522,
        seed: 1,
        record_pauses: false,
    }
}

/// A frame that contains its flow and number.
fn frame_of(src: u32, dst: u32, priority: u8, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(60)];
    let (source, destination) = (MacAddress::local(src), MacAddress::local(dst));
    ethernet::Repr { source, destination, ethertype: EtherType::VLAN }.emit(&mut bytes);
    let tag = vlan::Repr { priority, drop_eligible: false, vid: 0, ethertype: EtherType(0x88B5) };
    tag.emit(&mut bytes[14..]);
    bytes[18..22].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Flow and number of a frame.
fn told(bytes: &[u8]) -> ((MacAddress, MacAddress, u8), u32) {
    let (header, rest) = ethernet::Repr::parse(bytes).unwrap();
    let (tag, rest) = vlan::Repr::parse(rest).unwrap();
    ((header.source, header.destination, tag.priority), u32::from_be_bytes(*rest.first_chunk().unwrap()))
}

fn pause(host: u32, priority: u8, quanta: u16) -> Vec<u8> {
    let mut all = [0; PRIORITIES];
    all[priority as usize] = quanta;
    pfc::Repr { source: MacAddress::local(host), class_enable: 1 << priority, quanta: all }.emit().to_vec()
}

/// Servers as the fabric sees them.
#[derive(Default)]
struct Servers {
    got: Vec<(Instant, NodeId, Vec<u8>)>,
    /// The priorities that each server was told to pause.
    held: BTreeMap<NodeId, PrioritySet>,
    pauses: u64,
    /// Servers that take nothing.
    deaf: Vec<NodeId>,
}

impl Outside for Servers {
    fn send(&mut self, now: Instant, edge: NodeId, frame: &[u8]) -> bool {
        if self.deaf.contains(&edge) {
            return false;
        }
        match pfc::Repr::parse(frame) {
            Ok(p) => {
                self.pauses += 1;
                let held = self.held.entry(edge).or_default();
                for c in 0..8 {
                    match p.quanta_of(c) {
                        Some(0) => held.remove(c),
                        Some(_) => held.insert(c),
                        None => {}
                    }
                }
            }
            Err(_) => self.got.push((now, edge, frame.to_vec())),
        }
        true
    }
}

#[test]
fn a_frame_takes_the_time_of_its_links() {
    let spec = tree(&[2, 2], &[1, 1], Rate::mbps(100), 50_000, LATENCY, PrioritySet::ALL);
    let mut fabric = Fabric::new(&spec).unwrap();
    let mut servers = Servers::default();
    fabric.receive(Instant(7), 0, &frame_of(0, 3, 2, 1, 1000), &mut servers);
    fabric.advance(Instant(7) + Duration::from_ms(10), &mut servers);
    // Four links, each 1,004 B and 8 B of preamble until the last bit, and the latency.
    let link = Duration::from_ps(1_012 * 80_000) + LATENCY;
    assert_eq!(servers.got.len(), 1);
    assert_eq!(servers.got[0].0, Instant(7) + link + link + link + link);
    assert_eq!((servers.got[0].1, told(&servers.got[0].2).1), (3, 1));
    let ledger = fabric.ledger();
    assert_eq!((ledger.received, ledger.delivered, ledger.dropped), (1, 1, 0));
}

#[test]
fn nothing_is_lost_or_overtaken_whatever_servers_do() {
    let mut rng = Rng::from_words(&[31]);
    let mut pauses = 0;
    for case in 0..30 {
        let lossless = PrioritySet(0b0000_1111);
        let shape: (&[u32], &[u32]) = [(&[4][..], &[1][..]), (&[3, 2], &[1, 2]), (&[2, 3], &[1, 1])][case % 3];
        let rate = Rate::mbps([100, 1000][rng.below(2) as usize]);
        let response = Duration::from_us(10 + rng.below(500));
        let spec = tree(shape.0, shape.1, rate, 4_000 + rng.below(30_000) as u32, response, lossless);
        let hosts = spec.edges.len() as u32;
        let mut fabric = Fabric::new(&spec).unwrap();
        let mut servers = Servers::default();
        let mut number = BTreeMap::<(u32, u32, u8), u32>::new();
        let mut heard: BTreeMap<NodeId, (PrioritySet, PrioritySet, Instant)> = BTreeMap::new();
        let mut now = Instant::ZERO;
        let mut holds: BTreeMap<u32, PrioritySet> = BTreeMap::new();
        for _ in 0..4_000 {
            now += Duration::from_ns(rng.below(20_000));
            fabric.advance(now, &mut servers);
            let host = rng.below(u64::from(hosts)) as u32;
            // A server obeys a pause, but not before its response time: `heard` is the server's knowledge.
            let said = servers.held.get(&host).copied().unwrap_or_default();
            let (obeyed, pending, since) = heard.entry(host).or_insert((PrioritySet::NONE, said, now));
            if *pending != said {
                // A newer pause takes effect after its own response time. The older one is obeyed if its response time is
                // over.
                if now.since(*since) >= response {
                    *obeyed = *pending;
                }
                (*pending, *since) = (said, now);
            }
            if now.since(*since) >= response {
                *obeyed = *pending;
            }
            match rng.below(30) {
                0 => {
                    let p = rng.below(5) as u8;
                    let quanta = if rng.below(2) == 0 { 0 } else { 1 + rng.below(300) as u16 };
                    holds.entry(host).or_default().insert(p);
                    fabric.receive(now, host, &pause(host, p, quanta), &mut servers);
                }
                1 => servers.deaf.push(host),
                2 | 3 => {
                    for host in std::mem::take(&mut servers.deaf) {
                        fabric.has_room(now, host, &mut servers);
                    }
                }
                _ => {
                    let dst = if rng.below(3) > 0 { 0 } else { rng.below(u64::from(hosts)) as u32 };
                    let p = rng.below(6) as u8;
                    if dst == host || obeyed.contains(p) || servers.deaf.contains(&host) {
                        continue;
                    }
                    for _ in 0..1 + rng.below(3) {
                        let n = number.entry((host, dst, p)).or_default();
                        *n += 1;
                        let bytes = frame_of(host, dst, p, *n, 60 + rng.below(1458) as usize);
                        fabric.receive(now, host, &bytes, &mut servers);
                    }
                }
            }
            if case == 0 {
                fabric.ledger();
            }
        }
        for host in std::mem::take(&mut servers.deaf) {
            fabric.has_room(now, host, &mut servers);
        }
        fabric.advance(now + Duration::from_secs(60), &mut servers);
        let ledger = fabric.ledger();
        assert_eq!((ledger.queued, ledger.on_links), (0, 0), "case {case}: everything came out: {ledger:?}");
        let drops = fabric.drops();
        assert_eq!(drops.frames(DropReason::HeadroomExceeded), 0, "case {case}");
        let mut last = BTreeMap::new();
        let mut seen = BTreeMap::<u8, u64>::new();
        for (_, edge, bytes) in &servers.got {
            let (flow, n) = told(bytes);
            assert_eq!(flow.1, MacAddress::local(*edge), "case {case}");
            let before = last.insert(flow, n).unwrap_or(0);
            assert!(n > before && (!lossless.contains(flow.2) || n == before + 1), "case {case}: {n} after {before}");
            *seen.entry(flow.2).or_default() += 1;
        }
        for p in 0..6 {
            let sent: u64 = number.iter().filter(|(k, _)| k.2 == p).map(|(_, &n)| u64::from(n)).sum();
            let got = seen.get(&p).copied().unwrap_or(0);
            assert!(got == sent || !lossless.contains(p) && got < sent, "case {case}: {got} of {sent} in {p}");
        }
        pauses += servers.pauses;
    }
    assert!(pauses > 1_000, "servers must be paused: {pauses}");
}

#[test]
fn a_server_that_ignores_pauses_loses_its_own_frames_by_name_and_nobody_elses() {
    let spec = tree(&[3], &[1], Rate::mbps(100), 20_000, Duration::from_us(100), PrioritySet::ALL);
    let mut fabric = Fabric::new(&spec).unwrap();
    let mut servers = Servers::default();
    for n in 0..1_000 {
        fabric.receive(Instant::ZERO, 0, &frame_of(0, 2, 3, n, 1500), &mut servers);
    }
    fabric.receive(Instant::ZERO, 1, &frame_of(1, 2, 3, 0, 1500), &mut servers);
    fabric.advance(Instant::ZERO + Duration::from_secs(1), &mut servers);
    let ledger = fabric.ledger();
    assert_eq!(fabric.drops().frames(DropReason::HeadroomExceeded), ledger.dropped);
    assert!(ledger.dropped > 0 && servers.pauses > 0);
    assert_eq!(fabric.counters(0).response, Duration::ZERO, "all came in the instant in which it was told");
    fabric.receive(Instant::ZERO + Duration::from_secs(1), 1, &frame_of(1, 2, 3, 1, 1500), &mut servers);
    assert_eq!(fabric.counters(1).response, Duration::ZERO, "it holds nothing");
    assert_eq!(servers.got.iter().filter(|g| told(&g.2).0.0 == MacAddress::local(1)).count(), 1);
}

#[test]
fn how_long_a_server_takes_to_stand_still_is_measured() {
    let spec = tree(&[2], &[1], Rate::mbps(100), 20_000, Duration::from_us(100), PrioritySet(8));
    let mut fabric = Fabric::new(&spec).unwrap();
    let mut servers = Servers::default();
    let mut number = 0;
    while servers.pauses == 0 {
        fabric.receive(Instant::ZERO, 0, &frame_of(0, 1, 3, number, 1500), &mut servers);
        number += 1;
    }
    for (us, priority, response) in [(70, 3, 70), (90, 3, 90), (95, 2, 90)] {
        let now = Instant::ZERO + Duration::from_us(us);
        fabric.advance(now, &mut servers);
        fabric.receive(now, 0, &frame_of(0, 1, priority, number, 60), &mut servers);
        assert_eq!(fabric.counters(0).response, Duration::from_us(response), "{us} us");
    }
    // The buffer drains, and the server may send again: later frames are in time.
    let later = Instant::ZERO + Duration::from_ms(20);
    fabric.advance(later, &mut servers);
    assert_eq!(servers.held[&0], PrioritySet::NONE);
    fabric.receive(later, 0, &frame_of(0, 1, 3, number, 60), &mut servers);
    assert_eq!(fabric.counters(0).response, Duration::from_us(90));
}

#[test]
fn what_is_no_fabric_is_refused() {
    let good = tree(&[2], &[1], Rate::mbps(100), 20_000, LATENCY, PrioritySet::ALL);
    let with = |change: &dyn Fn(&mut FabricSpec)| {
        let mut spec = good.clone();
        change(&mut spec);
        Fabric::new(&spec).map(|_| ())
    };
    assert_eq!(with(&|_| ()), Ok(()));
    assert_eq!(with(&|s| s.links.truncate(s.links.len() - 1)), Err(SpecError::Port { at: (2, 1) }));
    assert_eq!(with(&|s| s.links[0].latency = Duration::ZERO), Err(SpecError::NoDelay { from: (0, 0) }));
    assert_eq!(with(&|s| s.links[0].to = (9, 0)), Err(SpecError::Port { at: (9, 0) }));
    let twice = |s: &mut FabricSpec| {
        let again = s.links[0];
        s.links.push(again);
    };
    assert_eq!(with(&twice), Err(SpecError::Port { at: (0, 0) }));
}

#[test]
fn in_real_time_a_link_has_its_rate_and_a_slow_server_loses_nothing() {
    const FRAMES: u32 = 400;
    let rate = Rate::mbps(100);
    let spec = tree(&[3], &[1], rate, 30_000, Duration::from_us(500), PrioritySet::ALL);
    let (inside, mut outside): (Vec<Local>, Vec<Local>) = (0..3).map(|_| Local::pair().unwrap()).unzip();
    let mut runner = Runner::new(Fabric::new(&spec).unwrap(), inside);
    let stop = AtomicBool::new(false);
    let mut last = outside.pop().unwrap();
    let (numbers, took) = std::thread::scope(|threads| {
        let fabric = threads.spawn(|| {
            runner.run(&stop).unwrap();
            runner.report()
        });
        // Two servers send as fast as they can, and obey pauses.
        for (host, mut device) in (0u32..).zip(outside) {
            let stop = &stop;
            threads.spawn(move || {
                let (mut sent, mut held) = (0, false);
                // A device that goes away would end the fabric.
                while !stop.load(Ordering::Relaxed) {
                    let mut hear = |bytes: &[u8]| {
                        if let Ok(p) = pfc::Repr::parse(bytes) {
                            held = p.quanta_of(3).map_or(held, |q| q > 0);
                        }
                    };
                    device.receive(&mut hear).unwrap();
                    if !held && sent < FRAMES && device.send(&frame_of(host, 2, 3, sent, 1500)).unwrap() {
                        sent += 1;
                    } else {
                        std::thread::sleep(std::time::Duration::from_micros(200));
                    }
                }
            });
        }
        let start = std::time::Instant::now();
        let mut numbers: BTreeMap<MacAddress, Vec<u32>> = BTreeMap::new();
        let mut count = 0;
        while count < 2 * FRAMES as usize {
            if fabric.is_finished() {
                stop.store(true, Ordering::Relaxed);
                panic!("the fabric ended");
            }
            let mut keep = |bytes: &[u8]| {
                if pfc::Repr::parse(bytes).is_err() {
                    let (flow, n) = told(bytes);
                    numbers.entry(flow.0).or_default().push(n);
                    count += 1;
                }
            };
            if last.receive(&mut keep).unwrap() == 0 {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
        }
        let took = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let report = fabric.join().unwrap();
        assert_eq!((report.ledger.dropped, report.ledger.delivered), (0, 2 * u64::from(FRAMES)));
        assert_eq!(report.ledger.received, report.ledger.delivered);
        assert!(report.lateness.count() > 2 * u64::from(FRAMES));
        assert_eq!(report.frame_time, rate.time_for(1_542));
        (numbers, took)
    });
    for (_, numbers) in numbers {
        assert_eq!(numbers, (0..FRAMES).collect::<Vec<u32>>());
    }
    // 1,524 B each at 100 Mb/s, less the frames before the clock is first read: the link cannot have been faster.
    let least = rate.time_for(u64::from(2 * FRAMES - 100) * 1_524);
    assert!(took.as_nanos() as u64 * 1_000 >= least.0, "{took:?}");
}

#[test]
fn a_damaged_frame_is_counted_and_not_delivered() {
    let mut spec = tree(&[2], &[1], Rate::mbps(100), 20_000, LATENCY, PrioritySet::ALL);
    spec.links.iter_mut().for_each(|l| l.bit_error_rate = 1e-5);
    let mut fabric = Fabric::new(&spec).unwrap();
    let mut servers = Servers::default();
    let mut now = Instant::ZERO;
    for n in 0..1_000 {
        now += Duration::from_us(200);
        fabric.advance(now, &mut servers);
        fabric.receive(now, 0, &frame_of(0, 1, 0, n, 1500), &mut servers);
    }
    fabric.advance(now + Duration::from_secs(1), &mut servers);
    let bad = fabric.drops().frames(DropReason::BadCrc);
    // Two links of 12,032 bits: 21 % of the frames.
    assert!((150..280).contains(&bad), "{bad}");
    assert_eq!(fabric.ledger().delivered + bad, 1_000);
    let seen = servers.got.first().map(|g| fabric_len(&g.2));
    assert_eq!(seen, Some(1504));
}

/// The length that the fabric charges a frame with.
fn fabric_len(bytes: &[u8]) -> u32 {
    let stations = Stations::new([(MacAddress::local(0), 0), (MacAddress::local(1), 1)]);
    match frame::classify(bytes, 0, 0, 1522, &stations) {
        Ok(frame::Incoming::Data(d)) => d.len(),
        other => panic!("{other:?}"),
    }
}
