//! Exact max-min fair rates, kept up while flows come, go and move and links change.
//!
//! Rates are max-min fair when every flow has a bottleneck: its own limit, or a link on its way that is full and on which no
//! flow is faster (Bertsekas and Gallager, Data Networks, 6.5.2). A change needs new rates only for the flows that lose their
//! bottleneck by it. So the flows at the changed links are rated alone, all others taken as they are; who has no bottleneck
//! then is rated with them, until everybody has one.

use super::place;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Rates that differ by less than this part of themselves are the same: far above what sums of doubles err by, far below a
/// packet an hour.
const SAME: f64 = 1e-9;

/// The bottleneck of a flow that its own limit holds.
const OWN: u32 = u32::MAX;
/// Marks a flow among the links of the order in which rates are settled.
const FLOW: u64 = 1 << 32;

/// A link on a flow's way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The link.
    pub link: u32,
    /// What part of the flow's rate crosses it: less than 1 where a flow is spread over several.
    pub share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    link: u32,
    share: f64,
    /// Where the flow stands among the link's members.
    place: u32,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    flow: u32,
    /// Which of the flow's hops this link is.
    hop: u32,
    share: f64,
}

#[derive(Clone, Debug, Default)]
struct Link {
    /// Bits per second.
    capacity: f64,
    members: Vec<Member>,
    is_changed: bool,
    /// The round in which it was last looked at.
    round: u64,
    /// What those outside of the round leave.
    residual: f64,
    /// Flows of the round that have no rate yet, and what their shares add up to.
    open: u32,
    open_shares: f64,
}

#[derive(Clone, Debug)]
struct Flow {
    hops: Box<[Hop]>,
    /// Most it can use, bits per second.
    limit: f64,
    rate: f64,
    before: f64,
    bottleneck: u32,
    round: u64,
    is_settled: bool,
    is_live: bool,
}

/// Max-min fair rates of flows over links, in bits per second.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<Link>,
    flows: Vec<Flow>,
    free: Vec<u32>,
    round: u64,
    changed_links: Vec<u32>,
    new_flows: Vec<u32>,
    /// The flows of this round, and the links they touch.
    chosen: Vec<u32>,
    touched: Vec<u32>,
    order: BinaryHeap<Reverse<(u64, u64)>>,
}

impl MaxMin {
    /// Links with these capacities in bits per second, and no flows.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> MaxMin {
        let links = capacities.into_iter().map(|capacity| Link { capacity, ..Link::default() }).collect();
        MaxMin { links, ..MaxMin::default() }
    }

    /// A flow over these links, none of them twice, that can use `limit` bits per second at most. Its number is that of a flow
    /// that was removed, if there is one.
    pub fn add(&mut self, path: &[Crossing], limit: f64) -> u32 {
        let state = Flow {
            hops: Box::default(),
            limit,
            rate: 0.0,
            before: 0.0,
            bottleneck: OWN,
            round: 0,
            is_settled: false,
            is_live: true,
        };
        let flow = place(&mut self.flows, &mut self.free, state);
        self.enter(flow, path);
        flow
    }

    /// Takes a flow out.
    pub fn remove(&mut self, flow: u32) {
        self.leave(flow);
        self.flows[flow as usize].is_live = false;
        self.free.push(flow);
    }

    /// Sends a flow over other links.
    pub fn reroute(&mut self, flow: u32, path: &[Crossing]) {
        self.leave(flow);
        self.enter(flow, path);
    }

    /// Changes what a link carries; 0 while it is down.
    pub fn set_capacity(&mut self, link: u32, capacity: f64) {
        self.links[link as usize].capacity = capacity;
        self.change(link);
    }

    /// What a link carries, bits per second.
    pub fn capacity(&self, link: u32) -> f64 {
        self.links[link as usize].capacity
    }

    /// The rate of a flow, as of the last [`MaxMin::settle`].
    pub fn rate(&self, flow: u32) -> f64 {
        self.flows[flow as usize].rate
    }

    /// What crosses a link, bits per second.
    pub fn load(&self, link: u32) -> f64 {
        self.links[link as usize].members.iter().map(|m| m.share * self.flows[m.flow as usize].rate).sum()
    }

    fn enter(&mut self, flow: u32, path: &[Crossing]) {
        let hops = path.iter().zip(0..).map(|(&Crossing { link, share }, hop)| {
            let members = &mut self.links[link as usize].members;
            members.push(Member { flow, hop, share });
            Hop { link, share, place: members.len() as u32 - 1 }
        });
        self.flows[flow as usize].hops = hops.collect();
        path.iter().for_each(|c| self.change(c.link));
        self.new_flows.push(flow);
    }

    fn leave(&mut self, flow: u32) {
        for hop in std::mem::take(&mut self.flows[flow as usize].hops) {
            let members = &mut self.links[hop.link as usize].members;
            members.swap_remove(hop.place as usize);
            if let Some(&moved) = members.get(hop.place as usize) {
                self.flows[moved.flow as usize].hops[moved.hop as usize].place = hop.place;
            }
            self.change(hop.link);
        }
    }

    fn change(&mut self, link: u32) {
        if !std::mem::replace(&mut self.links[link as usize].is_changed, true) {
            self.changed_links.push(link);
        }
    }

    /// Makes all rates fair again and calls `changed` with each flow whose rate is another than before.
    pub fn settle(&mut self, mut changed: impl FnMut(u32, f64)) {
        self.round += 1;
        self.chosen.clear();
        self.touched.clear();
        for flow in std::mem::take(&mut self.new_flows) {
            if self.flows[flow as usize].is_live {
                self.choose(flow);
            }
        }
        for link in std::mem::take(&mut self.changed_links) {
            self.links[link as usize].is_changed = false;
            self.touch(link);
        }
        // Before anything is rated the changed links themselves say whose bottleneck they were.
        self.choose_who_lost(0);
        let mut rated = 0;
        while rated < self.chosen.len() {
            rated = self.chosen.len();
            self.rate_chosen();
            self.choose_who_lost(rated);
        }
        for &flow in &self.chosen {
            let f = &self.flows[flow as usize];
            if f.rate != f.before {
                changed(flow, f.rate);
            }
        }
    }

    fn touch(&mut self, link: u32) {
        let l = &mut self.links[link as usize];
        if l.round != self.round {
            l.round = self.round;
            self.touched.push(link);
        }
    }

    fn choose(&mut self, flow: u32) {
        let f = &mut self.flows[flow as usize];
        if f.round == self.round {
            return;
        }
        (f.round, f.before) = (self.round, f.rate);
        self.chosen.push(flow);
        for hop in 0..f.hops.len() {
            self.touch(self.flows[flow as usize].hops[hop].link);
        }
    }

    /// Chooses the flows at touched links that have no bottleneck any more, or of which one that was rated says that they are
    /// faster than it is at its own.
    fn choose_who_lost(&mut self, rated: usize) {
        let mut at = 0;
        while at < self.touched.len() {
            let link = self.touched[at];
            at += 1;
            let l = &self.links[link as usize];
            let (mut load, mut fastest, mut held) = (0.0, 0.0f64, f64::INFINITY);
            for m in &l.members {
                let f = &self.flows[m.flow as usize];
                load += m.share * f.rate;
                fastest = fastest.max(f.rate);
                if rated > 0 && f.round == self.round && f.bottleneck == link {
                    held = held.min(f.rate);
                }
            }
            let is_full = load >= l.capacity * (1.0 - SAME);
            let is_over = load > l.capacity * (1.0 + SAME);
            for i in 0..l.members.len() {
                let m = self.links[link as usize].members[i];
                let f = &self.flows[m.flow as usize];
                let lost = f.bottleneck == link && !(is_full && f.rate >= fastest * (1.0 - SAME));
                if f.round != self.round && (lost || is_over || f.rate > held * (1.0 + SAME)) {
                    self.choose(m.flow);
                }
            }
        }
    }

    /// Progressive filling of what all others leave to the chosen flows.
    fn rate_chosen(&mut self) {
        for &link in &self.touched {
            let l = &mut self.links[link as usize];
            (l.residual, l.open, l.open_shares) = (l.capacity, 0, 0.0);
            for m in &l.members {
                let f = &self.flows[m.flow as usize];
                if f.round == self.round {
                    l.open += 1;
                    l.open_shares += m.share;
                } else {
                    l.residual -= m.share * f.rate;
                }
            }
            if l.open > 0 {
                self.order.push(Reverse((level(l).to_bits(), link as u64)));
            }
        }
        for &flow in &self.chosen {
            let f = &mut self.flows[flow as usize];
            f.is_settled = false;
            if f.limit < f64::INFINITY || f.hops.is_empty() {
                self.order.push(Reverse((f.limit.to_bits(), FLOW | flow as u64)));
            }
        }
        // A level only rises while flows below it are settled: the least one that is still true is final.
        while let Some(Reverse((bits, what))) = self.order.pop() {
            if what & FLOW != 0 {
                self.settle_at((what ^ FLOW) as u32, f64::from_bits(bits), OWN);
                continue;
            }
            let link = what as u32;
            let l = &self.links[link as usize];
            if l.open == 0 {
                continue;
            }
            let now = level(l);
            if now > f64::from_bits(bits) {
                self.order.push(Reverse((now.to_bits(), what)));
                continue;
            }
            for i in 0..l.members.len() {
                let flow = self.links[link as usize].members[i].flow;
                self.settle_at(flow, now, link);
            }
        }
    }

    fn settle_at(&mut self, flow: u32, rate: f64, bottleneck: u32) {
        let f = &mut self.flows[flow as usize];
        if f.round != self.round || std::mem::replace(&mut f.is_settled, true) {
            return;
        }
        (f.rate, f.bottleneck) = (rate, bottleneck);
        for hop in &f.hops {
            let l = &mut self.links[hop.link as usize];
            l.residual -= hop.share * rate;
            l.open_shares -= hop.share;
            l.open -= 1;
        }
    }
}

/// The rate at which the flows without one fill a link, at least 0 also where others have taken more than there is.
fn level(l: &Link) -> f64 {
    // What is left of a sum of shares by taking them away again can be nothing or less.
    l.residual.max(0.0) / l.open_shares.max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;

    /// All flows filled together from nothing, as the definition has it.
    fn from_nothing(capacities: &[f64], flows: &[(Vec<Crossing>, f64)]) -> Vec<f64> {
        let mut rates = vec![None; flows.len()];
        while rates.iter().any(Option::is_none) {
            let share =
                |path: &[Crossing], link: u32| path.iter().filter(|c| c.link == link).map(|c| c.share).sum::<f64>();
            let open_at = |link: u32, rates: &[Option<f64>]| -> f64 {
                let open = flows.iter().zip(rates).filter(|(_, r)| r.is_none());
                open.map(|((path, _), _)| share(path, link)).sum()
            };
            let left = |link: u32, rates: &[Option<f64>]| {
                let used = flows.iter().zip(rates).map(|((path, _), r)| share(path, link) * r.unwrap_or(0.0));
                capacities[link as usize] - used.sum::<f64>()
            };
            let of_links = (0..capacities.len() as u32).filter(|&l| open_at(l, &rates) > 0.0);
            let level = of_links
                .map(|l| left(l, &rates).max(0.0) / open_at(l, &rates))
                .chain(flows.iter().zip(&rates).filter(|(_, r)| r.is_none()).map(|((_, limit), _)| *limit))
                .fold(f64::INFINITY, f64::min);
            let now = rates.clone();
            for (i, (path, limit)) in flows.iter().enumerate() {
                let is_held =
                    |c: &Crossing| left(c.link, &now).max(0.0) / open_at(c.link, &now) <= level * (1.0 + 1e-12);
                if now[i].is_none() && (*limit <= level || path.iter().any(is_held)) {
                    rates[i] = Some(level);
                }
            }
        }
        rates.into_iter().map(Option::unwrap).collect()
    }

    fn whole(links: &[u32]) -> Vec<Crossing> {
        links.iter().map(|&link| Crossing { link, share: 1.0 }).collect()
    }

    #[test]
    fn a_flow_that_is_spread_has_a_part_of_each_link() {
        let mut m = MaxMin::new([10.0, 3.0]);
        let half = [0, 1].map(|link| Crossing { link, share: 0.5 });
        let (spread, other) = (m.add(&half, f64::INFINITY), m.add(&whole(&[0]), f64::INFINITY));
        m.settle(|_, _| ());
        assert_eq!((m.rate(spread), m.rate(other), m.load(0), m.load(1)), (6.0, 7.0, 10.0, 3.0));
    }

    #[test]
    fn one_link_is_divided_and_what_one_leaves_is_the_others() {
        let mut m = MaxMin::new([10.0, 4.0]);
        let (a, b, c) =
            (m.add(&whole(&[0]), f64::INFINITY), m.add(&whole(&[0, 1]), f64::INFINITY), m.add(&whole(&[1]), 1.0));
        let mut said = Vec::new();
        m.settle(|flow, rate| said.push((flow, rate)));
        said.sort_by_key(|s| s.0);
        assert_eq!(said, [(a, 7.0), (b, 3.0), (c, 1.0)]);
        m.remove(c);
        said.clear();
        m.settle(|flow, rate| said.push((flow, rate)));
        said.sort_by_key(|s| s.0);
        assert_eq!(said, [(a, 6.0), (b, 4.0)]);
        m.set_capacity(1, 0.0);
        m.settle(|_, _| ());
        assert_eq!((m.rate(a), m.rate(b), m.load(0)), (10.0, 0.0, 10.0));
    }

    #[test]
    fn whatever_changes_the_rates_are_those_of_filling_all_from_nothing() {
        let mut rng = Rng::from_words(&[11]);
        for case in 0..60u64 {
            let links = 2 + rng.below(14) as usize;
            let mut capacities: Vec<f64> = (0..links).map(|_| (1 + rng.below(10)) as f64 * 1e9).collect();
            let mut m = MaxMin::new(capacities.iter().copied());
            let mut live: Vec<(u32, Vec<Crossing>, f64)> = Vec::new();
            for _ in 0..120 {
                for _ in 0..1 + rng.below(2) {
                    let path = |rng: &mut Rng| {
                        let mut path: Vec<u32> =
                            (0..1 + rng.below(5)).map(|_| rng.below(links as u64) as u32).collect();
                        path.sort_unstable();
                        path.dedup();
                        let share = |rng: &mut Rng| [1.0, 0.5, 0.25][rng.below(3) as usize];
                        path.iter().map(|&link| Crossing { link, share: share(rng) }).collect::<Vec<_>>()
                    };
                    match rng.below(8) {
                        0 | 1 if !live.is_empty() => {
                            let gone = live.swap_remove(rng.below(live.len() as u64) as usize);
                            m.remove(gone.0);
                        }
                        2 if !live.is_empty() => {
                            let i = rng.below(live.len() as u64) as usize;
                            live[i].1 = path(&mut rng);
                            m.reroute(live[i].0, &live[i].1);
                        }
                        3 => {
                            let link = rng.below(links as u64) as usize;
                            capacities[link] = rng.below(8) as f64 * 1e9;
                            m.set_capacity(link as u32, capacities[link]);
                        }
                        _ => {
                            let limit = if rng.below(3) == 0 { rng.below(4_000) as f64 * 1e6 } else { f64::INFINITY };
                            let path = path(&mut rng);
                            live.push((m.add(&path, limit), path, limit));
                        }
                    }
                }
                let before: Vec<f64> = live.iter().map(|l| m.rate(l.0)).collect();
                let mut said = std::collections::BTreeMap::new();
                m.settle(|flow, rate| assert!(said.insert(flow, rate).is_none()));
                let flows: Vec<_> = live.iter().map(|l| (l.1.clone(), l.2)).collect();
                for ((l, want), before) in live.iter().zip(from_nothing(&capacities, &flows)).zip(before) {
                    let rate = m.rate(l.0);
                    assert!((rate - want).abs() <= 1.0 + want * 1e-6, "case {case}: {rate} is not {want}");
                    assert_eq!(said.get(&l.0).copied().unwrap_or(before), rate, "who changes is named");
                }
            }
        }
    }
}
