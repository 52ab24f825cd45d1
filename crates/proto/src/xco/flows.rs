//! Flows of nodes in an arena: found by their ends, listed by source, and queued in heaps, all without allocation after
//! the start.

use super::{Limits, Node, Refused};
use crate::rng::mix64;
use alloc::vec;
use alloc::vec::Vec;

/// The place of a flow in the arena.
pub(super) type FlowId = u32;

/// No flow.
pub(super) const NONE: FlowId = u32::MAX;

/// The order of flows in a heap.
pub(super) type Key = (u64, u64);

/// A heap of flows, by its least one.
pub(super) type Heap = FlowId;

#[derive(Clone, Debug)]
struct Slot<T> {
    source: Node,
    destination: Node,
    /// Neighbours in the list of the source, or the next free slot.
    next_of_node: FlowId,
    previous_of_node: FlowId,
    key: Key,
    /// Pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986): the first child, the next sibling, and the previous
    /// sibling or, for a first child, the parent.
    child: FlowId,
    next: FlowId,
    previous: FlowId,
    /// None in a free slot.
    own: Option<T>,
}

/// Flows with data `T` of a policy.
#[derive(Clone, Debug)]
pub(super) struct Flows<T> {
    slots: Vec<Slot<T>>,
    free: FlowId,
    len: usize,
    flows_per_node: usize,
    /// The first flow of each node, and their number.
    of_node: Vec<(FlowId, u32)>,
    /// Open addressing, at most half full.
    index: Vec<FlowId>,
}

impl<T> Flows<T> {
    pub fn new(nodes: u32, limits: Limits) -> Flows<T> {
        let slot = |n: usize| Slot {
            source: 0,
            destination: 0,
            next_of_node: if n + 1 < limits.flows { n as FlowId + 1 } else { NONE },
            previous_of_node: NONE,
            key: (0, 0),
            child: NONE,
            next: NONE,
            previous: NONE,
            own: None,
        };
        Flows {
            slots: (0..limits.flows).map(slot).collect(),
            free: if limits.flows > 0 { 0 } else { NONE },
            len: 0,
            flows_per_node: limits.flows_per_node,
            of_node: vec![(NONE, 0); nodes as usize],
            index: vec![NONE; (2 * limits.flows.max(1)).next_power_of_two()],
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }
    pub fn source(&self, f: FlowId) -> Node {
        self.slots[f as usize].source
    }
    pub fn ends(&self, f: FlowId) -> (Node, Node) {
        (self.slots[f as usize].source, self.slots[f as usize].destination)
    }
    pub fn of_node(&self, node: Node) -> u32 {
        self.of_node[node as usize].1
    }
    /// The first flow of a node; [`Flows::next`] has the others.
    pub fn first(&self, node: Node) -> Option<FlowId> {
        self.of_node.get(node as usize).map(|of| of.0).filter(|&f| f != NONE)
    }
    pub fn next(&self, f: FlowId) -> Option<FlowId> {
        Some(self.slots[f as usize].next_of_node).filter(|&f| f != NONE)
    }
    /// The first flow at this place of the arena or behind it: all flows one after the other, while they change.
    pub fn at_or_after(&self, place: FlowId) -> Option<FlowId> {
        let slots = self.slots.get(place as usize..)?;
        slots.iter().position(|slot| slot.own.is_some()).map(|further| place + further as FlowId)
    }

    fn bucket(&self, source: Node, destination: Node) -> usize {
        mix64(u64::from(source) << 32 | u64::from(destination)) as usize & (self.index.len() - 1)
    }

    pub fn find(&self, source: Node, destination: Node) -> Option<FlowId> {
        let mut at = self.bucket(source, destination);
        loop {
            let f = self.index[at];
            if f == NONE {
                return None;
            }
            if self.ends(f) == (source, destination) {
                return Some(f);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    pub fn insert(&mut self, source: Node, destination: Node, own: T) -> Result<FlowId, Refused> {
        let nodes = self.of_node.len();
        if source == destination || source.max(destination) as usize >= nodes {
            return Err(Refused::NoSuchNode);
        }
        if self.of_node[source as usize].1 as usize >= self.flows_per_node {
            return Err(Refused::NodeFull);
        }
        if self.free == NONE {
            return Err(Refused::Full);
        }
        let f = self.free;
        let first = self.of_node[source as usize].0;
        let slot = &mut self.slots[f as usize];
        self.free = slot.next_of_node;
        (slot.source, slot.destination, slot.own) = (source, destination, Some(own));
        (slot.next_of_node, slot.previous_of_node) = (first, NONE);
        if first != NONE {
            self.slots[first as usize].previous_of_node = f;
        }
        self.of_node[source as usize].0 = f;
        self.of_node[source as usize].1 += 1;
        self.len += 1;
        let mut at = self.bucket(source, destination);
        while self.index[at] != NONE {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = f;
        Ok(f)
    }

    /// Removes a flow that is in no heap.
    pub fn remove(&mut self, f: FlowId) {
        let (source, destination) = self.ends(f);
        self.forget(source, destination);
        let slot = &mut self.slots[f as usize];
        let (next, previous) = (slot.next_of_node, slot.previous_of_node);
        slot.own = None;
        slot.next_of_node = self.free;
        self.free = f;
        self.len -= 1;
        self.of_node[source as usize].1 -= 1;
        match previous {
            NONE => self.of_node[source as usize].0 = next,
            previous => self.slots[previous as usize].next_of_node = next,
        }
        if next != NONE {
            self.slots[next as usize].previous_of_node = previous;
        }
    }

    /// Takes a flow out of the index. Flows behind it move up, so that a search still meets no gap.
    fn forget(&mut self, source: Node, destination: Node) {
        let mask = self.index.len() - 1;
        let mut gap = self.bucket(source, destination);
        while self.ends(self.index[gap]) != (source, destination) {
            gap = (gap + 1) & mask;
        }
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let f = self.index[at];
            if f == NONE {
                break;
            }
            let (source, destination) = self.ends(f);
            let home = self.bucket(source, destination);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.index[gap] = f;
                gap = at;
            }
        }
        self.index[gap] = NONE;
    }

    // Heaps. A flow is in one heap at most.

    pub fn key(&self, f: FlowId) -> Key {
        self.slots[f as usize].key
    }

    pub fn push(&mut self, heap: &mut Heap, f: FlowId, key: Key) {
        let slot = &mut self.slots[f as usize];
        (slot.key, slot.child, slot.next, slot.previous) = (key, NONE, NONE, NONE);
        *heap = self.meld(*heap, f);
    }

    pub fn pop(&mut self, heap: &mut Heap) -> Option<FlowId> {
        let least = *heap;
        if least == NONE {
            return None;
        }
        *heap = self.combine(self.slots[least as usize].child);
        Some(least)
    }

    pub fn take(&mut self, heap: &mut Heap, f: FlowId) {
        if *heap == f {
            self.pop(heap);
            return;
        }
        let Slot { next, previous, child, .. } = self.slots[f as usize];
        if self.slots[previous as usize].child == f {
            self.slots[previous as usize].child = next;
        } else {
            self.slots[previous as usize].next = next;
        }
        if next != NONE {
            self.slots[next as usize].previous = previous;
        }
        let rest = self.combine(child);
        *heap = self.meld(*heap, rest);
    }

    fn meld(&mut self, a: Heap, b: Heap) -> Heap {
        if a == NONE || b == NONE {
            return if a == NONE { b } else { a };
        }
        let (upper, lower) = if (self.key(b), b) < (self.key(a), a) { (b, a) } else { (a, b) };
        let first = self.slots[upper as usize].child;
        let slot = &mut self.slots[lower as usize];
        (slot.next, slot.previous) = (first, upper);
        if first != NONE {
            self.slots[first as usize].previous = lower;
        }
        let slot = &mut self.slots[upper as usize];
        (slot.child, slot.next, slot.previous) = (lower, NONE, NONE);
        upper
    }

    /// Makes one heap of siblings: in pairs from left to right, then all pairs from right to left.
    fn combine(&mut self, first: FlowId) -> Heap {
        let (mut pairs, mut at) = (NONE, first);
        while at != NONE {
            let second = self.slots[at as usize].next;
            let rest = if second == NONE { NONE } else { self.slots[second as usize].next };
            self.alone(at);
            if second != NONE {
                self.alone(second);
            }
            let pair = self.meld(at, second);
            self.slots[pair as usize].next = pairs;
            (pairs, at) = (pair, rest);
        }
        let mut heap = NONE;
        while pairs != NONE {
            let rest = self.slots[pairs as usize].next;
            self.alone(pairs);
            heap = self.meld(heap, pairs);
            pairs = rest;
        }
        heap
    }

    fn alone(&mut self, f: FlowId) {
        let slot = &mut self.slots[f as usize];
        (slot.next, slot.previous) = (NONE, NONE);
    }
}

impl<T> core::ops::Index<FlowId> for Flows<T> {
    type Output = T;

    #[inline]
    fn index(&self, f: FlowId) -> &T {
        self.slots[f as usize].own.as_ref().expect("the flow is in the arena")
    }
}

impl<T> core::ops::IndexMut<FlowId> for Flows<T> {
    #[inline]
    fn index_mut(&mut self, f: FlowId) -> &mut T {
        self.slots[f as usize].own.as_mut().expect("the flow is in the arena")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use alloc::collections::{BTreeMap, BTreeSet};

    const LIMITS: Limits = Limits { flows: 40, flows_per_node: 6 };

    #[test]
    fn an_arena_like_a_map() {
        let mut rng = Rng::from_words(&[1]);
        let (mut flows, mut model) = (Flows::new(10, LIMITS), BTreeMap::new());
        for step in 0..20_000u64 {
            let (a, b) = (rng.below(10) as Node, rng.below(10) as Node);
            let count = model.keys().filter(|&&(source, _)| source == a).count();
            match (flows.find(a, b), rng.below(2)) {
                (Some(f), 0) => {
                    assert_eq!(model.remove(&(a, b)), Some(flows[f]));
                    flows.remove(f);
                }
                (Some(f), _) => assert_eq!(model.get(&(a, b)), Some(&flows[f])),
                (None, _) => {
                    assert!(!model.contains_key(&(a, b)));
                    match flows.insert(a, b, step) {
                        Ok(_) => _ = model.insert((a, b), step),
                        Err(Refused::NoSuchNode) => assert_eq!(a, b),
                        Err(Refused::NodeFull) => assert_eq!(count, 6),
                        Err(Refused::Full) => assert_eq!(model.len(), 40),
                        Err(other) => unreachable!("{other:?} is none of the arena"),
                    }
                }
            }
            assert_eq!(flows.len(), model.len());
            let mut listed = BTreeSet::new();
            let mut at = flows.first(a);
            while let Some(f) = at {
                listed.insert(flows.ends(f));
                at = flows.next(f);
            }
            assert!(listed.iter().eq(model.keys().filter(|&&(source, _)| source == a)));
        }
        assert_eq!(flows.insert(3, 10, 0), Err(Refused::NoSuchNode));
    }

    #[test]
    fn heaps_like_sorted_sets() {
        let mut rng = Rng::from_words(&[2]);
        let mut flows = Flows::new(41, Limits { flows: 40, flows_per_node: 1 });
        let ids: Vec<FlowId> = (0..40).map(|n| flows.insert(n, n + 1, ()).unwrap()).collect();
        let (mut heaps, mut models) = ([NONE; 3], [const { BTreeSet::new() }; 3]);
        for _ in 0..50_000 {
            let f = ids[rng.below(40) as usize];
            let at = models.iter().position(|model| model.contains(&(flows.key(f), f)));
            match (at, rng.below(3) as usize) {
                (Some(at), 0 | 1) => {
                    flows.take(&mut heaps[at], f);
                    models[at].remove(&(flows.key(f), f));
                }
                (Some(at), _) => {
                    let least = flows.pop(&mut heaps[at]).map(|f| (flows.key(f), f));
                    assert_eq!(least, models[at].pop_first());
                }
                (None, heap) => {
                    let key = (rng.below(5), rng.below(5));
                    flows.push(&mut heaps[heap], f, key);
                    models[heap].insert((key, f));
                }
            }
            for (heap, model) in heaps.iter().zip(&models) {
                assert_eq!(*heap, model.first().map_or(NONE, |&(_, f)| f));
            }
        }
    }
}
