//! The overlay virtual network: the vSwitch of a hypervisor, the bridge into the tunnel, and the locations of stations.

pub mod bridge;
pub mod bucket;
pub mod cache;
pub mod controller;
pub mod fib;
pub mod mapping;
pub mod members;
pub mod neighbours;
pub mod policy;
pub mod registrar;
pub mod seal;
pub mod tunnel;
pub mod vswitch;
