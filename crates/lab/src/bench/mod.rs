//! How fast it is: the simulator on fat trees, the switch between ports.

pub mod ft;
pub mod local;
pub mod ports;
