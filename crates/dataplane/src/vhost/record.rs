//! The chains of a queue that are in flight, in a record that outlives the switch (vhost-user, "Inflight I/O tracking").
//!
//! Chains are given back in the order of delivery, so that no receiver holds up the frames for another. So the ring's index
//! does not tell which chains a switch that died still owed. This record does, and the next switch goes on with exactly those
//! chains.

use super::memory::{Layout, Memory, Ring, Span};
use rustix::fs::{MemfdFlags, SealFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const VERSION: u16 = 1;
const AT_VERSION: usize = 8;
const AT_SIZE: usize = 10;
const AT_LAST: usize = 12;
const AT_USED: usize = 14;
const AT_CHAINS: usize = 16;
const CHAIN_BYTES: usize = 16;
const AT_NEXT: usize = 6;
const AT_COUNTER: usize = 8;

/// Bytes for a queue of `size`.
pub const fn record_bytes(size: u16) -> u64 {
    (AT_CHAINS as u64 + CHAIN_BYTES as u64 * size as u64).next_multiple_of(64)
}

/// Empty records for `queues` of `size`.
pub fn create(queues: u16, size: u16) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, record_bytes(size) * u64::from(queues))?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The record of one queue.
#[derive(Debug)]
pub struct Record {
    memory: Memory,
    span: Span,
    size: u16,
    counter: u64,
    /// Chains given back that the driver does not know of yet.
    done: Vec<u16>,
}

impl Record {
    /// The record of a queue of `size` at `offset` of a file.
    pub fn open(file: impl AsFd, offset: u64, size: u16) -> io::Result<Record> {
        let len = record_bytes(size);
        let memory = Memory::default().with(Layout { guest: 0, user: 0, len, offset }, file)?;
        let span = memory.find(0, len as u32).ok_or_else(|| io::Error::other("a record of no bytes"))?;
        Ok(Record { memory, span, size, counter: 0, done: Vec::new() })
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(self.span, at, &mut bytes);
        bytes
    }
    fn short(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.number(at))
    }
    #[inline(always)]
    fn set<const N: usize>(&self, at: usize, bytes: [u8; N]) {
        self.memory.write(self.span, at, &bytes);
    }
    #[inline(always)]
    fn chain(head: u16) -> usize {
        AT_CHAINS + CHAIN_BYTES * usize::from(head)
    }

    /// The chains that a switch before us owed the driver, oldest first; empty when the record is of another ring.
    pub fn recover(&mut self, ring: &Ring) -> Vec<u16> {
        let used = ring.used_idx();
        let mut owed = Vec::new();
        if self.short(AT_VERSION) == VERSION && self.short(AT_SIZE) == self.size {
            // The switch may have died between telling the driver and updating the record.
            let mut head = self.short(AT_LAST);
            for _ in 0..used.wrapping_sub(self.short(AT_USED)).min(self.size) {
                if head >= self.size {
                    break;
                }
                self.set(Record::chain(head), [0u8]);
                head = self.short(Record::chain(head) + AT_NEXT);
            }
            for head in 0..self.size {
                if self.number::<1>(Record::chain(head)) == [1] {
                    owed.push((u64::from_le_bytes(self.number(Record::chain(head) + AT_COUNTER)), head));
                }
            }
            owed.sort_unstable();
            // A ring that was set up again since then has fewer chains, or others.
            let known = |head: u16| (0..self.size).any(|i| ring.avail_entry(i) == head);
            if owed.len() > usize::from(ring.avail_idx().wrapping_sub(used)) || !owed.iter().all(|&(_, h)| known(h)) {
                owed.clear();
            }
        }
        let kept: Vec<u16> = owed.iter().map(|&(_, head)| head).collect();
        for head in 0..self.size {
            self.set(Record::chain(head), [0u8]);
        }
        self.set(AT_VERSION, VERSION.to_le_bytes());
        self.set(AT_SIZE, self.size.to_le_bytes());
        self.set(AT_USED, used.to_le_bytes());
        for &head in &kept {
            self.take(head);
        }
        kept
    }

    /// A chain was taken.
    #[inline(always)]
    pub fn take(&mut self, head: u16) {
        self.counter += 1;
        self.set(Record::chain(head) + AT_COUNTER, self.counter.to_le_bytes());
        self.set(Record::chain(head), [1u8]);
    }

    /// A chain stands in the used ring.
    #[inline(always)]
    pub fn done(&mut self, head: u16) {
        self.set(Record::chain(head) + AT_NEXT, self.number::<2>(AT_LAST));
        self.set(AT_LAST, head.to_le_bytes());
        self.done.push(head);
    }

    /// The driver knows of all that is done.
    #[inline(always)]
    pub fn publish(&mut self, used: u16) {
        for head in self.done.drain(..) {
            self.memory.write(self.span, Record::chain(head), &[0]);
        }
        self.set(AT_USED, used.to_le_bytes());
    }
}
