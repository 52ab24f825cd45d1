//! XCo: explicit coordination of transmissions (Rajanna, Jahagirdar, Shah, Gopalan: Explicit Coordination to Prevent
//! Congestion in Data Center Networks).
//!
//! A central [`controller`] knows the topology and the backlog of every node. It tells each node when, or how fast, the
//! node may send to a destination. The local [`coordinator`] of a node holds frames until it is allowed to send them.
//!
//! | part | does |
//! |---|---|
//! | [`topology`] | links, capacities, spanning trees, and the path between two nodes |
//! | [`slices`] | timeslice scheduling (Algorithm 1), and rates within slices |
//! | [`rates`] | rate limiting (3.3) |
//! | [`demand`] | on-demand coordination: links that are congested, and flows that are large (section 7) |
//! | [`controller`] | sessions with coordinators, messages, hot standby |
//! | [`hierarchy`] | controllers of racks, rows and the core (section 7) |
//! | [`coordinator`] | the gate of a node |
//!
//! All parts are pure: time comes in as `now`, messages go out by `poll_transmit`, and deadlines by `poll_timeout`.
//!
//! Lines refer to Algorithm 1 of the source.

pub mod controller;
pub mod coordinator;
pub mod demand;
mod flows;
pub mod hierarchy;
pub mod rates;
pub mod slices;
#[cfg(test)]
mod tests;
pub mod topology;

use crate::time::Duration;

/// A node: an end-host, numbered from 0.
pub type Node = u32;

/// The shortest timeslice (3.2: "in the order of 1ms to 10ms").
pub const SLICE_MIN: Duration = Duration::from_ms(1);
/// The longest timeslice of a flow of weight 1 (3.2).
pub const SLICE_MAX: Duration = Duration::from_ms(10);
/// The largest weight of a flow: a slice of the largest weight is as long as TCP's usual shortest timeout of 200 ms.
pub const WEIGHT_MAX: u8 = 16;
const _: () = assert!(SLICE_MAX.0 * WEIGHT_MAX as u64 <= Duration::from_ms(200).0);

/// Permission to send, from a scheduling policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The sender.
    pub source: Node,
    /// The destination.
    pub destination: Node,
    /// The destination whose slice ends at once: the sender was pre-empted.
    pub instead_of: Option<Node>,
    /// The highest rate in kb/s.
    pub rate_kbps: u32,
    /// Time until the permission ends.
    pub length: Duration,
}

/// Reason why a policy refuses a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such node, or the flow ends where it begins.
    NoSuchNode,
    /// The node has as many flows as a node may have.
    NodeFull,
    /// There are as many flows as the controller has room for.
    Full,
    /// The nodes meet at another level than that of the controller.
    OtherLevel,
    /// The node's link is faster than a link of the path: in a whole timeslice it would overload that link (section 7).
    TooFast,
}

/// The rate of a small flow without a setting, as a part of the rate of its node's link.
pub const SMALL_PERCENT: u64 = 4;

/// Flows that a node may have.
const FLOWS_PER_NODE: usize = 256;
/// Flows of all nodes, on average of each.
const FLOWS_AVERAGE: usize = 16;

/// Limits of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Flows of all nodes.
    pub flows: usize,
    /// Flows of a node.
    pub flows_per_node: usize,
}

impl Limits {
    /// The limits of a network with so many nodes.
    pub fn of_nodes(nodes: usize) -> Limits {
        Limits { flows: (FLOWS_AVERAGE * nodes).max(4 * FLOWS_PER_NODE), flows_per_node: FLOWS_PER_NODE }
    }
}
