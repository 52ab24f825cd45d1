//! One HTML file that shows a result to people: self-contained, no script, nothing fetched.
//!
//! The same page serves a sweep of queries (the four flow controls beside each other for every TCP) and a plain run of
//! flows; a section without data is left out. Every number is computed here from the records, none is passed in.

mod charts;
mod findings;
pub(crate) mod format;
mod model;
mod page;
mod scale;
mod summary;
mod tables;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::records::{DropRow, FlowRow, Manifest, PortRow, QueryRow, RecordError, read, read_parts};
pub use summary::{FlowSummary, KindSummary};

/// The result of one run, as the report wants it.
#[derive(Clone, Debug, Default)]
pub struct CellInput {
    /// What to call it where its axes do not say enough.
    pub label: String,
    /// Its place in a sweep: `[("flow_control", "ZZ"), ("congestion", "newreno")]`. Runs with the same axes are seeds of
    /// one configuration and are shown together.
    pub axes: Vec<(String, String)>,
    /// Its queries; empty when the workload has none. Those of the warm-up are left out of every figure.
    pub queries: Vec<QueryRow>,
    /// Its flows, summarised.
    pub flows: FlowSummary,
    /// Its ports.
    pub ports: Vec<PortRow>,
    /// Its drops.
    pub drops: Vec<DropRow>,
    /// What was run.
    pub manifest: Manifest,
}

impl CellInput {
    /// Reads a result directory; flows that began before `warmup_ps` are left out. Flows are read a part at a time.
    pub fn read(dir: &Path, warmup_ps: u64) -> Result<CellInput, RecordError> {
        let manifest = Manifest::read(dir)?;
        let mut flows = FlowSummary::default();
        for part in read_parts::<FlowRow>(dir)? {
            flows.add(part?.iter().filter(|flow| flow.start_ps >= warmup_ps));
        }
        Ok(CellInput {
            label: manifest.run.scenario.clone(),
            axes: manifest.run.axes.clone(),
            queries: read(dir)?,
            flows,
            ports: read(dir)?,
            drops: read(dir)?,
            manifest,
        })
    }
}

/// What the page says besides the results.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Title of the page; without one, the scenario's name.
    pub title: Option<String>,
    /// Commands that make this result again, a line each.
    pub rerun: Vec<String>,
}

/// The report on `inputs` as one HTML file.
pub fn html(inputs: &[CellInput], options: &Options) -> String {
    page::render(&model::Model::new(inputs), inputs, options)
}
