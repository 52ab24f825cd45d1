//! The flows that one change has rated anew, and progressive filling of what all others leave to them.
//!
//! A few dozen of them are filled again and again, with more each time: what belongs to a round lies together, and is found by its
//! position there.

use super::{Link, NOWHERE, OWN, State};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// Marks a flow among the links of the order in which rates are settled.
const FLOW: u64 = 1 << 32;
/// After all levels: of a flow that neither its own limit nor a link of its own holds.
const NEVER: (u64, u64) = (u64::MAX, u64::MAX);

/// A flow that is rated anew.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub flow: u32,
    /// Where its hops begin and end among those of the round.
    pub hops: (u32, u32),
    pub before: f64,
    pub limit: f64,
    pub is_settled: bool,
}

/// A link on the way of one.
#[derive(Clone, Debug)]
pub(super) struct Touched {
    pub link: u32,
    /// Whether a member has another rate or bottleneck, or was chosen, since the link was looked at last.
    pub has_changed: bool,
    /// Whether a member was chosen since `all` was made.
    pub is_joined: bool,
    /// Before rates are settled, and meanwhile.
    all: Open,
    open: Open,
}

impl Touched {
    pub fn new(link: u32) -> Touched {
        Touched { link, has_changed: false, is_joined: true, all: Open::default(), open: Open::default() }
    }
}

/// The flows of the round at a link that have no rate yet.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    flows: u32,
    /// The last of them, by its position in the round.
    last: u32,
    /// What their shares add up to.
    shares: f64,
    /// What all others leave to them.
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

    /// The rate at which they fill the link, at least 0 also where others have taken more than there is.
    fn level(&self) -> f64 {
        // What is left of a sum of shares by taking them away again can be nothing or less.
        self.residual.max(0.0) / self.shares.max(f64::MIN_POSITIVE)
    }
}

/// The flows that are rated anew and the links they touch, in the order in which they were found.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub chosen: Vec<Chosen>,
    pub touched: Vec<Touched>,
    /// Places of touched links, and shares.
    pub hops: Vec<(u32, f64)>,
    /// Levels as bits, and the link that settles there, or [`FLOW`] and the flow.
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
                // Its level is the same until its one flow settles: of such links the first one counts.
                1 => order[t.all.last as usize] = order[t.all.last as usize].max(level()),
                _ => order.push(level()),
            }
        }
        // A level only rises while flows below it are settled: the least one that is still true is final.
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

    /// A flow has its rate, if it has none yet.
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
