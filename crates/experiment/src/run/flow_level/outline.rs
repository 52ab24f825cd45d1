//! Whether a scenario can be run without packets, and the parts of it without effect in such a run.

use super::paths::crossings;
use crate::build::{self, Outline, Plan};
use sluicenet_node::packet::{Address, FlowKey, Kind, Packet};
use sluicenet_scenario::{self as scenario, Scenario};

/// Most links a flow may be spread over; a larger tree's are too many to rate for each of its flows.
const SPREAD_MAX: usize = 4096;

/// Outline of a flow-level run, with the parts of the scenario that have no effect on the run.
///
/// # Errors
/// As [`build::outline`], and a flow that would be spread over more links than can be rated for each.
pub(in crate::run) fn outline(s: &Scenario) -> scenario::Result<Outline> {
    let mut outline = build::outline(s)?;
    check_spread(s, &outline.plan)?;
    if !s.policy.is_empty() {
        let error = s.locations.error("policy", "at the flow level all machines may talk to each other");
        return Err(error.hint("take [policy] out, or set scenario.level = \"packet\""));
    }
    let r = &s.record;
    let of_packets = [
        ("queues", r.queues.is_some()),
        ("tcp", r.tcp.is_some()),
        ("pauses", r.pauses),
        ("pcapng", !r.pcapng.is_empty()),
    ];
    for (key, _) in of_packets.iter().filter(|(_, is_asked)| *is_asked) {
        let message = format!("there are no {key} at the flow level: nothing is recorded of them");
        outline.warnings.push(s.locations.warning(&format!("record.{key}"), message));
    }
    let of_waiting =
        [("vswitch.slow", !s.vswitch.slow.is_empty()), ("zcredit", s.zcredit.enabled), ("zbridge", s.zbridge.enabled)];
    if let Some((key, _)) = of_waiting.iter().find(|(_, is_given)| *is_given) {
        let message = "at the flow level nobody waits behind another's frames: what a slow machine does to its neighbours, with pauses or \
                       with credits, is not in these rates";
        outline.warnings.push(s.locations.warning(key, message));
    }
    Ok(outline)
}

fn check_spread(s: &Scenario, plan: &Plan) -> scenario::Result<()> {
    let hosts = plan.hosts();
    let probe = Packet::of_flow(
        FlowKey { src: Address::new(0, 0), dst: Address::new(hosts - 1, 0), sport: 1, dport: 1 },
        Kind::Udp,
    );
    let links = crossings(plan, &probe).len();
    if links > SPREAD_MAX {
        return Err(s
            .locations
            .error("topology.routing", format!("at the flow level a flow would be spread over {links} links"))
            .hint(format!(
                "at most {SPREAD_MAX}: a smaller network, another routing, or scenario.level = \"packet\""
            )));
    }
    Ok(())
}
