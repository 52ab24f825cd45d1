//! Rate limiting (3.3): each flow may send at the capacity of its bottleneck divided by the senders through it, at any time.
//!
//! Rates change in rounds, once a timeslice, in which all reductions are sent before all increases. Between two rounds a
//! new flow starts at once if its share is still free on its whole path. Otherwise it starts in the next round, when the
//! others have made room for it.
//!
//! A permission lasts for several rounds, so that a lost directive does not stop a flow, and is renewed before it ends.

use super::flows::{FlowId, Flows};
use super::topology::{LinkId, Topology};
use super::{Grant, Limits, Node, Refused, WEIGHT_MAX};
use crate::time::{Duration, Instant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Rounds for which a permission lasts: two of its renewals may be lost.
const ROUNDS: u64 = 6;
/// Rounds after which a permission is renewed.
const RENEW: u64 = 2;
const _: () = assert!(ROUNDS >= 3 * RENEW);

#[derive(Clone, Copy, Debug)]
struct Flow {
    weight: u8,
    /// The rate that it was given; 0 before the first.
    given: u32,
    until: Instant,
    directive: u32,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    /// The sum of the weights of its flows.
    weights: u64,
    /// The sum of the rates that its flows were given.
    given: u64,
}

/// A policy of rates.
#[derive(Clone, Debug)]
pub struct Rates {
    topology: Topology,
    period: Duration,
    flows: Flows<Flow>,
    links: Vec<LinkState>,
    /// The next round, while there are flows.
    round: Option<Instant>,
    is_changed: bool,
    grants: VecDeque<Grant>,
}

impl Rates {
    /// A policy without flows, with a round every `period`.
    pub fn new(topology: Topology, period: Duration, limits: Limits) -> Rates {
        let links = (0..topology.links()).map(|_| LinkState { weights: 0, given: 0 }).collect();
        let flows = Flows::new(topology.nodes(), limits);
        let grants = VecDeque::with_capacity(topology.nodes() as usize);
        Rates { topology, period, flows, links, round: None, is_changed: false, grants }
    }

    /// Flows with backlog.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
    /// The network.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
    /// The rate that the flows of a direction were given together, in kb/s.
    pub fn given_kbps(&self, link: LinkId) -> u64 {
        self.links[link as usize].given
    }

    /// A node has frames that wait for a destination.
    ///
    /// # Errors
    /// There is no room for the flow.
    pub fn handle_backlog(&mut self, now: Instant, source: Node, to: Node, weight: u8) -> Result<(), Refused> {
        if self.flows.find(source, to).is_some() {
            return Ok(());
        }
        let weight = weight.clamp(1, WEIGHT_MAX);
        let f = self.flows.insert(source, to, Flow { weight, given: 0, until: now, directive: 0 })?;
        for link in self.topology.path(source, to) {
            self.links[link as usize].weights += u64::from(weight);
        }
        self.is_changed = true;
        self.round.get_or_insert(now + self.period);
        let share = self.share(f);
        let has_room = |link: LinkId| {
            self.links[link as usize].given + u64::from(share) <= u64::from(self.topology.capacity(link))
        };
        if self.topology.path(source, to).all(has_room) {
            self.give(now, f, share);
        }
        Ok(())
    }

    /// A node has no frames for a destination any more.
    pub fn handle_idle(&mut self, source: Node, to: Node) {
        if let Some(f) = self.flows.find(source, to) {
            self.remove(f);
        }
    }

    /// A node has left.
    pub fn remove_node(&mut self, node: Node) {
        while let Some(f) = self.flows.first(node) {
            self.remove(f);
        }
    }

    /// The next round.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.round
    }

    /// A round: reductions first, then increases.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.round.is_none_or(|at| at > now) {
            return;
        }
        self.round = (self.flows.len() > 0).then(|| now + self.period);
        let renew = now + self.period.saturating_mul(ROUNDS - RENEW);
        let is_changed = core::mem::take(&mut self.is_changed);
        for reduces in [true, false] {
            let mut place = 0;
            while let Some(f) = self.flows.at_or_after(place) {
                place = f + 1;
                let (share, Flow { given, until, .. }) = (self.share(f), self.flows[f]);
                let differs = is_changed && share != given;
                if (share < given) == reduces && (differs || until <= renew) {
                    self.give(now, f, share);
                }
            }
        }
    }

    /// The next directive to send.
    pub fn poll_grant(&mut self) -> Option<Grant> {
        self.grants.pop_front()
    }

    /// Remembers the sequence number of the directive of a flow.
    pub fn set_directive(&mut self, source: Node, to: Node, sequence: u32) {
        if let Some(f) = self.flows.find(source, to) {
            self.flows[f].directive = sequence;
        }
    }

    /// Whether this is the last directive of a flow.
    pub fn has_directive(&self, source: Node, to: Node, directive: u32) -> bool {
        self.flows.find(source, to).is_some_and(|f| self.flows[f].given > 0 && self.flows[f].directive == directive)
    }

    /// "The capacity of the bottleneck link divided by the number of senders through the bottleneck", by weights. At least
    /// 1 kb/s: a rate of 0 would mean the rate of the link.
    fn share(&self, f: FlowId) -> u32 {
        let (source, to) = self.flows.ends(f);
        let weight = u64::from(self.flows[f].weight);
        let of_link = |link: LinkId| {
            let all = self.links[link as usize].weights.max(weight);
            u64::from(self.topology.capacity(link)) * weight / all
        };
        self.topology.path(source, to).map(of_link).min().unwrap_or(0).max(1) as u32
    }

    fn give(&mut self, now: Instant, f: FlowId, rate: u32) {
        let (source, destination) = self.flows.ends(f);
        let before = core::mem::replace(&mut self.flows[f].given, rate);
        for link in self.topology.path(source, destination) {
            let given = &mut self.links[link as usize].given;
            *given = *given + u64::from(rate) - u64::from(before);
        }
        let length = self.period.saturating_mul(ROUNDS);
        self.flows[f].until = now + length;
        self.grants.push_back(Grant { source, destination, instead_of: None, rate_kbps: rate, length });
    }

    fn remove(&mut self, f: FlowId) {
        let (source, to) = self.flows.ends(f);
        let Flow { weight, given, .. } = self.flows[f];
        for link in self.topology.path(source, to) {
            let link = &mut self.links[link as usize];
            link.weights -= u64::from(weight);
            link.given -= u64::from(given);
        }
        self.is_changed = true;
        self.flows.remove(f);
    }
}
