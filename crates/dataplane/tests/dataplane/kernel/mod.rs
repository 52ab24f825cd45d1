//! Ports that are network devices, on an unmodified kernel: real sockets in namespaces.
mod agent;
mod classes;
mod fairness;
mod flood;
mod groups;
mod harness;
mod leftovers;
mod offload;
mod packet;
mod sockets;
mod tap;
mod valve;
