//! Links between two boxes.

use crate::device::PortId;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// A box of a network, counted from 0.
pub type NodeId = u32;

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Direction {
    /// Sending box and port.
    pub from: (NodeId, PortId),
    /// Receiving box and port.
    pub to: (NodeId, PortId),
    /// Speed.
    pub rate: Rate,
    /// Time from a bit at the transmitter to that bit at the receiver's queues: adapter, cable, switch.
    pub latency: Duration,
    /// Whether the receiver acts on the first bit of a frame (cut-through) or on the last.
    pub first_bit: bool,
    /// Time from the last bit of a pause frame to the receiver's gate: cable and response time.
    pub pause_latency: Duration,
    /// Probability of a bit error.
    pub bit_error_rate: f64,
}
