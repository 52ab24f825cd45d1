//! `[xco]`: the gate of XCo at the uplink, and `[[host]]`, the stations of the other servers.

use super::checks::{Mac, Macs};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_proto::xco::{Node, SMALL_PERCENT};
use sluicenet_scenario::setting::{Or, Section};
use sluicenet_scenario::units::{BUFFER, POSITIVE_TIME};
use sluicenet_scenario::{Bytes, HOST_MAX, NoHysteresis, Result, XCO_LEASE, XCO_SMALL, settings};
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;

/// How far a flow catches up: the timers of a shared processor are that coarse.
const LATE: Duration = Duration::from_us(200);
/// Bytes of a pair that wait, by default: those of a millisecond at 1 Gb/s.
const QUEUE: Bytes = Bytes(128 << 10);

settings! {
    /// the local coordinator of XCo at the uplink (Rajanna et al.): frames to stations of [[host]] wait for the directives of
    /// a controller, `sluicenet xco run`. The uplink drops messages of XCo from endpoints
    #[derive(PartialEq, Eq)]
    pub struct Coordination in "xco" (s, link: Rate) {
        /// the number of this server among the hosts of the controller's topology
        host: u32 [0..=HOST_MAX],
        /// the controller's address
        let controller: Mac,
        /// the address of the second controller; default none
        let standby: Option<Mac>,
        /// The addresses of the controller and its standby.
        field controllers: Vec<MacAddress> = [Some(controller), standby].into_iter().flatten().map(|mac| MacAddress(mac.0)).collect(),
        /// silence of the controller after which all frames pass, until the controller says another one
        lease: Duration [XCO_LEASE] = Duration::from_ms(100),
        /// time for which no frame waits before a slice is given back; off: never (no work conservation)
        let hysteresis: Or<Duration, NoHysteresis> [POSITIVE_TIME] = Or::Value(Duration::from_us(50)),
        /// Time for which no frame waits before a slice is given back; never where absent.
        field hysteresis: Option<Duration> = hysteresis.value(),
        /// the rate up to which a flow sends without a slice; default a twenty-fifth of the uplink's rate
        small_flow: Rate [XCO_SMALL] = Rate(link.as_bps() * SMALL_PERCENT / 100),
        /// the priority of messages; 0: they have no 802.1Q tag
        priority: u8 [0..=7] = 7,
        /// bytes of a pair of endpoints that wait before its sender is held back
        queue: Bytes [BUFFER] = QUEUE,
        /// how far a flow catches up with its rate if its frames left too late
        late: Duration = LATE,
        /// The nodes of stations.
        field stations: BTreeMap<MacAddress, Node> = BTreeMap::new(),
    }
}

settings! {
    /// the stations of a server, for [xco]
    pub(super) struct HostKeys in "host" (s) {
        /// the number of the server among the hosts of the controller's topology
        host: u32 [0..=HOST_MAX],
        /// the addresses of its endpoints
        macs: Macs,
    }
}

/// Reads `[xco]` and `[[host]]`, if the file has them.
pub(super) fn read(root: &Section<'_>, link: Rate) -> Result<Option<Coordination>> {
    if !root.has("xco") {
        if root.has("host") {
            return Err(root.error("host", "[[host]] without [xco]"));
        }
        return Ok(None);
    }
    for (name, why) in [
        ("qcn", "limiters would hold frames that the controller has permitted"),
        ("ets", "the controller divides the link"),
        ("overlay", "the coordinator would see tunnels, and not the endpoints in them"),
    ] {
        if root.has(name) {
            return Err(root.error(name, format!("[{name}] beside [xco]: {why}")));
        }
    }
    let s = root.section("xco")?;
    let mut xco = Coordination::read(&s, link)?;
    for t in root.tables("host")? {
        let HostKeys { host, macs } = HostKeys::read(&t)?;
        for mac in macs.0 {
            let mac = MacAddress(mac);
            if let Some(other) = xco.stations.insert(mac, host) {
                return Err(t.error("macs", format!("{mac} is at host {other} and at host {host}")));
            }
        }
    }
    if xco.stations.is_empty() {
        let error = s.error_here("no station is at another host: all frames would pass");
        return Err(error.hint("tables [[host]] with host = 1 and macs = [\"02:00:00:00:00:01\"]"));
    }
    Ok(Some(xco))
}
