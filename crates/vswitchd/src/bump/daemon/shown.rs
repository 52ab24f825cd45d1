//! The state of a bump, from the reports of its loops.

use super::{Daemon, State, place};
use crate::bump::map::Downstream;
use crate::bump::status::{BumpStatus, LaneStatus, NeighbourStatus, QueueStatus, UpdateStatus};
use crate::config::PortConfig;
use crate::status::{Absent, Again, Ledger, PortStatus, Status, by_name};
use sluicenet_dataplane::bump::{EndReport, QueueReport, Report};
use sluicenet_proto::loss::Drops;
use sluicenet_proto::netbump::QueueId;
use sluicenet_proto::time::Duration;
use sluicenet_wire::lldp;
use std::collections::BTreeMap;

impl Daemon {
    pub(super) fn status_of(&self, reports: &[Report], queues: &[QueueReport], read_at_ns: u64) -> Status {
        let state = self.state();
        let config = &state.config;
        let mut status = Status {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.life.uptime_s(),
            sleeps: reports.iter().map(|report| report.sleeps).sum(),
            // A bump has no queues that could be full.
            slots: u32::MAX,
            ..Status::default()
        };
        let (mut consumed, mut own, mut own_lost, mut unmapped) = (0, 0, 0, 0);
        let mut neighbours = BTreeMap::new();
        for (at, port) in config.links.iter().flatten().enumerate() {
            let (link, end) = (at / 2, at % 2);
            let parts = (0..config.pipelines).map(|part| place(config.pipelines, link, part));
            let of = |end: usize| parts.clone().filter_map(move |n| reports.get(n)?.ends.get(end));
            let mut shown = PortStatus { name: port.name.clone(), kind: port.kind.name().into(), ..Default::default() };
            let (mut refused, mut dropped) = (Drops::default(), Drops::default());
            for report in of(end) {
                let EndReport { present, counts, refused: r, lost, inside, own: counters, .. } = report;
                shown.number = shown.number.or(present.then_some(at));
                shown.accepted += counts.taken;
                shown.delivered += counts.delivered;
                shown.bytes_from += counts.bytes_taken;
                shown.bytes_to += counts.bytes_delivered;
                shown.held_back += counts.held_back;
                shown.inside += inside;
                refused.add(r);
                dropped.add(lost);
                for (name, n) in counters {
                    *shown.counters.entry((*name).to_owned()).or_default() += n;
                }
                if let Some(neighbour) = neighbour_at(report) {
                    neighbours.insert(port.name.clone(), neighbour);
                }
                consumed += counts.consumed;
                own += counts.own;
                own_lost += counts.own_lost;
                unmapped += counts.unmapped;
            }
            let other = &config.links[link][end ^ 1].name;
            if of(end).any(|report| report.blocked) {
                shown.waits_for.push(other.clone());
            }
            // Frames from the other end that were for this one.
            of(end ^ 1).for_each(|report| dropped.add(&report.counts.dropped));
            (shown.refused, shown.dropped) = (by_name(&refused), by_name(&dropped));
            if let Some((_, why)) = state.absent.iter().find(|(name, _)| *name == port.name) {
                let (reason, again) = (why.clone(), Again::NextStart);
                shown.absent = Some(Absent { reason, again }).filter(|_| shown.number.is_none());
            }
            status.ports.push(shown);
        }
        for [all, delivered, consumed, dropped] in reports.iter().map(Report::ledger) {
            status.ledger.accepted += all - consumed;
            status.ledger.delivered += delivered;
            status.ledger.dropped += dropped;
        }
        let Ledger { accepted, delivered, dropped, .. } = status.ledger;
        status.ledger.queued = accepted.saturating_sub(delivered + dropped);
        let shown = |(id, downstream): &(QueueId, Downstream)| {
            let q = queues.get(usize::from(*id))?;
            let mut gauges = BTreeMap::new();
            q.gauges.iter().for_each(|(name, value)| *gauges.entry((*name).to_owned()).or_default() += value);
            Some(QueueStatus {
                port: downstream.name.clone(),
                rate_bps: q.rate.as_bps(),
                bytes: q.bytes,
                limit_bytes: q.limit_bytes,
                overflow_bytes: q.overflow_bytes,
                packets: q.counts.packets,
                marked: q.counts.marked,
                dropped: q.counts.dropped,
                consumed: q.counts.consumed,
                notices: q.counts.notices,
                reported: q.counts.reported,
                gauges,
            })
        };
        let names = |[a, b]: &[PortConfig; 2]| [a.name.clone(), b.name.clone()];
        status.bump = Some(Box::new(BumpStatus {
            links: config.links.iter().map(names).collect(),
            mac: config.mac.map(|b| format!("{b:02x}")).join(":"),
            loops: reports.len(),
            sleeps: config.sleep_after.is_some(),
            when_dead: config.when_dead.name().into(),
            neighbours,
            consumed,
            own,
            own_lost,
            unmapped,
            read_at_ns,
            queues: state.queues.iter().filter_map(shown).collect(),
            program: config.program.as_ref().map(|program| program.file.clone()),
            lanes: lanes_status(&state, reports),
            updates: updates_status(reports),
        }));
        status
    }
}

/// The lanes of a program, of all loops of a virtual queue together.
fn lanes_status(state: &State, reports: &[Report]) -> Vec<LaneStatus> {
    let mut all: Vec<LaneStatus> = Vec::new();
    for lane in reports.iter().flat_map(|report| &report.lanes) {
        let named = |id: QueueId| state.queues.iter().find(|(other, _)| *other == id).map(|(_, d)| d.name.clone());
        let port = lane.queue.map_or(Some("all".into()), named).unwrap_or_else(|| "gone".into());
        let at = all.iter().position(|other| other.port == port).unwrap_or_else(|| {
            all.push(LaneStatus { port, runs: true, ..LaneStatus::default() });
            all.len() - 1
        });
        let (sum, c) = (&mut all[at], &lane.counts);
        sum.runs &= lane.runs;
        sum.inside += u64::from(lane.inside);
        let counters = [
            ("called", c.called),
            ("starts", c.starts),
            ("crashes", c.crashes),
            ("timeouts", c.timeouts),
            ("broke_rules", c.broke_rules),
            ("bypassed", c.bypassed),
            ("blocked", c.blocked),
            ("overrun", c.overrun),
            ("damaged", c.damaged),
            ("own_refused", c.own_refused),
        ];
        counters.into_iter().for_each(|(name, n)| *sum.counters.entry(name.to_owned()).or_default() += n);
    }
    all
}

fn updates_status(reports: &[Report]) -> Option<UpdateStatus> {
    let mut all: Option<UpdateStatus> = None;
    for updates in reports.iter().filter_map(|report| report.updates.as_ref()) {
        let sum = all.get_or_insert_default();
        sum.sent += updates.sent;
        sum.forged += updates.forged;
        sum.damaged += updates.damaged;
        sum.strangers += updates.strangers;
        for (bump, c) in &updates.neighbours {
            let counts = sum.neighbours.entry(*bump).or_default();
            let more = [c.merged, c.lost, c.stale, c.unknown_ports, c.estimated_bytes];
            counts.iter_mut().zip(more).for_each(|(n, more)| *n += more);
        }
    }
    all
}

/// What the neighbour at an end says about itself, as long as that is true.
pub(super) fn neighbour_at(report: &EndReport) -> Option<NeighbourStatus> {
    let (bytes, age) = &report.lldp;
    let repr = lldp::Repr::parse(bytes).ok()?;
    if *age > Duration::from_secs(repr.time_to_live_s.into()) {
        return None;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(255)]).escape_debug().to_string();
    let shown = |id: lldp::Id<'_>| match id {
        lldp::Id::Mac(mac) => mac.to_string(),
        lldp::Id::Text(name) => text(name),
    };
    let system = if repr.system_name.is_empty() { shown(repr.chassis) } else { text(repr.system_name) };
    Some(NeighbourStatus { system, port: shown(repr.port), mbps: repr.mbps })
}
