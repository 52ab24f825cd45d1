//! Trees: extended generalised fat-trees with external hosts at their roots, and with parallel links.

use super::{Attachment, HostLinks, HostRouting, Plan, SwitchPlan, Tier, policy};
use sluicenet_proto::frame::HostId;
use sluicenet_proto::routing::Router;
use sluicenet_proto::routing::tree::TreeRouter;
use sluicenet_proto::routing::xgft::{SwitchName, Xgft};
use sluicenet_scenario::{Result, Scenario};

/// The network of a tree with `p[i]` links between a node of level `i` and each of its parents.
pub(super) fn plan(
    scenario: &Scenario,
    (m, w, p): (&[u32], &[u32], &[u32]),
    of_level: &dyn Fn(u8) -> Tier,
) -> Result<Plan> {
    let shape = Xgft::with_links(m, w, p);
    let t = shape.map_err(|e| scenario.locations.error("topology", format!("this is no tree: {e:?}")))?;
    let topology = &scenario.topology;
    let external = topology.external_hosts;
    let leaves = t.leaves();
    let hosts_total = leaves + external;
    let names: Vec<SwitchName> = t.switches().collect();
    let roots: Vec<SwitchName> = names.iter().copied().filter(|s| s.level == t.levels()).collect();
    let root_of: Vec<SwitchName> = (0..external).map(|e| roots[e as usize % roots.len()]).collect();
    let link = |level: u8| topology.levels.get(level as usize - 1).copied().unwrap_or(topology.link);
    let node = |s: SwitchName| hosts_total + t.index(s);
    // Ports as [`Xgft`] numbers them: the `port`th is of link `port / n` to neighbour `port % n` of `n`.
    let up_port = |level: u8, parent: u32, link: u32| (t.down_ports(level) + parent + t.parents(level) * link) as u16;
    let down_port = |level: u8, child: u32, link: u32| (child + t.children(level) * link) as u16;

    let of_leaf = |h: HostId| {
        let end = |port: u32| {
            let (parent, nth) = (port % t.parents(0), port / t.parents(0));
            let peer_port = down_port(1, h % t.children(1), nth);
            Attachment { peer: node(t.leaf_parent(h, parent)), peer_port, link: link(1) }
        };
        (0..t.up_ports(0)).map(end).collect()
    };
    let mut switches: Vec<SwitchPlan> = names
        .iter()
        .map(|&s| {
            let down = (0..t.down_ports(s.level)).map(|port| {
                let (child, nth) =
                    (s.group * t.children(s.level) + port % t.children(s.level), port / t.children(s.level));
                let (peer, peer_port) = if s.level == 1 {
                    (child, (s.position + t.parents(0) * nth) as u16)
                } else {
                    let below = t.positions(s.level - 1);
                    let name = SwitchName { level: s.level - 1, group: child, position: s.position % below };
                    (node(name), up_port(name.level, s.position / below, nth))
                };
                Attachment { peer, peer_port, link: link(s.level) }
            });
            let up = (0..t.up_ports(s.level)).map(|port| {
                let parent = t.parent(s, port % t.parents(s.level));
                let peer_port = down_port(parent.level, s.group % t.children(parent.level), port / t.parents(s.level));
                Attachment { peer: node(parent), peer_port, link: link(parent.level) }
            });
            let ports = down.chain(up).collect();
            let router = TreeRouter::new(&t, s, policy(topology.routing), scenario.seed, &root_of);
            let tier = of_level(s.level);
            let buffers = tier.buffers(t.down_ports(s.level), t.up_ports(s.level));
            SwitchPlan {
                level: s.level,
                ports,
                router: Router::Tree(router),
                delay: tier.delay,
                buffers,
                is_first: false,
            }
        })
        .collect();
    let mut clients = Vec::new();
    for (e, root) in root_of.iter().enumerate() {
        let s = &mut switches[t.index(*root) as usize];
        let port = s.ports.len() as u16;
        s.ports.push(Attachment { peer: leaves + e as u32, peer_port: 0, link: topology.link });
        clients.push(vec![Attachment { peer: node(*root), peer_port: port, link: topology.link }]);
    }
    let hosts = HostLinks::new((0..leaves).map(of_leaf).chain(clients));
    let routing = HostRouting::Tree { tree: t, roots: root_of, policy: policy(topology.routing), seed: scenario.seed };
    Ok(Plan { hosts, external, switches, routing, first_link: Vec::new() })
}
