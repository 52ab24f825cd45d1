//! `bench faults`: faults that zFabric, XCo and NetBump survive.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, interrupt, output};
use sluicenet_bench::faults::{self, Level, Tally};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(super) struct FaultsArgs {
    /// Runs of each level, each with its own seed
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// The first seed; to repeat a run that broke a rule, give its seed and `--seeds 1`
    #[arg(long, value_name = "S", default_value_t = 0, value_parser = crate::seed, allow_negative_numbers = true)]
    seed: u64,
    /// Only this level
    #[arg(long, value_parser = Level::ALL.map(Level::name))]
    level: Option<String>,
}

#[derive(Debug, serde::Serialize)]
struct Summary {
    first_seed: u64,
    levels: Vec<OfLevel>,
    violations: usize,
}

#[derive(Debug, serde::Serialize)]
struct OfLevel {
    level: &'static str,
    seeds: u64,
    /// The seconds that it took.
    seconds: f64,
    sent: u64,
    received: u64,
    faults: BTreeMap<&'static str, u64>,
    violations: Vec<Violation>,
}

#[derive(Debug, serde::Serialize)]
struct Violation {
    seed: u64,
    what: String,
}

impl OfLevel {
    fn new(level: Level, tally: Tally, seconds: f64) -> OfLevel {
        let Tally { seeds, sent, received, faults, violations } = tally;
        let violations = violations.into_iter().map(|(seed, what)| Violation { seed, what }).collect();
        OfLevel { level: level.name(), seeds, seconds, sent, received, faults, violations }
    }
}

impl FaultsArgs {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        if self.seed.checked_add(self.seeds).is_none() {
            return Err(Failure::Input(format!(
                "--seed {} is too large for --seeds {}: they end below 2^64 - 1",
                self.seed, self.seeds
            )));
        }
        let wanted = |level: &Level| self.level.as_ref().is_none_or(|name| name == level.name());
        let stop = interrupt::flag();
        let run = |level| {
            let began = Instant::now();
            let tally = faults::campaign(level, self.seed, self.seeds, || stop.load(Ordering::Relaxed));
            OfLevel::new(level, tally, began.elapsed().as_secs_f64())
        };
        let levels: Vec<OfLevel> = Level::ALL.into_iter().filter(wanted).map(run).collect();
        let violations = levels.iter().map(|l| l.violations.len()).sum();
        let summary = Summary { first_seed: self.seed, levels, violations };
        if global.json {
            output::json(&summary);
        } else {
            show(&summary);
        }
        if violations > 0 {
            return Err(Failure::Failed(format!("{violations} runs broke a rule")));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

fn show(summary: &Summary) {
    let names = summary.levels.iter().map(|l| l.level);
    let mut t = Table::new(1, std::iter::once("").chain(names));
    let mut row = |name: &str, of: &dyn Fn(&OfLevel) -> u64| {
        let figures = summary.levels.iter().map(|l| count(of(l)));
        t.row(std::iter::once(name.to_owned()).chain(figures));
    };
    row("seeds", &|l| l.seeds);
    row("seconds", &|l| l.seconds.ceil() as u64);
    row("frames sent", &|l| l.sent);
    row("frames received", &|l| l.received);
    let faults: BTreeSet<&str> = summary.levels.iter().flat_map(|l| l.faults.keys().copied()).collect();
    for fault in faults {
        row(fault, &|l| l.faults.get(fault).copied().unwrap_or(0));
    }
    row("violations", &|l| l.violations.len() as u64);
    output::print(&t.text());
    for level in &summary.levels {
        for Violation { seed, what } in level.violations.iter().take(20) {
            output::print(&format!("{} seed {seed}: {what}\n", level.level));
        }
    }
}
