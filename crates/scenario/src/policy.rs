//! Reading `[policy]`: whose machines are whose, and who may talk to whom.

use super::error::Result;
use super::keys;
use super::model::*;
use super::section::Section;
use super::sections::hosts;
use std::collections::BTreeMap;

/// Tenants, rules, and machines of tenants a scenario may have.
const TENANTS_MAX: usize = 4096;
const RULES_MAX: usize = 1024;
const MACHINES_MAX: usize = 1 << 20;
/// What hosts outside are called.
const OUTSIDE: &str = "outside";

pub(super) fn policy(s: &Section<'_>, server: &Server, counts: Counts) -> Result<Policy> {
    let policy = Policy { tenant: tenants(s, server, counts)?, ..Policy::default() };
    let rule = rules(s, &policy.tenant, server, counts)?;
    let policy = Policy { rule, ..policy };
    if !policy.is_empty() && !server.virtual_network {
        return Err(s
            .error_at(&["tenant", "rule"], "hypervisors see to it, and there is no virtual network")
            .hint("set server.virtual_network = true"));
    }
    Ok(policy)
}

fn tenants(s: &Section<'_>, server: &Server, counts: Counts) -> Result<Vec<Tenant>> {
    let tables = s.tables("tenant")?;
    if tables.len() > TENANTS_MAX {
        return Err(s.error("tenant", format!("{} tenants: at most {TENANTS_MAX}", tables.len())));
    }
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut owners: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (table, span) in tables {
        let t = Section::new(s.doc, &keys::TENANT, table, Some(span))?;
        let name = t.text("name")?.ok_or_else(|| t.missing("name"))?.to_string();
        if name == OUTSIDE || name.is_empty() || name.contains(char::is_whitespace) {
            return Err(t.error("name", "this is no name of a tenant").expected("a word other than `outside`"));
        }
        if tenants.iter().any(|other| other.name == name) {
            return Err(t.error("name", "another tenant has this name"));
        }
        let of: Vec<u32> = match hosts(&t, "hosts", &counts)? {
            None => (0..counts.hosts).collect(),
            Some(Hosts::Count(n)) => (0..n).collect(),
            Some(Hosts::List(list)) => list,
        };
        if let Some(host) = of.iter().find(|&&host| host >= counts.hosts) {
            return Err(t.error("hosts", format!("host {host} is external: it has no machine of a tenant")));
        }
        let vms: Vec<u32> = match t.counts("vms", 0..=u64::from(server.vms - 1))? {
            None => (0..server.vms).collect(),
            Some(list) if list.is_empty() => return Err(t.error("vms", "`vms` is empty")),
            Some(list) => list,
        };
        if of.len() * vms.len() + owners.len() > MACHINES_MAX {
            return Err(t.error_here(format!("tenants have at most {MACHINES_MAX} machines together")));
        }
        let mut machines: Vec<(u32, u32)> = of.iter().flat_map(|&host| vms.iter().map(move |&vm| (host, vm))).collect();
        machines.sort_unstable();
        for &(host, vm) in &machines {
            if let Some(owner) = owners.insert((host, vm), tenants.len()) {
                let owner = tenants.get(owner).map_or(name.as_str(), |t| t.name.as_str());
                let message = format!("machine {vm} of host {host} is one of `{owner}` already");
                return Err(t.error_at(&["vms", "hosts", "name"], message));
            }
        }
        tenants.push(Tenant { name, machines });
    }
    Ok(tenants)
}

fn rules(s: &Section<'_>, tenants: &[Tenant], server: &Server, counts: Counts) -> Result<Vec<Rule>> {
    let tables = s.tables("rule")?;
    if tables.len() > RULES_MAX {
        return Err(s.error("rule", format!("{} rules: at most {RULES_MAX}", tables.len())));
    }
    tables
        .into_iter()
        .map(|(table, span)| {
            let t = Section::new(s.doc, &keys::RULE, table, Some(span))?;
            let between = [party(&t, "party", tenants, server, counts)?, party(&t, "peer", tenants, server, counts)?];
            let allow = t.bool("allow")?.ok_or_else(|| t.missing("allow"))?;
            Ok(Rule { between, allow })
        })
        .collect()
}

fn party(t: &Section<'_>, key: &str, tenants: &[Tenant], server: &Server, counts: Counts) -> Result<Party> {
    let text = t.text(key)?.ok_or_else(|| t.missing(key))?;
    if let Some(at) = tenants.iter().position(|tenant| tenant.name == text) {
        return Ok(Party::Tenant(at as u16));
    }
    let wrong = |message: String| Err(t.error(key, message));
    let words: Vec<&str> = text.split_whitespace().take(5).collect();
    match words[..] {
        [OUTSIDE] if counts.external > 0 => Ok(Party::Outside),
        [OUTSIDE] => wrong("there is no host outside: topology.external_hosts is 0".into()),
        ["host", host, "vm", vm] => match (host.parse::<u32>(), vm.parse::<u32>()) {
            (Ok(host), Ok(vm)) if host < counts.hosts && vm < server.vms => Ok(Party::Machine(host, vm)),
            (Ok(_), Ok(_)) => wrong(format!(
                "there is no such machine: {} servers have {} each, both counted from 0",
                counts.hosts, server.vms
            )),
            _ => wrong("a machine is written as \"host 3 vm 1\"".into()),
        },
        _ => Err(t
            .error(key, "no tenant has this name")
            .expected("the name of a [[policy.tenant]], \"host 3 vm 1\", or \"outside\"")),
    }
}
