//! The classifier: it finds the traffic class of a frame.

use crate::device::PortId;
use sluicenet_proto::frame::{Frame, Priority};

/// Decides the traffic class of a frame: the queue in which it waits, and the class that flow control stops.
pub trait Classify {
    /// The class of a frame that came in at `input`.
    fn class<F: Frame>(&self, input: PortId, frame: &F) -> Priority;
}

/// One class for each priority of the frame's tag (802.1Q, 8.6.6).
#[derive(Clone, Copy, Debug, Default)]
pub struct ByPriority;

impl Classify for ByPriority {
    #[inline(always)]
    fn class<F: Frame>(&self, _input: PortId, frame: &F) -> Priority {
        frame.priority()
    }
}
