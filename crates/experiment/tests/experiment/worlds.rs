//! Shared parts of tests that run whole worlds.
// Each test uses a part of this module.
#![allow(dead_code)]

use sluicenet_experiment::run::{Job, Options, Outcome, RunError, run};
use sluicenet_records::{Existing, FlowRow, read};
use sluicenet_scenario::{Error, Loaded, Scenario};
use sluicenet_testkit::Dir;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// A scenario whose files lie in `folder`.
pub fn load(text: &str, name: &str, folder: &Path) -> Result<Loaded, Error> {
    Scenario::parse_in(text, name, Some(folder), &[])
}

/// Runs a scenario. A run that ends has checked its sums: sent = delivered + dropped + inside, for every box and link.
pub fn attempt(loaded: &Loaded, threads: usize, out: Option<PathBuf>) -> Result<Outcome, RunError> {
    let interrupt = AtomicBool::new(false);
    let options = Options { threads, out, existing: Existing::Force, interrupt: &interrupt, progress: &mut |_| {} };
    run(&Job::new(loaded), options).map(|o| o.expect("a result"))
}

/// Runs a scenario whose files lie in this crate.
pub fn execute(text: &str, threads: usize, out: Option<PathBuf>) -> Outcome {
    let here = sluicenet_testkit::repository("crates/scenario");
    let loaded = load(text, "test", &here).unwrap_or_else(|e| panic!("{e}\n{text}"));
    attempt(&loaded, threads, out).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// The flows a run records.
pub fn flows(text: &str, name: &str) -> Vec<FlowRow> {
    let dir = Dir::new(&format!("world-{name}"));
    execute(text, 1, Some(dir.0.clone()));
    read(&dir.0).expect("flows")
}

/// The files of a result, but for the log of the run.
pub fn bytes_of(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(dir)
        .expect("a result")
        .map(|f| f.expect("an entry").path())
        .filter(|p| p.file_name().is_some_and(|n| n != "run.json"))
        .map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).expect("a file")))
        .collect();
    files.sort();
    files
}

/// Whatever the number of threads, `write` leaves the same files.
pub fn assert_same_bytes(name: &str, write: impl Fn(usize, &Dir)) {
    assert_same_bytes_on(&[1, 2, 3], name, write);
}

/// On these numbers of threads `write` leaves the same files.
pub fn assert_same_bytes_on(threads: &[usize], name: &str, write: impl Fn(usize, &Dir)) {
    let results = threads.iter().map(|&threads| {
        let dir = Dir::new(&format!("threads-{name}-{threads}"));
        write(threads, &dir);
        bytes_of(&dir.0)
    });
    let results: Vec<_> = results.collect();
    assert!(results[0].len() > 5 && results.iter().all(|files| *files == results[0]), "{name}");
}
