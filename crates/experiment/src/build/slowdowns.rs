//! Links that are slower for some time.

use super::Plan;
use sluicenet_node::device::PortId;
use sluicenet_node::link::NodeId;
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{Quantity, Result, Scenario};
use std::collections::BTreeMap;

/// A direction of a link, by its sender.
pub(crate) type Sender = (NodeId, PortId);

/// A slowdown of one direction.
#[derive(Clone, Copy, Debug)]
struct Slow {
    sender: Sender,
    rate: Rate,
    from: Instant,
    until: Instant,
}

/// The slowdowns of a scenario.
#[derive(Debug)]
pub struct Slowdowns {
    slow: Vec<Slow>,
    /// Times at which anything changes, the next one last.
    changes: Vec<Instant>,
    /// The rate of each direction that is ever slower.
    own: BTreeMap<Sender, Rate>,
}

impl Slowdowns {
    /// The slowdowns of a scenario, if it has any.
    ///
    /// # Errors
    /// A port that its switch does not have, or a rate that is not below that of the link.
    pub fn of(s: &Scenario, plan: &Plan) -> Result<Option<Slowdowns>> {
        let (mut slow, mut own) = (Vec::new(), BTreeMap::new());
        for (i, slowdown) in s.slowdowns.iter().enumerate() {
            let key = |name: &str| format!("slowdown.{i}.{name}");
            let ends = plan.ports_of(s, &key("port"), slowdown.port)?;
            for (node, port) in ends {
                let usual = plan.rate(node, port);
                if slowdown.rate.as_bps() >= usual.as_bps() {
                    let message = format!(
                        "a rate of {} is no slowdown of {} port {port}",
                        slowdown.rate.written(),
                        plan.name(node)
                    );
                    let error = s.locations.error(&key("rate"), message);
                    return Err(error.expected(format!("less than {}", usual.written())));
                }
                let until = slowdown.until.map_or(Instant::MAX, |until| Instant(until.as_ps()));
                for sender in [(node, port), plan.peer(node, port)] {
                    own.insert(sender, usual);
                    slow.push(Slow { sender, rate: slowdown.rate, from: Instant(slowdown.at.as_ps()), until });
                }
            }
        }
        let mut changes: Vec<Instant> = slow.iter().flat_map(|slow| [slow.from, slow.until]).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        changes.dedup();
        Ok((!slow.is_empty()).then_some(Slowdowns { slow, changes, own }))
    }

    /// When anything changes next.
    pub(crate) fn next_event(&self) -> Instant {
        self.changes.last().copied().unwrap_or(Instant::MAX)
    }

    /// The rates of all directions that are ever slower, as they are at `now`: the lowest where slowdowns overlap.
    pub(crate) fn turn(&mut self, now: Instant) -> BTreeMap<Sender, Rate> {
        while self.changes.pop_if(|at| *at <= now).is_some() {}
        let mut rates = self.own.clone();
        for slow in self.slow.iter().filter(|slow| slow.from <= now && now < slow.until) {
            if let Some(rate) = rates.get_mut(&slow.sender) {
                *rate = Rate(rate.as_bps().min(slow.rate.as_bps()));
            }
        }
        rates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::time::Duration;

    fn slowdowns(tables: &str) -> Result<Option<Slowdowns>> {
        let text = format!(
            "[topology]\nkind = \"single-switch\"\nhosts = 3\n{tables}\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\n\
             bytes = \"1 KB\"\n"
        );
        let scenario = Scenario::parse(&text, "t")?.scenario;
        Slowdowns::of(&scenario, &Plan::new(&scenario)?)
    }

    fn mbps(slowdowns: &mut Slowdowns, ms: u64) -> Vec<(Sender, u64)> {
        let rates = slowdowns.turn(Instant(Duration::from_ms(ms).0));
        rates.into_iter().map(|(sender, rate)| (sender, rate.as_bps() / 1_000_000)).collect()
    }

    #[test]
    fn both_directions_are_slower_and_the_lowest_rate_counts() {
        let mut slow = slowdowns(
            "[[slowdown]]\nport = \"switch 0 port 1\"\nrate = \"5 Gb/s\"\nat = \"10 ms\"\nuntil = \"30 ms\"\n\
             [[slowdown]]\nport = \"host 1\"\nrate = \"2 Gb/s\"\nat = \"20 ms\"\n",
        )
        .unwrap()
        .unwrap();
        // Host 1 and port 1 of the switch, box 3.
        let both = |mbps: u64| vec![((1, 0), mbps), ((3, 1), mbps)];
        assert_eq!(slow.next_event(), Instant(Duration::from_ms(10).0));
        assert_eq!(
            (mbps(&mut slow, 10), mbps(&mut slow, 20), mbps(&mut slow, 30)),
            (both(5_000), both(2_000), both(2_000))
        );
        assert_eq!(slow.next_event(), Instant::MAX);
    }

    #[test]
    fn a_slowdown_is_slower_and_names_a_port() {
        let error = |tables: &str| slowdowns(tables).unwrap_err().to_string();
        let fast = error("[[slowdown]]\nport = \"switch 0\"\nrate = \"10 Gb/s\"\n");
        assert!(fast.contains("no slowdown of switch 0 port 0") && fast.contains("less than 10 Gb/s"), "{fast}");
        let nowhere = error("[[slowdown]]\nport = \"switch 0 port 3\"\nrate = \"1 Gb/s\"\n");
        assert!(nowhere.contains("ports 0 to 2"), "{nowhere}");
        assert!(slowdowns("").unwrap().is_none());
    }
}
