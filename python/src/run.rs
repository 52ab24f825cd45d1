//! One run: without the interpreter lock, watched, and stopped by a signal or by another thread.

use crate::error;
use crate::scenario::{Odd, odd};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluicenet_experiment::run::{self, Options, Progress};
use sluicenet_records::Existing;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a run looks for signals and tells how far it is: often enough for a hand on Ctrl-C, too seldom to cost.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Asks runs to stop at the end of their epoch.
#[pyclass(frozen, module = "sluicenet._native")]
#[derive(Default)]
pub struct Stop {
    raised: Arc<AtomicBool>,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Stop {
        Stop::default()
    }

    /// Asks.
    fn set(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }
}

/// One scenario ready to run.
#[pyclass(frozen, module = "sluicenet._native")]
pub struct Job {
    file: String,
    label: String,
    folder: String,
    job: run::Job,
}

impl Job {
    /// A job of the scenario in `file`; `label` tells it from others of a sweep, and so does the name of its folder.
    pub fn new(file: &str, label: String, folder: String, job: run::Job) -> Job {
        Job { file: file.to_string(), label, folder, job }
    }

    /// The same with another seed, and the seed in its label: an axis of nothing, since runs with the same axes are
    /// seeds of one configuration.
    pub fn with_seed(&self, seed: u64) -> Job {
        let mut scenario = self.job.scenario.clone();
        scenario.general.seed = seed;
        let run::Job { axes, axis_keys, inputs, .. } = &self.job;
        let job = run::Job { scenario, axes: axes.clone(), axis_keys: axis_keys.clone(), inputs: inputs.clone() };
        let label = format!("{} seed={seed}", self.label).trim_start().to_string();
        let folder = match self.label.is_empty() {
            true => format!("seed={seed}"),
            false => format!("{},seed={seed}", self.folder),
        };
        Job::new(&self.file, label, folder, job)
    }
}

#[pymethods]
impl Job {
    /// What tells it from the other jobs of a sweep; empty for a single one.
    #[getter]
    fn label(&self) -> &str {
        &self.label
    }

    /// The folder that `sluicenet sweep` gives it.
    #[getter]
    fn folder(&self) -> &str {
        &self.folder
    }

    /// The cell of a sweep: axis and value.
    #[getter]
    fn axes(&self) -> Vec<(String, String)> {
        self.job.axes.clone()
    }

    /// Its seed.
    #[getter]
    fn seed(&self) -> u64 {
        self.job.scenario.seed
    }

    /// Runs it into `out`; warnings of the build, or None where the same result was there already.
    ///
    /// `tick` is called with (now, until or None, remaining, total, hops), times in picoseconds. What it or a signal
    /// handler raises stops the run at the end of its epoch, and is raised once the records are complete up to there.
    #[pyo3(signature = (out, *, threads, existing, stop, tick=None))]
    fn run(
        &self,
        py: Python<'_>,
        out: PathBuf,
        threads: usize,
        existing: &str,
        stop: &Stop,
        tick: Option<Py<PyAny>>,
    ) -> PyResult<Option<Vec<Odd>>> {
        let existing = existing_of(existing)?;
        let interrupt = &*stop.raised;
        let mut raised = None;
        let outcome = py.detach(|| {
            let mut looked = Instant::now();
            let mut progress = |p: &Progress| {
                if raised.is_none() && looked.elapsed() >= LOOK_INTERVAL {
                    raised = Python::attach(|py| look(py, p, tick.as_ref()).err());
                    if raised.is_some() {
                        interrupt.store(true, Ordering::Relaxed);
                    }
                    looked = Instant::now();
                }
            };
            run::run(&self.job, Options { threads, out: Some(out), existing, interrupt, progress: &mut progress })
        });
        let outcome = outcome.map_err(|e| error::run(&self.file, e))?;
        match raised {
            Some(e) => Err(e),
            None => Ok(outcome.map(|o| odd(&o.warnings))),
        }
    }
}

/// What to do with results that are there, by its name in Python.
pub fn existing_of(name: &str) -> PyResult<Existing> {
    match name {
        "refuse" => Ok(Existing::Refuse),
        "resume" => Ok(Existing::Resume),
        "force" => Ok(Existing::Force),
        other => Err(PyValueError::new_err(format!("existing: {other}"))),
    }
}

fn look(py: Python<'_>, p: &Progress, tick: Option<&Py<PyAny>>) -> PyResult<()> {
    py.check_signals()?;
    if let Some(tick) = tick {
        tick.call1(py, (p.now.as_ps(), p.until.map(|t| t.as_ps()), p.remaining, p.total, p.hops))?;
    }
    Ok(())
}
