//! `testbed pa`: the queries of every variant of a scenario, between the tenants of a testbed.

use super::variants::{self, OnTestbed, Printed, Told, verdict};
use crate::Global;
use crate::failure::Failure;
use crate::table::{Table, count};
use sluicenet_testbed::Application;
use sluicenet_testbed::live::Progress;
use sluicenet_testbed::measure::{self, Cell};

#[derive(Debug, clap::Args)]
pub(super) struct Pa {
    #[command(flatten)]
    told: Told,
}

impl Pa {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let (variants, simulate) = self.told.variants()?;
        queries(&variants, simulate, global)
    }
}

/// Runs variants of a scenario of queries, and prints their results.
pub fn queries(variants: &[OnTestbed], simulate: bool, global: Global) -> Result<(), Failure> {
    let run = |cell: &OnTestbed, progress: Progress<'_>| {
        measure::measure(&cell.plan, &cell.label, &cell.origin, simulate, progress)
    };
    let cells = variants::measure(variants, Application::Queries, global, run, |printed| table(printed, simulate))?;
    verdict(cells.iter().map(|c| (c.flow_control.as_str(), c.lost.total())))
}

fn table(printed: &Printed<Cell>, simulate: bool) -> String {
    let mut head = vec![
        "variant",
        "stack",
        "mean",
        "95 %",
        "median",
        "without timeouts",
        "99 %",
        "timeouts",
        "lost virtual",
        "physical",
        "edges",
        "against LL",
    ];
    if simulate {
        head.extend(["simulated mean", "lost virtual", "physical"]);
    }
    let mut t = Table::new(2, head);
    let ms = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2} ms"));
    for cell in &printed.cells {
        let f = &cell.figures;
        // The cell that differs in flow control alone.
        let strip = |c: &Cell| c.variant.replace(&c.flow_control, "");
        let base = printed.cells.iter().find(|c| c.flow_control == "LL" && strip(c) == strip(cell));
        let gain = match (base.and_then(|b| b.figures.mean_ms), f.mean_ms) {
            (Some(base), Some(mean)) => format!("{:.2}x", base / mean),
            _ => "-".into(),
        };
        let mut row = vec![
            cell.name().to_owned(),
            cell.stack.clone(),
            ms(f.mean_ms),
            f.mean_ci95_ms.map_or("-".into(), |v| format!("± {v:.2}")),
            ms(f.median_ms),
            ms(f.timeout_free_median_ms),
            ms(f.p99_ms),
            f.timeouts.map_or_else(|| format!("{} (whole run)", count(f.run_timeouts)), count),
            count(cell.lost.virtual_network),
            count(cell.lost.physical_network),
            count(cell.lost.edges),
            gain,
        ];
        if let Some(s) = &cell.simulated {
            row.extend([ms(s.mean_ms), count(s.lost_virtual), count(s.lost_physical)]);
        }
        t.row(row);
    }
    format!(
        "\n  {}: {} servers, {} {}, links of {:.0} Mb/s; queries between {}\n\n{}\n{}",
        printed.scenario,
        printed.servers,
        printed.tenants,
        if printed.guests { "guests" } else { "tenants" },
        printed.link_bps as f64 / 1e6,
        if printed.guests { "the sockets of their own kernels' TCP" } else { "real sockets" },
        t.text(),
        variants::lateness(printed.cells.iter().map(|c| (c.name(), c.stack.as_str(), &c.fabric)))
    )
}
