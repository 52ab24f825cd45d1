//! Runs a world: windows, threads, epochs.

use crate::access::Accesses;
use crate::colours::Colours;
use crate::event::{MAX_FRAMES, MAX_PHASE, MAX_PORTS};
use crate::huge_pages;
use crate::sampler::{QueueSample, Sampler};
use crate::shard::{MAX_LANES, Place, Shard};
use crate::step::{Captured, Timing};
use crate::threads::{Crew, Meeting};
use crate::wire::{WAKES, Wire, WireSpec};
use crate::world::{Node, NodeRef, World, WorldError};
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::server::App;
use sluicenet_node::switch::PauseEvent;
use sluicenet_proto::cee::headroom::PFC_FRAME_BYTES;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The observer's decision after an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Continue the run.
    Continue,
    /// Stop the run here.
    Stop,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// No event is left.
    Idle,
    /// The end of simulated time was reached.
    Time,
    /// The observer stopped the run.
    Stopped,
    /// The interrupt flag was raised.
    Interrupted,
    /// One thread has more frames than its limit ([`Engine::set_frames_max`]); the run cannot continue.
    Full,
}

/// The records of a stretch of simulated time; independent of the number of threads.
#[derive(Debug, Default)]
pub struct Epoch {
    /// End of the stretch: all earlier events are processed.
    pub now: Instant,
    /// Pauses sent, by time, box and port.
    pub pauses: Vec<(NodeId, PauseEvent)>,
    /// Frames captured, by time, box and port.
    pub captured: Vec<Captured>,
    /// Queues sampled, by time, box and port.
    pub samples: Vec<QueueSample>,
    /// Frames sent on links since the start.
    pub hops: u64,
}

/// Duration of an epoch, unless no event happens; the observer's decisions take effect at its end.
pub const EPOCH: Duration = Duration::from_us(500);

/// A world and its state.
pub struct Engine<A> {
    shards: Vec<Shard<A>>,
    timing: Timing,
    /// Shard and index of each box.
    location: Arc<Vec<(u16, u32)>>,
    /// The time of the next event; [`u64::MAX`] if there is none.
    next: u64,
    /// The time up to which all boxes are simulated.
    reached: u64,
    started: bool,
    epoch: Duration,
    /// Times at which epochs end besides.
    ends: Vec<u64>,
    sampler: Option<Sampler>,
}

impl<A: App> Engine<A> {
    /// Prepares a world to run on `threads` threads. `part` names the part of each box, from 0 on: a part belongs to one
    /// thread, so boxes with much mutual traffic share one. One thread needs no parts.
    pub fn new(world: World<A>, part: &[u32], threads: usize) -> Result<Engine<A>, WorldError> {
        let Survey { ports, lookahead, reach, colours, accesses } = survey(&world)?;
        let window = lookahead.min(MAX_PHASE);
        let (count, colours) = match colours {
            Some(colours) if 2 * window <= MAX_PHASE => (2, colours),
            _ => (1, vec![0; world.nodes.len()]),
        };
        // Lanes should cover the delays of ordinary frames and of a server's stages; rarer events wait in the event heap.
        let wanted = reach.max(world.stage_latency.0) / window + 2 + count;
        let lanes = wanted.next_power_of_two().clamp(4, MAX_LANES as u64) as usize;
        let overhead = world.framing.overhead() as u32;
        let timing = Timing::new(window, (count, accesses.apart()), lanes, overhead, world.seed);

        // With more threads than parts, threads would only wait for each other.
        let parts = part.iter().max().map_or(1, |&p| p as usize + 1);
        let shards = threads.clamp(1, parts);
        let owner = if shards == 1 { vec![0; world.nodes.len()] } else { partition(part, shards) };
        let location = Arc::new(locations(&owner, shards));
        let accesses = Arc::new(accesses);
        let World { nodes, hosts, make, links, framing, .. } = world;
        let mut parts: Vec<Part<A>> = (0..shards as u16).map(|me| Part::of(me, &owner, &ports)).collect();
        for (((name, node), &ports), &colour) in (0..).zip(nodes).zip(&ports).zip(&colours) {
            parts[owner[name as usize] as usize].add(node, (name, colour), ports);
        }
        let mut wrong = None;
        links(&mut |l| {
            let has = |(node, port): (NodeId, PortId)| {
                let at = location.get(node as usize);
                at.is_some_and(|&(shard, n)| parts[shard as usize].has(n, port))
            };
            if let Some(at) = [l.from, l.to].into_iter().find(|&at| !has(at)) {
                wrong = wrong.or(Some(at));
                return;
            }
            let [(of, n), (shard, peer)] = [l.from.0, l.to.0].map(|node| location[node as usize]);
            let receiver = &mut parts[shard as usize].places[peer as usize].node;
            // A wire wakes only boxes that are always of its own thread.
            let stays = shards == 1 || part[l.from.0 as usize] == part[l.to.0 as usize];
            let wakes = receiver.is_idle() && stays;
            if !stays && receiver.is_idle() {
                *receiver = make(l.to.0);
            }
            let spec = WireSpec {
                ps_per_byte_q16: l.rate.ps_per_byte_q16(),
                latency: l.latency.0,
                pause_latency: l.pause_latency.0,
                first_bit: l.first_bit,
                bit_error_rate: l.bit_error_rate,
                peer,
                peer_port: l.to.1,
                shard,
                gap: framing.gap as u8,
                wakes,
                remote: of != shard,
            };
            if !parts[of as usize].connect(n, l.from.1, &spec) {
                wrong = wrong.or(Some(l.from));
            }
        });
        if let Some(at) = wrong.or_else(|| parts.iter().find_map(Part::unconnected)) {
            return Err(WorldError::Port { at });
        }
        if shards > 1 {
            parts.iter_mut().for_each(Part::forget_made);
        }
        let shards: Vec<Shard<A>> = (0..)
            .zip(parts)
            .map(|(me, Part { places, wires, error_rate })| {
                let parts = (places, wires, error_rate);
                Shard::new(timing, (me, shards), parts, (location.clone(), hosts), accesses.clone(), make.clone())
            })
            .collect();
        Ok(Engine {
            shards,
            timing,
            location,
            next: 0,
            reached: 0,
            started: false,
            epoch: EPOCH,
            ends: Vec::new(),
            sampler: None,
        })
    }

    /// Sets the interval between calls of the observer; its decisions take effect at the end of an interval.
    pub fn set_epoch(&mut self, epoch: Duration) {
        self.epoch = epoch;
    }

    /// Ends an epoch at this time, too.
    pub fn end_epoch(&mut self, at: Instant) {
        self.ends.push(at.0);
    }

    /// Sets the most frames that the boxes and wires of each thread may hold at once, up to 2^23.
    pub fn set_frames_max(&mut self, frames: u32) {
        let frames_max = frames.min(MAX_FRAMES as u32);
        self.shards.iter_mut().for_each(|shard| shard.timing.frames_max = frames_max);
        self.timing.frames_max = frames_max;
    }

    /// The limit set by [`Engine::set_frames_max`].
    pub fn frames_max(&self) -> u32 {
        self.timing.frames_max
    }

    /// Samples the queues of `ports` every `interval`.
    pub fn sample(&mut self, interval: Duration, ports: Vec<(NodeId, PortId)>) {
        self.sampler = Some(Sampler::new(interval, ports));
    }

    /// Captures every frame that leaves a port.
    pub fn capture(&mut self, node: NodeId, port: PortId) {
        let (shard, n) = self.location[node as usize];
        self.shards[shard as usize].capture(n as usize, port);
    }

    /// A box.
    pub fn node(&self, node: NodeId) -> &Node<A> {
        let (shard, n) = self.location[node as usize];
        &self.shards[shard as usize].places[n as usize].node
    }
    /// A box, to collect its records.
    pub fn node_mut(&mut self, node: NodeId) -> &mut Node<A> {
        let (shard, n) = self.location[node as usize];
        &mut self.shards[shard as usize].places[n as usize].node
    }
    /// A box, made if it was idle.
    pub fn made(&mut self, node: NodeId) -> &mut Node<A> {
        let (shard, n) = self.location[node as usize];
        self.shards[shard as usize].made(n as usize)
    }
    /// Number of boxes.
    pub fn nodes(&self) -> usize {
        self.location.len()
    }
    /// Frames and bytes sent by a port, pause frames included.
    pub fn sent(&self, node: NodeId, port: PortId) -> (u64, u64) {
        let (shard, n) = self.location[node as usize];
        let w = &self.shards[shard as usize].wires_of(n as usize)[port as usize];
        (w.frames, w.bytes)
    }
    /// The box and port at the other end of a port's link.
    pub fn peer(&self, node: NodeId, port: PortId) -> (NodeId, PortId) {
        let (shard, n) = self.location[node as usize];
        let (shard, n, port) = self.shards[shard as usize].wires_of(n as usize)[port as usize].peer();
        (self.shards[shard as usize].places[n as usize].name, port)
    }
    /// The switch or server, and its port, that frames from a port reach: bumps in between only pass them on.
    pub fn peer_beyond_bumps(&self, node: NodeId, port: PortId) -> (NodeId, PortId) {
        let (mut peer, mut at) = self.peer(node, port);
        while self.node(peer).as_bump().is_some() {
            (peer, at) = self.peer(peer, at ^ 1);
        }
        (peer, at)
    }
    /// Number of ports of a box.
    pub fn ports(&self, node: NodeId) -> usize {
        let (shard, n) = self.location[node as usize];
        self.shards[shard as usize].wires_of(n as usize).len()
    }
    /// Frames sent on links since the start.
    pub fn hops(&self) -> u64 {
        self.shards.iter().map(|s| s.hops()).sum()
    }
    /// The length of a window: the shortest time in which one box can affect another.
    pub fn window(&self) -> Duration {
        Duration(self.timing.window)
    }
    /// Frames in boxes and on wires, pauses and metadata included.
    pub fn frames(&self) -> u64 {
        self.shards.iter().map(|s| s.pool.in_use() as u64).sum()
    }
    /// Frames in flight, metadata included: the box and port they will reach, and the frame.
    pub fn in_flight(&self) -> impl Iterator<Item = (NodeId, PortId, &sluicenet_node::packet::Packet)> {
        self.shards.iter().flat_map(|s| s.in_flight().map(|(n, port, p)| (s.places[n as usize].name, port, p)))
    }

    /// One direction of a link between two switches fails, or recovers, at the end of the last epoch. A failure drops the
    /// frames in the link's queue and on the wire, and counts them.
    pub fn set_link(&mut self, (node, port): (NodeId, PortId), up: bool) {
        let (shard, n) = self.location[node as usize];
        let shard = &mut self.shards[shard as usize];
        shard.set_link(Instant(self.reached), n as usize, port, up);
        if self.started {
            self.next = self.next.min(shard.first_far());
        }
        if !up {
            let (shard, n, port) = shard.wires_of(n as usize)[port as usize].peer();
            self.shards[shard as usize].cut(n as usize, port);
        }
    }

    /// The sender of a direction has another rate from the end of the last epoch on: a lower one than the rate with which
    /// the world began, or that one again. A frame on the wire is not affected.
    pub fn set_rate(&mut self, (node, port): (NodeId, PortId), rate: Rate) {
        let (shard, n) = self.location[node as usize];
        self.shards[shard as usize].set_rate(n as usize, port, rate.ps_per_byte_q16());
    }

    /// Runs until no event is left, `until` is reached, or `observe` or `interrupt` stops the run.
    ///
    /// `observe` is called after each epoch and may inspect every box.
    pub fn run(
        &mut self,
        until: Instant,
        interrupt: &AtomicBool,
        observe: &mut dyn FnMut(&mut Engine<A>, Epoch) -> Control,
    ) -> RunEnd {
        if !self.started {
            self.started = true;
            self.shards.iter_mut().for_each(Shard::start);
            self.next = self.shards.iter().map(|s| s.first_far()).min().unwrap_or(u64::MAX);
        }
        let meeting = Meeting::new(self.shards.len());
        std::thread::scope(|scope| {
            let mut crew = Crew::new(scope, &meeting);
            self.run_epochs(until, interrupt, observe, &mut crew)
        })
    }

    /// Runs epoch by epoch, as [`Engine::run`].
    fn run_epochs(
        &mut self,
        until: Instant,
        interrupt: &AtomicBool,
        observe: &mut dyn FnMut(&mut Engine<A>, Epoch) -> Control,
        crew: &mut Crew<'_, A>,
    ) -> RunEnd {
        loop {
            if self.next == u64::MAX {
                return RunEnd::Idle;
            }
            let now = self.now();
            if now >= until.0 {
                return RunEnd::Time;
            }
            let end = self.epoch_end(now).min(until.0);
            let mut samples = Vec::new();
            while self.now() < end && !self.is_full() {
                let due = self.sample_queues(self.now(), &mut samples).unwrap_or(end);
                self.run_until(due.min(end), crew);
            }
            // Those that are due while nothing happens, before the observer changes anything.
            self.sample_queues(end.min(until.0 - 1), &mut samples);
            self.reached = end;
            if self.is_full() {
                return RunEnd::Full;
            }
            let mut epoch = Epoch { now: Instant(end), samples, ..Epoch::default() };
            for s in &mut self.shards {
                epoch.pauses.append(&mut s.pauses);
                epoch.captured.append(&mut s.captured);
                epoch.hops += s.hops();
            }
            epoch.pauses.sort_by_key(|(n, p)| (p.at, *n, p.port, p.priority));
            epoch.captured.sort_by_key(|c| (c.at, c.node, c.port));
            if observe(self, epoch) == Control::Stop {
                return RunEnd::Stopped;
            }
            if interrupt.load(Ordering::Relaxed) {
                return RunEnd::Interrupted;
            }
        }
    }

    /// Whether a thread has no number left for a frame.
    fn is_full(&self) -> bool {
        self.shards.iter().any(|shard| shard.is_full)
    }

    /// A time before which no event is left.
    fn now(&self) -> u64 {
        self.reached.max(self.next)
    }

    /// The end of the epoch in which the event at `now` is, or of the epochs before it in which nothing happens: the observer may
    /// change the world before the event.
    fn epoch_end(&self, now: u64) -> u64 {
        let epoch = self.epoch.0.max(1);
        let begin = now / epoch * epoch;
        let end = if begin > self.reached { begin } else { begin.saturating_add(epoch) };
        self.ends.iter().copied().filter(|&at| at > self.reached).fold(end, u64::min)
    }

    /// Samples the queues for every time up to `now` that is due. Returns when the next one is due, if queues are sampled.
    fn sample_queues(&mut self, now: u64, samples: &mut Vec<QueueSample>) -> Option<u64> {
        let mut sampler = self.sampler.take()?;
        let node = |node: NodeId| self.node(node).kind();
        let due = sampler.sample(Instant(now), node, samples);
        self.sampler = Some(sampler);
        Some(due.0)
    }

    /// Runs all boxes up to time `end`; afterwards `self.next` is the time of the next event.
    fn run_until(&mut self, end: u64, others: &mut Crew<'_, A>) {
        match &mut self.shards[..] {
            [shard] => run_alone(shard, self.next, end),
            _ => others.run(&mut self.shards, self.next, end),
        }
        let from = end / self.timing.window;
        self.next = self.shards.iter().map(|shard| shard.next_event(from)).min().unwrap_or(u64::MAX);
        self.reached = end;
    }
}

/// Runs a world's only shard up to time `end`; its first event is at time `next`.
fn run_alone<A: App>(shard: &mut Shard<A>, next: u64, end: u64) {
    let mut phase = next / shard.timing.window;
    while shard.timing.begin(phase) < end && !shard.is_full {
        shard.sweep(phase, end);
        phase = shard.next_phase(phase);
    }
}

/// The boxes of a shard while it is built.
struct Part<A> {
    places: Vec<Place<A>>,
    wires: Vec<Wire>,
    /// The error rate of each wire; empty as long as no wire has one.
    error_rate: Vec<f64>,
}

impl<A> Part<A> {
    /// Room for the boxes of a shard, and for their wires.
    fn of(me: u16, owner: &[u16], ports: &[u16]) -> Part<A> {
        let mine = || owner.iter().zip(ports).filter(|(owner, _)| **owner == me).map(|(_, ports)| usize::from(*ports));
        let places: Vec<Place<A>> = Vec::with_capacity(mine().count());
        let wires: Vec<Wire> = Vec::with_capacity(mine().sum());
        huge_pages::ask(places.as_ptr().cast(), places.capacity() * size_of::<Place<A>>());
        huge_pages::ask(wires.as_ptr().cast(), wires.capacity() * size_of::<Wire>());
        Part { places, wires, error_rate: Vec::new() }
    }

    fn add(&mut self, node: Node<A>, (name, colour): (u32, u8), ports: u16) {
        let first = self.wires.len() as u32;
        self.wires.resize(self.wires.len() + usize::from(ports), Wire::NONE);
        self.places.push(Place::new(node, name, colour, first..self.wires.len() as u32));
    }

    /// Whether box `n` has this port.
    fn has(&self, n: u32, port: PortId) -> bool {
        self.places[n as usize].span().contains(&self.places[n as usize].wire(port))
    }

    /// Lays the link from a port of box `n`; returns whether it is the first one there.
    fn connect(&mut self, n: u32, port: PortId, spec: &WireSpec) -> bool {
        let at = self.places[n as usize].wire(port);
        if spec.bit_error_rate > 0.0 {
            self.error_rate.resize(self.wires.len(), 0.0);
            self.error_rate[at] = spec.bit_error_rate;
        }
        std::mem::replace(&mut self.wires[at], Wire::new(spec)).is_none()
    }

    /// Wires do not wake boxes that were made after all, for a link from another part of the world.
    fn forget_made(&mut self) {
        for wire in self.wires.iter_mut().filter(|wire| wire.flags & WAKES != 0) {
            if !self.places[wire.peer as usize].node.is_idle() {
                wire.flags &= !WAKES;
            }
        }
    }

    /// The first port without a link.
    fn unconnected(&self) -> Option<(NodeId, PortId)> {
        let at = self.wires.iter().position(Wire::is_none)?;
        let place = self.places.iter().find(|place| place.span().contains(&at))?;
        Some((place.name, (at - place.span().start) as PortId))
    }
}

/// Shard of each box, and its index there.
fn locations(owner: &[u16], shards: usize) -> Vec<(u16, u32)> {
    let mut counts = vec![0u32; shards];
    let next = |&shard: &u16| {
        counts[shard as usize] += 1;
        (shard, counts[shard as usize] - 1)
    };
    owner.iter().map(next).collect()
}

/// What the engine has to know of a world before it places the boxes.
struct Survey {
    /// Ports of each box.
    ports: Vec<u16>,
    /// The shortest time in which one box can affect another: the longest possible window, in picoseconds.
    lookahead: u64,
    /// The longest time from the first bit of an ordinary frame to its arrival, in picoseconds.
    reach: u64,
    /// The colour of each box, if there are two.
    colours: Option<Vec<u8>>,
    /// The servers' own links.
    accesses: Accesses,
}

/// Surveys a world; checks that each link has a delay.
fn survey<A: App>(world: &World<A>) -> Result<Survey, WorldError> {
    let (mut lookahead, mut reach, mut wrong) = (MAX_PHASE, None, None);
    let mut ports = ports(world)?;
    let mut colours = Colours::new(world.nodes.len());
    let mut accesses = Accesses::new(world.hosts);
    (world.links)(&mut |l| {
        let (node, port) = l.from;
        // The ports of an idle box are known by its links.
        if world.nodes.get(node as usize).is_some_and(Node::is_idle) {
            ports[node as usize] = ports[node as usize].max(port + 1);
        }
        if node < l.to.0 && (l.to.0 as usize) < world.nodes.len() {
            colours.join(node, l.to.0);
        }
        let smallest = if l.first_bit { 0 } else { l.rate.time_for(world.framing.min_frame as u64).0 };
        let pause = l.pause_latency.0 + l.rate.time_for(PFC_FRAME_BYTES as u64).0;
        let shortest = (l.latency.0 + smallest).min(pause);
        if shortest < 1_000 && wrong.is_none() {
            wrong = Some(WorldError::NoDelay { from: l.from });
        }
        lookahead = lookahead.min(shortest);
        accesses.add(node, l.to.0, shortest);
        reach = reach.max(Some(l.latency.0 + l.rate.time_for(2_000).0));
    });
    if let Some(node) = ports.iter().position(|&ports| u32::from(ports) >= MAX_PORTS) {
        return Err(WorldError::TooManyPorts { node: node as u32 });
    }
    match wrong {
        Some(wrong) => Err(wrong),
        None => {
            let reach = reach.unwrap_or(lookahead);
            let (colours, accesses) = (colours.of_all(world.hosts), accesses.compact());
            Ok(Survey { ports, lookahead, reach, colours, accesses })
        }
    }
}

/// Ports of each box that is not idle.
fn ports<A: App>(world: &World<A>) -> Result<Vec<u16>, WorldError> {
    let of_node = |(n, node): (u32, &Node<A>)| {
        let ports = match node.kind() {
            NodeRef::Switch(s) => s.ports(),
            NodeRef::Server(s) => s.host().adapter().ports(),
            NodeRef::Bump(bump) => bump.ports(),
            NodeRef::Idle => 0,
        };
        u16::try_from(ports).map_err(|_| WorldError::TooManyPorts { node: n })
    };
    (0..).zip(&world.nodes).map(of_node).collect()
}

/// Deals the parts to threads in turn, each part to the thread with the least weight. All parts are equally far from each
/// other. Events of neighbouring parts (hosts that begin one after the other, flows from one half to the other) then fall
/// to different threads. With contiguous halves, threads would be busy by turns.
fn partition(part: &[u32], shards: usize) -> Vec<u16> {
    let parts = part.iter().max().map_or(1, |&p| p as usize + 1);
    let mut weight = vec![0usize; parts];
    for &p in part {
        weight[p as usize] += 1;
    }
    let mut load = vec![0usize; shards];
    let owner: Vec<u16> = weight
        .iter()
        .map(|w| {
            let least = (0..shards).min_by_key(|&s| load[s]).unwrap_or(0);
            load[least] += w;
            least as u16
        })
        .collect();
    part.iter().map(|&p| owner[p as usize]).collect()
}
