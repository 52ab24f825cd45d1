//! The ends of flows at their current rates: one predicted end per flow, the next end first.

use sluicenet_proto::time::Instant;

/// Children of a position in the heap: four entries of 16 bytes, compared together, fill a cache line.
const FANOUT: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// A heap whose entries are found by their flow, so that a postponed end leaves nothing behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    heap: Vec<(Instant, u32)>,
    /// Position in the heap, by flow.
    positions: Vec<u32>,
}

impl Ends {
    /// The next end and its flow; at one instant, flows are ordered by number.
    pub fn first(&self) -> Option<(Instant, u32)> {
        self.heap.first().copied()
    }

    /// Sets a flow's end, or removes it.
    pub fn set(&mut self, flow: u32, at: Option<Instant>) {
        let wanted = flow as usize + 1;
        if self.positions.len() < wanted {
            self.positions.resize(wanted, NOWHERE);
        }
        let position = self.positions[flow as usize];
        match at {
            Some(at) if position == NOWHERE => {
                self.heap.push((at, flow));
                self.rise(self.heap.len() - 1);
            }
            Some(at) => {
                let before = std::mem::replace(&mut self.heap[position as usize].0, at);
                if at < before { self.rise(position as usize) } else { self.sink(position as usize) }
            }
            None if position == NOWHERE => {}
            None => {
                self.positions[flow as usize] = NOWHERE;
                self.heap.swap_remove(position as usize);
                if (position as usize) < self.heap.len() {
                    self.rise(position as usize);
                    self.sink(position as usize);
                }
            }
        }
    }

    fn rise(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 && self.heap[(position - 1) / FANOUT] > entry {
            self.put(position, self.heap[(position - 1) / FANOUT]);
            position = (position - 1) / FANOUT;
        }
        self.put(position, entry);
    }

    fn sink(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let first = position * FANOUT + 1;
            let children = first..(first + FANOUT).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(position, self.heap[least]);
            position = least;
        }
        self.put(position, entry);
    }

    fn put(&mut self, position: usize, entry: (Instant, u32)) {
        self.heap[position] = entry;
        self.positions[entry.1 as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn whatever_is_put_off_or_taken_back_the_first_end_is_the_least() {
        let mut rng = Rng::from_words(&[7]);
        let (mut ends, mut model) = (Ends::default(), BTreeMap::new());
        for _ in 0..20_000 {
            let (flow, at) = (rng.below(200) as u32, Instant(rng.below(300)));
            match rng.below(4) {
                0 => {
                    ends.set(flow, None);
                    model.remove(&flow);
                }
                _ => {
                    ends.set(flow, Some(at));
                    model.insert(flow, at);
                }
            }
            assert_eq!(ends.first(), model.iter().map(|(&flow, &at)| (at, flow)).min());
        }
    }
}
