//! Results on disk: their layout, their comparison, their report.

use crate::error;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use sluicenet_records::tables::TABLES;
use sluicenet_records::{self as records, FlowRow, Kind, Manifest, measured_from, rows, stats};
use sluicenet_report::{self as page, CellInput, Options};
use sluicenet_scenario::json_schema;
use std::path::PathBuf;

/// A table as (name, columns), a column as (name, type, nullable).
type Layout = Vec<(&'static str, Vec<(&'static str, &'static str, bool)>)>;

/// Every table and its columns, with the types' names in Arrow.
#[pyfunction]
pub fn tables() -> Layout {
    let arrow = |kind| match kind {
        Kind::U8 => "uint8",
        Kind::U16 => "uint16",
        Kind::U32 => "uint32",
        Kind::U64 => "uint64",
        Kind::F64 => "float64",
        Kind::Bool => "bool",
        Kind::Text => "string",
    };
    TABLES.iter().map(|t| (t.name, t.columns.iter().map(|c| (c.name, arrow(c.kind), c.nullable)).collect())).collect()
}

/// Whether a directory holds the result of a run, and not another program's manifest.json.
#[pyfunction]
pub fn is_result(path: PathBuf) -> bool {
    Manifest::is_in(&path)
}

/// Refuses a result of another format than this version reads.
#[pyfunction]
pub fn check_format(path: PathBuf) -> PyResult<()> {
    Manifest::read(&path).map(|_| ()).map_err(error::records)
}

/// A bucket of flows by size: smallest and largest flow in bytes, how many there are, and their slowdown: median, 95th, 99th
/// and 99.9th percentile.
type Bucket = (u64, u64, usize, f64, f64, f64, f64);

/// Slowdown by flow size, in 20 buckets of about as many flows each, of runs that are seeds of one configuration: of the
/// flows that began after the warm-up and finished.
#[pyfunction]
pub fn slowdown_by_size(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Vec<Bucket>> {
    let of_run = |path: &PathBuf| {
        let (warm_ps, mut flows) = (measured_from(path)?, Vec::new());
        for flow in rows::<FlowRow>(path)? {
            let flow = flow?;
            flows.extend(flow.bytes.zip(flow.slowdown).filter(|_| stats::is_after_warmup(&flow, warm_ps)));
        }
        Ok(stats::slowdown_by_size(&mut flows, stats::SIZE_BUCKETS))
    };
    let runs: Result<Vec<_>, _> = py.detach(|| paths.iter().map(of_run).collect());
    let runs = runs.map_err(error::records)?;
    let runs: Vec<_> = runs.iter().filter(|buckets| !buckets.is_empty()).map(Vec::as_slice).collect();
    let bucket = |b: stats::SizeBucket| {
        let s = b.slowdown;
        (b.min_bytes, b.max_bytes, s.count, s.p50, s.p95, s.p99, s.p999)
    };
    Ok(stats::slowdown_over_seeds(&runs, stats::SIZE_BUCKETS).into_iter().map(bucket).collect())
}

/// The payload of all flows of a result over time, in Gb/s: the middles of intervals in picoseconds, and a mean for each;
/// empty where no flow is recorded.
#[pyfunction]
pub fn payload_over_time(py: Python<'_>, path: PathBuf) -> PyResult<page::Points> {
    py.detach(|| page::payload_over_time(&path)).map_err(error::records)
}

/// The outputs of a result that a pause held over time: the middles of intervals in picoseconds, and a mean for each.
#[pyfunction]
pub fn paused_over_time(py: Python<'_>, path: PathBuf) -> PyResult<page::Points> {
    py.detach(|| page::paused_over_time(&path)).map_err(error::records)
}

/// Whether two results hold the same rows, and where they part, as text.
#[pyfunction]
pub fn diff(py: Python<'_>, a: PathBuf, b: PathBuf) -> PyResult<(bool, String)> {
    let diff = py.detach(|| records::diff(&a, &b)).map_err(error::records)?;
    Ok((diff.is_identical(), diff.to_string()))
}

/// Writes the HTML report on results to `path`.
#[pyfunction]
pub fn report(py: Python<'_>, dirs: Vec<PathBuf>, path: PathBuf, title: Option<String>) -> PyResult<()> {
    py.detach(|| {
        let cells: Result<Vec<_>, _> = dirs.iter().map(|dir| CellInput::read(dir, measured_from(dir)?)).collect();
        let html = page::html(&cells.map_err(error::records)?, &Options { title, rerun: Vec::new() });
        std::fs::write(&path, html).map_err(|e| PyOSError::new_err(format!("{}: cannot write: {e}", path.display())))
    })
}

/// The JSON schema of scenarios, as text.
#[pyfunction]
pub fn schema() -> String {
    json_schema().to_string()
}
