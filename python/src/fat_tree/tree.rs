//! The k-ary fat-tree: its switches, what their ports lead to, and their tables.

use super::wrong;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use sluicenet_planner::export::bridge;
use sluicenet_planner::tables::{Kind, SwitchTable, layer};
use sluicenet_proto::routing::fat_tree::{self, Peer as TreePeer};
use std::net::Ipv4Addr;

/// A switch of a fat-tree, or of a hierarchical tree.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Switch {
    /// Its place among the tree's `switches`.
    pub(super) number: u32,
    /// `edge`, `aggregation` or `core`; of a hierarchical tree `pod` or `top`.
    pub(super) layer: &'static str,
    /// As a bridge in an export, `e0-1`.
    pub(super) name: String,
    /// 10.pod.switch.1, or 10.k.j.i.
    pub(super) address: String,
    /// What an OpenFlow switch says it is: its address as a number.
    pub(super) datapath_id: u64,
    /// Nothing at a core and on top.
    pub(super) pod: Option<u8>,
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
    pub(super) host: Option<u32>,
    pub(super) switch: Option<u32>,
    pub(super) port: Option<u16>,
}

/// An entry of a switch's table: destinations that agree with `address` in the bits of `mask`.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Entry {
    pub(super) address: String,
    pub(super) mask: String,
    /// Nothing: they are dropped.
    pub(super) port: Option<u16>,
    /// Whether it is one of several ways to the cores.
    pub(super) upward: bool,
}

/// A k-ary fat-tree (Al-Fares 2012, chapter 3).
#[pyclass(frozen, module = "sluicenet._native")]
pub struct FatTree {
    pub(super) tree: fat_tree::FatTree,
}

impl FatTree {
    pub(super) fn of(&self, switch: u32) -> PyResult<fat_tree::Switch> {
        named(self.tree, switch)
    }
}

/// A switch by number.
pub(super) fn named(tree: fat_tree::FatTree, switch: u32) -> PyResult<fat_tree::Switch> {
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

/// A switch by number, and what a port of it leads to.
pub(super) fn with_port(tree: fat_tree::FatTree, switch: u32, port: u16) -> PyResult<(fat_tree::Switch, TreePeer)> {
    let own = named(tree, switch)?;
    if u32::from(port) >= tree.k() {
        return Err(PyIndexError::new_err(format!("a switch of {} ports has no port {port}", tree.k())));
    }
    Ok((own, tree.peer(own, port)))
}

/// Whether what a host sends comes up to a switch: it is at that edge switch, or in the pod of that aggregation switch.
pub(super) fn is_below(tree: fat_tree::FatTree, switch: fat_tree::Switch, host: u32) -> bool {
    let subnet = tree.subnet_of(host);
    match switch {
        fat_tree::Switch::Edge { pod, at } => subnet == tree.subnet(pod, at),
        fat_tree::Switch::Aggregation { pod, .. } => subnet / tree.half() == u32::from(pod),
        fat_tree::Switch::Core { .. } => false,
    }
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
    pub(super) fn host_address(&self, host: u32) -> PyResult<String> {
        let address = self.tree.host_address(host);
        address.map(|a| a.to_string()).ok_or_else(|| PyIndexError::new_err(format!("there is no host {host}")))
    }

    /// The host with an address; nothing where nobody has it.
    pub(super) fn host_at(&self, address: &str) -> Option<u32> {
        self.tree.host_at(address.parse().ok()?)
    }

    fn __repr__(&self) -> String {
        format!("FatTree({})", self.tree.k())
    }
}
