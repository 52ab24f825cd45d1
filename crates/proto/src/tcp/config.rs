//! Parameters shared by all connections of a guest.

use super::congestion::Algorithm;
use crate::time::Duration;

/// Space the timestamp option takes in every segment: ten bytes and two of padding (RFC 7323, appendix A).
pub const TIMESTAMP_OPTION_BYTES: u16 = 12;

/// Data that may be sent before the first acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialWindow {
    /// min(4 MSS, max(2 MSS, 4380 bytes)) (RFC 3390, 1).
    Rfc3390,
    /// That many segments; 10 is RFC 6928.
    Segments(u8),
}

impl InitialWindow {
    /// In bytes, for segments of `mss` bytes of payload; at least one segment.
    pub fn bytes(self, mss: u32) -> u32 {
        match self {
            InitialWindow::Rfc3390 => (4 * mss).min((2 * mss).max(4380)),
            InitialWindow::Segments(n) => mss * u32::from(n.max(1)),
        }
    }
}

/// FreeBSD's parameters of the retransmission timer (Crisan 2014, 2.5.3 and Table 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtoConfig {
    /// Timeout before the first RTT sample, and timeout of a SYN.
    pub base: Duration,
    /// Smallest timeout.
    pub min: Duration,
    /// Added to the timeout of RFC 6298.
    pub slop: Duration,
    /// Largest timeout, backed off or not.
    pub max: Duration,
}

impl RtoConfig {
    /// No timeout after the first sample is shorter than this.
    pub fn floor(&self) -> Duration {
        self.min.max(self.slop)
    }
}

/// The parameters of TCP, shared by all connections of a guest and handed to every call so that `Tcp` stays small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Value of the MSS option: IP MTU less 40 (RFC 6691).
    pub mss: u16,
    /// Send buffer at the start, in bytes.
    pub send_buffer: u32,
    /// Receive buffer at the start, in bytes.
    pub recv_buffer: u32,
    /// Largest size of adaptive buffers, in bytes.
    pub max_buffer: u32,
    /// Whether buffers adapt to the path, as in FreeBSD 9 (Crisan 2014, 2.5.3).
    pub auto_buffer: bool,
    /// Congestion window at the start.
    pub initial_window: InitialWindow,
    /// Slow start threshold at the start; `u32::MAX` is unlimited.
    pub initial_ssthresh: u32,
    /// The retransmission timer.
    pub rto: RtoConfig,
    /// Quantum in which timestamps and RTT are measured. The named sets use 1 us; towards real peers it should be 1 ms or
    /// more (RFC 7323, 5.4), or their protection against old duplicates misfires after half an hour of silence.
    pub tick: Duration,
    /// Longest time an acknowledgment is held back; `None` acknowledges each segment.
    pub delayed_ack: Option<Duration>,
    /// Every how many segments an acknowledgment is due (RFC 5681, 4.2: 2); 1 acknowledges each.
    pub ack_every: u8,
    /// Segments the reassembly queue holds; beyond, a segment is dropped and counted.
    pub reassembly_limit: u16,
    /// Selective acknowledgments (RFC 2018, RFC 6675).
    pub sack: bool,
    /// Timestamps (RFC 7323).
    pub timestamps: bool,
    /// Window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: bool,
    /// Proportional rate reduction in fast recovery with SACK (RFC 6937), as Linux has it; RFC 6675 alone without.
    pub prr: bool,
    /// New data on the first two duplicate acknowledgments (RFC 3042).
    pub limited_transmit: bool,
    /// Back to the initial window after an idle RTO (RFC 5681, 4.1).
    pub restart_after_idle: bool,
    /// Small segments wait while data is in flight (RFC 9293, 3.7.4).
    pub nagle: bool,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Whether a new connection starts from the cache entry it is given.
    pub connection_cache: bool,
    /// Retransmissions of a SYN before the connection is given up.
    pub syn_retries: u8,
    /// Retransmissions in a row without progress before the connection is given up.
    pub max_retries: u8,
    /// How long TIME-WAIT lasts (RFC 9293, 3.6.1: twice the MSL).
    pub time_wait: Duration,
}

/// Reason why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The delayed acknowledgment comes after the sender's timeout: a reply that ends on an odd segment would time out.
    DelayedAckNotBelowRto {
        /// As configured.
        delayed_ack: Duration,
        /// Shortest timeout a sender can have.
        rto_floor: Duration,
    },
    /// `mss` leaves no room for payload beside the options, or is below the smallest MSS accepted of a peer.
    MssTooSmall(u16),
    /// A buffer holds less than two segments, or is larger than `max_buffer`.
    BufferOutOfRange {
        /// As configured.
        bytes: u32,
        /// Two segments.
        least: u32,
        /// The largest buffer.
        most: u32,
    },
    /// `max_buffer` holds less than two segments.
    MaxBufferTooSmall {
        /// As configured.
        bytes: u32,
        /// Two segments.
        least: u32,
    },
    /// The tick is zero.
    ZeroTick,
    /// `min` or `base` is above `max`, or `base` is zero.
    RtoOutOfOrder,
    /// `ack_every` or the initial window is zero.
    ZeroSegments,
    /// DCTCP reacts to marks, which need ECN.
    DctcpWithoutEcn,
    /// Above 1 GiB a window does not fit beside window scaling (RFC 7323, 2.3).
    BufferTooLarge(u32),
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            ConfigError::DelayedAckNotBelowRto { delayed_ack, rto_floor } => write!(
                f,
                "delayed_ack ({} us) must be below the shortest retransmission timeout ({} us)",
                delayed_ack.as_us(),
                rto_floor.as_us()
            ),
            ConfigError::MssTooSmall(mss) => write!(f, "mss ({mss}) must be at least {MIN_MSS}"),
            ConfigError::BufferOutOfRange { bytes, least, most } => write!(
                f,
                "a buffer of {bytes} B is out of range: from {least} B, because it must hold two segments, to {most} B, \
                 which is max_buffer"
            ),
            ConfigError::MaxBufferTooSmall { bytes, least } => write!(
                f,
                "a max_buffer of {bytes} B is out of range: from {least} B, because it must hold two segments, to \
                 {MAX_BUFFER} B"
            ),
            ConfigError::ZeroTick => write!(f, "tick must not be zero"),
            ConfigError::RtoOutOfOrder => write!(f, "rto: 0 < base <= max and min <= max must hold"),
            ConfigError::ZeroSegments => write!(f, "ack_every and the initial window must be at least one segment"),
            ConfigError::DctcpWithoutEcn => write!(f, "DCTCP reacts to marks, and ecn is false"),
            ConfigError::BufferTooLarge(bytes) => write!(f, "a buffer of {bytes} bytes: at most {MAX_BUFFER}"),
        }
    }
}

impl core::error::Error for ConfigError {}

/// Smallest MSS accepted, ours or a peer's: below, headers outweigh data and an attacker buys many packets with few
/// bytes (FreeBSD, net.inet.tcp.minmss).
pub const MIN_MSS: u16 = 216;

/// Largest window that window scaling can express (RFC 7323, 2.3).
const MAX_BUFFER: u32 = 1 << 30;

impl Config {
    /// Payload of a full segment to a peer with the same MSS.
    pub fn max_payload(&self) -> u16 {
        self.mss.saturating_sub(if self.timestamps { TIMESTAMP_OPTION_BYTES } else { 0 })
    }

    /// Whether the values can work together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.mss < MIN_MSS {
            return Err(ConfigError::MssTooSmall(self.mss));
        }
        if self.tick == Duration::ZERO {
            return Err(ConfigError::ZeroTick);
        }
        if self.ack_every == 0 || self.initial_window == InitialWindow::Segments(0) {
            return Err(ConfigError::ZeroSegments);
        }
        if self.congestion == Algorithm::Dctcp && !self.ecn {
            return Err(ConfigError::DctcpWithoutEcn);
        }
        let rto = &self.rto;
        if rto.base == Duration::ZERO || rto.base > rto.max || rto.min > rto.max {
            return Err(ConfigError::RtoOutOfOrder);
        }
        let (least, most) = (2 * u32::from(self.mss), self.max_buffer);
        if most < least {
            return Err(ConfigError::MaxBufferTooSmall { bytes: most, least });
        }
        for bytes in [self.send_buffer, self.recv_buffer] {
            if bytes < least || (self.auto_buffer && bytes > most) {
                return Err(ConfigError::BufferOutOfRange { bytes, least, most });
            }
        }
        if let Some(bytes) = [self.send_buffer, self.recv_buffer, most].into_iter().find(|&bytes| bytes > MAX_BUFFER) {
            return Err(ConfigError::BufferTooLarge(bytes));
        }
        if let Some(delayed_ack) = self.delayed_ack {
            // A sender waits `base` before its first sample, so `base` is a bound, too.
            let rto_floor = rto.floor().min(rto.base);
            if delayed_ack >= rto_floor {
                return Err(ConfigError::DelayedAckNotBelowRto { delayed_ack, rto_floor });
            }
        }
        Ok(())
    }

    /// Chapter 2 (Crisan 2014, Table 2.1): RTO base 10 ms, min 2 ms, slop 20 ms; buffers 128 KB to 256 KB of 1000 B.
    pub fn crisan2014_ch2() -> Config {
        Config {
            mss: 1460,
            send_buffer: 128_000,
            recv_buffer: 128_000,
            max_buffer: 256_000,
            auto_buffer: true,
            initial_window: InitialWindow::Rfc3390,
            initial_ssthresh: u32::MAX,
            rto: RtoConfig {
                base: Duration::from_ms(10),
                min: Duration::from_ms(2),
                slop: Duration::from_ms(20),
                max: Duration::from_secs(64),
            },
            tick: Duration::from_us(1),
            // FreeBSD's 100 ms is above these timeouts; half the shortest of them is not.
            delayed_ack: Some(Duration::from_ms(5)),
            ack_every: 2,
            reassembly_limit: 200,
            sack: true,
            timestamps: true,
            window_scaling: true,
            ecn: false,
            prr: false,
            limited_transmit: true,
            restart_after_idle: true,
            nagle: true,
            congestion: Algorithm::NewReno,
            connection_cache: true,
            syn_retries: 12,
            max_retries: 12,
            time_wait: Duration::from_secs(60),
        }
    }

    /// Chapters 3 and 4, "default" (Crisan 2014, Table 3.2): RTO base 3 s, min 30 ms, slop 200 ms.
    pub fn crisan2014_default() -> Config {
        let mut config = Config::crisan2014_ch2();
        config.rto.base = Duration::from_secs(3);
        config.rto.min = Duration::from_ms(30);
        config.rto.slop = Duration::from_ms(200);
        config.delayed_ack = Some(Duration::from_ms(100));
        config
    }

    /// Chapters 3 and 4, "tuned" (Crisan 2014, Table 3.2): RTO base 20 ms, min 2 ms, slop 20 ms.
    pub fn crisan2014_tuned() -> Config {
        let mut config = Config::crisan2014_ch2();
        config.rto.base = Duration::from_ms(20);
        config.delayed_ack = Some(Duration::from_ms(10));
        config
    }
}
