//! A sweep as a job array of SLURM: the script for `sbatch`, whose tasks each run a part of the cells.

use super::failure::Failure;
use super::files;
use super::rerun::{quoted, set_options};
use sluicenet_records::sha256_hex;
use std::path::{Path, PathBuf, absolute};

/// Tasks of a job array unless the user says otherwise: SLURM's default `MaxArraySize` of 1001 permits one more.
const TASKS_MAX: usize = 1_000;
/// Hexadecimal digits that name a build.
const BUILD_DIGITS: usize = 12;
/// File name of the script.
const SCRIPT: &str = "sweep.sbatch";

/// Refuses to run a part of a sweep that another build has written: builds of two commits may have the same version.
pub(super) fn check_build(wanted: &str) -> Result<(), Failure> {
    let found = build()?;
    if found == wanted {
        return Ok(());
    }
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    Err(Failure::Input(format!(
        "{}: this is build {found} of sluicenet {version}, and this sweep is of build {wanted}; run the same program \
         everywhere, or write the job array again",
        node.trim_end()
    )))
}

/// What tells this build from others: the first digits of the SHA-256 of the program's file.
fn build() -> Result<String, Failure> {
    let file = program()?;
    let bytes = std::fs::read(&file).map_err(|e| Failure::Input(format!("{}: cannot read: {e}", file.display())))?;
    let mut digits = sha256_hex(&bytes);
    digits.truncate(BUILD_DIGITS);
    Ok(digits)
}

fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::Input(format!("this program does not find its own file: {e}")))
}

/// A job array before it is written.
pub(super) struct JobArray<'a> {
    /// Its folder, which also takes the logs.
    pub dir: &'a Path,
    /// Name of the scenario.
    pub scenario: &'a str,
    /// The scenario's file.
    pub file: &'a Path,
    /// The sweep's directory, on a file system that all nodes share.
    pub output: &'a Path,
    /// Overrides, each `key=value`.
    pub overrides: Vec<String>,
    /// Runs of a task at a time.
    pub workers: u16,
}

/// Tasks for so many cells, if the user does not say: one each.
pub(super) fn tasks_for(cells: usize) -> usize {
    cells.clamp(1, TASKS_MAX)
}

impl JobArray<'_> {
    /// Writes the script for so many tasks; its path.
    pub fn write(&self, tasks: usize) -> Result<PathBuf, Failure> {
        let script = self.dir.join(SCRIPT);
        std::fs::create_dir_all(self.dir)
            .map_err(|e| Failure::Input(format!("{}: cannot create the directory: {e}", self.dir.display())))?;
        let text = self.text(tasks, &build()?, [&program()?, self.file, self.output, self.dir].map(full))?;
        files::write(&script, &text).map_err(Failure::into_input)?;
        Ok(script)
    }

    fn text(&self, tasks: usize, build: &str, paths: [Result<String, Failure>; 4]) -> Result<String, Failure> {
        let [program, file, output, dir] = paths;
        let (program, file, output, dir) = (program?, file?, output?, dir?);
        if let Some(path) = [&program, &file, &output, &dir].into_iter().find(|path| path.contains(['\n', '"'])) {
            return Err(Failure::Input(format!("{path:?}: a job script cannot name this path; use another")));
        }
        let set = set_options(&self.overrides);
        let version = env!("CARGO_PKG_VERSION");
        // SLURM takes `%` in the name of a log for a pattern.
        let (logs, name, last) = (dir.replace('%', "%%"), job_name(self.scenario), tasks - 1);
        Ok(format!(
            r#"#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task={workers}
#SBATCH --output="{logs}/%A_%a.log"
#SBATCH --open-mode=append
#SBATCH --requeue
#
# Runs a sweep of sluicenet, {tasks} parts. Options for sbatch go before the script, as: sbatch --time=2:00:00 --partition=long {script}
# Submit it again after a failure: complete runs are kept. Then gather:
#   sluicenet sweep {file} -o {output}{set} --gather
set -u
sluicenet=${{SLUICENET:-{program}}}

version=$("$sluicenet" --version) || {{ echo "$(hostname): cannot run $sluicenet" >&2; exit 2; }}
if [ "$version" != "sluicenet {version}" ]; then
    echo "$(hostname): $sluicenet is '$version', and this sweep is of sluicenet {version}" >&2
    exit 2
fi
"$sluicenet" --quiet sweep {file} -o {output}{set} --workers {workers} --shard "$((SLURM_ARRAY_TASK_ID + 1))/{tasks}" --build {build}
code=$?
# A run that was killed, for example for want of memory, gets two more tries, elsewhere if SLURM has another node.
# 130 and 143 are scancel and the time limit.
if [ "$code" -gt 128 ] && [ "$code" -ne 130 ] && [ "$code" -ne 143 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 2 ]; then
    echo "killed (exit code $code), try $((${{SLURM_RESTART_COUNT:-0}} + 2)) of 3 follows" >&2
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && exit 0
fi
exit "$code"
"#,
            workers = self.workers,
            script = quoted(&format!("{dir}/{SCRIPT}")),
            program = quoted(&program),
            file = quoted(&file),
            output = quoted(&output),
        ))
    }
}

/// A path that does not depend on the directory of the reader.
fn full(path: &Path) -> Result<String, Failure> {
    absolute(path)
        .map(|full| full.display().to_string())
        .map_err(|e| Failure::Input(format!("{}: {e}", path.display())))
}

/// The scenario's name as a word.
fn job_name(scenario: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    scenario.chars().map(plain).take(64).collect()
}
