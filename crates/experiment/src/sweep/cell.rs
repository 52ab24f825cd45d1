//! One cell of a sweep: a variant of the scenario, the folder of its result, and its run.

use crate::run::{self, Figures, Job, Options, RunError};
use sluicenet_records::{
    self as records, Existing, LastParts, Manifest, RecordError, Status, check_same_sweep, claim, lock,
    remove_other_runs,
};
use sluicenet_scenario::{self as scenario, Loaded, Warning, folder_name};
use std::path::Path;

/// A variant and the folder of its result.
pub struct Cell {
    /// Its readable name; empty where there is no sweep.
    pub label: String,
    /// Name of its folder; no two cells have the same.
    pub folder: String,
    /// The swept keys, seeds among them, each with its value.
    pub settings: Vec<(String, String)>,
    /// The run.
    pub job: Job,
    /// Warnings of the variant that its base does not have.
    warnings: Vec<Warning>,
}

/// A cell that has just been run, or was kept.
pub struct Ran {
    /// Its figures.
    pub figures: Figures,
    /// Whether an earlier result was kept.
    pub kept: bool,
    /// Warnings of the build; none of a kept one.
    pub warnings: Vec<Warning>,
    /// The records that are still in memory; none of a kept one.
    pub records: LastParts,
}

impl Ran {
    /// A cell with the result of an earlier run.
    pub fn kept(figures: Figures) -> Ran {
        Ran { figures, kept: true, warnings: Vec::new(), records: LastParts::default() }
    }
}

/// What a cell's folder holds.
#[derive(Debug)]
pub enum Found {
    /// The result of a run that ended: complete, or failed.
    Ended(Box<Figures>),
    /// A run that has not ended; its status, as `running`.
    Begun(String),
    /// Nothing.
    Nothing,
}

/// The cells of a scenario, in the order of its `[sweep]`; each with every one of `seeds`, where they are given.
///
/// # Errors
/// A variant that is no valid scenario.
pub fn cells(loaded: &Loaded, seeds: Option<&[u64]>) -> scenario::Result<Vec<Cell>> {
    let variants = loaded.expand_sweep()?;
    let inputs = loaded.inputs();
    let mut cells: Vec<Cell> = Vec::with_capacity(variants.len());
    for v in variants {
        let (label, folder, settings) = (v.label.clone(), v.folder.clone(), v.settings.clone());
        let warnings = v.warnings.iter().filter(|w| !loaded.warnings.contains(w)).cloned().collect();
        let cell = Cell { label, folder, settings, job: Job::of_variant(v, inputs.clone()), warnings };
        match seeds {
            None => add(&mut cells, cell),
            Some(seeds) => seeds.iter().for_each(|&seed| add(&mut cells, cell.with_seed(seed))),
        }
    }
    Ok(cells)
}

/// Adds a cell under a folder that no other has: long names are cut, and may then be equal.
fn add(cells: &mut Vec<Cell>, mut cell: Cell) {
    if cells.iter().any(|other| other.folder == cell.folder) {
        cell.folder = format!("{}-{}", cell.folder, cells.len());
    }
    cells.push(cell);
}

/// Refuses to go on with the sweep of these cells in `dir`, where it holds another sweep.
///
/// # Errors
/// The first cell of another scenario, with the setting that differs; a complete result of no cell.
pub fn check_same<'a>(cells: impl IntoIterator<Item = &'a Cell>, dir: &Path) -> Result<(), RecordError> {
    check_same_sweep(dir, cells.into_iter().map(|cell| (cell.folder.as_str(), cell.job.info())))
}

/// Removes the results in `dir` that none of these cells has: they replace another sweep.
///
/// # Errors
/// A file that cannot be removed.
pub fn remove_others<'a>(cells: impl IntoIterator<Item = &'a Cell>, dir: &Path) -> Result<(), RecordError> {
    remove_other_runs(dir, cells.into_iter().map(|cell| cell.folder.as_str()))
}

impl Cell {
    /// The scenario itself, without what its sweep varies.
    pub fn base(loaded: &Loaded) -> Cell {
        let (label, folder, settings) = (String::new(), "run".into(), Vec::new());
        Cell { label, folder, settings, job: Job::new(loaded), warnings: Vec::new() }
    }

    /// The same with another seed, and the seed in its label: an axis of nothing, since runs with the same axes are seeds
    /// of one configuration.
    fn with_seed(&self, seed: u64) -> Cell {
        let mut scenario = self.job.scenario.clone();
        scenario.general.seed = seed;
        let Job { axes, axis_keys, inputs, .. } = &self.job;
        let job = Job { scenario, axes: axes.clone(), axis_keys: axis_keys.clone(), inputs: inputs.clone() };
        let label = format!("{} seed={seed}", self.label).trim_start().to_string();
        let folder = match self.label.is_empty() {
            true => folder_name(&[format!("seed={seed}")]),
            false => format!("{},seed={seed}", self.folder),
        };
        Cell { label, folder, settings: self.settings.clone(), job, warnings: self.warnings.clone() }
    }

    /// Refuses a cell whose network cannot be built.
    ///
    /// # Errors
    /// The fault, after the warnings of the variant.
    pub fn check(&self) -> scenario::Result<()> {
        run::check(&self.job.scenario).map_err(|e| e.after(self.warnings.clone()).in_variant(&self.label))
    }

    /// Runs it into `options.out`, or keeps a complete result of the same scenario where `options.existing` says so.
    ///
    /// # Errors
    /// The variant cannot be built, its records cannot be written, or its folder holds another result or one of another
    /// version.
    pub fn run(&self, options: Options<'_>) -> Result<Ran, RunError> {
        let Options { threads, out, existing, interrupt, progress } = options;
        let mut go = |existing| {
            let options = Options { threads, out: out.clone(), existing, interrupt, progress: &mut *progress };
            run::run(&self.job, options).map_err(|e| match e {
                RunError::Build(e) => RunError::Build(e.in_variant(&self.label)),
                e => e,
            })
        };
        let mut outcome = go(existing)?;
        if outcome.is_none() {
            if let Some(figures) = out.as_deref().and_then(Figures::saved) {
                return Ok(Ran::kept(figures));
            }
            // Complete records without figures: the run was killed between the two.
            outcome = go(Existing::Force)?;
        }
        match outcome {
            Some(outcome) => {
                let figures = Figures::of(&self.job, &outcome);
                Ok(Ran { figures, kept: false, warnings: outcome.warnings, records: outcome.records })
            }
            None => unreachable!("with force nothing is kept"),
        }
    }

    /// Makes its folder ready for [`Cell::run`] elsewhere; whether it holds the complete result already.
    ///
    /// # Errors
    /// As [`Cell::run`] of a folder that cannot be used.
    pub fn claim(&self, dir: &Path, existing: Existing) -> Result<bool, RecordError> {
        let _lock = lock(dir)?;
        let info = self.job.info();
        match claim(dir, &info, existing)? {
            records::Found::Complete(_) if Figures::saved(dir).is_some() => Ok(true),
            records::Found::Complete(_) => claim(dir, &info, Existing::Force).map(|_| false),
            records::Found::Ready => Ok(false),
        }
    }

    /// What is in its folder, which is only read.
    ///
    /// # Errors
    /// The result of another scenario, of another version, or one that cannot be read.
    pub fn found(&self, dir: &Path) -> Result<Found, RecordError> {
        if !Manifest::is_in(dir) {
            return Ok(Found::Nothing);
        }
        let manifest = Manifest::read(dir)?;
        let (found, wanted) = (&manifest.run, self.job.info());
        let path = dir.join("manifest.json");
        if found.tool_version != wanted.tool_version {
            let detail = format!("the result of sluicenet {}, and this is {}", found.tool_version, wanted.tool_version);
            return Err(RecordError::Corrupt { path, detail: format!("{detail}: run the cell again with --force") });
        }
        if let Some(difference) = found.difference(&wanted) {
            let detail = format!("the result of {difference} ({}, seed {})", found.scenario, found.seed);
            return Err(RecordError::Corrupt { path, detail });
        }
        match (manifest.status, Figures::saved(dir)) {
            (Status::Complete | Status::Failed(_), Some(figures)) => Ok(Found::Ended(Box::new(figures))),
            (Status::Complete, None) => Ok(Found::Begun("running".into())),
            (status, _) => Ok(Found::Begun(status.to_string())),
        }
    }
}
