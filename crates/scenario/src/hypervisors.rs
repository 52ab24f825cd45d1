//! Reading what hypervisors put under the transports of their machines: credits, reliability, tunnels.

use super::defaults;
use super::error::Result;
use super::keys;
use super::model::*;
use super::section::Section;
use super::sections::machine;
use sluicenet_proto::time::Duration;

/// Shorter, and senders do nothing but ask.
const ZBRIDGE_TIMEOUT_MIN: Duration = Duration::from_us(1);

/// What can be done about hosts outside.
const OUTSIDE: &str = "set topology.external_hosts = 0, or give machines a second vNIC for them by server.lossy_vnic";

/// `[zcredit]`; `fixed` is what `hypervisor` says of it.
pub(super) fn zcredit(
    s: &Section<'_>,
    fixed: Option<bool>,
    (server, policy): (&Server, &Policy),
    counts: Counts,
) -> Result<ZCredit> {
    let enabled = of_stack(s, fixed)?.unwrap_or(defaults::zcredit().enabled);
    let z = ZCredit { enabled, weight: weights(s, (server, policy), counts)?, ..credit_numbers(s)? };
    if z.enabled && !server.virtual_network {
        return Err(s
            .error("enabled", "credits are between virtual machines, and there is no virtual network")
            .hint("set server.virtual_network = true"));
    }
    if z.enabled && counts.external > 0 && server.lossy_vnic.is_none() {
        let message =
            format!("{} hosts are external: they have no hypervisor, and nobody there grants", counts.external);
        return Err(s.error("enabled", message).hint(OUTSIDE));
    }
    Ok(z)
}

/// What `[zcredit]` says of queues and turns, in a scenario and in the file of a switch.
pub fn credit_numbers(s: &Section<'_>) -> Result<ZCredit> {
    let d = defaults::zcredit();
    let rx_queue = s.count_u32("rx_queue", 1..=1 << 16)?.unwrap_or(d.rx_queue);
    let batch = s.count_u32("batch", 1..=1 << 16)?.unwrap_or(d.batch.min(rx_queue));
    let tx_queue = s.count_u32("tx_queue", 1..=1 << 16)?.unwrap_or(d.tx_queue);
    if batch > rx_queue {
        let message = format!("a batch of {batch} credits does not fit a receive queue of {rx_queue}");
        return Err(s.error("batch", message));
    }
    Ok(ZCredit { rx_queue, batch, tx_queue, ..d })
}

/// `[zbridge]`; `fixed` is what `hypervisor` says of it.
pub(super) fn zbridge(s: &Section<'_>, fixed: Option<bool>, server: &Server, counts: Counts) -> Result<ZBridge> {
    let enabled = of_stack(s, fixed)?.unwrap_or(defaults::zbridge().enabled);
    let z = ZBridge { enabled, ..channel_numbers(s)? };
    if z.enabled && !server.virtual_network {
        return Err(s
            .error("enabled", "zBridge stands between virtual switches, and there is no virtual network")
            .hint("set server.virtual_network = true"));
    }
    if z.enabled && counts.external > 0 && server.lossy_vnic.is_none() {
        let message =
            format!("{} hosts are external: they have no hypervisor, and nobody there answers", counts.external);
        return Err(s.error("enabled", message).hint(OUTSIDE));
    }
    Ok(z)
}

/// What `[zbridge]` says of buffers and times, in a scenario and in the file of a switch.
pub fn channel_numbers(s: &Section<'_>) -> Result<ZBridge> {
    let d = defaults::zbridge();
    let period = s.count_u32("period", 1..=1 << 23)?.unwrap_or(d.period);
    let buffer = s.count_u32("buffer", 2..=1 << 24)?.unwrap_or(d.buffer.max(4 * period).min(1 << 24));
    let timeout = s.positive("timeout")?.unwrap_or(d.timeout);
    if timeout < ZBRIDGE_TIMEOUT_MIN {
        return Err(s.error("timeout", format!("a timeout of {} ps", timeout.as_ps())).expected("at least 1 us"));
    }
    if buffer / 2 < period {
        let message = format!("a buffer of {buffer} frames is less than two periods of {period}");
        return Err(s
            .error_at(&["buffer", "period"], message)
            .hint("it would be full before an acknowledgement is asked for"));
    }
    Ok(ZBridge { period, buffer, timeout, ..d })
}

/// `[[zcredit.weight]]`.
fn weights(s: &Section<'_>, (server, policy): (&Server, &Policy), counts: Counts) -> Result<Vec<Weight>> {
    let mut weights: Vec<Weight> = Vec::new();
    let mut named = std::collections::BTreeSet::new();
    for (table, span) in s.tables("weight")? {
        let t = Section::new(s.doc, &keys::WEIGHT, table, Some(span))?;
        let weight = t.count_u32("weight", 1..=1 << 16)?.ok_or_else(|| t.missing("weight"))?;
        let machines = match t.text("tenant")? {
            None => vec![machine(&t, server, counts)?],
            Some(_) if t.has("host") || t.has("vm") => {
                return Err(t.error("tenant", "a tenant is all of its machines: `host` and `vm` say which alone"));
            }
            Some(name) => match policy.tenant.iter().find(|tenant| tenant.name == name) {
                Some(tenant) => tenant.machines.clone(),
                None => return Err(t.error("tenant", "no [[policy.tenant]] has this name")),
            },
        };
        for (host, vm) in machines {
            if !named.insert((host, vm)) {
                let message = format!("machine {vm} of host {host} stands here twice");
                return Err(t.error_at(&["host", "tenant"], message));
            }
            weights.push(Weight { host, vm, weight });
        }
    }
    Ok(weights)
}

/// `overlay.transport`; `fixed` is what `hypervisor` says of it.
pub(super) fn tunnel(
    s: &Section<'_>,
    overlay: Overlay,
    fixed: Option<bool>,
    (zbridge, server, counts): (&ZBridge, &Server, Counts),
) -> Result<Overlay> {
    let given = s.choice("transport", &[("udp", false), ("tcp", true)])?;
    if let (Some(given), Some(fixed)) = (given, fixed)
        && given != fixed
    {
        return Err(s
            .error("transport", "scenario.hypervisor says what is between servers")
            .hint("remove `transport`, or write flow_control in place of hypervisor"));
    }
    let tcp = given.or(fixed).unwrap_or(overlay.tcp);
    if tcp && !overlay.enabled {
        return Err(s
            .error_at(&["transport", "enabled"], "a tunnel needs an overlay, and there is none")
            .hint("set overlay.enabled = true"));
    }
    if tcp && zbridge.enabled {
        return Err(s
            .error("transport", "TCP between servers sends again what is lost, and so does zBridge")
            .hint("set zbridge.enabled = false"));
    }
    if tcp && counts.external > 0 && server.lossy_vnic.is_none() {
        let message = format!("{} hosts are external: they have no hypervisor, and no tunnel", counts.external);
        return Err(s.error("transport", message).hint(OUTSIDE));
    }
    Ok(Overlay { tcp, ..overlay })
}

/// Whether a part of zFabric is enabled, where `hypervisor` may have said so already.
fn of_stack(s: &Section<'_>, fixed: Option<bool>) -> Result<Option<bool>> {
    let given = s.bool("enabled")?;
    match (given, fixed) {
        (Some(true), Some(false)) => Err(s
            .error("enabled", "scenario.hypervisor says that there is no zFabric")
            .hint("write hypervisor = \"zfabric\", or flow_control in its place")),
        // A part of it may be left out.
        _ => Ok(given.or(fixed)),
    }
}
