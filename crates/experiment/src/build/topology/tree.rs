//! Trees: extended generalised fat-trees with external hosts at their roots, and with parallel links.

use super::{Attachment, HostRouting, Plan, SwitchPlan, Tier, first_links, policy};
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::Router;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::{SwitchName, Xgft};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Link, Result, Scenario};

/// The ends of the links of a tree. Ports are numbered as in [`Xgft`]: the `port`th is of link `port / n` to neighbour
/// `port % n` of `n`. External hosts follow the leaves; the roots take them in turn, at the ports behind their children.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    tree: Xgft,
    external: u32,
    /// The links between a level and the one above it, from the leaves up.
    links: Vec<Link>,
    /// The links of external hosts.
    outside: Link,
}

impl Ends {
    fn hosts(&self) -> u32 {
        self.tree.leaves() + self.external
    }

    fn roots(&self) -> u32 {
        self.tree.positions(self.tree.levels())
    }

    /// The root of an external host.
    fn root(&self, external: u32) -> SwitchName {
        SwitchName { level: self.tree.levels(), group: 0, position: external % self.roots() }
    }

    /// External hosts at a switch.
    fn outside_at(&self, s: SwitchName) -> u32 {
        if s.level < self.tree.levels() { 0 } else { (self.external + self.roots() - 1 - s.position) / self.roots() }
    }

    fn node(&self, s: SwitchName) -> NodeId {
        self.hosts() + self.tree.index(s)
    }

    fn link(&self, level: u8) -> Link {
        self.links[level as usize - 1]
    }

    /// The upward port of a switch on its `nth` link to a parent.
    fn up_port(&self, level: u8, parent: u32, nth: u32) -> PortId {
        (self.tree.down_ports(level) + parent + self.tree.parents(level) * nth) as PortId
    }

    /// The downward port of a switch on its `nth` link to a child.
    fn down_port(&self, level: u8, child: u32, nth: u32) -> PortId {
        (child + self.tree.children(level) * nth) as PortId
    }

    /// The end of a port's link.
    pub fn of(&self, node: NodeId, port: PortId) -> Attachment {
        let (t, port) = (&self.tree, u32::from(port));
        if let Some(switch) = node.checked_sub(self.hosts()) {
            return self.of_switch(t.name(switch), port);
        }
        match node.checked_sub(t.leaves()) {
            None => {
                let (parent, nth) = (port % t.parents(0), port / t.parents(0));
                let peer_port = self.down_port(1, node % t.children(1), nth);
                Attachment { peer: self.node(t.leaf_parent(node, parent)), peer_port, link: self.link(1) }
            }
            Some(external) => {
                let root = self.root(external);
                let peer_port = (t.down_ports(root.level) + external / self.roots()) as PortId;
                Attachment { peer: self.node(root), peer_port, link: self.outside }
            }
        }
    }

    fn of_switch(&self, s: SwitchName, port: u32) -> Attachment {
        let t = &self.tree;
        let Some(above) = port.checked_sub(t.down_ports(s.level)) else {
            let (child, nth) = (s.group * t.children(s.level) + port % t.children(s.level), port / t.children(s.level));
            let (peer, peer_port) = if s.level == 1 {
                (child, (s.position + t.parents(0) * nth) as PortId)
            } else {
                let below = t.positions(s.level - 1);
                let name = SwitchName { level: s.level - 1, group: child, position: s.position % below };
                (self.node(name), self.up_port(name.level, s.position / below, nth))
            };
            return Attachment { peer, peer_port, link: self.link(s.level) };
        };
        match above.checked_sub(t.up_ports(s.level)) {
            None => {
                let parent = t.parent(s, above % t.parents(s.level));
                let nth = above / t.parents(s.level);
                let peer_port = self.down_port(parent.level, s.group % t.children(parent.level), nth);
                Attachment { peer: self.node(parent), peer_port, link: self.link(parent.level) }
            }
            Some(nth) => {
                let peer = t.leaves() + s.position + self.roots() * nth;
                Attachment { peer, peer_port: 0, link: self.outside }
            }
        }
    }
}

/// The network of a tree with `p[i]` links between a node of level `i` and each of its parents.
pub(super) fn plan(
    scenario: &Scenario,
    (m, w, p): (&[u32], &[u32], &[u32]),
    of_level: &dyn Fn(u8) -> Tier,
) -> Result<Plan> {
    let shape = Xgft::with_links(m, w, p);
    let t = shape.map_err(|e| scenario.locations.error("topology", format!("this is no tree: {e:?}")))?;
    let topology = &scenario.topology;
    let link = |level: u8| topology.levels.get(level as usize - 1).copied().unwrap_or(topology.link);
    let links = (1..=t.levels()).map(link).collect();
    let external = topology.external_hosts;
    let ends = Ends { tree: t.clone(), external, links, outside: topology.link };
    let root_of: Vec<SwitchName> = (0..external).map(|e| ends.root(e)).collect();
    let ports = |s: SwitchName| (t.down_ports(s.level), t.up_ports(s.level), ends.outside_at(s));
    let switch = |s: SwitchName| {
        let (down, up, outside) = ports(s);
        let rates = [(down, s.level), (up, s.level + 1)].map(|(n, level)| (n > 0).then(|| ends.link(level).rate));
        let rates = rates.into_iter().chain([(outside > 0).then_some(ends.outside.rate)]).flatten();
        let tier = of_level(s.level);
        SwitchPlan {
            level: s.level,
            fastest: Rate(rates.map(Rate::as_bps).max().unwrap_or(0)),
            router: Router::Tree(TreeRouter::new(&t, s, policy(topology.routing), scenario.seed, &root_of)),
            delay: tier.delay,
            buffers: tier.buffers(down, up),
            is_first: false,
        }
    };
    let of_switches = t.switches().map(|s| {
        let (down, up, outside) = ports(s);
        down + up + outside
    });
    let of_leaves = (0..t.leaves()).map(|_: HostId| t.up_ports(0));
    let first_link = first_links(of_leaves.chain((0..external).map(|_| 1)).chain(of_switches));
    let switches = t.switches().map(switch).collect();
    let hosts = ends.hosts();
    let routing = HostRouting::Tree { tree: t, roots: root_of, policy: policy(topology.routing), seed: scenario.seed };
    Ok(Plan { hosts, external, switches, ends: super::Ends::Tree(ends), routing, first_link })
}
