//! The fabric between real uplinks: the simulator's switches and links, with real frames and a real clock.
//! [`Fabric`] is everything except the clock: frames enter at edges and leave at others as [`Fabric::advance`] moves the time
//! forward. Its switches are [`sluicenet_node::switch::Switch`], the same state machines as in the simulated world, and events
//! happen in the same order: the same arrivals give the same departures, to the picosecond.
//!
//! [`Runner`] drives it in real time, between [`Device`]s. An event that is executed late keeps its planned time inside the
//! fabric, and its delay is measured.

mod core;
mod device;
mod edge;
mod frame;
mod histogram;
mod ledger;
mod outside;
mod runner;
#[cfg(test)]
mod tests;
mod wire;

pub use self::core::Fabric;
pub use device::{Device, Local};
pub use edge::EdgeConfig;
pub use frame::{Descriptor, Stations};
pub use histogram::Histogram;
pub use ledger::{EdgeCounters, Ledger};
pub use outside::{Departure, Outside};
pub use runner::{Report, Runner};

use sluicenet_node::device::PortId;
use sluicenet_node::link::{Direction, NodeId};
use sluicenet_node::switch::{AnyRoute, PortConfig, SwitchConfig};
use sluicenet_wire::ethernet::MacAddress;

/// An edge, with one link.
#[derive(Clone, Copy, Debug)]
pub struct EdgeSpec {
    /// Its buffers and flow control.
    pub config: EdgeConfig,
    /// Its own address, from which it sends pause frames.
    pub address: MacAddress,
}

/// A switch.
#[derive(Clone, Debug)]
pub struct SwitchSpec {
    /// The configuration of all its ports.
    pub config: SwitchConfig,
    /// Where it sends frames.
    pub route: AnyRoute,
    /// Its ports.
    pub ports: Vec<PortConfig>,
}

/// A whole fabric.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    /// Edges; host `i` is behind edge `i`.
    pub edges: Vec<EdgeSpec>,
    /// Switches.
    pub switches: Vec<SwitchSpec>,
    /// Links, two directions each.
    pub links: Vec<Direction>,
    /// Which station is behind which edge.
    pub stations: Stations,
    /// The longest frame, in bytes with its tag and its check sequence.
    pub longest_frame: u32,
    /// Seed of random decisions: ties, bit errors.
    pub seed: u64,
    /// Whether switches keep a record of the pauses they send, for [`Fabric::take_pauses`].
    pub record_pauses: bool,
}

/// Why a fabric cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// A link without any delay: events at its two ends would have no order.
    NoDelay {
        /// Its sender.
        from: (NodeId, PortId),
    },
    /// A port without a link, with two, or that does not exist.
    Port {
        /// The port.
        at: (NodeId, PortId),
    },
}

impl ::core::fmt::Display for SpecError {
    fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        match self {
            SpecError::NoDelay { from: (n, p) } => write!(f, "the link at box {n} port {p} has no delay"),
            SpecError::Port { at: (n, p) } => write!(f, "box {n} port {p} has no link, two, or does not exist"),
        }
    }
}

impl std::error::Error for SpecError {}
