//! Experiments. A line belongs here when it knows how a scenario becomes a world, and a world a result.
//!
//! [`build`] makes the world, [`workload`] the applications on it, and [`run`] drives it and keeps its records. A
//! [`sweep`] is many runs.
#![forbid(unsafe_code)]

pub mod build;
pub mod run;
pub mod sweep;
pub mod workload;
