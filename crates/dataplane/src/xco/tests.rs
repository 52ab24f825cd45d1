//! The loop of a controller, with messages of honest and of hostile hosts.

use super::{ControllerLoop, LinkCounters};
use crate::fabric::Device;
use rustix::event::PollFd;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{Link, Topology};
use sluicenet_proto::xco::{Limits, Node};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Change, Entry, Frame, Head, Message, Repr, without_tag};
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

const OWN: MacAddress = MacAddress::local(1_000);
const HOSTS: Node = 4;
const LEASE: Duration = Duration::from_ms(40);
/// Flows that a host may have.
const FLOWS: usize = 2;

/// A device whose other end is this test.
#[derive(Clone, Debug, Default)]
struct Cable(Arc<Mutex<(VecDeque<Vec<u8>>, Vec<Vec<u8>>)>>);

impl Device for Cable {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let frames: Vec<_> = {
            let waiting = &mut self.0.lock().unwrap().0;
            let n = waiting.len().min(32);
            waiting.drain(..n).collect()
        };
        frames.iter().for_each(|frame| take(frame));
        Ok(frames.len())
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.0.lock().unwrap().1.push(frame.to_vec());
        Ok(true)
    }
    fn wakers<'a>(&'a self, _for_room: bool, _fds: &mut Vec<PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

fn mac(host: Node) -> MacAddress {
    MacAddress::local(1 + host)
}

struct World {
    cable: Cable,
    controller: ControllerLoop,
    now: Instant,
    /// Sequence numbers and tokens of hosts.
    heads: [Head; HOSTS as usize],
}

impl World {
    /// Hosts at one switch. All but the last one have joined.
    fn new() -> World {
        let links: Vec<_> = (0..HOSTS).map(|n| Link { ends: [n, HOSTS], kbps: 1_000_000 }).collect();
        let mut topology = Topology::new(HOSTS, HOSTS as usize + 1, &links).unwrap();
        topology.add_tree(HOSTS).unwrap();
        let config = ControllerConfig {
            policy: PolicyConfig::Slices(SliceConfig::new(Duration::from_ms(1))),
            limits: Limits { flows: 6, flows_per_node: FLOWS },
            lease: LEASE,
            on_demand: false,
            weights: Weights::default(),
            nodes: Vec::new(),
            peer: None,
            hierarchy: None,
            seed: 1,
        };
        let now = Instant::ZERO + Duration::from_ms(1);
        let cable = Cable::default();
        let controller = Controller::new(now, topology, config, 1, false);
        let controller = ControllerLoop::new(Box::new(cable.clone()), controller, OWN, 7);
        let mut world = World { cable, controller, now, heads: Default::default() };
        for host in 0..HOSTS - 1 {
            world.join(host);
        }
        world
    }

    fn put(&self, frame: &[u8]) {
        self.cable.0.lock().unwrap().0.push_back(frame.to_vec());
    }

    fn join(&mut self, host: Node) {
        let join = Message::Join { node: host, rate_kbps: 1_000_000, nonce: 5 };
        self.put(Frame::emit(OWN, mac(host), &Head::default(), &join).as_bytes());
        let answers = self.round();
        let welcome = answers.iter().find(|(to, _, what)| *to == mac(host) && what.contains("Welcome"));
        self.heads[host as usize] = welcome.unwrap().1;
    }

    /// A round; returns the messages to hosts.
    fn round(&mut self) -> Vec<(MacAddress, Head, String)> {
        self.controller.round(self.now).unwrap();
        let sent = std::mem::take(&mut self.cable.0.lock().unwrap().1);
        let read = |frame: &Vec<u8>| {
            assert_eq!(frame[12..16], [0x81, 0x00, 7 << 5, 0], "it has the tag of its priority");
            let mut bytes = [0; sluicenet_wire::xco::LEN_MAX];
            let repr = Repr::parse(without_tag(frame, &mut bytes).unwrap()).unwrap();
            (repr.destination, repr.head, format!("{:?}", repr.message))
        };
        sent.iter().map(read).collect()
    }

    fn head(&mut self, host: Node) -> Head {
        let head = &mut self.heads[host as usize];
        head.sequence += 1;
        *head
    }

    fn report(&mut self, host: Node, entries: &[(Node, Change)]) {
        let entries: Vec<_> = entries.iter().map(|&(destination, change)| Entry { destination, change }).collect();
        let head = self.head(host);
        self.put(Frame::report(OWN, mac(host), &head, &entries).as_bytes());
    }

    fn directives(&mut self, host: Node) -> usize {
        self.round().iter().filter(|(to, _, what)| *to == mac(host) && what.contains("Directive")).count()
    }
}

#[test]
fn a_reported_flow_gets_slices() {
    let mut world = World::new();
    world.report(0, &[(1, Change::Backlogged)]);
    assert_eq!(world.directives(0), 1);
    // Its slice ends, and it still has backlog.
    world.now += Duration::from_us(1_001);
    assert_eq!(world.directives(0), 1);
    let report = world.controller.report();
    assert_eq!((report.members, report.flows, report.controller.directives), (3, 1, 2));
}

#[test]
fn forged_messages_are_counted_by_reason() {
    let mut world = World::new();
    let honest = world.heads[0];
    let next = |n: u32| Head { sequence: honest.sequence + n, ..honest };
    let backlog = [Entry { destination: 1, change: Change::Backlogged }];
    let report = |from: MacAddress, head: Head| Frame::report(OWN, from, &head, &backlog);
    // Of an address without a session; with another token; of another epoch; twice; for another address.
    world.put(report(MacAddress::local(77), next(1)).as_bytes());
    world.put(report(mac(0), Head { token: honest.token ^ 1, ..next(1) }).as_bytes());
    world.put(report(mac(0), Head { epoch: honest.epoch + 1, ..next(1) }).as_bytes());
    world.put(report(mac(0), Head { sequence: 0, ..next(1) }).as_bytes());
    world.put(Frame::report(mac(2), mac(0), &next(1), &backlog).as_bytes());
    // In the name of a host that another address has, and of one that does not exist.
    for node in [1, 40] {
        let join = Message::Join { node, rate_kbps: 1, nonce: 9 };
        world.put(Frame::emit(OWN, MacAddress::local(78), &Head::default(), &join).as_bytes());
    }
    // Damaged; of a VLAN; no message at all.
    let mut damaged = report(mac(0), next(1)).as_bytes().to_vec();
    damaged[44] ^= 1;
    world.put(&damaged);
    let whole = report(mac(0), next(1));
    world.put(&[&whole.as_bytes()[..12], &[0x81, 0, 0, 5], &whole.as_bytes()[12..]].concat());
    world.put(&[0; 60]);
    world.put(&[]);
    assert_eq!(world.directives(0), 0);
    let report = world.controller.report();
    let c = report.controller;
    assert_eq!((c.forged, c.stale, c.impostors, report.flows), (3, 1, 2, 0));
    let LinkCounters { malformed, elsewhere, other, .. } = report.link;
    assert_eq!((malformed, elsewhere, other), (2, 1, 2));
}

#[test]
fn a_host_with_a_million_backlogs_takes_its_own_share_only() {
    let mut world = World::new();
    world.report(1, &[(2, Change::Backlogged)]);
    assert_eq!(world.directives(1), 1);
    // 10^6 backlogs in reports as fast as it can: most reports are beyond its budget, most flows beyond its number.
    let entries: Vec<_> = (0..128).map(|n| (if n % 4 == 3 { n + 100 } else { 1 + n % 4 }, Change::Backlogged)).collect();
    for _ in 0..1_000_000 / 128 {
        world.report(0, &entries);
    }
    let mut served = 0;
    for _ in 0..40 {
        world.now += Duration::from_us(500);
        served += world.directives(1);
    }
    // Half of the slices of host 2's link.
    assert!(served >= 9, "{served} slices in 20 ms");
    let report = world.controller.report();
    let c = report.controller;
    assert!(c.flooded > 3_000 && c.no_such_node > 0 && c.node_full > 0, "{c:?}");
    assert!(report.flows <= 1 + FLOWS);
}

#[test]
fn a_slice_that_is_never_given_back_ends() {
    let mut world = World::new();
    world.report(0, &[(2, Change::Backlogged)]);
    assert_eq!(world.directives(0), 1);
    // It says no more, and gives nothing back; another host's turn comes when the slice is over.
    world.report(1, &[(2, Change::Backlogged)]);
    assert_eq!(world.directives(1), 0);
    world.now += Duration::from_us(1_001);
    assert_eq!(world.directives(1), 1);
    // A return of a flow of another host changes nothing.
    let head = world.head(0);
    let stale = world.controller.report().controller.stale;
    world.put(Frame::emit(OWN, mac(0), &head, &Message::Return { destination: 2, directive: 99 }).as_bytes());
    world.round();
    assert_eq!(world.controller.report().controller.stale, stale + 1);
    // A silent host is deleted after a lease.
    world.now += LEASE + LEASE;
    world.round();
    assert_eq!(world.controller.report().members, 0);
}

#[test]
fn a_flood_of_strangers_does_not_stop_the_schedule() {
    let mut world = World::new();
    world.report(0, &[(2, Change::Backlogged)]);
    world.report(1, &[(2, Change::Backlogged)]);
    world.round();
    let forged = Frame::report(OWN, MacAddress::local(5_000), &Head::default(), &[]);
    let mut served = 0;
    for _ in 0..20 {
        (0..2_000).for_each(|_| world.put(forged.as_bytes()));
        world.now += Duration::from_us(1_001);
        served += world.round().len();
    }
    assert!(served >= 18, "{served} slices in 20 ms");
    assert!(world.controller.report().controller.forged > 4_000);
}
