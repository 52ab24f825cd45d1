//! Reading `[[workload]]`.

use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

use super::distribution::Distribution;
use super::distributions;
use super::error::{Error, Result, Warning};
use super::files::Files;
use super::keys;
use super::losses::Losses;
use super::model::*;
use super::patterns;
use super::section::Section;
use super::sections::hosts;
use super::tree::{Document, Span, Table, Value, name_hint};
use super::units::{Bytes, DURATION_MAX};

/// What a source of a hotspot may offer in all: what a connection can count, with room to spare.
const OFFERED_BYTES_MAX: u64 = 1 << 48;
/// What lies between two arrivals at a server on average, at least.
const ARRIVAL_MIN: Duration = Duration::from_ns(1);
/// Aggregators of two tiers: 16 bits of a query's number name its own.
const AGGREGATORS_MAX: usize = 1 << 16;

/// What a workload must fit.
pub(super) struct World<'a> {
    pub topology: &'a Topology,
    pub counts: Counts,
    pub server: &'a Server,
    pub duration: Option<Duration>,
    pub losses: Losses,
}

impl World<'_> {
    /// Bits a second of the fastest link there is.
    fn fastest_host_link(&self) -> u64 {
        let rates: Vec<Rate> = match &self.topology.shape {
            Shape::Hpcc { file } => file.content.links.iter().map(|l| l.rate).collect(),
            _ => self.topology.levels.first().iter().map(|l| l.rate).collect(),
        };
        rates.into_iter().map(Rate::as_bps).max().unwrap_or(self.topology.link.rate.as_bps())
    }

    /// Levels whose subtrees can be chassis; none where the shape has no levels.
    fn levels(&self) -> usize {
        match &self.topology.shape {
            Shape::Xgft { m, .. } => m.len(),
            Shape::Htsim { file } => file.content.tiers.len(),
            Shape::Hpcc { .. } => 0,
        }
    }
}

pub(super) fn read(
    doc: &Document,
    table: &Table,
    span: Span,
    world: &World<'_>,
    files: &mut Files,
) -> Result<Workload> {
    let names: Vec<&'static str> = keys::WORKLOADS.iter().map(|w| w.name).collect();
    let Some(entry) = table.get("kind") else {
        return Err(doc.error(span, "this workload has no `kind`").hint(format!("known kinds: {}", names.join(", "))));
    };
    let Value::Text(kind) = &entry.node.value else {
        return Err(doc
            .error(entry.node.span, format!("{} where a kind should be", entry.node.kind()))
            .expected("a string"));
    };
    let Some(spec) = keys::WORKLOADS.iter().find(|w| w.name == kind) else {
        let shown: String = kind.chars().take(40).collect();
        return Err(doc
            .error(entry.node.span, format!("unknown kind of workload `{shown}`"))
            .expected(names.join(", "))
            .hint(name_hint(kind, &names)));
    };
    let s = Section::new(doc, spec, table, Some(span))?;
    Ok(match spec.name {
        "partition-aggregate" => Workload::PartitionAggregate(partition_aggregate(&s, world, files)?),
        "partition-aggregate-2" => Workload::PartitionAggregate2(partition_aggregate_2(&s, world, files)?),
        "background" => Workload::Background(background(&s, world, files)?),
        "incast" => Workload::Incast(incast(&s, world)?),
        "hotspot" => Workload::Hotspot(hotspot(&s, world)?),
        "permutation" => Workload::Permutation(permutation(&s, world, files)?),
        "shuffle" => Workload::Shuffle(shuffle(&s, world)?),
        "flow" => Workload::Flow(flow(&s, world)?),
        "flow-file" => Workload::FlowFile(flow_file(&s, world, files)?),
        _ => Workload::Poisson(poisson(&s, world, files)?),
    })
}

fn priority(s: &Section<'_>) -> Result<u8> {
    Ok(s.count("priority", 0..=7)?.unwrap_or(0) as u8)
}

/// What carries the flows of a workload of these priorities, a bit each.
fn transport(s: &Section<'_>, world: &World<'_>, priorities: u8) -> Result<Transport> {
    let choices = Transport::ALL.map(|t| (t.name(), t));
    let transport = s.choice("transport", &choices)?.unwrap_or(Transport::Tcp);
    if transport == Transport::TcpLight {
        world.losses.check(s, priorities)?;
    }
    Ok(transport)
}

/// A rate, which only datagrams can be offered at.
fn rate(s: &Section<'_>, transport: Transport) -> Result<Option<Rate>> {
    let rate = s.positive("rate")?;
    if rate.is_some() && transport.connects() {
        return Err(s.error("rate", "a stream finds its own rate").hint("`rate` is for transport = \"udp\""));
    }
    Ok(rate)
}

fn query_connections(s: &Section<'_>, default: Connections) -> Result<Connections> {
    let choices = [("persistent", Connections::Persistent), ("per-query", Connections::New)];
    Ok(s.choice("connections", &choices)?.unwrap_or(default))
}

fn host(s: &Section<'_>, name: &str, world: &World<'_>) -> Result<u32> {
    let n = s.count(name, 0..=u64::from(u32::MAX))?.ok_or_else(|| s.missing(name))?;
    let endpoints = world.counts.endpoints();
    if n >= u64::from(endpoints) {
        return Err(s.error(name, format!("there is no host {n}: the network has {endpoints}, counted from 0")));
    }
    reach(s, name, [n as u32], world)?;
    Ok(n as u32)
}

/// Refuses hosts outside where machines are reached from there by their second vNICs, and these frames would go by the first ones.
fn reach(s: &Section<'_>, name: &str, hosts: impl IntoIterator<Item = u32>, world: &World<'_>) -> Result<()> {
    reach_by(s, name, (hosts, priority(s)?), world)
}

fn reach_by(
    s: &Section<'_>,
    name: &str,
    (hosts, priority): (impl IntoIterator<Item = u32>, u8),
    world: &World<'_>,
) -> Result<()> {
    let Some(lossy) = world.server.lossy_vnic else { return Ok(()) };
    if priority == lossy {
        return Ok(());
    }
    let Some(outside) = hosts.into_iter().find(|&host| host >= world.counts.hosts) else { return Ok(()) };
    let message = format!("host {outside} is external: machines talk to it by their lossy vNICs alone");
    Err(s.error(name, message).hint(format!("set priority = {lossy}")))
}

fn named(hosts: &Hosts) -> impl Iterator<Item = u32> {
    let list = match hosts {
        Hosts::List(list) => list.as_slice(),
        // A count is of the network's own.
        Hosts::Count(_) => &[],
    };
    list.iter().copied()
}

fn chassis(s: &Section<'_>, world: &World<'_>) -> Result<u32> {
    let level = s.count_u32("chassis", 1..=8)?.unwrap_or(1);
    let levels = world.levels();
    if levels == 0 {
        return Err(s.error_at(&["chassis", "kind"], "this workload needs chassis, and this network has no levels"));
    }
    if level as usize > levels {
        return Err(s.error("chassis", format!("there is no level {level}: the network has {levels}")));
    }
    Ok(level)
}

fn partition_aggregate(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<PartitionAggregate> {
    let layouts = [("crisan2014-ch4", Layout::Crisan2014Ch4), ("crisan2014-ch2", Layout::Crisan2014Ch2)];
    let layout = s.choice("layout", &layouts)?.ok_or_else(|| s.missing("layout"))?;
    match layout {
        Layout::Crisan2014Ch4 if world.server.vms < 3 => {
            return Err(s
                .error(
                    "layout",
                    format!("this layout puts three virtual machines on a server: there are {}", world.server.vms),
                )
                .hint("set server.vms = 3 or more"));
        }
        Layout::Crisan2014Ch2 if world.counts.external == 0 => {
            return Err(s
                .error("layout", "this layout's queries come from external hosts, and there are none")
                .hint("set topology.external_hosts = 16"));
        }
        _ => {}
    }
    let default = match layout {
        Layout::Crisan2014Ch4 => Connections::Persistent,
        Layout::Crisan2014Ch2 => Connections::New,
    };
    if layout == Layout::Crisan2014Ch2 {
        reach(s, "layout", [world.counts.hosts], world)?;
    }
    let (queries, warmup_queries) = queries(s, world, keys::PLANNED_MAX)?;
    let inter_arrival: Distribution<Duration> = distributions::required(s, "inter_arrival", files)?;
    if let (None, Some(duration)) = (queries, world.duration) {
        planned(s, "inter_arrival", "queries", duration.as_ps() as f64 / inter_arrival.mean())?;
    }
    Ok(PartitionAggregate {
        queries,
        warmup_queries,
        message: s.positive("message")?.unwrap_or(Bytes(20_000)),
        inter_arrival,
        layout,
        connections: query_connections(s, default)?,
        chassis: chassis(s, world)?,
        transport: transport(s, world, 1 << priority(s)?)?,
        priority: priority(s)?,
    })
}

/// Refuses arrivals that no link could carry, each as small as can be: memory would go before time does.
fn apart(s: &Section<'_>, mean_ps: f64) -> Result<()> {
    if mean_ps >= ARRIVAL_MIN.as_ps() as f64 {
        return Ok(());
    }
    Err(s.error("inter_arrival", format!("{mean_ps} ps between two arrivals on average")).expected("at least 1 ns"))
}

/// Refuses what is planned before a run and would not fit into memory, about `count` of it.
fn planned(s: &Section<'_>, name: &str, what: &str, count: f64) -> Result<()> {
    if count <= keys::PLANNED_MAX as f64 {
        return Ok(());
    }
    Err(s
        .error(name, format!("about {count:.1e} {what} are too many"))
        .expected(format!("at most {} in a run", keys::PLANNED_MAX)))
}

fn queries(s: &Section<'_>, world: &World<'_>, max: u64) -> Result<(Option<u64>, u64)> {
    let queries = s.count("queries", 1..=max)?;
    let warmup = s.count("warmup_queries", 0..=max)?.unwrap_or(0);
    if queries.is_none() && world.duration.is_none() {
        return Err(s.error_here("this workload never ends").hint("give it `queries`, or set scenario.duration"));
    }
    if queries.is_some_and(|q| warmup >= q) {
        return Err(s.error("warmup_queries", "every query is warm-up: none would count"));
    }
    Ok((queries, warmup))
}

fn partition_aggregate_2(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<PartitionAggregate2> {
    let among_vms = s.choice("among", &[("hosts", false), ("vms", true)])?.unwrap_or(false);
    // Counted in VMs a network has more of them, and nobody outside of it.
    let vms = Counts { hosts: world.counts.hosts * world.server.vms, external: 0, ..world.counts };
    let counts = if among_vms { &vms } else { &world.counts };
    let aggregators = hosts(s, "aggregators", counts)?.unwrap_or(Hosts::Count(1));
    let workers = hosts(s, "workers", counts)?.ok_or_else(|| s.missing("workers"))?;
    let after = match &aggregators {
        Hosts::Count(n) => *n as usize,
        Hosts::List(list) => list.iter().filter(|h| **h < counts.hosts).count(),
    };
    if among_vms {
        let all: Vec<u32> = match &aggregators {
            Hosts::Count(n) => (0..*n).collect(),
            Hosts::List(list) => list.clone(),
        };
        let servers: std::collections::BTreeSet<u32> = all.iter().map(|vm| vm / world.server.vms).collect();
        if servers.len() < all.len() {
            return Err(s
                .error("aggregators", "two aggregators are VMs of one host")
                .hint(format!("VM v of host h is {} h + v", world.server.vms)));
        }
    }
    match (&aggregators, &workers) {
        (_, Hosts::Count(n)) if *n as usize + after > counts.hosts as usize => {
            let (count, what) = (counts.hosts, if among_vms { "VMs" } else { "hosts" });
            let message = format!("{n} workers and {after} aggregators are more than the network's {count} {what}");
            return Err(s.error("workers", message));
        }
        (_, Hosts::Count(_)) => {}
        (aggregators, Hosts::List(list)) => {
            let both = match aggregators {
                Hosts::Count(n) => list.iter().find(|h| *h < n),
                Hosts::List(a) => {
                    let a: std::collections::BTreeSet<_> = a.iter().collect();
                    list.iter().find(|h| a.contains(h))
                }
            };
            if let Some(both) = both {
                return Err(s.error("workers", format!("host {both} is an aggregator and a worker")));
            }
        }
    }
    let count = aggregators.len();
    if count > AGGREGATORS_MAX {
        return Err(s.error("aggregators", format!("{count} aggregators: at most {AGGREGATORS_MAX}")));
    }
    if !among_vms {
        reach(s, "aggregators", named(&aggregators), world)?;
        reach(s, "workers", named(&workers), world)?;
    }
    let (queries, warmup_queries) = queries(s, world, keys::QUERIES_MAX)?;
    let inter_arrival: Option<Distribution<Duration>> = distributions::read(s, "inter_arrival", files)?;
    if let Some(gap) = &inter_arrival {
        apart(s, gap.mean())?;
    }
    Ok(PartitionAggregate2 {
        aggregators,
        workers,
        among_vms,
        request: s.positive("request")?.unwrap_or(Bytes(64)),
        response: s.positive("response")?.ok_or_else(|| s.missing("response"))?,
        queries,
        warmup_queries,
        inter_arrival,
        connections: query_connections(s, Connections::Persistent)?,
        transport: transport(s, world, 1 << priority(s)?)?,
        priority: priority(s)?,
    })
}

fn background(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<Background> {
    if world.counts.hosts < 2 {
        return Err(s.error_here("background flows need two servers"));
    }
    let last = world.server.vms - 1;
    let vm = s.count_u32("vm", 0..=255)?.unwrap_or(last);
    if vm > last {
        return Err(s.error("vm", format!("there is no virtual machine {vm}: a server has {}", world.server.vms)));
    }
    let inter_arrival: Distribution<Duration> = distributions::required(s, "inter_arrival", files)?;
    let load = s.number("load", 1e-6..=1e6)?.unwrap_or(1.0);
    apart(s, inter_arrival.mean() / load)?;
    Ok(Background {
        transport: transport(s, world, 1 << priority(s)?)?,
        flow_size: distributions::required(s, "flow_size", files)?,
        inter_arrival,
        intra_ratio: s.number("intra_ratio", 0.0..=1e9)?.unwrap_or(0.3),
        chassis: chassis(s, world)?,
        vm,
        load,
        priority: priority(s)?,
    })
}

/// Hosts of which none is the one they send to.
fn hosts_but(s: &Section<'_>, name: &str, receiver: u32, world: &World<'_>) -> Result<Hosts> {
    let senders = hosts(s, name, &world.counts)?.ok_or_else(|| s.missing(name))?;
    reach(s, name, named(&senders), world)?;
    match &senders {
        Hosts::List(list) if list.contains(&receiver) => {
            return Err(s.error(name, format!("host {receiver} sends to itself: it is the receiver")));
        }
        Hosts::Count(n) => {
            let others = world.counts.hosts - u32::from(receiver < world.counts.hosts);
            if *n > others {
                return Err(s.error(name, format!("{n} {name}: the network has {others} hosts but the receiver")));
            }
        }
        Hosts::List(_) => {}
    }
    Ok(senders)
}

fn hotspot(s: &Section<'_>, world: &World<'_>) -> Result<Hotspot> {
    let destination = host(s, "destination", world)?;
    let sources = hosts_but(s, "sources", destination, world)?;
    let mut phases: Vec<Phase> = Vec::new();
    for (table, span) in s.tables("phases")? {
        let p = Section::new(s.doc, &keys::PHASE, table, Some(span))?;
        let until = p.positive("until")?.ok_or_else(|| p.missing("until"))?;
        if phases.last().is_some_and(|before| until <= before.until) {
            return Err(p.error("until", "this phase does not end after the one before it"));
        }
        phases.push(Phase { until, rate: p.quantity("rate")?.ok_or_else(|| p.missing("rate"))? });
    }
    if phases.is_empty() {
        return Err(s.missing("phases"));
    }
    let mut from = Duration::ZERO;
    let mut offered = 0u128;
    for p in &phases {
        offered += u128::from(p.rate.as_bps()) * u128::from(p.until.as_ps() - from.as_ps()) / 8_000_000_000_000;
        from = p.until;
    }
    if offered > u128::from(OFFERED_BYTES_MAX) {
        return Err(s.error("phases", format!("each source would offer {offered} B: at most {OFFERED_BYTES_MAX}")));
    }
    Ok(Hotspot {
        sources,
        destination,
        message: s.positive("message")?.unwrap_or(Bytes(10_000)),
        phases,
        transport: transport(s, world, 1 << priority(s)?)?,
        priority: priority(s)?,
    })
}

fn incast(s: &Section<'_>, world: &World<'_>) -> Result<Incast> {
    let receiver = host(s, "receiver", world)?;
    let senders = hosts_but(s, "senders", receiver, world)?;
    let choices = [("persistent", Connections::Persistent), ("new", Connections::New)];
    Ok(Incast {
        senders,
        receiver,
        bytes: s.positive("bytes")?.ok_or_else(|| s.missing("bytes"))?,
        rounds: s.count("rounds", 1..=keys::COUNT_MAX)?.unwrap_or(1),
        gap: s.quantity("gap")?.unwrap_or(Duration::ZERO),
        start: s.quantity("start")?.unwrap_or(Duration::ZERO),
        connections: s.choice("connections", &choices)?.unwrap_or(Connections::Persistent),
        transport: transport(s, world, 1 << priority(s)?)?,
        priority: priority(s)?,
    })
}

fn permutation(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<Permutation> {
    let pattern = patterns::read(s, world, files)?;
    let priority = match s.get("priority") {
        Some(node) if matches!(&node.value, Value::Text(t) if t == "per-host") => Priority::PerHost,
        Some(node) if matches!(&node.value, Value::Text(_)) => return Err(s.wrong(node, "0 to 7, or \"per-host\"")),
        _ => Priority::Fixed(priority(s)?),
    };
    if let Pattern::File(file) = &pattern {
        for pair in file.content.iter() {
            let p = match priority {
                Priority::Fixed(p) => p,
                Priority::PerHost => (pair.0 % 8) as u8,
            };
            reach_by(s, "file", ([pair.0, pair.1], p), world)?;
        }
    }
    let transport = match priority {
        Priority::Fixed(p) => transport(s, world, 1 << p)?,
        Priority::PerHost => transport(s, world, u8::MAX)?,
    };
    let start: Duration = s.quantity("start")?.unwrap_or(Duration::ZERO);
    let stagger: Duration = s.quantity("stagger")?.unwrap_or(Duration::ZERO);
    let per_vm = s.bool("per_vm")?.unwrap_or(false);
    let first_vm = s.count_u32("first_vm", 0..=62)?.unwrap_or(0);
    if first_vm > 0 && !per_vm {
        return Err(s.error("first_vm", "`first_vm` means nothing without per_vm = true"));
    }
    if first_vm >= world.server.vms {
        return Err(
            s.error("first_vm", format!("there is no virtual machine {first_vm}: a server has {}", world.server.vms))
        );
    }
    let flows = s.count_u32("flows", 1..=keys::PLANNED_MAX as u32)?.unwrap_or(1);
    let each = match &pattern {
        Pattern::File(file) => file.content.len() as f64,
        _ => f64::from(world.counts.hosts),
    };
    planned(s, "flows", "flows", f64::from(flows) * each)?;
    let last = u128::from(start.as_ps()) + u128::from(stagger.as_ps()) * u128::from(world.counts.endpoints());
    if last > u128::from(DURATION_MAX.as_ps()) {
        return Err(s.error_at(&["stagger", "start"], "the last flow would start after 100 days"));
    }
    Ok(Permutation {
        pattern,
        flows,
        bytes: endless(s, world)?,
        start,
        stagger,
        transport,
        rate: rate(s, transport)?,
        priority,
        per_vm,
        first_vm,
    })
}

fn shuffle(s: &Section<'_>, world: &World<'_>) -> Result<Shuffle> {
    let all = world.counts.hosts;
    let hosts = s.count_u32("hosts", 2..=all.max(2))?.unwrap_or(all);
    if all < 2 {
        return Err(s.error_here("a shuffle needs two hosts"));
    }
    // A host's list of those it has yet to send to.
    planned(s, "hosts", "transfers", f64::from(hosts) * f64::from(hosts - 1))?;
    Ok(Shuffle {
        hosts,
        bytes: s.positive("bytes")?.ok_or_else(|| s.missing("bytes"))?,
        at_a_time: s.count_u32("at_a_time", 1..=super::HOSTS_MAX)?.unwrap_or(1),
        start: s.quantity("start")?.unwrap_or(Duration::ZERO),
        transport: transport(s, world, 1 << priority(s)?)?,
        priority: priority(s)?,
    })
}

/// A size; none for an endless flow, which only a run with a duration may have.
fn endless(s: &Section<'_>, world: &World<'_>) -> Result<Option<Bytes>> {
    let bytes = s.quantity::<Bytes>("bytes")?.filter(|b| b.0 > 0);
    if bytes.is_none() && world.duration.is_none() {
        return Err(s
            .error("bytes", "an endless flow in a run without an end")
            .hint("give it `bytes`, or set scenario.duration"));
    }
    Ok(bytes)
}

/// The number of a machine of a host; external hosts have one.
fn machine(s: &Section<'_>, name: &str, host: u32, world: &World<'_>) -> Result<u32> {
    let vm = s.count_u32(name, 0..=62)?.unwrap_or(0);
    let vms = if host < world.counts.hosts { world.server.vms } else { 1 };
    if vm >= vms {
        return Err(s.error(name, format!("there is no virtual machine {vm}: host {host} has {vms}")));
    }
    Ok(vm)
}

fn flow(s: &Section<'_>, world: &World<'_>) -> Result<Flow> {
    let (src, dst) = (host(s, "src", world)?, host(s, "dst", world)?);
    let (src_vm, dst_vm) = (machine(s, "src_vm", src, world)?, machine(s, "dst_vm", dst, world)?);
    if (src, src_vm) == (dst, dst_vm) {
        return Err(s.error("dst", format!("host {src} sends to itself")));
    }
    let transport = transport(s, world, 1 << priority(s)?)?;
    Ok(Flow {
        src,
        src_vm,
        dst,
        dst_vm,
        bytes: endless(s, world)?,
        start: s.quantity("start")?.unwrap_or(Duration::ZERO),
        transport,
        rate: rate(s, transport)?,
        priority: priority(s)?,
    })
}

fn flow_file(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<FlowFile> {
    let hpcc = s.choice("format", &[("hpcc", true), ("htsim", false)])?.ok_or_else(|| s.missing("format"))?;
    let path = s.text("file")?.ok_or_else(|| s.missing("file"))?;
    let endpoints = world.counts.endpoints();
    let content = if hpcc {
        let file = s.input("file", files.hpcc_flows(path))?;
        match &world.topology.shape {
            Shape::Hpcc { file: t } => file.content.check(path, |n| t.content.host_of(n).is_some())?,
            _ => file.content.check(path, |n| n < endpoints)?,
        }
        FlowFileContent::Hpcc { file }
    } else {
        let file = s.input("file", files.matrix(path))?;
        let matrix = &file.content;
        files.warnings.extend(matrix.check_nodes(path, endpoints)?);
        matrix.check(path, endpoints)?;
        if let Some(f) = matrix.failures.first() {
            return Err(Error::line(path, f.line, "failure ...", "failed links are not simulated")
                .hint("remove the line: a scenario must not quietly differ from its file"));
        }
        if let Some(c) = matrix.connections.iter().find(|c| c.bytes.is_none() && world.duration.is_none()) {
            return Err(Error::line(path, c.line, "... size 0", "an endless flow in a run without an end")
                .hint("set scenario.duration"));
        }
        if let Some(c) = matrix.connections.iter().find(|c| c.prio.is_some()) {
            let message = "`prio` is htsim's order of flows at a sender, not a frame's priority: not used".to_string();
            files.warnings.push(Warning { file: path.into(), line: c.line, message });
        }
        FlowFileContent::Htsim { file }
    };
    let priority = s.count("priority", 0..=7)?.map(|p| p as u8);
    let priorities = match (priority, &content) {
        (Some(p), _) => 1 << p,
        (None, FlowFileContent::Htsim { .. }) => 1,
        (None, FlowFileContent::Hpcc { .. }) => u8::MAX,
    };
    let by = |own: u8| priority.unwrap_or(own);
    match &content {
        FlowFileContent::Hpcc { file } if !matches!(world.topology.shape, Shape::Hpcc { .. }) => {
            for f in &file.content.flows {
                reach_by(s, "file", ([f.src, f.dst], by(f.priority & 7)), world)?;
            }
        }
        // A graph has no hosts outside.
        FlowFileContent::Hpcc { .. } => {}
        FlowFileContent::Htsim { file } => {
            for c in &file.content.connections {
                reach_by(s, "file", ([c.src, c.dst], by(0)), world)?;
            }
        }
    }
    Ok(FlowFile { content, transport: transport(s, world, priorities)?, priority })
}

fn poisson(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<Poisson> {
    if world.counts.hosts < 2 {
        return Err(s.error_here("flows between random hosts need two"));
    }
    let path = s.text("cdf")?.ok_or_else(|| s.missing("cdf"))?;
    let until = match (s.positive("until")?, world.duration) {
        (Some(until), _) | (None, Some(until)) => until,
        (None, None) => {
            return Err(s.error_here("this workload never ends").hint("give it `until`, or set scenario.duration"));
        }
    };
    let cdf = s.input("cdf", files.cdf(path))?;
    let load = s.number("load", 1e-6..=1.0)?.ok_or_else(|| s.missing("load"))?;
    let bytes_per_ps = world.fastest_host_link() as f64 / 8e12;
    let flows = load * bytes_per_ps / cdf.content.mean() * until.as_ps() as f64 * f64::from(world.counts.hosts);
    planned(s, "until", "flows", flows)?;
    Ok(Poisson { cdf, load, transport: transport(s, world, 1 << priority(s)?)?, until, priority: priority(s)? })
}
