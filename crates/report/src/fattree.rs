//! A picture of traffic over a real fat-tree while time goes by: all flows of each run together, and below them each
//! run's flows one by one.

use super::format::{COLOURS, escape, number_tick};
use super::scale::Scale;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = WIDTH - 20.0;
/// Height of the panel of all flows together, and of those of single flows, with their titles.
const TOGETHER: f64 = 250.0;
const SINGLE: f64 = 130.0;
const TOP: f64 = 26.0;
const BELOW: f64 = 26.0;
/// Above the panels: the title, and the meaning of the curves.
const HEAD: f64 = 30.0;
const LEGEND_LINE: f64 = 18.0;
/// The name of the axis below them.
const FOOT: f64 = 22.0;

/// The axis of all flows together goes so far beyond the capacity of the hosts' links.
const ROOM: f64 = 1.2;
/// Intervals that a single flow's rate is the mean of.
const SMOOTH: usize = 5;

/// One run, as the picture shows it.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// Its name in the legend.
    pub name: String,
    /// Goodput of all flows after the warm-up.
    pub total_mbps: f64,
    /// Goodput that the links of all hosts carry.
    pub ideal_mbps: f64,
    /// The first in per cent of the second.
    pub percent: f64,
    /// Its length.
    pub seconds: f64,
    /// Ends of the intervals of `course_mbps` and `flows`, from the beginning of the run.
    pub at_s: &'a [f64],
    /// Goodput of all flows together, per interval.
    pub course_mbps: &'a [f64],
    /// Goodput of each flow, per interval.
    pub flows: Vec<&'a [f64]>,
    /// Faults, each with its time in seconds.
    pub faults: &'a [(f64, String)],
}

/// Where a value is drawn in a panel.
struct Axes {
    times: Scale,
    rates: Scale,
    bottom: f64,
}

impl Axes {
    fn x(&self, t: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * self.times.place(t)
    }
    fn y(&self, rate: f64) -> f64 {
        self.bottom - (self.bottom - TOP) * self.rates.place(rate)
    }
    /// A rate is that of its whole interval: a step.
    fn course(&self, at_s: &[f64], rates: &[f64]) -> String {
        let mut path = String::new();
        let mut from = 0.0;
        for (&to, &rate) in at_s.iter().zip(rates) {
            let pen = if path.is_empty() { 'M' } else { 'L' };
            // Writing to a `String` cannot fail.
            let _ = write!(path, "{pen}{:.1} {:.1}H{:.1}", self.x(from), self.y(rate), self.x(to));
            from = to;
        }
        path
    }
    fn frame(&self, out: &mut String, title: &str) {
        let _ =
            writeln!(out, "<text x=\"{LEFT}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>", TOP - 9.0, escape(title));
        for tick in self.rates.ticks() {
            let y = self.y(tick);
            let _ = writeln!(
                out,
                "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" \
                 fill=\"#555555\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                number_tick(tick)
            );
        }
        for tick in self.times.ticks() {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{}</text>",
                self.x(tick),
                self.bottom + 15.0,
                number_tick(tick)
            );
        }
        let _ = writeln!(out, "<path d=\"M{LEFT} {TOP}V{}H{RIGHT}\" fill=\"none\" stroke=\"#333333\"/>", self.bottom);
    }
}

/// A rate is the mean of the intervals around it.
fn smoothed(rates: &[f64]) -> Vec<f64> {
    let around = |i: usize| &rates[i.saturating_sub(SMOOTH / 2)..(i + SMOOTH / 2 + 1).min(rates.len())];
    (0..rates.len()).map(|i| around(i).iter().sum::<f64>() / around(i).len() as f64).collect()
}

/// The picture of some runs.
pub fn svg(title: &str, runs: &[Run<'_>]) -> String {
    let longest = runs.iter().map(|run| run.seconds).fold(1e-9, f64::max);
    let times = Scale::Linear(longest);
    let ideal = runs.iter().map(|run| run.ideal_mbps).fold(0.0, f64::max);
    // Values above it are data that had waited behind a loss and is read at once: no link carries that.
    let together = Axes { times, rates: Scale::linear([ideal * ROOM].into_iter()), bottom: TOGETHER - BELOW };
    let smooth: Vec<Vec<Vec<f64>>> =
        runs.iter().map(|run| run.flows.iter().map(|course| smoothed(course)).collect()).collect();
    let singles = smooth.iter().flatten().flatten().copied();
    let single = Axes { times, rates: Scale::linear(singles.chain([1e-3])), bottom: SINGLE - BELOW };
    let head = HEAD + LEGEND_LINE * (runs.len() as f64 + 1.0);
    let height = head + TOGETHER + SINGLE * runs.len() as f64 + FOOT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    );
    let key = |out: &mut String, line: usize, colour: &str, dashes: &str, name: &str| {
        let y = HEAD + 10.0 + LEGEND_LINE * line as f64;
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {}h24\" stroke=\"{colour}\" stroke-width=\"2\"{dashes}/><text x=\"{}\" y=\"{y}\">{}</text>",
            y - 4.0,
            LEFT + 32.0,
            escape(name)
        );
    };
    for (i, run) in runs.iter().enumerate() {
        let text = format!("{}: {:.1} Mb/s after the warm-up, {:.1} %", run.name, run.total_mbps, run.percent);
        key(&mut out, i, COLOURS[i % COLOURS.len()], "", &text);
    }
    const DASHES: &str = " stroke-dasharray=\"5 4\"";
    key(&mut out, runs.len(), "#888888", DASHES, &format!("what the hosts' links carry: {ideal:.1} Mb/s"));
    let _ = writeln!(out, "<g transform=\"translate(0 {head})\">");
    together.frame(&mut out, "all flows together");
    let y = together.y(ideal);
    let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}H{RIGHT}\" stroke=\"#888888\" stroke-width=\"1.5\"{DASHES}/>");
    let mut told: Vec<&str> = Vec::new();
    for (at, what) in runs.iter().flat_map(|run| run.faults) {
        let x = together.x(*at);
        let _ = writeln!(out, "<path d=\"M{x:.1} {TOP}V{}\" stroke=\"#333333\"{DASHES}/>", together.bottom);
        // Runs of one command have the same faults.
        if !told.contains(&what.as_str()) {
            let y = TOP + 12.0 + 14.0 * (told.len() % 4) as f64;
            let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"#333333\">{}</text>", x + 4.0, escape(what));
            told.push(what);
        }
    }
    for (i, run) in runs.iter().enumerate() {
        let path = together.course(run.at_s, run.course_mbps);
        let colour = COLOURS[i % COLOURS.len()];
        let _ = writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
    out += "</g>\n";
    for (i, run) in runs.iter().enumerate() {
        let _ = writeln!(out, "<g transform=\"translate(0 {})\">", head + TOGETHER + SINGLE * i as f64);
        let each = format!("{}: each of {} flows, means of {SMOOTH} intervals", run.name, run.flows.len());
        single.frame(&mut out, &each);
        let colour = COLOURS[i % COLOURS.len()];
        for rates in &smooth[i] {
            let path = single.course(run.at_s, rates);
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1\" stroke-opacity=\"0.55\"/>"
            );
        }
        out += "</g>\n";
    }
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">Mb/s of payload over seconds</text>\n</svg>",
        WIDTH / 2.0,
        height - 8.0
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<'a>(name: &str, at_s: &'a [f64], flows: &[&'a [f64]], faults: &'a [(f64, String)]) -> Run<'a> {
        Run {
            name: name.into(),
            total_mbps: 10.0,
            ideal_mbps: 20.0,
            percent: 50.0,
            seconds: at_s.len() as f64,
            at_s,
            course_mbps: &[20.0, 20.0][..at_s.len()],
            flows: flows.to_vec(),
            faults,
        }
    }

    #[test]
    fn a_burst_is_spread_over_the_intervals_around_it_and_no_further() {
        assert_eq!(smoothed(&[0.0, 0.0, 0.0, 10.0, 0.0, 0.0, 0.0, 0.0]), [0.0, 2.5, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0]);
        assert_eq!(smoothed(&[3.0]), [3.0]);
        assert!(smoothed(&[]).is_empty());
    }

    #[test]
    fn all_together_and_each_flow_by_itself() {
        let faults = [(1.0, "kill:c1-1 <&>".to_string())];
        let ecmp = run("ECMP", &[1.0, 2.0], &[&[0.0, 10.0], &[5.0, 5.0]], &faults);
        let gff = run("GFF", &[1.0, 2.0], &[&[10.0, 10.0]], &faults);
        let picture = svg("a <title>", &[ecmp, gff]);
        assert!(picture.contains("a &lt;title&gt;") && picture.contains("ECMP: each of 2 flows"), "{picture}");
        assert_eq!(picture.matches("stroke-opacity").count(), 3);
        // An event of both runs is named once.
        assert_eq!(picture.matches("kill:c1-1 &lt;&amp;&gt;").count(), 1);
        assert_eq!(picture.matches("<g ").count(), picture.matches("</g>").count());
        let nothing = svg("t", &[run("none", &[], &[], &faults)]);
        assert!(!nothing.contains("NaN") && !nothing.contains("inf"));
        assert!(!svg("t", &[]).contains("NaN"));
    }
}
