//! The file of a bump, in TOML like that of a switch; every error has its line.

use super::super::config::checks::{Listener, Mac, Name, SocketPath, Word};
use super::super::config::{LogFormat, PortConfig, PortKind, default_control, key_of, text_of};
use super::super::config::{PortKeys, port_of};
use super::map::{MapConfig, PortKeys as MapKeys};
use sluicenet_dataplane::bump::{Applications, LOOPS_MAX, Neighbour};
use sluicenet_proto::netbump::Stock;
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::setting::{Kind, Or, Section, Settings, Spec};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::units::{BUFFER, LINK_RATE, POSITIVE_TIME};
use sluicenet_scenario::{BUMP_APPS, BumpApp, Bytes, Result, bump_apps, choices, settings, tables};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Links of a bump, and pipelines of a link.
const LINKS_MAX: usize = 32;
const PIPELINES: std::ops::RangeInclusive<u32> = 1..=16;
/// Processes of a program: each has about 2 MB of its own beside what the program uses.
const PROCESSES_MAX: usize = 256;
/// Packets of an update.
const BATCH: std::ops::RangeInclusive<u32> = 1..=360;
/// Numbers of bumps: those of their loops are 64 times as large.
const BUMPS: std::ops::RangeInclusive<u32> = 0..=(1 << 24) - 1;

choices! {
    /// What becomes of a link when the bump has died.
    pub enum WhenDead {
        /// The kernel connects its two devices.
        Wire = "wire",
        /// Its frames go nowhere.
        Block = "block",
    }
}

choices! {
    /// What becomes of the frames of a program that does not run.
    pub enum WhenFaulty {
        /// They pass without it.
        Bypass = "bypass",
        /// They are dropped.
        Block = "block",
    }
}

choices! {
    /// From where a speed is learned.
    pub(crate) enum Learned {
        /// From the neighbour, by LLDP.
        Lldp = "lldp",
    }
}

/// The speed of the ports to stations that the map does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// This one.
    Rate(Rate),
    /// That of the neighbour's port.
    Lldp,
}

pub(crate) static ROOT: Spec = tables! {
    /// A bump in the wire.
    ""
    bump: Kind::Table(BumpKeys::SPEC),
    port: Kind::Tables(&[PortKeys::SPEC]),
    link: Kind::Tables(&[LinkKeys::SPEC]),
    map: Kind::Tables(&[MapKeys::SPEC]),
    app: Kind::Tables(BUMP_APPS),
    updates: Kind::Table(UpdateKeys::SPEC),
    neighbour: Kind::Tables(&[NeighbourKeys::SPEC]),
};

settings! {
    /// the bump itself
    pub(crate) struct BumpKeys in "bump" (s) {
        /// its name; default the file's name without its extension
        name: Option<Name>,
        /// its control socket; default NAME.sock in /run/sluicenet or in the user's run folder
        control: Option<SocketPath>,
        /// its own address, the source of its notifications and updates; default derived from its name
        mac: Option<Mac>,
        /// the file of its map, with tables [[map]]; default the tables in this file
        map_file: Option<Word>,
        /// the speed of the ports to all stations that the map does not list, or "lldp": that of the neighbour's port, as
        /// the neighbour says by LLDP; default none: their packets pass unseen
        others: Option<Or<Rate, Learned>> [LINK_RATE],
        /// bytes at which a virtual queue is full; default: it has no limit
        buffer: Option<Bytes> [BUFFER],
        /// pipelines of each link, by flow; more than one only between ports of kind packet
        pipelines: u32 [PIPELINES] = 1,
        /// the core of each loop, the pipelines of the first link first; default the kernel chooses
        cores: Vec<u32> [0..=4095] = Vec::new(),
        /// how long a loop runs without a frame before it sleeps; default it never sleeps
        sleep_after: Option<Duration> [POSITIVE_TIME],
        /// what becomes of links between ports of kind packet when it has died; default block
        when_dead: WhenDead = WhenDead::Block,
        /// the priority of its notifications
        notification_priority: u8 [0..=7] = 7,
        /// whether a program is called in the bump's own process: faster, but a fault of it ends the bump; default no
        in_process: Option<bool>,
        /// the longest time that a program may take for a frame before its process is killed; default 100 ms
        program_deadline: Option<Duration> [POSITIVE_TIME],
        /// what becomes of a program's frames while it does not run; default bypass
        when_faulty: Option<WhenFaulty>,
        /// seed of the applications' random numbers
        seed: u64 = 1,
        /// the user that it becomes once its ports are open, if started as root; default root without capabilities
        user: Option<Word>,
        /// where Prometheus fetches metrics: a port of the loopback address, or ADDRESS:PORT; default nowhere
        metrics: Option<Listener>,
        /// format of the log on stderr, one line for each event; default text
        log: LogFormat = LogFormat::Text,
    }
}

settings! {
    /// a link, from one port to another
    pub(crate) struct LinkKeys in "link" (s) {
        /// one of its ports
        a: Name,
        /// the other one
        b: Name,
    }
}

settings! {
    /// updates to and from other bumps
    pub(crate) struct UpdateKeys in "updates" (s) {
        /// the number of this bump
        bump: u32 [BUMPS],
        /// the file of the key that the bumps share: 64 hexadecimal digits
        key: Word,
        /// packets of an update; a full update leaves at once
        packets: u32 [BATCH] = 32,
        /// the longest time that a packet waits for its update
        interval: Duration [POSITIVE_TIME] = Duration::from_us(20),
    }
}

settings! {
    /// another bump
    pub(crate) struct NeighbourKeys in "neighbour" (s) {
        /// its number
        bump: u32 [BUMPS],
        /// its address
        mac: Mac,
        /// the port by which updates to it leave
        via: Name,
        /// whether it is told what this bump forwards
        tell: bool = true,
        /// the time that its updates take
        latency: Duration = Duration::from_us(10),
    }
}

/// The exchange of updates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UpdatesConfig {
    pub bump: u32,
    pub key: [u8; 32],
    pub packets: u32,
    pub interval: Duration,
    pub neighbours: Vec<NeighbourConfig>,
}

/// Another bump.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NeighbourConfig {
    pub bump: u32,
    pub mac: [u8; 6],
    /// The port's number in the file's list of links: link and end.
    pub via: (usize, usize),
    pub tell: bool,
    pub latency: Duration,
}

impl NeighbourConfig {
    pub fn neighbour(&self, end: usize) -> Neighbour {
        Neighbour { bump: self.bump, mac: self.mac, end, tell: self.tell, latency: self.latency }
    }
}

/// A program from outside that is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppFile {
    /// The shared library, if it is not the one of the file.
    pub file: Option<PathBuf>,
    /// Its arguments, with spaces between them.
    pub arguments: String,
    /// Whether it is called in the bump's own process.
    pub in_process: bool,
}

/// A program from outside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProgramConfig {
    pub file: String,
    pub content: Arc<Vec<u8>>,
    pub arguments: String,
    pub seed: u64,
    pub in_process: bool,
    pub deadline: Duration,
    pub when_faulty: WhenFaulty,
}

impl ProgramConfig {
    pub fn arguments(&self) -> Vec<&str> {
        self.arguments.split_whitespace().collect()
    }
}

/// The settings in the file of a bump.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) file: PathBuf,
    pub(crate) name: String,
    pub(crate) control: PathBuf,
    pub(crate) mac: [u8; 6],
    pub(crate) pipelines: usize,
    pub(crate) cores: Vec<usize>,
    pub(crate) sleep_after: Option<Duration>,
    pub(crate) when_dead: WhenDead,
    pub(crate) notification_priority: u8,
    pub(crate) user: Option<String>,
    pub(crate) metrics: Option<SocketAddr>,
    /// The format of the log.
    pub log: LogFormat,
    /// The two ports of each link.
    pub(crate) links: Vec<[PortConfig; 2]>,
    pub(crate) map: MapConfig,
    pub(crate) others: Option<Others>,
    pub(crate) buffer: Option<u64>,
    pub(crate) applications: Applications,
    pub(crate) program: Option<ProgramConfig>,
    pub(crate) app_file: Option<AppFile>,
    pub(crate) updates: Option<UpdatesConfig>,
}

/// An address of its own for a bump of this name: locally administered.
fn derived_mac(name: &str) -> [u8; 6] {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let [a, b, c, d, ..] = hash.to_be_bytes();
    [0x06, 0x01, a, b, c, d]
}

impl Config {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The first error in the file, with its location.
    pub fn load(path: &Path) -> Result<Config> {
        Config::load_with(path, None)
    }

    /// Reads the file at `path`, for the program of the command line.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(path: &Path, app_file: Option<&AppFile>) -> Result<Config> {
        let text = text_of(path)?;
        Config::parse_with(path, &text, app_file)
    }

    /// Number of links.
    pub fn link_count(&self) -> usize {
        self.links.len()
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        Config::parse_with(path, text, None)
    }

    fn parse_with(path: &Path, text: &str, app_file: Option<&AppFile>) -> Result<Config> {
        let doc = Document::parse(&path.display().to_string(), text)?;
        let root = Section::root(&doc, &ROOT)?;
        let s_bump = root.section("bump")?;
        let keys = BumpKeys::read(&s_bump)?;
        let name = match &keys.name {
            Some(Name(name)) => name.clone(),
            None => path.file_stem().map_or("bump".into(), |s| s.to_string_lossy().into_owned()),
        };
        let mac = keys.mac.as_ref().map_or_else(|| derived_mac(&name), |mac| mac.0);
        let links = links(&root, keys.pipelines, keys.when_dead, &s_bump)?;
        let map = match &keys.map_file {
            Some(_) if root.has("map") => {
                return Err(s_bump.error("map_file", "the map is in this file and in another one: say it once"));
            }
            Some(file) => MapConfig::load(&s_bump, file, path, keys.buffer)?,
            None => MapConfig::read(&root, keys.buffer)?,
        };
        if map.ports.is_empty() && keys.others.is_none() {
            let error = s_bump.error_here("no packet has a virtual queue: there is no map and no `others`");
            return Err(error.hint("others = \"10 Gb/s\", or tables [[map]]"));
        }
        let apps = bump_apps(&root, path.parent())?;
        let links_and_map = (links.len() * keys.pipelines as usize, map.ports.len());
        let program = program(&root, &s_bump, &keys, &apps, app_file, links_and_map)?;
        let cpid = u64::from_be_bytes([mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0]);
        let applications: Applications =
            (0..).zip(&apps).filter_map(|(i, app)| app.stock(keys.seed.wrapping_add(i), cpid)).collect();
        let reacts = applications.iter().any(|(app, _)| matches!(app, Stock::ReactionPoint(_)));
        if reacts && map.ports.is_empty() && keys.others.is_none() {
            return Err(s_bump.error_here("a reaction point limits flows of virtual queues, and there are none"));
        }
        let loops = links.len() * keys.pipelines as usize;
        if !keys.cores.is_empty() && keys.cores.len() != loops {
            let why = format!("{} cores for {loops} loops: each pipeline of each link has one", keys.cores.len());
            return Err(s_bump.error("cores", why));
        }
        let updates = updates(&root, path, &links, &map)?;
        if updates.is_some() && loops > LOOPS_MAX as usize {
            let why = format!("{loops} loops: those of a bump with updates have numbers, at most {LOOPS_MAX}");
            return Err(s_bump.error("pipelines", why).hint("fewer pipelines or links, or several bumps"));
        }
        Ok(Config {
            file: path.to_owned(),
            control: keys.control.map_or_else(|| default_control(&name), |path| PathBuf::from(path.0)),
            name,
            mac,
            pipelines: keys.pipelines as usize,
            cores: keys.cores.iter().map(|&core| core as usize).collect(),
            sleep_after: keys.sleep_after,
            when_dead: keys.when_dead,
            notification_priority: keys.notification_priority,
            user: keys.user.map(|user| user.0),
            metrics: keys.metrics.map(|listener| listener.0),
            log: keys.log,
            links,
            map,
            others: keys.others.map(|others| others.value().map_or(Others::Lldp, Others::Rate)),
            buffer: keys.buffer.map(Bytes::as_bytes),
            applications,
            program,
            app_file: app_file.cloned(),
            updates,
        })
    }
}

/// The program from outside, of the file or of the command line.
fn program(
    root: &Section<'_>,
    s_bump: &Section<'_>,
    keys: &BumpKeys,
    apps: &[BumpApp],
    app_file: Option<&AppFile>,
    (loops, ports): (usize, usize),
) -> Result<Option<ProgramConfig>> {
    let in_file = match apps {
        [BumpApp::Program(app)] => Some((app.file.path.clone(), app.file.content.clone(), app.arguments.clone())),
        _ => None,
    };
    let named = app_file.and_then(|app| Some((app.file.clone()?, app.arguments.clone())));
    let (file, content, arguments) = match (in_file, named) {
        (None, Some((file, arguments))) if apps.is_empty() => {
            let content = std::fs::read(&file)
                .map_err(|e| s_bump.error_here(format!("the program {} cannot be read: {e}", file.display())))?;
            (file.display().to_string(), Arc::new(content), arguments)
        }
        (_, Some(_)) => return Err(root.error("app", "the file and the command line name applications: say it once")),
        (Some(program), None) => program,
        (None, None) => {
            let set = [
                ("in_process", keys.in_process.is_some()),
                ("program_deadline", keys.program_deadline.is_some()),
                ("when_faulty", keys.when_faulty.is_some()),
            ];
            return match set.iter().find(|(_, set)| *set) {
                Some((key, _)) => Err(s_bump.error(key, format!("`{key}` without a program has no effect"))),
                None if app_file.is_some() => Err(s_bump.error_here("--in-process without a program has no effect")),
                None => Ok(None),
            };
        }
    };
    let in_process = keys.in_process.unwrap_or(false) || app_file.is_some_and(|app| app.in_process);
    if in_process {
        for (key, set) in
            [("program_deadline", keys.program_deadline.is_some()), ("when_faulty", keys.when_faulty.is_some())]
        {
            if set {
                return Err(s_bump.error(key, format!("`{key}` has no effect on a program in the bump's own process")));
            }
        }
    }
    if !in_process && loops * (ports + 2) > PROCESSES_MAX {
        let why =
            format!("a program in processes of its own has at most {PROCESSES_MAX}: one for each port in each loop");
        return Err(s_bump.error_here(why).hint("in_process = true, or fewer ports in the map"));
    }
    let deadline = keys.program_deadline.unwrap_or(Duration::from_ms(100));
    let when_faulty = keys.when_faulty.unwrap_or(WhenFaulty::Bypass);
    Ok(Some(ProgramConfig { file, content, arguments, seed: keys.seed, in_process, deadline, when_faulty }))
}

/// The links, with their ports.
fn links(
    root: &Section<'_>,
    pipelines: u32,
    when_dead: WhenDead,
    s_bump: &Section<'_>,
) -> Result<Vec<[PortConfig; 2]>> {
    let mut ports: Vec<Option<PortConfig>> = Vec::new();
    for s in root.tables("port")? {
        let port = port_of(&s)?;
        if ports.iter().flatten().any(|other| other.name == port.name) {
            return Err(s.error_here(format!("two ports are called `{}`", port.name)));
        }
        // What a switch does with its stations, a bump does not: it passes what comes.
        for key in ["ip", "router", "dhcp_server", "tenant", "priority", "rate"] {
            if s.has(key) {
                return Err(s.error(key, format!("`{key}` has no effect: a bump passes every frame of its link")));
            }
        }
        ports.push(Some(port));
    }
    let mut links: Vec<[PortConfig; 2]> = Vec::new();
    for s in root.tables("link")? {
        let keys = LinkKeys::read(&s)?;
        let mut take = |key: &str, name: &Name| {
            let found = ports.iter_mut().find(|port| port.as_ref().is_some_and(|port| port.name == name.0));
            let used = links.iter().flatten().any(|port| port.name == name.0);
            found.and_then(Option::take).ok_or_else(|| match used {
                true => s.error(key, format!("port {} is part of another link", name.0)),
                false => s.error(key, format!("there is no other port {}", name.0)).hint("see [[port]]"),
            })
        };
        let link = [take("a", &keys.a)?, take("b", &keys.b)?];
        let devices = link.iter().all(|port| matches!(port.kind, PortKind::Packet { .. }));
        if pipelines > 1 && !devices {
            let why = "only a link between ports of kind packet can have several pipelines: the kernel divides its flows. \
                       Memory, a guest, a veth and a TAP have one queue";
            return Err(s_bump.error("pipelines", why));
        }
        let [a, b] = [&link[0], &link[1]].map(|port| match &port.kind {
            PortKind::Packet { netns, .. } => Some(netns),
            _ => None,
        });
        if when_dead == WhenDead::Wire && (a.is_none() || a != b) {
            let why = "only a link between two ports of kind packet in one namespace can become a wire";
            return Err(s_bump.error("when_dead", why).hint("when_dead = \"block\": the frames wait or are lost"));
        }
        links.push(link);
        if links.len() > LINKS_MAX {
            return Err(s.error_here(format!("a bump has at most {LINKS_MAX} links")));
        }
    }
    if links.is_empty() {
        return Err(s_bump.error_here("a bump is in a link").hint("[[link]] with a = \"...\" and b = \"...\""));
    }
    if let Some(port) = ports.into_iter().flatten().next() {
        return Err(s_bump.error_here(format!("port {} is part of no link", port.name)).hint("see [[link]]"));
    }
    Ok(links)
}

fn updates(
    root: &Section<'_>,
    path: &Path,
    links: &[[PortConfig; 2]],
    map: &MapConfig,
) -> Result<Option<UpdatesConfig>> {
    if !root.has("updates") {
        return match root.has("neighbour") {
            true => Err(root.error("neighbour", "[[neighbour]] without [updates]")),
            false => Ok(None),
        };
    }
    let s = root.section("updates")?;
    let keys = UpdateKeys::read(&s)?;
    if map.ports.is_empty() {
        return Err(s.error_here("updates name ports of the map, and there is none").hint("see [[map]]"));
    }
    let key = key_of(&s, "key", &keys.key.0, path)?;
    let mut neighbours: Vec<NeighbourConfig> = Vec::new();
    for s in root.tables("neighbour")? {
        let n = NeighbourKeys::read(&s)?;
        if n.bump == keys.bump || neighbours.iter().any(|other| other.bump == n.bump) {
            return Err(s.error("bump", format!("bump {} stands here already, or is this one", n.bump)));
        }
        let places = links
            .iter()
            .enumerate()
            .flat_map(|(link, ports)| ports.iter().enumerate().map(move |(end, port)| ((link, end), port)));
        let via = places.into_iter().find(|(_, port)| port.name == n.via.0).map(|(at, _)| at);
        let via = via.ok_or_else(|| s.error("via", format!("there is no port {}", n.via.0)))?;
        neighbours.push(NeighbourConfig { bump: n.bump, mac: n.mac.0, via, tell: n.tell, latency: n.latency });
    }
    if neighbours.is_empty() {
        return Err(s.error_here("updates go to neighbours and come from them").hint("see [[neighbour]]"));
    }
    Ok(Some(UpdatesConfig { bump: keys.bump, key, packets: keys.packets, interval: keys.interval, neighbours }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [bump]
        others = "10 Gb/s"
        buffer = "1 MB"
        [[port]]
        name = "rack"
        kind = "shm"
        [[port]]
        name = "core"
        kind = "packet"
        [[link]]
        a = "rack"
        b = "core"
        [[map]]
        port = 7
        rate = "1 Gb/s"
        macs = ["02:00:00:00:00:01", "02:00:00:00:00:02"]
        [[app]]
        kind = "red"
        max_probability = 0.5
    "#;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("b1.toml"), text)
    }

    #[test]
    fn a_file_is_read() {
        let config = parse(FILE).unwrap();
        assert_eq!((config.name.as_str(), config.links.len(), config.applications.len()), ("b1", 1, 1));
        assert_eq!(config.map.destinations.len(), 2);
        assert_eq!(
            config.map.ports[0].port,
            sluicenet_proto::netbump::Port { rate: Rate::gbps(1), buffer_bytes: Some(1_000_000) }
        );
        assert!(config.mac[0] & 3 == 2, "locally administered, and of one station");
    }

    #[test]
    fn each_error_says_what_is_wrong() {
        for (from, to, why) in [
            ("1 Gb/s\"\n        macs", "0 Gb/s\"\n        macs", "rate"),
            ("1 Gb/s\"\n        macs", "9 kb/s\"\n        macs", "from 10 kb/s"),
            ("00:02\"", "00:01\"", "behind port 7 and behind port 7"),
            ("02:00:00:00:00:02", "ff:ff:ff:ff:ff:ff", "group of machines"),
            ("\"02:00:00:00:00:01\", \"02:00:00:00:00:02\"", "", "no station is behind port 7"),
            ("rate = \"1 Gb/s\"\n        macs", "macs", "rate"),
            ("b = \"core\"", "b = \"rack\"", "there is no other port rack"),
            ("b = \"core\"", "b = \"cor\"", "no other port cor"),
            ("others", "pipelines = 2\n        others", "only a link between ports of kind packet"),
            ("others", "when_dead = \"wire\"\n        others", "can become a wire"),
            ("others", "cores = [0, 1]\n        others", "2 cores for 1 loops"),
            ("others", "map_file = \"m\"\n        others", "say it once"),
            ("kind = \"shm\"", "kind = \"shm\"\n        tenant = 3", "no effect"),
            ("kind = \"red\"", "kind = \"rad\"", "unknown kind of application"),
            (
                "[[app]]",
                "[[neighbour]]\n bump = 1\n mac = \"02:00:00:00:00:01\"\n via = \"core\"\n [[app]]",
                "without [updates]",
            ),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let nothing = FILE.replace("others = \"10 Gb/s\"", "");
        let (head, tail) = (nothing.find("[[map]]").unwrap(), nothing.find("[[app]]").unwrap());
        let error = parse(&format!("{}{}", &nothing[..head], &nothing[tail..])).unwrap_err().to_string();
        assert!(error.contains("no map and no `others`"), "{error}");
    }
}
