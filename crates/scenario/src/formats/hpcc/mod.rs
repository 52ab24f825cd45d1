//! Files of HPCC's simulator (ns-3) and of its descendants: topologies and flows.
//!
//! They are read as C++ streams read, word by word: line breaks mean nothing to them.

mod dialect;
mod flows;
mod topology;

pub use dialect::Dialect;
pub use flows::{HpccFlow, HpccFlows, parse_hpcc_flows};
pub use topology::{HpccLink, HpccTopology, parse_hpcc_topology};
