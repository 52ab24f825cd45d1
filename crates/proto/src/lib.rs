//! The protocols, one folder each. Each protocol is a pure state machine: bytes and time in, bytes and deadlines out.
//!
//! Code belongs here if it implements a rule from a paper or a standard. The protocols have no clock, no sockets and no
//! randomness of their own: the caller passes the time as `now`, and randomness as a seeded generator.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod agent;
pub mod aqm;
pub mod cee;
pub mod frame;
pub mod guard;
pub mod hedera;
pub mod index;
pub mod loss;
pub mod netbump;
pub mod overlay;
pub mod rng;
pub mod routing;
pub mod tcp;
pub mod time;
pub mod transport;
pub mod udp;
pub mod units;
pub mod xco;
