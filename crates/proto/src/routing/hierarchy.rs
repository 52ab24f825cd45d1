//! The hierarchical tree with which a fat-tree is compared: GigE switches at the edge, and larger and faster switches above
//! (Al-Fares 2012, 2.1, 3.2).

use crate::units::Rate;

/// The requirements on a hierarchical tree, and the switches available for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Hosts.
    pub hosts: u64,
    /// A host's link.
    pub host_rate: Rate,
    /// Ports of an edge switch to hosts.
    pub edge_ports: u32,
    /// Most ports of an edge switch to the layers above.
    pub edge_uplinks: u32,
    /// Rate of the uplinks and of all links above.
    pub uplink_rate: Rate,
    /// Ports of an aggregation or core switch.
    pub upper_ports: u32,
    /// Allowed ratio of the hosts' traffic to the traffic that reaches the top, in thousandths: 1,000 is 1:1.
    pub oversubscription_milli: u32,
}

/// The numbers of switches in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Edge switches.
    pub edges: u64,
    /// Uplinks of each edge switch; 0 if there is only one switch.
    pub uplinks: u32,
    /// Aggregation switches; 0 if one core has ports for all uplinks.
    pub aggregations: u64,
    /// Core switches.
    pub cores: u64,
    /// Ratio of the hosts' traffic to the traffic that reaches the top, in thousandths. It exceeds the requirement if edge
    /// switches have too few uplinks.
    pub oversubscription_milli: u32,
}

/// Reason why the tree does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HierarchyError {
    /// No hosts, ports, uplinks or rate.
    Zero,
    /// The uplinks exceed the ports of two layers of these switches (2.1.3: "limited by available port density").
    TooManyUplinks {
        /// Uplinks needed.
        needed: u64,
        /// Most uplinks possible.
        most: u64,
    },
}

impl core::fmt::Display for HierarchyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            HierarchyError::Zero => write!(f, "a tree needs hosts, ports, uplinks and rates"),
            HierarchyError::TooManyUplinks { needed, most } => {
                write!(f, "{needed} uplinks are too many for two layers of these switches, which take {most}")
            }
        }
    }
}

impl Hierarchy {
    /// The smallest tree for a demand. Edge switches have as few uplinks as the demand allows. The aggregation layer takes
    /// the remaining oversubscription: accordingly fewer of its ports lead up than down.
    ///
    /// # Errors
    /// A demand that no tree with two upper layers meets.
    pub fn new(d: &Demand) -> Result<Hierarchy, HierarchyError> {
        let (host, uplink) = (d.host_rate.as_bps(), d.uplink_rate.as_bps());
        if [d.hosts, host, uplink, u64::from(d.edge_ports), u64::from(d.edge_uplinks)].contains(&0)
            || d.upper_ports < 2
            || d.oversubscription_milli == 0
        {
            return Err(HierarchyError::Zero);
        }
        let edges = d.hosts.div_ceil(u64::from(d.edge_ports));
        let offered = u128::from(d.edge_ports.min(d.hosts.min(u64::from(u32::MAX)) as u32)) * u128::from(host) * 1_000;
        let needed = offered.div_ceil(u128::from(d.oversubscription_milli) * u128::from(uplink));
        let uplinks = needed.min(u128::from(d.edge_uplinks)) as u32;
        let total = edges.saturating_mul(u64::from(uplinks));
        let ports = u64::from(d.upper_ports);
        let carried = u128::from(uplinks) * u128::from(uplink);
        let may_be_sent = (carried * u128::from(d.oversubscription_milli)).max(offered);
        let up = (u128::from(ports) * offered).div_ceil(offered + may_be_sent) as u64;
        let down = ports - up;
        // Every aggregation switch has a link to every core, and a core has at most `ports` links.
        let most = ports * down;
        let (aggregations, cores) = match total {
            _ if edges == 1 => (0, 0),
            t if t <= ports => (0, 1),
            t if t > most => return Err(HierarchyError::TooManyUplinks { needed: t, most }),
            t => (t.div_ceil(down), (t.div_ceil(down) * up).div_ceil(ports)),
        };
        let (sent, reaches) = match aggregations {
            0 => (offered, carried),
            // An odd number of ports has one more port up than down.
            _ => (offered * u128::from(down.max(up)), carried * u128::from(up)),
        };
        let actual = if edges == 1 { 1_000 } else { (sent + reaches / 2) / reaches };
        let uplinks = if edges == 1 { 0 } else { uplinks };
        let oversubscription_milli = actual.min(u128::from(u32::MAX)) as u32;
        Ok(Hierarchy { edges, uplinks, aggregations, cores, oversubscription_milli })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::xgft::Xgft;

    const GIGE: Demand = Demand {
        hosts: 27_648,
        host_rate: Rate::gbps(1),
        edge_ports: 48,
        edge_uplinks: 4,
        uplink_rate: Rate::gbps(10),
        upper_ports: 128,
        oversubscription_milli: 1_000,
    };

    #[test]
    fn the_tree_of_3_2() {
        // "576 ProCurve 2900 edge switches and 54 BigIron RX-32 switches (36 in the aggregation and 18 in the core layer)". The
        // edge switch has four uplinks, so the source's 1:1 is 1.2:1.
        let t = Hierarchy::new(&GIGE).unwrap();
        let expected = Hierarchy { edges: 576, uplinks: 4, aggregations: 36, cores: 18, oversubscription_milli: 1_200 };
        assert_eq!(t, expected);
    }

    #[test]
    fn oversubscription_takes_fewer_uplinks_and_never_exceeds_what_was_asked_for() {
        let tree = |milli| Hierarchy::new(&Demand { oversubscription_milli: milli, ..GIGE }).unwrap();
        let of = |milli| {
            (tree(milli).uplinks, tree(milli).aggregations, tree(milli).cores, tree(milli).oversubscription_milli)
        };
        // 48 hosts at two uplinks are 2.4:1; 71 ports down and 57 ports up give the rest.
        assert_eq!(of(3_000), (2, 17, 8, 2_989));
        assert_eq!(of(7_000), (1, 8, 4, 6_792));
        for milli in (1_200..20_000).step_by(100) {
            assert!(tree(milli).oversubscription_milli <= milli, "{milli} {:?}", tree(milli));
        }
        assert!(tree(3_000).aggregations < tree(1_000).aggregations);
        let small = Hierarchy::new(&Demand { hosts: 480, ..GIGE }).unwrap();
        assert_eq!((small.edges, small.aggregations, small.cores), (10, 0, 1));
        let one = Hierarchy::new(&Demand { hosts: 20, ..GIGE }).unwrap();
        assert_eq!((one.edges, one.uplinks, one.cores), (1, 0, 0));
    }

    #[test]
    fn the_comparison_tree_of_3_5_is_oversubscribed_3_6_to_1() {
        let mbps = |milli: u64| Rate(milli * 1_000);
        let demand = Demand {
            hosts: 16,
            host_rate: mbps(96_000),
            edge_ports: 4,
            edge_uplinks: 1,
            uplink_rate: mbps(106_670),
            upper_ports: 4,
            oversubscription_milli: 3_600,
        };
        let t = Hierarchy::new(&demand).unwrap();
        assert_eq!((t.edges, t.uplinks, t.aggregations, t.cores), (4, 1, 0, 1));
        assert_eq!(t.oversubscription_milli, 3_600);
        // As in a scenario: `kind = "xgft"`, these m and w, and `[[topology.level]]` with the rate of level 2.
        let shape = Xgft::new(&[4, 4], &[1, 1]).unwrap();
        assert_eq!((shape.leaves(), shape.switches_at(1), shape.switches_at(2)), (16, 4, 1));
    }

    #[test]
    fn what_no_tree_can_be_is_refused() {
        assert_eq!(Hierarchy::new(&Demand { hosts: 0, ..GIGE }), Err(HierarchyError::Zero));
        assert_eq!(Hierarchy::new(&Demand { upper_ports: 1, ..GIGE }), Err(HierarchyError::Zero));
        let e = Hierarchy::new(&Demand { hosts: 200_000, ..GIGE });
        assert_eq!(e, Err(HierarchyError::TooManyUplinks { needed: 16_668, most: 8_192 }));
        assert!(Hierarchy::new(&Demand { hosts: u64::MAX, ..GIGE }).is_err());
    }
}
