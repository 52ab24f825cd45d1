//! `bench hedera`: how long the scheduler of elephants computes.

use super::failure::Failure;
use super::table::{Table, count};
use super::{Global, output};
use sluicenet_bench::hedera::{self, Hedera};
use sluicenet_proto::hedera::tree::{Tree, TreeError};
use sluicenet_report::format::counted;

#[derive(Debug, clap::Args)]
pub(super) struct HederaArgs {
    /// Ports of a switch: an even number up to 90, for k^3/4 hosts
    #[arg(long)]
    k: u32,
    /// Elephant flows between random pairs of hosts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    flows: u32,
    /// Steps of annealing
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    iterations: u32,
    /// Threads of demand estimation
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Repetitions of each measurement
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// The seed
    #[arg(long, default_value_t = 1, value_parser = crate::seed, allow_negative_numbers = true)]
    seed: u64,
}

impl HederaArgs {
    pub(super) fn main(self, global: Global) -> Result<(), Failure> {
        let tree = Tree::fat_tree(self.k).map_err(|e| {
            let why = match e {
                TreeError::Odd => "switches have an even number of ports",
                TreeError::Zero | TreeError::TooLarge => "more hosts than can be scheduled: 90 is the most",
            };
            Failure::Input(format!("--k {}: {why}", self.k))
        })?;
        let f = hedera::run(&Hedera {
            tree,
            k: self.k,
            flows: self.flows,
            iterations: self.iterations,
            threads: self.threads.into(),
            turns: self.turns,
            seed: self.seed,
        });
        if global.json {
            output::json(&f);
            return Ok(());
        }
        let mut t = Table::new(1, ["", "median", "least", ""]);
        let ms = |ms: f64| format!("{ms:.3} ms");
        let us = |us: f64| format!("{us:.3} us");
        let threads = format!(
            "{}, {}",
            counted(f.demand_rounds.into(), "round", "rounds"),
            counted(f.threads as u64, "thread", "threads")
        );
        t.row(["demands", &ms(f.demand_ms), &ms(f.demand_ms_min), &threads]);
        t.row(["demands", &ms(f.demand_1_ms), &ms(f.demand_1_ms_min), "one thread"]);
        let energy =
            format!("{:.1} links exceeded, {:.1} after {} steps", f.energy_before, f.energy, f.iterations_done);
        t.row(["annealing", &ms(f.annealing_ms), &ms(f.annealing_ms_min), &energy]);
        let placed = format!("a request; {} of {} placed", count(f.placed.into()), count(f.flows.into()));
        t.row(["first fit", &us(f.placement_us), &us(f.placement_us_min), &placed]);
        let placed =
            format!("a request; {} of {} placed", count(f.flow_scheduler_placed.into()), count(f.flows.into()));
        t.row(["flow scheduler", &us(f.flow_scheduler_us), &us(f.flow_scheduler_us_min), &placed]);
        let bytes = |bytes: usize| format!("{} B", count(bytes as u64));
        let parts = format!(
            "of Hedera: demands {}, annealing {}, first fit {}",
            bytes(f.demand_bytes),
            bytes(f.annealing_bytes),
            bytes(f.placement_bytes)
        );
        t.row(["state", &bytes(f.state_bytes), "", &parts]);
        t.row(["", &bytes(f.flow_scheduler_bytes), "", "links of the flow scheduler"]);
        output::print(&t.text());
        Ok(())
    }
}
