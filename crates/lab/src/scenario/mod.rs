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

mod defaults;
pub(crate) mod distribution;
mod distributions;
mod error;
mod files;
mod hypervisors;
pub(crate) mod keys;
mod load;
mod losses;
mod model;
mod patterns;
mod places;
mod policy;
pub(crate) mod schema;
pub(crate) mod section;
mod sections;
mod sweep;
#[cfg(test)]
mod tests;
mod topology;
pub(crate) mod tree;
pub(crate) mod units;
mod workloads;

pub use distribution::Distribution;
pub use error::{Diagnostic, Error, Result, Warning};
pub use files::Input;
pub(crate) use hypervisors::{channel_numbers, credit_numbers};
pub use load::{Loaded, SCENARIO_BYTES_MAX};
pub use model::*;
pub use places::Places;
pub use schema::json_schema;
pub(crate) use sections::{delayed_ack, initial_window};
pub use sweep::{CONGESTION_KEY, FLOW_CONTROL_KEY, VARIANTS_MAX, Variant, folder_name};
pub(crate) use units::closest;
pub use units::{BUFFER_MAX, BYTES_MAX, Bytes, DURATION_MAX, LINK_RATE_MIN, Quantity, RATE_MAX, UnitError};

/// The most hosts a network may have, external ones included.
pub const HOSTS_MAX: u32 = 1 << 20;
/// The most ports a switch may have: what the engine's names have room for.
pub const SWITCH_PORTS_MAX: u32 = 4094;
/// The most ports a network may have: those of its switches, of its hosts and of its external hosts.
pub const PORTS_MAX: u32 = 1 << 22;
