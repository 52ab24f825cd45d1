//! An uplink connects the switch of a server to the physical link, on a link with priority flow control (802.1Qbb; Crisan
//! 2014, 2.2.2.1 and 4.4.1).
//!
//! - An incoming frame is charged to the receive buffer of its class until the switch has given the frame back. Above
//!   XOFF the neighbour is stopped, below XON released. A lossless class keeps headroom for frames that still arrive. Any
//!   excess over the headroom is a violation and counted as one.
//! - Frames from the switch wait in a queue for each class and leave at the speed of the link. The neighbour's pauses
//!   stop the queue. Pause frames go ahead of data. [`Managed`] queues also obey the network's congestion notifications,
//!   and share the link among classes by bandwidth. [`Gated`] queues hold the frames of each pair until XCo permits them.
//! - A class that is paused for too long while it has frames is in a storm. Its frames, old and new, are dropped and
//!   counted until no pause came for a while, so that no other traffic waits for them.
//! - received = shown to the switch + dropped + inside; taken = sent + dropped + inside.
//!
//! An uplink does not know the contents of frames: `R` stands for a received frame, `T` for a frame to be sent, `O` for
//! the queues of frames to be sent.

mod config;
mod gated;
mod limits;
mod managed;
mod queues;

pub use config::{Link, NoHeadroom, patience};
pub use gated::{GateConfig, GateCounters, Gated};
pub use limits::{LIMITED_MOST, LimitCounters, Limited, Limits};
pub use managed::Managed;
pub use queues::{Outgoing, Queues, Waiting};

use alloc::collections::VecDeque;
use core::marker::PhantomData;
use sluicenet_proto::cee::pfc::{Gate, Signal, quanta_time};
use sluicenet_proto::cee::watchdog::{Change, Watchdog};
use sluicenet_proto::frame::{PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ethernet::{self, EtherType, MIN_LEN, MacAddress};
use sluicenet_wire::pfc;

/// Extra bytes of a frame on the wire: preamble, start delimiter, gap and check sequence (802.3, 4.4.2).
const WIRE_OVERHEAD: u32 = 8 + 12 + FCS;
const FCS: u32 = ethernet::FCS_LEN as u32;

/// Most extra room for frames that arrived while this end was not polled, in bytes: as much as a kernel keeps for a
/// device.
const LATE_MOST: u64 = 64 << 20;

/// Counters of an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data frames received, by class.
    pub received: [u64; PRIORITIES],
    /// Data frames sent, by class.
    pub sent: [u64; PRIORITIES],
    /// Frames from the link that were dropped; [`DropReason::HeadroomExceeded`] is a violation of flow control.
    pub dropped_in: Drops,
    /// Frames from the switch that were dropped.
    pub dropped_out: Drops,
    /// Frames made here that were dropped.
    pub own_dropped: u64,
    /// Valid pause frames received.
    pub pauses_received: u64,
    /// Pause frames sent.
    pub pauses_sent: u64,
    /// Pauses sent here that ran out before their renewal, because this end was not polled in time.
    pub pauses_run_out: u64,
    /// Pauses of a class that is not under flow control; ignored.
    pub pauses_lossy: u64,
    /// Pause frames with bits of no class in their vector; the bits are ignored.
    pub pauses_high_bits: u64,
    /// MAC Control frames for another address; ignored.
    pub control_elsewhere: u64,
    /// MAC Control frames below the smallest size; ignored.
    pub control_short: u64,
    /// MAC Control frames with another operation, PAUSE of the whole link among them; ignored.
    pub control_other: u64,
}

/// The next transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front<'a, T> {
    /// A pause frame, without its check sequence.
    Pause(&'a [u8; pfc::LEN]),
    /// A frame of the switch.
    Frame(&'a T),
}

/// The origin of a frame to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The switch delivered the frame: the frame is in the switch's ledger.
    Switch,
    /// The frame was made here, or is a copy: it is in no ledger.
    Own,
}

/// The uplink.
#[derive(Clone, Debug)]
pub struct Uplink<R, T, O = Queues<T>> {
    link: Link,
    quantum: Duration,
    pause_lasts: Duration,
    gate: Gate,
    signal: Signal,
    watchdog: Watchdog,
    /// Bytes in the receive buffer, by class. Their maximum so far is in `most_charged`.
    charged: [u32; PRIORITIES],
    /// Bytes outside the receive buffer, of frames that had left it and now wait for the switch.
    beside: [u32; PRIORITIES],
    most_charged: [u32; PRIORITIES],
    arrived: [VecDeque<R>; PRIORITIES],
    /// Classes with frames for the switch, and classes whose first frame has to wait in this round.
    shown: PrioritySet,
    waiting: PrioritySet,
    turn_in: Priority,
    next_in: Option<Priority>,
    leaving: O,
    /// Frames in `leaving` that were made here.
    own_leaving: usize,
    next_out: Option<Priority>,
    /// A pause frame to be sent first.
    control: Option<(Pause, [u8; pfc::LEN])>,
    /// Time at which the link will have sent its current frames.
    free_at: Instant,
    /// There was nothing to send at the last poll: the idle time is not made up for.
    is_idle: bool,
    /// Time since which the neighbour has been told to pause each class. The neighbour's longest response is in
    /// `response`.
    told_at: [Option<Instant>; PRIORITIES],
    /// Time of the last pause message.
    said_at: [Instant; PRIORITIES],
    response: Duration,
    late: u64,
    /// The neighbour is paused, whatever the level of the receive buffer.
    pauses_neighbour: bool,
    /// Time of the last poll of this end. Extra room beyond a class's buffer, after a long time without a poll, is in
    /// `late_room`.
    asked_at: Instant,
    late_room: u64,
    counters: Counters,
    frames: PhantomData<T>,
}

impl<R: Copy, T> Uplink<R, T>
where
    Queues<T>: Outgoing<T>,
{
    /// An idle uplink whose classes take turns.
    pub fn new(link: Link) -> Uplink<R, T> {
        Uplink::with(link, Queues::default())
    }
}

impl<R, T> Uplink<R, T> {
    /// Whether a frame is a MAC Control frame, which ends here: [`Uplink::control`].
    pub fn is_control(frame: &[u8]) -> bool {
        frame.get(12..14) == Some(&EtherType::MAC_CONTROL.0.to_be_bytes())
    }
}

impl<R: Copy, T, O: Outgoing<T>> Uplink<R, T, O> {
    /// An idle uplink with these queues.
    pub fn with(link: Link, leaving: O) -> Uplink<R, T, O> {
        let quantum = quanta_time(1, link.rate);
        Uplink {
            quantum,
            pause_lasts: quantum.saturating_mul(link.quanta.into()),
            gate: Gate::default(),
            signal: Signal::default(),
            watchdog: Watchdog::new(link.detection_time, link.restoration_time),
            charged: [0; PRIORITIES],
            beside: [0; PRIORITIES],
            most_charged: [0; PRIORITIES],
            arrived: Default::default(),
            shown: PrioritySet::NONE,
            waiting: PrioritySet::NONE,
            turn_in: 0,
            next_in: None,
            leaving,
            own_leaving: 0,
            next_out: None,
            control: None,
            free_at: Instant::ZERO,
            is_idle: true,
            told_at: [None; PRIORITIES],
            said_at: [Instant::ZERO; PRIORITIES],
            response: Duration::ZERO,
            late: 0,
            pauses_neighbour: false,
            asked_at: Instant::ZERO,
            late_room: 0,
            counters: Counters::default(),
            frames: PhantomData,
            link,
        }
    }

    /// The uplink's link settings.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The queues of frames to be sent.
    pub fn queues(&self) -> &O {
        &self.leaving
    }

    /// The queues of frames to be sent, to be told what changes in them.
    pub fn queues_mut(&mut self) -> &mut O {
        &mut self.leaving
    }

    /// The uplink's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The uplink's flow control: the pauses it receives, the pauses it sends, and the counts of storms that began and
    /// ended.
    pub fn flow_control(&self) -> (&Gate, &Signal, (u64, u64)) {
        (&self.gate, &self.signal, self.watchdog.counts())
    }

    /// Bytes of class `p` in the receive buffer, and their maximum so far.
    pub fn charged(&self, p: Priority) -> (u32, u32) {
        (self.charged[p as usize], self.most_charged[p as usize])
    }

    /// The neighbour's longest response: the time from a pause of a class to the last frame that still arrived in the
    /// class.
    pub fn longest_response(&self) -> Duration {
        self.response
    }

    /// Frames that arrived after the neighbour's permitted response time to a pause: the headroom is not meant for them.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Changes the time after which a paused class is in a storm, at least [`Link::patience`]; without `gives_up` storms
    /// are only counted.
    pub fn set_watchdog(&mut self, detection_time: Duration, restoration_time: Duration, gives_up: bool) {
        let detection_time = detection_time.max(self.link.patience());
        (self.link.detection_time, self.link.restoration_time) = (detection_time, restoration_time);
        self.watchdog.set(detection_time, restoration_time, gives_up);
    }

    /// Frames inside that came from the link and were not yet shown to the switch, and frames that wait to be sent.
    pub fn inside(&self) -> (usize, usize) {
        (self.arrived.iter().map(VecDeque::len).sum(), self.leaving.frames())
    }

    /// The switch's frames that wait to be sent.
    pub fn of_switch(&self) -> usize {
        self.inside().1 - self.own_leaving
    }

    // From the link.

    /// Starts a round: this end is polled. If the time since the last round exceeds either end's response time, a pause
    /// sent here may have run out. The link then brought frames all the time, and a busy machine is no reason to lose
    /// them. These frames have extra room beside the buffer of their class, and so do the frames that arrive until the
    /// neighbour obeys again.
    pub fn on_round(&mut self, now: Instant) {
        let away = now.since(self.asked_at);
        self.asked_at = now;
        if away > self.link.catch_up {
            let came = self.link.rate.bytes_in(away).saturating_add(u64::from(self.link.marks.headroom));
            self.late_room = self.late_room.saturating_add(came).min(LATE_MOST);
        }
    }

    /// All frames that arrived have been handed in.
    pub fn on_drained(&mut self) {
        let is_low = |p: Priority| self.charged[p as usize] <= self.link.marks.xoff;
        if self.late_room > 0 && self.link.lossless.iter().all(is_low) {
            self.late_room = 0;
        }
    }

    /// Handles a MAC Control frame, without its check sequence.
    pub fn control(&mut self, now: Instant, frame: &[u8]) {
        if frame.len() < MIN_LEN {
            self.counters.control_short += 1;
            return;
        }
        if frame[..6] != pfc::DESTINATION.0 {
            self.counters.control_elsewhere += 1;
            return;
        }
        let Ok(told) = pfc::Repr::parse(frame) else {
            self.counters.control_other += 1;
            return;
        };
        // The reserved half of the vector.
        self.counters.pauses_high_bits += u64::from(frame[16] != 0);
        self.counters.pauses_lossy += u64::from(told.class_enable & !self.link.lossless.0 != 0);
        self.counters.pauses_received += 1;
        let classes = PrioritySet(told.class_enable & self.link.lossless.0);
        let stopped = classes.iter().filter(|&p| told.quanta[p as usize] > 0).collect();
        self.watchdog.on_pause(now, stopped);
        self.gate.receive(now, &Pause { classes, quanta: told.quanta }, self.quantum);
        self.choose_again();
    }

    /// Charges a frame of `len` bytes (without its check sequence) that arrived. `Err` when the frame must be dropped;
    /// the drop is already counted.
    pub fn charge(&mut self, now: Instant, p: Priority, len: u32) -> Result<(), DropReason> {
        let i = p as usize;
        self.counters.received[i] += 1;
        if let Some(told) = self.told_at[i] {
            let response = now.since(told);
            self.response = self.response.max(response);
            self.late += u64::from(response > self.link.catch_up);
            // The neighbour may have missed the pause. The headroom suffices for a longer delay than the delay so far.
            if now.since(self.said_at[i]) > self.link.catch_up {
                self.signal.tell_again(p);
            }
        }
        let lossless = self.link.lossless.contains(p);
        let capacity = match lossless {
            true => u64::from(self.link.marks.capacity) + self.late_room,
            false => self.link.buffer.into(),
        };
        let charged = self.charged[i] + len + FCS;
        if self.watchdog.storms().contains(p) {
            return Err(self.refuse(DropReason::Watchdog, len));
        }
        if u64::from(charged) > capacity {
            let reason = if lossless { DropReason::HeadroomExceeded } else { DropReason::AdapterRx };
            return Err(self.refuse(reason, len));
        }
        self.charged[i] = charged;
        self.most_charged[i] = self.most_charged[i].max(charged);
        if lossless {
            self.signal.on_rise(p, charged + self.beside[i], &self.link.marks);
        }
        Ok(())
    }

    /// Charges a frame that was [released](Uplink::release) because it had another bound, and that now waits for the
    /// switch. The neighbour is paused for the frame as for any other, but the frame takes no room from arriving frames.
    pub fn charge_beside(&mut self, p: Priority, len: u32) {
        let i = p as usize;
        self.beside[i] += len + FCS;
        if self.link.lossless.contains(p) {
            self.signal.on_rise(p, self.charged[i] + self.beside[i], &self.link.marks);
        }
    }

    /// Releases a frame charged by [`Uplink::charge_beside`].
    pub fn release_beside(&mut self, p: Priority, len: u32) {
        self.beside[p as usize] -= len + FCS;
        self.fall(p);
    }

    /// Pauses the neighbour in every lossless class from now on, as if the receive buffers were full.
    pub fn pause_neighbour(&mut self) {
        self.pauses_neighbour = true;
        for p in self.link.lossless.iter() {
            self.signal.on_rise(p, u32::MAX, &self.link.marks);
        }
    }

    /// Counts a frame from the link that was dropped before it was charged, or has been released.
    pub fn refuse(&mut self, reason: DropReason, len: u32) -> DropReason {
        self.counters.dropped_in.count(reason, u64::from(len + FCS));
        reason
    }

    /// Counts a frame that was received and is dropped without having been charged.
    pub fn refuse_unseen(&mut self, p: Priority, reason: DropReason, len: u32) {
        self.counters.received[p as usize] += 1;
        self.refuse(reason, len);
    }

    /// Queues a charged frame for the switch, behind the frames of its class.
    pub fn show(&mut self, p: Priority, frame: R) {
        self.arrived[p as usize].push_back(frame);
        self.shown.insert(p);
    }

    /// Releases a charged frame that has left the receive buffer.
    pub fn release(&mut self, p: Priority, len: u32) {
        let i = p as usize;
        self.charged[i] -= len + FCS;
        self.fall(p);
    }

    fn fall(&mut self, p: Priority) {
        if self.link.lossless.contains(p) && !self.pauses_neighbour {
            self.signal.on_fall(p, self.charged[p as usize] + self.beside[p as usize], &self.link.marks);
        }
    }

    // To the switch.

    /// The next frame for the switch and its class. The frame stays the next until [`Uplink::accept`] or
    /// [`Uplink::defer`].
    pub fn next_frame(&mut self) -> Option<(Priority, R)> {
        if self.next_in.is_none() {
            self.next_in = PrioritySet(self.shown.0 & !self.waiting.0).next_after(self.turn_in);
        }
        let p = self.next_in?;
        self.arrived[p as usize].front().map(|&frame| (p, frame))
    }

    /// Notes that the switch took the frame shown; the frame stays charged.
    pub fn accept(&mut self) {
        let Some(p) = self.next_in.take() else { return };
        let queue = &mut self.arrived[p as usize];
        queue.pop_front();
        if queue.is_empty() {
            self.shown.remove(p);
        }
        self.turn_in = p;
    }

    /// Makes the frame shown wait for the rest of this round. Returns whether there is a frame of another class.
    pub fn defer(&mut self) -> bool {
        if let Some(p) = self.next_in.take() {
            self.waiting.insert(p);
        }
        self.shown.0 & !self.waiting.0 != 0
    }

    /// Begins a new round: deferred frames may be tried again.
    pub fn begin_round(&mut self) {
        self.waiting = PrioritySet::NONE;
    }

    // From the switch.

    /// Classes in which the uplink takes frames. A paused class takes frames until its queue is full, so that waiting
    /// frames are seen. A class in a storm takes frames and drops them.
    pub fn takes(&self) -> PrioritySet {
        let mut takes = self.watchdog.storms();
        for p in 0..PRIORITIES as Priority {
            let most = if self.link.lossless.contains(p) { self.link.transmit } else { self.link.buffer };
            if self.leaving.has_room(p, most.into()) {
                takes.insert(p);
            }
        }
        takes
    }

    /// Takes a frame of `len` bytes to be sent. The caller checks [`Uplink::takes`] first, and limits the frames beyond
    /// it.
    pub fn enqueue(&mut self, now: Instant, p: Priority, len: u32, frame: T) {
        self.enqueue_of(now, Origin::Switch, p, len, frame);
    }

    /// Takes a frame of any origin to be sent; see [`Uplink::enqueue`].
    pub fn enqueue_of(&mut self, now: Instant, origin: Origin, p: Priority, len: u32, frame: T) {
        if self.watchdog.storms().contains(p) {
            if origin == Origin::Switch {
                self.counters.dropped_out.count(DropReason::Watchdog, u64::from(len + FCS));
            } else {
                self.counters.own_dropped += 1;
            }
            return;
        }
        self.own_leaving += usize::from(origin == Origin::Own);
        self.leaving.push(now, p, Waiting { frame, len, origin });
        if !O::IS_MANAGED {
            self.watchdog.on_waiting(now, p);
        }
    }

    /// Counts a frame of the switch that was dropped instead of sent.
    pub fn drop_out(&mut self, reason: DropReason, len: u32) {
        self.counters.dropped_out.count(reason, u64::from(len + FCS));
    }

    // To the link.

    fn choose_again(&mut self) {
        if self.next_out.take().is_some() {
            self.leaving.unchoose();
        }
    }

    fn may_send(&self, now: Instant) -> PrioritySet {
        PrioritySet(self.leaving.ready(now).0 & !self.gate.paused().0)
    }

    /// The frame to be sent now. It stays the next until [`Uplink::sent`], or until a pause holds it.
    pub fn front(&mut self, now: Instant) -> Option<Front<'_, T>> {
        if self.signal.is_pending() {
            self.make_control(now);
        }
        if now.saturating_add(self.link.ahead) < self.free_at {
            return None;
        }
        if O::IS_MANAGED {
            // Frames that are held back do not wait for the neighbour.
            let ready = self.leaving.ready(now);
            ready.iter().for_each(|p| self.watchdog.on_waiting(now, p));
        }
        let has_something = self.control.is_some() || !self.may_send(now).is_empty();
        if has_something && self.is_idle {
            self.free_at = self.free_at.max(now);
        }
        self.is_idle = !has_something;
        if let Some((_, bytes)) = &self.control {
            return Some(Front::Pause(bytes));
        }
        if self.next_out.is_none() {
            self.next_out = self.leaving.choose(now, self.may_send(now));
        }
        self.leaving.front(self.next_out?).map(Front::Frame)
    }

    fn make_control(&mut self, now: Instant) {
        let Some(mut pause) = self.signal.poll(now, self.link.quanta, self.pause_lasts) else { return };
        // An unsent pause frame has told the neighbour nothing: its classes that the new frame leaves out are added to
        // the new frame.
        if let Some((unsent, _)) = &self.control {
            let left_out = PrioritySet(unsent.classes.0 & !pause.classes.0);
            for p in left_out.iter() {
                pause.classes.insert(p);
                pause.quanta[p as usize] = unsent.quanta[p as usize];
            }
        }
        let frame = pfc::Repr { source: self.link.address, class_enable: pause.classes.0, quanta: pause.quanta }.emit();
        self.control = Some((pause, frame));
    }

    /// Notes that the frame shown by [`Uplink::front`] has gone to the link. Returns the frame unless it was a pause
    /// frame.
    pub fn sent(&mut self, now: Instant) -> Option<T> {
        let (len, frame) = if let Some((pause, _)) = self.control.take() {
            self.counters.pauses_sent += 1;
            for p in pause.classes.iter() {
                let told = &mut self.told_at[p as usize];
                *told = if pause.quanta[p as usize] > 0 { told.or(Some(now)) } else { None };
                self.said_at[p as usize] = now;
            }
            (pfc::LEN as u32, None)
        } else {
            let p = self.next_out.take()?;
            let Waiting { frame, len, origin } = self.leaving.pop(now, p)?;
            self.own_leaving -= usize::from(origin == Origin::Own);
            let more = self.leaving.ready(now).contains(p);
            self.counters.sent[p as usize] += 1;
            self.watchdog.on_sent(now, p, more);
            (len, Some(frame))
        };
        let began = self.free_at.max(Instant(now.0.saturating_sub(self.link.catch_up.0)));
        self.free_at = began + self.link.rate.time_for(u64::from(len + WIRE_OVERHEAD));
        frame
    }

    // Time.

    /// The time for the next [`Uplink::handle_timeout`], followed by [`Uplink::front`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paused = self.gate.paused();
        let owes_pause = self.control.is_some() || self.signal.is_pending();
        let to_send = if owes_pause { Some(Instant::ZERO) } else { self.leaving.next_departure(paused) };
        let timers = [
            self.gate.poll_timeout(),
            self.signal.poll_timeout(),
            self.watchdog.poll_timeout(paused),
            to_send.map(|at| at.max(self.free_at)),
            self.leaving.poll_timeout(),
        ];
        timers.into_iter().flatten().min()
    }

    /// Ends pauses that ran out, renews our own, and detects storms. Frames that arrived from the link by `now` must be
    /// handed in first.
    pub fn handle_timeout(&mut self, now: Instant) {
        // A pause is renewed when half of its time has passed.
        let in_time = self.signal.poll_timeout().is_none_or(|at| now <= at + Duration(self.pause_lasts.0 / 2));
        self.counters.pauses_run_out += u64::from(!in_time);
        self.signal.handle_timeout(now);
        self.gate.handle_timeout(now);
        self.leaving.handle_timeout(now);
        let paused = self.gate.paused();
        while let Some((p, change)) = self.watchdog.handle_timeout(now, paused) {
            if change == Change::Detected {
                self.give_up(p);
            }
        }
    }

    fn give_up(&mut self, p: Priority) {
        self.choose_again();
        let Uplink { leaving, counters, own_leaving, .. } = self;
        leaving.clear(p, &mut |waiting| {
            if waiting.origin == Origin::Switch {
                counters.dropped_out.count(DropReason::Watchdog, u64::from(waiting.len + FCS));
            } else {
                counters.own_dropped += 1;
                *own_leaving -= 1;
            }
        });
    }
}

impl<R: Copy, T: Limited> Uplink<R, T, Managed<T>> {
    /// Handles a congestion notification, in its frame without the check sequence. It must be for the station `own`, if one
    /// is given.
    pub fn notify(&mut self, now: Instant, bytes: &[u8], own: Option<MacAddress>) {
        self.choose_again();
        self.leaving.on_notification(now, bytes, own);
    }
}

#[cfg(test)]
mod gated_tests;
#[cfg(test)]
mod managed_tests;
#[cfg(test)]
mod tests;
