//! Scenarios, workloads, sweeps, records and the command line.
//!
//! A line belongs here when it knows a figure, a seed or a file.
#![forbid(unsafe_code)]

pub mod bench;
pub mod build;
pub mod cli;
pub mod fabric;
pub mod formats;
mod machine;
mod printable;
pub mod records;
pub mod report;
pub mod run;
pub mod scenario;
pub mod switch;
pub mod testbed;
pub mod workload;

#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
