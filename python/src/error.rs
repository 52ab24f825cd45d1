//! Errors of Rust as the exceptions of `sluicenet._errors`.

use pyo3::PyErr;
use sluicenet_experiment::run::RunError as LabRunError;
use sluicenet_records::RecordError as LabRecordError;
use sluicenet_scenario::Error as LabScenarioError;
use std::path::PathBuf;

pyo3::import_exception!(sluicenet._errors, ScenarioError);
pyo3::import_exception!(sluicenet._errors, RecordError);
pyo3::import_exception!(sluicenet._errors, RunError);

/// What the loader calls a setting of the command line, and what Python calls it.
const OVERRIDE: (&str, &str) = ("--set", "overrides");

/// A scenario that cannot be read: where, what was expected, and the hint, each an attribute. Its text begins with the
/// warnings before it.
pub fn scenario(e: LabScenarioError) -> PyErr {
    let d = e.diagnostic();
    let is_override = d.file == OVERRIDE.0;
    let file = if is_override { OVERRIDE.1.to_string() } else { d.file.clone() };
    let text = e.to_string();
    let text = if is_override { text.replacen("--> --set", "--> overrides", 1) } else { text };
    let warnings: String = d.warnings.iter().map(|w| format!("{w}\n")).collect();
    let text = warnings + &text;
    let place = |n: u32| (n > 0).then_some(n);
    let (line, column) = (place(d.line), place(d.column));
    ScenarioError::new_err((text, d.message.clone(), file, line, column, d.expected.clone(), d.hint.clone()))
}

/// Result files that cannot be read or written.
pub fn records(e: LabRecordError) -> PyErr {
    let (text, path) = match &e {
        LabRecordError::Exists { dir, detail } => {
            let text = format!("{}: already holds {detail}; give another `out`, or force=True", dir.display());
            (text, dir.clone())
        }
        LabRecordError::Busy { dir } => (e.to_string(), dir.clone()),
        LabRecordError::Io { path, .. } | LabRecordError::Corrupt { path, .. } => (e.to_string(), path.clone()),
    };
    record(text, path)
}

/// Result files that cannot be read or written, in these words.
pub fn record(text: String, path: PathBuf) -> PyErr {
    RecordError::new_err((text, path))
}

/// A run that failed; `file` is the scenario it was to run.
pub fn run(file: &str, e: LabRunError) -> PyErr {
    match e {
        LabRunError::Directory(e) | LabRunError::Records(e) => records(e),
        LabRunError::Build(e) => scenario(e),
        LabRunError::Audit(_) | LabRunError::Frames { .. } => RunError::new_err((format!("{file}: {e}"),)),
    }
}
