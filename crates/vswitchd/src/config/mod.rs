//! The configuration file of a switch: TOML, like scenarios; every error has its line.

mod checks;
mod keys;
mod policy;
mod port;
mod tcp_tunnel;

pub(crate) use keys::ROOT;
pub(super) use policy::objection;
pub use port::{PortConfig, PortKind, port_from_words};
pub use tcp_tunnel::TcpTunnel;

use keys::{NETWORK, OVERLAY, SERVER, SWITCH, UPLINK, WATCHDOG, WEIGHT, ZBRIDGE, ZCREDIT};
use port::{checked_name, port};
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::vale::{Action, ValeConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration as Time;
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::units::Rate as LinkRate;
use sluicenet_scenario::section::Section;
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::{Error, Result, ZCredit};
use sluicenet_wire::controller::UDP_PORT;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The default response time to a pause at an end of a link: a program may wait this long for a shared processor.
const RESPONSE: Time = Time::from_ms(20);
/// The largest file read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The name of the port to other servers.
pub const UPLINK_NAME: &str = "uplink";

/// The most ports of a switch.
pub const PORTS_MAX: usize = 64;

/// The configuration of a switch.
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
    /// The user that it becomes once its ports are open.
    pub user: Option<String>,
    /// Whether it keeps the privileges to open ports.
    pub hotplug: bool,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The format of its log.
    pub log: LogFormat,
    /// Its ports, in the order of the file.
    pub ports: Vec<PortConfig>,
    /// Its uplink.
    pub uplink: Option<UplinkConfig>,
    /// The endpoints that may communicate; default all with all.
    pub policy: Option<Arc<StationPolicy>>,
}

/// The link to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkConfig {
    /// Its device.
    pub device: String,
    /// Its namespace; default the switch's own.
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
    /// Whether runs of tunnel frames go to the device in one piece.
    pub segmentation: bool,
    /// The overlay, if it is not a trunk.
    pub overlay: Option<OverlayConfig>,
}

/// Tunnels between servers.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayConfig {
    /// This server's address.
    pub address: Ipv4Addr,
    /// The controller's.
    pub controller: SocketAddrV4,
    /// The port at which it receives messages of the controller.
    pub listen: u16,
    /// The namespace from which the controller is reached.
    pub controller_netns: Option<String>,
    /// The key shared with it.
    pub key: [u8; 32],
    /// Tenants and their networks.
    pub networks: Vec<(u16, u32)>,
    /// Other servers, and the next hop towards each.
    pub servers: Vec<(Ipv4Addr, [u8; 6])>,
    /// Credits between endpoints of the overlay.
    pub credits: Option<Credits>,
    /// Reliability between these endpoints.
    pub zbridge: Option<Reliability>,
    /// TCP between servers.
    pub tcp_tunnel: Option<TcpTunnel>,
}

/// Reliability between endpoints of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reliability {
    /// Channels.
    pub channel: ChannelConfig,
    /// Priorities in which frames are numbered.
    pub classes: PrioritySet,
}

/// Credits between endpoints of the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Frames in the receive queue of an endpoint.
    pub rx_queue: u32,
    /// Credits of a turn.
    pub batch: u32,
    /// Frames of an endpoint that may wait for credits.
    pub tx_queue: u32,
    /// Priorities in which frames need credits.
    pub classes: PrioritySet,
    /// Endpoints with longer turns, by tenant and address, and the factor.
    pub weights: Vec<((u16, [u8; 6]), u32)>,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The first error, with its location.
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
            Some(name) => checked_name(&switch, "name", name)?,
            None => path.file_stem().map_or("switch".into(), |s| s.to_string_lossy().into_owned()),
        };
        let control = checks::socket(&switch, "control")?.map_or_else(|| default_control(&name), PathBuf::from);
        let ports_max = switch.count("ports", 2..=PORTS_MAX as u64)?.unwrap_or(PORTS_MAX as u64) as usize;
        let mut vale = vale_config(&root, &switch, ports_max)?;
        let mut ports: Vec<PortConfig> = Vec::new();
        for (table, span) in root.tables("port")? {
            let mut port = port(&doc, table, span)?;
            port.further = port.is_further(&ports);
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
        let policy = policy::read(&root, vale.lossless)?;
        for (port, (table, span)) in ports.iter().zip(root.tables("port")?) {
            let objection = policy.as_ref().and_then(|policy| objection(policy, port, &vale, uplink.as_ref()));
            if let Some((key, why)) = objection {
                return Err(Section::new(&doc, &keys::PORT, table, Some(span))?.error(key, why));
            }
        }
        let given = ports.iter().filter(|p| p.mac.is_some()).count();
        if given > vale.stations {
            return Err(switch.error("stations", format!("{given} ports have a `mac`: so many stations are needed")));
        }
        let user = checks::word(&switch, "user")?.map(str::to_owned);
        let hotplug = switch.bool("hotplug")?.unwrap_or(false);
        if hotplug && user.is_some() {
            let why = "a switch that becomes a `user` cannot open such ports: only root may write what their devices are set to";
            return Err(switch.error("hotplug", why));
        }
        Ok(Config {
            file: path.to_owned(),
            name,
            control,
            ports_max,
            vale,
            user,
            hotplug,
            metrics: switch.text("metrics")?.map(|text| metrics(&switch, text)).transpose()?,
            log: switch
                .choice("log", &[("text", LogFormat::Text), ("json", LogFormat::Json)])?
                .unwrap_or(LogFormat::Text),
            ports,
            uplink,
            policy,
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
        for name in ["overlay", "network", "server", "zcredit", "zbridge", "tcp_tunnel"] {
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
        device: checks::device(&section, "device")?.ok_or_else(|| missing("device"))?.to_owned(),
        netns: checks::namespace(&section, "netns")?.map(str::to_owned),
        mac: mac(&section, "mac", section.text("mac")?.ok_or_else(|| missing("mac"))?)?,
        rate: section.link_rate("rate")?.ok_or_else(|| missing("rate"))?,
        response: section.positive("response")?.unwrap_or(RESPONSE),
        lossless,
        buffer: section.buffer("buffer")?.map(|bytes| bytes.as_bytes() as u32),
        segmentation: section.bool("segmentation")?.unwrap_or(true),
        overlay: match root.has("overlay") {
            true => Some(overlay(root, vale, lossless, path)?),
            false => {
                if let Some(name) = ["zcredit", "zbridge", "tcp_tunnel"].into_iter().find(|name| root.has(name)) {
                    let message = format!("[{name}] without [overlay]: it is between machines of an overlay");
                    return Err(root.error(name, message));
                }
                None
            }
        },
    }))
}

fn credits(root: &Section<'_>, vale: &ValeConfig, networks: &[(u16, u32)]) -> Result<Option<Credits>> {
    let section = root.section("zcredit", &ZCREDIT)?;
    if !root.has("zcredit") {
        return Ok(None);
    }
    if vale.lossless.is_empty() {
        let why = "no priority of [switch] is lossless: frames that wait for credits would be dropped before them";
        return Err(root.error("zcredit", why));
    }
    let ZCredit { rx_queue, batch, tx_queue, .. } = sluicenet_scenario::credit_numbers(&section)?;
    let mut weights: Vec<((u16, [u8; 6]), u32)> = Vec::new();
    for (table, span) in section.tables("weight")? {
        let t = Section::new(section.doc, &WEIGHT, table, Some(span))?;
        let tenant = t.count("tenant", 0..=4095)?.ok_or_else(|| t.missing("tenant"))? as u16;
        if networks.iter().all(|network| network.0 != tenant) {
            let why = format!("no network of the overlay is that of tenant {tenant}: its machines have no credits");
            return Err(t.error("tenant", why).expected("the tenant of a [[network]]"));
        }
        let machine = (tenant, mac(&t, "mac", t.text("mac")?.ok_or_else(|| t.missing("mac"))?)?);
        if weights.iter().any(|w| w.0 == machine) {
            return Err(t.error("mac", "this machine stands here twice"));
        }
        weights.push((machine, t.count_u32("weight", 1..=1 << 16)?.ok_or_else(|| t.missing("weight"))?));
    }
    Ok(Some(Credits { rx_queue, batch, tx_queue, classes: vale.lossless, weights }))
}

fn zbridge(root: &Section<'_>, vale: &ValeConfig) -> Result<Option<Reliability>> {
    let section = root.section("zbridge", &ZBRIDGE)?;
    if !root.has("zbridge") {
        return Ok(None);
    }
    if vale.lossless.is_empty() {
        let why = "no priority of [switch] is lossless: frames that wait for their turn would be dropped before it";
        return Err(root.error("zbridge", why));
    }
    // The tunnel's frames between two endpoints have one pair of ports, and so one path.
    let channel = sluicenet_scenario::channel_numbers(&section)?.channel(true);
    Ok(Some(Reliability { channel, classes: vale.lossless }))
}

fn overlay(root: &Section<'_>, vale: &ValeConfig, lossless: PrioritySet, path: &Path) -> Result<OverlayConfig> {
    let section = root.section("overlay", &OVERLAY)?;
    let tcp_tunnel = tcp_tunnel::read(root, lossless)?;
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
    let (credits, zbridge) = (credits(root, vale, &networks)?, zbridge(root, vale)?);
    for (table, span) in root.tables("server")? {
        let server = Section::new(section.doc, &SERVER, table, Some(span))?;
        let next_hop = server.text("mac")?.ok_or_else(|| server.missing("mac"))?;
        servers.push((ipv4(&server, "address")?, mac(&server, "mac", next_hop)?));
    }
    let reachable = |at: &SocketAddrV4| !at.ip().is_unspecified() && !at.ip().is_multicast() && at.port() != 0;
    let controller =
        wanted("controller")?.parse().ok().filter(reachable).ok_or_else(|| {
            section.error("controller", "this is no address with a port").expected("as 172.16.0.1:49789")
        })?;
    Ok(OverlayConfig {
        address: ipv4(&section, "address")?,
        controller,
        listen: section.count("listen", 1..=65_535)?.map_or(UDP_PORT, |port| port as u16),
        controller_netns: checks::namespace(&section, "controller_netns")?.map(str::to_owned),
        key: key_of(&section, "key", path)?,
        networks,
        servers,
        credits,
        zbridge,
        tcp_tunnel,
    })
}

/// The text of a file, of a bounded size.
pub(super) fn text_of(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let bytes = sluicenet_scenario::formats::read_bounded(path, &name, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|e| Error::not_text(name, e.as_bytes(), e.utf8_error().valid_up_to()))
}

pub(super) fn ipv4(section: &Section<'_>, name: &str) -> Result<Ipv4Addr> {
    let text = section.text(name)?.ok_or_else(|| section.missing(name))?;
    let wrong = |message: &str| section.error(name, message).expected("as 10.0.0.1");
    let address: Ipv4Addr = text.parse().map_err(|_| wrong("this is no IPv4 address"))?;
    if address.is_unspecified() || address.is_broadcast() || address.is_multicast() {
        return Err(wrong("this is not the address of one machine"));
    }
    Ok(address)
}

/// The key in the file `name`, relative to the file at `path`. No other user may have the right to read it.
pub(super) fn key_of(section: &Section<'_>, name: &str, path: &Path) -> Result<[u8; 32]> {
    let file = checks::word(section, name)?.ok_or_else(|| section.missing(name))?;
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

fn mac(section: &Section<'_>, key: &str, text: &str) -> Result<[u8; 6]> {
    let parts: Vec<Option<u8>> =
        text.split(':').map(|p| (p.len() == 2).then(|| u8::from_str_radix(p, 16).ok()).flatten()).collect();
    let address = <[Option<u8>; 6]>::try_from(parts).ok().filter(|parts| parts.iter().all(Option::is_some));
    let wrong = |message: &str| Err(section.error(key, message).expected("as 02:00:00:00:00:01"));
    match address.map(|parts| parts.map(Option::unwrap_or_default)) {
        None => wrong("this is no MAC address"),
        Some([0, 0, 0, 0, 0, 0]) => wrong("this address is nobody's"),
        Some(mac) if mac[0] & 1 != 0 => wrong("this address is of a group of machines"),
        Some(mac) => Ok(mac),
    }
}

/// An address for the metrics; without a host it is the loopback address.
fn metrics(section: &Section<'_>, text: &str) -> Result<SocketAddr> {
    let local = || text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    text.parse().or_else(|_| local()).map_err(|_| {
        section.error("metrics", "this is no address to listen at").expected("as 9464, 127.0.0.1:9464 or [::]:9464")
    })
}

/// The JSON schema of the file.
pub fn json_schema() -> serde_json::Value {
    sluicenet_scenario::schema::table(&ROOT, None)
}

/// The default path of a switch's control socket.
pub fn default_control(name: &str) -> PathBuf {
    let folder = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/sluicenet")
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from).join("sluicenet")
    };
    folder.join(format!("{name}.sock"))
}

#[cfg(test)]
mod tests;
