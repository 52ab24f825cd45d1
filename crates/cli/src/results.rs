//! Results that are on disk: where they are, which are incomplete, and how the page reads them.

use super::failure::Failure;
use super::{Global, output};
use sluicenet_experiment::sweep::SweepSummary;
use sluicenet_records::{Manifest, Source, Status, measured_from};
use sluicenet_report::CellInput;
use std::path::{Path, PathBuf};

/// The results in a directory: the directory itself, or those of a sweep in the order of the sweep.
pub(super) fn cell_dirs(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    if Manifest::is_in(dir) {
        return Ok(vec![dir.to_owned()]);
    }
    let entries = std::fs::read_dir(dir).map_err(|e| Failure::Input(format!("{}: cannot list: {e}", dir.display())))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| Manifest::is_in(p)).collect();
    if found.is_empty() {
        let what = "holds no result: neither it nor a folder in it has a manifest.json of sluicenet";
        return Err(Failure::Input(format!("{}: {what}", dir.display())));
    }
    // The summary of a sweep gives the order; other results come last, by name.
    let order = sweep_order(dir);
    let position = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (order.iter().position(|o| *o == name).unwrap_or(usize::MAX), name)
    };
    found.sort_by_key(position);
    Ok(found)
}

/// Notes which results are incomplete, and how much of them exists.
pub(super) fn note_partial(dirs: &[PathBuf], global: Global) {
    if global.quiet {
        return;
    }
    for dir in dirs {
        let told = match Manifest::read(dir).map(|m| m.status) {
            Ok(Status::Running) => "still runs, or was killed: only the flushed records are shown".to_string(),
            Ok(status) if status != Status::Complete => format!("{status}: only the records up to then are shown"),
            _ => continue,
        };
        output::note(&format!("note: {}: {told}", dir.display()));
    }
}

/// Reads a result for the page, without the warm-up.
pub(super) fn read_cell<'a>(source: impl Into<Source<'a>>) -> Result<CellInput, Failure> {
    let source = source.into();
    Ok(CellInput::read(source, measured_from(source)?)?)
}

/// The folders of a sweep in its own order; empty if the directory has no summary.
fn sweep_order(dir: &Path) -> Vec<String> {
    SweepSummary::read(dir).map_or_else(Vec::new, |s| s.runs.into_iter().map(|run| run.folder).collect())
}
