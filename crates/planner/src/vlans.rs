//! The VLANs of source routing in a fat-tree (Crisan 2014, 2.3.1): each names a core, and is the tree from this core down
//! to all hosts.

use crate::export::{bridge, device};
use serde::Serialize;
use sluicenet_proto::routing::fat_tree::{FatTree, Switch};
use sluicenet_proto::routing::paths::{PathPorts, Paths, vid_of_path};
use sluicenet_proto::routing::xgft::Xgft;
use std::collections::BTreeMap;

/// The VLANs of which a port is a tagged member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VlanPort {
    /// The switch, as a bridge.
    pub switch: String,
    /// The port's number, from 0.
    pub port: u16,
    /// The port's device.
    pub device: String,
    /// The VLANs, as ranges: 2-5,8.
    pub vids: String,
}

/// A fat-tree and the numbers of its VLANs.
#[derive(Clone, Debug)]
pub struct Vlans {
    tree: FatTree,
    shape: Xgft,
    count: u16,
}

impl Vlans {
    /// The VLANs of a fat-tree; none if it has more cores than VLANs have numbers.
    pub fn new(tree: FatTree) -> Option<Vlans> {
        let shape = Xgft::fat_tree(tree.k()).ok()?;
        let count = Paths::new(&shape)?.count() as u16;
        Some(Vlans { tree, shape, count })
    }

    /// The ports of a switch that are members of VLANs.
    pub fn of(&self, switch: Switch) -> Vec<VlanPort> {
        let mut members: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
        for path in (0..self.count).filter(|&path| self.passes(switch, path)) {
            for port in self.members(switch, path) {
                members.entry(port).or_default().push(vid_of_path(path));
            }
        }
        let row = |(port, vids): (u16, Vec<u16>)| VlanPort {
            switch: bridge(switch),
            port,
            device: device(switch, port),
            vids: ranges(&vids),
        };
        members.into_iter().map(row).collect()
    }

    /// Whether the tree of a path's core contains the switch.
    fn passes(&self, switch: Switch, path: u16) -> bool {
        let (half, path) = (self.tree.half(), u32::from(path));
        let name = self.tree.name(switch);
        match switch {
            Switch::Edge { .. } => true,
            Switch::Aggregation { .. } => path % half == name.position,
            Switch::Core { .. } => path == name.position,
        }
    }

    /// The switch's ports in the tree of a path's core: those down, and the one up.
    fn members(&self, switch: Switch, path: u16) -> Vec<u16> {
        let ports = PathPorts::new(&self.shape, self.tree.name(switch));
        let ups = ports.ups();
        let up = ports.port(Some(path), 0, ups.start).ok().filter(|port| ups.contains(port));
        (0..ups.start).chain(up).collect()
    }
}

/// Sorted numbers as ranges.
fn ranges(vids: &[u16]) -> String {
    let of = |range: &[u16]| match range {
        [one] => one.to_string(),
        _ => format!("{}-{}", range[0], range[range.len() - 1]),
    };
    vids.chunk_by(|a, b| a + 1 == *b).map(of).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::routing::fat_tree::Peer;
    use std::collections::BTreeSet;

    fn has(vids: &str, vid: u16) -> bool {
        vids.split(',').any(|range| {
            let mut ends = range.split('-').map(|end| end.parse::<u16>().unwrap());
            let first = ends.next().unwrap();
            (first..=ends.next().unwrap_or(first)).contains(&vid)
        })
    }

    #[test]
    fn each_vlan_is_a_tree_over_all_hosts_with_one_core() {
        for k in [2, 4, 6] {
            let tree = FatTree::new(k).unwrap();
            let vlans = Vlans::new(tree).unwrap();
            for vid in 2..2 + tree.cores() as u16 {
                let (mut hosts, mut ends, mut switches) = (BTreeSet::new(), 0, BTreeSet::new());
                for s in tree.switches() {
                    for port in vlans.of(s).iter().filter(|row| has(&row.vids, vid)) {
                        switches.insert(bridge(s));
                        match tree.peer(s, port.port) {
                            Peer::Host(h) => assert!(hosts.insert(h)),
                            Peer::Switch(peer, at) => {
                                ends += 1;
                                let back = vlans.of(peer).into_iter().find(|row| row.port == at).unwrap();
                                assert!(has(&back.vids, vid), "VLAN {vid}: {} has one end", port.device);
                            }
                        }
                    }
                }
                assert_eq!(hosts.len() as u32, tree.hosts());
                assert_eq!(switches.iter().filter(|name| name.starts_with('c')).count(), 1);
                // A tree has one link less than nodes.
                assert_eq!(ends / 2, switches.len() - 1, "VLAN {vid} of {k} ports");
            }
        }
    }

    #[test]
    fn vlans_are_named_by_ranges_and_too_many_are_refused() {
        let tree = FatTree::new(4).unwrap();
        let rows = Vlans::new(tree).unwrap().of(Switch::Edge { pod: 0, at: 1 });
        let text: Vec<String> = rows.iter().map(|row| format!("{} {}", row.device, row.vids)).collect();
        assert_eq!(text, ["e0-1p1 2-5", "e0-1p2 2-5", "e0-1p3 2,4", "e0-1p4 3,5"]);
        assert!(Vlans::new(FatTree::new(126).unwrap()).is_some());
        assert!(Vlans::new(FatTree::new(128).unwrap()).is_none());
    }
}
