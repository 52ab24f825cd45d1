//! The real world: over what a frame really moves.
//!
//! [`region`] is memory shared with a program that may be hostile, [`ring`] the way entries get through it, [`shm`] a port
//! made of both, and [`engine`] the loop that moves frames between ports. Where a frame goes and whether it has to wait is
//! decided by [`sluicenet_node::vale`], which knows nothing of all this.
//!
//! `unsafe` is confined to [`region`] (mapping memory, and reaching it while somebody else may write it) and to one
//! instruction in [`clock`].
#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod port;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod remote;
pub mod ring;
#[cfg(not(loom))]
pub mod shm;
mod sync;
#[cfg(not(loom))]
pub mod tap;
