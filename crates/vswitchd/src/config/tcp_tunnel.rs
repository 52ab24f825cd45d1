//! `[tcp_tunnel]`: TCP between servers.

use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::tcp::{self, RtoConfig};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::setting::{Or, Section};
use sluicenet_scenario::units::{BUFFER, DURATION_MAX, POSITIVE_TIME};
use sluicenet_scenario::{Bytes, Congestion, InitialWindow, Off, Result, settings};
use sluicenet_wire::ipv4;
use sluicenet_wire::tcp::HEADER_LEN;
use std::ops::RangeInclusive;

/// The time without an answer after which a server is given up; until then the switch waits for it. RFC 9293, 3.8.3
/// asks for at least 100 s, but for connections across the world.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// The range of this time: a paused link answers nothing for a second.
const USER_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=DURATION_MAX;
/// The range of the longest timeout: TCP counts 255 of them.
const RTO_MAX: RangeInclusive<Duration> = TcpTunnel::RTO_MAX_LEAST..=DURATION_MAX;
/// The most segments of a reassembly queue: as many as a buffer of 1 MB may hold out of order.
const REASSEMBLY: u16 = 1_024;

settings! {
    /// TCP between servers of the overlay instead of datagrams. One connection between two servers carries the frames
    /// of the lossless classes of [switch], or all frames if there is no lossless class. Use it on all servers or on
    /// none
    #[derive(PartialEq, Eq)]
    pub struct TcpTunnel in "tcp_tunnel" (s, d: &tcp::Config, lossless: PrioritySet) {
        /// the class of its segments; default the first lossless one of [uplink], or 0
        priority: Priority [0..=7] = lossless.iter().next().unwrap_or(0),
        /// the congestion control; default newreno
        let congestion: Congestion = Congestion::NewReno,
        /// send and receive buffer of a connection at its start; default 128 KB
        let buffer: Bytes [BUFFER] = Bytes(u64::from(d.send_buffer)),
        /// limit to which either buffer grows; default the larger of 256 KB and `buffer`
        let max_buffer: Bytes [BUFFER] = buffer.max(Bytes(u64::from(d.max_buffer))),
        /// the timeout before the first measurement; default 20 ms
        let rto_base: Duration [POSITIVE_TIME] = d.rto.base,
        /// the shortest timeout; default 2 ms
        let rto_min: Duration [POSITIVE_TIME] = d.rto.min,
        /// added to every computed timeout; default 20 ms
        let rto_slop: Duration = d.rto.slop,
        /// the longest timeout, at least 100 ms; default 64 s
        let rto_max: Duration [RTO_MAX] = d.rto.max,
        /// the granularity of timers; default 1 us
        let tick: Duration [POSITIVE_TIME] = d.tick,
        /// how long an acknowledgement may wait; default half of the shortest timeout
        let delayed_ack: Option<Or<Duration, Off>> [POSITIVE_TIME],
        /// full segments which force an acknowledgement; default 2
        let ack_every: u8 [1..=64] = d.ack_every,
        /// segments that may be out of order; default 1024
        let reassembly_limit: u16 [1..=u16::MAX] = REASSEMBLY,
        /// initial window of a connection, in segments; default rfc3390
        let initial_window: InitialWindow = InitialWindow::Rfc3390,
        /// slow start threshold at the start; default none
        let ssthresh: Option<Bytes> [BUFFER],
        /// selective acknowledgements (RFC 2018, 6675); default true
        let sack: bool = d.sack,
        /// timestamps (RFC 7323); default true
        let timestamps: bool = d.timestamps,
        /// window scaling (RFC 7323); default true
        let window_scaling: bool = d.window_scaling,
        /// explicit congestion notification (RFC 3168); default whether congestion is dctcp
        let ecn: bool = congestion == Congestion::Dctcp,
        /// limited transmit (RFC 3042); default true
        let limited_transmit: bool = d.limited_transmit,
        /// proportional rate reduction in recovery (RFC 6937); default false
        let prr: bool = d.prr,
        /// whether an idle connection restarts with slow start; default true
        let restart_after_idle: bool = d.restart_after_idle,
        /// whether small segments wait while others are on their way; default false
        let nagle: bool = false,
        /// Its parameters but for the segments' size.
        field tcp: tcp::Config = {
            let rto = RtoConfig { base: rto_base, min: rto_min, slop: rto_slop, max: rto_max };
            // Half of the other end's shortest timeout, as the named sets have it.
            let floor = rto.floor().min(rto.base);
            tcp::Config {
                send_buffer: buffer.as_bytes() as u32,
                recv_buffer: buffer.as_bytes() as u32,
                max_buffer: max_buffer.as_bytes() as u32,
                rto,
                tick,
                delayed_ack: delayed_ack.unwrap_or(Or::Value(Duration(floor.0 / 2))).value(),
                ack_every,
                reassembly_limit,
                initial_window: initial_window.config(),
                initial_ssthresh: ssthresh.map_or(u32::MAX, |ssthresh| ssthresh.as_bytes() as u32),
                sack,
                timestamps,
                window_scaling,
                ecn,
                limited_transmit,
                prr,
                restart_after_idle,
                nagle,
                congestion: congestion.algorithm(),
                // Servers have one connection, which ends with one of them.
                connection_cache: false,
                // It is a time that counts.
                syn_retries: u8::MAX,
                max_retries: u8::MAX,
                ..d.clone()
            }
        },
        /// how long a server may answer nothing before its unacknowledged frames are dropped, at least a second;
        /// default 5 s
        user_timeout: Duration [USER_TIMEOUTS] = USER_TIMEOUT,
    }
}

impl TcpTunnel {
    /// The lower limit of the longest timeout: TCP counts 255 of them.
    pub const RTO_MAX_LEAST: Duration = Duration::from_ms(100);

    /// The longest time that a frame may stay in a stream whose other end does not answer, including the time for
    /// frames in front of it.
    pub fn give_up_at_most(&self) -> Duration {
        self.user_timeout.saturating_mul(4)
    }

    /// The TCP parameters for a link with this MTU.
    ///
    /// # Errors
    /// Parameters that do not fit the MTU.
    pub fn tcp(&self, mtu: u16) -> std::result::Result<tcp::Config, tcp::ConfigError> {
        let mss = mtu.saturating_sub((ipv4::HEADER_LEN + HEADER_LEN) as u16);
        let config = tcp::Config { mss, ..self.tcp.clone() };
        config.validate()?;
        Ok(config)
    }
}

pub(super) fn read(root: &Section<'_>, lossless: PrioritySet) -> Result<Option<TcpTunnel>> {
    if !root.has("tcp_tunnel") {
        return Ok(None);
    }
    if root.has("zbridge") {
        let why = "TCP between servers sends again what is lost, and so does zBridge";
        return Err(root.error("tcp_tunnel", why).expected("[zbridge] or [tcp_tunnel]"));
    }
    let s = root.section("tcp_tunnel")?;
    let tunnel = TcpTunnel::read(&s, &tcp::Config::crisan2014_tuned(), lossless)?;
    // Check with Ethernet's usual MTU; opening the device checks a larger one.
    tunnel.tcp(1500).map_err(|e| match e {
        tcp::ConfigError::MaxBufferTooSmall { .. } => s.error("max_buffer", e.to_string()),
        tcp::ConfigError::DctcpWithoutEcn => s.error_at(&["ecn", "congestion"], e.to_string()),
        tcp::ConfigError::BufferOutOfRange { .. } => s.error_at(&["buffer", "max_buffer"], e.to_string()),
        _ => s.error_here(e.to_string()),
    })?;
    Ok(Some(tunnel))
}
