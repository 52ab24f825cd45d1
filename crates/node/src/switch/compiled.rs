//! The compiled combinations of parts, and the choice among them.

use super::{
    Admit, AnyBuffer, AnyRoute, BufferPolicy, ByPriority, Chassis, DropLedger, FlowControl, InputBuffer, Lossless,
    LossyBuffer, Mark, MarkCounts, Markers, OutputBuffer, OutputBuffers, OutputFrames, PauseEvent, Pfc, PooledBuffer,
    PortBuffers, PortConfig, RoundRobin, Route, Scheduler, SharedBuffer, Steered, StormCounts, SwitchConfig, SwitchOf,
    WatchedBuffer, WatchedPfc,
};
use crate::device::{Device, PortId, PortSet, Wires};
use crate::packet::Packet;
use crate::pool::{Handle, Pool};
use crate::steering::Steering;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Signal, Watermarks};
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;

/// A switch of one of the compiled combinations. Those without a watchdog are an enum of their own, so that the loops over them
/// are compiled as if there were no others.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Switch {
    /// Without a PFC watchdog.
    Unwatched(Unwatched),
    /// As [`Unwatched::Managed`], with a PFC watchdog at each port.
    Watched(SwitchOf<AnyRoute, ByPriority, WatchedBuffer<AnyBuffer>, Markers, Scheduler>),
}

/// A switch without a PFC watchdog. Every event at a port checks once which combination it is; that branch is predicted.
#[derive(Clone, Debug)]
pub enum Unwatched {
    /// Drop-tail queues bounded by output. Pauses have no effect on them.
    DropTail(SwitchOf<Router, ByPriority, OutputBuffer, (), RoundRobin>),
    /// The same with steering.
    SteeredDropTail(SwitchOf<Steered, ByPriority, OutputBuffer, (), RoundRobin>),
    /// Lossless classes under PFC; queues of the other classes are bounded by output.
    Pfc(SwitchOf<Router, ByPriority, Lossless<OutputBuffer>, (), RoundRobin>),
    /// Any set of lossless classes under PFC, any buffer policy for the others, with steering or without.
    Any(SwitchOf<AnyRoute, ByPriority, Lossless<LossyBuffer>, (), RoundRobin>),
    /// As [`Unwatched::Any`], with markers, any scheduler and any buffer.
    Managed(SwitchOf<AnyRoute, ByPriority, AnyBuffer, Markers, Scheduler>),
}

/// Evaluates an expression with the switch inside an [`Unwatched`].
macro_rules! unwatched {
    ($switch:expr, $s:ident => $do:expr) => {
        match $switch {
            Unwatched::DropTail($s) => $do,
            Unwatched::SteeredDropTail($s) => $do,
            Unwatched::Pfc($s) => $do,
            Unwatched::Any($s) => $do,
            Unwatched::Managed($s) => $do,
        }
    };
}

/// Evaluates an expression with the switch inside a [`Switch`].
macro_rules! each {
    ($switch:expr, $s:ident => $do:expr) => {
        match $switch {
            Switch::Unwatched(switch) => unwatched!(switch, $s => $do),
            Switch::Watched($s) => $do,
        }
    };
}

/// Work on a switch, such as its turn in a window. The work is compiled for each combination of parts.
pub trait OnSwitch<F: Frame> {
    /// Does the work.
    fn run(self, switch: &mut impl Device<F>);
}

// `()` is a kind of flow control, and its methods are called.
#[allow(clippy::unit_arg)]
impl Switch {
    /// A switch with one port for each entry of `ports`.
    pub fn new(config: &SwitchConfig, route: impl Into<AnyRoute>, ports: &[PortConfig], record_pauses: bool) -> Switch {
        let n = ports.len();
        let chassis = Chassis::new(config.cut_through, record_pauses);
        let numbers = 0..n as PortId;
        let plain = numbers.clone().map(|_| ((), RoundRobin::default()));
        let is_managed =
            !config.markers.is_empty() || config.ets.is_some() || config.shared.is_some() || config.watchdog.is_some();
        // The plain combinations have one limit for all outputs.
        let plain_output = match config.buffer {
            PortBuffers::Alike(limit) if config.policy == BufferPolicy::Output && !is_managed => {
                Some(OutputBuffer::new(limit))
            }
            _ => None,
        };
        let mut route = route.into();
        if let Some(output) = plain_output.clone().filter(|_| config.lossless.is_empty())
            && let AnyRoute::Router(router) = route
        {
            return Unwatched::DropTail(SwitchOf::new(chassis, router, ByPriority, (output, ()), plain)).into();
        }
        let marks: Vec<Watermarks> = ports.iter().map(|port| port.marks).collect();
        let links = ports.iter().map(|port| (port.quantum, port.repetition));
        let pfc = Pfc::new(config.lossless, config.quanta, links);
        if let Some(output) = plain_output {
            match route {
                AnyRoute::Router(router) => {
                    let buffer = Lossless::new(config.lossless, marks, output);
                    return Unwatched::Pfc(SwitchOf::new(chassis, router, ByPriority, (buffer, pfc), plain)).into();
                }
                other => route = other,
            }
        }
        let lossy = match (config.policy, &config.buffer) {
            (BufferPolicy::Output, &PortBuffers::Alike(limit)) => LossyBuffer::Output(OutputBuffer::new(limit)),
            (BufferPolicy::Output, PortBuffers::Each(limits)) => {
                LossyBuffer::Outputs(OutputBuffers::new(limits.clone()))
            }
            (BufferPolicy::Output, &PortBuffers::Frames(limit)) => LossyBuffer::Frames(OutputFrames::new(limit, n)),
            (BufferPolicy::Input, &PortBuffers::Alike(limit)) => LossyBuffer::Input(InputBuffer::new(limit, n)),
            (BufferPolicy::Pooled, &PortBuffers::Alike(limit)) => {
                LossyBuffer::Pooled(PooledBuffer::new(limit.saturating_mul(n as u32)))
            }
            (BufferPolicy::Pooled, PortBuffers::Each(limits)) => {
                let sum = limits.iter().fold(0u32, |sum, limit| sum.saturating_add(*limit));
                LossyBuffer::Pooled(PooledBuffer::new(sum))
            }
            (BufferPolicy::Input, PortBuffers::Each(_)) => unreachable!("inputs with buffers that differ"),
            (BufferPolicy::Input | BufferPolicy::Pooled, PortBuffers::Frames(_)) => {
                unreachable!("frames counted beyond a queue")
            }
        };
        if !is_managed {
            let buffer = (Lossless::new(config.lossless, marks, lossy), pfc);
            return Unwatched::Any(SwitchOf::new(chassis, route, ByPriority, buffer, plain)).into();
        }
        let buffer = match &config.shared {
            Some(shared) => AnyBuffer::Shared(SharedBuffer::new(shared.clone(), config.lossless, &marks)),
            None => AnyBuffer::Separate(Lossless::new(config.lossless, marks, lossy)),
        };
        let outputs =
            numbers.map(|port| (Markers::of_port(&config.markers, port), Scheduler::new(config.ets.as_ref())));
        match config.watchdog {
            Some(watchdog) => {
                let parts = (WatchedBuffer(buffer), WatchedPfc::new(pfc, watchdog, n));
                Switch::Watched(SwitchOf::new(chassis, route, ByPriority, parts, outputs))
            }
            None => Unwatched::Managed(SwitchOf::new(chassis, route, ByPriority, (buffer, pfc), outputs)).into(),
        }
    }

    /// The switch with a steering part that chooses ports for flows beyond the router's choice.
    #[must_use]
    pub fn steered(self, steering: Steering) -> Switch {
        match self {
            Switch::Unwatched(s) => s.steered(steering).into(),
            Switch::Watched(s) => Switch::Watched(s.with(|route| route.with(steering), |buffer| buffer)),
        }
    }

    fn chassis(&self) -> &Chassis {
        each!(self, s => &s.chassis)
    }
    fn chassis_mut(&mut self) -> &mut Chassis {
        each!(self, s => &mut s.chassis)
    }

    /// The switch's steering part.
    pub fn steering_mut(&mut self) -> Option<&mut Steering> {
        each!(self, s => s.route.steering_mut())
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        each!(self, s => s.egress.len())
    }
    /// Frames received, pause frames not counted.
    pub fn frames_in(&self) -> u64 {
        self.chassis().frames_in
    }
    /// Frames sent, pause frames not counted.
    pub fn frames_out(&self) -> u64 {
        self.chassis().frames_out
    }
    /// Frames that markers made.
    pub fn emitted(&self) -> u64 {
        self.chassis().emitted
    }
    /// Counters of the markers at an output, of one class.
    pub fn mark_counts(&self, port: PortId, class: Priority) -> MarkCounts {
        match self {
            Switch::Unwatched(Unwatched::Managed(s)) => Mark::<Packet>::counts(&s.egress[port as usize].marker, class),
            Switch::Watched(s) => Mark::<Packet>::counts(&s.egress[port as usize].marker, class),
            _ => MarkCounts::default(),
        }
    }
    /// Pause frames received.
    pub fn control_in(&self) -> u64 {
        self.chassis().control_in
    }
    /// Pause frames sent.
    pub fn control_out(&self) -> u64 {
        self.chassis().control_out
    }
    /// Frames in the switch's queues.
    pub fn queued(&self) -> u64 {
        self.chassis().queued.into()
    }
    /// Frames and bytes that the switch dropped.
    pub fn drops(&self) -> &DropLedger {
        &self.chassis().drops
    }
    /// Frames that exceeded the headroom of a lossless class, by input.
    pub fn overruns(&self) -> impl Iterator<Item = (PortId, Priority, u64)> {
        self.chassis().overruns.iter().map(|(&(input, class), &frames)| (input, class, frames))
    }
    /// Bytes in the queue of an output, of one class.
    pub fn queue_bytes(&self, port: PortId, class: Priority) -> u32 {
        each!(self, s => s.queues[s.at(port, class)].bytes)
    }
    /// Most bytes that ever waited in the queues of an output.
    pub fn max_queue_bytes(&self, port: PortId) -> u32 {
        each!(self, s => s.egress[port as usize].max_bytes)
    }
    /// The gate of a port; none without flow control.
    pub fn gate(&self, port: PortId) -> Option<&Gate> {
        each!(self, s => s.flow_control.gate(port))
    }
    /// The pauses that a port sends; none without flow control.
    pub fn signal(&self, port: PortId) -> Option<&Signal> {
        each!(self, s => s.flow_control.signal(port))
    }
    /// Storms that watchdogs found, by port and class.
    pub fn storms(&self) -> impl Iterator<Item = (PortId, Priority, StormCounts)> {
        let watched = match self {
            Switch::Unwatched(_) => None,
            Switch::Watched(s) => Some(s.flow_control.storms()),
        };
        watched.into_iter().flatten()
    }
    /// Bytes of a lossless class from input `from` that wait in the queue of output `to`.
    pub fn buffered(&self, from: PortId, to: PortId, class: Priority) -> u32 {
        each!(self, s => s.buffer.buffered(from, to, class))
    }

    /// The pauses sent since the last call.
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        core::mem::take(&mut self.chassis_mut().pauses)
    }

    /// Handles a port's link that fails, or carries frames again. Frames in the port's queues are lost with the link, and
    /// so are pauses.
    pub fn set_link<F: Frame>(&mut self, now: Instant, port: PortId, up: bool, pool: &mut Pool<F>, woke: &mut PortSet) {
        each!(self, s => s.set_link(now, port, up, pool, woke));
    }
    /// Counts a frame on its way to `port` that is lost with the link.
    pub fn lose<F: Frame>(&mut self, port: PortId, at: Handle, pool: &mut Pool<F>) {
        self.chassis_mut().lose(port, at, pool);
    }
}

impl From<Unwatched> for Switch {
    fn from(switch: Unwatched) -> Switch {
        Switch::Unwatched(switch)
    }
}

impl Unwatched {
    fn steered(self, steering: Steering) -> Unwatched {
        let output = |buffer: Lossless<OutputBuffer>| buffer.with(LossyBuffer::Output);
        match self {
            Unwatched::DropTail(s) => {
                Unwatched::SteeredDropTail(s.with(|router| Steered::new(router, steering), |buffer| buffer))
            }
            Unwatched::SteeredDropTail(s) => {
                Unwatched::SteeredDropTail(s.with(|route| route.with(steering), |buffer| buffer))
            }
            Unwatched::Pfc(s) => {
                Unwatched::Any(s.with(|router| AnyRoute::Steered(Steered::new(router, steering)), output))
            }
            Unwatched::Any(s) => Unwatched::Any(s.with(|route| route.with(steering), |buffer| buffer)),
            Unwatched::Managed(s) => Unwatched::Managed(s.with(|route| route.with(steering), |buffer| buffer)),
        }
    }

    /// Does work on the switch. It is dispatched once, whatever it calls.
    #[inline(always)]
    pub fn run<F: Frame>(&mut self, work: impl OnSwitch<F>) {
        unwatched!(self, s => work.run(s));
    }

    /// The pauses sent since the last call.
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        unwatched!(self, s => core::mem::take(&mut s.chassis.pauses))
    }
    /// Whether there are pauses to take.
    #[inline(always)]
    pub fn has_pauses(&self) -> bool {
        unwatched!(self, s => !s.chassis.pauses.is_empty())
    }

    /// Names the memory that frames will touch, for a caller that prefetches it.
    #[inline(always)]
    pub fn fetch(&self, fetch: impl Fn(*const u8)) {
        unwatched!(self, s => s.fetch(fetch));
    }
}

impl<F: Frame> Device<F> for Switch {
    #[inline(always)]
    fn receive(
        &mut self,
        now: Instant,
        port: PortId,
        at: Handle,
        pool: &mut Pool<F>,
        wires: &impl Wires,
        woke: &mut PortSet,
    ) -> Option<PortId> {
        each!(self, s => s.receive(now, port, at, pool, wires, woke))
    }

    #[inline(always)]
    fn poll_transmit(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) -> Option<Handle> {
        each!(self, s => s.poll_transmit(now, port, pool, woke))
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<F>, woke: &mut PortSet) {
        each!(self, s => s.handle_timeout(now, pool, woke));
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        each!(self, s => Device::<F>::poll_timeout(s))
    }
}
