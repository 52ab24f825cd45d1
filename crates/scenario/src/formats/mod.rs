//! The field's own input files: topologies of HPCC's simulator and its descendants, HPCC's flows and size distributions,
//! htsim's topologies and connection matrices.
//!
//! Headers of such files can disagree with their bodies. Each reader takes the same data as the original tool, and
//! warns with the line. Reading is bounded: a file is at most [`FILE_BYTES_MAX`], a line [`LINE_BYTES_MAX`], and a
//! network as large as a scenario's. Nothing is allocated for a number in a header before the number is checked.

mod cdf;
mod hpcc;
mod htsim_cm;
mod htsim_topo;
mod lines;
mod pairs;
#[cfg(test)]
mod tests;
mod triggers;

pub use cdf::{Cdf, parse_cdf};
pub use hpcc::{Dialect, HpccFlow, HpccFlows, HpccLink, HpccTopology, parse_hpcc_flows, parse_hpcc_topology};
pub use htsim_cm::{
    Connection, ConnectionMatrix, Failure, FailureSwitch, Start, Trigger, TriggerKind, parse_connection_matrix,
};
pub use htsim_topo::{HtsimTier, HtsimTopology, TierQueue, parse_htsim_topology};
pub use lines::{FILE_BYTES_MAX, LINE_BYTES_MAX, read_bounded};
pub use pairs::{Pair, parse_pairs};
