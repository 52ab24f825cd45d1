//! `testbed bump`: real bumps in the links of every variant of a scenario, between hosts with the kernel's TCP.

use super::if_loud;
use super::variants::{interrupted, lateness, one_by_one};
use crate::failure::Failure;
use crate::table::{Table, count};
use crate::{Global, Overrides, output};
use serde::Serialize;
use sluicenet_scenario::{Scenario, Warning};
use sluicenet_testbed::bump::{Cell, Plan, measure, missing};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Bump {
    /// The scenario, with [[bump]]
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Also simulate every variant, and print both
    #[arg(long)]
    simulate: bool,
}

/// The output.
#[derive(Serialize)]
struct Printed {
    scenario: String,
    hosts: usize,
    cells: Vec<Cell>,
}

impl Bump {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let variants = loaded.expand_sweep()?;
        let plans = variants
            .iter()
            .map(|v| Ok((v.label.as_str(), Plan::new(&v.scenario)?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        let mut lacks: Vec<String> = plans.iter().flat_map(|(_, plan)| missing(plan)).collect();
        lacks.dedup();
        if !lacks.is_empty() {
            return Err(Failure::Failed(format!("this machine lacks\n  {}", lacks.join("\n  "))));
        }
        let mut said: Vec<&Warning> = Vec::new();
        for warning in plans.iter().flat_map(|(_, plan)| &plan.warnings) {
            if !said.contains(&warning) {
                if_loud(global, &warning.to_string());
                said.push(warning);
            }
        }
        let name = loaded.scenario.name.clone();
        let shown = |(label, _): &(&str, Plan)| if label.is_empty() { name.clone() } else { (*label).to_owned() };
        let cells =
            one_by_one(&plans, shown, global, |(label, plan), progress| measure(plan, label, self.simulate, progress))?;
        let printed = Printed { scenario: name, hosts: plans[0].1.hosts.len(), cells };
        if global.json {
            output::json(&printed);
        } else {
            output::print(&text(&printed));
        }
        interrupted()
    }
}

fn text(printed: &Printed) -> String {
    let slowdown = printed.cells[0].slowdown;
    format!(
        "\n  {}: {} hosts; 1/{slowdown} of the speed: rates are divided by {slowdown} and times multiplied, buffers and thresholds stay\n\n\
         {}\n{}\n{}\n{}{}",
        printed.scenario,
        printed.hosts,
        applications(printed),
        queues(printed),
        bumps(printed),
        queries(printed),
        lateness(printed.cells.iter().map(|c| (name_of(c), c.congestion.as_deref().unwrap_or("udp"), &c.fabric)))
    )
}

fn name_of(cell: &Cell) -> &str {
    if cell.variant.is_empty() { "-" } else { &cell.variant }
}

fn applications(printed: &Printed) -> String {
    let simulates = printed.cells.iter().any(|cell| cell.simulated.is_some());
    let mut head = vec!["variant", "hosts' TCP", "flow", "from", "to", "Mb/s"];
    head.extend(simulates.then_some("simulated"));
    let mut t = Table::new(5, head);
    for cell in &printed.cells {
        let Some(streams) = &cell.streams else { continue };
        for (i, s) in streams.each.iter().enumerate() {
            let first = |text: &str| if i == 0 { text.to_owned() } else { String::new() };
            let mut row = vec![
                first(name_of(cell)),
                first(cell.congestion.as_deref().unwrap_or("-")),
                s.transport.clone(),
                format!("host {}", s.src_host),
                format!("host {}", s.dst_host),
                format!("{:.2}", s.mbps),
            ];
            if simulates {
                let simulated = cell.simulated.as_ref().and_then(|all| all.streams.each.get(i));
                row.push(simulated.map_or("-".into(), |s| format!("{:.2}", s.mbps)));
            }
            t.row(row);
        }
    }
    t.text()
}

fn queues(printed: &Printed) -> String {
    let mut t = Table::new(
        2,
        [
            "variant",
            "queue",
            "median",
            "99 %",
            "longest",
            "bump",
            "samples",
            "off by, median",
            "95 %",
            "within 1 frame",
            "2 frames",
            "3 frames",
        ],
    );
    for cell in &printed.cells {
        for queue in &cell.queues {
            for e in &queue.estimates {
                let percent = |share: f64| format!("{:.1} %", 100.0 * share);
                t.row([
                    name_of(cell).to_owned(),
                    queue.port.clone(),
                    format!("{} B", count(queue.p50_bytes)),
                    format!("{} B", count(queue.p99_bytes)),
                    format!("{} B", count(queue.max_bytes)),
                    e.bump.to_string(),
                    count(e.samples as u64),
                    format!("{} B", count(e.p50_bytes as u64)),
                    format!("{} B", count(e.p95_bytes as u64)),
                    percent(e.within_frames[0]),
                    percent(e.within_frames[1]),
                    percent(e.within_frames[2]),
                ]);
            }
        }
    }
    t.text()
}

fn bumps(printed: &Printed) -> String {
    let head = [
        "variant",
        "bump",
        "packets",
        "marked",
        "dropped",
        "notices",
        "reported",
        "lost at devices",
        "lost in switches",
    ];
    let mut t = Table::new(1, head);
    for cell in &printed.cells {
        for (i, bump) in cell.bumps.iter().enumerate() {
            t.row([
                name_of(cell).to_owned(),
                i.to_string(),
                count(bump.packets),
                count(bump.marked),
                count(bump.dropped),
                count(bump.notices),
                count(bump.reported),
                count(bump.lost_at_devices),
                if i == 0 { count(cell.fabric.dropped.values().sum()) } else { String::new() },
            ]);
        }
    }
    t.text()
}

fn queries(printed: &Printed) -> String {
    let mut t =
        Table::new(1, ["variant", "queries", "median", "99 %", "longest", "timeouts", "simulated median", "99 %"]);
    let mut any = false;
    for cell in &printed.cells {
        let Some(q) = &cell.queries else { continue };
        any = true;
        let ms = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2} ms"));
        let simulated = cell.simulated.as_ref().and_then(|s| s.queries.as_ref());
        t.row([
            name_of(cell).to_owned(),
            count(q.queries as u64),
            ms(q.median_ms),
            ms(q.p99_ms),
            ms(q.max_ms),
            count(q.run_timeouts),
            ms(simulated.map(|q| q.p50_us / 1e3)),
            ms(simulated.map(|q| q.p99_us / 1e3)),
        ]);
    }
    if any { t.text() + "\n" } else { String::new() }
}
