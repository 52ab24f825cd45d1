//! Scenarios and the files of other tools. A line belongs here when it knows a key of a scenario or a line of another tool's file.
//!
//! Scenario files: TOML with units, read into a typed and validated model.
//!
//! [`Scenario::load`] reads a file, [`Loaded::expand_sweep`] makes its variants, [`json_schema`] describes the format.
//! Whatever a file says wrong is an [`Error`] with file, line and column, what was expected, and a hint.
//!
//! | module | knows |
//! |---|---|
//! | `keys` | every key, once: readers, hints and the schema share it |
//! | `tree`, `section`, `places` | where every value was written |
//! | `units`, `distribution` | quantities |
//! | `defaults` | the three sets of parameters |
//! | `topology`, `sections`, `hypervisors`, `policy`, `workloads`, `patterns`, `losses`, `distributions` | what each section means, and what they mean together |
//! | `load`, `files`, `sweep` | files, overrides, variants |
#![forbid(unsafe_code)]

mod defaults;
pub mod distribution;
mod distributions;
mod error;
mod files;
pub mod formats;
mod hypervisors;
pub mod keys;
mod load;
mod losses;
mod model;
mod patterns;
mod places;
mod policy;
pub mod printable;
pub mod schema;
pub mod section;
mod sections;
mod sweep;
mod tcp;
#[cfg(test)]
mod tests;
mod topology;
pub mod tree;
pub mod units;
mod workloads;

pub use defaults::OVERSUBSCRIPTION;
pub use distribution::Distribution;
pub use error::{Diagnostic, Error, Result, Warning};
pub use files::Input;
pub use hypervisors::{channel_numbers, credit_numbers};
pub use load::{Loaded, SCENARIO_BYTES_MAX};
pub use model::*;
pub use places::Places;
pub use schema::json_schema;
pub use sections::{delayed_ack, initial_window};
pub use sweep::{CONGESTION_KEY, FLOW_CONTROL_KEY, VARIANTS_MAX, Variant, folder_name};
pub use units::closest;
pub use units::{BUFFER_MAX, BYTES_MAX, Bytes, DURATION_MAX, LINK_RATE_MIN, Quantity, RATE_MAX, UnitError};

/// The most hosts a network may have, external ones included.
pub const HOSTS_MAX: u32 = 1 << 20;
/// The most ports a switch may have: what the engine's names have room for.
pub const SWITCH_PORTS_MAX: u32 = 4094;
/// The most ports a network may have: those of its switches, of its hosts and of its external hosts.
pub const PORTS_MAX: u32 = 1 << 22;
