//! The data plane in this process: ports, the loop over them, links between servers, QEMU's protocol.

mod accounting;
mod bump;
mod costs;
mod engine;
#[cfg(target_os = "linux")]
mod kernel;
mod uplink;
mod vhost;
mod vhost_agent;
mod vhost_hostile;
#[path = "../vhost_rig/mod.rs"]
mod vhost_rig;
