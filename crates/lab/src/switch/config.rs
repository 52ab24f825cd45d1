//! The file of a switch: TOML, as scenarios are, every refusal with its line.

use super::privileges::Rights;
use crate::scenario::keys::Kind::*;
use crate::scenario::keys::{Spec, k};
use crate::scenario::section::Section;
use crate::scenario::tree::{Document, Span, Table as Entries, Value};
use crate::scenario::{Error, Result};
use sluicenet_dataplane::engine::Access;
use sluicenet_node::vale::{Action, ValeConfig};
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration as Time;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The largest file read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Ports a switch may have.
pub const PORTS_MAX: usize = 64;

pub(crate) static ROOT: Spec = Spec {
    name: "",
    doc: "A lossless switch.",
    keys: &[
        k("switch", Table(&SWITCH), SWITCH.doc),
        k("watchdog", Table(&WATCHDOG), WATCHDOG.doc),
        k("port", Tables(&[&PORT]), PORT.doc),
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
        k("stations_per_port", Count(0, 1 << 20), "stations it learns behind one port; 1024 where absent"),
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
        k("kind", Choice(&["shm"]), "over what its frames move"),
        k("mac", Text, "the address of the machine at it, which nobody else can use then; learned where absent"),
        k("ip", Text, "the only IPv4 address it may send from; any where absent"),
        k("tenant", Count(0, 4095), "the broadcast domain of all its frames; each frame's VLAN where absent"),
        k("priority", Count(0, 7), "the priority of all its frames; each frame's 802.1Q tag where absent"),
        k("buffers", Count(2, 1 << 16), "shm: buffers, a power of two; 1024 where absent"),
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
}

impl PortKind {
    /// What it takes to open such a port, and to use it then.
    pub fn rights(&self) -> Rights {
        match self {
            PortKind::Shm { .. } => Rights::NONE,
        }
    }

    /// As in the file.
    pub fn name(&self) -> &'static str {
        match self {
            PortKind::Shm { .. } => "shm",
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place.
    pub fn load(path: &Path) -> Result<Config> {
        let name = path.display().to_string();
        let bytes = crate::formats::read_bounded(path, &name, FILE_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::file(&name, "this is not text in UTF-8"))?;
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
        let vale = vale_config(&root, &switch)?;
        let mut ports: Vec<PortConfig> = Vec::new();
        for (table, span) in root.tables("port")? {
            let port = port(&doc, table, span)?;
            if ports.iter().any(|p| p.name == port.name) {
                return Err(doc.error(span, format!("two ports are called `{}`", port.name)));
            }
            if port.mac.is_some() && ports.iter().any(|p| (p.mac, p.access.domain) == (port.mac, port.access.domain)) {
                return Err(doc.error(span, "two ports of one tenant have the same `mac`"));
            }
            ports.push(port);
            if ports.len() > ports_max {
                return Err(doc
                    .error(span, format!("the switch has {ports_max} ports"))
                    .hint("see `ports` in [switch]"));
            }
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
        })
    }
}

fn vale_config(root: &Section<'_>, switch: &Section<'_>) -> Result<ValeConfig> {
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
    if let Some(stations) = switch.count_u32("stations_per_port", 0..=1 << 20)? {
        vale.stations_per_port = stations;
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

fn port(doc: &Document, table: &Entries, span: Span) -> Result<PortConfig> {
    let section = Section::new(doc, &PORT, table, Some(span))?;
    port_of(&section)
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
    let kind = match kind {
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
    let address = section.text("ip")?.map(|text| {
        text.parse::<Ipv4Addr>().map_err(|_| section.error("ip", "this is no IPv4 address").expected("as 10.0.0.1"))
    });
    let access = Access {
        domain: section.count("tenant", 0..=4095)?.map(|n| n as u16),
        priority: section.count("priority", 0..=7)?.map(|n| n as u8),
        address: address.transpose()?,
    };
    Ok(PortConfig { name, kind, mac, access })
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
            ("[[port]]\nname = \"../a\"\nkind = \"shm\"", 2, "this is no name"),
            (&format!("{port}mac = \"2:0:0:0:0:1\""), 4, "no MAC address"),
            (&format!("{port}mac = \"01:00:00:00:00:01\""), 4, "a group of machines"),
            (&format!("{port}ip = \"10.0.0\""), 4, "no IPv4 address"),
            (&format!("{port}buffers = 1000"), 4, "not a power of two"),
            ("[switch]\nmetrics = \"here\"", 2, "no address to listen at"),
            ("[switch]\nlog = \"xml\"", 2, "json"),
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
