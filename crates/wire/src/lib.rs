//! Frame formats: bytes to representation and back.
//!
//! A line belongs here when it knows a byte offset. Nothing here knows a rule of a protocol, a clock or a queue.
#![no_std]
#![forbid(unsafe_code)]

pub mod seq;
pub mod tcp;
