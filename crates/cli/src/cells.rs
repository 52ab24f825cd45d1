//! Runs cells of a sweep in parallel. Each is a run of its own, so the number of workers does not change the results.

use super::failure::Failure;
use super::progress::Bar;
use super::results::read_cell;
use super::{interrupt, output};
use sluicenet_experiment::estimate::expected_bytes;
use sluicenet_experiment::run::{self, Figures, Options};
use sluicenet_experiment::sweep::{Cell, Ran, longest_first};
use sluicenet_records::{Existing, RunLog, Source};
use sluicenet_report::CellInput;
use sluicenet_scenario::Warning;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A cell that was run now or earlier.
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

impl Done {
    /// The cell whose result is in its folder of `dir`.
    pub fn read(cell: &Cell, dir: &Path, ran: Ran) -> Result<Done, Failure> {
        let dir = dir.join(&cell.folder);
        let page = read_cell(Source::written(&dir, &ran.records))?;
        if !ran.kept {
            // Reading the records takes memory, too.
            RunLog::update_peak(&dir)?;
        }
        let log = RunLog::read(&dir).ok();
        Ok(Done { folder: cell.folder.clone(), figures: ran.figures, log, page, kept: ran.kept })
    }
}

/// The number of threads that this machine has for runs.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs all cells in `dir`, `workers` at a time. The results are in the order of the cells; those that Ctrl-C prevented are
/// missing.
pub(super) fn run(
    cells: &[Cell],
    dir: &Path,
    workers: usize,
    existing: Existing,
    quiet: bool,
) -> Result<Vec<Done>, Failure> {
    each(cells, workers, quiet, |cell, i, bar| {
        // The world is freed before the records are read, and the records are reduced while they are read: each worker holds
        // one run in memory at a time.
        Done::read(cell, dir, one_cell(cell, dir, existing, quiet, (bar, i))?)
    })
}

/// Calls `one` for each cell, `workers` at a time, the longest first, until one fails. The results are in the order of the
/// cells; those that Ctrl-C prevented are missing.
pub(super) fn each<T: Send>(
    cells: &[Cell],
    workers: usize,
    quiet: bool,
    one: impl Fn(&Cell, usize, &Bar) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    some(cells, &longest_first(cells), workers, quiet, one)
}

/// As [`each`], for the cells of `order` alone, which begin in this order.
pub(super) fn some<T: Send>(
    cells: &[Cell],
    order: &[usize],
    workers: usize,
    quiet: bool,
    one: impl Fn(&Cell, usize, &Bar) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    let user = interrupt::of_a_run();
    let mut weights = vec![0.0; cells.len()];
    order.iter().for_each(|&i| weights[i] = expected_bytes(&cells[i].job.scenario));
    let bar = Bar::new(&weights, quiet);
    let next = AtomicUsize::new(0);
    let broken = AtomicBool::new(false);
    let results: Mutex<Vec<Option<Result<T, Failure>>>> = Mutex::new(cells.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..workers.clamp(1, order.len().max(1)) {
            scope.spawn(|| {
                while !user.load(Ordering::SeqCst) && !broken.load(Ordering::SeqCst) {
                    let Some(&i) = order.get(next.fetch_add(1, Ordering::SeqCst)) else { break };
                    let outcome = one(&cells[i], i, &bar);
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

/// Runs one cell into its folder of `dir`, and tells the warnings of its build.
pub(super) fn one_cell(
    cell: &Cell,
    dir: &Path,
    existing: Existing,
    quiet: bool,
    (bar, index): (&Bar, usize),
) -> Result<Ran, Failure> {
    let progress = &mut |p: &run::Progress| bar.update(index, p);
    let interrupt = interrupt::of_a_run();
    let out = Some(dir.join(&cell.folder));
    let ran = cell.run(Options { threads: 1, out, existing, interrupt, progress })?;
    if !quiet {
        let tell = |w: &Warning| output::note(&format!("{}: {w}", cell.label));
        ran.warnings.iter().for_each(tell);
    }
    Ok(ran)
}
