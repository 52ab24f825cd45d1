//! The numbers of all parts of a fat-tree (Al-Fares 2012, 3, 3.1.2).

use serde::Serialize;
use sluicenet_proto::routing::fat_tree::FatTree;

/// Switches by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layers {
    /// Switches next to the hosts.
    pub edge: u32,
    /// Switches above the edge, in pods.
    pub aggregation: u32,
    /// Switches between pods.
    pub core: u32,
    /// All switches.
    pub total: u32,
}

/// Links by their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Links {
    /// Links between hosts and edge switches.
    pub hosts: u32,
    /// Links between edge and aggregation switches.
    pub pods: u32,
    /// Links between aggregation switches and cores.
    pub cores: u32,
    /// All links.
    pub total: u32,
    /// Directions of links between switches; the flow scheduler keeps a bit for each.
    pub scheduled_directions: u32,
}

/// The first and the last address of each kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// 10.pod.switch.ID.
    pub hosts: [String; 2],
    /// 10.pod.switch.1.
    pub edge: [String; 2],
    /// 10.pod.switch.1.
    pub aggregation: [String; 2],
    /// 10.k.j.i.
    pub core: [String; 2],
}

/// All numbers of a fat-tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Description {
    /// Ports of a switch.
    pub k: u32,
    /// Pods.
    pub pods: u32,
    /// Hosts.
    pub hosts: u32,
    /// Subnets, each with a prefix of 24 bits.
    pub subnets: u32,
    /// Hosts of a subnet.
    pub subnet_hosts: u32,
    /// Switches.
    pub switches: Layers,
    /// Links.
    pub links: Links,
    /// Equal-cost paths between hosts in different pods.
    pub paths_between_pods: u32,
    /// Equal-cost paths between subnets of a pod.
    pub paths_in_pod: u32,
    /// The most prefixes of a table.
    pub prefixes_max: u32,
    /// The most suffixes of a table.
    pub suffixes_max: u32,
    /// Addresses.
    pub addresses: Addresses,
}

impl Description {
    /// Describes a fat-tree.
    pub fn new(tree: FatTree) -> Description {
        let (k, hosts, subnets, cores) = (tree.k(), tree.hosts(), tree.subnets(), tree.cores());
        let level = tree.links_of_a_level();
        let host = |h| tree.host_address(h).map(|a| a.to_string()).unwrap_or_default();
        let switches: Vec<_> = [0, subnets - 1, subnets, 2 * subnets - 1, 2 * subnets, tree.switches_total() - 1]
            .map(|n| tree.switches().nth(n as usize).map(|s| tree.address(s).to_string()).unwrap_or_default())
            .to_vec();
        let pair = |i: usize| [switches[i].clone(), switches[i + 1].clone()];
        Description {
            k,
            pods: k,
            hosts,
            subnets,
            subnet_hosts: tree.half(),
            switches: Layers { edge: subnets, aggregation: subnets, core: cores, total: tree.switches_total() },
            links: Links { hosts: level, pods: level, cores: level, total: 3 * level, scheduled_directions: 4 * level },
            paths_between_pods: cores,
            paths_in_pod: tree.half(),
            prefixes_max: k,
            suffixes_max: tree.half(),
            addresses: Addresses {
                hosts: [host(0), host(hosts - 1)],
                edge: pair(0),
                aggregation: pair(2),
                core: pair(4),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapter_3_of_48_port_switches() {
        let d = Description::new(FatTree::new(48).unwrap());
        assert_eq!((d.hosts, d.subnets, d.subnet_hosts, d.paths_between_pods), (27_648, 1_152, 24, 576));
        assert_eq!(d.switches, Layers { edge: 1_152, aggregation: 1_152, core: 576, total: 2_880 });
        // 3.4.3: 4 * k * (k/2)^2.
        assert_eq!(d.links.scheduled_directions, 4 * 48 * 24 * 24);
        assert_eq!(d.addresses.core, ["10.48.1.1".to_owned(), "10.48.24.24".to_owned()]);
        assert_eq!(d.addresses.aggregation, ["10.0.24.1".to_owned(), "10.47.47.1".to_owned()]);
        assert_eq!(d.addresses.hosts, ["10.0.0.2".to_owned(), "10.47.23.25".to_owned()]);
    }
}
