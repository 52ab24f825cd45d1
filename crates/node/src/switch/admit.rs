//! Admission: the buffer to which a frame is charged, and its room there.

use super::SharedBuffer;
use super::flow_control::{FlowControl, Pfc};
use crate::device::PortId;
use alloc::vec::Vec;
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::frame::{PRIORITIES, Priority, PrioritySet};
use sluicenet_proto::loss::DropReason;

/// A frame between its input and the queue of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The port at which the frame came in.
    pub input: PortId,
    /// The port whose queue the frame enters or leaves.
    pub output: PortId,
    /// The frame's traffic class.
    pub class: Priority,
    /// The frame's length.
    pub bytes: u32,
}

/// The fill level of an input's buffer in a class under flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level<'a> {
    /// Bytes in the buffer.
    pub bytes: u32,
    /// The buffer's thresholds.
    pub marks: &'a Watermarks,
}

/// The buffer policy of a switch. It keeps the accounts of all ports, because buffers are shared between them.
pub trait Admit {
    /// The flow control that this policy needs; `()` if every class is lossy.
    type FlowControl: FlowControl;

    /// Whether a frame fits, while `queue_bytes` wait in the queue that the frame would enter.
    ///
    /// # Errors
    /// The reason for which the frame must be dropped.
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason>;

    /// Charges an admitted frame that enters its queue; returns the level at its input, if that is now above XOFF.
    #[inline(always)]
    fn charge(&mut self, _frame: Placement) -> Option<Level<'_>> {
        None
    }

    /// Discharges a frame that has left its queue; returns the level at its input, if the frame's class is under flow
    /// control.
    #[inline(always)]
    fn discharge(&mut self, _frame: Placement) -> Option<Level<'_>> {
        None
    }

    /// The level at an input, if the class is under flow control.
    fn level(&self, _input: PortId, _class: Priority) -> Option<Level<'_>> {
        None
    }

    /// Bytes of a class under flow control from `input` in the queue of `output`.
    fn buffered(&self, _input: PortId, _output: PortId, _class: Priority) -> u32 {
        0
    }
}

#[inline(always)]
fn fits(used: u32, bytes: u32, limit: u32) -> Result<(), DropReason> {
    if u64::from(used) + u64::from(bytes) > u64::from(limit) { Err(DropReason::SwitchBuffer) } else { Ok(()) }
}

/// Each output queue holds at most the buffer of a port (Crisan 2014, line 827).
#[derive(Clone, Debug)]
pub struct OutputBuffer {
    limit: u32,
}

impl OutputBuffer {
    /// A policy with `limit` bytes for each output and class.
    pub fn new(limit: u32) -> OutputBuffer {
        OutputBuffer { limit }
    }
}

impl Admit for OutputBuffer {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        fits(queue_bytes, frame.bytes, self.limit)
    }
}

/// As [`OutputBuffer`], with buffers that differ from port to port.
#[derive(Clone, Debug)]
pub struct OutputBuffers {
    limits: Vec<u32>,
}

impl OutputBuffers {
    /// A policy with so many bytes for each output and class.
    pub fn new(limits: Vec<u32>) -> OutputBuffers {
        OutputBuffers { limits }
    }
}

impl Admit for OutputBuffers {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        fits(queue_bytes, frame.bytes, self.limits[frame.output as usize])
    }
}

/// As [`OutputBuffer`], with a limit in frames of whatever length.
#[derive(Clone, Debug)]
pub struct OutputFrames {
    limit: u32,
    /// Frames in the queue of each output and class.
    waiting: PerPort,
}

impl OutputFrames {
    /// A policy with `limit` frames for each output and class.
    pub fn new(limit: u32, ports: usize) -> OutputFrames {
        OutputFrames { limit, waiting: PerPort::new(ports) }
    }
}

impl Admit for OutputFrames {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, _queue_bytes: u32) -> Result<(), DropReason> {
        fits(self.waiting.get(frame.output, frame.class), 1, self.limit)
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        *self.waiting.get_mut(frame.output, frame.class) += 1;
        None
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        *self.waiting.get_mut(frame.output, frame.class) -= 1;
        None
    }
}

/// Each input buffers at most the buffer of a port, at whichever outputs its frames wait.
#[derive(Clone, Debug)]
pub struct InputBuffer {
    limit: u32,
    used: PerPort,
}

impl InputBuffer {
    /// A policy with `limit` bytes for each input and class.
    pub fn new(limit: u32, ports: usize) -> InputBuffer {
        InputBuffer { limit, used: PerPort::new(ports) }
    }
}

impl Admit for InputBuffer {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, _queue_bytes: u32) -> Result<(), DropReason> {
        fits(self.used.get(frame.input, frame.class), frame.bytes, self.limit)
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        *self.used.get_mut(frame.input, frame.class) += frame.bytes;
        None
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        *self.used.get_mut(frame.input, frame.class) -= frame.bytes;
        None
    }
}

/// All ports share one pool for each class (Crisan 2014, line 708).
#[derive(Clone, Debug)]
pub struct PooledBuffer {
    limit: u32,
    used: [u32; PRIORITIES],
}

impl PooledBuffer {
    /// A policy with `limit` bytes for each class.
    pub fn new(limit: u32) -> PooledBuffer {
        PooledBuffer { limit, used: [0; PRIORITIES] }
    }
}

impl Admit for PooledBuffer {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, _queue_bytes: u32) -> Result<(), DropReason> {
        fits(self.used[frame.class as usize], frame.bytes, self.limit)
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        self.used[frame.class as usize] += frame.bytes;
        None
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        self.used[frame.class as usize] -= frame.bytes;
        None
    }
}

/// One of the policies for lossy classes, chosen when the switch is built.
#[derive(Clone, Debug)]
pub enum LossyBuffer {
    /// By output queue.
    Output(OutputBuffer),
    /// By input.
    Input(InputBuffer),
    /// One pool.
    Pooled(PooledBuffer),
    /// By output queue, each with a limit of its own.
    Outputs(OutputBuffers),
    /// By output queue, in frames.
    Frames(OutputFrames),
}

impl Admit for LossyBuffer {
    type FlowControl = ();

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        match self {
            LossyBuffer::Output(b) => b.admit(frame, queue_bytes),
            LossyBuffer::Input(b) => b.admit(frame, queue_bytes),
            LossyBuffer::Pooled(b) => b.admit(frame, queue_bytes),
            LossyBuffer::Outputs(b) => b.admit(frame, queue_bytes),
            LossyBuffer::Frames(b) => b.admit(frame, queue_bytes),
        }
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        match self {
            LossyBuffer::Output(b) => b.charge(frame),
            LossyBuffer::Input(b) => b.charge(frame),
            LossyBuffer::Pooled(b) => b.charge(frame),
            LossyBuffer::Outputs(b) => b.charge(frame),
            LossyBuffer::Frames(b) => b.charge(frame),
        }
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        match self {
            LossyBuffer::Output(b) => b.discharge(frame),
            LossyBuffer::Input(b) => b.discharge(frame),
            LossyBuffer::Pooled(b) => b.discharge(frame),
            LossyBuffer::Outputs(b) => b.discharge(frame),
            LossyBuffer::Frames(b) => b.discharge(frame),
        }
    }
}

/// Lossless classes are charged to the buffer of their input, which has room above XOFF (Crisan 2014, 2.5.2); `B`
/// admits the others.
#[derive(Clone, Debug)]
pub struct Lossless<B> {
    classes: PrioritySet,
    /// Thresholds of each input.
    marks: Vec<Watermarks>,
    used: PerPort,
    by_output: ByOutput,
    lossy: B,
}

impl<B> Lossless<B> {
    /// A policy with the thresholds of each input.
    pub fn new(classes: PrioritySet, marks: Vec<Watermarks>, lossy: B) -> Lossless<B> {
        let n = marks.len();
        let by_output = ByOutput::new(classes, n);
        Lossless { classes, marks, used: PerPort::new(n), by_output, lossy }
    }

    /// The same with another policy for the other classes.
    pub(super) fn with<C>(self, lossy: impl FnOnce(B) -> C) -> Lossless<C> {
        let Lossless { classes, marks, used, by_output, lossy: before } = self;
        Lossless { classes, marks, used, by_output, lossy: lossy(before) }
    }
}

impl<B: Admit> Admit for Lossless<B> {
    type FlowControl = Pfc;

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        if !self.classes.contains(frame.class) {
            return self.lossy.admit(frame, queue_bytes);
        }
        let used = self.used.get(frame.input, frame.class);
        let capacity = self.marks[frame.input as usize].capacity;
        if used + frame.bytes > capacity { Err(DropReason::HeadroomExceeded) } else { Ok(()) }
    }

    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        if !self.classes.contains(frame.class) {
            return self.lossy.charge(frame);
        }
        let used = self.used.get_mut(frame.input, frame.class);
        *used += frame.bytes;
        let bytes = *used;
        *self.by_output.of(frame) += frame.bytes;
        let marks = &self.marks[frame.input as usize];
        (bytes > marks.xoff).then_some(Level { bytes, marks })
    }

    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        if !self.classes.contains(frame.class) {
            return self.lossy.discharge(frame);
        }
        let used = self.used.get_mut(frame.input, frame.class);
        *used -= frame.bytes;
        let bytes = *used;
        *self.by_output.of(frame) -= frame.bytes;
        Some(Level { bytes, marks: &self.marks[frame.input as usize] })
    }

    fn level(&self, input: PortId, class: Priority) -> Option<Level<'_>> {
        let bytes = self.used.get(input, class);
        self.classes.contains(class).then(|| Level { bytes, marks: &self.marks[input as usize] })
    }

    fn buffered(&self, input: PortId, output: PortId, class: Priority) -> u32 {
        self.by_output.get(input, output, class)
    }
}

/// The buffers of a switch, chosen when it is built.
#[derive(Clone, Debug)]
pub enum AnyBuffer {
    /// A buffer for each port or class.
    Separate(Lossless<LossyBuffer>),
    /// One pool.
    Shared(SharedBuffer),
}

macro_rules! each {
    ($buffer:expr, $b:ident => $then:expr) => {
        match $buffer {
            AnyBuffer::Separate($b) => $then,
            AnyBuffer::Shared($b) => $then,
        }
    };
}

impl Admit for AnyBuffer {
    type FlowControl = Pfc;

    #[inline(always)]
    fn admit(&self, frame: Placement, queue_bytes: u32) -> Result<(), DropReason> {
        each!(self, b => b.admit(frame, queue_bytes))
    }
    #[inline(always)]
    fn charge(&mut self, frame: Placement) -> Option<Level<'_>> {
        each!(self, b => b.charge(frame))
    }
    #[inline(always)]
    fn discharge(&mut self, frame: Placement) -> Option<Level<'_>> {
        each!(self, b => b.discharge(frame))
    }
    fn level(&self, input: PortId, class: Priority) -> Option<Level<'_>> {
        each!(self, b => b.level(input, class))
    }
    fn buffered(&self, input: PortId, output: PortId, class: Priority) -> u32 {
        each!(self, b => b.buffered(input, output, class))
    }
}

/// Bytes of each lossless class from each input in the queue of each output.
#[derive(Clone, Debug)]
pub(super) struct ByOutput {
    classes: PrioritySet,
    ports: usize,
    /// Those of the `l`th lossless class from input `i` to output `o`, at `(l * ports + i) * ports + o`.
    bytes: Vec<u32>,
}

impl ByOutput {
    pub fn new(classes: PrioritySet, ports: usize) -> ByOutput {
        ByOutput { classes, ports, bytes: alloc::vec![0; classes.iter().count() * ports * ports] }
    }

    #[inline(always)]
    fn at(&self, input: PortId, output: PortId, class: Priority) -> usize {
        let before = (self.classes.0 & ((1 << class) - 1)).count_ones() as usize;
        (before * self.ports + input as usize) * self.ports + output as usize
    }

    /// The account of a frame, whose class is lossless.
    #[inline(always)]
    pub fn of(&mut self, frame: Placement) -> &mut u32 {
        let at = self.at(frame.input, frame.output, frame.class);
        &mut self.bytes[at]
    }

    /// Bytes of a class; none if it is not lossless.
    pub fn get(&self, input: PortId, output: PortId, class: Priority) -> u32 {
        if self.classes.contains(class) { self.bytes[self.at(input, output, class)] } else { 0 }
    }
}

/// Bytes or frames for each port and class, at `class * ports + port`: few classes carry traffic, and their counters lie
/// side by side.
#[derive(Clone, Debug)]
struct PerPort {
    ports: usize,
    counts: Vec<u32>,
}

impl PerPort {
    fn new(ports: usize) -> PerPort {
        PerPort { ports, counts: alloc::vec![0; ports * PRIORITIES] }
    }

    #[inline(always)]
    fn get(&self, port: PortId, class: Priority) -> u32 {
        self.counts[class as usize * self.ports + port as usize]
    }

    #[inline(always)]
    fn get_mut(&mut self, port: PortId, class: Priority) -> &mut u32 {
        &mut self.counts[class as usize * self.ports + port as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: Priority = 2;

    fn frame(input: PortId, output: PortId, bytes: u32) -> Placement {
        Placement { input, output, class: CLASS, bytes }
    }

    const FULL: Result<(), DropReason> = Err(DropReason::SwitchBuffer);

    #[test]
    fn an_output_buffer_bounds_each_queue() {
        let b = OutputBuffer::new(3_000);
        assert_eq!((b.admit(frame(0, 1, 1_000), 2_000), b.admit(frame(0, 1, 1_000), 2_001)), (Ok(()), FULL));
        assert_eq!(b.admit(frame(0, 1, u32::MAX), u32::MAX), FULL);
    }

    #[test]
    fn a_buffer_of_frames_counts_each_frame_as_one() {
        let mut b = OutputFrames::new(2, 3);
        b.charge(frame(0, 1, 40));
        assert_eq!(b.admit(frame(2, 1, u32::MAX), u32::MAX), Ok(()));
        b.charge(frame(2, 1, 9_000));
        assert_eq!((b.admit(frame(0, 1, 40), 0), b.admit(frame(0, 2, 40), 0)), (FULL, Ok(())));
        assert_eq!(b.admit(Placement { class: 0, ..frame(0, 1, 40) }, 0), Ok(()), "each class has a queue of its own");
        b.discharge(frame(0, 1, 40));
        assert_eq!(b.admit(frame(0, 1, 9_000), 0), Ok(()));
    }

    #[test]
    fn an_input_buffer_bounds_frames_of_one_input_at_all_outputs() {
        let mut b = InputBuffer::new(3_000, 3);
        b.charge(frame(0, 1, 2_000));
        b.charge(frame(0, 2, 500));
        assert_eq!((b.admit(frame(0, 1, 501), 0), b.admit(frame(1, 1, 501), 9_999)), (FULL, Ok(())));
        b.discharge(frame(0, 1, 2_000));
        assert_eq!(b.admit(frame(0, 1, 501), 0), Ok(()));
    }

    #[test]
    fn a_pool_is_shared_by_all_ports() {
        let mut b = PooledBuffer::new(3_000);
        b.charge(frame(0, 1, 2_000));
        b.charge(frame(1, 2, 500));
        assert_eq!(b.admit(frame(2, 0, 501), 0), FULL);
        assert_eq!(b.admit(Placement { class: 0, ..frame(2, 0, 501) }, 0), Ok(()), "classes have pools of their own");
        b.discharge(frame(0, 1, 2_000));
        assert_eq!(b.admit(frame(2, 0, 501), 0), Ok(()));
    }

    #[test]
    fn every_lossy_policy_can_be_chosen() {
        let output = LossyBuffer::Output(OutputBuffer::new(1_000));
        let input = LossyBuffer::Input(InputBuffer::new(1_000, 2));
        let pooled = LossyBuffer::Pooled(PooledBuffer::new(1_000));
        let after_one = |mut b: LossyBuffer| {
            b.charge(frame(0, 1, 600));
            let same_input = b.admit(frame(0, 0, 600), 0);
            let same_output = b.admit(frame(1, 1, 600), 600);
            b.discharge(frame(0, 1, 600));
            (same_input, same_output, b.admit(frame(0, 0, 600), 0))
        };
        assert_eq!(after_one(output), (Ok(()), FULL, Ok(())));
        assert_eq!(after_one(input), (FULL, Ok(()), Ok(())));
        assert_eq!(after_one(pooled), (FULL, FULL, Ok(())));
        assert_eq!(after_one(LossyBuffer::Frames(OutputFrames::new(1, 2))), (Ok(()), FULL, Ok(())));
        // The output with the smaller buffer is full, the other is not.
        let outputs = |limits: [u32; 2]| LossyBuffer::Outputs(OutputBuffers::new(limits.to_vec()));
        assert_eq!(after_one(outputs([600, 1_199])), (Ok(()), FULL, Ok(())));
        assert_eq!(after_one(outputs([599, 1_200])), (FULL, Ok(()), FULL));
    }

    #[test]
    fn a_lossless_class_is_charged_to_its_input_and_others_to_the_lossy_buffer() {
        let marks = Watermarks { xoff: 2_000, xon: 1_000, capacity: 3_000, headroom: 1_000 };
        let mut b = Lossless::new(PrioritySet(1 << CLASS | 1 << 5), alloc::vec![marks; 2], OutputBuffer::new(100));
        assert_eq!(b.charge(frame(0, 1, 2_000)), None);
        assert_eq!(b.charge(frame(0, 0, 1)).map(|level| level.bytes), Some(2_001));
        assert_eq!((b.admit(frame(0, 1, 999), 0), b.admit(frame(1, 1, 3_000), 0)), (Ok(()), Ok(())));
        assert_eq!(b.admit(frame(0, 1, 1_000), 0), Err(DropReason::HeadroomExceeded));
        assert_eq!((b.buffered(0, 1, CLASS), b.buffered(0, 0, CLASS), b.buffered(0, 1, 5)), (2_000, 1, 0));
        assert_eq!(b.discharge(frame(0, 1, 2_000)), Some(Level { bytes: 1, marks: &marks }));
        assert_eq!((b.level(0, CLASS).map(|level| level.bytes), b.level(0, 0)), (Some(1), None));
        let lossy = Placement { class: 0, ..frame(0, 1, 101) };
        assert_eq!((b.admit(lossy, 0), b.charge(lossy)), (FULL, None));
        assert_eq!(b.discharge(lossy), None);
        assert_eq!(b.buffered(0, 1, 0), 0);
    }
}
