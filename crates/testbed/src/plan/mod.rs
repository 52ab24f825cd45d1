//! The plan of a testbed, computed only from the scenario.

mod machines;
mod refused;
#[cfg(test)]
mod tests;

pub(super) use machines::no_priority;
pub use machines::{LightPort, Server, Sockets, Tenant};
use machines::{rates, server, sockets};
pub(crate) use refused::links as links_are_possible;

use super::fabric::cn_tag;
use super::{slowed, stack};
use sluicenet_experiment::build;
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Duration;
use sluicenet_scenario::{FlowControl, Result, Scenario, TenantKind, VirtualSwitch, Warning, Workload};
use sluicenet_vswitchd::config::PORTS;
use sluicenet_wire::ethernet::MacAddress;

/// The most servers of a testbed.
pub const SERVERS_MAX: u32 = 256;
/// The longest waiting time of a watchdog.
const WATCHDOG_MAX: Duration = Duration::from_secs(3_600);
/// The time that a guest, emulated beside others, may stand still together with its network.
const GUEST_QUIET: Duration = Duration::from_secs(10);
/// The prefix of every namespace of a testbed: `sluicenet clean` removes only such namespaces.
pub const PREFIX: &str = "sluice-";

/// The traffic between the tenants of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Partition/Aggregate and background flows: [`super::pa`].
    Queries,
    /// Flows without an end: [`super::flows`].
    Flows,
}

impl Application {
    fn of(scenario: &Scenario) -> Result<Application> {
        if !scenario.level.is_packet() {
            return Err(scenario
                .locations
                .error("scenario.level", "a testbed has packets")
                .hint("set scenario.level = \"packet\""));
        }
        if scenario.topology.routing.has_control() {
            let error = scenario.locations.error("topology.routing", "the testbed's switches have no control loop");
            return Err(error.hint("simulated, or another routing"));
        }
        let is_flows = |w: &Workload| match w {
            Workload::Permutation(_) => true,
            Workload::Flow(w) => w.bytes.is_none(),
            _ => false,
        };
        if scenario.workloads.iter().any(is_flows) {
            super::flows::flows(scenario)?;
            return Ok(Application::Flows);
        }
        for w in &scenario.workloads {
            match w {
                Workload::PartitionAggregate2(_) => {}
                Workload::Background(w) if w.transport.connects() => {}
                Workload::Background(_) => {
                    return Err(scenario.locations.error("workload", "the testbed's background flows are streams"));
                }
                other => {
                    let kind = other.kind();
                    let message = format!("the testbed has no real application for workload `{kind}`");
                    return Err(scenario.locations.error("workload", message).hint(
                        "it runs partition-aggregate-2 (Crisan 2014, 4.5.1: the prototype's two tiers) and background, or permutation and flow without an end",
                    ));
                }
            }
        }
        Ok(Application::Queries)
    }
}

/// The plan of a testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The scenario in slow motion, as it is run, and as it is simulated for comparison.
    pub scenario: Scenario,
    /// The namespace of the fabric.
    pub fabric: String,
    /// The servers, in the order of their hosts.
    pub servers: Vec<Server>,
    /// The kind of tenants.
    pub tenants: TenantKind,
    /// The kind of virtual switches.
    pub switch: VirtualSwitch,
    /// The traffic between tenants.
    pub application: Application,
    /// Which networks are lossless.
    pub flow_control: FlowControl,
    /// The times without movement after which a link's watchdog acts, and releases the link again.
    pub watchdog: [Duration; 2],
    /// Largest IP packet of a tenant, in bytes.
    pub tenant_mtu: u32,
    /// Largest IP packet of the physical network, in bytes.
    pub mtu: u32,
    /// Warnings about settings that real machines ignore.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// The prefix length of the tenants' network, 10.0.0.0.
    pub const OVERLAY_PREFIX: u8 = 8;
    /// The prefix length of the network of second vNICs, 198.18.0.0 (RFC 2544: for tests of networks). A machine's
    /// vNICs have addresses in different networks, so that a socket's address selects its device.
    pub const LOSSY_PREFIX: u8 = 15;
    /// The prefix length of the servers' network, 172.16.0.0.
    pub const UNDERLAY_PREFIX: u8 = 12;

    /// Makes the plan of a scenario.
    ///
    /// # Errors
    /// A scenario that can only be simulated: workloads without real applications, framing other than Ethernet, too
    /// many servers or servers with several links, or links that would be too slow.
    pub fn new(scenario: &Scenario) -> Result<Plan> {
        let counts = scenario.topology.counts();
        refused::whole(scenario)?;
        let application = Application::of(scenario)?;
        refused::application(scenario, application)?;
        let slow = slowed(scenario);
        refused::links(scenario, &slow)?;
        let network = build::Plan::new(&slow)?;
        let sockets = sockets(&slow, application, counts.hosts)?;
        refused::light_sockets(scenario, &slow, &sockets)?;
        let rates = rates(&slow, application, counts.hosts)?;
        let mut servers = Vec::new();
        for host in 0..network.hosts() {
            if network.ports(host) > 1 {
                let why = format!("host {host} has {} links: a testbed's server has one", network.ports(host));
                return Err(scenario.locations.error("topology", why));
            }
            let rate = network.rate(host, 0);
            let vms = if host < counts.hosts { slow.server.vms as u8 } else { 1 };
            let shape = (vms, host < counts.hosts);
            let server = server(host, shape, rate, &sockets, &rates, slow.server.lossy_vnic.is_some());
            let ports = 1 + server.tenants.iter().map(Tenant::ports).sum::<usize>();
            if ports > PORTS {
                let why = format!(
                    "a switch of {ports} ports at server {host}, whose machines have two vNICs, or TCPlight beside TCP or UDP: at most {PORTS}"
                );
                return Err(scenario.locations.error("server.vms", why));
            }
            servers.push(server);
        }
        Ok(Plan {
            fabric: format!("{PREFIX}fabric"),
            servers,
            tenants: slow.testbed.tenants,
            switch: slow.testbed.switch,
            application,
            flow_control: slow.flow_control(),
            watchdog: [DETECTION_TIME, RESTORATION_TIME].map(|time| {
                // In slow motion pauses are longer, and so is the time after which a pause is suspect.
                let slowed = time.saturating_mul(scenario.testbed.slowdown).min(WATCHDOG_MAX);
                if slow.testbed.tenants == TenantKind::Guests { slowed.max(GUEST_QUIET) } else { slowed }
            }),
            tenant_mtu: slow.host_mtu().as_bytes() as u32,
            // A CN-TAG takes no room from packets.
            mtu: slow.framing.mtu.as_bytes() as u32 + cn_tag(scenario),
            warnings: stack::not_taken(scenario),
            scenario: slow,
        })
    }

    /// Whether servers have Linux bridges.
    pub fn is_bridged(&self) -> bool {
        self.switch == VirtualSwitch::Bridge
    }

    /// The stations to which the fabric forwards, with their edges: the servers' tunnel endpoints, or the tenants where
    /// servers have no tunnels.
    pub fn stations(&self) -> Vec<(MacAddress, HostId)> {
        let of = |s: &Server| -> Vec<(MacAddress, HostId)> {
            match self.switch {
                VirtualSwitch::Zvale => vec![(s.mac, s.host)],
                VirtualSwitch::Bridge => s.tenants.iter().map(|t| (t.mac, s.host)).collect(),
            }
        };
        self.servers.iter().flat_map(of).collect()
    }

    /// The tenant with number `vm` of a server.
    pub fn tenant(&self, host: HostId, vm: u8) -> Option<&Tenant> {
        self.servers.get(host as usize)?.tenants.get(vm as usize)
    }

    /// All tenants, in the order of their servers.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.servers.iter().flat_map(|s| &s.tenants)
    }

    /// All machines: the tenants except second vNICs.
    pub fn machines(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants().filter(|t| t.machine.is_none())
    }

    /// Whether `t` is the first tenant in the namespace of its machine.
    pub fn makes_namespace(&self, t: &Tenant) -> bool {
        let before = t.machine.and_then(|vm| self.tenant(t.host, vm));
        t.has_kernel() && !before.is_some_and(Tenant::has_kernel)
    }

    /// Whether tenants are guests.
    pub fn has_guests(&self) -> bool {
        self.tenants == TenantKind::Guests
    }

    /// The names of all namespaces of the testbed.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let tenants = self.tenants().filter(|t| !self.has_guests() && self.makes_namespace(t));
        let tenants = tenants.map(|t| t.namespace.as_str());
        let servers = self.servers.iter().map(|s| s.namespace.as_str());
        std::iter::once(self.fabric.as_str()).chain(servers).chain(tenants)
    }
}
