//! The protocols assembled into boxes with ports.
//!
//! A line belongs here when it knows which rules sit in one box. A box never knows a clock or over what a frame really
//! moves: both worlds, the simulated and the real one, drive it through the [`Device`](device::Device).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod adapter;
pub mod bump;
pub mod channels;
pub mod credits;
mod deadlines;
pub mod device;
pub mod fair_share;
pub mod gate;
pub mod guest;
pub mod link;
pub mod packet;
pub mod pool;
mod ring;
pub mod server;
mod sockets;
pub mod steering;
pub mod switch;
pub mod tunnels;
pub mod uplink;
pub mod vale;
pub mod vtep;
