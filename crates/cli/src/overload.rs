//! `bench overload` and `bench loss-sweep`: losses between two senders and a sink.

use super::failure::Failure;
use super::files::{self, Scratch};
use super::rerun::again;
use super::table::{Table, count};
use super::values::{rate, seconds};
use super::{Global, interrupt, output};
use sluicenet_bench::overload::load::Load;
use sluicenet_bench::overload::sweep::{self, Curve};
use sluicenet_bench::overload::{self, Figures, Setup, Switch};
use sluicenet_report::losses;
use sluicenet_testbed::guest::Nic;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Between whom, and how much.
#[derive(Clone, Debug, clap::Args)]
struct Between {
    /// QEMU guests with software emulation instead of namespaces
    #[arg(long)]
    guests: bool,
    /// The guests' network device
    #[arg(long, value_enum, default_value = "virtio", requires = "guests")]
    nic: Nic,
    /// No agent in the sink's guest: its kernel drops datagrams that its slow program does not read in time
    #[arg(long, requires = "guests")]
    no_agent: bool,
    /// Bytes of a datagram
    #[arg(long, value_name = "BYTES", default_value_t = 1472, value_parser = clap::value_parser!(u16).range(8..=65_507))]
    payload: u16,
}

#[derive(Debug, clap::Args)]
pub(super) struct OverloadArgs {
    /// The switch
    #[arg(long, value_enum, default_value = "ours")]
    switch: Switch,
    #[command(flatten)]
    between: Between,
    /// Duration in seconds
    #[arg(long, value_name = "S", default_value_t = 3.0, value_parser = seconds)]
    seconds: f64,
}

#[derive(Debug, clap::Args)]
pub(super) struct SweepArgs {
    /// The switches, one after the other
    #[arg(long = "switch", value_enum, value_delimiter = ',', default_value = "ours,bridge,ovs")]
    switches: Vec<Switch>,
    #[command(flatten)]
    between: Between,
    /// The step from point to point, for each of the two senders
    #[arg(long, value_name = "MBPS", default_value_t = 5.0, value_parser = rate)]
    step: f64,
    /// The highest rate
    #[arg(long, value_name = "MBPS", default_value_t = 100.0, value_parser = rate)]
    to: f64,
    /// Duration of each point in seconds
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// The HTML file for the plots
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Between {
    fn setup(&self, switch: Switch, scratch: &Scratch) -> Setup {
        let guests = self.guests.then_some(self.nic);
        Setup { switch, guests, agent: !self.no_agent, scratch: scratch.path().to_owned() }
    }

    fn load(&self, seconds: f64) -> Load {
        Load { payload: self.payload.into(), time: Duration::from_secs_f64(seconds), rate: None }
    }

    fn title(&self) -> &'static str {
        match (self.guests, self.nic) {
            (false, _) => "Namespaces",
            (true, Nic::Virtio) => "Guests with virtio",
            (true, Nic::E1000) => "Guests with e1000",
        }
    }

    /// A loss over our switch is a failure, except a loss inside a guest without an agent.
    fn verdict<'a>(&self, all: impl Iterator<Item = &'a Figures>) -> Result<(), Failure> {
        let own = |f: &Figures| if self.no_agent { f.lost_at.softnet + f.lost_at.socket } else { 0 };
        let ours = all.filter(|f| f.switch == Switch::Ours);
        let lost: u64 = ours.map(|f| f.lost.saturating_sub(own(f))).sum();
        if lost > 0 {
            return Err(Failure::Failed(format!("{} datagrams were lost", count(lost))));
        }
        if interrupt::raised() {
            return Err(Failure::Interrupted("the figures are of the part that was run".into()));
        }
        Ok(())
    }
}

/// An interrupt ends guests as well, which then fail.
fn failed(e: impl fmt::Display) -> Failure {
    if interrupt::raised() { Failure::Interrupted(e.to_string()) } else { Failure::Failed(e.to_string()) }
}

impl OverloadArgs {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let scratch = Scratch::new()?;
        let (setup, load) = (self.between.setup(self.switch, &scratch), self.between.load(self.seconds));
        let f = overload::run(&setup, &load, interrupt::flag()).map_err(failed)?;
        if global.json {
            output::json(&f);
        } else {
            let mut t = Table::new(2, ["", ""]);
            t.row(["sent", &count(f.sent)]);
            t.row(["received", &format!("{}, {:.0} thousand/s", count(f.received), f.received_kpps)]);
            t.row(["lost", &format!("{}, {:.1} %", count(f.lost), f.lost_percent)]);
            let at = &f.lost_at;
            t.row(["  senders' queues", &count(at.sender_qdisc)]);
            t.row(["  senders' devices", &count(at.sender_device)]);
            t.row(["  switch", &count(at.switch)]);
            t.row(["  sink's device", &count(at.sink_device)]);
            t.row(["  softnet", &count(at.softnet)]);
            t.row(["  sink's socket", &count(at.socket)]);
            output::print(&t.text());
        }
        self.between.verdict([f].iter())
    }
}

impl SweepArgs {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        let count_of_rates = (self.to / self.step + 1e-9).floor() as usize;
        if !(1..=1000).contains(&count_of_rates) {
            let why = format!("--step {} --to {}: 1 to 1000 steps are expected", self.step, self.to);
            return Err(Failure::Input(why));
        }
        let rates: Vec<f64> = (1..=count_of_rates).map(|i| i as f64 * self.step).collect();
        let load = self.between.load(self.seconds);
        let mut curves: Vec<Curve> = Vec::new();
        for &switch in &self.switches {
            let scratch = Scratch::new()?;
            let tell = |f: &Figures| {
                if !global.quiet {
                    let target = f.target_mbps.unwrap_or_default();
                    output::note(&format!(
                        "{switch:?}: {target:.0} Mb/s: received {:.0}, lost {:.2} %",
                        f.received_mbps, f.lost_percent
                    ));
                }
            };
            let setup = self.between.setup(switch, &scratch);
            curves.push(sweep::run(&setup, &load, &rates, interrupt::flag(), tell).map_err(failed)?);
            if interrupt::raised() {
                break;
            }
        }
        if let Some(path) = &self.output {
            files::write(
                path,
                &losses::html(self.between.title(), &curves.iter().map(shown).collect::<Vec<_>>(), &again()),
            )?;
        }
        if global.json {
            output::json(&curves);
        } else {
            output::print(&table(&curves));
        }
        self.between.verdict(curves.iter().flat_map(|curve| &curve.points))
    }
}

/// A curve for the page.
fn shown(curve: &Curve) -> losses::Curve {
    losses::Curve {
        switch: match curve.switch {
            Switch::Ours => losses::Switch::Ours,
            Switch::Bridge => losses::Switch::Bridge,
            Switch::Ovs => losses::Switch::Ovs,
        },
        peak_mbps: curve.peak_mbps,
        last_mbps: curve.last_mbps,
        first_loss_at_mbps: curve.first_loss_at_mbps,
        lost_percent_max: curve.lost_percent_max,
        points: curve.points.iter().map(point).collect(),
    }
}

fn point(figures: &Figures) -> losses::Point {
    losses::Point {
        target_mbps: figures.target_mbps.unwrap_or(figures.sent_mbps),
        received_mbps: figures.received_mbps,
        lost_percent: figures.lost_percent,
    }
}

fn table(curves: &[Curve]) -> String {
    let head =
        ["switch", "most received, Mb/s", "when sent", "received in the end", "loses from, Mb/s", "lost at most"];
    let mut t = Table::new(1, head);
    for curve in curves {
        let first = curve.first_loss_at_mbps.map_or("never".into(), |at| format!("{at:.0}"));
        t.row([
            format!("{:?}", curve.switch).to_lowercase(),
            format!("{:.0}", curve.peak_mbps),
            format!("{:.0}", curve.peak_at_mbps),
            format!("{:.0}", curve.last_mbps),
            first,
            format!("{:.2} %", curve.lost_percent_max),
        ]);
    }
    t.text()
}
