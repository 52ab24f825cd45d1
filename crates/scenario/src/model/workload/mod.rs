//! `[[workload]]`: which host sends what to which, and when.

mod background;
mod benchmark;
mod file;
mod hosts;
mod many_to_one;
mod planned;
mod queries;
mod world;

pub use background::{Background, LoadBasis, Poisson};
pub use benchmark::{Generated, HotspotBenchmark};
pub use file::{FlowFile, FlowFileContent};
pub use hosts::Hosts;
pub use many_to_one::{Connections, Hotspot, Incast, Phase};
pub use planned::{Flow, Pattern, Permutation, Shuffle};
pub use queries::{Layout, PartitionAggregate, PartitionAggregate2};
pub(crate) use world::World;
pub use world::{EPHEMERAL, PORTS};

use serde::Serialize;

use super::{Counts, Slowdown};
use crate::choices;
use crate::error::Result;
use crate::files::Files;
use crate::setting::{Kind, Or, Section, Setting, Settings, Spec, shown};
use crate::tree::{Document, Entry, Node, Span, Table, Value};
use crate::units::canonical_as_they_are;

choices! {
    /// The transport of a flow.
    pub enum Transport {
        /// A connection.
        Tcp = "tcp",
        /// Datagrams.
        Udp = "udp",
        /// A connection of TCPlight: a stream over a network that loses nothing.
        TcpLight = "tcplight",
        /// A queue pair of RoCE.
        Roce = "roce",
    }
}

impl Transport {
    /// Whether it is the default.
    pub fn is_tcp(&self) -> bool {
        *self == Transport::Tcp
    }

    /// Whether a connection is a stream of bytes, which ends when it is closed. Queue pairs take later messages, too.
    pub fn has_streams(self) -> bool {
        matches!(self, Transport::Tcp | Transport::TcpLight)
    }

    /// Whether a flow has a connection, to be closed.
    pub fn connects(self) -> bool {
        self != Transport::Udp
    }
}

choices! {
    /// A priority for each host.
    pub enum PerHost {
        /// The sender's number modulo 8.
        PerHost = "per-host",
    }
}

/// The priority (0 to 7) of a workload's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// The same for all.
    Fixed(u8),
    /// The sender's number modulo 8.
    PerHost,
}

canonical_as_they_are!(Priority);

impl Setting for Priority {
    type Limits = core::ops::RangeInclusive<u8>;
    const ANY: Self::Limits = PRIORITY;

    fn kind(limits: &Self::Limits) -> Kind {
        Or::<u8, PerHost>::kind(limits)
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<Priority> {
        let given = Or::<u8, PerHost>::read(s, name, node, limits)?;
        Ok(given.value().map_or(Priority::PerHost, Priority::Fixed))
    }
}

impl Priority {
    /// All priorities of these frames, a bit each.
    fn bits(self) -> u8 {
        match self {
            Priority::Fixed(priority) => 1 << priority,
            Priority::PerHost => u8::MAX,
        }
    }
}

/// Priorities of frames.
const PRIORITY: core::ops::RangeInclusive<u8> = 0..=7;
/// The largest code point of a DSCP.
const DSCP_MAX: u64 = 63;

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// Three tiers of requests and answers.
    PartitionAggregate(PartitionAggregate),
    /// Two tiers of requests and answers.
    #[serde(rename = "partition-aggregate-2")]
    PartitionAggregate2(PartitionAggregate2),
    /// Random flows beside the others.
    Background(Background),
    /// Many to one.
    Incast(Incast),
    /// Many to one, at a load that changes.
    Hotspot(Hotspot),
    /// Hot flows to one host beside cold ones.
    HotspotBenchmark(HotspotBenchmark),
    /// Each to one other.
    Permutation(Permutation),
    /// All to all.
    Shuffle(Shuffle),
    /// One to one.
    Flow(Flow),
    /// The flows of a file.
    FlowFile(FlowFile),
    /// Random flows at a load.
    Poisson(Poisson),
}

impl Workload {
    /// The transport of its messages.
    pub fn transport(&self) -> Transport {
        match self {
            Workload::PartitionAggregate(w) => w.transport,
            Workload::PartitionAggregate2(w) => w.transport,
            Workload::Background(w) => w.transport,
            Workload::Incast(w) => w.transport,
            Workload::Hotspot(w) => w.transport,
            Workload::HotspotBenchmark(w) => w.transport,
            Workload::Permutation(w) => w.transport,
            Workload::Shuffle(w) => w.transport,
            Workload::Flow(w) => w.transport,
            Workload::FlowFile(w) => w.transport,
            Workload::Poisson(w) => w.transport,
        }
    }

    /// The priorities of its frames, a bit each; all where a file names them.
    pub fn priorities(&self) -> u8 {
        match self {
            Workload::PartitionAggregate(w) => 1 << w.priority,
            Workload::PartitionAggregate2(w) => 1 << w.priority,
            Workload::Background(w) => 1 << w.priority,
            Workload::Incast(w) => 1 << w.priority,
            Workload::Hotspot(w) => 1 << w.priority,
            Workload::HotspotBenchmark(w) => 1 << w.priority,
            Workload::Permutation(w) => w.priority.bits(),
            Workload::Shuffle(w) => 1 << w.priority,
            Workload::Flow(w) => 1 << w.priority,
            Workload::FlowFile(w) => w.priority.map_or(u8::MAX, |priority| 1 << priority),
            Workload::Poisson(w) => 1 << w.priority,
        }
    }

    /// Whether it ends by itself, so that a run without a duration may wait for it.
    pub fn is_finite(&self) -> bool {
        match self {
            Workload::PartitionAggregate(w) => w.queries.is_some(),
            Workload::PartitionAggregate2(w) => w.queries.is_some(),
            Workload::Background(_) => false,
            Workload::Permutation(w) => w.bytes.is_some(),
            Workload::Flow(w) => w.bytes.is_some(),
            Workload::Incast(_) | Workload::Hotspot(_) | Workload::HotspotBenchmark(_) => true,
            Workload::FlowFile(w) => w.is_finite(),
            Workload::Shuffle(_) | Workload::Poisson(_) => true,
        }
    }
}

impl Workload {
    /// The slower link that the workload needs.
    pub(crate) fn slowdown(&self) -> Option<Slowdown> {
        match self {
            Workload::HotspotBenchmark(w) => w.slowdown(),
            _ => None,
        }
    }
}

/// The kinds of workload: the table of each, its reader, its check.
macro_rules! kinds {
    ($($kind:ident),+) => {
        /// The tables of all kinds.
        pub(crate) const WORKLOADS: &[&Spec] = &[$($kind::SPEC),+];

        impl Workload {
            /// Its name in a scenario.
            pub fn kind(&self) -> &'static str {
                match self { $(Workload::$kind(_) => $kind::SPEC.name),+ }
            }

            fn of_kind(s: &Section<'_>, world: &World<'_>, files: &mut Files) -> Result<Workload> {
                $(if s.spec.name == $kind::SPEC.name {
                    let workload = $kind::read(s, world, files)?;
                    workload.check(s, world, files)?;
                    return Ok(Workload::$kind(workload));
                })+
                unreachable!("a kind without a reader");
            }
        }
    };
}
kinds!(
    PartitionAggregate,
    PartitionAggregate2,
    Background,
    Incast,
    Hotspot,
    HotspotBenchmark,
    Permutation,
    Shuffle,
    Flow,
    FlowFile,
    Poisson
);

impl Workload {
    /// A workload of whatever kind.
    pub(crate) fn read(
        doc: &Document,
        table: &Table,
        span: Span,
        world: &World<'_>,
        files: &mut Files,
    ) -> Result<Workload> {
        let names: Vec<&'static str> = WORKLOADS.iter().map(|spec| spec.name).collect();
        let Some(entry) = table.get("kind") else {
            let error = doc.error(span, "this workload has no `kind`");
            return Err(error.hint(format!("known kinds: {}", names.join(", "))));
        };
        let node = &entry.node;
        let Value::Text(kind) = &node.value else {
            let message = format!("{} where a kind should be", node.kind());
            return Err(doc.error(node.span, message).expected("a string"));
        };
        let Some(spec) = WORKLOADS.iter().find(|spec| spec.name == kind) else {
            let error = doc.error(node.span, format!("unknown kind of workload `{}`", shown(kind)));
            return Err(error.none_of(kind, &names));
        };
        let with_priority = by_dscp(&Section::new(doc, spec, table, Some(span))?, table, world)?;
        let table = with_priority.as_ref().unwrap_or(table);
        Workload::of_kind(&Section::new(doc, spec, table, Some(span))?, world, files)
    }
}

/// The table with the priority of its DSCP; none where it has no DSCP.
fn by_dscp(s: &Section<'_>, table: &Table, world: &World<'_>) -> Result<Option<Table>> {
    let Some(entry) = table.get("dscp") else { return Ok(None) };
    if s.has("priority") {
        let error = s.error("dscp", "`dscp` and `priority` both give the priority");
        return Err(error.hint("remove one of the two"));
    }
    let dscp = u64::read(s, "dscp", &entry.node, &(0..=DSCP_MAX))?;
    let priority = world.dscp_to_tc.and_then(|map| map.get(dscp as usize)).ok_or_else(|| {
        let error = s.error("dscp", "no map gives the priority of a DSCP");
        error.hint("give switch.dscp_to_tc, or switch.sonic with a DSCP_TO_TC_MAP; or give `priority`")
    })?;
    let mut with_priority = table.clone();
    let node = Node { span: entry.node.span, value: Value::Int((*priority).into()) };
    with_priority.entries.push(Entry { key: "priority".into(), key_span: entry.key_span, node });
    Ok(Some(with_priority))
}
