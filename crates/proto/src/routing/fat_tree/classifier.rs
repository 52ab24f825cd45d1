//! The flow classifier: flows keep their port, and the largest flows of a loaded port are moved now and then (Al-Fares
//! 2012, 3.1.6, 3.4.2, figure 3.11).
//!
//! All its state is soft: a switch that loses it, or has no room for a flow, still forwards.

use super::ports::UpPorts;
use crate::rng::mix64;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Figure 3.11, caption: "t is 1 second".
pub const PERIOD: Duration = Duration::from_secs(1);

/// Flows that are moved in a period, at most (figure 3.11, line 18).
pub const MOVES_MAX: u32 = 3;

/// Periods without a packet after which a flow is forgotten. The source forgets no flow; after one period, flows that pause
/// briefly would be forgotten and perhaps reordered.
pub const AGE_PERIODS: u32 = 10;

/// Most flows that a switch remembers, at 64 bytes each. Other flows share the ports by a hash, and are neither counted nor
/// moved.
pub const FLOWS_MAX: usize = 1 << 16;

/// A flow: a hash of the fields that tell flows apart; the source takes both addresses.
pub type FlowKey = u64;

#[derive(Clone, Copy, Debug)]
struct Flow {
    port: u16,
    /// Bytes in the last period.
    last_bytes: u64,
    /// Bytes in the current period.
    now_bytes: u64,
    silent_periods: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Port {
    bytes: u64,
    flows: u32,
}

/// Counters of a classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows moved from the most to the least loaded port.
    pub moved: u64,
    /// Flows moved because their port became unusable.
    pub evaded: u64,
    /// Flows forgotten after silence.
    pub aged: u64,
    /// Packets of flows for which there was no room.
    pub unclassified: u64,
}

/// The classifier of one switch. Each packet comes with the set of usable upward ports: a link that is down costs infinity
/// (3.1.8).
#[derive(Clone, Debug)]
pub struct FlowClassifier {
    ports: Vec<Port>,
    flows: BTreeMap<FlowKey, Flow>,
    flows_max: usize,
    period: Duration,
    next: Instant,
    /// Salt of the switch. Together with a flow's hash it decides among equal ports, so that each switch decides
    /// independently.
    own: u64,
    /// The counters.
    pub counters: Counters,
}

impl FlowClassifier {
    /// A classifier of `ports` upward ports and at most `flows_max` flows; periods begin at `now`. `own` makes its choice
    /// among equal ports independent of other switches.
    pub fn new(now: Instant, ports: u16, period: Duration, flows_max: usize, own: u64) -> FlowClassifier {
        assert!(ports > 0 && period > Duration::ZERO);
        FlowClassifier {
            ports: alloc::vec![Port::default(); ports as usize],
            flows: BTreeMap::new(),
            flows_max,
            period,
            next: now + period,
            own: mix64(own.wrapping_add(1)),
            counters: Counters::default(),
        }
    }

    /// IncomingPacket: the upward port for a packet of `len_bytes`, chosen among the usable ports; `None` if there are
    /// none.
    pub fn handle_packet(&mut self, flow: FlowKey, len_bytes: u32, usable: UpPorts) -> Option<u16> {
        let usable = usable.and(UpPorts::first(self.ports.len() as u32));
        let bytes = u64::from(len_bytes);
        if let Some(f) = self.flows.get_mut(&flow) {
            f.now_bytes += bytes;
            f.silent_periods = 0;
            self.ports[f.port as usize].bytes += bytes;
            if usable.contains(f.port) {
                return Some(f.port);
            }
            let port = self.least_loaded(flow, usable)?;
            self.reassign(flow, port);
            self.counters.evaded += 1;
            return Some(port);
        }
        if self.flows.len() >= self.flows_max {
            self.counters.unclassified += 1;
            return nth(usable, mix64(flow ^ self.own));
        }
        let port = self.least_loaded(flow, usable)?;
        self.flows.insert(flow, Flow { port, last_bytes: 0, now_bytes: bytes, silent_periods: 0 });
        self.ports[port as usize].bytes += bytes;
        self.ports[port as usize].flows += 1;
        Some(port)
    }

    /// RearrangeFlows: at the end of a period at most three flows move to the least loaded port, if it is `usable` for
    /// them.
    pub fn handle_timeout(&mut self, now: Instant, usable: impl Fn(FlowKey) -> UpPorts) {
        if now < self.next {
            return;
        }
        // Periods without a call count as one long period.
        let missed = now.0.saturating_sub(self.next.0) / self.period.0;
        self.next += Duration(self.period.0 * (missed + 1));
        self.end_period();
        for _ in 0..MOVES_MAX {
            let Some((flow, to)) = self.worth_moving(&usable) else { break };
            self.reassign(flow, to);
            self.counters.moved += 1;
        }
    }

    /// When the next period ends.
    pub fn poll_timeout(&self) -> Instant {
        self.next
    }

    /// The port of a flow.
    pub fn port_of(&self, flow: FlowKey) -> Option<u16> {
        self.flows.get(&flow).map(|f| f.port)
    }

    /// Number of remembered flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes of the current and the last period, by port.
    pub fn loads_bytes(&self) -> impl Iterator<Item = u64> + '_ {
        self.ports.iter().map(|p| p.bytes)
    }

    fn end_period(&mut self) {
        let before = self.flows.len();
        self.flows.retain(|_, f| {
            f.last_bytes = core::mem::take(&mut f.now_bytes);
            f.silent_periods += u32::from(f.last_bytes == 0);
            f.silent_periods < AGE_PERIODS
        });
        self.counters.aged += (before - self.flows.len()) as u64;
        self.ports.fill(Port::default());
        for f in self.flows.values() {
            self.ports[f.port as usize].bytes += f.last_bytes;
            self.ports[f.port as usize].flows += 1;
        }
    }

    /// The least loaded port: by bytes, then by number of flows, then by a hash of the flow.
    fn least_loaded(&self, flow: FlowKey, usable: UpPorts) -> Option<u16> {
        let load = |p: u16| (self.ports[p as usize].bytes, self.ports[p as usize].flows);
        let least = usable.iter().map(load).min()?;
        let mut equal = UpPorts::NONE;
        usable.iter().filter(|&p| load(p) == least).for_each(|p| equal.insert(p));
        nth(equal, mix64(flow ^ self.own))
    }

    fn reassign(&mut self, flow: FlowKey, to: u16) {
        let Some(f) = self.flows.get_mut(&flow) else { return };
        let bytes = f.last_bytes + f.now_bytes;
        let from = core::mem::replace(&mut f.port, to) as usize;
        // The bytes counted before the period's end are the bytes counted here, so the result is never negative.
        self.ports[from].bytes -= bytes;
        self.ports[from].flows -= 1;
        self.ports[to as usize].bytes += bytes;
        self.ports[to as usize].flows += 1;
    }

    /// Figure 3.11, lines 19 to 23: the largest flow of the most loaded port that is smaller than the difference to the
    /// least loaded port; and the least loaded port.
    fn worth_moving(&self, usable: &impl Fn(FlowKey) -> UpPorts) -> Option<(FlowKey, u16)> {
        let loads = || self.ports.iter().enumerate().map(|(i, p)| (p.bytes, i as u16));
        let (most, from) = loads().max_by_key(|&(bytes, i)| (bytes, core::cmp::Reverse(i)))?;
        // A port that no flow of the most loaded port can use (because it is down, for example) does not count as the least
        // loaded.
        let flows = || self.flows.iter().filter(|(_, f)| f.port == from && f.last_bytes > 0);
        let anybodys = flows().fold(UpPorts::NONE, |all, (&key, _)| all.or(usable(key)));
        let (least, to) = loads().filter(|&(_, i)| anybodys.contains(i)).min()?;
        let difference = most - least;
        flows()
            .filter(|(key, f)| f.last_bytes < difference && usable(**key).contains(to))
            .max_by_key(|(key, f)| (f.last_bytes, core::cmp::Reverse(**key)))
            .map(|(&key, _)| (key, to))
    }
}

/// A port chosen by a hash.
fn nth(ports: UpPorts, hash: u64) -> Option<u16> {
    let n = ((u128::from(hash) * u128::from(ports.count())) >> 64) as usize;
    ports.iter().nth(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const ALL: fn(FlowKey) -> UpPorts = |_| UpPorts::first(2);

    fn classifier(ports: u16) -> FlowClassifier {
        FlowClassifier::new(Instant::ZERO, ports, PERIOD, 1_000, 0)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_flow_keeps_its_port_and_a_new_one_takes_the_least_loaded() {
        let mut c = classifier(2);
        let both = UpPorts::first(2);
        let first = c.handle_packet(1, 1_500, both);
        let second = first.map(|port| 1 - port);
        assert_eq!(c.handle_packet(2, 100, both), second);
        // 1,500 bytes against 100.
        assert_eq!(c.handle_packet(3, 100, both), second);
        for _ in 0..10 {
            assert_eq!(c.handle_packet(1, 1_500, both), first);
        }
    }

    /// Al-Fares 2012, table 3.1: the order of flows at one switch must not determine their ports at the next switch.
    #[test]
    fn among_equal_ports_each_flow_draws_at_each_switch() {
        let both = UpPorts::first(2);
        let draw = |flow, own| FlowClassifier::new(Instant::ZERO, 2, PERIOD, 10, own).handle_packet(flow, 64, both);
        let drawn: Vec<_> = (0..1_000).map(|flow| [0, 1, 2].map(|own| draw(flow, own) == Some(0))).collect();
        for which in 0..8 {
            let alike = drawn.iter().filter(|ports| (0..3).all(|i| ports[i] == (which >> i & 1 == 1))).count();
            assert!((90..160).contains(&alike), "{which:b}: {alike} of a thousand");
        }
    }

    #[test]
    fn rearrange_flows_of_figure_3_11() {
        let mut c = classifier(2);
        // One packet of each flow in turn; then the flows of port 0 grow.
        for flow in 1..=6 {
            c.handle_packet(flow, 100, UpPorts::first(2));
        }
        let zero: Vec<u64> = (1..=6).filter(|&f| c.port_of(f) == Some(0)).collect();
        let [a, b, d] = zero[..] else { panic!("{zero:?}") };
        let others: Vec<u64> = (1..=6).filter(|f| !zero.contains(f)).collect();
        for (flow, bytes) in [(a, 900), (b, 400), (d, 300)] {
            c.handle_packet(flow, bytes, UpPorts::first(2));
        }
        // Port 0: 1000 + 500 + 400; port 1: 300; D = 1600. The largest flow below D moves, the one of 1000: 900 against
        // 1300, D = 400. On port 1 the largest flow below 400 has 100: 1000 against 1200, D = 200. Another 100 moves: 1100
        // each.
        c.handle_timeout(at(1), ALL);
        assert_eq!((c.port_of(a), c.counters.moved), (Some(1), 3));
        assert_eq!(c.loads_bytes().collect::<Vec<_>>(), [1_100, 1_100]);
        assert_eq!(c.poll_timeout(), at(2));
        // The loads are balanced: no flow moves.
        for (flow, bytes) in [(a, 1_000), (b, 500), (d, 400)].into_iter().chain(others.into_iter().map(|f| (f, 100))) {
            c.handle_packet(flow, bytes, UpPorts::first(2));
        }
        c.handle_timeout(at(2), ALL);
        assert_eq!(c.counters.moved, 3);
    }

    #[test]
    fn a_single_elephant_is_not_thrown_to_and_fro() {
        let mut c = classifier(2);
        let port = c.handle_packet(7, 64, UpPorts::first(2));
        for second in 1..20 {
            c.handle_packet(7, 1_000_000, UpPorts::first(2));
            c.handle_timeout(at(second), ALL);
        }
        assert_eq!((c.port_of(7), c.counters.moved), (port, 0));
    }

    #[test]
    fn a_port_that_is_down_gets_nothing_and_its_flows_go_elsewhere() {
        let mut c = classifier(3);
        let all = UpPorts::first(3);
        for flow in 0..9 {
            c.handle_packet(flow, 1_000, all);
        }
        let mut usable = all;
        usable.remove(1);
        for flow in 0..9 {
            assert_ne!(c.handle_packet(flow, 1_000, usable), Some(1));
        }
        assert_eq!(c.counters.evaded, 3);
        c.handle_packet(0, 100_000, usable);
        c.handle_timeout(at(1), |_| usable);
        assert!((0..9).all(|f| c.port_of(f) != Some(1)), "nor are flows moved to it");
        assert!(c.counters.moved > 0);
        assert_eq!(c.handle_packet(0, 1_000, UpPorts::NONE), None);
        // A port number beyond the switch's ports is ignored.
        let mut beyond = UpPorts::NONE;
        beyond.insert(9);
        assert_eq!(c.handle_packet(0, 1_000, beyond), None);
    }

    #[test]
    fn silent_flows_are_forgotten_and_many_flows_need_no_more_memory() {
        let mut c = FlowClassifier::new(Instant::ZERO, 4, PERIOD, 100, 0);
        let mut spread = [0; 4];
        for flow in 0..100_000u64 {
            let port = c.handle_packet(flow, 64, UpPorts::first(4)).unwrap();
            assert_eq!(
                c.handle_packet(flow, 64, UpPorts::first(4)),
                Some(port),
                "also without room a flow keeps its port"
            );
            spread[port as usize] += 1;
        }
        assert_eq!((c.flows(), c.counters.unclassified), (100, 2 * 99_900));
        assert!(spread.iter().all(|&n| (24_000..26_000).contains(&n)), "{spread:?}");
        for second in 1..=u64::from(AGE_PERIODS) {
            assert_eq!(c.flows(), 100);
            c.handle_timeout(at(second), |_| UpPorts::first(4));
        }
        c.handle_timeout(at(11), |_| UpPorts::first(4));
        assert_eq!((c.flows(), c.counters.aged), (0, 100));
    }

    #[test]
    fn loads_are_the_sums_of_the_flows_whatever_happens() {
        let mut rng = Rng::from_words(&[11]);
        let mut c = FlowClassifier::new(Instant::ZERO, 5, PERIOD, 50, 3);
        let mut now = Instant::ZERO;
        for _ in 0..20_000 {
            let usable = (0..5).filter(|_| rng.below(4) > 0).fold(UpPorts::NONE, |mut set, p| {
                set.insert(p);
                set
            });
            if rng.below(50) == 0 {
                now += Duration(PERIOD.0 / 2 + rng.below(2 * PERIOD.0));
                c.handle_timeout(now, |_| usable);
            } else if let Some(port) = c.handle_packet(rng.below(70), rng.below(9_000) as u32, usable) {
                assert!(usable.contains(port));
            }
            let mut expected = [(0, 0); 5];
            for f in c.flows.values() {
                expected[f.port as usize].0 += f.last_bytes + f.now_bytes;
                expected[f.port as usize].1 += 1;
            }
            assert!(c.ports.iter().zip(expected).all(|(p, e)| (p.bytes, p.flows) == e));
        }
        assert!(c.counters.moved > 10 && c.counters.aged > 0 && c.counters.evaded > 10);
    }
}
