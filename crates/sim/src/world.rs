//! What is simulated: boxes, and the links between them.

use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_node::packet::Framing;
use sluicenet_node::server::AnyServer;
use sluicenet_node::switch::Switch;
use sluicenet_proto::time::Duration;

/// A box.
#[derive(Debug)]
pub enum Node<A> {
    /// A switch.
    Switch(Box<Switch>),
    /// A server.
    Server(AnyServer<A>),
}

impl<A> Node<A> {
    /// The switch, if it is one.
    pub fn as_switch(&self) -> Option<&Switch> {
        match self {
            Node::Switch(s) => Some(s),
            Node::Server(_) => None,
        }
    }
    /// The server, if it is one.
    pub fn as_server(&self) -> Option<&AnyServer<A>> {
        match self {
            Node::Server(s) => Some(s),
            Node::Switch(_) => None,
        }
    }
}

/// Everything there is.
#[derive(Debug)]
pub struct World<A> {
    /// The boxes.
    pub nodes: Vec<Node<A>>,
    /// The links, two directions each.
    pub links: Vec<Direction>,
    /// What stands around a packet on every link.
    pub framing: Framing,
    /// Longest latency of a stage inside a box that every packet passes; what lanes should reach.
    pub stage_latency: Duration,
    /// Seed of everything random.
    pub seed: u64,
    /// For each box, the thread-sized part of the world it belongs to: boxes with much to say to each other share one.
    pub part: Vec<u32>,
}

/// Why a world cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldError {
    /// A link without any delay: nothing could be computed ahead of anything.
    NoDelay {
        /// Its sender.
        from: (NodeId, PortId),
    },
    /// Two links end at one port, or a link at a port that is not there.
    Port {
        /// The port.
        at: (NodeId, PortId),
    },
    /// More ports at a box than the engine names.
    TooManyPorts {
        /// The box.
        node: NodeId,
    },
}

impl core::fmt::Display for WorldError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WorldError::NoDelay { from: (n, p) } => {
                write!(f, "the link at node {n} port {p} has no delay: give it at least 1 ns of cable or switch delay")
            }
            WorldError::Port { at: (n, p) } => write!(f, "node {n} port {p} has two links or does not exist"),
            WorldError::TooManyPorts { node } => write!(f, "node {node} has more ports than the engine can name"),
        }
    }
}

impl std::error::Error for WorldError {}
