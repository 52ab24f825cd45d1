//! TCP segments (RFC 9293) and the options that this project supports (RFC 2018, RFC 7323).

use crate::seq::SeqNumber;

mod header;

pub use header::{HEADER_LEN, MAX_HEADER_LEN, MAX_WINDOW_SCALE, Repr};

/// Control bits of a segment, as in the header's 14th byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgment field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// Urgent; received and ignored.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168, 6.1).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168, 6.1).
    pub const CWR: Flags = Flags(0x80);

    /// Whether every bit of `other` is set.
    #[inline(always)]
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets of bits.
    #[inline(always)]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Up to three SACK blocks: as many as fit beside the timestamp option (RFC 2018, 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    len: u8,
    blocks: [(SeqNumber, SeqNumber); 3],
}

impl SackBlocks {
    /// No blocks.
    pub const EMPTY: SackBlocks = SackBlocks { len: 0, blocks: [(SeqNumber(0), SeqNumber(0)); 3] };

    /// Appends the block `[left, right)`; ignores a fourth block.
    #[inline]
    pub fn push(&mut self, left: SeqNumber, right: SeqNumber) {
        if let Some(slot) = self.blocks.get_mut(self.len as usize) {
            *slot = (left, right);
            self.len += 1;
        }
    }

    /// The blocks; the first one has the most recent segment (RFC 2018, 4).
    #[inline(always)]
    pub fn as_slice(&self) -> &[(SeqNumber, SeqNumber)] {
        &self.blocks[..self.len as usize]
    }

    /// Whether there are no blocks.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The options of a SYN (RFC 9293, 3.7.1; RFC 7323, 2; RFC 2018, 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SynOptions {
    /// Largest payload the sender can receive, in bytes.
    pub mss: Option<u16>,
    /// Shift of the window field, 0 to 14.
    pub window_scale: Option<u8>,
    /// Whether the sender understands SACK blocks.
    pub sack_permitted: bool,
}

/// A TCP segment without its payload bytes: the header's fields, and the length of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first byte of payload, or of SYN.
    pub seq: SeqNumber,
    /// Acknowledgment number; meaningful with `Flags::ACK`.
    pub ack: SeqNumber,
    /// Window field as on the wire, not yet scaled.
    pub window: u16,
    /// Payload length in bytes.
    pub len: u16,
    /// Control bits.
    pub flags: Flags,
    /// TSval and TSecr (RFC 7323, 3).
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Options of a SYN; all absent in other segments.
    pub syn: SynOptions,
}

impl Segment {
    /// Length in sequence numbers: payload, SYN and FIN.
    #[inline(always)]
    pub fn seq_len(&self) -> u32 {
        self.len as u32 + self.flags.contains(Flags::SYN) as u32 + self.flags.contains(Flags::FIN) as u32
    }
}
