//! The file of a switch: TOML, as scenarios are, every refusal with its line.

use super::privileges::Rights;
use crate::scenario::keys::Kind::*;
use crate::scenario::keys::{Spec, k};
use crate::scenario::section::Section;
use crate::scenario::tree::{Document, Span, Table as Entries, Value};
use crate::scenario::{Error, Result};
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::vhost::Socket;
use sluicenet_node::vale::{Action, ValeConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration as Time;
use sluicenet_proto::units::Rate as LinkRate;
use sluicenet_wire::controller::UDP_PORT;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The largest file read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What the port is called that leads to other servers.
pub const UPLINK_NAME: &str = "uplink";

/// Ports a switch may have.
pub const PORTS_MAX: usize = 64;

pub(crate) static ROOT: Spec = Spec {
    name: "",
    doc: "A lossless switch.",
    keys: &[
        k("switch", Table(&SWITCH), SWITCH.doc),
        k("watchdog", Table(&WATCHDOG), WATCHDOG.doc),
        k("port", Tables(&[&PORT]), PORT.doc),
        k("uplink", Table(&UPLINK), UPLINK.doc),
        k("overlay", Table(&OVERLAY), OVERLAY.doc),
        k("network", Tables(&[&NETWORK]), NETWORK.doc),
        k("server", Tables(&[&SERVER]), SERVER.doc),
    ],
};

static SWITCH: Spec = Spec {
    name: "switch",
    doc: "the switch itself",
    keys: &[
        k("name", Text, "its name; the file's without its ending where absent"),
        k("control", Text, "its control socket; NAME.sock in /run/sluicenet or the user's own run folder where absent"),
        k("ports", Count(2, PORTS_MAX as u64), "ports it may have at once; 64 where absent"),
        k("slots", Count(1, 1 << 16), "frames each queue holds; 1024 where absent"),
        k("lossless", Counts, "priorities whose frames wait and are never dropped for want of room; all where absent"),
        k("stations", Count(1, 1 << 20), "stations the forwarding table holds; 8192 where absent"),
        k(
            "stations_per_port",
            Count(0, 1 << 20),
            "stations it learns behind one port, at most stations / ports; as many or 1024, the less, where absent",
        ),
        k(
            "user",
            Text,
            "who it is once its ports are open, when started as root; root without capabilities where absent",
        ),
        k(
            "metrics",
            Text,
            "where Prometheus fetches them: a port of the loopback address, or ADDRESS:PORT; nowhere where absent",
        ),
        k("log", Choice(&["text", "json"]), "how it says on stderr what happens, a line each; text where absent"),
    ],
};

static WATCHDOG: Spec = Spec {
    name: "watchdog",
    doc: "what becomes of a port that takes nothing, with the names and defaults of SONiC's PFC watchdog",
    keys: &[
        k(
            "detection_time",
            Duration,
            "a port that has frames and takes none for so long is stuck; 200 ms where absent",
        ),
        k("restoration_time", Duration, "one that has had room for so long is not any more; 200 ms where absent"),
        k(
            "action",
            Choice(&["drop", "alert", "off"]),
            "drop: nothing reaches it until it moves again; alert: it is counted and waited for; off: neither. drop where absent",
        ),
    ],
};

static PORT: Spec = Spec {
    name: "port",
    doc: "a port and who is at it",
    keys: &[
        k("name", Text, "its name"),
        k(
            "kind",
            Choice(&["shm", "vhost-user", "veth", "tap", "packet"]),
            "over what its frames move: memory that a program attaches to, a QEMU guest's queues, a veth pair to a \
             namespace that is held back without loss, a TAP device that is held by its queue, or any device without that",
        ),
        k("mac", Text, "the address of the machine at it, which nobody else can use then; learned where absent"),
        k("ip", Text, "the only IPv4 address it may send from; any where absent"),
        k("tenant", Count(0, 4095), "the broadcast domain of all its frames; each frame's VLAN where absent"),
        k("priority", Count(0, 7), "the priority of all its frames; each frame's 802.1Q tag where absent"),
        k("buffers", Count(2, 1 << 16), "shm: buffers, a power of two; 1024 where absent"),
        k("socket", Text, "vhost-user: the socket the switch listens at, `server=off` in QEMU"),
        k("connect", Text, "vhost-user: the socket QEMU listens at, instead"),
        k(
            "device",
            Text,
            "veth, packet: the switch's device; tap: the device to be made; the port's name where absent",
        ),
        k("netns", Text, "veth, packet: the namespace that `device` is in, by name or path; this one where absent"),
        k("tenant_netns", Text, "veth, tap: the namespace of the machine"),
        k("tenant_device", Text, "veth: the machine's end of the pair; eth0 where absent"),
        k("mtu", Count(68, 65_521), "tap: the largest IP packet; 1500 where absent"),
        k(
            "offload",
            Bool,
            "veth, tap: whether TCP segments are made after the switch, and checksums; true where absent",
        ),
        k(
            "agent",
            Bool,
            "vhost-user, tap: whether `sluicenet agent` in the guest says how many frames its sockets take; false where absent",
        ),
    ],
};

static UPLINK: Spec = Spec {
    name: "uplink",
    doc: "the link to other servers, with priority flow control (802.1Qbb); a trunk, or the overlay's with [overlay]",
    keys: &[
        k("device", Text, "its device"),
        k("netns", Text, "the namespace that it is in, by name or path; this one where absent"),
        k("mac", Text, "its address"),
        k("rate", Rate, "its speed: what pauses are counted in"),
        k("response", Duration, "how long either end may take to obey a pause; 1 ms where absent"),
        k("lossless", Counts, "priorities under flow control; those of [switch] where absent"),
        k("buffer", Size, "receive buffer of a priority; room for flow control and 64 KB where absent"),
    ],
};

static OVERLAY: Spec = Spec {
    name: "overlay",
    doc: "tunnels between servers (VXLAN), and who says which machine is where",
    keys: &[
        k("address", Text, "this server's IPv4 address in the physical network"),
        k("controller", Text, "the controller's address and port"),
        k("listen", Count(1, 65_535), "the port at which it hears the controller; 49789 where absent"),
        k("controller_netns", Text, "the namespace through which the controller is reached; this one where absent"),
        k("key", Text, "the file of the key shared with the controller: 64 hexadecimal digits"),
    ],
};

static NETWORK: Spec = Spec {
    name: "network",
    doc: "a tenant of this server, and the network of the overlay that it is",
    keys: &[
        k("tenant", Count(0, 4095), "the tenant's number at ports"),
        k("vni", Count(0, (1 << 24) - 1), "the number of the network"),
    ],
};

static SERVER: Spec = Spec {
    name: "server",
    doc: "another server of the overlay",
    keys: &[
        k("address", Text, "its IPv4 address in the physical network"),
        k("mac", Text, "the address of the next hop towards it"),
    ],
};

/// A switch as its file describes it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file.
    pub file: PathBuf,
    /// Its name.
    pub name: String,
    /// Its control socket.
    pub control: PathBuf,
    /// Ports it may have.
    pub ports_max: usize,
    /// Queues, classes, table and watchdog.
    pub vale: ValeConfig,
    /// Who it becomes once its ports are open.
    pub user: Option<String>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// How it says what happens.
    pub log: LogFormat,
    /// Its ports, in the order of the file.
    pub ports: Vec<PortConfig>,
    /// Its uplink.
    pub uplink: Option<UplinkConfig>,
}

/// The link to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkConfig {
    /// Its device.
    pub device: String,
    /// Where that is; here where absent.
    pub netns: Option<String>,
    /// Its address.
    pub mac: [u8; 6],
    /// Its speed.
    pub rate: LinkRate,
    /// How long either end may take to obey a pause.
    pub response: Time,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Receive buffer of a priority, in bytes.
    pub buffer: Option<u32>,
    /// What makes it more than a trunk.
    pub overlay: Option<OverlayConfig>,
}

/// Tunnels between servers.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayConfig {
    /// This server's address.
    pub address: Ipv4Addr,
    /// The controller's.
    pub controller: SocketAddrV4,
    /// Where the controller is heard.
    pub listen: u16,
    /// Through where the controller is reached.
    pub controller_netns: Option<String>,
    /// The key shared with it.
    pub key: [u8; 32],
    /// Tenants and their networks.
    pub networks: Vec<(u16, u32)>,
    /// Other servers, and the next hop towards each.
    pub servers: Vec<(Ipv4Addr, [u8; 6])>,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// A port as the file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// Over what its frames move.
    pub kind: PortKind,
    /// The machine at it.
    pub mac: Option<[u8; 6]>,
    /// What it may send.
    pub access: Access,
}

/// Over what frames move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Memory shared with a program.
    Shm {
        /// Buffers.
        buffers: u32,
    },
    /// The queues of a guest.
    VhostUser {
        /// Where its frontend is met.
        socket: Socket,
        /// Whether an agent in the guest says what it has room for.
        agent: bool,
    },
    /// A veth pair to a namespace.
    Veth {
        /// The switch's end.
        device: String,
        /// Where that is; here where absent.
        netns: Option<String>,
        /// The machine's end.
        tenant_device: String,
        /// Where that is.
        tenant_netns: String,
        /// Whether TCP segments and checksums are left to be made.
        offload: bool,
    },
    /// A TAP device that the switch makes.
    Tap {
        /// Its name.
        device: String,
        /// Where it is made.
        tenant_netns: String,
        /// The largest IP packet.
        mtu: u32,
        /// Whether TCP segments and checksums are left to be made.
        offload: bool,
        /// Whether an agent there says what its sockets have room for.
        agent: bool,
    },
    /// Any device.
    Packet {
        /// Its name.
        device: String,
        /// Where it is; here where absent.
        netns: Option<String>,
    },
}

impl PortKind {
    /// What it takes to open such a port, and to use it then.
    pub fn rights(&self) -> Rights {
        match self {
            PortKind::Shm { .. } | PortKind::VhostUser { .. } => Rights::NONE,
            // To open a namespace and what is in it; to switch interrupts, and the queue that is held.
            PortKind::Veth { .. } | PortKind::Tap { .. } => Rights {
                open: CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN,
                run: CapabilitySet::NET_ADMIN,
            },
            PortKind::Packet { .. } => Rights {
                open: CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::SYS_ADMIN,
                run: CapabilitySet::empty(),
            },
        }
    }

    /// As in the file.
    pub fn name(&self) -> &'static str {
        match self {
            PortKind::Shm { .. } => "shm",
            PortKind::VhostUser { .. } => "vhost-user",
            PortKind::Veth { .. } => "veth",
            PortKind::Tap { .. } => "tap",
            PortKind::Packet { .. } => "packet",
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn load(path: &Path) -> Result<Config> {
        let text = text_of(path)?;
        Config::parse(path, &text)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        let doc = Document::parse(&path.display().to_string(), text)?;
        let root = Section::new(&doc, &ROOT, &doc.root, None)?;
        let switch = root.section("switch", &SWITCH)?;
        let name = match switch.text("name")? {
            Some(name) => checked_name(&switch, name)?,
            None => path.file_stem().map_or("switch".into(), |s| s.to_string_lossy().into_owned()),
        };
        let control = switch.text("control")?.map_or_else(|| default_control(&name), PathBuf::from);
        let ports_max = switch.count("ports", 2..=PORTS_MAX as u64)?.unwrap_or(PORTS_MAX as u64) as usize;
        let mut vale = vale_config(&root, &switch, ports_max)?;
        let mut ports: Vec<PortConfig> = Vec::new();
        for (table, span) in root.tables("port")? {
            let port = port(&doc, table, span)?;
            if ports.iter().any(|p| p.name == port.name) {
                return Err(doc.error(span, format!("two ports are called `{}`", port.name)));
            }
            if port.mac.is_some() && ports.iter().any(|p| (p.mac, p.access.domain) == (port.mac, port.access.domain)) {
                return Err(doc.error(span, "two ports of one tenant have the same `mac`"));
            }
            if port.name == UPLINK_NAME {
                return Err(doc.error(span, format!("a port cannot be called `{UPLINK_NAME}`")));
            }
            ports.push(port);
            if ports.len() > ports_max {
                return Err(doc
                    .error(span, format!("the switch has {ports_max} ports"))
                    .hint("see `ports` in [switch]"));
            }
        }
        let uplink = uplink(&root, &vale, path)?;
        vale.uplink = uplink.is_some().then_some(0);
        let given = ports.iter().filter(|p| p.mac.is_some()).count();
        if given > vale.stations {
            return Err(switch.error("stations", format!("{given} ports have a `mac`: so many stations are needed")));
        }
        Ok(Config {
            file: path.to_owned(),
            name,
            control,
            ports_max,
            vale,
            user: switch.text("user")?.map(str::to_owned),
            metrics: switch.text("metrics")?.map(|text| metrics(&switch, text)).transpose()?,
            log: switch
                .choice("log", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?
                .unwrap_or(LogFormat::Text),
            ports,
            uplink,
        })
    }
}

fn vale_config(root: &Section<'_>, switch: &Section<'_>, ports: usize) -> Result<ValeConfig> {
    let mut vale = ValeConfig::default();
    if let Some(slots) = switch.count_u32("slots", 1..=1 << 16)? {
        vale.slots = slots;
    }
    if let Some(priorities) = switch.counts("lossless", 0..=7)? {
        vale.lossless = PrioritySet::NONE;
        priorities.iter().for_each(|&p| vale.lossless.insert(p as u8));
    }
    if let Some(stations) = switch.count("stations", 1..=1 << 20)? {
        vale.stations = stations as usize;
    }
    let share = (vale.stations / ports) as u32;
    match switch.count_u32("stations_per_port", 0..=1 << 20)? {
        Some(wanted) if wanted > share => {
            let why =
                format!("{wanted} stations for each of {ports} ports are more than the {} of the table", vale.stations);
            return Err(switch.error("stations_per_port", why).hint("see `stations` and `ports`"));
        }
        Some(wanted) => vale.stations_per_port = wanted,
        None => vale.stations_per_port = vale.stations_per_port.min(share),
    }
    let watchdog = root.section("watchdog", &WATCHDOG)?;
    if let Some(time) = watchdog.positive::<Time>("detection_time")? {
        vale.detection_time = time;
    }
    if let Some(time) = watchdog.positive::<Time>("restoration_time")? {
        vale.restoration_time = time;
    }
    let actions = [("drop", Action::Drop), ("alert", Action::Alert), ("off", Action::Off)];
    if let Some(action) = watchdog.choice("action", &actions)? {
        vale.action = action;
    }
    Ok(vale)
}

fn uplink(root: &Section<'_>, vale: &ValeConfig, path: &Path) -> Result<Option<UplinkConfig>> {
    let section = root.section("uplink", &UPLINK)?;
    if !root.has("uplink") {
        for name in ["overlay", "network", "server"] {
            if root.has(name) {
                return Err(root.error(name, format!("[{name}] without [uplink]")));
            }
        }
        return Ok(None);
    }
    let missing = |name: &str| section.missing(name);
    let mut lossless = vale.lossless;
    if let Some(priorities) = section.counts("lossless", 0..=7)? {
        lossless = PrioritySet::NONE;
        priorities.iter().for_each(|&p| lossless.insert(p as u8));
    }
    Ok(Some(UplinkConfig {
        device: section.text("device")?.ok_or_else(|| missing("device"))?.to_owned(),
        netns: section.text("netns")?.map(str::to_owned),
        mac: mac(&section, section.text("mac")?.ok_or_else(|| missing("mac"))?)?,
        rate: section.link_rate("rate")?.ok_or_else(|| missing("rate"))?,
        response: section.positive("response")?.unwrap_or(Time::from_ms(1)),
        lossless,
        buffer: section.buffer("buffer")?.map(|bytes| bytes.as_bytes() as u32),
        overlay: if root.has("overlay") { Some(overlay(root, path)?) } else { None },
    }))
}

fn overlay(root: &Section<'_>, path: &Path) -> Result<OverlayConfig> {
    let section = root.section("overlay", &OVERLAY)?;
    let wanted = |name: &str| section.text(name)?.ok_or_else(|| section.missing(name));
    let (mut networks, mut servers): (Vec<(u16, u32)>, Vec<_>) = (Vec::new(), Vec::new());
    for (table, span) in root.tables("network")? {
        let network = Section::new(section.doc, &NETWORK, table, Some(span))?;
        let tenant = network.count("tenant", 0..=4095)?.ok_or_else(|| network.missing("tenant"))? as u16;
        let vni = network.count_u32("vni", 0..=(1 << 24) - 1)?.ok_or_else(|| network.missing("vni"))?;
        if networks.iter().any(|&(t, v)| t == tenant || v == vni) {
            return Err(network.error_here("this tenant or this network has another one already"));
        }
        networks.push((tenant, vni));
    }
    for (table, span) in root.tables("server")? {
        let server = Section::new(section.doc, &SERVER, table, Some(span))?;
        let next_hop = server.text("mac")?.ok_or_else(|| server.missing("mac"))?;
        servers.push((ipv4(&server, "address")?, mac(&server, next_hop)?));
    }
    let controller = wanted("controller")?
        .parse()
        .map_err(|_| section.error("controller", "this is no address with a port").expected("as 172.16.0.1:49789"))?;
    Ok(OverlayConfig {
        address: ipv4(&section, "address")?,
        controller,
        listen: section.count("listen", 1..=65_535)?.map_or(UDP_PORT, |port| port as u16),
        controller_netns: section.text("controller_netns")?.map(str::to_owned),
        key: key_of(&section, "key", path)?,
        networks,
        servers,
    })
}

/// The text of a file, of a bounded size.
pub(super) fn text_of(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let bytes = crate::formats::read_bounded(path, &name, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| Error::file(&name, "this is not text in UTF-8"))
}

pub(super) fn ipv4(section: &Section<'_>, name: &str) -> Result<Ipv4Addr> {
    let text = section.text(name)?.ok_or_else(|| section.missing(name))?;
    text.parse().map_err(|_| section.error(name, "this is no IPv4 address").expected("as 10.0.0.1"))
}

/// The key in the file that `name` names, relative to the file at `path`. Nobody else may read it.
pub(super) fn key_of(section: &Section<'_>, name: &str, path: &Path) -> Result<[u8; 32]> {
    let file = section.text(name)?.ok_or_else(|| section.missing(name))?;
    let file = path.parent().unwrap_or(Path::new("")).join(file);
    let wrong = |message: String| section.error(name, format!("{}: {message}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|e| wrong(e.to_string()))?;
    let mode = std::fs::metadata(&file).map_err(|e| wrong(e.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(wrong("others may read the key".into()).hint("chmod 600"));
    }
    let digits = text.trim();
    let bytes: Option<Vec<u8>> = (digits.is_ascii() && digits.len() == 64)
        .then(|| (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()).collect())
        .flatten();
    match bytes.and_then(|bytes| bytes.try_into().ok()) {
        Some(key) => Ok(key),
        None => Err(wrong("this is no key".into()).expected("64 hexadecimal digits")),
    }
}

fn port(doc: &Document, table: &Entries, span: Span) -> Result<PortConfig> {
    let section = Section::new(doc, &PORT, table, Some(span))?;
    port_of(&section)
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
/// As [`Config::load`].
pub fn port_from_words(name: &str, words: &[String]) -> Result<PortConfig> {
    let mut doc = Document::parse("", "")?;
    for word in words {
        doc.set_text(word)?;
    }
    let named = Value::Text(name.to_owned());
    let node = crate::scenario::tree::Node { span: Span::START, value: named };
    doc.set(&[("name".into(), Span::START)], node)?;
    let section = Section::new(&doc, &PORT, &doc.root, None)?;
    port_of(&section)
}

fn port_of(section: &Section<'_>) -> Result<PortConfig> {
    let name = checked_name(section, section.text("name")?.ok_or_else(|| section.missing("name"))?)?;
    let kind = section.text("kind")?.ok_or_else(|| section.missing("kind"))?;
    only_its_own(section, kind)?;
    let text = |key: &str| section.text(key).map(|text| text.map(str::to_owned));
    // A namespace by its name and by the path of that name are one.
    let netns = || text("netns").map(|name| name.map(short_namespace));
    let device = match text("device")? {
        Some(device) => device,
        None => name.clone(),
    };
    let tenant_netns = || text("tenant_netns")?.map(short_namespace).ok_or_else(|| section.missing("tenant_netns"));
    let offload = || Ok::<_, Error>(section.bool("offload")?.unwrap_or(true));
    let agent = section.bool("agent")?.unwrap_or(false);
    let kind = match kind {
        "vhost-user" => {
            let socket = match (text("socket")?, text("connect")?) {
                (Some(path), None) => Socket::Listen(path.into()),
                (None, Some(path)) => Socket::Connect(path.into()),
                (None, None) => return Err(section.missing("socket")),
                _ => return Err(section.error("connect", "a port has `socket` or `connect`, not both")),
            };
            PortKind::VhostUser { socket, agent }
        }
        "veth" => PortKind::Veth {
            device,
            netns: netns()?,
            tenant_device: text("tenant_device")?.unwrap_or("eth0".into()),
            tenant_netns: tenant_netns()?,
            offload: offload()?,
        },
        "tap" => {
            if !section.has("mac") {
                return Err(section.missing("mac").hint("a TAP device has the address that its file gives it"));
            }
            let mtu = section.count_u32("mtu", 68..=65_521)?.unwrap_or(1500);
            PortKind::Tap { device, tenant_netns: tenant_netns()?, mtu, offload: offload()?, agent }
        }
        "packet" => PortKind::Packet { device, netns: netns()? },
        "shm" => {
            let buffers = section.count_u32("buffers", 2..=1 << 16)?.unwrap_or(1024);
            if !buffers.is_power_of_two() {
                return Err(section
                    .error("buffers", format!("`buffers` of {buffers} is not a power of two"))
                    .expected("a power of two from 2 to 65536"));
            }
            PortKind::Shm { buffers }
        }
        _ => return Err(unknown_kind(section)),
    };
    let mac = section.text("mac")?.map(|text| mac(section, text)).transpose()?;
    let address = if section.has("ip") { Some(ipv4(section, "ip")?) } else { None };
    let access = Access {
        domain: section.count("tenant", 0..=4095)?.map(|n| n as u16),
        priority: section.count("priority", 0..=7)?.map(|n| n as u8),
        address,
    };
    Ok(PortConfig { name, kind, mac, access })
}

/// A key that a port of this kind has no use for is a mistake.
fn only_its_own(section: &Section<'_>, kind: &str) -> Result<()> {
    let of_kind: &[(&str, &[&str])] = &[
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
    for (key, kinds) in of_kind {
        if section.has(key) && !kinds.contains(&kind) {
            let message = format!("a port of kind `{kind}` has no `{key}`");
            return Err(section.error(key, message).hint(format!("`{key}` is for {}", kinds.join(", "))));
        }
    }
    Ok(())
}

fn unknown_kind(section: &Section<'_>) -> Error {
    let kinds = section.spec.keys.iter().find_map(|key| match (key.name, &key.kind) {
        ("kind", Choice(words)) => Some(*words),
        _ => None,
    });
    section.error("kind", "unknown kind of port").expected(kinds.unwrap_or_default().join(", "))
}

/// A name that can stand in a file's name and in a label.
fn checked_name(section: &Section<'_>, name: &str) -> Result<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=32).contains(&name.len()) && name.chars().all(fine) && !name.starts_with('.') {
        return Ok(name.to_owned());
    }
    Err(section.error("name", "this is no name").expected("up to 32 letters, digits, `-`, `_` and `.`"))
}

fn mac(section: &Section<'_>, text: &str) -> Result<[u8; 6]> {
    let parts: Vec<Option<u8>> =
        text.split(':').map(|p| (p.len() == 2).then(|| u8::from_str_radix(p, 16).ok()).flatten()).collect();
    let address = <[Option<u8>; 6]>::try_from(parts).ok().filter(|parts| parts.iter().all(Option::is_some));
    let wrong = |message: &str| Err(section.error("mac", message).expected("as 02:00:00:00:00:01"));
    match address.map(|parts| parts.map(Option::unwrap_or_default)) {
        None => wrong("this is no MAC address"),
        Some(mac) if mac[0] & 1 != 0 => wrong("this address is of a group of machines"),
        Some(mac) => Ok(mac),
    }
}

/// An address to serve metrics at; without a host it is for this machine only.
fn metrics(section: &Section<'_>, text: &str) -> Result<SocketAddr> {
    let local = || text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    text.parse().or_else(|_| local()).map_err(|_| {
        section.error("metrics", "this is no address to listen at").expected("as 9464, 127.0.0.1:9464 or [::]:9464")
    })
}

/// The JSON schema of the file.
pub fn json_schema() -> serde_json::Value {
    crate::scenario::schema::table(&ROOT, None)
}

/// Where the control socket of a switch is when nobody says.
pub fn default_control(name: &str) -> PathBuf {
    let folder = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/sluicenet")
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from).join("sluicenet")
    };
    folder.join(format!("{name}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("vs.toml"), text)
    }

    #[test]
    fn a_file_says_what_the_switch_is() {
        let config = parse(
            r#"
            [switch]
            slots = 64
            lossless = [3, 4]
            metrics = "9464"
            log = "json"
            [watchdog]
            detection_time = "400 ms"
            action = "alert"
            [[port]]
            name = "vm1"
            kind = "shm"
            mac = "02:00:00:00:00:0a"
            ip = "10.0.0.1"
            tenant = 7
            priority = 3
            "#,
        )
        .unwrap();
        assert_eq!((config.name.as_str(), config.vale.slots, config.vale.lossless.0), ("vs", 64, 0b11000));
        assert_eq!((config.vale.detection_time, config.vale.action), (Time::from_ms(400), Action::Alert));
        assert_eq!((config.metrics, config.log), (Some(SocketAddr::from(([127, 0, 0, 1], 9464))), LogFormat::Json));
        assert_eq!(config.vale.restoration_time, Time::from_ms(200));
        let access = Access { domain: Some(7), priority: Some(3), address: Some(Ipv4Addr::new(10, 0, 0, 1)) };
        let kind = PortKind::Shm { buffers: 1024 };
        let port = PortConfig { name: "vm1".into(), kind, mac: Some([2, 0, 0, 0, 0, 10]), access };
        assert_eq!(config.ports, std::slice::from_ref(&port));
        let words = ["kind=shm", "mac=02:00:00:00:00:0a", "ip=10.0.0.1", "tenant=7", "priority=3"].map(str::to_owned);
        assert_eq!(port_from_words("vm1", &words).unwrap(), port);
        let words = ["kind=vhost-user", "socket=vm2.sock", "agent=true"].map(str::to_owned);
        let kind = PortKind::VhostUser { socket: Socket::Listen("vm2.sock".into()), agent: true };
        assert_eq!(port_from_words("vm2", &words).unwrap().kind, kind);
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        let port = "[[port]]\nname = \"a\"\nkind = \"shm\"\n";
        for (text, line, words) in [
            ("[switch]\nslot = 1", 2, "did you mean `slots`"),
            ("[switch]\nslots = 0", 2, "out of range"),
            ("[switch]\nlossless = [8]", 2, "out of range"),
            ("[watchdog]\ndetection_time = 200", 2, "needs a unit"),
            ("[watchdog]\ndetection_time = \"0 s\"", 2, "cannot be 0"),
            ("[[port]]\nkind = \"shm\"", 1, "`name` is missing"),
            ("[[port]]\nname = \"a\"", 1, "`kind` is missing"),
            ("[[port]]\nname = \"a\"\nkind = \"tun\"", 3, "unknown kind of port"),
            ("[[port]]\nname = \"a\"\nkind = \"veth\"", 1, "`tenant_netns` is missing"),
            ("[[port]]\nname = \"a\"\nkind = \"vhost-user\"", 1, "`socket` is missing"),
            ("[[port]]\nname = \"a\"\nkind = \"shm\"\nmtu = 100", 4, "has no `mtu`"),
            (&format!("{port}agent = true"), 4, "has no `agent`"),
            ("[[port]]\nname = \"a\"\nkind = \"vhost-user\"\nsocket = \"a\"\nconnect = \"b\"", 5, "not both"),
            ("[[port]]\nname = \"../a\"\nkind = \"shm\"", 2, "this is no name"),
            (&format!("{port}mac = \"2:0:0:0:0:1\""), 4, "no MAC address"),
            (&format!("{port}mac = \"01:00:00:00:00:01\""), 4, "a group of machines"),
            (&format!("{port}ip = \"10.0.0\""), 4, "no IPv4 address"),
            (&format!("{port}buffers = 1000"), 4, "not a power of two"),
            ("[switch]\nmetrics = \"here\"", 2, "no address to listen at"),
            ("[switch]\nlog = \"xml\"", 2, "json"),
            ("[switch]\nports = 4\nstations = 100\nstations_per_port = 26", 4, "more than the 100 of the table"),
            (
                &format!(
                    "[switch]\nports = 2\nstations = 1\n{port}mac = \"02:00:00:00:00:01\"\n[[port]]\nname = \"b\"\nkind = \"shm\"\nmac = \"02:00:00:00:00:02\""
                ),
                3,
                "2 ports have a `mac`",
            ),
            (&format!("{port}{port}"), 4, "two ports are called `a`"),
            ("port = 3", 1, "a list of tables"),
            ("[switch\n", 1, "this is not TOML"),
        ] {
            let error = parse(text).unwrap_err();
            let found = error.diagnostic();
            assert_eq!(found.file, "vs.toml");
            assert_eq!(found.line, line, "{text}: {error}");
            assert!(error.to_string().contains(words), "{text}: {error}");
        }
        assert!(port_from_words("x", &["kind=shm".into(), "bufers=4".into()]).is_err());
    }
}
