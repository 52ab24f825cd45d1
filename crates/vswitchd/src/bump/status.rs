//! The state of a bump, beside that of its ports.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a bump.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BumpStatus {
    /// The ports of each link.
    pub links: Vec<[String; 2]>,
    /// Its own address.
    pub mac: String,
    /// Loops: one for each pipeline of each link.
    pub loops: usize,
    /// Whether its loops sleep when there is nothing to do.
    pub sleeps: bool,
    /// What becomes of its links when it has died.
    pub when_dead: String,
    /// The neighbours that say by LLDP what they are, by port.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub neighbours: BTreeMap<String, NeighbourStatus>,
    /// Frames that were for the bump itself.
    pub consumed: u64,
    /// Frames of its own that it sent.
    pub own: u64,
    /// Frames of its own that found no room.
    pub own_lost: u64,
    /// Frames to destinations without a virtual queue.
    pub unmapped: u64,
    /// When the virtual queues were read, in nanoseconds of the kernel's monotonic clock.
    #[serde(default)]
    pub read_at_ns: u64,
    /// The virtual queues.
    pub queues: Vec<QueueStatus>,
    /// The file of its program from outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The lanes of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<LaneStatus>,
    /// Updates from and to other bumps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updates: Option<UpdateStatus>,
}

/// What a neighbour says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourStatus {
    /// Its name, or its chassis.
    pub system: String,
    /// Its port.
    pub port: String,
    /// The speed of that port's link, in Mb/s.
    pub mbps: Option<u32>,
}

/// The state of a virtual queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QueueStatus {
    /// The downstream port: its number, or the port of the bump behind which unlisted destinations are.
    pub port: String,
    /// Its drain rate.
    pub rate_bps: u64,
    /// Bytes in the queue, as estimated.
    pub bytes: u64,
    /// The most bytes that it can have.
    pub limit_bytes: Option<u64>,
    /// Bytes that did not fit.
    pub overflow_bytes: u64,
    /// Packets that entered it.
    pub packets: u64,
    /// Packets that the applications marked.
    pub marked: u64,
    /// Packets that they dropped.
    pub dropped: u64,
    /// Notifications that they took.
    pub consumed: u64,
    /// Notifications that they sent.
    pub notices: u64,
    /// Packets that other bumps reported.
    pub reported: u64,
    /// Rates and averages of the applications, by name; of several values of one name the sum.
    pub gauges: BTreeMap<String, f64>,
}

/// The lane of a virtual queue to a program, or that of all frames.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LaneStatus {
    /// The downstream port, or `all`.
    pub port: String,
    /// Whether the program runs.
    pub runs: bool,
    /// Frames in the lane.
    pub inside: u64,
    /// Its counters, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Updates from and to other bumps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct UpdateStatus {
    /// Updates that were sent.
    pub sent: u64,
    /// Updates with a wrong tag.
    pub forged: u64,
    /// Frames that claim to be updates and cannot be read.
    pub damaged: u64,
    /// Updates of bumps that are no neighbours.
    pub strangers: u64,
    /// The counters of each neighbour: merged, lost, stale, packets for unknown ports, and bytes that were estimated.
    pub neighbours: BTreeMap<u32, [u64; 5]>,
}
