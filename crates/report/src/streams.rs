//! Flows without an end: their rates, as bars to one scale.

use super::CellInput;
use super::format::{count, escape};
use sluicenet_experiment::run::Stream;

/// Flows of a run that are shown one by one.
const SHOWN_MAX: usize = 16;

/// The rates of every run's flows without an end; nothing where no run has any.
pub(super) fn table(inputs: &[&CellInput]) -> String {
    let runs: Vec<&&CellInput> = inputs.iter().filter(|input| !input.streams.is_empty()).collect();
    let fastest = runs.iter().map(|input| input.streams.max_mbps).fold(0.0, f64::max).max(1e-6);
    runs.iter().map(|input| of_run(input, fastest)).collect()
}

fn of_run(input: &CellInput, fastest: f64) -> String {
    let axes = input.run.axis_keys.iter().zip(&input.run.axes);
    let axes: Vec<String> = axes.map(|(key, (_, value))| escape(&format!("{key} {value}"))).collect();
    let title = if axes.is_empty() { String::new() } else { format!("<h3>{}</h3>", axes.join(", ")) };
    let s = &input.streams;
    let bars: String = s.each.iter().take(SHOWN_MAX).map(|stream| bar(stream, fastest)).collect();
    let shown = s.each.len().min(SHOWN_MAX) as u64;
    let rest = if s.count > shown { format!(", {} of them not shown", count(s.count - shown)) } else { String::new() };
    format!(
        "{title}<div class=\"scroll\"><table><tbody>{bars}</tbody></table></div><p class=\"key\">{} flows{rest}: {:.1} to {:.1} Mb/s, \
         {:.1} Mb/s together; Jain's index {:.3}.</p>",
        count(s.count),
        s.min_mbps,
        s.max_mbps,
        s.total_mbps,
        s.jain
    )
}

fn bar(s: &Stream, fastest: f64) -> String {
    let [from, to] = [(s.src_host, s.src_vm), (s.dst_host, s.dst_vm)].map(|(host, vm)| format!("{host}.{vm}"));
    let width = 300.0 * s.mbps / fastest;
    format!(
        "<tr><th scope=\"row\">{} {from} to {to}</th><td>{:.1} Mb/s</td><td><svg width=\"300\" height=\"10\" role=\"img\" \
         aria-label=\"{:.1} Mb/s\"><rect width=\"{width:.1}\" height=\"10\" fill=\"currentColor\" opacity=\"0.55\"/></svg></td></tr>",
        escape(&s.transport),
        s.mbps,
        s.mbps
    )
}
