//! A ring of 64-bit entries between one producer and one consumer in two processes. Neither trusts the other.
//! A line belongs here when it knows an order of memory accesses.
//!
//! Each side keeps its own index in private memory and publishes it. The index of the other side is read once, and checked
//! before it is used. A consumer that finds nothing may sleep: it sets a flag, looks once more, and blocks. The producer that
//! then publishes is told to wake it. No order of these steps loses a wake-up (`tests/loom.rs` tries them all).

#![forbid(unsafe_code)]

mod sync;

use sync::{AtomicU32, AtomicU64, Ordering};

/// Where the shared part of a ring lies.
pub trait Cells {
    /// Entries there have been, modulo 2^32; the producer writes it.
    fn produced(&self) -> &AtomicU32;
    /// Entries that were taken, modulo 2^32; the consumer writes it.
    fn consumed(&self) -> &AtomicU32;
    /// 1 while the consumer sleeps or is about to.
    fn asleep(&self) -> &AtomicU32;
    /// Entry `i`, modulo the number of entries.
    fn entry(&self, i: u32) -> &AtomicU64;
    /// Number of entries, a power of two below 2^31, less one.
    fn mask(&self) -> u32;
}

/// The other side's index cannot be: it jumped by more than the ring holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The end that puts entries in.
#[derive(Debug)]
pub struct Producer<C> {
    cells: C,
    produced: u32,
    published: u32,
    /// The consumer's index when it was last read.
    consumed: u32,
}

impl<C: Cells> Producer<C> {
    /// The producing end of an unused ring.
    pub fn new(cells: C) -> Producer<C> {
        Producer { cells, produced: 0, published: 0, consumed: 0 }
    }

    /// The room for entries, as far as is known.
    #[inline(always)]
    pub fn known_room(&self) -> u32 {
        self.cells.mask() + 1 - self.produced.wrapping_sub(self.consumed)
    }

    /// Reads the consumer's index, and returns the room for entries.
    #[inline]
    pub fn room(&mut self) -> Result<u32, Broken> {
        let consumed = self.cells.consumed().load(Ordering::Acquire);
        // The consumer may take only published entries.
        if self.published.wrapping_sub(consumed) > self.published.wrapping_sub(self.consumed) {
            return Err(Broken);
        }
        self.consumed = consumed;
        Ok(self.known_room())
    }

    /// Puts an entry into the ring; there must be room.
    #[inline(always)]
    pub fn push(&mut self, entry: u64) {
        debug_assert!(self.known_room() > 0);
        self.cells.entry(self.produced).store(entry, Ordering::Relaxed);
        self.produced = self.produced.wrapping_add(1);
    }

    /// Shows the consumer the new entries; returns whether it sleeps and has to be woken.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        if self.published == self.produced {
            return false;
        }
        self.published = self.produced;
        self.cells.produced().store(self.produced, Ordering::Release);
        // Both sides exchange this word, one after the other: either the consumer was first, and is found asleep, or it finds
        // the entries stored before.
        self.cells.asleep().swap(0, Ordering::AcqRel) != 0
    }
}

/// The end that takes entries out.
#[derive(Debug)]
pub struct Consumer<C> {
    cells: C,
    consumed: u32,
    published: u32,
    /// The producer's index when it was last read.
    produced: u32,
}

impl<C: Cells> Consumer<C> {
    /// The consuming end of an unused ring.
    pub fn new(cells: C) -> Consumer<C> {
        Consumer { cells, consumed: 0, published: 0, produced: 0 }
    }

    /// The next entry, which stays until [`Consumer::advance`].
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<u64>, Broken> {
        if self.consumed == self.produced && !self.look()? {
            return Ok(None);
        }
        Ok(Some(self.cells.entry(self.consumed).load(Ordering::Relaxed)))
    }

    #[inline]
    fn look(&mut self) -> Result<bool, Broken> {
        let produced = self.cells.produced().load(Ordering::Acquire);
        // All published entries are taken here: the new ones came since, and fit.
        if produced.wrapping_sub(self.consumed) > self.cells.mask() + 1 {
            return Err(Broken);
        }
        self.produced = produced;
        Ok(self.produced != self.consumed)
    }

    /// Takes the entry that was peeked at.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.consumed = self.consumed.wrapping_add(1);
    }

    /// Takes the next entry.
    #[inline(always)]
    pub fn pop(&mut self) -> Result<Option<u64>, Broken> {
        let entry = self.peek()?;
        if entry.is_some() {
            self.advance();
        }
        Ok(entry)
    }

    /// Shows the producer the taken entries.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.consumed {
            self.published = self.consumed;
            self.cells.consumed().store(self.consumed, Ordering::Release);
        }
    }

    /// Announces that this end is going to sleep; returns whether it may, because there is nothing to take. The producer then
    /// tells its caller to wake it, once.
    pub fn fall_asleep(&mut self) -> Result<bool, Broken> {
        self.cells.asleep().swap(1, Ordering::AcqRel);
        let something = self.consumed != self.produced || self.look()?;
        if something {
            self.wake_up();
        }
        Ok(!something)
    }

    /// The consumer is awake again, whatever woke it.
    pub fn wake_up(&mut self) {
        // An exchange, too. A plain store would come between the producer's exchange and the next one of this side, which
        // would then miss the producer's stores (found by the model checker).
        self.cells.asleep().swap(0, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Heap {
        words: [AtomicU32; 3],
        entries: Vec<AtomicU64>,
    }
    impl Cells for Arc<Heap> {
        fn produced(&self) -> &AtomicU32 {
            &self.words[0]
        }
        fn consumed(&self) -> &AtomicU32 {
            &self.words[1]
        }
        fn asleep(&self) -> &AtomicU32 {
            &self.words[2]
        }
        fn entry(&self, i: u32) -> &AtomicU64 {
            &self.entries[(i & self.mask()) as usize]
        }
        fn mask(&self) -> u32 {
            self.entries.len() as u32 - 1
        }
    }
    fn ring(size: usize) -> (Arc<Heap>, Producer<Arc<Heap>>, Consumer<Arc<Heap>>) {
        let entries = (0..size).map(|_| AtomicU64::new(0)).collect();
        let heap = Arc::new(Heap { words: Default::default(), entries });
        (heap.clone(), Producer::new(heap.clone()), Consumer::new(heap))
    }

    #[test]
    fn entries_come_out_in_order_and_only_when_published() {
        let (_, mut producer, mut consumer) = ring(4);
        let (mut next, mut expected) = (0, 0);
        for round in 0..1_000 {
            for _ in 0..round % 5 {
                if producer.room() != Ok(0) {
                    producer.push(next);
                    next += 1;
                }
            }
            assert_eq!(consumer.peek().unwrap().is_some(), consumer.produced != consumer.consumed);
            assert!(!producer.publish());
            for _ in 0..round % 3 {
                if let Some(entry) = consumer.pop().unwrap() {
                    assert_eq!(entry, expected);
                    expected += 1;
                }
            }
            consumer.publish();
        }
        assert!(expected > 500);
    }

    #[test]
    fn an_index_that_cannot_be_breaks_the_ring() {
        let (heap, mut producer, mut consumer) = ring(4);
        producer.push(1);
        let _ = producer.publish();
        heap.words[0].store(5, Ordering::Relaxed);
        assert_eq!(consumer.peek(), Err(Broken));
        heap.words[0].store(0u32.wrapping_sub(1), Ordering::Relaxed);
        assert_eq!(consumer.fall_asleep(), Err(Broken));
        // More taken than there was, and less than had been taken.
        heap.words[1].store(2, Ordering::Relaxed);
        assert_eq!(producer.room(), Err(Broken));
        heap.words[1].store(1, Ordering::Relaxed);
        assert_eq!(producer.room(), Ok(4));
        heap.words[1].store(0, Ordering::Relaxed);
        assert_eq!(producer.room(), Err(Broken));
    }

    #[test]
    fn indices_wrap() {
        let (heap, mut producer, mut consumer) = ring(2);
        for index in [&mut producer.produced, &mut producer.published, &mut producer.consumed] {
            *index = u32::MAX;
        }
        for index in [&mut consumer.produced, &mut consumer.published, &mut consumer.consumed] {
            *index = u32::MAX;
        }
        heap.words[0].store(u32::MAX, Ordering::Relaxed);
        heap.words[1].store(u32::MAX, Ordering::Relaxed);
        for i in 0..5 {
            assert_eq!(producer.room(), Ok(2));
            producer.push(i);
            let _ = producer.publish();
            assert_eq!(consumer.pop(), Ok(Some(i)));
            consumer.publish();
        }
    }

    #[test]
    fn a_sleeper_is_woken_once() {
        let (_, mut producer, mut consumer) = ring(4);
        assert_eq!(consumer.fall_asleep(), Ok(true));
        producer.push(1);
        assert!(producer.publish());
        producer.push(2);
        assert!(!producer.publish());
        assert_eq!(consumer.fall_asleep(), Ok(false));
        producer.push(3);
        assert!(!producer.publish());
    }
}
