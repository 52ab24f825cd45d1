//! The status of a switch.

use super::bump::status::BumpStatus;
use super::config::{Config, PortConfig, UPLINK_NAME};
use super::xco::status::XcoStatus;
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::engine::{Access, Engine, PortReport};
use sluicenet_node::vale::Counters;
use sluicenet_proto::guard::{Guard, Prefix};
use sluicenet_proto::loss::{DropReason, Drops};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::time::Duration;
use std::collections::BTreeMap;

/// A number with the word for one thing or for several: "1 port", "2 ports".
pub fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// The status of a switch, as JSON and on the screen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The switch's name.
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The process id of the switch.
    pub pid: u32,
    /// Seconds since the start of the switch.
    pub uptime_s: f64,
    /// The most frames of each queue.
    pub slots: u32,
    /// Lossless priorities.
    pub lossless: Vec<u8>,
    /// Times the switch went to sleep because it had no work.
    pub sleeps: u64,
    /// The account of all frames.
    pub ledger: Ledger,
    /// The ports.
    pub ports: Vec<PortStatus>,
    /// The state of a bump; none of a switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bump: Option<Box<BumpStatus>>,
    /// The state of a controller of XCo, or of its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xco: Option<Box<XcoStatus>>,
    /// System calls that the sandbox refused, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_calls: BTreeMap<String, u64>,
    /// The counters of removed ports; with those of all other ports they add up to the ledger.
    #[serde(default)]
    pub gone: Gone,
    /// The process that opens devices for the switch, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helper: Option<HelperStatus>,
}

/// The helper of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperStatus {
    /// Its process id, if the switch has started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How it ended, if it has: no device is opened any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// The counters of ports that were removed, or that have no endpoint any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Gone {
    /// Frames accepted from these ports.
    pub accepted: u64,
    /// Frames delivered to these ports.
    pub delivered: u64,
    /// Frames from these ports that were refused on arrival, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Frames for these ports that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Status {
    /// Frames dropped at all ports so far, by direction ("in" from ports, "out" to ports) and reason.
    pub fn drops(&self) -> BTreeMap<(&'static str, &str), u64> {
        let ports = self.ports.iter().map(|p| (&p.refused, &p.dropped));
        let mut all = BTreeMap::new();
        for (refused, dropped) in ports.chain([(&self.gone.refused, &self.gone.dropped)]) {
            for (direction, reasons) in [("in", refused), ("out", dropped)] {
                for (reason, frames) in reasons {
                    *all.entry((direction, reason.as_str())).or_default() += frames;
                }
            }
        }
        all
    }
}

/// The account of frames at one moment: accepted = delivered + dropped + queued.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Frames accepted; a flooded frame counts once for each port.
    pub accepted: u64,
    /// Frames that ports passed to their endpoints.
    pub delivered: u64,
    /// Frames dropped by name.
    pub dropped: u64,
    /// Frames that wait, in the switch or inside a port.
    pub queued: u64,
}

/// The status of a port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortStatus {
    /// The port's name.
    pub name: String,
    /// The port's kind.
    pub kind: String,
    /// The port's number, while it is in service.
    pub number: Option<usize>,
    /// The reason for absence, if the port should be in service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absent>,
    /// The first MAC address of the port's endpoint, if configured.
    pub mac: Option<String>,
    /// The first IP address or network from which the port may send, if configured.
    pub ip: Option<String>,
    /// The addresses and services of the port's endpoint, if they are restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardStatus>,
    /// The broadcast domain of the port, if configured.
    pub tenant: Option<u16>,
    /// The priority of all frames from the port, if configured.
    pub priority: Option<u8>,
    /// The limit of the rate at which the port's endpoint receives frames, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bps: Option<u64>,
    /// The limit of the rate at which the port's endpoint sends frames, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_rate_bps: Option<u64>,
    /// Whether the port has frames and has accepted none for the watchdog's detection time.
    #[serde(default)]
    pub stuck_now: bool,
    /// Whether the watchdog has isolated the port.
    pub isolated: bool,
    /// Frames accepted from the port; a flooded frame counts once for each destination port.
    pub accepted: u64,
    /// Frames delivered to the port.
    pub delivered: u64,
    /// Bytes of frames from the port, each counted once.
    pub bytes_from: u64,
    /// Bytes of frames delivered to the port.
    pub bytes_to: u64,
    /// Times the port had to wait because its input queue was full.
    pub held_back: u64,
    /// Times the watchdog found the port stuck.
    pub stuck: u64,
    /// Times the watchdog isolated the port.
    pub isolations: u64,
    /// Frames from the port that were refused on arrival, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Frames for the port that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// The port's own counters.
    pub counters: BTreeMap<String, u64>,
    /// Frames that wait for the port, by priority.
    pub output: [u32; 8],
    /// Delivered frames that wait inside the port for its endpoint: for a socket, a device, the neighbour.
    #[serde(default)]
    pub inside: u32,
    /// Frames from the port that wait for a full output, by priority.
    pub input: [u32; 8],
    /// Frames in the port's buffers that the switch holds.
    pub lent: u32,
    /// The ports whose full outputs the port's frames wait for.
    pub waits_for: Vec<String>,
}

/// The addresses that an endpoint may use, and the services that it may offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardStatus {
    /// All its MAC addresses; without any, it may use every one.
    pub macs: Vec<String>,
    /// All its IP addresses and networks, if they are restricted.
    pub ips: Option<Vec<String>>,
    /// Whether it may send router advertisements and redirects.
    pub router: bool,
    /// Whether it may answer as a DHCP server.
    pub dhcp_server: bool,
}

impl GuardStatus {
    fn of(guard: &Guard) -> GuardStatus {
        GuardStatus {
            macs: guard.macs.iter().map(|mac| mac_text(mac.0)).collect(),
            ips: guard.addresses.as_ref().map(|list| list.iter().map(Prefix::to_string).collect()),
            router: guard.router,
            dhcp_server: guard.dhcp_server,
        }
    }
}

/// A MAC address as text.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// The reason why a port is absent, and the time of the next attempt to open it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absent {
    /// The reason.
    pub reason: String,
    /// The time of the next attempt.
    pub again: Again,
}

/// The time of the next attempt to open an absent port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Again {
    /// Every second.
    EverySecond,
    /// At the next start of the switch: the running switch has dropped the necessary privileges.
    NextStart,
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let again = match self.again {
            Again::EverySecond => "tried again every second",
            Again::NextStart => "tried again when the switch is started again",
        };
        write!(f, "{} ({again})", self.reason)
    }
}

/// The engine's state at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    ledger: Ledger,
    sleeps: u64,
    ports: Vec<Option<PortReport>>,
    gone: Counters,
}

impl Snapshot {
    /// The state of an engine between two rounds.
    pub fn of(engine: &Engine) -> Snapshot {
        let (accepted, delivered, dropped) = engine.ledger();
        Snapshot {
            ledger: Ledger { accepted, delivered, dropped, queued: engine.queued() + engine.inside() },
            sleeps: engine.sleeps(),
            // A removed port has no name: a new port may use it.
            ports: (0..engine.port_count()).map(|k| engine.report(k).filter(|r| r.present)).collect(),
            gone: engine.gone(),
        }
    }

    /// Adds the configuration of the ports.
    pub fn status(&self, config: &Config, ports: &[PortConfig], uptime_s: f64) -> Status {
        // The first of a name.
        let reports =
            self.ports.iter().enumerate().rev().filter_map(|(k, r)| r.as_ref().map(|r| (r.name.as_str(), (k, r))));
        let reports: BTreeMap<&str, (usize, &PortReport)> = reports.collect();
        let at = |name: &str| reports.get(name).copied();
        Status {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s,
            slots: config.vale.slots,
            lossless: config.vale.lossless.iter().collect(),
            sleeps: self.sleeps,
            ledger: self.ledger,
            ports: config
                .uplink
                .iter()
                .map(|uplink| {
                    let own = (UPLINK_NAME, "uplink", Some(uplink.mac), &Access::default());
                    self.port(own, at(UPLINK_NAME))
                })
                .chain(ports.iter().map(|p| self.port((&p.name, p.kind.name(), p.mac, &p.access), at(&p.name))))
                .collect(),
            bump: None,
            xco: None,
            refused_calls: BTreeMap::new(),
            gone: Gone {
                accepted: self.gone.accepted,
                delivered: self.gone.delivered,
                refused: by_name(&self.gone.refused),
                dropped: by_name(&self.gone.dropped),
            },
            helper: None,
        }
    }

    fn port(
        &self,
        (name, kind, mac, access): (&str, &str, Option<[u8; 6]>, &Access),
        found: Option<(usize, &PortReport)>,
    ) -> PortStatus {
        let report = found.map(|(_, r)| r.clone()).unwrap_or_default();
        let other = |k: usize| Some(self.ports.get(k)?.as_ref()?.name.clone());
        let waits_for = report.waits_for.iter().filter_map(other).collect();
        PortStatus {
            name: name.into(),
            kind: kind.into(),
            number: found.map(|(k, _)| k),
            absent: None,
            mac: mac.map(mac_text),
            ip: access.guard.iter().flat_map(|guard| guard.addresses.iter().flatten()).next().map(Prefix::to_string),
            guard: access.guard.as_deref().map(GuardStatus::of),
            tenant: access.domain,
            priority: access.priority,
            rate_bps: report.rate.map(|rate| rate.as_bps()),
            send_rate_bps: report.send_rate.map(|rate| rate.as_bps()),
            stuck_now: report.stuck,
            isolated: report.isolated,
            accepted: report.counters.accepted,
            delivered: report.counters.delivered,
            bytes_from: report.bytes_from,
            bytes_to: report.bytes_to,
            held_back: report.counters.held_back,
            stuck: report.counters.stuck,
            isolations: report.counters.isolated,
            refused: by_name(&report.counters.refused),
            dropped: by_name(&report.counters.dropped),
            counters: report.own.iter().map(|&(name, n)| (name.to_owned(), n)).collect(),
            output: report.output,
            inside: report.inside,
            input: report.input,
            lent: report.lent,
            waits_for,
        }
    }
}

/// Counters of frames that the kernel lost between an endpoint and the switch. Counters of a tenant's device and of the stack
/// are left out, because they also count other events.
pub const LOST_BESIDE: [&str; 7] = [
    "edge_packet_socket",
    "edge_qdisc",
    "edge_sockets",
    "edge_reassembly",
    "edge_address",
    "edge_tap",
    "edge_socket_drops",
];

/// The most entries of the forwarding table in an answer.
const MACS_MAX: usize = 1 << 16;

/// The forwarding table of a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacTable {
    /// The entries, by tenant and address; the first 65,536 of them.
    pub entries: Vec<MacEntry>,
    /// The number of all entries.
    pub total: usize,
}

/// An entry of the forwarding table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MacEntry {
    /// The address.
    pub mac: String,
    /// The tenant, or the VLAN of its frames.
    pub tenant: u16,
    /// The port; none if nothing is attached there.
    pub port: Option<String>,
    /// Whether the entry is learned, and ages. Otherwise the file gives the address to a port.
    pub learned: bool,
    /// Seconds since the last frame of a learned station.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_s: Option<u64>,
}

impl MacTable {
    /// The table of an engine.
    pub(crate) fn of(engine: &Engine) -> MacTable {
        let mut stations: Vec<_> = engine.stations().collect();
        let total = stations.len();
        // Bytes of an address are in the order of the wire.
        let key = |station: Station| (station.domain(), station.mac());
        stations.sort_unstable_by_key(|(station, ..)| key(*station));
        stations.truncate(MACS_MAX);
        let names: Vec<Option<String>> =
            (0..engine.port_count()).map(|k| Some(engine.port_name(k)?.to_owned())).collect();
        let entry = |(station, port, age): (Station, u16, Option<Duration>)| MacEntry {
            mac: mac_text(station.mac()),
            tenant: station.domain(),
            port: names.get(usize::from(port)).cloned().flatten(),
            learned: age.is_some(),
            age_s: age.map(|age| age.0 / Duration::from_secs(1).0),
        };
        MacTable { entries: stations.into_iter().map(entry).collect(), total }
    }
}

impl PortStatus {
    /// Whether the port is in use; a guest's port is in use while a virtual machine monitor is connected.
    pub fn is_present(&self) -> bool {
        self.number.is_some() && self.counters.get("connected") != Some(&0)
    }
}

pub(crate) fn by_name(drops: &Drops) -> BTreeMap<String, u64> {
    let named = DropReason::ALL.iter().map(|&r| (r.name().to_owned(), drops.frames(r)));
    named.filter(|(_, frames)| *frames > 0).collect()
}
