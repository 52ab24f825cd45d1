//! XCo on real frames, beside the gate of an [uplink](crate::uplink): the loop of the central controller, and that of an agent,
//! which holds frames in queues of the kernel.

#[cfg(target_os = "linux")]
mod agent;
mod controller;
#[cfg(test)]
mod tests;

pub use crate::uplink::report_coordinator;
#[cfg(target_os = "linux")]
pub use agent::{AgentConfig, AgentLoop, AgentReport, Valves};
pub use controller::{ControllerLoop, ControllerReport, LinkCounters};
