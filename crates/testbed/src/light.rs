//! Light sockets of a testbed's VMs, all in the application's process, which is attached to the VMs' ports.

use super::Plan;
use super::pa::PaError;
use sluicenet_experiment::workload::two_tier::Vm;
use sluicenet_socket::{Config, Host, attach};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// The time after which a silent VM is given up. All VMs are in this process, so silence only means that frames wait in
/// the network, which the run measures.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// The endpoint of a VM's light sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LightEndpoint {
    /// The control socket of the switch of the VM's server.
    pub control: PathBuf,
    /// The VM's port at the switch.
    pub port: String,
    /// The VM's address.
    pub address: Ipv4Addr,
    /// The VM's largest IP packet.
    pub mtu: u16,
    /// The receive buffer of a stream, in bytes.
    pub receive_buffer: u32,
}

/// The VMs whose ports are attached.
pub(super) struct Hosts<'a> {
    endpoints: &'a BTreeMap<Vm, LightEndpoint>,
    open: BTreeMap<Vm, Host>,
}

impl<'a> Hosts<'a> {
    pub fn new(endpoints: &'a BTreeMap<Vm, LightEndpoint>) -> Hosts<'a> {
        Hosts { endpoints, open: BTreeMap::new() }
    }

    /// The host of a VM; attaches to the VM's port on first use.
    pub fn host(&mut self, vm: Vm) -> Result<&Host, PaError> {
        use std::collections::btree_map::Entry;
        let endpoint = self.endpoints.get(&vm);
        let endpoint = endpoint.ok_or_else(|| {
            PaError::Workload(format!("VM {} of server {} has no port for light sockets", vm.1, vm.0))
        })?;
        Ok(match self.open.entry(vm) {
            Entry::Occupied(host) => host.into_mut(),
            Entry::Vacant(vacant) => {
                let failed = |e| PaError::io(&format!("port {} of server {}", endpoint.port, vm.0), &e);
                let port = attach::attach(&endpoint.control, &endpoint.port).map_err(failed)?;
                let LightEndpoint { mtu, receive_buffer, .. } = *endpoint;
                let usual = Config::new(endpoint.address, Plan::OVERLAY_PREFIX);
                // Each stream gets its full buffer, as in the simulator: all streams belong to the scenario.
                let memory = 2 * usual.streams as u64 * u64::from(receive_buffer);
                let config = Config { mtu, receive_buffer, memory, dead_after: NEVER, ..usual };
                vacant.insert(Host::open(port, config).map_err(failed)?)
            }
        })
    }
}
