//! `demo`: the result, in a minute or two.

use super::cells;
use super::failure::Failure;
use super::rerun::again;
use super::sweep::Results;
use super::table::{count, counted};
use super::{Global, estimate, output};
use sluicenet_experiment::sweep::{self, Cell};
use sluicenet_records::{Existing, Manifest, Sharing, claim_sweep};
use sluicenet_scenario::Scenario;
use std::path::{Path, PathBuf};

/// The scenario, as it stands in the repository.
const SCENARIO: &str = include_str!("../../../scenarios/demo.toml");
/// What the demo records besides, so that its runs can be exported in every format: half a megabyte a run.
const RECORD: [&str; 2] = ["record.pauses=true", "record.queues=100 us"];

#[derive(Debug, clap::Args)]
pub(super) struct Demo {
    /// Where to put the results
    #[arg(short, long, value_name = "DIR", default_value = "sluicenet-demo")]
    output: PathBuf,
    /// Measured queries in each of the twelve runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    queries: Option<u64>,
    /// Runs at a time; default one for each core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
}

impl Demo {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let start = std::time::Instant::now();
        let mut overrides = RECORD.map(String::from).to_vec();
        if let Some(n) = self.queries {
            let warm = Scenario::parse(SCENARIO, "demo.toml")?.scenario.workloads.iter().find_map(|w| match w {
                sluicenet_scenario::Workload::PartitionAggregate(w) => Some(w.warmup_queries),
                _ => None,
            });
            overrides.push(format!("workload.0.queries={}", n + warm.unwrap_or(0)));
        }
        let loaded = Scenario::parse_in(SCENARIO, "demo.toml", None, &overrides)?;
        let cells = sweep::cells(&loaded, None)?;
        let workers = self.workers.map_or_else(cells::cores, usize::from);
        if !global.quiet && !global.json {
            output::note(INTRODUCTION);
        }
        if !global.quiet {
            estimate::tell_all(cells.iter().map(|cell| &cell.job.scenario), workers);
        }
        // A demo is shown again and again: it replaces itself, and nothing that is not of it.
        let _lock = claim_sweep(&self.output, &loaded.scenario.name, Existing::Resume, Sharing::Alone)
            .map_err(Failure::input)?;
        refuse_others(&cells, &self.output, &loaded.scenario.name)?;
        let done = cells::run(&cells, &self.output, workers, Existing::Force, global.quiet)?;
        let results = Results { cells: &cells, done: &done, dir: &self.output };
        results.save(&loaded.scenario.name, vec![again()])?;
        if global.json {
            output::json(&results.printed());
        } else {
            output::print(&format!("{}{}", results.table(), results.closing_text()));
            output::print(&format!("  took     {:.1} s\n\n", start.elapsed().as_secs_f64()));
            output::print(&check(&results));
        }
        results.verdict("")?;
        match results.lost_where_none_may_be() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{} where none may be lost", counted(n, "packet lost", "packets lost")))),
        }
    }
}

/// Refuses to replace results of another scenario in the folders of the demo's runs.
fn refuse_others(cells: &[Cell], dir: &Path, name: &str) -> Result<(), Failure> {
    for folder in cells.iter().map(|cell| dir.join(&cell.folder)).filter(|folder| Manifest::is_in(folder)) {
        let whose = Manifest::read(&folder).map(|m| m.run.scenario);
        if whose.as_ref().is_ok_and(|whose| whose == name) {
            continue;
        }
        let whose = whose.unwrap_or_else(|e| e.to_string());
        let text = format!("{}: already holds the result of {whose}; give another directory", folder.display());
        return Err(Failure::Input(text));
    }
    Ok(())
}

const INTRODUCTION: &str = "
  256 virtualised servers in a three-level fat tree answer queries: each asks 16 aggregators,
  each of those 16 workers, and all answers come back at once (20 KB each). First letter: the
  virtual network, second letter: the physical one. L loses packets, Z holds them back.
";

/// Text about losses in lossless networks, from the results.
fn check(results: &Results<'_>) -> String {
    let networks = |f: &str| f.bytes().filter(|b| *b == b'Z').count();
    let lossless: usize = results.done.iter().map(|d| networks(&d.figures.flow_control)).sum();
    let lossy: u64 = results.done.iter().map(|d| d.figures.losses_virtual + d.figures.losses_physical).sum();
    let hops: u64 = results.done.iter().map(|d| d.figures.packet_hops).sum();
    match results.lost_where_none_may_be() {
        0 => format!(
            "  ✔ no packet lost where none may be: 0 in {lossless} lossless networks, {} in the lossy ones, \
             of {} packet-hops\n",
            count(lossy),
            count(hops)
        ),
        n => format!("  ✘ {} in lossless networks\n", counted(n, "packet lost", "packets lost")),
    }
}
