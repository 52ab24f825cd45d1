//! RoCEv2's reliable connection: queue pairs that write messages into the memory of their peer (InfiniBand specification,
//! volume 1, chapter 9; annex A17).
//!
//! A [`Requester`] cuts messages into packets of the path MTU and numbers them. A [`Responder`] takes packets in order only. It
//! acknowledges on request, and reports the first packet of a gap once. The requester then goes back to it and sends everything
//! from there again (*go-back-N*). A [`QueuePair`] is one end: both of them, and the two ends of [`dcqcn`].
//!
//! The network below should lose nothing (PFC): a loss costs all packets in flight, and a lost last packet costs a timeout.

pub mod dcqcn;
mod queue_pair;
mod requester;
mod responder;
#[cfg(test)]
mod tests;

pub use queue_pair::{Heard, QueuePair};
pub use requester::{Requester, Stats};
pub use responder::Responder;

use crate::time::Duration;
use sluicenet_wire::roce::NUMBER_BITS;

/// Most packets of a requester that are sent and not acknowledged: half of all sequence numbers, so that a responder can tell
/// old packets from new ones (9.7.2).
pub const OUTSTANDING_MAX: u64 = (1 << (NUMBER_BITS - 1)) - 1;
/// Longest message, in bytes: 2^31 (9.4.1). Longer writes are several messages.
pub const MESSAGE_MAX: u64 = 1 << 31;
/// The smallest path MTU, in bytes; each is a power of two.
pub const MTU_MIN: u16 = 256;
/// The largest path MTU, in bytes.
pub const MTU_MAX: u16 = 4096;

/// Settings of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Payload of a full packet, in bytes.
    pub mtu: u16,
    /// Packets after which a requester asks for an acknowledgment; the last packet of a message always asks.
    pub ack_every: u32,
    /// Time without progress after which a requester sends everything again.
    pub timeout: Duration,
    /// Congestion control; without it a queue pair sends as fast as the adapter takes its packets.
    pub dcqcn: Option<dcqcn::Config>,
}

/// A packet of a write, by its 24-bit number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// Packet sequence number.
    pub psn: u32,
    /// Whether it is the first packet of its message.
    pub is_first: bool,
    /// Whether it is the last packet of its message.
    pub is_last: bool,
    /// Whether the requester asks for an acknowledgment.
    pub ack_request: bool,
    /// Payload bytes.
    pub len: u16,
    /// Offset of its payload in all that the requester has written.
    pub offset: u64,
    /// Bytes of its message.
    pub message: u32,
}

/// An acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The last packet that arrived in order; in a negative one the packet that is missing.
    pub psn: u32,
    /// Whether it is a negative acknowledgment (PSN sequence error).
    pub is_sequence_error: bool,
    /// Completed messages, modulo 2^24.
    pub msn: u32,
}

/// A packet between two queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A part of a message.
    Data(Data),
    /// An acknowledgment.
    Reply(Reply),
    /// A congestion notification.
    Notification,
}

/// The 24 bits of a sequence number that travel.
fn wire(psn: u64) -> u32 {
    (psn & ((1 << NUMBER_BITS) - 1)) as u32
}

/// How far the sequence number `psn` on the wire is ahead of `base`; negative if it is behind (9.7.2).
fn ahead(base: u64, psn: u32) -> i64 {
    let distance = psn.wrapping_sub(base as u32) << (32 - NUMBER_BITS);
    i64::from(distance as i32 >> (32 - NUMBER_BITS))
}
