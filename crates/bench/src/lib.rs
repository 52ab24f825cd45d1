//! Measurements. A line belongs here when it knows a measurement of ourselves or of a peer.
//!
//! Measures speed: the simulator on fat trees, the switch between ports, the flow schedulers, and XCo's controller and gate. Measures losses of
//! switches under overload, the cost of stopped receivers, and faults that zFabric survives.
#![forbid(unsafe_code)]

pub mod bump;
pub mod faults;
pub mod ft;
pub mod gate;
pub mod hedera;
pub mod local;
pub mod overload;
pub mod ovs;
pub mod ports;
pub mod sockets;
pub mod stopped;
pub mod tcp;
mod transfer;
pub mod xco;
