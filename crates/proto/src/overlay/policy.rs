//! The machines that may communicate. A hypervisor checks the policy before it sends a frame of a machine, asks for credits
//! (Crisan 2014, 5.3.1: "are source and destination VMs allowed to communicate"), or accepts a frame.
//!
//! Machines belong to tenants. The first rule that names both ends decides. Without such a rule, machines of one tenant may
//! communicate, and all machines may communicate with hosts outside. Rules have no direction: an allowed request may be
//! answered.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// One side of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party<M> {
    /// A machine.
    Machine(M),
    /// All machines of a tenant.
    Tenant(u16),
    /// All hosts outside.
    Outside,
}

/// A rule for two parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<M> {
    /// The two parties, in any order.
    pub between: [Party<M>; 2],
    /// Whether the parties may communicate.
    pub allow: bool,
}

/// The tenants and rules that decide which machines may communicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy<M> {
    /// Tenant of each machine; machines without an entry share one nameless tenant.
    tenants: BTreeMap<M, u16>,
    rules: Vec<Rule<M>>,
}

impl<M: Copy + Ord> Policy<M> {
    /// A policy from the tenants of machines and a list of rules; the first matching rule decides.
    pub fn new(tenants: BTreeMap<M, u16>, rules: Vec<Rule<M>>) -> Policy<M> {
        Policy { tenants, rules }
    }

    /// Whether two machines may communicate; `None` is a host outside.
    pub fn allows(&self, a: Option<M>, b: Option<M>) -> bool {
        let tenant = |m: Option<M>| m.and_then(|m| self.tenants.get(&m).copied());
        let [of_a, of_b] = [a, b].map(tenant);
        let is = |party: &Party<M>, m: Option<M>, of: Option<u16>| match *party {
            Party::Machine(named) => m == Some(named),
            Party::Tenant(named) => of == Some(named),
            Party::Outside => m.is_none(),
        };
        let names = |rule: &&Rule<M>| {
            let [x, y] = &rule.between;
            is(x, a, of_a) && is(y, b, of_b) || is(x, b, of_b) && is(y, a, of_a)
        };
        match self.rules.iter().find(names) {
            Some(rule) => rule.allow,
            None => a.is_none() || b.is_none() || of_a == of_b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Party<u8> = Party::Tenant(1);
    const BLUE: Party<u8> = Party::Tenant(2);

    fn policy(rules: &[([Party<u8>; 2], bool)]) -> Policy<u8> {
        let rules = rules.iter().map(|&(between, allow)| Rule { between, allow }).collect();
        Policy::new([(10, 1), (11, 1), (20, 2), (21, 2)].into(), rules)
    }

    /// Returns the answer, which is the same in both directions.
    fn allows(p: &Policy<u8>, a: u8, b: u8) -> bool {
        let (there, back) = (p.allows(Some(a), Some(b)), p.allows(Some(b), Some(a)));
        assert_eq!(there, back, "{a} {b}");
        there
    }

    #[test]
    fn without_rules_a_tenant_keeps_to_itself() {
        let p = policy(&[]);
        assert!(allows(&p, 10, 11) && allows(&p, 20, 21) && allows(&p, 10, 10));
        assert!(!allows(&p, 10, 20) && !allows(&p, 11, 30), "nor is a machine of no tenant of this one");
        assert!(allows(&p, 30, 31), "those of none are together");
        assert!(p.allows(Some(10), None) && p.allows(None, Some(30)) && p.allows(None, None));
    }

    #[test]
    fn the_first_rule_that_names_both_decides() {
        let p = policy(&[
            ([Party::Machine(10), Party::Machine(20)], false),
            ([RED, BLUE], true),
            ([Party::Machine(11), RED], false),
            ([Party::Outside, BLUE], false),
        ]);
        assert!(!allows(&p, 10, 20), "named before its tenant is");
        assert!(allows(&p, 10, 21) && allows(&p, 11, 20));
        assert!(!allows(&p, 10, 11), "within a tenant, too");
        assert!(!p.allows(None, Some(20)) && !p.allows(Some(21), None) && p.allows(None, Some(10)));
        assert!(!allows(&p, 30, 20), "what no rule names is as without rules");
    }
}
