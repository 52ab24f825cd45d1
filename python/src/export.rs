//! Results in the formats of other tools.

use crate::error;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use sluicenet_export::{ExportError, Given, Run, hpcc, htsim, perfetto};
use std::path::PathBuf;

/// The files of HPCC's simulator, those with these names, in `folder`.
#[pyfunction]
pub fn export_hpcc(
    py: Python<'_>,
    root: PathBuf,
    folder: PathBuf,
    only: Vec<String>,
    flows: Option<PathBuf>,
    partial: bool,
) -> PyResult<Vec<PathBuf>> {
    let file = |name: &String| {
        let found = hpcc::File::ALL.into_iter().find(|file| file.short() == name);
        let wrong = || format!("only: {name:?} is none of {}", hpcc::File::ALL.map(hpcc::File::short).join(", "));
        found.ok_or_else(|| PyValueError::new_err(wrong()))
    };
    let files: Vec<hpcc::File> = only.iter().map(file).collect::<PyResult<_>>()?;
    let written = py.detach(|| {
        let ports = flows.as_deref().map(Given::ports).transpose()?;
        hpcc::write(&Run::open(&root, partial)?, &files, &folder, ports, &mut |_| {})
    });
    Ok(written.map_err(failed)?.into_iter().map(|(path, _)| path).collect())
}

/// htsim's log of flows, at `path`.
#[pyfunction]
pub fn export_htsim(
    py: Python<'_>,
    root: PathBuf,
    path: PathBuf,
    matrix: Option<PathBuf>,
    partial: bool,
) -> PyResult<()> {
    let written = py.detach(|| {
        let ids = matrix.as_deref().map(Given::ids).transpose()?;
        htsim::write(&Run::open(&root, partial)?, &path, ids, &mut |_| {})
    });
    written.map(|_| ()).map_err(failed)
}

/// A trace for Perfetto, at `path`.
#[pyfunction]
pub fn export_perfetto(py: Python<'_>, root: PathBuf, path: PathBuf, partial: bool) -> PyResult<()> {
    py.detach(|| perfetto::write(&Run::open(&root, partial)?, &path, &mut |_| {})).map(|_| ()).map_err(failed)
}

fn failed(e: ExportError) -> PyErr {
    let text = e.to_string();
    match e {
        ExportError::Records(e) => error::records(e),
        ExportError::Input(e) => error::scenario(*e),
        ExportError::Write { .. } => PyOSError::new_err(text),
        ExportError::NoRun { dir: path, .. }
        | ExportError::Lacks { dir: path, .. }
        | ExportError::Unfit { dir: path, .. } => error::record(text, path),
        ExportError::Incomplete { path, .. } => error::record(text.replace("--partial", "partial=True"), path),
    }
}
