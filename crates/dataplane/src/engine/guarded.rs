//! The check of a port's frames, when the port has a guard.
//!
//! The guard reads a private copy of a frame's first bytes. An endpoint that shares its memory with the switch can change the
//! frame afterwards. The switch therefore keeps the copy until the frame is delivered, and delivers the copy.

use super::attached::{Kind, call};
use super::header::put_first_bytes;
use crate::port::{BrokenPort, Descriptor, Passed, Port, Segmentation};
use crate::shm;
use sluicenet_proto::guard::{Checked, Guard, HEAD_LEN, SHORT_HEAD_LEN};
use sluicenet_proto::loss::DropReason;
use std::sync::Arc;

/// The first bytes of a frame as they were checked.
#[derive(Clone, Copy)]
struct Head {
    /// How many there are; 0 if no frame in this buffer was checked.
    len: u8,
    bytes: [u8; HEAD_LEN],
}

impl Head {
    const NONE: Head = Head { len: 0, bytes: [0; HEAD_LEN] };
}

/// A guard and the checked bytes of its port's frames.
pub(super) struct Guarded {
    guard: Arc<Guard>,
    /// By buffer, if the endpoint can change a frame after the check.
    heads: Vec<Head>,
    is_shared: bool,
}

impl Guarded {
    pub(super) fn new(guard: Arc<Guard>, kind: &Kind) -> Guarded {
        Guarded { guard, heads: Vec::new(), is_shared: !matches!(kind, Kind::Other(_)) }
    }

    /// Sets another guard for later frames.
    pub(super) fn change(&mut self, guard: Arc<Guard>) {
        self.guard = guard;
    }

    /// Checks a frame that its port shows.
    #[inline]
    pub(super) fn check(&mut self, kind: &Kind, frame: Descriptor, first_bytes: [u64; 2]) -> Result<(), DropReason> {
        let mut head = Head::NONE;
        let len = frame.len as usize;
        let read = |into: &mut [u8; HEAD_LEN], most: usize| call!(kind, read(frame.buffer, &mut into[..len.min(most)]));
        let checked = self.look_at(&mut head, frame.len, first_bytes, read)?;
        // A checksum is written where the sender says, and segments get headers of their own.
        let offload = call!(kind, offload(frame.buffer));
        if let Some((start, offset)) = offload.checksum {
            // Over IPv4 the cutter itself finds the TCP header.
            let is_cut = offload.segmentation == Segmentation::Tcp6;
            if !checked.allows_work((start.into(), offset.into()), is_cut) {
                return Err(DropReason::Malformed);
            }
        }
        if self.is_shared {
            let at = frame.buffer as usize;
            if self.heads.len() <= at {
                self.heads.resize(at + 1, Head::NONE);
            }
            self.heads[at] = head;
        }
        Ok(())
    }

    /// Checks the start of a frame, of which `read` copies at least so many bytes as there are, up to a number.
    #[inline(always)]
    fn look_at(
        &self,
        head: &mut Head,
        frame_len: u32,
        first_bytes: [u64; 2],
        read: impl Fn(&mut [u8; HEAD_LEN], usize),
    ) -> Result<Checked, DropReason> {
        let mut check = |most: usize| {
            let len = (frame_len as usize).min(most);
            head.len = len as u8;
            read(&mut head.bytes, most);
            put_first_bytes(first_bytes, &mut head.bytes[..len]);
            self.guard.check(&head.bytes[..len])
        };
        match check(SHORT_HEAD_LEN) {
            Err(DropReason::Malformed) if frame_len as usize > SHORT_HEAD_LEN => check(HEAD_LEN),
            checked => checked,
        }
    }

    /// Passes up to `limit` frames between two programs while their first 16 bytes equal `first_bytes`, the last 8 where `mask`
    /// has ones, and the guard allows them. `checked` is the buffer of a frame that was checked already.
    #[inline]
    pub(super) fn pass_run(
        &self,
        (from, to): (&mut shm::Port, &mut shm::Port),
        checked: u32,
        first_bytes: [u64; 2],
        mask: u64,
        limit: u32,
    ) -> Result<Passed, BrokenPort> {
        let mut passed = Passed::default();
        let mut head = Head::NONE;
        while passed.frames < limit {
            let Some(frame) = from.next_frame()? else { break };
            let own = if frame.buffer == checked { first_bytes } else { from.buffers().first_bytes(frame.buffer) };
            if (own[0] ^ first_bytes[0]) | ((own[1] ^ first_bytes[1]) & mask) != 0 {
                break;
            }
            if frame.buffer == checked {
                head = self.heads[checked as usize];
            } else {
                // A buffer has room for every head, whatever the length of its frame. These lengths are known at compile time.
                let read = |into: &mut [u8; HEAD_LEN], most: usize| match most {
                    SHORT_HEAD_LEN => from.buffers().read(frame.buffer, &mut into[..SHORT_HEAD_LEN]),
                    _ => from.buffers().read(frame.buffer, into),
                };
                // A frame that is not allowed is refused in its own turn.
                if self.look_at(&mut head, frame.len, own, read).is_err() {
                    break;
                }
            }
            // A broken receiver is found in its own turn.
            let Ok(Some(empty)) = to.empty_buffer() else { break };
            from.copy_checked(frame, &head.bytes, head.len.into(), to, empty);
            from.accept();
            from.give_back(frame.buffer);
            passed.frames += 1;
            passed.bytes += u64::from(frame.len);
        }
        Ok(passed)
    }

    /// Overwrites the start of a frame with its checked bytes, if its endpoint could have changed them. Returns false if they
    /// are those of a later frame: the endpoint named the buffer again before it got it back.
    #[inline]
    pub(super) fn put(&self, buffer: u32, first_bytes: [u64; 2], bytes: &mut [u8]) -> bool {
        let Some(head) = self.heads.get(buffer as usize).filter(|head| head.len > 0) else {
            put_first_bytes(first_bytes, bytes);
            return true;
        };
        let len = bytes.len().min(head.len.into());
        bytes[..len].copy_from_slice(&head.bytes[..len]);
        let mut own = [0; 16];
        put_first_bytes(first_bytes, &mut own);
        let len = len.min(own.len());
        let is_checked = bytes[..len] == own[..len];
        bytes[..len].copy_from_slice(&own[..len]);
        is_checked
    }
}
