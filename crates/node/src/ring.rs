//! Queues inside a box: one in a ring of slots, of which the number is a power of two, so that every access costs one
//! comparison; and one that seldom has more than one element.

use alloc::collections::VecDeque;
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
    /// The elements, the first one first.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len()).map_while(|i| self.slots.get(self.slot(i)).copied())
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
    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut slots = Vec::with_capacity((2 * self.slots.len()).max(FIRST_SLOTS));
        slots.extend((0..self.len()).map(|i| self.slots[self.slot(i)]));
        slots.resize(slots.capacity().next_power_of_two(), T::default());
        (self.slots, self.head) = (slots, 0);
    }
}

/// A queue of which the first element, which is often the only one, needs no memory of its own.
#[derive(Clone, Debug)]
pub(crate) struct ShortQueue<T> {
    first: Option<T>,
    others: VecDeque<T>,
}

impl<T> Default for ShortQueue<T> {
    fn default() -> ShortQueue<T> {
        ShortQueue { first: None, others: VecDeque::new() }
    }
}

impl<T> ShortQueue<T> {
    /// Whether the queue is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }
    /// Appends an element.
    #[inline(always)]
    pub fn push_back(&mut self, value: T) {
        match &self.first {
            None => self.first = Some(value),
            Some(_) => self.push_other(value),
        }
    }
    #[inline(never)]
    fn push_other(&mut self, value: T) {
        self.others.push_back(value);
    }
    /// The first element.
    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }
    /// Takes the first element.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        if self.others.is_empty() {
            return self.first.take();
        }
        core::mem::replace(&mut self.first, self.others.pop_front())
    }
    /// All elements.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.others)
    }
    /// The element behind `at` others.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at == 0 { self.first.as_mut() } else { self.others.get_mut(at - 1) }
    }
    /// Removes the element behind `at` others.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        if at == 0 { self.pop_front() } else { self.others.remove(at - 1) }
    }
    /// Keeps the elements for which `keeps` returns true.
    pub fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        self.others.retain(&keeps);
        if self.first.as_ref().is_some_and(|first| !keeps(first)) {
            self.pop_front();
        }
    }
}

impl<T> Extend<T> for ShortQueue<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push_back(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_proto::rng::Rng;

    #[test]
    fn a_ring_does_what_a_queue_of_the_standard_library_does() {
        let mut rng = Rng::from_words(&[11]);
        let (mut ring, mut queue) = (Ring::default(), VecDeque::new());
        for n in 0..20_000u32 {
            if rng.below(7) < 4 {
                ring.push_back(n);
                queue.push_back(n);
            } else {
                assert_eq!(ring.pop_front(), queue.pop_front());
            }
            assert_eq!((ring.len(), ring.is_empty()), (queue.len(), queue.is_empty()));
        }
    }

    #[test]
    fn a_short_queue_does_what_one_of_the_standard_library_does() {
        let mut rng = Rng::from_words(&[14]);
        let (mut short, mut queue) = (ShortQueue::default(), VecDeque::new());
        for n in 0..5_000u32 {
            let at = rng.below(4) as usize;
            match rng.below(7) {
                0..3 => {
                    short.extend([n]);
                    queue.push_back(n);
                }
                3 => assert_eq!(short.pop_front(), queue.pop_front()),
                4 => assert_eq!(short.remove(at), queue.remove(at)),
                5 => assert_eq!(short.get_mut(at), queue.get_mut(at)),
                _ => {
                    let keeps = |v: &u32| v & 7 != n & 7;
                    short.retain(keeps);
                    queue.retain(keeps);
                }
            }
            assert!(short.iter().eq(&queue));
            assert_eq!((short.front(), short.is_empty()), (queue.front(), queue.is_empty()));
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
