//! Scenarios: read, checked, taken apart into jobs.

use crate::error;
use crate::run::Job;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sluicenet_experiment::build;
use sluicenet_experiment::sweep::{self, Cell};
use sluicenet_scenario::{Input, Loaded, Scenario as Model, Warning};
use std::path::PathBuf;

/// A warning as (file, line or None, message).
pub type Odd = (String, Option<u32>, String);

/// Warnings as Python takes them.
pub fn odd(warnings: &[Warning]) -> Vec<Odd> {
    warnings.iter().map(|w| (w.file.clone(), (w.line > 0).then_some(w.line), w.message.clone())).collect()
}

/// A scenario as read.
#[pyclass(frozen, module = "sluicenet._native")]
pub struct Scenario {
    loaded: Loaded,
    folder: PathBuf,
}

#[pymethods]
impl Scenario {
    /// Reads a file and applies overrides, each `key=value`.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, overrides: Vec<String>) -> PyResult<Scenario> {
        let loaded = py.detach(|| Model::load_with(&path, &overrides)).map_err(error::scenario)?;
        let folder = path.parent().map(PathBuf::from).unwrap_or_default();
        Ok(Scenario { loaded, folder })
    }

    /// Reads a text; its input files are relative to `folder`, and those among `inputs` are not read.
    #[staticmethod]
    #[pyo3(signature = (text, name, folder, overrides, inputs=Vec::new()))]
    fn parse(
        py: Python<'_>,
        text: &str,
        name: &str,
        folder: PathBuf,
        overrides: Vec<String>,
        inputs: Vec<(String, Vec<u8>)>,
    ) -> PyResult<Scenario> {
        let inputs = inputs.into_iter().map(|(path, bytes)| Input { path, bytes: bytes.into() }).collect();
        let parse = || Model::parse_with_inputs(text, name, &folder, &overrides, inputs);
        let loaded = py.detach(parse).map_err(error::scenario)?;
        Ok(Scenario { loaded, folder })
    }

    /// The file's name, as errors call it.
    #[getter]
    fn file(&self) -> &str {
        &self.loaded.file
    }

    /// The folder that names of input files are relative to.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Its text.
    #[getter]
    fn source(&self) -> &str {
        &self.loaded.source
    }

    /// The overrides, as given.
    #[getter]
    fn overrides(&self) -> Vec<String> {
        self.loaded.overrides.clone()
    }

    /// The input files read so far: name and bytes.
    fn inputs<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        self.loaded.inputs().into_iter().map(|input| (input.path, PyBytes::new(py, &input.bytes))).collect()
    }

    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        &self.loaded.scenario.name
    }

    /// What is odd in it and in its input files.
    #[getter]
    fn warnings(&self) -> Vec<Odd> {
        odd(&self.loaded.warnings)
    }

    /// The scenario itself, without what its sweep varies.
    fn job(&self) -> Job {
        Job::new(&self.loaded.file, Cell::base(&self.loaded))
    }

    /// Every combination of its sweep and of `seeds`; the scenario itself where there are none.
    fn variants(&self, py: Python<'_>, seeds: Option<Vec<u64>>) -> PyResult<Vec<Job>> {
        let cells = py.detach(|| sweep::cells(&self.loaded, seeds.as_deref())).map_err(error::scenario)?;
        Ok(cells.into_iter().map(|cell| Job::new(&self.loaded.file, cell)).collect())
    }

    /// Refuses to be run with other seeds than its own where it varies or sets them.
    fn check_seeds(&self) -> PyResult<()> {
        self.loaded.check_seeds().map_err(error::scenario)
    }

    /// Builds every variant as a run would, and says what is odd in any of them.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<Odd>> {
        let variants = py.detach(|| self.loaded.expand_sweep()).map_err(error::scenario)?;
        let mut found = odd(&self.loaded.warnings);
        for v in &variants {
            // Between two builds there is time for Ctrl-C.
            py.check_signals()?;
            let built = py.detach(|| build::build(&v.scenario).map(|b| b.warnings));
            let built = built.map_err(|e| error::scenario(e.in_variant(&v.label)))?;
            for w in odd(&v.warnings).into_iter().chain(odd(&built)) {
                if !found.contains(&w) {
                    found.push(w);
                }
            }
        }
        Ok(found)
    }
}
