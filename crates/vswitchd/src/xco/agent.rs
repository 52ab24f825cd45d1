//! The agent of a host without our switch: its file, and how its queues are opened.

use super::config::Common;
use super::daemon::{Daemon, Program};
use super::status::XcoStatus;
use crate::config::checks::{Addresses, Device, Listener, Mac, Name, Namespace, SocketPath, Word};
use crate::config::{LogFormat, default_control, text_of};
use crate::opened::PACKET_BUFFERS;
use crate::status::Status;
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::controller::unguessable;
use sluicenet_dataplane::kernel::classes::{Classes, DESTINATIONS_MAX};
use sluicenet_dataplane::kernel::departures::Departures;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::xco::{AgentConfig, AgentLoop, Paced, Valves};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::coordinator::CoordinatorConfig;
use sluicenet_proto::xco::{Node, SMALL_PERCENT};
use sluicenet_scenario::setting::{Kind, Or, Section, Settings, Spec};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::units::{BUFFER, LINK_RATE, POSITIVE_TIME};
use sluicenet_scenario::{Bytes, HOST_MAX, NoHysteresis, Result, XCO_LEASE, XCO_SMALL, choices, settings, tables};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{ENTRIES_MAX, ETHERTYPE};
use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Bytes that may wait for a destination: those of some twenty sockets with send buffers of the usual size.
const QUEUE: Bytes = Bytes(4 << 20);
/// The time whose bytes may leave at once: the kernel's timers are that coarse.
const BURST: Duration = Duration::from_us(50);
/// How often the queues are looked at: a look is a system call for all of them.
const POLL: Duration = Duration::from_us(500);
/// A look takes some tens of microseconds, and a slice at least a millisecond.
const POLLS: RangeInclusive<Duration> = Duration::from_us(50)..=Duration::from_ms(10);

choices! {
    /// The kind of an agent's queues.
    pub enum Queues {
        /// Classes of htb with token buckets, which open and shut: for timeslices and rates.
        Htb = "htb",
        /// Departure times for `sch_fq`: for rates.
        Edt = "edt",
    }
}

pub(crate) static ROOT: Spec = tables! {
    /// XCo's agent.
    ""
    xco: Kind::Table(AgentKeys::SPEC),
    host: Kind::Tables(&[HostKeys::SPEC]),
};

settings! {
    /// the agent itself
    pub(crate) struct AgentKeys in "xco" (s) {
        /// its name; default the file's name without its extension
        name: Option<Name>,
        /// its control socket; default NAME.sock in /run/sluicenet or in the user's run folder
        control: Option<SocketPath>,
        /// the device whose frames wait; the agent replaces its queueing discipline
        device: Device,
        /// its namespace, by name or path; default the agent's own
        netns: Option<Namespace>,
        /// the speed of its link
        rate: Rate [LINK_RATE],
        /// the number of this host in the controller's topology
        host: u32 [0..=HOST_MAX],
        /// the controller's address
        controller: Mac,
        /// the address of the second controller; default none
        standby: Option<Mac>,
        /// silence of the controller after which all frames pass, until the controller says another one
        lease: Duration [XCO_LEASE] = Duration::from_ms(100),
        /// time for which no frame waits before a slice is given back; off: never (no work conservation); default `poll`
        hysteresis: Option<Or<Duration, NoHysteresis>> [POSITIVE_TIME],
        /// the rate up to which a flow sends without a slice; default 4 % of the link
        small_flow: Rate [XCO_SMALL] = Rate(rate.as_bps() * SMALL_PERCENT / 100),
        /// the priority of messages; 0: they have no 802.1Q tag
        priority: u8 [0..=7] = 7,
        /// htb: queues that open and shut (htb, tbf); edt: departure times for the kernel's fair queue (an eBPF program and
        /// sch_fq), for a controller of kind = "rate"
        queues: Queues = Queues::Htb,
        /// bytes that may wait for a destination; frames beyond them are dropped
        queue: Bytes [BUFFER] = QUEUE,
        /// the time whose bytes may leave at once, at least one frame; a slice ends earlier by this time and that of one frame more
        burst: Duration = BURST,
        /// how often the agent looks at what waits
        poll: Duration [POLLS] = POLL,
        /// the user that it becomes once its device is open, if started as root; default root without capabilities
        user: Option<Word>,
        /// where Prometheus fetches metrics: a port of the loopback address, or ADDRESS:PORT; default nowhere
        metrics: Option<Listener>,
        /// format of the log on stderr, one line for each event; default text
        log: LogFormat = LogFormat::Text,
    }
}

settings! {
    /// another host, whose frames wait
    pub(crate) struct HostKeys in "host" (s) {
        /// its number in the controller's topology
        host: u32 [0..=HOST_MAX],
        /// its IPv4 addresses
        addresses: Addresses,
    }
}

/// The settings in the file of an agent.
#[derive(Clone, Debug)]
pub struct AgentFile {
    common: Common,
    rate: Rate,
    queues: Queues,
    queue: u32,
    poll: Duration,
    coordinator: CoordinatorConfig,
    hosts: BTreeMap<Node, Vec<Ipv4Addr>>,
    /// The format of the log.
    pub log: LogFormat,
}

impl AgentFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The first error in the file, with its location.
    pub fn load(path: &Path) -> Result<AgentFile> {
        let text = text_of(path)?;
        AgentFile::parse(path, &text)
    }

    /// Destinations.
    pub fn destinations(&self) -> usize {
        self.hosts.len()
    }

    fn parse(path: &Path, text: &str) -> Result<AgentFile> {
        let doc = Document::parse(&path.display().to_string(), text)?;
        let root = Section::root(&doc, &ROOT)?;
        let s = root.section("xco")?;
        let keys = AgentKeys::read(&s)?;
        let name = match keys.name {
            Some(Name(name)) => name,
            None => path.file_stem().map_or("agent".into(), |s| s.to_string_lossy().into_owned()),
        };
        let hosts = hosts(&root, keys.host)?;
        if hosts.is_empty() || hosts.len() > DESTINATIONS_MAX {
            let error = s.error_here(format!("an agent has 1 to {DESTINATIONS_MAX} destinations, not {}", hosts.len()));
            return Err(error.hint("tables [[host]] with host = 1 and addresses = [\"10.0.0.1\"]"));
        }
        let hysteresis = keys.hysteresis.map_or(Some(keys.poll), Or::value);
        if hysteresis.is_some_and(|time| time < keys.poll) {
            let error = s.error("hysteresis", "the agent looks at its queues less often than that");
            return Err(error.expected("at least `poll`"));
        }
        if keys.queues == Queues::Edt && keys.small_flow.as_kbps() == 0 {
            let error =
                s.error("small_flow", "a queue with departure times is never shut: flows that wait have this rate");
            return Err(error.expected("at least 1 kb/s").hint("queues = \"htb\" holds their frames"));
        }
        let controllers = [Some(keys.controller), keys.standby].into_iter().flatten().map(|mac| MacAddress(mac.0));
        Ok(AgentFile {
            common: Common {
                file: path.to_owned(),
                control: keys.control.map_or_else(|| default_control(&name), |path| PathBuf::from(path.0)),
                name,
                device: keys.device.0,
                netns: keys.netns.map(|netns| netns.0),
                mac: None,
                priority: keys.priority,
                user: keys.user.map(|user| user.0),
                metrics: keys.metrics.map(|listener| listener.0),
            },
            rate: keys.rate,
            queues: keys.queues,
            queue: u32::try_from(keys.queue.as_bytes()).unwrap_or(u32::MAX),
            poll: keys.poll,
            coordinator: CoordinatorConfig {
                node: keys.host,
                rate_kbps: keys.rate.as_kbps(),
                controllers: controllers.collect(),
                lease: keys.lease,
                hysteresis,
                small_kbps: keys.small_flow.as_kbps(),
                entries: ENTRIES_MAX,
                flows: hosts.len(),
                late: keys.burst,
                nonce: 0,
            },
            hosts,
            log: keys.log,
        })
    }
}

fn hosts(root: &Section<'_>, own: Node) -> Result<BTreeMap<Node, Vec<Ipv4Addr>>> {
    let mut hosts: BTreeMap<Node, Vec<Ipv4Addr>> = BTreeMap::new();
    for t in root.tables("host")? {
        let HostKeys { host, addresses } = HostKeys::read(&t)?;
        if host == own {
            return Err(t.error("host", "this is the host of the agent: frames to itself do not wait"));
        }
        for address in addresses.0 {
            if hosts.values().flatten().any(|&other| other == address) {
                return Err(t.error("addresses", format!("{address} is here twice")));
            }
            hosts.entry(host).or_default().push(address);
        }
    }
    Ok(hosts)
}

/// Runs an agent until the control socket or a signal stops it.
///
/// # Errors
/// The device, its queues or the control socket cannot be opened, or the device is gone.
pub fn run(config: AgentFile) -> io::Result<Status> {
    Daemon::<AgentLoop>::run(config)
}

impl Program for AgentLoop {
    type Config = AgentFile;
    const WHAT: &str = "agent";

    fn common(config: &AgentFile) -> &Common {
        &config.common
    }
    fn common_mut(config: &mut AgentFile) -> &mut Common {
        &mut config.common
    }
    fn load(path: &Path) -> Result<AgentFile> {
        AgentFile::load(path)
    }
    fn rights() -> CapabilitySet {
        // It changes the queues of its device.
        CapabilitySet::NET_ADMIN
    }
    fn open(config: &AgentFile) -> io::Result<(AgentLoop, MacAddress)> {
        let AgentFile { common, rate, queues, queue, poll, coordinator, hosts, .. } = config;
        let space = netns::Namespace::named(common.netns.as_deref())?;
        let device = PacketDevice::open_for_type(&space, &common.device, PACKET_BUFFERS, ETHERTYPE)?;
        let own = MacAddress(space.enter(|| Links::open()?.get(&common.device))??.mac);
        let addresses: Vec<Vec<Ipv4Addr>> = hosts.values().cloned().collect();
        let (device_name, small) = (&common.device, u64::from(coordinator.small_kbps) * 125);
        let (valves, longest): (Box<dyn Valves + Send>, u32) = match queues {
            Queues::Htb => {
                let classes = Classes::set_up(&space, device_name, rate.as_bps() / 8, *queue, &addresses)?;
                let longest = classes.longest();
                (Box::new(classes), longest)
            }
            Queues::Edt => {
                let burst = Paced::SMALL_BURST;
                let departures = Departures::set_up(&space, device_name, *queue, &addresses, small, burst)?;
                let longest = departures.longest();
                (Box::new(Paced::new(departures, addresses.len(), small)), longest)
            }
        };
        let settings = AgentConfig {
            coordinator: CoordinatorConfig { nonce: unguessable()?.next_u64() as u32, ..coordinator.clone() },
            nodes: hosts.keys().copied().collect(),
            own,
            priority: common.priority,
            poll: *poll,
            longest: longest.into(),
        };
        Ok((AgentLoop::new(Box::new(device), valves, settings), own))
    }
    fn remote(&mut self) -> io::Result<Remote<AgentLoop>> {
        AgentLoop::remote(self)
    }
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        AgentLoop::run(self, stop)
    }
    fn status(&self, config: &AgentFile) -> (XcoStatus, BTreeMap<String, u64>) {
        let report = self.report();
        let counters = report.device.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        (XcoStatus::of_agent(&report, config.hosts.len() as u32), counters)
    }
    fn reload(_: &Remote<AgentLoop>, old: &AgentFile, new: &AgentFile) -> std::result::Result<String, String> {
        match format!("{old:?}") == format!("{new:?}") {
            true => Ok("nothing has changed".into()),
            false => Err("an agent has the settings of its start: start it again; nothing was changed".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [xco]
        device = "eth0"
        rate = "1 Gb/s"
        host = 0
        controller = "02:00:00:00:00:01"
        [[host]]
        host = 1
        addresses = ["10.0.0.1", "10.0.0.2"]
    "#;

    #[test]
    fn a_file_is_read_and_each_error_says_what_is_wrong() {
        let parse = |text: &str| AgentFile::parse(Path::new("a1.toml"), text);
        let file = parse(FILE).unwrap();
        assert_eq!((file.common.name.as_str(), file.destinations(), file.coordinator.small_kbps), ("a1", 1, 40_000));
        for (from, to, why) in [
            ("host = 1", "host = 0", "host of the agent"),
            ("10.0.0.2", "10.0.0.1", "here twice"),
            ("10.0.0.2", "10.0.0", "no IPv4 address"),
            ("device", "hysteresis = \"50 us\"\n device", "less often"),
            ("device", "poll = \"1 us\"\n device", "poll"),
            ("rate = \"1 Gb/s\"", "", "rate"),
            ("device", "queues = \"fq\"\n device", "edt"),
            ("device", "queues = \"edt\"\n small_flow = 0\n device", "never shut"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let (head, _) = FILE.split_once("[[host]]").unwrap();
        assert!(parse(head).unwrap_err().to_string().contains("1 to 1024 destinations"));
    }
}
