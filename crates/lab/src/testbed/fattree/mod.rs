//! A real fat-tree on one machine: switches of Open vSwitch whose datapaths are in user space, hosts in namespaces, shaped veth pairs between
//! them, and the OpenFlow controller of the Python package.
//!
//! [`Network`] is all of that, [`Pattern`] says who sends to whom, [`traffic`] does so and counts what arrives, [`Fault`] is what
//! may happen meanwhile, and [`measure`] puts them together.

mod controller;
mod fault;
mod measure;
mod network;
mod pattern;
mod switch;
mod traffic;

pub use controller::{Python, find_python};
pub use fault::{Fault, What};
pub use measure::{Course, FlowResult, Load, Measured, Seen, control_loop, measure};
pub use network::{Network, Settings, missing};
pub use pattern::{Job, Pattern};
pub use traffic::Transport;

/// How packets find their way, as the controller's `--routing` has it, and what it is called in tables.
pub const ROUTINGS: [(&str, &str); 5] = [
    ("ecmp", "ECMP"),
    ("two-level", "two-level tables"),
    ("flow-scheduler", "flow scheduler"),
    ("hedera-gff", "Hedera, GFF"),
    ("hedera-sa", "Hedera, SA"),
];
