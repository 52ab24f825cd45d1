//! The check of a port's frames, when the port has a guard.
//!
//! The guard reads a private copy of a frame's first bytes. An endpoint that shares its memory with the switch can change the
//! frame afterwards. The switch therefore keeps the copy until the frame is delivered, and delivers the copy.

use super::attached::{Kind, call};
use super::header::put_first_bytes;
use crate::port::{Descriptor, Port, Segmentation};
use sluicenet_proto::guard::{Guard, HEAD_LEN, SHORT_HEAD_LEN};
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
        let mut check = |most: usize| {
            let len = (frame.len as usize).min(most);
            head.len = len as u8;
            let bytes = &mut head.bytes[..len];
            call!(kind, read(frame.buffer, bytes));
            put_first_bytes(first_bytes, bytes);
            self.guard.check(bytes)
        };
        let checked = match check(SHORT_HEAD_LEN) {
            Err(DropReason::Malformed) if frame.len as usize > SHORT_HEAD_LEN => check(HEAD_LEN)?,
            checked => checked?,
        };
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
