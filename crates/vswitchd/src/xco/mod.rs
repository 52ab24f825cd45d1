//! `sluicenet xco`: XCo's central controller, and its agent for hosts without our switch, as programs.
//!
//! | module | knows |
//! |---|---|
//! | `config` | the file of the controller and the meaning of its keys |
//! | `topology` | the network as the file describes it |
//! | `controller` | how the controller's device is opened, and what a reload changes |
//! | `agent` | the file of the agent, and how its queues are opened |
//! | `daemon` | start, reload and stop of either |
//! | `status` | their state |

mod agent;
mod config;
mod controller;
mod daemon;
pub mod status;
mod topology;

pub use agent::{AgentFile, run as run_agent};
pub use config::Config;
pub use controller::run as run_controller;
