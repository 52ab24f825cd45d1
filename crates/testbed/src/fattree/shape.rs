//! The network's shape: the switches of a fat-tree or of the hierarchical tree, with their ports.

use sluicenet_planner::export::{bridge, device};
use sluicenet_planner::hierarchical::{self, Hierarchical};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::{self, FatTree, Peer};

/// The tree that connects the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The k-ary fat-tree.
    FatTree,
    /// One switch a pod and one on top, the links between them oversubscribed (Al-Fares 2012, 3.5.1).
    Hierarchical,
}

/// A switch to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The name of the switch as a bridge.
    pub name: String,
    /// The datapath id that the switch tells the controller.
    pub datapath_id: u64,
    /// The ports of the switch, port 0 first.
    pub ports: Vec<Port>,
}

/// A port of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port's network device.
    pub device: String,
    /// The other end of the port's link.
    pub to: End,
    /// The rate of its link, in bits a second.
    pub rate_bps: u64,
    /// Whether the port leads away from hosts.
    pub upward: bool,
}

/// The other end of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A host.
    Host(HostId),
    /// A switch by number, and its port.
    Switch(usize, usize),
}

impl Shape {
    /// The shape's switches by number, for the hosts of `tree` whose links have `rate_bps`.
    pub fn nodes(self, tree: FatTree, rate_bps: u64) -> Vec<Node> {
        match self {
            Shape::FatTree => tree.switches().map(|s| of_fat_tree(tree, s, rate_bps)).collect(),
            Shape::Hierarchical => {
                let whole = Hierarchical::new(tree);
                (0..whole.switches_total()).map(|n| of_hierarchical(whole, n, rate_bps)).collect()
            }
        }
    }
}

fn of_fat_tree(tree: FatTree, s: fat_tree::Switch, rate_bps: u64) -> Node {
    let port = |port: u16| Port {
        device: device(s, port),
        to: match tree.peer(s, port) {
            Peer::Host(host) => End::Host(host),
            Peer::Switch(other, at) => End::Switch(tree.index(other) as usize, at.into()),
        },
        rate_bps,
        upward: u32::from(port) >= tree.half() && !matches!(s, fat_tree::Switch::Core { .. }),
    };
    let ports = (0..tree.k() as u16).map(port).collect();
    Node { name: bridge(s), datapath_id: u64::from(tree.address(s).to_bits()), ports }
}

fn of_hierarchical(tree: Hierarchical, n: u32, rate_bps: u64) -> Node {
    let name = tree.name(n);
    let port = |port: u16| {
        let (to, rate_bps) = match tree.peer(n, port) {
            hierarchical::Peer::Host(host) => (End::Host(host), rate_bps),
            hierarchical::Peer::Switch(other, at) => {
                (End::Switch(other as usize, at.into()), tree.uplink_bps(rate_bps))
            }
        };
        let upward = n != tree.top() && matches!(to, End::Switch(..));
        Port { device: format!("{name}p{}", port + 1), to, rate_bps, upward }
    };
    Node { datapath_id: u64::from(tree.address(n).to_bits()), ports: (0..tree.ports(n)).map(port).collect(), name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_link_has_two_ends_of_one_rate_and_every_device_a_name_of_its_own() {
        for (shape, k, switches, links) in [
            (Shape::FatTree, 4, 20, 32),
            (Shape::FatTree, 6, 45, 108),
            (Shape::Hierarchical, 4, 5, 4),
            (Shape::Hierarchical, 6, 7, 6),
        ] {
            let tree = FatTree::new(k).unwrap();
            let nodes = shape.nodes(tree, 2_000_000);
            assert_eq!(nodes.len(), switches);
            let (mut hosts, mut ups) = (BTreeSet::new(), 0);
            for (n, port, p) in
                nodes.iter().enumerate().flat_map(|(n, s)| (0..).zip(&s.ports).map(move |(i, p)| (n, i, p)))
            {
                match p.to {
                    End::Host(host) => assert!(hosts.insert(host) && p.rate_bps == 2_000_000 && !p.upward),
                    End::Switch(other, at) => {
                        let there = &nodes[other].ports[at];
                        assert_eq!(
                            (there.to, there.rate_bps, there.upward),
                            (End::Switch(n, port), p.rate_bps, !p.upward)
                        );
                        ups += u32::from(p.upward);
                    }
                }
                assert!(p.device.len() <= 15, "Linux has room for 15 letters: {}", p.device);
            }
            assert_eq!((hosts.len() as u32, ups), (tree.hosts(), links));
            let devices: BTreeSet<&str> =
                nodes.iter().flat_map(|s| s.ports.iter().map(|p| p.device.as_str())).collect();
            assert_eq!(devices.len(), nodes.iter().map(|s| s.ports.len()).sum::<usize>());
            let names: BTreeSet<(&str, u64)> = nodes.iter().map(|s| (s.name.as_str(), s.datapath_id)).collect();
            assert_eq!(names.len(), switches);
        }
        // 3.5.1: 106.67 Mb/s for four hosts of 96.
        assert_eq!(Shape::Hierarchical.nodes(FatTree::new(4).unwrap(), 96_000_000)[0].ports[4].rate_bps, 106_666_667);
    }
}
