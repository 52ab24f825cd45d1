//! Results in the formats of other tools, for their scripts and viewers. A line belongs here when it knows a line or a
//! field of another tool's output.
//!
//! - [`hpcc`]: the files of flow completion times, pauses and queue lengths of HPCC's simulator
//! - [`htsim`]: the log of flows of htsim
//! - [`perfetto`]: a trace of pauses and queues for Perfetto
//!
//! Each reads the records of a [`Run`]. A file has its name when all of it is written. Values that records do not hold are
//! never made up: the error names the setting of the scenario that records them.
#![forbid(unsafe_code)]

mod error;
mod given;
pub mod hpcc;
pub mod htsim;
mod output;
pub mod perfetto;
mod run;
#[cfg(test)]
mod tests;

pub use error::{ExportError, Missing};
pub use given::Given;
pub use run::Run;
