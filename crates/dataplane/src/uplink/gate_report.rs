//! The counters of an uplink's gate, by name.

use sluicenet_node::uplink::{GateCounters, Gated};
use sluicenet_proto::time::Instant;
use sluicenet_proto::xco::coordinator::CoordinatorCounters;

pub(super) fn report(gate: &Gated, now: Instant, show: &mut dyn FnMut(&'static str, u64)) {
    let (own, coordinator) = gate.counters();
    let (is_member, is_uncontrolled, pairs, frames) = gate.state(now);
    let GateCounters { sent, received, malformed, elsewhere, unlisted } = *own;
    show("xco_member", is_member.into());
    show("xco_uncontrolled", is_uncontrolled.into());
    show("xco_pairs", pairs as u64);
    show("xco_waiting_frames", frames as u64);
    show("xco_sent", sent);
    show("xco_received", received);
    show("xco_malformed", malformed);
    show("xco_elsewhere", elsewhere);
    show("xco_unlisted_frames", unlisted);
    report_coordinator(coordinator, show);
}

/// The counters of a coordinator, by name.
pub fn report_coordinator(counters: &CoordinatorCounters, show: &mut dyn FnMut(&'static str, u64)) {
    let c = counters;
    show("xco_directives", c.directives);
    show("xco_returned", c.returned);
    show("xco_reports", c.reports);
    show("xco_small_frames", c.small);
    show("xco_uncontrolled_frames", c.uncontrolled);
    show("xco_starved", c.starved);
    show("xco_strangers", c.strangers);
    show("xco_forged", c.forged);
    show("xco_stale", c.stale);
    show("xco_backwards", c.backwards);
    show("xco_expired", c.expired);
    show("xco_unknown", c.unknown);
    show("xco_too_long", c.too_long);
    show("xco_refused", c.refused);
    show("xco_misdirected", c.misdirected);
}
