//! Reports about the ends of links and the virtual queues.

use super::Frame;
use super::end::{End, EndCounts};
use super::neighbours::{UpdateReport, Updates};
use super::program::{LaneReport, Programs};
use sluicenet_proto::netbump::{App, Counts, Slot};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::units::Rate;

/// The state and the counters of an end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndReport {
    /// Its name.
    pub name: String,
    /// Whether a port is there.
    pub present: bool,
    /// Frames by fate; those that the port holds or lost do not count as delivered.
    pub counts: EndCounts,
    /// Frames that were dropped in ports at this end before the bump saw them.
    pub refused: sluicenet_proto::loss::Drops,
    /// Frames that were delivered to ports at this end and lost there.
    pub lost: sluicenet_proto::loss::Drops,
    /// Frames that were delivered to the port and wait there.
    pub inside: u32,
    /// Whether its next frame waits.
    pub blocked: bool,
    /// The last LLDP frame from the other side, empty if none came, and its age.
    pub lldp: (Vec<u8>, Duration),
    /// The port's own counters, by name.
    pub own: Vec<(&'static str, u64)>,
}

/// The state and the counters of a loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its ends.
    pub ends: Vec<EndReport>,
    /// Updates from and to other bumps.
    pub updates: Option<UpdateReport>,
    /// The lanes of its program.
    pub lanes: Vec<LaneReport>,
    /// Times that the loop slept.
    pub sleeps: u64,
}

impl Report {
    /// Frames taken and sent by the bump itself; delivered; consumed; dropped. The first are the sum of the others and of
    /// those inside ports and lanes.
    pub fn ledger(&self) -> [u64; 4] {
        let sum = |of: fn(&EndReport) -> u64| self.ends.iter().map(of).sum();
        [
            sum(|e| e.counts.taken + e.counts.own + e.counts.split),
            sum(|e| e.counts.delivered - e.counts.segments),
            sum(|e| e.counts.consumed),
            sum(|e| e.counts.dropped.total_frames() + e.lost.total_frames()),
        ]
    }
}

/// The state and the counters of a virtual queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueReport {
    /// Bytes in the queue, as estimated.
    pub bytes: u64,
    /// The most bytes that it can have.
    pub limit_bytes: Option<u64>,
    /// Its drain rate.
    pub rate: Rate,
    /// Bytes that did not fit.
    pub overflow_bytes: u64,
    /// Packets, by what became of them.
    pub counts: Counts,
    /// Rates and averages of the applications, by name.
    pub gauges: Vec<(&'static str, f64)>,
}

pub(super) fn of_queue<A: App<Frame>>(app: &A, now: Instant, slot: &Slot<A::State>) -> QueueReport {
    let mut gauges = Vec::new();
    app.gauges(&slot.state, &mut |name, value| gauges.push((name, value)));
    QueueReport {
        bytes: app.estimate_qlen(&slot.state, now, &slot.queue),
        limit_bytes: slot.queue.limit_bytes(),
        rate: slot.queue.rate(),
        overflow_bytes: slot.queue.overflow_bytes(),
        counts: slot.counts,
        gauges,
    }
}

pub(super) fn of(
    now: Instant,
    ends: &[End],
    updates: Option<&Updates>,
    programs: Option<&Programs>,
    sleeps: u64,
) -> Report {
    audit(ends, programs.map_or(0, Programs::inside));
    Report {
        ends: ends.iter().map(|end| of_end(now, end)).collect(),
        updates: updates.map(Updates::report),
        lanes: programs.map(Programs::report).unwrap_or_default(),
        sleeps,
    }
}

/// Checks that every frame is accounted for.
fn audit(ends: &[End], in_lanes: u64) {
    let (mut before, mut after) = (0, in_lanes);
    for end in ends {
        let c = &end.counts;
        before += c.taken + c.own + c.split;
        after += c.delivered + c.consumed + c.dropped.total_frames();
        after -= c.segments;
        // A frame of which only some segments have left is not taken yet.
        let is_sound = end.port.as_ref().is_none_or(|port| port.get().is_sound());
        assert!(is_sound, "port {} does not account for every frame inside it", end.name);
    }
    assert_eq!(before, after, "the bump does not account for every frame");
}

fn of_end(now: Instant, end: &End) -> EndReport {
    let (mut own, mut counts) = (Vec::new(), end.counts);
    let (mut refused, mut lost, mut inside) = (counts.gone_refused, counts.gone_lost, 0);
    if let Some(port) = &end.port {
        let port = port.get();
        port.counters(&mut |name, value| own.push((name, value)));
        let now = port.inside();
        refused.add(&now.refused);
        lost.add(&now.lost);
        inside = now.waiting;
    }
    counts.delivered -= (lost.total_frames() + u64::from(inside)).min(counts.delivered);
    EndReport {
        name: end.name.clone(),
        present: end.port.is_some(),
        counts,
        refused,
        lost,
        inside,
        blocked: end.blocked,
        lldp: (end.lldp.0.clone(), now.since(end.lldp.1)),
        own,
    }
}
