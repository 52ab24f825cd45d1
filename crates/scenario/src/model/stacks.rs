//! The transports of VMs and servers: TCP, UDP, TCPlight.

use super::ParameterSet;
use crate::error::Result;
use crate::setting::{Kind, Or, Section, Setting};
use crate::tree::Node;
use crate::units::{BUFFER, Bytes, DELAY, POSITIVE_TIME, canonical_as_they_are};
use crate::{choices, settings};
use core::ops::RangeInclusive;
use serde::Serialize;
use sluicenet_proto::time::Duration;

choices! {
    /// A congestion control.
    pub enum Congestion {
        /// RFC 6582.
        NewReno = "newreno",
        /// RFC 9438.
        Cubic = "cubic",
        /// Brakmo and Peterson 1995.
        Vegas = "vegas",
        /// RFC 8257.
        Dctcp = "dctcp",
    }
}

choices! {
    /// The two sets of timeout parameters of Crisan 2014, Table 3.2.
    pub enum TcpPreset {
        /// The BSD kernel's own.
        Default = "default",
        /// Matched to datacenter delays.
        Tuned = "tuned",
    }
}

choices! {
    /// No delay of acknowledgements.
    pub enum Off {
        /// Each is sent at once.
        Off = "off",
    }
}

choices! {
    /// The initial window of RFC 3390.
    pub enum Rfc3390 {
        /// min(4 MSS, max(2 MSS, 4380 bytes)).
        Rfc3390 = "rfc3390",
    }
}

/// The initial window of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InitialWindow {
    /// By RFC 3390: min(4 MSS, max(2 MSS, 4380 bytes)).
    Rfc3390,
    /// This many segments.
    Segments(u32),
}

canonical_as_they_are!(InitialWindow);

impl Setting for InitialWindow {
    type Limits = RangeInclusive<u32>;
    const ANY: RangeInclusive<u32> = 1..=255;

    fn kind(limits: &Self::Limits) -> Kind {
        Or::<u32, Rfc3390>::kind(limits)
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<InitialWindow> {
        let given = Or::<u32, Rfc3390>::read(s, name, node, limits)?;
        Ok(given.value().map_or(InitialWindow::Rfc3390, InitialWindow::Segments))
    }
}

/// Timeouts, and the delay of acknowledgements, which must be below them.
struct Timeouts {
    base: Duration,
    min: Duration,
    slop: Duration,
    delayed_ack: Duration,
}

impl Timeouts {
    fn of(set: ParameterSet, preset: Option<TcpPreset>) -> Timeouts {
        let ms = Duration::from_ms;
        match (set, preset) {
            // RFC 6298 starts at 1 s; Linux's least is 200 ms, its delayed acknowledgement 40 ms.
            (ParameterSet::Plain, _) => Timeouts { base: ms(1000), min: ms(200), slop: ms(0), delayed_ack: ms(40) },
            // Table 2.1. FreeBSD delays an acknowledgement by 100 ms, more than these timeouts: half the shortest
            // instead [d].
            (ParameterSet::Crisan2014Ch2, _) => Timeouts { base: ms(10), min: ms(2), slop: ms(20), delayed_ack: ms(5) },
            // Table 3.2.
            (ParameterSet::Crisan2014Ch3, Some(TcpPreset::Default)) => {
                Timeouts { base: ms(3000), min: ms(30), slop: ms(200), delayed_ack: ms(100) }
            }
            (ParameterSet::Crisan2014Ch3, _) => {
                Timeouts { base: ms(20), min: ms(2), slop: ms(20), delayed_ack: ms(10) }
            }
        }
    }
}

settings! {
    /// every TCP stack
    pub model struct Tcp in "tcp" (s, set: ParameterSet, marks: bool) {
        /// the congestion control
        congestion: Congestion = set.plain_or(Congestion::Cubic, Congestion::NewReno),
        /// timeouts of Crisan 2014, Table 3.2; default tuned
        let preset: Option<TcpPreset>,
        /// the timeout before the first measurement
        rto_base: Duration [POSITIVE_TIME] = Timeouts::of(set, preset).base,
        /// the shortest timeout
        rto_min: Duration [POSITIVE_TIME] = Timeouts::of(set, preset).min,
        /// added to every computed timeout
        rto_slop: Duration = Timeouts::of(set, preset).slop,
        /// the longest timeout
        // Linux's TCP_RTO_MAX, FreeBSD's TCPTV_REXMTMAX.
        rto_max: Duration [POSITIVE_TIME] = set.plain_or(Duration::from_secs(120), Duration::from_secs(64)),
        /// the granularity of timers
        tick: Duration [POSITIVE_TIME] = Duration::from_us(1),
        /// send and receive buffer at the start
        buffer: Bytes [BUFFER] = Bytes(128_000),
        /// limit to which either buffer grows
        max_buffer: Bytes [BUFFER] = set.plain_or(Bytes(4_000_000), Bytes(256_000)),
        /// whether the buffers grow
        auto_buffer: bool = true,
        /// latency of the stack from socket to wire
        tx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_ns(9_500)),
        /// latency of the stack from wire to socket
        rx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_us(24)),
        /// how long an acknowledgement may wait
        let delayed_ack: Or<Duration, Off> [POSITIVE_TIME] = Or::Value(Timeouts::of(set, preset).delayed_ack),
        /// How long an acknowledgement may wait; not at all where absent.
        #[serde(serialize_with = "crate::units::canonical")]
        field delayed_ack: Option<Duration> = delayed_ack.value(),
        /// full segments which force an acknowledgement
        ack_every: u32 [1..=64] = 2,
        /// segments the reassembly queue holds
        reassembly_limit: u32 [1..=65_535] = set.plain_or(65_535, 200),
        /// initial window of a connection, in segments
        initial_window: InitialWindow = set.plain_or(InitialWindow::Segments(10), InitialWindow::Rfc3390),
        /// slow start threshold of a new connection; default none, so that slow start ends with the first loss or mark
        #[serde(skip_serializing_if = "Option::is_none")]
        ssthresh: Option<Bytes> [BUFFER],
        /// selective acknowledgements (RFC 2018, 6675)
        sack: bool = true,
        /// timestamps (RFC 7323)
        timestamps: bool = true,
        /// window scaling (RFC 7323)
        window_scaling: bool = true,
        /// explicit congestion notification (RFC 3168); default true with dctcp, and where switches mark
        ecn: bool = marks || congestion == Congestion::Dctcp,
        /// limited transmit (RFC 3042)
        limited_transmit: bool = true,
        /// proportional rate reduction in recovery (RFC 6937)
        // Linux has it; FreeBSD 9, the sources' stack, has not.
        prr: bool = set.plain_or(true, false),
        /// whether an idle connection restarts with slow start
        // RFC 5681, 4.1.
        restart_after_idle: bool = true,
        /// Nagle's algorithm (RFC 896)
        // Servers of small messages turn it off; FreeBSD's own default is on [d].
        nagle: bool = false,
        /// whether a new connection starts from what an earlier one learned
        connection_cache: bool = set.plain_or(false, true),
    }
}

impl Tcp {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>, set: ParameterSet) -> Result<()> {
        if s.has("preset") && set != ParameterSet::Crisan2014Ch3 {
            return Err(s
                .error("preset", "these presets are of Table 3.2, which is of parameters = \"crisan2014-ch3\" alone")
                .hint("give rto_base, rto_min and rto_slop instead"));
        }
        if self.congestion == Congestion::Dctcp && !self.ecn {
            return Err(s
                .error_at(&["ecn", "congestion"], "DCTCP reacts to marks, and ecn is false")
                .hint("remove `ecn`, or choose another congestion control"));
        }
        let us = |d: Duration| format!("{} us", d.as_us());
        let max = self.rto_max;
        for (name, value) in [("rto_min", self.rto_min), ("rto_base", self.rto_base), ("rto_slop", self.rto_slop)] {
            if value > max {
                let message = format!("{name} ({}) is above rto_max ({})", us(value), us(max));
                return Err(s.error_at(&[name, "rto_max"], message));
            }
        }
        if self.buffer > self.max_buffer {
            let message = format!("buffer ({} B) is above max_buffer ({} B)", self.buffer.0, self.max_buffer.0);
            return Err(s.error_at(&["buffer", "max_buffer"], message));
        }
        // A timeout is srtt + 4 rttvar + slop, of at least rto_min, and rto_base before there is a measurement: this is
        // as short as it gets.
        let floor = self.rto_min.max(self.rto_slop).min(self.rto_base);
        match self.delayed_ack {
            Some(delay) if delay >= floor => Err(s
                .error_at(
                    &["delayed_ack", "rto_min", "rto_slop", "rto_base"],
                    format!("delayed_ack ({}) is not below the shortest timeout ({})", us(delay), us(floor)),
                )
                .hint("a reply of an odd number of segments would time out every time")),
            _ => Ok(()),
        }
    }
}

settings! {
    /// every UDP stack
    pub model struct Udp in "udp" (s, set: ParameterSet) {
        /// a socket's buffer
        buffer: Bytes [BUFFER] = Bytes(128_000),
        /// latency of the stack from socket to wire
        // Table 3.1; Table 2.1 has no UDP, and chapter 2's stack is the same.
        tx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_ns(9_500)),
        /// latency of the stack from wire to socket
        rx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_us(24)),
    }
}

settings! {
    /// every TCPlight stack
    pub model struct TcpLight in "tcplight" (s, set: ParameterSet) {
        /// a socket's receive buffer, which limits how far a sender may be ahead of the reader
        // The source has no buffer that could stop a sender before the network does: more than a network of these
        // tables holds [d].
        buffer: Bytes [BUFFER] = Bytes(16_000_000),
        /// latency of the stack from socket to wire
        // The source has no latency of this stack: UDP's, which acknowledges nothing either [d].
        tx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_ns(9_500)),
        /// latency of the stack from wire to socket
        rx_delay: Duration [DELAY] = set.plain_or(Duration::ZERO, Duration::from_us(24)),
    }
}
