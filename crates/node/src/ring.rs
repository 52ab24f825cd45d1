//! A queue in a ring of slots. The number of slots is a power of two: every access costs one comparison.

use alloc::vec::Vec;

/// Initial slots of a ring that has been used.
const FIRST_SLOTS: usize = 4;

/// A first-in first-out queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring<T> {
    slots: Vec<T>,
    head: u32,
    len: u32,
}

impl<T: Copy + Default> Ring<T> {
    /// The number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }
    /// Whether the queue is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The address of the first element, for a caller that prefetches memory.
    #[inline(always)]
    pub fn first_line(&self) -> *const u8 {
        self.slots.as_ptr().wrapping_add(self.head as usize).cast()
    }
    #[inline(always)]
    fn slot(&self, i: usize) -> usize {
        (self.head as usize + i) & self.slots.len().wrapping_sub(1)
    }

    /// Appends an element.
    #[inline(always)]
    pub fn push_back(&mut self, value: T) {
        if self.len() == self.slots.len() {
            self.grow();
        }
        let at = self.slot(self.len());
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = value;
            self.len += 1;
        }
    }
    /// Takes the first element.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = *self.slots.get(self.head as usize)?;
        self.head = self.slot(1) as u32;
        self.len -= 1;
        Some(value)
    }

    /// Inserts an element behind all those in sorted order that `comes_before` it, looking from the end.
    #[inline(never)]
    pub fn insert_sorted(&mut self, value: T, comes_before: impl Fn(&T) -> bool) {
        self.push_back(value);
        let mut i = self.len() - 1;
        while i > 0 {
            let (at, before) = (self.slot(i), self.slot(i - 1));
            if comes_before(&self.slots[before]) {
                break;
            }
            self.slots[at] = self.slots[before];
            i -= 1;
        }
        let at = self.slot(i);
        self.slots[at] = value;
    }
    /// Keeps the elements for which `keeps` returns true.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        for _ in 0..self.len {
            if let Some(value) = self.pop_front().filter(&keeps) {
                self.push_back(value);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut slots = Vec::with_capacity((2 * self.slots.len()).max(FIRST_SLOTS));
        slots.extend((0..self.len()).map(|i| self.slots[self.slot(i)]));
        slots.resize(slots.capacity().next_power_of_two(), T::default());
        (self.slots, self.head) = (slots, 0);
    }
}

/// A queue of numbers that seldom holds more than one: the first one needs no memory beyond the queue itself.
#[derive(Clone, Debug)]
pub(crate) struct ShortQueue {
    /// The first number, or [`ShortQueue::NONE`].
    first: u32,
    others: Ring<u32>,
}

impl Default for ShortQueue {
    fn default() -> ShortQueue {
        ShortQueue { first: ShortQueue::NONE, others: Ring::default() }
    }
}

impl ShortQueue {
    const NONE: u32 = u32::MAX;

    /// Whether the queue is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first == ShortQueue::NONE
    }
    /// Appends a number below `u32::MAX`.
    #[inline(always)]
    pub fn push_back(&mut self, number: u32) {
        debug_assert!(number != ShortQueue::NONE);
        if self.is_empty() {
            self.first = number;
        } else {
            self.others.push_back(number);
        }
    }
    /// Takes the first number.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let next = self.others.pop_front().unwrap_or(ShortQueue::NONE);
        Some(core::mem::replace(&mut self.first, next))
    }
    /// Keeps the numbers for which `keeps` returns true.
    pub fn retain(&mut self, keeps: impl Fn(&u32) -> bool) {
        self.others.retain(&keeps);
        if !self.is_empty() && !keeps(&self.first) {
            self.first = self.others.pop_front().unwrap_or(ShortQueue::NONE);
        }
    }
}

impl Extend<u32> for ShortQueue {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, numbers: I) {
        numbers.into_iter().for_each(|number| self.push_back(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use sluicenet_proto::rng::Rng;

    #[test]
    fn it_does_what_a_queue_of_the_standard_library_does() {
        let mut rng = Rng::from_words(&[11]);
        let (mut ring, mut short, mut queue) = (Ring::default(), ShortQueue::default(), VecDeque::new());
        for n in 0..20_000u32 {
            match rng.below(8) {
                0..4 => {
                    ring.push_back(n);
                    short.extend([n]);
                    queue.push_back(n);
                }
                4..7 => assert_eq!([ring.pop_front(), short.pop_front()], [queue.pop_front(); 2]),
                _ => {
                    let odd = |v: &u32| v & 7 != 0;
                    ring.retain(odd);
                    short.retain(odd);
                    queue.retain(odd);
                }
            }
            assert_eq!(
                (ring.len(), ring.is_empty(), short.is_empty()),
                (queue.len(), queue.is_empty(), queue.is_empty())
            );
        }
    }

    #[test]
    fn a_late_element_goes_behind_its_equals() {
        let mut ring = Ring::default();
        for value in [(3, 0), (5, 0), (7, 0)] {
            ring.push_back(value);
        }
        ring.insert_sorted((5, 1), |v| v.0 <= 5);
        let all: Vec<(u64, u64)> = core::iter::from_fn(|| ring.pop_front()).collect();
        assert_eq!(all, [(3, 0), (5, 0), (5, 1), (7, 0)]);
    }
}
