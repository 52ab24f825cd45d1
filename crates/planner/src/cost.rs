//! The cost, power and heat of a fat-tree, compared with hierarchical trees (Al-Fares 2012, 2.1.3, 3.2, figures 2.2,
//! 3.8, 3.9).

use super::prices::{Model, Power, Prices};
use serde::Serialize;
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_proto::routing::hierarchy::{Demand, Hierarchy};

/// The cost of one network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Network {
    /// `fat-tree` or `hierarchical`.
    pub kind: &'static str,
    /// Requested oversubscription; 1 for a fat-tree.
    pub oversubscription: f64,
    /// Actual oversubscription.
    pub oversubscription_actual: f64,
    /// Edge switches.
    pub edge: u64,
    /// Aggregation switches.
    pub aggregation: u64,
    /// Cores.
    pub core: u64,
    /// Total price in dollars.
    pub dollars: f64,
    /// Price per host in dollars.
    pub dollars_per_host: f64,
    /// Total power and heat, if the price list has them for all switches.
    pub power: Option<Power>,
}

/// A fat-tree beside hierarchical trees for the same hosts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The year of the prices.
    pub year: u32,
    /// Hosts.
    pub hosts: u64,
    /// Ports in use of each switch of the fat-tree.
    pub k: u32,
    /// All ports of each switch of the fat-tree, which its price includes.
    pub switch_ports: u32,
    /// The networks, the fat-tree first.
    pub networks: Vec<Network>,
    /// The most hosts of a fat-tree of this switch model, k^3/4.
    pub fat_tree_hosts_max: u64,
    /// The most hosts of a hierarchical tree at 1:1, if each host has its share of an uplink, as Table 2.1 counts.
    pub hierarchical_hosts_max: u64,
}

/// The requested size of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// This number of hosts, in a fat-tree of the list's switches with as many pods as needed.
    Hosts(u64),
    /// A complete fat-tree with this number of ports per switch.
    Ports(FatTree),
}

impl Comparison {
    /// Compares networks of one size, with hierarchical trees at each of the oversubscriptions.
    ///
    /// # Errors
    /// A network that the list's switches cannot form.
    pub fn new(prices: &Prices, size: Size, oversubscriptions: &[f64]) -> Result<Comparison, String> {
        let model = &prices.fat_tree;
        let tree = match size {
            Size::Ports(tree) => tree,
            // Larger switches than addresses allow are used with fewer ports.
            Size::Hosts(_) => FatTree::new(model.ports.min(sluicenet_proto::routing::fat_tree::PORTS_MAX) & !1)
                .map_err(|e| format!("{}: {e}", model.name))?,
        };
        let k = tree.k();
        if k > model.ports {
            return Err(format!("the switch for fat-trees, {}, has {} ports and not {k}", model.name, model.ports));
        }
        let hosts = match size {
            Size::Hosts(0) => return Err("a network of no hosts has no cost".into()),
            Size::Hosts(n) if n > u64::from(tree.hosts()) => {
                return Err(format!(
                    "{n} hosts are more than the {} of a fat-tree of {k}-port switches ({})",
                    tree.hosts(),
                    model.name
                ));
            }
            Size::Hosts(n) => n,
            Size::Ports(tree) => u64::from(tree.hosts()),
        };
        let mut networks = vec![fat_tree(model, tree, hosts)];
        for &asked in oversubscriptions {
            networks.push(hierarchical(prices, hosts, asked)?);
        }
        let upper = u64::from(prices.upper.ports);
        let share = prices.upper.rate.as_bps() / prices.edge.rate.as_bps();
        Ok(Comparison {
            year: prices.year,
            hosts,
            k,
            switch_ports: model.ports,
            networks,
            fat_tree_hosts_max: u64::from(tree.hosts()),
            hierarchical_hosts_max: (upper * (upper / 2)).saturating_mul(share),
        })
    }
}

/// A fat-tree with only the pods that the hosts need. Every edge switch reaches all upper switches of its pod, and
/// every upper switch has k/2 uplinks. Each core has the same number of links to one upper switch of every pod. This
/// number is one if more than half of the pods exist, so that all cores exist. With fewer pods it is the largest number
/// that divides the uplinks and fits the core's ports. With all hosts that is 5k^2/4.
fn fat_tree(model: &Model, tree: FatTree, hosts: u64) -> Network {
    let (k, half) = (u64::from(tree.k()), u64::from(tree.half()));
    let edge = hosts.div_ceil(half);
    let pods = edge.div_ceil(half);
    let aggregation = if edge == 1 { 0 } else { pods * half };
    let links = (1..=half).rev().find(|links| half.is_multiple_of(*links) && links * pods <= k).unwrap_or(1);
    let core = if pods <= 1 { 0 } else { half * (half / links) };
    let count = (edge + aggregation + core) as f64;
    let power = model.power.map(|p| Power { watts: p.watts * count, heat_btu_h: p.heat_btu_h * count });
    let dollars = model.price * count;
    Network {
        kind: "fat-tree",
        oversubscription: 1.0,
        oversubscription_actual: 1.0,
        edge,
        aggregation,
        core,
        dollars,
        dollars_per_host: dollars / hosts as f64,
        power,
    }
}

fn hierarchical(prices: &Prices, hosts: u64, asked: f64) -> Result<Network, String> {
    let (edge, upper) = (&prices.edge, &prices.upper);
    let (uplinks, uplink_rate) = edge.uplinks.unwrap_or((0, upper.rate));
    let demand = Demand {
        hosts,
        host_rate: edge.rate,
        edge_ports: edge.ports,
        edge_uplinks: uplinks,
        uplink_rate,
        upper_ports: upper.ports,
        oversubscription_milli: (asked * 1e3).round() as u32,
    };
    let t = Hierarchy::new(&demand).map_err(|e| format!("a hierarchical tree at {asked}:1: {e}"))?;
    let above = t.aggregations + t.cores;
    let (edges, above) = (t.edges as f64, above as f64);
    let sum = |of_edge: f64, of_upper: f64| of_edge * edges + of_upper * above;
    let power = edge
        .power
        .zip(upper.power)
        .map(|(e, u)| Power { watts: sum(e.watts, u.watts), heat_btu_h: sum(e.heat_btu_h, u.heat_btu_h) });
    let dollars = sum(edge.price, upper.price);
    Ok(Network {
        kind: "hierarchical",
        oversubscription: asked,
        oversubscription_actual: f64::from(t.oversubscription_milli) / 1e3,
        edge: t.edges,
        aggregation: t.aggregations,
        core: t.cores,
        dollars,
        dollars_per_host: dollars / hosts as f64,
        power,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::repository;

    fn prices(year: u32) -> Prices {
        Prices::load(&repository(&format!("scenarios/alfares2012/prices-{year}.toml"))).unwrap()
    }

    fn compare(year: u32, hosts: u64) -> Comparison {
        Comparison::new(&prices(year), Size::Hosts(hosts), &[1.0, 3.0]).unwrap()
    }

    #[test]
    fn the_text_of_2_1_3_and_chapter_3() {
        // "$34M" and "$3.2M" for 20,000 hosts at 1:1 in 2008 and 2012.
        for (year, dollars) in [(2008, 34e6), (2012, 3.2e6)] {
            let c = compare(year, 20_000);
            assert!((c.networks[1].dollars / dollars - 1.0).abs() < 0.005, "{:?}", c.networks[1]);
            assert!(c.networks[2].dollars < c.networks[1].dollars && c.networks[0].dollars < c.networks[1].dollars);
        }
        // "The cost of deploying such a network architecture would be $8.64M"; Table 2.1: $312 and $47 for a GigE port.
        let c = compare(2008, 27_648);
        assert_eq!((c.networks[0].dollars, c.networks[0].edge, c.networks[0].core), (8.64e6, 1_152, 576));
        assert_eq!(c.networks[0].dollars_per_host.floor(), 312.0);
        assert_eq!(compare(2012, 27_648).networks[0].dollars_per_host.round(), 47.0);
        // 3.2: 576 and 54 switches.
        assert_eq!((c.networks[1].edge, c.networks[1].aggregation, c.networks[1].core), (576, 36, 18));
    }

    #[test]
    fn figure_3_9_a_fat_tree_takes_56_6_percent_less() {
        let c = compare(2008, 27_648);
        let (fat, tree) = (c.networks[0].power.unwrap(), c.networks[1].power.unwrap());
        assert!((1.0 - fat.watts / tree.watts - 0.566).abs() < 0.001);
        assert!((1.0 - fat.heat_btu_h / tree.heat_btu_h - 0.565).abs() < 0.001);
    }

    #[test]
    fn part_of_a_fat_tree_and_sizes_that_are_none() {
        let p = prices(2008);
        let network = |hosts| Comparison::new(&p, Size::Hosts(hosts), &[]).unwrap().networks.remove(0);
        let layers = |n: Network| (n.edge, n.aggregation, n.core);
        assert_eq!([20, 25, 577].map(|h| layers(network(h))), [(1, 0, 0), (2, 24, 0), (25, 48, 24)]);
        // 4 pods have 12 links each to a core, 5 have 8 (40 of its 48 ports), and 25 have one, as all 48 do.
        assert_eq!([4, 5, 25, 35].map(|pods| network(pods * 576).core), [48, 72, 576, 576]);
        let four = Comparison::new(&p, Size::Ports(FatTree::new(4).unwrap()), &[3.0]).unwrap();
        assert_eq!((four.k, four.switch_ports), (4, 48), "four of the 48 ports that are paid for");
        assert_eq!((four.hosts, layers(four.networks[0].clone())), (16, (8, 8, 4)));
        assert!(Comparison::new(&p, Size::Hosts(27_649), &[]).unwrap_err().contains("27649 hosts are more"));
        assert!(Comparison::new(&p, Size::Hosts(0), &[]).is_err());
        assert!(Comparison::new(&p, Size::Ports(FatTree::new(50).unwrap()), &[]).unwrap_err().contains("has 48 ports"));
    }
}
