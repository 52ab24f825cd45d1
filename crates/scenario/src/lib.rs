//! Scenarios and the files of other tools. A line belongs here when it knows a key of a scenario or a line of another
//! tool's file.
//!
//! Scenario files: TOML with units, read into a typed and validated model.
//!
//! [`Scenario::load`] reads a file, [`Loaded::expand_sweep`] makes its variants, [`json_schema`] describes the format.
//! A fault in a file is an [`Error`] with file, line and column, the expected input, and a hint.
//!
//! | module | knows |
//! |---|---|
//! | `setting` | how a key is declared; reader, hints and schema follow |
//! | `model` | the keys of each section with types, limits and defaults, and how they relate |
//! | `tree`, `locations` | where every value was written |
//! | `units`, `distribution` | quantities |
//! | `topology`, `patterns`, `losses`, `distributions` | sizes of networks, permutations, lossy paths, random values |
//! | `load`, `files`, `sweep` | files, overrides, variants |
//! | `sonic` | SONiC's `config_db.json` as keys of a scenario, and back |
#![forbid(unsafe_code)]

pub mod distribution;
mod distributions;
mod error;
mod files;
pub mod formats;
mod load;
mod locations;
mod losses;
mod model;
mod patterns;
pub mod printable;
pub mod schema;
pub mod setting;
pub mod sonic;
mod sweep;
mod tcp;
#[cfg(test)]
mod tests;
mod topology;
pub mod tree;
pub mod units;

pub use distribution::Distribution;
pub use error::{Diagnostic, Error, Result, Warning};
pub use files::Input;
pub use load::{Loaded, SCENARIO_BYTES_MAX};
pub use locations::Locations;
pub use model::*;
pub use schema::json_schema;
pub use sweep::{CONGESTION_KEY, FLOW_CONTROL_KEY, VARIANTS_MAX, Variant, folder_name};
pub use units::closest;
pub use units::{
    BUFFER_MAX, BYTES_MAX, Bytes, DELAY_MAX, DURATION_MAX, LINK_RATE_MIN, Length, PACKETS_MAX, Packets, Quantity,
    RATE_MAX, UnitError,
};

/// Version of the defaults, which manifests name: with another one, the same file can be another scenario.
///
/// 2: frames of trees are routed by a hash of the flow in the set `plain`. 1: by the destination's number.
pub const DEFAULTS: u32 = 2;
/// The most hosts a network may have, external ones included.
pub const HOSTS_MAX: u32 = 1 << 23;
/// The highest number of a host.
pub const HOST_MAX: u32 = HOSTS_MAX - 1;
/// The most ports a switch may have: the engine's names have room for no more.
pub const SWITCH_PORTS_MAX: u32 = 4094;
/// The most ports a network may have: those of its switches, of its hosts and of its external hosts.
pub const PORTS_MAX: u32 = 1 << 26;
