//! The tables of switches as people, programs and Open vSwitch read them (Al-Fares 2012, 3.1.3 to 3.1.5).

use super::export::bridge;
use serde::Serialize;
use sluicenet_proto::routing::fat_tree::{FatTree, Next, Peer, Switch, TwoLevelTable};
use std::net::Ipv4Addr;

/// The priority of a table's first entry in OpenFlow; each further entry has one less. There is room above for flows
/// that are placed one by one. There is also room below for 300 entries, more than any table has.
pub const FIRST_PRIORITY: u16 = 1_000;

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A host of the switch's own subnet, which is switched, not routed.
    Switched,
    /// A terminating prefix (left-handed).
    Prefix,
    /// A suffix (right-handed).
    Suffix,
}

/// An entry of a TCAM: the first matching entry counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The entry's index in the TCAM.
    pub address: u32,
    /// The entry's kind.
    pub kind: Kind,
    /// Bits of the destination.
    pub value: Ipv4Addr,
    /// The bits of the destination that are compared.
    pub mask: Ipv4Addr,
    /// Output port.
    pub port: u16,
    /// The address of the switch or host at the port.
    pub to: Ipv4Addr,
}

/// The table of one switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchTable {
    /// The switch's address.
    pub switch: Ipv4Addr,
    /// Edge, aggregation or core.
    pub layer: &'static str,
    /// The switch's name as a bridge in an export.
    pub bridge: String,
    /// The number of prefixes, including the one that leads to the suffixes.
    pub prefixes: usize,
    /// The number of suffixes.
    pub suffixes: usize,
    /// The entries in TCAM order, after the hosts that are switched.
    pub entries: Vec<Entry>,
    /// The prefix to drop after the other prefixes: no host has its addresses, and the suffixes would send packets to
    /// them round in circles.
    pub dropped: Option<String>,
}

/// The layer of a switch by name.
pub fn layer(switch: Switch) -> &'static str {
    match switch {
        Switch::Edge { .. } => "edge",
        Switch::Aggregation { .. } => "aggregation",
        Switch::Core { .. } => "core",
    }
}

impl SwitchTable {
    /// The table of a switch.
    pub fn new(tree: FatTree, switch: Switch) -> SwitchTable {
        let table = TwoLevelTable::generate(tree, switch);
        let to = |port| match tree.peer(switch, port) {
            Peer::Host(host) => tree.host_address(host).expect("a host of the tree"),
            Peer::Switch(s, _) => tree.address(s),
        };
        let mut entries = Vec::new();
        if let Switch::Edge { .. } = switch {
            for port in 0..tree.half() as u16 {
                let (value, mask) = (to(port), Ipv4Addr::BROADCAST);
                entries.push(Entry { address: 0, kind: Kind::Switched, value, mask, port, to: to(port) });
            }
        }
        let terminating = table.prefixes().iter().filter(|p| p.next != Next::Suffixes).count();
        for (i, e) in table.tcam().iter().enumerate() {
            let kind = if i < terminating { Kind::Prefix } else { Kind::Suffix };
            let (value, mask) = (Ipv4Addr::from(e.value), Ipv4Addr::from(e.mask));
            entries.push(Entry { address: 0, kind, value, mask, port: e.port, to: to(e.port) });
        }
        (0..).zip(&mut entries).for_each(|(i, e)| e.address = i);
        SwitchTable {
            switch: tree.address(switch),
            layer: layer(switch),
            bridge: bridge(switch),
            prefixes: table.prefixes().len(),
            suffixes: table.suffixes().len(),
            entries,
            dropped: tree.own_prefix(switch).map(|(address, length)| format!("{address}/{length}")),
        }
    }

    /// The table as flows of OpenFlow 1.3, in the syntax of `ovs-ofctl add-flows`. Flows match packets, and also ARP
    /// requests and answers, which take the same paths. Port n is OpenFlow's port n+1, as OpenFlow has no port 0.
    pub fn flows(&self) -> Vec<String> {
        let mut flows = Vec::new();
        let mut priority = FIRST_PRIORITY;
        let mut add = |what: &str, action: &str| {
            flows.push(format!("priority={priority},ip,nw_dst={what},actions={action}"));
            flows.push(format!("priority={priority},arp,arp_tpa={what},actions={action}"));
            priority -= 1;
        };
        let mut dropped = self.dropped.as_deref();
        for e in &self.entries {
            if e.kind == Kind::Suffix
                && let Some(own) = dropped.take()
            {
                add(own, "drop");
            }
            let what = match e.kind {
                Kind::Switched => e.value.to_string(),
                Kind::Prefix => format!("{}/{}", e.value, e.mask.to_bits().leading_ones()),
                Kind::Suffix => format!("{}/{}", e.value, e.mask),
            };
            add(&what, &format!("output:{}", e.port + 1));
        }
        flows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(switch: &str) -> SwitchTable {
        let tree = FatTree::new(4).unwrap();
        SwitchTable::new(tree, tree.switch_at(switch.parse().unwrap()).unwrap())
    }

    #[test]
    fn figure_3_4_as_flows() {
        let flows = table("10.2.2.1").flows();
        let ip: Vec<&str> = flows.iter().filter(|f| f.contains(",ip,")).map(String::as_str).collect();
        let expected = [
            "priority=1000,ip,nw_dst=10.2.0.0/24,actions=output:1",
            "priority=999,ip,nw_dst=10.2.1.0/24,actions=output:2",
            "priority=998,ip,nw_dst=10.2.0.0/16,actions=drop",
            "priority=997,ip,nw_dst=0.0.0.2/0.0.0.255,actions=output:3",
            "priority=996,ip,nw_dst=0.0.0.3/0.0.0.255,actions=output:4",
        ];
        assert_eq!(ip, expected);
        assert_eq!(flows.len(), 2 * ip.len());
    }

    #[test]
    fn an_edge_switch_has_its_hosts_first_and_a_core_nothing_but_prefixes() {
        let edge = table("10.0.1.1");
        let kinds: Vec<Kind> = edge.entries.iter().map(|e| e.kind).collect();
        assert_eq!(kinds, [Kind::Switched, Kind::Switched, Kind::Suffix, Kind::Suffix]);
        assert_eq!(edge.entries[1].value, "10.0.1.3".parse::<Ipv4Addr>().unwrap());
        assert_eq!((edge.entries[3].port, edge.entries[3].to), (2, "10.0.2.1".parse().unwrap()));
        let core = table("10.4.1.2");
        assert_eq!((core.prefixes, core.suffixes, core.dropped, core.entries.len()), (4, 0, None, 4));
        let largest = SwitchTable::new(FatTree::new(254).unwrap(), Switch::Edge { pod: 0, at: 0 });
        assert!(largest.flows().iter().all(|f| f.starts_with("priority=")) && largest.entries.len() == 254);
    }
}
