//! An uplink: what sits between the switch of a server and the physical link, on a link with priority flow control
//! (802.1Qbb; Crisan 2014, 2.2.2.1 and 4.4.1).
//!
//! - What arrives is charged to the receive buffer of its class until the switch has given it back; above XOFF the neighbour
//!   is stopped, below XON let go. A lossless class keeps headroom for what still arrives; whatever exceeds that is a violation
//!   and counted as one.
//! - What the switch delivers waits in a queue for each class, which the neighbour's pauses stop, at the speed of the link.
//!   Pause frames go ahead of data.
//! - A class that is paused for too long while it has frames is in a storm: what it has and gets is dropped by name until no
//!   pause came for a while, so that nobody behind waits for it.
//! - received = shown to the switch + dropped + inside; taken = sent + dropped + inside.
//!
//! What a frame is it does not know: `R` stands for a received one, `T` for one to be sent.

mod config;

pub use config::{Link, NoHeadroom};

use alloc::collections::VecDeque;
use sluicenet_proto::cee::pfc::{Gate, Signal, quanta_time};
use sluicenet_proto::cee::watchdog::{Change, Watchdog};
use sluicenet_proto::frame::{PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::ethernet::{self, EtherType, MIN_LEN};
use sluicenet_wire::pfc;

/// Bytes of a frame on the wire besides itself: preamble, start delimiter, gap and check sequence (802.3, 4.4.2).
const WIRE_OVERHEAD: u32 = 8 + 12 + FCS;
const FCS: u32 = ethernet::FCS_LEN as u32;

/// What a link brought while nobody asked has room up to this, in bytes: as much as a kernel keeps for a device.
const LATE_MOST: u64 = 64 << 20;

/// What an uplink counted.
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
    /// Frames made here that were.
    pub own_dropped: u64,
    /// Pause frames received that were in order.
    pub pauses_received: u64,
    /// Pause frames sent.
    pub pauses_sent: u64,
    /// Pauses of ours that ran out before they were renewed, because this end was not asked in time.
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

/// The next thing to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front<'a, T> {
    /// A pause frame, without its check sequence.
    Pause(&'a [u8; pfc::LEN]),
    /// A frame of the switch.
    Frame(&'a T),
}

#[derive(Clone, Debug)]
struct Queue<F> {
    frames: VecDeque<(F, u32, Origin)>,
    bytes: u64,
}

/// Whose a frame is that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The switch delivered it: it is in the switch's ledger.
    Switch,
    /// It was made here, or is a copy: it is in no ledger.
    Own,
}

impl<F> Default for Queue<F> {
    fn default() -> Queue<F> {
        Queue { frames: VecDeque::new(), bytes: 0 }
    }
}

/// The uplink.
#[derive(Clone, Debug)]
pub struct Uplink<R, T> {
    link: Link,
    quantum: Duration,
    pause_lasts: Duration,
    gate: Gate,
    signal: Signal,
    watchdog: Watchdog,
    /// Bytes in the receive buffer, by class, and the most there ever were.
    charged: [u32; PRIORITIES],
    /// Bytes beside it, of frames that had left it and wait for the switch now.
    beside: [u32; PRIORITIES],
    most_charged: [u32; PRIORITIES],
    arrived: [Queue<R>; PRIORITIES],
    /// Classes with frames for the switch, and those whose first has to wait in this round.
    shown: PrioritySet,
    waiting: PrioritySet,
    turn_in: Priority,
    next_in: Option<Priority>,
    leaving: [Queue<T>; PRIORITIES],
    /// Of these, those made here.
    own_leaving: usize,
    /// Classes with frames to send.
    ready: PrioritySet,
    turn_out: Priority,
    next_out: Option<Priority>,
    /// A pause frame that is to go first.
    control: Option<(Pause, [u8; pfc::LEN])>,
    /// When the link has sent what it was given.
    free_at: Instant,
    /// There was nothing to send when it was last asked for: the time until there is something is not made up for.
    is_idle: bool,
    /// Since when the neighbour has been told to pause each class, and the longest that it still sent then.
    told_at: [Option<Instant>; PRIORITIES],
    /// When it was told last.
    said_at: [Instant; PRIORITIES],
    response: Duration,
    late: u64,
    /// The neighbour is paused, however full the receive buffer is.
    pauses_neighbour: bool,
    /// When this end was asked last, and bytes of a class for which there is room beyond its buffer because that was long ago.
    asked_at: Instant,
    late_room: u64,
    counters: Counters,
}

impl<R: Copy, T> Uplink<R, T> {
    /// An uplink that is idle.
    pub fn new(link: Link) -> Uplink<R, T> {
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
            leaving: Default::default(),
            own_leaving: 0,
            ready: PrioritySet::NONE,
            turn_out: 0,
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
            link,
        }
    }

    /// What it was set up with.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// What it counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its flow control: what it is told, what it tells, and storms that began and ended.
    pub fn flow_control(&self) -> (&Gate, &Signal, (u64, u64)) {
        (&self.gate, &self.signal, self.watchdog.counts())
    }

    /// Bytes of class `p` in the receive buffer, and the most there ever were.
    pub fn charged(&self, p: Priority) -> (u32, u32) {
        (self.charged[p as usize], self.most_charged[p as usize])
    }

    /// The longest that a frame of a class still came after the neighbour had been told to pause it.
    pub fn longest_response(&self) -> Duration {
        self.response
    }

    /// Frames that came later than the neighbour may take to pause their class: the headroom is not meant for them.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Changes when a class that is paused is in a storm, not before [`Link::patience`]; without `gives_up` storms are counted only.
    pub fn set_watchdog(&mut self, detection_time: Duration, restoration_time: Duration, gives_up: bool) {
        let detection_time = detection_time.max(self.link.patience());
        (self.link.detection_time, self.link.restoration_time) = (detection_time, restoration_time);
        self.watchdog.set(detection_time, restoration_time, gives_up);
    }

    /// Frames inside that came from the link and were not shown to the switch yet, and frames that wait to be sent.
    pub fn inside(&self) -> (usize, usize) {
        (self.arrived.iter().map(|q| q.frames.len()).sum(), self.leaving.iter().map(|q| q.frames.len()).sum())
    }

    /// Frames that wait to be sent and are the switch's.
    pub fn of_switch(&self) -> usize {
        self.inside().1 - self.own_leaving
    }

    // From the link.

    /// This end is asked what is to be done. If that took longer than either end may take to answer, a pause of ours may have run out and the
    /// link brought frames all the time: they are here, and a busy machine is no reason to lose them. For those, and for what comes until
    /// the neighbour obeys again, there is room beside the buffer of a class.
    pub fn on_round(&mut self, now: Instant) {
        let away = now.since(self.asked_at);
        self.asked_at = now;
        if away > self.link.catch_up {
            let came = self.link.rate.bytes_in(away).saturating_add(u64::from(self.link.marks.headroom));
            self.late_room = self.late_room.saturating_add(came).min(LATE_MOST);
        }
    }

    /// All that has come has been handed in.
    pub fn on_drained(&mut self) {
        let is_low = |p: Priority| self.charged[p as usize] <= self.link.marks.xoff;
        if self.late_room > 0 && self.link.lossless.iter().all(is_low) {
            self.late_room = 0;
        }
    }

    /// Whether a frame is MAC Control, which ends here: [`Uplink::control`].
    pub fn is_control(frame: &[u8]) -> bool {
        frame.get(12..14) == Some(&EtherType::MAC_CONTROL.0.to_be_bytes())
    }

    /// A MAC Control frame, without its check sequence.
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
        let stopped =
            PrioritySet(classes.iter().filter(|&p| told.quanta[p as usize] > 0).fold(0, |set, p| set | 1 << p));
        self.watchdog.on_pause(now, stopped);
        self.gate.receive(now, &Pause { classes, quanta: told.quanta }, self.quantum);
        self.choose_again();
    }

    /// Charges a frame of `len` bytes (without its check sequence) that arrived. `Err` when it must be dropped, which has
    /// been counted.
    pub fn charge(&mut self, now: Instant, p: Priority, len: u32) -> Result<(), DropReason> {
        let i = p as usize;
        self.counters.received[i] += 1;
        if let Some(told) = self.told_at[i] {
            let response = now.since(told);
            self.response = self.response.max(response);
            self.late += u64::from(response > self.link.catch_up);
            // It may not have heard: the headroom is for more than it can have been slow so far.
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

    /// A frame that was [released](Uplink::release) because something else bounded it waits for the switch now: the neighbour is paused
    /// for it as for any other, but it takes no room from those that arrive.
    pub fn charge_beside(&mut self, p: Priority, len: u32) {
        let i = p as usize;
        self.beside[i] += len + FCS;
        if self.link.lossless.contains(p) {
            self.signal.on_rise(p, self.charged[i] + self.beside[i], &self.link.marks);
        }
    }

    /// It has left.
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

    /// A frame that has been charged is next for the switch, behind those of its class.
    pub fn show(&mut self, p: Priority, len: u32, frame: R) {
        let queue = &mut self.arrived[p as usize];
        queue.frames.push_back((frame, len, Origin::Switch));
        queue.bytes += u64::from(len);
        self.shown.insert(p);
    }

    /// A frame that was charged has left the receive buffer.
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

    /// The next frame for the switch and its class; it stays the next until [`Uplink::accept`] or [`Uplink::defer`].
    pub fn next_frame(&mut self) -> Option<(Priority, R)> {
        if self.next_in.is_none() {
            self.next_in = PrioritySet(self.shown.0 & !self.waiting.0).next_after(self.turn_in);
        }
        let p = self.next_in?;
        self.arrived[p as usize].frames.front().map(|(frame, ..)| (p, *frame))
    }

    /// The switch took the frame shown; it stays charged.
    pub fn accept(&mut self) {
        let Some(p) = self.next_in.take() else { return };
        let queue = &mut self.arrived[p as usize];
        if let Some((_, len, _)) = queue.frames.pop_front() {
            queue.bytes -= u64::from(len);
        }
        if queue.frames.is_empty() {
            self.shown.remove(p);
        }
        self.turn_in = p;
    }

    /// The frame shown has to wait for the rest of this round; whether there is one of another class.
    pub fn defer(&mut self) -> bool {
        if let Some(p) = self.next_in.take() {
            self.waiting.insert(p);
        }
        self.shown.0 & !self.waiting.0 != 0
    }

    /// A new round begins: what had to wait may be tried again.
    pub fn begin_round(&mut self) {
        self.waiting = PrioritySet::NONE;
    }

    // From the switch.

    /// Classes of which it takes frames. One that is paused takes them until its queue is full, so that what waits is seen; one
    /// in a storm takes and drops them.
    pub fn takes(&self) -> PrioritySet {
        let mut takes = self.watchdog.storms();
        for p in 0..PRIORITIES as Priority {
            let most = if self.link.lossless.contains(p) { self.link.transmit } else { self.link.buffer };
            if self.leaving[p as usize].bytes < u64::from(most) {
                takes.insert(p);
            }
        }
        takes
    }

    /// Takes a frame of `len` bytes to be sent. The caller asks [`Uplink::takes`] first, and keeps what exceeds it bounded.
    pub fn enqueue(&mut self, now: Instant, p: Priority, len: u32, frame: T) {
        self.enqueue_of(now, Origin::Switch, p, len, frame);
    }

    /// The same of whoever it is.
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
        let queue = &mut self.leaving[p as usize];
        queue.frames.push_back((frame, len, origin));
        queue.bytes += u64::from(len);
        self.ready.insert(p);
        self.watchdog.on_waiting(now, p);
    }

    /// Counts a frame of the switch that was dropped instead.
    pub fn drop_out(&mut self, reason: DropReason, len: u32) {
        self.counters.dropped_out.count(reason, u64::from(len + FCS));
    }

    // To the link.

    fn choose_again(&mut self) {
        self.next_out = None;
    }

    fn may_send(&self) -> PrioritySet {
        PrioritySet(self.ready.0 & !self.gate.paused().0)
    }

    /// What is to be sent now; it stays the next until [`Uplink::sent`], or a pause holds it.
    pub fn front(&mut self, now: Instant) -> Option<Front<'_, T>> {
        if self.signal.is_pending() {
            self.make_control(now);
        }
        if now.saturating_add(self.link.ahead) < self.free_at {
            return None;
        }
        let has_something = self.control.is_some() || !self.may_send().is_empty();
        if has_something && self.is_idle {
            self.free_at = self.free_at.max(now);
        }
        self.is_idle = !has_something;
        if let Some((_, bytes)) = &self.control {
            return Some(Front::Pause(bytes));
        }
        if self.next_out.is_none() {
            self.next_out = self.may_send().next_after(self.turn_out);
        }
        let p = self.next_out?;
        self.leaving[p as usize].frames.front().map(|(frame, ..)| Front::Frame(frame))
    }

    fn make_control(&mut self, now: Instant) {
        let Some(mut pause) = self.signal.poll(now, self.link.quanta, self.pause_lasts) else { return };
        // One that was not sent yet has said nothing: what it would have said and this one does not, this one says too.
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

    /// What [`Uplink::front`] showed has gone to the link; the frame, if it was one.
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
            let queue = &mut self.leaving[p as usize];
            let (frame, len, origin) = queue.frames.pop_front()?;
            self.own_leaving -= usize::from(origin == Origin::Own);
            queue.bytes -= u64::from(len);
            let more = !queue.frames.is_empty();
            if !more {
                self.ready.remove(p);
            }
            self.turn_out = p;
            self.counters.sent[p as usize] += 1;
            self.watchdog.on_sent(now, p, more);
            (len, Some(frame))
        };
        let began = self.free_at.max(Instant(now.0.saturating_sub(self.link.catch_up.0)));
        self.free_at = began + self.link.rate.time_for(u64::from(len + WIRE_OVERHEAD));
        frame
    }

    // Time.

    /// When it has to be looked at: [`Uplink::handle_timeout`], and then [`Uplink::front`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let paused = self.gate.paused();
        let to_send = self.control.is_some() || self.signal.is_pending() || !self.may_send().is_empty();
        let timers = [
            self.gate.poll_timeout(),
            self.signal.poll_timeout(),
            self.watchdog.poll_timeout(paused),
            to_send.then_some(self.free_at),
        ];
        timers.into_iter().flatten().min()
    }

    /// Ends pauses that ran out, renews our own, looks for storms. What has come from the link by `now` is to be handed in first.
    pub fn handle_timeout(&mut self, now: Instant) {
        // Half of its time before it runs out a pause is renewed.
        let in_time = self.signal.poll_timeout().is_none_or(|at| now <= at + Duration(self.pause_lasts.0 / 2));
        self.counters.pauses_run_out += u64::from(!in_time);
        self.signal.handle_timeout(now);
        self.gate.handle_timeout(now);
        let paused = self.gate.paused();
        while let Some((p, change)) = self.watchdog.handle_timeout(now, paused) {
            if change == Change::Detected {
                self.give_up(p);
            }
        }
    }

    fn give_up(&mut self, p: Priority) {
        let queue = core::mem::take(&mut self.leaving[p as usize]);
        for (_, len, origin) in &queue.frames {
            if *origin == Origin::Switch {
                self.counters.dropped_out.count(DropReason::Watchdog, u64::from(len + FCS));
            } else {
                self.counters.own_dropped += 1;
                self.own_leaving -= 1;
            }
        }
        self.ready.remove(p);
        self.choose_again();
    }
}

#[cfg(test)]
mod tests;
