//! Ports that are Linux network devices.
//!
//! - [`valve`]: a veth into a tenant's namespace that only the switch polls. It hands frames over only if the tenant's sockets
//!   have room: no frame is lost from `send()` to `recv()`, on an unmodified kernel.
//! - [`tap`]: a TAP with backpressure by its queue, for a tenant's namespace that the switch may not enter.
//! - [`packet`]: a plain device, such as the one to the fabric.
//! - [`socket`]: a guest's device that QEMU emulates, without memory shared with the guest.
//! - [`wire`]: what connects two devices while no bump serves them.
//! - [`classes`]: queues of the kernel for each destination, which a program opens and shuts.
//! - [`departures`]: a program that gives frames their departure times, which a queue of the kernel carries out.
//! - [`parts`]: an open device, which one process hands over to another; [`keeper`]: what still takes privileges then.
//! - [`netns`], [`link`]: namespaces and their devices; [`edge`]: frames that the kernel itself dropped, by location.
//! - [`agent`]: a program inside a guest that reports the room of its sockets.
//! - [`lan`], [`load`]: tenants, and programs that send and receive at full speed, for experiments.
//!
//! System calls that need `unsafe` are in `sys` and nowhere else.

pub mod agent;
pub mod classes;
pub mod departures;
pub mod edge;
mod error;
pub mod keeper;
pub mod lan;
pub mod link;
pub mod load;
pub mod netns;
pub mod packet;
pub mod parts;
pub mod segments;
pub mod socket;
pub mod tap;
pub mod valve;
pub mod veth;
pub mod wire;

mod device;
mod diag;
mod inbox;
mod landing;
mod netlink;
mod pool;
mod qdisc;
mod stage;
mod sys;
mod tenant_queue;
mod truesize;

pub use error::KernelError;
