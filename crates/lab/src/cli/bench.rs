//! `bench`: how fast the simulator itself is.

use super::failure::Failure;
use super::files::Scratch;
use super::table::{Table, count, short};
use super::{Global, interrupt, output};
use crate::bench::{self, FatTree};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Long TCP flows of a permutation on a fat tree
    Ft(Ft),
}

#[derive(Debug, clap::Args)]
struct Ft {
    /// Ports of a switch: k^3/4 hosts
    #[arg(long)]
    k: u32,
    /// Who sends to whom: a file of lines `source destination`
    #[arg(long, value_name = "FILE")]
    perm: PathBuf,
    /// Simulated milliseconds
    #[arg(long)]
    ms: f64,
    /// Flow control on every port instead of drop-tail
    #[arg(long)]
    pfc: bool,
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Congestion control
    #[arg(long, default_value = "newreno", value_parser = ["newreno", "cubic", "vegas"])]
    tcp: String,
    /// The seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the records here; they are written in any case
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Bench {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let What::Ft(ft) = self.what;
        if !(ft.ms > 0.0 && ft.ms <= 1e6) {
            return Err(Failure::Input(format!("--ms {}: from more than 0 to 1000000", ft.ms)));
        }
        let scratch = if ft.out.is_none() { Some(Scratch::new()?) } else { None };
        let out = ft.out.or_else(|| scratch.as_ref().map(|s| s.path().to_owned()));
        let permutation = ft.perm;
        let tree = FatTree { k: ft.k, permutation, ms: ft.ms, pfc: ft.pfc, congestion: ft.tcp, seed: ft.seed };
        let f = bench::run(&tree, ft.threads.into(), out, interrupt::flag())?;
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(2, ["", ""]);
            t.row(["hosts", &count(f.hosts.into())]);
            t.row(["packet-hops", &count(f.packet_hops)]);
            t.row(["CPU", &format!("{:.2} s in {:.2} s on {} threads", f.cpu_s, f.wall_s, f.threads)]);
            t.row(["rate", &format!("{}packet-hops per CPU second", short(f.packet_hops_per_cpu_s))]);
            t.row(["memory", &format!("{}B at most", short(f.peak_rss_bytes as f64))]);
            t.row(["goodput", &format!("{:.2} Gb/s", f.goodput_gbps)]);
            t.row(["drops", &count(f.drops)]);
            t.row(["timeouts", &count(f.timeouts)]);
            t.row(["PFC pauses", &count(f.pauses)]);
            output::print(&t.text());
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}
