//! `diff`: whether two results are the same.

use super::Global;
use super::failure::Failure;
use super::output;
use super::results::{cell_dirs, note_partial};
use serde_json::{Value, json};
use sluicenet_records as records;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Diff {
    /// A result, of a run or of a sweep
    a: PathBuf,
    /// The other result
    b: PathBuf,
}

impl Diff {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let pairs = self.pairs()?;
        let dirs: Vec<PathBuf> = pairs.iter().flat_map(|(_, a, b)| [a.clone(), b.clone()]).collect();
        note_partial(&dirs, global);
        let mut identical = true;
        let mut text = String::new();
        let mut all = Vec::new();
        for (name, a, b) in &pairs {
            // Exit code 1 says that they differ: an unreadable result has another code.
            let diff = records::diff(a, b).map_err(Failure::input)?;
            identical &= diff.is_identical();
            if !name.is_empty() {
                text += &format!("{name}: ");
                text += if diff.is_identical() { "" } else { "\n" };
            }
            text += &diff.to_string();
            all.push(to_json(name, &diff));
        }
        if global.json {
            output::json(&json!({ "identical": identical, "results": all }));
        } else {
            output::print(&text);
        }
        if identical { Ok(()) } else { Err(Failure::Told) }
    }

    /// The results to compare: the two, or the runs of two sweeps by name.
    fn pairs(&self) -> Result<Vec<(String, PathBuf, PathBuf)>, Failure> {
        let (a, b) = (cell_dirs(&self.a)?, cell_dirs(&self.b)?);
        if a == [self.a.clone()] && b == [self.b.clone()] {
            return Ok(vec![(String::new(), self.a.clone(), self.b.clone())]);
        }
        if a == [self.a.clone()] || b == [self.b.clone()] {
            let what = |dir: &Path, found: &[PathBuf]| match found == [dir] {
                true => format!("{} is a run", dir.display()),
                false => format!("{} is a sweep", dir.display()),
            };
            return Err(Failure::Input(format!("{}, {}", what(&self.a, &a), what(&self.b, &b))));
        }
        let name = |dir: &Path| dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (left, right): (Vec<String>, Vec<String>) =
            (a.iter().map(|d| name(d)).collect(), b.iter().map(|d| name(d)).collect());
        if let Some(alone) = left.iter().find(|n| !right.contains(n)).or(right.iter().find(|n| !left.contains(n))) {
            return Err(Failure::Input(format!("{alone} is in one of the two alone")));
        }
        Ok(left.into_iter().map(|n| (n.clone(), self.a.join(&n), self.b.join(&n))).collect())
    }
}

fn to_json(name: &str, diff: &records::Diff) -> Value {
    let tables: Vec<Value> = diff
        .tables
        .iter()
        .map(|t| {
            let first = t.first.as_ref().map(|f| json!({ "row": f.row, "column": f.column, "a": f.a, "b": f.b }));
            let columns: Vec<Value> = t
                .columns
                .iter()
                .map(|c| json!({ "column": c.column, "mean_a": c.mean_a, "mean_b": c.mean_b }))
                .collect();
            json!({ "table": t.table, "rows_a": t.rows.0, "rows_b": t.rows.1, "first": first, "columns": columns })
        })
        .collect();
    json!({ "name": name, "identical": diff.is_identical(), "tables": tables })
}
