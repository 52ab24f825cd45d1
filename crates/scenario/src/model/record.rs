//! What a run writes down.

use core::fmt;
use serde::Serialize;
use sluicenet_proto::time::Duration;

use super::workload::Hosts;
use crate::units::canonical;

/// Ports by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum PortSelector {
    /// A host's port: `host 3`.
    Host(u32),
    /// Every port of a switch: `switch 2`.
    Switch(u32),
    /// One port of a switch: `switch 2 port 5`.
    SwitchPort(u32, u32),
}

impl fmt::Display for PortSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSelector::Host(h) => write!(f, "host {h}"),
            PortSelector::Switch(s) => write!(f, "switch {s}"),
            PortSelector::SwitchPort(s, p) => write!(f, "switch {s} port {p}"),
        }
    }
}

impl From<PortSelector> for String {
    fn from(p: PortSelector) -> String {
        p.to_string()
    }
}

/// What to write down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// One row a flow.
    pub flows: bool,
    /// One row a query.
    pub queries: bool,
    /// One row a port.
    pub ports: bool,
    /// How often queue lengths are sampled; not at all where absent.
    #[serde(serialize_with = "canonical")]
    pub queues: Option<Duration>,
    /// Whose queues; all where empty.
    pub queue_ports: Vec<PortSelector>,
    /// How often TCP connections are sampled; not at all where absent.
    #[serde(serialize_with = "canonical")]
    pub tcp: Option<Duration>,
    /// Hosts whose connections are; all where absent.
    pub tcp_hosts: Option<Hosts>,
    /// One row a pause.
    pub pauses: bool,
    /// Comma-separated files beside the Parquet ones.
    pub csv: bool,
    /// The ports whose frames are captured, in both directions.
    pub pcapng: Vec<PortSelector>,
    /// Rows of a part file at most.
    pub part_rows: u32,
}
