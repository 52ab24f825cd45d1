//! `[tcp_tunnel]`: what it says of the TCP between servers.

use super::keys::TCP_TUNNEL;
use crate::scenario::Result;
use crate::scenario::section::Section;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::tcp::{self, Algorithm, RtoConfig};
use sluicenet_proto::time::Duration;
use sluicenet_wire::ipv4;
use sluicenet_wire::tcp::HEADER_LEN;

/// Somebody who answers nothing is given up after so long where nothing else is said: until then the switch waits for him. RFC 9293, 3.8.3 asks
/// for 100 s at least, of connections that cross the world.
const USER_TIMEOUT: Duration = Duration::from_secs(5);
/// Segments a reassembly queue holds: what a buffer of 1 MB may have out of order.
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
        max: d.rto.max,
    };
    let floor = rto.floor().min(rto.base);
    let tcp = tcp::Config {
        send_buffer,
        recv_buffer: send_buffer,
        max_buffer: s.buffer("max_buffer")?.map_or(d.max_buffer.max(send_buffer), |bytes| bytes.as_bytes() as u32),
        rto,
        // Half of the other end's shortest timeout, as the named sets have it.
        delayed_ack: Some(Duration(floor.0 / 2)),
        nagle: s.bool("nagle")?.unwrap_or(false),
        congestion: s.choice("congestion", &algorithms)?.unwrap_or(d.congestion),
        reassembly_limit: REASSEMBLY,
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
