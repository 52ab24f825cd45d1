//! The world of a run and its work in sentences, for a reader who has not seen the scenario.

use sluicenet_scenario::{
    Distribution, Generated, Hosts, Layout, PartitionAggregate, Poisson, Quantity, Scenario, Shape, Workload,
};

/// Name of the line that tells the world.
pub const WORLD: &str = "world";
/// Name of the lines that tell the work; with a number behind it where there are several.
pub const WORK: &str = "work";

/// A line for the world and one for each workload, by name.
pub(super) fn lines(s: &Scenario) -> Vec<(String, String)> {
    let name = |i: usize| if s.workloads.len() == 1 { WORK.into() } else { format!("{WORK} {}", i + 1) };
    let work = s.workloads.iter().enumerate().map(|(i, w)| (name(i), workload(s, w)));
    std::iter::once((WORLD.to_owned(), world(s))).chain(work).collect()
}

fn world(s: &Scenario) -> String {
    let counts = s.topology.counts();
    let what = if s.server.virtual_network {
        format!("virtualised servers of {} machines each", s.server.vms)
    } else {
        "hosts".into()
    };
    let external =
        if counts.external == 0 { String::new() } else { format!(" and {} external hosts", counts.external) };
    let levels = match &s.topology.shape {
        Shape::Xgft { m, .. } if m.len() > 1 => format!(" on {} levels", m.len()),
        _ => String::new(),
    };
    let switches = if counts.switches == 1 { "switch" } else { "switches" };
    format!("{} {what}{external}, {} {switches}{levels}, links of {}.", counts.hosts, counts.switches, link_rates(s))
}

/// The rate of all links, or the lowest and the highest.
fn link_rates(s: &Scenario) -> String {
    let of_file = match &s.topology.shape {
        Shape::Hpcc { file } => file.content.links.iter().map(|link| link.rate).collect(),
        _ => Vec::new(),
    };
    let rates = || s.topology.levels.iter().map(|link| link.rate).chain(of_file.iter().copied());
    let bounds = rates().min_by_key(|rate| rate.as_bps()).zip(rates().max_by_key(|rate| rate.as_bps()));
    match bounds {
        Some((low, high)) if low != high => format!("{} to {}", low.written(), high.written()),
        Some((rate, _)) => rate.written(),
        None => s.topology.link.rate.written(),
    }
}

/// The topology's file, and the dialect in which it was read.
pub fn topology_file(s: &Scenario) -> Option<String> {
    match &s.topology.shape {
        Shape::Hpcc { file } => Some(format!("{}, read as {}", file.path, file.content.dialect.described())),
        Shape::Htsim { file } => Some(format!("{}, read as htsim's", file.path)),
        Shape::Xgft { .. } => None,
    }
}

fn workload(s: &Scenario, workload: &Workload) -> String {
    match workload {
        Workload::PartitionAggregate(w) => partition_aggregate(s, w),
        Workload::PartitionAggregate2(w) => format!(
            "Partition/Aggregate: in a query one of {} asks each of its {} ({}), every worker answers at once ({}), and the \
             last byte of the last answer completes it.{}",
            counted(&w.aggregators, "aggregator"),
            counted(&w.workers, "worker"),
            w.request.written(),
            w.response.written(),
            queries(w.queries, w.warmup_queries, " of each aggregator"),
        ),
        Workload::Background(w) => format!(
            "Background: every server sends flows of {} on average to random others until the run ends, {:.0} % of them \
             within its chassis.",
            bytes(w.flow_size.mean()),
            100.0 * w.intra_probability()
        ),
        Workload::Incast(w) => format!(
            "Incast: in a round {} send {} each to host {} at the same moment; the last byte completes it. {} rounds, one \
             after the other.",
            counted(&w.senders, "host"),
            w.bytes.written(),
            w.receiver,
            w.rounds
        ),
        Workload::HotspotBenchmark(w) => {
            let cause = match w.generated {
                Generated::Input => "their load",
                Generated::Output => "its slow link",
            };
            format!("Hotspot benchmark: {} hosts congest host {} by {cause}.", w.sources(), w.destination)
        }
        Workload::Hotspot(w) => {
            format!("Hotspot: {} send to host {} at a rate that changes.", counted(&w.sources, "host"), w.destination)
        }
        Workload::Permutation(w) => {
            let bytes = w.bytes.map_or("without end".into(), |b| format!("of {}", b.written()));
            format!("Permutation: every host sends one flow {bytes} to one other.")
        }
        Workload::Shuffle(w) => format!(
            "Shuffle: each of {} hosts sends {} to every other, {} at a time; its query ends when all has arrived.",
            w.hosts,
            w.bytes.written(),
            w.at_a_time
        ),
        Workload::Flow(w) => {
            let bytes = w.bytes.map_or("without end".into(), |b| format!("of {}", b.written()));
            format!("A flow {bytes} from host {} to host {}.", w.src, w.dst)
        }
        Workload::FlowFile(_) => "The flows of a file.".into(),
        Workload::Poisson(w) => format!(
            "Flows between random hosts, of {} on average; arrivals are Poisson and offer {}.",
            bytes(w.cdf.content.mean()),
            load(w)
        ),
    }
}

/// A load and the bytes that it counts.
pub fn load(w: &Poisson) -> String {
    format!("{} % of every host's link ({})", (w.load * 1e4).round() / 1e2, w.load_basis.name())
}

fn partition_aggregate(s: &Scenario, w: &PartitionAggregate) -> String {
    let chassis = match &s.topology.shape {
        Shape::Xgft { m, .. } => {
            let size: u32 = m.iter().take(w.chassis as usize).product();
            format!("each of the {} chassis of {size} servers", s.topology.counts().hosts / size.max(1))
        }
        _ => "each chassis".into(),
    };
    let workers = match w.layout {
        Layout::Crisan2014Ch4 => "all servers of its chassis",
        Layout::Crisan2014Ch2 => "the other servers of its chassis",
    };
    format!(
        "Partition/Aggregate: a query reaches an aggregator, which asks one aggregator in {chassis} (a subquery), which asks \
         a worker on {workers} (a request). Every worker answers at once (a response), and when all have, their aggregator \
         answers the first one (an aggregate): the last of these completes the query. Every message is {}.{}{}",
        w.message.written(),
        arrivals(&w.inter_arrival),
        queries(w.queries, w.warmup_queries, "")
    )
}

fn arrivals(between: &Distribution<sluicenet_proto::time::Duration>) -> String {
    let us = between.mean() / 1e6;
    let us = if us < 9.95 { format!("{us:.1}") } else { format!("{us:.0}") };
    format!(" Queries come {us} us after one another on average.")
}

fn queries(all: Option<u64>, warmup: u64, whose: &str) -> String {
    let all = all.map_or(" Queries until the run ends".to_owned(), |n| format!(" {n} queries{whose}"));
    match warmup {
        0 => format!("{all}."),
        n => format!("{all}; the first {n} warm up, and times leave them out."),
    }
}

fn counted(hosts: &Hosts, what: &str) -> String {
    format!("{} {what}{}", hosts.len(), if hosts.len() == 1 { "" } else { "s" })
}

/// A mean size, to three digits.
fn bytes(mean: f64) -> String {
    match mean {
        x if x < 999.5 => format!("{x:.0} B"),
        x if x < 999.5e3 => format!("{:.3} KB", x / 1e3).trim_end_matches('0').trim_end_matches('.').to_owned(),
        x => format!("{:.2} MB", x / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<(String, String)> {
        lines(&Scenario::parse(text, "t").unwrap().scenario)
    }

    #[test]
    fn the_demo_is_told_with_its_numbers() {
        let told = told(include_str!("../../../../scenarios/demo.toml"));
        let names: Vec<&str> = told.iter().map(|line| line.0.as_str()).collect();
        assert_eq!(names, [WORLD, WORK]);
        assert_eq!(told[0].1, "256 virtualised servers of 4 machines each, 28 switches on 3 levels, links of 10 Gb/s.");
        for word in [
            "one aggregator in each of the 16 chassis of 16 servers (a subquery)",
            "a worker on all servers of its chassis (a request)",
            "Every message is 20 KB. Queries come 61 us after one another on average.",
            "550 queries; the first 50 warm up, and times leave them out.",
        ] {
            assert!(told[1].1.contains(word), "{word}: {}", told[1].1);
        }
    }

    #[test]
    fn two_workloads_are_two_lines() {
        let told = told(
            "[topology]\nkind = \"single-switch\"\nhosts = 5\n[[workload]]\nkind = \"incast\"\nsenders = 3\nreceiver = 4\n\
             bytes = \"64 KB\"\nrounds = 7\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"10 MB\"\n",
        );
        assert_eq!(told[0].1, "5 hosts, 1 switch, links of 10 Gb/s.");
        assert_eq!(told[1].0, "work 1");
        assert!(told[1].1.contains("in a round 3 hosts send 64 KB each to host 4") && told[1].1.contains("7 rounds"));
        assert_eq!(told[2], ("work 2".into(), "A flow of 10 MB from host 0 to host 1.".into()));
    }
}
