//! A guest as its frontend has described it so far: its memory, its queues, and the frames that are in them.

use super::header::{self, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HEADER_BYTES, MRG_RXBUF};
use super::memory::Memory;
use super::queue::{Fault, Queue, Setup, Spans};
use crate::port::{Delivery, Descriptor, Offload, Segmentation};
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pairs of queues a guest may have.
pub const MAX_PAIRS: usize = 8;

/// Shortest and longest frame a guest may send: an Ethernet header, and what IP can say with two tags in front.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 14..=65_535 + 22;

/// Longest frame of a guest that takes neither long segments nor mergeable buffers: 1,500 bytes, header and tag.
const PLAIN_FRAME: u32 = 1_518;

/// Chains looked at together, so that what one needs is fetched while another is looked at.
const BATCH: usize = 32;

/// What happened at a port, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults, by kind.
    pub bad_descriptor: u64,
    /// See [`Fault::Chain`].
    pub bad_chain: u64,
    /// See [`Fault::Indirect`].
    pub bad_indirect: u64,
    /// See [`Fault::Index`].
    pub bad_index: u64,
    /// See [`Fault::Entry`].
    pub bad_entry: u64,
    /// Frames shorter than an Ethernet header, or longer than IP allows.
    pub bad_length: u64,
    /// Frames whose header asks for what cannot be.
    pub bad_vnet_hdr: u64,
    /// Times the guest's memory was gone.
    pub memory_lost: u64,
    /// Frames for the guest that none of its buffers can hold.
    pub too_long: u64,
    /// Frames whose checksum was finished here, because the guest takes none that is not.
    pub checksummed: u64,
    /// Frames cut into segments here, because the guest takes no long ones.
    pub segmented: u64,
    /// Frames copied out of the guest's memory because it went away or was stopped.
    pub evacuated: u64,
    /// Frames that a switch before this one owed the guest, taken up again.
    pub resumed: u64,
    /// Times the guest was woken.
    pub calls: u64,
}

/// A frame the guest sends.
#[derive(Debug, Default)]
struct Slot {
    spans: Spans,
    /// Bytes of the frame; 0 for one that must not be.
    len: u32,
    head: u16,
    /// The pair whose it is, unless it was evacuated.
    pair: u8,
    shown: bool,
    lent: bool,
    offload: Offload,
    /// Its bytes, when they are not the guest's any more.
    private: Option<Box<[u8]>>,
}

/// A chain for a frame towards the guest.
#[derive(Debug, Default)]
struct Chain {
    spans: Spans,
    len: u32,
    head: u16,
}

#[derive(Debug)]
struct Tx {
    queue: Queue,
    /// Chains that a switch before this one took and did not give back.
    owed: VecDeque<u16>,
}

#[derive(Debug)]
struct Rx {
    queue: Queue,
    /// Chains read ahead.
    ready: VecDeque<Chain>,
    spare: Vec<Spans>,
    /// Whether there was no room for a frame.
    starved: bool,
}

/// The queues of a guest and the frames in them.
#[derive(Debug, Default)]
pub struct Guest {
    memory: Arc<Memory>,
    features: u64,
    header_bytes: u32,
    tx: [Option<Tx>; MAX_PAIRS],
    rx: [Option<Rx>; MAX_PAIRS],
    /// Pairs whose receive queue is served, and how many queues of either kind there are room for.
    live_rx: Vec<u8>,
    pairs: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    lent: u32,
    batch: [u32; BATCH],
    batch_from: usize,
    batch_to: usize,
    batch_pair: usize,
    scratch: Vec<u8>,
    /// What happened.
    pub counters: Counters,
}

impl Guest {
    /// What was agreed on; before any queue starts.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
        self.header_bytes = header::header_bytes(features);
    }

    /// Its memory; before any queue starts.
    pub fn set_memory(&mut self, memory: Arc<Memory>) {
        self.memory = memory;
    }

    /// Whether its memory is gone from under us.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Whether any queue was started.
    #[inline(always)]
    pub fn has_queues(&self) -> bool {
        self.pairs > 0
    }

    /// Takes a queue into service: an even one is for the guest to receive, an odd one for it to send.
    pub fn start(&mut self, index: usize, setup: Setup) {
        let pair = index / 2;
        let mut queue = Queue::new(setup);
        if index % 2 == 0 {
            self.rx[pair] = Some(Rx { queue, ready: VecDeque::new(), spare: Vec::new(), starved: false });
        } else {
            let ring = queue.setup.ring.clone();
            let owed: VecDeque<u16> = queue.setup.record.as_mut().map(|r| r.recover(&ring).into()).unwrap_or_default();
            if !owed.is_empty() {
                queue.next = ring.used_idx().wrapping_add(owed.len() as u16);
                self.counters.resumed += owed.len() as u64;
            }
            self.tx[pair] = Some(Tx { queue, owed });
        }
        self.refresh();
    }

    /// Takes a queue out of service; returns its next available entry. What it lent is copied and given back first, so that
    /// nothing of the guest's is touched afterwards and nothing is lost.
    pub fn stop(&mut self, index: usize) -> Option<u16> {
        let pair = index / 2;
        let next = if index % 2 == 0 {
            let _ = self.rx[pair].as_mut()?.queue.publish().then(|| self.call(index));
            self.rx[pair].take()?.queue.next
        } else {
            self.drop_batch(pair);
            self.evacuate(pair);
            let _ = self.tx[pair].as_mut()?.queue.publish().then(|| self.call(index));
            self.tx[pair].take()?.queue.next
        };
        self.refresh();
        Some(next)
    }

    /// Takes all queues out of service and forgets the guest's memory.
    pub fn detach(&mut self) {
        for index in 0..2 * MAX_PAIRS {
            let _ = self.stop(index);
        }
        self.memory = Arc::default();
    }

    /// The queue of that number, if it was started.
    pub fn queue_mut(&mut self, index: usize) -> Option<&mut Queue> {
        match index % 2 {
            0 => self.rx[index / 2].as_mut().map(|rx| &mut rx.queue),
            _ => self.tx[index / 2].as_mut().map(|tx| &mut tx.queue),
        }
    }

    /// Whether a queue may be served.
    pub fn enable(&mut self, index: usize, enabled: bool) {
        if index % 2 == 1 && !enabled {
            self.drop_batch(index / 2);
        }
        if let Some(queue) = self.queue_mut(index) {
            queue.setup.enabled = enabled;
        }
        self.refresh();
    }

    /// All queues that were started.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> {
        let rx = self.rx.iter().flatten().map(|rx| &rx.queue);
        rx.chain(self.tx.iter().flatten().map(|tx| &tx.queue))
    }

    /// How many queues are broken.
    pub fn broken_queues(&self) -> u64 {
        self.queues().filter(|q| q.broken).count() as u64
    }

    fn refresh(&mut self) {
        let live = |rx: &Option<Rx>| rx.as_ref().is_some_and(|rx| rx.queue.is_live());
        self.live_rx = (0..MAX_PAIRS as u8).filter(|&k| live(&self.rx[k as usize])).collect();
        let last = (0..MAX_PAIRS).rfind(|&k| self.rx[k].is_some() || self.tx[k].is_some());
        self.pairs = last.map_or(0, |k| k + 1);
    }

    #[cold]
    fn fault(&mut self, index: usize, fault: Fault) {
        *match fault {
            Fault::Descriptor => &mut self.counters.bad_descriptor,
            Fault::Chain => &mut self.counters.bad_chain,
            Fault::Indirect => &mut self.counters.bad_indirect,
            Fault::Index => &mut self.counters.bad_index,
            Fault::Entry => &mut self.counters.bad_entry,
        } += 1;
        if let Some(queue) = self.queue_mut(index) {
            queue.broken = true;
            if let Some(error) = &queue.setup.error {
                signal(error);
            }
        }
        self.refresh();
    }

    #[cold]
    fn call(&mut self, index: usize) {
        if let Some(call) = self.queue_mut(index).and_then(|q| q.setup.call.as_ref()) {
            signal(call);
            self.counters.calls += 1;
        }
    }

    /// Shows the guest what is done with, and wakes it if it wants to be.
    pub fn publish(&mut self) {
        for pair in 0..self.pairs {
            if self.rx[pair].as_mut().is_some_and(|rx| rx.queue.publish()) {
                self.call(2 * pair);
            }
            if self.tx[pair].as_mut().is_some_and(|tx| tx.queue.publish()) {
                self.call(2 * pair + 1);
            }
        }
    }

    /// Asks to be woken when there is something to send, unless `blocked`, or new room where there was none; whether there
    /// is already.
    pub fn fall_asleep(&mut self, blocked: bool) -> bool {
        let mut quiet = blocked || self.batch_from == self.batch_to;
        for pair in 0..self.pairs {
            if let Some(rx) = self.rx[pair].as_mut().filter(|rx| rx.starved && rx.queue.is_live()) {
                quiet &= rx.queue.want_kicks(rx.ready.len() as u16) == Ok(0);
            }
            if let Some(tx) = self.tx[pair].as_mut().filter(|tx| tx.queue.is_live()) {
                quiet &= blocked || (tx.owed.is_empty() && tx.queue.want_kicks(0) == Ok(0));
            }
        }
        quiet
    }

    /// Asks for no more kicks, and forgets those that came.
    pub fn wake_up(&mut self) {
        for index in 0..2 * self.pairs {
            if let Some(queue) = self.queue_mut(index) {
                queue.want_no_kicks();
                if let Some(kick) = &queue.setup.kick {
                    // Nothing to read is as good as something.
                    let _ = rustix::io::read(kick, &mut [0u8; 8]);
                }
            }
        }
    }
}

/// Frames the guest sends.
impl Guest {
    fn slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        })
    }

    /// Reads the next chains of one of the queues; whether there are any.
    fn fill(&mut self) -> bool {
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
        (self.batch_from, self.batch_to) = (0, 0);
        for &head in &heads[..count] {
            let id = self.slot();
            self.batch[self.batch_to] = id;
            self.batch_to += 1;
            let slot = &mut self.slots[id as usize];
            let Some(tx) = &self.tx[pair] else { return Ok(0) };
            (slot.head, slot.pair, slot.shown) = (head, pair as u8, false);
            let total = tx.queue.walk(&self.memory, head, false, &mut slot.spans)?;
            let len = total.saturating_sub(self.header_bytes.into());
            slot.len = if FRAME_BYTES.contains(&len) { len as u32 } else { 0 };
            if slot.len > 0 {
                self.memory.prefetch(slot.spans.first);
            }
        }
        Ok(count)
    }

    /// Forgets chains of a pair that were read ahead.
    fn drop_batch(&mut self, pair: usize) {
        if self.batch_pair == pair {
            self.free.extend(&self.batch[self.batch_from..self.batch_to]);
            (self.batch_from, self.batch_to) = (0, 0);
        }
    }

    /// The next frame the guest sends; it stays the next until [`Guest::accept`].
    #[inline(always)]
    pub fn next_frame(&mut self) -> Option<Descriptor> {
        loop {
            if self.batch_from == self.batch_to && !self.fill() {
                return None;
            }
            let buffer = self.batch[self.batch_from];
            let slot = &mut self.slots[buffer as usize];
            if slot.shown || (slot.len > 0 && open(slot, &self.memory, self.header_bytes, self.features)) {
                return Some(Descriptor { buffer, len: slot.len });
            }
            self.refuse(buffer);
        }
    }

    #[cold]
    fn refuse(&mut self, buffer: u32) {
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

    /// What is left to be done to a frame.
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

    fn evacuate(&mut self, pair: usize) {
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

/// Reads and checks the header in front of a frame; whether it is in order.
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

/// Frames towards the guest.
impl Guest {
    /// The longest frame it takes in one piece.
    pub fn max_frame(&self) -> u32 {
        match self.features & (MRG_RXBUF | GUEST_TSO4 | GUEST_TSO6) {
            0 => PLAIN_FRAME,
            _ => *FRAME_BYTES.end() as u32,
        }
    }

    /// What the guest can be left to do itself.
    #[inline(always)]
    fn takes(&self, segmentation: Segmentation) -> bool {
        match segmentation {
            Segmentation::None => true,
            Segmentation::Tcp4 => self.features & GUEST_TSO4 != 0,
            Segmentation::Tcp6 => self.features & GUEST_TSO6 != 0,
        }
    }

    /// Whether there is room for a frame in every queue it may go to.
    #[inline(always)]
    pub fn reserve(&mut self, len: u32, offload: &Offload) -> bool {
        if let [pair] = self.live_rx[..]
            && offload.segmentation == Segmentation::None
            && let Some(rx) = &self.rx[pair as usize]
            && rx.ready.front().is_some_and(|chain| chain.len >= len + self.header_bytes)
        {
            return true;
        }
        self.reserve_all(len, offload)
    }

    fn reserve_all(&mut self, len: u32, offload: &Offload) -> bool {
        let cut = !self.takes(offload.segmentation);
        let mut k = 0;
        while let Some(&pair) = self.live_rx.get(k) {
            let pair = usize::from(pair);
            loop {
                let Some(rx) = &mut self.rx[pair] else { break };
                let header_bytes = self.header_bytes;
                let enough = if cut {
                    let (headers, segment) = (u32::from(offload.headers), u32::from(offload.segment));
                    let payload = len - headers.min(len);
                    let whole = (0..payload / segment.max(1)).map(|_| headers + segment);
                    let rest = payload % segment.max(1);
                    let last = (rest > 0 || payload == 0).then_some(headers + rest);
                    fits(&rx.ready, whole.chain(last), header_bytes, self.features)
                } else {
                    fits(&rx.ready, std::iter::once(len), header_bytes, self.features)
                };
                // A frame that the whole queue has no room for is not waited with: it would wait for ever.
                if enough || rx.ready.len() >= usize::from(rx.queue.setup.ring.size()) {
                    rx.starved = false;
                    break;
                }
                match self.read_ahead(pair) {
                    Ok(0) => {
                        if let Some(rx) = &mut self.rx[pair] {
                            rx.starved = true;
                        }
                        return false;
                    }
                    Ok(_) => {}
                    Err(fault) => {
                        self.fault(2 * pair, fault);
                        // One queue less.
                        return self.reserve(len, offload);
                    }
                }
            }
            k += 1;
        }
        !self.live_rx.is_empty()
    }

    /// Reads the next chains of a receive queue; returns how many.
    fn read_ahead(&mut self, pair: usize) -> Result<usize, Fault> {
        let Some(rx) = &mut self.rx[pair] else { return Ok(0) };
        let ahead = rx.ready.len() as u16;
        let count = usize::from(rx.queue.waiting(ahead)?).min(BATCH);
        let mut heads = [0; BATCH];
        for (i, head) in heads[..count].iter_mut().enumerate() {
            *head = rx.queue.head(ahead.wrapping_add(i as u16))?;
        }
        for &head in &heads[..count] {
            let mut spans = rx.spare.pop().unwrap_or_default();
            let len = rx.queue.walk(&self.memory, head, true, &mut spans)?;
            // Each buffer has room for a header at least (virtio 1.2, 5.1.6.3.1).
            let len = u32::try_from(len).ok().filter(|&len| len > self.header_bytes).ok_or(Fault::Chain)?;
            self.memory.prefetch(spans.first);
            rx.ready.push_back(Chain { spans, len, head });
        }
        Ok(count)
    }

    /// Delivers a frame for which room was reserved.
    #[inline(always)]
    pub fn deliver(&mut self, frame: &Delivery<'_>) {
        let pair = match self.live_rx[..] {
            [pair] => pair,
            [] => return,
            _ => self.live_rx[flow(frame.bytes) as usize % self.live_rx.len()],
        };
        if frame.offload == Offload::NONE {
            self.put(pair.into(), &Offload::NONE, frame.bytes);
        } else {
            self.deliver_offloaded(pair.into(), frame.bytes, frame.offload);
        }
    }

    #[inline(never)]
    fn deliver_offloaded(&mut self, pair: usize, bytes: &[u8], mut offload: Offload) {
        let left = self.features & GUEST_CSUM != 0;
        offload.verified &= left;
        if self.takes(offload.segmentation) && (left || offload.checksum.is_none()) {
            return self.put(pair, &offload, bytes);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if offload.segmentation == Segmentation::None {
            scratch.clear();
            scratch.extend_from_slice(bytes);
            let (start, offset) = offload.checksum.unwrap_or_default();
            match finish_checksum(&mut scratch, start.into(), offset.into()) {
                Ok(()) => {
                    self.counters.checksummed += 1;
                    self.put(pair, &Offload::NONE, &scratch);
                }
                // Its header was in order when it was read, so this is not the guest's doing any more.
                Err(_) => self.counters.bad_vnet_hdr += 1,
            }
        } else {
            self.cut(pair, bytes, &offload, left, &mut scratch);
        }
        self.scratch = scratch;
    }

    fn cut(&mut self, pair: usize, bytes: &[u8], offload: &Offload, left: bool, scratch: &mut Vec<u8>) {
        let network = if offload.segmentation == Segmentation::Tcp4 { Network::V4 } else { Network::V6 };
        let tcp = usize::from(offload.checksum.unwrap_or_default().0);
        let cutter = Cutter::new(bytes, network, tcp, offload.segment.into());
        // A guest that changed its headers after they were read, or whose frame is not what its header says.
        let Some(cutter) = cutter.ok().filter(|c| c.headers() == usize::from(offload.headers)) else {
            self.counters.bad_vnet_hdr += 1;
            return;
        };
        self.counters.segmented += 1;
        let checksum = offload.checksum.filter(|_| left);
        for k in 0..cutter.count() {
            scratch.resize(cutter.len(k), 0);
            cutter.emit(k, left, scratch);
            self.put(pair, &Offload { checksum, ..Offload::NONE }, scratch);
        }
    }

    /// Puts a frame into the next chains of a receive queue.
    #[inline(always)]
    fn put(&mut self, pair: usize, offload: &Offload, bytes: &[u8]) {
        let Some(rx) = &mut self.rx[pair] else { return };
        let total = self.header_bytes as usize + bytes.len();
        let Some(chain) = rx.ready.front().filter(|chain| chain.len as usize >= total) else {
            return self.put_many(pair, offload, bytes);
        };
        let header = header::emit(offload, 1);
        chain.spans.write(&self.memory, 0, &header[..self.header_bytes as usize]);
        chain.spans.write(&self.memory, self.header_bytes as usize, bytes);
        rx.finish(total as u32);
    }

    #[inline(never)]
    fn put_many(&mut self, pair: usize, offload: &Offload, bytes: &[u8]) {
        let Some(rx) = &mut self.rx[pair] else { return };
        let total = self.header_bytes as usize + bytes.len();
        let mut room = 0;
        let needed = rx.ready.iter().position(|chain| {
            room += chain.len as usize;
            room >= total
        });
        let Some(needed) = needed.filter(|_| self.features & MRG_RXBUF != 0) else {
            self.counters.too_long += 1;
            return;
        };
        let header = header::emit(offload, needed as u16 + 1);
        let mut from = 0;
        while from < total {
            let Some(chain) = rx.ready.front() else { return };
            let upto = total.min(from + chain.len as usize);
            let skip = if from == 0 { header.len() } else { 0 };
            if from == 0 {
                chain.spans.write(&self.memory, 0, &header);
            }
            let bytes = &bytes[from + skip - header.len()..upto - header.len()];
            chain.spans.write(&self.memory, skip, bytes);
            rx.finish((upto - from) as u32);
            from = upto;
        }
    }
}

impl Rx {
    /// The first of the chains read ahead has been written to.
    #[inline(always)]
    fn finish(&mut self, written: u32) {
        let Some(chain) = self.ready.pop_front() else { return };
        self.queue.next = self.queue.next.wrapping_add(1);
        self.queue.give_back(chain.head, written);
        if chain.spans.more.capacity() > 0 {
            self.spare.push(chain.spans);
        }
    }
}

/// Whether frames of these lengths find room.
fn fits(ready: &VecDeque<Chain>, frames: impl Iterator<Item = u32>, header_bytes: u32, features: u64) -> bool {
    let mut chains = ready.iter();
    for len in frames {
        let mut left = len + header_bytes;
        while left > 0 {
            let Some(chain) = chains.next() else { return false };
            // Without mergeable buffers a frame has one chain, long enough or not.
            left = if features & MRG_RXBUF == 0 { 0 } else { left - chain.len.min(left) };
        }
    }
    true
}

/// A number that all frames of a flow have in common.
fn flow(bytes: &[u8]) -> u32 {
    let fields: &[std::ops::Range<usize>] = match bytes.get(12..14) {
        Some([0x08, 0x00]) if bytes.get(20..22).is_some_and(|f| f[0] & 0x3f == 0 && f[1] == 0) => &[0..12, 26..38],
        Some([0x08, 0x00]) => &[0..12, 26..34],
        Some([0x86, 0xDD]) => &[0..12, 22..58],
        _ => &[0..12],
    };
    let bytes = fields.iter().flat_map(|f| bytes.get(f.clone()).unwrap_or_default());
    // FNV-1a.
    let hash = bytes.fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash ^ hash >> 16
}

/// Adds one to an event.
fn signal(event: &std::os::fd::OwnedFd) {
    // The counter of an event is full only if nobody reads it: awake enough.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
