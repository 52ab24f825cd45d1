//! zVALE, the lossless switch between the machines of one server and its uplink (Crisan 2014, 4.4.2).
//!
//! It knows stations and ports, decides where each frame goes, and holds the frames back by [Algorithm 4.1](VSwitch), one
//! for each traffic class. What a frame is and over what it moves, it does not know: the caller keeps the bytes and gets
//! every frame back, to deliver it or to free it.
//!
//! - A frame for one station waits until there is room, in a lossless class; in a lossy one it is dropped by name.
//! - A frame whose receiver is one of several behind a port, and is not [admitted](Vale::enqueue_for_receiver) there now,
//!   waits in the queue of that receiver.
//! - A frame for all of them stalls nobody: a copy for a port without room is given up by name.
//! - A port that has frames and takes none for the detection time is isolated: what waits for it, and what comes for it, is
//!   dropped by name until it has shown room for the restoration time.
//! - A frame that the [policy](Vale::set_policy) denies is dropped where it comes in; an uplink asks by itself, before it keeps anything.
//! - accepted = delivered + dropped by reason + queued, copies counted each: [`Vale::ledger`].

mod config;
mod flood;
mod receiver_queues;
mod watchdog;

#[cfg(test)]
mod tests;

pub use config::{Action, ValeConfig};
pub use receiver_queues::QueueKey;

use crate::gate::{Gate, StationPolicy};
use alloc::sync::Arc;
use alloc::vec::Vec;
use receiver_queues::ReceiverQueues;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::fib::{Fib, Learned, NOBODY, Station};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::time::Instant;
use watchdog::Health;

/// A port, counted from 0.
pub type Port = usize;

/// What the switch reads of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// For whom.
    pub destination: Station,
    /// From whom.
    pub source: Station,
    /// Traffic class.
    pub priority: Priority,
    /// Whether the destination is a control address that ends at its link.
    pub reserved: bool,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To one port.
    To(Port),
    /// To every port but the one it came from: [`Vale::flood`].
    All,
    /// Nowhere; it has been counted.
    Drop(DropReason),
}

/// What went through a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames accepted from it: a copy for each port they were for.
    pub accepted: u64,
    /// Frames handed to it.
    pub delivered: u64,
    /// Times its sender was held back, because its input queue was full, and let go again.
    pub held_back: u64,
    /// Times it was found stuck.
    pub stuck: u64,
    /// Times it was isolated for that.
    pub isolated: u64,
    /// Frames that came from it and were dropped on arrival.
    pub refused: Drops,
    /// Frames for it that were dropped.
    pub dropped: Drops,
}

impl Counters {
    /// Adds those of another port.
    pub fn add(&mut self, other: &Counters) {
        self.accepted += other.accepted;
        self.delivered += other.delivered;
        self.held_back += other.held_back;
        self.stuck += other.stuck;
        self.isolated += other.isolated;
        self.refused.add(&other.refused);
        self.dropped.add(&other.dropped);
    }
}

#[derive(Clone, Debug)]
struct PortState {
    /// Classes with frames for it.
    ready: PrioritySet,
    /// Class served last.
    last: Priority,
    /// Its sender has to wait.
    has_to_wait: bool,
    health: Health,
    counters: Counters,
}

/// The switch.
#[derive(Clone, Debug)]
pub struct Vale<F> {
    config: ValeConfig,
    fib: Fib,
    ports: Vec<PortState>,
    classes: Vec<VSwitch<F>>,
    receiver_queues: ReceiverQueues<F>,
    /// Which stations may talk to each other, where not all may.
    gate: Option<Gate>,
    /// At ports whose number others have now, and for stations at whose ports nobody is.
    before: Counters,
}

impl<F: Copy> Vale<F> {
    /// A switch of `ports` (1 to 64), all of them absent.
    pub fn new(ports: usize, config: ValeConfig) -> Vale<F> {
        let port = PortState {
            ready: PrioritySet::NONE,
            last: 0,
            has_to_wait: false,
            health: Health::Absent,
            counters: Counters::default(),
        };
        let class = |p| VSwitch::new(ports, config.slots, config.lossless.contains(p));
        Vale {
            fib: Fib::new(
                ports,
                config.stations,
                config.stations_per_port.min((config.stations / ports.max(1)) as u32),
            ),
            ports: alloc::vec![port; ports],
            classes: (0..PRIORITIES as Priority).map(class).collect(),
            receiver_queues: ReceiverQueues::new(ports),
            gate: None,
            before: Counters::default(),
            config,
        }
    }

    /// Somebody is at port `k`, whose counters start anew.
    pub fn plug(&mut self, k: Port) {
        self.before.add(&core::mem::take(&mut self.ports[k].counters));
        self.ports[k].health = Health::Moving(None);
    }

    /// Nobody is at port `k` any more: `free` gets what waited for it. What comes for stations that were given to it is dropped.
    pub fn unplug(&mut self, k: Port, free: &mut impl FnMut(F)) {
        self.give_up(k, DropReason::PortGone, free);
        self.fib.leave(k as u16);
        self.ports[k].health = Health::Absent;
    }

    /// Gives a station to a port: nobody else can be it. Whether the table had room.
    pub fn give(&mut self, now: Instant, station: Station, k: Port) -> bool {
        self.fib.give(now, station, k as u16)
    }

    /// A machine is at port `k`, though it has sent nothing yet.
    pub fn learn(&mut self, now: Instant, station: Station, k: Port) {
        self.fib.learn(now, station, k as u16);
    }

    /// Keeps a station for a port at which nobody is yet: nobody else can be it. Whether the table had room.
    pub fn reserve(&mut self, now: Instant, station: Station) -> bool {
        self.fib.give(now, station, NOBODY)
    }

    /// Takes back a station at whose port nobody is.
    pub fn release(&mut self, station: Station) {
        self.fib.release(station);
    }

    /// Forgets the stations behind port `k`.
    pub fn forget(&mut self, k: Port) {
        self.fib.forget(k as u16);
    }

    /// Where a frame of port `j` goes. What is dropped or flooded is dealt with after that; what goes to one port is then
    /// [passed](Vale::pass) straight through or [queued](Vale::queue).
    #[inline(always)]
    pub fn route(&mut self, now: Instant, j: Port, header: &Header) -> Route {
        let learned = self.fib.learn(now, header.source, j as u16);
        if header.reserved | header.source.is_group() | (learned != Learned::Here) {
            if let Some(reason) = self.objection(header, learned) {
                return self.refuse(j, reason);
            }
        }
        if header.destination.is_group() {
            return Route::All;
        }
        if let Some(gate) = &mut self.gate
            && self.config.uplink != Some(j)
            && !gate.allows(header.source, header.destination, header.priority)
        {
            return self.refuse(j, DropReason::Denied);
        }
        let Some(k) = self.fib.lookup(header.destination).map(|k| k as Port).or(self.config.uplink) else {
            return Route::All;
        };
        if k == j {
            return self.refuse(j, DropReason::NoRoute);
        }
        match self.ports.get(k).map(|port| port.health) {
            Some(Health::Moving(_)) => Route::To(k),
            Some(Health::Isolated(_)) => self.turn_away(j, k, DropReason::Watchdog),
            Some(Health::Absent) => self.turn_away(j, k, DropReason::PortGone),
            None => self.give_to_nobody(j),
        }
    }

    /// Says which stations may talk to each other; all may where nothing is said. What waits already goes on.
    pub fn set_policy(&mut self, policy: Option<Arc<StationPolicy>>) {
        self.gate = policy.map(Gate::new);
    }

    /// Whether a frame for all, or for one that is not known, may be heard where only these stations are.
    #[cold]
    pub fn may_hear(&mut self, header: &Header, mut stations: impl Iterator<Item = Station>) -> bool {
        let Some(gate) = &mut self.gate else { return true };
        stations.any(|station| gate.allows(header.source, station, header.priority))
    }

    /// Whether nothing waits for port `k`: a frame may be passed to it before any other.
    #[inline(always)]
    pub fn is_clear(&self, k: Port) -> bool {
        self.ports[k].ready.is_empty()
    }

    /// Frames of port `j` were handed to port `k`, for which nothing waited.
    #[inline(always)]
    pub fn pass(&mut self, j: Port, k: Port, frames: u32) {
        debug_assert!(self.is_clear(k));
        self.ports[j].counters.accepted += u64::from(frames);
        self.ports[k].counters.delivered += u64::from(frames);
    }

    /// A frame of port `j` waits for port `k`. `Err` when its input queue is full: the caller keeps it and asks again.
    /// `free` gets what is dropped for want of room in a lossy class.
    #[inline]
    pub fn queue(
        &mut self,
        now: Instant,
        j: Port,
        k: Port,
        p: Priority,
        frame: F,
        free: &mut impl FnMut(F),
    ) -> Result<(), Full<F>> {
        let Vale { classes, ports, config, .. } = self;
        let uplink = config.uplink;
        let sent = classes[p as usize].send(j, k, frame, &mut |k, frame| {
            ports[k].counters.dropped.count(full(uplink, k), 1);
            free(frame);
        });
        // However often it asks meanwhile.
        let had_to_wait = core::mem::replace(&mut ports[j].has_to_wait, sent.is_err());
        if sent.is_err() {
            ports[j].counters.held_back += u64::from(!had_to_wait);
            return sent;
        }
        ports[j].counters.accepted += 1;
        ports[k].ready.insert(p);
        if let Health::Moving(None) = ports[k].health {
            ports[k].health = Health::Moving(Some(now));
        }
        Ok(())
    }

    /// The ports behind which frames of port `j` wait in a receiver queue, one bit each.
    #[inline(always)]
    pub fn receiver_queue_ports(&self, j: Port) -> u64 {
        self.receiver_queues.of(j)
    }

    /// Whether the receiver queue of a frame has others.
    pub fn has_receiver_queue(&self, key: &QueueKey) -> bool {
        self.receiver_queues.has(key)
    }

    /// A frame enters the queue of its receiver, which has no more of the sender's `slots` than are free. Returns whether it did.
    /// In a lossy class no frame does.
    #[cold]
    pub fn enqueue_for_receiver(&mut self, key: QueueKey, frame: F, slots: u32) -> bool {
        let waits = self.config.lossless.contains(key.priority) && self.receiver_queues.push(key, frame, slots);
        self.ports[key.from].counters.accepted += u64::from(waits);
        waits
    }

    /// A round begins in which each queue has its turn. Returns their number.
    #[inline(always)]
    pub fn begin_round(&self) -> usize {
        self.receiver_queues.begin_round()
    }

    /// The first frame of the queue whose turn it is. It stays there until [`Vale::dequeue_for_receiver`].
    pub fn front_for_receiver(&self) -> Option<(QueueKey, F)> {
        self.receiver_queues.front()
    }

    /// It leaves the queue, to be [passed](Vale::pass), [queued](Vale::queue) or [turned away](Vale::turn_away) as one that was not seen
    /// before.
    pub fn dequeue_for_receiver(&mut self) {
        if let Some((key, _)) = self.receiver_queues.front() {
            self.receiver_queues.pop();
            self.ports[key.from].counters.accepted -= 1;
        }
    }

    /// It is the next queue's turn; whether frames of the one that had it `went`.
    pub fn next_receiver_queue(&mut self, went: bool) {
        self.receiver_queues.next(went);
    }

    /// The round is over.
    pub fn end_round(&mut self) {
        self.receiver_queues.end_round();
    }

    /// Whether one more frame of class `p` may wait for an output at the input of port `j`.
    pub fn has_room(&self, j: Port, p: Priority) -> bool {
        self.classes[p as usize].input_room(j) > 0
    }

    /// Port `k` does not admit a frame of port `j` now, for whose receiver behind it enough waits: whether the frame waits with its
    /// sender, for whom that may be nothing `new`. In a lossy class it is dropped.
    #[cold]
    pub fn leave_with_sender(&mut self, j: Port, k: Port, p: Priority, new: bool) -> bool {
        if self.config.lossless.contains(p) {
            self.ports[j].counters.held_back += u64::from(new);
            return true;
        }
        self.turn_away(j, k, full(self.config.uplink, k));
        false
    }

    #[cold]
    fn objection(&self, header: &Header, learned: Learned) -> Option<DropReason> {
        if header.reserved {
            return Some(DropReason::Reserved);
        }
        if header.source.is_group() {
            return Some(DropReason::Malformed);
        }
        // What could not be learned is forwarded all the same; answers to it are flooded.
        matches!(learned, Learned::Elsewhere(_)).then_some(DropReason::ForgedSource)
    }

    /// Whether port `k` may have frames to take, of the classes of which it takes any.
    #[inline(always)]
    pub fn is_ready(&self, k: Port, takes: PrioritySet) -> bool {
        self.ports[k].ready.0 & takes.0 != 0
    }

    /// The next frame for port `k`, the classes of which it takes any in turn. It stays the next until it is
    /// [taken](Vale::take).
    #[inline(always)]
    pub fn next(&mut self, k: Port, takes: PrioritySet, free: &mut impl FnMut(F)) -> Option<(Priority, F)> {
        let Vale { classes, ports, config, .. } = self;
        let uplink = config.uplink;
        while let Some(p) = PrioritySet(ports[k].ready.0 & takes.0).next_after(ports[k].last) {
            let next = classes[p as usize].front(k, &mut |k, frame| {
                ports[k].counters.dropped.count(full(uplink, k), 1);
                free(frame);
            });
            match next {
                Some(frame) => return Some((p, frame)),
                None => ports[k].ready.remove(p),
            }
        }
        if ports[k].ready.is_empty()
            && let Health::Moving(since) = &mut ports[k].health
        {
            *since = None;
        }
        None
    }

    /// Takes the frame of class `p` that [`Vale::next`] showed for port `k`.
    #[inline(always)]
    pub fn take(&mut self, now: Instant, k: Port, p: Priority) {
        // It stands at the front: nothing has to be moved, so nothing is dropped.
        let taken = self.classes[p as usize].receive(k, &mut |_, _| {});
        debug_assert!(taken.is_some());
        let port = &mut self.ports[k];
        port.last = p;
        port.health = Health::Moving(Some(now));
        port.counters.delivered += 1;
    }

    /// A frame that was [taken](Vale::take) for port `k` turned out to be one that must not be delivered.
    #[cold]
    pub fn spoil(&mut self, k: Port, reason: DropReason) {
        self.ports[k].counters.delivered -= 1;
        self.ports[k].counters.dropped.count(reason, 1);
    }

    /// Of a frame of port `j` that waits for port `k`, so many segments were handed over, which count as frames of their own.
    #[cold]
    pub fn cut(&mut self, j: Port, k: Port, segments: u64) {
        self.ports[j].counters.accepted += segments;
        self.ports[k].counters.delivered += segments;
    }

    /// What port `k` itself dropped is put to its account: of the frames that were handed to it, and of its own that were not seen
    /// here.
    pub fn settle(&mut self, k: Port, lost: &Drops, refused: &Drops) {
        let counters = &mut self.ports[k].counters;
        counters.delivered -= lost.total_frames();
        counters.dropped.add(lost);
        counters.refused.add(refused);
    }

    /// A frame of port `j` that is in order, for port `k`, which can never take it.
    #[cold]
    pub fn turn_away(&mut self, j: Port, k: Port, reason: DropReason) -> Route {
        self.ports[j].counters.accepted += 1;
        self.ports[k].counters.dropped.count(reason, 1);
        Route::Drop(reason)
    }

    /// A frame of port `j` that is in order, for a station at whose port nobody is.
    #[cold]
    fn give_to_nobody(&mut self, j: Port) -> Route {
        self.ports[j].counters.accepted += 1;
        self.before.dropped.count(DropReason::PortGone, 1);
        Route::Drop(DropReason::PortGone)
    }

    /// A frame of port `j` is dropped on arrival.
    #[cold]
    pub fn refuse(&mut self, j: Port, reason: DropReason) -> Route {
        self.ports[j].counters.refused.count(reason, 1);
        Route::Drop(reason)
    }

    fn give_up(&mut self, k: Port, reason: DropReason, free: &mut impl FnMut(F)) {
        let port = &mut self.ports[k];
        port.ready = PrioritySet::NONE;
        for class in &mut self.classes {
            class.drain(k, &mut |frame| {
                port.counters.dropped.count(reason, 1);
                free(frame);
            });
        }
        self.receiver_queues.drain(k, &mut |frame| {
            port.counters.dropped.count(reason, 1);
            free(frame);
        });
    }

    /// Frames of class `p` that wait at the output of port `k`.
    pub fn output_len(&self, k: Port, p: Priority) -> u32 {
        self.classes[p as usize].output_len(k)
    }

    /// Frames of class `p` that wait at the input of port `j` because their output is full, or in a receiver queue.
    pub fn input_len(&self, j: Port, p: Priority) -> u32 {
        self.config.slots - self.classes[p as usize].input_room(j) + self.receiver_queues.input_len(j, p)
    }

    /// The ports whose full outputs frames of port `j` wait for, and those behind which they wait in a receiver queue, one bit each.
    pub fn waits_for(&self, j: Port) -> u64 {
        self.classes.iter().fold(self.receiver_queues.of(j), |all, class| all | class.waits_for(j))
    }

    /// What went through port `k`.
    pub fn counters(&self, k: Port) -> &Counters {
        &self.ports[k].counters
    }

    /// What went through ports whose number others have now, and what came for stations at whose ports nobody is.
    pub fn before(&self) -> &Counters {
        &self.before
    }

    /// Frames that wait, a copy for each port.
    pub fn queued(&self) -> u64 {
        self.classes.iter().map(|c| u64::from(c.queued())).sum::<u64>() + u64::from(self.receiver_queues.len())
    }

    /// Frames accepted, delivered, dropped for a port: accepted = delivered + dropped + [queued](Vale::queued).
    pub fn ledger(&self) -> (u64, u64, u64) {
        let all = self.ports.iter().map(|p| &p.counters).chain([&self.before]);
        all.fold((0, 0, 0), |(a, d, l), c| (a + c.accepted, d + c.delivered, l + c.dropped.total_frames()))
    }
}

/// Why a frame of a lossy class for port `k` is dropped.
#[cold]
fn full(uplink: Option<Port>, k: Port) -> DropReason {
    if uplink == Some(k) { DropReason::VswitchUplink } else { DropReason::VswitchVm }
}
