//! The page: sections in the order in which a reader asks.

use super::findings::Findings;
use super::format::{bytes_tick, count, escape, number_tick};
use super::model::Model;
use super::over_time::INTERVALS;
use super::{CellInput, Options, charts, streams, tables};
use sluicenet_experiment::run::{WORK, WORLD};
use sluicenet_records::{Input, RunInfo};

/// Colours, type and layout; light and dark.
const STYLE: &str = include_str!("style.css");

pub(super) fn render(model: &Model, inputs: &[&CellInput], options: &Options) -> String {
    let findings = Findings::new(model, inputs);
    let scenario = inputs.first().map_or("", |input| input.run.scenario.as_str());
    let title = escape(options.title.as_deref().unwrap_or(scenario));
    let what = if model.has_queries { "query" } else { "flow" };
    let mut body = header(&title, &findings);
    body += &world(inputs);

    if model.rows.iter().any(|row| row.completion.times.summary.count > 0) {
        body += &completion(model, what);
    }
    let rates = streams::table(inputs);
    if !rates.is_empty() {
        let note = "Payload delivered, from the end of the warm-up to the end of the run. A machine is its server and its number there.";
        body += &section("How fast flows without an end are", note, &rates);
    }
    let has_ports = model.rows.iter().any(|row| !row.levels.is_empty());
    if has_ports || model.rows.iter().any(|row| !row.drops.is_empty()) {
        let note = "Frames thrown away, by the place whose buffer was full. Other: bit errors, no route, resequencing.";
        body += &section("Where packets died", note, &tables::deaths(model));
    }
    if has_ports {
        let note = "By level of the network, over the whole run. The queue of a server is its adapter's transmit buffer \
                    (<code>adapter.buffer</code>). That of a switch is what waits for one of its output ports: where frames may be \
                    lost, <code>switch.buffer</code> bounds it. Lossless frames stand in the buffers of the ports they came in by, \
                    each with its own XOFF, so that those waiting for one output can be several such buffers together.";
        body += &section("Where packets waited", note, &tables::levels(model));
    }
    if model.rows.iter().any(|row| !row.kinds.is_empty()) {
        let note = "Flows that began after the warm-up. Slowdown is completion time over that in an empty network. Timers, held and queues are means per flow: \
                    waiting for a retransmission timer, held by PFC, and round-trip time above the smallest.";
        let curves = charts::slowdowns(model).map_or(String::new(), |curves| {
            format!(
                "<h3>Slowdown by flow size</h3><p class=\"key\">Solid: p99. Dotted: p99.9. Dashed: median.</p>{}",
                panels(&curves)
            )
        });
        body += &section("Flows", note, &(tables::flows(model) + &curves));
    }
    body += &over_time(model);
    body += &inputs.iter().filter_map(|input| profile(input)).collect::<String>();
    body += &section("Words", "", &words(model));
    body += &section("What was run", "", &provenance(inputs, options));

    document(&title, &body)
}

/// A page with that title and body, both HTML.
pub(super) fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><title>{title} \
         &middot; sluicenet</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )
}

/// Completion times: bars, table, distributions.
fn completion(model: &Model, what: &str) -> String {
    let (bars, axis) = charts::bars(model);
    let key = format!(
        "<p class=\"key\">Bar: mean. On the whisker: circle median, short line p99, long line p99.9. The axis is {axis}.</p>"
    );
    let legend = if model.is_flow_control { FLOW_CONTROL_LEGEND } else { "" };
    let curves = charts::distributions(model);
    let share = format!("Share of {} completed within a time; logarithmic axis.", plural(what));
    let title = format!("How long a {what} takes");
    let seeds = if model.has_seeds() {
        " With several seeds, every time is the mean of the seeds' own figures, and &#177; is half the 95&#8239;% confidence \
         interval of the mean (Student's t); counts are sums."
    } else {
        ""
    };
    let table = format!(
        "{}<p class=\"key\">Times leave the warm-up out; timeouts and segments sent again are those of all messages, losses those \
         of the whole run, as in the table on the terminal.{seeds}</p>",
        tables::completion(model)
    );
    if model.groups.len() > 1 {
        let bars = format!("{}{key}{legend}{table}", panels(&bars));
        section(&title, "", &bars) + &section("Not only the mean", &share, &panels(&curves))
    } else if model.rows.len() > 1 {
        let charts = panels(&(bars + &curves));
        section(&title, "", &format!("{charts}{key}<p class=\"key\">Curves: {}</p>{legend}{table}", lower(&share)))
    } else {
        // A bar beside nothing says less than the numbers below it.
        section(&title, &share, &(panels(&curves) + &table))
    }
}

/// Payload, pauses and queues over time, those that the runs recorded.
fn over_time(model: &Model) -> String {
    let charts = [
        (
            "Throughput",
            "Payload of all flows together, in Gb/s. A flow's bytes are spread evenly over its time.",
            charts::over_time(
                model,
                "Payload of all flows over time, linear",
                |course| &course.payload_gbps,
                number_tick,
            ),
        ),
        (
            "Pauses",
            "Outputs that a PFC pause held, on average over an interval.",
            charts::over_time(model, "Paused outputs over time, linear", |course| &course.paused, number_tick),
        ),
        (
            "Queues",
            "The longest of the recorded queues (<code>record.queues</code>) in each interval.",
            charts::over_time(model, "Longest queue over time, linear", |course| &course.queue_bytes, bytes_tick),
        ),
    ];
    let part = |(title, key, chart): (&str, &str, Option<String>)| {
        let chart = chart?;
        Some(format!("<h3>{title}</h3><p class=\"key\">{key}</p>{}", panels(&chart)))
    };
    let parts: String = charts.into_iter().filter_map(part).collect();
    if parts.is_empty() {
        return String::new();
    }
    let seeds = if model.has_seeds() { " With several seeds, the course is that of the first." } else { "" };
    section("Over time", &format!("Each point covers 1/{INTERVALS} of its run.{seeds}"), &parts)
}

/// The shares of the stages in the CPU time of a run that was profiled.
fn profile(input: &CellInput) -> Option<String> {
    let profile = input.profile.as_ref().filter(|profile| profile.samples > 0)?;
    let note = format!(
        "{} samples of the CPU time of this run on its machine, all threads. A sample counts for the stage of the innermost \
         function that has one.",
        count(profile.samples)
    );
    let name = if input.run.axes.is_empty() { String::new() } else { format!(": {}", escape(&axes(&input.run))) };
    Some(section(&format!("Where the CPU time went{name}"), &note, &charts::shares(profile)))
}

/// The settings of a run of a sweep.
fn axes(run: &RunInfo) -> String {
    run.axes.iter().map(|(axis, value)| format!("{axis} {value}")).collect::<Vec<_>>().join(", ")
}

fn panels(figures: &str) -> String {
    format!("<div class=\"panels\">{figures}</div>")
}

fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

const FLOW_CONTROL_LEGEND: &str = "<ul class=\"legend\">\
    <li><i class=\"swatch c-ll\"></i><b>LL</b> lossy vSwitch, lossy fabric</li>\
    <li><i class=\"swatch c-lz\"></i><b>LZ</b> lossy vSwitch, lossless fabric</li>\
    <li><i class=\"swatch c-zl\"></i><b>ZL</b> lossless vSwitch, lossy fabric</li>\
    <li><i class=\"swatch c-zz\"></i><b>ZZ</b> lossless end to end</li></ul>";

/// Facts that a reader who has not seen the scenario must know first.
fn world(inputs: &[&CellInput]) -> String {
    let told = |input: &CellInput| -> Vec<String> {
        let parameters = input.run.parameters.iter().filter(|(name, _)| tells_the_world(name));
        parameters.map(|(_, text)| text.clone()).collect()
    };
    let mut worlds: Vec<Vec<String>> = Vec::new();
    for world in inputs.iter().map(|input| told(input)).filter(|world| !world.is_empty()) {
        if !worlds.contains(&world) {
            worlds.push(world);
        }
    }
    let Some(first) = worlds.first() else { return String::new() };
    let mut text: String = first.iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
    if worlds.len() > 1 {
        text +=
            "<p class=\"note\">That is the first configuration; the others differ in what they are named after.</p>";
    }
    section("The world", "", &text)
}

/// Whether a parameter stands at the top of the page, and not in the list below.
fn tells_the_world(name: &str) -> bool {
    name == WORLD || name == WORK || name.strip_prefix(WORK).is_some_and(|rest| rest.starts_with(' '))
}

/// The page's words, those that it uses.
fn words(model: &Model) -> String {
    let has = |kind: &str| model.rows.iter().any(|row| row.kinds.contains_key(kind));
    let gain = model.is_flow_control;
    let all: [(bool, &str, &str); 12] = [
        (
            gain,
            "gain",
            "how many times sooner: the mean time under LL over the mean time under the other, all else the same",
        ),
        (
            has("subquery"),
            "subquery",
            "a message from the aggregator that has the query to the aggregator of a chassis",
        ),
        (has("request"), "request", "a message from an aggregator to a worker"),
        (has("response"), "response", "a worker's answer to its aggregator"),
        (has("aggregate"), "aggregate", "the answer of a chassis's aggregator to the one that has the query"),
        (
            true,
            "lost",
            "frames thrown away for want of room: virtual inside a server before its adapter, physical after it",
        ),
        (
            true,
            "resent",
            "TCP segments sent again, upon a timeout or duplicate acknowledgements, needed or not: not the number lost",
        ),
        (true, "timeouts", "times that a TCP sender waited in vain for its retransmission timer"),
        (true, "held", "time that a sender was stopped by PFC"),
        (true, "slowdown", "completion time over that of the same flow in an empty network"),
        (true, "p99", "99 % took no longer; so p95 and p99.9"),
        (model.has_queries, "finished", "of queries after the warm-up; what had begun and not completed is unfinished"),
    ];
    let line = |(_, word, text): &(bool, &str, &str)| format!("<dt>{word}</dt><dd>{}</dd>", escape(text));
    format!("<dl>{}</dl>", all.iter().filter(|word| word.0).map(line).collect::<String>())
}

fn plural(what: &str) -> &str {
    if what == "query" { "queries" } else { "flows" }
}

fn header(title: &str, findings: &Findings) -> String {
    let cards: String = findings
        .cards
        .iter()
        .map(|(number, text)| format!("<li><b>{}</b><span>{}</span></li>", escape(number), escape(text)))
        .collect();
    let warnings: String =
        findings.warnings.iter().map(|warning| format!("<p class=\"warning\">{}</p>", escape(warning))).collect();
    let notes = match &findings.notes[..] {
        [] => String::new(),
        notes => format!("<p class=\"remark\">{}</p>", escape(&notes.join(" "))),
    };
    format!(
        "<header><p class=\"kicker\">{title}</p><h1>{}</h1><p class=\"lead\">{}</p><ul class=\"cards\">{cards}</ul>\
         {notes}{warnings}</header>",
        escape(&findings.headline),
        escape(&findings.detail)
    )
}

fn section(title: &str, note: &str, content: &str) -> String {
    let note = if note.is_empty() { String::new() } else { format!("<p class=\"note\">{note}</p>") };
    format!("<section><h2>{title}</h2>{note}{content}</section>")
}

/// Parameters, inputs, and how to get the same again.
fn provenance(inputs: &[&CellInput], options: &Options) -> String {
    let runs: Vec<&RunInfo> = inputs.iter().map(|input| &input.run).collect();
    let mut lines: Vec<(String, String)> = Vec::new();
    let distinct = |of: &dyn Fn(&RunInfo) -> String| {
        let mut values: Vec<String> = Vec::new();
        for value in runs.iter().map(|run| of(run)) {
            if !value.is_empty() && !values.contains(&value) {
                values.push(value);
            }
        }
        values
    };
    let seeds = distinct(&|run| run.seed.to_string());
    lines.push(("runs".into(), count(runs.len() as u64)));
    lines.push((if seeds.len() == 1 { "seed".into() } else { "seeds".into() }, seeds.join(", ")));
    let names = runs.iter().flat_map(|run| &run.parameters).map(|(name, _)| name);
    let mut seen: Vec<&String> = Vec::new();
    for name in names.filter(|name| !tells_the_world(name)) {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let value = |run: &RunInfo| run.parameters.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v).to_owned();
        lines.push((name.clone(), distinct(&value).join(", ")));
    }
    let (hops, packets) = inputs.iter().fold((0, 0), |sum, input| (sum.0 + input.packets.0, sum.1 + input.packets.1));
    if hops > 0 {
        lines.push(("packets from end to end".into(), count(packets)));
        lines.push(("packet-hops".into(), count(hops)));
    }
    let mut files: Vec<&Input> = Vec::new();
    for input in runs.iter().flat_map(|run| &run.inputs) {
        if !files.contains(&input) {
            files.push(input);
            let short = input.sha256.get(..16).unwrap_or(&input.sha256);
            lines.push((
                format!("file {}", input.name),
                format!("{} bytes, SHA-256 {short}\u{2026}", count(input.bytes)),
            ));
        }
    }
    let hashes = distinct(&|run| run.scenario_sha256.clone());
    match &hashes[..] {
        [] => {}
        [hash] => lines.push(("scenario SHA-256".into(), hash.clone())),
        many => lines.push(("scenario SHA-256".into(), format!("{} different, one a run", many.len()))),
    }
    lines.push(("sluicenet".into(), distinct(&|run| run.tool_version.clone()).join(", ")));

    let line = |(name, value): &(String, String)| format!("<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    let rerun = if options.rerun.is_empty() {
        String::new()
    } else {
        let commands = escape(&options.rerun.join("\n"));
        format!(
            "<h3>Run it again</h3><p class=\"note\">The same scenario and seed give the same bytes, on any machine.</p><pre>{commands}</pre>"
        )
    };
    format!("<dl>{}</dl>{rerun}", lines.iter().map(line).collect::<String>())
}
