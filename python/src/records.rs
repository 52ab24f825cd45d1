//! Results on disk: their layout, their comparison, their report.

use crate::error;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use sluicenet_records::tables::TABLES;
use sluicenet_records::{self as records, Kind, Manifest, measured_from};
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
