//! Real bumps in the links of a scenario's network (Al-Fares 2012, Figure 5.8): `sluicenet bump` as processes, hosts as
//! namespaces with the kernel's TCP, and the scenario's switches as a fabric in real time.
//!
//! [`Plan`] derives hosts, bumps and the cut links from the scenario. [`Network`] starts and removes them. [`fabric`] runs the
//! switches and records their queues. [`measure`](measure()) compares these with the bumps' estimates.

mod config;
mod fabric;
mod measure;
mod network;
mod plan;
#[cfg(test)]
mod tests;
mod trace;

pub use measure::{BumpFigures, Cell, Simulated, measure};
pub use network::{Network, missing};
pub use plan::{Bump, Cable, Downstream, Host, Plan};
pub use trace::{Estimate, MTU_BYTES, Queue};
