//! The state of a controller of XCo, or of an agent, beside that of its device.

use serde::{Deserialize, Serialize};
use sluicenet_dataplane::xco::{AgentReport, ControllerReport, LinkCounters, report_coordinator};
use sluicenet_proto::xco::controller::ControllerCounters;
use std::collections::BTreeMap;

/// The state of a controller of XCo.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct XcoStatus {
    /// active, standby or agent.
    pub role: String,
    /// The kind of directives.
    pub kind: String,
    /// The number of its start.
    pub epoch: u16,
    /// Hosts of the network.
    pub hosts: u32,
    /// Hosts that have joined.
    pub members: usize,
    /// Flows with backlog.
    pub flows: usize,
    /// Links that are congested, with coordination on demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congested: Option<usize>,
    /// Bytes that wait for an agent's coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_bytes: Option<u64>,
    /// What happened, and messages that were refused by their reasons.
    pub events: BTreeMap<String, u64>,
    /// Messages and frames at the device.
    pub messages: BTreeMap<String, u64>,
}

impl XcoStatus {
    /// The state of a controller.
    pub(super) fn of_controller(report: &ControllerReport, kind: &str, hosts: u32) -> XcoStatus {
        let mut events = BTreeMap::new();
        let mut show = |name: &str, n: u64| _ = events.insert(name.to_owned(), n);
        let c: &ControllerCounters = &report.controller;
        show("joined", c.joined);
        show("left", c.left);
        show("silent", c.silent);
        show("reports", c.reports);
        show("directives", c.directives);
        show("returned", c.returned);
        show("takeovers", c.takeovers);
        show("other_rate", c.other_rate);
        show("impostors", c.impostors);
        show("forged", c.forged);
        show("stale", c.stale);
        show("flooded", c.flooded);
        show("node_full", c.node_full);
        show("full", c.full);
        show("too_fast", c.too_fast);
        show("no_such_node", c.no_such_node);
        show("other_level", c.other_level);
        show("misdirected", c.misdirected);
        if let Some(slices) = &report.slices {
            show("slices", slices.granted);
            show("preempted", slices.preempted);
            show("reserved", slices.reserved);
        }
        XcoStatus {
            role: if report.is_active { "active" } else { "standby" }.into(),
            kind: kind.into(),
            epoch: report.epoch,
            hosts,
            members: report.members,
            flows: report.flows,
            congested: report.congested,
            waiting_bytes: None,
            events,
            messages: messages(&report.link),
        }
    }

    /// The state of an agent with so many destinations.
    pub(super) fn of_agent(report: &AgentReport, hosts: u32) -> XcoStatus {
        let mut events = BTreeMap::new();
        report_coordinator(&report.coordinator, &mut |name, n| {
            events.insert(name.trim_start_matches("xco_").to_owned(), n);
        });
        let queues = [("dropped_frames", report.dropped), ("changes", report.changes)];
        events.extend(queues.iter().chain(&report.queues).map(|&(name, n)| (name.to_owned(), n)));
        XcoStatus {
            role: "agent".into(),
            kind: if report.is_uncontrolled { "free" } else { "coordinated" }.into(),
            epoch: 0,
            hosts,
            members: report.is_member.into(),
            flows: report.backlogged,
            congested: None,
            waiting_bytes: Some(report.waiting),
            events,
            messages: messages(&report.link),
        }
    }
}

fn messages(link: &LinkCounters) -> BTreeMap<String, u64> {
    let LinkCounters { received, sent, malformed, elsewhere, other, unsent } = *link;
    let messages = [
        ("received", received),
        ("sent", sent),
        ("malformed", malformed),
        ("elsewhere", elsewhere),
        ("other_frames", other),
        ("unsent", unsent),
    ];
    messages.into_iter().map(|(name, n)| (name.to_owned(), n)).collect()
}
