//! The simulated world: virtual time, links, the event engine.
//!
//! Code belongs here if it decides *when* an event happens, in virtual time.
#![deny(unsafe_code)]

mod access;
mod agenda;
pub mod audit;
mod colours;
pub mod deadlock;
mod engine;
mod event;
mod event_heap;
pub mod flow_level;
mod huge_pages;
pub mod pcapng;
mod sampler;
mod shard;
pub mod slots;
mod step;
mod threads;
mod wire;
pub mod world;

pub use engine::{Control, EPOCH, Engine, Epoch, RunEnd};
pub use sampler::QueueSample;
pub use step::Captured;
