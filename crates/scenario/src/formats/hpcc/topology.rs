//! Topologies of HPCC's simulator and of its descendants.

use super::dialect::{Dialect, Recognised, recognise};
use crate::formats::lines::{Line, Reader, Words};
use crate::{
    DELAY_MAX, Error, HOSTS_MAX, LINK_RATE_MIN, PORTS_MAX, Quantity, Result, SWITCH_PORTS_MAX, UnitError, Warning,
};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use std::collections::BTreeSet;

/// A link between two nodes. Several links may join the same two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpccLink {
    /// One end, a node's id.
    pub a: u32,
    /// The other.
    pub b: u32,
    /// Its rate.
    pub rate: Rate,
    /// How long light travels.
    pub delay: Duration,
    /// The chance that a packet (not a bit) is lost.
    pub packet_error_rate: f64,
    /// Where in the file.
    pub line: u32,
}

/// A network of hosts and switches: any connected graph.
#[derive(Clone, Debug, PartialEq)]
pub struct HpccTopology {
    /// Whose header the file has.
    pub dialect: Dialect,
    /// Nodes, hosts and switches alike: ids are `0..nodes`.
    pub nodes: u32,
    /// The ids of switches, ascending; all others are hosts.
    pub switches: Vec<u32>,
    /// Those of them that are NVSwitches, ascending.
    pub nvswitches: Vec<u32>,
    /// The links, in the order of the file.
    pub links: Vec<HpccLink>,
}

impl HpccTopology {
    /// How many hosts.
    pub fn hosts(&self) -> u32 {
        self.nodes - self.switches.len() as u32
    }

    /// The host's number, counted in the order of ids; none for a switch or an unknown id.
    pub fn host_of(&self, node: u32) -> Option<u32> {
        match self.switches.binary_search(&node) {
            Err(before) if node < self.nodes => Some(node - before as u32),
            _ => None,
        }
    }

    /// The switch's number, counted in the order of ids; none for a host or an unknown id.
    pub fn switch_of(&self, node: u32) -> Option<u32> {
        self.switches.binary_search(&node).ok().map(|i| i as u32)
    }
}

/// The numbers of a header.
struct Header<'a> {
    /// Where it begins.
    line: Line<'a>,
    nodes: u64,
    switches: u64,
    links: u64,
    /// Switches next to hosts.
    tors: Option<u64>,
    /// Rates of the links of servers, and of those between switches.
    rates: Option<[Rate; 2]>,
    /// The switches that come first in the list.
    nvswitches: u64,
    gpus_per_server: Option<u64>,
}

/// Reads a topology: a header in one of the dialects, the switches' ids, then `src dst rate delay error` for each link.
///
/// # Errors
/// A header that fits no dialect, that contradicts the rest or is beyond the limits, unknown or doubled ids, self
/// links, a file cut short, a network that falls apart.
pub fn parse_hpcc_topology(file: &str, bytes: &[u8]) -> Result<(HpccTopology, Vec<Warning>)> {
    let recognised = recognise(file, bytes)?;
    let dialect = recognised.dialect;
    let mut words = Words::new(file, bytes);
    let topology = read(&mut words, &recognised).map_err(|e| dialect.in_error(e));
    words.reader.ended(topology)
}

fn read(words: &mut Words<'_>, recognised: &Recognised) -> Result<HpccTopology> {
    let file = words.reader.file;
    let header = read_header(words, recognised)?;
    let dialect = recognised.dialect;
    let node_max = header.nodes.saturating_sub(1);
    // Vectors grow as the file is read: a header of a short file allocates nothing.
    let mut switches: Vec<u32> = Vec::new();
    let mut seen = BTreeSet::new();
    for i in 0..header.switches {
        let (line, word, id) = words.number(&format!("the id of switch {i} of {}", header.switches), node_max)?;
        if !seen.insert(id as u32) {
            return Err(words.reader.at(line, word, format!("switch {id} is listed twice")));
        }
        switches.push(id as u32);
    }
    let mut nvswitches = switches[..header.nvswitches as usize].to_vec();
    nvswitches.sort_unstable();
    switches.sort_unstable();
    let mut links: Vec<HpccLink> = Vec::new();
    let mut ports: Vec<u32> = Vec::new();
    for i in 0..header.links {
        let ((line, word), link) = read_link(words, i, &header, node_max)?;
        for node in [link.a, link.b] {
            let of_node = node as usize;
            if ports.len() <= of_node {
                ports.resize(of_node + 1, 0);
            }
            ports[of_node] += 1;
            if ports[of_node] > SWITCH_PORTS_MAX {
                let message = format!("node {node} has more than {SWITCH_PORTS_MAX} links");
                return Err(words.reader.at(line, word, message));
            }
        }
        links.push(link);
    }
    if let Some((line, _)) = words.next()? {
        let message = format!(
            "the header says {} links: from here on the file is not read, as by {}'s simulator",
            header.links,
            dialect.name()
        );
        words.reader.warn(line.number, message);
    }
    let topology = HpccTopology { dialect, nodes: header.nodes as u32, switches, nvswitches, links };
    check_connected(file, &topology)?;
    check_servers(file, &topology, &header)?;
    warn_of_header(&mut words.reader, &topology, &header);
    Ok(topology)
}

/// Reads the header; refuses one beyond the limits, or one that the rest of the file contradicts.
fn read_header<'a>(words: &mut Words<'a>, recognised: &Recognised) -> Result<Header<'a>> {
    let nodes_max = 2 * u64::from(HOSTS_MAX);
    let (header_line, _, nodes) = words.number("the number of nodes", nodes_max)?;
    let mut header = Header {
        line: header_line,
        nodes,
        switches: 0,
        links: 0,
        tors: None,
        rates: None,
        nvswitches: 0,
        gpus_per_server: None,
    };
    if recognised.dialect == Dialect::SimAi {
        let (line, word, gpus) = words.number("the number of GPUs in a server", u64::from(HOSTS_MAX))?;
        if gpus == 0 {
            return Err(words.reader.at(line, word, "a server without GPUs").expected("at least 1"));
        }
        header.gpus_per_server = Some(gpus);
        header.nvswitches = words.number("the number of NVSwitches", nodes)?.2;
    }
    let (line, word, switches) = words.number("the number of switches", nodes - header.nvswitches)?;
    header.switches = header.nvswitches + switches;
    let at_switches = |words: &Words<'_>, message: String| Err(words.reader.at(line, word, message));
    let hosts = nodes - header.switches;
    if hosts > u64::from(HOSTS_MAX) {
        return at_switches(words, format!("{hosts} hosts are too many: at most {HOSTS_MAX}"));
    }
    if hosts == 0 {
        return at_switches(words, format!("{nodes} nodes of which {} are switches leave no host", header.switches));
    }
    if let Err(message) = recognised.check(header.switches) {
        return at_switches(words, message);
    }
    if matches!(recognised.dialect, Dialect::PowerTcp | Dialect::Reverie) {
        header.tors = Some(words.number("the number of ToR switches", switches)?.2);
    }
    header.links = words.number("the number of links", u64::from(PORTS_MAX) / 2)?.2;
    match recognised.dialect {
        Dialect::Hpcc | Dialect::PowerTcp => {}
        Dialect::Reverie => {
            let mut rate = |what: &str| -> Result<Rate> {
                let at = words.need(what)?;
                read_rate(&words.reader, at)
            };
            header.rates = Some([rate("the rate of servers' links")?, rate("the rate of links between switches")?]);
        }
        Dialect::SimAi => _ = words.need("the type of the GPUs")?,
    }
    Ok(header)
}

type WordLocation<'a> = (Line<'a>, &'a str);

fn quantity_error(reader: &Reader<'_>, at: WordLocation<'_>, e: UnitError) -> Error {
    reader.at(at.0, at.1, e.message).hint(e.hint)
}

/// A rate; without a unit it is in bits a second, as in ns-3.
fn read_rate(reader: &Reader<'_>, at: WordLocation<'_>) -> Result<Rate> {
    let is_bare = at.1.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let parsed = if is_bare { Rate::parse(&format!("{} b/s", at.1)) } else { Rate::parse(at.1) };
    let rate = parsed.map_err(|e| quantity_error(reader, at, e))?;
    if rate < LINK_RATE_MIN {
        let min = LINK_RATE_MIN.as_bps();
        return Err(reader.at(at.0, at.1, format!("a link's rate is at least {min} b/s")));
    }
    Ok(rate)
}

fn read_link<'a>(
    words: &mut Words<'a>,
    i: u64,
    header: &Header<'_>,
    node_max: u64,
) -> Result<(WordLocation<'a>, HpccLink)> {
    let (line, word, a) = words.number(&format!("the source of link {} of {}", i + 1, header.links), node_max)?;
    let (line_b, word_b, b) = words.number("a link's destination", node_max)?;
    if a == b {
        return Err(words.reader.at(line_b, word_b, format!("node {a} is linked to itself")));
    }
    let at = words.need("a link's rate")?;
    let rate = read_rate(&words.reader, at)?;
    let at = words.need("a link's delay")?;
    let delay = Duration::parse(at.1).map_err(|e| quantity_error(&words.reader, at, e))?;
    if delay > DELAY_MAX {
        let message = format!("a link's delay of {} is too long", delay.written());
        return Err(words.reader.at(at.0, at.1, message).hint(format!("at most {}", DELAY_MAX.written())));
    }
    let at = words.need("a link's error rate")?;
    let packet_error_rate = match at.1.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => p,
        _ => {
            let shown: String = at.1.chars().take(40).collect();
            let message = format!("`{shown}` is not a link's error rate");
            return Err(words.reader.at(at.0, at.1, message).expected("from 0 to 1"));
        }
    };
    Ok(((line, word), HpccLink { a: a as u32, b: b as u32, rate, delay, packet_error_rate, line: line.number }))
}

/// Refuses a network in which some node cannot be reached.
fn check_connected(file: &str, topology: &HpccTopology) -> Result<()> {
    let mut root: Vec<u32> = (0..topology.nodes).collect();
    fn find(root: &mut [u32], mut i: u32) -> u32 {
        while root[i as usize] != i {
            root[i as usize] = root[root[i as usize] as usize];
            i = root[i as usize];
        }
        i
    }
    for link in &topology.links {
        let (a, b) = (find(&mut root, link.a), find(&mut root, link.b));
        root[a.max(b) as usize] = a.min(b);
    }
    for node in 0..topology.nodes {
        if find(&mut root, node) != 0 {
            return Err(Error::file(
                file,
                format!("the network falls apart: no path leads from node 0 to node {node}"),
            )
            .hint("every node must be linked, directly or over others, to every other"));
        }
    }
    Ok(())
}

/// Refuses servers whose GPUs share no NVSwitch, where there are NVSwitches: SimAI's simulator finds no path between
/// such GPUs.
fn check_servers(file: &str, topology: &HpccTopology, header: &Header<'_>) -> Result<()> {
    let Some(gpus) = header.gpus_per_server.filter(|_| !topology.nvswitches.is_empty()) else { return Ok(()) };
    let mut nvswitches_of = vec![Vec::new(); topology.nodes as usize];
    for link in &topology.links {
        for (node, other) in [(link.a, link.b), (link.b, link.a)] {
            if topology.nvswitches.binary_search(&other).is_ok() {
                nvswitches_of[node as usize].push(other);
            }
        }
    }
    let server = |node: u32| u64::from(node) / gpus;
    let hosts: Vec<u32> = (0..topology.nodes).filter(|&node| topology.host_of(node).is_some()).collect();
    for pair in hosts.windows(2).filter(|pair| server(pair[0]) == server(pair[1])) {
        let [a, b] = [pair[0], pair[1]].map(|node| &nvswitches_of[node as usize]);
        if !a.iter().any(|nvswitch| b.contains(nvswitch)) {
            let message = format!(
                "the header says {gpus} GPUs a server, and no NVSwitch joins nodes {} and {} of one server",
                pair[0], pair[1]
            );
            return Err(Error::line(file, header.line.number, header.line.text, message));
        }
    }
    Ok(())
}

/// Warns of numbers in the header that the links contradict and that no simulator needs.
fn warn_of_header(reader: &mut Reader<'_>, topology: &HpccTopology, header: &Header<'_>) {
    let to_host = |link: &HpccLink| topology.host_of(link.a).or(topology.host_of(link.b)).is_some();
    if let Some(tors) = header.tors {
        let ends = topology.links.iter().filter(|link| to_host(link)).flat_map(|link| [link.a, link.b]);
        let found: BTreeSet<u32> = ends.filter_map(|node| topology.switch_of(node)).collect();
        if found.len() as u64 != tors {
            let message = format!("the header says {tors} ToR switches, and {} switches have hosts", found.len());
            reader.warn(header.line.number, message);
        }
    }
    for (rate, of_servers) in header.rates.into_iter().flatten().zip([true, false]) {
        if let Some(link) = topology.links.iter().find(|link| to_host(link) == of_servers && link.rate != rate) {
            let message = format!(
                "the header says {} for this link, which has {}: the header's rate is not used",
                rate.written(),
                link.rate.written()
            );
            reader.warn(link.line, message);
        }
    }
}
