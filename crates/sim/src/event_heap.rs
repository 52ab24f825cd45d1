//! Events beyond the lanes: long links, timeouts, later messages.

use crate::slots::insert;
use sluicenet_node::pool::Handle;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event beyond the lanes.
#[derive(Clone, Copy, Debug)]
pub enum HeapEvent {
    /// A wire becomes free.
    WireFree(u16),
    /// A frame arrives at a port.
    Arrival(u16, Handle),
    /// A deadline.
    Timer,
}

/// Events by time. Two events of one time need no order here: the node's keys will order them.
#[derive(Debug, Default)]
pub struct EventHeap {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    items: Vec<HeapEvent>,
    free: Vec<u32>,
    /// Boxes that may be idle, and that something is on its way to.
    waking: Vec<u32>,
}

impl EventHeap {
    /// Adds an event.
    pub fn push(&mut self, at: u64, node: u32, event: HeapEvent) {
        let slot = insert(&mut self.items, &mut self.free, event);
        self.heap.push(Reverse((at, node, slot)));
    }

    /// Something is on its way to a box that may be idle.
    pub fn wake(&mut self, node: u32) {
        self.waking.push(node);
    }

    /// Whether [`EventHeap::pop_waking`] has boxes.
    pub fn is_waking(&self) -> bool {
        !self.waking.is_empty()
    }

    /// Takes one of these boxes.
    pub fn pop_waking(&mut self) -> Option<u32> {
        self.waking.pop()
    }

    /// The earliest time.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|r| r.0.0)
    }

    /// Removes the first event, if it is before `end`.
    pub fn pop_before(&mut self, end: u64) -> Option<(u64, u32, HeapEvent)> {
        if self.next()? >= end {
            return None;
        }
        let Reverse((at, node, slot)) = self.heap.pop()?;
        self.free.push(slot);
        Some((at, node, self.items[slot as usize]))
    }

    /// Removes the frames in flight to a port.
    pub fn take(&mut self, to: u32, port: u16, mut taken: impl FnMut(Handle)) {
        let EventHeap { heap, items, free, .. } = self;
        heap.retain(|&Reverse((_, node, slot))| match items[slot as usize] {
            HeapEvent::Arrival(its, frame) if node == to && its == port => {
                taken(frame);
                free.push(slot);
                false
            }
            _ => true,
        });
    }

    /// All events in the heap.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, &HeapEvent)> {
        self.heap.iter().map(|r| (r.0.0, r.0.1, &self.items[r.0.2 as usize]))
    }
}
