//! Scenario files: TOML with units, read into a typed and validated model.
//!
//! [`Scenario::load`] reads a file, [`Loaded::expand_sweep`] makes its variants, [`json_schema`] describes the format.
//! Whatever a file says wrong is an [`Error`] with file, line and column, what was expected, and a hint.
//!
//! | module | knows |
//! |---|---|
//! | `keys` | every key, once: readers, hints and the schema share it |
//! | `tree`, `section` | where every value was written |
//! | `units`, `distribution` | quantities |
//! | `defaults` | the three sets of parameters |
//! | `topology`, `sections`, `workloads`, `distributions` | what each section means |
//! | `load`, `files`, `sweep` | files, overrides, variants |

mod defaults;
pub(crate) mod distribution;
mod distributions;
mod error;
mod files;
mod keys;
mod load;
mod model;
mod schema;
mod section;
mod sections;
mod sweep;
#[cfg(test)]
mod tests;
mod topology;
mod tree;
pub(crate) mod units;
mod workloads;

pub use distribution::Distribution;
pub use error::{Diagnostic, Error, Result, Warning};
pub use files::Input;
pub use load::{Loaded, SCENARIO_BYTES_MAX};
pub use model::*;
pub use schema::json_schema;
pub use sweep::{VARIANTS_MAX, Variant};
pub(crate) use units::closest;
pub use units::{BYTES_MAX, Bytes, DURATION_MAX, Quantity, RATE_MAX, UnitError};

/// The most hosts a network may have, external ones included.
pub const HOSTS_MAX: u32 = 1 << 20;
/// The most ports a network may have: those of its switches, of its hosts and of its external hosts.
pub const PORTS_MAX: u32 = 1 << 22;
