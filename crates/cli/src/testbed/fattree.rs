//! `testbed fattree`: the benchmark suite of Al-Fares 2012 on real switches under a real controller.

use super::{failed, if_loud};
use crate::failure::Failure;
use crate::table::Table;
use crate::{Global, files, interrupt, output};
use serde_json::{Value, json};
use sluicenet_proto::routing::fat_tree::FatTree;
use sluicenet_proto::units::Rate;
use sluicenet_records::stats::mean_over_seeds;
use sluicenet_report::fattree::{Run, svg};
use sluicenet_scenario::units::{Bytes, Quantity};
use sluicenet_testbed::fattree::{
    Became, Fault, Load, Measured, Network, PLACING, Pattern, ROUTINGS, Seen, Settings, Shape, Transport, control_loop,
    find_python, measure, missing,
};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

/// Larger trees are more processes than one machine runs: 45 switches and 54 hosts.
const K_MAX: u32 = 6;
/// With less of the machine's time to spare, its processors may be the bottleneck, where one frame waits for another as
/// in a switch's queue.
const IDLE_MIN: f64 = 0.1;
/// Below it a full frame takes longer than counters take to be read, above it queues of 20 frames are no time at all.
const RATE_BPS: std::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Fattree {
    /// Ports of a switch: 4 or 6
    #[arg(long, default_value_t = 4)]
    k: u32,
    /// The routing: ecmp, two-level, flow-classifier, flow-scheduler, hedera-gff, hedera-sa, or hierarchical, which uses the
    /// hierarchical tree instead of the fat-tree; several run one after the other
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "ecmp,hedera-gff", value_parser = routing)]
    routing: Vec<String>,
    /// The traffic pattern, as a scenario's `pattern`: random, non-bijective, stride:I, staggered:EDGE/POD, inter-pod-incoming,
    /// same-id-outgoing, hotspot:N, or shuffle; several
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "stride:4")]
    pattern: Vec<Pattern>,
    /// TCP at full speed, or UDP at the rate of the hosts' links
    #[arg(long, value_enum, default_value_t = Over::Tcp)]
    transport: Over,
    /// Rate of every link; in a hierarchical tree of the hosts' links, and the uplinks of a pod carry 1/3.6 of the rate of its hosts
    #[arg(long, default_value = "10Mb/s", value_parser = rate)]
    rate: u64,
    /// The longest duration of a run
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    seconds: f64,
    /// The warm-up, which means leave out
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    warm_up: f64,
    /// Bytes of each flow, as 1MB; default endless
    #[arg(long, value_name = "SIZE", value_parser = size)]
    bytes: Option<u64>,
    /// Runs of each pattern, each with its own seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// The seed of the first run, for its pattern, ports and hashes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = crate::seed, allow_negative_numbers = true)]
    seed: u64,
    /// How often the controller reads counters
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(20..=10_000))]
    poll: u64,
    /// An event at a time in seconds after the start of the traffic, as 5:kill:c1-1; several
    #[arg(long = "at", value_name = "S:WHAT")]
    faults: Vec<String>,
    /// Instead of the suite, measure this number of times the delay from a flow's first packet to its first packets on its new path
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), conflicts_with_all = ["faults", "plot", "bytes"])]
    control_loop: Option<u32>,
    /// Plot the first run of each routing over time
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// A Python with the package sluicenet and its extra `fattree`
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
}

const HELP: &str = "\
Root is needed, Open vSwitch, and a Python with sluicenet[fattree]. Each switch is an Open vSwitch of its own with its datapath in user space, in
a namespace; a running one of the system is not touched. `sluicenet clean` removes what a killed run left.

What may happen (--at): kill:SWITCH (its process, and its links lose carrier), start:SWITCH, flush:SWITCH (it loses its entries),
down:SWITCH:PORT, up:SWITCH:PORT, stop-controller, start-controller. Switches are e0-1, a0-1 and c1-1, of a hierarchical tree p0 and top; ports
count from 0.

Examples:
  sluicenet testbed fattree --routing ecmp,hedera-gff --pattern stride:4 --plot collisions.svg
  sluicenet testbed fattree --routing hedera-gff --seconds 20 --at 8:kill:c1-1 --at 14:start:c1-1
  sluicenet testbed fattree --routing hierarchical,two-level,flow-classifier,flow-scheduler --transport udp --runs 5 --pattern random,stride:1
  sluicenet testbed fattree --routing ecmp,hedera-sa --pattern shuffle --bytes 100KB --seconds 300";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Over {
    Tcp,
    Udp,
}

fn routing(text: &str) -> Result<String, String> {
    let names: Vec<&str> = ROUTINGS.iter().map(|(name, ..)| *name).collect();
    if names.contains(&text) { Ok(text.to_owned()) } else { Err(format!("one of {}", names.join(", "))) }
}

/// A quantity as scenarios write it, in its base units.
fn quantity<Q: Quantity>(text: &str) -> Result<u64, String> {
    Q::parse(text).map(Q::base).map_err(|e| e.to_string())
}

fn rate(text: &str) -> Result<u64, String> {
    let bps = quantity::<Rate>(text)?;
    if RATE_BPS.contains(&bps) { Ok(bps) } else { Err("from 1 Mb/s to 1 Gb/s".into()) }
}

fn size(text: &str) -> Result<u64, String> {
    match quantity::<Bytes>(text)? {
        0 => Err("a flow has a byte at least".into()),
        bytes => Ok(bytes),
    }
}

impl Fattree {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        if self.k > K_MAX {
            return Err(Failure::Input(format!("--k is at most {K_MAX} on one machine")));
        }
        let tree = FatTree::new(self.k).map_err(Failure::input)?;
        if tree.hosts() < 3 {
            return Err(Failure::Input(format!("--k {}: two hosts have one path; expected: 4 or 6", self.k)));
        }
        let loads = self.loads(tree)?;
        if let Some(name) = self.routing.iter().find(|name| !PLACING.contains(&name.as_str()))
            && self.control_loop.is_some()
        {
            let those = PLACING.join(", ");
            return Err(Failure::Input(format!("--control-loop: nobody places flows under {name}; expected: {those}")));
        }
        if let Some(file) = &self.plot {
            files::can_write(file)?;
        }
        let mut lacks = missing();
        let found = find_python(self.python.as_deref());
        if let (Err(why), Some(_)) = (&found, &self.python) {
            return Err(Failure::Input(format!("--python: {why}")));
        }
        let python = found.map_err(|e| lacks.push(e)).ok();
        let Some(python) = python.filter(|_| lacks.is_empty()) else {
            return Err(Failure::Failed(format!("this machine lacks\n  {}", lacks.join("\n  "))));
        };
        let stop = interrupt::flag();
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::Interrupted => Failure::Interrupted("the testbed is removed".into()),
            ErrorKind::InvalidInput => Failure::Input(e.to_string()),
            _ => failed(e),
        };
        let mut built: Option<(Shape, Network)> = None;
        let mut measured: Vec<Measured> = Vec::new();
        let mut seen: Vec<(String, Vec<Seen>, Vec<Value>)> = Vec::new();
        for routing in &self.routing {
            let shape = shape(routing);
            let (_, network) = match built.take() {
                Some(same) if same.0 == shape => built.insert(same),
                other => {
                    // One goes before the next one comes: they have the same names.
                    drop(other);
                    let poll = Duration::from_millis(self.poll);
                    let settings = Settings { tree, shape, rate_bps: self.rate, poll, python: python.clone() };
                    let switches = shape.nodes(tree, self.rate).len();
                    if_loud(global, &format!("building {switches} switches and {} hosts", tree.hosts()));
                    built.insert((shape, Network::build(settings, stop).map_err(failed)?))
                }
            };
            network.start_controller(routing, self.seed, stop).map_err(failed)?;
            if let Some(count) = self.control_loop {
                if_loud(global, &format!("{routing}: {count} flows, one after the other"));
                let (moved, said) = control_loop(network, count, self.seed, stop).map_err(failed)?;
                seen.push((routing.clone(), moved, said));
                continue;
            }
            for load in &loads {
                if_loud(global, &format!("{routing}, {}, seed {}", load.pattern, load.seed));
                measured.push(measure(network, routing, load, stop).map_err(failed)?);
                // Faults are undone before the next run.
                if !load.faults.is_empty() {
                    network.restore().map_err(failed)?;
                    network.start_controller(routing, self.seed, stop).map_err(failed)?;
                }
            }
        }
        drop(built);
        if let Some(file) = &self.plot {
            files::write(file, &self.picture(&measured))?;
        }
        if self.control_loop.is_some() {
            return self.print_loop(&seen, global);
        }
        if global.json {
            output::json(&measured);
        } else {
            output::print(&self.text(tree, &measured));
        }
        let least = measured.iter().filter_map(|run| run.idle).fold(1.0, f64::min);
        if least < IDLE_MIN {
            let short = measured.iter().filter(|run| run.idle.is_some_and(|idle| idle < IDLE_MIN)).count();
            output::note(&format!(
                "warning: in {short} of {} runs this machine's processors had less than {:.0} % to spare (least: {:.0} %): what is missing there \
                 may be theirs, not the network's; a lower --rate, or nothing else on the machine, tells",
                measured.len(),
                100.0 * IDLE_MIN,
                100.0 * least
            ));
        }
        Ok(())
    }

    /// The runs under each routing.
    fn loads(&self, tree: FatTree) -> Result<Vec<Load>, Failure> {
        let seconds = |name: &str, s: f64| match s {
            s if (0.0..=86_400.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
            s => Err(Failure::Input(format!("--{name} {s}: from 0 to 86400"))),
        };
        let (seconds, warm_up) = (seconds("seconds", self.seconds)?, seconds("warm-up", self.warm_up)?);
        if seconds <= warm_up {
            return Err(Failure::Input("--seconds is to be longer than --warm-up".into()));
        }
        let transport = match self.transport {
            Over::Tcp => Transport::Tcp,
            Over::Udp => Transport::Udp,
        };
        if matches!(transport, Transport::Udp) && self.bytes.is_some() {
            return Err(Failure::Input("--bytes is for TCP: nobody says when the last datagram has arrived".into()));
        }
        let mut faults = Vec::new();
        for shape in self.shapes() {
            let nodes = shape.nodes(tree, self.rate);
            let fault = |text: &String| Fault::parse(text, &nodes).map_err(|e| Failure::Input(format!("--at {e}")));
            // They have to mean the same in each.
            faults = self.faults.iter().map(fault).collect::<Result<Vec<_>, _>>()?;
        }
        faults.sort_by_key(|fault| fault.after);
        if let Some(late) = faults.last().filter(|fault| fault.after >= seconds) {
            let (at, end) = (late.after.as_secs_f64(), seconds.as_secs_f64());
            return Err(Failure::Input(format!(
                "--at {at}: the run is over by then; expected: less than --seconds, {end}"
            )));
        }
        let mut loads = Vec::new();
        for pattern in &self.pattern {
            if pattern.is_shuffle() && self.bytes.is_none() {
                return Err(Failure::Input("a shuffle takes --bytes: its flows follow one another".into()));
            }
            for run in 0..u64::from(self.runs) {
                let seed = self.seed.wrapping_add(run);
                pattern.jobs(tree, seed).map_err(Failure::Input)?;
                let (pattern, bytes, faults) = (pattern.clone(), self.bytes, faults.clone());
                // Transfers are counted from their beginning to their end.
                let warm_up = if bytes.is_some() { Duration::ZERO } else { warm_up };
                loads.push(Load { pattern, transport, bytes, seconds, warm_up, faults, seed });
            }
        }
        Ok(loads)
    }

    /// The networks to build, each once.
    fn shapes(&self) -> Vec<Shape> {
        let mut shapes: Vec<Shape> = Vec::new();
        for shape in self.routing.iter().map(|name| shape(name)) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }

    fn picture(&self, measured: &[Measured]) -> String {
        let mut firsts: Vec<Run<'_>> = Vec::new();
        for run in measured {
            let pattern = if self.pattern.len() > 1 { format!(", {}", run.pattern) } else { String::new() };
            let name = format!("{}{pattern}", title(&run.routing));
            if firsts.iter().all(|other| other.name != name) {
                firsts.push(Run {
                    name,
                    total_mbps: run.total_mbps,
                    ideal_mbps: run.ideal_mbps,
                    percent: run.percent,
                    seconds: run.seconds,
                    at_s: &run.course.at_s,
                    course_mbps: &run.course.total_mbps,
                    flows: run.flows.iter().map(|flow| flow.course_mbps.as_slice()).collect(),
                    faults: &run.faults,
                });
            }
        }
        let what = if self.pattern.len() > 1 { String::new() } else { format!(", {}", self.pattern[0]) };
        svg(&format!("k = {}, Open vSwitch, {} Mb/s links{what}", self.k, self.rate as f64 / 1e6), &firsts)
    }

    fn text(&self, tree: FatTree, measured: &[Measured]) -> String {
        let what = if self.bytes.is_some() { "until all had arrived" } else { "after the warm-up" };
        let counts: Vec<String> =
            self.shapes().into_iter().map(|shape| shape.nodes(tree, self.rate).len().to_string()).collect();
        let mut out = format!(
            "\n  {} switches, {} hosts, links of {} Mb/s; payload that arrived, {what}; ideal is what the links of all hosts carry\n\n",
            counts.join(" and "),
            tree.hosts(),
            self.rate as f64 / 1e6
        );
        if let [run] = measured {
            let mut flows = Table::new(2, ["from", "to", "Mb/s", if self.bytes.is_some() { "seconds" } else { "" }]);
            let name = |host| tree.host_address(host).expect("a host of the tree").to_string();
            for flow in &run.flows {
                let seconds = flow.seconds.map_or(String::new(), |s| format!("{s:.3}"));
                flows.row([name(flow.src), name(flow.dst), format!("{:.2}", flow.mbps), seconds]);
            }
            out += &(flows.text() + "\n");
        }
        let mut head = vec!["pattern".to_owned()];
        head.extend(self.routing.iter().map(|name| title(name).to_owned()));
        let mut table = Table::new(1, head.clone());
        let mut seconds = Table::new(1, head);
        for pattern in &self.pattern {
            let of = |name: &str| {
                measured.iter().filter(move |m| m.routing == *name && m.pattern == pattern.to_string()).collect()
            };
            let cells: Vec<Vec<&Measured>> = self.routing.iter().map(|name| of(name)).collect();
            let cell = |runs: &Vec<&Measured>| {
                let percent = interval(runs.iter().map(|run| run.percent), 1);
                match runs[..] {
                    [run] => format!("{:.1} Mb/s, {percent} %", run.total_mbps),
                    _ => format!("{percent} %"),
                }
            };
            table.row([pattern.to_string()].into_iter().chain(cells.iter().map(cell)));
            let times = |runs: &Vec<&Measured>| {
                let mean = |run: &&Measured| {
                    let done: Vec<f64> = run.flows.iter().filter_map(|flow| flow.seconds).collect();
                    (done.len() == run.flows.len()).then(|| done.iter().sum::<f64>() / done.len() as f64)
                };
                let means: Vec<f64> = runs.iter().filter_map(mean).collect();
                let whole = interval(runs.iter().map(|run| run.seconds), 2);
                if means.len() < runs.len() {
                    "not all arrived".into()
                } else {
                    format!("{}, all {whole}", interval(means.into_iter(), 2))
                }
            };
            seconds.row([pattern.to_string()].into_iter().chain(cells.iter().map(times)));
        }
        out += &table.text();
        if self.bytes.is_some() {
            out += &format!("\n  seconds of a transfer, and of all\n\n{}", seconds.text());
        }
        if self.runs > 1 {
            out += &format!("\n  means of {} runs, ± half the 95 % confidence interval\n", self.runs);
        }
        out
    }

    fn print_loop(&self, seen: &[(String, Vec<Seen>, Vec<Value>)], global: Global) -> Result<(), Failure> {
        let rows: Vec<Value> = seen
            .iter()
            .map(|(routing, flows, said)| json!({ "routing": routing, "flows": flows, "controller": said }))
            .collect();
        if global.json {
            output::json(&rows);
            return Ok(());
        }
        let columns =
            ["milliseconds", "flows", "moved", "stayed", "not moved", "median", "longest", "computing, longest"];
        let mut t = Table::new(1, columns);
        for (routing, flows, said) in seen {
            let moved: Vec<f64> = flows.iter().filter_map(|flow| flow.moved_ms).collect();
            let of = |ms: Option<f64>| ms.map_or("-".into(), |ms| format!("{ms:.0}"));
            let stayed = flows.iter().filter(|flow| flow.became == Became::Stayed).count();
            let computing = said.iter().filter_map(|line| line["compute_ms"].as_f64()).fold(0.0, f64::max);
            t.row([
                title(routing).to_owned(),
                flows.len().to_string(),
                moved.len().to_string(),
                stayed.to_string(),
                (flows.len() - moved.len() - stayed).to_string(),
                of(median(&moved)),
                of(moved.iter().copied().reduce(f64::max)),
                format!("{computing:.2}"),
            ]);
        }
        output::print(&format!(
            "\n  from a flow's first packet to its first ones on the path it is given, by the ports' counters; stayed: given the path it had\n\n{}",
            t.text()
        ));
        Ok(())
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], upper) } else { upper })
}

fn title(routing: &str) -> &str {
    ROUTINGS.iter().find(|(name, ..)| *name == routing).map_or(routing, |(_, title, _)| title)
}

fn shape(routing: &str) -> Shape {
    ROUTINGS.iter().find(|(name, ..)| *name == routing).map_or(Shape::FatTree, |(.., shape)| *shape)
}

/// A mean, and half its confidence interval where there is one.
fn interval(values: impl Iterator<Item = f64>, places: usize) -> String {
    let values: Vec<f64> = values.collect();
    mean_over_seeds(&values).map_or("-".into(), |m| match m.half_width {
        Some(half) => format!("{:.places$} ± {half:.places$}", m.mean),
        None => format!("{:.places$}", m.mean),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sizes() {
        assert_eq!(
            [rate("10Mb/s"), rate("1.5 Mb/s"), rate("1Gb/s")],
            [Ok(10_000_000), Ok(1_500_000), Ok(1_000_000_000)]
        );
        assert_eq!([size("1MB"), size("100 KB"), size("17B")], [Ok(1_000_000), Ok(100_000), Ok(17)]);
        for text in ["", "Mb/s", "10", "0Mb/s", "2Gb/s", "10kb/s", "-1Mb/s", "nanMb/s", "1e9b/s"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert!(size("0 B").is_err() && size("2 TB").is_err() && size("1e30").is_err());
    }
}
