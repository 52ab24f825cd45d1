//! Frames towards a guest.

use super::super::header::{self, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HEADER_BYTES, MRG_RXBUF};
use super::super::memory::{Memory, Span};
use super::super::queue::Fault;
use super::{BATCH, Chain, FRAME_BYTES, Guest, PLAIN_FRAME, READ_AHEAD, Rx, Slot, charge};
use crate::port::{Delivery, Offload, Segmentation};
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};
use std::collections::VecDeque;

impl Guest {
    /// The longest frame it takes in one piece.
    pub fn max_frame(&self) -> u32 {
        match self.features & (MRG_RXBUF | GUEST_TSO4 | GUEST_TSO6) {
            0 => PLAIN_FRAME,
            _ => *FRAME_BYTES.end() as u32,
        }
    }

    /// Whether the guest can do this segmentation itself.
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
        if self.counters.handed >= self.limit {
            return false;
        }
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
            while let Some(rx) = &mut self.rx[pair] {
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
                // A frame that does not fit into the whole queue does not wait: it would wait for ever.
                if enough || rx.ready.len() >= usize::from(rx.queue.setup.ring.size()).min(READ_AHEAD) {
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
                        // The faulty queue is out of service; the others are tried again.
                        return self.reserve(len, offload);
                    }
                }
            }
            k += 1;
        }
        !self.live_rx.is_empty() || self.nobody
    }

    /// Reads the next chains of a receive queue; returns how many.
    pub(super) fn read_ahead(&mut self, pair: usize) -> Result<usize, Fault> {
        let Some(rx) = &mut self.rx[pair] else { return Ok(0) };
        let ahead = rx.ready.len() as u16;
        let count = usize::from(rx.queue.waiting(ahead)?).min(BATCH);
        let mut heads = [0; BATCH];
        for (i, head) in heads[..count].iter_mut().enumerate() {
            *head = rx.queue.head(ahead.wrapping_add(i as u16))?;
        }
        for (read, &head) in heads[..count].iter().enumerate() {
            // The chain is assembled in its final place: a move right after a write would stall until all earlier writes are
            // done.
            if let Some(span) = rx.queue.walk_one(&self.memory, head, true).filter(|s| s.len > self.header_bytes) {
                self.memory.prefetch_to_write(span);
                rx.ready.push_back(Chain { spans: span.into(), len: span.len, head });
                continue;
            }
            if self.receive_left == 0 {
                // The rest in another round.
                return Ok(read);
            }
            let mut spans = rx.spare.pop().unwrap_or_default();
            let walked = rx.queue.walk(&self.memory, head, true, &mut spans)?;
            self.counters.chained += u64::from(walked.cost);
            charge(&mut self.receive_left, walked.cost, &mut self.counters);
            // Each buffer has room for a header at least (virtio 1.2, 5.1.6.3.1).
            let len = u32::try_from(walked.bytes).ok().filter(|&len| len > self.header_bytes).ok_or(Fault::Chain)?;
            self.memory.prefetch_to_write(spans.first);
            rx.ready.push_back(Chain { spans, len, head });
        }
        Ok(count)
    }

    /// Delivers a frame straight from another guest's memory, with `head` in place of its first 16 bytes. Both guests must
    /// have the frame in one piece, and there must be a single receive queue. Returns whether the frame was delivered.
    #[inline(always)]
    pub(super) fn put_from(&mut self, first_bytes: [u64; 2], slot: &Slot, memory: &Memory) -> bool {
        let [pair] = self.live_rx[..] else { return false };
        // Every guest takes a frame of this length; the call also looks for more chains.
        if slot.len > PLAIN_FRAME || !self.reserve(slot.len, &Offload::NONE) {
            return false;
        }
        let (len, header_bytes) = (slot.len as usize, self.header_bytes as usize);
        let total = header_bytes + len;
        let Some(rx) = &mut self.rx[pair as usize] else { return false };
        let Some(into) = rx.ready.front().map(|c| c.spans.first).filter(|into| into.len as usize >= total) else {
            return false;
        };
        if len < 16 || slot.private.is_some() || (slot.spans.first.len as usize) < len {
            return false;
        }
        write_plain_header(&self.memory, into, self.header_bytes);
        self.memory.write(into, header_bytes, &first_bytes[0].to_le_bytes());
        self.memory.write(into, header_bytes + 8, &first_bytes[1].to_le_bytes());
        memory.copy(slot.spans.first, 16, &self.memory, into, header_bytes + 16, len - 16);
        rx.finish(total as u32);
        self.counters.handed += 1;
        true
    }

    /// Delivers a frame for which room was reserved.
    #[inline(always)]
    pub fn deliver(&mut self, frame: &Delivery<'_>) {
        let pair = match self.live_rx[..] {
            [pair] => pair,
            [] => {
                self.lost_gone += 1;
                return;
            }
            _ => self.live_rx[flow(frame.bytes) as usize % self.live_rx.len()],
        };
        if frame.offload == Offload::NONE {
            if !self.put(pair.into(), &Offload::NONE, frame.bytes) {
                self.lost_too_big += 1;
            }
        } else {
            self.deliver_offloaded(pair.into(), frame.bytes, frame.offload);
        }
    }

    /// Receive queues that are served.
    pub fn receive_queues(&self) -> usize {
        self.live_rx.len()
    }

    /// Delivers a frame through each receive queue if all have room; `frame` makes the frame for a queue number. Returns
    /// whether they had room. These frames do not count against the limit.
    pub fn deliver_to_each<const N: usize>(&mut self, frame: impl Fn(u8) -> [u8; N]) -> bool {
        let (limit, handed) = (std::mem::replace(&mut self.limit, u64::MAX), self.counters.handed);
        let room = self.reserve_all(N as u32, &Offload::NONE);
        if room {
            for k in 0..self.live_rx.len() {
                // A frame that a buffer cannot hold after all counts as lost.
                let _ = self.put(self.live_rx[k].into(), &Offload::NONE, &frame(k as u8));
            }
        }
        (self.limit, self.counters.handed) = (limit, handed);
        room
    }

    #[inline(never)]
    fn deliver_offloaded(&mut self, pair: usize, bytes: &[u8], mut offload: Offload) {
        let left = self.features & GUEST_CSUM != 0;
        offload.verified &= left;
        if self.takes(offload.segmentation) && (left || offload.checksum.is_none()) {
            self.lost_too_big += u64::from(!self.put(pair, &offload, bytes));
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if offload.segmentation == Segmentation::None {
            scratch.clear();
            scratch.extend_from_slice(bytes);
            let (start, offset) = offload.checksum.unwrap_or_default();
            match finish_checksum(&mut scratch, start.into(), offset.into()) {
                Ok(()) => {
                    self.counters.checksummed += 1;
                    self.lost_too_big += u64::from(!self.put(pair, &Offload::NONE, &scratch));
                }
                // Its header was valid when it was read, so the error is not this guest's fault.
                Err(_) => self.not_what_it_says(),
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
        // The guest changed its headers after they were read, or its frame contradicts its header.
        let Some(cutter) = cutter.ok().filter(|c| c.headers() == usize::from(offload.headers)) else {
            self.not_what_it_says();
            return;
        };
        self.counters.segmented += 1;
        let checksum = offload.checksum.filter(|_| left);
        let mut whole = true;
        for k in 0..cutter.count() {
            scratch.resize(cutter.len(k), 0);
            cutter.emit(k, left, scratch);
            whole &= self.put(pair, &Offload { checksum, ..Offload::NONE }, scratch);
        }
        // A frame that was not cut in vain, but for a segment or two, counts as lost, too.
        self.lost_too_big += u64::from(!whole);
    }

    #[cold]
    fn not_what_it_says(&mut self) {
        self.counters.bad_vnet_hdr += 1;
        self.lost_malformed += 1;
    }

    /// Puts a frame into the next chains of a receive queue; returns whether it fits.
    #[inline(always)]
    #[must_use]
    fn put(&mut self, pair: usize, offload: &Offload, bytes: &[u8]) -> bool {
        let Some(rx) = &mut self.rx[pair] else { return false };
        let total = self.header_bytes as usize + bytes.len();
        let Some(chain) = rx.ready.front().filter(|chain| chain.len as usize >= total) else {
            return self.put_many(pair, offload, bytes);
        };
        if *offload == Offload::NONE && chain.spans.first.len >= HEADER_BYTES {
            write_plain_header(&self.memory, chain.spans.first, self.header_bytes);
        } else {
            let header = header::emit(offload, 1);
            chain.spans.write(&self.memory, 0, &header[..self.header_bytes as usize]);
        }
        chain.spans.write(&self.memory, self.header_bytes as usize, bytes);
        rx.finish(total as u32);
        self.counters.handed += 1;
        true
    }

    #[inline(never)]
    fn put_many(&mut self, pair: usize, offload: &Offload, bytes: &[u8]) -> bool {
        let Some(rx) = &mut self.rx[pair] else { return false };
        let total = self.header_bytes as usize + bytes.len();
        let mut room = 0;
        let needed = rx.ready.iter().position(|chain| {
            room += chain.len as usize;
            room >= total
        });
        let Some(needed) = needed.filter(|_| self.features & MRG_RXBUF != 0) else {
            self.counters.too_long += 1;
            return false;
        };
        let header = header::emit(offload, needed as u16 + 1);
        self.counters.handed += 1;
        let mut from = 0;
        while from < total {
            let Some(chain) = rx.ready.front() else { return false };
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
        true
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

/// Writes the header of a frame without offloads, in one buffer with room for it. The writes have lengths known at compile
/// time. Bytes that are assembled first and then copied would wait for all earlier writes to the memory of a guest on another
/// core.
#[inline(always)]
fn write_plain_header(memory: &Memory, into: Span, header_bytes: u32) {
    memory.write(into, 0, &[0; 8]);
    if header_bytes == HEADER_BYTES {
        memory.write(into, 8, &[0, 0, 1, 0]);
    } else {
        memory.write(into, 8, &[0, 0]);
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
    let fields: [std::ops::Range<usize>; 2] = match bytes.get(12..14) {
        Some([0x08, 0x00]) if bytes.get(20..22).is_some_and(|f| f[0] & 0x3f == 0 && f[1] == 0) => [0..12, 26..38],
        Some([0x08, 0x00]) => [0..12, 26..34],
        Some([0x86, 0xDD]) => [0..12, 22..58],
        _ => [0..12, 0..0],
    };
    let bytes = fields.iter().flat_map(|f| bytes.get(f.clone()).unwrap_or_default());
    // FNV-1a.
    let hash = bytes.fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash ^ hash >> 16
}
