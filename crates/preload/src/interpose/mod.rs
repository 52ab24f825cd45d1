//! The functions that stand in front of the C library's.
//!
//! All of them have its names and types, so that all are `unsafe` in the same way: what a pointer says is believed as the C library
//! believes it. They may be unwound: a thread that is cancelled leaves the call it waits in so. `fcntl` and `ioctl` take one argument more or less there; a word in its place is what every system of Linux passes.

mod descriptors;
pub mod files;
mod opening;
mod transfer;
mod waiting;
