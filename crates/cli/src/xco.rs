//! `bench xco`: how long XCo's controller takes for a decision, and its gate for a frame.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, output};
use sluicenet_bench::gate::{self, Gate};
use sluicenet_bench::xco::{self, Xco};
use sluicenet_proto::time::Duration;

#[derive(Debug, clap::Args)]
pub(super) struct XcoArgs {
    /// Machines: 20 in a rack, 10 racks in a row
    #[arg(long, value_name = "N", default_value_t = 4800, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    hosts: u32,
    /// 1: half of the machines send to the other half; more: each machine sends to so many others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    flows: u32,
    /// Decisions that are measured
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    decisions: u64,
    /// The timeslice in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=10))]
    slice: u64,
    /// Measure instead what the gate costs a frame at an uplink, with --flows pairs of VMs and --decisions frames
    #[arg(long, conflicts_with_all = ["hosts", "slice", "seed"])]
    gate: bool,
    /// The seed
    #[arg(long, default_value_t = 1, value_parser = crate::seed, allow_negative_numbers = true)]
    seed: u64,
}

impl XcoArgs {
    pub(super) fn main(self, global: Global) -> Result<(), Failure> {
        let XcoArgs { hosts, flows, decisions, slice, seed, gate } = self;
        if gate {
            return measure_gate(&Gate { frames: decisions, pairs: flows }, global);
        }
        let what = Xco { hosts, flows, decisions, slice: Duration::from_ms(slice), seed };
        let f = xco::run(&what).map_err(|e| Failure::Input(format!("--hosts {hosts}: {e:?}")))?;
        if global.json {
            output::json(&f);
            return Ok(());
        }
        let mut t = Table::new(2, ["", ""]);
        let us = |us: f64| format!("{us:.2} us");
        t.row(["hosts", &count(f.hosts.into())]);
        t.row(["flows", &count(f.flows as u64)]);
        t.row(["decisions", &count(f.decisions)]);
        t.row(["directives", &count(f.directives)]);
        t.row(["flows visited", &format!("{:.2} a decision", f.visited)]);
        t.row(["a decision, median", &us(f.decision_p50_us)]);
        t.row(["a decision, 99 %", &us(f.decision_p99_us)]);
        t.row(["a decision, 99.9 %", &us(f.decision_p999_us)]);
        t.row(["a decision, longest", &us(f.decision_max_us)]);
        t.row(["utilisation", &format!("{:.1} % of the links from rows to the core", f.utilisation * 100.0)]);
        output::print(&t.text());
        Ok(())
    }
}

fn measure_gate(what: &Gate, global: Global) -> Result<(), Failure> {
    let f = gate::run(what);
    if global.json {
        output::json(&f);
        return Ok(());
    }
    let mut t = Table::new(2, ["", ""]);
    let ns = |ns: f64| format!("{ns:.0} ns");
    t.row(["frames", &count(f.frames)]);
    t.row(["pairs of VMs", &count(f.pairs.into())]);
    t.row(["a frame without a gate", &ns(f.plain_ns)]);
    t.row(["with a gate and timeslices", &ns(f.gate_ns)]);
    t.row(["with a gate without a controller", &ns(f.free_ns)]);
    output::print(&t.text());
    Ok(())
}
