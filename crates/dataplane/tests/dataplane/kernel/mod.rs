//! Ports that are network devices, on an unmodified kernel: real sockets in namespaces.
mod agent;
mod classes;
mod flood;
mod harness;
mod leftovers;
mod offload;
mod packet;
mod shares;
mod sockets;
mod tap;
mod valve;
