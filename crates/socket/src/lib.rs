//! Light sockets: TCPlight streams and datagrams of a program over its port in shared memory (Crisan 2014, 5.3.2).
//!
//! A [`Host`] is a port of the switch with one IPv4 address. It has TCPlight [streams](TcplightStream),
//! [listeners](TcplightListener) and [datagram sockets](LightDatagram), which behave as their namesakes of the kernel do
//! (`docs/sockets.md` lists the differences). A sender copies its bytes straight into the buffers that the switch reads. A
//! thread of the host receives frames for sockets without a waiting caller.
//!
//! ```no_run
//! use sluicenet_socket::{Config, Host, attach};
//! use std::io::Write;
//!
//! # fn main() -> std::io::Result<()> {
//! let port = attach::attach("/run/sluicenet/vs.sock".as_ref(), "vm1")?;
//! let host = Host::open(port, Config::new("10.1.0.2".parse().unwrap(), 24))?;
//! let stream = host.connect("10.1.0.3:5001".parse().unwrap())?;
//! (&stream).write_all(b"hello")?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]
#![cfg(target_os = "linux")]

// Helpers that unit tests share with the integration tests name the crate.
#[cfg(test)]
extern crate self as sluicenet_socket;

pub mod attach;
mod config;
mod core;
mod datagram;
mod host;
mod listener;
mod ready;
mod stream;

pub use config::Config;
pub use core::{Attempt, Counters, Divert};
pub use datagram::LightDatagram;
pub use host::Host;
pub use listener::TcplightListener;
pub use ready::{Ready, Watch};
pub use stream::TcplightStream;
