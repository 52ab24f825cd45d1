//! The functions that stand in front of the C library's.
//!
//! All of them have the C library's names and types, so that all are `unsafe` in the same way: pointers are trusted as the C
//! library trusts them. They may be unwound: a cancelled thread leaves its waiting call in this way. `fcntl` and `ioctl` take
//! an optional argument there; a word in its place is what every system of Linux passes.

mod descriptors;
pub mod files;
mod opening;
mod transfer;
mod waiting;
