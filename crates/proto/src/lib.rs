//! The protocols, one folder each, every one a pure state machine: bytes and time in, bytes and deadlines out.
//!
//! A line belongs here when it knows a rule from a paper or a standard. No clock, no sockets, no randomness of its
//! own: time comes in as `now`, randomness as a seeded generator handed in.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod agent;
pub mod cee;
pub mod frame;
pub mod hedera;
pub mod loss;
pub mod overlay;
pub mod rng;
pub mod routing;
pub mod tcp;
pub mod time;
pub mod transport;
pub mod udp;
pub mod units;
