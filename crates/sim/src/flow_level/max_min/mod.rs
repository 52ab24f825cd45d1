//! Exact max-min fair rates, kept up to date while flows come, go and move and links change.
//!
//! Rates are max-min fair when every flow has a bottleneck: its own limit, or a full link on its path on which no flow is
//! faster (Bertsekas and Gallager, Data Networks, 6.5.2). A change needs new rates only for the flows that lose their
//! bottleneck. So the flows at the changed links are rated first, with all other rates fixed. Flows that then have no
//! bottleneck are rated with them, until every flow has one.

mod round;
#[cfg(test)]
mod tests;

use crate::slots::insert;
use round::{Chosen, Round, Touched};

/// Rates with a smaller relative difference count as equal: far above the rounding errors of sums of doubles, far below a
/// packet an hour.
const SAME: f64 = 1e-9;

/// The bottleneck of a flow that its own limit holds.
const OWN: u32 = u32::MAX;
/// The position in a round of a flow or link outside the round.
const NOWHERE: u32 = u32::MAX;

/// A link on a flow's path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The link.
    pub link: u32,
    /// Fraction of the flow's rate that crosses the link: less than 1 if the flow is spread over several links.
    pub share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    link: u32,
    share: f64,
    /// The flow's position among the link's members.
    position: u32,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    flow: u32,
    /// The index of this link among the flow's hops.
    hop: u32,
    share: f64,
}

#[derive(Clone, Debug)]
struct Link {
    /// Bits per second.
    capacity: f64,
    members: Vec<Member>,
    is_changed: bool,
    /// The link's position among the links of the round.
    touched: u32,
}

#[derive(Clone, Debug)]
struct Flow {
    hops: Box<[Hop]>,
    /// Largest rate that the flow can use, bits per second.
    limit: f64,
    is_live: bool,
}

/// The data that links need of each member, kept together.
#[derive(Clone, Copy, Debug)]
struct State {
    rate: f64,
    bottleneck: u32,
    /// The flow's position among the flows of the round.
    chosen: u32,
}

/// Max-min fair rates of flows over links, in bits per second.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<Link>,
    flows: Vec<Flow>,
    /// By flow.
    states: Vec<State>,
    free: Vec<u32>,
    changed_links: Vec<u32>,
    new_flows: Vec<u32>,
    round: Round,
}

impl MaxMin {
    /// Links with these capacities in bits per second, and no flows.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> MaxMin {
        let link = |capacity| Link { capacity, members: Vec::new(), is_changed: false, touched: NOWHERE };
        MaxMin { links: capacities.into_iter().map(link).collect(), ..MaxMin::default() }
    }

    /// Adds a flow over these links, each at most once, with at most `limit` bits per second. The flow reuses the number of
    /// a removed flow, if there is one.
    pub fn add(&mut self, path: &[Crossing], limit: f64) -> u32 {
        let flow = insert(&mut self.flows, &mut self.free, Flow { hops: Box::default(), limit, is_live: true });
        let state = State { rate: 0.0, bottleneck: OWN, chosen: NOWHERE };
        match self.states.get_mut(flow as usize) {
            Some(removed) => *removed = state,
            None => self.states.push(state),
        }
        self.enter(flow, path);
        flow
    }

    /// Removes a flow.
    pub fn remove(&mut self, flow: u32) {
        self.leave(flow);
        self.flows[flow as usize].is_live = false;
        self.free.push(flow);
    }

    /// Reroutes a flow over other links.
    pub fn reroute(&mut self, flow: u32, path: &[Crossing]) {
        self.leave(flow);
        self.enter(flow, path);
    }

    /// Changes a link's capacity; 0 while the link is down.
    pub fn set_capacity(&mut self, link: u32, capacity: f64) {
        self.links[link as usize].capacity = capacity;
        self.change(link);
    }

    /// The capacity of a link, bits per second.
    pub fn capacity(&self, link: u32) -> f64 {
        self.links[link as usize].capacity
    }

    /// The rate of a flow, as of the last [`MaxMin::settle`].
    pub fn rate(&self, flow: u32) -> f64 {
        self.states[flow as usize].rate
    }

    /// The load of a link, bits per second.
    pub fn load(&self, link: u32) -> f64 {
        self.links[link as usize].members.iter().map(|m| m.share * self.rate(m.flow)).sum()
    }

    fn enter(&mut self, flow: u32, path: &[Crossing]) {
        let hops = path.iter().zip(0..).map(|(&Crossing { link, share }, hop)| {
            let members = &mut self.links[link as usize].members;
            members.push(Member { flow, hop, share });
            Hop { link, share, position: members.len() as u32 - 1 }
        });
        self.flows[flow as usize].hops = hops.collect();
        path.iter().for_each(|c| self.change(c.link));
        self.new_flows.push(flow);
    }

    fn leave(&mut self, flow: u32) {
        for hop in std::mem::take(&mut self.flows[flow as usize].hops) {
            let members = &mut self.links[hop.link as usize].members;
            members.swap_remove(hop.position as usize);
            if let Some(&moved) = members.get(hop.position as usize) {
                self.flows[moved.flow as usize].hops[moved.hop as usize].position = hop.position;
            }
            self.change(hop.link);
        }
    }

    fn change(&mut self, link: u32) {
        if !std::mem::replace(&mut self.links[link as usize].is_changed, true) {
            self.changed_links.push(link);
        }
    }

    /// Makes all rates fair again and calls `changed` with each flow whose rate changed.
    pub fn settle(&mut self, mut changed: impl FnMut(u32, f64)) {
        for i in 0..self.new_flows.len() {
            let flow = self.new_flows[i];
            if self.flows[flow as usize].is_live {
                self.choose(flow);
            }
        }
        self.new_flows.clear();
        for i in 0..self.changed_links.len() {
            let link = self.changed_links[i];
            self.links[link as usize].is_changed = false;
            let touched = self.touch(link);
            self.round.touched[touched as usize].has_changed = true;
        }
        self.changed_links.clear();
        // Before any flow is rated, only the changed links are checked for flows that lost their bottleneck.
        self.choose_who_lost(false);
        let mut rated = 0;
        while rated < self.round.chosen.len() {
            rated = self.round.chosen.len();
            self.round.fill(&self.links, &mut self.states);
            self.choose_who_lost(true);
        }
        for c in &self.round.chosen {
            let s = &mut self.states[c.flow as usize];
            s.chosen = NOWHERE;
            if s.rate != c.before {
                changed(c.flow, s.rate);
            }
        }
        self.round.touched.iter().for_each(|t| self.links[t.link as usize].touched = NOWHERE);
        self.round.clear();
    }

    /// Adds a link to the round; returns its position there.
    fn touch(&mut self, link: u32) -> u32 {
        let l = &mut self.links[link as usize];
        if l.touched == NOWHERE {
            l.touched = self.round.touched.len() as u32;
            self.round.touched.push(Touched::new(link));
        }
        l.touched
    }

    /// Adds a flow and its links to the round.
    fn choose(&mut self, flow: u32) {
        let s = &mut self.states[flow as usize];
        if s.chosen != NOWHERE {
            return;
        }
        s.chosen = self.round.chosen.len() as u32;
        let (before, limit, first) = (s.rate, self.flows[flow as usize].limit, self.round.hops.len() as u32);
        for hop in 0..self.flows[flow as usize].hops.len() {
            let Hop { link, share, .. } = self.flows[flow as usize].hops[hop];
            let touched = self.touch(link);
            let t = &mut self.round.touched[touched as usize];
            t.is_joined = true;
            self.round.hops.push((touched, share));
        }
        let hops = (first, self.round.hops.len() as u32);
        self.round.chosen.push(Chosen { flow, hops, before, limit, is_settled: false });
    }

    /// Adds the flows at touched links that lost their bottleneck, or that are faster than a rated flow whose bottleneck is
    /// the same link.
    fn choose_who_lost(&mut self, is_rated: bool) {
        let mut at = 0;
        while at < self.round.touched.len() {
            let t = &mut self.round.touched[at];
            at += 1;
            // If nothing has changed since the link's last check, no other flow has lost its bottleneck.
            if !std::mem::take(&mut t.has_changed) {
                continue;
            }
            let link = t.link;
            let l = &self.links[link as usize];
            let (mut load, mut fastest, mut limited) = (0.0, 0.0f64, f64::INFINITY);
            for m in &l.members {
                let s = &self.states[m.flow as usize];
                load += m.share * s.rate;
                fastest = fastest.max(s.rate);
                if is_rated && s.chosen != NOWHERE && s.bottleneck == link {
                    limited = limited.min(s.rate);
                }
            }
            let is_full = load >= l.capacity * (1.0 - SAME);
            let is_over = load > l.capacity * (1.0 + SAME);
            for i in 0..l.members.len() {
                let flow = self.links[link as usize].members[i].flow;
                let s = &self.states[flow as usize];
                let lost = s.bottleneck == link && !(is_full && s.rate >= fastest * (1.0 - SAME));
                if s.chosen == NOWHERE && (lost || is_over || s.rate > limited * (1.0 + SAME)) {
                    self.choose(flow);
                }
            }
        }
    }
}
