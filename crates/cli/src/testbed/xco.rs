//! `testbed xco`: every variant of a scenario between real hosts with XCo's controller and agents.

use super::variants::{interrupted, lateness, one_by_one};
use crate::failure::Failure;
use crate::table::{NONE, Table, count};
use crate::{Global, Overrides, output};
use serde::Serialize;
use sluicenet_scenario::Scenario;
use sluicenet_testbed::xco::{
    Cell, Plan, Settings, Times, Traffic, measure, missing, missing_for_blocks, missing_for_guests,
};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Xco {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Also simulate every variant, and print both
    #[arg(long)]
    simulate: bool,
    /// UDP flows without an end send messages of so many bytes, which IP cuts; default full frames
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..=65_507))]
    message: Option<u16>,
    /// Rounds are reads of blocks striped over the senders, by fio and nbdkit; each variant has exactly one `incast`
    #[arg(long)]
    blocks: bool,
    /// TCP flows with an end are live migrations of an idle QEMU guest; the run ends with the last one
    #[arg(long)]
    migrate: bool,
}

/// Output of the command.
#[derive(Serialize)]
struct Printed {
    scenario: String,
    hosts: usize,
    link_bps: u64,
    message: Option<u16>,
    cells: Vec<Cell>,
}

impl Xco {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let run = std::process::id();
        let variants = loaded.expand_sweep()?;
        let plans = variants.iter().map(|v| {
            let plan = Plan::new(&v.scenario, run)?;
            Ok((short(&v.label, &plan.traffic), plan))
        });
        let plans = plans.collect::<Result<Vec<_>, Failure>>()?;
        let Xco { message, simulate, blocks, migrate, .. } = self;
        let settings = Settings { message, simulate, blocks, migrate };
        let name = |(label, plan): &(String, Plan)| match label.is_empty() {
            true => plan.scenario.name.clone(),
            false => label.clone(),
        };
        for variant in &plans {
            settings.fit(&variant.1.traffic).map_err(|why| Failure::Input(format!("{}: {why}", name(variant))))?;
        }
        let mut lacks = missing();
        if self.blocks {
            lacks.extend(missing_for_blocks());
        }
        if self.migrate {
            lacks.extend(missing_for_guests());
        }
        if !lacks.is_empty() {
            return Err(Failure::Failed(format!("this machine lacks\n  {}", lacks.join("\n  "))));
        }
        let cells =
            one_by_one(&plans, name, global, |(label, plan), progress| measure(plan, run, label, settings, progress))?;
        let plan = &plans[0].1;
        let printed = Printed {
            scenario: plan.scenario.name.clone(),
            hosts: plan.hosts.len(),
            link_bps: plan.hosts.first().map_or(0, |host| host.rate.as_bps()),
            message,
            cells,
        };
        match global.json {
            true => output::json(&printed),
            false => output::print(&text(&printed)),
        }
        interrupted()
    }
}

/// A label in which the traffic stands for the whole list of its workloads.
fn short(label: &str, traffic: &Traffic) -> String {
    let Some((before, list)) = label.split_once("workload=[") else { return label.to_owned() };
    let mut depth = 1;
    let end = list.find(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        depth == 0
    });
    let after = end.map_or("", |end| &list[end + 1..]);
    let flows = |transport: &str| traffic.endless.iter().filter(|flow| flow.transport.name() == transport).count();
    let senders = traffic.rounds.iter().map(|rounds| rounds.senders.len()).sum();
    let parts = [(flows("udp"), "UDP"), (flows("tcp"), "TCP"), (traffic.finite.len(), "finite"), (senders, "senders")];
    let parts: Vec<String> = parts.iter().filter(|p| p.0 > 0).map(|(n, what)| format!("{n} {what}")).collect();
    format!("{before}{}{after}", parts.join(" + "))
}

/// A measured figure, the simulated one, and the difference in percent.
fn beside(measured: f64, simulated: Option<f64>, places: usize) -> [String; 3] {
    let simulated = simulated.filter(|&s| s > 0.0 || measured > 0.0);
    let difference = simulated.filter(|&s| s > 0.0).map(|s| format!("{:+.1} %", 100.0 * (measured / s - 1.0)));
    let shown = simulated.map_or(NONE.into(), |s| format!("{s:.places$}"));
    [format!("{measured:.places$}"), shown, difference.unwrap_or(NONE.into())]
}

fn text(printed: &Printed) -> String {
    let cells = &printed.cells;
    let mut out = format!(
        "\n  {}: {} hosts, links of {:.0} Mb/s at hosts; payload between real sockets, after the warm-up\n\n{}\n",
        printed.scenario,
        printed.hosts,
        printed.link_bps as f64 / 1e6,
        rates(cells)
    );
    if cells.iter().any(|cell| cell.rounds.is_some() || cell.finite.is_some()) {
        out += &format!("{}\n", times(cells));
    }
    out += &format!("{}\n", losses(cells));
    if cells.iter().any(|cell| cell.xco.is_some()) {
        out += &format!("{}\n", programs(cells));
    }
    out + &lateness(cells.iter().map(|cell| (cell.name(), cell.coordination.as_str(), &cell.fabric)))
}

/// The rates of flows and rounds.
fn rates(cells: &[Cell]) -> String {
    let mut t = Table::new(2, ["variant", "", "Mb/s", "simulated", "difference", "Jain", "simulated"]);
    for cell in cells {
        let simulated = cell.simulated.as_ref();
        let mut label = cell.name();
        for kind in ["udp", "tcp"] {
            let Some(streams) = &cell.streams else { break };
            let of = |streams: &sluicenet_experiment::run::Streams| {
                streams.each.iter().filter(|s| s.transport == kind).map(|s| s.mbps).sum::<f64>()
            };
            let flows = streams.each.iter().filter(|s| s.transport == kind).count();
            if flows > 0 {
                let figures = beside(of(streams), simulated.map(|s| of(&s.streams)), 2);
                let what = format!("{flows} {}", kind.to_uppercase());
                t.row([std::mem::take(&mut label).to_owned(), what].into_iter().chain(figures));
            }
        }
        if let Some(rounds) = &cell.rounds {
            let other = simulated.and_then(|s| s.rounds.as_ref()).map(|rounds| rounds.mbps);
            let figures = beside(rounds.mbps, other, 2);
            t.row([std::mem::take(&mut label).to_owned(), "rounds".into()].into_iter().chain(figures));
        }
        if let Some(streams) = cell.streams.as_ref().filter(|streams| streams.each.len() > 1) {
            let all = beside(streams.total_mbps, simulated.map(|s| s.streams.total_mbps), 2);
            let jain = simulated.map_or(NONE.into(), |s| format!("{:.3}", s.streams.jain));
            let jains = [format!("{:.3}", streams.jain), jain];
            t.row([std::mem::take(&mut label).to_owned(), "all flows".into()].into_iter().chain(all).chain(jains));
        }
    }
    t.without_empty().text()
}

/// The times of rounds and of flows with an end.
fn times(cells: &[Cell]) -> String {
    let head = [
        "variant",
        "milliseconds",
        "count",
        "mean",
        "simulated",
        "difference",
        "median",
        "99 %",
        "longest",
        "simulated",
    ];
    let mut t = Table::new(2, head);
    for cell in cells {
        let simulated = cell.simulated.as_ref();
        let mut row = |what: &str, times: &Times, other: Option<&Times>| {
            let ms = |ms: f64| format!("{ms:.2}");
            let shown = [times.p50_ms, times.p99_ms, times.max_ms].map(ms);
            let longest = other.map_or(NONE.into(), |other| ms(other.max_ms));
            let head = [cell.name().to_owned(), what.to_owned(), count(times.count as u64)];
            let means = beside(times.mean_ms, other.map(|other| other.mean_ms), 2);
            t.row(head.into_iter().chain(means).chain(shown).chain([longest]));
        };
        if let Some(rounds) = &cell.rounds {
            let other = simulated.and_then(|s| s.rounds.as_ref()).map(|rounds| &rounds.transfer);
            row("request and round", &rounds.whole, None);
            row("round", &rounds.transfer, other);
        }
        if let Some(finite) = &cell.finite {
            let what = cell
                .migrated_bytes
                .map_or("flows with an end".into(), |bytes| format!("migration of {:.1} MB", bytes as f64 / 1e6));
            row(&what, finite, simulated.and_then(|s| s.finite.as_ref()));
        }
    }
    t.without_empty().text()
}

/// Lost frames.
fn losses(cells: &[Cell]) -> String {
    let mut t = Table::new(1, ["variant", "frames", "lost", "simulated", "where", "at hosts"]);
    for cell in cells {
        let places = |all: &std::collections::BTreeMap<String, u64>| {
            let shown: Vec<String> = all.iter().map(|(place, n)| format!("{place} {}", count(*n))).collect();
            if shown.is_empty() { NONE.into() } else { shown.join(", ") }
        };
        let simulated = cell.simulated.as_ref().map_or(NONE.into(), |s| format!("{:.2} %", s.lost_percent));
        let lost = format!("{:.2} %", cell.lost.percent);
        let at = [places(&cell.lost.by_reason), places(&cell.lost.at_hosts)];
        t.row([cell.name().to_owned(), count(cell.lost.sent), lost, simulated].into_iter().chain(at));
    }
    t.without_empty().text()
}

/// What the controller and the agents did.
fn programs(cells: &[Cell]) -> String {
    let head =
        ["variant", "agents", "slices", "directives", "returned", "reports", "messages", "uncontrolled", "starved"];
    let mut t = Table::new(1, head);
    for cell in cells {
        let Some(xco) = &cell.xco else { continue };
        let messages: u64 = ["received", "sent"].iter().filter_map(|name| xco.messages.get(*name)).sum();
        let of_controller = ["slices", "directives", "returned"].map(|event| count(xco.controller(event)));
        let of_agents = ["uncontrolled_frames", "starved"].map(|event| count(xco.coordinators(event)));
        let reports = [count(xco.coordinators("reports")), count(messages)];
        let head = [cell.name().to_owned(), count(xco.agents as u64)];
        t.row(head.into_iter().chain(of_controller).chain(reports).chain(of_agents));
    }
    t.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_workloads_is_short_in_a_label() {
        let traffic = Traffic::default();
        assert_eq!(short("a=1 workload=[{senders=[1]},{b=2}] c=3", &traffic), "a=1  c=3");
        assert_eq!(short("xco.enabled=true", &traffic), "xco.enabled=true");
    }
}
