//! The bump in the wire: a box in one link or several, with the pipeline of NetBump.
//!
//! Port `2 i` is one end of link `i`, port `2 i + 1` the other; ports behind the last link lead to neighbouring bumps. A frame
//! leaves by the other end of its link as soon as that is idle. Both ends have the same rate, so that frames wait only for
//! the bump's own frames and for a frame that is still being sent. Pauses pass a bump like any cable: it obeys none.
//!
//! The latency of a bump is part of the wires that lead into it.

mod packet;

pub use packet::InBump;

use crate::device::{Device, PortId, PortSet, Wires};
use crate::packet::{FlowKey, Framing, Packet, UPDATE_MAX};
use crate::pool::{Fifo, Handle, Pool};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt::Debug;
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::netbump::{
    self, App, Chain, ChainState, Counts, Map, Notice, Ports, QueueId, Receiver, Reporter, Slot, UpdateCounts, Verdict,
    VirtualQueue, pass,
};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ipv4::Ecn;

/// An application from outside: a program with the interface of `netbump.h`.
pub trait Extension: Debug + Send {
    /// `init`, for one virtual queue.
    fn init(&mut self, queue: QueueId, port: netbump::Port);
    /// `classify`: the virtual queue of a frame, given that of the map.
    fn classify(&mut self, now: Instant, from: PortId, frame: &Packet, mapped: Option<QueueId>) -> Option<QueueId>;
    /// `vAQM` and `process` for a frame, which it may change; frames of its own are added to `emitted`, each with the port
    /// by which it leaves.
    fn process(
        &mut self,
        now: Instant,
        from: PortId,
        frame: &mut Packet,
        queue: (QueueId, &mut VirtualQueue),
        emitted: &mut Vec<(PortId, Packet)>,
    ) -> Verdict;
    /// `estimateQlen`: bytes in a virtual queue.
    fn estimate_qlen(&self, now: Instant, queue: (QueueId, &VirtualQueue)) -> u64;
    /// `forward`: the port by which a frame leaves.
    fn forward(&mut self, now: Instant, from: PortId, frame: &Packet) -> PortId;
    /// Changes and frames of its own that a simulated packet cannot have, and that had no effect.
    fn ignored(&self) -> u64;
}

/// The applications of a bump.
#[derive(Debug)]
pub enum Program {
    /// Those that come with sluicenet.
    Chain(Chain),
    /// A program from outside.
    Extension(Box<dyn Extension>),
}

/// The exchange of updates with a neighbour, at a port of its own.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Reports what was forwarded, if the neighbour wants to know.
    pub reporter: Option<Reporter>,
    /// Merges the neighbour's updates.
    pub receiver: Receiver,
}

/// Settings of a bump.
#[derive(Debug)]
pub struct Config {
    /// For each end of a link, the virtual queues of the destinations of frames that come in there.
    pub maps: Vec<Map>,
    /// The ports of the next switches: a virtual queue each.
    pub ports: Vec<netbump::Port>,
    /// The number of each virtual queue's port in updates.
    pub port_numbers: Vec<u16>,
    /// The applications.
    pub program: Program,
    /// The neighbours, at the ports behind those of the links.
    pub neighbours: Vec<Neighbour>,
    /// Priority of notifications.
    pub notification_priority: Priority,
    /// Framing on the links.
    pub framing: Framing,
}

/// The virtual queues, by the kind of program.
#[derive(Debug)]
enum Table {
    Chain(Chain, Vec<Slot<ChainState<FlowKey>>>),
    Extension(Box<dyn Extension>, Vec<Slot<()>>),
}

/// The frames that wait for a port.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// Pauses overtake all other frames.
    pauses: Fifo,
    frames: Fifo,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.pauses.is_empty() && self.frames.is_empty()
    }
}

/// The frames of a bump, by fate. Pauses count separately: they pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames that came in.
    pub frames_in: u64,
    /// Frames of the bump's own.
    pub emitted: u64,
    /// Frames that went out.
    pub frames_out: u64,
    /// Frames that were for the bump.
    pub consumed: u64,
    /// Frames that wait.
    pub queued: u64,
    /// Pauses that came in.
    pub pauses_in: u64,
    /// Pauses that went out.
    pub pauses_out: u64,
    /// Pauses that wait.
    pub pauses_queued: u64,
    /// Frames for destinations that its map does not list.
    pub unmapped: u64,
}

/// A bump in a wire.
#[derive(Debug)]
pub struct Bump {
    table: Table,
    maps: Vec<Map>,
    numbers: Ports,
    port_numbers: Vec<u16>,
    neighbours: Vec<Neighbour>,
    waiting: Vec<Waiting>,
    notices: Vec<Notice<FlowKey>>,
    emitted: Vec<(PortId, Packet)>,
    drops: Drops,
    ledger: Ledger,
    priority: Priority,
    framing: Framing,
}

impl Bump {
    /// A bump with these settings.
    pub fn new(config: Config) -> Bump {
        let Config { maps, ports, port_numbers, program, neighbours, notification_priority, framing } = config;
        let table = match program {
            Program::Chain(chain) => {
                let slot = |(id, &port): (usize, &netbump::Port)| Slot::new::<InBump<'_>>(&chain, id as QueueId, port);
                let slots = ports.iter().enumerate().map(slot).collect();
                Table::Chain(chain, slots)
            }
            Program::Extension(mut extension) => {
                let slot = |(id, &port): (usize, &netbump::Port)| {
                    extension.init(id as QueueId, port);
                    let queue = VirtualQueue::new(port.rate, port.buffer_bytes);
                    Slot { queue, state: (), counts: Counts::default() }
                };
                let slots = ports.iter().enumerate().map(slot).collect();
                Table::Extension(extension, slots)
            }
        };
        let numbers = Ports::new(port_numbers.iter().copied().zip(0..).collect());
        let waiting = alloc::vec![Waiting::default(); maps.len() + neighbours.len()];
        Bump {
            table,
            maps,
            numbers,
            port_numbers,
            neighbours,
            waiting,
            notices: Vec::new(),
            emitted: Vec::new(),
            drops: Drops::default(),
            ledger: Ledger::default(),
            priority: notification_priority,
            framing,
        }
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.waiting.len()
    }

    /// The frames, by fate.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Drops by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Number of virtual queues.
    pub fn queues(&self) -> usize {
        self.port_numbers.len()
    }

    /// Bytes in a virtual queue.
    pub fn estimate_qlen(&self, now: Instant, queue: QueueId) -> u64 {
        match &self.table {
            Table::Chain(chain, slots) => {
                let slot = &slots[usize::from(queue)];
                App::<InBump<'_>>::estimate_qlen(chain, &slot.state, now, &slot.queue)
            }
            Table::Extension(extension, slots) => {
                extension.estimate_qlen(now, (queue, &slots[usize::from(queue)].queue))
            }
        }
    }

    /// Counters of a virtual queue.
    pub fn counts(&self, queue: QueueId) -> Counts {
        match &self.table {
            Table::Chain(_, slots) => slots[usize::from(queue)].counts,
            Table::Extension(_, slots) => slots[usize::from(queue)].counts,
        }
    }

    /// Rates and averages of the applications at a virtual queue, by name.
    pub fn gauges(&self, queue: QueueId, show: &mut dyn FnMut(&'static str, f64)) {
        if let Table::Chain(chain, slots) = &self.table {
            App::<InBump<'_>>::gauges(chain, &slots[usize::from(queue)].state, show);
        }
    }

    /// What a program from outside did without any effect.
    pub fn ignored(&self) -> u64 {
        match &self.table {
            Table::Chain(..) => 0,
            Table::Extension(extension, _) => extension.ignored(),
        }
    }

    /// Counters of the updates of each neighbour.
    pub fn update_counts(&self) -> impl Iterator<Item = &UpdateCounts> {
        self.neighbours.iter().map(|neighbour| neighbour.receiver.counts())
    }

    fn links_end(&self) -> PortId {
        self.maps.len() as PortId
    }

    /// The pipeline for a frame from a link; returns the port by which it leaves.
    fn pipeline(&mut self, now: Instant, from: PortId, frame: &mut Packet) -> Result<PortId, Verdict> {
        let Bump { table, maps, notices, emitted, ledger, neighbours, port_numbers, .. } = self;
        let overhead = self.framing.overhead().into();
        // A notification is about frames that go the other way.
        let is_notification = frame.as_notification().is_some();
        let map = &maps[usize::from(if is_notification { from ^ 1 } else { from })];
        let (verdict, queue, to) = match table {
            Table::Chain(chain, slots) => {
                let mut packet = InBump { packet: frame, overhead };
                let queue = chain.classify(&packet, map);
                let verdict = match queue {
                    Some(queue) => pass(chain, &mut slots[usize::from(queue)], now, &mut packet, notices),
                    None => Verdict::Forward,
                };
                (verdict, queue, chain.forward(&packet, from))
            }
            Table::Extension(extension, slots) => {
                let mapped = map.queue_of(netbump::Packet::destination(&InBump { packet: frame, overhead }));
                let queue = extension.classify(now, from, frame, mapped);
                let verdict = match queue {
                    Some(id) => {
                        let slot = &mut slots[usize::from(id)];
                        let (before, was_marked) = (emitted.len(), frame.ecn() == Ecn::Ce);
                        let verdict = extension.process(now, from, frame, (id, &mut slot.queue), emitted);
                        slot.counts.packets += u64::from(!is_notification);
                        match verdict {
                            Verdict::Forward => {
                                slot.counts.marked += u64::from(!was_marked && frame.ecn() == Ecn::Ce);
                            }
                            Verdict::Drop(_) => slot.counts.dropped += 1,
                            Verdict::Consume => slot.counts.consumed += 1,
                        }
                        // Its other frames are copies.
                        let is_notice = |(_, own): &&(PortId, Packet)| own.as_notification().is_some();
                        slot.counts.notices += emitted[before..].iter().filter(is_notice).count() as u64;
                        verdict
                    }
                    None => Verdict::Forward,
                };
                (verdict, queue, extension.forward(now, from, frame))
            }
        };
        ledger.unmapped += u64::from(queue.is_none());
        for Notice { about, message } in notices.drain(..) {
            let about = Packet::of_flow(about, crate::packet::Kind::Udp);
            emitted.push((from, about.notification(&message, self.priority)));
        }
        if verdict != Verdict::Forward {
            return Err(verdict);
        }
        if let Some(queue) = queue
            && !is_notification
        {
            let number = port_numbers[usize::from(queue)];
            for neighbour in neighbours {
                if let Some(reporter) = &mut neighbour.reporter {
                    reporter.on_forward(now, u64::from(frame.len() + overhead), number);
                }
            }
        }
        Ok(to)
    }

    /// Merges an update from the neighbour at a port.
    fn merge(&mut self, now: Instant, port: PortId, frame: &Packet) {
        let at = usize::from(port - self.links_end());
        let Some((fields, packets)) = frame.as_update() else { return };
        let Bump { table, neighbours, numbers, .. } = self;
        neighbours[at].receiver.merge(now, 0, fields, packets, |number, at, bytes| {
            let Some(queue) = numbers.queue_of(number) else { return false };
            let (queue, counts) = match table {
                Table::Chain(_, slots) => {
                    let slot = &mut slots[usize::from(queue)];
                    (&mut slot.queue, &mut slot.counts)
                }
                Table::Extension(_, slots) => {
                    let slot = &mut slots[usize::from(queue)];
                    (&mut slot.queue, &mut slot.counts)
                }
            };
            queue.arrive_late(now, at, bytes);
            counts.reported += 1;
            true
        });
    }

    /// Queues the bump's own frames.
    fn queue_own(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        let links_end = self.links_end();
        for (i, neighbour) in (0..).zip(&mut self.neighbours) {
            let Some(reporter) = &mut neighbour.reporter else { continue };
            let (emitted, framing) = (&mut self.emitted, self.framing);
            reporter.poll_transmit(now, |fields, packets| {
                emitted.push((links_end + i, Packet::update(fields, packets, framing)));
            });
        }
        for (port, frame) in core::mem::take(&mut self.emitted) {
            let at = pool.insert(&frame);
            pool.push(&mut self.waiting[usize::from(port)].frames, at, 0);
            self.ledger.emitted += 1;
            self.ledger.queued += 1;
            woke.insert(port);
        }
    }
}

/// Most packets of an update.
pub const BATCH_MAX: usize = UPDATE_MAX;

impl Device<Packet> for Bump {
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        at: Handle,
        pool: &mut Pool<Packet>,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId> {
        if pool.frame(at).is_pause() {
            self.ledger.pauses_in += 1;
            let to = port ^ 1;
            if wires.idle(to) && self.waiting[usize::from(to)].pauses.is_empty() {
                self.ledger.pauses_out += 1;
                return Some(to);
            }
            self.ledger.pauses_queued += 1;
            pool.push(&mut self.waiting[usize::from(to)].pauses, at, 0);
            woke.insert(to);
            return None;
        }
        self.ledger.frames_in += 1;
        if pool.frame(at).is_corrupt() {
            let len = pool.frame(at).len();
            self.drops.count(DropReason::BadCrc, len.into());
            pool.release(at);
            return None;
        }
        if port >= self.links_end() {
            let frame = *pool.frame(at);
            self.merge(now, port, &frame);
            self.ledger.consumed += 1;
            pool.release(at);
            return None;
        }
        let outcome = self.pipeline(now, port, pool.frame_mut(at));
        let to = match outcome {
            Ok(to) => to,
            Err(verdict) => {
                if let Verdict::Drop(reason) = verdict {
                    self.drops.count(reason, pool.frame(at).len().into());
                } else {
                    self.ledger.consumed += 1;
                }
                pool.release(at);
                self.queue_own(now, pool, woke);
                return None;
            }
        };
        let waits = !wires.idle(to) || !self.waiting[usize::from(to)].is_empty();
        // With neighbours the frame may have moved the deadline of an update.
        if !waits && self.emitted.is_empty() && self.neighbours.is_empty() {
            self.ledger.frames_out += 1;
            return Some(to);
        }
        self.ledger.queued += 1;
        pool.push(&mut self.waiting[usize::from(to)].frames, at, 0);
        woke.insert(to);
        self.queue_own(now, pool, woke);
        None
    }

    fn poll_transmit(
        &mut self,
        _now: Instant,
        port: PortId,
        pool: &mut Pool<Packet>,
        woke: &mut PortSet,
    ) -> Option<Handle> {
        let waiting = &mut self.waiting[usize::from(port)];
        let at = if let Some((at, _)) = pool.pop(&mut waiting.pauses) {
            self.ledger.pauses_queued -= 1;
            self.ledger.pauses_out += 1;
            at
        } else {
            let (at, _) = pool.pop(&mut waiting.frames)?;
            self.ledger.queued -= 1;
            self.ledger.frames_out += 1;
            at
        };
        if !waiting.is_empty() {
            woke.insert(port);
        }
        Some(at)
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<Packet>, woke: &mut PortSet) {
        self.queue_own(now, pool, woke);
    }

    fn poll_timeout(&self) -> Instant {
        let deadlines = self.neighbours.iter().filter_map(|n| n.reporter.as_ref()).map(Reporter::poll_timeout);
        deadlines.min().unwrap_or(Instant::MAX)
    }
}

/// The longest age of a packet that a neighbour's update may claim.
pub const AGE_MAX: Duration = Duration::from_ms(10);

#[cfg(test)]
mod tests;
