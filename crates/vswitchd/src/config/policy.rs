//! `[policy]`: the machines that may talk to each other, and the stations that are their second vNICs.

use super::UplinkConfig;
use super::checks::{Mac, Name};
use super::keys::TENANT;
use super::port::{PortConfig, PortKind};
use sluicenet_node::gate::{StationPolicy, Vnic};
use sluicenet_node::vale::ValeConfig;
use sluicenet_proto::frame::{Priority, PrioritySet};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::policy::{Party, Policy, Rule};
use sluicenet_scenario::setting::{Kind, Section, Settings, Spec};
use sluicenet_scenario::{Result, settings, tables};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most rules: all are searched at the first frame of a pair.
const RULES_MAX: usize = 4096;
/// The name of hosts outside in rules.
const OUTSIDE: &str = "outside";

pub(super) static POLICY: Spec = tables! {
    /// which endpoints may communicate; without it all may
    "policy"
    machine: Kind::Tables(&[MachineKeys::SPEC]),
    rule: Kind::Tables(&[RuleKeys::SPEC]),
};

settings! {
    /// an endpoint on any server, by its addresses
    struct MachineKeys in "machine" (s) {
        /// the address of its vNIC, or of the first of two
        mac: Option<Mac>,
        /// the address of its second vNIC, whose frames have a lossy priority; give this or `mac`, or both
        lossy_mac: Option<Mac>,
        /// its tenant's number on this server; default 0
        tenant: u16 [TENANT] = 0,
        /// endpoints of one group may communicate unless a rule forbids it; endpoints without a group form one group
        group: Option<Name>,
        /// its name in rules
        name: Option<Name>,
        /// whether it is a host outside, or the gateway to such hosts; all may communicate with it; default false
        outside: bool = false,
    }
}

settings! {
    /// a permission between two of them, in both directions; the first rule that names both decides
    struct RuleKeys in "rule" (s) {
        /// a group, an endpoint's name, or outside: all hosts outside
        party: String,
        /// the other side, as `party`
        peer: String,
        /// whether they may communicate
        allow: bool,
    }
}

pub(super) fn read(root: &Section<'_>, lossless: PrioritySet) -> Result<Option<Arc<StationPolicy>>> {
    let section = root.section("policy")?;
    if !root.has("policy") {
        return Ok(None);
    }
    let (mut vnics, mut groups, mut tenants) = (BTreeMap::new(), BTreeMap::<String, u16>::new(), BTreeMap::new());
    let mut named = BTreeMap::<String, Party<Station>>::new();
    for t in section.tables("machine")? {
        let MachineKeys { mac, lossy_mac, tenant, group, name, outside } = MachineKeys::read(&t)?;
        let station = |mac: Mac| Station::new(mac.0, tenant);
        let first = mac.map(|mac| ("mac", station(mac), false));
        let second = lossy_mac.map(|mac| ("lossy_mac", station(mac), true));
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
        if let Some(Name(group)) = group {
            if outside {
                return Err(t.error("group", "a host outside is of no group"));
            }
            let next = groups.len() as u16;
            if next == u16::MAX {
                return Err(t.error("group", "more groups than 65,534"));
            }
            let number = *groups.entry(group).or_insert(next);
            tenants.insert(own, number);
        }
        if let Some(Name(name)) = name {
            if outside {
                return Err(t.error("name", format!("a host outside is called `{OUTSIDE}` in rules")));
            }
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
    for t in section.tables("rule")? {
        let RuleKeys { party, peer, allow } = RuleKeys::read(&t)?;
        let of = |key: &str, name: &str| {
            named.get(name).copied().ok_or_else(|| {
                t.error(key, format!("nobody is called `{name}`"))
                    .expected("the group or the name of a [[policy.machine]], or outside")
            })
        };
        rules.push(Rule { between: [of("party", &party)?, of("peer", &peer)?], allow });
        if rules.len() > RULES_MAX {
            return Err(t.error_here(format!("more rules than {RULES_MAX}")));
        }
    }
    Ok(Some(Arc::new(StationPolicy::new(Policy::new(tenants, rules), vnics, lossless))))
}

/// The reason why a switch with this policy refuses a port, with the key at fault.
pub(in super::super) fn objection(
    policy: &StationPolicy,
    port: &PortConfig,
    vale: &ValeConfig,
    uplink: Option<&UplinkConfig>,
) -> Option<(&'static str, String)> {
    if port.mac.is_none() {
        // Behind a device there may be any machine: hosts outside, or a gateway to them.
        let may_be_anybody = matches!(port.kind, PortKind::Packet { .. });
        let why = "with [policy] a port of this kind needs a `mac`: who is at it could be anybody else";
        return (!may_be_anybody).then(|| ("mac", why.into()));
    }
    if !port.stations().any(|(mac, domain)| policy.vnic(Station::new(mac, domain)).lossy) {
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
