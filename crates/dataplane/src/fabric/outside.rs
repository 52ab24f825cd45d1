//! The surroundings of a fabric: the servers at its edges, and an observer of its links.

use super::frame::Descriptor;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_proto::time::Instant;

/// Receives the output of a fabric.
pub trait Outside {
    /// A frame, without its check sequence, leaves the fabric for the server at `edge`. Returns whether the server had room for
    /// it; otherwise the fabric offers it again after [`Fabric::has_room`](super::Fabric::has_room).
    fn send(&mut self, now: Instant, edge: NodeId, frame: &[u8]) -> bool;

    /// A frame starts on a link inside the fabric.
    fn departs(&mut self, _departure: &Departure<'_>) {}
}

/// A frame that starts on a link.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    /// When its first bit is sent.
    pub at: Instant,
    /// The box that sends it.
    pub node: NodeId,
    /// The port.
    pub port: PortId,
    /// Its headers.
    pub frame: &'a Descriptor,
    /// Its bytes without its check sequence; empty for a pause, which its descriptor describes completely.
    pub bytes: &'a [u8],
}
