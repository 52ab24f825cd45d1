//! The choice of output ports in a switch, and in a host with several links: arithmetic in trees, tables in graphs of any
//! shape.

pub mod dependency;
mod digits;
pub mod divide;
pub mod fat_tree;
mod hashes;
pub mod hierarchy;
pub mod paths;
mod policy;
#[cfg(test)]
mod probe;
pub mod reactive;
pub mod switch_ar;
pub mod table;
pub mod tree;
pub mod xgft;

pub use policy::{Choose, Fields, Key, Policy, Ports};

use crate::frame::Frame;
use alloc::vec::Vec;

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

    /// All ports that frames between the same two hosts can take, whatever their flow; empty if there is no path.
    pub fn candidate_ports<F: Frame>(&self, frame: &F) -> Vec<u16> {
        match self {
            Router::Tree(t) => t.candidate_ports(frame),
            Router::Table(t) => t.candidate_ports(frame),
        }
    }

    /// Whether frames of one flow can take different ports.
    pub fn divides_flows(&self) -> bool {
        match self {
            Router::Tree(t) => t.policy().key() == Key::Frame,
            Router::Table(t) => t.policy().key() == Key::Frame,
        }
    }
}
