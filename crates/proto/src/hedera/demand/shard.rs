//! Some of the hosts: their flows by source and by destination, and the two passes over them.

use super::{Board, Host, LINK, Pair};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

/// Most hosts: their numbers have 20 bits.
pub(super) const HOSTS_MAX: u32 = 1 << 20;

/// Most flows of one entry; more flows between two hosts make several entries.
pub(super) const FLOWS_MAX: u32 = (1 << 11) - 1;

/// A pair in the list of one of its ends, packed into one word, because the speed of an estimate depends on how many pairs
/// fit into a cache. It has the other end, whether the pair has converged (in the source's list), and the number of flows.
#[derive(Clone, Copy, Debug)]
struct Entry(u32);

impl Entry {
    const CONVERGED: u32 = HOSTS_MAX;
    const FLOW: u32 = 2 * HOSTS_MAX;

    #[inline(always)]
    fn other(self) -> usize {
        (self.0 % HOSTS_MAX) as usize
    }
    #[inline(always)]
    fn is_converged(self) -> bool {
        self.0 & Entry::CONVERGED != 0
    }
    #[inline(always)]
    fn flows(self) -> u32 {
        self.0 / Entry::FLOW
    }
}

/// All bits or none: a mask for a number of flows, in place of a branch that would be mispredicted half of the time.
#[inline(always)]
fn mask(is: bool) -> u32 {
    (is as u32).wrapping_neg()
}

const _: () = assert!(FLOWS_MAX == u32::MAX / Entry::FLOW);

/// Pairs by the host at one of their ends.
#[derive(Debug, Default)]
struct Lists {
    /// Offset of each host's first pair, and an end.
    begins: Vec<u32>,
    pairs: Vec<Entry>,
    /// Offset of each host's first flow, and an end.
    flow_begins: Vec<u32>,
    /// Other end of each flow.
    others: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct Shard {
    hosts: Range<usize>,
    by_source: Lists,
    /// By flow in source order: its index in the input, and its pair.
    given: Vec<u32>,
    pair_of: Vec<u32>,
    /// Unconverged pairs come first.
    by_destination: Lists,
    /// By destination: number of unconverged pairs.
    open: Vec<u32>,
    /// By destination: number of converged flows.
    converged_flows: Vec<u32>,
    /// By host, while pairs are made: the other end of its latest pair and the index of that pair.
    seen: Vec<u64>,
    /// Shares of the pairs of the current destination; as long as the longest list.
    shares: Vec<u32>,
    /// Pairs of the current destination that converge; as long.
    leaving: Vec<Entry>,
    flows: usize,
}

impl Lists {
    /// Turns counts into offsets: the index of the next flow of each host.
    fn prefix_sums(&mut self) {
        let mut sum = 0;
        for begin in &mut self.flow_begins {
            sum += core::mem::replace(begin, sum);
        }
        self.others.resize(sum as usize, 0);
    }

    /// Stores the other end of a host's next flow; returns the index.
    #[inline(always)]
    fn put(&mut self, host: usize, other: u32) -> usize {
        let at = self.flow_begins[host] as usize;
        self.flow_begins[host] += 1;
        self.others[at] = other;
        at
    }

    /// Merges flows with the same ends into pairs.
    fn pair(&mut self, seen: &mut [u64], mut each: impl FnMut(u32)) {
        seen.fill(0);
        self.begins.clear();
        self.pairs.clear();
        let mut begin = 0;
        // Each offset has advanced to the beginning of the next host's flows.
        for (host, &end) in self.flow_begins[..self.flow_begins.len() - 1].iter().enumerate() {
            self.begins.push(self.pairs.len() as u32);
            for &other in &self.others[begin..end as usize] {
                let last = seen[other as usize];
                let mut pair = last as u32;
                if (last >> 32) as usize == host + 1 && self.pairs[pair as usize].flows() < FLOWS_MAX {
                    self.pairs[pair as usize].0 += Entry::FLOW;
                } else {
                    pair = self.pairs.len() as u32;
                    seen[other as usize] = (host as u64 + 1) << 32 | pair as u64;
                    self.pairs.push(Entry(other | Entry::FLOW));
                }
                each(pair);
            }
            begin = end as usize;
        }
        self.begins.push(self.pairs.len() as u32);
    }

    fn of(&self, host: usize) -> Range<usize> {
        self.begins[host] as usize..self.begins[host + 1] as usize
    }

    fn state_bytes(&self) -> usize {
        let words = self.begins.capacity() + self.flow_begins.capacity() + self.others.capacity();
        words * size_of::<u32>() + self.pairs.capacity() * size_of::<Entry>()
    }
}

impl Shard {
    pub(super) fn new(hosts: Range<usize>, all: usize) -> Shard {
        Shard {
            hosts,
            by_source: Lists::default(),
            given: Vec::new(),
            pair_of: Vec::new(),
            by_destination: Lists::default(),
            open: Vec::new(),
            converged_flows: Vec::new(),
            seen: vec![0; all],
            shares: Vec::new(),
            leaving: Vec::new(),
            flows: 0,
        }
    }

    pub(super) fn hosts(&self) -> Range<usize> {
        self.hosts.clone()
    }

    /// Stores the flows from and to the hosts of this shard.
    pub(super) fn fill(&mut self, flows: &[(Host, Host)]) {
        assert!(flows.len() < u32::MAX as usize);
        let (first, hosts) = (self.hosts.start as u32, self.hosts.len());
        for lists in [&mut self.by_source, &mut self.by_destination] {
            lists.flow_begins.clear();
            lists.flow_begins.resize(hosts + 1, 0);
        }
        // Hosts of other shards are counted at the end, where they do not affect the hosts before.
        let own = |host: Host| (host.wrapping_sub(first) as usize).min(hosts);
        for &(src, dst) in flows {
            self.by_source.flow_begins[own(src)] += 1;
            self.by_destination.flow_begins[own(dst)] += 1;
        }
        for lists in [&mut self.by_source, &mut self.by_destination] {
            lists.flow_begins[hosts] = 0;
            lists.prefix_sums();
        }
        self.flows = self.by_source.others.len();
        self.given.resize(self.flows, 0);
        for (flow, &(src, dst)) in flows.iter().enumerate() {
            if own(src) < hosts {
                let at = self.by_source.put(own(src), dst);
                self.given[at] = flow as u32;
            }
            if own(dst) < hosts {
                self.by_destination.put(own(dst), src);
            }
        }
        self.pair_of.clear();
        self.by_source.pair(&mut self.seen, |pair| self.pair_of.push(pair));
        self.by_destination.pair(&mut self.seen, |_| {});
        self.open.clear();
        self.open.extend(self.by_destination.begins.windows(2).map(|b| b[1] - b[0]));
        self.converged_flows.clear();
        self.converged_flows.resize(hosts, 0);
        let most = self.open.iter().copied().max().unwrap_or(0);
        self.shares.resize(most as usize, 0);
        self.leaving.resize(most as usize, Entry(0));
    }

    /// EST-SRC before any flow has converged: equal shares for all flows.
    pub(super) fn first_shares(&mut self, board: &Board) -> bool {
        let mut begin = 0;
        for (host, &end) in self.by_source.flow_begins[..self.hosts.len()].iter().enumerate() {
            if end > begin {
                board.shares[self.hosts.start + host].store(LINK / (end - begin), Relaxed);
            }
            begin = end;
        }
        for host in 0..self.hosts.len() {
            if !self.by_destination.of(host).is_empty() {
                board.destinations.set(self.hosts.start + host);
            }
        }
        self.flows > 0
    }

    /// EST-SRC of the marked sources: in the round before, one of their flows converged or the level of a converged flow
    /// fell.
    pub(super) fn sources(&mut self, board: &Board, round: u32) -> bool {
        let (first, lists) = (self.hosts.start, &mut self.by_source);
        let mut changed = false;
        board.sources.take(self.hosts.clone(), |host| {
            let share = board.shares[host].load(Relaxed);
            let own = lists.of(host - first);
            let pairs = &mut lists.pairs[own];
            let (mut converged_demand, mut open) = (0u64, 0u32);
            for pair in pairs.iter_mut() {
                let at_destination = board.levels[pair.other()].load(Relaxed);
                let (cut, level) = ((at_destination >> 32) as u32, at_destination as u32);
                let converges = cut + 1 == round && share >= level;
                pair.0 |= converges as u32 * Entry::CONVERGED;
                let converged_flows = pair.flows() & mask(pair.is_converged());
                converged_demand += converged_flows as u64 * level as u64;
                open += pair.flows() - converged_flows;
            }
            if open == 0 {
                return;
            }
            let equal = (LINK - converged_demand as u32) / open;
            if equal != share {
                changed = true;
                board.shares[host].store(equal, Relaxed);
                pairs
                    .iter()
                    .for_each(|p| board.destinations.set(p.other() | (p.is_converged() as usize * board.nobody())));
            }
        });
        changed
    }

    /// EST-DST of the marked destinations: in this round, the share of one of their senders rose.
    pub(super) fn destinations(&mut self, board: &Board, round: u32) -> bool {
        let Shard { hosts, by_destination: lists, open, converged_flows, shares, leaving, .. } = self;
        let mut changed = false;
        board.destinations.take(hosts.clone(), |host| {
            let own = host - hosts.start;
            let all = lists.of(own);
            let pairs = &mut lists.pairs[all];
            let (open, converged) = (&mut open[own], &mut converged_flows[own]);
            let asking = &pairs[..*open as usize];
            let level = board.levels[host].load(Relaxed) as u32;
            let (mut demand, mut flows) = (*converged as u64 * level as u64, *converged);
            for (pair, at) in asking.iter().zip(shares.iter_mut()) {
                *at = board.shares[pair.other()].load(Relaxed);
                demand += pair.flows() as u64 * *at as u64;
                flows += pair.flows();
            }
            if demand <= LINK as u64 {
                return;
            }
            // Converged flows are never below the level: shares rise, so the level falls.
            let mut equal = LINK / flows;
            loop {
                let (mut limited, mut rest) = (0u64, flows);
                for (pair, &share) in asking.iter().zip(&*shares) {
                    let limited_flows = pair.flows() & mask(share < equal);
                    limited += limited_flows as u64 * share as u64;
                    rest -= limited_flows;
                }
                let next = (LINK - limited as u32) / rest;
                if next == equal {
                    break;
                }
                equal = next;
            }
            if equal != level {
                pairs[*open as usize..].iter().for_each(|p| board.sources.set(p.other()));
            }
            changed = true;
            board.levels[host].store((round as u64) << 32 | equal as u64, Relaxed);
            let (mut left, mut gone) = (0, 0);
            for at in 0..*open as usize {
                let (pair, is_left) = (pairs[at], shares[at] < equal);
                pairs[left] = pair;
                leaving[gone] = pair;
                left += is_left as usize;
                gone += !is_left as usize;
            }
            for (pair, slot) in leaving[..gone].iter().zip(&mut pairs[left..]) {
                *slot = *pair;
                *converged += pair.flows();
                board.sources.set(pair.other());
            }
            *open = left as u32;
        });
        changed
    }

    pub(super) fn flows(&self) -> usize {
        self.flows
    }

    fn demand(board: &Board, src: usize, pair: Entry) -> (u32, bool) {
        let share = board.shares[src].load(Relaxed);
        let at_destination = board.levels[pair.other()].load(Relaxed);
        let (cut, level) = ((at_destination >> 32) as u32, at_destination as u32);
        // The source was not told about flows that converged in the last round.
        let is_converged = pair.is_converged() || cut == board.rounds.load(Relaxed) && share >= level;
        (if is_converged { level } else { share }, is_converged)
    }

    pub(super) fn pairs<'a>(&'a self, board: &'a Board) -> impl Iterator<Item = Pair> + 'a {
        let hosts = 0..self.by_source.begins.len().saturating_sub(1);
        hosts.flat_map(move |host| {
            self.by_source.pairs[self.by_source.of(host)].iter().map(move |&pair| {
                let src = self.hosts.start + host;
                let (demand, converged) = Shard::demand(board, src, pair);
                Pair { src: src as u32, dst: pair.other() as u32, flows: pair.flows(), demand, converged }
            })
        })
    }

    pub(super) fn demands(&self, board: &Board, out: &mut [u32]) {
        let mut begin = 0;
        for (host, &end) in self.by_source.flow_begins.iter().take(self.hosts.len()).enumerate() {
            for at in begin..end as usize {
                let pair = self.by_source.pairs[self.pair_of[at] as usize];
                out[self.given[at] as usize] = Shard::demand(board, self.hosts.start + host, pair).0;
            }
            begin = end as usize;
        }
    }

    pub(super) fn state_bytes(&self) -> usize {
        let words = self.given.capacity()
            + self.pair_of.capacity()
            + self.open.capacity()
            + self.converged_flows.capacity()
            + self.shares.capacity()
            + self.leaving.capacity();
        let lists = self.by_source.state_bytes() + self.by_destination.state_bytes();
        lists + words * size_of::<u32>() + self.seen.capacity() * size_of::<u64>()
    }
}
