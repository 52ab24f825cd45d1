//! Where the frames of a box wait: one slab, last freed first used, and lists threaded through it.

use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

/// A frame and its place in a list, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot<F> {
    frame: F,
    next: u32,
    /// Where it came from; the box decides what that means.
    origin: u16,
}

/// The frames of one box.
#[derive(Clone, Debug)]
pub struct Slab<F> {
    slots: Vec<Slot<F>>,
    free: u32,
    in_use: u32,
}

/// A first-in first-out list of frames in a [`Slab`].
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo { head: NONE, tail: NONE }
    }
}

impl Fifo {
    /// Place of the first frame.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
    /// Whether no frame is in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

impl<F: Copy> Default for Slab<F> {
    fn default() -> Slab<F> {
        Slab { slots: Vec::new(), free: NONE, in_use: 0 }
    }
}

impl<F: Copy> Slab<F> {
    /// Frames in it.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Appends a frame to `list`; returns its place.
    #[inline(always)]
    pub fn push(&mut self, list: &mut Fifo, frame: &F, origin: u16) -> u32 {
        self.in_use += 1;
        let at = self.free;
        let at = match self.slots.get_mut(at as usize) {
            Some(place) => {
                self.free = place.next;
                place.frame = *frame;
                place.next = NONE;
                place.origin = origin;
                at
            }
            None => self.grow(frame, origin),
        };
        if list.head == NONE {
            list.head = at;
        } else {
            self.slots[list.tail as usize].next = at;
        }
        list.tail = at;
        at
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, frame: &F, origin: u16) -> u32 {
        // A few at a time: most boxes hold few frames, and doubling would give every one room for a crowd.
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact((self.slots.len() / 2).max(4));
        }
        self.slots.push(Slot { frame: *frame, next: NONE, origin });
        self.slots.len() as u32 - 1
    }

    /// Takes the first frame of `list`: its place, which keeps the frame until the next push, and where it came from.
    #[inline(always)]
    pub fn pop(&mut self, list: &mut Fifo) -> Option<(u32, u16)> {
        let at = list.head;
        let slot = self.slots.get_mut(at as usize)?;
        list.head = slot.next;
        slot.next = self.free;
        self.free = at;
        self.in_use -= 1;
        Some((at, slot.origin))
    }

    /// The first frame of `list`.
    #[inline(always)]
    pub fn front(&self, list: &Fifo) -> Option<&F> {
        self.slots.get(list.head as usize).map(|s| &s.frame)
    }

    /// The frame at a place that [`Slab::pop`] gave.
    #[inline(always)]
    pub fn frame(&mut self, at: u32) -> &mut F {
        &mut self.slots[at as usize].frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_their_order_and_share_the_slots() {
        let mut slab = Slab::default();
        let (mut a, mut b) = (Fifo::default(), Fifo::default());
        for i in 0..10u64 {
            slab.push(if i % 2 == 0 { &mut a } else { &mut b }, &i, i as u16);
        }
        assert_eq!(slab.pop(&mut a), Some((0, 0)));
        slab.push(&mut b, &10, 0);
        assert_eq!(slab.slots.len(), 10);
        let drain = |slab: &mut Slab<u64>, l: &mut Fifo| {
            core::iter::from_fn(|| slab.pop(l).map(|x| *slab.frame(x.0))).collect::<Vec<_>>()
        };
        assert_eq!(drain(&mut slab, &mut a), [2, 4, 6, 8]);
        assert_eq!(drain(&mut slab, &mut b), [1, 3, 5, 7, 9, 10]);
        assert!(a.is_empty() && b.is_empty() && slab.in_use() == 0 && slab.pop(&mut a).is_none());
    }
}
