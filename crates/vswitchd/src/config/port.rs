//! A port, described in a file or by the words of a command.

use super::super::privileges::{Rights, TO_OPEN};
use super::checks::{Device, Name, Namespace, OwnMacs, Prefixes, SocketPath, is_device};
use super::keys::TENANT;
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::vhost::Socket;
use sluicenet_proto::guard::{Guard, Prefix};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Section, Settings};
use sluicenet_scenario::tree::{Document, Span, Value};
use sluicenet_scenario::units::POSITIVE_RATE;
use sluicenet_scenario::{Result, choices, settings};
use sluicenet_wire::ethernet::MacAddress;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

/// An address that two ports of a tenant have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// A MAC address.
    Mac,
    /// An IP address, or a network.
    Ip(Prefix),
}

impl Clash {
    /// The key of the file.
    pub fn key(self) -> &'static str {
        match self {
            Clash::Mac => "mac",
            Clash::Ip(_) => "ip",
        }
    }

    /// The objection to a port beside `other`.
    pub fn beside(self, other: &str) -> String {
        match self {
            Clash::Mac => format!("its `mac` is that of port {other} already"),
            Clash::Ip(prefix) => format!("its `ip` {prefix} is that of port {other} already"),
        }
    }
}

/// The settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The port's name.
    pub name: String,
    /// The kind of the port.
    pub kind: PortKind,
    /// The first MAC address of the port's machine; the guard lists all of them.
    pub mac: Option<[u8; 6]>,
    /// Restrictions of the frames that the port may send.
    pub access: Access,
    /// Whether an earlier port has the same `ip`: this port is one more process of that machine, and is not found by
    /// this address.
    pub further: bool,
    /// The highest rate at which the port takes frames.
    pub rate: Option<Rate>,
    /// The highest rate at which the port sends frames.
    pub send_rate: Option<Rate>,
    /// Whether a command added the port, and not the file: a reload keeps it.
    pub attached: bool,
}

impl PortConfig {
    /// Whether one of the earlier ports has the same `ip` in the same tenant.
    pub fn is_further(&self, before: &[PortConfig]) -> bool {
        let place = |port: &PortConfig| (port.access.domain.unwrap_or(0), port.ipv4());
        self.ipv4().is_some() && before.iter().any(|other| place(other) == place(self))
    }

    /// The first IPv4 address of the port's machine: the overlay finds the machine by it.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.access.guard.as_ref()?.ipv4()
    }

    /// Why there cannot be another port beside this one; `None` if there can.
    pub fn clash_with(&self, other: &PortConfig) -> Option<Clash> {
        if self.stations().any(|own| other.stations().any(|theirs| theirs == own)) {
            return Some(Clash::Mac);
        }
        self.shared_ip(other).map(Clash::Ip)
    }

    /// An address or a network that both ports of a tenant may send from. Several programs in shared memory can be processes of one
    /// machine, at its address.
    fn shared_ip(&self, other: &PortConfig) -> Option<Prefix> {
        let is_program = |port: &PortConfig| matches!(port.kind, PortKind::Shm { .. });
        let domain = |port: &PortConfig| port.access.domain.unwrap_or(0);
        if domain(self) != domain(other) || is_program(self) && is_program(other) {
            return None;
        }
        let (own, theirs) = (self.owned(), other.owned());
        own.iter().find_map(|own| theirs.iter().find_map(|theirs| own.shared_with(theirs)))
    }

    /// The addresses and networks that are the port's alone. All addresses of a family, and all link-local ones, are nobody's.
    fn owned(&self) -> Vec<Prefix> {
        let listed = self.access.guard.iter().flat_map(|guard| guard.addresses.iter().flatten());
        let is_own = |prefix: &&Prefix| !prefix.is_all() && (!prefix.is_link_local() || prefix.host().is_some());
        listed.filter(is_own).copied().collect()
    }

    /// The stations of the port's machine, if the file names them: MAC addresses in a broadcast domain.
    pub fn stations(&self) -> impl Iterator<Item = ([u8; 6], u16)> + '_ {
        let macs = self.access.guard.iter().flat_map(|guard| &guard.macs);
        macs.map(|mac| (mac.0, self.access.domain.unwrap_or(0)))
    }
}

/// The kind of a port, with the settings of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Memory shared with a program.
    Shm {
        /// The number of buffers.
        buffers: u32,
    },
    /// The queues of a guest.
    VhostUser {
        /// The socket between switch and QEMU.
        socket: Socket,
        /// Whether an agent in the guest reports the free space of sockets.
        agent: bool,
    },
    /// A veth pair to a namespace.
    Veth {
        /// The switch's end.
        device: String,
        /// The namespace of the switch's end; default the switch's own.
        netns: Option<String>,
        /// The machine's end.
        tenant_device: String,
        /// The namespace of the machine's end.
        tenant_netns: String,
        /// Whether the machine leaves TCP segmentation and checksums to others.
        offload: bool,
    },
    /// A TAP device that the switch makes.
    Tap {
        /// The device's name.
        device: String,
        /// The device's namespace.
        tenant_netns: String,
        /// The largest IP packet.
        mtu: u32,
        /// Whether the machine leaves TCP segmentation and checksums to others.
        offload: bool,
        /// Whether an agent of the machine reports the free space of sockets.
        agent: bool,
    },
    /// Any device.
    Packet {
        /// The device's name.
        device: String,
        /// The device's namespace; default the switch's own.
        netns: Option<String>,
    },
}

impl PortKind {
    /// The capabilities to open such a port, and to use it.
    pub fn rights(&self) -> Rights {
        match self {
            PortKind::Shm { .. } | PortKind::VhostUser { .. } => Rights::NONE,
            // A bump opens and shuts the queue itself.
            PortKind::Veth { .. } | PortKind::Tap { .. } => Rights { open: TO_OPEN, run: CapabilitySet::NET_ADMIN },
            PortKind::Packet { .. } => Rights { open: TO_OPEN, run: CapabilitySet::empty() },
        }
    }

    /// Whether both hold something that only one open port can hold: a device, a namespace with a valve, a socket.
    pub(crate) fn shares_with(&self, other: &PortKind) -> bool {
        self.holds().iter().any(|held| other.holds().contains(held))
    }

    /// The namespace that only one port may lead to.
    pub(crate) fn tenant(&self) -> Option<&str> {
        match self {
            PortKind::Veth { tenant_netns, .. } => Some(tenant_netns),
            _ => None,
        }
    }

    /// The socket at which the switch listens for a guest.
    pub(crate) fn socket(&self) -> Option<&Path> {
        match self {
            PortKind::VhostUser { socket: Socket::Listen(path), .. } => Some(path),
            _ => None,
        }
    }

    fn holds(&self) -> Vec<Held<'_>> {
        match self {
            PortKind::Shm { .. } => vec![],
            PortKind::VhostUser { socket, .. } => vec![Held::Socket(socket.path())],
            PortKind::Veth { device, netns, tenant_netns, .. } => {
                vec![Held::Device(netns.as_deref(), device), Held::Tenant(tenant_netns)]
            }
            PortKind::Tap { device, tenant_netns, .. } => vec![Held::Device(Some(tenant_netns), device)],
            PortKind::Packet { device, netns } => vec![Held::Device(netns.as_deref(), device)],
        }
    }

    /// The kind's name in the file.
    pub fn name(&self) -> &'static str {
        let means = match self {
            PortKind::Shm { .. } => Means::Shm,
            PortKind::VhostUser { .. } => Means::VhostUser,
            PortKind::Veth { .. } => Means::Veth,
            PortKind::Tap { .. } => Means::Tap,
            PortKind::Packet { .. } => Means::Packet,
        };
        means.name()
    }
}

/// What only one open port can hold.
#[derive(Debug, PartialEq)]
enum Held<'a> {
    /// A device, by its namespace and name.
    Device(Option<&'a str>, &'a str),
    /// A namespace with a valve.
    Tenant(&'a str),
    /// The socket between switch and QEMU.
    Socket(&'a Path),
}

choices! {
    /// The kind of a port.
    pub(crate) enum Means {
        /// Memory shared with a program.
        Shm = "shm",
        /// The queues of a guest.
        VhostUser = "vhost-user",
        /// A veth pair to a namespace.
        Veth = "veth",
        /// A TAP device.
        Tap = "tap",
        /// Any device.
        Packet = "packet",
    }
}

settings! {
    /// a port and its endpoint
    pub(crate) struct PortKeys in "port" (s) {
        /// its name
        name: Name,
        /// how frames move: memory that a program attaches to, a QEMU guest's queues, a veth pair to a namespace with
        /// lossless backpressure, a TAP device with backpressure by its queue, or any device without backpressure
        kind: Means,
        /// the MAC addresses of its endpoint: it may use no other, and no other endpoint may use them. The first one is
        /// the device's at a tap, where `mac` is required; default learned
        mac: Option<OwnMacs>,
        /// the IPv4 and IPv6 addresses and networks it may send from, beside the link-local address of its MAC address;
        /// default any
        ip: Option<Prefixes>,
        /// whether it may send IPv6 router advertisements, and redirects; default whether it has neither `mac` nor `ip`
        router: Option<bool>,
        /// whether it may answer as a DHCP server or relay; default whether it has neither `mac` nor `ip`
        dhcp_server: Option<bool>,
        /// the broadcast domain of all its frames; default each frame's VLAN
        tenant: Option<u16> [TENANT],
        /// the priority of all its frames; default that of each frame's 802.1Q tag
        priority: Option<u8> [0..=7],
        /// the highest rate at which its endpoint receives frames, including their check sequences; default unlimited
        rate: Option<Rate> [POSITIVE_RATE],
        /// the highest rate at which its endpoint sends frames, including their check sequences; default unlimited
        send_rate: Option<Rate> [POSITIVE_RATE],
        /// shm: buffers, a power of two; default 1024
        buffers: u32 [2..=1 << 16] = 1024,
        /// vhost-user: the socket at which the switch listens, `server=off` in QEMU
        socket: Option<SocketPath>,
        /// vhost-user: a socket at which QEMU listens, instead of `socket`
        connect: Option<SocketPath>,
        /// veth, packet: the switch's device; tap: the device to create; default the port's name
        device: Option<Device>,
        /// veth, packet: the namespace of `device`, by name or path; default the switch's own
        netns: Option<Namespace>,
        /// veth, tap: the namespace of the endpoint
        tenant_netns: Option<Namespace>,
        /// veth: the endpoint's end of the pair; default eth0
        tenant_device: Device = Device("eth0".into()),
        /// tap: the largest IP packet; default 1500
        mtu: u32 [68..=65_521] = 1500,
        /// veth, tap: whether the endpoint leaves checksums and TCP segmentation to be done after the switch; default
        /// true
        offload: bool = true,
        /// vhost-user, tap: whether `sluicenet agent` in the guest reports the room of its sockets; default false
        agent: bool = false,
    }
}

/// The name of a namespace that may be given by its path.
fn short_namespace(name: String) -> String {
    match name.strip_prefix("/run/netns/").or(name.strip_prefix("/var/run/netns/")) {
        Some(short) if !short.is_empty() && !short.contains('/') => short.to_owned(),
        _ => name,
    }
}

/// A port described by words `key=value`, as on a command line.
///
/// # Errors
/// A word is not a setting of a port, or its value is invalid.
pub fn port_from_words(name: &str, words: &[String]) -> Result<PortConfig> {
    let mut doc = Document::parse("", "")?;
    for word in words {
        doc.set_text(word)?;
    }
    let named = Value::Text(name.to_owned());
    let node = sluicenet_scenario::tree::Node { span: Span::START, value: named };
    doc.set(&[("name".into(), Span::START)], node)?;
    let s = Section::root(&doc, PortKeys::SPEC)?;
    let port = port_of(&s)?;
    if port.name == super::UPLINK_NAME {
        return Err(s.error("name", format!("a port cannot be called `{}`", super::UPLINK_NAME)));
    }
    Ok(port)
}

pub(crate) fn port_of(s: &Section<'_>) -> Result<PortConfig> {
    let keys = PortKeys::read(s)?;
    only_its_own(s, keys.kind)?;
    let (name, offload, agent) = (keys.name.0, keys.offload, keys.agent);
    // A namespace's name, and the path made of this name, mean the same namespace.
    let netns = keys.netns.map(|netns| short_namespace(netns.0));
    let tenant_netns = keys.tenant_netns.map(|netns| short_namespace(netns.0));
    let tenant_netns = || tenant_netns.ok_or_else(|| s.missing("tenant_netns"));
    let device = || match keys.device {
        Some(Device(device)) => Ok(device),
        None if is_device(&name) => Ok(name.clone()),
        None => Err(s.error("name", "a device cannot be called so").hint("say which it is: `device`")),
    };
    let kind = match keys.kind {
        Means::VhostUser => {
            let socket = match (keys.socket, keys.connect) {
                (Some(path), None) => Socket::Listen(path.0.into()),
                (None, Some(path)) => Socket::Connect(path.0.into()),
                (None, None) => return Err(s.missing("socket")),
                _ => return Err(s.error("connect", "a port has `socket` or `connect`, not both")),
            };
            PortKind::VhostUser { socket, agent }
        }
        Means::Veth => {
            let (device, tenant_device) = (device()?, keys.tenant_device.0);
            PortKind::Veth { device, netns, tenant_device, tenant_netns: tenant_netns()?, offload }
        }
        Means::Tap => {
            if !s.has("mac") {
                return Err(s.missing("mac").hint("a TAP device has the address that its file gives it"));
            }
            PortKind::Tap { device: device()?, tenant_netns: tenant_netns()?, mtu: keys.mtu, offload, agent }
        }
        Means::Packet => PortKind::Packet { device: device()?, netns },
        Means::Shm => {
            let buffers = keys.buffers;
            if !buffers.is_power_of_two() {
                return Err(s
                    .error("buffers", format!("`buffers` of {buffers} is not a power of two"))
                    .expected("a power of two from 2 to 65536"));
            }
            PortKind::Shm { buffers }
        }
    };
    let macs = keys.mac.map(|macs| macs.0).unwrap_or_default();
    let addresses = keys.ip.map(|prefixes| prefixes.0);
    let mac = macs.first().copied();
    // An endpoint with an address of its own is a host, unless the file says otherwise.
    let is_open = macs.is_empty() && addresses.is_none();
    let (router, dhcp_server) = (keys.router.unwrap_or(is_open), keys.dhcp_server.unwrap_or(is_open));
    let macs = macs.into_iter().map(MacAddress).collect();
    let guard = (!is_open || !router || !dhcp_server).then(|| Arc::new(Guard { macs, addresses, router, dhcp_server }));
    let access = Access { domain: keys.tenant, priority: keys.priority, guard };
    Ok(PortConfig {
        name,
        kind,
        mac,
        access,
        further: false,
        rate: keys.rate,
        send_rate: keys.send_rate,
        attached: false,
    })
}

/// Keys that not all kinds of port have, with the kinds that have them.
const OF_SOME_KINDS: &[(&str, &[&str])] = &[
    ("buffers", &["shm"]),
    ("socket", &["vhost-user"]),
    ("connect", &["vhost-user"]),
    ("device", &["veth", "tap", "packet"]),
    ("netns", &["veth", "packet"]),
    ("tenant_netns", &["veth", "tap"]),
    ("tenant_device", &["veth"]),
    ("mtu", &["tap"]),
    ("offload", &["veth", "tap"]),
    ("agent", &["vhost-user", "tap"]),
];

/// The keys of a port of kind `veth`.
pub(crate) fn veth_keys() -> impl Iterator<Item = &'static str> {
    let has =
        |key: &&str| OF_SOME_KINDS.iter().all(|(of_some, kinds)| of_some != key || kinds.contains(&Means::Veth.name()));
    PortKeys::SPEC.keys.iter().map(|key| key.name).filter(has)
}

/// Refuses keys that ports of this kind do not have.
fn only_its_own(s: &Section<'_>, kind: Means) -> Result<()> {
    let kind = kind.name();
    for (key, kinds) in OF_SOME_KINDS {
        if s.has(key) && !kinds.contains(&kind) {
            let message = format!("a port of kind `{kind}` has no `{key}`");
            return Err(s.error(key, message).hint(format!("`{key}` is for {}", kinds.join(", "))));
        }
    }
    Ok(())
}
