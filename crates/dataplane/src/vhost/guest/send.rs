//! Frames a guest sends.

use super::super::header::{self, HEADER_BYTES};
use super::super::memory::Memory;
use super::super::queue::Fault;
use super::{BATCH, FRAME_BYTES, Guest, Slot, WORK, charge};
use crate::port::{Descriptor, Offload, Passed, Segmentation};

/// The cost of a refused frame: a round takes no more refused frames than good ones.
const REFUSED: u32 = WORK / BATCH as u32;

impl Guest {
    fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        })
    }

    /// Reads the next chains of one of the queues; returns whether there are any.
    pub(super) fn fill(&mut self) -> bool {
        for _ in 0..self.pairs {
            let pair = if self.batch_pair + 1 < self.pairs { self.batch_pair + 1 } else { 0 };
            self.batch_pair = pair;
            match self.fill_from(pair) {
                Ok(0) => {}
                Ok(_) => return true,
                Err(fault) => {
                    self.drop_batch(pair);
                    self.fault(2 * pair + 1, fault);
                }
            }
        }
        false
    }

    #[inline]
    fn fill_from(&mut self, pair: usize) -> Result<usize, Fault> {
        let Some(tx) = self.tx[pair].as_ref().filter(|tx| tx.queue.is_live()) else { return Ok(0) };
        let mut heads = [0; BATCH];
        let count = if tx.owed.is_empty() {
            let count = usize::from(tx.queue.waiting(0)?).min(BATCH);
            for (i, head) in heads[..count].iter_mut().enumerate() {
                *head = tx.queue.head(i as u16)?;
            }
            count
        } else {
            let owed = heads.iter_mut().zip(&tx.owed).map(|(head, owed)| *head = *owed);
            owed.count()
        };
        self.batch.clear();
        self.batch_from = 0;
        for &head in &heads[..count] {
            if self.send_left == 0 {
                // The rest in another round.
                break;
            }
            let id = self.slot();
            self.batch.push(id);
            let slot = &mut self.slots[id as usize];
            let Some(tx) = &self.tx[pair] else { return Ok(0) };
            (slot.head, slot.pair, slot.shown) = (head, pair as u8, false);
            let walked = tx.queue.walk(&self.memory, head, false, &mut slot.spans)?;
            let len = walked.bytes.saturating_sub(self.header_bytes.into());
            slot.len = if FRAME_BYTES.contains(&len) { len as u32 } else { 0 };
            if slot.len > 0 {
                self.memory.prefetch(slot.spans.first);
            }
            if walked.cost > 0 {
                self.counters.chained += u64::from(walked.cost);
                charge(&mut self.send_left, walked.cost, &mut self.counters);
            }
        }
        Ok(self.batch.len())
    }

    /// Forgets chains of a pair that were read ahead.
    pub(super) fn drop_batch(&mut self, pair: usize) {
        if self.batch_pair == pair {
            self.free.extend(&self.batch[self.batch_from..]);
            self.batch.clear();
            self.batch_from = 0;
        }
    }

    /// The next frame the guest sends; it stays the next until [`Guest::accept`].
    #[inline(always)]
    pub fn next_frame(&mut self) -> Option<Descriptor> {
        loop {
            if self.batch_from == self.batch.len() && !self.fill() {
                return None;
            }
            let buffer = self.batch[self.batch_from];
            let slot = &mut self.slots[buffer as usize];
            if slot.shown {
                return Some(Descriptor { buffer, len: slot.len });
            }
            if self.look_left == 0 {
                return None;
            }
            if slot.len > 0 && open(slot, &self.memory, self.header_bytes, self.features) {
                if slot.offload.segmentation != Segmentation::None {
                    // The cost of cutting the frame into segments.
                    let beyond = slot.offload.segments(slot.len).saturating_sub(BATCH as u32);
                    charge(&mut self.look_left, beyond, &mut self.counters);
                }
                return Some(Descriptor { buffer, len: slot.len });
            }
            self.refuse(buffer);
        }
    }

    #[cold]
    fn refuse(&mut self, buffer: u32) {
        charge(&mut self.look_left, REFUSED, &mut self.counters);
        if self.slots[buffer as usize].len == 0 {
            self.counters.bad_length += 1;
        } else {
            self.counters.bad_vnet_hdr += 1;
        }
        self.accept();
        self.give_back(buffer);
    }

    /// Takes the frame that [`Guest::next_frame`] showed.
    #[inline(always)]
    pub fn accept(&mut self) {
        let buffer = self.batch[self.batch_from];
        self.batch_from += 1;
        let slot = &mut self.slots[buffer as usize];
        slot.lent = true;
        self.lent += 1;
        if let Some(tx) = &mut self.tx[slot.pair as usize]
            && tx.owed.pop_front().is_none()
        {
            tx.queue.next = tx.queue.next.wrapping_add(1);
            if let Some(record) = &mut tx.queue.setup.record {
                record.take(slot.head);
            }
        }
    }

    /// Passes frames to `to`, at most `limit`, for as long as their first 16 bytes are `head` where `mask` has ones, nothing is
    /// left to be done to them, and `to` has room in one piece; returns how many. Each is copied once.
    #[inline]
    pub fn pass_run(&mut self, to: &mut Guest, first_bytes: [u64; 2], mask: u64, limit: u32) -> Passed {
        let mut passed = Passed::default();
        while passed.frames < limit {
            let Some(frame) = self.next_frame() else { break };
            let [low, high] = self.first_bytes(frame.buffer);
            if (low ^ first_bytes[0]) | ((high ^ first_bytes[1]) & mask) != 0 {
                break;
            }
            let slot = &self.slots[frame.buffer as usize];
            if slot.offload != Offload::NONE || !to.put_from([low, high], slot, &self.memory) {
                break;
            }
            self.accept();
            self.give_back(frame.buffer);
            passed.frames += 1;
            passed.bytes += u64::from(frame.len);
        }
        passed
    }

    /// The first 16 bytes of a frame.
    #[inline(always)]
    pub fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.read(buffer, &mut bytes);
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
        [half(0), half(8)]
    }

    /// Copies the first bytes of a frame out.
    #[inline(always)]
    pub fn read(&self, buffer: u32, into: &mut [u8]) {
        let slot = &self.slots[buffer as usize];
        match &slot.private {
            None => slot.spans.read(&self.memory, into),
            Some(bytes) => {
                let len = into.len().min(bytes.len());
                into[..len].copy_from_slice(&bytes[..len]);
            }
        }
    }

    /// The offloads that the frame still needs.
    #[inline(always)]
    pub fn offload(&self, buffer: u32) -> Offload {
        self.slots[buffer as usize].offload
    }

    /// The frame was delivered or dropped.
    #[inline(always)]
    pub fn give_back(&mut self, buffer: u32) {
        let slot = &mut self.slots[buffer as usize];
        debug_assert!(slot.lent);
        slot.lent = false;
        self.lent -= 1;
        self.free.push(buffer);
        if slot.private.is_some() {
            slot.private = None;
        } else if let Some(tx) = &mut self.tx[slot.pair as usize] {
            tx.queue.give_back(slot.head, 0);
        }
    }

    /// Frames accepted and not yet given back.
    #[inline(always)]
    pub fn lent(&self) -> u32 {
        self.lent
    }

    /// How many of the lent frames may wait for receivers that do not admit them: the rest of the first queue is read
    /// meanwhile.
    pub fn waiting_max(&self) -> u32 {
        self.tx[0].as_ref().map_or(0, |tx| u32::from(tx.queue.setup.ring.size()) / 2)
    }

    pub(super) fn evacuate(&mut self, pair: usize) {
        for buffer in 0..self.slots.len() {
            let slot = &mut self.slots[buffer];
            if slot.lent && slot.private.is_none() && usize::from(slot.pair) == pair {
                let mut bytes = vec![0; slot.len as usize];
                slot.spans.read(&self.memory, &mut bytes);
                slot.private = Some(bytes.into_boxed_slice());
                self.counters.evacuated += 1;
                if let Some(tx) = &mut self.tx[pair] {
                    tx.queue.give_back(slot.head, 0);
                }
            }
        }
    }
}

/// Reads and checks the header in front of a frame; returns whether it is valid.
#[inline(always)]
fn open(slot: &mut Slot, memory: &Memory, header_bytes: u32, features: u64) -> bool {
    let mut bytes = [0; HEADER_BYTES as usize];
    slot.spans.read(memory, &mut bytes[..header_bytes as usize]);
    slot.spans.skip(header_bytes);
    let spans = &slot.spans;
    let byte = |at: u32| {
        // Headers end long before this.
        let mut bytes = [0; 512];
        let Some(upto) = bytes.get_mut(..=at as usize) else { return 0 };
        spans.read(memory, upto);
        upto[at as usize]
    };
    let Ok(offload) = header::parse(&bytes, slot.len, features, byte) else { return false };
    slot.offload = offload;
    slot.shown = true;
    true
}
