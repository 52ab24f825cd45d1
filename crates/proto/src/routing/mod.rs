//! Where a switch sends a frame, and a host with several links: arithmetic in trees, tables in graphs of any shape.

pub mod dependency;
pub mod divide;
pub mod fat_tree;
pub mod hierarchy;
#[cfg(test)]
mod probe;
pub mod table;
pub mod tree;
pub mod xgft;

use crate::frame::Frame;
use alloc::vec::Vec;

/// How a switch chooses among equal paths up, and a host among its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By digits of the destination (Crisan 2014, 2.3.2).
    DModK,
    /// By digits of the source (Crisan 2014, 2.3.2).
    SModK,
    /// Anew for every frame (Crisan 2014, 2.3.3), which is Valiant load balancing per packet; needs resequencing at the destination.
    Random,
    /// By a hash of the flow (Crisan 2014, 2.3.4): ECMP, to which Valiant load balancing per flow is "effectively equivalent"
    /// (Al-Fares 2012, 2.2.1). Draws of different switches are independent, so that a flow goes by a random core.
    Hash,
    /// By a hash of the destination alone, as ECMP is in Hedera's testbed (Al-Fares 2012, 4.4).
    HashDestination,
    /// The two-level tables of a fat-tree: host index under its edge switch plus own position (Al-Fares 2012, 3.1).
    TwoLevel,
}

/// The forwarding decision of one switch, or of a host with several links.
#[derive(Clone, Debug)]
pub enum Router {
    /// In an extended generalised fat-tree, by arithmetic.
    Tree(tree::TreeRouter),
    /// In any graph, by a table of equal-cost ports.
    Table(table::TableRouter),
}

impl Router {
    /// The port towards the frame's destination, if there is one.
    #[inline(always)]
    pub fn route<F: Frame>(&self, frame: &F) -> Option<u16> {
        match self {
            Router::Tree(t) => t.route(frame),
            Router::Table(t) => t.route(frame),
        }
    }

    /// All ports that frames between the ends of this one can be sent to, whatever their flow; empty if there is no path.
    pub fn candidate_ports<F: Frame>(&self, frame: &F) -> Vec<u16> {
        match self {
            Router::Tree(t) => t.candidate_ports(frame),
            Router::Table(t) => t.candidate_ports(frame),
        }
    }

    /// Whether frames of one flow can take different ports.
    pub fn divides_flows(&self) -> bool {
        match self {
            Router::Tree(t) => t.policy() == Policy::Random,
            Router::Table(t) => t.policy() == Policy::Random,
        }
    }
}
