//! The transmitting ends of links, and the order of events.

use super::{FabricSpec, SpecError};
use sluicenet_node::device::{PortId, Wires};
use sluicenet_node::link::NodeId;
use sluicenet_node::pool::Handle;
use sluicenet_proto::time::Duration;

/// The transmitting end of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub free_at: u64,
    pub ps_per_byte_q16: u64,
    pub latency: u64,
    pub pause_latency: u64,
    pub first_bit: bool,
    pub bit_error_rate: f64,
    pub peer: (NodeId, PortId),
    pub frames: u64,
    /// Whether an event for when it is free is in the agenda.
    pub armed: bool,
}

/// The wires of a switch or edge at an instant.
pub(super) struct PortView<'a>(pub &'a [Wire], pub u64);

impl Wires for PortView<'_> {
    fn idle(&self, port: PortId) -> bool {
        self.0[port as usize].free_at <= self.1
    }
}

/// The order within an instant, as in the simulated world: free wires by port, then arrivals in drawn order, then timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    WireFree,
    Arrival,
    Timer,
}

/// Ordered by its fields, top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Event {
    pub at: u64,
    pub node: NodeId,
    pub class: Class,
    pub tie_rank: u64,
    pub port: PortId,
    /// Among arrivals at one port in one instant, a pause goes first.
    pub is_data: bool,
    pub frame: Handle,
}

/// The wires of every switch and edge, by port.
pub(super) fn wires(spec: &FabricSpec) -> Result<Vec<Vec<Wire>>, SpecError> {
    let ports = spec.edges.iter().map(|_| 1).chain(spec.switches.iter().map(|s| s.ports.len()));
    let mut wires: Vec<Vec<Option<Wire>>> = ports.map(|n| vec![None; n]).collect();
    let exists = |wires: &[Vec<Option<Wire>>], (node, port): (NodeId, PortId)| {
        wires.get(node as usize).is_some_and(|w| w.len() > port as usize)
    };
    for l in &spec.links {
        for end in [l.from, l.to] {
            if !exists(&wires, end) {
                return Err(SpecError::Port { at: end });
            }
        }
        if l.latency == Duration::ZERO || l.pause_latency == Duration::ZERO {
            return Err(SpecError::NoDelay { from: l.from });
        }
        let wire = Wire {
            free_at: 0,
            ps_per_byte_q16: l.rate.ps_per_byte_q16(),
            latency: l.latency.0,
            pause_latency: l.pause_latency.0,
            first_bit: l.first_bit,
            bit_error_rate: l.bit_error_rate,
            peer: l.to,
            frames: 0,
            armed: false,
        };
        if wires[l.from.0 as usize][l.from.1 as usize].replace(wire).is_some() {
            return Err(SpecError::Port { at: l.from });
        }
    }
    let whole = |(node, wires): (usize, Vec<Option<Wire>>)| {
        let of_port =
            |(port, wire): (usize, Option<Wire>)| wire.ok_or(SpecError::Port { at: (node as NodeId, port as PortId) });
        wires.into_iter().enumerate().map(of_port).collect()
    };
    wires.into_iter().enumerate().map(whole).collect()
}
