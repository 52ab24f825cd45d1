//! Scenarios: read, checked, taken apart into jobs.

use crate::error;
use crate::run::Job;
use pyo3::prelude::*;
use sluicenet_experiment::build;
use sluicenet_experiment::run;
use sluicenet_scenario::{Loaded, Scenario as Model, Warning};
use std::path::{Path, PathBuf};

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
}

#[pymethods]
impl Scenario {
    /// Reads a file and applies overrides, each `key=value`.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf, overrides: Vec<String>) -> PyResult<Scenario> {
        let loaded = py.detach(|| Model::load_with(path, &overrides)).map_err(error::scenario)?;
        Ok(Scenario { loaded })
    }

    /// Reads a text; its input files are relative to `folder`.
    #[staticmethod]
    fn parse(py: Python<'_>, text: &str, name: &str, folder: PathBuf, overrides: Vec<String>) -> PyResult<Scenario> {
        let parse = || Model::parse_in(text, name, Some(Path::new(&folder)), &overrides);
        Ok(Scenario { loaded: py.detach(parse).map_err(error::scenario)? })
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
        Job::new(&self.loaded.file, String::new(), "run".into(), run::Job::new(&self.loaded))
    }

    /// Every combination of its sweep and of `seeds`; the scenario itself where there are none.
    fn variants(&self, py: Python<'_>, seeds: Option<Vec<u64>>) -> PyResult<Vec<Job>> {
        let variants = py.detach(|| self.loaded.expand_sweep()).map_err(error::scenario)?;
        let inputs = self.loaded.inputs();
        let mut jobs = Vec::new();
        for v in variants {
            let (label, folder) = (v.label.clone(), v.folder.clone());
            let job = Job::new(&self.loaded.file, label, folder, run::Job::of_variant(v, inputs.clone()));
            match &seeds {
                None => jobs.push(job),
                Some(seeds) => jobs.extend(seeds.iter().map(|&seed| job.with_seed(seed))),
            }
        }
        Ok(jobs)
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
