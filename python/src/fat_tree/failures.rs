//! What is down, and what each switch has to do differently for that.

use super::tree::{FatTree, named, with_port};
use pyo3::prelude::*;
use sluicenet_proto::routing::fat_tree::ports::UpPorts;
use sluicenet_proto::routing::fat_tree::tags::{TagSwitch, Unreachable};
use sluicenet_proto::routing::fat_tree::{self, Peer as TreePeer};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// Destinations that some upward ports do not lead to any more.
#[pyclass(frozen, get_all, module = "sluicenet._native")]
pub struct Detour {
    address: String,
    mask: String,
    /// Those that do.
    ports: Vec<u16>,
}

/// What is down, and what each switch has to do differently for that (3.1.8): the broadcast of failures, played through at one place.
#[pyclass(module = "sluicenet._native")]
pub struct Failures {
    tree: fat_tree::FatTree,
    switches: Vec<TagSwitch>,
    /// By lower switch and port: links that are down themselves.
    links: BTreeSet<(u32, u16)>,
    down: Vec<bool>,
}

impl Failures {
    /// Whether they are of that tree.
    pub(super) fn are_of(&self, tree: fat_tree::FatTree) -> bool {
        self.tree == tree
    }

    /// The upward ports by which a switch reaches a host.
    pub(super) fn usable(&self, switch: u32, host: u32) -> UpPorts {
        self.switches[switch as usize].usable(host)
    }

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
        Ok(!self.links.contains(&(lower, port)) && !self.down[lower as usize] && !self.down[upper as usize])
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
        Failures { tree, switches, links: BTreeSet::new(), down }
    }

    /// The link at a switch's port goes down or comes up; whether that is new. A host's link is nobody else's business.
    fn set_link(&mut self, switch: u32, port: u16, up: bool) -> PyResult<bool> {
        let Some(link) = self.lower(switch, port)? else { return Ok(false) };
        let changed = if up { self.links.remove(&link) } else { self.links.insert(link) };
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
