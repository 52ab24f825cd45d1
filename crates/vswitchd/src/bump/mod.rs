//! `sluicenet bump`: a bump in the wire as a program.
//!
//! | module | knows |
//! |---|---|
//! | `config` | the file and the meaning of its keys |
//! | `learn` | how a switch is asked for the map |
//! | `map` | destinations, and the downstream ports that they lead to |
//! | `daemon` | start, reload and stop; the loops and their threads |
//! | `program` | programs from outside: their processes, and calls in this one |
//! | `status` | the state of the links and of the virtual queues |

mod config;
mod daemon;
pub mod learn;
pub(crate) mod map;
pub mod program;
pub mod status;

pub use config::{AppFile, Config, WhenDead};
pub use daemon::Daemon;
