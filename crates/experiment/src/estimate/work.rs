//! The work of a run, from its scenario alone: packets from end to end, and the links that they pass.

use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::formats::{Connection, HpccTopology, Start};
use sluicenet_scenario::{FlowFileContent, Pattern, Scenario, Shape, Transport, Workload};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The work of a run at the level of flows, which simulates no packets, over that of packets.
const FLOW_LEVEL: f64 = 1e-3;
/// Bytes of a packet that are headers of IP and TCP, with timestamps.
const HEADER_BYTES: f64 = 52.0;
/// Frames of zCredit on a link over those of the same packets without it: each is asked for and granted.
const CREDITS: f64 = 2.5;
/// Hosts of a graph from which paths are counted: more say no more about the mean.
const SOURCES: usize = 16;

/// Packets and their hops.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Packets from end to end, data and acknowledgements.
    pub packets: f64,
    /// Frames on links.
    pub hops: f64,
    /// Whether traffic without an end goes on until finite work has ended, which the scenario bounds from below alone.
    pub is_open: bool,
}

impl Work {
    /// The expected work of a scenario: what its workloads ask for, and at most what its hosts' links carry. `None` if the
    /// scenario does not bound it, or at the level of flows.
    pub fn expected(s: &Scenario) -> Option<Work> {
        if !s.level.is_packet() {
            return None;
        }
        let seconds = simulated_seconds(s)?;
        let links = mean_links(&s.topology.shape);
        let mut packets = 0.0;
        let mut hops = 0.0;
        let mut add = |asked: Asked, part: f64, transport: Transport| {
            let more = part * asked.packets(s, transport);
            packets += more;
            hops += more * asked.links.unwrap_or(links);
        };
        let asked: Vec<(Asked, Transport)> =
            s.workloads.iter().map(|w| (Asked::of(w, s, seconds), w.transport())).collect();
        // More than the links carry is not sent within the duration; without one the run goes on until all has arrived.
        let part = match s.duration {
            Some(_) => carried(s, seconds, asked.iter().map(|(asked, _)| asked.bytes).sum()),
            None => 1.0,
        };
        asked.iter().for_each(|&(asked, transport)| add(asked, part, transport));
        let is_open = s.duration.is_none() && s.workloads.iter().any(|w| !w.is_finite());
        Some(Work { packets, hops: if s.zcredit.enabled { CREDITS * hops } else { hops }, is_open })
    }
}

/// The part of `bytes` that the links of the senders and of the receivers carry in so many seconds.
fn carried(s: &Scenario, seconds: f64, bytes: f64) -> f64 {
    let host = host_line(s) * seconds;
    let (mut sent, mut received) = (BTreeMap::<u32, f64>::new(), BTreeMap::<u32, f64>::new());
    let mut elsewhere = bytes;
    for (src, dst, bytes) in s.workloads.iter().flat_map(|w| flows(w, host)) {
        *sent.entry(src).or_default() += bytes;
        *received.entry(dst).or_default() += bytes;
        elsewhere -= bytes;
    }
    let lines = lines_of_hosts(s);
    // The many senders of an incast have no line of one host.
    let line_of = |host: u32| lines.get(host as usize).map_or(f64::INFINITY, |line| line * seconds);
    let through = |links: &BTreeMap<u32, f64>| links.iter().map(|(&at, &bytes)| bytes.min(line_of(at))).sum::<f64>();
    let carried = through(&sent).min(through(&received)) + elsewhere.max(0.0);
    (carried.min(line(s) * seconds) / bytes.max(1.0)).min(1.0)
}

/// The flows of a workload that names them: sender, receiver and bytes, where an endless one sends `endless`.
fn flows(workload: &Workload, endless: f64) -> Vec<(u32, u32, f64)> {
    match workload {
        Workload::Flow(w) => {
            let bytes = w.bytes.map_or(endless, |bytes| bytes.as_bytes() as f64);
            vec![(w.src, w.dst, bytes)]
        }
        Workload::Permutation(w) => {
            let Pattern::File(file) = &w.pattern else { return Vec::new() };
            let bytes = w.bytes.map_or(endless, |bytes| f64::from(w.flows) * bytes.as_bytes() as f64);
            file.content.iter().map(|pair| (pair.0, pair.1, bytes)).collect()
        }
        Workload::FlowFile(w) => match &w.content {
            FlowFileContent::Hpcc { file } => {
                file.content.flows.iter().map(|flow| (flow.src, flow.dst, flow.bytes as f64)).collect()
            }
            FlowFileContent::Htsim { file } => {
                let bytes = |of: Option<u64>| of.map_or(endless, |bytes| bytes as f64);
                file.content.connections.iter().map(|c| (c.src, c.dst, bytes(c.bytes))).collect()
            }
        },
        Workload::Incast(w) => {
            let bytes = w.senders.len() as f64 * w.bytes.as_bytes() as f64 * w.rounds as f64;
            // Its senders are many.
            vec![(u32::MAX - w.receiver, w.receiver, bytes)]
        }
        _ => Vec::new(),
    }
}

/// The payload that hosts are expected to send, in bytes, as a measure of a run's time: what the workloads ask for, and at
/// most what the hosts' links carry until the scenario's end. At least 1.
pub fn expected_bytes(s: &Scenario) -> f64 {
    let duration_s = s.duration.map(Duration::as_secs_f64);
    let carried = duration_s.map_or(f64::INFINITY, |seconds| line(s) * seconds);
    let asked: f64 = s.workloads.iter().map(|w| Asked::of(w, s, duration_s.unwrap_or(0.0)).bytes).sum();
    let bytes = asked.min(carried).max(1.0);
    if s.level.is_packet() { bytes } else { bytes * FLOW_LEVEL }
}

/// Bytes a second that the links of all hosts carry together.
fn line(s: &Scenario) -> f64 {
    host_line(s) * f64::from(s.topology.counts().hosts)
}

/// Bytes a second that the links of each host carry.
fn lines_of_hosts(s: &Scenario) -> Vec<f64> {
    let hosts = s.topology.counts().hosts as usize;
    let Shape::Hpcc { file } = &s.topology.shape else { return vec![host_line(s); hosts] };
    let graph = &file.content;
    let mut lines = vec![0.0; hosts];
    for (node, rate) in graph.links.iter().flat_map(|link| [(link.a, link.rate), (link.b, link.rate)]) {
        if let Some(line) = graph.host_of(node).and_then(|host| lines.get_mut(host as usize)) {
            *line += rate.as_bps() as f64 / 8.0;
        }
    }
    lines
}

/// Bytes a second that the links of one host carry; in a graph the mean, as its links have rates of their own.
fn host_line(s: &Scenario) -> f64 {
    let bps = match &s.topology.shape {
        Shape::Hpcc { file } => {
            let graph = &file.content;
            let ends = graph.links.iter().flat_map(|link| [(link.a, link.rate), (link.b, link.rate)]);
            let of_hosts = ends.filter(|&(node, _)| graph.host_of(node).is_some());
            of_hosts.map(|(_, rate)| rate.as_bps() as f64).sum::<f64>() / f64::from(graph.hosts().max(1))
        }
        _ => s.topology.link.rate.as_bps() as f64,
    };
    bps / 8.0
}

/// What a workload asks for over all hosts.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Payload.
    bytes: f64,
    /// Messages, each of which ends in a packet that is not full.
    messages: f64,
    /// Links on their paths, if they are not those between any two hosts.
    links: Option<f64>,
}

impl Asked {
    /// What `workload` asks for; that of endless flows lasts `seconds`.
    fn of(workload: &Workload, s: &Scenario, seconds: f64) -> Asked {
        let hosts = f64::from(s.topology.counts().hosts);
        let endless = |senders: f64| Asked { bytes: host_line(s) * senders * seconds, messages: senders, links: None };
        // A flow at a rate of its own sends no more.
        let paced = |asked: Asked, senders: f64, rate: Option<Rate>| match rate {
            Some(rate) => Asked { bytes: asked.bytes.min(senders * rate.as_bps() as f64 / 8.0 * seconds), ..asked },
            None => asked,
        };
        let asked = |bytes: f64, messages: f64| Asked { bytes, messages, links: None };
        match workload {
            Workload::Incast(w) => {
                let messages = w.senders.len() as f64 * w.rounds as f64;
                asked(messages * w.bytes.as_bytes() as f64, messages)
            }
            Workload::Hotspot(w) => {
                let (mut from, mut bytes) = (0.0, 0.0);
                for phase in &w.phases {
                    let until = phase.until.as_secs_f64();
                    bytes += (until - from) * phase.rate.as_bps() as f64 / 8.0;
                    from = until;
                }
                let bytes = bytes * w.sources.len() as f64;
                asked(bytes, bytes / w.message.as_bytes() as f64)
            }
            Workload::HotspotBenchmark(w) => {
                let bytes = w.load * endless(hosts).bytes;
                asked(bytes, bytes / w.message.as_bytes() as f64)
            }
            Workload::Permutation(w) => {
                let all = w.senders.map_or(hosts, f64::from);
                // Senders, flows of each, and the links that endless flows can fill.
                let (pairs, links) = match &w.pattern {
                    Pattern::File(file) => {
                        let senders: BTreeSet<u32> = file.content.iter().map(|pair| pair.0).collect();
                        (file.content.len() as f64, senders.len() as f64)
                    }
                    Pattern::Hotspot(receivers) => (all, all.min(f64::from(*receivers))),
                    _ => (all, all),
                };
                let flows = pairs * f64::from(w.flows);
                let whole = w.bytes.map_or(endless(links), |bytes| asked(flows * bytes.as_bytes() as f64, flows));
                paced(whole, flows, w.rate)
            }
            Workload::Shuffle(w) => {
                let messages = f64::from(w.hosts) * f64::from(w.hosts);
                asked(messages * w.bytes.as_bytes() as f64, messages)
            }
            Workload::Flow(w) => {
                paced(w.bytes.map_or(endless(1.0), |bytes| asked(bytes.as_bytes() as f64, 1.0)), 1.0, w.rate)
            }
            Workload::FlowFile(w) => match &w.content {
                FlowFileContent::Hpcc { file } => {
                    let flows = &file.content.flows;
                    asked(flows.iter().map(|flow| flow.bytes as f64).sum(), flows.len() as f64)
                }
                FlowFileContent::Htsim { file } => {
                    let all = &file.content.connections;
                    // Endless ones share the links of their senders.
                    let senders: BTreeSet<u32> = all.iter().filter(|c| c.bytes.is_none()).map(|c| c.src).collect();
                    let bytes: f64 = all.iter().filter_map(|c| c.bytes).map(|bytes| bytes as f64).sum();
                    asked(bytes + endless(senders.len() as f64).bytes, all.len() as f64)
                }
            },
            Workload::Poisson(w) => {
                let bytes = w.load * line(s) * w.until.as_secs_f64();
                asked(bytes, bytes / w.cdf.content.mean().max(1.0))
            }
            Workload::Background(w) => {
                let a_second = 1e12 * w.load / w.inter_arrival.mean().max(1.0);
                let flows = hosts * a_second * seconds;
                asked(flows * w.flow_size.mean(), flows)
            }
            Workload::PartitionAggregate(w) => {
                // A query has a request to every host and its answer, both of this size, most of them within a chassis.
                let query = 2.0 * hosts * w.message.as_bytes() as f64;
                let links = Some(2.0 * f64::from(w.chassis));
                let all = match w.queries {
                    Some(queries) => asked(queries as f64 * query, queries as f64 * 2.0 * hosts),
                    None => arriving(w.inter_arrival.mean(), seconds, asked(query, 2.0 * hosts)),
                };
                Asked { links, ..all }
            }
            Workload::PartitionAggregate2(w) => {
                let workers = w.workers.len() as f64;
                let aggregators = w.aggregators.len() as f64;
                let query = asked(
                    aggregators * workers * (w.response.as_bytes() + w.request.as_bytes()) as f64,
                    aggregators * workers * 2.0,
                );
                match (w.queries, &w.inter_arrival) {
                    (Some(queries), _) => asked(queries as f64 * query.bytes, queries as f64 * query.messages),
                    (None, Some(gap)) => arriving(gap.mean(), seconds, query),
                    // The next query starts when one completes: the aggregators' links are never idle.
                    (None, None) => {
                        let bytes = endless(aggregators).bytes;
                        asked(bytes, bytes / query.bytes.max(1.0) * query.messages)
                    }
                }
            }
        }
    }

    /// Packets from end to end: full ones, a last one for each message, and acknowledgements.
    fn packets(&self, s: &Scenario, transport: Transport) -> f64 {
        let mtu = s.host_mtu().as_bytes() as f64;
        let (payload, acknowledged) = match transport {
            Transport::Tcp => (mtu - HEADER_BYTES, 1.0 / f64::from(s.tcp.ack_every)),
            Transport::Roce => {
                let roce = s.roce_config();
                (f64::from(roce.mtu), 1.0 / f64::from(roce.ack_every))
            }
            Transport::Udp | Transport::TcpLight => (mtu - HEADER_BYTES, 0.0),
        };
        let full = self.bytes / payload.max(1.0);
        let last = self.messages.min(self.bytes);
        let answers = if acknowledged > 0.0 { full * acknowledged + last } else { 0.0 };
        full + last / 2.0 + answers
    }
}

/// Queries that arrive every `gap_ps` for so long.
fn arriving(gap_ps: f64, seconds: f64, query: Asked) -> Asked {
    let queries = 1e12 * seconds / gap_ps.max(1.0);
    Asked { bytes: queries * query.bytes, messages: queries * query.messages, ..query }
}

/// How long the run lasts in its own time: until its duration, else until the longest finite workload can end. `None` if
/// that is not known.
fn simulated_seconds(s: &Scenario) -> Option<f64> {
    if let Some(duration) = s.duration {
        return Some(duration.as_secs_f64());
    }
    let finite = s.workloads.iter().filter(|w| w.is_finite());
    finite.map(|w| own_seconds(w, s)).try_fold(0.0, |longest: f64, seconds| Some(longest.max(seconds?)))
}

/// The least time that a finite workload takes; `None` if it has parts without an end.
fn own_seconds(workload: &Workload, s: &Scenario) -> Option<f64> {
    let host = host_line(s);
    let asked = || Asked::of(workload, s, 0.0).bytes;
    Some(match workload {
        Workload::Incast(w) => asked() / host + w.rounds as f64 * w.gap.as_secs_f64() + w.start.as_secs_f64(),
        Workload::Hotspot(w) => w.phases.last().map_or(0.0, |phase| phase.until.as_secs_f64()),
        Workload::HotspotBenchmark(w) => w.end.as_secs_f64(),
        Workload::Permutation(w) => {
            let each = f64::from(w.flows) * w.bytes?.as_bytes() as f64;
            let rate = w.rate.map_or(host, |rate| (rate.as_bps() as f64 / 8.0).min(host));
            each / rate + w.start.as_secs_f64()
        }
        Workload::Shuffle(w) => f64::from(w.hosts) * w.bytes.as_bytes() as f64 / host + w.start.as_secs_f64(),
        Workload::Flow(w) => {
            let rate = w.rate.map_or(host, |rate| (rate.as_bps() as f64 / 8.0).min(host));
            w.bytes?.as_bytes() as f64 / rate + w.start.as_secs_f64()
        }
        Workload::FlowFile(w) => match &w.content {
            FlowFileContent::Hpcc { file } => {
                let last = file.content.flows.iter().map(|flow| flow.start.as_secs_f64()).fold(0.0, f64::max);
                last + asked() / line(s)
            }
            FlowFileContent::Htsim { file } => {
                let all = &file.content.connections;
                if all.iter().any(|c| c.bytes.is_none()) {
                    return None;
                }
                all.iter().map(starts_at).fold(0.0, f64::max) + asked() / line(s)
            }
        },
        Workload::Poisson(w) => w.until.as_secs_f64(),
        Workload::PartitionAggregate(w) => w.queries? as f64 * w.inter_arrival.mean() / 1e12,
        Workload::PartitionAggregate2(w) => match &w.inter_arrival {
            Some(gap) => w.queries? as f64 * gap.mean() / 1e12,
            None => asked() / (host * (w.aggregators.len() as f64).max(1.0)),
        },
        Workload::Background(_) => return None,
    })
}

fn starts_at(connection: &Connection) -> f64 {
    match connection.start {
        Start::At(at) => at.as_secs_f64(),
        Start::Trigger(_) => 0.0,
    }
}

/// Links on the path between two different hosts, in the mean.
fn mean_links(shape: &Shape) -> f64 {
    match shape {
        Shape::Xgft { m, .. } => mean_links_of_tree(m),
        Shape::Htsim { file } => mean_links_of_tree(&file.content.as_pgft().0),
        Shape::Hpcc { file } => mean_links_of_graph(&file.content),
    }
}

/// The mean path of a tree with so many children on its levels: up to the lowest common switch and down.
fn mean_links_of_tree(m: &[u32]) -> f64 {
    let hosts: f64 = m.iter().map(|&children| f64::from(children)).product();
    let (mut below, mut links) = (1.0, 0.0);
    for (level, &children) in m.iter().enumerate() {
        let here = below * f64::from(children);
        links += 2.0 * (level + 1) as f64 * (here - below);
        below = here;
    }
    if hosts > 1.0 { links / (hosts - 1.0) } else { 0.0 }
}

/// The mean of the shortest paths from a few hosts of a graph to all others.
fn mean_links_of_graph(graph: &HpccTopology) -> f64 {
    let mut links: Vec<Vec<u32>> = vec![Vec::new(); graph.nodes as usize];
    for link in &graph.links {
        links[link.a as usize].push(link.b);
        links[link.b as usize].push(link.a);
    }
    let hosts: Vec<u32> = (0..graph.nodes).filter(|&node| graph.host_of(node).is_some()).collect();
    let (mut sum, mut paths) = (0u64, 0u64);
    for &from in hosts.iter().step_by((hosts.len() / SOURCES).max(1)) {
        let mut distance: Vec<Option<u32>> = vec![None; graph.nodes as usize];
        distance[from as usize] = Some(0);
        let mut next = VecDeque::from([(from, 0)]);
        while let Some((node, far)) = next.pop_front() {
            for &peer in &links[node as usize] {
                if distance[peer as usize].is_none() {
                    distance[peer as usize] = Some(far + 1);
                    next.push_back((peer, far + 1));
                }
            }
        }
        let reached = hosts.iter().filter_map(|&host| distance[host as usize]).filter(|&far| far > 0);
        reached.for_each(|far| (sum, paths) = (sum + u64::from(far), paths + 1));
    }
    sum as f64 / paths.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(end: &str) -> String {
        format!(
            "[scenario]\nparameters = \"plain\"\n{end}\n[topology]\nkind = \"single-switch\"\nhosts = 5\n\
             link_rate = \"8 Gb/s\"\n"
        )
    }

    fn read(text: &str) -> Scenario {
        Scenario::parse(text, "test").unwrap_or_else(|e| panic!("{e}")).scenario
    }

    #[test]
    fn more_rounds_senders_and_time_are_more_work() {
        let expected = |text: &str| expected_bytes(&read(text));
        let incast = "[[workload]]\nkind = \"incast\"\nsenders = 4\nreceiver = 4\nbytes = \"10 KB\"\nrounds = 3\n";
        assert_eq!(expected(&(scenario("") + incast)), 4.0 * 10e3 * 3.0);
        let endless = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n";
        // 1 GB/s for 2 ms.
        assert_eq!(expected(&(scenario("duration = \"2 ms\"") + endless)), 2e6);
        // Five hosts cannot send more than 5 GB/s in 2 us.
        assert_eq!(expected(&(scenario("duration = \"2 us\"") + incast)), 1e4);
    }

    #[test]
    fn a_path_goes_up_to_the_lowest_common_switch() {
        assert_eq!(mean_links_of_tree(&[5]), 2.0);
        // A fat tree of k = 4: one neighbour at the edge, two in the pod, twelve elsewhere.
        assert_eq!(mean_links_of_tree(&[2, 2, 4]), (2.0 + 2.0 * 4.0 + 12.0 * 6.0) / 15.0);
        assert_eq!(mean_links_of_tree(&[1]), 0.0);
    }

    #[test]
    fn packets_are_data_and_acknowledgements() {
        let flow = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1448 KB\"\n";
        let work = Work::expected(&read(&(scenario("") + flow))).unwrap();
        // 1,000 segments and half as many acknowledgements, on two links.
        assert!((work.packets - 1_500.0).abs() < 3.0, "{work:?}");
        assert_eq!(work.hops, 2.0 * work.packets);
        let udp = Work::expected(&read(&(scenario("") + flow + "transport = \"udp\"\n"))).unwrap();
        assert!((udp.packets - 1_000.0).abs() < 3.0, "{udp:?}");
    }

    #[test]
    fn receivers_take_no_more_than_their_links_carry() {
        let flow = |src: u32| format!("[[workload]]\nkind = \"flow\"\nsrc = {src}\ndst = 4\n");
        let of = |flows: &str| Work::expected(&read(&(scenario("duration = \"1 ms\"") + flows))).unwrap();
        let (one, four) = (of(&flow(0)), of(&(0..4).map(flow).collect::<String>()));
        assert!((four.packets / one.packets - 1.0).abs() < 0.05, "{one:?} {four:?}");
        // A fast receiver takes what all slow senders send.
        let links = "5 1 4\n4\n0 4 1Gbps 0.001ms 0\n1 4 1Gbps 0.001ms 0\n2 4 1Gbps 0.001ms 0\n3 4 10Gbps 0.001ms 0\n";
        let folder = std::env::temp_dir();
        let file = format!("sluicenet-slow-senders-{}.txt", std::process::id());
        std::fs::write(folder.join(&file), links).unwrap();
        let text = format!(
            "[scenario]\nparameters = \"plain\"\nduration = \"1 ms\"\n[topology]\nkind = \"hpcc\"\nfile = \"{file}\"\n\
             [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 3\n[[workload]]\nkind = \"flow\"\nsrc = 1\ndst = 3\n"
        );
        let slow = Scenario::parse_in(&text, "test", Some(&folder), &[]).map(|loaded| Work::expected(&loaded.scenario));
        std::fs::remove_file(folder.join(&file)).unwrap();
        // Two senders of 1 Gb/s: 250 kB in 1 ms, in segments of 1,448 B and half as many acknowledgements.
        let slow = slow.unwrap().unwrap();
        assert!((slow.packets / 259.0 - 1.0).abs() < 0.1, "{slow:?}");
        // Without a duration all of it arrives in the end.
        let bytes = |n: u32| (0..n).map(|src| flow(src) + "bytes = \"1 MB\"\n").collect::<String>();
        let of = |flows: &str| Work::expected(&read(&(scenario("") + flows))).unwrap();
        assert!((of(&bytes(4)).packets / of(&bytes(1)).packets - 4.0).abs() < 0.1);
    }

    #[test]
    fn work_beside_a_flow_without_end_lasts_as_long_as_the_finite_one() {
        let both = "[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n[[workload]]\nkind = \"flow\"\nsrc = 2\ndst = 3\n\
                    bytes = \"1 MB\"\n";
        let alone = "[[workload]]\nkind = \"flow\"\nsrc = 2\ndst = 3\nbytes = \"1 MB\"\n";
        let [both, alone] = [both, alone].map(|text| Work::expected(&read(&(scenario("") + text))).unwrap());
        assert!((both.packets / alone.packets - 2.0).abs() < 0.01, "{both:?} {alone:?}");
        assert!(both.is_open && !alone.is_open, "a timeout lengthens the one, and the other goes on");
    }
}
