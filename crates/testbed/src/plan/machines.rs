//! The servers and their machines: names, addresses, and which sockets their programs have.

#[cfg(doc)]
use super::Plan;
use super::{Application, PREFIX};
use sluicenet_experiment::workload::two_tier::{self, Vm};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Result, Scenario, Transport, Workload};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// What light sockets' addresses have more than the kernel's of the same machine: machines of a server have fewer than that.
const BESIDE: u8 = 0x80;

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

/// Whether a machine has the kernel's sockets, and whether light ones.
pub(super) type Has = [bool; 2];

/// What the machines that have part in the workloads need.
pub(super) fn sockets(scenario: &Scenario, application: Application, hosts: u32) -> Result<BTreeMap<Vm, Has>> {
    let mut all: BTreeMap<Vm, Has> = BTreeMap::new();
    let mut needs = |vm: Vm, transport: Transport| {
        all.entry(vm).or_default()[usize::from(transport == Transport::TcpLight)] = true;
    };
    if application == Application::Flows {
        for flow in super::super::flows::flows(scenario)? {
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
            return Err(scenario
                .locations
                .error(&format!("workload.{number}"), message)
                .expected("another `priority`"));
        }
    }
    Ok(all)
}

/// Machines that are given frames at a rate of their own.
pub(super) fn rates(scenario: &Scenario, application: Application, hosts: u32) -> Result<BTreeMap<Vm, Rate>> {
    let mut all: BTreeMap<Vm, Rate> = BTreeMap::new();
    let own = scenario.vswitch.vm_rate;
    if application == Application::Flows {
        let within = super::super::flows::flows(scenario)?.into_iter().filter(|flow| flow.from.0 == flow.to.0);
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
pub(crate) fn no_priority(scenario: &Scenario, number: usize, transport: Transport, priority: u8) -> Result<()> {
    if transport == Transport::TcpLight && priority != 0 {
        let message = "light sockets send at priority 0";
        return Err(scenario.locations.error(&format!("workload.{number}"), message).expected("no `priority`"));
    }
    Ok(())
}

/// A server with so many machines that is `inside` of the virtual network, and second vNICs where machines have `two`; a host outside has
/// one then, which is lossy.
pub(super) fn server(
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
