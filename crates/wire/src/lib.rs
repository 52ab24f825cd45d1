//! Frame formats: bytes to representation and back.
//!
//! Code belongs here if it depends on a byte offset. This crate has no protocol rules, no clock and no queue.
//!
//! Every format has a plain representation, `Repr`, and two functions. `parse` takes untrusted bytes, checks every length
//! and checksum, and returns the representation and the payload behind it. `emit` writes the representation into a buffer
//! of the right length. Truncated bytes and wrong lengths give an [`Error`], never a panic.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod agent;
pub mod arp;
pub mod bump;
pub mod checksum;
pub mod controller;
pub mod crc;
mod error;
pub mod ethernet;
pub mod flow;
pub mod fragment;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod join;
pub mod lldp;
pub mod ndp;
pub mod offload;
pub mod pfc;
pub mod qcn;
#[cfg(test)]
mod random;
pub mod roce;
pub mod seq;
pub mod stream;
pub mod tcp;
pub mod tcplight;
pub mod udp;
pub mod vlan;
pub mod vxlan;
pub mod xco;
pub mod zbridge;
pub mod zcredit;

pub use error::Error;
