//! Algorithm 1 word by word, slow and with sets, as the model that [`Slices`](crate::xco::slices::Slices) is compared with.

use crate::xco::Node;
use crate::xco::topology::{LinkId, Topology};
use alloc::collections::{BTreeMap, BTreeSet};

/// The state between two scheduling events.
pub(super) struct Literal<'a> {
    pub topology: &'a Topology,
    /// Backlog groups.
    pub backlog: BTreeMap<Node, BTreeSet<Node>>,
    /// Transmission directives.
    pub directives: BTreeMap<Node, Node>,
    /// Nodes and destinations are taken in another order at each event ("must traverse the nodes in a different order").
    pub rotation: u32,
}

impl Literal<'_> {
    fn path(&self, s: Node, d: Node) -> BTreeSet<LinkId> {
        self.topology.path(s, d).collect()
    }

    /// The contention group of a link.
    fn beta(&self, link: LinkId) -> BTreeSet<Node> {
        let crosses = |s: Node, d: Node| self.path(s, d).contains(&link);
        self.backlog.iter().filter(|(s, of)| of.iter().any(|d| crosses(**s, *d))).map(|(s, _)| *s).collect()
    }

    /// The active contention group of a link.
    fn alpha(&self, link: LinkId) -> BTreeSet<Node> {
        self.directives.iter().filter(|(s, d)| self.path(**s, **d).contains(&link)).map(|(s, _)| *s).collect()
    }

    fn rate(&self, x: Node) -> u64 {
        u64::from(self.topology.capacity(self.topology.first_link(x, x)))
    }

    fn is_feasible(&self, x: Node, link: LinkId) -> bool {
        let mut group = self.alpha(link);
        group.insert(x);
        group.iter().map(|&y| self.rate(y)).sum::<u64>() <= u64::from(self.topology.capacity(link))
    }

    /// Algorithm 1 for an event of node `t`. `is_idle` tells whether it is one of work conservation.
    pub fn event(&mut self, t: Node, is_idle: bool) {
        self.rotation += 1;
        // Lines 12 to 17.
        let mut affected = BTreeSet::new();
        for &d in self.backlog.get(&t).into_iter().flatten() {
            for link in self.path(t, d) {
                affected.extend(self.beta(link));
            }
        }
        // Lines 18 to 25: alpha follows from the directives.
        if let Some(old) = self.directives.remove(&t)
            && is_idle
            && let Some(of) = self.backlog.get_mut(&t)
        {
            of.remove(&old);
        }
        let mut scheduled = BTreeSet::new();
        // Lines 27 to 57.
        while let Some(x) = self.some_node(&affected) {
            let destinations = self.backlog.get(&x).cloned().unwrap_or_default();
            let from = self.rotation % self.topology.nodes();
            let in_turn = destinations.range(from..).chain(destinations.range(..from));
            for &d in in_turn {
                if self.path(x, d).iter().any(|&link| !self.is_feasible(x, link)) {
                    continue;
                }
                if let Some(old) = self.directives.insert(x, d) {
                    let kept = self.path(x, d);
                    for link in self.path(x, old).difference(&kept) {
                        affected.extend(self.beta(*link).difference(&scheduled));
                    }
                }
                scheduled.insert(x);
                break;
            }
            affected.remove(&x);
        }
    }

    /// Line 28, in rotation.
    fn some_node(&self, affected: &BTreeSet<Node>) -> Option<Node> {
        let from = self.rotation.wrapping_mul(7) % self.topology.nodes();
        affected.range(from..).next().or_else(|| affected.iter().next()).copied()
    }
}
