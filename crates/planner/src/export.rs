//! A fat-tree for other tools: Open vSwitch's commands, and a containerlab topology.

use super::tables::SwitchTable;
use serde::{Serialize, Serializer};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::fat_tree::{FatTree, Peer, Switch};
use std::io::{Result, Write};

/// The default image of hosts: small, with `ping` and `ip`.
pub const HOST_IMAGE: &str = "alpine:3";

/// A switch's name as a bridge: e0-1, a0-1, and c1-2 for 10.k.1.2.
pub fn bridge(switch: Switch) -> String {
    match switch {
        Switch::Edge { pod, at } => format!("e{pod}-{at}"),
        Switch::Aggregation { pod, at } => format!("a{pod}-{at}"),
        Switch::Core { row, column } => format!("c{}-{}", row + 1, column + 1),
    }
}

/// A device at a bridge, at most 12 letters of Linux's 15: OpenFlow's port 3 of e0-1 is e0-1p3.
pub fn device(switch: Switch, port: u16) -> String {
    format!("{}p{}", bridge(switch), port + 1)
}

/// A host's name: h0-1-2 for 10.0.1.2.
pub fn host(tree: FatTree, host: HostId) -> String {
    let [_, pod, at, id] = tree.host_address(host).map(|a| a.octets()).unwrap_or_default();
    format!("h{pod}-{at}-{id}")
}

/// The commands that make a switch a bridge of Open vSwitch with its table. Each line is a program and its arguments,
/// separated by blanks; no shell is needed. The commands can be repeated.
pub fn ovs(tree: FatTree, switch: Switch) -> Vec<String> {
    let name = bridge(switch);
    let mut lines =
        vec![format!("ovs-vsctl --may-exist add-br {name} -- set Bridge {name} protocols=OpenFlow13 fail_mode=secure")];
    for port in 0..tree.k() as u16 {
        let device = device(switch, port);
        let number = port + 1;
        lines.push(format!(
            "ovs-vsctl --may-exist add-port {name} {device} -- set Interface {device} ofport_request={number}"
        ));
    }
    lines.push(format!("ovs-ofctl -O OpenFlow13 del-flows {name}"));
    let flows = SwitchTable::new(tree, switch).flows();
    lines.extend(flows.iter().map(|flow| format!("ovs-ofctl -O OpenFlow13 add-flow {name} {flow}")));
    lines
}

/// A node of a containerlab topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The node's name.
    #[serde(skip)]
    pub name: String,
    /// `ovs-bridge` or `linux`.
    pub kind: &'static str,
    /// The image of a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The commands that a host runs at its start.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
}

/// The nodes, switches first.
pub fn nodes(tree: FatTree, image: &str) -> impl Iterator<Item = Node> {
    let switch = |s| Node { name: bridge(s), kind: "ovs-bridge", image: None, exec: Vec::new() };
    let of_host = move |h| {
        let address = tree.host_address(h).map(|a| a.to_string()).unwrap_or_default();
        // All addresses are on-link: switches forward by the destination of packets and of ARP, and keep MAC addresses.
        let exec = vec![format!("ip address add {address}/8 dev eth1")];
        Node { name: host(tree, h), kind: "linux", image: Some(image.to_owned()), exec }
    };
    tree.switches().map(switch).chain((0..tree.hosts()).map(of_host))
}

/// The links, each as two `node:device`, the lower end first.
pub fn links(tree: FatTree) -> impl Iterator<Item = [String; 2]> {
    let end = |s, port| format!("{}:{}", bridge(s), device(s, port));
    tree.switches().flat_map(move |s| {
        let ports = if matches!(s, Switch::Core { .. }) { 0 } else { tree.k() as u16 };
        (0..ports).filter_map(move |port| match tree.peer(s, port) {
            Peer::Host(h) => Some([format!("{}:eth1", host(tree, h)), end(s, port)]),
            Peer::Switch(peer, at) if port >= tree.half() as u16 => Some([end(s, port), end(peer, at)]),
            Peer::Switch(..) => None,
        })
    })
}

/// A fat-tree as a containerlab topology, written one node or link at a time: as YAML, or serialised (JSON is YAML,
/// too).
#[derive(Clone, Copy, Debug)]
pub struct Containerlab<'a> {
    /// The network.
    pub tree: FatTree,
    /// The image of the hosts.
    pub image: &'a str,
}

impl Containerlab<'_> {
    fn name(&self) -> String {
        format!("fat-tree-{}", self.tree.k())
    }

    /// Writes the topology as YAML. Quoted texts contain no quotes and backslashes: they are names and addresses of
    /// this file, and an image that was checked by [`image_is_plain`].
    pub fn write_yaml(&self, out: &mut dyn Write) -> Result<()> {
        write!(out, "name: {}\ntopology:\n  nodes:\n", self.name())?;
        for node in nodes(self.tree, self.image) {
            write!(out, "    {}:\n      kind: {}\n", node.name, node.kind)?;
            if let Some(image) = &node.image {
                writeln!(out, "      image: \"{image}\"")?;
            }
            if !node.exec.is_empty() {
                writeln!(out, "      exec:")?;
            }
            for command in &node.exec {
                writeln!(out, "        - \"{command}\"")?;
            }
        }
        writeln!(out, "  links:")?;
        for [a, b] in links(self.tree) {
            writeln!(out, "    - endpoints: [\"{a}\", \"{b}\"]")?;
        }
        Ok(())
    }
}

impl Serialize for Containerlab<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Root<'a> {
            name: String,
            topology: Topology<'a>,
        }
        #[derive(Serialize)]
        struct Topology<'a> {
            #[serde(serialize_with = "as_map")]
            nodes: Containerlab<'a>,
            #[serde(serialize_with = "as_list")]
            links: Containerlab<'a>,
        }
        #[derive(Serialize)]
        struct Link {
            endpoints: [String; 2],
        }
        fn as_map<S: Serializer>(of: &Containerlab<'_>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            serializer.collect_map(nodes(of.tree, of.image).map(|n| (n.name.clone(), n)))
        }
        fn as_list<S: Serializer>(of: &Containerlab<'_>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            serializer.collect_seq(links(of.tree).map(|endpoints| Link { endpoints }))
        }
        Root { name: self.name(), topology: Topology { nodes: *self, links: *self } }.serialize(serializer)
    }
}

/// Whether an image's name has only characters that are valid in such names.
pub fn image_is_plain(image: &str) -> bool {
    !image.is_empty() && image.len() <= 255 && image.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn twenty_switches_sixteen_hosts_and_every_device_once() {
        let tree = FatTree::new(4).unwrap();
        let (topology, mut yaml) = (Containerlab { tree, image: HOST_IMAGE }, Vec::new());
        topology.write_yaml(&mut yaml).unwrap();
        let yaml = String::from_utf8(yaml).unwrap();
        assert_eq!((yaml.matches("kind: ovs-bridge").count(), yaml.matches("kind: linux").count()), (20, 16));
        assert_eq!(yaml.matches("endpoints").count(), 48);
        let ends: Vec<String> = links(tree).flatten().collect();
        assert_eq!(ends.iter().collect::<BTreeSet<_>>().len(), 96);
        assert!(yaml.contains("    - endpoints: [\"h0-1-2:eth1\", \"e0-1:e0-1p1\"]\n"), "{yaml}");
        // Port 3 of 10.0.2.1, from 1, is core 10.4.1.1.
        assert!(yaml.contains("    - endpoints: [\"a0-0:a0-0p3\", \"c1-1:c1-1p1\"]\n"), "{yaml}");
        let json = serde_json::to_value(topology).unwrap();
        assert_eq!(json["topology"]["nodes"].as_object().unwrap().len(), 36);
        assert_eq!(json["topology"]["nodes"]["h0-1-2"]["exec"][0], "ip address add 10.0.1.2/8 dev eth1");
        assert_eq!(json["topology"]["links"].as_array().unwrap().len(), 48);
        let longest = tree_device_longest();
        assert!(longest <= 15, "Linux has room for 15 letters: {longest}");
    }

    fn tree_device_longest() -> usize {
        let last = [Switch::Aggregation { pod: 253, at: 126 }, Switch::Core { row: 126, column: 126 }];
        last.map(|s| device(s, 253).len()).into_iter().max().unwrap()
    }

    #[test]
    fn commands_need_no_shell() {
        let tree = FatTree::new(6).unwrap();
        let lines: Vec<String> = tree.switches().flat_map(|s| ovs(tree, s)).collect();
        assert!(lines.iter().all(|l| l.starts_with("ovs-vsctl ") || l.starts_with("ovs-ofctl ")));
        let plain = |l: &String| l.chars().all(|c| c.is_ascii_alphanumeric() || " .,:=/_-".contains(c));
        assert!(lines.iter().all(plain));
        assert_eq!(lines.iter().filter(|l| l.contains("add-port")).count(), 45 * 6);
        assert!(!image_is_plain("a\"b") && !image_is_plain("") && image_is_plain("ghcr.io/x/y:1@sha256:00"));
    }
}
