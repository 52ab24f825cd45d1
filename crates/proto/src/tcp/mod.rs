//! TCP as it is on the wire (RFC 9293), as a pure state machine: segments and time in, segments and deadlines out.
//!
//! A connection never holds payload, only lengths and positions. Positions have 64 bits and count from the SYN, which
//! is 0. The first byte of the stream is 1, and no position wraps. Sequence numbers exist only on the wire.
//!
//! | file | holds |
//! |---|---|
//! | `config` | parameters, the named sets of the sources |
//! | `open`, `close` | the handshake, the ways to end |
//! | `plain` | header prediction: the common segments, in and out |
//! | `receive` | a segment in: acceptability, in-order and out-of-order data |
//! | `acknowledge`, `recovery` | an acknowledgment in: window, RTT, loss detection and recovery |
//! | `transmit` | a segment out |
//! | `timer`, `rtt` | deadlines, the retransmission timeout |
//! | `buffer` | the application's side, window updates, adaptive buffers |
//! | `scoreboard`, `reassembly` | selective acknowledgments as sender and as receiver |
//! | `congestion` | how the congestion window moves, one file an algorithm |

mod acknowledge;
mod buffer;
mod close;
mod config;
pub mod congestion;
mod open;
mod plain;
mod reassembly;
mod receive;
mod recovery;
mod rtt;
mod scoreboard;
mod timer;
mod transmit;
mod types;

#[cfg(test)]
mod tests;

pub use config::{Config, ConfigError, InitialWindow, MIN_MSS, RtoConfig, TIMESTAMP_OPTION_BYTES};
pub use congestion::Algorithm;
pub use types::{CacheEntry, End, Plain, Received, State, Stats, Transmit};

use crate::time::{Duration, Instant};
use congestion::{Controller, Window};
use plain::Prediction;
use reassembly::Reassembly;
use rtt::Rtt;
use scoreboard::Scoreboard;
use types::Urgent;

/// Where loss recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    /// No loss known.
    Open,
    /// Fast recovery, with SACK (RFC 6675) or without (RFC 6582).
    Fast,
    /// After a timeout: all unacknowledged bytes from `snd_una` on are sent again in slow start.
    Loss,
}

/// Event that the main timer waits for; never two of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Timer {
    /// An acknowledgment (RFC 6298).
    Retransmit,
    /// The peer's window to open (RFC 9293, 3.8.6.1).
    Persist,
    /// Old segments to leave the network.
    TimeWait,
}

/// One connection.
///
/// The fields are in the order of the cache lines: with many connections, the fetched lines are the cost of a segment.
/// A predicted segment touches the first four lines of a receiver and the first five of a sender with NewReno.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Tcp {
    // Line 1: positions.
    snd_una: u64,
    snd_nxt: u64,
    snd_max: u64,
    /// End of the application's written bytes; the FIN's position once it is queued.
    snd_end: u64,
    rcv_nxt: u64,
    /// Right edge of the window that was advertised.
    rcv_adv: u64,
    /// Position up to which the application has read.
    rcv_read: u64,
    last_ack_sent: u64,

    // Line 2: deadlines, windows, and the translation of positions to the wire.
    main_at: Instant,
    delack_at: Instant,
    snd_wl1: u64,
    snd_wl2: u64,
    snd_wnd: u32,
    window: Window,
    iss: u32,
    irs: u32,
    ts_recent: u32,
    /// When `ts_recent` was set, in units of 2^40 ps, about 1.1 s: enough to tell when it is outdated.
    ts_recent_at: u32,
    mss: u16,
    state: State,
    mode: Mode,

    // Line 3: flags, buffers.
    prediction: Prediction,
    /// The window field of the last segment.
    window_field: u16,
    /// The last segment acknowledged everything that has come and showed the window as it is.
    acknowledged: bool,
    timer: Timer,
    ack_pending: u8,
    snd_shift: u8,
    rcv_shift: u8,
    /// An acknowledgment is due now.
    ack_now: bool,
    timestamps_ok: bool,
    ecn_ok: bool,
    /// A mark was received; echoed until the peer says CWR (RFC 3168, 6.1.3).
    ecn_echo: bool,
    /// The window was reduced; the next new data says so (RFC 3168, 6.1.2).
    cwr_due: bool,
    fin_queued: bool,
    fin_received: bool,
    send_buf: u32,
    recv_buf: u32,
    max_snd_wnd: u32,
    /// Timestamp that, once echoed, ends a round of receive buffer adaptation.
    round_ts: u32,
    round_start: u64,
    last_data_sent: Instant,

    // To line 5: the sender's estimates, counters.
    rtt: Rtt,
    stats: Stats,
    controller: Controller,

    // Cold: opening, closing, loss.
    scoreboard: Scoreboard,
    reassembly: Reassembly,
    /// Position of the peer's FIN, once known.
    fin_at: u64,
    /// Fast retransmit starts again only above this position (RFC 6582, 3.2; RFC 6675, 5.1).
    recover: u64,
    /// The window is reduced once for data sent below this position (RFC 3168, 6.1.2).
    reduced_until: u64,
    high_rxt: u64,
    /// Bytes in flight while recovering.
    pipe: u32,
    /// Proportional rate reduction (RFC 6937, 3.1): bytes in flight when recovery began, bytes delivered since, and
    /// bytes sent since.
    recover_fs: u32,
    prr_delivered: u32,
    prr_out: u32,
    /// `snd_max`, modulo 2^32, at the last retransmission of a hole. Bytes acknowledged beyond it have overtaken the
    /// retransmission.
    rexmit_mark: u32,
    /// No challenge acknowledgment is sent before this time (RFC 5961, 7), in units of 2^36 ps, about 69 ms.
    challenge_at: u32,
    /// Position that an [`Urgent::PriorAck`] acknowledges, modulo 2^32.
    prior_nxt: u32,
    rst_seq: u32,
    rst_ack: u32,
    dup_acks: u8,
    retries: u8,
    sack_ok: bool,
    /// Send the segment at `snd_una` again, whatever the window.
    rexmit_una: bool,
    probe_due: bool,
    /// The segment that goes before all others.
    urgent: Urgent,
    rst_has_ack: bool,
    rescued: bool,
    partial_seen: bool,
    syn_retransmitted: bool,
    window_scaling: bool,
    end: End,
}

/// Eight cache lines, with the groups above at their places where a connection begins with a line.
const _: () = {
    assert!(size_of::<Tcp>() <= 512);
    assert!(core::mem::offset_of!(Tcp, main_at) == 64);
    assert!(core::mem::offset_of!(Tcp, prediction) == 128);
    assert!(core::mem::offset_of!(Tcp, rtt) + 32 <= 256);
    assert!(core::mem::offset_of!(Tcp, stats) + core::mem::offset_of!(Stats, timeouts) <= 256);
    assert!(core::mem::offset_of!(Tcp, controller) + 16 <= Tcp::HOT_LINES * 64);
};

/// The first, the middle and the last element of a sorted list, where a search looks first.
#[inline(always)]
fn lines<T>(list: &[T]) -> [*const u8; 3] {
    [0, list.len() / 2, list.len().saturating_sub(1)].map(|i| list.as_ptr().wrapping_add(i).cast())
}

impl Tcp {
    /// Cache lines that predicted segments touch, for a caller that prefetches memory.
    pub const HOT_LINES: usize = 5;

    /// The other cache lines.
    pub const COLD_LINES: usize = size_of::<Tcp>() / 64 - Tcp::HOT_LINES;

    /// Lists of what is missing, as sender or as receiver, for a caller that prefetches memory.
    #[inline(always)]
    pub fn lines_of_losses(&self) -> [*const u8; 3] {
        if self.scoreboard.is_empty() { self.reassembly.lines() } else { self.scoreboard.lines() }
    }

    /// The state of RFC 9293.
    #[inline(always)]
    pub fn state(&self) -> State {
        self.state
    }
    /// How the connection ended, once the state is `Closed`.
    pub fn end(&self) -> End {
        self.end
    }
    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
    /// Congestion window in bytes.
    #[inline(always)]
    pub fn cwnd(&self) -> u32 {
        self.window.cwnd
    }
    /// Slow start threshold in bytes.
    #[inline(always)]
    pub fn ssthresh(&self) -> u32 {
        self.window.ssthresh
    }
    /// Smoothed RTT; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        self.rtt.srtt()
    }
    /// Variation of the RTT.
    pub fn rttvar(&self) -> Duration {
        self.rtt.rttvar()
    }
    /// Retransmission timeout as it would be armed now, backed off.
    pub fn rto(&self) -> Duration {
        self.rtt.rto()
    }
    /// Payload of a full segment.
    pub fn payload_max(&self) -> u16 {
        self.mss
    }
    /// Send and receive buffer, in bytes.
    pub fn buffers(&self) -> (u32, u32) {
        (self.send_buf, self.recv_buf)
    }
    /// Payload bytes the peer has acknowledged.
    #[inline]
    pub fn bytes_acked(&self) -> u64 {
        self.snd_una.min(self.snd_end).saturating_sub(1)
    }
    /// Payload bytes received in order.
    #[inline]
    pub fn bytes_received(&self) -> u64 {
        (self.rcv_nxt - u64::from(self.fin_received)).saturating_sub(1)
    }
    /// Bytes in flight.
    #[inline(always)]
    pub fn flight(&self) -> u32 {
        match self.mode {
            Mode::Open => (self.snd_nxt - self.snd_una) as u32,
            Mode::Fast | Mode::Loss => self.pipe,
        }
    }
    /// Whether all sent bytes are acknowledged, except the probe of a closed window.
    pub fn is_answered(&self) -> bool {
        self.snd_nxt == self.snd_una
    }
    /// Starting values for the next connection to the same host; `None` before the first RTT sample.
    pub fn cache_entry(&self) -> Option<CacheEntry> {
        self.rtt.sampled().then(|| CacheEntry {
            srtt: self.srtt(),
            rttvar: self.rttvar(),
            cwnd: self.window.cwnd,
            ssthresh: self.window.ssthresh,
        })
    }
}
