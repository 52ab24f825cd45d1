//! The real world: ports that carry real frames.
//! [`region`] is memory shared with a program that may be hostile, [`ring`] passes entries through it, and [`shm`] is a port
//! made of both. [`engine`] is the loop that moves frames between ports. [`sluicenet_node::vale`] decides where a frame goes
//! and whether it waits, and does not depend on this crate.
//! There are ports of other kinds: [`vhost`] for a QEMU guest, [`kernel`] for network devices, [`uplink`] for the link to other
//! servers. [`fabric`] runs the simulator's physical switches in real time. [`bump`] is a bump in the wire between such ports.
//! [`xco`] is the loop of XCo's controller. [`confine`] limits a process whose ports are open.
//! `unsafe` is confined to these modules: [`region`] and `vhost::memory` (mapped memory that others may write), `vhost::sigbus`
//! (a signal handler for memory that is gone), `kernel::sys` and [`tcp_info`] (system calls that no safer crate has), `process`
//! (a new process before it executes its program), `confine::refused` (a signal handler for refused system calls), and one
//! instruction each in [`clock`] and `crc`.
#![deny(unsafe_code)]

mod agent;
pub mod bump;
pub mod clock;
#[cfg(target_os = "linux")]
pub mod confine;
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
pub mod xco;

pub use sluicenet_ring as ring;
