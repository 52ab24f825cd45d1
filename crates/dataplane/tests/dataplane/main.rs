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

use sluicenet_proto::guard::Guard;
use std::net::IpAddr;
use std::sync::Arc;

/// The guard of an endpoint with one IPv4 address and any MAC address.
fn from_ip(address: [u8; 4]) -> Arc<Guard> {
    Arc::new(Guard { addresses: Some(vec![IpAddr::from(address).into()]), ..Guard::default() })
}
