//! Receives frames that may be runs of several, and splits them.

use super::pool::{HEADER_LEN, LARGEST, TAG_AT, TAG_LEN};
use super::segments;
use super::sys::{self, BATCH, BufferRange, Received, Wait};
use crate::port::{Offload, Segmentation};
use crate::vhost::header::{self, CSUM, HOST_TSO4, HOST_TSO6};
use rustix::io::Errno;
use sluicenet_wire::offload::{Cutter, Network, finish_checksum};
use std::io;
use std::os::fd::BorrowedFd;

/// Bytes for a run and its tag. Not a power of two: otherwise the first bytes of all slots would compete for the same cache
/// lines.
const SLOT: usize = (TAG_LEN + LARGEST).next_multiple_of(64);
/// Pieces fetched at a time while there are runs, which have some forty frames each.
const RUNS: usize = 8;
/// Frames after which one call returns.
const ENOUGH: usize = 32;

/// Memory for a batch, which is passed on before the next one is fetched.
#[derive(Debug)]
pub(super) struct Landing {
    memory: Vec<u8>,
    /// Memory for a TCP segment that is cut from a frame which another kernel left uncut.
    segment: Vec<u8>,
    longest: usize,
    /// Whether there were runs in the last batch.
    has_runs: bool,
}

/// The result of a receive call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Landed {
    /// Frames that were passed on.
    pub frames: usize,
    /// Bad pieces: truncated, shorter than a header, or different from their description.
    pub bad: usize,
    /// Runs of several frames.
    pub runs: usize,
}

impl Landing {
    /// For frames of up to `longest` bytes without their tag.
    pub fn new(longest: usize) -> Landing {
        Landing { memory: vec![0; BATCH * SLOT], segment: vec![0; TAG_LEN + longest], longest, has_runs: false }
    }

    /// Receives from a packet socket that puts a header in front of each frame, and passes the frames on in order, until there
    /// are enough for one call.
    pub fn receive(&mut self, fd: BorrowedFd<'_>, each: &mut impl FnMut(&[u8])) -> io::Result<Landed> {
        let mut landed = Landed::default();
        loop {
            let count = if self.has_runs { RUNS } else { BATCH };
            let ranges: [BufferRange; BATCH] =
                std::array::from_fn(|i| BufferRange { at: i * SLOT + TAG_LEN, len: SLOT - TAG_LEN, rest: (0, 0) });
            let mut received = [Received::default(); BATCH];
            let n = match sys::receive(fd, Wait::No, true, (&mut self.memory, &mut []), &ranges[..count], &mut received)
            {
                // The kernel's header cannot describe the frame, which is lost.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                    landed.bad += 1;
                    return Ok(landed);
                }
                other => other?,
            };
            self.has_runs = false;
            for (i, frame) in received[..n].iter().enumerate() {
                match self.hand_on(i * SLOT, frame, each) {
                    Some(frames) => landed.frames += frames,
                    None => landed.bad += 1,
                }
                let is_run = segments::is_whole(&frame.header);
                landed.runs += usize::from(is_run);
                self.has_runs |= is_run;
            }
            if n < count || landed.frames >= ENOUGH {
                return Ok(landed);
            }
        }
    }

    /// Passes on the frames of the piece at `at`; returns their number, or `None` if the piece was bad.
    fn hand_on(&mut self, at: usize, received: &Received, each: &mut impl FnMut(&[u8])) -> Option<usize> {
        let Landing { memory, segment, longest, .. } = self;
        let Received { len, header, tag, cut } = received;
        if *cut || *len < HEADER_LEN {
            return None;
        }
        let slot = &mut memory[at..at + TAG_LEN + len];
        let (frame, moved) = match tag {
            None => (&mut slot[TAG_LEN..], 0),
            Some(tag) => {
                slot.copy_within(TAG_LEN..TAG_LEN + TAG_AT, 0);
                slot[TAG_AT..TAG_AT + 2].copy_from_slice(&[0x81, 0x00]);
                slot[TAG_AT + 2..TAG_AT + 4].copy_from_slice(&tag.to_be_bytes());
                (slot, TAG_LEN)
            }
        };
        let longest = *longest + moved;
        if let Some(bytes) = segments::segment(header) {
            return segments::cut(frame, bytes, longest, each);
        }
        let byte = |at: u32| frame.get(at as usize + moved).copied().unwrap_or(0);
        let offload = header::parse(header, *len as u32, CSUM | HOST_TSO4 | HOST_TSO6, byte);
        // For a frame that needs no work the kernel's header may be meaningless.
        let Offload { checksum, segmentation, segment: bytes, .. } = offload.unwrap_or(Offload::NONE);
        let start = checksum.map_or(0, |(start, _)| usize::from(start) + moved);
        let network = match segmentation {
            Segmentation::None if frame.len() > longest => return None,
            Segmentation::None => {
                if let Some((_, offset)) = checksum {
                    finish_checksum(frame, start, offset.into()).ok()?;
                }
                each(frame);
                return Some(1);
            }
            Segmentation::Tcp4 => Network::V4,
            Segmentation::Tcp6 => Network::V6,
        };
        let cutter = Cutter::new(frame, network, start, bytes.into()).ok()?;
        if cutter.headers() + usize::from(bytes) > longest {
            return None;
        }
        for k in 0..cutter.count() {
            let len = cutter.emit(k, false, segment);
            each(&segment[..len]);
        }
        Some(cutter.count())
    }
}
