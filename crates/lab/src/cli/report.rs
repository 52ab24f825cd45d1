//! `report`: the page of a result that is there already.

use super::Global;
use super::diff::is_run;
use super::failure::Failure;
use super::files::{self, REPORT};
use super::output;
use crate::records::{QueryRow, read};
use crate::report::{self, CellInput, Options};
use serde_json::json;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// The result, of a run or of a sweep
    dir: PathBuf,
    /// Where to write the page; report.html in DIR where absent
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Report {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let inputs: Vec<CellInput> = cell_dirs(&self.dir)?.iter().map(|d| read_cell(d)).collect::<Result<_, _>>()?;
        let path = self.output.unwrap_or_else(|| self.dir.join(REPORT));
        let again = format!("sluicenet report {}", self.dir.display());
        files::write(&path, &report::html(&inputs, &Options { title: None, rerun: vec![again] }))?;
        if global.json {
            output::json(&json!({ "report": path.display().to_string(), "runs": inputs.len() }));
        } else {
            output::print(&format!("{}\n", path.display()));
        }
        Ok(())
    }
}

/// The results in a directory: itself, or those of a sweep in the order of the sweep.
pub(super) fn cell_dirs(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    if is_run(dir) {
        return Ok(vec![dir.to_owned()]);
    }
    let entries = std::fs::read_dir(dir).map_err(|e| Failure::Input(format!("{}: cannot list: {e}", dir.display())))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir() && is_run(p)).collect();
    if found.is_empty() {
        let what = "holds no result: no manifest.json, here or one folder down";
        return Err(Failure::Input(format!("{}: {what}", dir.display())));
    }
    // A sweep says in which order; what it does not know comes last, by name.
    let order: Vec<String> = super::sweep::order(dir);
    let place = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (order.iter().position(|o| *o == name).unwrap_or(usize::MAX), name)
    };
    found.sort_by_key(place);
    Ok(found)
}

/// Reads a result for the page, without what the warm-up did.
pub(super) fn read_cell(dir: &Path) -> Result<CellInput, Failure> {
    let warmup = crate::records::Manifest::read(dir)?.run.warmup_ps;
    // Where warm-up is so many queries, the network is warm when the first that counts begins.
    let queries: Vec<QueryRow> = read(dir)?;
    let first = queries.iter().filter(|q| !q.warmup).map(|q| q.start_ps).min().unwrap_or(0);
    let first = if queries.iter().any(|q| q.warmup) { first } else { 0 };
    Ok(CellInput::read(dir, warmup.max(first))?)
}
