//! Fat-trees for a controller of real switches: addresses and tables, detours round failures, and who is placed where.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use sluicenet_lab::fabric::export::bridge;
use sluicenet_lab::fabric::hierarchical::{self, Hierarchical};
use sluicenet_lab::fabric::tables::{FIRST_PRIORITY, Kind, SwitchTable, layer};
use sluicenet_proto::hedera::LINK;
use sluicenet_proto::hedera::demand::Estimator;
use sluicenet_proto::hedera::detect::{Change, Detection, Detector, FlowId, Sample};
use sluicenet_proto::hedera::scheduler::{Placer, Refused, Scheduler as Hedera, Settings};
use sluicenet_proto::hedera::tree::{self, HOSTS_MAX, Path, Tree};
use sluicenet_proto::routing::fat_tree::classifier::{FlowClassifier, PERIOD};
use sluicenet_proto::routing::fat_tree::ports::UpPorts;
use sluicenet_proto::routing::fat_tree::scheduler::{self as reserved, FlowScheduler, SILENCE};
use sluicenet_proto::routing::fat_tree::tags::{TagSwitch, Unreachable};
use sluicenet_proto::routing::fat_tree::{self, Peer as TreePeer};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Longest time that is counted here, from the caller's beginning: picoseconds are 64 bits.
const SECONDS_MAX: f64 = 1e7;

fn wrong(what: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(what.to_string())
}

fn duration(what: &str, seconds: f64) -> PyResult<Duration> {
    if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
        return Err(wrong(format!("{what} is a number of seconds above 0 and up to {SECONDS_MAX:e}, not {seconds}")));
    }
    Ok(Duration(((seconds * 1e12) as u64).max(1)))
}

fn instant(now: f64) -> PyResult<Instant> {
    if !(0.0..=SECONDS_MAX).contains(&now) {
        return Err(wrong(format!("now is a number of seconds from 0 to {SECONDS_MAX:e}, not {now}")));
    }
    Ok(Instant((now * 1e12) as u64))
}

/// A switch of a fat-tree, or of a hierarchical tree.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Switch {
    /// Its place among the tree's `switches`.
    number: u32,
    /// `edge`, `aggregation` or `core`; of a hierarchical tree `pod` or `top`.
    layer: &'static str,
    /// As a bridge in an export, `e0-1`.
    name: String,
    /// 10.pod.switch.1, or 10.k.j.i.
    address: String,
    /// What an OpenFlow switch says it is: its address as a number.
    datapath_id: u64,
    /// Nothing at a core and on top.
    pod: Option<u8>,
}

#[pymethods]
impl Switch {
    fn __repr__(&self) -> String {
        format!("Switch({}, {}, {:?}, {})", self.number, self.layer, self.name, self.address)
    }
}

/// What a port leads to: a host, or another switch's port.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Peer {
    host: Option<u32>,
    switch: Option<u32>,
    port: Option<u16>,
}

/// An entry of a switch's table: destinations that agree with `address` in the bits of `mask`.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Entry {
    address: String,
    mask: String,
    /// Nothing: they are dropped.
    port: Option<u16>,
    /// Whether it is one of several ways to the cores.
    upward: bool,
}

/// Destinations that some upward ports do not lead to any more.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Detour {
    address: String,
    mask: String,
    /// Those that do.
    ports: Vec<u16>,
}

/// A k-ary fat-tree (Al-Fares 2012, chapter 3).
#[pyclass(frozen, module = "sluicenet._native")]
pub struct FatTree {
    tree: fat_tree::FatTree,
}

impl FatTree {
    fn of(&self, switch: u32) -> PyResult<fat_tree::Switch> {
        named(self.tree, switch)
    }
}

fn named(tree: fat_tree::FatTree, switch: u32) -> PyResult<fat_tree::Switch> {
    let (pods, half) = (tree.subnets(), tree.half());
    match switch {
        n if n < pods => Ok(tree.edge(n)),
        n if n < 2 * pods => {
            let at = n - pods;
            Ok(fat_tree::Switch::Aggregation { pod: (at / half) as u8, at: (at % half) as u8 })
        }
        n if n < tree.switches_total() => Ok(tree.core(n - 2 * pods)),
        n => Err(PyIndexError::new_err(format!("a fat-tree of k = {} has no switch {n}", tree.k()))),
    }
}

fn with_port(tree: fat_tree::FatTree, switch: u32, port: u16) -> PyResult<(fat_tree::Switch, TreePeer)> {
    let own = named(tree, switch)?;
    if u32::from(port) >= tree.k() {
        return Err(PyIndexError::new_err(format!("a switch of {} ports has no port {port}", tree.k())));
    }
    Ok((own, tree.peer(own, port)))
}

#[pymethods]
impl FatTree {
    #[new]
    fn new(k: u32) -> PyResult<FatTree> {
        Ok(FatTree { tree: fat_tree::FatTree::new(k).map_err(wrong)? })
    }

    /// Ports of a switch.
    #[getter]
    fn k(&self) -> u32 {
        self.tree.k()
    }

    /// Number of hosts.
    #[getter]
    fn hosts(&self) -> u32 {
        self.tree.hosts()
    }

    /// Edge switches, aggregation switches, cores.
    #[getter]
    fn switches(&self) -> Vec<Switch> {
        let switch = |(number, s): (u32, fat_tree::Switch)| {
            let address = self.tree.address(s);
            let pod = match s {
                fat_tree::Switch::Edge { pod, .. } | fat_tree::Switch::Aggregation { pod, .. } => Some(pod),
                fat_tree::Switch::Core { .. } => None,
            };
            let datapath_id = u64::from(address.to_bits());
            Switch { number, layer: layer(s), name: bridge(s), address: address.to_string(), datapath_id, pod }
        };
        (0..).zip(self.tree.switches()).map(switch).collect()
    }

    /// What a switch's ports lead to, port 0 first.
    fn peers(&self, switch: u32) -> PyResult<Vec<Peer>> {
        let own = self.of(switch)?;
        let peer = |port: u16| match self.tree.peer(own, port) {
            TreePeer::Host(host) => Peer { host: Some(host), switch: None, port: None },
            TreePeer::Switch(s, at) => Peer { host: None, switch: Some(self.tree.index(s)), port: Some(at) },
        };
        Ok((0..self.tree.k() as u16).map(peer).collect())
    }

    /// A switch's two-level table (3.1.3 to 3.1.5), of which the first entry that matches counts; what is for its own pod or subnet and not there
    /// is dropped, not sent round.
    fn table(&self, switch: u32) -> PyResult<Vec<Entry>> {
        let table = SwitchTable::new(self.tree, self.of(switch)?);
        let mut dropped = table.dropped.as_deref();
        let mut entries = Vec::new();
        for e in &table.entries {
            let upward = e.kind == Kind::Suffix;
            if let Some((own, length)) = dropped.take_if(|_| upward).and_then(|own| own.split_once('/')) {
                let mask = u32::MAX << (32 - length.parse::<u32>().map_err(wrong)?);
                let mask = Ipv4Addr::from_bits(mask).to_string();
                entries.push(Entry { address: own.to_owned(), mask, port: None, upward: false });
            }
            let (address, mask) = (e.value.to_string(), e.mask.to_string());
            entries.push(Entry { address, mask, port: Some(e.port), upward });
        }
        Ok(entries)
    }

    /// A host's address.
    fn host_address(&self, host: u32) -> PyResult<String> {
        let address = self.tree.host_address(host);
        address.map(|a| a.to_string()).ok_or_else(|| PyIndexError::new_err(format!("there is no host {host}")))
    }

    /// The host with an address; nothing where nobody has it.
    fn host_at(&self, address: &str) -> Option<u32> {
        self.tree.host_at(address.parse().ok()?)
    }

    fn __repr__(&self) -> String {
        format!("FatTree({})", self.tree.k())
    }
}

/// The hierarchical tree beside a k-ary fat-tree (3.5.1): the same hosts with the same addresses, a switch a pod, one on top.
#[pyclass(frozen, module = "sluicenet._native")]
pub struct HierarchicalTree {
    tree: Hierarchical,
}

impl HierarchicalTree {
    fn checked(&self, switch: u32) -> PyResult<u32> {
        let there = switch < self.tree.switches_total();
        there.then_some(switch).ok_or_else(|| PyIndexError::new_err(format!("this tree has no switch {switch}")))
    }
}

#[pymethods]
impl HierarchicalTree {
    #[new]
    fn new(k: u32) -> PyResult<HierarchicalTree> {
        let tree = Hierarchical::new(fat_tree::FatTree::new(k).map_err(wrong)?);
        // An entry for each host of a pod, and two more; each has a priority of its own.
        if tree.table(0).len() > usize::from(FIRST_PRIORITY) {
            return Err(wrong(format!("k = {k}: a pod's switch has no room for so many hosts")));
        }
        Ok(HierarchicalTree { tree })
    }

    /// Ports of a switch of the fat-tree.
    #[getter]
    fn k(&self) -> u32 {
        self.tree.fat_tree().k()
    }

    /// Number of hosts.
    #[getter]
    fn hosts(&self) -> u32 {
        self.tree.fat_tree().hosts()
    }

    /// Pod by pod; the one on top last.
    #[getter]
    fn switches(&self) -> Vec<Switch> {
        let switch = |number: u32| {
            let address = self.tree.address(number);
            let is_top = number == self.tree.top();
            Switch {
                number,
                layer: if is_top { "top" } else { "pod" },
                name: self.tree.name(number),
                address: address.to_string(),
                datapath_id: u64::from(address.to_bits()),
                pod: (!is_top).then_some(number as u8),
            }
        };
        (0..self.tree.switches_total()).map(switch).collect()
    }

    /// What a switch's ports lead to, port 0 first.
    fn peers(&self, switch: u32) -> PyResult<Vec<Peer>> {
        let switch = self.checked(switch)?;
        let peer = |port| match self.tree.peer(switch, port) {
            hierarchical::Peer::Host(host) => Peer { host: Some(host), switch: None, port: None },
            hierarchical::Peer::Switch(other, at) => Peer { host: None, switch: Some(other), port: Some(at) },
        };
        Ok((0..self.tree.ports(switch)).map(peer).collect())
    }

    /// A switch's table, of which the first entry that matches counts.
    fn table(&self, switch: u32) -> PyResult<Vec<Entry>> {
        let entry = |e: hierarchical::Prefix| {
            let mask = u32::MAX.checked_shl(32 - u32::from(e.length)).unwrap_or(0);
            let (address, mask) = (e.address.to_string(), Ipv4Addr::from_bits(mask).to_string());
            // There are no several ways.
            Entry { address, mask, port: e.port, upward: false }
        };
        Ok(self.tree.table(self.checked(switch)?).into_iter().map(entry).collect())
    }

    /// A host's address.
    fn host_address(&self, host: u32) -> PyResult<String> {
        FatTree { tree: self.tree.fat_tree() }.host_address(host)
    }

    /// The host with an address; nothing where nobody has it.
    fn host_at(&self, address: &str) -> Option<u32> {
        FatTree { tree: self.tree.fat_tree() }.host_at(address)
    }

    fn __repr__(&self) -> String {
        format!("HierarchicalTree({})", self.k())
    }
}

/// What is down, and what each switch has to do differently for that (3.1.8): the broadcast of failures, played through at one place.
#[pyclass(module = "sluicenet._native")]
pub struct Failures {
    tree: fat_tree::FatTree,
    switches: Vec<TagSwitch>,
    /// By lower switch and port: links that are down themselves.
    links: BTreeMap<(u32, u16), bool>,
    down: Vec<bool>,
}

impl Failures {
    /// A link by its lower end; nothing for a host's.
    fn lower(&self, switch: u32, port: u16) -> PyResult<Option<(u32, u16)>> {
        let (_, peer) = with_port(self.tree, switch, port)?;
        Ok(match peer {
            TreePeer::Host(_) => None,
            TreePeer::Switch(s, at) if self.tree.index(s) < switch => Some((self.tree.index(s), at)),
            TreePeer::Switch(..) => Some((switch, port)),
        })
    }

    fn carries(&self, (lower, port): (u32, u16)) -> PyResult<bool> {
        let (_, TreePeer::Switch(upper, _)) = with_port(self.tree, lower, port)? else { return Ok(true) };
        let upper = self.tree.index(upper);
        Ok(!self.links.contains_key(&(lower, port)) && !self.down[lower as usize] && !self.down[upper as usize])
    }

    /// Tells both ends how their link is, and then all what they have to say to each other.
    fn tell(&mut self, link: (u32, u16)) -> PyResult<()> {
        let up = self.carries(link)?;
        let (_, TreePeer::Switch(upper, at)) = with_port(self.tree, link.0, link.1)? else { return Ok(()) };
        self.switches[link.0 as usize].handle_link(link.1, up);
        self.switches[self.tree.index(upper) as usize].handle_link(at, up);
        loop {
            let mut quiet = true;
            for n in 0..self.switches.len() {
                while let Some((port, message)) = self.switches[n].poll_transmit() {
                    quiet = false;
                    if let TreePeer::Switch(peer, at) = self.tree.peer(named(self.tree, n as u32)?, port) {
                        self.switches[self.tree.index(peer) as usize].handle_message(at, message);
                    }
                }
            }
            if quiet {
                return Ok(());
            }
        }
    }
}

#[pymethods]
impl Failures {
    #[new]
    fn new(tree: &FatTree) -> Failures {
        let tree = tree.tree;
        let switches: Vec<TagSwitch> = tree.switches().map(|s| TagSwitch::new(tree, s)).collect();
        let down = vec![false; switches.len()];
        Failures { tree, switches, links: BTreeMap::new(), down }
    }

    /// The link at a switch's port goes down or comes up; whether that is new. A host's link is nobody else's business.
    fn set_link(&mut self, switch: u32, port: u16, up: bool) -> PyResult<bool> {
        let Some(link) = self.lower(switch, port)? else { return Ok(false) };
        let changed = if up { self.links.remove(&link).is_some() } else { self.links.insert(link, true).is_none() };
        if changed {
            self.tell(link)?;
        }
        Ok(changed)
    }

    /// A switch is gone, or there again; whether that is new.
    fn set_switch(&mut self, switch: u32, up: bool) -> PyResult<bool> {
        named(self.tree, switch)?;
        if self.down[switch as usize] != up {
            return Ok(false);
        }
        self.down[switch as usize] = !up;
        for port in 0..self.tree.k() as u16 {
            if let Some(link) = self.lower(switch, port)? {
                self.tell(link)?;
            }
        }
        Ok(true)
    }

    /// Whether the link at a switch's port carries frames: neither it nor a switch at its ends is down.
    fn is_up(&self, switch: u32, port: u16) -> PyResult<bool> {
        self.lower(switch, port)?.map_or(Ok(!self.down[switch as usize]), |link| self.carries(link))
    }

    /// Destinations that a switch has to send by other ports than its table says, the most specific first. Ports whose own link is down are
    /// none of them: a switch sees that itself.
    fn detours(&self, switch: u32) -> PyResult<Vec<Detour>> {
        let own = named(self.tree, switch)?;
        if matches!(own, fat_tree::Switch::Core { .. }) {
            return Ok(Vec::new());
        }
        let (tree, half) = (self.tree, self.tree.half());
        let tags = &self.switches[switch as usize];
        let mut detours = Vec::new();
        let mut add = |address: Ipv4Addr, length: u32, host: u32| {
            let ports = tags.usable(host).iter().map(|port| half as u16 + port).collect();
            let mask = Ipv4Addr::from_bits(u32::MAX << (32 - length)).to_string();
            detours.push(Detour { address: address.to_string(), mask, ports });
        };
        let is_tagged = |pod: u8, at: u8| tags.tags().any(|(what, _)| what == Unreachable::Subnet { pod, at });
        for (what, _) in tags.tags() {
            if let Unreachable::Subnet { pod, at } = what {
                add(Ipv4Addr::new(10, pod, at, 0), 24, tree.subnet(pod, at) * half);
            }
        }
        for (what, _) in tags.tags() {
            let Unreachable::Pod(pod) = what else { continue };
            // What holds for a subnet of it of which nothing else was said.
            if let Some(at) = (0..half as u8).find(|&at| !is_tagged(pod, at)) {
                add(Ipv4Addr::new(10, pod, 0, 0), 16, tree.subnet(pod, at) * half);
            }
        }
        Ok(detours)
    }
}

/// What a classifier was told of a flow.
#[derive(Clone, Copy, Debug)]
struct Watched {
    dst: u32,
    /// As its counter said last.
    bytes: u64,
    /// The port that was told for it.
    said: Option<u16>,
    /// Whether the switch counts it.
    counted: bool,
}

/// The flow classifier of one edge or aggregation switch (3.1.6, figure 3.11), by what the switch has counted of the flows that go up there: each has
/// the least loaded upward port, and every second at most three are moved. Time is in seconds from a beginning of the caller's, and never goes back.
#[pyclass(module = "sluicenet._native")]
pub struct Classifier {
    tree: fat_tree::FatTree,
    own: fat_tree::Switch,
    number: u32,
    machine: FlowClassifier,
    moves: bool,
    flows_max: usize,
    flows: BTreeMap<u64, Watched>,
}

impl Classifier {
    fn usable(&self, failures: &Failures, dst: u32) -> UpPorts {
        failures.switches[self.number as usize].usable(dst)
    }

    /// Whether what goes from `src` to `dst` comes up to this switch and goes further up.
    fn goes_up(&self, src: u32, dst: u32) -> bool {
        let subnet = |host| self.tree.subnet_of(host);
        let pod = |host| subnet(host) / self.tree.half();
        match self.own {
            fat_tree::Switch::Edge { pod, at } => {
                let own = self.tree.subnet(pod, at);
                subnet(src) == own && subnet(dst) != own
            }
            fat_tree::Switch::Aggregation { pod: own, .. } => pod(src) == u32::from(own) && pod(dst) != u32::from(own),
            fat_tree::Switch::Core { .. } => false,
        }
    }

    fn check(&self, failures: &Failures) -> PyResult<()> {
        if failures.tree == self.tree { Ok(()) } else { Err(wrong("these are the failures of another tree")) }
    }
}

#[pymethods]
impl Classifier {
    /// Without `moves` a flow keeps its first port as long as that reaches its destination (3.1.7).
    #[new]
    #[pyo3(signature = (tree, switch, *, now = 0.0, moves = true, flows_max = 4096))]
    fn new(tree: &FatTree, switch: u32, now: f64, moves: bool, flows_max: usize) -> PyResult<Classifier> {
        let (now, own, tree) = (instant(now)?, tree.of(switch)?, tree.tree);
        if let fat_tree::Switch::Core { .. } = own {
            return Err(wrong(format!("switch {switch} is a core: there is one way from it")));
        }
        let machine = FlowClassifier::new(now, tree.half() as u16, PERIOD, flows_max, switch);
        Ok(Classifier { tree, own, number: switch, machine, moves, flows_max, flows: BTreeMap::new() })
    }

    /// What the switch counted of a flow so far, and for how long; whether that is a flow which goes up here, and there is room for it.
    #[allow(clippy::too_many_arguments)]
    fn sample(
        &mut self,
        now: f64,
        flow: u64,
        src: u32,
        dst: u32,
        sent_bytes: u64,
        age_s: f64,
        failures: &Failures,
    ) -> PyResult<bool> {
        let now = instant(now)?;
        self.check(failures)?;
        if src >= self.tree.hosts() || dst >= self.tree.hosts() || src == dst {
            return Err(wrong(format!("no flow goes from host {src} to host {dst}")));
        }
        if !self.goes_up(src, dst) {
            return Ok(false);
        }
        let is_full = self.flows.len() >= self.flows_max;
        let new = match self.flows.get_mut(&flow) {
            // A counter that has less than before has begun anew.
            Some(known) => {
                known.counted = true;
                sent_bytes.checked_sub(std::mem::replace(&mut known.bytes, sent_bytes)).unwrap_or(sent_bytes)
            }
            None if is_full => return Ok(false),
            None => {
                self.flows.insert(flow, Watched { dst, bytes: sent_bytes, said: None, counted: true });
                // Of one that is older than a period what it sent in one.
                let period_s = PERIOD.0 as f64 / 1e12;
                let part = if age_s > period_s { period_s / age_s } else { 1.0 };
                (sent_bytes as f64 * part) as u64
            }
        };
        // Nothing new is silence, and a period that has ended is not filled any more.
        if self.machine.port_of(flow).is_none() || new > 0 {
            self.turn(now, failures);
            let usable = self.usable(failures, dst);
            self.machine.handle_packet(flow, u32::try_from(new).unwrap_or(u32::MAX), usable);
        }
        Ok(true)
    }

    /// Flows whose port is another one than was said before, with the port; with none those that are forgotten, or lead nowhere.
    fn advance(&mut self, now: f64, failures: &Failures) -> PyResult<Vec<(u64, Option<u16>)>> {
        let now = instant(now)?;
        self.check(failures)?;
        self.turn(now, failures);
        let half = self.tree.half() as u16;
        let mut changed = Vec::new();
        let mut gone = Vec::new();
        for (&flow, known) in &mut self.flows {
            let usable = failures.switches[self.number as usize].usable(known.dst);
            let port = match self.machine.port_of(flow) {
                Some(_) if !known.counted => None,
                Some(port) if usable.contains(port) => Some(port),
                // It does not wait for its next packets.
                Some(_) => self.machine.handle_packet(flow, 0, usable),
                None => {
                    gone.push(flow);
                    None
                }
            };
            let port = port.map(|port| half + port);
            if port != known.said {
                known.said = port;
                changed.push((flow, port));
            }
        }
        for flow in gone {
            self.flows.remove(&flow);
        }
        Ok(changed)
    }

    /// The switch counts a flow no more: its counter and its entry have lapsed, and its port is said again with its next packets.
    fn lapsed(&mut self, flow: u64) {
        if let Some(known) = self.flows.get_mut(&flow) {
            (known.bytes, known.said, known.counted) = (0, None, false);
        }
    }

    /// Flows that were moved at the end of a period.
    #[getter]
    fn moved(&self) -> u64 {
        self.machine.counters.moved
    }
}

impl Classifier {
    /// Ends the period that is over.
    fn turn(&mut self, now: Instant, failures: &Failures) {
        if now < self.machine.poll_timeout() {
            return;
        }
        let (flows, moves) = (&self.flows, self.moves);
        let tags = &failures.switches[self.number as usize];
        let usable = |flow| flows.get(&flow).filter(|_| moves).map_or(UpPorts::NONE, |known| tags.usable(known.dst));
        self.machine.handle_timeout(now, usable);
    }
}

/// What switches are to do with a flow.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Placement {
    /// The number the flow was given.
    flow: u64,
    src: u32,
    dst: u32,
    /// Switches by number and their ports, on the way up. Nothing: as any small flow, its entries are deleted.
    hops: Option<Vec<(u32, u16)>>,
}

#[pymethods]
impl Placement {
    fn __repr__(&self) -> String {
        format!("Placement({:#x}, {} to {}, {:?})", self.flow, self.src, self.dst, self.hops)
    }
}

/// A controller has one of them, so that its size is nothing.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum Engine {
    /// Chapter 4.
    Hedera(Hedera),
    /// 3.1.7, whose edge switches find large flows as Hedera's are found.
    Reserving(Box<Reserving>),
}

#[derive(Debug)]
struct Reserving {
    detector: Detector,
    flows: FlowScheduler,
    placed: BTreeMap<u64, Reserved>,
    changed: Changed,
    /// When edge switches ask for paths next, and how often they do.
    next: Instant,
    period: Duration,
}

impl Reserving {
    /// A large flow is none any more.
    fn end(&mut self, flow: u64) {
        if let Some(reserved) = self.placed.remove(&flow) {
            self.flows.handle_end(reserved.flow);
            self.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
        }
    }

    /// Edge switches ask for all their large flows, one after the other, each for one port after the other.
    fn ask(&mut self, now: Instant) {
        let mut order: Vec<u64> = self.placed.keys().copied().collect();
        order.sort_by_key(|flow| (self.placed[flow].flow.source, *flow));
        for flow in order {
            let Some(reserved) = self.placed.get_mut(&flow) else { continue };
            let path = match self.flows.handle_request(now, reserved.flow) {
                Ok(reserved::Placement::Placed(path) | reserved::Placement::Kept(path)) => Some(path),
                Ok(reserved::Placement::Contended) | Err(_) => None,
            };
            if path != reserved.path {
                reserved.path = path;
                self.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
            }
        }
    }
}

/// Flows about whose paths there is something to say, and their ends.
type Changed = BTreeMap<u64, (u32, u32)>;

#[derive(Clone, Copy, Debug)]
struct Reserved {
    flow: reserved::FlowId,
    path: Option<reserved::Path>,
}

/// Finds large flows in what edge switches counted, and says by which path each is to go. Time is in seconds from a beginning of the
/// caller's, and never goes back.
#[pyclass(module = "sluicenet._native")]
pub struct Scheduler {
    tree: fat_tree::FatTree,
    engine: Engine,
}

#[pymethods]
impl Scheduler {
    /// `placer` is `gff` (Global First Fit), `sa` (Simulated Annealing, of so many `iterations` a round) or `reserve` (the flow scheduler of 3.1.7).
    #[new]
    #[pyo3(signature = (tree, placer, *, link_bps, window_s = 0.1, period_s = 0.1, idle_s = 2.0, flows_max = 4096, iterations = 1000, seed = 0))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        tree: &FatTree,
        placer: &str,
        link_bps: u64,
        window_s: f64,
        period_s: f64,
        idle_s: f64,
        flows_max: usize,
        iterations: u32,
        seed: u64,
    ) -> PyResult<Scheduler> {
        let tree = tree.tree;
        if !(1_000..=10_000_000_000_000).contains(&link_bps) {
            return Err(wrong(format!("link_bps is from 1e3 to 1e13, not {link_bps}")));
        }
        let (window, period) = (duration("window_s", window_s)?, duration("period_s", period_s)?);
        if period < Duration::from_ms(1) {
            return Err(wrong("period_s is at least 0.001"));
        }
        let idle = duration("idle_s", idle_s)?;
        let detection = Detection { link: Rate(link_bps), window, idle, flows_max };
        let placer = match placer {
            "gff" => Placer::FirstFit,
            "sa" => Placer::Annealing { iterations },
            "reserve" => {
                let (placed, changed) = (BTreeMap::new(), Changed::new());
                let flows = FlowScheduler::new(Instant::ZERO, tree, SILENCE);
                let detector = Detector::new(detection);
                let next = Instant::ZERO + period;
                let all = Reserving { detector, flows, placed, changed, next, period };
                return Ok(Scheduler { tree, engine: Engine::Reserving(Box::new(all)) });
            }
            other => return Err(wrong(format!("placer is gff, sa or reserve, not {other:?}"))),
        };
        let wide =
            Tree::fat_tree(tree.k()).map_err(|_| wrong(format!("k = {} is too large to place flows", tree.k())))?;
        let settings = Settings { tree: wide, detection, placer, period, seed };
        Ok(Scheduler { tree, engine: Engine::Hedera(Hedera::new(settings)) })
    }

    /// What an edge switch counted of a flow so far, and for how long; whether it is watched: the table may be full.
    #[pyo3(signature = (now, flow, src, dst, sent_bytes, age_s = None))]
    fn sample(
        &mut self,
        now: f64,
        flow: u64,
        src: u32,
        dst: u32,
        sent_bytes: u64,
        age_s: Option<f64>,
    ) -> PyResult<bool> {
        let now = instant(now)?;
        let age = age_s.map(|age| Duration((age.clamp(0.0, SECONDS_MAX) * 1e12) as u64));
        let sample = Sample { flow: FlowId(flow), src, dst, bytes: sent_bytes, age };
        let no_flow = || wrong(format!("no flow goes from host {src} to host {dst}"));
        match &mut self.engine {
            Engine::Hedera(hedera) => match hedera.receive(now, &sample) {
                Ok(()) => Ok(true),
                Err(Refused::Full) => Ok(false),
                Err(Refused::Unknown) => Err(no_flow()),
            },
            Engine::Reserving(r) => {
                if src >= self.tree.hosts() || dst >= self.tree.hosts() || src == dst {
                    return Err(no_flow());
                }
                // Numbers of flows are hashes of their addresses and ports.
                let key = reserved::FlowId { source: src, destination: dst, id: (flow ^ flow >> 32) as u32 };
                match r.detector.receive(now, &sample) {
                    Err(_) => return Ok(false),
                    Ok(Some(Change::Elephant)) => {
                        r.placed.insert(flow, Reserved { flow: key, path: None });
                    }
                    Ok(Some(Change::Mouse)) => r.end(flow),
                    Ok(None) => {}
                }
                Ok(true)
            }
        }
    }

    /// The link at a switch's port went down or came up; flows that went over it get another path at once.
    fn set_link(&mut self, now: f64, switch: u32, port: u16, up: bool) -> PyResult<()> {
        let now = instant(now)?;
        let (own, peer) = with_port(self.tree, switch, port)?;
        let TreePeer::Switch(other, at) = peer else { return Ok(()) };
        let is_lower = self.tree.index(own) < self.tree.index(other);
        let (lower, port) = if is_lower { (own, port) } else { (other, at) };
        let position = port - self.tree.half() as u16;
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                let link = match lower {
                    fat_tree::Switch::Edge { pod, at } => {
                        tree::Link::Edge { edge: self.tree.subnet(pod, at), aggregation: position.into() }
                    }
                    fat_tree::Switch::Aggregation { pod, at } => {
                        let core = fat_tree::Switch::Core { row: position as u8, column: at };
                        tree::Link::Core { pod: pod.into(), core: self.tree.index(core) - 2 * self.tree.subnets() }
                    }
                    fat_tree::Switch::Core { .. } => return Ok(()),
                };
                hedera.handle_link(now, link, up).map_err(|_| wrong("there is no such link"))
            }
            Engine::Reserving(r) => {
                let link = reserved::Link { lower, up: position as u8 };
                if up {
                    r.flows.handle_link_up(link);
                    return Ok(());
                }
                let gone = r.flows.handle_link_down(link);
                for (&flow, reserved) in r.placed.iter_mut().filter(|(_, r)| gone.contains(&r.flow)) {
                    reserved.path = None;
                    r.changed.insert(flow, (reserved.flow.source, reserved.flow.destination));
                }
                Ok(())
            }
        }
    }

    /// A switch is gone, or there again, and its links with it.
    fn set_switch(&mut self, now: f64, switch: u32, up: bool) -> PyResult<()> {
        let own = named(self.tree, switch)?;
        if let Engine::Hedera(hedera) = &mut self.engine {
            return hedera
                .handle_switch(instant(now)?, wide(self.tree, own), up)
                .map_err(|_| wrong("there is no such switch"));
        }
        (0..self.tree.k() as u16).try_for_each(|port| self.set_link(now, switch, port, up))
    }

    /// A switch has lost its entries: placements of flows that begin below it are said again.
    fn forgotten(&mut self, switch: u32) -> PyResult<()> {
        let own = named(self.tree, switch)?;
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                hedera.handle_forgotten(wide(self.tree, own)).map_err(|_| wrong("there is no such switch"))
            }
            Engine::Reserving(r) => {
                let below = |host: u32| match own {
                    fat_tree::Switch::Edge { pod, at } => self.tree.subnet_of(host) == self.tree.subnet(pod, at),
                    fat_tree::Switch::Aggregation { pod, .. } => {
                        self.tree.subnet_of(host) / self.tree.half() == u32::from(pod)
                    }
                    fat_tree::Switch::Core { .. } => false,
                };
                let lost = r.placed.iter().filter(|(_, r)| r.path.is_some() && below(r.flow.source));
                r.changed.extend(lost.map(|(&flow, r)| (flow, (r.flow.source, r.flow.destination))));
                Ok(())
            }
        }
    }

    /// Runs a round if one is due.
    fn advance(&mut self, now: f64) -> PyResult<()> {
        let now = instant(now)?;
        match &mut self.engine {
            Engine::Hedera(hedera) => hedera.handle_timeout(now),
            Engine::Reserving(r) => {
                for gone in r.detector.expire(now) {
                    r.end(gone.0);
                }
                r.flows.handle_timeout(now);
                if now >= r.next {
                    r.next = now + r.period;
                    r.ask(now);
                }
            }
        }
        Ok(())
    }

    /// When the next round is due; nothing while nothing is.
    #[getter]
    fn due(&self) -> Option<f64> {
        let due = match &self.engine {
            Engine::Hedera(hedera) => hedera.poll_timeout(),
            Engine::Reserving(r) => r.flows.poll_timeout().min(if r.placed.is_empty() { Instant::MAX } else { r.next }),
        };
        (due != Instant::MAX).then_some(due.0 as f64 / 1e12)
    }

    /// Placements that differ from what was said before.
    fn placements(&mut self) -> Vec<Placement> {
        let (k, half) = (self.tree, self.tree.half() as u16);
        let mut out = Vec::new();
        match &mut self.engine {
            Engine::Hedera(hedera) => {
                while let Some(p) = hedera.poll_placement() {
                    let hops = p.path.map(|path| match path {
                        Path::Edge => Vec::new(),
                        Path::Aggregation(a) => hops(k, p.src, a, None),
                        Path::Core(core) => hops(k, p.src, core % half, Some(core / half)),
                    });
                    out.push(Placement { flow: p.flow.0, src: p.src, dst: p.dst, hops });
                }
            }
            Engine::Reserving(r) => {
                while let Some((flow, (src, dst))) = r.changed.pop_first() {
                    let hops = r.placed.get(&flow).and_then(|r| {
                        Some(match r.path? {
                            reserved::Path::Switched => Vec::new(),
                            reserved::Path::Aggregation(a) => hops(k, r.flow.source, a.into(), None),
                            reserved::Path::Core { aggregation, core } => {
                                hops(k, r.flow.source, aggregation.into(), Some(core.into()))
                            }
                        })
                    });
                    out.push(Placement { flow, src, dst, hops });
                }
            }
        }
        out
    }

    /// Flows that are large now.
    #[getter]
    fn elephants(&self) -> usize {
        match &self.engine {
            Engine::Hedera(hedera) => hedera.last_round().elephants,
            Engine::Reserving(r) => r.placed.len(),
        }
    }
}

/// Up from a host: by aggregation switch `aggregation` of its pod and that switch's upward port `core`.
fn hops(k: fat_tree::FatTree, src: u32, aggregation: u16, core: Option<u16>) -> Vec<(u32, u16)> {
    let (half, edge) = (k.half() as u16, k.subnet_of(src));
    let upper = k.subnets() + edge / k.half() * k.half() + u32::from(aggregation);
    let first = (edge, half + aggregation);
    [Some(first), core.map(|core| (upper, half + core))].into_iter().flatten().collect()
}

fn wide(k: fat_tree::FatTree, switch: fat_tree::Switch) -> tree::Switch {
    match switch {
        fat_tree::Switch::Edge { pod, at } => tree::Switch::Edge(k.subnet(pod, at)),
        fat_tree::Switch::Aggregation { pod, at } => tree::Switch::Aggregation { pod: pod.into(), position: at.into() },
        core => tree::Switch::Core(k.index(core) - 2 * k.subnets()),
    }
}

/// What each flow would take of its hosts' links if nothing but these limited it (Al-Fares 2012, figure 4.4): from 0 to 1.
#[pyfunction]
pub fn estimate_demands(hosts: u32, flows: Vec<(u32, u32)>) -> PyResult<Vec<f64>> {
    if u64::from(hosts) > HOSTS_MAX {
        return Err(wrong(format!("at most {HOSTS_MAX} hosts")));
    }
    if let Some((src, dst)) = flows.iter().find(|(src, dst)| *src >= hosts || *dst >= hosts || src == dst) {
        return Err(wrong(format!("no flow goes from host {src} to host {dst}")));
    }
    let mut estimator = Estimator::new(hosts, 1);
    estimator.estimate(&flows);
    let mut demands = Vec::new();
    estimator.demands(&mut demands);
    Ok(demands.into_iter().map(|demand| f64::from(demand) / f64::from(LINK)).collect())
}
