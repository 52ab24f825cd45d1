//! The device's end of a split virtqueue (virtio 1.2, 2.7): available chains and their buffers, returned chains, and
//! wake-ups.
//!
//! Everything that the driver writes is read once, and checked after it is read.

use super::memory::{Desc, Memory, Ring, Span};
use super::record::Record;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

/// Longest queue (virtio 1.2, 2.7).
pub const MAX_SIZE: u16 = 1 << 15;

/// Longest chain, in descriptors, as in the kernel's vhost and in QEMU (`UIO_MAXIOV`).
pub const MAX_CHAIN: u32 = 1024;

/// Bytes beyond which a chain is not looked at: the longest frame with its header is shorter.
pub const MAX_CHAIN_BYTES: u64 = 1 << 17;

/// How a driver broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A buffer that is not in the guest's memory.
    Descriptor,
    /// A chain that loops, leaves its table, or is not for reading or writing as it must.
    Chain,
    /// A table of descriptors that is nested, empty, of an odd size, or longer than the queue.
    Indirect,
    /// An available index further than the queue is long.
    Index,
    /// An available entry that is no descriptor.
    Entry,
}

/// The pieces of a chain. The first is kept apart: there seldom are others.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The first.
    pub first: Span,
    /// The others.
    pub more: Vec<Span>,
    any: bool,
}

impl From<Span> for Spans {
    #[inline(always)]
    fn from(first: Span) -> Spans {
        Spans { first, more: Vec::new(), any: true }
    }
}

impl Spans {
    /// Forgets them.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.any = false;
        if !self.more.is_empty() {
            self.more.clear();
        }
    }

    #[inline(always)]
    fn push(&mut self, span: Span) {
        if self.any {
            self.more.push(span);
        } else {
            self.first = span;
            self.any = true;
        }
    }

    /// How many there are, when there are any.
    fn count(&self) -> u32 {
        1 + self.more.len() as u32
    }

    /// Takes `bytes` away from the front, which must be longer.
    #[inline(always)]
    pub fn skip(&mut self, bytes: u32) {
        if self.first.len > bytes {
            self.first = self.first.skip(bytes);
        } else {
            self.skip_whole(bytes);
        }
    }

    #[cold]
    fn skip_whole(&mut self, mut bytes: u32) {
        let mut gone = 0;
        while self.first.len <= bytes {
            bytes -= self.first.len;
            self.first = self.more[gone];
            gone += 1;
        }
        self.more.drain(..gone);
        self.first = self.first.skip(bytes);
    }

    /// Copies bytes out from the front, as many as `into` takes or there are.
    #[inline(always)]
    pub fn read(&self, memory: &Memory, into: &mut [u8]) {
        if self.first.len as usize >= into.len() {
            memory.read(self.first, 0, into);
        } else {
            self.read_pieces(memory, into);
        }
    }

    #[inline(never)]
    fn read_pieces(&self, memory: &Memory, mut into: &mut [u8]) {
        for span in std::iter::once(&self.first).chain(&self.more) {
            let (now, later) = into.split_at_mut(into.len().min(span.len as usize));
            memory.read(*span, 0, now);
            into = later;
        }
    }

    /// Copies bytes in, from `skip` behind the front; there is room.
    #[inline(always)]
    pub fn write(&self, memory: &Memory, skip: usize, from: &[u8]) {
        if self.first.len as usize >= skip + from.len() {
            memory.write(self.first, skip, from);
        } else {
            self.write_pieces(memory, skip, from);
        }
    }

    #[inline(never)]
    fn write_pieces(&self, memory: &Memory, mut skip: usize, mut from: &[u8]) {
        for span in std::iter::once(&self.first).chain(&self.more) {
            let len = span.len as usize;
            if skip < len {
                let (now, later) = from.split_at(from.len().min(len - skip));
                memory.write(*span, skip, now);
                (skip, from) = (0, later);
            } else {
                skip -= len;
            }
        }
        debug_assert!(from.is_empty());
    }
}

/// The size and cost of a chain that was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Bytes in the chain. For a chain of more than [`MAX_CHAIN_BYTES`], the value exceeds that limit.
    pub bytes: u64,
    /// The cost: descriptors, or pieces where there are more of them; 0 for a chain of one piece.
    pub cost: u32,
}

/// A frontend's settings of a queue.
#[derive(Debug)]
pub struct Setup {
    /// The ring in the guest's memory.
    pub ring: Ring,
    /// The next available entry to take.
    pub next: u16,
    /// Written to wake the guest; without it the guest polls.
    pub call: Option<OwnedFd>,
    /// Readable when the guest woke us; without it we poll.
    pub kick: Option<OwnedFd>,
    /// Written when the queue is broken.
    pub error: Option<OwnedFd>,
    /// Whether [`EVENT_IDX`](super::header::EVENT_IDX) was agreed on.
    pub event_idx: bool,
    /// Whether [`INDIRECT_DESC`](super::header::INDIRECT_DESC) was.
    pub indirect: bool,
    /// Whether the queue may be served.
    pub enabled: bool,
    /// The record of chains in flight.
    pub record: Option<Record>,
}

/// The device's end of a virtqueue.
#[derive(Debug)]
pub struct Queue {
    /// The frontend's settings.
    pub setup: Setup,
    /// The next available entry to take.
    pub next: u16,
    /// Chains given back, and how many of them the driver knows of.
    used: u16,
    published: u16,
    /// Whether the driver broke the rules: it is served no more.
    pub broken: bool,
}

impl Queue {
    /// A queue with its frontend's settings; the index of returned chains stands in the ring already.
    pub fn new(setup: Setup) -> Queue {
        let used = setup.ring.used_idx();
        let mut queue = Queue { next: setup.next, used, published: used, setup, broken: false };
        queue.want_no_kicks();
        queue
    }

    /// Whether the queue may be served.
    #[inline(always)]
    pub fn is_live(&self) -> bool {
        self.setup.enabled && !self.broken
    }

    /// How many chains wait beyond the first `ahead` of them.
    #[inline(always)]
    pub fn waiting(&self, ahead: u16) -> Result<u16, Fault> {
        let available = self.setup.ring.avail_idx();
        // Chains that were not yet given back count: the driver has no more descriptors than the ring.
        if available.wrapping_sub(self.used) > self.setup.ring.size() {
            return Err(Fault::Index);
        }
        let from = self.next.wrapping_add(ahead);
        let waiting = available.wrapping_sub(from);
        if waiting > self.setup.ring.size() { Err(Fault::Index) } else { Ok(waiting) }
    }

    /// The first descriptor of the chain that waits behind `ahead` others, which then is fetched.
    #[inline(always)]
    pub fn head(&self, ahead: u16) -> Result<u16, Fault> {
        let ring = &self.setup.ring;
        let head = ring.avail_entry(self.next.wrapping_add(ahead));
        if head >= ring.size() {
            return Err(Fault::Entry);
        }
        ring.prefetch_desc(head);
        // Eight entries are in a cache line.
        if ahead % 8 == 0 {
            ring.prefetch_used(self.used.wrapping_add(ahead).wrapping_add(8));
        }
        Ok(head)
    }

    /// The pieces of a chain, for us to `write` or else to read. A chain that holds too much is not walked to its end.
    #[inline(always)]
    pub fn walk(&self, memory: &Memory, head: u16, write: bool, spans: &mut Spans) -> Result<Walked, Fault> {
        spans.clear();
        if let Some(span) = self.walk_one(memory, head, write) {
            spans.push(span);
            return Ok(Walked { bytes: u64::from(span.len), cost: 0 });
        }
        self.walk_chain(memory, self.setup.ring.desc(head), write, spans)
    }

    /// The single piece of a chain that consists of one.
    #[inline(always)]
    pub fn walk_one(&self, memory: &Memory, head: u16, write: bool) -> Option<Span> {
        let desc = self.setup.ring.desc(head);
        let kind = if write { Desc::WRITE } else { 0 };
        if desc.flags & (Desc::NEXT | Desc::WRITE | Desc::INDIRECT) != kind || desc.len == 0 {
            return None;
        }
        memory.find(desc.addr, desc.len).filter(|s| s.len == desc.len)
    }

    #[inline(never)]
    fn walk_chain(&self, memory: &Memory, mut desc: Desc, write: bool, spans: &mut Spans) -> Result<Walked, Fault> {
        let size = self.setup.ring.size();
        let (mut bytes, mut descriptors) = (0, 0);
        while descriptors < MAX_CHAIN.min(size.into()) {
            descriptors += 1;
            if desc.flags & Desc::INDIRECT != 0 {
                return self.walk_table(memory, desc, write, spans, Walked { bytes, cost: descriptors });
            }
            bytes += add(memory, desc, write, spans)?;
            if desc.flags & Desc::NEXT == 0 || bytes > MAX_CHAIN_BYTES {
                return Ok(Walked { bytes, cost: descriptors.max(spans.count()) });
            }
            if desc.next >= size {
                return Err(Fault::Chain);
            }
            desc = self.setup.ring.desc(desc.next);
        }
        Err(Fault::Chain)
    }

    fn walk_table(
        &self,
        memory: &Memory,
        table: Desc,
        write: bool,
        spans: &mut Spans,
        before: Walked,
    ) -> Result<Walked, Fault> {
        let entries = table.len / Desc::BYTES;
        if !self.setup.indirect
            || table.flags & Desc::NEXT != 0
            || entries == 0
            || table.len % Desc::BYTES != 0
            || entries > u32::from(self.setup.ring.size())
        {
            return Err(Fault::Indirect);
        }
        let span = memory.find(table.addr, table.len).filter(|s| s.len == table.len).ok_or(Fault::Descriptor)?;
        let Walked { mut bytes, cost: mut descriptors } = before;
        let (mut i, mut seen) = (0, 0);
        while seen < entries && descriptors < MAX_CHAIN {
            seen += 1;
            descriptors += 1;
            let mut entry = [0; Desc::BYTES as usize];
            memory.read(span, (i * Desc::BYTES) as usize, &mut entry);
            let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| entry[at + k]));
            let desc = Desc::from_halves(half(0), half(8));
            if desc.flags & Desc::INDIRECT != 0 {
                return Err(Fault::Indirect);
            }
            bytes += add(memory, desc, write, spans)?;
            if desc.flags & Desc::NEXT == 0 || bytes > MAX_CHAIN_BYTES {
                return Ok(Walked { bytes, cost: descriptors.max(spans.count()) });
            }
            i = u32::from(desc.next);
            if i >= entries {
                return Err(Fault::Chain);
            }
        }
        Err(Fault::Chain)
    }

    /// Gives a chain back; `written` bytes of it are for the driver to read.
    #[inline(always)]
    pub fn give_back(&mut self, head: u16, written: u32) {
        let ring = &self.setup.ring;
        ring.set_used_id(self.used, u32::from(head));
        ring.set_used_len(self.used, written);
        self.used = self.used.wrapping_add(1);
        if let Some(record) = &mut self.setup.record {
            record.done(head);
        }
    }

    /// Shows the driver the returned chains; returns whether it has to be woken.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.show_used() && {
            // The index must be seen before it is asked whether the driver sleeps, which asks in the other order.
            fence(Ordering::SeqCst);
            self.wants_call()
        }
    }

    /// Shows the driver the returned chains; returns whether there are any. Then [`Queue::wants_call`] has to be asked after
    /// a fence.
    #[inline(always)]
    pub fn show_used(&mut self) -> bool {
        if self.used == self.published {
            return false;
        }
        self.setup.ring.set_used_idx(self.used);
        if let Some(record) = &mut self.setup.record {
            record.publish(self.used);
        }
        true
    }

    /// Whether the driver has to be woken for chains shown since the last call.
    #[inline(always)]
    #[must_use]
    pub fn wants_call(&mut self) -> bool {
        if self.used == self.published {
            return false;
        }
        let ring = &self.setup.ring;
        let before = std::mem::replace(&mut self.published, self.used);
        if self.setup.event_idx {
            // virtio 1.2, 2.7.7.2.
            let event = ring.used_event();
            self.used.wrapping_sub(event).wrapping_sub(1) < self.used.wrapping_sub(before)
        } else {
            ring.avail_flags() & 1 == 0
        }
    }

    /// Asks for a kick when there are more than the first `ahead` chains; returns how many there are already.
    pub fn want_kicks(&mut self, ahead: u16) -> Result<u16, Fault> {
        let ring = &self.setup.ring;
        if self.setup.event_idx {
            ring.set_avail_event(self.next.wrapping_add(ahead));
        } else {
            ring.set_used_flags(0);
        }
        // As in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        self.waiting(ahead)
    }

    /// Asks for no kicks.
    pub fn want_no_kicks(&mut self) {
        let ring = &self.setup.ring;
        if self.setup.event_idx {
            // An entry that has gone by: it comes round again in 65,536 chains, for one kick too many.
            ring.set_avail_event(self.next.wrapping_sub(1));
        } else {
            ring.set_used_flags(1);
        }
    }
}

/// Adds the buffer of a descriptor, which may lie in several regions.
fn add(memory: &Memory, desc: Desc, write: bool, spans: &mut Spans) -> Result<u64, Fault> {
    if (desc.flags & Desc::WRITE != 0) != write {
        return Err(Fault::Chain);
    }
    let mut done = 0;
    while done < desc.len {
        let at = desc.addr.checked_add(u64::from(done)).ok_or(Fault::Descriptor)?;
        let span = memory.find(at, desc.len - done).ok_or(Fault::Descriptor)?;
        done += span.len;
        spans.push(span);
    }
    Ok(u64::from(desc.len))
}
