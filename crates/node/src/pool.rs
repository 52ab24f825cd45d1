//! Storage of frames: each is written once into a pool and known by its handle until it leaves the world.
//!
//! Queues and wires hold handles. A handle has one owner at a time: an owner that takes a handle from a queue passes it
//! on or gives it back. The last handle given back is reused first, while its frame is still in the nearest cache.

use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

/// A frame in a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(u32);

impl Default for Handle {
    fn default() -> Handle {
        Handle::NONE
    }
}

impl Handle {
    /// No frame.
    pub const NONE: Handle = Handle(NONE);

    /// The handle's number.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self.0
    }
    /// The handle with a number that [`Handle::index`] gave.
    #[inline(always)]
    pub const fn from_index(index: u32) -> Handle {
        Handle(index)
    }
}

/// A frame and its place in a queue, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot<F> {
    frame: F,
    next: u32,
    /// The frame's origin; its meaning is the box's own.
    origin: u16,
}

/// The frames of all boxes that one thread runs.
#[derive(Clone, Debug)]
pub struct Pool<F> {
    slots: Vec<Slot<F>>,
    free: u32,
    in_use: u32,
}

/// A first-in first-out queue of frames in a [`Pool`].
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
    /// Whether the queue is empty.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
    /// The first frame.
    #[inline(always)]
    pub fn front(&self) -> Option<Handle> {
        (self.head != NONE).then_some(Handle(self.head))
    }
}

impl<F: Copy> Default for Pool<F> {
    fn default() -> Pool<F> {
        Pool { slots: Vec::new(), free: NONE, in_use: 0 }
    }
}

impl<F: Copy> Pool<F> {
    /// A pool with address space for `frames`. The system provides the memory behind it as frames come. Moving a pool
    /// that grew would double its memory for a moment. If the address space is refused, the pool still grows.
    pub fn with_capacity(frames: usize) -> Pool<F> {
        let mut pool = Pool::default();
        // A refusal costs only speed, and only later.
        let _ = pool.slots.try_reserve_exact(frames);
        pool
    }

    /// Bytes of the address space for frames.
    pub fn capacity_bytes(&self) -> usize {
        self.slots.capacity() * core::mem::size_of::<Slot<F>>()
    }

    /// Frames in the pool.
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Adds a frame.
    #[inline(always)]
    pub fn insert(&mut self, frame: &F) -> Handle {
        self.in_use += 1;
        let at = self.free;
        match self.slots.get_mut(at as usize) {
            Some(slot) => {
                self.free = slot.next;
                slot.frame = *frame;
                Handle(at)
            }
            None => self.grow(*frame),
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, frame: F) -> Handle {
        assert!(self.slots.len() < NONE as usize);
        self.slots.push(Slot { frame, next: NONE, origin: 0 });
        Handle(self.slots.len() as u32 - 1)
    }

    /// Gives a frame back. Its contents can be read until the next [`Pool::insert`].
    #[inline(always)]
    pub fn release(&mut self, at: Handle) {
        self.slots[at.0 as usize].next = self.free;
        self.free = at.0;
        self.in_use -= 1;
    }

    /// The frame of a handle.
    #[inline(always)]
    pub fn frame(&self, at: Handle) -> &F {
        &self.slots[at.0 as usize].frame
    }

    /// The frame of a handle, if it has one.
    #[inline(always)]
    pub fn get(&self, at: Handle) -> Option<&F> {
        self.slots.get(at.0 as usize).map(|slot| &slot.frame)
    }

    /// The address of a handle's frame, for a caller that prefetches memory.
    #[inline(always)]
    pub fn address(&self, at: Handle) -> *const u8 {
        self.slots.as_ptr().wrapping_add(at.0 as usize).cast()
    }

    /// The handle that the next frame will have, for a caller that prefetches memory.
    #[inline(always)]
    pub fn next_free(&self) -> Handle {
        Handle(self.free)
    }

    /// The frame that stood behind this one in the queue from which it was just taken, for a caller that prefetches memory.
    /// Without such a frame it is any handle.
    #[inline(always)]
    pub fn behind(&self, at: Handle) -> Handle {
        Handle(self.slots[at.0 as usize].next)
    }

    /// The frame of a handle, mutable.
    #[inline(always)]
    pub fn frame_mut(&mut self, at: Handle) -> &mut F {
        &mut self.slots[at.0 as usize].frame
    }

    /// Appends a frame to `queue`.
    #[inline(always)]
    pub fn push(&mut self, queue: &mut Fifo, at: Handle, origin: u16) {
        // No branch: whether a queue is empty is a coin toss. The first frame follows itself for a moment.
        let empty = queue.head == NONE;
        let last = if empty { at.0 } else { queue.tail };
        self.slots[last as usize].next = at.0;
        queue.head = if empty { at.0 } else { queue.head };
        queue.tail = at.0;
        let slot = &mut self.slots[at.0 as usize];
        slot.next = NONE;
        slot.origin = origin;
    }

    /// Takes the first frame of `queue`, and its origin.
    #[inline(always)]
    pub fn pop(&mut self, queue: &mut Fifo) -> Option<(Handle, u16)> {
        let at = queue.head;
        let slot = self.slots.get(at as usize)?;
        queue.head = slot.next;
        Some((Handle(at), slot.origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_keep_their_order_and_share_the_slots() {
        let mut pool = Pool::default();
        let (mut a, mut b) = (Fifo::default(), Fifo::default());
        for i in 0..10u64 {
            let at = pool.insert(&i);
            pool.push(if i % 2 == 0 { &mut a } else { &mut b }, at, i as u16);
        }
        let (first, origin) = pool.pop(&mut a).unwrap();
        assert_eq!((*pool.frame(first), origin), (0, 0));
        pool.release(first);
        let at = pool.insert(&10);
        assert_eq!(at, first);
        pool.push(&mut b, at, 0);
        assert_eq!((pool.slots.len(), pool.in_use()), (10, 10));
        let drain = |pool: &mut Pool<u64>, l: &mut Fifo| {
            let mut all = Vec::new();
            while let Some((at, _)) = pool.pop(l) {
                all.push(*pool.frame(at));
                pool.release(at);
            }
            all
        };
        assert_eq!(drain(&mut pool, &mut a), [2, 4, 6, 8]);
        assert_eq!(drain(&mut pool, &mut b), [1, 3, 5, 7, 9, 10]);
        assert!(a.is_empty() && b.is_empty() && pool.in_use() == 0);
    }
}
