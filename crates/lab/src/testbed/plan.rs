//! What a testbed is made of, computed from the scenario and nothing else.

use super::guest::GUESTS_MAX;
use super::{slowed, stack};
use crate::build;
use crate::formats::HpccLink;
use crate::scenario::{
    FlowControl, FramingKind, LINK_RATE_MIN, Link, Result, Scenario, Shape, SlowVm, TenantKind, Transport,
    VirtualSwitch, Warning, Workload,
};
use crate::switch::config::{PORTS_MAX, TcpTunnel};
use crate::workload::two_tier::{self, Vm};
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Servers a testbed may have.
pub const SERVERS_MAX: u32 = 256;
/// The longest delay of a link or a box: a thousand seconds.
const DELAY_MAX: Duration = Duration::from_secs(1_000);
/// The longest that a watchdog waits.
const WATCHDOG_MAX: Duration = Duration::from_secs(3_600);
/// A guest that is emulated beside others may stand still for so long, and its network with it.
const GUEST_QUIET: Duration = Duration::from_secs(10);
/// What light sockets' addresses have more than the kernel's of the same machine: machines of a server have fewer than that.
const BESIDE: u8 = 0x80;
/// What a light socket takes ahead of its reader at most.
const LIGHT_BUFFER_MAX: u64 = 1 << 30;
/// The largest IP packet of a light socket: a buffer of a port in shared memory less the header of Ethernet.
const LIGHT_MTU_MAX: u32 = 2034;
/// What every namespace of a testbed is called at first: `sluicenet clean` removes those and no others.
pub const PREFIX: &str = "sluice-";

/// Which sockets the programs of a machine have, and so which ports of its server's switch it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// The kernel's: a port to a namespace or a guest.
    Kernel,
    /// Light ones: a port in shared memory.
    Light,
    /// Both: a port of each kind, with an address each.
    Both,
}

/// The port in shared memory of a machine with light sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LightPort {
    /// Its name at the switch.
    pub name: String,
    /// Its address in the overlay.
    pub address: Ipv4Addr,
    /// Its station there.
    pub mac: MacAddress,
}

/// A virtual machine: a namespace or a guest, a port for light sockets, or both; or the second vNIC of one (`server.lossy_vnic`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its server.
    pub host: HostId,
    /// Its number there; second vNICs are counted on behind the machines.
    pub vm: u8,
    /// What it is called: the namespace it is, or a guest.
    pub namespace: String,
    /// Its address in the overlay, in [`Plan::OVERLAY_PREFIX`] bits of network.
    pub address: Ipv4Addr,
    /// Its station there.
    pub mac: MacAddress,
    /// What its programs have.
    pub sockets: Sockets,
    /// Its device, where it is a namespace.
    pub device: &'static str,
    /// Whether it is a vNIC of the stack that drops: a machine's second one, or that of a host outside.
    pub lossy: bool,
    /// The number of the machine whose second vNIC it is, in the machine's namespace.
    pub machine: Option<u8>,
    /// How fast its ports give it frames: where it is slow, and where it hears machines of its own server, whose frames meet no link.
    pub rate: Option<Rate>,
}

impl Tenant {
    /// Whether it has the kernel's sockets: a namespace, or a guest.
    pub fn has_kernel(&self) -> bool {
        self.sockets != Sockets::Light
    }

    /// How many ports of its server's switch it has.
    pub fn ports(&self) -> usize {
        usize::from(self.has_kernel()) + usize::from(self.light().is_some())
    }

    /// Its port for light sockets, where it has one: with an address of its own where the kernel has the machine's.
    pub fn light(&self) -> Option<LightPort> {
        let own = |bit: u8| {
            let [a, b, c, d] = self.address.octets();
            let mut mac = self.mac;
            mac.0[5] |= bit;
            LightPort { name: format!("l{}", self.vm), address: Ipv4Addr::new(a, b, c, d | bit), mac }
        };
        match self.sockets {
            Sockets::Kernel => None,
            Sockets::Light => Some(own(0)),
            Sockets::Both => Some(own(BESIDE)),
        }
    }
}

/// A virtualised server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its number in the scenario: edge of the fabric and host of the simulation.
    pub host: HostId,
    /// The namespace that its virtual switch and its end of the uplink are in.
    pub namespace: String,
    /// The server's end of the uplink.
    pub uplink: &'static str,
    /// The fabric's end, in the fabric's namespace.
    pub edge: String,
    /// Its address in the physical network, in [`Plan::UNDERLAY_PREFIX`] bits of network.
    pub address: Ipv4Addr,
    /// Its station there: what the fabric forwards by.
    pub mac: MacAddress,
    /// Speed of its uplink.
    pub rate: Rate,
    /// Its tenants.
    pub tenants: Vec<Tenant>,
}

/// What runs between the tenants of a testbed.
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
                .places
                .error("scenario.level", "a testbed has packets")
                .hint("set scenario.level = \"packet\""));
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
                    return Err(scenario.places.error("workload", "the testbed's background flows are streams"));
                }
                other => {
                    let kind = other.kind();
                    let message = format!("the testbed has no real application for workload `{kind}`");
                    return Err(scenario.places.error("workload", message).hint(
                        "it runs partition-aggregate-2 (Crisan 2014, 4.5.1: the prototype's two tiers) and background, or permutation and flow without an end",
                    ));
                }
            }
        }
        Ok(Application::Queries)
    }
}

/// A testbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The scenario as it is run, slowed down: what to simulate for comparison.
    pub scenario: Scenario,
    /// The namespace of the fabric.
    pub fabric: String,
    /// The servers, in the order of their hosts.
    pub servers: Vec<Server>,
    /// What tenants are.
    pub tenants: TenantKind,
    /// What a server's virtual switch is.
    pub switch: VirtualSwitch,
    /// What runs between them.
    pub application: Application,
    /// Which networks hold frames back.
    pub flow_control: FlowControl,
    /// After how long without movement a link's watchdog acts, and lets go again.
    pub watchdog: [Duration; 2],
    /// Largest IP packet of a tenant, in bytes.
    pub tenant_mtu: u32,
    /// Largest IP packet of the physical network, in bytes.
    pub mtu: u32,
    /// What the scenario says that real machines have not.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// Bits of the tenants' network, 10.0.0.0.
    pub const OVERLAY_PREFIX: u8 = 8;
    /// Bits of the network of second vNICs, 198.18.0.0 (RFC 2544: for tests of networks): each of a machine's has its own, and a socket with
    /// an address of either its device.
    pub const LOSSY_PREFIX: u8 = 15;
    /// Bits of the servers' network, 172.16.0.0.
    pub const UNDERLAY_PREFIX: u8 = 12;

    /// The testbed of a scenario.
    ///
    /// # Errors
    /// What only a simulation can be: workloads without real applications, frames that are not Ethernet's, servers with
    /// several links or too many of them, links that would be too slow.
    pub fn new(scenario: &Scenario) -> Result<Plan> {
        let refuse = |key: &str, message: String| Err(scenario.places.error(key, message));
        let counts = scenario.topology.counts();
        if counts.endpoints() > SERVERS_MAX {
            return refuse("topology", format!("a testbed of {} servers: at most {SERVERS_MAX}", counts.endpoints()));
        }
        if scenario.framing.kind != FramingKind::Ethernet {
            return refuse("framing.kind", "real frames are Ethernet's".into());
        }
        let guests = scenario.testbed.tenants == TenantKind::Guests;
        let machines = counts.hosts * scenario.server.vms + (counts.endpoints() - counts.hosts);
        if guests && machines as usize > GUESTS_MAX {
            let message = format!("a testbed of {machines} guests: at most {GUESTS_MAX}");
            return Err(scenario.places.error("testbed.tenants", message).expected("fewer of them, or \"namespaces\""));
        }
        if guests && scenario.testbed.switch == VirtualSwitch::Bridge {
            let e = scenario.places.error("testbed.switch", "guests are at a switch of this project");
            return Err(e.expected("\"zvale\", or testbed.tenants = \"namespaces\""));
        }
        if scenario.testbed.switch == VirtualSwitch::Bridge && scenario.flow_control() != FlowControl::Ll {
            let e = scenario.places.error("testbed.switch", "a Linux bridge holds nobody back");
            return Err(e.expected("\"zvale\", or scenario.flow_control = \"LL\""));
        }
        let of_switches = [("zcredit", scenario.zcredit.enabled), ("zbridge", scenario.zbridge.enabled)];
        for (name, _) in of_switches.into_iter().filter(|(_, enabled)| *enabled) {
            let key = format!("{name}.enabled");
            if scenario.testbed.switch == VirtualSwitch::Bridge {
                let e = scenario.places.error(&key, "a Linux bridge has neither credits nor zBridge");
                return Err(e.expected(format!("testbed.switch = \"zvale\", or no [{name}]")));
            }
            if !scenario.vswitch.lossless {
                let e = scenario.places.error(&key, "what has to wait would be dropped in lossy virtual switches");
                return Err(e.expected(format!("scenario.flow_control = \"ZZ\" or \"ZL\", or no [{name}]")));
            }
        }
        if scenario.overlay.tcp && scenario.testbed.switch == VirtualSwitch::Bridge {
            let e = scenario.places.error("overlay.transport", "a Linux bridge has no tunnels");
            return Err(e.expected("testbed.switch = \"zvale\", or \"udp\""));
        }
        if scenario.overlay.tcp {
            if scenario.tcp.rto_max < TcpTunnel::RTO_MAX_LEAST {
                let e = scenario.places.error("tcp.rto_max", "a real tunnel waits longer before it gives up");
                let least = TcpTunnel::RTO_MAX_LEAST.as_us() / 1_000;
                return Err(e.expected(format!("at least {least} ms")));
            }
            // The same TCP as in the simulator, over the physical network's packets.
            let tcp = build::tcp_config(scenario, scenario.framing.mtu.as_bytes() as u16);
            tcp.validate().map_err(|e| scenario.places.error("tcp", format!("a real tunnel: {e}")))?;
        }
        if !scenario.policy.is_empty() && scenario.testbed.switch == VirtualSwitch::Bridge {
            let e = scenario.places.error("policy", "a Linux bridge lets all machines talk to all");
            return Err(e.expected("testbed.switch = \"zvale\", or no [policy]"));
        }
        if let Some(lossy) = scenario.server.lossy_vnic {
            let refuse =
                |why: &str, expected: &str| Err(scenario.places.error("server.lossy_vnic", why).expected(expected));
            if guests {
                return refuse("guests have one vNIC", "testbed.tenants = \"namespaces\", or no lossy_vnic");
            }
            if lossy == 0 {
                return refuse("what real sockets send by first vNICs is of priority 0", "a priority from 1 to 7");
            }
        }
        let application = Application::of(scenario)?;
        if scenario.testbed.switch == VirtualSwitch::Bridge && !scenario.vswitch.slow.is_empty() {
            let e = scenario.places.error("vswitch.slow", "the ports of a Linux bridge have no rate");
            return Err(e.expected("testbed.switch = \"zvale\", or no [[vswitch.slow]]"));
        }
        if guests && application == Application::Flows {
            let e = scenario.places.error("testbed.tenants", "flows are run between namespaces");
            return Err(e.expected("\"namespaces\""));
        }
        let slow = slowed(scenario);
        let of_file: &[HpccLink] = match &slow.topology.shape {
            Shape::Hpcc { file } => &file.content.links,
            _ => &[],
        };
        let of_file = of_file.iter().flat_map(|l| [("rate", l.rate < LINK_RATE_MIN), ("delay", l.delay > DELAY_MAX)]);
        let of_level = |l: &Link| [("rate", l.rate < LINK_RATE_MIN), ("delay", l.delay > DELAY_MAX)];
        let boxes = [slow.switch.delay, slow.adapter.delay, slow.pfc.response].map(|d| ("delay", d > DELAY_MAX));
        let links = slow.topology.levels.iter().chain([&slow.topology.link]).flat_map(of_level);
        if let Some((what, _)) = links.chain(boxes).chain(of_file).find(|l| l.1) {
            let (rate, delay) = (LINK_RATE_MIN.as_bps(), DELAY_MAX.as_secs_f64());
            return Err(scenario
                .places
                .error("testbed.slowdown", format!("so slow the network's {what} is out of range"))
                .expected(format!("links of at least {rate} b/s, delays of at most {delay} s")));
        }
        let network = build::Plan::new(&slow)?;
        let sockets = sockets(&slow, application, counts.hosts)?;
        let light = sockets.values().any(|has| has[1]);
        if light && guests {
            let e = scenario
                .places
                .error("testbed.tenants", "TCPlight is run between light sockets, which guests have none of");
            return Err(e.expected("\"namespaces\", or another `transport`"));
        }
        if light && scenario.testbed.switch == VirtualSwitch::Bridge {
            let e = scenario.places.error("testbed.switch", "a Linux bridge has no ports for light sockets");
            return Err(e.expected("\"zvale\", or another `transport`"));
        }
        let both = |slow: &&SlowVm| sockets.get(&(slow.host, slow.vm as u8)) == Some(&[true, true]);
        if let Some(both) = slow.vswitch.slow.iter().find(both) {
            let why = format!(
                "VM {} of server {} has ports for the kernel's sockets and for light ones, which do not share a rate",
                both.vm, both.host
            );
            return Err(scenario
                .places
                .error("vswitch.slow", why)
                .expected("flows of TCPlight, or none, to a slow machine"));
        }
        let tenant_mtu = slow.host_mtu().as_bytes() as u32;
        if light && tenant_mtu > LIGHT_MTU_MAX {
            let message = format!("packets of {tenant_mtu} B: those of light sockets have at most {LIGHT_MTU_MAX}");
            return refuse("overlay.mtu", message);
        }
        if light && slow.tcplight.buffer.as_bytes() > LIGHT_BUFFER_MAX {
            let e = scenario.places.error("tcplight.buffer", "more than a light socket takes ahead of its reader");
            return Err(e.expected("1 GiB at most"));
        }
        let rates = rates(&slow, application, counts.hosts)?;
        let mut servers = Vec::new();
        for host in 0..network.hosts() {
            if network.host(host).len() > 1 {
                return refuse(
                    "topology",
                    format!("host {host} has {} links: a testbed's server has one", network.host(host).len()),
                );
            }
            let rate = network.rate(host, 0);
            let vms = if host < counts.hosts { slow.server.vms as u8 } else { 1 };
            let shape = (vms, host < counts.hosts);
            let server = server(host, shape, rate, &sockets, &rates, slow.server.lossy_vnic.is_some());
            let ports = 1 + server.tenants.iter().map(Tenant::ports).sum::<usize>();
            if ports > PORTS_MAX {
                let why = format!(
                    "a switch of {ports} ports at server {host}, whose machines have two vNICs, or TCPlight beside TCP or UDP: at most {PORTS_MAX}"
                );
                return refuse("server.vms", why);
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
                // In slow motion pauses are longer, and so is what makes one suspect.
                let slowed = time.saturating_mul(scenario.testbed.slowdown).min(WATCHDOG_MAX);
                if guests { slowed.max(GUEST_QUIET) } else { slowed }
            }),
            tenant_mtu,
            mtu: slow.framing.mtu.as_bytes() as u32,
            warnings: stack::not_taken(scenario),
            scenario: slow,
        })
    }

    /// Whether servers have Linux bridges.
    pub fn is_bridged(&self) -> bool {
        self.switch == VirtualSwitch::Bridge
    }

    /// What the fabric forwards to, and behind which of its edges: tunnels' ends, or tenants where there are none.
    pub fn stations(&self) -> Vec<(MacAddress, HostId)> {
        let of = |s: &Server| -> Vec<(MacAddress, HostId)> {
            match self.switch {
                VirtualSwitch::Zvale => vec![(s.mac, s.host)],
                VirtualSwitch::Bridge => s.tenants.iter().map(|t| (t.mac, s.host)).collect(),
            }
        };
        self.servers.iter().flat_map(of).collect()
    }

    /// A tenant.
    pub fn tenant(&self, host: HostId, vm: u8) -> Option<&Tenant> {
        self.servers.get(host as usize)?.tenants.get(vm as usize)
    }

    /// All tenants, in the order of their servers.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.servers.iter().flat_map(|s| &s.tenants)
    }

    /// All machines: tenants that are no second vNICs of others.
    pub fn machines(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants().filter(|t| t.machine.is_none())
    }

    /// Whether it is the first of its machine that is in the machine's namespace.
    pub fn makes_namespace(&self, t: &Tenant) -> bool {
        let before = t.machine.and_then(|vm| self.tenant(t.host, vm));
        t.has_kernel() && !before.is_some_and(Tenant::has_kernel)
    }

    /// Whether tenants are guests.
    pub fn has_guests(&self) -> bool {
        self.tenants == TenantKind::Guests
    }

    /// Every namespace there is to be.
    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let tenants = self.tenants().filter(|t| !self.has_guests() && self.makes_namespace(t));
        let tenants = tenants.map(|t| t.namespace.as_str());
        let servers = self.servers.iter().map(|s| s.namespace.as_str());
        std::iter::once(self.fabric.as_str()).chain(servers).chain(tenants)
    }
}

/// Whether a machine has the kernel's sockets, and whether light ones.
type Has = [bool; 2];

/// What the machines that have part in the workloads need.
fn sockets(scenario: &Scenario, application: Application, hosts: u32) -> Result<BTreeMap<Vm, Has>> {
    let mut all: BTreeMap<Vm, Has> = BTreeMap::new();
    let mut needs = |vm: Vm, transport: Transport| {
        all.entry(vm).or_default()[usize::from(transport == Transport::TcpLight)] = true;
    };
    if application == Application::Flows {
        for flow in super::flows::flows(scenario)? {
            [flow.from, flow.to].into_iter().for_each(|vm| needs(vm, flow.transport));
        }
        return Ok(all);
    }
    for (number, workload) in scenario.workloads.iter().enumerate() {
        let (transport, priority) = match workload {
            Workload::PartitionAggregate2(w) => {
                let (aggregators, workers) = two_tier::roles(scenario, w, hosts);
                aggregators.into_iter().chain(workers).for_each(|vm| needs(vm, w.transport));
                (w.transport, w.priority)
            }
            Workload::Background(w) => {
                (0..hosts).for_each(|host| needs((host, w.vm as u8), w.transport));
                (w.transport, w.priority)
            }
            _ => continue,
        };
        no_priority(scenario, number, transport, priority)?;
        if scenario.server.lossy_vnic == Some(priority) {
            let message = "the testbed's queries and background flows are between first vNICs";
            return Err(scenario.places.error(&format!("workload.{number}"), message).expected("another `priority`"));
        }
    }
    Ok(all)
}

/// Machines that are given frames at a rate of their own.
fn rates(scenario: &Scenario, application: Application, hosts: u32) -> Result<BTreeMap<Vm, Rate>> {
    let mut all: BTreeMap<Vm, Rate> = BTreeMap::new();
    let own = scenario.vswitch.vm_rate;
    if application == Application::Flows {
        let within = super::flows::flows(scenario)?.into_iter().filter(|flow| flow.from.0 == flow.to.0);
        all.extend(within.flat_map(|flow| [(flow.from, own), (flow.to, own)]));
    }
    for workload in &scenario.workloads {
        let Workload::PartitionAggregate2(w) = workload else { continue };
        let (aggregators, workers) = two_tier::roles(scenario, w, hosts);
        let beside = |vm: &Vm, others: &[Vm]| others.iter().any(|other| other.0 == vm.0);
        all.extend(aggregators.iter().filter(|vm| beside(vm, &workers)).map(|&vm| (vm, own)));
        all.extend(workers.iter().filter(|vm| beside(vm, &aggregators)).map(|&vm| (vm, own)));
    }
    all.extend(scenario.vswitch.slow.iter().map(|slow| ((slow.host, slow.vm as u8), slow.rate)));
    Ok(all)
}

/// Refuses what light sockets cannot say.
pub(super) fn no_priority(scenario: &Scenario, number: usize, transport: Transport, priority: u8) -> Result<()> {
    if transport == Transport::TcpLight && priority != 0 {
        let message = "light sockets send at priority 0";
        return Err(scenario.places.error(&format!("workload.{number}"), message).expected("no `priority`"));
    }
    Ok(())
}

/// A server with so many machines that is `inside` of the virtual network, and second vNICs where machines have `two`; a host outside has
/// one then, which is lossy.
fn server(
    host: HostId,
    (vms, inside): (u8, bool),
    rate: Rate,
    sockets: &BTreeMap<Vm, Has>,
    rates: &BTreeMap<Vm, Rate>,
    two: bool,
) -> Server {
    // Below SERVERS_MAX and 64: every number fits its byte.
    let (high, low) = ((host >> 8) as u8, host as u8);
    let namespace = format!("{PREFIX}s{host}");
    let second = |vm: u8| two && inside && vm >= vms;
    let lossy = |vm: u8| two && (!inside || vm >= vms);
    let tenant = |vm: u8| Tenant {
        host,
        vm,
        namespace: format!("{namespace}-t{}", if second(vm) { vm - vms } else { vm }),
        // At most 256 servers: `high` is 0.
        address: if lossy(vm) {
            Ipv4Addr::new(198, 18 + high, low, vm + 1)
        } else {
            Ipv4Addr::new(10, high, low, vm + 1)
        },
        device: if second(vm) { "eth1" } else { "eth0" },
        lossy: lossy(vm),
        machine: second(vm).then(|| vm - vms),
        mac: MacAddress::local(1 << 31 | host << 8 | u32::from(vm)),
        sockets: match sockets.get(&(host, vm)) {
            Some([true, true]) => Sockets::Both,
            Some([false, true]) => Sockets::Light,
            _ => Sockets::Kernel,
        },
        rate: rates.get(&(host, if second(vm) { vm - vms } else { vm })).copied(),
    };
    Server {
        host,
        uplink: "uplink",
        edge: format!("edge{host}"),
        address: Ipv4Addr::new(172, 16, high + 1, low),
        mac: MacAddress::local(host + 1),
        rate,
        tenants: (0..if two && inside { 2 * vms } else { vms }).map(tenant).collect(),
        namespace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::files;
    use std::collections::BTreeSet;

    fn plan(text: &str) -> Result<Plan> {
        let text = format!("[scenario]\nparameters = \"crisan2014-ch3\"\n{text}");
        Plan::new(&Scenario::parse(&text, "t.toml").unwrap().scenario)
    }

    const TREE: &str = "flow_control = \"ZZ\"\n[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\n";
    const PA: &str = "[[workload]]\nkind = \"partition-aggregate-2\"\nworkers = 7\nresponse = \"20 KB\"\nqueries = 9\n\
                      inter_arrival = \"1 ms\"\n";

    #[test]
    fn every_name_and_address_is_there_once() {
        let p = plan(&format!("{TREE}{PA}[testbed]\nslowdown = 100\n")).unwrap();
        assert_eq!((p.servers.len(), p.tenant_mtu, p.flow_control), (8, 1446, FlowControl::Zz));
        let names: Vec<&str> = p.namespaces().collect();
        assert_eq!(names.len(), 1 + 8 + 8 * 4);
        assert!(names.iter().all(|n| n.starts_with(PREFIX)));
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let t = p.tenant(5, 3).unwrap();
        assert_eq!((t.namespace.as_str(), t.address), ("sluice-s5-t3", Ipv4Addr::new(10, 0, 5, 4)));
        let stations = p.servers.iter().flat_map(|s| s.tenants.iter().map(|t| t.mac).chain([s.mac]));
        assert_eq!(stations.collect::<BTreeSet<_>>().len(), 8 * 5);
        let addresses = p.servers.iter().flat_map(|s| s.tenants.iter().map(|t| t.address).chain([s.address]));
        assert_eq!(addresses.collect::<BTreeSet<_>>().len(), 8 * 5);
        // What is longer than 15 characters is no name of a device.
        assert!(p.servers.iter().all(|s| s.edge.len() <= 15 && s.rate == Rate::mbps(100)));
        assert!(p.tenant(8, 0).is_none() && p.tenant(0, 4).is_none());
    }

    fn table_5_2(settings: &[&str]) -> Result<Plan> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014/table-5-2.toml");
        let settings: Vec<String> = settings.iter().map(|s| s.to_string()).collect();
        Plan::new(&Scenario::load_with(file, &settings).unwrap().scenario)
    }

    #[test]
    fn a_machine_with_two_vnics_is_one_namespace_with_a_port_for_each() {
        let p = table_5_2(&[]).unwrap();
        // Two machines of four servers, two vNICs each, and a remote host with one.
        assert_eq!((p.tenants().count(), p.machines().count(), p.servers.len()), (4 * 4 + 1, 4 * 2 + 1, 5));
        let [first, second] = [0, 2].map(|vm| p.tenant(2, vm).unwrap());
        assert_eq!((first.namespace.as_str(), first.device, first.lossy), ("sluice-s2-t0", "eth0", false));
        assert_eq!((second.namespace.as_str(), second.device, second.lossy), ("sluice-s2-t0", "eth1", true));
        assert_eq!(second.address, Ipv4Addr::new(198, 18, 2, 3));
        let outside = p.tenant(4, 0).unwrap();
        assert_eq!((outside.device, outside.lossy, outside.machine), ("eth0", true, None));
        let names: Vec<&str> = p.namespaces().collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
        // The fabric, servers, and each machine: one whose first vNIC is of light sockets alone has its second one in it.
        assert_eq!(names.len(), 1 + 5 + 4 * 2 + 1);
        let flows = crate::testbed::flows::flows(&p.scenario).unwrap();
        let ends: Vec<_> = flows.iter().map(|f| (f.from, f.to, f.rate)).collect();
        let vnic = Some(p.scenario.vswitch.vm_rate);
        assert_eq!(ends[0], ((0, 0), (2, 0), None));
        assert_eq!(
            (ends[2], ends[4], ends[5]),
            (((1, 2), (2, 2), vnic), ((4, 0), (2, 2), vnic), ((2, 2), (4, 0), None))
        );
        // In slow motion, as all else: the first link's rate is 10 Gb/s.
        assert_eq!(ends[1].2.map(|rate| rate.as_bps() * 10), Some(p.servers[0].rate.as_bps()));
    }

    #[test]
    fn every_switch_knows_all_machines_and_which_vnics_are_lossy() {
        let p = table_5_2(&[]).unwrap();
        for server in &p.servers {
            let file = files::switch(&p, server, &files::Place::of_the_machine());
            assert!(file.contains("slots = 1024\nlossless = [0, 2, 3, 4, 5, 6, 7]\n"), "{file}");
            // The one that is sent TCPlight and UDP has a port for each.
            assert_eq!(file.matches("[[policy.machine]]").count(), 10, "{file}");
            assert_eq!(
                (file.matches("lossy_mac = ").count(), file.matches("outside = true").count()),
                (9, 1),
                "{file}"
            );
            let ports = if server.host == 4 { 1 } else { 2 };
            assert_eq!(file.matches("kind = \"packet\"").count(), ports, "{file}");
            assert_eq!(file.matches("priority = 1\n").count(), ports, "{file}");
        }
        let rule = |party: &str| {
            let rule = format!("policy.rule=[{{ party = \"{party}\", peer = \"outside\", allow = false }}]");
            let p = table_5_2(&[&rule, "workload.5.src=3"]).unwrap();
            files::switch(&p, &p.servers[0], &files::Place::of_the_machine())
        };
        assert!(rule("blue").contains("[[policy.rule]]\nparty = \"tenant-1\"\npeer = \"outside\"\nallow = false\n"));
        assert!(rule("host 1 vm 1").contains("party = \"s1-t1\"\npeer = \"outside\""));
    }

    #[test]
    fn what_two_vnics_cannot_be_on_a_testbed_is_refused() {
        let refused = |settings: &[&str], words: &str| {
            let Err(e) = table_5_2(settings) else { panic!("{settings:?}") };
            assert!(e.to_string().contains(words), "{settings:?}: {e}");
        };
        refused(&["testbed.tenants=guests"], "guests have one vNIC");
        let bridge = ["testbed.switch=bridge", "scenario.hypervisor=lossy", "server.lossy_vnic=1"];
        assert!(
            Scenario::load_with(
                concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/crisan2014/table-5-2.toml"),
                &bridge.map(str::to_owned)
            )
            .is_err()
        );
        refused(&["workload.0.src_vm=1"], "never connect");
        let priorities: Vec<String> = (2..6).map(|n| format!("workload.{n}.priority=0")).collect();
        let mut zero: Vec<&str> = priorities.iter().map(String::as_str).collect();
        zero.extend([
            "server.lossy_vnic=0",
            "workload.0.priority=2",
            "workload.0.transport=udp",
            "workload.1.priority=2",
        ]);
        refused(&zero, "is of priority 0");
    }

    #[test]
    fn guests_have_names_and_addresses_and_no_namespaces() {
        let p = plan(&format!("{TREE}{PA}[testbed]\ntenants = \"guests\"\nslowdown = 100\n")).unwrap();
        assert_eq!((p.namespaces().count(), p.tenants().count(), p.has_guests()), (1 + 8, 8 * 4, true));
        assert_eq!(p.tenants().last().map(|t| t.namespace.as_str()), Some("sluice-s7-t3"));
    }

    #[test]
    fn what_a_testbed_cannot_have_is_refused_with_its_line() {
        let slow = "[[vswitch.slow]]\nhost = 1\nrate = \"100 Mb/s\"\n";
        let credits = "[zcredit]\nenabled = true\n";
        assert!(plan(&format!("{TREE}{PA}{credits}")).is_ok());
        let lossy = TREE.replace("ZZ", "LL");
        let bridge = "[testbed]\nswitch = \"bridge\"\n";
        for (text, line, expected) in [
            (
                format!("{lossy}{PA}{slow}{bridge}"),
                "[[vswitch.slow]]",
                "testbed.switch = \"zvale\", or no [[vswitch.slow]]",
            ),
            (format!("{lossy}{PA}{credits}{bridge}"), "enabled = true", "testbed.switch = \"zvale\", or no [zcredit]"),
            (
                format!("{lossy}{PA}{credits}"),
                "enabled = true",
                "scenario.flow_control = \"ZZ\" or \"ZL\", or no [zcredit]",
            ),
        ] {
            let e = plan(&text).unwrap_err();
            let d = e.diagnostic();
            // Two lines stand above.
            let at = 3 + text[..text.find(line).unwrap()].matches('\n').count();
            assert_eq!((d.file.as_str(), d.line as usize), ("t.toml", at), "{d:#?}");
            assert_eq!(d.expected, expected, "{d:#?}");
        }
    }

    #[test]
    fn machines_have_the_sockets_that_their_flows_need() {
        let stride = |transport: &str| {
            format!("[[workload]]\nkind = \"permutation\"\npattern = \"stride\"\ntransport = \"{transport}\"\n")
        };
        let head = "flow_control = \"ZZ\"\nduration = \"1 s\"\n[topology]\nkind = \"single-switch\"\nhosts = 3\n[server]\nvms = 2\n";
        let light = plan(&format!("{head}{}", stride("tcplight"))).unwrap();
        let of = |p: &Plan, vm| p.tenant(1, vm).unwrap().sockets;
        // Nobody runs anything on the second machines.
        assert_eq!((of(&light, 0), of(&light, 1)), (Sockets::Light, Sockets::Kernel));
        assert_eq!(light.namespaces().count(), 1 + 3 + 3);
        let own = light.tenant(1, 0).unwrap();
        assert_eq!(own.light().map(|l| (l.address, l.mac)), Some((own.address, own.mac)));
        let both = plan(&format!("{head}{}{}", stride("tcplight"), stride("udp"))).unwrap();
        assert_eq!(of(&both, 0), Sockets::Both);
        let all =
            both.tenants().flat_map(|t| [Some((t.address, t.mac)), t.light().map(|l| (l.address, l.mac))]).flatten();
        let (addresses, stations): (BTreeSet<_>, BTreeSet<_>) = all.unzip();
        assert_eq!((addresses.len(), stations.len()), (9, 9));
        // Both of a machine's stations weigh what it does.
        let weight = "[zcredit]\nenabled = true\n[[zcredit.weight]]\nhost = 1\nweight = 4\n";
        let p = plan(&format!("{head}{}{}{weight}", stride("tcplight"), stride("udp"))).unwrap();
        let file = files::switch(&p, &p.servers[1], &files::Place::of_the_machine());
        let own = p.tenant(1, 0).unwrap();
        for mac in [own.mac, own.light().unwrap().mac].map(|mac| mac.0.map(|b| format!("{b:02x}")).join(":")) {
            assert!(file.contains(&format!("mac = \"{mac}\"\nweight = 4\n")), "{mac} in\n{file}");
        }
        let slow = "[[vswitch.slow]]\nhost = 1\nrate = \"100 Mb/s\"\n";
        let e = plan(&format!("{head}{}{}{slow}", stride("tcplight"), stride("udp"))).unwrap_err().to_string();
        assert!(e.contains("VM 0 of server 1") && e.contains("do not share a rate"), "{e}");
        assert!(plan(&format!("{head}{}{slow}", stride("tcplight"))).is_ok());
        let e = plan(&format!("{head}{}priority = 3\n", stride("tcplight"))).unwrap_err().to_string();
        assert!(e.contains("light sockets send at priority 0"), "{e}");
        let e =
            plan(&format!("{head}[overlay]\nmtu = \"2035 B\"\n[framing]\nmtu = \"9000 B\"\n{}", stride("tcplight")))
                .unwrap_err()
                .to_string();
        assert!(e.contains("those of light sockets have at most 2034"), "{e}");
        let query = PA.replace("workers = 7", "workers = 2") + "transport = \"tcplight\"\n";
        let queries = plan(&format!("{head}{query}")).unwrap();
        assert!(queries.tenants().filter(|t| t.sockets == Sockets::Light).count() == 3);
        let e = plan(&format!("{head}{query}[testbed]\ntenants = \"guests\"\n")).unwrap_err().to_string();
        assert!(e.contains("which guests have none of"), "{e}");
    }

    /// Frames within a server meet no link: their receivers' ports have the rate that simulated ones have, slowed down like links.
    #[test]
    fn who_hears_machines_of_his_own_server_is_as_slow_as_the_network() {
        let head = "flow_control = \"ZZ\"\nduration = \"1 s\"\n[topology]\nkind = \"single-switch\"\nhosts = 3\n[server]\nvms = 2\n\
                    [testbed]\nslowdown = 100\n";
        let rate = |p: &Plan, host, vm| p.tenant(host, vm).unwrap().rate;
        let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 0\ndst_vm = 1\n[[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 2\n";
        let p = plan(&format!("{head}{flow}")).unwrap();
        assert_eq!((rate(&p, 0, 0), rate(&p, 0, 1)), (Some(Rate::mbps(100)), Some(Rate::mbps(100))));
        assert_eq!((rate(&p, 1, 0), rate(&p, 2, 0)), (None, None));
        let file = files::switch(&p, &p.servers[0], &files::Place::of_the_machine());
        assert_eq!(file.matches("rate = \"100000000 b/s\"").count(), 1 + 2, "{file}");
        let slow = "[[vswitch.slow]]\nhost = 0\nvm = 1\nrate = \"1 Gb/s\"\n";
        assert_eq!(rate(&plan(&format!("{head}{flow}{slow}")).unwrap(), 0, 1), Some(Rate::mbps(10)));
        let query = "[[workload]]\nkind = \"partition-aggregate-2\"\namong = \"vms\"\nworkers = 3\nresponse = \"20 KB\"\nqueries = 1\n";
        let p = plan(&format!("{head}{query}")).unwrap();
        let [asks, beside] = [0, 1].map(|vm| rate(&p, 0, vm));
        assert_eq!((asks, beside, rate(&p, 1, 0)), (Some(Rate::mbps(100)), Some(Rate::mbps(100)), None));
    }

    /// What a scenario says of tunnels' TCP is what the servers' switches run: the simulator's parameters, but for what is given up when.
    #[test]
    fn a_real_tunnel_has_the_tcp_of_the_simulated_one() {
        use crate::switch::config::Config;
        use sluicenet_proto::tcp;
        let folder = std::env::temp_dir().join(format!("sluicenet-tunnel-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = folder.join("s0.key");
        std::fs::write(&key, "0".repeat(64)).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let all = "congestion = \"vegas\"\nrto_base = \"300 ms\"\nrto_min = \"40 ms\"\nrto_slop = \"7 ms\"\nrto_max = \"9 s\"\n\
                   tick = \"3 us\"\nbuffer = \"90 KB\"\nmax_buffer = \"1 MB\"\ndelayed_ack = \"off\"\nack_every = 3\n\
                   reassembly_limit = 77\ninitial_window = 9\nsack = false\ntimestamps = false\nwindow_scaling = false\necn = true\n\
                   limited_transmit = false\nprr = true\nrestart_after_idle = false\nnagle = true\n";
        for set in ["plain", "crisan2014-ch2", "crisan2014-ch3"] {
            for keys in ["", all, "auto_buffer = false\nbuffer = \"64 KB\"\ndelayed_ack = \"1 ms\"\n"] {
                let text = format!(
                    "[scenario]\nparameters = \"{set}\"\nhypervisor = \"tcp\"\nduration = \"1 s\"\n[server]\nvirtual_network = true\n[overlay]\nmtu = \"1400 B\"\n\
                     [topology]\nkind = \"single-switch\"\nhosts = 2\n[tcp]\n{keys}\
                     [[workload]]\nkind = \"permutation\"\npattern = \"stride\"\ntransport = \"udp\"\n"
                );
                let plan = Plan::new(&Scenario::parse(&text, "t.toml").unwrap_or_else(|e| panic!("{e}")).scenario);
                let plan = plan.unwrap_or_else(|e| panic!("{e}"));
                let file = files::switch(&plan, &plan.servers[0], &files::Place::of_the_machine());
                let config = Config::parse(&folder.join("s0.toml"), &file).unwrap_or_else(|e| panic!("{e}\n{file}"));
                let tunnel = config.uplink.unwrap().overlay.unwrap().tcp_tunnel.unwrap();
                let real = tunnel.tcp(plan.mtu as u16).unwrap();
                let simulated = build::tcp_config(&plan.scenario, plan.mtu as u16);
                let max_buffer = if simulated.auto_buffer { simulated.max_buffer } else { simulated.send_buffer };
                let wanted = tcp::Config {
                    max_buffer,
                    auto_buffer: true,
                    connection_cache: real.connection_cache,
                    syn_retries: real.syn_retries,
                    max_retries: real.max_retries,
                    time_wait: real.time_wait,
                    ..simulated
                };
                assert_eq!(real, wanted, "{set}, {keys}");
                assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let odd = |tcp: &str| {
            plan(&format!("hypervisor = \"tcp\"\n{}[tcp]\n{tcp}{PA}", &TREE[TREE.find("[topology]").unwrap()..]))
        };
        let e = odd("rto_max = \"50 ms\"\n").unwrap_err();
        assert!(e.to_string().contains("t.toml") && e.to_string().contains("at least 100 ms"), "{e}");
        assert!(e.diagnostic().line > 0, "{e}");
    }

    #[test]
    fn slow_motion_keeps_bytes_in_flight_and_load() {
        let text = format!("{TREE}link_delay = \"50 ns\"\n{PA}[testbed]\nslowdown = 100\n");
        let p = plan(&text).unwrap();
        let fast = plan(&text.replace("slowdown = 100", "")).unwrap();
        let (s, f) = (&p.scenario, &fast.scenario);
        assert_eq!(s.topology.levels[1].rate, Rate::mbps(100));
        assert_eq!(s.topology.levels[1].delay.0, 100 * f.topology.levels[1].delay.0);
        assert_eq!((s.switch.delay.0, s.switch.buffer), (100 * f.switch.delay.0, f.switch.buffer));
        assert_eq!((&s.tcp, s.testbed.slowdown), (&f.tcp, 1));
        let [Workload::PartitionAggregate2(slow)] = &s.workloads[..] else { panic!() };
        assert_eq!(slow.inter_arrival.as_ref().unwrap().mean(), 1e11);
        // A network that is slowed down again is what it was.
        assert_eq!(slowed(s), *s);
    }

    #[test]
    fn what_only_a_simulation_can_be_is_refused_with_its_place() {
        let refused = |text: &str| plan(text).unwrap_err().to_string();
        let background = "[[workload]]\nkind = \"background\"\nflow_size = \"1 KB\"\ninter_arrival = \"1 ms\"\n";
        let e = refused(&format!("{TREE}{PA}{background}transport = \"udp\"\n"));
        assert!(e.contains("t.toml") && e.contains("background flows are streams"), "{e}");
        let e = refused(&format!("{TREE}{PA}[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n"));
        assert!(e.contains("no real application for workload `flow`") && e.contains("partition-aggregate-2"), "{e}");
        let e = refused(&format!("{TREE}{PA}[framing]\nkind = \"ppp\"\n"));
        assert!(e.contains("Ethernet"), "{e}");
        let e = refused(&format!("{TREE}link_rate = \"1 Mb/s\"\n{PA}[testbed]\nslowdown = 1000\n"));
        assert!(e.contains("rate is out of range") && e.contains("10000 b/s"), "{e}");
        let e = refused(&format!("{TREE}link_delay = \"1 h\"\n{PA}[testbed]\nslowdown = 2\n"));
        assert!(e.contains("delay is out of range"), "{e}");
        let e = refused(&format!("[topology]\nkind = \"xgft\"\nm = [4]\nw = [2]\n{}", PA.replace('7', "3")));
        assert!(e.contains("has 2 links"), "{e}");
        let e = refused(&format!("{TREE}{PA}[testbed]\ntenants = \"guests\"\nswitch = \"bridge\"\n"));
        assert!(e.contains("at a switch of this project"), "{e}");
        let e = refused(&format!("{TREE}{PA}[server]\nvms = 9\n[testbed]\ntenants = \"guests\"\n"));
        assert!(e.contains("72 guests: at most 64"), "{e}");
        let e = refused(&format!("{TREE}{PA}[testbed]\nswitch = \"bridge\"\n"));
        assert!(e.contains("holds nobody back") && e.contains("\"LL\""), "{e}");
        let e = refused(&format!("[topology]\nkind = \"single-switch\"\nhosts = 300\n{PA}"));
        assert!(e.contains("at most 256"), "{e}");
    }
}
