//! Files of HPCC's simulator (ns-3): topologies and flows.
//!
//! Both are read as its C++ streams do, word by word: line breaks mean nothing to them.

use super::lines::{Reader, Words};
use crate::{Error, HOSTS_MAX, LINK_RATE_MIN, PORTS_MAX, Quantity, Result, Warning};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// A link between two nodes.
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
    /// Nodes, hosts and switches alike: ids are `0..nodes`.
    pub nodes: u32,
    /// The ids of switches, ascending; all others are hosts.
    pub switches: Vec<u32>,
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

/// Reads a topology: `nodes switches links`, the switches' ids, then `src dst rate delay error` for each link.
///
/// # Errors
/// A header beyond the limits, unknown or doubled ids, self links, doubled links, a file cut short, a network that
/// falls apart.
pub fn parse_hpcc_topology(file: &str, bytes: &[u8]) -> Result<(HpccTopology, Vec<Warning>)> {
    let mut words = Words::new(file, bytes);
    let nodes_max = 2 * u64::from(HOSTS_MAX);
    let (_, _, nodes) = words.number("the number of nodes", nodes_max)?;
    let (line, word, switch_count) = words.number("the number of switches", nodes)?;
    let at_header = |words: &Words<'_>, message: String| words.reader.at(line, word, message);
    if nodes - switch_count > u64::from(HOSTS_MAX) {
        return Err(at_header(&words, format!("{} hosts are too many: at most {HOSTS_MAX}", nodes - switch_count)));
    }
    if nodes == switch_count {
        return Err(at_header(&words, format!("{nodes} nodes of which {switch_count} are switches leave no host")));
    }
    let (_, _, link_count) = words.number("the number of links", u64::from(PORTS_MAX) / 2)?;
    let node_max = nodes.saturating_sub(1);
    // Vectors grow as the file is read: a header of a short file allocates nothing.
    let mut switches: Vec<u32> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for i in 0..switch_count {
        let (line, word, id) = words.number(&format!("the id of switch {i} of {switch_count}"), node_max)?;
        if !seen.insert(id as u32) {
            return Err(words.reader.at(line, word, format!("switch {id} is listed twice")));
        }
        switches.push(id as u32);
    }
    switches.sort_unstable();
    let mut links: Vec<HpccLink> = Vec::new();
    let mut pairs = std::collections::BTreeMap::new();
    for i in 0..link_count {
        let link = read_link(&mut words, i, link_count, node_max)?;
        let pair = (link.1.a.min(link.1.b), link.1.a.max(link.1.b));
        if let Some(first) = pairs.insert(pair, link.1.line) {
            return Err(words
                .reader
                .at(link.0.0, link.0.1, format!("nodes {} and {} are linked twice", pair.0, pair.1))
                .hint(format!("the first link is in line {first}")));
        }
        links.push(link.1);
    }
    if let Some((line, _)) = words.next()? {
        words.reader.warn(line.number, format!("what follows the {link_count} links of the header is not read"));
    }
    let topology = HpccTopology { nodes: nodes as u32, switches, links };
    check_connected(file, &topology)?;
    Ok((topology, words.reader.into_warnings()))
}

type WordLocation<'a> = (super::lines::Line<'a>, &'a str);

fn read_link<'a>(words: &mut Words<'a>, i: u64, count: u64, node_max: u64) -> Result<(WordLocation<'a>, HpccLink)> {
    let (line, word, a) = words.number(&format!("the source of link {} of {count}", i + 1), node_max)?;
    let (line_b, word_b, b) = words.number("a link's destination", node_max)?;
    if a == b {
        return Err(words.reader.at(line_b, word_b, format!("node {a} is linked to itself")));
    }
    let quantity = |reader: &Reader<'_>, location: WordLocation<'a>, e: crate::UnitError| {
        reader.at(location.0, location.1, e.message).hint(e.hint)
    };
    let location = words.need("a link's rate")?;
    let rate = Rate::parse(location.1).map_err(|e| quantity(&words.reader, location, e))?;
    if rate < LINK_RATE_MIN {
        let min = LINK_RATE_MIN.as_bps();
        return Err(words.reader.at(location.0, location.1, format!("a link's rate is at least {min} b/s")));
    }
    let location = words.need("a link's delay")?;
    let delay = Duration::parse(location.1).map_err(|e| quantity(&words.reader, location, e))?;
    let location = words.need("a link's error rate")?;
    let packet_error_rate = match location.1.parse::<f64>() {
        Ok(p) if (0.0..=1.0).contains(&p) => p,
        _ => {
            let shown: String = location.1.chars().take(40).collect();
            return Err(words
                .reader
                .at(location.0, location.1, format!("`{shown}` is not a link's error rate"))
                .expected("from 0 to 1"));
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

/// A flow of HPCC's simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpccFlow {
    /// The sender, a node's id.
    pub src: u32,
    /// The receiver, a node's id.
    pub dst: u32,
    /// Its priority group, 0 to 7.
    pub priority: u8,
    /// The destination port.
    pub port: u16,
    /// Its bytes.
    pub bytes: u64,
    /// When it starts.
    pub start: Duration,
    /// Where in the file.
    pub line: u32,
}

/// The flows of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HpccFlows {
    /// The flows.
    pub flows: Vec<HpccFlow>,
}

impl HpccFlows {
    /// Refuses flows between nodes that `is_host` does not accept.
    ///
    /// # Errors
    /// The first such flow, with its line.
    pub fn check(&self, file: &str, is_host: impl Fn(u32) -> bool) -> Result<()> {
        for f in &self.flows {
            for node in [f.src, f.dst] {
                if !is_host(node) {
                    let text = format!("{} {} {} {} {} ...", f.src, f.dst, f.priority, f.port, f.bytes);
                    return Err(Error::line(file, f.line, &text, format!("there is no host {node} in this network")));
                }
            }
        }
        Ok(())
    }
}

/// Flows a file may hold.
const FLOWS_MAX: u64 = 1 << 26;

/// Reads flows: their number, then `src dst priority port bytes start_seconds` for each. As HPCC's simulator does, it
/// reads as many as the header says and no more.
///
/// # Errors
/// A file with fewer flows than its header says, a number out of range, a flow from a host to itself.
pub fn parse_hpcc_flows(file: &str, bytes: &[u8]) -> Result<(HpccFlows, Vec<Warning>)> {
    let mut words = Words::new(file, bytes);
    let (_, _, count) = words.number("the number of flows", FLOWS_MAX)?;
    let id_max = 2 * u64::from(HOSTS_MAX) - 1;
    let mut flows: Vec<HpccFlow> = Vec::new();
    for i in 0..count {
        let (line, _, src) = words.number(&format!("the source of flow {} of {count}", i + 1), id_max)?;
        let (dst_line, dst_word, dst) = words.number("a flow's destination", id_max)?;
        if src == dst {
            return Err(words.reader.at(dst_line, dst_word, format!("a flow from host {src} to itself")));
        }
        let (_, _, priority) = words.number("a flow's priority", 7)?;
        let (_, _, port) = words.number("a flow's port", u64::from(u16::MAX))?;
        let (_, _, bytes) = words.number("a flow's size", crate::BYTES_MAX.0)?;
        let (start_line, word) = words.need("a flow's start")?;
        let start = Duration::parse(&format!("{word} s"))
            .map_err(|e| words.reader.at(start_line, word, e.message).expected("seconds"))?;
        if flows.last().is_some_and(|f| f.start > start) {
            words
                .reader
                .warn(line.number, "flows are not in the order of their starts: HPCC's simulator would fail here");
        }
        flows.push(HpccFlow {
            src: src as u32,
            dst: dst as u32,
            priority: priority as u8,
            port: port as u16,
            bytes,
            start,
            line: line.number,
        });
    }
    if let Some((line, _)) = words.next()? {
        let message =
            format!("the header says {count} flows: from here on the file is not read, as by HPCC's simulator");
        words.reader.warn(line.number, message);
    }
    Ok((HpccFlows { flows }, words.reader.into_warnings()))
}
