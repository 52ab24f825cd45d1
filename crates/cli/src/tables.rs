//! The tables of a scenario, `[[table]]`: a figure over two axes of its sweep, seeds together, beside the figures of a
//! source.

use super::cells;
use super::failure::Failure;
use super::table::{Table as Text, count};
use super::{Global, estimate, interrupt, output};
use serde::Serialize;
use sluicenet_experiment::run::{self, Options, Outcome};
use sluicenet_experiment::sweep::{self, Cell};
use sluicenet_records::Existing;
use sluicenet_records::stats::mean_over_seeds;
use sluicenet_scenario::{Figure, Loaded, Scenario, Table, TableAxis, Workload};
use sluicenet_sim::RunEnd;

/// A cell of a table: all seeds of a row and a column.
#[derive(Debug, Serialize)]
struct Shown {
    /// Value of the row's key, where it has one.
    row: Option<String>,
    /// Value of the column's.
    column: String,
    /// Runs.
    seeds: usize,
    /// Mean of the runs' figures; none where they have none.
    mean: Option<f64>,
    /// Half the width of its 95 % confidence interval (Student's t).
    half_width: Option<f64>,
    /// The worst of the runs.
    worst: Option<f64>,
    /// Seed of the worst run.
    worst_seed: Option<u64>,
    /// The source's figure.
    source: Option<f64>,
    /// The mean less the source's figure.
    difference: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Made {
    title: String,
    figure: &'static str,
    unit: &'static str,
    rows: Option<String>,
    columns: String,
    cells: Vec<Shown>,
}

/// Runs all variants and shows the tables.
pub(super) fn main(loaded: &Loaded, workers: usize, global: Global) -> Result<(), Failure> {
    let scenario = &loaded.scenario;
    let cells = sweep::cells(loaded, None)?;
    if !global.quiet {
        estimate::tell_all(cells.iter().map(|cell| &cell.job.scenario), workers);
    }
    let begun = std::time::Instant::now();
    let (values, cpu_s) = values(&cells, &scenario.tables, workers, global.quiet)?;
    let made: Vec<Made> = scenario.tables.iter().enumerate().map(|(i, t)| make(i, t, &cells, &values)).collect();
    let wall_s = begun.elapsed().as_secs_f64();
    if global.json {
        let level = if scenario.level.is_packet() { "packet" } else { "flow" };
        output::json(&serde_json::json!({
            "scenario": scenario.name,
            "level": level,
            "runs": cells.len(),
            "cpu_s": cpu_s,
            "wall_s": wall_s,
            "tables": made,
        }));
        return Ok(());
    }
    for table in &made {
        output::print(&text(table));
    }
    output::print(&format!("  {} runs in {cpu_s:.1} CPU s, {wall_s:.1} s\n", count(cells.len() as u64)));
    Ok(())
}

/// The figure of each table; none where a run has none.
type Values = Vec<Option<f64>>;

/// The figures of each table, variant by variant, and the CPU seconds of all.
fn values(cells: &[Cell], tables: &[Table], workers: usize, quiet: bool) -> Result<(Vec<Values>, f64), Failure> {
    let stopped = || Failure::Interrupted("no table is made of a part of the runs".into());
    let done = cells::each(cells, workers, quiet, |cell, i, bar| {
        let progress = &mut |p: &run::Progress| bar.update(i, p);
        let interrupt = interrupt::of_a_run();
        let options = Options { threads: 1, out: None, existing: Existing::Force, interrupt, progress };
        let outcome = run::run(&cell.job, options)?.ok_or_else(|| Failure::Failed("nothing was run".into()))?;
        if outcome.end == RunEnd::Interrupted {
            return Err(stopped());
        }
        if let Some(circle) = &outcome.deadlock {
            return Err(Failure::Failed(format!("{}: deadlock: {circle}", cell.label)));
        }
        let figures: Values = tables.iter().map(|t| value(t.figure, &cell.job.scenario, &outcome)).collect();
        Ok((figures, outcome.cpu_s))
    })?;
    if done.len() < cells.len() {
        return Err(stopped());
    }
    let cpu_s = done.iter().map(|one| one.1).sum();
    Ok((done.into_iter().map(|one| one.0).collect(), cpu_s))
}

/// A figure of a run; none where nothing of that kind was there.
fn value(figure: Figure, s: &Scenario, o: &Outcome) -> Option<f64> {
    let queries: Vec<u64> = o.queries.iter().filter(|q| !q.warmup).filter_map(|q| q.completion_ps).collect();
    let times = if o.queries.is_empty() { &o.flow_fct_ps } else { &queries };
    let ms = |ps: f64| ps / 1e9;
    let is_all = o.flows.open_alone == 0 && o.queries.iter().all(|q| q.completion_ps.is_some());
    match figure {
        Figure::Bandwidth => (o.streams.count > 0).then(|| 100.0 * o.streams.total_mbps / o.line_mbps),
        Figure::Loss => (o.totals.sent > 0).then(|| 100.0 * o.totals.dropped as f64 / o.totals.sent as f64),
        // A mean of those that ended would flatter.
        _ if times.is_empty() || !is_all => None,
        Figure::Mean => Some(ms(times.iter().map(|&ps| ps as f64).sum::<f64>() / times.len() as f64)),
        Figure::Longest => times.iter().max().map(|&ps| ms(ps as f64)),
        Figure::Goodput => {
            let bytes = match s.workloads.first()? {
                Workload::Permutation(w) => w.bytes?.as_bytes() as f64,
                Workload::Shuffle(w) => w.bytes.as_bytes() as f64 * f64::from(w.hosts - 1),
                Workload::Flow(w) => w.bytes?.as_bytes() as f64,
                _ => return None,
            };
            Some(times.iter().map(|&ps| bytes * 1e12 / ps as f64).sum::<f64>() / 1e9)
        }
    }
}

fn make(index: usize, t: &Table, cells: &[Cell], values: &[Values]) -> Made {
    let has = |cell: &Cell, axis: &TableAxis, value: &str| {
        axis.is_fixed || cell.settings.iter().any(|s| s.0 == axis.key && s.1 == value)
    };
    let rows: Vec<Option<&String>> = match &t.rows {
        Some(axis) => axis.values.iter().map(Some).collect(),
        None => vec![None],
    };
    let mut shown = Vec::new();
    for (r, row) in rows.iter().enumerate() {
        for (c, column) in t.columns.values.iter().enumerate() {
            let of_row = |cell: &Cell| t.rows.as_ref().zip(*row).is_none_or(|(axis, row)| has(cell, axis, row));
            let is_here = |cell: &Cell| has(cell, &t.columns, column) && of_row(cell);
            let here = || cells.iter().zip(values).filter(|(cell, _)| is_here(cell));
            let found: Vec<(u64, f64)> =
                here().filter_map(|(cell, v)| Some((cell.job.scenario.seed, v[index]?))).collect();
            let all = here().count();
            let only: Vec<f64> = found.iter().map(|f| f.1).collect();
            // A mean over the runs that have one would flatter, too.
            let mean = mean_over_seeds(&only).filter(|_| found.len() == all);
            let is_rate = matches!(t.figure, Figure::Bandwidth | Figure::Goodput);
            let worst = match is_rate {
                true => found.iter().min_by(|a, b| a.1.total_cmp(&b.1)),
                false => found.iter().max_by(|a, b| a.1.total_cmp(&b.1)),
            };
            let source = t.source.get(r).and_then(|line| line.get(c).copied().flatten());
            shown.push(Shown {
                row: row.cloned(),
                column: column.clone(),
                seeds: all,
                mean: mean.map(|m| m.mean),
                half_width: mean.and_then(|m| m.half_width),
                worst: worst.map(|w| w.1),
                worst_seed: worst.map(|w| w.0),
                source,
                difference: mean.map(|m| m.mean).zip(source).map(|(mean, source)| mean - source),
            });
        }
    }
    let figure = t.figure.name();
    Made {
        title: t.title.clone(),
        figure,
        unit: t.figure.unit(),
        rows: t.rows.as_ref().map(|axis| axis.key.clone()),
        columns: t.columns.key.clone(),
        cells: shown,
    }
}

/// A line for each row and kind of number: the mean with its interval, the source's, and the worst with its seed.
fn text(made: &Made) -> String {
    let number = |x: f64| if x.abs() < 9.995 { format!("{x:.2}") } else { format!("{x:.1}") };
    let width = made.cells.iter().take_while(|c| c.row == made.cells[0].row).count().max(1);
    let columns: Vec<String> = made.cells.iter().take(width).map(|c| c.column.clone()).collect();
    let mut table = Text::new(2, ["", ""].into_iter().map(String::from).chain(columns));
    for line in made.cells.chunks(width) {
        let name = line[0].row.clone().unwrap_or_default();
        let mean = |c: &Shown| match (c.mean, c.half_width) {
            (Some(mean), Some(half)) => format!("{} ± {}", number(mean), number(half)),
            (Some(mean), None) => number(mean),
            (None, _) => "–".into(),
        };
        table.row([name, "here".into()].into_iter().chain(line.iter().map(mean)));
        if line.iter().any(|c| c.source.is_some()) {
            let source = |c: &Shown| c.source.map_or("–".into(), number);
            table.row([String::new(), "source".into()].into_iter().chain(line.iter().map(source)));
        }
        if line.iter().any(|c| c.seeds > 1) {
            let worst = |c: &Shown| match (c.worst, c.worst_seed) {
                (Some(worst), Some(seed)) => format!("{} (seed {seed})", number(worst)),
                _ => "–".into(),
            };
            table.row([String::new(), "worst".into()].into_iter().chain(line.iter().map(worst)));
        }
    }
    let seeds = made.cells.iter().map(|c| c.seeds).max().unwrap_or(0);
    let of_seeds = if seeds > 1 { format!(", {seeds} seeds, ± 95 %") } else { String::new() };
    format!("\n  {}: {} in {}{of_seeds}\n\n{}\n", made.title, made.figure, made.unit, table.text())
}
