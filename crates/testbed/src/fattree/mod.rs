//! A real fat-tree on one machine, or the hierarchical tree for comparison: Open vSwitch switches with datapaths in user space,
//! hosts in namespaces, shaped veth pairs between them, and the OpenFlow controller of the Python package.
//!
//! A [`Network`] has all of these, in a [`Shape`]. A [`Pattern`] chooses senders and receivers, `traffic` sends and
//! counts received bytes, and a [`Fault`] disturbs the network. [`measure`] combines them.

mod controller;
mod fault;
mod measure;
mod network;
mod pattern;
mod shape;
mod switch;
mod traffic;

pub use controller::{Python, find_python};
pub use fault::{Fault, What};
pub use measure::{Became, Course, FlowResult, Load, Measured, Seen, control_loop, measure};
pub use network::{Network, Settings, missing};
pub use pattern::{Job, Pattern};
pub use shape::{End, Node, Port, Shape};
pub use traffic::Transport;

/// Routings: the value of the controller's `--routing`, its name in tables, and the network's shape.
pub const ROUTINGS: [(&str, &str, Shape); 7] = [
    ("ecmp", "ECMP", Shape::FatTree),
    ("two-level", "two-level tables", Shape::FatTree),
    ("flow-classifier", "flow classifier", Shape::FatTree),
    ("flow-scheduler", "flow scheduler", Shape::FatTree),
    ("hedera-gff", "Hedera, GFF", Shape::FatTree),
    ("hedera-sa", "Hedera, SA", Shape::FatTree),
    ("hierarchical", "hierarchical tree", Shape::Hierarchical),
];

/// The members of [`ROUTINGS`] that give large flows paths of their own.
pub const PLACING: [&str; 3] = ["flow-scheduler", "hedera-gff", "hedera-sa"];
