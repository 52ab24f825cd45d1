//! The CEE switch: input-buffered, output-queued, with priority flow control (Crisan 2014, 2.5.2).
//!
//! A frame is charged to the buffer of its input and stands in the queue of its output, per priority. A frame whose
//! output is idle and empty passes straight through and is charged to nobody.

mod link;

use crate::door::{Device, PortId, PortSet, Step, Wires};
use crate::pool::{Fifo, Handle, Pool};
use crate::steering::Steering;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::{Gate, Repetition, Rise, Signal, Watermarks};
use sluicenet_proto::frame::{Frame, PRIORITIES, Pause, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::routing::Router;
use sluicenet_proto::time::{Duration, Instant};

/// What bounds a lossy queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPolicy {
    /// Each output queue holds at most the buffer of a port (Crisan 2014, line 827).
    Output,
    /// Each input buffers at most the buffer of a port, wherever the frames go.
    Input,
    /// All inputs share one pool: an output queue is bounded by the sum of all buffers (Crisan 2014, line 708).
    Pooled,
}

/// Settings that all ports of a switch share.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Buffer of a port and priority, in bytes.
    pub buffer: u32,
    /// What bounds a lossy queue.
    pub policy: BufferPolicy,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Pause time sent with XOFF, in quanta.
    pub quanta: u16,
    /// Whether frames with a bad check sequence are forwarded: a cut-through switch cannot know better.
    pub cut_through: bool,
}

/// What differs between the ports of a switch.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Watermarks of the port's buffer for a lossless priority.
    pub marks: Watermarks,
    /// Time of one pause quantum on this link.
    pub quantum: Duration,
    /// What is said again, where the link damages frames.
    pub repetition: Option<Repetition>,
}

/// What filled a receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// In a switch: the output that held most of the bytes.
    Output(PortId),
    /// In a server: a VM that does not take its frames.
    Vm(u8),
    /// In a server: the link itself, over which frames came before others that they wait for.
    Link(PortId),
}

/// A pause a box sent, for the record: who was stopped and because of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseEvent {
    /// When.
    pub at: Instant,
    /// The port whose other end was stopped or let go.
    pub port: PortId,
    /// Traffic class.
    pub priority: Priority,
    /// XOFF (true) or XON.
    pub stop: bool,
    /// What filled the buffer behind `port`.
    pub cause: Cause,
    /// Whether that is an output which was itself held by its other end: then the congestion comes from further down.
    pub cause_is_held: bool,
}

/// The part of an output that every frame touches.
#[derive(Clone, Copy, Debug, Default)]
struct Egress {
    /// Priorities with frames in the queue.
    ready: PrioritySet,
    /// Priorities held by the other end, as the gate says.
    held: PrioritySet,
    /// Priority served last.
    last: Priority,
    /// Whether a pause frame is due.
    control: bool,
    /// Whether its link carries nothing.
    is_dead: bool,
    queued_bytes: u32,
    max_bytes: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    list: Fifo,
    bytes: u32,
}

/// The part of a port that only pauses touch.
#[derive(Clone, Debug)]
struct FlowControl {
    gate: Gate,
    signal: Signal,
    config: PortConfig,
}

/// Frames and bytes a switch dropped, by output port, priority and reason.
pub type DropLedger = BTreeMap<(PortId, Priority, DropReason), (u64, u64)>;

/// A switch.
#[derive(Clone, Debug)]
pub struct Switch {
    router: Router,
    /// What it does with flows beyond that, in a fat-tree with a control loop.
    steering: Option<Box<Steering>>,
    lossless: PrioritySet,
    cut_through: bool,
    policy: BufferPolicy,
    quanta: u16,
    buffer: u32,
    egress: Vec<Egress>,
    /// Output queues at `priority * ports + port`: few priorities carry traffic, and theirs lie side by side.
    queues: Vec<Queue>,
    /// Bytes buffered at `priority * ports + port` of the input; not kept where nothing is bounded by them.
    ingress: Vec<u32>,
    /// Bytes of the `l`th lossless priority from input `i` in the queue of output `o`, at `(l * ports + i) * ports + o`.
    share: Vec<u32>,
    pooled: [u32; PRIORITIES],
    queued: u32,
    flow_control: Vec<FlowControl>,
    deadline: Instant,
    frames_in: u64,
    frames_out: u64,
    control_in: u64,
    control_out: u64,
    drops: DropLedger,
    pauses: Vec<PauseEvent>,
    record_pauses: bool,
}

impl Switch {
    /// A switch with one port for each entry of `ports`.
    pub fn new(config: &SwitchConfig, router: Router, ports: &[PortConfig], record_pauses: bool) -> Switch {
        let n = ports.len();
        let share = config.lossless.iter().count() * n * n;
        Switch {
            router,
            steering: None,
            egress: alloc::vec![Egress::default(); n],
            queues: alloc::vec![Queue::default(); n * PRIORITIES],
            ingress: alloc::vec![0; n * PRIORITIES],
            share: alloc::vec![0; share],
            pooled: [0; PRIORITIES],
            queued: 0,
            flow_control: if config.lossless.is_empty() {
                Vec::new()
            } else {
                let port = |&config: &PortConfig| {
                    let signal = Signal::new(config.repetition);
                    FlowControl { gate: Gate::default(), signal, config }
                };
                ports.iter().map(port).collect()
            },
            lossless: config.lossless,
            cut_through: config.cut_through,
            policy: config.policy,
            quanta: config.quanta,
            buffer: config.buffer,
            deadline: Instant::MAX,
            frames_in: 0,
            frames_out: 0,
            control_in: 0,
            control_out: 0,
            drops: DropLedger::new(),
            pauses: Vec::new(),
            record_pauses,
        }
    }

    /// Lets it choose ports for flows beyond what its router says.
    pub fn steer(&mut self, steering: Steering) {
        self.steering = Some(Box::new(steering));
    }
    /// That part of it.
    pub fn steering_mut(&mut self) -> Option<&mut Steering> {
        self.steering.as_deref_mut()
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.egress.len()
    }
    /// Frames received, pause frames not counted.
    pub fn frames_in(&self) -> u64 {
        self.frames_in
    }
    /// Frames sent, pause frames not counted.
    pub fn frames_out(&self) -> u64 {
        self.frames_out
    }
    /// Pause frames received.
    pub fn control_in(&self) -> u64 {
        self.control_in
    }
    /// Pause frames sent.
    pub fn control_out(&self) -> u64 {
        self.control_out
    }
    /// Frames in its queues.
    pub fn queued(&self) -> u64 {
        self.queued as u64
    }
    /// What it dropped.
    pub fn drops(&self) -> &DropLedger {
        &self.drops
    }
    /// Bytes in the queue of an output, of one priority.
    pub fn queue_bytes(&self, port: PortId, priority: Priority) -> u32 {
        self.queues[self.at(port, priority)].bytes
    }
    /// Most bytes that ever stood in the queues of an output.
    pub fn max_queue_bytes(&self, port: PortId) -> u32 {
        self.egress[port as usize].max_bytes
    }
    /// The gate of a port; none without flow control.
    pub fn gate(&self, port: PortId) -> Option<&Gate> {
        self.flow_control.get(port as usize).map(|f| &f.gate)
    }
    /// What a port told its other end; none without flow control.
    pub fn signal(&self, port: PortId) -> Option<&Signal> {
        self.flow_control.get(port as usize).map(|f| &f.signal)
    }
    /// Bytes of a lossless priority from input `from` that stand in the queue of output `to`.
    pub fn share(&self, from: PortId, to: PortId, priority: Priority) -> u32 {
        if self.lossless.contains(priority) { self.share[self.share_at(from, priority) + to as usize] } else { 0 }
    }

    /// Where the shares of an input begin.
    #[inline(always)]
    fn share_at(&self, input: PortId, p: Priority) -> usize {
        let before = (self.lossless.0 & ((1 << p) - 1)).count_ones() as usize;
        (before * self.egress.len() + input as usize) * self.egress.len()
    }
    /// The pauses sent since the last call.
    pub fn take_pauses(&mut self) -> Vec<PauseEvent> {
        core::mem::take(&mut self.pauses)
    }
    /// Whether there are pauses to take.
    #[inline(always)]
    pub fn has_pauses(&self) -> bool {
        !self.pauses.is_empty()
    }

    /// Where the counters of a port and priority are.
    #[inline(always)]
    fn at(&self, port: PortId, p: Priority) -> usize {
        p as usize * self.egress.len() + port as usize
    }

    /// Whether bytes of `p` are charged to the input they came by.
    #[inline(always)]
    fn charges_input(&self, p: Priority) -> bool {
        self.lossless.contains(p) || self.policy != BufferPolicy::Output
    }

    /// Admits a frame to the buffers, or says why not.
    #[inline(always)]
    fn admit(&mut self, input: PortId, output: PortId, p: Priority, len: u32) -> Result<(), DropReason> {
        let buffer = self.buffer;
        let at_input = |s: &Self| s.ingress[s.at(input, p)];
        if self.lossless.contains(p) {
            let capacity = self.flow_control[input as usize].config.marks.capacity;
            return if at_input(self) + len > capacity { Err(DropReason::HeadroomExceeded) } else { Ok(()) };
        }
        let (used, limit) = match self.policy {
            BufferPolicy::Output => (self.queues[self.at(output, p)].bytes, buffer),
            BufferPolicy::Input => (at_input(self), buffer),
            BufferPolicy::Pooled => (self.pooled[p as usize], buffer.saturating_mul(self.egress.len() as u32)),
        };
        if used as u64 + len as u64 > limit as u64 { Err(DropReason::SwitchBuffer) } else { Ok(()) }
    }

    #[cold]
    fn drop(&mut self, output: PortId, p: Priority, reason: DropReason, len: u32) {
        let entry = self.drops.entry((output, p, reason)).or_default();
        entry.0 += 1;
        entry.1 += len as u64;
    }

    #[cold]
    #[inline(never)]
    fn receive_pause(&mut self, now: Instant, port: PortId, pause: Option<Pause>, woke: &mut PortSet) {
        self.control_in += 1;
        // Without flow control a pause frame is for nobody here (HOSTILE 27): ignored.
        let (Some(pause), Some(fc)) = (pause, self.flow_control.get_mut(port as usize)) else { return };
        let mut pause = pause;
        pause.classes.0 &= self.lossless.0;
        fc.gate.receive(now, &pause, fc.config.quantum);
        self.after_gate(port, woke);
    }

    fn after_gate(&mut self, port: PortId, woke: &mut PortSet) {
        let gate = &self.flow_control[port as usize].gate;
        if let Some(at) = gate.poll_timeout() {
            self.deadline = self.deadline.min(at);
        }
        let e = &mut self.egress[port as usize];
        e.held = gate.held();
        if e.ready.0 & !e.held.0 != 0 {
            woke.insert(port);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_pause(&mut self, now: Instant, port: PortId, priority: Priority, stop: bool) {
        let n = self.ports();
        let row = &self.share[self.share_at(port, priority)..][..n];
        // The lowest port wins a tie: the record must not depend on anything but content.
        let cause = (0..n).max_by_key(|&o| (row[o], n - o)).unwrap_or(0) as PortId;
        let cause_is_held = self.egress[cause as usize].held.contains(priority);
        let cause = Cause::Output(cause);
        self.pauses.push(PauseEvent { at: now, port, priority, stop, cause, cause_is_held });
    }

    /// Charges a queued frame; tells the other end of `input` when that crosses XOFF.
    #[inline(always)]
    fn charge(&mut self, now: Instant, input: PortId, output: PortId, p: Priority, len: u32, woke: &mut PortSet) {
        if !self.charges_input(p) {
            return;
        }
        let at = self.at(input, p);
        self.ingress[at] += len;
        let bytes = self.ingress[at];
        if self.lossless.contains(p) {
            let at = self.share_at(input, p) + output as usize;
            self.share[at] += len;
            let fc = &mut self.flow_control[input as usize];
            if bytes > fc.config.marks.xoff
                && let Some(rise) = fc.signal.on_rise(p, bytes, &fc.config.marks)
            {
                self.egress[input as usize].control = true;
                woke.insert(input);
                if self.record_pauses && rise == Rise::Stopped {
                    self.note_pause(now, input, p, true);
                }
            }
        } else {
            self.pooled[p as usize] += len;
        }
    }

    /// Gives the space of a frame back; lets the other end of `input` go on when that crosses XON.
    #[inline(always)]
    fn discharge(&mut self, now: Instant, input: PortId, output: PortId, p: Priority, len: u32, woke: &mut PortSet) {
        if !self.charges_input(p) {
            return;
        }
        let at = self.at(input, p);
        self.ingress[at] -= len;
        let bytes = self.ingress[at];
        if self.lossless.contains(p) {
            let at = self.share_at(input, p) + output as usize;
            self.share[at] -= len;
            let fc = &mut self.flow_control[input as usize];
            if fc.signal.stopped().contains(p) && fc.signal.on_fall(p, bytes, &fc.config.marks) {
                self.egress[input as usize].control = true;
                woke.insert(input);
                if self.record_pauses {
                    self.note_pause(now, input, p, false);
                }
            }
        } else {
            self.pooled[p as usize] -= len;
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_control(&mut self, now: Instant, port: PortId, woke: &mut PortSet) -> Option<Pause> {
        let e = &mut self.egress[port as usize];
        e.control = false;
        if e.ready.0 & !e.held.0 != 0 {
            woke.insert(port);
        }
        let fc = &mut self.flow_control[port as usize];
        let lasts = fc.config.quantum.saturating_mul(self.quanta as u64);
        let pause = fc.signal.poll(now, self.quanta, lasts)?;
        if let Some(at) = fc.signal.poll_timeout() {
            self.deadline = self.deadline.min(at);
        }
        self.control_out += 1;
        Some(pause)
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
        let frame = pool.frame(at);
        if frame.is_pause() {
            // What fails the check sequence is thrown away unread.
            let pause = if frame.is_corrupt() { None } else { frame.as_pause() };
            pool.release(at);
            self.receive_pause(now, port, pause, woke);
            return None;
        }
        self.frames_in += 1;
        let (p, len) = (frame.priority(), frame.len());
        let Some(output) = self.router.route(frame) else {
            self.drop(port, p, DropReason::NoRoute, len);
            pool.release(at);
            return None;
        };
        let steered = match &mut self.steering {
            Some(steering) => steering.route(now, port, frame, output),
            None => Some(output),
        };
        let Some(output) = steered else {
            self.drop(output, p, DropReason::NoRoute, len);
            pool.release(at);
            return None;
        };
        if self.egress[output as usize].is_dead {
            self.drop(output, p, DropReason::PortGone, len);
            pool.release(at);
            return None;
        }
        if frame.is_corrupt() && !self.cut_through {
            self.drop(output, p, DropReason::BadCrc, len);
            pool.release(at);
            return None;
        }
        let e = self.egress[output as usize];
        if e.ready.is_empty() && !e.control && !e.held.contains(p) && wires.idle(output) {
            self.frames_out += 1;
            return Some(output);
        }
        if let Err(reason) = self.admit(port, output, p, len) {
            self.drop(output, p, reason, len);
            pool.release(at);
            return None;
        }
        let queue = self.at(output, p);
        let queue = &mut self.queues[queue];
        pool.push(&mut queue.list, at, port);
        queue.bytes += len;
        self.queued += 1;
        let e = &mut self.egress[output as usize];
        let was_ready = e.ready.0 & !e.held.0 != 0;
        e.ready.insert(p);
        e.queued_bytes += len;
        e.max_bytes = e.max_bytes.max(e.queued_bytes);
        // A port that was ready has been told of, and stays so until it is asked.
        if !was_ready && !e.held.contains(p) {
            woke.insert(output);
        }
        self.charge(now, port, output, p, len, woke);
        None
    }

    #[inline(always)]
    fn poll_transmit(&mut self, now: Instant, port: PortId, pool: &mut Pool<F>, woke: &mut PortSet) -> Option<Handle> {
        let ports = self.egress.len();
        let e = &mut self.egress[port as usize];
        if e.control {
            return self.poll_control(now, port, woke).map(|pause| pool.insert(&F::from_pause(pause)));
        }
        let p = PrioritySet(e.ready.0 & !e.held.0).next_after(e.last)?;
        e.last = p;
        let queue = &mut self.queues[p as usize * ports + port as usize];
        let (at, input) = pool.pop(&mut queue.list)?;
        let len = pool.frame(at).len();
        self.queued -= 1;
        queue.bytes -= len;
        e.queued_bytes -= len;
        e.ready.0 &= !((queue.list.is_empty() as u8) << p);
        if e.ready.0 & !e.held.0 != 0 {
            woke.insert(port);
        }
        self.frames_out += 1;
        self.discharge(now, input, port, p, len, woke);
        Some(at)
    }

    #[inline(always)]
    fn upcoming(&self, port: PortId) -> Option<Handle> {
        let e = &self.egress[port as usize];
        let p = e.ready.next_after(e.last)?;
        self.queues[self.at(port, p)].list.front()
    }

    #[inline(always)]
    fn fetch(&self, step: Step, _arrivals: impl Iterator<Item = Handle>, _pool: &Pool<F>, fetch: impl Fn(*const u8)) {
        if step == Step::Lists {
            let ports = self.egress.len();
            let egress: *const u8 = self.egress.as_ptr().cast();
            (0..core::mem::size_of::<Egress>() * ports).step_by(64).for_each(|at| fetch(egress.wrapping_add(at)));
            let queues: *const u8 = self.queues.as_ptr().cast();
            (0..core::mem::size_of::<Queue>() * ports).step_by(64).for_each(|at| fetch(queues.wrapping_add(at)));
        }
    }

    fn handle_timeout(&mut self, now: Instant, _pool: &mut Pool<F>, woke: &mut PortSet) {
        if now < self.deadline {
            return;
        }
        self.deadline = Instant::MAX;
        for port in 0..self.flow_control.len() {
            let fc = &mut self.flow_control[port];
            fc.gate.handle_timeout(now);
            if fc.signal.handle_timeout(now) {
                self.egress[port].control = true;
                woke.insert(port as PortId);
            }
            if let Some(at) = fc.signal.poll_timeout() {
                self.deadline = self.deadline.min(at);
            }
            self.after_gate(port as PortId, woke);
        }
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        self.deadline
    }
}
