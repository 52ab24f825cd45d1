//! The result in a sentence, and the few numbers that carry it.

use super::CellInput;
use super::format::{count, counted, time, times};
use super::model::{Model, Row};
use sluicenet_records::Status;

/// Text at the top of the page.
#[derive(Default)]
pub(super) struct Findings {
    /// The measured result in a sentence.
    pub headline: String,
    /// A sentence or two that qualify it.
    pub detail: String,
    /// Numbers with their meanings.
    pub cards: Vec<(String, String)>,
    /// Facts that the numbers show and do not explain.
    pub notes: Vec<String>,
    /// Facts that the reader must know before believing any result.
    pub warnings: Vec<String>,
}

/// Ratios closer to 1 than this are called equal.
const EQUAL: f64 = 1.05;

/// Start of a sentence on a page that names no winner.
const NO_WINNER: &str = "No winner is named: ";

impl Findings {
    pub fn new(model: &Model, inputs: &[&CellInput]) -> Findings {
        let finished: Vec<&Row> = model.rows.iter().filter(|row| row.completion.times.summary.count > 0).collect();
        let mut findings = match lossless_gain(model) {
            gains if !gains.is_empty() => flow_control(model, &gains),
            _ => match finished[..] {
                [_, ..] if model.rows.len() > 1 && unfinished(&model.rows) > 0 => flattered(model, &finished),
                [] if inputs.iter().any(|input| !input.streams.is_empty()) => endless(inputs),
                [] => nothing_finished(model),
                [row] => one(model, row),
                _ => ranking(model, &finished),
            },
        };
        findings.notes = model.notes();
        findings.warnings = warnings(model, inputs);
        findings
    }
}

/// One group's lossy and lossless rows.
struct Gain<'a> {
    group: &'a str,
    lossy: &'a Row,
    lossless: &'a Row,
}

impl Gain<'_> {
    fn ratio(&self) -> f64 {
        self.lossy.completion.times.summary.mean / self.lossless.completion.times.summary.mean
    }

    /// Why the two cannot be compared, if so.
    fn doubt(&self, model: &Model) -> Option<String> {
        match unfinished([self.lossy, self.lossless]) {
            0 if overlap(self.lossy, self.lossless) => {
                Some("the 95\u{202f}% confidence intervals of LL and ZZ overlap".into())
            }
            0 => None,
            n => Some(format!("{} had not finished when the runs ended", counted_work(model, n))),
        }
    }
}

/// Queries or flows that some configurations had begun and not finished.
fn unfinished<'a>(rows: impl IntoIterator<Item = &'a Row>) -> u64 {
    rows.into_iter().map(|row| row.completion.times.unfinished).sum()
}

/// "3 queries", or flows where flows complete.
fn counted_work(model: &Model, n: u64) -> String {
    if model.has_queries { counted(n, "query", "queries") } else { counted(n, "flow", "flows") }
}

/// Whether the confidence intervals of two means overlap; with one seed there are none. Equal means need no interval: they
/// name no winner.
fn overlap(a: &Row, b: &Row) -> bool {
    let interval = |row: &Row| row.completion.mean.and_then(|mean| Some((mean.mean, mean.half_width?)));
    let (Some((a, half_a)), Some((b, half_b))) = (interval(a), interval(b)) else { return false };
    a != b && (a - b).abs() <= half_a + half_b
}

/// For every group that has both, LL against ZZ.
fn lossless_gain(model: &Model) -> Vec<Gain<'_>> {
    if !model.is_flow_control {
        return Vec::new();
    }
    let find = |group, name: &str| {
        model.group(group).find(|row| model.series[row.series].value == name && row.completion.times.summary.count > 0)
    };
    let gain = |(group, name)| Some(Gain { group: name, lossy: find(group, "LL")?, lossless: find(group, "ZZ")? });
    model.groups.iter().map(String::as_str).enumerate().filter_map(gain).collect()
}

fn flow_control(model: &Model, gains: &[Gain<'_>]) -> Findings {
    let what = if model.has_queries { "a query" } else { "a flow" };
    let (mut clear, mut doubts) = (Vec::new(), Vec::new());
    for gain in gains {
        match gain.doubt(model) {
            Some(why) => doubts.push((gain.group, why)),
            None => clear.push(gain),
        }
    }
    let of = |group: &str| if group.is_empty() { String::new() } else { format!("{group}: ") };
    let (low, high) =
        clear.iter().map(|gain| gain.ratio()).fold((f64::MAX, f64::MIN), |(low, high), r| (low.min(r), high.max(r)));
    let range = |low: f64, high: f64| match (times(low), times(high)) {
        (low, high) if low == high => low,
        (low, high) => format!("{low} to {high}"),
    };
    let headline = if clear.is_empty() {
        let mut reasons: Vec<String> = doubts.iter().map(|(group, why)| format!("{}{why}", of(group))).collect();
        if doubts.iter().all(|doubt| doubt.1 == doubts[0].1) {
            reasons = vec![doubts[0].1.clone()];
        }
        format!("{NO_WINNER}{}.", reasons.join("; "))
    } else if low > EQUAL {
        format!("Lossless end to end, {what} completes {} sooner.", range(low, high))
    } else if high < 1.0 / EQUAL {
        format!("Lossless end to end, {what} takes {} longer.", range(1.0 / high, 1.0 / low))
    } else if low > 1.0 / EQUAL && high < EQUAL {
        format!("Lossless end to end, {what} takes as long as with loss.")
    } else {
        format!("Lossless end to end, {what} completes {} as fast as with loss.", range(low, high))
    };
    let unclear: String = match clear.is_empty() {
        true => String::new(),
        false => doubts.iter().map(|(group, why)| format!(" That leaves out {group}: {why}.")).collect(),
    };
    let dropped = |of: fn(&Gain<'_>) -> u64| gains.iter().map(of).sum::<u64>();
    let lossy = dropped(|gain| gain.lossy.drops.values().sum());
    let lossless = dropped(|gain| gain.lossless.drops.values().sum());
    let lost = |frames: u64| if frames == 0 { "none".into() } else { counted(frames, "frame", "frames") };
    let detail = format!(
        "Mean completion time with a lossless virtual and physical network (ZZ) against two lossy ones (LL). LL lost {}, \
         ZZ {}.{unclear}",
        lost(lossy),
        lost(lossless)
    );
    let card = |gain: &Gain<'_>| {
        let (ll, zz) = (gain.lossy.completion.times.summary.mean, gain.lossless.completion.times.summary.mean);
        (times(gain.ratio()), format!("{}LL {} \u{2192} ZZ {}", of(gain.group), time(ll), time(zz)))
    };
    Findings { headline, detail, cards: clear.iter().map(|gain| card(gain)).collect(), ..Findings::default() }
}

/// Means of finished work, where not all finished: the means of a configuration that finished less look the better.
fn flattered(model: &Model, rows: &[&Row]) -> Findings {
    let n = unfinished(&model.rows);
    let headline = format!("{NO_WINNER}{} had not finished when the runs ended.", counted_work(model, n));
    Findings { headline, detail: range(model, rows), cards: means(model, rows), ..Findings::default() }
}

/// The rows with the smallest and with the largest mean.
fn extremes<'a>(rows: &[&'a Row]) -> (&'a Row, &'a Row) {
    let mean = |row: &&&Row| row.completion.times.summary.mean;
    let best = rows.iter().min_by(|a, b| mean(a).total_cmp(&mean(b))).copied().unwrap_or(rows[0]);
    let worst = rows.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).copied().unwrap_or(rows[0]);
    (best, worst)
}

/// The range of the means, without a judgement.
fn range(model: &Model, rows: &[&Row]) -> String {
    let (low, high) = extremes(rows);
    let shown = |row: &Row| format!("{} ({})", time(row.completion.times.summary.mean), model.label(row));
    format!("Means of finished ones lie between {} and {}.", shown(low), shown(high))
}

/// The means of the first few.
fn means(model: &Model, rows: &[&Row]) -> Vec<(String, String)> {
    rows.iter().take(6).map(|row| (time(row.completion.times.summary.mean), model.label(row))).collect()
}

fn ranking(model: &Model, rows: &[&Row]) -> Findings {
    let (best, worst) = extremes(rows);
    let rivals: Vec<&Row> = rows.iter().copied().filter(|row| overlap(best, row)).collect();
    let ratio = worst.completion.times.summary.mean / best.completion.times.summary.mean;
    let what = if model.has_queries { "queries" } else { "flows" };
    if ratio >= EQUAL && !rivals.is_empty() {
        let names = match rivals[..] {
            [one] => model.label(one),
            _ => format!("{} others", rivals.len()),
        };
        let headline =
            format!("{NO_WINNER}the 95\u{202f}% confidence intervals of {} and {names} overlap.", model.label(best));
        return Findings { headline, detail: range(model, rows), cards: means(model, rows), ..Findings::default() };
    }
    let headline = if ratio < EQUAL {
        format!("All configurations complete their {what} in about {}.", time(best.completion.times.summary.mean))
    } else {
        format!(
            "{} completes its {what} soonest: {} on average.",
            model.label(best),
            time(best.completion.times.summary.mean)
        )
    };
    let detail = format!(
        "{} takes longest, {} on average, {} as long.",
        model.label(worst),
        time(worst.completion.times.summary.mean),
        times(ratio)
    );
    Findings { headline, detail, cards: means(model, rows), ..Findings::default() }
}

fn one(model: &Model, row: &Row) -> Findings {
    let s = row.completion.times.summary;
    let n = s.count as u64;
    let what = if model.has_queries { counted(n, "query", "queries") } else { counted(n, "flow", "flows") };
    let dropped: u64 = row.drops.values().sum();
    let lost = match dropped {
        0 => "No frame was lost.".into(),
        1 => "1 frame was lost.".into(),
        _ => format!("{} frames were lost.", count(dropped)),
    };
    let seeds = row.completion.mean.and_then(|mean| Some((mean.half_width?, mean.seeds)));
    let interval = seeds.map_or(String::new(), |(half, n)| format!(" (\u{b1} {} over {n} seeds)", time(half)));
    let headline = format!(
        "{what} completed in {}{interval} on average, 99.9\u{202f}% of them within {}.",
        time(s.mean),
        time(s.p999)
    );
    let cards = vec![
        (time(s.p50), "median".into()),
        (time(s.p99), "99th percentile".into()),
        (count(row.completion.timeouts), "timeouts".into()),
        (count(dropped), "frames lost".into()),
    ];
    Findings { headline, detail: lost, cards, ..Findings::default() }
}

/// Flows without an end, and nothing that has one.
fn endless(inputs: &[&CellInput]) -> Findings {
    let rates = || inputs.iter().map(|input| &input.streams).filter(|streams| !streams.is_empty());
    let slowest = rates().map(|s| s.min_mbps).reduce(f64::min).unwrap_or(0.0);
    let fastest = rates().map(|s| s.max_mbps).fold(0.0, f64::max);
    let headline = format!("Flows without an end: {slowest:.1} to {fastest:.1} Mb/s.");
    Findings { headline, ..Findings::default() }
}

fn nothing_finished(model: &Model) -> Findings {
    let what = if model.has_queries { "query" } else { "flow" };
    let headline = format!("No {what} finished.");
    Findings { headline, ..Findings::default() }
}

fn warnings(model: &Model, inputs: &[&CellInput]) -> Vec<String> {
    let mut warnings = Vec::new();
    for input in inputs.iter().filter(|input| input.status != Status::Complete) {
        let axes = input.run.axis_keys.iter().zip(&input.run.axes).map(|(key, (_, value))| format!(" {key} {value}"));
        let (name, seed) = (&input.run.scenario, input.run.seed);
        let status = match &input.status {
            Status::InterruptedAt { at_ps } => format!("interrupted at {} of simulated time", time(*at_ps as f64)),
            Status::Running => "not finished when this page was made".into(),
            status => status.to_string(),
        };
        let axes: String = axes.collect();
        warnings.push(format!("{name}{axes} (seed {seed}): {status}. Its results are partial."));
    }
    let unfinished = unfinished(&model.rows);
    if unfinished > 0 {
        let did = counted_work(model, unfinished);
        warnings
            .push(format!("{did} had not finished when the runs ended. Times are of finished ones, so they flatter."));
    }
    warnings
}
