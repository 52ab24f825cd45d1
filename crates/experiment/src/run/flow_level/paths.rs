//! The links that routers send the frames of a flow over.

use crate::build::Plan;
use sluicenet_node::guest::Transport;
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::{FlowKey, Kind, Packet};
use sluicenet_sim::flow_level::Crossing;
use std::collections::BTreeMap;

/// Most hops of a path: no tree of eight levels has as many.
pub(super) const HOPS_MAX: usize = 64;

/// A frame of a flow, as switches see it.
pub(super) fn probe(flow: FlowKey, transport: Transport) -> Packet {
    let kind = match transport {
        Transport::Tcp => Kind::Tcp,
        Transport::Udp => Kind::Udp,
        Transport::Light => Kind::Light,
        Transport::Roce => Kind::Roce,
    };
    Packet::of_flow(flow, kind)
}

/// The links over which routers send frames like `probe` between two hosts, and the part of the frames on each. A link
/// gets all of them where a flow keeps to one path, and a portion where routers choose anew for each frame.
pub(super) fn crossings(plan: &Plan, probe: &Packet) -> Vec<Crossing> {
    let (src, dst) = (probe.src().host(), probe.dst().host());
    let mut links: BTreeMap<u32, f64> = BTreeMap::new();
    let mut order = Vec::new();
    let mut at = BTreeMap::from([(src as NodeId, 1.0)]);
    for _ in 0..HOPS_MAX {
        let mut next: BTreeMap<NodeId, f64> = BTreeMap::new();
        for (node, portion) in at {
            if node == dst as NodeId {
                continue;
            }
            let ports = match plan.router(node) {
                Some(r) if r.divides_flows() => r.candidate_ports(probe),
                Some(r) => r.route(probe).into_iter().collect(),
                None => vec![0],
            };
            for &port in &ports {
                let link = plan.link_index(node, port) as u32;
                let part = portion / ports.len() as f64;
                if *links.entry(link).and_modify(|all| *all += part).or_insert(part) == part {
                    order.push(link);
                }
                *next.entry(plan.peer(node, port).0).or_default() += part;
            }
        }
        if next.is_empty() {
            break;
        }
        at = next;
    }
    order.dedup();
    order.into_iter().map(|link| Crossing { link, share: links[&link] }).collect()
}
