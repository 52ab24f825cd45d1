//! Programs from outside in a bump, with the interface of `netbump.h`.
//!
//! A line belongs here if it knows how such a program is loaded or called. [`Library`] is a loaded program, called in this
//! process: a program that crashes takes the process with it. [`simulated`] calls one for simulated
//! frames.
#![deny(unsafe_code)]

mod exit;
mod library;
pub mod simulated;

pub use library::{Called, Library, LoadError, Outcome, QueueState};
