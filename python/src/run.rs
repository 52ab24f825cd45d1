//! One run: without the interpreter lock, watched, and stopped by a signal or by another thread.

use crate::error;
use crate::scenario::{Odd, odd};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluicenet_experiment::estimate::expected_bytes;
use sluicenet_experiment::run::{Options, Progress};
use sluicenet_experiment::sweep::{Cell, Found, longest_first as order_of};
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

/// One scenario ready to run: a cell of a sweep, or one by itself.
#[pyclass(frozen, module = "sluicenet._native")]
pub struct Job {
    file: String,
    cell: Cell,
}

impl Job {
    /// A job of the scenario in `file`.
    pub fn new(file: &str, cell: Cell) -> Job {
        Job { file: file.to_string(), cell }
    }

    /// Its cell.
    pub fn cell(&self) -> &Cell {
        &self.cell
    }
}

#[pymethods]
impl Job {
    /// What tells it from the other jobs of a sweep; empty for a single one.
    #[getter]
    fn label(&self) -> &str {
        &self.cell.label
    }

    /// The folder that `sluicenet sweep` gives it; no other job of the sweep has the same.
    #[getter]
    fn folder(&self) -> &str {
        &self.cell.folder
    }

    /// The cell of a sweep: axis and value.
    #[getter]
    fn axes(&self) -> Vec<(String, String)> {
        self.cell.job.axes.clone()
    }

    /// Its seed.
    #[getter]
    fn seed(&self) -> u64 {
        self.cell.job.scenario.seed
    }

    /// How much work it is expected to be, to compare it with other jobs.
    #[getter]
    fn work(&self) -> f64 {
        expected_bytes(&self.cell.job.scenario)
    }

    /// Makes `out` ready for a run elsewhere; whether it holds the complete result already.
    fn claim(&self, py: Python<'_>, out: PathBuf, existing: &str) -> PyResult<bool> {
        let existing = existing_of(existing)?;
        py.detach(|| self.cell.claim(&out, existing)).map_err(error::records)
    }

    /// Whether `out` holds its complete result.
    fn is_complete(&self, py: Python<'_>, out: PathBuf) -> bool {
        let found = py.detach(|| self.cell.found(&out));
        matches!(found, Ok(Found::Ended(figures)) if figures.is_complete())
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
            self.cell.run(Options { threads, out: Some(out), existing, interrupt, progress: &mut progress })
        });
        let ran = outcome.map_err(|e| error::run(&self.file, e))?;
        match raised {
            Some(e) => Err(e),
            None => Ok((!ran.kept).then(|| odd(&ran.warnings))),
        }
    }
}

/// The places of jobs in the order to start them: the longest first.
#[pyfunction]
pub fn longest_first(jobs: Vec<PyRef<'_, Job>>) -> Vec<usize> {
    order_of(jobs.iter().map(|job| &job.cell))
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
