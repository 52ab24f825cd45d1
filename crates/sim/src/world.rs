//! The simulated world: boxes, and the links between them.

use sluicenet_node::bump::Bump;
use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_node::packet::Framing;
use sluicenet_node::server::AnyServer;
use sluicenet_node::switch::Switch;
use sluicenet_proto::time::Duration;
use std::sync::Arc;

/// A box.
#[derive(Debug)]
pub enum Node<A> {
    /// A box without guests, or one of any kind that is [`Node::IDLE`]. They share a variant, so that servers pay nothing for
    /// the others.
    Network(Option<Box<NetworkBox>>),
    /// A server.
    Server(AnyServer<A>),
}

/// Makes a box.
pub type Make<A> = dyn Fn(NodeId) -> Node<A> + Send + Sync;

/// Calls a function with every direction of every link.
pub type Links = dyn Fn(&mut dyn FnMut(&Direction)) + Send;

/// A box without guests.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub enum NetworkBox {
    /// A switch.
    Switch(Switch),
    /// A bump in links.
    Bump(Bump),
}

/// A box by its kind.
#[derive(Debug)]
pub enum NodeRef<'a, A> {
    /// A switch.
    Switch(&'a Switch),
    /// A server.
    Server(&'a AnyServer<A>),
    /// A bump.
    Bump(&'a Bump),
    /// A box that nothing has reached yet.
    Idle,
}

impl<A> Node<A> {
    /// A box without applications and without a deadline of its own that nothing has reached yet. The engine makes it
    /// ([`World::make`]) before the first frame or message arrives.
    pub const IDLE: Node<A> = Node::Network(None);

    /// Whether nothing has reached the box yet.
    pub fn is_idle(&self) -> bool {
        matches!(self, Node::Network(None))
    }
    /// A switch.
    pub fn switch(switch: Switch) -> Node<A> {
        Node::Network(Some(Box::new(NetworkBox::Switch(switch))))
    }
    /// A bump.
    pub fn bump(bump: Bump) -> Node<A> {
        Node::Network(Some(Box::new(NetworkBox::Bump(bump))))
    }
    /// The box by its kind.
    pub fn kind(&self) -> NodeRef<'_, A> {
        match self {
            Node::Server(server) => NodeRef::Server(server),
            Node::Network(network) => match network.as_deref() {
                Some(NetworkBox::Switch(switch)) => NodeRef::Switch(switch),
                Some(NetworkBox::Bump(bump)) => NodeRef::Bump(bump),
                None => NodeRef::Idle,
            },
        }
    }
    /// The switch, if it is one.
    pub fn as_switch(&self) -> Option<&Switch> {
        match self.kind() {
            NodeRef::Switch(switch) => Some(switch),
            _ => None,
        }
    }
    /// The switch, if it is one.
    pub fn as_switch_mut(&mut self) -> Option<&mut Switch> {
        match self {
            Node::Network(network) => match network.as_deref_mut() {
                Some(NetworkBox::Switch(switch)) => Some(switch),
                Some(NetworkBox::Bump(_)) | None => None,
            },
            Node::Server(_) => None,
        }
    }
    /// The server, if it is one that something has reached.
    pub fn as_server(&self) -> Option<&AnyServer<A>> {
        match self {
            Node::Server(server) => Some(server),
            Node::Network(_) => None,
        }
    }
    /// The bump, if it is one.
    pub fn as_bump(&self) -> Option<&Bump> {
        match self.kind() {
            NodeRef::Bump(bump) => Some(bump),
            _ => None,
        }
    }
}

/// The whole simulated world.
pub struct World<A> {
    /// The boxes: first the servers, by the numbers of their hosts.
    pub nodes: Vec<Node<A>>,
    /// Number of servers.
    pub hosts: u32,
    /// Makes the boxes that are [`Node::IDLE`].
    pub make: Arc<Make<A>>,
    /// The links, two directions each.
    pub links: Box<Links>,
    /// The framing around a packet on every link.
    pub framing: Framing,
    /// Longest latency of a stage inside a box that every packet passes; lanes should reach this far.
    pub stage_latency: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// Reason why a world cannot be simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorldError {
    /// A link without any delay: no box could be simulated ahead of another.
    NoDelay {
        /// The link's sender.
        from: (NodeId, PortId),
    },
    /// Two links end at one port, or a link ends at a port that does not exist.
    Port {
        /// The port.
        at: (NodeId, PortId),
    },
    /// A box has more ports than the engine supports.
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
