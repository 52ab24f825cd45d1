//! A run reduced to the content of a report: sums and percentiles, never rows, so that many runs fit into memory.

use std::collections::BTreeMap;

use super::loss_locations::{Level, LossLocation};
use sluicenet_records::stats::{SIZE_BUCKETS, SizeBucket, Summary, by_size, percentile, slowdown_by_size};
use sluicenet_records::{DropRow, FlowRow, PortRow, QueryRow, Text};

/// Steps of a distribution curve: more than a panel has pixels across is invisible.
pub(super) const CURVE_STEPS: usize = 1_000;

/// Completion times, in picoseconds.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Summary of the times.
    pub summary: Summary,
    /// Their distribution: the values at 0, 1, 2, ... thousandths; empty when nothing finished.
    pub curve: Vec<f64>,
    /// How many did not finish.
    pub unfinished: u64,
}

impl Times {
    /// Sorts `values` and reduces them.
    pub fn of(values: &mut [f64], unfinished: u64) -> Times {
        let summary = Summary::of(values);
        Times { summary, curve: curve(values), unfinished }
    }

    /// Times of several seeds; the curve is over all together, and each seed counts the same.
    pub(super) fn over_seeds(seeds: &[&Times]) -> Times {
        if let [seed] = seeds {
            return (*seed).clone();
        }
        let summaries: Vec<Summary> = seeds.iter().map(|times| times.summary).collect();
        let mut all: Vec<f64> = seeds.iter().flat_map(|times| times.curve.iter().copied()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let unfinished = seeds.iter().map(|times| times.unfinished).sum();
        Times { summary: Summary::over_seeds(&summaries), curve: curve(&all), unfinished }
    }
}

fn curve(sorted: &[f64]) -> Vec<f64> {
    if sorted.is_empty() {
        return Vec::new();
    }
    (0..=CURVE_STEPS).map(|i| percentile(sorted, i as f64 * 100.0 / CURVE_STEPS as f64)).collect()
}

/// The completion of queries that count; `None` where there are no queries at all.
pub(super) fn queries(rows: &[QueryRow]) -> Option<Times> {
    let counted = || rows.iter().filter(|query| !query.warmup);
    let mut times: Vec<f64> = counted().filter_map(|query| query.completion_ps).map(|ps| ps as f64).collect();
    let unfinished = counted().filter(|query| query.completion_ps.is_none()).count() as u64;
    (!rows.is_empty()).then(|| Times::of(&mut times, unfinished))
}

/// The flows of a run.
#[derive(Clone, Debug, Default)]
pub struct FlowSummary {
    /// One entry for each kind, by name.
    pub kinds: BTreeMap<Text, KindSummary>,
    /// Completion of all of them.
    pub times: Times,
    /// Slowdown of all of them by size.
    pub slowdown: Vec<SizeBucket>,
}

/// The flows of one kind.
#[derive(Clone, Debug, Default)]
pub struct KindSummary {
    /// How many there were.
    pub flows: u64,
    /// Completion times of those that finished, in picoseconds.
    pub fct_ps: Summary,
    /// Slowdown of those that finished.
    pub slowdown: Summary,
    /// Sum of the time spent waiting for timers.
    pub timeout_wait_ps: f64,
    /// Sum of the excess of the mean round-trip time over the smallest.
    pub queueing_ps: f64,
    /// Sum of the time senders were held by PFC.
    pub paused_ps: f64,
}

/// Flows in the making of a [`FlowSummary`]: a few numbers of each.
#[derive(Default)]
pub struct FlowSamples {
    kinds: BTreeMap<Text, KindSamples>,
}

#[derive(Default)]
struct KindSamples {
    /// The sums that are not computed from the samples.
    sums: KindSummary,
    fct_ps: Vec<f64>,
    /// Size in bytes and slowdown.
    slowdown: Vec<(u64, f64)>,
}

impl FlowSamples {
    /// Takes a flow in.
    pub fn add(&mut self, flow: &FlowRow) {
        // Kinds are few, and looking one up needs no copy of its name.
        match self.kinds.get_mut(&flow.kind) {
            Some(kind) => kind.add(flow),
            None => self.kinds.entry(flow.kind.clone()).or_default().add(flow),
        }
    }

    /// Reduces them.
    pub fn summarise(self) -> FlowSummary {
        let mut kinds = BTreeMap::new();
        let (mut fct_ps, mut slowdown, mut unfinished) = (Vec::new(), Vec::new(), 0);
        for (name, mut kind) in self.kinds {
            kind.slowdown.sort_by(by_size);
            let mut slowdowns: Vec<f64> = kind.slowdown.iter().map(|flow| flow.1).collect();
            let (fct, slow) = (Summary::of(&mut kind.fct_ps), Summary::of(&mut slowdowns));
            unfinished += kind.sums.flows - fct.count as u64;
            kinds.insert(name, KindSummary { fct_ps: fct, slowdown: slow, ..kind.sums });
            append(&mut fct_ps, kind.fct_ps);
            append(&mut slowdown, kind.slowdown);
        }
        let times = Times::of(&mut fct_ps, unfinished);
        drop(fct_ps);
        FlowSummary { kinds, times, slowdown: slowdown_by_size(&mut slowdown, SIZE_BUCKETS) }
    }
}

/// Appends without a copy where there is nothing yet: a run mostly has one kind of flow by far.
fn append<T>(all: &mut Vec<T>, mut more: Vec<T>) {
    if all.len() < more.len() {
        std::mem::swap(all, &mut more);
    }
    all.append(&mut more);
}

impl KindSamples {
    fn add(&mut self, flow: &FlowRow) {
        let sums = &mut self.sums;
        sums.flows += 1;
        sums.timeout_wait_ps += flow.timeout_wait_ps as f64;
        sums.queueing_ps += flow.queueing_ps as f64;
        sums.paused_ps += flow.paused_ps as f64;
        self.fct_ps.extend(flow.fct_ps.map(|ps| ps as f64));
        self.slowdown.extend(flow.bytes.zip(flow.slowdown));
    }
}

impl KindSummary {
    /// Summary of several seeds.
    pub(super) fn over_seeds(seeds: &[&KindSummary]) -> KindSummary {
        let sum = |of: fn(&KindSummary) -> f64| seeds.iter().map(|kind| of(kind)).sum();
        let summaries =
            |of: fn(&KindSummary) -> Summary| -> Vec<Summary> { seeds.iter().map(|kind| of(kind)).collect() };
        KindSummary {
            flows: seeds.iter().map(|kind| kind.flows).sum(),
            fct_ps: Summary::over_seeds(&summaries(|kind| kind.fct_ps)),
            slowdown: Summary::over_seeds(&summaries(|kind| kind.slowdown)),
            timeout_wait_ps: sum(|kind| kind.timeout_wait_ps),
            queueing_ps: sum(|kind| kind.queueing_ps),
            paused_ps: sum(|kind| kind.paused_ps),
        }
    }
}

/// Frames thrown away by reason.
pub fn reasons(drops: &[DropRow]) -> BTreeMap<String, u64> {
    let mut reasons = BTreeMap::new();
    for drop in drops {
        *reasons.entry(drop.reason.to_string()).or_default() += drop.frames;
    }
    reasons
}

/// Frames thrown away by place, and ports by level.
pub(super) fn loss_locations(
    ports: &[PortRow],
    drops: &[DropRow],
) -> (BTreeMap<LossLocation, u64>, BTreeMap<u8, Level>) {
    let level_of: BTreeMap<&Text, u8> = ports.iter().map(|port| (&port.node, port.level)).collect();
    let mut deaths = BTreeMap::new();
    for drop in drops {
        *deaths.entry(LossLocation::of(drop, &level_of)).or_default() += drop.frames;
    }
    let mut levels: BTreeMap<u8, Level> = BTreeMap::new();
    for port in ports {
        levels.entry(port.level).or_default().add(port);
    }
    (deaths, levels)
}
