//! Runs the variants of a scenario in parallel. Each variant is a run of its own, so the number of workers does not change the
//! results.

use super::failure::Failure;
use super::progress::Bar;
use super::results::read_cell;
use super::{interrupt, output};
use sluicenet_experiment::run::{self, Figures, Job, Options, RunError};
use sluicenet_records::{Existing, RunLog};
use sluicenet_report::CellInput;
use sluicenet_scenario::{Loaded, Warning};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A variant and the folder of its result.
pub(super) struct Cell {
    /// Its readable name.
    pub label: String,
    /// Name of its folder.
    pub folder: String,
    /// The swept keys, seeds among them, each with its value.
    pub settings: Vec<(String, String)>,
    /// The run.
    pub job: Job,
}

/// A variant that was run now or earlier.
pub(super) struct Done {
    /// Name of its folder.
    pub folder: String,
    /// Its figures.
    pub figures: Figures,
    /// Its cost.
    pub log: Option<RunLog>,
    /// Its part of the page.
    pub page: CellInput,
    /// Whether an earlier result was kept.
    pub kept: bool,
}

/// The variants of a scenario.
pub(super) fn cells(loaded: &Loaded) -> Result<Vec<Cell>, Failure> {
    let variants = loaded.expand_sweep()?;
    let inputs = loaded.inputs();
    let mut cells: Vec<Cell> = Vec::with_capacity(variants.len());
    for v in variants {
        let mut folder = v.folder.clone();
        if cells.iter().any(|c| c.folder == folder) {
            folder = format!("{folder}-{}", cells.len());
        }
        let (label, settings) = (v.label.clone(), v.settings.clone());
        cells.push(Cell { label, folder, settings, job: Job::of_variant(v, inputs.clone()) });
    }
    Ok(cells)
}

/// The number of threads that this machine has for runs.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs all variants in `dir`, `workers` at a time. The results are in the order of the variants; those that Ctrl-C prevented
/// are missing.
pub(super) fn run(
    cells: &[Cell],
    dir: &Path,
    workers: usize,
    existing: Existing,
    quiet: bool,
) -> Result<Vec<Done>, Failure> {
    let user = interrupt::of_a_run();
    each(cells, workers, quiet, |cell, i, bar| {
        let done = one_cell(cell, &dir.join(&cell.folder), existing, user, bar, i)?;
        if !quiet {
            done.1.iter().for_each(|w| output::note(&format!("{}: {w}", cell.label)));
        }
        Ok(done.0)
    })
}

/// Calls `one` for each variant, `workers` at a time, until one fails. The results are in the order of the variants; those that
/// Ctrl-C prevented are missing.
pub(super) fn each<T: Send>(
    cells: &[Cell],
    workers: usize,
    quiet: bool,
    one: impl Fn(&Cell, usize, &Bar) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let user = interrupt::of_a_run();
    let bar = Bar::new(cells.len(), quiet);
    let next = AtomicUsize::new(0);
    let broken = AtomicBool::new(false);
    let results: Mutex<Vec<Option<Result<T, Failure>>>> = Mutex::new(cells.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, cells.len().max(1)) {
            scope.spawn(|| {
                while !user.load(Ordering::SeqCst) && !broken.load(Ordering::SeqCst) {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    let Some(cell) = cells.get(i) else { break };
                    let outcome = one(cell, i, &bar);
                    bar.finished(i);
                    // The other runs would fail too, for example on a full disk.
                    broken.fetch_or(outcome.is_err(), Ordering::SeqCst);
                    results.lock().unwrap_or_else(|e| e.into_inner())[i] = Some(outcome);
                }
            });
        }
    });
    bar.clear();
    results.into_inner().unwrap_or_else(|e| e.into_inner()).into_iter().flatten().collect()
}

fn one_cell(
    cell: &Cell,
    dir: &Path,
    existing: Existing,
    interrupt: &AtomicBool,
    bar: &Bar,
    index: usize,
) -> Result<(Done, Vec<Warning>), Failure> {
    let go = |existing| {
        let progress = &mut |p: &run::Progress| bar.update(index, p);
        let out = Some(PathBuf::from(dir));
        run::run(&cell.job, Options { threads: 1, out, existing, interrupt, progress }).map_err(|e| match e {
            RunError::Build(e) => RunError::Build(e.in_variant(&cell.label)),
            e => e,
        })
    };
    let mut outcome = go(existing)?;
    let figures = match (&outcome, Figures::saved(dir)) {
        (None, Some(figures)) => figures,
        _ => {
            // Complete records without figures: the run was killed between the two.
            if outcome.is_none() {
                outcome = go(Existing::Force)?;
            }
            let Some(outcome) = &outcome else {
                return Err(Failure::Failed(format!("{}: not run", dir.display())));
            };
            Figures::of(&cell.job, outcome)
        }
    };
    // The outcome is freed before the records are read, and the records are reduced while they are read: each worker holds one
    // run in memory at a time.
    let kept = outcome.is_none();
    let warnings = outcome.map(|outcome| outcome.warnings).unwrap_or_default();
    Ok((
        Done { folder: cell.folder.clone(), figures, log: RunLog::read(dir).ok(), page: read_cell(dir)?, kept },
        warnings,
    ))
}
