//! Which machines may talk to each other.

use serde::Serialize;

/// Which machines may talk to each other; all of them where there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Policy {
    /// Whose machines are whose.
    pub tenant: Vec<Tenant>,
    /// What holds between two of them, the first first.
    pub rule: Vec<Rule>,
}

impl Policy {
    /// Whether all may talk to all.
    pub fn is_empty(&self) -> bool {
        self.tenant.is_empty() && self.rule.is_empty()
    }
}

/// The machines of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tenant {
    /// What it is called.
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

/// What holds between two parties, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The two.
    pub between: [Party; 2],
    /// Whether they may talk.
    pub allow: bool,
}
