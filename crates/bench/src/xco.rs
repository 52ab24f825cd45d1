//! How long XCo's controller takes for a decision, on the tree of racks and rows of Rajanna et al., 5.2.

use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_proto::xco::controller::{Controller, ControllerConfig, PolicyConfig, Weights};
use sluicenet_proto::xco::slices::SliceConfig;
use sluicenet_proto::xco::topology::{Link, LinkId, Topology, TopologyError};
use sluicenet_proto::xco::{Limits, Node};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::{Change, Entry, Frame, Head, Message, Repr};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Instant as Clock;

/// Machines of a rack, racks of a row, and rates in kb/s (5.2).
const RACK: u32 = 20;
const ROW: u32 = 10;
const HOST_KBPS: u32 = 1_000_000;
const UP_KBPS: u32 = 10_000_000;
/// One in this many slices is given back early.
const RETURNS: u64 = 8;
/// Decisions between two samples of the links.
const SAMPLE: u64 = 64;

/// Settings of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Xco {
    /// Machines.
    pub hosts: u32,
    /// 1: half of the machines send to the other half, as in the source. More: each machine sends to so many others.
    pub flows: u32,
    /// Decisions.
    pub decisions: u64,
    /// The timeslice.
    pub slice: Duration,
    /// Seed of destinations and of returned slices.
    pub seed: u64,
}

/// The measured figures.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Figures {
    /// Machines.
    pub hosts: u32,
    /// Flows with backlog at the end.
    pub flows: usize,
    /// Scheduling events.
    pub decisions: u64,
    /// Directives sent.
    pub directives: u64,
    /// Flows looked at for a decision, on average.
    pub visited: f64,
    /// From a message or the end of a slice to the last directive that follows from it: half of all decisions take less.
    pub decision_p50_us: f64,
    /// 99 % take less.
    pub decision_p99_us: f64,
    /// 99.9 % take less.
    pub decision_p999_us: f64,
    /// The longest.
    pub decision_max_us: f64,
    /// Allowed rate over capacity, on the most loaded links: those between rows and the core.
    pub utilisation: f64,
    /// Virtual time.
    pub simulated_s: f64,
}

fn mac(node: Node) -> MacAddress {
    MacAddress::local(node + 1)
}

/// The tree, and the links from rows to the core.
fn tree(hosts: u32) -> Result<(Topology, Vec<LinkId>), TopologyError> {
    let racks = hosts.div_ceil(RACK);
    let rows = racks.div_ceil(ROW);
    let core = hosts + racks + rows;
    let link = |a, b, kbps| Link { ends: [a, b], kbps };
    let mut links: Vec<Link> = (0..hosts).map(|n| link(n, hosts + n / RACK, HOST_KBPS)).collect();
    links.extend((0..racks).map(|rack| link(hosts + rack, hosts + racks + rack / ROW, UP_KBPS)));
    let first = links.len() as LinkId;
    links.extend((0..rows).map(|row| link(hosts + racks + row, core, UP_KBPS)));
    let mut topology = Topology::new(hosts, core as usize + 1, &links)?;
    topology.add_tree(core)?;
    // Of rows that send in the source's pattern.
    let up = (0..rows.div_ceil(2)).map(|row| 2 * (first + row)).collect();
    Ok((topology, up))
}

/// A coordinator as far as the controller sees it.
struct Sender {
    token: u32,
    sequence: u32,
}

struct Bench {
    controller: Controller,
    senders: Vec<Sender>,
    now: Instant,
    rng: Rng,
    slice: Duration,
    /// Slices that will be given back, and flows that will have frames again.
    returns: BinaryHeap<Reverse<(Instant, Node, Node, u32)>>,
    reports: BinaryHeap<Reverse<(Instant, Node, Node)>>,
    /// Directives of this event.
    sent: Vec<(MacAddress, Node, u32)>,
    times_ns: Vec<u32>,
}

impl Bench {
    /// One event, timed from its message to the last directive.
    fn decide(&mut self, event: impl FnOnce(&mut Controller, Instant)) {
        let begun = Clock::now();
        event(&mut self.controller, self.now);
        while let Some(out) = self.controller.poll_transmit(self.now) {
            if let Message::Directive { destination, .. } = out.message {
                self.sent.push((out.to, destination, out.head.sequence));
            }
        }
        self.times_ns.push(begun.elapsed().as_nanos() as u32);
        for (to, destination, sequence) in std::mem::take(&mut self.sent) {
            self.on_directive(to, destination, sequence);
        }
    }

    fn on_directive(&mut self, to: MacAddress, destination: Node, sequence: u32) {
        let MacAddress([_, _, a, b, c, d]) = to;
        let node = u32::from_be_bytes([a, b, c, d]) - 1;
        if self.rng.below(RETURNS) == 0 {
            let at = self.now + Duration(self.rng.below(self.slice.0 * 9 / 10));
            self.returns.push(Reverse((at, node, destination, sequence)));
        }
    }

    fn head(&mut self, node: Node) -> Head {
        let sender = &mut self.senders[node as usize];
        sender.sequence += 1;
        Head { epoch: 1, sequence: sender.sequence, token: sender.token, clock_ns: 0 }
    }

    fn report(&mut self, node: Node, destinations: &[Node]) {
        let entry = |&destination: &Node| Entry { destination, change: Change::Backlogged };
        let entries: Vec<Entry> = destinations.iter().map(entry).collect();
        let head = self.head(node);
        let frame = Frame::report(mac(0), mac(node), &head, &entries);
        let Ok(repr) = Repr::parse(frame.as_bytes()) else { return };
        self.decide(|controller, now| controller.handle(now, mac(node), &repr.head, &repr.message));
    }

    /// The next event.
    fn step(&mut self) {
        let next_return = self.returns.peek().map_or(Instant::MAX, |next| next.0.0);
        let next_report = self.reports.peek().map_or(Instant::MAX, |next| next.0.0);
        let timeout = self.controller.poll_timeout();
        self.now = self.now.max(next_return.min(next_report).min(timeout));
        if timeout <= self.now {
            self.decide(Controller::handle_timeout);
        } else if next_return <= self.now
            && let Some(Reverse((_, node, destination, directive))) = self.returns.pop()
        {
            let head = self.head(node);
            let message = Message::Return { destination, directive };
            self.decide(|controller, now| controller.handle(now, mac(node), &head, &message));
            let again = self.now + Duration::from_us(50 + self.rng.below(1_000));
            self.reports.push(Reverse((again, node, destination)));
        } else if let Some(Reverse((_, node, destination))) = self.reports.pop() {
            self.report(node, &[destination]);
        }
    }
}

/// Measures decisions one by one.
///
/// # Errors
/// Too few or too many machines.
pub fn run(what: &Xco) -> Result<Figures, TopologyError> {
    let Xco { hosts, flows, decisions, slice, seed } = *what;
    let (topology, up) = tree(hosts)?;
    let capacity: u64 = up.iter().map(|&link| u64::from(topology.capacity(link))).sum();
    let config = ControllerConfig {
        policy: PolicyConfig::Slices(SliceConfig::new(slice)),
        limits: Limits { flows: (hosts * flows) as usize + 1, flows_per_node: flows.max(64) as usize },
        // Nobody falls silent here.
        lease: Duration::from_secs(1_000_000),
        on_demand: false,
        weights: Weights::default(),
        nodes: Vec::new(),
        peer: None,
        hierarchy: None,
        seed,
    };
    let controller = Controller::new(Instant::ZERO, topology, config, 1, false);
    let senders = (0..hosts).map(|_| Sender { token: 0, sequence: 1 }).collect();
    let mut bench = Bench {
        controller,
        senders,
        now: Instant::ZERO,
        rng: Rng::from_words(&[seed, hosts.into()]),
        slice,
        returns: BinaryHeap::new(),
        reports: BinaryHeap::new(),
        sent: Vec::new(),
        times_ns: Vec::with_capacity(decisions as usize + 4 * hosts as usize),
    };
    for node in 0..hosts {
        let join = Message::Join { node, rate_kbps: HOST_KBPS, nonce: node };
        bench.controller.handle(bench.now, mac(node), &Head { sequence: 1, ..Head::default() }, &join);
        while let Some(out) = bench.controller.poll_transmit(bench.now) {
            bench.senders[node as usize].token = out.head.token;
        }
    }
    let half = hosts / 2;
    for node in 0..if flows == 1 { half } else { hosts } {
        // Machines do not begin at one instant.
        bench.now += Duration::from_ns(100 + bench.rng.below(1_000));
        let to: Vec<Node> = match flows {
            1 => vec![node + half],
            _ => {
                let mut to = BTreeSet::new();
                while to.len() < flows.min(hosts - 1) as usize {
                    to.insert((node + 1 + bench.rng.below(u64::from(hosts) - 1) as u32) % hosts);
                }
                to.into_iter().collect()
            }
        };
        bench.report(node, &to);
    }
    // The start is none of what is measured.
    bench.times_ns.clear();
    let visited = |bench: &Bench| bench.controller.slice_counters().map_or(0, |counters| counters.visited);
    let (visited_before, directives) = (visited(&bench), bench.controller.counters().directives);
    let begun = bench.now;
    let (mut allowed, mut samples) = (0u64, 0u64);
    for n in 0..decisions {
        bench.step();
        if n % SAMPLE == 0 {
            allowed += up.iter().map(|&link| bench.controller.allowed_kbps(link)).sum::<u64>();
            samples += 1;
        }
    }
    let visits = visited(&bench) - visited_before;
    bench.times_ns.sort_unstable();
    let at = |part: f64| {
        let last = bench.times_ns.len().saturating_sub(1);
        bench.times_ns.get((last as f64 * part) as usize).map_or(0.0, |&ns| f64::from(ns) / 1e3)
    };
    Ok(Figures {
        hosts,
        flows: bench.controller.flows(),
        decisions,
        directives: bench.controller.counters().directives - directives,
        visited: visits as f64 / decisions as f64,
        decision_p50_us: at(0.5),
        decision_p99_us: at(0.99),
        decision_p999_us: at(0.999),
        decision_max_us: at(1.0),
        utilisation: allowed as f64 / (capacity * samples.max(1)) as f64,
        simulated_s: bench.now.since(begun).as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_small_tree() {
        let what = Xco { hosts: 400, flows: 1, decisions: 3_000, slice: Duration::from_ms(2), seed: 1 };
        let f = run(&what).unwrap();
        assert!(f.utilisation > 0.95 && f.utilisation <= 1.0, "{f:?}");
        assert!(f.directives > 2_000 && f.decision_p50_us > 0.0 && f.decision_p99_us >= f.decision_p50_us, "{f:?}");
        let again = run(&what).unwrap();
        assert_eq!((f.directives, f.visited, f.utilisation), (again.directives, again.visited, again.utilisation));
        let many = run(&Xco { flows: 6, ..what }).unwrap();
        assert!(many.flows > 2_000 && many.directives > 2_000, "{many:?}");
    }
}
