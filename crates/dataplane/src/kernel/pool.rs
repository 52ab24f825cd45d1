//! Memory for frames between the kernel and the switch.

use super::device::{NotSent, not_sent};
use super::sys::{self, BATCH, BufferRange, Header, Received, Wait};
use crate::agent::Agent;
use crate::port::{Offload, Segmentation};
use crate::vhost::header::{self, CSUM, HOST_TSO4, HOST_TSO6, TCP_CHECKSUM};
use sluicenet_proto::time::Instant;
use sluicenet_wire::join::{HEADERS_MAX, Joiner};
use sluicenet_wire::offload::Network;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes of an 802.1Q tag, which the kernel passes separately from the frame.
pub(super) const TAG_LEN: usize = 4;
/// Its offset in a frame.
pub(super) const TAG_AT: usize = 12;
/// Bytes of an Ethernet header.
pub(super) const HEADER_LEN: usize = 14;
/// Bytes of the longest frame that is left to be cut: the largest IPv4 packet and an Ethernet header.
pub(super) const LARGEST: usize = 65_535 + HEADER_LEN;

/// Frames considered for one system call if some can be joined: four of the longest runs.
pub(super) const TOGETHER: usize = 4 * 45;

/// Buffers for frames, and larger ones for frames that are left to be cut into segments.
#[derive(Debug)]
pub(super) struct Pool {
    small: Slab,
    large: Slab,
    /// For each buffer, small ones first: the start of its frame, the frame's length, and the work that is left on it.
    frames: Vec<(u8, u32, Offload)>,
}

/// Buffers of equal size, each for a tag and a frame.
#[derive(Debug)]
struct Slab {
    memory: Vec<u8>,
    buffer: usize,
    count: u32,
    free: Vec<u32>,
}

impl Slab {
    fn new(first: u32, count: u32, longest: usize) -> Slab {
        let buffer = (TAG_LEN + longest).next_multiple_of(64);
        // A stack: the last buffer that was released is the next, so memory that is not needed is never touched.
        Slab { memory: vec![0; count as usize * buffer], buffer, count, free: (first..first + count).rev().collect() }
    }
}

/// The result of a receive call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fetched {
    /// Frames received.
    pub frames: usize,
    /// Bad frames among them: truncated, shorter than a header, or different from their description.
    pub bad: usize,
    /// Frames among them that were not wanted.
    pub unwanted: usize,
}

impl Pool {
    /// `count` buffers for frames of up to `longest` bytes without their tag.
    pub fn new(count: u32, longest: u32) -> Pool {
        Pool::with_large(count, longest, 0)
    }

    /// Besides these, `large` buffers for frames of any length.
    pub fn with_large(count: u32, longest: u32, large: u32) -> Pool {
        Pool {
            small: Slab::new(0, count, longest as usize),
            large: Slab::new(count, large, LARGEST),
            frames: vec![(0, 0, Offload::NONE); (count + large) as usize],
        }
    }

    /// Buffers without a frame.
    pub fn free(&self) -> u32 {
        self.small.free.len() as u32
    }

    /// Large buffers without a frame.
    pub fn free_large(&self) -> u32 {
        self.large.free.len() as u32
    }

    /// The number of buffers of the scarcer kind.
    pub fn scarcer(&self) -> u32 {
        if self.large.count > 0 { self.small.count.min(self.large.count) } else { self.small.count }
    }

    /// Buffers with a frame, and large ones.
    pub fn used(&self) -> (u32, u32) {
        (self.small.count - self.free(), self.large.count - self.free_large())
    }

    /// Whether there is a buffer for a frame of `len` bytes.
    pub fn has_room(&self, len: u32) -> bool {
        let slab = if len as usize > self.small.buffer { &self.large } else { &self.small };
        !slab.free.is_empty()
    }

    /// Whether there is a buffer for a frame of any length.
    pub fn has_room_for_any(&self) -> bool {
        self.free() > 0 && (self.large.count == 0 || self.free_large() > 0)
    }

    fn slab(&self, buffer: u32) -> (&Slab, usize) {
        let slab = if buffer < self.small.count { &self.small } else { &self.large };
        let first = if buffer < self.small.count { 0 } else { self.small.count };
        (slab, (buffer - first) as usize * slab.buffer)
    }

    fn slab_mut(&mut self, buffer: u32) -> (&mut Slab, usize) {
        let first = if buffer < self.small.count { 0 } else { self.small.count };
        let slab = if buffer < self.small.count { &mut self.small } else { &mut self.large };
        let at = (buffer - first) as usize * slab.buffer;
        (slab, at)
    }

    /// The frame in a buffer.
    pub fn frame(&self, buffer: u32) -> &[u8] {
        let (start, len, _) = self.frames[buffer as usize];
        let (slab, at) = self.slab(buffer);
        &slab.memory[at + usize::from(start)..][..len as usize]
    }

    /// The work that is left on the frame in a buffer.
    pub fn offload(&self, buffer: u32) -> Offload {
        self.frames[buffer as usize].2
    }

    /// The first 16 bytes of the frame in a buffer; zeros if it is shorter.
    pub fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        first_bytes_of(self.frame(buffer))
    }

    /// Puts a frame into a free buffer, if there is one that is long enough.
    pub fn store(&mut self, frame: &[u8], offload: Offload) -> Option<u32> {
        let slab = if frame.len() > self.small.buffer { &mut self.large } else { &mut self.small };
        if frame.len() > slab.buffer {
            return None;
        }
        let buffer = slab.free.pop()?;
        self.frames[buffer as usize] = (0, frame.len() as u32, offload);
        let (slab, at) = self.slab_mut(buffer);
        slab.memory[at..at + frame.len()].copy_from_slice(frame);
        Some(buffer)
    }

    /// Begins a round of a port whose other side was `handed` this number of frames; returns the buffer of a mark for its
    /// agent, if the agent needs one now.
    pub fn mark(&mut self, agent: &mut Agent, now: Instant, handed: u64) -> Option<u32> {
        agent.on_round(now, handed);
        if !agent.lease.wants_mark(now, handed) {
            return None;
        }
        let buffer = self.store(&agent.mark(0, 1), Offload::NONE)?;
        agent.lease.mark(now, handed);
        Some(buffer)
    }

    /// How many of these buffers have frames; marks, which the port has made itself, do not count.
    pub fn frames_in(&self, buffers: &VecDeque<u32>) -> u32 {
        buffers.iter().filter(|&&buffer| !Agent::is_word(self.first_bytes(buffer))).count() as u32
    }

    /// The frame in a buffer is no longer needed.
    pub fn release(&mut self, buffer: u32) {
        let slab = if buffer < self.small.count { &mut self.small } else { &mut self.large };
        debug_assert!(!slab.free.contains(&buffer), "a buffer was given back twice");
        slab.free.push(buffer);
    }

    /// A frame of `len` bytes was received into a small buffer, with its end in a large one. Moves it into the large one if it
    /// is too long; the buffer that it is in now.
    fn gather(&mut self, small: u32, len: usize) -> u32 {
        let fits = self.small.buffer - TAG_LEN;
        if len <= fits {
            return small;
        }
        // The large buffer that was used to receive it.
        let Some(large) = self.large.free.pop() else { return small };
        let (from, (slab, to)) = (self.slab(small).1, self.slab(large));
        debug_assert!(slab.buffer - TAG_LEN >= len);
        let Pool { small: Slab { memory, free, .. }, large: Slab { memory: room, .. }, .. } = self;
        room[to + TAG_LEN..to + TAG_LEN + fits].copy_from_slice(&memory[from + TAG_LEN..from + TAG_LEN + fits]);
        free.push(small);
        large
    }

    /// Reads one frame with its header from a TAP device, if there is a buffer for a frame of any length; the buffer.
    ///
    /// # Errors
    /// Those of the system call; [`io::ErrorKind::InvalidData`] for a bad frame, which is lost.
    pub fn read(&mut self, tap: BorrowedFd<'_>) -> io::Result<Option<u32>> {
        if !self.has_room_for_any() {
            return Ok(None);
        }
        let Some(&buffer) = self.small.free.last() else { return Ok(None) };
        let large = self.large.free.last().map_or(0..0, |&large| {
            let (slab, at) = self.slab(large);
            at + self.small.buffer..at + slab.buffer
        });
        let mut header: Header = [0; 12];
        let at = buffer as usize * self.small.buffer;
        let slab = &mut self.small;
        let mut pieces = [
            io::IoSliceMut::new(&mut header[..sys::HEADER_BYTES]),
            io::IoSliceMut::new(&mut slab.memory[at + TAG_LEN..at + slab.buffer]),
            io::IoSliceMut::new(&mut self.large.memory[large]),
        ];
        let len = rustix::io::readv(tap, &mut pieces)?.saturating_sub(sys::HEADER_BYTES);
        slab.free.pop();
        let buffer = self.gather(buffer, len);
        self.settle(buffer, len, None, &header).map(Some).map_err(|()| {
            self.release(buffer);
            io::ErrorKind::InvalidData.into()
        })
    }

    /// Writes the frame in a buffer, with a header, to a TAP device.
    pub fn write(&self, tap: BorrowedFd<'_>, buffer: u32) -> io::Result<()> {
        let header = header::emit(&self.offload(buffer), 0);
        let pieces = [io::IoSlice::new(&header[..sys::HEADER_BYTES]), io::IoSlice::new(self.frame(buffer))];
        rustix::io::writev(tap, &pieces)?;
        Ok(())
    }

    /// Describes the frame that was received into a buffer; an error if it is bad.
    fn settle(&mut self, buffer: u32, len: usize, tag: Option<u16>, header: &Header) -> Result<u32, ()> {
        let (slab, at) = self.slab_mut(buffer);
        if len < HEADER_LEN || len > slab.buffer - TAG_LEN {
            return Err(());
        }
        let frame = &slab.memory[at + TAG_LEN..at + TAG_LEN + len];
        let byte = |at: u32| frame.get(at as usize).copied().unwrap_or(0);
        let mut offload =
            header::parse(header, len as u32, CSUM | HOST_TSO4 | HOST_TSO6, byte).map_err(|header::BadHeader| ())?;
        let (start, len) = match tag {
            None => (TAG_LEN, len),
            Some(tag) => {
                slab.memory.copy_within(at + TAG_LEN..at + TAG_LEN + TAG_AT, at);
                slab.memory[at + TAG_AT..at + TAG_AT + 2].copy_from_slice(&[0x81, 0x00]);
                slab.memory[at + TAG_AT + 2..at + TAG_AT + 4].copy_from_slice(&tag.to_be_bytes());
                if let Some((start, _)) = &mut offload.checksum {
                    *start += TAG_LEN as u16;
                }
                if offload.headers > 0 {
                    offload.headers += TAG_LEN as u16;
                }
                (0, len + TAG_LEN)
            }
        };
        self.frames[buffer as usize] = (start as u8, len as u32, offload);
        Ok(buffer)
    }

    /// Receives up to [`BATCH`] frames from a packet socket and passes the buffers of the good ones to `each`, which returns
    /// whether it keeps the frame. `headers`: whether the socket puts a header in front of each frame.
    pub fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        headers: bool,
        mut each: impl FnMut(&Pool, u32) -> bool,
    ) -> io::Result<Fetched> {
        let mut count = BATCH.min(self.small.free.len());
        if self.large.count > 0 {
            count = count.min(self.large.free.len());
        }
        let mut ranges = [BufferRange::default(); BATCH];
        for (i, range) in ranges.iter_mut().enumerate().take(count) {
            let small = self.small.free[self.small.free.len() - 1 - i];
            *range = BufferRange { at: self.slab(small).1 + TAG_LEN, len: self.small.buffer - TAG_LEN, rest: (0, 0) };
            if self.large.count > 0 {
                let (slab, at) = self.slab(self.large.free[self.large.free.len() - 1 - i]);
                range.rest = (at + self.small.buffer, slab.buffer - self.small.buffer);
            }
        }
        let mut received = [Received::default(); BATCH];
        let memory = (&mut self.small.memory[..], &mut self.large.memory[..]);
        let n = sys::receive(fd, Wait::No, headers, memory, &ranges[..count], &mut received)?;
        // The buffers were taken from the ends, last first; unused ones are put back.
        let taken = self.small.free.split_off(self.small.free.len() - n);
        let spare = self.large.free.len().min(n);
        let mut larges = self.large.free.split_off(self.large.free.len() - spare);
        let (mut bad, mut unwanted) = (0, 0);
        for (buffer, frame) in taken.into_iter().rev().zip(received) {
            self.large.free.extend(larges.pop());
            let buffer = self.gather(buffer, frame.len);
            if !frame.cut && self.settle(buffer, frame.len, frame.tag, &frame.header).is_ok() {
                if !each(self, buffer) {
                    unwanted += 1;
                    self.release(buffer);
                }
            } else {
                bad += 1;
                self.release(buffer);
            }
        }
        Ok(Fetched { frames: n, bad, unwanted })
    }

    /// Sends the frames in `buffers` with headers, [`TOGETHER`] at most, to a receiver that takes uncut frames. Consecutive
    /// segments of a TCP stream are joined into one piece. An error is about the first frame.
    pub fn send_joined(&self, fd: BorrowedFd<'_>, buffers: &[u32]) -> io::Result<Sent> {
        let mut pieces = [(Joiner::new(&[]), 0); BATCH];
        let (mut count, mut first, mut verified) = (0, &[][..], false);
        for (at, &buffer) in buffers.iter().enumerate().take(TOGETHER) {
            let (frame, offload) = (self.frame(buffer), self.offload(buffer));
            let is_verified = offload.verified;
            if count > 0 && offload.is_none() && pieces[count - 1].0.takes(first, frame, (verified, is_verified)) {
                continue;
            }
            if count == BATCH {
                break;
            }
            // A frame with work left on it is not joined.
            pieces[count] = (Joiner::new(if offload.is_none() { frame } else { &[] }), at);
            (first, verified) = (frame, is_verified);
            count += 1;
        }
        let pieces = &pieces[..count];
        let mut heads: [(Header, [u8; HEADERS_MAX]); BATCH] = [([0; 12], [0; HEADERS_MAX]); BATCH];
        for (&(joiner, at), (header, own)) in pieces.iter().zip(&mut heads) {
            let (first, last) = (buffers[at], buffers[at + joiner.frames() - 1]);
            let offload = if joiner.frames() > 1 { whole(&joiner) } else { self.offload(first) };
            *header = header::emit(&offload, 0);
            if joiner.frames() > 1 {
                joiner.emit(self.frame(first), self.frame(last), own);
            }
        }
        let mut slices = [io::IoSlice::new(&[]); 2 * BATCH + TOGETHER];
        let mut counts = [0; BATCH];
        let mut used = 0;
        for ((&(joiner, at), (header, own)), count) in pieces.iter().zip(&heads).zip(&mut counts) {
            let before = used;
            let mut push = |bytes| {
                slices[used] = io::IoSlice::new(bytes);
                used += 1;
            };
            push(&header[..sys::HEADER_BYTES]);
            let payload = if joiner.frames() > 1 { joiner.headers() } else { 0 };
            if payload > 0 {
                push(&own[..payload]);
            }
            buffers[at..at + joiner.frames()].iter().for_each(|&buffer| push(&self.frame(buffer)[payload..]));
            *count = used - before;
        }
        match sys::send_scattered(fd, &slices[..used], &counts[..count]) {
            Ok(n) => {
                let taken = &pieces[..n];
                let frames = taken.iter().map(|(joiner, _)| joiner.frames()).sum();
                let joined = taken.iter().filter(|(joiner, _)| joiner.frames() > 1).count();
                Ok(Sent { frames, joined, full: n < count })
            }
            // The device may still take the frames one by one.
            Err(e)
                if not_sent(&e) == NotSent::TooLong
                    && pieces.first().is_some_and(|(joiner, _)| joiner.frames() > 1) =>
            {
                self.send_each(fd, buffers)
            }
            Err(e) => Err(e),
        }
    }

    /// Sends the frames in `buffers` one by one, [`BATCH`] at most.
    pub fn send_each(&self, fd: BorrowedFd<'_>, buffers: &[u32]) -> io::Result<Sent> {
        let frames = self.send(fd, true, buffers.iter().copied())?;
        Ok(Sent { frames, joined: 0, full: frames < buffers.len().min(BATCH) })
    }

    /// Sends the frames in `buffers`, [`BATCH`] at most; returns how many were taken. An error is about the first frame.
    pub fn send(&self, fd: BorrowedFd<'_>, headers: bool, buffers: impl Iterator<Item = u32>) -> io::Result<usize> {
        let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
        let mut heads: [Header; BATCH] = [[0; 12]; BATCH];
        let mut count = 0;
        for ((frame, head), buffer) in frames.iter_mut().zip(&mut heads).zip(buffers) {
            *frame = self.frame(buffer);
            if headers {
                *head = header::emit(&self.offload(buffer), 0);
            }
            count += 1;
        }
        sys::send(fd, Wait::No, &frames[..count], headers.then_some(&heads[..count]))
    }
}

/// The work that is left on joined segments.
fn whole(joiner: &Joiner) -> Offload {
    let segmentation = match joiner.network() {
        Network::V4 => Segmentation::Tcp4,
        Network::V6 => Segmentation::Tcp6,
    };
    Offload {
        checksum: Some((joiner.transport() as u16, TCP_CHECKSUM)),
        segmentation,
        segment: joiner.segment() as u16,
        headers: joiner.headers() as u16,
        verified: false,
    }
}

/// The result of sending frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// Frames that were taken.
    pub frames: usize,
    /// Pieces among them that were joined from several frames.
    pub joined: usize,
    /// Whether there was no room for some of the frames.
    pub full: bool,
}

/// The first 16 bytes of a frame, as in [`Port::first_bytes`](crate::port::Port::first_bytes).
pub(super) fn first_bytes_of(frame: &[u8]) -> [u64; 2] {
    let mut bytes = [0; 16];
    let len = frame.len().min(16);
    bytes[..len].copy_from_slice(&frame[..len]);
    let [low, high] = [bytes[..8].try_into(), bytes[8..].try_into()].map(|half| half.map(u64::from_le_bytes));
    [low.unwrap_or(0), high.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_wire::checksum::checksum;
    use sluicenet_wire::offload::{Cutter, finish_checksum};
    use std::os::fd::{AsFd, OwnedFd};

    #[test]
    fn frames_come_back_as_they_were_stored() {
        let mut pool = Pool::new(2, 60);
        let a = pool.store(&[7; 60], Offload::NONE).unwrap();
        let b = pool.store(&[1, 2, 3], Offload::NONE).unwrap();
        assert_eq!(pool.store(&[1], Offload::NONE), None, "no buffer is free");
        assert_eq!(pool.frame(a), [7; 60]);
        assert_eq!(pool.first_bytes(b), [0x03_02_01, 0]);
        pool.release(a);
        assert_eq!(pool.store(&[0; 100], Offload::NONE), None, "longer than a buffer");
        assert_eq!((pool.free(), pool.used()), (1, (1, 0)));
    }

    #[test]
    fn long_frames_have_buffers_of_their_own() {
        let mut pool = Pool::with_large(1, 60, 1);
        let offload = Offload { verified: true, ..Offload::NONE };
        let long: Vec<u8> = (0..LARGEST).map(|i| i as u8).collect();
        let a = pool.store(&long, offload).unwrap();
        assert!(!pool.has_room(1_000) && pool.has_room(60));
        let b = pool.store(&[1; 60], Offload::NONE).unwrap();
        assert_eq!((pool.frame(a), pool.offload(a)), (&long[..], offload));
        assert_eq!((pool.frame(b), pool.offload(b)), (&[1; 60][..], Offload::NONE));
        pool.release(a);
        pool.release(b);
        assert_eq!((pool.free(), pool.free_large()), (1, 1));
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        rustix::net::socketpair(family, kind, rustix::net::SocketFlags::NONBLOCK, None).unwrap()
    }

    /// A segment of 100 bytes of a stream, the `k`-th, with right checksums.
    fn segment(port: u8, k: u32) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 140, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([1, port, 0, 80, 0, 0, 0, 0, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        frame[38..42].copy_from_slice(&(100 * k).to_be_bytes());
        frame.extend([k as u8; 100]);
        let sum = checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        let pseudo = !checksum(&[&frame[26..34], &[0, 6, 0, 120]].concat());
        frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
        finish_checksum(&mut frame, 34, 16).unwrap();
        frame
    }

    #[test]
    fn segments_of_a_stream_go_in_one_piece_and_nothing_else_does() {
        let (ours, theirs) = pair();
        let mut pool = Pool::with_large(16, 200, 4);
        let mut damaged = segment(1, 6);
        damaged[100] ^= 1;
        let left = Offload { checksum: Some((34, 16)), ..Offload::NONE };
        let verified = Offload { verified: true, ..Offload::NONE };
        let buffers: Vec<u32> = [
            (vec![9; 60], Offload::NONE),
            (segment(1, 1), Offload::NONE),
            (segment(1, 2), verified),
            (segment(1, 3), Offload::NONE),
            (segment(2, 4), Offload::NONE),
            (segment(1, 4), Offload::NONE),
            (segment(1, 5), left),
            (damaged.clone(), Offload::NONE),
            (segment(1, 7), Offload::NONE),
            (segment(1, 8), Offload::NONE),
        ]
        .into_iter()
        .map(|(frame, offload)| pool.store(&frame, offload).unwrap())
        .collect();
        let sent = pool.send_joined(ours.as_fd(), &buffers).unwrap();
        assert_eq!(sent, Sent { frames: 10, joined: 2, full: false });
        let mut found = Vec::new();
        let mut bytes = [0; 2_000];
        while let Ok(len) = rustix::io::read(&theirs, &mut bytes) {
            let (head, frame) = bytes[..len].split_at(sys::HEADER_BYTES);
            match head[1] {
                0 => found.push((head[0], frame.to_vec())),
                kind => {
                    assert_eq!((head[0], kind, head[2], head[4], head[6], head[8]), (1, 1, 54, 100, 34, 16));
                    let cutter = Cutter::new(frame, Network::V4, 34, 100).unwrap();
                    for k in 0..cutter.count() {
                        let mut one = vec![0; cutter.len(k)];
                        cutter.emit(k, false, &mut one);
                        // Where a frame must not be fragmented the identification says nothing.
                        one[18..20].fill(0);
                        one[24..26].fill(0);
                        let sum = checksum(&one[14..34]);
                        one[24..26].copy_from_slice(&sum.to_be_bytes());
                        found.push((2, one));
                    }
                }
            }
        }
        let expected = [
            (0, vec![9; 60]),
            (2, segment(1, 1)),
            (2, segment(1, 2)),
            (2, segment(1, 3)),
            (0, segment(2, 4)),
            (0, segment(1, 4)),
            (1, segment(1, 5)),
            (0, damaged),
            (2, segment(1, 7)),
            (2, segment(1, 8)),
        ];
        assert_eq!(found, expected, "in their order, each once");
    }

    #[test]
    fn frames_from_a_device_go_where_they_have_room() {
        let (ours, theirs) = pair();
        let mut pool = Pool::with_large(2, 60, 1);
        let frame = |len: usize| -> Vec<u8> { (0..len).map(|i| (i * 7) as u8).collect() };
        let send = |header: [u8; 10], len| rustix::io::write(&theirs, &[&header[..], &frame(len)].concat()).unwrap();
        // A short frame, one to be cut, one with a contradicting header, one without a frame, and another short one.
        let (nothing, cut) = ([0; 10], [1, 1, 54, 0, 100, 0, 34, 0, 16, 0]);
        let mut long = frame(30_000);
        long[46] = 0x50;
        send(nothing, 60);
        rustix::io::write(&theirs, &[&cut[..], &long].concat()).unwrap();
        let a = pool.read(ours.as_fd()).unwrap().unwrap();
        let b = pool.read(ours.as_fd()).unwrap().unwrap();
        assert_eq!((pool.frame(a), pool.offload(a)), (&frame(60)[..], Offload::NONE));
        assert_eq!(pool.frame(b), long);
        let offload = pool.offload(b);
        assert_eq!((offload.checksum, offload.segment, offload.headers), (Some((34, 16)), 100, 54));
        assert_eq!(pool.read(ours.as_fd()).unwrap(), None, "no room for any frame that may come");
        pool.release(b);
        send([1, 1, 54, 0, 0, 0, 34, 0, 16, 0], 30_000);
        send(nothing, 13);
        for _ in 0..2 {
            assert_eq!(pool.read(ours.as_fd()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        send(nothing, 14);
        let c = pool.read(ours.as_fd()).unwrap().unwrap();
        assert_eq!((pool.frame(c), pool.used()), (&frame(14)[..], (2, 0)));
    }
}
