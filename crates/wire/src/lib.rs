//! Frame formats: bytes to representation and back.
//!
//! A line belongs here when it knows a byte offset. Nothing here knows a rule of a protocol, a clock or a queue.
//!
//! Every format has a plain representation, `Repr`, and two functions. `parse` takes untrusted bytes, checks every length
//! and checksum, and returns the representation with the payload behind it; `emit` writes the representation into a
//! buffer of the right length. Bytes that were cut short or lie about their length are an [`Error`], never a panic.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod agent;
pub mod arp;
pub mod checksum;
pub mod controller;
pub mod crc;
mod error;
pub mod ethernet;
pub mod flow;
pub mod icmp;
pub mod ipv4;
pub mod join;
pub mod offload;
pub mod pfc;
#[cfg(test)]
mod random;
pub mod seq;
pub mod stream;
pub mod tcp;
pub mod tcplight;
pub mod udp;
pub mod vlan;
pub mod vxlan;
pub mod zbridge;
pub mod zcredit;

pub use error::Error;
