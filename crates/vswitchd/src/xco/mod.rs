//! `sluicenet xco`: XCo's central controller as a program.
//!
//! | module | knows |
//! |---|---|
//! | `config` | the file of the controller and the meaning of its keys |
//! | `topology` | the network as the file describes it |
//! | `daemon` | start, reload and stop of the controller |
//! | `status` | its state |

mod config;
mod daemon;
pub mod status;
mod topology;

pub use config::Config;
pub use daemon::Daemon;
