//! `run`: one scenario, once.

use super::failure::Failure;
use super::figures::{Printed, table};
use super::files::{self, REPORT};
use super::profile;
use super::progress::Bar;
use super::rerun::again;
use super::results::read_cell;
use super::table::counted;
use super::{Global, Overrides, estimate, interrupt, output};
use sluicenet_experiment::run::{self, Figures, Job, Options};
use sluicenet_profile::Profiler;
use sluicenet_proto::time::Instant;
use sluicenet_records::{Existing, LastParts, Profile, RunLog, SUMMARY, Source};
use sluicenet_report as report;
use sluicenet_scenario::{self as scenario, Scenario};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// The scenario
    file: PathBuf,
    /// Where to put records and the page; default nowhere
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Where to run it: simulated, or between real sockets on this machine, as root (`sluicenet testbed pa|flows` for all
    /// variants)
    #[arg(long, value_enum, default_value_t = World::Simulated)]
    world: World,
    /// What to simulate; default as in the scenario (scenario.level)
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Threads of the simulator; default 1. For a scenario with [[table]], runs at a time; default one for each core. The result is
    /// the same for any number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Show the share of each stage in the run's CPU time; with -o also profile.json and profile.folded, from which flame graphs
    /// are drawn
    #[arg(long)]
    profile: bool,
    /// Replace a result in DIR
    #[arg(long, conflicts_with = "resume", requires = "output")]
    force: bool,
    /// Keep a complete result of the same scenario and seed, replace an incomplete one
    #[arg(long, requires = "output")]
    resume: bool,
}

/// Where a scenario is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum World {
    Simulated,
    Testbed,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Level {
    /// Every packet
    Packet,
    /// The rates of flows
    Flow,
}

impl Run {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let level = self.level.map(|level| match level {
            Level::Packet => "scenario.level=packet".to_owned(),
            Level::Flow => "scenario.level=flow".to_owned(),
        });
        let overrides: Vec<String> = self.overrides.all().into_iter().chain(level).collect();
        let loaded = Scenario::load_with(&self.file, &overrides)?;
        output::warnings(&loaded.warnings, global);
        // Where everything is fixed there is a run to show and no table.
        let has_tables = self.world == World::Simulated && !loaded.scenario.tables.is_empty() && loaded.is_varied();
        if self.profile {
            self.check_profile(has_tables && self.output.is_none(), loaded.scenario.level)?;
        }
        if has_tables && self.output.is_none() {
            let workers = self.threads.map_or_else(super::cells::cores, usize::from);
            return super::tables::main(&loaded, workers, global);
        }
        let variants = loaded.expand_sweep().map(|all| all.len()).unwrap_or_else(|e| {
            if !global.quiet {
                output::note(&format!("note: only the scenario's base is run; its variants have an error: {e}"));
            }
            1
        });
        if has_tables && variants > 1 {
            let file = self.file.display();
            return Err(Failure::Input(format!(
                "-o records one run, and the tables of this scenario have {variants}: `sluicenet run {file}` without -o shows the \
                 tables, `sluicenet sweep {file} -o DIR` records all runs, and --set selects one run"
            )));
        }
        if variants > 1 && !global.quiet {
            let file = self.file.display();
            let all = match self.world {
                World::Simulated => format!("sluicenet sweep {file} -o DIR"),
                World::Testbed => format!("sluicenet testbed flows {file}, or pa"),
            };
            output::note(&format!(
                "note: this scenario has {variants} variants, and only its base is run; {all} runs all of them"
            ));
        }
        if self.world == World::Testbed {
            if self.output.is_some() {
                return Err(Failure::Input(
                    "-o: only the simulator writes records; the testbed prints its figures, and --json prints all of them".into(),
                ));
            }
            if self.threads.is_some_and(|n| n != 1) {
                return Err(Failure::Input(
                    "--threads: an option of the simulator; in the testbed each program has the threads that it needs"
                        .into(),
                ));
            }
            return super::testbed::run_base(&self.file, &loaded, global);
        }
        let job = Job::new(&loaded);
        let threads: usize = self.threads.unwrap_or(1).into();
        let cores = super::cells::cores();
        if threads > cores && !global.quiet {
            let all = counted(cores as u64, "core", "cores");
            output::note(&format!(
                "warning: --threads {threads}: this machine has {all} for this process, and threads without one only wait for each \
                 other\n  = hint: at most --threads {cores}"
            ));
        }
        let bar = Bar::new(&[1.0], global.quiet);
        let existing = match (self.force, self.resume) {
            (true, _) => Existing::Force,
            (_, true) => Existing::Resume,
            _ => Existing::Refuse,
        };
        let options = Options {
            threads,
            out: self.output.clone(),
            existing,
            interrupt: interrupt::of_a_run(),
            progress: &mut |p| {
                // Nothing is done yet: the network is built, and the run starts.
                if p.hops == 0 && p.now == Instant::ZERO && !global.quiet {
                    bar.expect(estimate::tell(&job.scenario, threads, self.output.is_some()));
                }
                bar.update(0, p);
            },
        };
        let profiler = if self.profile { Some(profile::start()?) } else { None };
        let outcome = run::run(&job, options);
        bar.clear();
        let profiled = profiler.map(Profiler::finish);
        let mut records = LastParts::default();
        let (figures, log, profile) = match outcome? {
            Some(outcome) => {
                if !global.quiet {
                    outcome.warnings.iter().for_each(|w| output::note(&w.to_string()));
                }
                if let (Some(profiled), Some(dir)) = (&profiled, &self.output) {
                    profiled.profile.write(&profiled.folded, dir)?;
                }
                let figures = Figures::of(&job, &outcome);
                let log = RunLog {
                    wall_seconds: outcome.wall_s,
                    cpu_seconds: outcome.cpu_s,
                    packet_hops: outcome.hops,
                    packets_end_to_end: outcome.totals.end_to_end,
                    ..RunLog::default()
                };
                records = outcome.records;
                (figures, Some(log), profiled.map(|profiled| profiled.profile))
            }
            None => {
                let (figures, log) = self.kept(global)?;
                (figures, log, None)
            }
        };
        self.print(&figures, log.as_ref(), profile.as_ref(), &records, global)?;
        verdict(&figures)
    }

    /// Refuses `--profile` where several runs share this process, and where there is no simulated run.
    fn check_profile(&self, runs_all: bool, level: scenario::Level) -> Result<(), Failure> {
        let refuse = |why: &str| Err(Failure::Input(format!("--profile: {why}")));
        match self.world {
            World::Testbed => refuse("an option of the simulator; perf profiles the programs of a testbed"),
            World::Simulated if runs_all => {
                refuse("of one run, and this scenario's tables are of several; --set selects one")
            }
            World::Simulated if !level.is_packet() => refuse(
                "its stages are those of a simulated packet, and at the level of flows there are none; --level packet has them",
            ),
            World::Simulated => Ok(()),
        }
    }

    /// The figures of an earlier result.
    fn kept(&self, global: Global) -> Result<(Figures, Option<RunLog>), Failure> {
        let dir = self.output.as_deref().unwrap_or(Path::new("."));
        if !global.quiet {
            output::note(&format!("{}: complete already, kept", dir.display()));
        }
        let figures = Figures::saved(dir).ok_or_else(|| {
            Failure::Failed(format!("{}: missing or unreadable; --force runs it again", dir.join(SUMMARY).display()))
        })?;
        Ok((figures, RunLog::read(dir).ok()))
    }

    fn print(
        &self,
        figures: &Figures,
        log: Option<&RunLog>,
        profile: Option<&Profile>,
        records: &LastParts,
        global: Global,
    ) -> Result<(), Failure> {
        let mut printed = Printed::new(figures, log);
        printed.profile = profile;
        let mut where_to = String::new();
        if let Some(dir) = &self.output {
            let page = dir.join(REPORT);
            let options = report::Options { title: None, rerun: vec![again()] };
            files::write(&page, &report::html(&[read_cell(Source::written(dir, records))?], &options))?;
            printed.records = Some(dir.display().to_string());
            printed.report = Some(page.display().to_string());
            // The page takes memory, too.
            RunLog::update_peak(dir)?;
            where_to = format!("\n  records  {}\n  report   {}\n", dir.display(), page.display());
        } else if !global.json && !global.quiet {
            where_to = "\n  nothing was recorded: -o DIR writes records and a report\n".into();
        }
        if global.json {
            output::json(&printed);
        } else {
            let head = format!("{}, seed {}, {}", figures.scenario, figures.seed, figures.status);
            let shares = profile.map_or_else(String::new, profile::table);
            output::print(&format!("\n  {head}\n\n{}{shares}{where_to}", table(figures, log)));
        }
        Ok(())
    }
}

/// How the command ends.
fn verdict(figures: &Figures) -> Result<(), Failure> {
    if figures.is_interrupted() {
        let at = super::table::time(figures.simulated_us);
        return Err(Failure::Interrupted(format!("at {at} of simulated time; the records up to then are readable")));
    }
    if !figures.is_complete() {
        return Err(Failure::Failed(figures.status.clone()));
    }
    Ok(())
}
