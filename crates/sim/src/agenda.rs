//! The events of one phase, arranged box by box.

use crate::event::Key;

/// An event and its box, in 12 bytes: lanes are the largest data that is read and written sequentially.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub struct Entry {
    pub key: Key,
    pub node: u32,
}

/// A box with events, and the bounds of its events in [`Agenda::keys`]; [`Key::NEVER`] follows them.
#[derive(Clone, Copy, Debug)]
struct Turn {
    node: u32,
    begin: u32,
    end: u32,
}

/// The events of a phase, box by box.
#[derive(Debug, Default)]
pub struct Agenda {
    /// Boxes with events, in memory order.
    boxes: Vec<Turn>,
    /// The events of each box, each list followed by [`Key::NEVER`]. The rest is left over from earlier phases.
    keys: Vec<Key>,
    /// Number of events of each box; all zero between two phases.
    counts: Vec<u32>,
    /// The boxes with events, one bit each; all zero between two phases.
    occupied: Vec<u64>,
    /// Shift that turns picoseconds of the phase into a slice of it.
    slice_shift: u32,
    scratch: Vec<Key>,
}

/// With fewer events than one per this many boxes, sorting the events is cheaper than visiting all boxes.
const SPARSE: usize = 256;

impl Agenda {
    pub fn new(boxes: usize, phase: u64) -> Agenda {
        let bits = u64::BITS - (phase - 1).leading_zeros();
        Agenda {
            counts: vec![0; boxes],
            occupied: vec![0; boxes.div_ceil(64)],
            slice_shift: bits.saturating_sub(SLICES.trailing_zeros()),
            ..Agenda::default()
        }
    }

    /// Number of boxes with events.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Forgets all events.
    pub fn clear(&mut self) {
        self.boxes.clear();
    }

    /// Number of boxes with events before box `node`.
    pub fn len_before(&self, node: u32) -> usize {
        self.boxes.partition_point(|turn| turn.node < node)
    }

    /// The `i`th box in order.
    #[inline(always)]
    pub fn node(&self, i: usize) -> Option<usize> {
        self.boxes.get(i).map(|b| b.node as usize)
    }

    /// The `i`th box in order, and its events in order of time.
    #[inline(always)]
    pub fn turn(&self, i: usize) -> Option<(usize, &[Key])> {
        let turn = self.boxes.get(i)?;
        Some((turn.node as usize, &self.keys[turn.begin as usize..turn.end as usize]))
    }

    /// The `i`th box and its events in order of time, followed by [`Key::NEVER`].
    #[inline(always)]
    pub fn turn_mut(&mut self, i: usize) -> (usize, &mut [Key]) {
        let turn = self.boxes[i];
        (turn.node as usize, &mut self.keys[turn.begin as usize..turn.end as usize + 1])
    }

    /// Groups events by box, and sorts the events of each box.
    pub fn arrange(&mut self, events: &mut Vec<Entry>) {
        self.boxes.clear();
        if self.keys.len() < 2 * events.len() {
            self.keys.resize(2 * events.len(), Key::NEVER);
        }
        if events.len() * SPARSE < self.counts.len() {
            self.arrange_few(events);
        } else {
            let (counts, occupied) = (&mut self.counts[..], &mut self.occupied[..]);
            for &Entry { node, .. } in events.iter() {
                counts[node as usize] += 1;
                occupied[node as usize / 64] |= 1 << (node % 64);
            }
            self.arrange_by_box(events);
        }
        events.clear();
    }

    fn arrange_few(&mut self, events: &mut [Entry]) {
        events.sort_unstable_by_key(|e| (e.node, e.key));
        let mut begin = 0;
        for of_box in events.chunk_by(|a, b| a.node == b.node) {
            let end = begin + of_box.len() as u32;
            of_box.iter().zip(&mut self.keys[begin as usize..]).for_each(|(e, key)| *key = e.key);
            self.keys[end as usize] = Key::NEVER;
            self.boxes.push(Turn { node: of_box[0].node, begin, end });
            begin = end + 1;
        }
    }

    /// Moves counted events to their boxes.
    fn arrange_by_box(&mut self, events: &[Entry]) {
        let (counts, keys) = (&mut self.counts[..], &mut self.keys[..]);
        let mut at = 0;
        for (first, word) in (0u32..).step_by(64).zip(&mut self.occupied) {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                let node = first + bits.trailing_zeros();
                bits &= bits - 1;
                let count = &mut counts[node as usize];
                let end = at + *count;
                self.boxes.push(Turn { node, begin: at, end });
                // From here on the count is the index of the box's next event.
                *count = at;
                at = end + 1;
                keys[end as usize] = Key::NEVER;
            }
        }
        for &Entry { node, key } in events {
            let next = &mut counts[node as usize];
            keys[*next as usize] = key;
            *next += 1;
        }
        for turn in &self.boxes {
            counts[turn.node as usize] = 0;
            // Many boxes have one or two events.
            match &mut keys[turn.begin as usize..turn.end as usize] {
                [] | [_] => {}
                [a, b] => (*a, *b) = ((*a).min(*b), (*a).max(*b)),
                keys => sort(keys, self.slice_shift, &mut self.scratch),
            }
        }
    }
}

/// Slices of a phase.
const SLICES: usize = 256;

/// More events of a box than this are sorted by slices of the phase first.
const MANY: usize = 64;

/// Defines a function that sorts at most so many keys with a sorting network, which is a list of pairs to put in order.
macro_rules! network {
    ($name:ident, $most:literal, $($a:literal $b:literal),+ $(,)?) => {
        #[inline(never)]
        fn $name(keys: &mut [Key]) {
            let mut sorted = [Key::NEVER; $most];
            sorted[..keys.len()].copy_from_slice(keys);
            $(
                let (low, high) = (sorted[$a].min(sorted[$b]), sorted[$a].max(sorted[$b]));
                (sorted[$a], sorted[$b]) = (low, high);
            )+
            keys.copy_from_slice(&sorted[..keys.len()]);
        }
    };
}

network!(sort_4, 4, 0 1, 2 3, 0 2, 1 3, 1 2);
// The shortest network for eight keys, and Batcher's odd-even merge sort for sixteen.
#[rustfmt::skip]
network!(sort_8, 8,
    0 2, 1 3, 4 6, 5 7, 0 4, 1 5, 2 6, 3 7, 0 1, 2 3,
    4 5, 6 7, 2 4, 3 5, 1 4, 3 6, 1 2, 3 4, 5 6,
);
#[rustfmt::skip]
network!(sort_16, 16,
    0 1, 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15, 0 2, 1 3,
    4 6, 5 7, 8 10, 9 11, 12 14, 13 15, 1 2, 5 6, 9 10, 13 14,
    0 4, 1 5, 2 6, 3 7, 8 12, 9 13, 10 14, 11 15, 2 4, 3 5,
    10 12, 11 13, 1 2, 3 4, 5 6, 9 10, 11 12, 13 14, 0 8, 1 9,
    2 10, 3 11, 4 12, 5 13, 6 14, 7 15, 4 8, 5 9, 6 10, 7 11,
    2 4, 3 5, 6 8, 7 9, 10 12, 11 13, 1 2, 3 4, 5 6, 7 8,
    9 10, 11 12, 13 14,
);

/// Sorts three keys or more. Few keys, which are the rule, take no branch: a comparison sort would mispredict most of its
/// branches.
#[inline(always)]
fn sort(keys: &mut [Key], slice_shift: u32, scratch: &mut Vec<Key>) {
    match keys.len() {
        0..=4 => sort_4(keys),
        5..=8 => sort_8(keys),
        9..=16 => sort_16(keys),
        17..=MANY => keys.sort_unstable(),
        _ => sort_many(keys, slice_shift, scratch),
    }
}

/// Sorts many keys: by slices of the phase, then those of each slice.
#[inline(never)]
fn sort_many(keys: &mut [Key], slice_shift: u32, scratch: &mut Vec<Key>) {
    scratch.clear();
    scratch.extend_from_slice(keys);
    let slice = |key: Key| (key.time() >> slice_shift) as u8 as usize;
    let mut next = [0u32; SLICES];
    scratch.iter().for_each(|&key| next[slice(key)] += 1);
    let mut at = 0;
    next.iter_mut().for_each(|next| at += std::mem::replace(next, at));
    for &key in &*scratch {
        let next = &mut next[slice(key)];
        keys[*next as usize] = key;
        *next += 1;
    }
    // Now each number is the end of its slice.
    let mut begin = 0;
    for end in next {
        let of_slice = &mut keys[begin..end as usize];
        if of_slice.len() > 1 {
            of_slice.sort_unstable();
        }
        begin = end as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Class;
    use sluicenet_proto::rng::Rng;

    #[test]
    fn every_event_comes_once_at_its_box_and_in_order() {
        let mut rng = Rng::from_words(&[5]);
        let phase = 1_048_577;
        for (boxes, count) in [(1_000, 20), (40, 50), (40, 70), (40, 3_000), (1, 100), (7, 64)] {
            let mut agenda = Agenda::new(boxes, phase);
            for _ in 0..3 {
                let mut events: Vec<Entry> = (0..count)
                    .map(|i| {
                        let key = Key::new(rng.below(phase), Class::Arrival, rng.below(8) as u16, i);
                        Entry { key, node: rng.below(boxes as u64) as u32 }
                    })
                    .collect();
                let mut expected: Vec<(u32, Key)> = events.iter().map(|e| (e.node, e.key)).collect();
                expected.sort_unstable();
                agenda.arrange(&mut events);
                let mut seen = Vec::new();
                for i in 0..agenda.len() {
                    assert_eq!(agenda.node(i), agenda.turn(i).map(|turn| turn.0));
                    let (node, keys) = agenda.turn_mut(i);
                    assert_eq!(keys.last(), Some(&Key::NEVER));
                    seen.extend(keys[..keys.len() - 1].iter().map(|&k| (node as u32, k)));
                }
                assert!(events.is_empty());
                assert_eq!(seen, expected);
            }
        }
    }

    #[test]
    fn networks_sort_all_lists() {
        // A network that sorts every list of zeros and ones sorts every list (Knuth 1998, 5.3.4, theorem Z).
        for (sort, most) in [(sort_4 as fn(&mut [Key]), 4u32), (sort_8, 8), (sort_16, 16)] {
            for bits in 0..1u64 << most {
                let mut keys: Vec<Key> = (0..most).map(|i| Key(bits >> i & 1)).collect();
                sort(&mut keys);
                let ones = bits.count_ones() as usize;
                let is_sorted = (0..).zip(&keys).all(|(i, key)| (key.0 == 1) == (i >= most as usize - ones));
                assert!(is_sorted, "{bits:b}: {keys:?}");
            }
            let mut few = [Key(3), Key(2), Key(1)];
            sort(&mut few);
            assert_eq!(few, [Key(1), Key(2), Key(3)]);
        }
    }
}
