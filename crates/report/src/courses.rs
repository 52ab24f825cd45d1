//! A picture of flows without an end while time goes by: an SVG by itself, a row of panels for each run, the simulated
//! course beside the one between real sockets.

use super::format::{COLOURS, escape, number_tick};
use super::scale::Scale;
use sluicenet_experiment::run::{Stream, Streams};
use std::fmt::Write;

/// A run: its configuration, and the courses of its flows in each world.
pub struct Run<'a> {
    /// Its name.
    pub name: &'a str,
    /// A panel each.
    pub panels: Vec<(&'a str, &'a Streams)>,
}

/// Size of a panel with its axes, and the plot inside it.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 170.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = HEIGHT - 26.0;
/// Above the panels: the title, and the meaning of the curves, a line for so many of them.
const HEAD: f64 = 34.0;
const LEGEND_LINE: f64 = 18.0;
const NAMES_A_LINE: usize = 2;
/// The name of the axis below them.
const FOOT: f64 = 22.0;

/// The picture. All panels have the same axes.
pub fn svg(title: &str, runs: &[Run<'_>]) -> String {
    let all = || runs.iter().flat_map(|run| &run.panels).map(|(_, streams)| *streams);
    let first: &[Stream] = all().next().map_or(&[], |streams| &streams.each);
    let seconds = |s: &Streams| {
        let longest = s.each.iter().map(|stream| stream.course_mbps.len()).max().unwrap_or(0);
        s.interval_ms.unwrap_or(0.0) / 1e3 * longest as f64
    };
    // Each of them where the flow is the slowest is on the ground of a linear axis, and still seen.
    let rates = Scale::linear(all().flat_map(|s| &s.each).flat_map(|s| &s.course_mbps).copied());
    let times = Scale::Linear(all().map(seconds).fold(0.0, f64::max).max(1e-9));
    let columns = runs.iter().map(|run| run.panels.len()).max().unwrap_or(0).max(1);
    let head = HEAD + LEGEND_LINE * first.len().min(COLOURS.len()).div_ceil(NAMES_A_LINE) as f64;
    let (width, height) = (WIDTH * columns as f64, head + HEIGHT * runs.len() as f64 + FOOT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    for (i, stream) in first.iter().enumerate().take(COLOURS.len()) {
        let (x, y) = (LEFT + 330.0 * (i % NAMES_A_LINE) as f64, HEAD + 8.0 + LEGEND_LINE * (i / NAMES_A_LINE) as f64);
        let others = if i + 1 == COLOURS.len() && first.len() > COLOURS.len() { ", and all others" } else { "" };
        let name =
            format!("s{}-t{} to s{}-t{}{others}", stream.src_host, stream.src_vm, stream.dst_host, stream.dst_vm);
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            out,
            "<path d=\"M{x} {0}h22\" stroke=\"{1}\" stroke-width=\"2.5\"/><text x=\"{2}\" y=\"{3}\">{4}</text>",
            y - 4.0,
            COLOURS[i],
            x + 28.0,
            y,
            escape(&name)
        );
    }
    for (row, run) in runs.iter().enumerate() {
        for (column, (world, streams)) in run.panels.iter().enumerate() {
            let at = (WIDTH * column as f64, head + HEIGHT * row as f64);
            panel(&mut out, at, &format!("{}, {world}", run.name), streams, times, rates);
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">Mb/s of payload over seconds</text>\n</svg>",
        width / 2.0,
        height - 8.0
    );
    out
}

fn panel(out: &mut String, (x, y): (f64, f64), title: &str, streams: &Streams, times: Scale, rates: Scale) {
    let place_x = |t: f64| LEFT + (RIGHT - LEFT) * times.place(t);
    let place_y = |r: f64| BOTTOM - (BOTTOM - TOP) * rates.place(r);
    let _ = writeln!(
        out,
        "<g transform=\"translate({x} {y})\"><text x=\"{LEFT}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>",
        TOP - 9.0,
        escape(title)
    );
    for tick in rates.ticks() {
        let y = place_y(tick);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" \
             fill=\"#555555\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            number_tick(tick)
        );
    }
    for tick in times.ticks() {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
            place_x(tick),
            BOTTOM + 15.0,
            number_tick(tick)
        );
    }
    let interval = streams.interval_ms.unwrap_or(0.0) / 1e3;
    // The first ones on top.
    for (i, stream) in streams.each.iter().enumerate().rev() {
        // A rate is that of its whole interval: a step.
        let mut path = String::new();
        for (k, rate) in stream.course_mbps.iter().enumerate() {
            let (from, to, y) = (place_x(interval * k as f64), place_x(interval * (k + 1) as f64), place_y(*rate));
            let _ = write!(path, "{}{from:.1} {y:.1}H{to:.1}", if k == 0 { 'M' } else { 'L' });
        }
        let colour = COLOURS[i.min(COLOURS.len() - 1)];
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>");
    }
    let _ = writeln!(out, "<path d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\" fill=\"none\" stroke=\"#333333\"/></g>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn streams(rates: &[&[f64]]) -> Streams {
        let stream = |(i, course): (usize, &&[f64])| Stream {
            src_host: i as u32,
            src_vm: 0,
            dst_host: 9,
            dst_vm: 1,
            transport: "udp".into(),
            mbps: course.iter().sum(),
            course_mbps: course.to_vec(),
        };
        Streams::new(rates.iter().enumerate().map(stream).collect(), Some(500.0))
    }

    #[test]
    fn each_run_has_a_panel_for_each_world_and_each_flow_a_step_for_each_interval() {
        let (simulated, real) = (streams(&[&[0.0, 100.0], &[50.0, 50.0]]), streams(&[&[0.0, 90.0], &[40.0, 0.0]]));
        let run = |name| Run { name, panels: vec![("simulated", &simulated), ("real", &real)] };
        let picture = svg("a <title>", &[run("PFC"), run("credits & all")]);
        assert!(picture.contains("a &lt;title&gt;") && picture.contains("credits &amp; all, real"), "{picture}");
        assert_eq!(picture.matches("stroke-width=\"1.8\"").count(), 2 * 2 * 2);
        // From the ground to the top of the axis, half of the time each.
        let (left, right, middle) = (LEFT, RIGHT, (LEFT + RIGHT) / 2.0);
        assert!(
            picture.contains(&format!("M{left:.1} {BOTTOM:.1}H{middle:.1}L{middle:.1} {TOP:.1}H{right:.1}")),
            "{picture}"
        );
        assert_eq!(picture.matches("<g ").count(), picture.matches("</g>").count());
    }

    #[test]
    fn more_flows_than_colours_and_none_at_all_are_pictures_too() {
        let many = streams(&[&[1.0][..]; 20]);
        let picture = svg("t", &[Run { name: "", panels: vec![("real", &many)] }]);
        assert!(picture.contains("s6-t0 to s9-t1, and all others"), "{picture}");
        assert!(!svg("t", &[]).contains("NaN") && !svg("t", &[Run { name: "", panels: vec![] }]).contains("inf"));
    }
}
