//! Measurements. A line belongs here when it knows a measurement of ourselves or of a peer.
//!
//! How fast it is: the simulator on fat trees, the switch between ports, what schedules flows; what switches lose under overload, and what
//! zFabric survives.
#![forbid(unsafe_code)]

pub mod faults;
pub mod ft;
pub mod hedera;
pub mod local;
pub mod overload;
pub mod ovs;
pub mod ports;
pub mod sockets;
pub mod tcp;
mod transfer;
