//! Ports that are network devices, on an unmodified kernel: real sockets in namespaces.
#![cfg(all(not(loom), target_os = "linux"))]

mod agent;
mod harness;
mod packet;
mod tap;
mod valve;
