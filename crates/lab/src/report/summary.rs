//! Flows reduced to what a report shows: sorted samples and sums, never rows.

use std::collections::BTreeMap;

use crate::records::{FlowRow, Text};

/// The flows of a run by kind.
#[derive(Clone, Debug, Default)]
pub struct FlowSummary {
    /// One entry for each kind, by name.
    pub kinds: BTreeMap<Text, KindSummary>,
}

/// The flows of one kind.
#[derive(Clone, Debug, Default)]
pub struct KindSummary {
    /// How many there were.
    pub flows: u64,
    /// Payload they had to deliver; of a flow without an end, what was delivered.
    pub bytes: u64,
    /// Completion times of those that finished, in picoseconds.
    pub fct_ps: Vec<f64>,
    /// Size in bytes and slowdown of those that finished.
    pub slowdown: Vec<(u64, f64)>,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Sum of the time spent waiting for timers.
    pub timeout_wait_ps: f64,
    /// Sum of the excess of the mean round-trip time over the smallest.
    pub queueing_ps: f64,
    /// Sum of the time senders were held by PFC.
    pub paused_ps: f64,
}

impl FlowSummary {
    /// Takes flows in.
    pub fn add<'a>(&mut self, flows: impl IntoIterator<Item = &'a FlowRow>) {
        for flow in flows {
            self.kinds.entry(flow.kind.clone()).or_default().add(flow);
        }
    }

    /// Takes another run's flows in.
    pub(super) fn merge(&mut self, other: &FlowSummary) {
        for (kind, summary) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().merge(summary);
        }
    }

    /// All kinds together.
    pub(super) fn total(&self) -> KindSummary {
        let mut total = KindSummary::default();
        self.kinds.values().for_each(|kind| total.merge(kind));
        total
    }
}

impl KindSummary {
    fn add(&mut self, flow: &FlowRow) {
        self.flows += 1;
        self.bytes += flow.bytes.unwrap_or(flow.delivered_bytes);
        self.fct_ps.extend(flow.fct_ps.map(|ps| ps as f64));
        self.slowdown.extend(flow.bytes.zip(flow.slowdown));
        self.timeouts += flow.timeouts as u64;
        self.retransmissions += flow.retransmissions as u64;
        self.timeout_wait_ps += flow.timeout_wait_ps as f64;
        self.queueing_ps += flow.queueing_ps as f64;
        self.paused_ps += flow.paused_ps as f64;
    }

    fn merge(&mut self, other: &KindSummary) {
        self.flows += other.flows;
        self.bytes += other.bytes;
        self.fct_ps.extend_from_slice(&other.fct_ps);
        self.slowdown.extend_from_slice(&other.slowdown);
        self.timeouts += other.timeouts;
        self.retransmissions += other.retransmissions;
        self.timeout_wait_ps += other.timeout_wait_ps;
        self.queueing_ps += other.queueing_ps;
        self.paused_ps += other.paused_ps;
    }
}
