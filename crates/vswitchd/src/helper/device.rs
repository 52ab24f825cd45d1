//! The devices that a helper opens, and how each kind is opened.

use crate::config::{PortConfig, PortKind, UplinkConfig};
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::controller::ControllerLink;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::keeper::Keeper;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::kernel::packet::{OpenPacket, PacketFacts, Pieces};
use sluicenet_dataplane::kernel::parts::Parts;
use sluicenet_dataplane::kernel::tap::{OpenTap, TapFacts};
use sluicenet_dataplane::kernel::valve::{Listening, ValveConfig, ValveFacts, Veth};
use std::io;
use std::net::SocketAddrV4;

/// The device of a port, or of the uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Device {
    /// A veth pair to a namespace.
    Veth {
        /// The switch's end.
        device: String,
        /// Its namespace; default the helper's own.
        netns: Option<String>,
        /// The tenant's end.
        tenant_device: String,
        /// Its namespace.
        tenant_netns: String,
        /// Whether the tenant leaves segmentation and checksums to others.
        offload: bool,
    },
    /// A TAP device to make.
    Tap {
        /// Its name.
        device: String,
        /// Its namespace.
        tenant_netns: String,
        /// Its address.
        mac: [u8; 6],
        /// The longest payload of its frames.
        mtu: u32,
        /// Whether the tenant leaves segmentation and checksums to others.
        offload: bool,
    },
    /// Any device.
    Packet {
        /// Its name.
        device: String,
        /// Its namespace; default the helper's own.
        netns: Option<String>,
    },
    /// The link to other servers.
    Uplink {
        /// Its name.
        device: String,
        /// Its namespace; default the helper's own.
        netns: Option<String>,
        /// Whether runs of frames go to the device in one piece.
        segmentation: bool,
        /// The socket to the overlay's controller.
        controller: Option<Controller>,
    },
}

/// The socket to the overlay's controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Controller {
    /// The namespace from which the controller is reached; default the helper's own.
    netns: Option<String>,
    /// Its own address, and the controller's.
    own: SocketAddrV4,
    controller: SocketAddrV4,
}

/// A network namespace by name or path, and its identity.
pub(crate) type Place = (String, (u64, u64));

/// An open device.
pub(crate) struct Handed {
    pub parts: Parts<Facts>,
    /// The keeper of its port, if its kind has one.
    pub keeper: Option<Box<dyn Keeper>>,
    /// The namespaces in which it was opened, of those that have a name in the file.
    pub places: Vec<Place>,
}

/// The facts about an open device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Facts {
    /// About a valve.
    Veth(ValveFacts),
    /// About a TAP device.
    Tap(TapFacts),
    /// About any device; the socket to the overlay's controller comes last, if there is to be one.
    Packet(PacketFacts),
}

impl Device {
    /// The device of a port; `None` if its kind takes no privileges.
    pub fn of(port: &PortConfig) -> Option<Device> {
        Some(match port.kind.clone() {
            PortKind::Shm { .. } | PortKind::VhostUser { .. } => return None,
            PortKind::Veth { device, netns, tenant_device, tenant_netns, offload } => {
                Device::Veth { device, netns, tenant_device, tenant_netns, offload }
            }
            PortKind::Tap { device, tenant_netns, mtu, offload, .. } => {
                Device::Tap { device, tenant_netns, mac: port.mac.unwrap_or_default(), mtu, offload }
            }
            PortKind::Packet { device, netns } => Device::Packet { device, netns },
        })
    }

    /// The device of the uplink.
    pub fn of_uplink(uplink: &UplinkConfig) -> Device {
        let controller = uplink.overlay.as_ref().map(|overlay| Controller {
            netns: overlay.controller_netns.clone(),
            own: SocketAddrV4::new(overlay.address, overlay.listen),
            controller: overlay.controller,
        });
        let UplinkConfig { device, netns, segmentation, .. } = uplink;
        Device::Uplink { device: device.clone(), netns: netns.clone(), segmentation: *segmentation, controller }
    }

    /// A keeper for an open port at this device, whose own keeper has ended.
    pub(super) fn keeper(&self) -> Result<Box<dyn Keeper>, Failure> {
        match (Pair::of(self)?, self) {
            (Some(pair), _) => Ok(pair.veth().keeper(&pair.config)?),
            (None, Device::Tap { device, tenant_netns, .. }) => {
                Ok(OpenTap::keeper(&Namespace::open(tenant_netns)?, device)?)
            }
            _ => Err(Failure::lasting("a port of this kind needs no keeper".into())),
        }
    }

    /// Opens the sockets of a valve. For other kinds there is nothing to do yet.
    pub fn listen(self) -> Result<Begun, Failure> {
        let Some(pair) = Pair::of(&self)? else { return Ok(Begun::Other(self)) };
        let listening = Listening::open(pair.veth(), &pair.config)?;
        Ok(Begun::Valve(Box::new((pair, listening))))
    }
}

/// A device of which the first sockets are open.
pub(crate) enum Begun {
    Valve(Box<(Pair, Listening)>),
    Other(Device),
}

impl Begun {
    /// Opens the rest.
    pub fn open(self) -> Result<Handed, Failure> {
        let device = match self {
            Begun::Valve(begun) => {
                let (pair, listening) = *begun;
                let (parts, keeper) = listening.learn(pair.veth(), &pair.config)?.into_parts();
                let Parts { facts, descriptors } = parts;
                let parts = Parts { facts: Facts::Veth(facts), descriptors };
                return Ok(Handed { parts, keeper: Some(keeper), places: places(pair.named())? });
            }
            Begun::Other(device) => device,
        };
        match device {
            Device::Veth { .. } => unreachable!("a valve's sockets are opened first"),
            Device::Tap { device, tenant_netns, mac, mtu, offload } => {
                let tenant = Namespace::open(&tenant_netns)?;
                let (parts, keeper) = OpenTap::create(&tenant, &device, mac, mtu, offload)?.into_parts();
                let Parts { facts, descriptors } = parts;
                let parts = Parts { facts: Facts::Tap(facts), descriptors };
                Ok(Handed { parts, keeper: Some(keeper), places: places([&tenant])? })
            }
            Device::Packet { device, netns } => packet(&netns, &device, Pieces::Frames),
            Device::Uplink { device, netns, segmentation, controller } => {
                let mut handed = packet(&netns, &device, Pieces::Runs { sends: segmentation })?;
                if let Some(controller) = controller {
                    handed.parts.descriptors.push(controller.socket()?.into());
                }
                Ok(handed)
            }
        }
    }
}

/// Opens any device.
fn packet(netns: &Option<String>, device: &str, pieces: Pieces) -> Result<Handed, Failure> {
    let namespace = Namespace::named(netns.as_deref())?;
    let Parts { facts, descriptors } = OpenPacket::open(&namespace, device, pieces)?.into_parts();
    let parts = Parts { facts: Facts::Packet(facts), descriptors };
    Ok(Handed { parts, keeper: None, places: places(netns.is_some().then_some(&namespace))? })
}

/// The identities of open namespaces: a name may stand for another one since.
fn places<'a>(opened: impl IntoIterator<Item = &'a Namespace>) -> Result<Vec<Place>, KernelError> {
    opened.into_iter().map(|namespace| Ok((namespace.name().to_owned(), namespace.identity()?))).collect()
}

impl Controller {
    fn socket(&self) -> io::Result<std::net::UdpSocket> {
        Namespace::named(self.netns.as_deref())?.enter(|| ControllerLink::socket(self.own, self.controller))?
    }
}

/// The two ends of a valve's pair, and its settings.
pub(crate) struct Pair {
    switch: Namespace,
    /// Whether the file names it.
    names_switch: bool,
    tenant: Namespace,
    device: String,
    tenant_device: String,
    config: ValveConfig,
}

impl Pair {
    /// The pair of a device; `None` if it is of another kind.
    pub fn of(device: &Device) -> Result<Option<Pair>, KernelError> {
        let Device::Veth { device, netns, tenant_device, tenant_netns, offload } = device else { return Ok(None) };
        let config = ValveConfig { offload: *offload, ..ValveConfig::default() };
        let (switch, tenant) = (Namespace::named(netns.as_deref())?, Namespace::open(tenant_netns)?);
        let (device, tenant_device) = (device.clone(), tenant_device.clone());
        Ok(Some(Pair { switch, names_switch: netns.is_some(), tenant, device, tenant_device, config }))
    }

    /// The namespaces that the file names.
    fn named(&self) -> impl Iterator<Item = &Namespace> {
        self.names_switch.then_some(&self.switch).into_iter().chain([&self.tenant])
    }

    pub fn veth(&self) -> Veth<'_> {
        Veth {
            switch: &self.switch,
            switch_device: &self.device,
            tenant: &self.tenant,
            tenant_device: &self.tenant_device,
        }
    }
}
