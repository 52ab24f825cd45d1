//! `[policy]`: the endpoints that may communicate, and the stations that are their second vNICs.

use super::keys::{MACHINE, POLICY, RULE};
use super::port::{PortConfig, PortKind};
use super::{UplinkConfig, checked_name, mac};
use sluicenet_node::gate::{StationPolicy, Vnic};
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::policy::{Party, Policy, Rule};
use sluicenet_scenario::section::Section;
use sluicenet_scenario::{Error, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most rules, which are searched for the first frame of a pair.
const RULES_MAX: usize = 4096;
/// The name of outside hosts in rules.
const OUTSIDE: &str = "outside";

/// The address of an endpoint's vNIC, and the key that names one of the two.
fn vnic_mac(t: &Section<'_>, key: &str) -> Result<Option<[u8; 6]>> {
    t.text(key)?.map(|text| mac(t, key, text)).transpose()
}

pub(super) fn read(root: &Section<'_>, lossless: PrioritySet) -> Result<Option<Arc<StationPolicy>>> {
    let section = root.section("policy", &POLICY)?;
    if !root.has("policy") {
        return Ok(None);
    }
    let (mut vnics, mut groups, mut tenants) = (BTreeMap::new(), BTreeMap::<String, u16>::new(), BTreeMap::new());
    let mut named = BTreeMap::<String, Party<Station>>::new();
    for (table, span) in section.tables("machine")? {
        let t = Section::new(section.doc, &MACHINE, table, Some(span))?;
        let tenant = t.count("tenant", 0..=4095)?.unwrap_or(0) as u16;
        let outside = t.bool("outside")?.unwrap_or(false);
        let stations = [("mac", false), ("lossy_mac", true)].map(|(key, lossy)| {
            let address = vnic_mac(&t, key)?;
            Ok::<_, Error>(address.map(|mac| (key, Station::new(mac, tenant), lossy)))
        });
        let [first, second] = stations;
        let [first, second] = [first?, second?];
        let Some((_, own, _)) = first.or(second) else { return Err(t.missing("mac").hint("or `lossy_mac`, or both")) };
        if second.is_some() && lossless == PrioritySet::ALL {
            let why = "every priority of [switch] is lossless: none is left for a vNIC of a stack that drops";
            return Err(t.error("lossy_mac", why).hint("see `lossless` in [switch]"));
        }
        let machine = (!outside).then_some(own);
        for (key, station, lossy) in [first, second].into_iter().flatten() {
            if vnics.insert(station, Vnic { machine, lossy }).is_some() {
                return Err(t.error(key, "this address stands here twice"));
            }
        }
        if let Some(group) = t.text("group")? {
            if outside {
                return Err(t.error("group", "a host outside is of no group"));
            }
            let group = checked_name(&t, "group", group)?;
            let next = groups.len() as u16;
            if next == u16::MAX {
                return Err(t.error("group", "more groups than 65,534"));
            }
            let number = *groups.entry(group).or_insert(next);
            tenants.insert(own, number);
        }
        if let Some(name) = t.text("name")? {
            if outside {
                return Err(t.error("name", format!("a host outside is called `{OUTSIDE}` in rules")));
            }
            let name = checked_name(&t, "name", name)?;
            if name == OUTSIDE || named.insert(name.clone(), Party::Machine(own)).is_some() {
                return Err(t.error("name", format!("`{name}` is called something else already")));
            }
        }
    }
    for (group, number) in groups {
        if group == OUTSIDE || named.insert(group.clone(), Party::Tenant(number)).is_some() {
            return Err(section.error("machine", format!("`{group}` is a group, and something else is called so")));
        }
    }
    named.insert(OUTSIDE.into(), Party::Outside);
    let mut rules = Vec::new();
    for (table, span) in section.tables("rule")? {
        let t = Section::new(section.doc, &RULE, table, Some(span))?;
        let party = |key: &str| {
            let name = t.text(key)?.ok_or_else(|| t.missing(key))?;
            let party = named.get(name).copied();
            party.ok_or_else(|| {
                t.error(key, format!("nobody is called `{name}`"))
                    .expected("the group or the name of a [[policy.machine]], or outside")
            })
        };
        let between = [party("party")?, party("peer")?];
        rules.push(Rule { between, allow: t.bool("allow")?.ok_or_else(|| t.missing("allow"))? });
        if rules.len() > RULES_MAX {
            return Err(t.error_here(format!("more rules than {RULES_MAX}")));
        }
    }
    Ok(Some(Arc::new(StationPolicy::new(Policy::new(tenants, rules), vnics, lossless))))
}

/// Why a port is not allowed in a switch with this policy: the key, and the reason.
pub(in super::super) fn objection(
    policy: &StationPolicy,
    port: &PortConfig,
    vale: &ValeConfig,
    uplink: Option<&UplinkConfig>,
) -> Option<(&'static str, String)> {
    let Some(mac) = port.mac else {
        // Any host may be behind a device: outside hosts, or a gateway to them.
        let may_be_anybody = matches!(port.kind, PortKind::Packet { .. });
        let why = "with [policy] a port of this kind needs a `mac`: who is at it could be anybody else";
        return (!may_be_anybody).then(|| ("mac", why.into()));
    };
    if !policy.vnic(Station::new(mac, port.access.domain.unwrap_or(0))).lossy {
        return None;
    }
    let flow_controlled = uplink.map_or(PrioritySet::NONE, |uplink| uplink.lossless);
    let lossy = |p: Priority| !vale.lossless.contains(p) && !flow_controlled.contains(p);
    match port.access.priority {
        Some(p) if lossy(p) => None,
        Some(p) => Some(("priority", format!("priority {p} is lossless, and [policy] has a `lossy_mac` here"))),
        None => {
            Some(("priority", "[policy] has a `lossy_mac` here: say which lossy priority its frames are of".into()))
        }
    }
}
