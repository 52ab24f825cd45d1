//! How far ahead of their programs all streams of a host may be, together.
//!
//! Bytes that a stream lets its other end send have to be kept: nothing is dropped, and no promise is taken back. So promised
//! bytes count, whether they have arrived or not. Each possible stream has a floor of its own, which no other stream can
//! take. The rest of the host's bound is shared. A stream begins with a small part of the free memory, and has twice as much
//! each time its program has read the received bytes. It never has more than half of what the others leave. A stream that is
//! never read keeps its first part. Where there are many such streams, new ones begin with less, and the windows of all
//! shrink towards the floor as they are read.

use super::{Core, Socket};
use crate::config::Config;

/// The least that a stream takes ahead of its reader: a segment of the largest packet.
const FLOOR_MIN: u64 = 2 << 10;
/// The part of the free memory that a stream takes before anything was read of it, and the least of that while there is any.
/// So a few streams have all they want from the beginning, and hundreds that are never read leave enough for others.
const START: u64 = 256;
const START_MIN: u64 = 64 << 10;

/// The bound, and the promised part of it.
pub(super) struct Memory {
    /// The memory that each stream has without asking.
    floor: u32,
    /// The memory beyond the floors of all streams together, at most and now.
    shared: u64,
    beyond: u64,
    /// The most that a stream takes ahead.
    most: u32,
}

impl Memory {
    pub fn new(config: &Config) -> Memory {
        let (streams, most) = (config.streams.max(1) as u64, config.receive_buffer);
        // Below half a gigabyte: a receive buffer is.
        let floor = (config.memory / 2 / streams).clamp(FLOOR_MIN, u64::from(most).max(FLOOR_MIN)) as u32;
        let floor = floor.min(most);
        Memory { floor, shared: config.memory.saturating_sub(streams * u64::from(floor)), beyond: 0, most }
    }

    /// How far ahead one that has so much beyond its floor may be, that could do with `wanted` bytes.
    fn window(&self, own: u64, wanted: u32) -> u32 {
        let free = self.shared.saturating_sub(self.beyond - own);
        let share = u64::from(self.floor).saturating_add(free / 2);
        u64::from(wanted.min(self.most)).min(share).max(u64::from(self.floor)) as u32
    }

    /// How far ahead a new stream may be.
    pub fn first(&self) -> u32 {
        let free = self.shared.saturating_sub(self.beyond);
        self.window(0, (free / START).max(START_MIN).min(self.most.into()) as u32)
    }

    /// A stream is no more, that had so much.
    pub fn release(&mut self, counted: u64) {
        self.beyond -= counted;
    }

    /// The bytes promised to all streams beyond their floors.
    pub fn beyond(&self) -> u64 {
        self.beyond
    }
}

impl Core {
    /// Counts the bytes that a stream may have to keep, after a change.
    pub(super) fn count(&mut self, id: usize) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let is_read = conn.held && !conn.shut_read || conn.waits_at.is_some();
        let promised = match (is_read, conn.is_gone() || conn.machine.is_peer_closed()) {
            (_, true) => conn.received.len() as u64,
            (true, false) => conn.machine.promised(),
            // Received bytes are thrown away at once, or end the stream.
            (false, false) => 0,
        };
        let counted = promised.saturating_sub(self.memory.floor.into());
        self.memory.beyond += counted;
        self.memory.beyond -= std::mem::replace(&mut conn.counted, counted);
    }

    /// A program has read from a stream: its window is chosen again before the other end is told.
    pub(super) fn widen(&mut self, id: usize) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.machine.owes_limit() {
            let window = self.memory.window(conn.counted, conn.machine.buffer().saturating_mul(2));
            conn.machine.set_buffer(window);
        }
        self.count(id);
    }

    /// Keeps bytes that came for a stream, in memory for no more than may come.
    pub(super) fn keep(&mut self, id: usize, bytes: &[u8]) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let (len, capacity) = (conn.received.len() + bytes.len(), conn.received.capacity());
        if len > capacity {
            let most = conn.machine.promised() as usize;
            conn.received.reserve_exact((2 * capacity).clamp(len, most.max(len)) - conn.received.len());
        }
        conn.received.extend(bytes);
        conn.news = conn.news.wrapping_add(1);
        self.touch(Socket::Stream(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn memory(memory: u64, streams: usize, receive_buffer: u32) -> Memory {
        Memory::new(&Config { memory, streams, receive_buffer, ..Config::new(Ipv4Addr::LOCALHOST, 8) })
    }

    #[test]
    fn floors_and_shares_are_never_more_than_the_bound() {
        for (bound, streams, most) in [
            (512 << 20, 16_384, 1 << 20),
            (1 << 20, 64, 1 << 20),
            (1 << 30, 4, 1 << 20),
            (1 << 20, 1, 100),
            (3 << 20, 700, 1 << 30),
        ] {
            let mut m = memory(bound, streams, most);
            let mut has = vec![0u64; streams];
            // Every stream takes as much as it can, three times; and all floors are always there.
            for turn in 0..3 {
                for own in &mut has {
                    let window = if turn == 0 { m.first() } else { m.window(*own, most) };
                    assert!(window >= m.floor && window <= most);
                    m.beyond -= *own;
                    // A promise is never taken back, so only growth counts here.
                    *own = (*own).max(u64::from(window - m.floor));
                    m.beyond += *own;
                    assert!(m.beyond + streams as u64 * u64::from(m.floor) <= bound, "{bound} {streams} {most}");
                }
            }
        }
    }

    #[test]
    fn few_streams_have_all_that_they_want_from_the_beginning_and_one_of_many_the_floor_at_least() {
        let few = memory(512 << 20, 100, 1 << 20);
        assert_eq!((few.floor, few.first()), (1 << 20, 1 << 20));
        let mut many = memory(512 << 20, 16_384, 1 << 20);
        assert_eq!((many.floor, many.first(), many.window(0, 1 << 20)), (16 << 10, 1 << 20, 1 << 20));
        // Two thousand streams that are never read: each keeps its first window.
        let begun: Vec<u32> = (0..2_000)
            .map(|_| {
                let first = many.first();
                many.beyond += u64::from(first - many.floor);
                first
            })
            .collect();
        assert!(begun.is_sorted_by(|a, b| a >= b));
        let at = |n: usize| begun[n] >> 10;
        assert!((350..450).contains(&at(256)), "{}", at(256));
        assert_eq!((at(800), at(1_999)), (64, 16));
        many.beyond = many.shared;
        assert_eq!((many.first(), many.window(0, 1 << 20)), (16 << 10, 16 << 10));
        // A single stream keeps no more than half of the memory.
        assert_eq!(many.window(many.shared, 1 << 30), 1 << 20);
        assert_eq!(memory(1 << 20, 1 << 20, 1 << 20).floor, 2 << 10, "a floor is a segment, whatever the bound");
    }
}
