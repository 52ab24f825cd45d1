//! `testbed pa`: the queries of every variant of a scenario, between the tenants of a testbed.

use super::{failed, if_loud};
use crate::cli::failure::Failure;
use crate::cli::table::{Table, count};
use crate::cli::{Global, Overrides, interrupt, output};
use crate::scenario::Scenario;
use crate::testbed::live::Progress;
use crate::testbed::measure::{Cell, measure};
use crate::testbed::{Origin, Plan};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Pa {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Simulate every variant, too, and print that beside
    #[arg(long)]
    simulate: bool,
}

/// What `pa` prints.
#[derive(Serialize)]
struct Printed {
    scenario: String,
    servers: usize,
    tenants: usize,
    /// Whether tenants are guests.
    guests: bool,
    link_bps: u64,
    cells: Vec<Cell>,
}

impl Pa {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        let variants = loaded.expand_sweep()?;
        let mut printed: Option<Printed> = None;
        for (i, variant) in variants.iter().enumerate() {
            let plan = Plan::new(&variant.scenario)?;
            if !global.quiet {
                let label = if variant.label.is_empty() { &variant.scenario.name } else { &variant.label };
                output::note(&format!("{} of {}: {label}", i + 1, variants.len()));
            }
            let origin = Origin::new(&self.file, &loaded, i);
            let say = |what: &str| if_loud(global, what);
            let progress = Progress { say: &say, stop: interrupt::flag() };
            let cell = match measure(variant, &origin, self.simulate, progress) {
                Err(e) if e.kind() == ErrorKind::Interrupted => break,
                cell => cell.map_err(failed)?,
            };
            let printed = printed.get_or_insert_with(|| Printed {
                scenario: variant.scenario.name.clone(),
                servers: plan.servers.len(),
                tenants: plan.tenants().count(),
                guests: plan.has_guests(),
                link_bps: plan.servers.first().map_or(0, |s| s.rate.as_bps()),
                cells: Vec::new(),
            });
            printed.cells.push(cell);
            if interrupt::raised() {
                break;
            }
        }
        let Some(printed) = printed else {
            return Err(Failure::Interrupted("nothing was measured".into()));
        };
        if global.json {
            output::json(&printed);
        } else {
            output::print(&table(&printed, self.simulate));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        let lossless = printed.cells.iter().filter(|c| c.flow_control == "ZZ");
        let lost: u64 = lossless.map(|c| c.lost.total()).sum();
        if lost > 0 {
            return Err(Failure::Failed(format!("{lost} frames were lost where none may be (ZZ)")));
        }
        Ok(())
    }
}

fn table(printed: &Printed, simulate: bool) -> String {
    let mut head = vec![
        "variant",
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
    let mut t = Table::new(1, head);
    let ms = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.2} ms"));
    for cell in &printed.cells {
        let f = &cell.figures;
        // The one that differs in flow control alone.
        let strip = |c: &Cell| c.variant.replace(&c.flow_control, "");
        let base = printed.cells.iter().find(|c| c.flow_control == "LL" && strip(c) == strip(cell));
        let gain = match (base.and_then(|b| b.figures.mean_ms), f.mean_ms) {
            (Some(base), Some(mean)) => format!("{:.2}x", base / mean),
            _ => "-".into(),
        };
        let mut row = vec![
            if cell.variant.is_empty() { cell.flow_control.clone() } else { cell.variant.clone() },
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
    let late = printed.cells.iter().map(|c| c.fabric.late_share).fold(0.0, f64::max);
    format!(
        "\n  {}: {} servers, {} {}, links of {:.0} Mb/s; queries between the sockets of {}\n\n{}\n  \
         at most {:.2} % of the fabric's events were later than the time of a frame\n",
        printed.scenario,
        printed.servers,
        printed.tenants,
        if printed.guests { "guests" } else { "tenants" },
        printed.link_bps as f64 / 1e6,
        if printed.guests { "their own kernels' TCP" } else { "the kernel's own TCP" },
        t.text(),
        late * 100.0
    )
}
