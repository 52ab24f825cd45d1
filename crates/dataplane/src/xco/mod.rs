//! XCo on real frames, beside the gate of an [uplink](crate::uplink): the loop of the central controller.

mod controller;
#[cfg(test)]
mod tests;

pub use crate::uplink::report_coordinator;
pub use controller::{ControllerLoop, ControllerReport, LinkCounters};
