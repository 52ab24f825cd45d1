//! XCo (Rajanna et al.): the local coordinator of a server, and the central controller.
//!
//! The coordinator is a gate stage: it holds the frames of each pair of VMs above the vSwitch, so that the frames of one pair
//! do not wait behind those of another, and stops the sockets of a pair that has many. The source has it below its bridge,
//! where every pair has a queue of its own, too.
//!
//! The controller is a gate stage of one server. It consumes messages that arrive and makes the directives. All messages are
//! frames that go through the network.
//!
//! Controllers of racks and rows run beside the coordinator of one of their servers. Messages between the two stay there.

use super::{Context, Lane, Report, Stage, StageConfig};
use crate::packet::xco::REPORT_ENTRIES;
use crate::packet::{Address, Kind, Packet};
use crate::pool::Handle;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use sluicenet_proto::frame::{Frame, HostId, Priority};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, ControllerCounters};
use sluicenet_proto::xco::coordinator::{Body, Coordinator, CoordinatorConfig, CoordinatorCounters, LATE, Permit};
use sluicenet_proto::xco::hierarchy::Coordinators;
use sluicenet_proto::xco::slices::SliceCounters;
use sluicenet_proto::xco::topology::Topology;

/// Frames of a pair of VMs that may be between their socket and the network; at this number the pair's sockets stop. A slice
/// of 1 ms at 1 Gb/s has 81 full frames, and sockets that go on fill the queue again in some microseconds.
const PAIR_FRAMES: u32 = 64;

/// Settings of the coordinators.
#[derive(Clone, Debug)]
pub struct XcoGateConfig {
    /// For each level, the lowest first, the hosts that meet there or below, with their controller and its standby.
    pub levels: Vec<Vec<(Range<HostId>, Vec<HostId>)>>,
    /// Controllers that run beside the coordinator of a host.
    pub beside: BTreeMap<HostId, XcoControllerConfig>,
    /// For each host the rate of its link and that of a small flow, in kb/s.
    pub rates_kbps: Arc<Vec<(u32, u32)>>,
    /// Bytes of a frame on the wire beyond those that the stage sees.
    pub overhead: u32,
    /// See [`CoordinatorConfig::lease`].
    pub lease: Duration,
    /// See [`CoordinatorConfig::hysteresis`].
    pub hysteresis: Option<Duration>,
    /// The priority of messages.
    pub priority: Priority,
}

impl StageConfig for XcoGateConfig {
    fn stage(&self, host: HostId, vms: usize, seed: u64) -> Box<dyn Stage> {
        let (rate_kbps, small_kbps) = self.rates_kbps[host as usize];
        let coordinator = |level: usize, controllers: &[HostId]| CoordinatorConfig {
            node: host,
            rate_kbps,
            controllers: controllers.iter().map(|&host| Address::new(host, 0).mac()).collect(),
            lease: self.lease,
            hysteresis: self.hysteresis,
            small_kbps,
            entries: REPORT_ENTRIES,
            // A simulated server forgets nobody.
            flows: usize::MAX,
            late: LATE,
            nonce: hash_words(&[seed, 0x7863 + ((level as u64) << 16), host.into()]) as u32,
        };
        let levels = self.levels.iter().enumerate().filter_map(|(level, groups)| {
            let at = groups.partition_point(|(hosts, _)| hosts.end <= host);
            let (hosts, controllers) = groups.get(at)?;
            let coordinator = Coordinator::new(Instant::ZERO, coordinator(level, controllers));
            hosts.contains(&host).then(|| (hosts.clone(), coordinator))
        });
        Box::new(XcoGate {
            coordinators: Coordinators::new(levels.collect()),
            controller: self.beside.get(&host).map(|config| Box::new(config.controller())),
            host,
            priority: self.priority,
            overhead: self.overhead,
            lanes: (0..vms).map(|_| VmPairs::default()).collect(),
            // It joins as soon as the run begins.
            ready: 1,
            armed_at: Instant::MAX,
            waiting: BTreeMap::new(),
            queued: 0,
            made: 0,
            consumed: 0,
        })
    }
}

/// Frames of one VM to another one.
#[derive(Debug)]
struct Pair {
    to: Address,
    frames: VecDeque<Handle>,
    /// Frames that left a socket and are not sent.
    outgoing: u32,
    /// Sockets that wait because there are so many.
    parked: Vec<u32>,
}

/// The pairs of one VM.
#[derive(Debug, Default)]
struct VmPairs {
    pairs: Vec<Pair>,
    by_destination: BTreeMap<Address, usize>,
    /// Pairs whose first frame may be permitted, in turn.
    active: VecDeque<usize>,
    /// Pairs that wait for a directive, or for a time.
    held: Vec<usize>,
}

impl VmPairs {
    fn pair(&mut self, to: Address) -> &mut Pair {
        let pairs = &mut self.pairs;
        let at = *self.by_destination.entry(to).or_insert_with(|| {
            pairs.push(Pair { to, frames: VecDeque::new(), outgoing: 0, parked: Vec::new() });
            pairs.len() - 1
        });
        &mut pairs[at]
    }
}

/// The local coordinator of a server.
#[derive(Debug)]
pub struct XcoGate {
    /// Of each level at which there are controllers.
    coordinators: Coordinators,
    /// The controller of a rack or row that runs here.
    controller: Option<Box<Controller>>,
    host: HostId,
    priority: Priority,
    overhead: u32,
    lanes: Vec<VmPairs>,
    /// VMs that may have a frame to send, one bit each. Messages go with any of them.
    ready: u64,
    /// The timer that expires next.
    armed_at: Instant,
    /// Frames that wait here, by destination server.
    waiting: BTreeMap<HostId, u32>,
    queued: u64,
    made: u64,
    consumed: u64,
}

impl XcoGate {
    /// What the coordinator allows may have changed.
    fn wake(&mut self) {
        for (vm, lane) in self.lanes.iter_mut().enumerate() {
            lane.active.extend(lane.held.drain(..));
            if !lane.active.is_empty() {
                self.ready |= 1 << vm;
            }
        }
        self.ready |= 1;
    }

    fn arm(&mut self, at: Instant, cx: &mut Context<'_>) {
        if at < self.armed_at {
            self.armed_at = at;
            cx.set_timer(at, 0);
        }
    }

    fn poll_message(&mut self, now: Instant, cx: &mut Context<'_>) -> Option<Handle> {
        let own = Address::new(self.host, 0);
        loop {
            let packet = match self.coordinators.poll_transmit(now) {
                Some(out) => {
                    Packet::xco(own, Address::of_mac(out.to), &out.head, &out.body, self.priority, cx.framing())
                }
                None => {
                    let out = self.controller.as_mut()?.poll_transmit(now)?;
                    let (to, body) = (Address::of_mac(out.to), Body::Message(out.message));
                    Packet::xco(own, to, &out.head, &body, self.priority, cx.framing())
                }
            };
            if packet.dst() == own {
                self.handle(now, &packet);
                continue;
            }
            self.made += 1;
            return Some(cx.insert(&packet));
        }
    }

    /// A message for the coordinators, or for the controller that runs here.
    fn handle(&mut self, now: Instant, packet: &Packet) {
        let mut bytes = Default::default();
        let (head, message) = packet.xco_message(&mut bytes);
        match &mut self.controller {
            Some(controller) if message.is_for_controller() => {
                controller.handle(now, packet.src().mac(), &head, &message);
            }
            _ => self.coordinators.handle(now, packet.src().mac(), &head, &message),
        }
        self.wake();
    }

    fn poll_timeout(&self) -> Instant {
        let controller = self.controller.as_ref().map_or(Instant::MAX, |controller| controller.poll_timeout());
        self.coordinators.poll_timeout().min(controller)
    }

    /// The next frame of a VM that the coordinator permits.
    fn poll_frame(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        let vm = &mut self.lanes[lane];
        let mut next = Instant::MAX;
        let mut sent = None;
        while let Some(at) = vm.active.pop_front() {
            let pair = &mut vm.pairs[at];
            let Some(&frame) = pair.frames.front() else { continue };
            let to = pair.to.host();
            let permit = if to == self.host {
                Permit::Now
            } else {
                let bytes = cx.frame(frame).len() + self.overhead;
                self.coordinators.permit(now, to, bytes.into())
            };
            match permit {
                Permit::Now => {
                    pair.frames.pop_front();
                    if !pair.frames.is_empty() {
                        vm.active.push_back(at);
                    }
                    sent = Some((at, frame, to));
                    break;
                }
                Permit::At(time) => {
                    next = next.min(time);
                    vm.held.push(at);
                }
                Permit::Wait => vm.held.push(at),
            }
        }
        if let Some((at, frame, to)) = sent {
            self.on_sent(now, lane, at, to, cx);
            return Some(frame);
        }
        self.arm(next, cx);
        None
    }

    fn on_sent(&mut self, now: Instant, lane: Lane, at: usize, to: HostId, cx: &mut Context<'_>) {
        let pair = &mut self.lanes[lane].pairs[at];
        pair.outgoing -= 1;
        if pair.outgoing < PAIR_FRAMES / 2 {
            cx.wake_sockets(lane, core::mem::take(&mut pair.parked));
        }
        self.queued -= 1;
        if let Some(waiting) = self.waiting.get_mut(&to) {
            *waiting -= 1;
            if *waiting == 0 && to != self.host {
                self.coordinators.handle_empty(now, to);
            }
        }
    }
}

impl Stage for XcoGate {
    fn has_room(&self, _lane: Lane, _below: bool) -> bool {
        true
    }
    fn blocks(&mut self, lane: Lane, to: Address, socket: u32) -> bool {
        let pair = self.lanes[lane].pair(to);
        let blocks = pair.outgoing >= PAIR_FRAMES;
        if blocks {
            pair.parked.push(socket);
        }
        blocks
    }
    fn on_launch(&mut self, lane: Lane, to: Address) {
        self.lanes[lane].pair(to).outgoing += 1;
    }

    fn send(&mut self, _now: Instant, lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let to = cx.frame(at).dst();
        let vm = &mut self.lanes[lane];
        vm.pair(to).frames.push_back(at);
        let pair = vm.by_destination[&to];
        if vm.pairs[pair].frames.len() == 1 {
            vm.active.push_back(pair);
        }
        *self.waiting.entry(to.host()).or_default() += 1;
        self.queued += 1;
        if !vm.active.is_empty() {
            self.ready |= 1 << lane;
        }
        None
    }
    fn ready(&self) -> u64 {
        self.ready
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        // A frame that is not permitted may be news for the controller.
        let sent = self.poll_message(now, cx).or_else(|| self.poll_frame(now, lane, cx));
        let sent = sent.or_else(|| self.poll_message(now, cx));
        if sent.is_none() {
            self.ready &= !(1 << lane);
            self.arm(self.poll_timeout().max(now), cx);
        }
        sent
    }

    fn receive(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = *cx.frame(at);
        if packet.kind() != Kind::Xco {
            return Some(at);
        }
        cx.release(at);
        self.consumed += 1;
        self.handle(now, &packet);
        None
    }

    fn handle_timer(&mut self, now: Instant, at: Instant, _slot: u8, _token: u64, cx: &mut Context<'_>) {
        if self.armed_at != at {
            return;
        }
        self.armed_at = Instant::MAX;
        self.coordinators.handle_timeout(now);
        if let Some(controller) = &mut self.controller {
            controller.handle_timeout(now);
        }
        self.wake();
        self.arm(self.poll_timeout().max(now), cx);
    }

    fn report(&self, report: &mut Report) {
        report.made += self.made;
        report.consumed += self.consumed;
        report.queued += self.queued;
        let coordinators = self.coordinators.levels().map(|c| XcoReport::Coordinator(Box::new(*c.counters())));
        report.xco.extend(coordinators.chain(self.controller.as_deref().map(XcoReport::of_controller)));
    }
}

/// Counts of a coordinator or controller of XCo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XcoReport {
    /// Of a local coordinator.
    Coordinator(Box<CoordinatorCounters>),
    /// Of a controller, with those of timeslices.
    Controller(Box<(ControllerCounters, Option<SliceCounters>)>),
}

impl XcoReport {
    fn of_controller(controller: &Controller) -> XcoReport {
        XcoReport::Controller(Box::new((*controller.counters(), controller.slice_counters().copied())))
    }
}

/// Settings of a controller.
#[derive(Clone, Debug)]
pub struct XcoControllerConfig {
    /// The network.
    pub topology: Arc<Topology>,
    /// Its settings.
    pub controller: ControllerConfig,
    /// Whether it is the standby.
    pub is_standby: bool,
    /// The priority of messages.
    pub priority: Priority,
    /// When it dies, if it does.
    pub dies: Option<Instant>,
}

impl XcoControllerConfig {
    fn controller(&self) -> Controller {
        Controller::new(Instant::ZERO, (*self.topology).clone(), self.controller.clone(), 1, self.is_standby)
    }
}

impl StageConfig for XcoControllerConfig {
    fn stage(&self, host: HostId, _vms: usize, _seed: u64) -> Box<dyn Stage> {
        Box::new(XcoController {
            controller: self.controller(),
            host,
            priority: self.priority,
            dies: self.dies.unwrap_or(Instant::MAX),
            ready: 1,
            armed_at: Instant::MAX,
            made: 0,
            consumed: 0,
        })
    }
}

/// The central controller.
#[derive(Debug)]
pub struct XcoController {
    controller: Controller,
    host: HostId,
    priority: Priority,
    dies: Instant,
    ready: u64,
    armed_at: Instant,
    made: u64,
    consumed: u64,
}

impl Stage for XcoController {
    fn ready(&self) -> u64 {
        self.ready
    }
    fn poll_transmit(&mut self, now: Instant, lane: Lane, cx: &mut Context<'_>) -> Option<Handle> {
        let out = (lane == 0 && now < self.dies).then(|| self.controller.poll_transmit(now)).flatten();
        let Some(out) = out else {
            self.ready &= !(1 << lane);
            let at = self.controller.poll_timeout().max(now);
            if at < self.armed_at && now < self.dies {
                self.armed_at = at;
                cx.set_timer(at, 0);
            }
            return None;
        };
        let (own, to) = (Address::new(self.host, 0), Address::of_mac(out.to));
        self.made += 1;
        Some(cx.insert(&Packet::xco(own, to, &out.head, &Body::Message(out.message), self.priority, cx.framing())))
    }

    fn receive(&mut self, now: Instant, _lane: Lane, at: Handle, cx: &mut Context<'_>) -> Option<Handle> {
        let packet = *cx.frame(at);
        if packet.kind() != Kind::Xco {
            return Some(at);
        }
        cx.release(at);
        self.consumed += 1;
        if now < self.dies {
            let mut bytes = Default::default();
            let (head, message) = packet.xco_message(&mut bytes);
            self.controller.handle(now, packet.src().mac(), &head, &message);
            self.ready |= 1;
        }
        None
    }

    fn handle_timer(&mut self, now: Instant, at: Instant, _slot: u8, _token: u64, _cx: &mut Context<'_>) {
        if self.armed_at == at && now < self.dies {
            self.armed_at = Instant::MAX;
            self.controller.handle_timeout(now);
            self.ready |= 1;
        }
    }

    fn report(&self, report: &mut Report) {
        report.made += self.made;
        report.consumed += self.consumed;
        report.xco.push(XcoReport::of_controller(&self.controller));
    }
}
