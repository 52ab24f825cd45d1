//! Detection of a cycle of pauses that no drain can resolve: it ends the run.

use crate::engine::Engine;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_node::server::App;
use sluicenet_proto::frame::Priority;
use std::collections::BTreeMap;

/// An output that is paused: box, port, priority.
pub type PausedOutput = (NodeId, PortId, Priority);

/// Finds outputs that wait for each other in a cycle, if there are any.
///
/// An output is stuck when the input of its peer is stopped and every output that holds frames of that input is itself
/// stuck. After all other outputs are removed, the remaining outputs can never send again.
pub fn find<A: App>(engine: &Engine<A>) -> Option<Vec<PausedOutput>> {
    let mut waits: BTreeMap<PausedOutput, Vec<PausedOutput>> = BTreeMap::new();
    for n in 0..engine.nodes() as NodeId {
        let Some(s) = engine.node(n).as_switch() else { continue };
        for port in 0..s.ports() as PortId {
            let Some(gate) = s.gate(port) else { break };
            for priority in gate.paused().iter().filter(|&p| s.queue_bytes(port, p) > 0) {
                let (peer, at) = engine.peer_beyond_bumps(n, port);
                let Some(peer_switch) = engine.node(peer).as_switch() else { continue };
                if !peer_switch.signal(at).is_some_and(|x| x.stopped().contains(priority)) {
                    continue;
                }
                let next = (0..peer_switch.ports() as PortId)
                    .filter(|&o| peer_switch.buffered(at, o, priority) > 0)
                    .map(|o| (peer, o, priority));
                waits.insert((n, port, priority), next.collect());
            }
        }
    }
    loop {
        let free: Vec<PausedOutput> =
            waits.iter().filter(|(_, next)| next.iter().any(|x| !waits.contains_key(x))).map(|(&h, _)| h).collect();
        if free.is_empty() {
            break;
        }
        for h in free {
            waits.remove(&h);
        }
    }
    let mut path = vec![*waits.keys().next()?];
    loop {
        let next = *waits.get(path.last()?)?.first()?;
        if let Some(i) = path.iter().position(|&h| h == next) {
            return Some(path.split_off(i));
        }
        path.push(next);
    }
}
