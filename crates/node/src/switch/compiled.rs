//! The compiled combinations of parts, and the choice among them.

use super::{
    Admit, AnyBuffer, AnyRoute, BufferPolicy, ByPriority, Chassis, DropLedger, FlowControl, InputBuffer, Lossless,
    LossyBuffer, Mark, MarkCounts, Markers, OutputBuffer, OutputBuffers, PauseEvent, Pfc, PooledBuffer, PortBuffers,
    PortConfig, RoundRobin, Route, Scheduler, SharedBuffer, Steered, SwitchConfig, SwitchOf,
};
use crate::device::{Device, PortId, PortSet, PrefetchStep, Wires};
use crate::packet::Packet;
use crate::pool::{Handle, Pool};
use crate::steering::Steering;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Signal, Watermarks};
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::Instant;

/// A switch of one of the compiled combinations. Every event at a port checks once which combination it is; that branch is
/// predicted.
#[derive(Clone, Debug)]
pub enum Switch {
    /// Drop-tail queues bounded by output. Pauses have no effect on them.
    DropTail(SwitchOf<Router, ByPriority, OutputBuffer, (), RoundRobin>),
    /// The same with steering.
    SteeredDropTail(SwitchOf<Steered, ByPriority, OutputBuffer, (), RoundRobin>),
    /// Lossless classes under PFC; queues of the other classes are bounded by output.
    Pfc(SwitchOf<Router, ByPriority, Lossless<OutputBuffer>, (), RoundRobin>),
    /// Any set of lossless classes under PFC, any buffer policy for the others, with steering or without.
    Any(SwitchOf<AnyRoute, ByPriority, Lossless<LossyBuffer>, (), RoundRobin>),
    /// As [`Switch::Any`], with markers, any scheduler and any buffer.
    Managed(SwitchOf<AnyRoute, ByPriority, AnyBuffer, Markers, Scheduler>),
}

/// Evaluates an expression with the switch inside a [`Switch`].
macro_rules! each {
    ($switch:expr, $s:ident => $do:expr) => {
        match $switch {
            Switch::DropTail($s) => $do,
            Switch::SteeredDropTail($s) => $do,
            Switch::Pfc($s) => $do,
            Switch::Any($s) => $do,
            Switch::Managed($s) => $do,
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
        let is_managed = !config.markers.is_empty() || config.ets.is_some() || config.shared.is_some();
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
            return Switch::DropTail(SwitchOf::new(chassis, router, ByPriority, (output, ()), plain));
        }
        let marks: Vec<Watermarks> = ports.iter().map(|port| port.marks).collect();
        let links = ports.iter().map(|port| (port.quantum, port.repetition));
        let pfc = Pfc::new(config.lossless, config.quanta, links);
        if let Some(output) = plain_output {
            match route {
                AnyRoute::Router(router) => {
                    let buffer = Lossless::new(config.lossless, marks, output);
                    return Switch::Pfc(SwitchOf::new(chassis, router, ByPriority, (buffer, pfc), plain));
                }
                other => route = other,
            }
        }
        let lossy = match (config.policy, &config.buffer) {
            (BufferPolicy::Output, &PortBuffers::Alike(limit)) => LossyBuffer::Output(OutputBuffer::new(limit)),
            (BufferPolicy::Output, PortBuffers::Each(limits)) => {
                LossyBuffer::Outputs(OutputBuffers::new(limits.clone()))
            }
            (BufferPolicy::Input, &PortBuffers::Alike(limit)) => LossyBuffer::Input(InputBuffer::new(limit, n)),
            (BufferPolicy::Input, PortBuffers::Each(_)) => unreachable!("inputs with buffers that differ"),
            (BufferPolicy::Pooled, buffer) => LossyBuffer::Pooled(PooledBuffer::new(buffer.sum(n))),
        };
        if !is_managed {
            let buffer = (Lossless::new(config.lossless, marks, lossy), pfc);
            return Switch::Any(SwitchOf::new(chassis, route, ByPriority, buffer, plain));
        }
        let buffer = match &config.shared {
            Some(shared) => AnyBuffer::Shared(SharedBuffer::new(shared.clone(), config.lossless, &marks)),
            None => AnyBuffer::Separate(Lossless::new(config.lossless, marks, lossy)),
        };
        let outputs =
            numbers.map(|port| (Markers::of_port(&config.markers, port), Scheduler::new(config.ets.as_ref())));
        Switch::Managed(SwitchOf::new(chassis, route, ByPriority, (buffer, pfc), outputs))
    }

    /// The switch with a steering part that chooses ports for flows beyond the router's choice.
    #[must_use]
    pub fn steered(self, steering: Steering) -> Switch {
        let output = |buffer: Lossless<OutputBuffer>| buffer.with(LossyBuffer::Output);
        match self {
            Switch::DropTail(s) => {
                Switch::SteeredDropTail(s.with(|router| Steered::new(router, steering), |buffer| buffer))
            }
            Switch::SteeredDropTail(s) => {
                Switch::SteeredDropTail(s.with(|route| route.with(steering), |buffer| buffer))
            }
            Switch::Pfc(s) => Switch::Any(s.with(|router| AnyRoute::Steered(Steered::new(router, steering)), output)),
            Switch::Any(s) => Switch::Any(s.with(|route| route.with(steering), |buffer| buffer)),
            Switch::Managed(s) => Switch::Managed(s.with(|route| route.with(steering), |buffer| buffer)),
        }
    }

    /// Does work on the switch. It is dispatched once, whatever it calls.
    #[inline(always)]
    pub fn run<F: Frame>(&mut self, work: impl OnSwitch<F>) {
        each!(self, s => work.run(s));
    }

    #[inline(always)]
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
            Switch::Managed(s) => Mark::<Packet>::counts(&s.egress[port as usize].marker, class),
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
    /// Bytes of a lossless class from input `from` that wait in the queue of output `to`.
    pub fn buffered(&self, from: PortId, to: PortId, class: Priority) -> u32 {
        each!(self, s => s.buffer.buffered(from, to, class))
    }

    /// The pauses sent since the last call.
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        core::mem::take(&mut self.chassis_mut().pauses)
    }
    /// Whether there are pauses to take.
    #[inline(always)]
    pub fn has_pauses(&self) -> bool {
        !self.chassis().pauses.is_empty()
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

    #[inline(always)]
    fn upcoming(&self, port: PortId) -> Option<Handle> {
        each!(self, s => Device::<F>::upcoming(s, port))
    }

    #[inline(always)]
    fn fetch(
        &self,
        step: PrefetchStep,
        arrivals: impl Iterator<Item = Handle>,
        pool: &Pool<F>,
        fetch: impl Fn(*const u8),
    ) {
        each!(self, s => s.fetch(step, arrivals, pool, fetch));
    }

    fn handle_timeout(&mut self, now: Instant, pool: &mut Pool<F>, woke: &mut PortSet) {
        each!(self, s => s.handle_timeout(now, pool, woke));
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        each!(self, s => Device::<F>::poll_timeout(s))
    }
}
