//! `report`: the page of an existing result.

use super::Global;
use super::failure::Failure;
use super::files::{self, REPORT};
use super::results::{cell_dirs, note_partial, read_cell};
use super::{output, rerun};
use serde_json::json;
use sluicenet_report::{self as report, CellInput, Options};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// The result, of a run or of a sweep
    dir: PathBuf,
    /// Where to write the page; default report.html in DIR
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Report {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let dirs = cell_dirs(&self.dir)?;
        note_partial(&dirs, global);
        let inputs: Vec<CellInput> =
            dirs.iter().map(read_cell).collect::<Result<_, _>>().map_err(Failure::into_input)?;
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
