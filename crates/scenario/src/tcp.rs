//! The TCP of a scenario as its state machine takes it.

use sluicenet_proto::tcp;
use sluicenet_proto::time::Duration;

use super::model::{Congestion, InitialWindow, Scenario};

/// Bytes of an IPv4 and a TCP header without options (RFC 791, 3.1; RFC 9293, 3.1).
const IP_TCP_BYTES: u16 = 40;

impl Congestion {
    /// Its state machine.
    pub fn algorithm(self) -> tcp::Algorithm {
        match self {
            Congestion::NewReno => tcp::Algorithm::NewReno,
            Congestion::Cubic => tcp::Algorithm::Cubic,
            Congestion::Vegas => tcp::Algorithm::Vegas,
            Congestion::Dctcp => tcp::Algorithm::Dctcp,
        }
    }
}

impl InitialWindow {
    /// As the state machine takes it.
    pub fn config(self) -> tcp::InitialWindow {
        match self {
            InitialWindow::Rfc3390 => tcp::InitialWindow::Rfc3390,
            InitialWindow::Segments(n) => tcp::InitialWindow::Segments(n as u8),
        }
    }
}

impl Scenario {
    /// The TCP of every guest whose largest IP packet has `mtu` bytes.
    pub fn tcp_config(&self, mtu: u16) -> tcp::Config {
        let t = &self.tcp;
        tcp::Config {
            mss: mtu - IP_TCP_BYTES,
            send_buffer: t.buffer.as_bytes() as u32,
            recv_buffer: t.buffer.as_bytes() as u32,
            max_buffer: t.max_buffer.as_bytes() as u32,
            auto_buffer: t.auto_buffer,
            initial_window: t.initial_window.config(),
            initial_ssthresh: t.ssthresh.map_or(u32::MAX, |ssthresh| ssthresh.as_bytes() as u32),
            rto: tcp::RtoConfig { base: t.rto_base, min: t.rto_min, slop: t.rto_slop, max: t.rto_max },
            tick: t.tick,
            delayed_ack: t.delayed_ack,
            ack_every: t.ack_every as u8,
            reassembly_limit: t.reassembly_limit as u16,
            sack: t.sack,
            timestamps: t.timestamps,
            window_scaling: t.window_scaling,
            ecn: t.ecn,
            limited_transmit: t.limited_transmit,
            prr: t.prr,
            restart_after_idle: t.restart_after_idle,
            nagle: t.nagle,
            congestion: t.congestion.algorithm(),
            connection_cache: t.connection_cache,
            syn_retries: 12,
            max_retries: 12,
            // Twice a maximum segment lifetime of the largest timeout would outlast any run; FreeBSD shortens it for
            // local connections too.
            time_wait: Duration::from_ms(1),
        }
    }
}
