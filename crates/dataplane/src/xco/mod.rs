//! XCo on real frames, beside the gate of an [uplink](crate::uplink): the loop of the central controller, and that of an agent,
//! which holds frames in queues of the kernel.

#[cfg(target_os = "linux")]
mod agent;
mod controller;
mod link;
#[cfg(target_os = "linux")]
mod paced;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod valves;

pub use crate::uplink::report_coordinator;
#[cfg(target_os = "linux")]
pub use agent::{AgentConfig, AgentLoop, AgentReport};
pub use controller::{ControllerLoop, ControllerReport};
pub use link::LinkCounters;
#[cfg(target_os = "linux")]
pub use paced::Paced;
#[cfg(target_os = "linux")]
pub use valves::Valves;
