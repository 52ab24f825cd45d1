//! Sweeps: the cells of a scenario, their order, one cell run into its folder, and all of them gathered.
//!
//! The command line, its parts of a SLURM job and Python with or without a cluster all call this module, so that a sweep is
//! the same wherever its cells run.

mod cell;
mod cost;
mod settings;
mod shard;
mod summary;
mod table;

pub use cell::{Cell, Found, Ran, cells, check_same, remove_others};
pub use cost::longest_first;
pub use settings::{Setting, typed};
pub use shard::Shard;
pub use summary::{Configuration, FlowsBeside, SweepRun, SweepSummary, configurations};
