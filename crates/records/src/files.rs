//! Names of result files, and writing of files so that a file under its final name is always complete.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::RecordError;
use super::manifest::{Manifest, RunInfo, Status};
use super::profile::{FOLDED, PROFILE};
use super::tables::TABLES;
use crate::text::counted;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Suffix of a file that is being written. Readers ignore such files and writers replace them.
const TEMPORARY: &str = "tmp";
/// File name of the manifest.
pub(super) const MANIFEST: &str = "manifest.json";
/// File name of the machine-dependent log of the run.
pub(super) const RUN_LOG: &str = "run.json";

/// File name of the run's figures.
pub const SUMMARY: &str = "summary.json";
/// File name of the frames captured.
pub const CAPTURE: &str = "capture.pcapng";
/// File name of the table of a sweep's runs.
pub const CELLS: &str = "cells.parquet";
/// Files computed from records. They are removed with the records, and do not count as a result by themselves.
const MADE_OF_RECORDS: [&str; 10] = [
    SUMMARY,
    CELLS,
    CAPTURE,
    "report.html",
    PROFILE,
    FOLDED,
    // The exports, under the names that they have without `-o`.
    "hpcc-fct.txt",
    "hpcc-pfc.txt",
    "hpcc-qlen.txt",
    "htsim-flows.txt",
];

/// The treatment of a directory that already holds a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Refuse the directory.
    #[default]
    Refuse,
    /// Remove the old result, and no other files in the directory.
    Force,
    /// Keep a complete result of the same scenario and seed, replace an incomplete one, refuse any other.
    Resume,
}

/// The result of [`claim`].
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// The directory is ready for a new result.
    Ready,
    /// The same scenario and seed ran to the end before; no run is needed.
    Complete(Box<Manifest>),
}

/// Keeps other processes from writing to a directory until it is dropped; the end of the process releases it too. A
/// directory that was made for it and is still empty goes with it.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    made: Option<PathBuf>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(dir) = &self.made {
            // This fails where there is anything in it, which then stays.
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Who else may write into the directory of a sweep at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody.
    Alone,
    /// Other parts of the same sweep, each of which runs cells of its own.
    WithOtherParts,
}

/// Creates `dir` and locks it for the result of one run.
pub fn lock(dir: &Path) -> Result<Lock, RecordError> {
    lock_as(dir, rustix::fs::FlockOperation::NonBlockingLockExclusive)
}

fn lock_as(dir: &Path, operation: rustix::fs::FlockOperation) -> Result<Lock, RecordError> {
    let made = (!dir.exists()).then(|| dir.to_owned());
    create(dir)?;
    let file = File::open(dir).map_err(RecordError::io(dir, "open the directory"))?;
    match rustix::fs::flock(&file, operation) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RecordError::Busy { dir: dir.to_owned() }),
        // A file system without locks is used without a lock.
        Ok(()) | Err(_) => Ok(Lock { _file: file, made }),
    }
}

/// Creates `dir`, unless it exists.
fn create(dir: &Path) -> Result<(), RecordError> {
    not_a_file(dir)?;
    fs::create_dir_all(dir).map_err(RecordError::io(dir, "create the directory"))
}

/// Refuses a directory for results that is a file, or is below one: the system's error would name neither path.
fn not_a_file(dir: &Path) -> Result<(), RecordError> {
    match dir.ancestors().find(|path| fs::metadata(path).is_ok_and(|meta| !meta.is_dir())) {
        None => Ok(()),
        Some(path) => {
            let source = std::io::Error::new(std::io::ErrorKind::NotADirectory, "this is a file, not a directory");
            Err(RecordError::Io { path: path.to_owned(), action: "put results here", source })
        }
    }
}

/// Makes `dir` ready for the result of `run`: creates it, or decides about an existing result.
///
/// A sweep in `dir` is refused like another run's result. With force its summary and its page are removed, and the
/// folders of its runs stay.
pub fn claim(dir: &Path, run: &RunInfo, existing: Existing) -> Result<Found, RecordError> {
    create(dir)?;
    if let Some(sweep) = SweepOutline::read(dir) {
        if existing != Existing::Force {
            return Err(RecordError::Exists { dir: dir.to_owned(), detail: sweep.detail() });
        }
        remove(&made_of_records(dir))?;
    }
    let old = result_files(dir)?;
    if old.iter().all(|path| path.extension() == Some(OsStr::new(TEMPORARY))) {
        return remove(&old);
    }
    let old: Vec<PathBuf> = old.into_iter().chain(made_of_records(dir)).collect();
    let manifest = Manifest::read(dir);
    let mut detail = detail(&manifest);
    match (existing, manifest) {
        (Existing::Force, _) => remove(&old),
        // Two versions may compute different results, which must not stand side by side unnoticed.
        (Existing::Resume, Ok(m)) if m.run.tool_version != run.tool_version && m.status == Status::Complete => {
            detail += &format!(" of sluicenet {}, and this is {}", m.run.tool_version, run.tool_version);
            Err(RecordError::Exists { dir: dir.to_owned(), detail })
        }
        (Existing::Resume, Ok(m)) => match m.run.difference(run) {
            Some(difference) => Err(another(dir, &m, &difference)),
            None if m.status == Status::Complete => Ok(Found::Complete(Box::new(m))),
            None => remove(&old),
        },
        _ => Err(RecordError::Exists { dir: dir.to_owned(), detail }),
    }
}

/// The error of a directory that holds a result of another scenario.
fn another(dir: &Path, found: &Manifest, difference: &str) -> RecordError {
    RecordError::Exists { dir: dir.to_owned(), detail: format!("{} of {difference}", described(found)) }
}

/// Refuses to go on in `dir` with a sweep that is another one, before any of its runs begins: `runs` has the folder of
/// each run and the run.
///
/// # Errors
/// A folder with a result of another scenario; the error names the first setting that differs. A complete result of a run
/// that is none of `runs`.
pub fn check_same_sweep<'a>(dir: &Path, runs: impl IntoIterator<Item = (&'a str, RunInfo)>) -> Result<(), RecordError> {
    let mut folders = BTreeSet::new();
    for (folder, run) in runs {
        let path = dir.join(folder);
        // A result that cannot be read or is of another version is refused when its run begins.
        if let Some(m) = Manifest::read(&path).ok().filter(|m| m.run.tool_version == run.tool_version) {
            if let Some(difference) = m.run.difference(&run) {
                return Err(another(&path, &m, &difference));
            }
        }
        folders.insert(folder);
    }
    let is_complete = |path: &Path| Manifest::read(path).is_ok_and(|m| m.status == Status::Complete);
    match other_runs(dir, &folders).into_iter().find(|path| is_complete(path)) {
        None => Ok(()),
        Some(path) => {
            let detail = "the result of a run that this sweep does not have: give the sweep another directory, or \
                          remove this one";
            Err(RecordError::corrupt(&path, detail))
        }
    }
}

/// Removes the results in `dir` of runs that a sweep does not have, with all else in their folders that is made of them:
/// it replaces another sweep. `folders` are those of its runs.
///
/// # Errors
/// A file that cannot be removed.
pub fn remove_other_runs<'a>(dir: &Path, folders: impl IntoIterator<Item = &'a str>) -> Result<(), RecordError> {
    for folder in other_runs(dir, &folders.into_iter().collect()) {
        remove(&result_files(&folder)?.into_iter().chain(made_of_records(&folder)).collect::<Vec<_>>())?;
        // It stays if it has files of somebody else.
        let _ = fs::remove_dir(&folder);
    }
    Ok(())
}

/// The folders in `dir` with results of runs that are not in `folders`, by name.
fn other_runs(dir: &Path, folders: &BTreeSet<&str>) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut others: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    others.retain(|path| path.file_name().and_then(OsStr::to_str).is_none_or(|name| !folders.contains(name)));
    others.retain(|path| Manifest::is_in(path));
    others.sort();
    others
}

/// Makes `dir`, which need not exist yet, ready for a sweep of `scenario`, and locks it. A run's result, or the sweep of
/// another scenario, is replaced with force and refused otherwise. Files in the folders of the sweep's runs stay; each
/// run decides about its own.
pub fn claim_sweep(dir: &Path, scenario: &str, existing: Existing, sharing: Sharing) -> Result<Lock, RecordError> {
    let lock = lock_as(
        dir,
        match sharing {
            Sharing::Alone => rustix::fs::FlockOperation::NonBlockingLockExclusive,
            Sharing::WithOtherParts => rustix::fs::FlockOperation::NonBlockingLockShared,
        },
    )?;
    let refuse = |detail| Err(RecordError::Exists { dir: dir.to_owned(), detail });
    match SweepOutline::read(dir) {
        Some(sweep) if existing == Existing::Refuse || existing == Existing::Resume && sweep.scenario != scenario => {
            return refuse(sweep.detail());
        }
        _ => {}
    }
    let old = result_files(dir)?;
    let is_temporary = |path: &PathBuf| path.extension() == Some(OsStr::new(TEMPORARY));
    if existing != Existing::Force && !old.iter().all(is_temporary) {
        return refuse(detail(&Manifest::read(dir)));
    }
    if !old.is_empty() {
        remove(&old.into_iter().chain(made_of_records(dir)).collect::<Vec<_>>())?;
    }
    Ok(lock)
}

/// A description of the result in a directory, from the directory's manifest.
fn detail(manifest: &Result<Manifest, RecordError>) -> String {
    match manifest {
        Ok(m) => described(m),
        Err(RecordError::Corrupt { detail, .. }) => format!("a result ({detail})"),
        Err(_) => "result files without a readable manifest".to_owned(),
    }
}

fn described(manifest: &Manifest) -> String {
    format!("the result of {} (seed {}, {})", manifest.run.scenario, manifest.run.seed, manifest.status)
}

/// The files in `dir` that are computed from records.
fn made_of_records(dir: &Path) -> Vec<PathBuf> {
    MADE_OF_RECORDS.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect()
}

/// The part of a sweep's `summary.json` that a run's lacks, and that tells sweeps apart.
#[derive(Deserialize)]
struct SweepOutline {
    scenario: String,
    runs: Vec<IgnoredAny>,
}

impl SweepOutline {
    fn read(dir: &Path) -> Option<SweepOutline> {
        serde_json::from_str(&fs::read_to_string(dir.join(SUMMARY)).ok()?).ok()
    }

    fn detail(&self) -> String {
        format!("a sweep of {} ({})", self.scenario, counted(self.runs.len() as u64, "run", "runs"))
    }
}

fn remove(files: &[PathBuf]) -> Result<Found, RecordError> {
    for path in files {
        fs::remove_file(path).map_err(RecordError::io(path, "remove"))?;
    }
    Ok(Found::Ready)
}

/// Every file in `dir` that belongs to a result, temporary ones included.
fn result_files(dir: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(RecordError::io(dir, "list the directory"))? {
        let path = entry.map_err(RecordError::io(dir, "list the directory"))?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let name = name.strip_suffix(".tmp").unwrap_or(name);
        let is_part = TABLES.iter().any(|t| part_number(t.name, name).is_some());
        if name == MANIFEST || name == RUN_LOG || is_part {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether `dir` holds parts of our tables.
pub(super) fn has_parts(dir: &Path) -> bool {
    result_files(dir).is_ok_and(|files| files.iter().any(|path| path.extension() == Some(OsStr::new("parquet"))))
}

/// File name of part `number` of `table`.
pub(super) fn part_name(table: &str, number: usize, extension: &str) -> String {
    format!("{table}-{number:05}.{extension}")
}

/// The number in the name of a part of `table`, Parquet or CSV.
fn part_number(table: &str, name: &str) -> Option<usize> {
    let rest = name.strip_prefix(table)?.strip_prefix('-')?;
    let digits = rest.strip_suffix(".parquet").or_else(|| rest.strip_suffix(".csv"))?;
    let number = digits.parse().ok()?;
    // Only names that this module gives: "flows-1.parquet" is a file of another program.
    (digits == format!("{number:05}")).then_some(number)
}

/// The Parquet parts of `table` in `dir`, in order. A gap is an error, because rows would be missing unnoticed.
pub(super) fn parts(dir: &Path, table: &str) -> Result<Vec<PathBuf>, RecordError> {
    let mut found = Vec::new();
    for path in result_files(dir)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if let (true, Some(number)) = (name.ends_with(".parquet"), part_number(table, name)) {
            found.push((number, path));
        }
    }
    found.sort();
    if let Some(missing) = (0..found.len()).find(|&i| found[i].0 != i) {
        let path = dir.join(part_name(table, missing, "parquet"));
        return Err(RecordError::corrupt(&path, "this part is missing although later ones exist"));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Writes a whole file under a temporary name, syncs it, and renames it. After a crash the file is complete or absent.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".");
    temporary.push(TEMPORARY);
    let temporary = PathBuf::from(temporary);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    if let Err(source) = written {
        // The next writer may need the space of the temporary file. If removing fails too, the first error matters
        // more.
        let _ = fs::remove_file(&temporary);
        return Err(RecordError::Io { path: path.to_owned(), action: "write", source });
    }
    fs::rename(&temporary, path).map_err(RecordError::io(path, "rename a temporary file to its name"))?;
    // Without this, a power cut may lose the name itself, on file systems that allow opening a directory.
    if let Some(dir) = path.parent().and_then(|dir| File::open(dir).ok()) {
        dir.sync_all().map_err(RecordError::io(path, "write the directory entry of"))?;
    }
    Ok(())
}
