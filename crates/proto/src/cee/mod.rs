//! Converged Enhanced Ethernet: priority flow control and the buffer space it needs, congestion notification.

pub mod ets;
pub mod headroom;
pub mod pfc;
pub mod qcn;
pub mod source_control;
pub mod watchdog;
