//! Servers and their machines: names, addresses, and the sockets of their programs.

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

/// The offset of a light socket's address from the kernel's address of the same machine. A server has fewer machines
/// than this.
const BESIDE: u8 = 0x80;

/// The sockets of a machine's programs, which decide the machine's ports at its server's switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// Kernel sockets: a port to a namespace or a guest.
    Kernel,
    /// Light sockets: a port in shared memory.
    Light,
    /// Kernel and light sockets: a port of each kind, with an address each.
    Both,
}

/// The shared-memory port of a machine with light sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LightPort {
    /// The port's name at the switch.
    pub name: String,
    /// The port's address in the overlay.
    pub address: Ipv4Addr,
    /// The port's MAC address in the overlay.
    pub mac: MacAddress,
}

/// A virtual machine: a namespace or a guest, a port for light sockets, or both; or the second vNIC of a machine
/// (`server.lossy_vnic`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The tenant's server.
    pub host: HostId,
    /// The tenant's number in its server. Numbers of second vNICs follow those of the machines.
    pub vm: u8,
    /// The name of the tenant's namespace or guest.
    pub namespace: String,
    /// The tenant's address in the overlay, with a prefix of [`Plan::OVERLAY_PREFIX`] bits.
    pub address: Ipv4Addr,
    /// The tenant's MAC address in the overlay.
    pub mac: MacAddress,
    /// The sockets of the tenant's programs.
    pub sockets: Sockets,
    /// The device in the tenant's namespace.
    pub device: &'static str,
    /// Whether the vNIC belongs to the lossy stack: a machine's second one, or the vNIC of a host outside.
    pub lossy: bool,
    /// The machine, by number, whose second vNIC the tenant is; both share the machine's namespace.
    pub machine: Option<u8>,
    /// The rate at which the tenant's ports deliver frames to it. Set for slow machines and for receivers of frames
    /// from their own server, which cross no link.
    pub rate: Option<Rate>,
}

impl Tenant {
    /// Whether the tenant has kernel sockets, and so is a namespace or a guest.
    pub fn has_kernel(&self) -> bool {
        self.sockets != Sockets::Light
    }

    /// The number of the tenant's ports at its server's switch.
    pub fn ports(&self) -> usize {
        usize::from(self.has_kernel()) + usize::from(self.light().is_some())
    }

    /// The tenant's port for light sockets, if any. Its address differs from the machine's if the kernel uses that one.
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
    /// The server's number in the scenario: edge of the fabric and host of the simulation.
    pub host: HostId,
    /// The namespace of the server's virtual switch and of its end of the uplink.
    pub namespace: String,
    /// The server's end of the uplink.
    pub uplink: &'static str,
    /// The fabric's end of the uplink, in the fabric's namespace.
    pub edge: String,
    /// The server's address in the physical network, with a prefix of [`Plan::UNDERLAY_PREFIX`] bits.
    pub address: Ipv4Addr,
    /// The server's MAC address in the physical network, by which the fabric forwards.
    pub mac: MacAddress,
    /// The speed of the uplink.
    pub rate: Rate,
    /// The server's tenants.
    pub tenants: Vec<Tenant>,
}

/// Whether a machine has kernel sockets, and whether it has light sockets.
pub(super) type Has = [bool; 2];

/// The sockets that each machine with a part in the workloads needs.
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

/// The machines to which ports deliver frames at a rate of their own.
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

/// Refuses a priority for light sockets, which cannot set one.
pub(crate) fn no_priority(scenario: &Scenario, number: usize, transport: Transport, priority: u8) -> Result<()> {
    if transport == Transport::TcpLight && priority != 0 {
        let message = "light sockets send at priority 0";
        return Err(scenario.locations.error(&format!("workload.{number}"), message).expected("no `priority`"));
    }
    Ok(())
}

/// A server with `vms` machines that is `inside` the virtual network or not. With `two`, its machines have second
/// vNICs, and a host outside has one vNIC, a lossy one.
pub(super) fn server(
    host: HostId,
    (vms, inside): (u8, bool),
    rate: Rate,
    sockets: &BTreeMap<Vm, Has>,
    rates: &BTreeMap<Vm, Rate>,
    two: bool,
) -> Server {
    // Hosts are below SERVERS_MAX and machines below 64: every number fits its byte.
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
