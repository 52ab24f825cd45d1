//! The bytes of a real tunnel: frames behind their headers ([`sluicenet_wire::stream`]). Outgoing bytes are kept until
//! the other end has them, incoming bytes until they are taken out. The connection's send and receive buffers bound both.

use super::{Broken, Carrier};
use crate::uplink::Origin;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use sluicenet_wire::Error;
use sluicenet_wire::stream::{HEADER_LEN, Repr};

/// A frame that the other end does not have in full yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unacknowledged {
    /// Bytes of the frame, without its header in the stream.
    pub len: u32,
    /// The frame's origin.
    pub origin: Origin,
    end: u64,
}

/// The bytes of a tunnel, both ways.
#[derive(Debug)]
pub struct Bytes {
    /// Bytes of the stream's longest frame.
    max_frame: u32,
    outward: VecDeque<u8>,
    /// Position in the stream at which `outward` begins.
    outward_from: u64,
    frames: VecDeque<Unacknowledged>,
    /// Frames of the switch among `frames`, and the switch's frames that the other end has.
    of_switch: usize,
    acknowledged: u64,
    inward: VecDeque<u8>,
    /// Position in the other end's stream at which `inward` begins.
    inward_from: u64,
}

impl Bytes {
    /// The bytes of a stream whose frames have at most `max_frame` bytes, without their stream headers.
    pub fn new(max_frame: u32) -> Bytes {
        Bytes {
            max_frame,
            outward: VecDeque::new(),
            outward_from: 0,
            frames: VecDeque::new(),
            of_switch: 0,
            acknowledged: 0,
            inward: VecDeque::new(),
            inward_from: 0,
        }
    }

    /// Frames of the switch that the other end does not have in full.
    pub fn unacknowledged(&self) -> usize {
        self.of_switch
    }

    /// Frames of the switch that the other end has.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes that are kept: outgoing and incoming.
    pub fn stored(&self) -> (usize, usize) {
        (self.outward.len(), self.inward.len())
    }

    /// All frames that the other end does not have in full.
    pub fn into_unacknowledged(self) -> impl Iterator<Item = Unacknowledged> {
        self.frames.into_iter()
    }

    /// Copies outgoing bytes from `offset` on; `into` must not be longer than the bytes kept from there.
    pub fn copy_to(&self, offset: u64, into: &mut [u8]) {
        if into.is_empty() {
            // A segment without payload may have any offset.
            return;
        }
        let at = (offset - self.outward_from) as usize;
        let (first, second) = self.outward.as_slices();
        let cut = first.len().saturating_sub(at).min(into.len());
        let (head, tail) = into.split_at_mut(cut);
        head.copy_from_slice(&first[at.min(first.len())..][..cut]);
        let at = (at + cut) - first.len().min(at + cut);
        tail.copy_from_slice(&second[at..][..tail.len()]);
    }
}

impl Carrier for Bytes {
    /// The frame with its stream header in front, and its origin.
    type Frame = (Vec<u8>, Origin);
    type Arrived = Vec<u8>;
    type Beside = ();

    fn put(&mut self, (bytes, origin): (Vec<u8>, Origin)) -> (u64, ()) {
        self.outward.extend(&bytes);
        let end = self.outward_from + self.outward.len() as u64;
        self.frames.push_back(Unacknowledged { len: (bytes.len() - HEADER_LEN) as u32, origin, end });
        self.of_switch += usize::from(origin == Origin::Switch);
        (bytes.len() as u64, ())
    }

    fn acknowledged(&mut self, upto: u64) {
        let gone = upto.saturating_sub(self.outward_from).min(self.outward.len() as u64);
        self.outward.drain(..gone as usize);
        self.outward_from += gone;
        while let Some(frame) = self.frames.front().filter(|frame| frame.end <= self.outward_from) {
            self.of_switch -= usize::from(frame.origin == Origin::Switch);
            self.acknowledged += u64::from(frame.origin == Origin::Switch);
            self.frames.pop_front();
        }
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        let at = (offset - self.inward_from) as usize;
        if at == self.inward.len() {
            self.inward.extend(bytes);
            return;
        }
        if self.inward.len() < at + bytes.len() {
            self.inward.resize(at + bytes.len(), 0);
        }
        for (slot, byte) in self.inward.range_mut(at..).zip(bytes) {
            *slot = *byte;
        }
    }

    fn next(&self, readable: u64) -> Result<Option<u64>, Broken> {
        let mut header = [0; HEADER_LEN];
        header.iter_mut().zip(&self.inward).for_each(|(into, byte)| *into = *byte);
        let there = (readable as usize).min(HEADER_LEN);
        match Repr::parse(&header[..there]) {
            Ok((repr, _)) if repr.len <= self.max_frame => {
                let len = HEADER_LEN as u64 + u64::from(repr.len);
                Ok((len <= readable).then_some(len))
            }
            Err(Error::Truncated) => Ok(None),
            _ => Err(Broken),
        }
    }

    fn take(&mut self, len: u64) -> Vec<u8> {
        self.inward_from += len;
        self.inward.drain(..len as usize).collect()
    }
}
