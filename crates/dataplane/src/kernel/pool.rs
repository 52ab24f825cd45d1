//! Memory for frames between the kernel and the switch.

use super::sys::{self, BATCH, Received, Wait};
use crate::port::Descriptor;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes an 802.1Q tag takes, which the kernel hands over beside the frame.
const TAG_LEN: usize = 4;
/// Where in a frame it belongs.
const TAG_AT: usize = 12;
/// Bytes of an Ethernet header.
pub(super) const HEADER_LEN: usize = 14;

/// Buffers of equal size.
#[derive(Debug)]
pub(super) struct Pool {
    memory: Vec<u8>,
    /// Bytes of a buffer: a tag's room and a frame.
    buffer: usize,
    /// Where in its buffer a frame starts, and how long it is.
    frames: Vec<(u8, u32)>,
    free: Vec<u32>,
}

impl Pool {
    /// `count` buffers for frames of up to `longest` bytes without their tag.
    pub fn new(count: u32, longest: u32) -> Pool {
        let buffer = (TAG_LEN + longest as usize).next_multiple_of(64);
        Pool {
            memory: vec![0; count as usize * buffer],
            buffer,
            frames: vec![(0, 0); count as usize],
            free: (0..count).rev().collect(),
        }
    }

    /// Buffers without a frame.
    pub fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Buffers there are.
    pub fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    /// The longest frame a buffer takes.
    fn longest(&self) -> usize {
        self.buffer - TAG_LEN
    }

    fn place(&self, buffer: u32) -> (usize, usize) {
        let (start, len) = self.frames[buffer as usize];
        (buffer as usize * self.buffer + usize::from(start), len as usize)
    }

    /// The frame in a buffer.
    pub fn frame(&self, buffer: u32) -> &[u8] {
        let (at, len) = self.place(buffer);
        &self.memory[at..at + len]
    }

    /// The first 16 bytes of the frame in a buffer, what is missing being 0.
    pub fn head(&self, buffer: u32) -> [u64; 2] {
        let mut bytes = [0; 16];
        let frame = self.frame(buffer);
        let len = frame.len().min(16);
        bytes[..len].copy_from_slice(&frame[..len]);
        let [low, high] = [bytes[..8].try_into(), bytes[8..].try_into()].map(|half| half.map(u64::from_le_bytes));
        [low.unwrap_or(0), high.unwrap_or(0)]
    }

    /// Puts a frame into an empty buffer, if there is one and it is long enough.
    pub fn store(&mut self, frame: &[u8]) -> Option<u32> {
        if frame.len() > self.buffer {
            return None;
        }
        let buffer = self.free.pop()?;
        self.frames[buffer as usize] = (0, frame.len() as u32);
        let (at, len) = self.place(buffer);
        self.memory[at..at + len].copy_from_slice(frame);
        Some(buffer)
    }

    /// The frame in a buffer is done with.
    pub fn release(&mut self, buffer: u32) {
        debug_assert!(!self.free.contains(&buffer), "a buffer was given back twice");
        self.free.push(buffer);
    }

    /// Has `fill` put a frame into an empty buffer: how many bytes, if any.
    pub fn fill(&mut self, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<Option<Descriptor>> {
        let Some(&buffer) = self.free.last() else { return Ok(None) };
        let at = buffer as usize * self.buffer + TAG_LEN;
        let longest = self.longest();
        let len = fill(&mut self.memory[at..at + longest])?;
        if len == 0 {
            return Ok(None);
        }
        self.free.pop();
        self.frames[buffer as usize] = (TAG_LEN as u8, len.min(longest) as u32);
        Ok(Some(Descriptor { buffer, len: len.min(longest) as u32 }))
    }

    /// Receives up to [`BATCH`] frames from a packet socket to the end of `queue`; how many there were, and how many of them
    /// were no good: cut, or shorter than a header.
    pub fn receive(&mut self, fd: BorrowedFd<'_>, queue: &mut VecDeque<Descriptor>) -> io::Result<(usize, usize)> {
        let count = BATCH.min(self.free.len());
        let mut places = [0; BATCH];
        for (place, &buffer) in places.iter_mut().zip(self.free.iter().rev()) {
            *place = buffer as usize * self.buffer + TAG_LEN;
        }
        let mut received = [Received::default(); BATCH];
        let longest = self.longest();
        let n = sys::receive(fd, Wait::No, &mut self.memory, &places[..count], longest, &mut received)?;
        let (mut bad, first) = (0, self.free.len() - n);
        // Taken from the end of `free`, last first; those that are no good go back.
        let taken = self.free.split_off(first);
        for (buffer, frame) in taken.into_iter().rev().zip(received) {
            if frame.cut || frame.len < HEADER_LEN {
                bad += 1;
                self.free.push(buffer);
                continue;
            }
            let at = buffer as usize * self.buffer;
            let (start, len) = match frame.tag {
                None => (TAG_LEN, frame.len),
                Some(tag) => {
                    self.memory.copy_within(at + TAG_LEN..at + TAG_LEN + TAG_AT, at);
                    self.memory[at + TAG_AT..at + TAG_AT + 2].copy_from_slice(&[0x81, 0x00]);
                    self.memory[at + TAG_AT + 2..at + TAG_AT + 4].copy_from_slice(&tag.to_be_bytes());
                    (0, frame.len + TAG_LEN)
                }
            };
            self.frames[buffer as usize] = (start as u8, len as u32);
            queue.push_back(Descriptor { buffer, len: len as u32 });
        }
        Ok((n, bad))
    }

    /// Sends the frames in `buffers`, [`BATCH`] at most; how many were taken. An error is about the first.
    pub fn send(&self, fd: BorrowedFd<'_>, buffers: impl Iterator<Item = u32>) -> io::Result<usize> {
        let mut frames = [(0, 0); BATCH];
        let mut count = 0;
        for (frame, buffer) in frames.iter_mut().zip(buffers) {
            *frame = self.place(buffer);
            count += 1;
        }
        sys::send(fd, Wait::No, &self.memory, &frames[..count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were_stored() {
        let mut pool = Pool::new(2, 60);
        let a = pool.store(&[7; 60]).unwrap();
        let b = pool.store(&[1, 2, 3]).unwrap();
        assert_eq!(pool.store(&[1]), None, "no buffer is free");
        assert_eq!(pool.frame(a), [7; 60]);
        assert_eq!(pool.head(b), [0x03_02_01, 0]);
        pool.release(a);
        assert_eq!(pool.store(&[0; 100]), None, "longer than a buffer");
        assert_eq!(pool.free(), 1);
        let c = pool
            .fill(|bytes| {
                bytes[..5].copy_from_slice(&[9; 5]);
                Ok(5)
            })
            .unwrap()
            .unwrap();
        assert_eq!(pool.frame(c.buffer), [9; 5]);
        assert_eq!(pool.free(), 0);
    }
}
