//! Compares two states of a switch: rates, and ports that wait for each other.

use super::status::{PortStatus, Status};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The rates of a port, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Frames from the port.
    pub frames_from: f64,
    /// Frames to the port.
    pub frames_to: f64,
    /// Bits from the port.
    pub bits_from: f64,
    /// Bits to the port.
    pub bits_to: f64,
    /// Times the port had to wait.
    pub held_back: f64,
    /// Frames from the port or for it that were dropped.
    pub dropped: f64,
}

impl Rates {
    /// The rates between two states, `seconds` apart. Counters that were reset count from zero.
    pub fn between(before: &PortStatus, now: &PortStatus, seconds: f64) -> Rates {
        let rate = |of: fn(&PortStatus) -> u64| {
            let (before, now) = (of(before), of(now));
            let grown = if now >= before { now - before } else { now };
            if seconds > 0.0 { grown as f64 / seconds } else { 0.0 }
        };
        Rates {
            frames_from: rate(|p| p.accepted),
            frames_to: rate(|p| p.delivered),
            bits_from: 8.0 * rate(|p| p.bytes_from),
            bits_to: 8.0 * rate(|p| p.bytes_to),
            held_back: rate(|p| p.held_back),
            dropped: rate(lost),
        }
    }
}

/// Frames dropped at a port, in either direction.
pub fn lost(port: &PortStatus) -> u64 {
    port.refused.values().chain(port.dropped.values()).sum()
}

/// Frames that wait for a port, in its queues and inside it.
pub fn queued(port: &PortStatus) -> u64 {
    port.output.iter().map(|&n| u64::from(n)).sum::<u64>() + u64::from(port.inside)
}

/// Frames of a port that wait at its input because their output is full.
pub fn held(port: &PortStatus) -> u64 {
    port.input.iter().map(|&n| u64::from(n)).sum()
}

/// A port in a tree of waiting ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The port's name.
    pub port: String,
    /// The ports that wait for this port.
    pub waiters: Vec<Waiting>,
    /// Whether the trees show this port in an earlier place too.
    pub again: bool,
}

/// The ports that wait for each other, as trees whose roots are ports that block others. Also returns the ports of each
/// cycle, in which each port waits for the next.
pub fn who_waits(status: &Status) -> (Vec<Waiting>, Vec<Vec<String>>) {
    let names: Vec<&str> = status.ports.iter().map(|p| p.name.as_str()).collect();
    let number: BTreeMap<&str, usize> = names.iter().enumerate().map(|(k, &name)| (name, k)).collect();
    let of = |p: &PortStatus| p.waits_for.iter().filter_map(|n| number.get(n.as_str()).copied()).collect();
    let waits_for: Vec<BTreeSet<usize>> = status.ports.iter().map(of).collect();
    let cycles = cycles(&waits_for);
    let mut shown = vec![false; names.len()];
    // First the ports that wait for no port, then one of each cycle, then the others.
    let is_waited_for = |k: usize| waits_for.iter().any(|w| w.contains(&k));
    let free = (0..names.len()).filter(|&k| waits_for[k].is_empty());
    let roots = free.chain(cycles.iter().map(|cycle| cycle[0])).chain(0..names.len());
    let mut trees = Vec::new();
    for root in roots {
        if is_waited_for(root) && !shown[root] {
            trees.push(tree(root, &names, &waits_for, &mut shown));
        }
    }
    (trees, cycles.iter().map(|cycle| cycle.iter().map(|&k| names[k].to_owned()).collect()).collect())
}

fn tree(k: usize, names: &[&str], waits_for: &[BTreeSet<usize>], shown: &mut [bool]) -> Waiting {
    let again = std::mem::replace(&mut shown[k], true);
    let waiters = if again { Vec::new() } else { (0..names.len()).filter(|&j| waits_for[j].contains(&k)).collect() };
    let waiters = waiters.into_iter().map(|j| tree(j, names, waits_for, shown)).collect();
    Waiting { port: names[k].to_owned(), waiters, again }
}

/// A shortest cycle through the first port of each strongly connected set of waiting ports.
fn cycles(waits_for: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut in_knot = vec![false; waits_for.len()];
    let mut cycles = Vec::new();
    for start in 0..waits_for.len() {
        // The reachable ports, and the first predecessor of each.
        let mut from = BTreeMap::new();
        let mut queue: std::collections::VecDeque<usize> = [start].into();
        while let Some(at) = queue.pop_front() {
            for &next in &waits_for[at] {
                from.entry(next).or_insert_with(|| {
                    queue.push_back(next);
                    at
                });
            }
        }
        let Some(&last) = from.get(&start) else { continue };
        if in_knot[start] {
            continue;
        }
        let mut cycle = vec![last];
        while cycle[cycle.len() - 1] != start {
            cycle.push(from[&cycle[cycle.len() - 1]]);
        }
        cycle.reverse();
        // Ports in the same set lead back to `start`.
        let reaches = |k: usize| {
            let mut seen = BTreeSet::from([k]);
            let mut stack = vec![k];
            while let Some(at) = stack.pop() {
                stack.extend(waits_for[at].iter().filter(|&&n| seen.insert(n)));
            }
            seen.contains(&start)
        };
        from.keys().filter(|&&k| reaches(k)).for_each(|&k| in_knot[k] = true);
        cycles.push(cycle);
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::status;

    fn waiting(ports: &[&str], edges: &[(&str, &str)]) -> (String, Vec<Vec<String>>) {
        let mut status = status(ports);
        for port in &mut status.ports {
            port.waits_for = edges.iter().filter(|e| e.0 == port.name).map(|e| e.1.to_owned()).collect();
        }
        let (trees, cycles) = who_waits(&status);
        fn text(w: &Waiting) -> String {
            let inner: Vec<String> = w.waiters.iter().map(text).collect();
            let again = if w.again { "*" } else { "" };
            if inner.is_empty() { w.port.clone() + again } else { format!("{}({})", w.port, inner.join(" ")) }
        }
        (trees.iter().map(text).collect::<Vec<_>>().join(" "), cycles)
    }

    #[test]
    fn chains_and_cycles_are_found() {
        assert_eq!(waiting(&["a", "b"], &[]), (String::new(), vec![]));
        assert_eq!(waiting(&["a", "b", "c"], &[("a", "c"), ("b", "a")]), ("c(a(b))".into(), vec![]));
        // A port that waits for two ports stands under both.
        let two = [("a", "c"), ("a", "d"), ("b", "a")];
        assert_eq!(waiting(&["a", "b", "c", "d"], &two), ("c(a(b)) d(a*)".into(), vec![]));
        let ring = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")];
        let cycle = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(waiting(&["a", "b", "c", "d"], &ring), ("a(c(b(a*)) d)".into(), vec![cycle]));
        // If a port of a cycle also waits for a port outside, the cycle stands under the port outside.
        let (text, cycles) = waiting(&["a", "b", "c"], &[("a", "b"), ("b", "a"), ("b", "c")]);
        assert_eq!((text.as_str(), cycles.len()), ("c(b(a(b*)))", 1));
        // Two separate sets of ports are two cycles; one set with two cycles counts as one.
        let knots = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("a", "c")];
        assert_eq!(waiting(&["a", "b", "c", "d"], &knots).1.len(), 2);
        assert_eq!(waiting(&["a", "b", "c"], &[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]).1.len(), 1);
    }

    #[test]
    fn rates_are_a_second_and_start_anew_with_the_port() {
        let (mut before, mut now) = (PortStatus::default(), PortStatus::default());
        (before.accepted, now.accepted, now.bytes_to) = (100, 300, 1_000);
        now.dropped.insert("watchdog".into(), 4);
        let rates = Rates::between(&before, &now, 2.0);
        assert_eq!((rates.frames_from, rates.bits_to, rates.dropped), (100.0, 4_000.0, 2.0));
        now.accepted = 40;
        assert_eq!(Rates::between(&before, &now, 2.0).frames_from, 20.0);
        assert_eq!(Rates::between(&before, &now, 0.0).frames_from, 0.0);
    }
}
