//! A fourth neighbour generator: a host whose flows collide, and the host whose core gives these flows the fewest
//! collisions.
//!
//! In a permutation of thousands of hosts few collisions are left after some rounds. A random pair of hosts then rarely
//! contains a colliding host and a host whose core helps it.

use super::{Annealing, Inflow, Swap, over};
use crate::hedera::Host;
use crate::rng::Rng;
use alloc::vec;
use alloc::vec::Vec;

/// Most swaps whose energy is compared, among those that are equally good for the host itself.
const COMPARED_MAX: usize = 4;

/// Hosts with flows that may cross an exceeded link. Each exceeded link has at least one: hosts that crossed one at the
/// beginning, and hosts moved since. A drawn host that crosses none is removed.
#[derive(Clone, Debug)]
pub(super) struct Crowded {
    hosts: Vec<Host>,
    is_in: Vec<bool>,
}

impl Crowded {
    pub(super) fn new(hosts: usize) -> Crowded {
        Crowded { hosts: Vec::new(), is_in: vec![false; hosts] }
    }

    pub(super) fn state_bytes(&self) -> usize {
        self.hosts.capacity() * size_of::<Host>() + self.is_in.len()
    }

    fn clear(&mut self) {
        self.hosts.clear();
        self.is_in.fill(false);
    }

    #[inline(always)]
    pub(super) fn add(&mut self, host: Host) {
        if !core::mem::replace(&mut self.is_in[host as usize], true) {
            self.hosts.push(host);
        }
    }

    #[inline(always)]
    fn remove(&mut self, at: usize) {
        let host = self.hosts.swap_remove(at);
        self.is_in[host as usize] = false;
    }
}

impl Annealing {
    /// Finds the hosts whose flows cross exceeded links in the current state.
    pub(super) fn find_crowded(&mut self) {
        self.crowded.clear();
        for host in 0..self.tree.hosts() {
            if self.collision(host, |_| 0).is_some() {
                self.crowded.add(host);
            }
        }
    }

    /// One of the flows to a host that cross an exceeded link, if there is one; `draw` returns the index to start from,
    /// below the given number.
    #[inline(always)]
    fn collision(&self, host: Host, draw: impl FnOnce(u64) -> u64) -> Option<Inflow> {
        let inflows = &self.inflows[Annealing::inflows_of(&self.begins, host)];
        if inflows.is_empty() {
            return None;
        }
        let (before, after) = inflows.split_at(draw(inflows.len() as u64) as usize);
        let (core, own) = (self.core_of(host) as usize, self.tree.pod_of(host) as usize);
        let a = self.aggregation_of[core] as usize;
        let (n, row) = (self.tree.aggregations_per_pod as usize, core * self.tree.pods as usize);
        let mut from_first = after.iter().chain(before);
        let up = from_first.clone().find(|inflow| {
            let pod = inflow.pod as usize;
            self.edge_up[inflow.edge as usize * n + a] > 0 || (pod != own && self.core_up[row + pod] > 0)
        });
        let is_down = || {
            let total = self.totals[host as usize];
            let edge = self.tree.edge_of(host) as usize;
            (self.edge_down[edge * n + a] > 0 && total.edges > 0) || (self.core_down[row + own] > 0 && total.pods > 0)
        };
        up.or_else(|| from_first.next().filter(|_| is_down())).copied()
    }

    /// A swap that takes flows off an exceeded link; `None` if there is no such link or no other host to swap with.
    #[inline(always)]
    pub(super) fn aimed(&mut self, rng: &mut Rng) -> Option<Swap> {
        let (host, inflow) = loop {
            if self.crowded.hosts.is_empty() {
                return None;
            }
            let at = rng.below(self.crowded.hosts.len() as u64) as usize;
            let host = self.crowded.hosts[at];
            match self.collision(host, |n| rng.below(n)) {
                Some(inflow) => break (host, inflow),
                None => self.crowded.remove(at),
            }
        };
        let t = self.tree;
        let (n, pods, pod) = (t.aggregations_per_pod as usize, t.pods as usize, t.pod_of(host) as usize);
        let own = self.aggregation_of[self.core_of(host) as usize] as usize;
        let (up, down) = (inflow.edge as usize * n, t.edge_of(host) as usize * n);
        let is_at_edge = self.edge_up[up + own] > 0 || self.edge_down[down + own] > 0;
        // Hosts of the same edge switch have other aggregation switches, and a swap leaves the links down from there
        // equally full. Hosts with the same aggregation switch leave all links at the edge unchanged. Now and then the
        // choice is reversed.
        let by_edge = is_at_edge != (rng.below(4) == 0);
        let (first, among) = if by_edge {
            ((t.edge_of(host) * t.hosts_per_edge) as usize, t.hosts_per_edge as usize)
        } else {
            let at = pod * (n + 1) + own;
            (self.reached_by[at] as usize, (self.reached_by[at + 1] - self.reached_by[at]) as usize)
        };
        let passing = if inflow.pod as usize == pod { 0 } else { inflow.weight };
        let skipped = rng.below(among as u64) as usize;
        let (mut least, mut others, mut len) = (i64::MAX, [0; COMPARED_MAX], 0);
        for at in (skipped..among).chain(0..skipped) {
            let other = if by_edge { (first + at) as Host } else { self.host_at[first + at] };
            if other == host {
                continue;
            }
            let core = self.core_of(other) as usize;
            let a = self.aggregation_of[core] as usize;
            let mut exceeded = over(self.core_up[core * pods + inflow.pod as usize] + passing) as i64;
            if a != own {
                exceeded += over(self.edge_up[up + a] + inflow.weight) as i64;
            }
            if exceeded < least {
                (least, len) = (exceeded, 0);
            }
            if exceeded == least && len < COMPARED_MAX {
                others[len] = other;
                len += 1;
            }
        }
        let swaps = others.map(|other| self.between([host, other]));
        swaps.into_iter().take(len).min_by_key(|swap| self.try_swap(swap))
    }
}
