//! The figures of a run: what its table shows, what `--json` prints, and what `summary.json` keeps.

use super::table::{Table, count, short, time};
use crate::records::stats::Summary;
use crate::records::{QueryRow, RunLog};
use crate::run::{Job, Outcome};
use crate::scenario::Workload;
use serde::{Deserialize, Serialize};
use sluicenet_proto::loss::DropReason;
use sluicenet_sim::RunEnd;
use std::collections::BTreeMap;

/// Completion times of queries, rounds or flows, in microseconds; zero where none finished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Completion {
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

impl Completion {
    fn of(times_ps: impl Iterator<Item = u64>, unfinished: u64) -> Completion {
        let mut us: Vec<f64> = times_ps.map(|ps| ps as f64 / 1e6).collect();
        let s = Summary::of(&mut us);
        Completion {
            finished: s.count as u64,
            unfinished,
            mean_us: s.mean,
            p50_us: s.p50,
            p95_us: s.p95,
            p99_us: s.p99,
            p999_us: s.p999,
            max_us: s.max,
            ..Completion::default()
        }
    }
}

/// What a run comes to: the same for the same scenario and seed, on any machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
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
    /// Flows that belong to no query, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<Completion>,
    /// Messages of all kinds: begun and delivered in full.
    pub messages: (u64, u64),
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Frames thrown away, for any reason.
    pub drops: u64,
    /// Frames lost for want of room in the virtual network.
    pub losses_virtual: u64,
    /// Frames lost for want of room in the physical network.
    pub losses_physical: u64,
    /// Frames thrown away, by reason.
    pub drops_by_reason: BTreeMap<String, u64>,
    /// Frames that lossless classes lost: an error.
    pub lossless_violations: u64,
    /// PFC frames sent to stop a peer.
    pub pauses: u64,
    /// Frames sent on links.
    pub packet_hops: u64,
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
        // Messages of queries are not told apart from other flows here; what is unfinished of both is in `messages`.
        let open = if has_queries { 0 } else { o.flows.started - o.flows.finished };
        let has_flows = !o.flow_fct_ps.is_empty() || !has_queries;
        let of_queries = |of: fn(&QueryRow) -> u32| o.queries.iter().map(|q| u64::from(of(q))).sum::<u64>();
        let flows = has_flows.then(|| Completion {
            timeouts: o.flows.timeouts - of_queries(|q| q.timeouts),
            retransmissions: o.flows.retransmissions - of_queries(|q| q.retransmissions),
            ..Completion::of(o.flow_fct_ps.iter().copied(), open)
        });
        let is_incast = s.workloads.iter().any(|w| matches!(w, Workload::Incast(_)));
        let drops = |r: DropReason| o.switch_drops.frames(r) + o.server_drops.frames(r);
        let status = match (&o.deadlock, o.end) {
            (Some(circle), _) => format!("failed: deadlock: {circle}"),
            _ if o.violations > 0 => format!("failed: {} frames lost in a lossless class", o.violations),
            (None, RunEnd::Interrupted) => "interrupted".into(),
            _ => "complete".into(),
        };
        Figures {
            scenario: s.name.clone(),
            axes: job.axes.clone(),
            seed: s.seed,
            scenario_sha256: job.info().scenario_sha256,
            status,
            flow_control: format!("{:?}", s.flow_control()).to_uppercase(),
            virtual_network: s.server.virtual_network,
            simulated_us: o.now.as_ps() as f64 / 1e6,
            mean_round_us: queries.as_ref().filter(|_| is_incast).map(|q| q.mean_us),
            bound_us: o.incast_bound.map(|d| d.as_ps() as f64 / 1e6),
            queries,
            flows,
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
            packet_hops: o.hops,
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

    /// What the mean of the table is of: queries where there are any, flows otherwise.
    pub fn main(&self) -> Completion {
        self.queries.clone().or_else(|| self.flows.clone()).unwrap_or_default()
    }

    /// What the figures of [`Figures::main`] count.
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

    /// The table of one run.
    pub fn table(&self, log: Option<&RunLog>) -> String {
        let mut out = String::new();
        let mut times = Table::new(1, ["", "finished", "unfinished", "mean", "median", "p95", "p99", "p99.9", "max"]);
        for (name, c) in [(self.unit(), self.queries.as_ref()), ("flows", self.flows.as_ref())] {
            if let Some(c) = c {
                let of = |us: f64| if c.finished == 0 { "–".into() } else { time(us) };
                let figures = [c.mean_us, c.p50_us, c.p95_us, c.p99_us, c.p999_us, c.max_us].map(of);
                let counts = [name.to_string(), count(c.finished), count(c.unfinished)];
                times.row(counts.into_iter().chain(figures));
            }
        }
        out += &times.text();
        out.push('\n');
        let mut facts = Table::new(2, ["", ""]);
        let mut fact = |name: &str, value: String| facts.row([name.to_string(), value]);
        if let (Some(mean), Some(bound)) = (self.mean_round_us, self.bound_us) {
            let over = format!("{:+.2} %", 100.0 * (mean / bound - 1.0));
            fact("line-rate bound", format!("{bound:.2} µs a round; the mean is {mean:.2} µs, {over}"));
        }
        fact("timeouts", count(self.timeouts));
        fact("segments sent again", count(self.retransmissions));
        let reasons: Vec<String> =
            self.drops_by_reason.iter().map(|(r, n)| format!("{} {}", count(*n), r.replace('_', " "))).collect();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        if self.virtual_network {
            fact("lost in the virtual network", count(self.losses_virtual));
            fact("lost in the physical network", count(self.losses_physical));
        }
        fact("frames dropped", format!("{}{reasons}", count(self.drops)));
        fact("PFC pauses", count(self.pauses));
        fact("simulated time", time(self.simulated_us));
        let cost = log.map_or(String::new(), |l| {
            let rate = self.packet_hops as f64 / l.cpu_seconds.max(0.01);
            format!(" in {:.2} CPU s ({}/CPU s), {:.2} s", l.cpu_seconds, short(rate), l.wall_seconds)
        });
        fact("packet-hops", format!("{}{cost}", count(self.packet_hops)));
        out + &facts.text()
    }
}

/// The figures with what this machine took, as `--json` prints them.
#[derive(Debug, Serialize)]
pub(super) struct Printed<'a> {
    #[serde(flatten)]
    pub figures: &'a Figures,
    /// CPU seconds of the run phase.
    pub cpu_s: Option<f64>,
    /// Seconds of the run phase.
    pub wall_s: Option<f64>,
    /// Packet-hops per CPU second.
    pub packet_hops_per_cpu_s: Option<f64>,
    /// Where its records are.
    pub records: Option<String>,
    /// Where its page is.
    pub report: Option<String>,
}

impl<'a> Printed<'a> {
    pub fn new(figures: &'a Figures, log: Option<&RunLog>) -> Printed<'a> {
        Printed {
            figures,
            cpu_s: log.map(|l| l.cpu_seconds),
            wall_s: log.map(|l| l.wall_seconds),
            packet_hops_per_cpu_s: log.map(|l| figures.packet_hops as f64 / l.cpu_seconds.max(0.01)),
            records: None,
            report: None,
        }
    }
}
