//! Experiments. A line belongs here when it knows how a scenario becomes a world, and a world a result.
//!
//! [`build`] makes the world, [`workload`] the applications on it, and [`run`] drives it and keeps its records. A
//! [`sweep`] is many runs. [`estimate`] tells beforehand how long a run will take.
#![forbid(unsafe_code)]

pub mod build;
pub mod estimate;
pub mod run;
pub mod sweep;
pub mod workload;
