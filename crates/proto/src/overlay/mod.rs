//! The overlay virtual network: the vSwitch of a hypervisor and the bridge into the tunnel.

pub mod bridge;
pub mod fib;
pub mod vswitch;
