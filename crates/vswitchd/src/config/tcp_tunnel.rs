//! `[tcp_tunnel]`: what it says of the TCP between servers.

use super::keys::TCP_TUNNEL;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::tcp::{self, Algorithm, RtoConfig};
use sluicenet_proto::time::Duration;
use sluicenet_scenario::section::Section;
use sluicenet_scenario::{Error, InitialWindow, Result, delayed_ack, initial_window};
use sluicenet_wire::ipv4;
use sluicenet_wire::tcp::HEADER_LEN;

/// Somebody who answers nothing is given up after so long where nothing else is said: until then the switch waits for him. RFC 9293, 3.8.3 asks
/// for 100 s at least, of connections that cross the world.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// Segments a reassembly queue holds where the file does not say: what a buffer of 1 MB may have out of order.
const REASSEMBLY: u16 = 1_024;

/// TCP between servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpTunnel {
    /// Class of its segments.
    pub priority: Priority,
    /// How long a server may answer nothing.
    pub user_timeout: Duration,
    /// Its parameters but for the segments' size.
    tcp: tcp::Config,
}

impl TcpTunnel {
    /// The least that the longest timeout may be: TCP counts 255 of them.
    pub const RTO_MAX_LEAST: Duration = Duration::from_ms(100);

    /// The longest that a frame may be in a stream whose other end answers nothing, with room for what is in front of it.
    pub fn give_up_at_most(&self) -> Duration {
        self.user_timeout.saturating_mul(4)
    }

    /// Its parameters over a link with that MTU.
    ///
    /// # Errors
    /// When they do not fit it.
    pub fn tcp(&self, mtu: u16) -> std::result::Result<tcp::Config, tcp::ConfigError> {
        let mss = mtu.saturating_sub((ipv4::HEADER_LEN + HEADER_LEN) as u16);
        let config = tcp::Config { mss, ..self.tcp.clone() };
        config.validate()?;
        Ok(config)
    }
}

pub(super) fn read(root: &Section<'_>, lossless: PrioritySet) -> Result<Option<TcpTunnel>> {
    let s = root.section("tcp_tunnel", &TCP_TUNNEL)?;
    if !root.has("tcp_tunnel") {
        return Ok(None);
    }
    if root.has("zbridge") {
        let why = "TCP between servers sends again what is lost, and so does zBridge";
        return Err(root.error("tcp_tunnel", why).expected("[zbridge] or [tcp_tunnel]"));
    }
    let d = tcp::Config::crisan2014_tuned();
    let algorithms = [("newreno", Algorithm::NewReno), ("cubic", Algorithm::Cubic), ("vegas", Algorithm::Vegas)];
    let send_buffer = s.buffer("buffer")?.map_or(d.send_buffer, |bytes| bytes.as_bytes() as u32);
    let rto = RtoConfig {
        base: s.positive("rto_base")?.unwrap_or(d.rto.base),
        min: s.positive("rto_min")?.unwrap_or(d.rto.min),
        slop: s.quantity("rto_slop")?.unwrap_or(d.rto.slop),
        max: s.positive("rto_max")?.unwrap_or(d.rto.max),
    };
    if rto.max < TcpTunnel::RTO_MAX_LEAST {
        return Err(s
            .error("rto_max", format!("a longest timeout of {} us", rto.max.as_us()))
            .expected(format!("at least {} ms", TcpTunnel::RTO_MAX_LEAST.as_us() / 1_000)));
    }
    let floor = rto.floor().min(rto.base);
    let switch = |name: &str, usual: bool| Ok::<_, Error>(s.bool(name)?.unwrap_or(usual));
    let tcp = tcp::Config {
        send_buffer,
        recv_buffer: send_buffer,
        max_buffer: s.buffer("max_buffer")?.map_or(d.max_buffer.max(send_buffer), |bytes| bytes.as_bytes() as u32),
        rto,
        tick: s.positive("tick")?.unwrap_or(d.tick),
        // Half of the other end's shortest timeout, as the named sets have it.
        delayed_ack: delayed_ack(&s)?.unwrap_or(Some(Duration(floor.0 / 2))),
        ack_every: s.count("ack_every", 1..=64)?.map_or(d.ack_every, |n| n as u8),
        reassembly_limit: s.count("reassembly_limit", 1..=65_535)?.map_or(REASSEMBLY, |n| n as u16),
        initial_window: match initial_window(&s)? {
            None => d.initial_window,
            Some(InitialWindow::Rfc3390) => tcp::InitialWindow::Rfc3390,
            Some(InitialWindow::Segments(n)) => tcp::InitialWindow::Segments(n as u8),
        },
        sack: switch("sack", d.sack)?,
        timestamps: switch("timestamps", d.timestamps)?,
        window_scaling: switch("window_scaling", d.window_scaling)?,
        ecn: switch("ecn", d.ecn)?,
        limited_transmit: switch("limited_transmit", d.limited_transmit)?,
        prr: switch("prr", d.prr)?,
        restart_after_idle: switch("restart_after_idle", d.restart_after_idle)?,
        nagle: switch("nagle", false)?,
        congestion: s.choice("congestion", &algorithms)?.unwrap_or(d.congestion),
        // Servers have one connection, which ends with one of them.
        connection_cache: false,
        // It is a time that counts.
        syn_retries: u8::MAX,
        max_retries: u8::MAX,
        ..d
    };
    let user_timeout = s.quantity("user_timeout")?.unwrap_or(USER_TIMEOUT);
    if user_timeout < Duration::from_secs(1) {
        return Err(
            s.error("user_timeout", "must be a second at least: a link that is held back answers nothing meanwhile")
        );
    }
    let tunnel = TcpTunnel {
        priority: s.count("priority", 0..=7)?.map_or(lossless.iter().next().unwrap_or(0), |p| p as Priority),
        user_timeout,
        tcp,
    };
    // The smallest Ethernet; a larger one is looked at when the device is opened.
    tunnel.tcp(1500).map_err(|e| root.error("tcp_tunnel", e.to_string()))?;
    Ok(Some(tunnel))
}
