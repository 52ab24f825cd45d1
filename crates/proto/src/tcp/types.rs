//! Inputs and outputs of a connection.

use crate::time::Duration;
use sluicenet_wire::seq::SeqNumber;
use sluicenet_wire::tcp::{Flags, SackBlocks, Segment, SynOptions};

/// The states of RFC 9293, 3.3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// No connection.
    Closed,
    /// Waits for a SYN.
    Listen,
    /// SYN sent.
    SynSent,
    /// SYN received, ours sent, not acknowledged.
    SynReceived,
    /// Open both ways.
    Established,
    /// Peer has closed, we have not.
    CloseWait,
    /// We have closed, our FIN is not acknowledged.
    FinWait1,
    /// Both have closed at once, our FIN is not acknowledged.
    Closing,
    /// Peer closed first, our FIN is not acknowledged.
    LastAck,
    /// Our FIN is acknowledged, the peer goes on sending.
    FinWait2,
    /// Both have closed; waits until old segments have left the network.
    TimeWait,
}

/// A segment that goes before all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Urgent {
    /// None.
    No,
    /// A RST.
    Reset,
    /// An acknowledgment of the segments before the last one, which were not marked alike (RFC 8257, 3.2).
    PriorAck,
}

/// How a connection came to be closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Not closed, or both sides have closed in order.
    #[default]
    Orderly,
    /// The peer reset the connection.
    Reset,
    /// We reset the connection.
    Aborted,
    /// The peer did not answer the retransmissions.
    TimedOut,
}

/// Counters of a connection. Counters that change with each segment come first, in one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stats {
    /// Segments sent, with retransmissions and pure acknowledgments.
    pub segments_sent: u32,
    /// Segments received.
    pub segments_received: u32,
    /// Sum of the RTT samples.
    pub rtt_sum: Duration,
    /// Smallest RTT sample; `Duration::MAX` before the first.
    pub rtt_min: Duration,
    /// RTT samples taken.
    pub rtt_samples: u32,
    /// Retransmission timeouts that fired.
    pub timeouts: u32,
    /// Segments sent again, for whatever reason.
    pub retransmissions: u32,
    /// Entries into fast recovery.
    pub fast_retransmits: u32,
    /// Segments dropped because the reassembly queue was full.
    pub reassembly_drops: u32,
    /// Segments, or parts, received again.
    pub duplicates: u32,
    /// Reductions of the window because of an ECN echo.
    pub ecn_reductions: u32,
    /// Probes of a closed window.
    pub window_probes: u32,
    /// Segments dropped as old by their timestamp (RFC 7323, 5).
    pub paws_drops: u32,
    /// Challenge acknowledgments sent (RFC 5961).
    pub challenge_acks: u32,
    /// Time from arming to expiry, over all retransmission timeouts that fired: time without progress.
    pub timeout_wait: Duration,
}

/// A segment whose only option is the timestamp, if it has any. Nearly all segments are plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Sequence number of the first byte of payload.
    pub seq: SeqNumber,
    /// Acknowledgment number.
    pub ack: SeqNumber,
    /// TSval and TSecr; zeros without the option.
    pub timestamps: (u32, u32),
    /// Whether there is a timestamp option.
    pub has_timestamps: bool,
    /// Control bits.
    pub flags: Flags,
    /// Window field as on the wire.
    pub window: u16,
    /// Payload length in bytes.
    pub len: u16,
}

impl Plain {
    /// The header of `segment`, if it is plain.
    #[inline(always)]
    pub fn of(segment: &Segment) -> Option<Plain> {
        (segment.sack.is_empty() && !segment.flags.contains(Flags::SYN)).then(|| Plain::without_options(segment))
    }

    /// The header of any segment, without options other than the timestamp.
    #[inline(always)]
    pub fn without_options(segment: &Segment) -> Plain {
        Plain {
            seq: segment.seq,
            ack: segment.ack,
            timestamps: segment.timestamps.unwrap_or_default(),
            has_timestamps: segment.timestamps.is_some(),
            flags: segment.flags,
            window: segment.window,
            len: segment.len,
        }
    }

    /// The whole segment.
    #[inline(always)]
    pub fn segment(&self) -> Segment {
        Segment {
            seq: self.seq,
            ack: self.ack,
            window: self.window,
            len: self.len,
            flags: self.flags,
            timestamps: self.has_timestamps.then_some(self.timestamps),
            sack: SackBlocks::EMPTY,
            syn: SynOptions::default(),
        }
    }
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit<S = Segment> {
    /// The header.
    pub segment: S,
    /// Offset of the payload in the stream.
    pub offset: u64,
    /// Whether to mark the packet ECT(0) (RFC 3168, 6.1.4).
    pub ect: bool,
    /// Whether all of it has been sent before.
    pub retransmission: bool,
}

impl Transmit<Plain> {
    /// The same, with a whole segment.
    #[inline(always)]
    pub(super) fn whole(self) -> Transmit {
        let Transmit { segment, offset, ect, retransmission } = self;
        Transmit { segment: segment.segment(), offset, ect, retransmission }
    }
}

/// Changes for the application that a segment has made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received(pub(super) u8);

impl Received {
    pub(super) const READABLE: u8 = 1;
    pub(super) const ACKED: u8 = 2;
    pub(super) const CONNECTED: u8 = 4;
    pub(super) const PEER_CLOSED: u8 = 8;
    pub(super) const CLOSED: u8 = 16;

    /// New bytes can be read in order.
    #[inline(always)]
    pub const fn readable(self) -> bool {
        self.0 & Self::READABLE != 0
    }
    /// The peer has acknowledged data: the send buffer has space.
    #[inline(always)]
    pub const fn acked(self) -> bool {
        self.0 & Self::ACKED != 0
    }
    /// The connection is open.
    #[inline(always)]
    pub const fn connected(self) -> bool {
        self.0 & Self::CONNECTED != 0
    }
    /// The peer will send no more.
    #[inline(always)]
    pub const fn peer_closed(self) -> bool {
        self.0 & Self::PEER_CLOSED != 0
    }
    /// The connection is gone.
    #[inline(always)]
    pub const fn closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }
    #[inline(always)]
    pub(super) fn set(&mut self, bits: u8) {
        self.0 |= bits;
    }
}

/// State that a closed connection leaves to the next one to the same host (RFC 9040; FreeBSD's host cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheEntry {
    /// Smoothed RTT.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow start threshold in bytes; `u32::MAX` when no congestion was met.
    pub ssthresh: u32,
}
