//! The hierarchical tree for comparison with a fat-tree (Al-Fares 2012, 3.5.1): the same hosts under one switch per
//! pod, each with one oversubscribed link to the switch on top.

use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_scenario::OVERSUBSCRIPTION;
use std::net::Ipv4Addr;

/// The tree for the hosts of a fat-tree, which keep their addresses. The pods' switches are numbered first, and the
/// switch on top is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hierarchical {
    tree: FatTree,
}

/// The other end of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host.
    Host(HostId),
    /// A switch, and its port.
    Switch(u32, u16),
}

/// An entry of a switch's table: the output port for a prefix. Longer prefixes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address of the prefix.
    pub address: Ipv4Addr,
    /// The length of the prefix.
    pub length: u8,
    /// The output port; none drops packets.
    pub port: Option<u16>,
}

impl Hierarchical {
    /// The tree for the hosts of `tree`.
    pub fn new(tree: FatTree) -> Hierarchical {
        Hierarchical { tree }
    }

    /// The fat-tree with the same hosts.
    pub fn fat_tree(self) -> FatTree {
        self.tree
    }

    /// The number of switches: one per pod, and the one on top.
    pub fn switches_total(self) -> u32 {
        self.top() + 1
    }

    /// The switch on top.
    pub fn top(self) -> u32 {
        self.tree.k()
    }

    fn hosts_of_a_pod(self) -> u32 {
        self.tree.half() * self.tree.half()
    }

    /// The number of a switch's ports; the uplink is a pod switch's last port.
    pub fn ports(self, switch: u32) -> u16 {
        let count = if switch == self.top() { self.tree.k() } else { self.hosts_of_a_pod() + 1 };
        // At most 127^2 + 1.
        count as u16
    }

    /// A switch's name as a bridge.
    pub fn name(self, switch: u32) -> String {
        if switch == self.top() { "top".into() } else { format!("p{switch}") }
    }

    /// The address from which a switch's datapath id is made: 10.pod.0.1, and 10.k.1.1 on top.
    pub fn address(self, switch: u32) -> Ipv4Addr {
        let at = u8::from(switch == self.top());
        // k is at most 254.
        Ipv4Addr::new(10, switch as u8, at, 1)
    }

    /// The other end of a port's link.
    pub fn peer(self, switch: u32, port: u16) -> Peer {
        assert!(switch <= self.top() && port < self.ports(switch), "no port {port} of switch {switch}");
        let uplink = self.hosts_of_a_pod();
        match u32::from(port) {
            pod if switch == self.top() => Peer::Switch(pod, uplink as u16),
            at if at == uplink => Peer::Switch(self.top(), switch as u16),
            at => Peer::Host(switch * uplink + at),
        }
    }

    /// The rate of a pod's uplink, if hosts' links have `host_bps`.
    pub fn uplink_bps(self, host_bps: u64) -> u64 {
        (host_bps as f64 * f64::from(self.hosts_of_a_pod()) / OVERSUBSCRIPTION).round() as u64
    }

    /// A switch's table. Packets to unknown hosts of the switch's own pod are dropped.
    pub fn table(self, switch: u32) -> Vec<Prefix> {
        let pod = |pod: u32, port| Prefix { address: Ipv4Addr::new(10, pod as u8, 0, 0), length: 16, port };
        if switch == self.top() {
            return (0..self.tree.k()).map(|p| pod(p, Some(p as u16))).collect();
        }
        let uplink = self.hosts_of_a_pod();
        let host = |at: u32| {
            let address = self.tree.host_address(switch * uplink + at).expect("a host of the tree");
            Prefix { address, length: 32, port: Some(at as u16) }
        };
        let rest = Prefix { address: Ipv4Addr::UNSPECIFIED, length: 0, port: Some(uplink as u16) };
        (0..uplink).map(host).chain([pod(switch, None), rest]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_of_3_5_1() {
        let tree = Hierarchical::new(FatTree::new(4).unwrap());
        assert_eq!((tree.switches_total(), tree.ports(0), tree.ports(4)), (5, 5, 4));
        assert_eq!((tree.name(3), tree.name(4), tree.address(4)), ("p3".into(), "top".into(), [10, 4, 1, 1].into()));
        assert_eq!(tree.uplink_bps(96_000_000), 106_666_667);
        assert_eq!(tree.peer(2, 3), Peer::Host(11));
        assert_eq!((tree.peer(2, 4), tree.peer(4, 2)), (Peer::Switch(4, 2), Peer::Switch(2, 4)));
    }

    #[test]
    fn each_host_is_reached_and_nothing_goes_round() {
        for k in [2, 4, 6] {
            let fat = FatTree::new(k).unwrap();
            let tree = Hierarchical::new(fat);
            let next = |switch: u32, to: Ipv4Addr| {
                let matches =
                    |e: &Prefix| e.length == 0 || (to.to_bits() ^ e.address.to_bits()) >> (32 - e.length) == 0;
                tree.table(switch).into_iter().find(matches).and_then(|e| e.port).map(|port| tree.peer(switch, port))
            };
            let walk = |from: HostId, to: Ipv4Addr| {
                let mut at = Peer::Switch(from / (fat.half() * fat.half()), 0);
                for _ in 0..4 {
                    let Peer::Switch(switch, _) = at else { break };
                    at = next(switch, to)?;
                }
                Some(at)
            };
            for (from, to) in (0..fat.hosts()).flat_map(|from| (0..fat.hosts()).map(move |to| (from, to))) {
                assert_eq!(walk(from, fat.host_address(to).unwrap()), Some(Peer::Host(to)));
            }
            assert_eq!(walk(0, Ipv4Addr::new(10, k as u8 - 1, 0, 77)), None, "nobody has that address");
            for (switch, port) in (0..=tree.top()).flat_map(|s| (0..tree.ports(s)).map(move |port| (s, port))) {
                if let Peer::Switch(other, at) = tree.peer(switch, port) {
                    assert_eq!(tree.peer(other, at), Peer::Switch(switch, port));
                }
            }
        }
    }
}
