//! The table of a sweep's runs, `cells.parquet`: a row for each run, its settings and its figures.

use super::settings::{Setting, typed};
use super::summary::SweepRun;
use crate::run::{Completion, Figures};
use sluicenet_records::{SheetColumn, SheetValues};
use std::collections::BTreeSet;

/// The columns of the runs, one row a run.
pub(super) fn columns(runs: &[SweepRun]) -> Vec<SheetColumn> {
    let mut columns = Vec::new();
    let figures: Vec<&Figures> = runs.iter().map(|run| &run.figures).collect();
    columns.extend(settings(&figures));
    let mut add = |name: &str, values: SheetValues| columns.push(SheetColumn { name: unused(&columns, name), values });
    add("seed", counts(&figures, |f| Some(f.seed)));
    add("folder", SheetValues::Text(runs.iter().map(|run| Some(run.folder.clone())).collect()));
    add("scenario", texts(&figures, |f| &f.scenario));
    add("status", texts(&figures, |f| &f.status));
    add("flow_control", texts(&figures, |f| &f.flow_control));
    add("of", texts(&figures, |f| f.unit()));
    times(&figures, "", |f| Some(f.main()), &mut add);
    // Beside queries flows are figures of their own.
    if figures.iter().any(|f| f.queries.is_some() && f.flows.is_some()) {
        times(&figures, "flows_", |f| f.flows.clone().filter(|_| f.queries.is_some()), &mut add);
    }
    add("mean_round_us", reals(&figures, |f| f.mean_round_us));
    add("bound_us", reals(&figures, |f| f.bound_us));
    if figures.iter().any(|f| !f.streams.is_empty()) {
        let of = |of: fn(&Figures) -> f64| reals(&figures, move |f| (!f.streams.is_empty()).then(|| of(f)));
        add("streams_total_mbps", of(|f| f.streams.total_mbps));
        add("streams_min_mbps", of(|f| f.streams.min_mbps));
        add("streams_max_mbps", of(|f| f.streams.max_mbps));
        add("streams_jain", of(|f| f.streams.jain));
    }
    type Count = (&'static str, fn(&Figures) -> u64);
    const COUNTS: [Count; 14] = [
        ("messages_begun", |f| f.messages.0),
        ("messages_finished", |f| f.messages.1),
        ("left_out", |f| f.left_out),
        ("timeouts", |f| f.timeouts),
        ("retransmissions", |f| f.retransmissions),
        ("drops", |f| f.drops),
        ("losses_virtual", |f| f.losses_virtual),
        ("losses_physical", |f| f.losses_physical),
        ("lossless_violations", |f| f.lossless_violations),
        ("pauses", |f| f.pauses),
        ("marked", |f| f.marked),
        ("notifications", |f| f.notifications),
        ("packet_hops", |f| f.packet_hops),
        ("packets_end_to_end", |f| f.packets_end_to_end),
    ];
    for (name, of) in COUNTS {
        add(name, counts(&figures, |f| Some(of(f))));
    }
    let reasons: BTreeSet<&String> = figures.iter().flat_map(|f| f.drops_by_reason.keys()).collect();
    for reason in reasons {
        let of = |f: &Figures| Some(f.drops_by_reason.get(reason).copied().unwrap_or(0));
        add(&format!("drops_{reason}"), counts(&figures, of));
    }
    add("simulated_us", reals(&figures, |f| Some(f.simulated_us)));
    columns
}

/// The axes, in the order in which runs have them.
fn settings(figures: &[&Figures]) -> Vec<SheetColumn> {
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in figures.iter().flat_map(|f| &f.axes) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(|name| SheetColumn { name: name.clone(), values: axis(figures, name) }).collect()
}

fn axis(figures: &[&Figures], name: &str) -> SheetValues {
    let texts: Vec<Option<&str>> =
        figures.iter().map(|f| f.axes.iter().find(|axis| axis.0 == name).map(|axis| axis.1.as_str())).collect();
    let mut values = typed(&texts.iter().copied().flatten().collect::<Vec<_>>()).into_iter().peekable();
    let first = values.peek().cloned();
    let all: Vec<Option<Setting>> = texts.iter().map(|text| text.and_then(|_| values.next())).collect();
    macro_rules! column {
        ($kind:ident) => {
            SheetValues::$kind(
                all.into_iter().map(|v| if let Some(Setting::$kind(x)) = v { Some(x) } else { None }).collect(),
            )
        };
    }
    match first {
        Some(Setting::Bool(_)) => column!(Bool),
        Some(Setting::Int(_)) => column!(Int),
        Some(Setting::Real(_)) => column!(Real),
        Some(Setting::Text(_)) | None => column!(Text),
    }
}

/// A name that no column has: an axis may be called like a figure, which then is the run's.
fn unused(columns: &[SheetColumn], name: &str) -> String {
    match columns.iter().any(|column| column.name == name) {
        true => format!("run_{name}"),
        false => name.to_owned(),
    }
}

/// Counts and times of queries or flows; times are null where nothing finished.
fn times(
    figures: &[&Figures],
    prefix: &str,
    of: fn(&Figures) -> Option<Completion>,
    add: &mut impl FnMut(&str, SheetValues),
) {
    let found: Vec<Option<Completion>> = figures.iter().map(|f| of(f)).collect();
    let count = |of: fn(&Completion) -> u64| SheetValues::Count(found.iter().map(|c| c.as_ref().map(of)).collect());
    let time = |of: fn(&Completion) -> f64| {
        SheetValues::Real(found.iter().map(|c| c.as_ref().filter(|c| c.finished > 0).map(of)).collect())
    };
    add(&format!("{prefix}finished"), count(|c| c.finished));
    add(&format!("{prefix}unfinished"), count(|c| c.unfinished));
    type Time = (&'static str, fn(&Completion) -> f64);
    const TIMES: [Time; 6] = [
        ("mean_us", |c| c.mean_us),
        ("p50_us", |c| c.p50_us),
        ("p95_us", |c| c.p95_us),
        ("p99_us", |c| c.p99_us),
        ("p999_us", |c| c.p999_us),
        ("max_us", |c| c.max_us),
    ];
    for (name, of) in TIMES {
        add(&format!("{prefix}{name}"), time(of));
    }
}

fn counts(figures: &[&Figures], of: impl Fn(&Figures) -> Option<u64>) -> SheetValues {
    SheetValues::Count(figures.iter().map(|f| of(f)).collect())
}

fn reals(figures: &[&Figures], of: impl Fn(&Figures) -> Option<f64>) -> SheetValues {
    SheetValues::Real(figures.iter().map(|f| of(f)).collect())
}

fn texts<'a>(figures: &'a [&Figures], of: impl Fn(&'a Figures) -> &'a str) -> SheetValues {
    SheetValues::Text(figures.iter().map(|f| Some(of(f).to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(axes: &[(&str, &str)], seed: u64) -> SweepRun {
        let axes = axes.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let drops_by_reason = [("switch_buffer".to_owned(), seed)].into();
        let queries = Some(Completion { finished: seed, mean_us: 2.5, ..Completion::default() });
        let figures = Figures { axes, seed, queries, drops_by_reason, ..Figures::default() };
        SweepRun { folder: format!("seed={seed}"), figures }
    }

    #[test]
    fn settings_have_types_and_nothing_finished_has_no_time() {
        let runs = [run(&[("load", "0.5"), ("drops", "a")], 0), run(&[("load", "1"), ("drops", "b")], 1)];
        let columns = columns(&runs);
        let column = |name: &str| &columns.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("{name}")).values;
        assert_eq!(columns[0].name, "load");
        assert_eq!(column("load"), &SheetValues::Real(vec![Some(0.5), Some(1.0)]));
        assert_eq!(column("mean_us"), &SheetValues::Real(vec![None, Some(2.5)]));
        assert_eq!(column("drops_switch_buffer"), &SheetValues::Count(vec![Some(0), Some(1)]));
        assert_eq!(column("drops"), &SheetValues::Text(vec![Some("a".into()), Some("b".into())]), "the axis");
        assert_eq!(column("run_drops"), &SheetValues::Count(vec![Some(0), Some(0)]), "the figure");
        assert!(columns.iter().all(|c| c.values.len() == 2));
    }

    #[test]
    fn an_axis_that_some_runs_lack_is_null_there() {
        let runs = [run(&[("load", "3")], 1), run(&[], 2), run(&[("load", "4")], 3)];
        assert_eq!(columns(&runs)[0].values, SheetValues::Int(vec![Some(3), None, Some(4)]));
    }
}
