//! A few tenants for experiments, each in its own namespace and connected by a veth to the namespace of a switch.

use super::error::KernelError;
use super::link::Links;
use super::netns::{Namespace, PREFIX};
use super::veth::Veth;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The use of the veths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    /// A [`ValvePort`](super::valve::ValvePort) at each.
    Valve,
    /// As the kernel creates them, for other switches.
    Plain,
    /// With checksums by the sender, for switches in user space.
    Checksummed,
    /// No device: the caller creates one called [`DEVICE`] and [configures](Lan::configure) it.
    Bare,
}

/// The name of every tenant's device.
pub const DEVICE: &str = "eth0";

/// The tenants' namespaces, which are deleted with this value.
#[derive(Debug)]
pub struct Lan {
    switch: Namespace,
    tenants: Vec<Namespace>,
    /// The names of the switch's ends.
    devices: Vec<String>,
    /// Whether the namespaces were created here, and are deleted here.
    own: bool,
}

impl Lan {
    /// Creates `tenants` (1 to 200) in namespaces `sluice-<tag>-0` and so on; the switch's is `sluice-<tag>-switch`.
    ///
    /// Tenant `i` has [`Lan::address`] and [`Lan::mac`], and knows those of the others.
    pub fn create(tag: &str, tenants: usize, wiring: Wiring) -> Result<Lan, KernelError> {
        assert!((1..=200).contains(&tenants));
        let switch = Namespace::create(&format!("{PREFIX}{tag}-switch"))?;
        let mut lan = Lan { switch, tenants: Vec::new(), devices: devices(tenants), own: true };
        for i in 0..tenants {
            lan.tenants.push(Namespace::create(&format!("{PREFIX}{tag}-{i}"))?);
            match wiring {
                Wiring::Valve => lan.veth(i).create(Lan::mac(i), 1500)?,
                Wiring::Plain => lan.veth(i).create_plain(Lan::mac(i), false)?,
                Wiring::Checksummed => lan.veth(i).create_plain(Lan::mac(i), true)?,
                Wiring::Bare => continue,
            }
            lan.configure(i)?;
        }
        Ok(lan)
    }

    /// A network that another process has created, and deletes.
    pub fn open(tag: &str, tenants: usize) -> Result<Lan, KernelError> {
        let switch = Namespace::open(&format!("{PREFIX}{tag}-switch"))?;
        let all = (0..tenants).map(|i| Namespace::open(&format!("{PREFIX}{tag}-{i}")));
        Ok(Lan { switch, tenants: all.collect::<Result<_, _>>()?, devices: devices(tenants), own: false })
    }

    /// Gives a tenant's device its address, and the addresses of the others.
    pub fn configure(&self, i: usize) -> Result<(), KernelError> {
        self.tenants[i].enter(|| {
            let mut links = Links::open()?;
            links.add_address(DEVICE, Lan::address(i).into(), 24)?;
            for j in (0..self.devices.len()).filter(|&j| j != i) {
                links.add_neighbour(DEVICE, Lan::address(j).into(), Lan::mac(j))?;
            }
            Ok(())
        })?
    }

    /// The switch's namespace.
    pub fn switch(&self) -> &Namespace {
        &self.switch
    }

    /// A tenant's namespace.
    pub fn tenant(&self, i: usize) -> &Namespace {
        &self.tenants[i]
    }

    /// A tenant's address.
    pub fn address(i: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, i as u8 + 1)
    }

    /// A port at a tenant's address.
    pub fn socket(i: usize, port: u16) -> SocketAddr {
        (IpAddr::V4(Lan::address(i)), port).into()
    }

    /// A tenant's station.
    pub fn mac(i: usize) -> [u8; 6] {
        [2, 0, 0, 0, 77, i as u8 + 1]
    }

    /// The pair by which a tenant is at the switch.
    pub fn veth(&self, i: usize) -> Veth<'_> {
        Veth { switch: &self.switch, switch_device: &self.devices[i], tenant: &self.tenants[i], tenant_device: DEVICE }
    }
}

fn devices(tenants: usize) -> Vec<String> {
    (0..tenants).map(|i| format!("p{i}")).collect()
}

impl Drop for Lan {
    fn drop(&mut self) {
        if !self.own {
            return;
        }
        for namespace in self.tenants.iter().chain([&self.switch]) {
            // `clean` removes anything that is left.
            let _ = Namespace::delete(namespace.name());
        }
    }
}
