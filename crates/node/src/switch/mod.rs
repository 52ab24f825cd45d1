//! The CEE switch: input-buffered, output-queued, with priority flow control (Crisan 2014, 2.5.2).
//!
//! ```text
//! frame -> route -> classify -> admit -> mark -> queue ... schedule -> (paused?) -> wire
//! ```
//!
//! A frame is charged to buffers and waits in the queue of its output, per class. A frame whose output is idle and empty
//! goes straight through and is charged to no buffer.

/// The available markers for the switches of a scenario, a line each: `module::Type,`. The line declares the module,
/// re-exports the type, and adds a variant to [`Marker`].
macro_rules! with_markers {
    ($then:ident!()) => {
        $then! { [
            active_queue::ActiveQueue,
            // Markers that send frames of their own come last.
            congestion_point::CongestionPoint,
        ] }
    };
}

/// Declares the modules of the given markers, and the enum of them.
macro_rules! declare {
    ([$($module:ident::$marker:ident,)*]) => {
        $(
            mod $module;
            pub use $module::$marker;

            impl From<$marker> for Marker {
                fn from(marker: $marker) -> Marker {
                    Marker::$marker(marker)
                }
            }
        )*

        crate::markers! {
            /// One of the available markers.
            pub enum Marker {
                $(#[doc = concat!("By [`", stringify!($marker), "`].")]
                $marker($marker),)*
            }
        }

        impl Marker {
            /// The marker of an output, made of the one in the settings of its switch.
            fn of_port(&self, port: PortId) -> Marker {
                match self { $(Marker::$marker(marker) => Marker::$marker(marker.of_port(port)),)* }
            }
        }
    };
}

mod adaptive;
mod admit;
mod classify;
mod compiled;
mod flow_control;
mod link;
mod mark;
mod queue;
mod route;
mod schedule;
mod shared;
#[cfg(test)]
mod tests;
mod watchdog;
with_markers!(declare!());

pub use active_queue::{ClassRule, ClassRules, Select};
pub use adaptive::Adaptive;
pub use admit::{
    Admit, AnyBuffer, InputBuffer, Level, Lossless, LossyBuffer, OutputBuffer, OutputBuffers, OutputFrames, Placement,
    PooledBuffer,
};
pub use classify::{ByPriority, Classify};
pub use compiled::{OnSwitch, Switch, Unwatched};
pub use congestion_point::{CongestionPoints, notification_bytes};
pub use flow_control::{FlowControl, Paused, Pfc};
pub use mark::{Backlog, Mark, MarkCounts, Markers, Verdict};
pub use queue::Waiting;
pub use route::{AnyRoute, BySource, Route, Steered};
pub use schedule::{RoundRobin, Schedule, Scheduler};
pub use shared::{Alpha, Reserved, SharedBuffer, SharedConfig};
pub use watchdog::{StormAction, StormCounts, WatchdogConfig, WatchedBuffer, WatchedPfc};

use crate::device::{Device, PortId, PortSet, Wires};
use crate::pool::{Handle, Pool};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use queue::{Egress, Queue};
use sluicenet_proto::cee::ets::EtsConfig;
use sluicenet_proto::cee::pfc::{Repetition, Rise, Watermarks};
use sluicenet_proto::frame::{Frame, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};

/// The bound of a lossy queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPolicy {
    /// Each output queue holds at most the buffer of a port (Crisan 2014, line 827).
    Output,
    /// Each input buffers at most the buffer of a port, wherever the frames go.
    Input,
    /// All inputs share one pool: an output queue is bounded by the sum of all buffers (Crisan 2014, line 708).
    Pooled,
}

/// Buffers of a switch's ports for each priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortBuffers {
    /// The same bytes for every port.
    Alike(u32),
    /// Bytes of each port. Not for [`BufferPolicy::Input`].
    Each(Vec<u32>),
    /// So many frames of whatever length at every port. Only for [`BufferPolicy::Output`].
    Frames(u32),
}

/// Settings that all ports of a switch share.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Buffer of each port and priority.
    pub buffer: PortBuffers,
    /// The bound of a lossy queue.
    pub policy: BufferPolicy,
    /// One pool for the whole switch instead, with dynamic thresholds.
    pub shared: Option<SharedConfig>,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Pause time sent with XOFF, in quanta.
    pub quanta: u16,
    /// Whether frames with a bad check sequence are forwarded: a cut-through switch has not yet read the check sequence.
    pub cut_through: bool,
    /// The markers of the switch's outputs, in the order of the list of markers. A marker here belongs to no output yet:
    /// `of_port` makes the marker of each.
    pub markers: Vec<Marker>,
    /// Enhanced transmission selection at the switch's outputs; round robin without it.
    pub ets: Option<Arc<EtsConfig>>,
    /// The watchdog of lossless classes at each port.
    pub watchdog: Option<WatchdogConfig>,
}

/// Settings that differ between the ports of a switch.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Watermarks of the port's buffer for a lossless priority.
    pub marks: Watermarks,
    /// Time of one pause quantum on this link.
    pub quantum: Duration,
    /// Repetition of pause messages, where the link damages frames.
    pub repetition: Option<Repetition>,
}

/// The cause of a full receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// In a switch: the output that held most of the bytes.
    Output(PortId),
    /// In a server: a VM that does not take its frames.
    Vm(u8),
    /// In a server: the link itself, whose frames came early and wait for others.
    Link(PortId),
}

/// A pause that a box sent, for the record: the stopped port and the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseEvent {
    /// Time of the pause.
    pub at: Instant,
    /// The port whose other end was stopped or released.
    pub port: PortId,
    /// Traffic class.
    pub priority: Priority,
    /// XOFF (true) or XON.
    pub stop: bool,
    /// The cause of the full buffer behind `port`.
    pub cause: Cause,
    /// Whether the cause is an output that was itself paused by its peer: then the congestion comes from further
    /// downstream.
    pub cause_is_paused: bool,
}

/// Frames and bytes a switch dropped, by output port, priority and reason.
pub type DropLedger = BTreeMap<(PortId, Priority, DropReason), (u64, u64)>;

/// The input of frames that the switch itself made.
const OWN: PortId = PortId::MAX;
/// Bytes of frames that a switch made itself and that wait, at most.
const OWN_MAX: u32 = 64 << 10;

/// The parts of a switch beside its ports.
#[derive(Clone, Debug)]
pub(crate) struct Chassis {
    /// Whether frames with a bad check sequence are forwarded.
    cut_through: bool,
    /// Lower bound of all deadlines.
    deadline: Instant,
    queued: u32,
    frames_in: u64,
    frames_out: u64,
    /// Frames that the switch's markers made.
    emitted: u64,
    /// Bytes of such frames that wait.
    own_bytes: u32,
    control_in: u64,
    control_out: u64,
    drops: DropLedger,
    /// Frames that exceeded the headroom, by input and class.
    overruns: BTreeMap<(PortId, Priority), u64>,
    pauses: Vec<PauseEvent>,
    record_pauses: bool,
}

impl Chassis {
    fn new(cut_through: bool, record_pauses: bool) -> Chassis {
        Chassis {
            cut_through,
            deadline: Instant::MAX,
            queued: 0,
            frames_in: 0,
            frames_out: 0,
            emitted: 0,
            own_bytes: 0,
            control_in: 0,
            control_out: 0,
            drops: DropLedger::new(),
            overruns: BTreeMap::new(),
            pauses: Vec::new(),
            record_pauses,
        }
    }

    #[cold]
    fn drop<F: Frame>(&mut self, output: PortId, class: Priority, reason: DropReason, at: Handle, pool: &mut Pool<F>) {
        let entry = self.drops.entry((output, class, reason)).or_default();
        entry.0 += 1;
        entry.1 += u64::from(pool.frame(at).len());
        pool.release(at);
    }

    /// Drops a frame that its buffer does not admit.
    #[cold]
    fn refuse<F: Frame>(&mut self, frame: Placement, reason: DropReason, at: Handle, pool: &mut Pool<F>) {
        if reason == DropReason::HeadroomExceeded {
            *self.overruns.entry((frame.input, frame.class)).or_default() += 1;
        }
        self.drop(frame.output, frame.class, reason, at, pool);
    }
}

/// The marker, scheduler and flow control of an output.
type Output<M, S, B> = Egress<M, S, <<B as Admit>::FlowControl as FlowControl>::Port>;

/// A switch with a choice of outputs `R`, whose ports are composed of a classifier `K`, a buffer policy `B` with its
/// flow control, markers `M` and schedulers `S`.
#[derive(Clone, Debug)]
pub struct SwitchOf<R, K, B: Admit, M, S> {
    chassis: Chassis,
    route: R,
    classifier: K,
    buffer: B,
    flow_control: B::FlowControl,
    egress: Vec<Output<M, S, B>>,
    /// Output queues at `class * ports + port`: few classes carry traffic, and their queues lie side by side.
    queues: Vec<Queue>,
}

impl<R, K, B: Admit, M, S> SwitchOf<R, K, B, M, S> {
    /// A switch with one port for each marker and scheduler in `outputs`.
    fn new(
        chassis: Chassis,
        route: R,
        classifier: K,
        (buffer, flow_control): (B, B::FlowControl),
        outputs: impl Iterator<Item = (M, S)>,
    ) -> SwitchOf<R, K, B, M, S> {
        let output = |(marker, scheduler)| Egress {
            marker,
            scheduler,
            flow: Default::default(),
            backlogged: PrioritySet::NONE,
            is_dead: false,
            queued_bytes: 0,
            max_bytes: 0,
        };
        let egress: Vec<Output<M, S, B>> = outputs.map(output).collect();
        let queues = alloc::vec![Queue::default(); egress.len() * PRIORITIES];
        SwitchOf { chassis, route, classifier, buffer, flow_control, egress, queues }
    }

    /// The switch with another choice of outputs and another buffer policy, under the same flow control.
    fn with<R2, B2: Admit<FlowControl = B::FlowControl>>(
        self,
        route: impl FnOnce(R) -> R2,
        buffer: impl FnOnce(B) -> B2,
    ) -> SwitchOf<R2, K, B2, M, S> {
        let SwitchOf { chassis, route: of, classifier, buffer: before, flow_control, egress, queues } = self;
        let (route, buffer) = (route(of), buffer(before));
        SwitchOf { chassis, route, classifier, buffer, flow_control, egress, queues }
    }

    /// Why a frame cannot go to an output, if its link is down or the frame is damaged.
    #[cold]
    #[inline(never)]
    fn refuses(&self, output: PortId, is_corrupt: bool) -> Option<DropReason> {
        if self.egress[output as usize].is_dead {
            return Some(DropReason::PortGone);
        }
        (is_corrupt && !self.chassis.cut_through).then_some(DropReason::BadCrc)
    }

    /// Index of the queue of a port and class.
    #[inline(always)]
    fn at(&self, port: PortId, class: Priority) -> usize {
        class as usize * self.egress.len() + port as usize
    }

    /// Classes of an output with frames that the output may send.
    #[inline(always)]
    fn ready(e: &Output<M, S, B>) -> PrioritySet {
        PrioritySet(e.backlogged.0 & !B::FlowControl::paused(&e.flow).0)
    }

    #[cold]
    #[inline(never)]
    fn receive_pause(&mut self, now: Instant, port: PortId, pause: Option<Pause>, woke: &mut PortSet) {
        self.chassis.control_in += 1;
        let Some(pause) = pause else { return };
        self.flow_control.receive(now, port, &mut self.egress[port as usize].flow, pause);
        self.after_flow_control(port, woke);
    }

    /// Updates the deadline of flow control, and wakes a port that can send again.
    fn after_flow_control(&mut self, port: PortId, woke: &mut PortSet) {
        self.chassis.deadline = self.chassis.deadline.min(self.flow_control.poll_timeout(port));
        if !Self::ready(&self.egress[port as usize]).is_empty() {
            woke.insert(port);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_pause(&mut self, now: Instant, port: PortId, class: Priority, stop: bool) {
        let n = self.egress.len();
        // The lowest port wins a tie: the record must depend on content only.
        let fullest = |&o: &usize| (self.buffer.buffered(port, o as PortId, class), n - o);
        let cause = (0..n).max_by_key(fullest).unwrap_or(0);
        let cause_is_paused = B::FlowControl::paused(&self.egress[cause].flow).contains(class);
        let cause = Cause::Output(cause as PortId);
        self.chassis.pauses.push(PauseEvent { at: now, port, priority: class, stop, cause, cause_is_paused });
    }

    /// Charges a queued frame; tells the other end of the frame's input when the level crosses XOFF.
    #[inline(always)]
    fn charge(&mut self, now: Instant, frame: Placement, woke: &mut PortSet) {
        let Placement { input, class, .. } = frame;
        if let Some(level) = self.buffer.charge(frame)
            && let Some(rise) = self.flow_control.on_rise(input, &mut self.egress[input as usize].flow, class, level)
        {
            woke.insert(input);
            if self.chassis.record_pauses && rise == Rise::Stopped {
                self.record_pause(now, input, class, true);
            }
        }
    }

    /// Gives back the space of a frame; lets the other end of the frame's input go on when the level crosses XON.
    #[inline(always)]
    fn discharge(&mut self, now: Instant, frame: Placement, woke: &mut PortSet) {
        let Placement { input, class, .. } = frame;
        if let Some(level) = self.buffer.discharge(frame)
            && self.flow_control.on_fall(input, &mut self.egress[input as usize].flow, class, level)
        {
            woke.insert(input);
            if self.chassis.record_pauses {
                self.record_pause(now, input, class, false);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_control(&mut self, now: Instant, port: PortId, woke: &mut PortSet) -> Option<Pause> {
        let e = &mut self.egress[port as usize];
        let pause = self.flow_control.poll(now, port, &mut e.flow);
        self.after_flow_control(port, woke);
        self.chassis.control_out += u64::from(pause.is_some());
        pause
    }

    /// Gives back the space of a frame, which may be one of the switch's own.
    #[inline(always)]
    fn give_back(&mut self, now: Instant, frame: Placement, woke: &mut PortSet) {
        if frame.input == OWN {
            self.chassis.own_bytes -= frame.bytes;
        } else {
            self.discharge(now, frame, woke);
        }
    }

    /// Appends a frame to its queue, and charges it.
    #[inline(always)]
    fn enqueue<F: Frame>(
        &mut self,
        now: Instant,
        frame: Placement,
        at: Handle,
        pool: &mut Pool<F>,
        woke: &mut PortSet,
    ) {
        self.append(frame, at, pool, woke);
        if B::FlowControl::WATCHES {
            self.watch(now, frame.output, frame.class);
        }
        self.charge(now, frame, woke);
    }

    /// Appends a frame to its queue.
    #[inline(always)]
    fn append<F: Frame>(&mut self, frame: Placement, at: Handle, pool: &mut Pool<F>, woke: &mut PortSet) {
        let Placement { input, output, class, bytes } = frame;
        let queue = self.at(output, class);
        let queue = &mut self.queues[queue];
        pool.push(&mut queue.list, at, input);
        queue.bytes += bytes;
        self.chassis.queued += 1;
        let e = &mut self.egress[output as usize];
        let was_ready = !Self::ready(e).is_empty();
        e.backlogged.insert(class);
        e.queued_bytes += bytes;
        e.max_bytes = e.max_bytes.max(e.queued_bytes);
        // A port that was ready has already been woken, and stays ready until it is polled.
        if !was_ready && !B::FlowControl::paused(&e.flow).contains(class) {
            woke.insert(output);
        }
    }
}

impl<R: Route, K: Classify, B: Admit, M, S> SwitchOf<R, K, B, M, S> {
    /// Names the memory of the outputs and of their first queues, for a caller that prefetches it. The switch itself is in the
    /// cache.
    #[inline(always)]
    fn fetch(&self, fetch: impl Fn(*const u8)) {
        let (outputs, ports): (*const u8, usize) = (self.egress.as_ptr().cast(), self.egress.len());
        (0..size_of_val(&self.egress[..])).step_by(64).for_each(|at| fetch(outputs.wrapping_add(at)));
        let queues: *const u8 = self.queues.as_ptr().cast();
        (0..size_of::<Queue>() * ports).step_by(64).for_each(|at| fetch(queues.wrapping_add(at)));
    }

    /// Sends a frame made by the marker at `port`. No neighbour sent it, so that it takes no buffer of an input.
    #[cold]
    #[inline(never)]
    fn emit<F: Frame>(&mut self, now: Instant, port: PortId, frame: F, pool: &mut Pool<F>, woke: &mut PortSet) {
        self.chassis.emitted += 1;
        let at = pool.insert(&frame);
        let class = self.classifier.class(port, &frame);
        let output = match self.route.route(now, port, &frame) {
            Ok(output) => output,
            Err(charged) => return self.chassis.drop(charged, class, DropReason::NoRoute, at, pool),
        };
        if self.egress[output as usize].is_dead {
            return self.chassis.drop(output, class, DropReason::PortGone, at, pool);
        }
        let bytes = frame.len();
        if self.chassis.own_bytes + bytes > OWN_MAX {
            return self.chassis.drop(output, class, DropReason::SwitchBuffer, at, pool);
        }
        if B::FlowControl::WATCHES && B::FlowControl::dropped(&self.egress[output as usize].flow).contains(class) {
            return self.chassis.drop(output, class, DropReason::PfcStorm, at, pool);
        }
        self.chassis.own_bytes += bytes;
        self.append(Placement { input: OWN, output, class, bytes }, at, pool, woke);
        if B::FlowControl::WATCHES {
            self.watch(now, output, class);
        }
    }
}

impl<F: Frame, R: Route, K: Classify, B: Admit, M: Mark<F>, S: Schedule> Device<F> for SwitchOf<R, K, B, M, S> {
    #[inline(always)]
    fn receive(
        &mut self,
        now: Instant,
        input: PortId,
        at: Handle,
        pool: &mut Pool<F>,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId> {
        let frame = pool.frame(at);
        if frame.is_pause() {
            // A pause frame that fails the check sequence is discarded unread.
            let pause = if frame.is_corrupt() { None } else { frame.as_pause() };
            pool.release(at);
            self.receive_pause(now, input, pause, woke);
            return None;
        }
        self.chassis.frames_in += 1;
        let (class, bytes) = (self.classifier.class(input, frame), frame.len());
        let output = match self.route.route(now, input, frame) {
            Ok(output) => output,
            Err(charged) => {
                self.chassis.drop(charged, class, DropReason::NoRoute, at, pool);
                return None;
            }
        };
        if self.egress[output as usize].is_dead | frame.is_corrupt()
            && let Some(reason) = self.refuses(output, frame.is_corrupt())
        {
            self.chassis.drop(output, class, reason, at, pool);
            return None;
        }
        if B::FlowControl::WATCHES
            && let Some(stormed) = self.stormed(input, output, class)
        {
            self.chassis.drop(stormed, class, DropReason::PfcStorm, at, pool);
            return None;
        }
        let placement = || Placement { input, output, class, bytes };
        let queue = self.at(output, class);
        let e = &mut self.egress[output as usize];
        let straight = e.backlogged.is_empty()
            && !B::FlowControl::is_pending(&e.flow)
            && !B::FlowControl::paused(&e.flow).contains(class)
            && wires.idle(output);
        let class_bytes = self.queues[queue].bytes;
        if !straight && let Err(reason) = self.buffer.admit(placement(), class_bytes) {
            self.chassis.refuse(placement(), reason, at, pool);
            return None;
        }
        let backlog = Backlog { port: output, class, class_bytes, port_bytes: e.queued_bytes };
        let own = match e.marker.on_arrival(now, backlog, pool.frame_mut(at)) {
            Verdict::Forward => None,
            Verdict::Drop(reason) => {
                self.chassis.drop(output, class, reason, at, pool);
                return None;
            }
            Verdict::Emit(own) => Some(own),
        };
        let deadline = e.marker.poll_timeout();
        // A frame that goes straight through wakes no port and moves no deadline: otherwise it is queued for a moment.
        if straight && own.is_none() && deadline >= self.chassis.deadline {
            self.chassis.frames_out += 1;
            return Some(output);
        }
        self.chassis.deadline = self.chassis.deadline.min(deadline);
        self.enqueue(now, placement(), at, pool, woke);
        if let Some(own) = own {
            self.emit(now, output, own, pool, woke);
        }
        None
    }

    #[inline(always)]
    fn poll_transmit(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) -> Option<Handle> {
        loop {
            let ports = self.egress.len();
            let e = &mut self.egress[port as usize];
            if B::FlowControl::is_pending(&e.flow) {
                return self.poll_control(now, port, woke).map(|pause| pool.insert(&F::from_pause(pause)));
            }
            let (backlogged, paused) = (e.backlogged, B::FlowControl::paused(&e.flow));
            let class =
                e.scheduler.next(&Waiting { backlogged, paused, queues: &self.queues, ports, port, pool: &*pool })?;
            let queue = &mut self.queues[class as usize * ports + port as usize];
            let (at, input) = pool.pop(&mut queue.list)?;
            let bytes = pool.frame(at).len();
            self.chassis.queued -= 1;
            queue.bytes -= bytes;
            e.queued_bytes -= bytes;
            e.backlogged.0 &= !((queue.list.is_empty() as u8) << class);
            if B::FlowControl::WATCHES {
                self.flow_control.on_sent(now, port, class, e.backlogged.contains(class));
            }
            if !Self::ready(e).is_empty() {
                woke.insert(port);
            }
            let backlog = Backlog { port, class, class_bytes: queue.bytes, port_bytes: e.queued_bytes };
            let verdict = e.marker.on_departure(now, backlog, pool.frame_mut(at));
            self.chassis.deadline = self.chassis.deadline.min(e.marker.poll_timeout());
            let frame = Placement { input, output: port, class, bytes };
            if M::EMITS {
                self.give_back(now, frame, woke);
            } else {
                self.discharge(now, frame, woke);
            }
            match verdict {
                Verdict::Forward => {}
                Verdict::Drop(reason) => {
                    self.chassis.drop(port, class, reason, at, pool);
                    continue;
                }
                Verdict::Emit(own) => self.emit(now, port, own, pool, woke),
            }
            self.chassis.frames_out += 1;
            return Some(at);
        }
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<F>, woke: &mut PortSet) {
        if now < self.chassis.deadline {
            return;
        }
        self.chassis.deadline = Instant::MAX;
        for port in 0..self.egress.len() as PortId {
            let e = &mut self.egress[port as usize];
            e.marker.handle_timeout(now);
            self.chassis.deadline = self.chassis.deadline.min(e.marker.poll_timeout());
            if self.flow_control.handle_timeout(now, port, &mut e.flow) {
                woke.insert(port);
            }
            if B::FlowControl::WATCHES {
                self.after_watchdog(now, port, pool, woke);
            }
            self.after_flow_control(port, woke);
        }
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        self.chassis.deadline
    }
}
