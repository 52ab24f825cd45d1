//! A server with a Linux bridge as its virtual switch, for comparison. The bridge has no backpressure and no overlay:
//! tenants know each other's addresses, and the fabric forwards by these.

use super::files::Made;
use super::live::TENANT_DEVICE;
use super::{Plan, Server};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::edge::{Edge, EdgeCounters};
use sluicenet_dataplane::kernel::link::{Feature, Links, TokenBucket};
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::veth::Veth;
use std::net::IpAddr;

/// The bridge of a server, in its namespace.
const BRIDGE: &str = "br0";

/// Full frames that can wait at an uplink: the default length of a device's queue.
const UPLINK_QUEUE: u32 = 1_000;

/// Makes a server's bridge at its existing uplink, and the server's tenants with the kernel's defaults.
pub(super) fn make(plan: &Plan, server: &Server, inside: &Namespace) -> Result<(), KernelError> {
    inside.enter(|| {
        let mut links = Links::open()?;
        links.create_bridge(BRIDGE)?;
        // A veth takes frames at any speed. Its queue has the link's rate, like that of an adapter.
        let frame = plan.mtu + HEADER;
        let bucket = TokenBucket { rate: server.rate.as_bps() / 8, burst: 2 * frame, limit: UPLINK_QUEUE * frame };
        links.set_bucket(server.uplink, bucket)?;
        links.set_master(server.uplink, BRIDGE)
    })??;
    for tenant in &server.tenants {
        let namespace = Namespace::create(&tenant.namespace)?;
        let device = format!("t{}", tenant.vm);
        let veth = Veth { switch: inside, switch_device: &device, tenant: &namespace, tenant_device: TENANT_DEVICE };
        veth.create_plain(tenant.mac.0, false)?;
        inside.enter(|| Links::open()?.set_master(&device, BRIDGE))??;
        namespace.enter(|| {
            let mut links = Links::open()?;
            links.set_mtu(TENANT_DEVICE, plan.tenant_mtu)?;
            // Disable checksum offload: a checksum would be computed only when a frame leaves the machine, and the
            // fabric's links are memory.
            links.set_feature(TENANT_DEVICE, Feature::TxChecksum, false)?;
            links.add_address(TENANT_DEVICE, IpAddr::V4(tenant.address), Plan::OVERLAY_PREFIX)?;
            let others = plan.servers.iter().flat_map(|s| &s.tenants).filter(|other| other.mac != tenant.mac);
            others
                .into_iter()
                .try_for_each(|other| links.add_neighbour(TENANT_DEVICE, IpAddr::V4(other.address), other.mac.0))
        })??;
    }
    inside.enter(|| Links::open()?.up(BRIDGE))?
}

/// Bytes of a frame besides its packet.
const HEADER: u32 = 18;

/// The kernel's counters of drops at the bridges.
pub(super) struct Counters {
    tenants: Vec<Edge>,
    uplinks: Vec<Edge>,
}

/// Dropped frames, by place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    /// Drops between the tenants' sockets and their bridges, summed over all tenants.
    pub tenants: EdgeCounters,
    /// Drops in the queues of the uplinks.
    pub uplinks: u64,
}

impl Counters {
    /// Starts counting; counts nothing for a testbed with other switches.
    pub fn open(made: &Made) -> Result<Counters, KernelError> {
        let mut counters = Counters { tenants: Vec::new(), uplinks: Vec::new() };
        if !made.bridged {
            return Ok(counters);
        }
        let fabric = Namespace::open(&made.fabric)?;
        for server in &made.servers {
            let inside = Namespace::open(&server.namespace)?;
            counters.uplinks.push(Edge::open(&inside, &server.uplink, &fabric, &server.edge)?);
            for tenant in &server.tenants {
                let namespace = Namespace::open(&tenant.name)?;
                counters.tenants.push(Edge::open(&namespace, TENANT_DEVICE, &inside, &format!("t{}", tenant.vm))?);
            }
        }
        Ok(counters)
    }

    pub fn read(&mut self) -> Result<Losses, KernelError> {
        let mut losses = Losses::default();
        for edge in &mut self.tenants {
            let lost = edge.read()?;
            let sum = &mut losses.tenants;
            sum.qdisc += lost.qdisc;
            sum.tenant_device += lost.tenant_device;
            sum.switch_device += lost.switch_device;
            // The kernel counts softnet drops for the whole machine.
            sum.softnet = sum.softnet.max(lost.softnet);
        }
        for edge in &mut self.uplinks {
            losses.uplinks += edge.read()?.qdisc;
        }
        Ok(losses)
    }
}
