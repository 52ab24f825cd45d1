//! The figures of a run: the columns of its table, the output of `--json`, and the content of `summary.json`.

use super::{Job, Outcome, Streams};
use serde::{Deserialize, Serialize};
use sluicenet_node::server::XcoReport;
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::transport::zbridge::ChannelCounters;
use sluicenet_records::stats::Summary;
use sluicenet_records::{Manifest, RecordError, SUMMARY, Status, write_file};
use sluicenet_scenario::Workload;
use sluicenet_sim::RunEnd;
use std::collections::BTreeMap;
use std::path::Path;

/// Completion times of queries, rounds or flows, in microseconds; zero where none finished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// How many finished; those of the warm-up are left out.
    pub finished: u64,
    /// How many had begun and did not.
    pub unfinished: u64,
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Retransmission timeouts of those that count.
    pub timeouts: u64,
    /// Segments sent again by those that count.
    pub retransmissions: u64,
}

/// Frames between servers that zBridge numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZBridgeTotals {
    /// Sent, each counted once.
    pub sent: u64,
    /// Sent again.
    pub resent: u64,
    /// Delivered, each once and in order.
    pub delivered: u64,
    /// Frames that came a second time, and were not delivered.
    pub duplicates: u64,
    /// Times a sender asked because it had heard nothing.
    pub timeouts: u64,
}

impl From<ChannelCounters> for ZBridgeTotals {
    fn from(c: ChannelCounters) -> ZBridgeTotals {
        let ChannelCounters { sent, resent, delivered, duplicates, timeouts, .. } = c;
        ZBridgeTotals { sent, resent, delivered, duplicates, timeouts }
    }
}

/// What XCo did, over all servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct XcoTotals {
    /// Servers that joined.
    pub joined: u64,
    /// Directives that controllers sent.
    pub directives: u64,
    /// Timeslices among them; zero with rates.
    pub slices: u64,
    /// Timeslices that ended early for another destination of the same server.
    pub preempted: u64,
    /// Timeslices that were given back.
    pub returned: u64,
    /// Reports of coordinators, repetitions included.
    pub reports: u64,
    /// Frames of flows that were too small to be coordinated.
    pub small: u64,
    /// Frames that passed because no controller was heard.
    pub uncontrolled: u64,
    /// Flows that passed because they were served too late.
    pub starved: u64,
    /// Flows for which a controller had no room.
    pub refused: u64,
    /// Times at which a standby took over.
    pub takeovers: u64,
    /// Time for which the link that carried most was busy, in percent of the run.
    pub fullest_link_percent: f64,
}

impl XcoTotals {
    /// Adds the counts of a server.
    pub fn add(&mut self, one: &XcoReport) {
        match one {
            XcoReport::Coordinator(c) => {
                self.reports += c.reports;
                self.small += c.small;
                self.uncontrolled += c.uncontrolled;
                self.starved += c.starved;
            }
            XcoReport::Controller(both) => {
                let (c, slices) = &**both;
                self.joined += c.joined;
                self.directives += c.directives;
                self.returned += c.returned;
                self.refused += c.node_full + c.full + c.too_fast;
                self.takeovers += c.takeovers;
                self.slices += slices.map_or(0, |slices| slices.granted);
                self.preempted += slices.map_or(0, |slices| slices.preempted);
            }
        }
    }
}

/// Whether a count that few networks have is left out.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Microseconds of picoseconds, to a whole picosecond: smaller digits come from arithmetic and are no measurement.
pub fn us(ps: f64) -> f64 {
    ps.round() / 1e6
}

impl Completion {
    fn of(times_ps: impl Iterator<Item = u64>, unfinished: u64) -> Completion {
        let mut ps: Vec<f64> = times_ps.map(|ps| ps as f64).collect();
        let s = Summary::of(&mut ps);
        Completion {
            finished: s.count as u64,
            unfinished,
            mean_us: us(s.mean),
            p50_us: us(s.p50),
            p95_us: us(s.p95),
            p99_us: us(s.p99),
            p999_us: us(s.p999),
            max_us: us(s.max),
            ..Completion::default()
        }
    }

    /// The times, without the smallest, which is not kept.
    pub(crate) fn summary_us(&self) -> Summary {
        Summary {
            count: self.finished as usize,
            mean: self.mean_us,
            min: 0.0,
            p50: self.p50_us,
            p95: self.p95_us,
            p99: self.p99_us,
            p999: self.p999_us,
            max: self.max_us,
        }
    }
}

/// Figures of a run: the same for the same scenario and seed, on any machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Name of the scenario.
    pub scenario: String,
    /// The cell of a sweep: axis and value.
    pub axes: Vec<(String, String)>,
    /// The seed.
    pub seed: u64,
    /// SHA-256 of all the result depends on.
    pub scenario_sha256: String,
    /// `complete`, `interrupted`, or why it failed.
    pub status: String,
    /// LL, LZ, ZL or ZZ.
    pub flow_control: String,
    /// Whether there is a virtual network.
    pub virtual_network: bool,
    /// Simulated time.
    pub simulated_us: f64,
    /// Queries, or an incast's rounds, where the workload has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queries: Option<Completion>,
    /// Queries, and flows that belong to none, of the warm-up: the times leave them out, all counts have them.
    #[serde(default)]
    pub left_out: u64,
    /// Flows that belong to no query, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<Completion>,
    /// Flows without an end, where there are any.
    #[serde(default, skip_serializing_if = "Streams::is_empty")]
    pub streams: Streams,
    /// The most frames that a machine's receive queue held, where there are credits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_max_frames: Option<u32>,
    /// Frames that zBridge sent between servers, and its repairs; none without zBridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zbridge: Option<ZBridgeTotals>,
    /// What XCo did; none without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xco: Option<XcoTotals>,
    /// Messages of all kinds: begun and delivered in full.
    pub messages: (u64, u64),
    /// Retransmission timeouts of all messages, those of the warm-up too.
    pub timeouts: u64,
    /// Segments sent again of all messages.
    pub retransmissions: u64,
    /// Frames thrown away, for any reason.
    pub drops: u64,
    /// Frames lost for want of room in the virtual network.
    pub losses_virtual: u64,
    /// Frames lost by congestion of the physical network.
    pub losses_physical: u64,
    /// Frames thrown away, by reason.
    pub drops_by_reason: BTreeMap<String, u64>,
    /// Frames that were promised to arrive, lost in a lossless class or for want of a credit: an error.
    pub lossless_violations: u64,
    /// PFC frames sent to stop a peer.
    pub pauses: u64,
    /// Frames that switches marked with Congestion Experienced.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub marked: u64,
    /// Congestion notifications that switches sent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub notifications: u64,
    /// Frames sent on links, pause frames left out.
    pub packet_hops: u64,
    /// Packets from end to end: those of transports, data and acknowledgements alike, that a guest sent and another
    /// received. Frames of pauses, credits, bridges and other control are none.
    #[serde(default)]
    pub packets_end_to_end: u64,
    /// An incast's mean round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_round_us: Option<f64>,
    /// The line-rate bound of such a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound_us: Option<f64>,
}

impl Figures {
    /// From a run that has just ended.
    pub fn of(job: &Job, o: &Outcome) -> Figures {
        let s = &job.scenario;
        let counted = || o.queries.iter().filter(|q| !q.warmup);
        let has_queries = !o.queries.is_empty();
        let queries = has_queries.then(|| {
            let unfinished = counted().filter(|q| q.completion_ps.is_none()).count() as u64;
            Completion {
                timeouts: counted().map(|q| u64::from(q.timeouts)).sum(),
                retransmissions: counted().map(|q| u64::from(q.retransmissions)).sum(),
                ..Completion::of(counted().filter_map(|q| q.completion_ps), unfinished)
            }
        });
        let open = o.flows.open_alone;
        let has_flows = !o.flow_fct_ps.is_empty() || open > 0 || !has_queries;
        let flows = has_flows.then(|| Completion {
            timeouts: o.flows.timeouts_alone,
            retransmissions: o.flows.retransmissions_alone,
            ..Completion::of(o.flow_fct_ps.iter().copied(), open)
        });
        // The bound is that of the first incast's rounds.
        let incast = s.workloads.iter().position(|w| matches!(w, Workload::Incast(_)));
        let mean_round_us = incast.filter(|_| has_queries).map(|i| {
            let rounds = counted().filter(|q| usize::from(q.workload) == i);
            Completion::of(rounds.filter_map(|q| q.completion_ps), 0).mean_us
        });
        let drops = |r: DropReason| o.switch_drops.frames(r) + o.server_drops.frames(r);
        let status = match (&o.deadlock, o.end) {
            (Some(circle), _) => format!("failed: deadlock: {circle}"),
            _ if o.violations > 0 => format!("failed: {}", violated(o.violations, o.uncredited, o.overrun.as_deref())),
            (None, RunEnd::Interrupted) => "interrupted".into(),
            _ => "complete".into(),
        };
        Figures {
            scenario: s.name.clone(),
            axes: job.axes.clone(),
            seed: s.seed,
            scenario_sha256: job.info().scenario_sha256,
            status,
            flow_control: s.flow_control().name().into(),
            virtual_network: s.server.virtual_network,
            simulated_us: o.now.as_ps() as f64 / 1e6,
            mean_round_us,
            bound_us: o.incast_bound.map(|d| d.as_ps() as f64 / 1e6),
            left_out: o.queries.iter().filter(|q| q.warmup).count() as u64 + o.flows.warmup_alone,
            queries,
            flows,
            streams: o.streams.clone(),
            received_max_frames: o.received_max,
            zbridge: o.zbridge,
            xco: o.xco,
            messages: (o.flows.started, o.flows.finished),
            timeouts: o.flows.timeouts,
            retransmissions: o.flows.retransmissions,
            drops: o.totals.dropped,
            losses_virtual: o.virtual_losses(),
            losses_physical: o.physical_losses(),
            drops_by_reason: DropReason::ALL
                .iter()
                .map(|&r| (r.name().to_owned(), drops(r)))
                .filter(|d| d.1 > 0)
                .collect(),
            lossless_violations: o.violations,
            pauses: o.pauses,
            marked: o.marked,
            notifications: o.notifications,
            packet_hops: o.hops,
            packets_end_to_end: o.totals.end_to_end,
        }
    }

    /// Whether the run ended as it should.
    pub fn is_complete(&self) -> bool {
        self.status == "complete"
    }

    /// Whether Ctrl-C ended it.
    pub fn is_interrupted(&self) -> bool {
        self.status == "interrupted"
    }

    /// Completion times for the mean of the table: those of queries where there are any, of flows otherwise.
    pub fn main(&self) -> Completion {
        self.queries.clone().or_else(|| self.flows.clone()).unwrap_or_default()
    }

    /// Unit that the figures of [`Figures::main`] count.
    pub fn unit(&self) -> &'static str {
        match (&self.queries, self.mean_round_us) {
            (Some(_), Some(_)) => "rounds",
            (Some(_), None) => "queries",
            (None, _) => "flows",
        }
    }

    /// Frames lost where none may be: in a network that flow control makes lossless.
    pub fn losses_where_none_may_be(&self) -> u64 {
        let lossless = |place: usize| self.flow_control.as_bytes().get(place) == Some(&b'Z');
        self.losses_virtual * lossless(0) as u64 + self.losses_physical * lossless(1) as u64
    }

    /// Keeps the figures beside the records of the run.
    pub fn save(&self, dir: &Path) -> Result<(), RecordError> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_file(&dir.join(SUMMARY), text.as_bytes())
    }

    /// The figures of a result that ended, if they are there and of it.
    pub fn saved(dir: &Path) -> Option<Figures> {
        let manifest = Manifest::read(dir).ok()?;
        let figures: Figures = serde_json::from_str(&std::fs::read_to_string(dir.join(SUMMARY)).ok()?).ok()?;
        let same = figures.scenario_sha256 == manifest.run.scenario_sha256
            && figures.axes == manifest.run.axes
            && (figures.status == manifest.status.to_string()
                || figures.is_interrupted() && matches!(manifest.status, Status::InterruptedAt { .. }));
        same.then_some(figures)
    }
}

/// The error of a run that lost frames which the network promised to deliver.
pub(super) fn violated(violations: u64, uncredited: u64, overrun: Option<&str>) -> String {
    let lost = match violations - uncredited {
        0 => format!("{uncredited} frames lost for want of a credit"),
        overran if uncredited == 0 => format!("{overran} frames lost in a lossless class"),
        overran => format!("{overran} frames lost in a lossless class, and {uncredited} for want of a credit"),
    };
    match overrun {
        Some(overrun) => format!("{lost}: {overrun}"),
        None => lost,
    }
}

#[cfg(test)]
mod tests {
    use super::violated;

    #[test]
    fn the_error_names_the_lost_frames_and_the_cause() {
        assert_eq!(violated(3, 0, None), "3 frames lost in a lossless class");
        assert_eq!(violated(3, 3, None), "3 frames lost for want of a credit");
        assert_eq!(violated(5, 3, None), "2 frames lost in a lossless class, and 3 for want of a credit");
        assert_eq!(violated(3, 0, Some("2 at host 1")), "3 frames lost in a lossless class: 2 at host 1");
    }
}
