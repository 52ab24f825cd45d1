//! `sweep`: every variant of a scenario, as many at a time as there are cores.

use super::cells::{self, Cell, Done};
use super::failure::Failure;
use super::figures::Printed;
use super::files::{self, REPORT};
use super::run::warn;
use super::table::{Table, count, short, time};
use super::{Global, Overrides, interrupt, output};
use crate::records::{Existing, SUMMARY};
use crate::report::{self, CellInput};
use crate::run::Figures;
use crate::scenario::Scenario;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Sweep {
    /// The scenario
    file: PathBuf,
    /// Where to put the results: a folder each
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Runs at a time; one a core where absent. The results are the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Replace results that are in DIR
    #[arg(long, conflicts_with = "resume")]
    force: bool,
    /// Keep complete runs of an earlier sweep, replace incomplete ones
    #[arg(long)]
    resume: bool,
}

impl Sweep {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        warn(&loaded, global);
        let cells = cells::cells(&loaded)?;
        let existing = match (self.force, self.resume) {
            (true, _) => Existing::Force,
            (_, true) => Existing::Resume,
            _ => Existing::Refuse,
        };
        refuse_existing(&cells, &self.output, existing)?;
        let workers = self.workers.map_or_else(cells::cores, usize::from);
        let done = cells::run(&cells, &self.output, workers, existing, global.quiet)?;
        let rerun = format!("sluicenet sweep {}{} -o DIR", self.file.display(), self.overrides.command());
        let results = Results { cells: &cells, done: &done, dir: &self.output };
        results.save(&loaded.scenario.name, vec![rerun])?;
        if global.json {
            output::json(&results.printed());
        } else {
            let head = format!("{}, {} runs", loaded.scenario.name, done.len());
            output::print(&format!("\n  {head}\n\n{}{}", results.table(), results.places()));
        }
        results.verdict("; --resume goes on from there")
    }
}

/// Refuses before the first run what the last one would be refused for.
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

/// `summary.json` of a sweep.
#[derive(Serialize, Deserialize)]
struct Summary {
    scenario: String,
    runs: Vec<SummaryRun>,
}

#[derive(Serialize, Deserialize)]
struct SummaryRun {
    folder: String,
    #[serde(flatten)]
    figures: Figures,
}

/// The folders of a sweep in its own order; empty where nothing says.
pub(super) fn order(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(SUMMARY)).unwrap_or_default();
    serde_json::from_str::<Summary>(&text)
        .map_or_else(|_| Vec::new(), |s| s.runs.into_iter().map(|r| r.folder).collect())
}

/// The results of a sweep.
pub(super) struct Results<'a> {
    /// What was to be run.
    pub cells: &'a [Cell],
    /// What was; fewer after Ctrl-C.
    pub done: &'a [Done],
    /// Where.
    pub dir: &'a Path,
}

impl Results<'_> {
    fn cell(&self, done: &Done) -> Option<&Cell> {
        self.cells.iter().find(|c| c.job.axes == done.figures.axes)
    }

    /// Writes the page and the summary of all.
    pub fn save(&self, scenario: &str, rerun: Vec<String>) -> Result<(), Failure> {
        let run = |d: &Done| {
            let folder = self.cell(d).map_or(String::new(), |c| c.folder.clone());
            SummaryRun { folder, figures: d.figures.clone() }
        };
        let summary = Summary { scenario: scenario.into(), runs: self.done.iter().map(run).collect() };
        let text = serde_json::to_string_pretty(&summary).unwrap_or_default() + "\n";
        files::write(&self.dir.join(SUMMARY), &text)?;
        let inputs: Vec<CellInput> = self.done.iter().map(|d| d.page.clone()).collect();
        let options = report::Options { title: None, rerun };
        files::write(&self.dir.join(REPORT), &report::html(&inputs, &options))
    }

    /// What `--json` prints.
    pub fn printed(&self) -> serde_json::Value {
        let figures: Vec<&Figures> = self.done.iter().map(|d| &d.figures).collect();
        let runs: Vec<Printed<'_>> = self
            .done
            .iter()
            .map(|d| {
                let records = self.cell(d).map(|c| self.dir.join(&c.folder).display().to_string());
                let gain = gain(&d.figures, &figures);
                Printed { records, gain, ..Printed::new(&d.figures, d.log.as_ref()) }
            })
            .collect();
        serde_json::json!({
            "scenario": self.done.first().map(|d| &d.figures.scenario),
            "runs": runs,
            "report": self.dir.join(REPORT).display().to_string(),
            "lost_where_none_may_be": self.lost_where_none_may_be(),
        })
    }

    /// A line for each run; a gap between groups, and the gain over LL where that is one of them.
    pub fn table(&self) -> String {
        let figures: Vec<&Figures> = self.done.iter().map(|d| &d.figures).collect();
        let axes: Vec<&str> = figures.first().map_or(Vec::new(), |f| f.axes.iter().map(|a| a.0.as_str()).collect());
        let gains: Vec<Option<f64>> = figures.iter().map(|f| gain(f, &figures)).collect();
        let has_gain = gains.iter().flatten().next().is_some();
        let unit = figures.first().map_or("flows", |f| f.unit());
        let mut head: Vec<&str> = axes.iter().map(|a| a.rsplit('.').next().unwrap_or(a)).collect();
        head.extend([unit, "mean", "median", "p99", "p99.9", "timeouts", "resent", "lost virt", "lost phys"]);
        head.extend(has_gain.then_some("gain"));
        let mut table = Table::new(axes.len(), head);
        let mut group = None;
        for (f, gain) in figures.iter().zip(&gains) {
            let mine = f.axes.split_last().map(|(_, rest)| rest);
            if axes.len() > 1 && group.is_some_and(|g| g != mine) {
                table.rule();
            }
            group = Some(mine);
            let c = f.main();
            let mut cells: Vec<String> = f.axes.iter().map(|a| a.1.clone()).collect();
            cells.push(count(c.finished));
            let of = |us: f64| if c.finished == 0 { "–".into() } else { time(us) };
            cells.extend([c.mean_us, c.p50_us, c.p99_us, c.p999_us].map(of));
            // What went wrong is of the whole run, as in the table of one: the times alone leave the warm-up out.
            cells.extend([f.timeouts, f.retransmissions, f.losses_virtual, f.losses_physical].map(count));
            cells.extend(gain.map(|g| format!("{g:.2}×")).or(has_gain.then(String::new)));
            table.row(cells);
        }
        let mut out = table.text();
        for f in figures.iter().filter(|f| !f.is_complete()) {
            let name: Vec<&str> = f.axes.iter().map(|a| a.1.as_str()).collect();
            out += &format!("  {}: {}\n", name.join(" "), f.status);
        }
        out
    }

    /// Where everything is, and what it took.
    pub fn places(&self) -> String {
        let ran = || self.done.iter().filter(|d| !d.kept);
        let cpu: f64 = ran().filter_map(|d| d.log.as_ref()).map(|l| l.cpu_seconds).fold(0.0, |a, b| a + b);
        let hops: u64 = ran().map(|d| d.figures.packet_hops).sum();
        let cost = match ran().count() {
            0 => "all runs were complete already".into(),
            _ => format!("{}hops in {cpu:.1} CPU s ({}/CPU s)", short(hops as f64), short(hops as f64 / cpu.max(0.01))),
        };
        let page = self.dir.join(REPORT);
        format!("\n  cost     {cost}\n  records  {}\n  report   {}\n", self.dir.display(), page.display())
    }

    /// Frames lost in networks that lose none.
    pub fn lost_where_none_may_be(&self) -> u64 {
        self.done.iter().map(|d| d.figures.losses_where_none_may_be()).sum()
    }

    /// How the command ends; `hint` says what to do after an interrupt.
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

/// How many times sooner than under LL, everything else the same.
fn gain(f: &Figures, all: &[&Figures]) -> Option<f64> {
    let others =
        |f: &Figures| -> Vec<(String, String)> { f.axes.iter().filter(|a| a.0 != "flow_control").cloned().collect() };
    let axis = |f: &Figures| f.axes.iter().find(|a| a.0 == "flow_control").map(|a| a.1.clone());
    axis(f)?;
    let base = all.iter().find(|b| axis(b).as_deref() == Some("LL") && others(b) == others(f))?;
    let (mine, base) = (f.main().mean_us, base.main().mean_us);
    (mine > 0.0 && base > 0.0).then(|| base / mine)
}
