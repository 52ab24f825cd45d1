//! Ports that are Linux network devices.
//!
//! - [`valve`]: a veth into a tenant's namespace that only the switch polls, and that hands over only what the tenant's sockets
//!   have room for: nothing is lost from `send()` to `recv()`, on an unmodified kernel;
//! - [`tap`]: a TAP whose queue is held, where nobody may enter the tenant's namespace;
//! - [`packet`]: a device as it is, such as the one to the fabric;
//! - [`socket`]: a guest's device that QEMU emulates, where no memory is shared with the guest;
//! - [`netns`], [`link`]: namespaces and what is in them; [`edge`]: what the kernel itself threw away, by place;
//! - [`agent`]: what runs inside a guest and says what its sockets have room for;
//! - [`lan`], [`load`]: tenants, and programs that send and receive as fast as sockets let them, for experiments.
//!
//! System calls that need `unsafe` are in `sys` and nowhere else.

pub mod agent;
pub mod edge;
mod error;
pub mod lan;
pub mod link;
pub mod load;
pub mod netns;
pub mod packet;
pub mod segments;
pub mod socket;
pub mod tap;
pub mod valve;
pub mod veth;

mod device;
mod diag;
mod inbox;
mod landing;
mod netlink;
mod pool;
mod stage;
mod sys;
mod tenant_queue;
mod truesize;

pub use error::KernelError;
