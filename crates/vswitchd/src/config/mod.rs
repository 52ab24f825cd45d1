//! The file of a switch, in TOML like scenarios; every error has its line.

pub(super) mod checks;
mod keys;
mod policy;
mod port;
mod qcn;
mod tcp_tunnel;
mod xco;

pub(crate) use keys::ROOT;
pub(super) use policy::objection;
pub use port::{Clash, PortConfig, PortKind, port_from_words};
pub(crate) use port::{PortKeys, port_of, veth_keys};
pub use qcn::{LimitersOf, Limiting};
pub use tcp_tunnel::TcpTunnel;
pub use xco::Coordination;

use super::status::counted;
use checks::Name;
use keys::{
    NetworkKeys, OverlayKeys, ServerKeys, SwitchKeys, UplinkKeys, WatchdogKeys, WeightKeys, ZBridgeKeys, ZCreditKeys,
};
use sluicenet_node::gate::StationPolicy;
use sluicenet_node::uplink::patience;
use sluicenet_node::vale::{ValeConfig, WatchdogConfig};
use sluicenet_proto::cee::ets::EtsConfig;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration as Time;
use sluicenet_proto::transport::zbridge::ChannelConfig;
use sluicenet_proto::units::Rate as LinkRate;
use sluicenet_scenario::setting::Section;
use sluicenet_scenario::tree::{Document, Node, Span, Value};
use sluicenet_scenario::{Error, Ets, Result, check_channel, check_credits, choices};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The size of the largest file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The name of the port to other servers.
pub const UPLINK_NAME: &str = "uplink";

/// The ports of a switch, if its file does not say it.
pub const PORTS: usize = 64;

/// The settings in the file of a switch.
#[derive(Clone, Debug)]
pub struct Config {
    /// The path of the file; empty without a file.
    pub file: PathBuf,
    /// The switch's name.
    pub name: String,
    /// The path of the control socket.
    pub control: PathBuf,
    /// The most ports of the switch.
    pub ports_max: usize,
    /// Queues, classes, table and watchdog.
    pub vale: ValeConfig,
    /// The user that the switch becomes; default one without rights.
    pub user: Option<String>,
    /// Whether the switch limits its system calls and files once its ports are open.
    pub sandbox: bool,
    /// Folders in which ports that are added later may have their sockets.
    pub socket_folders: Vec<PathBuf>,
    /// The group that may connect to the sockets of guests.
    pub socket_group: Option<String>,
    /// The address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The format of the log.
    pub log: LogFormat,
    /// The ports, in the order of the file.
    pub ports: Vec<PortConfig>,
    /// The link to other servers.
    pub uplink: Option<UplinkConfig>,
    /// The endpoints that may communicate; default all with all.
    pub policy: Option<Arc<StationPolicy>>,
}

/// Whether the files of keys are read with a configuration.
#[derive(Clone, Copy, Debug)]
enum Keys {
    Read,
    Leave,
}

/// The link to other servers.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkConfig {
    /// The network device.
    pub device: String,
    /// The device's namespace; default the switch's own.
    pub netns: Option<String>,
    /// The device's MAC address.
    pub mac: [u8; 6],
    /// The speed of the link.
    pub rate: LinkRate,
    /// The longest time that either end takes to obey a pause.
    pub response: Time,
    /// Priorities under flow control.
    pub lossless: PrioritySet,
    /// Receive buffer of a priority, in bytes.
    pub buffer: Option<u32>,
    /// Whether runs of tunnel frames go to the device in one piece.
    pub segmentation: bool,
    /// Rate limiters that the network's congestion notifications control.
    pub limiting: Option<Limiting>,
    /// Shares of the link's bandwidth; the priorities take turns without them.
    pub ets: Option<EtsConfig>,
    /// The gate of XCo.
    pub xco: Option<Coordination>,
    /// The overlay; without it the uplink is only a trunk.
    pub overlay: Option<OverlayConfig>,
}

/// Tunnels between servers.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlayConfig {
    /// This server's address.
    pub address: Ipv4Addr,
    /// The controller's address and port.
    pub controller: SocketAddrV4,
    /// The port at which the controller's messages arrive.
    pub listen: u16,
    /// The namespace through which the controller is reached.
    pub controller_netns: Option<String>,
    /// The key shared with the controller.
    pub key: [u8; 32],
    /// The file of the key.
    pub key_file: PathBuf,
    /// Tenants and their networks.
    pub networks: Vec<(u16, u32)>,
    /// Other servers, and the next hop towards each.
    pub servers: Vec<(Ipv4Addr, [u8; 6])>,
    /// Credits between machines of the overlay.
    pub credits: Option<Credits>,
    /// Reliability between machines of the overlay.
    pub zbridge: Option<Reliability>,
    /// TCP between servers.
    pub tcp_tunnel: Option<TcpTunnel>,
}

/// Reliability between machines of the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reliability {
    /// The settings of channels.
    pub channel: ChannelConfig,
    /// Priorities in which frames are numbered.
    pub classes: PrioritySet,
}

/// Credits between machines of the overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Frames that a machine's receive queue holds.
    pub rx_queue: u32,
    /// Credits of a machine's turn.
    pub batch: u32,
    /// Frames of a machine that may wait for credits.
    pub tx_queue: u32,
    /// Priorities in which frames need credits.
    pub classes: PrioritySet,
    /// The weights of machines with longer turns, by tenant and address.
    pub weights: Vec<((u16, [u8; 6]), u32)>,
}

choices! {
    /// The format of the log.
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// One object a line.
        Json = "json",
    }
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The first error in the file, with its location.
    pub fn load(path: &Path) -> Result<Config> {
        let text = text_of(path)?;
        Config::parse(path, &text)
    }

    /// Loads a file for a process that needs no keys, and may not be allowed to read them.
    ///
    /// # Errors
    /// As [`Config::load`], but for the files of keys.
    pub fn load_without_keys(path: &Path) -> Result<Config> {
        Config::parse_without_keys(path, &text_of(path)?)
    }

    /// The same, of the text of a file.
    pub(crate) fn parse_without_keys(path: &Path, text: &str) -> Result<Config> {
        Config::read(path, &Document::parse(&path.display().to_string(), text)?, Keys::Leave)
    }

    /// The settings of a switch without a file: it takes ports by commands.
    ///
    /// # Errors
    /// The name is none.
    pub fn without_file(name: &str) -> Result<Config> {
        let mut doc = Document::parse("", "")?;
        let value = Value::Text(name.to_owned());
        doc.set(&[("switch".into(), Span::START), ("name".into(), Span::START)], Node { span: Span::START, value })?;
        Config::read(Path::new(""), &doc, Keys::Read)
    }

    /// The files that the switch reads again at a reload, as the user that it has become.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let key = self.uplink.as_ref().and_then(|uplink| uplink.overlay.as_ref()).map(|overlay| &*overlay.key_file);
        self.has_file().then_some(&*self.file).into_iter().chain(key)
    }

    /// Whether the switch has a file.
    pub fn has_file(&self) -> bool {
        self.file.as_os_str() != ""
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        Config::read(path, &Document::parse(&path.display().to_string(), text)?, Keys::Read)
    }

    fn read(path: &Path, doc: &Document, keys: Keys) -> Result<Config> {
        no_hotplug(doc)?;
        let root = Section::root(doc, &ROOT)?;
        let s_switch = root.section("switch")?;
        let switch = SwitchKeys::read(&s_switch, &ValeConfig::default())?;
        let mut vale = vale_config(&root, (&s_switch, &switch))?;
        let name = match switch.name {
            Some(Name(name)) => name,
            None => path.file_stem().map_or("switch".into(), |s| s.to_string_lossy().into_owned()),
        };
        let control = switch.control.as_ref().map_or_else(|| default_control(&name), |path| PathBuf::from(&path.0));
        let ports_max = switch.ports as usize;
        let mut ports: Vec<PortConfig> = Vec::new();
        let s_ports = root.tables("port")?;
        for s in &s_ports {
            let mut port = port_of(s)?;
            port.further = port.is_further(&ports);
            if ports.iter().any(|p| p.name == port.name) {
                return Err(s.error_here(format!("two ports are called `{}`", port.name)));
            }
            if let Some((other, clash)) = ports.iter().find_map(|other| Some((other, port.clash_with(other)?))) {
                let (key, names) = (clash.key(), format!("{} and {}", other.name, port.name));
                let what = if let Clash::Ip(prefix) = clash { format!(" {prefix}") } else { String::new() };
                return Err(s.error(key, format!("ports {names} of one tenant have the same `{key}`{what}")));
            }
            if let Some(tenant) = port.kind.tenant()
                && let Some(other) = ports.iter().find(|other| other.kind.tenant() == Some(tenant))
            {
                return Err(s.error("tenant_netns", one_tenant(&other.name, &port.name, tenant)));
            }
            if port.name == UPLINK_NAME {
                return Err(s.error_here(format!("a port cannot be called `{UPLINK_NAME}`")));
            }
            ports.push(port);
            if ports.len() > ports_max {
                let why = format!("the switch has {}", counted(ports_max as u64, "port", "ports"));
                return Err(s.error_here(why).hint("see `ports` in [switch]"));
            }
        }
        let uplink = uplink(&root, &vale, (path, keys))?;
        vale.uplink = uplink.is_some().then_some(0);
        let policy = policy::read(&root, vale.lossless)?;
        for (port, s) in ports.iter().zip(&s_ports) {
            let objection = policy.as_ref().and_then(|policy| objection(policy, port, &vale, uplink.as_ref()));
            if let Some((key, why)) = objection {
                return Err(s.error(key, why));
            }
        }
        let given = ports.iter().flat_map(PortConfig::stations).count();
        if given > vale.stations {
            let need = counted(given as u64, "MAC address", "MAC addresses");
            return Err(s_switch.error("stations", format!("the ports have {need}: so many stations are needed")));
        }
        let user = switch.user.map(|user| user.0);
        let socket_folders = switch.socket_folders.map(|folders| folders.0).unwrap_or_default();
        if switch.socket_group.is_some() {
            let sockets = ports.iter().filter_map(|port| port.kind.socket()?.parent());
            if sockets.chain(socket_folders.iter().map(PathBuf::as_path)).any(|folder| Some(folder) == control.parent())
            {
                let why = "the control socket is in the folder of a guest's socket, which this group enters";
                return Err(s_switch.error("socket_group", why).hint("give the guests a folder of their own"));
            }
        }
        Ok(Config {
            file: path.to_owned(),
            name,
            control,
            ports_max,
            vale,
            user,
            sandbox: switch.sandbox,
            socket_folders,
            socket_group: switch.socket_group.map(|group| group.0),
            metrics: switch.metrics.map(|listener| listener.0),
            log: switch.log,
            ports,
            uplink,
            policy,
        })
    }
}

impl Config {
    /// What the switch cannot do with this file although the file is valid, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        self.uplink.iter().filter_map(|uplink| uplink.short_storms(&self.vale.watchdog)).collect()
    }
}

impl UplinkConfig {
    /// Without credits a receiver on another server that reads nothing has its whole class paused, and the watchdog gives
    /// the class up sooner than it would isolate that receiver.
    fn short_storms(&self, watchdog: &WatchdogConfig) -> Option<String> {
        let held_elsewhere = |overlay: &OverlayConfig| overlay.credits.is_some() || overlay.tcp_tunnel.is_some();
        if self.lossless.is_empty() || self.overlay.as_ref().is_some_and(held_elsewhere) {
            return None;
        }
        let isolation = watchdog.isolates_after()?;
        let storm = watchdog.detection_time.max(patience(self.response));
        (storm < isolation).then(|| {
            format!(
                "the uplink gives up a class that its neighbour pauses for {} ms: if one receiver on another server reads \
                 nothing for so long, frames of its class for all receivers there are lost; [zcredit] on all servers \
                 prevents this, or a `response` of at least {} ms at both ends, or `action = \"alert\"`",
                storm.as_us() / 1_000,
                (isolation.as_us() / 1_000).div_ceil(patience(Time::from_ms(1)).as_us() / 1_000),
            )
        })
    }
}

/// Early files had a key for what every switch does now.
fn no_hotplug(doc: &Document) -> Result<()> {
    let switch = doc.root.get("switch").map(|entry| &entry.node.value);
    let Some(Value::Table(switch)) = switch else { return Ok(()) };
    match switch.get("hotplug") {
        Some(entry) => {
            let message = "unknown key `hotplug` in [switch]: every switch takes ports while it runs";
            Err(doc.error(entry.key_span, message).hint("remove the line"))
        }
        None => Ok(()),
    }
}

fn vale_config(root: &Section<'_>, (s_switch, switch): (&Section<'_>, &SwitchKeys)) -> Result<ValeConfig> {
    let d = ValeConfig::default();
    let (stations, ports) = (switch.stations, switch.ports);
    let portion = stations / ports;
    let stations_per_port = switch.stations_per_port.unwrap_or(d.stations_per_port.min(portion));
    if stations_per_port > portion {
        let why =
            format!("{stations_per_port} stations for each of {ports} ports are more than the {stations} of the table");
        return Err(s_switch.error("stations_per_port", why).hint("see `stations` and `ports`"));
    }
    let watchdog = watchdog_config(&root.section("watchdog")?, &d)?;
    Ok(ValeConfig {
        slots: switch.slots,
        lossless: switch.lossless.as_deref().map_or(d.lossless, priorities),
        stations: stations as usize,
        stations_per_port,
        aging_time: switch.aging_time.value(),
        watchdog,
        ..d
    })
}

fn watchdog_config(s: &Section<'_>, d: &ValeConfig) -> Result<WatchdogConfig> {
    let WatchdogKeys { detection_time, isolation_time, restoration_time, action } = WatchdogKeys::read(s, d)?;
    if isolation_time.is_some_and(|time| time < detection_time) {
        let why = "a receiver cannot be isolated before it is found stuck";
        return Err(s.error("isolation_time", why).expected("at least `detection_time`"));
    }
    let isolation_time = isolation_time.unwrap_or(d.watchdog.isolation_time.max(detection_time));
    let action = action.map_or(d.watchdog.action, Into::into);
    Ok(WatchdogConfig { action, detection_time, isolation_time, restoration_time })
}

fn priorities(list: &[u8]) -> PrioritySet {
    let mut set = PrioritySet::NONE;
    list.iter().for_each(|&priority| set.insert(priority));
    set
}

fn uplink(root: &Section<'_>, vale: &ValeConfig, file: (&Path, Keys)) -> Result<Option<UplinkConfig>> {
    if !root.has("uplink") {
        for name in ["qcn", "ets", "xco", "host", "overlay", "network", "server", "zcredit", "zbridge", "tcp_tunnel"] {
            if root.has(name) {
                return Err(root.error(name, format!("[{name}] without [uplink]")));
            }
        }
        return Ok(None);
    }
    let keys = UplinkKeys::read(&root.section("uplink")?)?;
    let lossless = keys.lossless.as_deref().map_or(vale.lossless, priorities);
    Ok(Some(UplinkConfig {
        device: keys.device.0,
        netns: keys.netns.map(|netns| netns.0),
        mac: keys.mac.0,
        rate: keys.rate,
        response: keys.response,
        lossless,
        buffer: keys.buffer.map(|bytes| bytes.as_bytes() as u32),
        segmentation: keys.segmentation,
        limiting: qcn::read(root, keys.rate)?,
        xco: xco::read(root, keys.rate)?,
        ets: Ets::of(&root.section("ets")?)?,
        overlay: match root.has("overlay") {
            true => Some(overlay(root, vale, lossless, file)?),
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
    if !root.has("zcredit") {
        return Ok(None);
    }
    if vale.lossless.is_empty() {
        let why = "no priority of [switch] is lossless: frames that wait for credits would be dropped before them";
        return Err(root.error("zcredit", why));
    }
    let s = root.section("zcredit")?;
    let ZCreditKeys { rx_queue, batch, tx_queue } = ZCreditKeys::read(&s)?;
    check_credits(&s, rx_queue, batch)?;
    let mut weights: Vec<((u16, [u8; 6]), u32)> = Vec::new();
    for t in s.tables("weight")? {
        let WeightKeys { tenant, mac, weight } = WeightKeys::read(&t)?;
        if networks.iter().all(|network| network.0 != tenant) {
            let why = format!("no network of the overlay is that of tenant {tenant}: its machines have no credits");
            return Err(t.error("tenant", why).expected("the tenant of a [[network]]"));
        }
        let machine = (tenant, mac.0);
        if weights.iter().any(|w| w.0 == machine) {
            return Err(t.error("mac", "this machine stands here twice"));
        }
        weights.push((machine, weight));
    }
    Ok(Some(Credits { rx_queue, batch, tx_queue, classes: vale.lossless, weights }))
}

fn zbridge(root: &Section<'_>, vale: &ValeConfig) -> Result<Option<Reliability>> {
    if !root.has("zbridge") {
        return Ok(None);
    }
    if vale.lossless.is_empty() {
        let why = "no priority of [switch] is lossless: frames that wait for their turn would be dropped before it";
        return Err(root.error("zbridge", why));
    }
    let s = root.section("zbridge")?;
    let ZBridgeKeys { period, buffer, timeout } = ZBridgeKeys::read(&s)?;
    check_channel(&s, period, buffer)?;
    // Tunnel frames of one pair of endpoints have one pair of ports, and so one path.
    let channel = ChannelConfig { buffer, period, timeout, single_path: true };
    Ok(Some(Reliability { channel, classes: vale.lossless }))
}

fn overlay(
    root: &Section<'_>,
    vale: &ValeConfig,
    lossless: PrioritySet,
    (path, read): (&Path, Keys),
) -> Result<OverlayConfig> {
    let s = root.section("overlay")?;
    let keys = OverlayKeys::read(&s)?;
    let tcp_tunnel = tcp_tunnel::read(root, lossless)?;
    let mut networks: Vec<(u16, u32)> = Vec::new();
    for t in root.tables("network")? {
        let NetworkKeys { tenant, vni } = NetworkKeys::read(&t)?;
        if networks.iter().any(|&(other, v)| other == tenant || v == vni) {
            return Err(t.error_here("this tenant or this network has another one already"));
        }
        networks.push((tenant, vni));
    }
    let (credits, zbridge) = (credits(root, vale, &networks)?, zbridge(root, vale)?);
    let next_hop = |t: &Section<'_>| ServerKeys::read(t).map(|server| (server.address.0, server.mac.0));
    let servers = root.tables("server")?.iter().map(next_hop).collect::<Result<_>>()?;
    let controller = keys.controller.0;
    if controller.ip().is_unspecified() || controller.ip().is_multicast() || controller.port() == 0 {
        return Err(s.error("controller", "this is no address with a port").expected("as 172.16.0.1:49789"));
    }
    Ok(OverlayConfig {
        address: keys.address.0,
        controller,
        listen: keys.listen,
        controller_netns: keys.controller_netns.map(|netns| netns.0),
        key: match read {
            Keys::Read => key_of(&s, "key", &keys.key.0, path)?,
            Keys::Leave => [0; 32],
        },
        key_file: beside(path, &keys.key.0),
        networks,
        servers,
        credits,
        zbridge,
        tcp_tunnel,
    })
}

/// The fault of two ports for one namespace: the free space of sockets has one owner, and several valves would overrun the
/// sockets.
pub(super) fn one_tenant(one: &str, other: &str, namespace: &str) -> String {
    format!(
        "ports {one} and {other} lead to the same namespace, {namespace}; a namespace has one port of kind veth, which may carry several \
         addresses and VLANs"
    )
}

/// The text of a file, of a bounded size.
pub(crate) fn text_of(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let bytes = sluicenet_scenario::formats::read_bounded(path, &name, FILE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|e| Error::not_text(name, e.as_bytes(), e.utf8_error().valid_up_to()))
}

/// A file that the file at `path` names.
fn beside(path: &Path, file: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).join(file)
}

/// The key in the file named by the setting `name`, relative to the file at `path`. Other users must not be able to
/// read it.
pub(super) fn key_of(section: &Section<'_>, name: &str, file: &str, path: &Path) -> Result<[u8; 32]> {
    let file = beside(path, file);
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

/// The JSON schema of the file.
pub fn json_schema() -> serde_json::Value {
    sluicenet_scenario::schema::table(&ROOT, None)
}

/// The default path of a switch's control socket.
pub fn default_control(name: &str) -> PathBuf {
    let folder = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/sluicenet")
    } else {
        // An empty or relative value counts as none, as the specification of this variable says.
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
        folder.unwrap_or_else(std::env::temp_dir).join("sluicenet")
    };
    folder.join(format!("{name}.sock"))
}

/// In a reload: the default path depends on the process's user, who may have changed since the start. So it stays that of the
/// start.
pub(crate) fn keep_control(control: &mut PathBuf, name: &str, before: &Path) {
    if *control == default_control(name) {
        *control = before.to_owned();
    }
}

#[cfg(test)]
mod tests;
