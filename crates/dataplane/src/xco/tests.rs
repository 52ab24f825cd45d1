//! The loops of a controller and of agents, with messages of honest and of hostile ends.

use super::{AgentConfig, AgentLoop, ControllerLoop, LinkCounters, Valves};
use crate::fabric::Device;
use crate::kernel::classes::Backlog;
use rustix::event::PollFd;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use sluicenet_proto::xco::coordinator::CoordinatorConfig;
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

/// Frames to the device, and those that it sent.
type Frames = (VecDeque<Vec<u8>>, Vec<Vec<u8>>);

/// A device whose other end is this test.
#[derive(Clone, Debug, Default)]
struct Cable(Arc<Mutex<Frames>>);

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

/// The controller of hosts at one switch.
fn controller(now: Instant, cable: &Cable) -> ControllerLoop {
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
    let controller = Controller::new(now, topology, config, 1, false);
    ControllerLoop::new(Box::new(cable.clone()), controller, OWN, 7)
}

struct World {
    cable: Cable,
    controller: ControllerLoop,
    now: Instant,
    /// Sequence numbers and tokens of hosts.
    heads: [Head; HOSTS as usize],
}

impl World {
    /// All hosts but the last one have joined.
    fn new() -> World {
        let now = Instant::ZERO + Duration::from_ms(1);
        let cable = Cable::default();
        let controller = controller(now, &cable);
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
    let entries: Vec<_> =
        (0..128).map(|n| (if n % 4 == 3 { n + 100 } else { 1 + n % 4 }, Change::Backlogged)).collect();
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

type Held = Vec<(Option<u64>, Backlog)>;

/// Queues of a kernel: what each may send, and what waits in it.
#[derive(Clone, Debug, Default)]
struct Kernel(Arc<Mutex<Held>>);

impl Kernel {
    /// Open queues send for so long; returns the bytes.
    fn run(&self, time: Duration) -> u64 {
        let mut all = 0;
        for (rate, backlog) in self.0.lock().unwrap().iter_mut() {
            let bytes = rate.map_or(0, |rate| Rate(8 * rate).bytes_in(time)).min(backlog.waiting);
            backlog.waiting -= bytes;
            backlog.sent += bytes;
            all += bytes;
        }
        all
    }
    fn put(&self, n: usize, bytes: u64) {
        self.0.lock().unwrap()[n].1.waiting += bytes;
    }
}

/// As its agent sees it.
struct Queues(Kernel, Vec<Backlog>);

impl Valves for Queues {
    fn open(&mut self, n: usize, rate: u64, _burst: u32) -> io::Result<()> {
        self.0.0.lock().unwrap()[n].0 = Some(rate);
        Ok(())
    }
    fn shut(&mut self, n: usize) -> io::Result<()> {
        self.0.0.lock().unwrap()[n].0 = None;
        Ok(())
    }
    fn look(&self) {}
    fn backlogs(&mut self) -> io::Result<&[Backlog]> {
        self.1 = self.0.0.lock().unwrap().iter().map(|queue| queue.1).collect();
        Ok(&self.1)
    }
}

/// An agent with queues for hosts 2 and 3.
fn agent(node: Node, small_kbps: u32, device: Box<dyn Device + Send>, kernel: &Kernel) -> AgentLoop {
    *kernel.0.lock().unwrap() = vec![(None, Backlog::default()); 2];
    let coordinator = CoordinatorConfig {
        node,
        rate_kbps: 1_000_000,
        controllers: vec![OWN],
        lease: LEASE,
        hysteresis: Some(Duration::from_us(200)),
        small_kbps,
        entries: 8,
        flows: 2,
        late: Duration::from_us(50),
        nonce: node,
    };
    let (poll, nodes) = (Duration::from_us(100), vec![2, 3]);
    let config = AgentConfig { coordinator, nodes, own: mac(node), priority: 7, poll, longest: 1_614 };
    AgentLoop::new(device, Box::new(Queues(kernel.clone(), Vec::new())), config)
}

/// Two agents and their controller, in virtual time.
struct Agents {
    now: Instant,
    controller: ControllerLoop,
    cable: Cable,
    works: bool,
    agents: Vec<(AgentLoop, Cable, Kernel)>,
    sent: [u64; 2],
}

impl Agents {
    fn new(small_kbps: u32) -> Agents {
        let cable = Cable::default();
        let agent = |node: Node| {
            let (cable, kernel) = (Cable::default(), Kernel::default());
            (agent(node, small_kbps, Box::new(cable.clone()), &kernel), cable, kernel)
        };
        Agents {
            now: Instant::ZERO,
            controller: controller(Instant::ZERO, &cable),
            cable,
            works: true,
            agents: (0..2).map(agent).collect(),
            sent: [0; 2],
        }
    }

    /// Runs for so long, in steps of 10 us. A link must never be given more than it has.
    fn run(&mut self, time: Duration) {
        let (until, step) = (self.now + time, Duration::from_us(10));
        while self.now < until {
            self.now += step;
            if self.works {
                self.controller.round(self.now).unwrap();
            }
            let directives = std::mem::take(&mut self.cable.0.lock().unwrap().1);
            for frame in directives {
                for (n, (_, cable, _)) in self.agents.iter().enumerate() {
                    if frame[..6] == mac(n as Node).0 {
                        cable.0.lock().unwrap().0.push_back(frame.clone());
                    }
                }
            }
            for (n, (agent, cable, kernel)) in self.agents.iter_mut().enumerate() {
                self.sent[n] += kernel.run(step);
                agent.round(|| self.now).unwrap();
                let messages = std::mem::take(&mut cable.0.lock().unwrap().1);
                self.cable.0.lock().unwrap().0.extend(messages);
            }
        }
    }
}

#[test]
fn agents_take_turns_and_give_back_what_they_do_not_need() {
    let mut world = Agents::new(0);
    world.run(Duration::from_ms(1));
    assert_eq!(world.controller.report().members, 2);
    // 10 ms of the link to host 2, from each.
    (0..2).for_each(|n| world.agents[n].2.put(0, 1_250_000));
    world.run(Duration::from_ms(4));
    let before = world.sent;
    world.run(Duration::from_ms(8));
    let [a, b] = [0, 1].map(|n| world.sent[n] - before[n]);
    // Of a slice of a millisecond each loses the time of a burst and a frame, and a directive takes 20 us.
    assert!((800_000..=1_000_000).contains(&(a + b)), "{a} and {b} bytes in 8 ms");
    assert!(a.abs_diff(b) < 130_000, "{a} and {b}: they take turns");
    world.run(Duration::from_ms(20));
    assert_eq!(world.sent, [1_250_000; 2]);
    let reports: Vec<_> = world.agents.iter().map(|agent| agent.0.report()).collect();
    assert!(reports.iter().any(|r| r.coordinator.returned > 0) && reports.iter().all(|r| r.backlogged == 0));
    assert_eq!(world.controller.report().flows, 0);
}

#[test]
fn a_small_flow_of_an_agent_does_not_ask() {
    let mut world = Agents::new(40_000);
    world.run(Duration::from_ms(1));
    let open = world.agents[0].2.0.lock().unwrap()[0].0;
    assert_eq!(open, Some(5_000_000), "4 % of the link");
    world.agents[0].2.put(1, 40);
    world.run(Duration::from_ms(1));
    assert_eq!((world.sent[0], world.agents[0].0.report().coordinator.reports), (40, 0));
}

#[test]
fn agents_open_their_queues_when_the_controller_is_silent() {
    let mut world = Agents::new(0);
    world.run(Duration::from_ms(1));
    world.works = false;
    world.agents[0].2.put(0, 100_000);
    world.run(Duration::from_ms(20));
    assert_eq!(world.sent[0], 0);
    // Messages of strangers, forged ones and a repeated welcome keep nobody waiting.
    let agent = &world.agents[0];
    for (from, token) in [(MacAddress::local(77), 0), (OWN, 5)] {
        let head = Head { epoch: 1, token, sequence: 1 << 30, clock_ns: 1 << 40 };
        let frame = Frame::emit(mac(0), from, &head, &Message::Alive { is_controller: true });
        agent.1.0.lock().unwrap().0.push_back(frame.as_bytes().to_vec());
    }
    world.run(LEASE + Duration::from_ms(64));
    let report = world.agents[0].0.report();
    assert_eq!((world.sent[0], report.coordinator.strangers, report.coordinator.forged), (100_000, 1, 1));
    assert!(report.is_uncontrolled && report.coordinator.uncontrolled > 0);
}

/// Events while a loop does not run.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A device whose loop does not run for some time before it is asked for frames.
struct Late {
    cable: Cable,
    meanwhile: Meanwhile,
}

impl Device for Late {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile();
        }
        self.cable.receive(take)
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.cable.send(frame)
    }
    fn wakers<'a>(&'a self, _for_room: bool, _fds: &mut Vec<PollFd<'a>>) {}
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn an_agent_that_did_not_run_does_not_take_the_controllers_clock_to_be_ahead() {
    let clock = Arc::new(Mutex::new(Instant::ZERO + Duration::from_ms(1)));
    let now = {
        let clock = Arc::clone(&clock);
        move || *clock.lock().unwrap()
    };
    let (near, far) = (Cable::default(), Cable::default());
    let controller = Arc::new(Mutex::new(controller(Instant::ZERO, &far)));
    let turn = {
        let (near, now) = (near.clone(), now.clone());
        move || {
            let sent = std::mem::take(&mut near.0.lock().unwrap().1);
            far.0.lock().unwrap().0.extend(sent);
            controller.lock().unwrap().round(now()).unwrap();
            let answers = std::mem::take(&mut far.0.lock().unwrap().1);
            near.0.lock().unwrap().0.extend(answers);
        }
    };
    let (kernel, meanwhile) = (Kernel::default(), Arc::default());
    let device = Late { cable: near, meanwhile: Arc::clone(&meanwhile) };
    let mut agent = agent(0, 0, Box::new(device), &kernel);
    agent.round(&now).unwrap();
    // The round has begun; 20 ms later, the controller answers the join, and the agent goes on.
    let (passes, turns) = (Arc::clone(&clock), turn.clone());
    *meanwhile.lock().unwrap() = Some(Box::new(move || {
        *passes.lock().unwrap() += Duration::from_ms(20);
        turns();
    }));
    agent.round(&now).unwrap();
    assert!(agent.report().is_member);
    kernel.put(0, 1_250_000);
    for _ in 0..500 {
        *clock.lock().unwrap() += Duration::from_us(10);
        agent.round(&now).unwrap();
        turn();
    }
    let counters = agent.report().coordinator;
    assert!(counters.directives > 0 && counters.expired == 0, "{counters:?}");
}
