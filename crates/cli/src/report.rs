//! `report`: the page of a result that is there already.

use super::Global;
use super::failure::Failure;
use super::files::{self, REPORT};
use super::{output, rerun};
use serde_json::json;
use sluicenet_records::{Manifest, Status, measured_from};
use sluicenet_report::{self as report, CellInput, Options};
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
        let dirs = cell_dirs(&self.dir)?;
        note_partial(&dirs, global);
        let inputs: Vec<CellInput> =
            dirs.iter().map(|d| read_cell(d)).collect::<Result<_, _>>().map_err(Failure::into_input)?;
        let path = self.output.unwrap_or_else(|| self.dir.join(REPORT));
        let page = report::html(&inputs, &Options { title: None, rerun: rerun::of(&dirs) });
        files::write(&path, &page).map_err(Failure::into_input)?;
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
    if Manifest::is_in(dir) {
        return Ok(vec![dir.to_owned()]);
    }
    let entries = std::fs::read_dir(dir).map_err(|e| Failure::Input(format!("{}: cannot list: {e}", dir.display())))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| Manifest::is_in(p)).collect();
    if found.is_empty() {
        let what = "holds no result: no manifest.json of sluicenet's, here or one folder down";
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

/// Says of results that are not whole what there is of them.
pub(super) fn note_partial(dirs: &[PathBuf], global: Global) {
    if global.quiet {
        return;
    }
    for dir in dirs {
        let told = match Manifest::read(dir).map(|m| m.status) {
            Ok(Status::Running) => "still runs, or was killed: this is what was flushed".to_string(),
            Ok(status) if status != Status::Complete => format!("{status}: this is what was recorded up to there"),
            _ => continue,
        };
        output::note(&format!("note: {}: {told}", dir.display()));
    }
}

/// Reads a result for the page, without what the warm-up did.
pub(super) fn read_cell(dir: &Path) -> Result<CellInput, Failure> {
    Ok(CellInput::read(dir, measured_from(dir)?)?)
}
