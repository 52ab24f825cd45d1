//! Uplinks with a gate, beside a controller, in virtual time; and hostile messages.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use sluicenet_proto::xco::coordinator::{CoordinatorConfig, LATE, STARVED};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{self, Topology};
use sluicenet_proto::xco::{Limits, Node};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Frame, Head, Message, NOWHERE, Repr, without_tag};

const RATE: Rate = Rate::gbps(1);
const CLASS: Priority = 3;
const PRIORITY: Priority = 7;
const LEASE: Duration = Duration::from_ms(40);
const CONTROLLER: MacAddress = MacAddress::local(1_000);
const HOSTS: Node = 3;

type End = Uplink<u32, Vec<u8>, Gated>;

fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}
fn own(host: Node) -> MacAddress {
    MacAddress::local(1 + host)
}
/// A VM of a host.
fn vm(host: Node, n: u32) -> MacAddress {
    MacAddress::local(100 + 10 * host + n)
}

fn gate(host: Node, small_kbps: u32) -> End {
    let lossless = PrioritySet(1 << CLASS);
    let link = Link::new(own(host), RATE, 1518, Duration::from_us(20), lossless, 150_000).unwrap();
    let coordinator = CoordinatorConfig {
        node: host,
        rate_kbps: 1_000_000,
        controllers: vec![CONTROLLER],
        lease: LEASE,
        hysteresis: Some(Duration::from_us(50)),
        small_kbps,
        entries: 8,
        flows: 16,
        late: LATE,
        nonce: 7 + host,
    };
    let stations = (0..HOSTS).flat_map(|host| (0..10).map(move |n| (vm(host, n), host))).collect();
    let config = GateConfig { coordinator, stations, queue: 16_000, priority: PRIORITY };
    Uplink::with(link, Gated::new(us(0), config))
}

fn frame(from: MacAddress, to: MacAddress, number: u32) -> Vec<u8> {
    let mut bytes = vec![0; 1_000];
    ethernet::Repr { destination: to, source: from, ethertype: EtherType::IPV4 }.emit(&mut bytes);
    bytes[996..].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap())
}

fn enqueue(end: &mut End, now: Instant, frame: Vec<u8>) {
    end.enqueue(now, CLASS, frame.len() as u32, frame);
}

/// Hosts at one switch, and their controller. Messages take 5 us.
struct World {
    now: Instant,
    ends: Vec<End>,
    controller: Controller,
    /// Whether the controller works.
    works: bool,
    wire: Vec<(Instant, Vec<u8>)>,
    /// Frames that left, by host.
    sent: Vec<Vec<Vec<u8>>>,
}

impl World {
    fn new(small_kbps: u32) -> World {
        let links: Vec<_> = (0..HOSTS).map(|n| topology::Link { ends: [n, HOSTS], kbps: 1_000_000 }).collect();
        let mut topology = Topology::new(HOSTS, HOSTS as usize + 1, &links).unwrap();
        topology.add_tree(HOSTS).unwrap();
        let config = ControllerConfig {
            policy: PolicyConfig::Slices(SliceConfig::new(Duration::from_ms(1))),
            limits: Limits { flows: 64, flows_per_node: 8 },
            lease: LEASE,
            on_demand: false,
            weights: Weights::default(),
            nodes: Vec::new(),
            peer: None,
            hierarchy: None,
            seed: 1,
        };
        World {
            now: us(1),
            ends: (0..HOSTS).map(|host| gate(host, small_kbps)).collect(),
            controller: Controller::new(us(0), topology, config, 1, false),
            works: true,
            wire: Vec::new(),
            sent: vec![Vec::new(); HOSTS as usize],
        }
    }

    /// Runs, polled each microsecond, for so long.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.step();
            self.now += Duration::from_us(1);
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let arrived: Vec<Vec<u8>> = self.wire.extract_if(.., |(at, _)| *at <= now).map(|(_, frame)| frame).collect();
        for frame in arrived {
            let mut bytes = [0; sluicenet_wire::xco::LEN_MAX];
            let repr = Repr::parse(without_tag(&frame, &mut bytes).unwrap()).unwrap();
            match (0..HOSTS).find(|&host| own(host) == repr.destination) {
                Some(host) => assert!(self.ends[host as usize].queues_mut().handle_message(now, &frame, own(host))),
                None if self.works => self.controller.handle(now, repr.source, &repr.head, &repr.message),
                None => {}
            }
        }
        if self.works {
            if self.controller.poll_timeout() <= now {
                self.controller.handle_timeout(now);
            }
            while let Some(out) = self.controller.poll_transmit(now) {
                let frame = Frame::emit(out.to, CONTROLLER, &out.head, &out.message);
                self.wire.push((now + Duration::from_us(5), frame.as_bytes().to_vec()));
            }
        }
        for host in 0..HOSTS {
            let end = &mut self.ends[host as usize];
            end.on_round(now);
            end.handle_timeout(now);
            loop {
                let mut bytes = Vec::new();
                if !end.queues_mut().poll_message(now, own(host), &mut bytes) {
                    break;
                }
                end.enqueue_of(now, Origin::Own, PRIORITY, bytes.len() as u32, bytes);
            }
            while end.front(now).is_some() {
                let Some(frame) = end.sent(now) else { continue };
                match sluicenet_wire::xco::is_message(&frame) {
                    true => self.wire.push((now + Duration::from_us(5), frame)),
                    false => self.sent[host as usize].push(frame),
                }
            }
        }
    }

    fn send(&mut self, from: (Node, u32), to: (Node, u32), numbers: core::ops::Range<u32>) {
        let now = self.now;
        for n in numbers {
            enqueue(&mut self.ends[from.0 as usize], now, frame(vm(from.0, from.1), vm(to.0, to.1), n));
        }
    }

    fn counts(&self, host: Node) -> (GateCounters, sluicenet_proto::xco::coordinator::CoordinatorCounters) {
        let (own, coordinator) = self.ends[host as usize].queues().counters();
        (*own, *coordinator)
    }
}

#[test]
fn frames_wait_for_a_slice_and_leave_in_order_within_it() {
    let mut world = World::new(0);
    world.run(Duration::from_us(900));
    assert_eq!(world.controller.members(), HOSTS as usize);
    // Two hosts want the link of host 2 at once: 60 frames take half a slice.
    world.send((0, 0), (2, 0), 0..60);
    world.send((1, 0), (2, 0), 0..60);
    assert_eq!(world.sent.concat().len(), 0, "nothing leaves without a directive");
    world.run(Duration::from_us(100));
    let early = [world.sent[0].len(), world.sent[1].len()];
    assert!(early.contains(&0) && early != [0, 0], "one of them has the slice: {early:?}");
    world.run(Duration::from_ms(4));
    for host in [0, 1] {
        assert!(world.sent[host].iter().map(|f| number(f)).eq(0..60));
        assert!(world.counts(host as Node).1.returned > 0, "the rest of the slice is given back");
    }
    assert_eq!(world.ends[0].inside(), (0, 0));
}

#[test]
fn pairs_take_turns_and_a_full_one_holds_its_sender() {
    let mut world = World::new(0);
    world.run(Duration::from_us(900));
    world.send((0, 0), (2, 0), 0..16);
    world.send((0, 1), (2, 1), 100..116);
    let gate = world.ends[0].queues();
    assert!(!gate.has_room_for(CLASS, 0, vm(2, 0), vm(0, 0)), "16 KB wait");
    assert!(gate.has_room_for(CLASS, 0, vm(2, 1), vm(0, 0)), "another pair does not");
    assert!(world.ends[0].takes().contains(CLASS));
    world.run(Duration::from_ms(3));
    let turns: Vec<bool> = world.sent[0].iter().map(|frame| number(frame) >= 100).collect();
    assert_eq!(turns.len(), 32);
    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
}

#[test]
fn unlisted_and_small_flows_do_not_ask() {
    let mut world = World::new(40_000);
    world.run(Duration::from_us(900));
    let other = MacAddress::local(9_999);
    let now = world.now;
    enqueue(&mut world.ends[0], now, frame(vm(0, 0), MacAddress([0xFF; 6]), 0));
    enqueue(&mut world.ends[0], now, frame(vm(0, 0), other, 1));
    world.send((0, 0), (2, 0), 2..5);
    world.run(Duration::from_us(60));
    assert!(world.sent[0].iter().map(|f| number(f)).eq(0..5));
    let (own, coordinator) = world.counts(0);
    assert_eq!((own.unlisted, coordinator.small, coordinator.directives), (2, 3, 0));
}

#[test]
fn without_a_controller_all_frames_pass_after_the_lease() {
    let mut world = World::new(0);
    world.run(Duration::from_ms(1));
    world.works = false;
    world.send((0, 0), (2, 0), 0..40);
    world.run(Duration::from_ms(30));
    assert_eq!(world.sent[0].len(), 0);
    world.run(Duration::from_ms(15) + Duration::from_ms(64));
    assert!(world.sent[0].iter().map(|f| number(f)).eq(0..40));
    assert!(world.counts(0).1.uncontrolled > 0);
    world.works = true;
    world.run(Duration::from_ms(150));
    assert!(!world.ends[0].queues().state(world.now).1, "the controller is back");
}

#[test]
fn a_pause_storm_drops_held_frames_and_nothing_is_lost_from_the_books() {
    let mut world = World::new(0);
    world.run(Duration::from_us(900));
    world.works = false;
    world.send((0, 0), (2, 0), 0..10);
    world.send((0, 1), (2, 1), 0..10);
    let mut dropped = 0;
    let end = &mut world.ends[0];
    end.queues_mut().clear(CLASS, &mut |_| dropped += 1);
    assert_eq!((dropped, end.inside().1), (20, 0));
    world.works = true;
    world.send((0, 0), (2, 0), 10..20);
    world.run(Duration::from_ms(5));
    assert!(world.sent[0].iter().map(|f| number(f)).eq(10..20));
}

/// The head of a message of the controller that the gate of host 0 would take next, as one who sees its frames forges it.
fn spied(world: &mut World) -> Head {
    let mut head = None;
    for _ in 0..60_000 {
        world.step();
        for (_, frame) in &world.wire {
            if let Ok(repr) = Repr::parse(frame)
                && repr.destination == own(0)
                && repr.head.token != 0
            {
                head = Some(repr.head);
            }
        }
        if head.is_some() && world.wire.is_empty() {
            break;
        }
        world.now += Duration::from_us(1);
    }
    head.unwrap()
}

fn directive(rate_kbps: u32, length_ns: u32) -> Message<'static> {
    Message::Directive { destination: 2, instead_of: NOWHERE, rate_kbps, length_ns }
}

#[test]
fn forged_messages_change_nothing_and_are_counted_by_reason() {
    let mut world = World::new(0);
    world.run(Duration::from_ms(1));
    let head = spied(&mut world);
    world.works = false;
    world.send((0, 0), (2, 0), 0..10);
    let now = world.now;
    let next = |add: u32| Head { sequence: head.sequence.wrapping_add(add), ..head };
    let mut tell = |from: MacAddress, to: MacAddress, head: Head, message: Message<'_>| {
        let frame = Frame::emit(to, from, &head, &message);
        assert!(world.ends[0].queues_mut().handle_message(now, frame.as_bytes(), to_own()));
    };
    fn to_own() -> MacAddress {
        own(0)
    }
    tell(vm(1, 0), own(0), next(1), directive(0, 1_000_000));
    tell(CONTROLLER, vm(0, 0), next(1), directive(0, 1_000_000));
    tell(CONTROLLER, own(0), Head { token: head.token ^ 1, ..next(1) }, directive(0, 1_000_000));
    tell(CONTROLLER, own(0), Head { epoch: head.epoch + 1, ..next(1) }, directive(0, 1_000_000));
    tell(CONTROLLER, own(0), head, directive(0, 1_000_000));
    tell(CONTROLLER, own(0), Head { clock_ns: 0, ..next(1) }, directive(0, 1_000_000));
    tell(CONTROLLER, own(0), next(2), Message::Leave);
    tell(
        CONTROLLER,
        own(0),
        Head { epoch: 9, ..next(3) },
        Message::Welcome { node: 0, lease_us: 1, nonce: 6, on_demand: false },
    );
    // A VLAN tag belongs to tenants; a message cut short cannot be read.
    let whole = Frame::emit(own(0), CONTROLLER, &next(4), &directive(0, 1_000_000));
    let tagged = [&whole.as_bytes()[..12], &[0x81, 0, 0, 5], &whole.as_bytes()[12..]].concat();
    assert!(world.ends[0].queues_mut().handle_message(now, &tagged, own(0)));
    assert!(world.ends[0].queues_mut().handle_message(now, &whole.as_bytes()[..40], own(0)));
    let (gate, c) = world.counts(0);
    assert_eq!((gate.elsewhere, gate.malformed), (1, 2));
    assert_eq!((c.strangers, c.forged, c.stale, c.backwards, c.misdirected), (1, 3, 1, 1, 1));
    let before = world.sent[0].len();
    world.run(Duration::from_ms(2));
    assert_eq!(world.sent[0].len(), before, "no forged directive opened the gate");
}

/// A controller that lies about lengths, repeats itself, and then only says that it works.
#[test]
fn a_controller_that_lies_harms_for_a_bounded_time() {
    let mut world = World::new(0);
    world.run(Duration::from_ms(1));
    let mut head = spied(&mut world);
    world.works = false;
    world.send((0, 0), (2, 0), 0..20);
    let mut tell = |world: &mut World, message: Message<'_>, length: u64| {
        head = Head { sequence: head.sequence.wrapping_add(1), clock_ns: head.clock_ns + length, ..head };
        let frame = Frame::emit(own(0), CONTROLLER, &head, &message);
        let now = world.now;
        world.ends[0].queues_mut().handle_message(now, frame.as_bytes(), own(0));
    };
    // A slice of 4 s is cut to 160 ms, the longest of all; one for a flow that does not exist is given back.
    tell(&mut world, directive(0, u32::MAX), 0);
    tell(&mut world, Message::Directive { destination: 1, instead_of: NOWHERE, rate_kbps: 0, length_ns: 1 << 20 }, 1);
    world.run(Duration::from_us(300));
    let (_, c) = world.counts(0);
    assert_eq!((world.sent[0].len(), c.too_long, c.unknown), (20, 1, 1));
    // It holds the flow for ever and says that it works: after 5 s the flow passes for a lease.
    world.send((0, 0), (2, 0), 20..36);
    tell(&mut world, directive(0, 0), 1_000_000);
    let mut held = 0;
    while world.sent[0].len() < 36 {
        world.run(Duration::from_ms(5));
        tell(&mut world, Message::Alive { is_controller: true }, 5_000_000);
        held += 5;
        assert!(held < STARVED.as_us() / 1_000 + 100, "held for {held} ms");
    }
    assert!(held >= 4_000 && world.counts(0).1.starved == 1, "held for {held} ms");
}
