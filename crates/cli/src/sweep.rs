//! `sweep`: every variant of a scenario, as many at a time as there are cores.

use super::cells::{self, Done};
use super::failure::Failure;
use super::figures::Printed;
use super::files::{self, REPORT};
use super::rerun::{again, quoted, set_options};
use super::slurm::{JobArray, check_build, tasks_for};
use super::table::{NONE, Table, count, counted, short, time};
use super::{Global, Overrides, estimate, interrupt, output};
use sluicenet_experiment::estimate::expected_bytes;
use sluicenet_experiment::sweep::{
    self, Cell, Configuration, Found, Ran, Shard, SweepRun, SweepSummary, longest_first,
};
use sluicenet_records::{Existing, RunLog, Sharing, claim_sweep};
use sluicenet_report as report;
use sluicenet_report::explain::{self, Group, Seen};
use sluicenet_scenario::{CONGESTION_KEY, FLOW_CONTROL_KEY, Loaded, Scenario};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Runs that an error names.
const NAMED_MAX: usize = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Sweep {
    /// The scenario
    file: PathBuf,
    /// Where to put the results, in a folder for each run
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Runs at a time; default one for each core, 1 with --slurm. The results are the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Replace results in DIR
    #[arg(long, conflicts_with_all = ["resume", "shard", "gather", "slurm"])]
    force: bool,
    /// Keep complete runs of an earlier sweep, replace incomplete ones
    #[arg(long, conflicts_with = "gather")]
    resume: bool,
    /// Of one run: refused with a word about it
    #[arg(long, hide = true)]
    profile: bool,
    /// Run part K of N of the runs, beside other parts, as in a job array; complete ones are kept
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// The only build that may run the part, as a job array names it
    #[arg(long, value_name = "BUILD", requires = "shard", hide = true)]
    build: Option<String>,
    /// Run nothing: write summary, table and page of runs that parts have done
    #[arg(long, conflicts_with = "shard")]
    gather: bool,
    /// Run nothing: write a job array for SLURM's sbatch into JOB
    #[arg(long, value_name = "JOB", conflicts_with_all = ["shard", "gather", "resume"])]
    slurm: Option<PathBuf>,
    /// Tasks of the job array; default one for each run, up to 1000
    #[arg(long, value_name = "N", requires = "slurm", value_parser = clap::value_parser!(u32).range(1..))]
    tasks: Option<u32>,
}

impl Sweep {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        if self.profile {
            return Err(Failure::Input(format!(
                "--profile: of one run, and those of a sweep share this process\n  hint: sluicenet run {} --profile, with --set for a \
                 variant",
                self.file.display()
            )));
        }
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        // Of a job array, the calls that write it and gather it say them.
        if self.shard.is_none() {
            output::warnings(&loaded.warnings, global);
        }
        let cells = sweep::cells(&loaded, None)?;
        match (&self.slurm, self.shard) {
            (Some(job), _) => self.job_array(job, &loaded, &cells, global),
            (None, Some(shard)) => self.part(shard, &loaded, &cells, global),
            (None, None) => self.whole(&loaded, &cells, global),
        }
    }

    /// Runs or gathers all cells.
    fn whole(&self, loaded: &Loaded, cells: &[Cell], global: Global) -> Result<(), Failure> {
        let scenario = &loaded.scenario.name;
        let existing = match (self.force, self.resume || self.gather) {
            (true, _) => Existing::Force,
            (_, true) => Existing::Resume,
            _ => Existing::Refuse,
        };
        if self.gather && !self.output.is_dir() {
            return Err(Failure::Input(format!("{}: no such directory; nothing was run", self.output.display())));
        }
        refuse_existing(cells, &self.output, existing)?;
        if !self.gather {
            check_networks(cells)?;
        }
        // How far parts are may be asked while they run.
        let found = if self.gather {
            sweep::check_same(cells, &self.output).map_err(Failure::input)?;
            Some(gathered(cells, &self.output)?)
        } else {
            None
        };
        let _lock = claim_sweep(&self.output, scenario, existing, Sharing::Alone).map_err(Failure::input)?;
        match existing {
            Existing::Resume if self.resume => sweep::check_same(cells, &self.output).map_err(Failure::input)?,
            Existing::Force => sweep::remove_others(cells, &self.output).map_err(Failure::input)?,
            _ => {}
        }
        let workers = self.workers.map_or_else(cells::cores, usize::from);
        let done = match found {
            Some(done) => done,
            None => {
                if !global.quiet {
                    let open = |cell: &&Cell| existing != Existing::Resume || !has_ended(cell, &self.output);
                    estimate::tell_all(cells.iter().filter(open).map(|cell| &cell.job.scenario), workers);
                }
                cells::run(cells, &self.output, workers, existing, global.quiet)?
            }
        };
        let results = Results { cells, done: &done, dir: &self.output };
        results.save(scenario, vec![again()])?;
        if global.json {
            output::json(&results.printed());
        } else {
            let head = format!("{scenario}, {}", counted(done.len() as u64, "run", "runs"));
            output::print(&format!("\n  {head}\n\n{}{}", results.table(), results.closing_text()));
        }
        results.verdict("; --resume goes on from there")
    }

    /// Runs the cells of one part; other processes run those of other parts.
    fn part(&self, shard: Shard, loaded: &Loaded, cells: &[Cell], global: Global) -> Result<(), Failure> {
        self.build.as_deref().map_or(Ok(()), check_build)?;
        let scenario = &loaded.scenario.name;
        let chosen = shard.cells(&longest_first(cells));
        check_networks(chosen.iter().map(|&i| &cells[i]))?;
        let _lock =
            claim_sweep(&self.output, scenario, Existing::Resume, Sharing::WithOtherParts).map_err(Failure::input)?;
        sweep::check_same(cells, &self.output).map_err(Failure::input)?;
        let workers = self.workers.map_or_else(cells::cores, usize::from);
        if !global.quiet {
            let open = chosen.iter().map(|&i| &cells[i]).filter(|cell| !has_ended(cell, &self.output));
            estimate::tell_all(open.map(|cell| &cell.job.scenario), workers);
        }
        let ran = cells::some(cells, &chosen, workers, global.quiet, |cell, i, bar| {
            let figures = cells::one_cell(cell, &self.output, Existing::Resume, global.quiet, (bar, i))?.figures;
            Ok((cell.folder.clone(), figures.status))
        })?;
        if global.json {
            let runs = ran.iter().map(|(folder, status)| serde_json::json!({ "folder": folder, "status": status }));
            output::json(&serde_json::json!({ "shard": shard.to_string(), "runs": runs.collect::<Vec<_>>() }));
        } else {
            let lines: String = ran.iter().map(|(folder, status)| format!("  {folder}: {status}\n")).collect();
            let head = format!("{scenario}, part {shard}: {} of {} runs", ran.len(), cells.len());
            output::print(&format!("\n  {head}\n\n{lines}"));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted(format!("part {shard}; the same command goes on from there")));
        }
        match ran.iter().filter(|(_, status)| status != "complete").count() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{n} of {} runs failed", chosen.len()))),
        }
    }

    /// Writes the sweep as a job array of SLURM.
    fn job_array(&self, dir: &Path, loaded: &Loaded, cells: &[Cell], global: Global) -> Result<(), Failure> {
        let scenario = &loaded.scenario.name;
        // What its tasks would refuse is refused now.
        check_networks(cells)?;
        drop(claim_sweep(&self.output, scenario, Existing::Resume, Sharing::WithOtherParts).map_err(Failure::input)?);
        sweep::check_same(cells, &self.output).map_err(Failure::input)?;
        let tasks = self.tasks.map_or_else(|| tasks_for(cells.len()), |tasks| (tasks as usize).min(cells.len()));
        let (file, output, overrides) = (&self.file, &self.output, self.overrides.all());
        let set = set_options(&overrides);
        let job = JobArray { dir, scenario, file, output, overrides, workers: self.workers.unwrap_or(1) };
        let script = job.write(tasks)?;
        let script = script.display().to_string();
        if global.json {
            output::json(&serde_json::json!({ "script": script, "runs": cells.len(), "tasks": tasks }));
            return Ok(());
        }
        let [file, output] = [file, output].map(|path| quoted(&path.display().to_string()));
        let script = quoted(&script);
        let [runs, tasks] =
            [(cells.len(), "run"), (tasks, "task")].map(|(n, what)| counted(n as u64, what, &format!("{what}s")));
        output::print(&format!(
            "\n  {scenario}, {runs} in {tasks}, the longest first\n\n  submit   sbatch {script}\n  \
             gather   sluicenet sweep {file} -o {output}{set} --gather\n  \
             logs     {}/<job>_<task>.log\n\n",
            dir.display()
        ));
        Ok(())
    }
}

/// Whether a cell has a result that is kept.
fn has_ended(cell: &Cell, dir: &Path) -> bool {
    matches!(cell.found(&dir.join(&cell.folder)), Ok(Found::Ended(_)))
}

/// The results of all cells, of which every one has ended.
fn gathered(cells: &[Cell], dir: &Path) -> Result<Vec<Done>, Failure> {
    let mut done = Vec::with_capacity(cells.len());
    let (mut missing, mut begun) = (Vec::new(), 0);
    for cell in cells {
        match cell.found(&dir.join(&cell.folder)).map_err(Failure::input)? {
            Found::Ended(figures) => done.push((cell, *figures)),
            Found::Begun(status) => {
                begun += 1;
                missing.push((cell, format!("{} ({status})", cell.folder)));
            }
            Found::Nothing => missing.push((cell, cell.folder.clone())),
        }
    }
    if missing.is_empty() {
        return done.into_iter().map(|(cell, figures)| Done::read(cell, dir, Ran::kept(figures))).collect();
    }
    let names: String =
        missing.iter().take(NAMED_MAX).map(|(_, name)| format!("\n  missing: {}/{name}", dir.display())).collect();
    let others = missing.len().saturating_sub(NAMED_MAX);
    let others = if others > 0 { format!("\n  and {others} more") } else { String::new() };
    let ended: Vec<&Cell> = done.iter().map(|(cell, _)| *cell).collect();
    let left = work_left(&ended, missing.iter().map(|(cell, _)| *cell), dir)
        .map_or(String::new(), |s| format!("; about {} of computing is left", time(s * 1e6)));
    Err(Failure::Failed(format!(
        "{}: {} of {} runs have ended, {begun} have begun{left}{names}{others}\n  hint: wait for the tasks, submit the job again \
         (complete runs are kept), or run the rest here with --resume",
        dir.display(),
        done.len(),
        cells.len(),
    )))
}

/// Seconds that one core needs for the `missing` cells, by the time that the others took; none where nothing has ended.
fn work_left<'a>(ended: &[&Cell], missing: impl Iterator<Item = &'a Cell>, dir: &Path) -> Option<f64> {
    let work = |cell: &Cell| expected_bytes(&cell.job.scenario);
    let took_s: f64 =
        ended.iter().filter_map(|cell| RunLog::read(&dir.join(&cell.folder)).ok()).map(|l| l.wall_seconds).sum();
    let done: f64 = ended.iter().map(|cell| work(cell)).sum();
    (done > 0.0).then(|| took_s / done * missing.map(work).sum::<f64>())
}

/// Refuses the sweep before its first run, if the network of one of these cells cannot be built.
fn check_networks<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Result<(), Failure> {
    cells.into_iter().try_for_each(Cell::check)?;
    Ok(())
}

/// Refuses the sweep before its first run, if any of its runs would be refused over an existing result.
fn refuse_existing(cells: &[Cell], dir: &Path, existing: Existing) -> Result<(), Failure> {
    let taken = |c: &&Cell| dir.join(&c.folder).join("manifest.json").exists();
    match cells.iter().find(taken).filter(|_| existing == Existing::Refuse) {
        None => Ok(()),
        Some(c) => Err(Failure::Input(format!(
            "{}: already holds a result; --resume keeps what is complete, --force replaces it",
            dir.join(&c.folder).display()
        ))),
    }
}

/// The results of a sweep.
pub(super) struct Results<'a> {
    /// The planned runs.
    pub cells: &'a [Cell],
    /// The runs that ended; fewer after Ctrl-C.
    pub done: &'a [Done],
    /// Their directory.
    pub dir: &'a Path,
}

impl Results<'_> {
    fn configurations(&self) -> Vec<Configuration> {
        sweep::configurations(&self.done.iter().map(|d| &d.figures).collect::<Vec<_>>())
    }

    /// Writes the page and the summary of all.
    pub fn save(&self, scenario: &str, rerun: Vec<String>) -> Result<(), Failure> {
        let run = |d: &Done| SweepRun { folder: d.folder.clone(), figures: d.figures.clone() };
        SweepSummary::new(scenario, self.done.iter().map(run).collect()).save(self.dir)?;
        let options = report::Options { title: None, rerun };
        let pages = self.done.iter().map(|d| &d.page);
        files::write(&self.dir.join(REPORT), &report::html(pages, &options))
    }

    /// Output of `--json`.
    pub fn printed(&self) -> serde_json::Value {
        let configurations = self.configurations();
        let runs: Vec<Printed<'_>> = self
            .done
            .iter()
            .map(|d| {
                let records = Some(self.dir.join(&d.folder).display().to_string());
                // Against the run of the same seed.
                let same_seed = self.done.iter().map(|d| &d.figures).filter(|f| f.seed == d.figures.seed);
                let alone = sweep::configurations(&same_seed.collect::<Vec<_>>());
                let mine = alone.iter().find(|c| c.axes == d.figures.axes);
                let gain = mine.and_then(|c| c.gain(&alone));
                Printed { records, gain, ..Printed::new(&d.figures, d.log.as_ref()) }
            })
            .collect();
        serde_json::json!({
            "scenario": self.done.first().map(|d| &d.figures.scenario),
            "runs": runs,
            "configurations": configurations,
            "notes": self.notes(&configurations),
            "report": self.dir.join(REPORT).display().to_string(),
            "lost_where_none_may_be": self.lost_where_none_may_be(),
        })
    }

    /// A line for each configuration, its seeds together; a blank line between groups, and the gain over LL if there is one.
    pub fn table(&self) -> String {
        let all = self.configurations();
        let keys = self.cells.first().map_or(&[][..], |c| &c.job.axis_keys);
        let has_seeds = all.iter().any(|c| c.seeds.len() > 1);
        let gains: Vec<Option<f64>> = all.iter().map(|c| c.gain(&all)).collect();
        let has_gain = gains.iter().flatten().next().is_some();
        let mut head: Vec<&str> = keys.iter().map(|key| axis_title(key)).collect();
        head.extend(has_seeds.then_some("seeds"));
        let of = all.first().map_or("flows", |c| c.of.as_str());
        // Hardly ever is anything unfinished, and lines are long.
        let has_unfinished = all.iter().any(|c| c.unfinished > 0);
        let has_any = has_unfinished || all.iter().any(|c| c.finished > 0);
        head.push(of);
        head.extend(has_unfinished.then_some("unfinished"));
        head.push("mean");
        head.extend(has_seeds.then_some("± 95 %"));
        head.extend(["median", "p99", "p99.9", "timeouts", "resent", "lost virt", "lost phys"]);
        // Drops for each reason that there is; of one reason there is no sum.
        let reasons: BTreeSet<&str> = all.iter().flat_map(|c| c.drops_by_reason.keys()).map(String::as_str).collect();
        head.extend((reasons.len() > 1).then_some("drops"));
        head.extend(&reasons);
        // Columns of what a sweep has at all.
        type Count = (&'static str, fn(&Configuration) -> u64);
        const MANAGED: [Count; 3] = [("pauses", |c| c.pauses), ("marked", |c| c.marked), ("CNMs", |c| c.notifications)];
        let managed: Vec<&Count> = MANAGED.iter().filter(|(_, of)| all.iter().any(|c| of(c) > 0)).collect();
        head.extend(managed.iter().map(|(name, _)| *name));
        head.extend(has_gain.then_some("gain"));
        let mut table = Table::new(keys.len(), head);
        let mut group = None;
        for (c, gain) in all.iter().zip(&gains) {
            let mine = c.axes.split_last().map(|(_, rest)| rest);
            if keys.len() > 1 && group.is_some_and(|g| g != mine) {
                table.rule();
            }
            group = Some(mine);
            let mut cells: Vec<String> = c.axes.iter().map(|a| a.1.clone()).collect();
            cells.extend(has_seeds.then(|| count(c.seeds.len() as u64)));
            // Flows without an end alone: a table of their own has them.
            cells.push(if has_any { count(c.finished) } else { String::new() });
            cells.extend(has_unfinished.then(|| count(c.unfinished)));
            cells.push(maybe_time(c.mean_us));
            cells.extend(has_seeds.then(|| maybe_time(c.mean_half_width_us)));
            cells.extend([c.p50_us, c.p99_us, c.p999_us].map(maybe_time));
            cells.extend([c.timeouts, c.retransmissions, c.losses_virtual, c.losses_physical].map(count));
            cells.extend((reasons.len() > 1).then(|| count(c.drops)));
            cells.extend(reasons.iter().map(|reason| count(c.drops_by_reason.get(*reason).copied().unwrap_or(0))));
            cells.extend(managed.iter().map(|(_, of)| count(of(c))));
            cells.extend(gain.map(|g| format!("{g:.2}×")).or(has_gain.then(String::new)));
            table.row(cells);
        }
        let mut out = table.without_empty().text();
        out += &flows_beside(keys, &all);
        out += &streams(keys, self.done);
        for d in self.done.iter().filter(|d| !d.figures.is_complete()) {
            out += &format!("  {}: {}\n", d.folder, d.figures.status);
        }
        // As in the table of one run: the times alone leave the warm-up out.
        out +=
            "\n  Times leave the warm-up out; timeouts and resent are those of all messages, lost of the whole run.\n";
        if has_gain {
            out += "  Gain: the mean under LL over this mean, all else the same. Lost: frames; resent: TCP segments.\n";
        }
        if has_seeds {
            out += "  Of several seeds times are the means of each seed's own, ± is the mean's 95 % confidence interval\n  \
                    (Student's t), counts are sums.\n";
        }
        let unfinished: u64 = all.iter().map(|c| c.unfinished).sum();
        if unfinished > 0 {
            let no_gain = all.iter().any(|c| c.flow_control().is_some());
            let no_gain = if no_gain { ", and no gain is given beside them" } else { "" };
            let n = count(unfinished);
            out += &format!("  {n} unfinished: times are of finished {of} alone, so they flatter{no_gain}.\n");
        }
        for note in self.notes(&all) {
            out += &format!("  {note}\n");
        }
        out
    }

    /// Remarks on differences between flow controls that the table does not explain.
    fn notes(&self, all: &[Configuration]) -> Vec<String> {
        let keys = self.cells.first().map_or(&[][..], |c| &c.job.axis_keys);
        let policy_varies = keys.iter().any(|key| key == "switch.policy");
        let mut groups: Vec<Group<'_>> = Vec::new();
        for c in all {
            let Some(flow_control) = c.flow_control() else { continue };
            let full = |(key, axis): (&String, &(String, String))| match key.as_str() {
                FLOW_CONTROL_KEY => None,
                CONGESTION_KEY => Some(axis.1.clone()),
                _ => Some(format!("{key} {}", axis.1)),
            };
            let name = keys.iter().zip(&c.axes).filter_map(full).collect::<Vec<_>>().join(", ");
            let times = [c.mean_us, c.p50_us, c.p99_us, c.p999_us].map(Option::unwrap_or_default);
            let seen = Seen {
                finished: c.finished,
                times,
                timeouts: c.timeouts,
                retransmissions: c.retransmissions,
                lost_virtual: c.losses_virtual,
                lost_physical: c.losses_physical,
            };
            match groups.iter_mut().find(|group| group.0 == name) {
                Some(group) => group.1.push((flow_control, seen)),
                None => groups.push((name, vec![(flow_control, seen)])),
            }
        }
        explain::notes(&groups, policy_varies)
    }

    /// The cost of the sweep and the location of its results.
    pub fn closing_text(&self) -> String {
        let ran = || self.done.iter().filter(|d| !d.kept);
        let cpu: f64 = ran().filter_map(|d| d.log.as_ref()).map(|l| l.cpu_seconds).fold(0.0, |a, b| a + b);
        let hops: u64 = ran().map(|d| d.figures.packet_hops).sum();
        let ends: u64 = ran().map(|d| d.figures.packets_end_to_end).sum();
        let cost = match ran().count() {
            0 => "all runs were complete already".into(),
            _ => {
                let of = |name: &str, n: u64| format!("{}{name}", short(n as f64).trim_end());
                let rate = |n: u64| format!("{}/CPU s", short(n as f64 / cpu.max(0.01)));
                let hops = format!("{} in {cpu:.1} CPU s ({})", of(" hops", hops), rate(hops));
                format!("{hops}, {} ({})", of(" packets end to end", ends), rate(ends))
            }
        };
        let page = self.dir.join(REPORT);
        format!("\n  cost     {cost}\n  records  {}\n  report   {}\n", self.dir.display(), page.display())
    }

    /// Frames lost in networks that lose none.
    pub fn lost_where_none_may_be(&self) -> u64 {
        self.done.iter().map(|d| d.figures.losses_where_none_may_be()).sum()
    }

    /// The end of the command; `hint` gives advice after an interrupt.
    pub fn verdict(&self, hint: &str) -> Result<(), Failure> {
        if interrupt::raised() {
            let complete = self.done.iter().filter(|d| d.figures.is_complete()).count();
            let all = self.cells.len();
            let text = format!("{complete} of {all} runs are complete{hint}");
            return Err(Failure::Interrupted(text));
        }
        match self.done.iter().filter(|d| !d.figures.is_complete()).count() {
            0 => Ok(()),
            n => Err(Failure::Failed(format!("{n} of {} runs failed", self.cells.len()))),
        }
    }
}

/// A table of the flows that belong to no query, where there are any beside queries.
fn flows_beside(keys: &[String], all: &[Configuration]) -> String {
    if all.iter().all(|c| c.flows.is_none()) {
        return String::new();
    }
    let head = keys.iter().map(|key| axis_title(key)).chain(["flows", "unfinished", "mean", "median", "p99"]);
    let mut table = Table::new(keys.len(), head);
    for c in all {
        let flows = c.flows.clone().unwrap_or_default();
        let mut cells: Vec<String> = c.axes.iter().map(|a| a.1.clone()).collect();
        cells.extend([flows.finished, flows.unfinished].map(count));
        cells.extend([flows.mean_us, flows.p50_us, flows.p99_us].map(maybe_time));
        table.row(cells);
    }
    format!("\n  Flows that belong to no query:\n\n{}", table.text())
}

/// A table of the flows without an end, run by run, where there are any.
fn streams(keys: &[String], done: &[Done]) -> String {
    if done.iter().all(|d| d.figures.streams.is_empty()) {
        return String::new();
    }
    let head = ["flows", "together", "slowest", "fastest", "Jain's index"];
    let mut table = Table::new(keys.len(), keys.iter().map(|key| axis_title(key)).chain(head));
    for f in done.iter().map(|d| &d.figures) {
        let s = &f.streams;
        let mut cells: Vec<String> = f.axes.iter().map(|a| a.1.clone()).collect();
        cells.push(count(s.count));
        cells.extend([s.total_mbps, s.min_mbps, s.max_mbps].map(|mbps| format!("{mbps:.1} Mb/s")));
        cells.push(format!("{:.3}", s.jain));
        table.row(cells);
    }
    format!("\n  Flows without an end, after the warm-up:\n\n{}", table.text())
}

/// A time, where there is one.
fn maybe_time(us: Option<f64>) -> String {
    us.map_or(NONE.into(), time)
}

/// Heading over the values of a key: its last part where that part identifies the key.
fn axis_title(key: &str) -> &str {
    match key {
        FLOW_CONTROL_KEY | CONGESTION_KEY => key.rsplit('.').next().unwrap_or(key),
        key => key,
    }
}
