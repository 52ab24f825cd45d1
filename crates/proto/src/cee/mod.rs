//! Converged Enhanced Ethernet: priority flow control and the buffer space it needs.

pub mod headroom;
pub mod pfc;
pub mod watchdog;
