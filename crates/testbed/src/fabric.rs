//! The physical network of a scenario for the data plane.

use sluicenet_dataplane::fabric::{EdgeConfig, EdgeSpec, FabricSpec, Stations, SwitchSpec};
use sluicenet_experiment::build::{Network, lossless, quantum, watermarks};
use sluicenet_proto::cee::headroom::{Headroom, PFC_FRAME_BYTES};
use sluicenet_proto::cee::pfc::Watermarks;
use sluicenet_proto::cee::watchdog::{DETECTION_TIME, RESTORATION_TIME};
use sluicenet_proto::frame::{HostId, PrioritySet};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;
use sluicenet_scenario::{FramingKind, Limiters, Result, Scenario, WhenFull};
use sluicenet_wire::ethernet::{FCS_LEN, HEADER_LEN, MacAddress};
use sluicenet_wire::{qcn, vlan};

/// The rate at which a server may send until it reacts to a pause: full frames at the rate of one core, and a half
/// more. The server's adapter is memory, which has no rate of its own.
const SERVER_BURST: Rate = Rate::gbps(15);

/// The address from which an edge sends pause frames.
pub(crate) fn own_address(host: HostId) -> MacAddress {
    MacAddress::local(3 << 30 | host)
}

/// The fabric of a scenario, as written, with `stations` behind its hosts.
///
/// Switches have the simulation's settings, except that headroom includes the tag that a real frame may have.
///
/// # Errors
/// As [`sluicenet_experiment::build::build`]; also framing other than Ethernet, hosts with several links, and links
/// without delay.
pub fn spec(scenario: &Scenario, stations: &[(MacAddress, HostId)]) -> Result<FabricSpec> {
    let network = Network::new(scenario)?;
    let plan = &network.plan;
    if scenario.framing.kind != FramingKind::Ethernet {
        return Err(scenario.locations.error("framing.kind", "real frames are Ethernet's"));
    }
    if let Some(host) = (0..plan.hosts()).find(|&h| plan.ports(h) > 1) {
        let message = format!("host {host} has several links: an edge of the fabric has one");
        return Err(scenario.locations.error("topology", message));
    }
    if let Some(l) = network.links.iter().find(|l| l.latency == Duration::ZERO || l.pause_latency == Duration::ZERO) {
        let message = format!("the link at {} has no delay: give it at least 1 ns", plan.name(l.from.0));
        return Err(scenario.locations.error("topology.link_delay", message));
    }
    if scenario.topology.routing.is_by_source() {
        let message = "on a testbed servers do not choose paths";
        return Err(scenario.locations.error("topology.routing", message).hint("\"switch-ar\" and the others work"));
    }
    if !scenario.slowdowns.is_empty() {
        return Err(scenario
            .locations
            .error("slowdown", "on a testbed links have one rate")
            .hint("remove [[slowdown]]"));
    }
    if !scenario.bumps.is_empty() {
        return Err(scenario
            .locations
            .error("bump", "the links of this testbed have no bumps")
            .hint("remove [[bump]]"));
    }
    let tags = vlan::TAG_LEN as u32 + cn_tag(scenario);
    let longest_frame = scenario.framing.mtu.as_bytes() as u32 + (HEADER_LEN + FCS_LEN) as u32 + tags;
    let edge = |host: HostId| {
        let (out, into) = network.link(host, 0);
        let buffer = scenario.adapter.buffer.as_bytes() as u32;
        let down = with_tags(watermarks(scenario, buffer, &into, &out), tags);
        let overhead = scenario.framing.gap_bytes() as u32;
        let headroom = Headroom {
            rate: SERVER_BURST,
            data_delay: Duration::ZERO,
            pause_delay: scenario.testbed.response,
            max_frame: longest_frame + overhead,
            pfc_frame: PFC_FRAME_BYTES + overhead,
        };
        let room = u32::try_from(headroom.bytes()).unwrap_or(u32::MAX);
        let config = EdgeConfig {
            lossless: lossless(scenario),
            // An adapter stops its host whether or not the network behind it loses frames.
            stops_server: match scenario.adapter.when_full {
                // Senders of a lossy vNIC's frames never wait.
                WhenFull::Stop => PrioritySet(!scenario.server.lossy_vnic.map_or(0, |p| 1 << p)),
                WhenFull::Drop => PrioritySet::NONE,
            },
            up: Watermarks { capacity: down.xoff.saturating_add(room), headroom: room, ..down },
            down,
            quanta: scenario.pfc.quanta,
            quantum: quantum(out.rate),
            detection_time: DETECTION_TIME,
            restoration_time: RESTORATION_TIME,
        };
        EdgeSpec { config, address: own_address(host) }
    };
    let switch = |i: usize| {
        let mut ports = network.ports(i);
        ports.iter_mut().for_each(|p| p.marks = with_tags(p.marks, tags));
        SwitchSpec { config: network.switch_config(i), route: network.route(i), ports }
    };
    Ok(FabricSpec {
        edges: (0..plan.hosts()).map(edge).collect(),
        switches: (0..plan.switches().len()).map(switch).collect(),
        links: network.links.iter().collect(),
        stations: Stations::new(stations.iter().copied()),
        longest_frame,
        seed: scenario.seed,
        record_pauses: scenario.record.pauses,
    })
}

/// Bytes of the CN-TAG in the frames of the servers, if their flows have rate limiters.
pub(crate) fn cn_tag(scenario: &Scenario) -> u32 {
    let by_flow = scenario.qcn.is_some_and(|qcn| qcn.limiters == Limiters::Flow);
    if by_flow { qcn::TAG_LEN as u32 } else { 0 }
}

/// Headroom counts three largest frames, and each may have tags of so many bytes.
fn with_tags(marks: Watermarks, tags: u32) -> Watermarks {
    let rooms = (marks.capacity - marks.xoff).div_ceil(marks.headroom);
    Watermarks {
        capacity: marks.capacity.saturating_add(rooms.saturating_mul(3 * tags)),
        headroom: marks.headroom.saturating_add(3 * tags),
        ..marks
    }
}
