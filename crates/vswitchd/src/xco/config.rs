//! The file of XCo's controller, in TOML like that of a switch; every error has its line.

use super::super::config::checks::{Device, Listener, Mac, Name, Namespace, SocketPath, Word};
use super::super::config::{LogFormat, default_control, key_of, text_of};
use super::topology::{self, TopologyKeys};
use sluicenet_proto::rng::hash_words;
use sluicenet_proto::time::Duration;
use sluicenet_proto::xco::controller::{ControllerConfig, Peer, PolicyConfig, Weights};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::Topology;
use sluicenet_proto::xco::{Limits, Node, WEIGHT_MAX};
use sluicenet_scenario::setting::{Kind, Section, Settings, Spec};
use sluicenet_scenario::tree::Document;
use sluicenet_scenario::units::POSITIVE_TIME;
use sluicenet_scenario::{HOST_MAX, Result, XCO_LEASE, XCO_SLICE, XcoKind, settings, tables};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub(crate) static ROOT: Spec = tables! {
    /// XCo's controller.
    ""
    xco: Kind::Table(XcoKeys::SPEC),
    topology: Kind::Table(TopologyKeys::SPEC),
    host: Kind::Tables(&[HostKeys::SPEC]),
};

settings! {
    /// the controller itself
    pub(crate) struct XcoKeys in "xco" (s) {
        /// its name; default the file's name without its extension
        name: Option<Name>,
        /// its control socket; default NAME.sock in /run/sluicenet or in the user's run folder
        control: Option<SocketPath>,
        /// the device at which it speaks to coordinators
        device: Device,
        /// its namespace, by name or path; default the controller's own
        netns: Option<Namespace>,
        /// its address, for which the network must bring frames to the device; default that of the device
        mac: Option<Mac>,
        /// timeslice: one destination for each host in a timeslice; rate: a rate for each flow; hybrid: timeslices with
        /// rates, for hosts whose links are faster than others
        kind: XcoKind = XcoKind::Timeslice,
        /// a timeslice; with kind = "rate" the time between two changes of rates
        slice: Duration [XCO_SLICE] = Duration::from_ms(2),
        /// shortest time that a slice runs before its host is pre-empted for another destination; default a quarter of the
        /// slice
        min_run: Duration [POSITIVE_TIME] = Duration(slice.0 / 4),
        /// whether only large flows through congested links are coordinated
        on_demand: bool = false,
        /// silence of the controller after which hosts let all frames pass, and of a host after which it gets no more slices;
        /// the second controller takes over after half of it
        lease: Duration [XCO_LEASE] = Duration::from_ms(100),
        /// the priority of its messages; 0: they have no 802.1Q tag
        priority: u8 [0..=7] = 7,
        /// the address of the other controller; default there is none
        peer: Option<Mac>,
        /// whether it is the second controller, which waits longer at its start
        standby: bool = false,
        /// the file of the key shared with the other controller: 64 hexadecimal digits
        key: Option<Word>,
        /// the user that it becomes once its device is open, if started as root; default root without capabilities
        user: Option<Word>,
        /// where Prometheus fetches metrics: a port of the loopback address, or ADDRESS:PORT; default nowhere
        metrics: Option<Listener>,
        /// format of the log on stderr, one line for each event; default text
        log: LogFormat = LogFormat::Text,
        /// flows with longer timeslices, or higher rates, than others
        let weight as (Kind::Tables(&[WeightKeys::SPEC])),
    }
}

settings! {
    /// the weight of flows
    pub(crate) struct WeightKeys in "xco.weight" (s) {
        /// the host that sends
        host: Option<u32> [0..=HOST_MAX],
        /// several hosts that send: those of a tenant
        hosts: Vec<u32> [0..=HOST_MAX] = Vec::new(),
        /// the host that receives; default all without an entry of their own
        to: Option<u32> [0..=HOST_MAX],
        /// length of its timeslices, or height of its rates, relative to a flow without an entry
        weight: u8 [1..=WEIGHT_MAX],
    }
}

settings! {
    /// a host that may join; without any of these tables, the first address that asks for a host gets it
    pub(crate) struct HostKeys in "host" (s) {
        /// its number in the topology
        host: u32 [0..=HOST_MAX],
        /// the address of its coordinator: that of its uplink
        mac: Mac,
    }
}

/// The settings that all programs of XCo have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    pub file: PathBuf,
    pub name: String,
    pub control: PathBuf,
    pub device: String,
    pub netns: Option<String>,
    pub mac: Option<MacAddress>,
    pub priority: u8,
    pub user: Option<String>,
    pub metrics: Option<SocketAddr>,
}

/// The settings in the file of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) common: Common,
    pub(crate) kind: XcoKind,
    pub(crate) standby: bool,
    /// The format of the log.
    pub log: LogFormat,
    pub(crate) topology: Topology,
    /// Its tokens' seed is not in the file.
    pub(crate) controller: ControllerConfig,
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

    /// Hosts and links of the network.
    pub fn size(&self) -> (u32, usize) {
        (self.topology.nodes(), self.topology.links() / 2)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        let doc = Document::parse(&path.display().to_string(), text)?;
        let root = Section::root(&doc, &ROOT)?;
        let s = root.section("xco")?;
        let keys = XcoKeys::read(&s)?;
        let name = match keys.name {
            Some(Name(name)) => name,
            None => path.file_stem().map_or("xco".into(), |s| s.to_string_lossy().into_owned()),
        };
        let topology = topology::read(&root)?;
        let hosts = topology.nodes();
        let capacity = |host: Node| topology.capacity(topology.first_link(host, host));
        let fastest = (0..hosts).map(capacity).max();
        if keys.kind == XcoKind::Timeslice && fastest > topology.capacities().first().copied() {
            let error =
                s.error("kind", "a host sends at the rate of its link in its timeslice, and another link is slower");
            return Err(error.hint("kind = \"hybrid\": then timeslices have rates"));
        }
        if keys.kind == XcoKind::Rate && s.has("min_run") {
            return Err(s.error("min_run", "rates have no slices that could be pre-empted"));
        }
        let weights = weights(&s, hosts)?;
        let slices =
            SliceConfig { min_run: keys.min_run, rates: keys.kind == XcoKind::Hybrid, ..SliceConfig::new(keys.slice) };
        let policy = match keys.kind {
            XcoKind::Rate => PolicyConfig::Rates(keys.slice),
            XcoKind::Timeslice | XcoKind::Hybrid => PolicyConfig::Slices(slices),
        };
        let longest = policy.longest(&weights);
        if keys.lease.0 / 2 <= longest.0 {
            let message = format!("half a lease is not longer than the longest slice, {} ms", longest.as_us() / 1000);
            let error = s.error("lease", message);
            return Err(error.hint("a standby takes over after half a lease, when all slices must be over"));
        }
        let peer = peer(&s, path, (&keys.peer, keys.standby, &keys.key))?;
        let nodes = nodes(&root, hosts)?;
        Ok(Config {
            common: Common {
                file: path.to_owned(),
                control: keys.control.map_or_else(|| default_control(&name), |path| PathBuf::from(path.0)),
                name,
                device: keys.device.0,
                netns: keys.netns.map(|netns| netns.0),
                mac: keys.mac.map(|mac| MacAddress(mac.0)),
                priority: keys.priority,
                user: keys.user.map(|user| user.0),
                metrics: keys.metrics.map(|listener| listener.0),
            },
            kind: keys.kind,
            standby: keys.standby,
            log: keys.log,
            controller: ControllerConfig {
                policy,
                limits: Limits::of_nodes(hosts as usize),
                lease: keys.lease,
                on_demand: keys.on_demand,
                weights,
                nodes,
                peer,
                hierarchy: None,
                seed: 0,
            },
            topology,
        })
    }

    /// Everything but the weights, which alone a reload may change.
    pub(crate) fn fixed(&self) -> String {
        let Config { kind, standby, log, topology, controller, .. } = self;
        let controller = ControllerConfig { weights: Weights::default(), ..controller.clone() };
        format!("{kind:?} {standby} {log:?} {controller:?} {topology:?}")
    }
}

fn weights(s: &Section<'_>, hosts: u32) -> Result<Weights> {
    let mut weights = Weights::default();
    for t in s.tables("weight")? {
        let WeightKeys { host, hosts: several, to, weight } = WeightKeys::read(&t)?;
        let key = if host.is_some() { "host" } else { "hosts" };
        if host.is_some() != several.is_empty() {
            return Err(t.error_here("a weight is of a `host` or of several `hosts`"));
        }
        for host in host.into_iter().chain(several) {
            for (key, number) in [(key, Some(host)), ("to", to)] {
                if number.is_some_and(|number| number >= hosts) {
                    return Err(t.error(key, format!("there are hosts 0 to {}", hosts - 1)));
                }
            }
            let before = match to {
                Some(to) => weights.flows.insert((host, to), weight),
                None => weights.nodes.insert(host, weight),
            };
            if before.is_some() {
                return Err(t.error(key, "this flow has a weight already"));
            }
        }
    }
    Ok(weights)
}

fn peer(
    s: &Section<'_>,
    path: &Path,
    (peer, standby, key): (&Option<Mac>, bool, &Option<Word>),
) -> Result<Option<Peer>> {
    match (peer, key) {
        (Some(mac), Some(key)) => {
            let key = key_of(s, "key", &key.0, path)?;
            let words = key.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()).map(u64::from_be_bytes);
            let words: Vec<u64> = words.collect();
            Ok(Some(Peer { mac: MacAddress(mac.0), secret: hash_words(&words) as u32 | 1 }))
        }
        (Some(_), None) => Err(s.missing("key").hint("the two controllers share a key")),
        (None, Some(_)) => Err(s.error("key", "a key is shared with a `peer`, and there is none")),
        (None, None) if standby => Err(s.missing("peer").hint("a standby needs the address of the other controller")),
        (None, None) => Ok(None),
    }
}

/// The addresses of all hosts, or of none.
fn nodes(root: &Section<'_>, hosts: u32) -> Result<Vec<MacAddress>> {
    let mut known: BTreeMap<Node, MacAddress> = BTreeMap::new();
    for t in root.tables("host")? {
        let HostKeys { host, mac } = HostKeys::read(&t)?;
        let mac = MacAddress(mac.0);
        if host >= hosts {
            return Err(t.error("host", format!("there are hosts 0 to {}", hosts - 1)));
        }
        if known.values().any(|&other| other == mac) || known.insert(host, mac).is_some() {
            return Err(t.error_here("this host or this address is here twice"));
        }
    }
    if !known.is_empty() && known.len() < hosts as usize {
        let missing = (0..hosts).find(|host| !known.contains_key(host)).unwrap_or_default();
        let error = root.error("host", format!("host {missing} has no address, and others have"));
        return Err(error.hint("list all hosts or none"));
    }
    Ok(known.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [xco]
        device = "eth0"
        [[xco.weight]]
        host = 0
        to = 1
        weight = 4
        [topology]
        kind = "xgft"
        m = [2, 3]
        link_rate = "1 Gb/s"
    "#;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("c1.toml"), text)
    }

    #[test]
    fn a_file_is_read() {
        let config = parse(FILE).unwrap();
        assert_eq!((config.common.name.as_str(), config.size()), ("c1", (6, 9)));
        assert_eq!(config.topology.capacity(config.topology.first_link(5, 0)), 1_000_000);
        // Hosts 0 and 1 meet in their rack, hosts 0 and 2 at the root.
        assert_eq!((config.topology.level(0, 1), config.topology.level(0, 2)), (0, 1));
        let links = "kind = \"links\"\n hosts = 3\n switches = 2\n link_rate = \"1 Gb/s\"\n".to_owned()
            + &[(0, 3), (1, 3), (2, 4), (3, 4)]
                .map(|(a, b)| format!("[[topology.link]]\n a = {a}\n b = {b}\n"))
                .concat();
        let (head, _) = FILE.split_once("kind = \"xgft\"").unwrap();
        assert_eq!(parse(&format!("{head}{links}")).unwrap().size(), (3, 4));
    }

    #[test]
    fn a_reload_may_change_weights_alone() {
        let fixed = |from: &str, to: &str| parse(&FILE.replacen(from, to, 1)).unwrap().fixed();
        let before = parse(FILE).unwrap().fixed();
        assert_eq!(fixed("weight = 4", "weight = 5"), before);
        for (from, to) in
            [("[xco]", "[xco]\n log = \"json\""), ("m = [2, 3]", "m = [2, 4]"), ("[xco]", "[xco]\n slice = \"3 ms\"")]
        {
            assert_ne!(fixed(from, to), before, "{to}");
        }
    }

    #[test]
    fn each_error_says_what_is_wrong() {
        for (from, to, why) in [
            ("to = 1", "to = 6", "hosts 0 to 5"),
            ("weight = 4", "weight = 17", "16"),
            ("m = [2, 3]", "m = [2, 3]\n w = [1]", "as many levels"),
            ("m = [2, 3]", "m = [2, 3]\n hosts = 6", "means nothing"),
            ("m = [2, 3]", "m = [1]", "too few hosts"),
            ("link_rate = \"1 Gb/s\"", "", "link_rate"),
            ("link_rate", "[[topology.level]]\n level = 3\n rate = \"1 Gb/s\"\n link_rate", "link_rate"),
            ("device", "standby = true\n device", "peer"),
            ("device", "peer = \"02:00:00:00:00:09\"\n device", "key"),
            ("device", "lease = \"16 ms\"\n device", "half a lease"),
            ("device", "kind = \"rate\"\n min_run = \"1 ms\"\n device", "pre-empted"),
            ("[topology]", "[[host]]\n host = 0\n mac = \"02:00:00:00:00:01\"\n [topology]", "list all hosts or none"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
        let uneven = format!("{FILE} [[topology.level]]\n level = 2\n rate = \"100 Mb/s\"");
        assert!(parse(&uneven).unwrap_err().to_string().contains("hybrid"));
        assert!(parse(&uneven.replace("device", "kind = \"hybrid\"\n device")).is_ok());
    }
}
