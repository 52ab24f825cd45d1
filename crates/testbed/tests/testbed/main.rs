//! The testbed's fabric and its applications, in this process.

mod fabric;
mod fabric_live;
mod pa;
#[path = "../../../experiment/tests/experiment/worlds.rs"]
mod worlds;
