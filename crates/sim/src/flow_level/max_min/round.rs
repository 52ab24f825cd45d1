//! The flows rated anew after a change, and progressive filling of the capacity that all other flows leave to them.
//!
//! A few dozen flows are filled repeatedly, with more flows each time. So the data of a round is kept together, indexed by
//! the position in the round.

use super::{Link, NOWHERE, OWN, State};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Marks the number of a flow, as opposed to a link, in the order in which rates are settled.
const FLOW: u64 = 1 << 32;
/// After all levels: for a flow held neither by its own limit nor by a link of its own.
const NEVER: (u64, u64) = (u64::MAX, u64::MAX);

/// A flow that is rated anew.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub flow: u32,
    /// Bounds of the flow's hops among the hops of the round.
    pub hops: (u32, u32),
    pub before: f64,
    pub limit: f64,
    pub is_settled: bool,
}

/// A link on the path of a flow of the round.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub link: u32,
    /// Whether a member's rate or bottleneck changed, or a member was chosen, since the link's last check.
    pub has_changed: bool,
    /// Whether a member was chosen since `all` was computed.
    pub is_joined: bool,
    /// The unrated flows before rates are settled, and meanwhile.
    all: Open,
    open: Open,
}

impl Touched {
    pub fn new(link: u32) -> Touched {
        Touched { link, has_changed: false, is_joined: true, all: Open::default(), open: Open::default() }
    }
}

/// The unrated flows of the round at a link.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    flows: u32,
    /// The last of the flows, by its position in the round.
    last: u32,
    /// Sum of the flows' shares.
    shares: f64,
    /// Capacity that all other flows leave to these flows.
    residual: f64,
}

impl Open {
    fn of(link: &Link, states: &[State]) -> Open {
        let mut open = Open { residual: link.capacity, ..Open::default() };
        for m in &link.members {
            let s = &states[m.flow as usize];
            if s.chosen == NOWHERE {
                open.residual -= m.share * s.rate;
            } else {
                open.flows += 1;
                open.last = s.chosen;
                open.shares += m.share;
            }
        }
        open
    }

    /// The rate at which the flows fill the link: at least 0, even if other flows exceed the capacity.
    fn level(&self) -> f64 {
        // After repeated subtraction, rounding errors can make a sum of shares zero or negative.
        self.residual.max(0.0) / self.shares.max(f64::MIN_POSITIVE)
    }
}

/// The flows rated anew and the links they touch, in the order in which they were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub chosen: Vec<Chosen>,
    pub touched: Vec<Touched>,
    /// Positions of touched links, and shares.
    pub hops: Vec<(u32, f64)>,
    /// Levels as bits, each with the link that settles there, or [`FLOW`] and the flow.
    order: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Round {
    pub fn clear(&mut self) {
        self.chosen.clear();
        self.touched.clear();
        self.hops.clear();
    }

    /// Progressive filling.
    pub fn fill(&mut self, links: &[Link], states: &mut [State]) {
        let mut order = std::mem::take(&mut self.order).into_vec();
        order.extend(self.chosen.iter_mut().map(|c| {
            c.is_settled = false;
            let is_own = c.limit < f64::INFINITY || c.hops.0 == c.hops.1;
            Reverse(if is_own { (c.limit.to_bits(), FLOW | u64::from(c.flow)) } else { NEVER })
        }));
        for t in &mut self.touched {
            if std::mem::take(&mut t.is_joined) {
                t.all = Open::of(&links[t.link as usize], states);
            }
            t.open = t.all;
            let level = || Reverse((t.all.level().to_bits(), u64::from(t.link)));
            match t.all.flows {
                0 => {}
                // The level is fixed until the link's only flow settles: of several such links only the lowest level
                // counts.
                1 => order[t.all.last as usize] = order[t.all.last as usize].max(level()),
                _ => order.push(level()),
            }
        }
        // A level only rises while flows below it are settled: the lowest level that is still correct is final.
        let mut order = BinaryHeap::from(order);
        while let Some(mut first) = order.peek_mut() {
            let Reverse((bits, what)) = *first;
            if *first == Reverse(NEVER) {
                break;
            }
            if what & FLOW != 0 {
                PeekMut::pop(first);
                let position = states[(what ^ FLOW) as usize].chosen;
                self.settle(position, f64::from_bits(bits), OWN, states);
                continue;
            }
            let link = &links[what as usize];
            let open = &self.touched[link.touched as usize].open;
            let level = open.level();
            if open.flows > 0 && level > f64::from_bits(bits) {
                *first = Reverse((level.to_bits(), what));
                continue;
            }
            PeekMut::pop(first);
            if open.flows == 0 {
                continue;
            }
            for m in &link.members {
                let position = states[m.flow as usize].chosen;
                if position != NOWHERE {
                    self.settle(position, level, what as u32, states);
                }
            }
        }
        order.clear();
        self.order = order;
    }

    /// Settles a flow's rate, if the flow has none yet.
    fn settle(&mut self, position: u32, rate: f64, bottleneck: u32, states: &mut [State]) {
        let c = &mut self.chosen[position as usize];
        if std::mem::replace(&mut c.is_settled, true) {
            return;
        }
        let s = &mut states[c.flow as usize];
        let has_changed = s.rate != rate || s.bottleneck != bottleneck;
        (s.rate, s.bottleneck) = (rate, bottleneck);
        for &(touched, share) in &self.hops[c.hops.0 as usize..c.hops.1 as usize] {
            let t = &mut self.touched[touched as usize];
            t.open.residual -= share * rate;
            t.open.shares -= share;
            t.open.flows -= 1;
            t.has_changed |= has_changed;
        }
    }
}
