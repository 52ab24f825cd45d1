//! Conservation: every sent frame was delivered, was dropped for a named reason, or is still in the world.

use crate::engine::Engine;
use crate::world::NodeRef;
use sluicenet_node::link::NodeId;
use sluicenet_node::packet::Kind;
use sluicenet_node::server::App;

/// A box whose frame counts do not balance: an error of this program, never of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imbalance {
    /// The box.
    pub node: NodeId,
    /// The counts of incoming and outgoing frames, as text.
    pub sums: String,
}

/// Frames of the whole world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sent by guests and hypervisors, and by markers in switches.
    pub sent: u64,
    /// Delivered to guests and hypervisors.
    pub delivered: u64,
    /// Dropped, for any reason.
    pub dropped: u64,
    /// In queues and on wires.
    pub inside: u64,
    /// Pause frames sent.
    pub pauses: u64,
    /// Delivered to guests alone: the packets of transports from end to end.
    pub end_to_end: u64,
}

/// Checks every box, every wire and the whole.
pub fn check<A: App>(engine: &Engine<A>) -> Result<Totals, Vec<Imbalance>> {
    let nodes = engine.nodes();
    let mut flying = vec![0u64; nodes];
    let (mut flying_data, mut no_data, mut copies) = (0, 0, 0);
    // Frames in tunnels between servers, which count as delivered when they enter: frames that entered, and frames still
    // inside.
    let (mut put, mut in_tunnels) = (0, 0);
    for (node, _, packet) in engine.in_flight() {
        in_tunnels += u64::from(packet.kind() == Kind::Tunnelled);
        flying[node as usize] += !matches!(packet.kind(), Kind::Metadata | Kind::Tunnelled) as u64;
        match packet.kind() {
            Kind::Pause | Kind::Metadata | Kind::Tunnelled => no_data += 1,
            Kind::Tcp | Kind::Udp | Kind::Light | Kind::Roce => flying_data += 1,
            Kind::Credit | Kind::Bridge | Kind::Notification | Kind::Update | Kind::Xco => flying_data += 1,
        }
    }
    let mut towards = vec![0u64; nodes];
    for n in 0..nodes as NodeId {
        for p in 0..engine.ports(n) as u16 {
            towards[engine.peer(n, p).0 as usize] += engine.sent(n, p).0;
        }
    }
    let mut wrong = Vec::new();
    let mut totals = Totals { inside: flying_data, ..Totals::default() };
    for n in 0..nodes as NodeId {
        let on_wires: u64 = (0..engine.ports(n) as u16).map(|p| engine.sent(n, p).0).sum();
        let arrived = towards[n as usize] - flying[n as usize];
        let (balances, received, sent, sums) = match engine.node(n).kind() {
            NodeRef::Switch(s) => {
                let dropped: u64 = s.drops().values().map(|d| d.0).sum();
                totals.sent += s.emitted();
                totals.dropped += dropped;
                totals.inside += s.queued();
                totals.pauses += s.control_out();
                let sums = format!(
                    "in {} + emitted {} = out {} + dropped {dropped} + queued {}",
                    s.frames_in(),
                    s.emitted(),
                    s.frames_out(),
                    s.queued()
                );
                let balances = s.frames_in() + s.emitted() == s.frames_out() + dropped + s.queued();
                (balances, s.frames_in() + s.control_in(), s.frames_out() + s.control_out(), sums)
            }
            NodeRef::Server(s) => {
                let (l, stages) = (s.ledger(), s.report());
                totals.sent += l.from_guests + l.from_hypervisor;
                totals.delivered += l.to_guests + l.to_hypervisor;
                totals.end_to_end += l.to_guests;
                totals.dropped += l.dropped;
                totals.inside += l.queued;
                copies += l.copies;
                (put, in_tunnels) = (put + stages.tunnels_in, in_tunnels + stages.tunnels_out);
                totals.pauses += s.host().adapter().control_out();
                let adapter = s.host().adapter();
                let sent = l.to_wire + adapter.control_out();
                // With several links the adapter counts the frames of each link.
                let each = (0..engine.ports(n) as u16)
                    .all(|p| adapter.sent(p).is_none_or(|frames| frames == engine.sent(n, p).0));
                (
                    l.balances() && each && stages.unsound.is_empty(),
                    l.from_wire + adapter.control_in(),
                    sent,
                    format!(
                        "{l:?}{}; unsound stages: {:?}",
                        if each { "" } else { ", and not link by link" },
                        stages.unsound
                    ),
                )
            }
            NodeRef::Idle => (true, 0, 0, String::new()),
            NodeRef::Bump(bump) => {
                let (l, dropped) = (bump.ledger(), bump.drops().total_frames());
                totals.sent += l.emitted;
                totals.delivered += l.consumed;
                totals.dropped += dropped;
                totals.inside += l.queued;
                no_data += l.pauses_queued;
                let balances = l.frames_in + l.emitted == l.frames_out + l.consumed + dropped + l.queued
                    && l.pauses_in == l.pauses_out + l.pauses_queued;
                (balances, l.frames_in + l.pauses_in, l.frames_out + l.pauses_out, format!("{l:?}, dropped {dropped}"))
            }
        };
        if !balances || received != arrived || sent != on_wires {
            let sums = format!(
                "{sums}; wires brought {arrived} and it counted {received}; it sent {sent}, wires took {on_wires}"
            );
            wrong.push(Imbalance { node: n, sums });
        }
    }
    if totals.sent != totals.delivered + totals.dropped + totals.inside {
        wrong.push(Imbalance { node: NodeId::MAX, sums: format!("the whole: {totals:?}") });
    }
    if put != in_tunnels {
        let sums = format!("{put} frames went into tunnels, {in_tunnels} came out or are in them");
        wrong.push(Imbalance { node: NodeId::MAX, sums });
    }
    // Each frame has one owner: a frame without an owner was lost without a reason, a frame with two owners would arrive
    // twice.
    let owned = totals.inside + no_data + copies;
    if engine.frames() != owned {
        let sums = format!("{} frames in memory, {owned} in queues, on wires and kept", engine.frames());
        wrong.push(Imbalance { node: NodeId::MAX, sums });
    }
    if wrong.is_empty() { Ok(totals) } else { Err(wrong) }
}
