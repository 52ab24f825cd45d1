//! The variants of a scenario, run beside each other: each is a run by itself, so that their number at a time changes
//! nothing in their results.

use super::failure::Failure;
use super::progress::Bar;
use super::report::read_cell;
use super::{interrupt, output};
use sluicenet_experiment::run::{self, Figures, Job, Options, RunError};
use sluicenet_records::{Existing, RunLog};
use sluicenet_report::CellInput;
use sluicenet_scenario::Loaded;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A variant and where its result belongs.
pub(super) struct Cell {
    /// Its readable name.
    pub label: String,
    /// Name of its folder.
    pub folder: String,
    /// The swept keys, seeds among them, each with its value.
    pub settings: Vec<(String, String)>,
    /// What is run.
    pub job: Job,
}

/// A variant that was run, or had been.
pub(super) struct Done {
    /// Name of its folder.
    pub folder: String,
    /// Its figures.
    pub figures: Figures,
    /// What it took.
    pub log: Option<RunLog>,
    /// For the page; none where the run was interrupted before anything was there.
    pub page: CellInput,
    /// Whether it was there already.
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

/// How many threads a machine has for runs.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs all of them, `workers` at a time, in `dir`; in the order of the variants, without those that Ctrl-C prevented.
pub(super) fn run(
    cells: &[Cell],
    dir: &Path,
    workers: usize,
    existing: Existing,
    quiet: bool,
) -> Result<Vec<Done>, Failure> {
    let user = interrupt::of_a_run();
    each(cells, workers, quiet, |cell, i, bar| one_cell(cell, &dir.join(&cell.folder), existing, user, bar, i))
}

/// `one` of each of them, `workers` at a time, until one fails; in the order of the variants, without those that Ctrl-C prevented.
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
                    // A full disk is full for the others too.
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
) -> Result<Done, Failure> {
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
            // Complete records without their figures: killed between the two.
            if outcome.is_none() {
                outcome = go(Existing::Force)?;
            }
            let Some(outcome) = &outcome else {
                return Err(Failure::Failed(format!("{}: nothing was run", dir.display())));
            };
            for w in &outcome.warnings {
                output::note(&format!("{}: {w}", cell.label));
            }
            Figures::of(&cell.job, outcome)
        }
    };
    // What the run left in memory is done with before its records are read, and those are reduced as they are read: a sweep
    // holds one run at a time, whatever it has done before.
    let kept = outcome.is_none();
    drop(outcome);
    Ok(Done { folder: cell.folder.clone(), figures, log: RunLog::read(dir).ok(), page: read_cell(dir)?, kept })
}
