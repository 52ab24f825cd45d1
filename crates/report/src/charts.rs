//! The charts, each a small SVG that takes its colours from the page and stays readable on a phone.
//!
//! One panel for each group, all with the same axis, laid out by the page: beside each other where there is room. The
//! SVG is written by hand because a chart library fixes its colours when it draws, and then there is no dark page.

use std::fmt::Write;

use super::OverTime;
use super::format::{bytes_tick, escape, number_tick, time, time_tick};
use super::model::{Model, Row};
use super::scale::Scale;
use super::summary::CURVE_STEPS;
use sluicenet_records::Profile;
use sluicenet_records::stats::SizeBucket;

/// Size of a panel in its own units, about pixels on a phone.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 236.0;
/// The plot inside the panel.
const LEFT: f64 = 56.0;
const RIGHT: f64 = WIDTH - 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = HEIGHT - 42.0;
/// Steps of a distribution between two points of its curve: a panel shows no more.
const STEPS_A_POINT: usize = 4;
/// Picoseconds of a millisecond, the unit of time axes.
const PS_PER_MS: f64 = 1e9;
/// Room under a panel whose series need their key named.
const KEY_LINE: f64 = 16.0;

/// Mean completion time as bars, median to p99.9 as whiskers; returns the kind of axis that the values need as well.
pub(super) fn bars(model: &Model) -> (String, &'static str) {
    let summaries = || model.rows.iter().map(|row| row.completion.times.summary);
    let shown = summaries().flat_map(|s| [s.mean, s.p50, s.p99, s.p999]);
    let scale = Scale::for_bars(shown);
    let axis = if scale.is_log() { "logarithmic" } else { "linear" };
    let panels = panels(model, |rows| {
        let mut svg = Svg::new(&format!("Mean completion time, {axis}"));
        svg.y_axis(scale, time_tick);
        if let Some(key) = &model.series_key {
            svg.height += KEY_LINE;
            svg.text((LEFT + RIGHT) / 2.0, BOTTOM + 32.0 + KEY_LINE, "middle", "soft", &escape(key));
        }
        // Every panel has a slot for every series, so that bars stand at the same place everywhere.
        let slot = (RIGHT - LEFT) / model.series.len() as f64;
        for row in rows {
            bar(&mut svg, model, row, scale, slot);
        }
        svg.finish()
    });
    (panels, axis)
}

/// The shares of stages in the CPU time of a run, a bar each.
pub(super) fn shares(profile: &Profile) -> String {
    const LINE: f64 = 20.0;
    /// Where bars begin, beside the longest name.
    const NAMES: f64 = 176.0;
    /// Room for the percentage behind the longest bar.
    const PERCENT: f64 = 48.0;
    let mut svg = Svg::new("Share of each stage in the CPU time, linear");
    svg.height = LINE * profile.stages.len() as f64 + 8.0;
    let largest = profile.stages.iter().map(|stage| stage.share).fold(f64::MIN_POSITIVE, f64::max);
    for (i, stage) in profile.stages.iter().enumerate() {
        let top = LINE * i as f64 + 4.0;
        let width = (WIDTH - NAMES - PERCENT) * stage.share / largest;
        svg.text(NAMES - 7.0, top + 12.0, "end", "", &escape(&stage.stage));
        svg.raw(&format!(
            "<rect class=\"fill c0\" x=\"{NAMES}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"15\" rx=\"2\"/>"
        ));
        let share = format!("{:.1}\u{202f}%", 100.0 * stage.share);
        svg.text(NAMES + width + 6.0, top + 12.0, "start", "soft", &share);
    }
    format!("<figure>{}</figure>", svg.finish())
}

fn bar(svg: &mut Svg, model: &Model, row: &Row, scale: Scale, slot: f64) {
    let (x, width) = (LEFT + slot * (row.series as f64 + 0.5), (slot * 0.62).min(64.0));
    let colour = colour(model, row);
    let s = row.completion.times.summary;
    svg.text(x, BOTTOM + 16.0, "middle", "strong", &escape(&shorten(&model.series[row.series].value, slot)));
    if s.count == 0 {
        svg.text(x, BOTTOM - 6.0, "middle", "soft", "none finished");
        return;
    }
    svg.text(x, BOTTOM + 32.0, "middle", "", &time(s.mean));
    let y = |value| svg_y(scale, value);
    let tooltip = format!(
        "{}: mean {}, median {}, p99 {}, p99.9 {}",
        escape(&model.label(row)),
        time(s.mean),
        time(s.p50),
        time(s.p99),
        time(s.p999)
    );
    let (top, left) = (y(s.mean), x - width / 2.0);
    let height = BOTTOM - top;
    svg.raw(&format!(
        "<g><title>{tooltip}</title><rect class=\"fill {colour}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" \
         height=\"{height:.1}\" rx=\"2\"/><path class=\"whisker\" d=\"M{x:.1} {:.1}V{:.1}M{:.1} {:.1}h10M{:.1} {:.1}h18\"/>\
         <circle class=\"median\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.6\"/></g>",
        y(s.p50),
        y(s.p999),
        x - 5.0,
        y(s.p99),
        x - 9.0,
        y(s.p999),
        y(s.p50),
    ));
}

/// Distributions of completion time, one curve for each series.
pub(super) fn distributions(model: &Model) -> String {
    let ends = model.rows.iter().map(|row| row.completion.times.summary).flat_map(|s| [s.min, s.max]);
    let scale = Scale::for_curves(ends);
    panels(model, |rows| {
        let mut svg = Svg::new("Share of completion times at or below a value, logarithmic");
        svg.x_axis(scale, time_tick);
        svg.y_axis(Scale::Linear(1.0), |share| format!("{:.0}\u{202f}%", share * 100.0));
        for row in rows {
            let curve = &row.completion.times.curve;
            if curve.is_empty() {
                continue;
            }
            let at_share = |i: usize| (curve[i], i as f64 / CURVE_STEPS as f64);
            let points: Vec<_> = (0..curve.len()).step_by(STEPS_A_POINT).map(at_share).collect();
            let place = |&(time, share): &(f64, f64)| (svg_x(scale, time), svg_y(Scale::Linear(1.0), share));
            let points: Vec<_> = points.iter().map(place).collect();
            svg.line(&points, colour(model, row), "");
            // Labels stand at different heights: curves that lie on each other still have readable names.
            let share = 0.86 - 0.68 * row.series as f64 / (model.series.len().max(2) - 1) as f64;
            let at = place(&at_share((share * CURVE_STEPS as f64) as usize));
            svg.label(at, colour(model, row), &model.series[row.series].full);
        }
        svg.finish()
    })
}

/// Slowdown over flow size, median, p99 and p99.9; `None` when the flows have one size or none.
pub(super) fn slowdowns(model: &Model) -> Option<String> {
    let buckets = || model.rows.iter().flat_map(|row| &row.slowdown);
    if model.rows.iter().all(|row| row.slowdown.len() < 2) {
        return None;
    }
    let sizes = Scale::for_curves(buckets().map(|b| b.max_bytes as f64));
    let scale = Scale::for_curves(buckets().flat_map(|b| [b.slowdown.p50, b.slowdown.p999]).chain([1.0]));
    Some(panels(model, |rows| {
        let mut svg = Svg::new("Slowdown over flow size, both logarithmic");
        svg.x_axis(sizes, bytes_tick);
        svg.y_axis(scale, |x| format!("{}\u{d7}", number_tick(x)));
        for row in rows {
            let curve = |value: fn(&SizeBucket) -> f64| -> Vec<_> {
                row.slowdown.iter().map(|b| (svg_x(sizes, b.max_bytes as f64), svg_y(scale, value(b)))).collect()
            };
            svg.line(&curve(|b| b.slowdown.p50), colour(model, row), "dashed");
            svg.line(&curve(|b| b.slowdown.p999), colour(model, row), "dotted");
            let p99 = curve(|b| b.slowdown.p99);
            svg.line(&p99, colour(model, row), "");
            // Spread along the curves, for the same reason as above.
            let at = p99.len().saturating_sub(1) * (row.series + 1) / (model.series.len() + 1);
            if let Some(&at) = p99.get(at) {
                svg.label(at, colour(model, row), &model.series[row.series].full);
            }
        }
        svg.finish()
    }))
}

/// A course over time, a curve for each series; `None` where no run has it. `name` gives a value on the axis.
pub(super) fn over_time(
    model: &Model,
    description: &str,
    course: fn(&OverTime) -> &[f64],
    name: fn(f64) -> String,
) -> Option<String> {
    let courses = || model.rows.iter().map(|row| course(&row.over_time));
    if courses().all(|values| values.iter().all(|&value| value == 0.0)) {
        return None;
    }
    let times = Scale::linear(model.rows.iter().map(|row| row.over_time.end_ps / PS_PER_MS));
    let scale = Scale::linear(courses().flatten().copied());
    Some(panels(model, |rows| {
        let mut svg = Svg::new(description);
        svg.height += KEY_LINE;
        svg.x_axis(times, number_tick);
        svg.text((LEFT + RIGHT) / 2.0, BOTTOM + 24.0 + KEY_LINE, "middle", "soft", "simulated time (ms)");
        svg.y_axis(scale, name);
        for row in rows {
            let values = course(&row.over_time);
            let point = |(i, &value): (usize, &f64)| {
                (svg_x(times, row.over_time.middle_ps(i) / PS_PER_MS), svg_y(scale, value))
            };
            let points: Vec<_> = values.iter().enumerate().map(point).collect();
            svg.line(&points, colour(model, row), "thin");
            // Spread along the curves: those that lie on each other still have readable names.
            let at = points.len().saturating_sub(1) * (row.series + 1) / (model.series.len() + 1);
            if let (Some(&at), true) = (points.get(at), model.rows.len() > 1) {
                svg.label(at, colour(model, row), &model.series[row.series].full);
            }
        }
        svg.finish()
    }))
}

/// A curve of [`plot`].
pub(super) struct Plotted {
    /// Its name.
    pub name: &'static str,
    /// The class that gives it its colour.
    pub colour: &'static str,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// One panel of curves over a number that is named below it.
pub(super) fn plot(
    description: &str,
    (x, x_name): (Scale, &str),
    (y, y_tick): (Scale, fn(f64) -> String),
    curves: Vec<Plotted>,
) -> String {
    let mut svg = Svg::new(description);
    svg.height += KEY_LINE;
    svg.x_axis(x, number_tick);
    svg.text((LEFT + RIGHT) / 2.0, BOTTOM + 24.0 + KEY_LINE, "middle", "soft", &escape(x_name));
    svg.y_axis(y, y_tick);
    let count = curves.len();
    for (i, curve) in curves.into_iter().enumerate() {
        let points: Vec<_> = curve.points.iter().map(|&(a, b)| (svg_x(x, a), svg_y(y, b))).collect();
        svg.line(&points, curve.colour.to_owned(), "");
        // Spread along the curves: those that lie on each other still have readable names.
        if let Some(&at) = points.get(points.len().saturating_sub(1) * (i + 1) / (count + 1)) {
            svg.label(at, curve.colour.to_owned(), curve.name);
        }
    }
    svg.finish()
}

/// The class that gives a series its colour.
pub(super) fn colour(model: &Model, row: &Row) -> String {
    match model.series[row.series].value.as_str() {
        name @ ("LL" | "LZ" | "ZL" | "ZZ") if model.is_flow_control => format!("c-{}", name.to_lowercase()),
        _ => format!("c{}", row.series % 6),
    }
}

/// Draws a panel for every group, with the group's name on it.
fn panels<'a>(model: &'a Model, draw: impl Fn(&[&'a Row]) -> String) -> String {
    let mut out = String::new();
    for (group, name) in model.groups.iter().enumerate() {
        let rows: Vec<&Row> = model.group(group).collect();
        let title = if name.is_empty() { String::new() } else { format!("<figcaption>{}</figcaption>", escape(name)) };
        // Writing to a `String` cannot fail.
        let _ = write!(out, "<figure>{title}{}</figure>", draw(&rows));
    }
    out
}

fn svg_x(scale: Scale, value: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * scale.place(value)
}

fn svg_y(scale: Scale, value: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * scale.place(value)
}

/// About how wide a text is: fonts differ, and nothing here depends on more than that.
fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.0
}

/// The beginning of a name that fits into `width`; the whole name stands in the table below.
fn shorten(name: &str, width: f64) -> String {
    if text_width(name) <= width {
        return name.to_owned();
    }
    let kept = (width / text_width("x")) as usize;
    name.chars().take(kept.saturating_sub(1)).chain(['\u{2026}']).collect()
}

/// An SVG in the making.
struct Svg {
    description: String,
    height: f64,
    body: String,
    /// Drawn in the end, so that no curve crosses a name.
    labels: String,
}

impl Svg {
    fn new(description: &str) -> Svg {
        Svg { description: escape(description), height: HEIGHT, body: String::new(), labels: String::new() }
    }

    fn finish(self) -> String {
        let Svg { description, height, body, labels } = self;
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{description}\">{body}{labels}</svg>")
    }

    fn raw(&mut self, markup: &str) {
        self.body.push_str(markup);
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, class: &str, text: &str) {
        let text = format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
        self.body.push_str(&text);
    }

    fn y_axis(&mut self, scale: Scale, name: impl Fn(f64) -> String) {
        for tick in scale.ticks() {
            let y = svg_y(scale, tick);
            self.raw(&format!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>"));
            self.text(LEFT - 7.0, y + 4.0, "end", "soft", &name(tick));
        }
        self.raw(&format!("<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>"));
    }

    fn x_axis(&mut self, scale: Scale, name: impl Fn(f64) -> String) {
        let mut free = f64::MIN;
        for tick in scale.ticks() {
            let x = svg_x(scale, tick);
            self.raw(&format!("<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>"));
            let name = name(tick);
            // About the width of the text: a label that would touch its neighbour is left out.
            let half = text_width(&name) / 2.0 + 2.0;
            let x = x.min(WIDTH - half);
            if x - half >= free {
                self.text(x, BOTTOM + 17.0, "middle", "soft", &name);
                free = x + half;
            }
        }
    }

    fn line(&mut self, points: &[(f64, f64)], colour: String, style: &str) {
        let mut path = String::new();
        for (i, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
        }
        self.raw(&format!("<path class=\"line {colour} {style}\" d=\"{path}\"/>"));
    }

    /// A dot on a curve and the name of the curve beside it.
    fn label(&mut self, (x, y): (f64, f64), colour: String, name: &str) {
        let name = shorten(name, RIGHT - LEFT);
        let fits = x + 9.0 + text_width(&name) <= WIDTH;
        let (anchor, dx) = if fits { ("start", 9.0) } else { ("end", -9.0) };
        let _ = write!(
            self.labels,
            "<circle class=\"dot {colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/><text class=\"halo strong\" x=\"{:.1}\" \
             y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            x + dx,
            y + 4.0,
            escape(&name)
        );
    }
}
