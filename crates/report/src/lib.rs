//! The report. A line belongs here when it knows a chart or a sentence of the page.
//!
//! One HTML file that shows a result to people: self-contained, no script, nothing fetched.
//!
//! The same page serves a sweep of queries (the four flow controls beside each other for every TCP) and a plain run of
//! flows. A section without data is left out. Every number is computed here from the records; the caller passes in
//! none.
#![forbid(unsafe_code)]

mod charts;
pub mod courses;
pub mod explain;
pub mod fattree;
mod findings;
pub mod format;
mod loss_locations;
pub mod losses;
mod model;
mod over_time;
mod page;
mod scale;
mod streams;
mod summary;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use loss_locations::{Level, LossLocation};
use over_time::Course;
pub use over_time::{OverTime, Points, paused_over_time, payload_over_time};
use sluicenet_experiment::run::{Figures, Streams};
use sluicenet_records::stats::is_after_warmup;
use sluicenet_records::{
    DropRow, FlowRow, Manifest, Profile, QueryRow, RecordError, RunInfo, Source, Status, read, rows,
};
pub use summary::{FlowSamples, FlowSummary, KindSummary, Times, reasons};

/// The result of one run, as the report wants it: reduced, so that a page takes the memory of its numbers, not of its
/// records.
#[derive(Clone, Debug, Default)]
pub struct CellInput {
    /// The run. Runs of one scenario with the same axes are seeds of one configuration and are shown together.
    pub run: RunInfo,
    /// Progress of the run until its end.
    pub status: Status,
    /// Its queries without those of the warm-up; none when the workload has none.
    pub queries: Option<Times>,
    /// Its flows without those of the warm-up.
    pub flows: FlowSummary,
    /// Its flows without an end.
    pub streams: Streams,
    /// Retransmission timeouts of all messages, those of the warm-up too.
    pub timeouts: u64,
    /// Segments sent again of all messages.
    pub retransmissions: u64,
    /// Frames thrown away by place.
    pub drops: BTreeMap<LossLocation, u64>,
    /// Frames thrown away by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Its ports by level.
    pub levels: BTreeMap<u8, Level>,
    /// Its course; empty where the run did not end.
    pub over_time: OverTime,
    /// How its CPU time was shared among its stages, if it was profiled.
    pub profile: Option<Profile>,
    /// Frames sent on links, and packets from end to end; zero where the run did not end.
    pub packets: (u64, u64),
}

impl CellInput {
    /// Reads a result; flows that began before `warmup_ps` are left out. Flows are read a part at a time.
    pub fn read<'a>(source: impl Into<Source<'a>>, warmup_ps: u64) -> Result<CellInput, RecordError> {
        CellInput::read_source(source.into(), warmup_ps)
    }

    /// Not generic: it is compiled with the optimisation of this crate, not with that of its caller.
    fn read_source(source: Source<'_>, warmup_ps: u64) -> Result<CellInput, RecordError> {
        let dir = source.dir;
        let Manifest { run, status, .. } = Manifest::read(dir)?;
        let (mut samples, mut recorded) = (FlowSamples::default(), false);
        let (mut timeouts, mut retransmissions) = (0, 0);
        let figures = Figures::saved(dir);
        // A run that did not end has no course on the page.
        let end_ps = figures.as_ref().map_or(0.0, |figures| figures.simulated_us * 1e6);
        let mut course = Course::new(figures.as_ref(), end_ps);
        for flow in rows::<FlowRow>(source)? {
            let flow = flow?;
            recorded = true;
            timeouts += u64::from(flow.timeouts);
            retransmissions += u64::from(flow.retransmissions);
            course.add(&flow);
            if is_after_warmup(&flow, warmup_ps) {
                samples.add(&flow);
            }
        }
        let queries: Vec<QueryRow> = read(source)?;
        if !recorded {
            // Without a record of flows the queries still know theirs.
            timeouts = queries.iter().map(|query| u64::from(query.timeouts)).sum();
            retransmissions = queries.iter().map(|query| u64::from(query.retransmissions)).sum();
        }
        let dropped: Vec<DropRow> = read(source)?;
        let (drops, levels) = summary::loss_locations(&read(source)?, &dropped);
        Ok(CellInput {
            run,
            status,
            queries: summary::queries(&queries),
            flows: samples.summarise(),
            profile: Profile::read(dir),
            packets: figures.as_ref().map_or((0, 0), |f| (f.packet_hops, f.packets_end_to_end)),
            // Not in the records: a run that did not end has none.
            streams: figures.map_or_else(Streams::default, |figures| figures.streams),
            timeouts,
            retransmissions,
            drops,
            reasons: summary::reasons(&dropped),
            levels,
            over_time: course.finish(source)?,
        })
    }
}

/// Content of the page besides the results.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Title of the page; without one, the scenario's name.
    pub title: Option<String>,
    /// Commands that make this result again, a line each.
    pub rerun: Vec<String>,
}

/// The report on `inputs` as one HTML file.
pub fn html<'a>(inputs: impl IntoIterator<Item = &'a CellInput>, options: &Options) -> String {
    let inputs: Vec<&CellInput> = inputs.into_iter().collect();
    page::render(&model::Model::new(&inputs), &inputs, options)
}
