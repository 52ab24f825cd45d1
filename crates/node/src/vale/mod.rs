//! zVALE, the lossless switch between the machines of one server and its uplink (Crisan 2014, 4.4.2).
//!
//! The switch knows stations and ports, chooses each frame's output, and holds the frames back by [Algorithm
//! 4.1](VSwitch), one for each traffic class. It knows neither a frame's contents nor its transport: the caller keeps the
//! bytes and gets every frame back, to deliver it or to free it.
//!
//! - In a lossless class, a frame for one station waits until there is room. In a lossy class it is dropped and counted.
//! - A frame whose receiver is one of several behind a port, and is not [admitted](Vale::enqueue_for_receiver) there now,
//!   waits in the queue of that receiver.
//! - A frame for all stations stalls no port: a copy for a port without room is dropped and counted. Only a lossless
//!   datagram for a group [waits](Vale::flood_waits_for), with its sender.
//! - A port that has frames and takes none for the detection time is stuck; after the isolation time it is isolated.
//!   Frames that wait for an isolated port, and later frames, are dropped and counted until it has shown room for the
//!   restoration time.
//! - A frame that the [policy](Vale::set_policy) denies is dropped at its input. An uplink checks the policy itself,
//!   before it keeps anything.
//! - accepted = delivered + dropped by reason + queued, each copy counted: [`Vale::ledger`].

mod config;
mod flood;
mod ports;
mod receiver_queues;
mod watchdog;

#[cfg(test)]
mod tests;

pub use config::{Action, ISOLATION_TIME, ValeConfig, WatchdogConfig};
pub use ports::{PORTS_MAX, Ports};
pub use receiver_queues::QueueKey;

use crate::gate::{Gate, StationPolicy};
use alloc::sync::Arc;
use alloc::vec::Vec;
use receiver_queues::ReceiverQueues;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops, Full};
use sluicenet_proto::overlay::fib::{Fib, Known, Learned, NOBODY, Station};
use sluicenet_proto::overlay::vswitch::VSwitch;
use sluicenet_proto::time::{Duration, Instant};
use watchdog::Health;

/// A port, counted from 0.
pub type Port = usize;

/// The time in which [`Vale::age`] looks at the whole forwarding table: an entry may be this much older than the aging time.
pub const AGED_WITHIN: Duration = Duration::from_ms(10_000);

/// The fields of a frame that the switch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The receiver.
    pub destination: Station,
    /// The sender.
    pub source: Station,
    /// Traffic class.
    pub priority: Priority,
    /// Whether the destination is a control address that ends at its link.
    pub reserved: bool,
}

/// The route of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To one port.
    To(Port),
    /// To every port but its input: [`Vale::flood`].
    All,
    /// Nowhere; the drop has been counted.
    Drop(DropReason),
}

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames accepted from the port, a copy counted for each output port.
    pub accepted: u64,
    /// Frames handed to the port.
    pub delivered: u64,
    /// Times the port's sender was held back because its input queue was full, and then let go again.
    pub held_back: u64,
    /// Times the port was found stuck.
    pub stuck: u64,
    /// Times the port was isolated because it was stuck.
    pub isolated: u64,
    /// Frames from the port that were dropped on arrival.
    pub refused: Drops,
    /// Frames for the port that were dropped.
    pub dropped: Drops,
}

impl Counters {
    /// Adds the counters of another port.
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
    /// Classes with frames for the port.
    ready: PrioritySet,
    /// Class served last.
    last: Priority,
    /// The port's sender has to wait.
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
    /// The policy between stations, where access is restricted.
    gate: Option<Gate>,
    /// Counters of ports' earlier users, and of frames for stations whose ports are unused.
    before: Counters,
}

impl<F: Copy> Vale<F> {
    /// A switch of `ports` (1 to [`PORTS_MAX`]), all of them absent.
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

    /// Starts the use of port `k`, with new counters.
    pub fn plug(&mut self, k: Port) {
        self.before.add(&core::mem::take(&mut self.ports[k].counters));
        self.ports[k].health = Health::Moving(None);
    }

    /// Ends the use of port `k`: `free` gets the frames that waited for it. Later frames for stations given to the port
    /// are dropped.
    pub fn unplug(&mut self, k: Port, free: &mut impl FnMut(F)) {
        self.give_up(k, DropReason::PortGone, free);
        self.fib.leave(k as u16);
        self.ports[k].health = Health::Absent;
    }

    /// Gives a station to a port: no other port can have the station. Returns whether the table had room.
    pub fn give(&mut self, now: Instant, station: Station, k: Port) -> bool {
        self.fib.give(now, station, k as u16)
    }

    /// Learns a machine's station at port `k`, though the machine has sent nothing yet.
    pub fn learn(&mut self, now: Instant, station: Station, k: Port) {
        self.fib.learn(now, station, k as u16);
    }

    /// The port of a station, if it is known.
    pub fn port_of(&self, station: Station) -> Option<Port> {
        self.fib.lookup(station).map(Port::from)
    }

    /// A port says that its own station is there, though it may send nothing.
    pub fn refresh(&mut self, now: Instant, station: Station, k: Port) {
        if self.fib.lookup(station) == Some(k as u16) {
            self.fib.learn(now, station, k as u16);
        }
    }

    /// Forgets learned stations that sent nothing for the aging time, in the part of the table whose turn comes in `gap`:
    /// the whole table has its turn in [`AGED_WITHIN`].
    #[cold]
    pub fn age(&mut self, now: Instant, gap: Duration) {
        let Some(at_most) = self.config.aging_time else { return };
        let share = self.fib.slots() as u128 * u128::from(gap.0) / u128::from(AGED_WITHIN.0);
        self.fib.age(now, at_most, share.min(self.fib.slots() as u128) as usize + 1);
    }

    /// Changes the aging time of stations.
    pub fn set_aging_time(&mut self, aging_time: Option<Duration>) {
        self.config.aging_time = aging_time;
    }

    /// The forwarding table, in no order.
    pub fn stations(&self) -> impl Iterator<Item = Known> + '_ {
        self.fib.iter()
    }

    /// Keeps a station for a port that is not used yet: no other port can have the station. Returns whether the table had
    /// room.
    pub fn reserve(&mut self, now: Instant, station: Station) -> bool {
        self.fib.give(now, station, NOBODY)
    }

    /// Takes back a station whose port is unused.
    pub fn release(&mut self, station: Station) {
        self.fib.release(station);
    }

    /// Forgets the stations behind port `k`.
    pub fn forget(&mut self, k: Port) {
        self.fib.forget(k as u16);
    }

    /// The route of a frame of port `j`. Drops have been handled; a flood is for the caller to do. A frame for one port
    /// is then [passed](Vale::pass) straight through or [queued](Vale::queue).
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
            Some(Health::Moving(_) | Health::Stuck(_)) => Route::To(k),
            Some(Health::Isolated(_)) => self.turn_away(j, k, DropReason::Watchdog),
            Some(Health::Absent) => self.turn_away(j, k, DropReason::PortGone),
            None => self.give_to_nobody(j),
        }
    }

    /// Sets the policy between stations; without a policy all may talk to each other. Frames that already wait go on.
    pub fn set_policy(&mut self, policy: Option<Arc<StationPolicy>>) {
        self.gate = policy.map(Gate::new);
    }

    /// Whether a frame for all stations, or for an unknown one, may reach a port behind which there are only these
    /// stations.
    #[cold]
    pub fn may_hear(&mut self, header: &Header, mut stations: impl Iterator<Item = Station>) -> bool {
        let Some(gate) = &mut self.gate else { return true };
        stations.any(|station| gate.allows(header.source, station, header.priority))
    }

    /// Whether no frame waits for port `k`: a new frame may then be passed to the port at once.
    #[inline(always)]
    pub fn is_clear(&self, k: Port) -> bool {
        self.ports[k].ready.is_empty()
    }

    /// Notes that frames of port `j` were handed to port `k`, for which no frame waited.
    #[inline(always)]
    pub fn pass(&mut self, j: Port, k: Port, frames: u32) {
        debug_assert!(self.is_clear(k));
        self.ports[j].counters.accepted += u64::from(frames);
        self.ports[k].counters.delivered += u64::from(frames);
    }

    /// Queues a frame of port `j` for port `k`. `Err` when the input queue of `j` is full: the caller keeps the frame and
    /// tries again. `free` gets the frames that are dropped for lack of room in a lossy class.
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
        // A wait counts once, however often the sender tries again.
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

    /// Whether frames of port `j` wait in a receiver queue behind port `k`.
    #[inline(always)]
    pub fn has_receiver_queues(&self, j: Port, k: Port) -> bool {
        self.receiver_queues.has_any(j, k)
    }

    /// Whether the receiver queue of a frame has other frames.
    pub fn has_receiver_queue(&self, key: &QueueKey) -> bool {
        self.receiver_queues.has(key)
    }

    /// Puts a frame into the queue of its receiver, which may have at most its fair share of the sender's `slots`.
    /// Returns whether the frame entered. In a lossy class no frame enters.
    #[cold]
    pub fn enqueue_for_receiver(&mut self, key: QueueKey, frame: F, slots: u32) -> bool {
        let waits = self.config.lossless.contains(key.priority) && self.receiver_queues.push(key, frame, slots);
        self.ports[key.from].counters.accepted += u64::from(waits);
        waits
    }

    /// Begins a round in which each queue has its turn. Returns the number of queues.
    #[inline(always)]
    pub fn begin_round(&self) -> usize {
        self.receiver_queues.begin_round()
    }

    /// The first frame of the queue whose turn it is. The frame stays there until [`Vale::dequeue_for_receiver`].
    pub fn front_for_receiver(&self) -> Option<(QueueKey, F)> {
        self.receiver_queues.front()
    }

    /// Takes that frame out of its queue. The caller then treats it as a new frame: [passed](Vale::pass),
    /// [queued](Vale::queue) or [turned away](Vale::turn_away).
    pub fn dequeue_for_receiver(&mut self) {
        if let Some((key, _)) = self.receiver_queues.front() {
            self.receiver_queues.pop();
            self.ports[key.from].counters.accepted -= 1;
        }
    }

    /// Gives the turn to the next queue; `went` is whether frames of the current queue left.
    pub fn next_receiver_queue(&mut self, went: bool) {
        self.receiver_queues.next(went);
    }

    /// Ends the round.
    pub fn end_round(&mut self) {
        self.receiver_queues.end_round();
    }

    /// Whether the frames of class `p` wait where there is no room.
    pub fn is_lossless(&self, p: Priority) -> bool {
        self.config.lossless.contains(p)
    }

    /// Whether one more frame of class `p` may wait for an output at the input of port `j`.
    pub fn has_room(&self, j: Port, p: Priority) -> bool {
        self.classes[p as usize].input_room(j) > 0
    }

    /// Handles a frame of port `j` that port `k` does not admit now, because enough frames wait for its receiver. In a
    /// lossless class the frame waits with its sender; `new` is whether this wait has just begun. In a lossy class the
    /// frame is dropped. Returns whether the frame waits.
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
        // A frame whose source could not be learned is still forwarded; answers to it are flooded.
        matches!(learned, Learned::Elsewhere(_)).then_some(DropReason::ForgedSource)
    }

    /// Whether port `k` may have frames to take, in the classes `takes`.
    #[inline(always)]
    pub fn is_ready(&self, k: Port, takes: PrioritySet) -> bool {
        self.ports[k].ready.0 & takes.0 != 0
    }

    /// The next frame for port `k`; the classes in `takes` have turns. The frame stays the next until it is
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
            && let Health::Moving(Some(_)) | Health::Stuck(_) = ports[k].health
        {
            ports[k].health = Health::Moving(None);
        }
        None
    }

    /// Takes the frame of class `p` that [`Vale::next`] showed for port `k`.
    #[inline(always)]
    pub fn take(&mut self, now: Instant, k: Port, p: Priority) {
        // The frame stands at the front: no other frame has to be moved, so none is dropped.
        let taken = self.classes[p as usize].receive(k, &mut |_, _| {});
        debug_assert!(taken.is_some());
        let port = &mut self.ports[k];
        port.last = p;
        port.health = Health::Moving(Some(now));
        port.counters.delivered += 1;
    }

    /// Counts a frame that was [taken](Vale::take) for port `k`, but must not be delivered, as dropped.
    #[cold]
    pub fn spoil(&mut self, k: Port, reason: DropReason) {
        self.ports[k].counters.delivered -= 1;
        self.ports[k].counters.dropped.count(reason, 1);
    }

    /// Counts a frame of port `j` that was [taken](Vale::take) for port `k` as refused: only now it shows that `j` must not send
    /// it.
    #[cold]
    pub fn recall(&mut self, j: Port, k: Port, reason: DropReason) {
        self.ports[k].counters.delivered -= 1;
        self.ports[j].counters.accepted -= 1;
        self.ports[j].counters.refused.count(reason, 1);
    }

    /// Counts `segments` additional frames, handed over as parts of a frame of port `j` that still waits for port `k`.
    #[cold]
    pub fn cut(&mut self, j: Port, k: Port, segments: u64) {
        self.ports[j].counters.accepted += segments;
        self.ports[k].counters.delivered += segments;
    }

    /// Counts the frames that port `k` itself dropped: `lost` frames had been handed to the port, `refused` frames came
    /// from it and were never shown to the switch.
    pub fn settle(&mut self, k: Port, lost: &Drops, refused: &Drops) {
        let counters = &mut self.ports[k].counters;
        counters.delivered -= lost.total_frames();
        counters.dropped.add(lost);
        counters.refused.add(refused);
    }

    /// Drops a valid frame of port `j` for port `k`, which can never take it.
    #[cold]
    pub fn turn_away(&mut self, j: Port, k: Port, reason: DropReason) -> Route {
        self.ports[j].counters.accepted += 1;
        self.ports[k].counters.dropped.count(reason, 1);
        Route::Drop(reason)
    }

    /// Drops a valid frame of port `j` for a station whose port is unused.
    #[cold]
    fn give_to_nobody(&mut self, j: Port) -> Route {
        self.ports[j].counters.accepted += 1;
        self.before.dropped.count(DropReason::PortGone, 1);
        Route::Drop(DropReason::PortGone)
    }

    /// Drops a frame of port `j` on arrival.
    #[cold]
    pub fn refuse(&mut self, j: Port, reason: DropReason) -> Route {
        self.ports[j].counters.refused.count(reason, 1);
        Route::Drop(reason)
    }

    fn give_up(&mut self, k: Port, reason: DropReason, free: &mut impl FnMut(F)) {
        self.drain(k, PrioritySet::ALL, reason, free);
        let port = &mut self.ports[k];
        self.receiver_queues.drain(k, &mut |frame| {
            port.counters.dropped.count(reason, 1);
            free(frame);
        });
    }

    /// Drops the frames of some classes that wait for port `k`, where nobody receives now.
    #[cold]
    pub fn give_up_classes(&mut self, k: Port, classes: PrioritySet, reason: DropReason, free: &mut impl FnMut(F)) {
        self.drain(k, classes, reason, free);
        let port = &mut self.ports[k];
        if let (true, Health::Moving(_) | Health::Stuck(_)) = (port.ready.is_empty(), port.health) {
            port.health = Health::Moving(None);
        }
    }

    fn drain(&mut self, k: Port, classes: PrioritySet, reason: DropReason, free: &mut impl FnMut(F)) {
        let port = &mut self.ports[k];
        for p in classes.iter() {
            self.classes[usize::from(p)].drain(k, &mut |frame| {
                port.counters.dropped.count(reason, 1);
                free(frame);
            });
            port.ready.remove(p);
        }
    }

    /// The classes whose frames wait where there is no room.
    pub fn lossless(&self) -> PrioritySet {
        self.config.lossless
    }

    /// Frames of class `p` that wait at the output of port `k`.
    pub fn output_len(&self, k: Port, p: Priority) -> u32 {
        self.classes[p as usize].output_len(k)
    }

    /// Frames of class `p` that wait at the input of port `j` because their output is full, or in a receiver queue.
    pub fn input_len(&self, j: Port, p: Priority) -> u32 {
        self.config.slots - self.classes[p as usize].input_room(j) + self.receiver_queues.input_len(j, p)
    }

    /// The ports for whose full outputs frames of port `j` wait, and the ports behind which these frames wait in a
    /// receiver queue.
    pub fn waits_for(&self, j: Port) -> Ports {
        let mut all = *self.receiver_queues.of(j);
        self.classes.iter().for_each(|class| all.add_words(class.waits_for(j)));
        all
    }

    /// Counters of port `k`.
    pub fn counters(&self, k: Port) -> &Counters {
        &self.ports[k].counters
    }

    /// Counters of ports' earlier users, and of frames for stations whose ports are unused.
    pub fn before(&self) -> &Counters {
        &self.before
    }

    /// Waiting frames, a copy counted for each port.
    pub fn queued(&self) -> u64 {
        self.classes.iter().map(|c| u64::from(c.queued())).sum::<u64>() + u64::from(self.receiver_queues.len())
    }

    /// Frames accepted, delivered, and dropped for a port: accepted = delivered + dropped + [queued](Vale::queued).
    pub fn ledger(&self) -> (u64, u64, u64) {
        let all = self.ports.iter().map(|p| &p.counters).chain([&self.before]);
        all.fold((0, 0, 0), |(a, d, l), c| (a + c.accepted, d + c.delivered, l + c.dropped.total_frames()))
    }
}

/// The reason for which a frame of a lossless class for port `k` is dropped.
#[cold]
fn full(uplink: Option<Port>, k: Port) -> DropReason {
    if uplink == Some(k) { DropReason::VswitchUplink } else { DropReason::VswitchVm }
}
