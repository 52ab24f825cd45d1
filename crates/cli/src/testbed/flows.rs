//! `testbed flows`: the flows without an end of every variant of a scenario, between the tenants of a testbed.

use super::variants::{self, OnTestbed, Printed, Told, verdict};
use crate::failure::Failure;
use crate::table::{Table, count};
use crate::{Global, files};
use sluicenet_report::courses::{self, Run};
use sluicenet_testbed::Application;
use sluicenet_testbed::live::Progress;
use sluicenet_testbed::measure::{FlowsCell, LimiterFigures, measure_flows};
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct Flows {
    #[command(flatten)]
    told: Told,
    /// Plot the rates of the flows over time; with --simulate beside the simulated ones
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Flows {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let (variants, simulate) = self.told.variants()?;
        flows(&variants, simulate, self.plot.as_deref(), global)
    }
}

/// Runs variants of a scenario of flows, and prints their results.
pub fn flows(variants: &[OnTestbed], simulate: bool, plot: Option<&Path>, global: Global) -> Result<(), Failure> {
    if let Some(file) = plot {
        files::can_write(file)?;
    }
    let name = variants.first().map_or(String::new(), |v| v.plan.scenario.name.clone());
    let run = |cell: &OnTestbed, progress: Progress<'_>| {
        measure_flows(&cell.plan, &cell.label, &cell.origin, simulate, progress)
    };
    let cells = variants::measure(variants, Application::Flows, global, run, |printed| table(printed, simulate))?;
    if let Some(file) = plot {
        files::write(file, &courses::svg(&name, &cells.iter().map(drawn).collect::<Vec<_>>()))?;
    }
    verdict(cells.iter().map(|c| (c.flow_control.as_str(), c.lost.total())))
}

/// A variant in the picture.
fn drawn(cell: &FlowsCell) -> Run<'_> {
    let simulated = cell.simulated.iter().map(|streams| ("simulated", streams));
    Run { name: cell.name(), panels: simulated.chain([("real sockets", &cell.streams)]).collect() }
}

fn table(printed: &Printed<FlowsCell>, simulate: bool) -> String {
    let mut head = vec!["variant", "flow", "from", "to", "Mb/s"];
    if simulate {
        head.push("simulated");
    }
    let mut flows = Table::new(4, head);
    let mut all = Table::new(
        2,
        vec![
            "variant",
            "stack",
            "together",
            "Jain",
            "lost virtual",
            "physical",
            "edges",
            "lossy vNICs",
            "denied",
            "pauses",
            "longest receive queue",
        ],
    );
    for cell in &printed.cells {
        let name = cell.name();
        for (i, s) in cell.streams.each.iter().enumerate() {
            let [from, to] =
                [(s.src_host, s.src_vm), (s.dst_host, s.dst_vm)].map(|(host, vm)| format!("s{host}-t{vm}"));
            let label = if i == 0 { name } else { "" }.to_owned();
            let mut row = vec![label, s.transport.clone(), from, to, format!("{:.2}", s.mbps)];
            if simulate {
                let simulated = cell.simulated.as_ref().and_then(|all| all.each.get(i));
                row.push(simulated.map_or("-".into(), |s| format!("{:.2}", s.mbps)));
            }
            flows.row(row);
        }
        all.row(vec![
            name.to_owned(),
            cell.stack.clone(),
            format!("{:.2} Mb/s", cell.streams.total_mbps),
            format!("{:.3}", cell.streams.jain),
            count(cell.lost.virtual_network),
            count(cell.lost.physical_network),
            count(cell.lost.edges),
            count(cell.lost.lossy_vnics),
            count(cell.lost.denied),
            count(cell.fabric.stops),
            cell.received_max_frames.map_or("-".into(), |frames| format!("{} frames", count(frames))),
        ]);
    }
    let limited = printed.cells.iter().filter_map(|cell| {
        let LimiterFigures { notifications, made, .. } = cell.limiters?;
        Some(format!(
            "  {}: {} congestion notifications, {} rate limiters, {} pauses after the warm-up\n",
            cell.name(),
            count(notifications),
            count(made),
            count(cell.stops_measured)
        ))
    });
    let limited: String = limited.collect();
    format!(
        "\n  {}: {} servers, {} tenants, links of {:.0} Mb/s; payload between real sockets, after the warm-up\n\n{}\n{}\n{limited}{}",
        printed.scenario,
        printed.servers,
        printed.tenants,
        printed.link_bps as f64 / 1e6,
        flows.text(),
        all.text(),
        variants::lateness(printed.cells.iter().map(|c| (c.name(), c.stack.as_str(), &c.fabric)))
    )
}
