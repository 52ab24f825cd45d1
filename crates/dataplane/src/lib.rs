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

#[cfg(not(loom))]
mod agent;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod controller;
#[cfg(not(loom))]
mod crc;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(all(not(loom), target_os = "linux"))]
pub mod kernel;
#[cfg(not(loom))]
pub mod port;
#[cfg(all(not(loom), target_os = "linux"))]
pub mod process;
#[cfg(not(loom))]
pub mod region;
#[cfg(all(not(loom), target_os = "linux"))]
pub mod remains;
#[cfg(not(loom))]
pub mod remote;
pub mod ring;
#[cfg(not(loom))]
pub mod shm;
mod sync;
#[cfg(not(loom))]
pub mod tap;
#[cfg(not(loom))]
pub mod tcp_info;
#[cfg(not(loom))]
pub mod uplink;
#[cfg(not(loom))]
pub mod vhost;
