//! The sending half: frames without an acknowledgement, and the missing ones among them.

use crate::loss::Full;
use alloc::collections::VecDeque;
use sluicenet_wire::seq::SeqNumber;

#[derive(Clone, Debug)]
struct Slot<F> {
    frame: F,
    /// The frame is to be sent again.
    again: bool,
}

/// Unacknowledged frames (the retransmission buffer).
#[derive(Clone, Debug)]
#[repr(C)]
pub(super) struct Sender<F> {
    slots: VecDeque<Slot<F>>,
    /// Number of frames that have been sent.
    sent: usize,
    /// Number of the first frame.
    first: SeqNumber,
    /// Frames sent since an acknowledgement was asked for.
    unasked: u32,
    size: usize,
    /// Frames to be sent again.
    again: VecDeque<SeqNumber>,
}

impl<F: Clone> Sender<F> {
    pub(super) fn new(size: usize, first: SeqNumber) -> Sender<F> {
        Sender { size, first, slots: VecDeque::new(), sent: 0, again: VecDeque::new(), unasked: 0 }
    }

    /// Number of the next frame that is sent for the first time.
    pub(super) fn next(&self) -> SeqNumber {
        self.first + self.sent as u32
    }
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
    pub(super) fn has_room(&self) -> bool {
        self.slots.len() < self.size
    }
    /// Frames that were sent and not acknowledged (`inflight`).
    pub(super) fn in_flight(&self) -> usize {
        self.sent
    }

    pub(super) fn push(&mut self, frame: F) -> Result<(), Full<F>> {
        if !self.has_room() {
            return Err(Full(frame));
        }
        self.slots.push_back(Slot { frame, again: false });
        Ok(())
    }

    /// Takes the first `frames` frames, of which none has been sent.
    pub(super) fn take_first(&mut self, frames: usize) -> VecDeque<F> {
        debug_assert_eq!(self.sent, 0);
        self.slots.drain(..frames).map(|slot| slot.frame).collect()
    }

    /// Takes the unsent frames, except the first `kept` frames of the buffer.
    pub(super) fn take_unsent(&mut self, kept: usize) -> VecDeque<F> {
        self.slots.drain(self.sent.max(kept)..).map(|slot| slot.frame).collect()
    }

    /// Whether there may be a frame to send.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.slots.len() || !self.again.is_empty()
    }

    /// The next frame to send: missing frames before new ones. The flag says whether it was sent before.
    pub(super) fn poll(&mut self) -> Option<(SeqNumber, F, bool)> {
        while let Some(number) = self.again.pop_front() {
            // The frame may have been acknowledged meanwhile.
            let Some(slot) = self.slot_of(number).and_then(|at| self.slots.get_mut(at)) else { continue };
            slot.again = false;
            return Some((number, slot.frame.clone(), true));
        }
        let number = self.next();
        let frame = self.slots.get(self.sent)?.frame.clone();
        self.sent += 1;
        Some((number, frame, false))
    }

    /// Whether the present frame asks for an acknowledgement: one frame in `period` does.
    pub(super) fn asks(&mut self, period: u32) -> bool {
        self.unasked += 1;
        let asks = self.unasked >= period;
        if asks {
            self.unasked = 0;
        }
        asks
    }

    fn slot_of(&self, number: SeqNumber) -> Option<usize> {
        let at = usize::try_from(number.since(self.first)).ok()?;
        (at < self.sent).then_some(at)
    }

    /// Every frame before `number` has arrived. Returns how many frames are newly acknowledged, or `None` when `number`
    /// was not even sent.
    pub(super) fn acknowledge(&mut self, number: SeqNumber, free: &mut impl FnMut(F)) -> Option<usize> {
        let count = number.since(self.first);
        if count > self.sent as i32 {
            return None;
        }
        let count = count.max(0) as usize;
        for _ in 0..count {
            // Most often there is none, or one.
            if let Some(slot) = self.slots.pop_front() {
                free(slot.frame);
            }
        }
        self.sent -= count;
        self.first = self.first + count as u32;
        Some(count)
    }

    /// The `len` frames from `first` on are missing. Returns how many of them were newly marked to be sent again.
    pub(super) fn mark(&mut self, first: SeqNumber, len: u32) -> u32 {
        let begin = first.since(self.first);
        let end = i64::from(begin) + i64::from(len);
        let (begin, end) = (begin.max(0) as usize, end.clamp(0, self.sent as i64) as usize);
        let mut marked = 0;
        for at in begin..end {
            if !core::mem::replace(&mut self.slots[at].again, true) {
                self.again.push_back(self.first + at as u32);
                marked += 1;
            }
        }
        marked
    }

    /// Takes all frames, in order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = F> + use<F> {
        self.again.clear();
        self.sent = 0;
        core::mem::take(&mut self.slots).into_iter().map(|slot| slot.frame)
    }
}
