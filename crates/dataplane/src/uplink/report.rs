//! The counters of an uplink, by name.

use super::credits::ZCredit;
use super::inside::{Inside, Overlay};
use super::kind::UplinkKind;
use super::tcp_tunnels::TcpTunnels;
use super::zbridge::ZBridge;
use sluicenet_node::uplink::{LimitCounters, Limits};
use sluicenet_proto::frame::PRIORITIES;
use sluicenet_proto::loss::DropReason;

type Show<'a> = &'a mut dyn FnMut(&'static str, u64);

impl<K: UplinkKind> Inside<K> {
    pub fn report(&self, show: Show<'_>) {
        self.report_link(show);
        self.report_flow_control(show);
        self.report_drops(show);
        if let Some(limits) = self.link.queues().limits() {
            self.report_limits(limits, show);
        }
        if let Some(gate) = self.link.queues().gate() {
            super::gate_report::report(gate, self.now, show);
            show("xco_forged_by_tenants", self.counters.messages_forged);
        }
        if let Some(overlay) = &self.overlay {
            self.report_overlay(overlay, show);
        }
        if let Some(zbridge) = &self.zbridge {
            report_zbridge(zbridge, show);
        }
        if let Some(tunnels) = &self.tcp_tunnels {
            report_tcp_tunnels(tunnels, show);
        }
        if let Some(zcredit) = &self.zcredit {
            report_zcredit(zcredit, show);
        }
    }

    fn report_link(&self, show: Show<'_>) {
        let link = self.link.counters();
        for p in 0..PRIORITIES {
            show(RECEIVED[p], link.received[p]);
            show(SENT[p], link.sent[p]);
        }
    }

    fn report_flow_control(&self, show: Show<'_>) {
        let link = self.link.counters();
        let (gate, signal, (storms, restored)) = self.link.flow_control();
        for p in self.link.link().lossless.iter() {
            show(HELD_US[p as usize], gate.paused_time(self.now, p).as_us());
        }
        show("pauses_received", link.pauses_received);
        show("pauses_sent", link.pauses_sent);
        show("pauses_run_out", link.pauses_run_out);
        show("classes_held", gate.stops());
        show("classes_stopped", signal.stops());
        show("longest_response_us", self.link.longest_response().as_us());
        show("late_frames", self.link.late());
        show("storms_detected", storms);
        show("storms_restored", restored);
        show("pauses_lossy", link.pauses_lossy);
        show("pauses_high_bits", link.pauses_high_bits);
        show("control_elsewhere", link.control_elsewhere);
        show("control_short", link.control_short);
        show("control_other", link.control_other);
    }

    fn report_drops(&self, show: Show<'_>) {
        let link = self.link.counters();
        for reason in DropReason::ALL {
            let dropped = link.dropped_in.frames(reason) + link.dropped_out.frames(reason);
            if dropped > 0 {
                show(reason.name(), dropped);
            }
        }
    }

    fn report_limits(&self, limits: &Limits<Vec<u8>>, show: Show<'_>) {
        let LimitCounters { received, malformed, ignored, refused, made } = *limits.counters();
        let (limiters, waiting, lowest) = limits.state();
        show("cnm_received", received);
        show("cnm_malformed", malformed);
        show("cnm_ignored", ignored);
        show("cnm_refused", refused);
        show("cnm_forged", self.counters.notifications_forged);
        show("limiters_made", made);
        show("limiters", limiters as u64);
        show("limited_frames", waiting as u64);
        show("limited_rate_bps", lowest.map_or(0, |rate| rate.as_bps()));
    }

    fn report_overlay(&self, overlay: &Overlay, show: Show<'_>) {
        let own = &self.counters;
        let (vtep, cache) = overlay.vtep.counters();
        show("not_tunnel", own.other);
        show("stations_registered", overlay.vtep.registered() as u64);
        show("stations_lost", own.stations_lost);
        show("forged_control", own.forged);
        show("own_dropped", self.link.counters().own_dropped);
        show("answered", own.answered);
        show("answers_full", own.answers_full);
        show("encapsulated", vtep.encapsulated);
        show("decapsulated", vtep.decapsulated);
        show("parked", vtep.parked);
        show("parked_full", vtep.parked_full);
        show("arp_answered", vtep.arp_answered);
        show("arp_ended", vtep.arp_ended);
        show("group_sent", vtep.group_sent);
        show("group_copies", vtep.group_copies);
        show("group_received", vtep.group_received);
        show("group_limited", vtep.group_limited);
        show("addresses_refused", overlay.vtep.addresses_refused());
        show("too_big_told", vtep.too_big_told);
        show("fragmented", own.fragmented);
        show("fragments", own.fragments);
        show("control_forged", vtep.control_forged);
        show("control_refused", vtep.control_refused);
        show("cache_hits", cache.hits);
        show("cache_misses", cache.misses);
        show("cache_repeated", cache.repeated);
        show("cache_unknown", cache.unknown);
        show("cache_silent", cache.silent);
        show("cache_limited", cache.limited);
        show("cache_evicted", cache.evicted);
        show("cache_changed", cache.changed);
        show("cache_stale", cache.stale);
        show("parked_on", vtep.parked_on);
        show("controller_unreachable", overlay.controller.failed());
    }
}

fn report_zbridge(zbridge: &ZBridge, show: Show<'_>) {
    let channels = zbridge.channels.counters();
    show("zbridge_sent", channels.sent);
    show("zbridge_resent", channels.resent);
    show("zbridge_delivered", channels.delivered);
    show("zbridge_duplicates", channels.duplicates);
    show("zbridge_too_far", channels.too_far);
    show("zbridge_stale", channels.stale);
    show("zbridge_timeouts", channels.timeouts);
    show("zbridge_connections", channels.connections);
    show("zbridge_damaged", zbridge.damaged);
    show("zbridge_given_up", channels.given_up);
    show("zbridge_silent", zbridge.silent);
    show("zbridge_unsent", zbridge.unsent());
    show("zbridge_copies", zbridge.channels.copies());
}

fn report_tcp_tunnels(tunnels: &TcpTunnels, show: Show<'_>) {
    let (tcp, (sent, received), (outward, inward)) = (tunnels.counters(), tunnels.frames(), tunnels.bytes());
    let (messages_sent, messages_received) = tunnels.messages();
    show("tcp_tunnel_servers", tunnels.servers() as u64);
    show("tcp_tunnel_sent", sent);
    show("tcp_tunnel_received", received);
    show("tcp_tunnel_messages_sent", messages_sent);
    show("tcp_tunnel_messages_received", messages_received);
    show("tcp_tunnel_unacknowledged", tunnels.unacknowledged());
    show("tcp_tunnel_unsent", tunnels.unsent());
    show("tcp_tunnel_bytes_out", outward);
    show("tcp_tunnel_bytes_in", inward);
    show("tcp_tunnel_segments_sent", tcp.segments_sent);
    show("tcp_tunnel_segments_received", tcp.segments_received);
    show("tcp_tunnel_resent", tcp.resent);
    show("tcp_tunnel_timeouts", tcp.timeouts);
    show("tcp_tunnel_ended", tcp.ended);
    show("tcp_tunnel_broken", tcp.broken);
}

fn report_zcredit(zcredit: &ZCredit, show: Show<'_>) {
    let (sent, received) = zcredit.credits().messages();
    show("credit_messages_sent", sent);
    show("credit_messages_received", received);
    show("credit_unsent", zcredit.unsent());
    show("credit_queued_max", zcredit.credits().received_max().into());
    show("credit_strays", zcredit.counters.strays);
    show("credit_silent", zcredit.counters.silent);
}

const RECEIVED: [&str; PRIORITIES] =
    ["received_0", "received_1", "received_2", "received_3", "received_4", "received_5", "received_6", "received_7"];
const SENT: [&str; PRIORITIES] = ["sent_0", "sent_1", "sent_2", "sent_3", "sent_4", "sent_5", "sent_6", "sent_7"];

/// Microseconds for which the neighbour paused a class.
const HELD_US: [&str; PRIORITIES] =
    ["held_us_0", "held_us_1", "held_us_2", "held_us_3", "held_us_4", "held_us_5", "held_us_6", "held_us_7"];
