//! The tree that a fat-tree is measured beside.

use super::tree::{Entry, FatTree, Peer, Switch};
use super::wrong;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use sluicenet_planner::hierarchical::{self, Hierarchical};
use sluicenet_planner::tables::FIRST_PRIORITY;
use sluicenet_proto::routing::fat_tree;
use std::net::Ipv4Addr;

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
