//! A port as described in a file or in the words of a command.

use super::super::privileges::{Rights, TO_OPEN};
use super::keys::PORT;
use super::{checks, ipv4, mac};
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::engine::Access;
use sluicenet_dataplane::vhost::Socket;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::keys::Kind::Choice;
use sluicenet_scenario::section::Section;
use sluicenet_scenario::tree::{Document, Span, Table as Entries, Value};
use sluicenet_scenario::{Error, Result};

/// The configuration of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: PortKind,
    /// The address of its endpoint.
    pub mac: Option<[u8; 6]>,
    /// The restrictions of its endpoint.
    pub access: Access,
    /// Whether an earlier port has its `ip`: it is a further process of the same machine, and the address does not lead to it.
    pub further: bool,
    /// The limit of the rate at which it receives frames.
    pub rate: Option<Rate>,
}

impl PortConfig {
    /// Whether one of `before` has its `ip` in its tenant.
    pub fn is_further(&self, before: &[PortConfig]) -> bool {
        let place = |port: &PortConfig| (port.access.domain.unwrap_or(0), port.access.address);
        self.access.address.is_some() && before.iter().any(|other| place(other) == place(self))
    }
}

/// The kinds of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// Memory shared with a program.
    Shm {
        /// Buffers.
        buffers: u32,
    },
    /// The queues of a guest.
    VhostUser {
        /// The socket of its frontend.
        socket: Socket,
        /// Whether an agent in the guest reports the room of its sockets.
        agent: bool,
    },
    /// A veth pair to a namespace.
    Veth {
        /// The switch's end.
        device: String,
        /// Its namespace; default the switch's own.
        netns: Option<String>,
        /// The endpoint's end.
        tenant_device: String,
        /// The namespace of that end.
        tenant_netns: String,
        /// Whether TCP segmentation and checksums are left to be done.
        offload: bool,
    },
    /// A TAP device that the switch creates.
    Tap {
        /// Its name.
        device: String,
        /// The namespace in which it is created.
        tenant_netns: String,
        /// The largest IP packet.
        mtu: u32,
        /// Whether TCP segmentation and checksums are left to be done.
        offload: bool,
        /// Whether an agent there reports the room of its sockets.
        agent: bool,
    },
    /// Any device.
    Packet {
        /// Its name.
        device: String,
        /// Its namespace; default the switch's own.
        netns: Option<String>,
    },
}

impl PortKind {
    /// The privileges to open such a port, and to use it.
    pub fn rights(&self) -> Rights {
        match self {
            PortKind::Shm { .. } | PortKind::VhostUser { .. } => Rights::NONE,
            // To change interrupts and the tenant's queue.
            PortKind::Veth { .. } | PortKind::Tap { .. } => Rights { open: TO_OPEN, run: CapabilitySet::NET_ADMIN },
            PortKind::Packet { .. } => Rights { open: TO_OPEN, run: CapabilitySet::empty() },
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

pub(super) fn port(doc: &Document, table: &Entries, span: Span) -> Result<PortConfig> {
    let section = Section::new(doc, &PORT, table, Some(span))?;
    port_of(&section)
}

/// The name of a namespace, also if it is given by its path.
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
    let section = Section::new(&doc, &PORT, &doc.root, None)?;
    port_of(&section)
}

fn port_of(section: &Section<'_>) -> Result<PortConfig> {
    let name = checked_name(section, "name", section.text("name")?.ok_or_else(|| section.missing("name"))?)?;
    let kind = section.text("kind")?.ok_or_else(|| section.missing("kind"))?;
    only_its_own(section, kind)?;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let socket = |key| checks::socket(section, key).map(owned);
    // A namespace by name and by the path of that name are the same.
    let namespace = |key| checks::namespace(section, key).map(|text| owned(text).map(short_namespace));
    let netns = || namespace("netns");
    let device = || match checks::device(section, "device")? {
        Some(device) => Ok(device.to_owned()),
        None if checks::is_device(&name) => Ok(name.clone()),
        None => Err(section.error("name", "a device cannot be called so").hint("say which it is: `device`")),
    };
    let tenant_netns = || namespace("tenant_netns")?.ok_or_else(|| section.missing("tenant_netns"));
    let offload = || Ok::<_, Error>(section.bool("offload")?.unwrap_or(true));
    let agent = section.bool("agent")?.unwrap_or(false);
    let kind = match kind {
        "vhost-user" => {
            let socket = match (socket("socket")?, socket("connect")?) {
                (Some(path), None) => Socket::Listen(path.into()),
                (None, Some(path)) => Socket::Connect(path.into()),
                (None, None) => return Err(section.missing("socket")),
                _ => return Err(section.error("connect", "a port has `socket` or `connect`, not both")),
            };
            PortKind::VhostUser { socket, agent }
        }
        "veth" => PortKind::Veth {
            device: device()?,
            netns: netns()?,
            tenant_device: checks::device(section, "tenant_device")?.unwrap_or("eth0").to_owned(),
            tenant_netns: tenant_netns()?,
            offload: offload()?,
        },
        "tap" => {
            if !section.has("mac") {
                return Err(section.missing("mac").hint("a TAP device has the address that its file gives it"));
            }
            let mtu = section.count_u32("mtu", 68..=65_521)?.unwrap_or(1500);
            PortKind::Tap { device: device()?, tenant_netns: tenant_netns()?, mtu, offload: offload()?, agent }
        }
        "packet" => PortKind::Packet { device: device()?, netns: netns()? },
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
    let mac = section.text("mac")?.map(|text| mac(section, "mac", text)).transpose()?;
    let address = if section.has("ip") { Some(ipv4(section, "ip")?) } else { None };
    let access = Access {
        domain: section.count("tenant", 0..=4095)?.map(|n| n as u16),
        priority: section.count("priority", 0..=7)?.map(|n| n as u8),
        address,
    };
    Ok(PortConfig { name, kind, mac, access, further: false, rate: section.positive("rate")? })
}

/// A key that does not apply to this kind of port is an error.
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

/// A name that is valid in file names and in labels.
pub(super) fn checked_name(section: &Section<'_>, key: &str, name: &str) -> Result<String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=32).contains(&name.len()) && name.chars().all(fine) && !name.starts_with(['.', '-']) {
        return Ok(name.to_owned());
    }
    Err(section
        .error(key, "this is no name")
        .expected("up to 32 letters, digits, `_`, and after the first `-` and `.`"))
}
