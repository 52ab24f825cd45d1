//! `[policy]`: the VMs of each tenant, and which of them may communicate.

use super::server::VM_MAX;
use super::{Counts, Hosts, Server};
use crate::error::Result;
use crate::setting::{Kind, Section, Setting};
use crate::settings;
use serde::Serialize;
use std::collections::BTreeMap;

/// Tenants, rules, and machines of tenants a scenario may have.
const TENANTS_MAX: usize = 4096;
const RULES_MAX: usize = 1024;
const MACHINES_MAX: usize = 1 << 20;
/// The name of the hosts outside.
const OUTSIDE: &str = "outside";

settings! {
    /// which machines may talk to each other
    #[derive(Default)]
    pub model struct Policy in "policy" (s, server: &Server, counts: Counts) {
        /// the VMs of a tenant
        tenant: Vec<Tenant> as (Kind::Tables(&[TenantKeys::SPEC])) = tenants(s, server, counts)?,
        /// a permission between two of them; the first rule that names both ends decides
        rule: Vec<Rule> as (Kind::Tables(&[RuleKeys::SPEC])) = rules(s, &tenant, server, counts)?,
    }
}

impl Policy {
    /// Whether all may talk to all.
    pub fn is_empty(&self) -> bool {
        self.tenant.is_empty() && self.rule.is_empty()
    }

    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>, server: &Server) -> Result<()> {
        if !self.is_empty() && !server.virtual_network {
            return Err(s
                .error_at(&["tenant", "rule"], "hypervisors see to it, and there is no virtual network")
                .hint("set server.virtual_network = true"));
        }
        Ok(())
    }
}

settings! {
    /// the machines of a tenant
    struct TenantKeys in "tenant" (s, server: &Server, counts: Counts) {
        /// its name
        name: String,
        /// servers with its VMs: a count (the first hosts) or a list; default all
        hosts: Option<Hosts> as (Kind::Hosts) = Hosts::read(s, "hosts", &counts)?,
        /// the numbers of its VMs on each of these servers; default all
        vms: Option<Vec<u32>> as (Kind::Counts(0, VM_MAX.into())) = vms(s, server)?,
    }
}

fn vms(s: &Section<'_>, server: &Server) -> Result<Option<Vec<u32>>> {
    s.get("vms").map(|node| Vec::<u32>::read(s, "vms", node, &(0..=server.vms - 1))).transpose()
}

/// The machines of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// Each as its server and its number there, in order.
    pub machines: Vec<(u32, u32)>,
}

/// Whom a rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Party {
    /// A tenant, by its place among them.
    Tenant(u16),
    /// A machine of a server.
    Machine(u32, u32),
    /// The hosts outside.
    Outside,
}

settings! {
    /// what holds between two parties, in both directions
    struct RuleKeys in "rule" (s) {
        /// a tenant's name, a VM as "host 3 vm 1", or outside: the hosts outside
        party: String,
        /// the other side, as `party`
        peer: String,
        /// whether they may communicate
        allow: bool,
    }
}

/// What holds between two parties, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The two.
    pub between: [Party; 2],
    /// Whether they may talk.
    pub allow: bool,
}

fn tenants(s: &Section<'_>, server: &Server, counts: Counts) -> Result<Vec<Tenant>> {
    let tables = s.tables("tenant")?;
    if tables.len() > TENANTS_MAX {
        return Err(s.error("tenant", format!("{} tenants: at most {TENANTS_MAX}", tables.len())));
    }
    let mut tenants: Vec<Tenant> = Vec::new();
    let mut owners: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for t in tables {
        let TenantKeys { name, hosts, vms } = TenantKeys::read(&t, server, counts)?;
        if name == OUTSIDE || name.is_empty() || name.contains(char::is_whitespace) {
            return Err(t.error("name", "this is no name of a tenant").expected("a word other than `outside`"));
        }
        if tenants.iter().any(|other| other.name == name) {
            return Err(t.error("name", "another tenant has this name"));
        }
        let of: Vec<u32> = match hosts {
            None => (0..counts.hosts).collect(),
            Some(Hosts::Count(n)) => (0..n).collect(),
            Some(Hosts::List(list)) => list,
        };
        if let Some(host) = of.iter().find(|&&host| host >= counts.hosts) {
            return Err(t.error("hosts", format!("host {host} is external: it has no machine of a tenant")));
        }
        let vms: Vec<u32> = match vms {
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
        .map(|t| {
            let RuleKeys { party, peer, allow } = RuleKeys::read(&t)?;
            let between = [("party", &party), ("peer", &peer)];
            let [party, peer] = between.map(|(key, text)| party_of(&t, (key, text), tenants, server, counts));
            Ok(Rule { between: [party?, peer?], allow })
        })
        .collect()
}

fn party_of(
    t: &Section<'_>,
    (key, text): (&str, &str),
    tenants: &[Tenant],
    server: &Server,
    counts: Counts,
) -> Result<Party> {
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
