//! The real world: over what a frame really moves.
//!
//! [`region`] is memory shared with a program that may be hostile, [`ring`] the way entries get through it, [`shm`] a port
//! made of both, and [`engine`] the loop that moves frames between ports. Where a frame goes and whether it has to wait is
//! decided by [`sluicenet_node::vale`], which knows nothing of all this.
//!
//! Besides [`shm`] there are ports of other kinds: [`vhost`] for a QEMU guest, [`kernel`] for what has a network device,
//! [`uplink`] for the link to other servers. [`fabric`] runs the simulator's physical switches in real time.
//!
//! `unsafe` is confined to [`region`] and `vhost::memory` (mapping memory, and reaching it while somebody else may write
//! it), `vhost::sigbus` (a signal handler for when it is gone), `kernel::sys` and [`tcp_info`] (system calls that no safer
//! crate has), `process` (what a new process does before it is a program) and to one instruction each in [`clock`] and
//! `crc`.
#![deny(unsafe_code)]

mod agent;
pub mod clock;
pub mod controller;
mod crc;
pub mod engine;
pub mod fabric;
#[cfg(target_os = "linux")]
pub mod kernel;
#[cfg(target_os = "linux")]
pub mod leftovers;
pub mod port;
#[cfg(target_os = "linux")]
pub mod process;
pub mod region;
pub mod remote;
pub mod shm;
pub mod tap;
pub mod tcp_info;
pub mod uplink;
pub mod vhost;

pub use sluicenet_ring as ring;
