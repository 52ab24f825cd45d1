//! The tables: the numbers behind the charts, a line for each configuration.

use std::collections::BTreeSet;

use super::charts::colour;
use super::format::{bytes, count, digits, escape, time};
use super::loss_locations::{Level, LossLocation};
use super::model::{Model, Row};

/// A table in the making: a first column of names, then cells with optional heat behind the number.
struct Table {
    /// Columns under a common heading; heat is to scale within one of these.
    heads: Vec<Heads>,
    rows: Vec<Line>,
}

/// Columns that belong together.
struct Heads {
    /// Common title of the columns; may be empty.
    title: &'static str,
    columns: Vec<String>,
}

/// A line of a table.
struct Line {
    /// The configuration it is about, as an index into `Model::rows`.
    row: usize,
    name: String,
    cells: Vec<Cell>,
}

/// Text of a cell, and the value for the heat behind the text.
struct Cell {
    text: String,
    value: f64,
}

impl Cell {
    fn new(value: f64, text: String) -> Cell {
        Cell { text, value }
    }

    /// A cell without heat.
    fn plain(text: String) -> Cell {
        Cell { text, value: 0.0 }
    }
}

impl Table {
    fn html(&self, model: &Model) -> String {
        let mut titles = String::new();
        if self.heads.iter().any(|heads| !heads.title.is_empty()) {
            let title = |h: &Heads| format!("<th class=\"start\" colspan=\"{}\">{}</th>", h.columns.len(), h.title);
            titles = format!("<tr><td></td>{}</tr>", self.heads.iter().map(title).collect::<String>());
        }
        // Longest value under each heading, and for every column its heading and whether it is the first there.
        let mut columns = Vec::new();
        for (i, heads) in self.heads.iter().enumerate() {
            columns.extend((0..heads.columns.len()).map(|column| (i, i > 0 && column == 0)));
        }
        let mut max = vec![0.0f64; self.heads.len()];
        for line in &self.rows {
            for (cell, (head, _)) in line.cells.iter().zip(&columns) {
                max[*head] = max[*head].max(cell.value);
            }
        }
        let class = |starts: bool| if starts { " class=\"start\"" } else { "" };
        let names = self.heads.iter().flat_map(|heads| &heads.columns).zip(&columns);
        let names: String =
            names.map(|(n, (_, starts))| format!("<th scope=\"col\"{}>{n}</th>", class(*starts))).collect();
        let mut out = format!("<div class=\"scroll\"><table><thead>{titles}<tr><td></td>{names}</tr></thead><tbody>");
        let mut last_group = None;
        for line in &self.rows {
            let row = &model.rows[line.row];
            let rule = if last_group.is_some_and(|group| group != row.group) { " class=\"rule\"" } else { "" };
            last_group = Some(row.group);
            let swatch = format!("<i class=\"swatch {}\"></i>", colour(model, row));
            out += &format!("<tr{rule}><th scope=\"row\">{swatch}{}</th>", line.name);
            for (cell, (head, starts)) in line.cells.iter().zip(&columns) {
                let share = 100.0 * cell.value / max[*head];
                let heat =
                    if share > 0.0 { format!(" style=\"--share:{:.1}%\"", share.max(5.0)) } else { String::new() };
                out += &format!("<td{}{heat}>{}</td>", class(*starts), cell.text);
            }
            out += "</tr>";
        }
        out + "</tbody></table></div>"
    }
}

/// A table with a line for each configuration.
fn by_configuration(model: &Model, heads: Vec<Heads>, cells: impl Fn(&Row) -> Vec<Cell>) -> String {
    let line = |(row, r): (usize, &Row)| Line { row, name: escape(&model.label(r)), cells: cells(r) };
    Table { heads, rows: model.rows.iter().enumerate().map(line).collect() }.html(model)
}

/// Table of completion times and of faults on the way.
pub(super) fn completion(model: &Model) -> String {
    let seeds = model.has_seeds();
    let what = if model.has_queries { "queries" } else { "flows" };
    let mut heads = vec!["mean".to_owned()];
    if seeds {
        heads.push("&#177; 95&#8239;%".into());
    }
    heads.extend(
        ["median", "p95", "p99", "p99.9", "timeouts", "resent", "lost, virtual", "lost, physical"].map(Into::into),
    );
    heads.extend([what.to_owned(), "unfinished".to_owned()]);
    by_configuration(model, vec![Heads { title: "", columns: heads }], |row| {
        let (c, s) = (&row.completion, row.completion.times.summary);
        let ps = |value: f64| if s.count == 0 { "&ndash;".into() } else { time(value) };
        let half_width = c.mean.and_then(|mean| mean.half_width);
        let (virtually, physically) = row.losses();
        let mut cells = vec![format!("<b>{}</b>", ps(s.mean))];
        if seeds {
            cells.push(half_width.map_or("&ndash;".into(), time));
        }
        cells.extend([s.p50, s.p95, s.p99, s.p999].map(ps));
        cells.extend([c.timeouts, c.retransmissions, virtually, physically, s.count as u64].map(count));
        cells.push(if c.times.unfinished > 0 {
            format!("<b class=\"bad\">{}</b>", count(c.times.unfinished))
        } else {
            "0".into()
        });
        cells.into_iter().map(Cell::plain).collect()
    })
}

/// Frames thrown away, by location.
pub(super) fn deaths(model: &Model) -> String {
    // Every location a frame can die of congestion in this network, and others only if one died there.
    let mut locations: BTreeSet<LossLocation> = model.rows.iter().flat_map(|row| row.drops.keys().copied()).collect();
    locations.extend([LossLocation::Vswitch, LossLocation::Adapter]);
    locations.extend((1..=model.top_level).map(LossLocation::Switch));
    let columns =
        locations.iter().map(|location| escape(&model.location_name(*location))).chain(["all".to_owned()]).collect();
    let mut heads = vec![Heads { title: "by place", columns }];
    let reasons: BTreeSet<&String> = model.rows.iter().flat_map(|row| row.reasons.keys()).collect();
    if !reasons.is_empty() {
        heads.push(Heads { title: "by reason", columns: reasons.iter().map(|reason| escape(reason)).collect() });
    }
    by_configuration(model, heads, |row| {
        let frames = |location: &LossLocation| row.drops.get(location).copied().unwrap_or(0);
        let mut cells: Vec<Cell> =
            locations.iter().map(|location| Cell::new(frames(location) as f64, count(frames(location)))).collect();
        let total: u64 = row.drops.values().sum();
        cells.push(Cell::plain(if total == 0 {
            "<b class=\"good\">none</b>".into()
        } else {
            format!("<b>{}</b>", count(total))
        }));
        let of = |reason: &&String| row.reasons.get(*reason).copied().unwrap_or(0);
        cells.extend(reasons.iter().map(|reason| Cell::new(of(reason) as f64, count(of(reason)))));
        cells
    })
}

/// Table of each level's longest queues, pauses if there were any, and utilization of links.
pub(super) fn levels(model: &Model) -> String {
    let names: BTreeSet<u8> = model.rows.iter().flat_map(|row| row.levels.keys().copied()).collect();
    type Of = fn(&Level) -> Cell;
    let mut parts: Vec<(&'static str, Of)> = vec![("Longest queue at a port", |level| {
        Cell::new(level.max_queue_bytes as f64, bytes(level.max_queue_bytes as f64))
    })];
    if model.rows.iter().flat_map(|row| row.levels.values()).any(|level| level.paused_ps > 0.0) {
        parts.push(("Held by PFC, sum over ports", |level| Cell::new(level.paused_ps, time(level.paused_ps))));
    }
    parts.push(("Busy, mean of ports", |level| {
        let mean = level.utilisation / level.ports.max(1) as f64;
        Cell::new(mean, format!("{}&#8239;%", digits(mean * 100.0)))
    }));
    let columns = || names.iter().map(|level| escape(&model.level_name(*level))).collect();
    let heads = parts.iter().map(|(title, _)| Heads { title, columns: columns() }).collect();
    by_configuration(model, heads, |row| {
        let cell = |level: &u8, of: Of| row.levels.get(level).map_or(Cell::plain("&ndash;".into()), of);
        parts.iter().flat_map(|(_, of)| names.iter().map(|level| cell(level, *of))).collect()
    })
}

/// Flows of each configuration by kind: their times, and the reasons of their waits.
pub(super) fn flows(model: &Model) -> String {
    let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let heads = vec![
        Heads { title: "", columns: columns(&["flows", "unfinished"]) },
        Heads { title: "Completion time", columns: columns(&["mean", "median", "p99"]) },
        Heads { title: "Slowdown", columns: columns(&["median", "p99"]) },
        Heads { title: "Waited, mean per flow", columns: columns(&["timers", "held", "queues"]) },
    ];
    let mut rows = Vec::new();
    for (index, row) in model.rows.iter().enumerate() {
        for (kind, summary) in &row.kinds {
            let flows = summary.flows.max(1) as f64;
            let (fct, slowdown) = (summary.fct_ps, summary.slowdown);
            let ps = |value: f64| if fct.count == 0 { "&ndash;".into() } else { time(value) };
            let ratio = |x: f64| if slowdown.count == 0 { "&ndash;".into() } else { format!("{}&times;", digits(x)) };
            let cells = vec![
                count(summary.flows),
                count(summary.flows - fct.count as u64),
                format!("<b>{}</b>", ps(fct.mean)),
                ps(fct.p50),
                ps(fct.p99),
                ratio(slowdown.p50),
                ratio(slowdown.p99),
                time(summary.timeout_wait_ps / flows),
                time(summary.paused_ps / flows),
                time(summary.queueing_ps / flows),
            ];
            let name = escape([model.label(row), kind.to_string()].join(" ").trim());
            rows.push(Line { row: index, name, cells: cells.into_iter().map(Cell::plain).collect() });
        }
    }
    Table { heads, rows }.html(model)
}
