//! A server: guests, a chain of stages with a vSwitch in the middle, and an adapter in one box. Only the modelled stages
//! take time: a fixed latency of the guests' network stack in each direction, and the speed of a VM's port.
//!
//! [`Host`] holds the guests and the adapter. A [`Chain`](chain::Chain) connects them: [`chain::Bare`] directly,
//! [`chain::Virtualised`] through the vSwitch and [`stages`]. [`AnyServer`] chooses the chain when the world is built.

mod any;
mod app;
pub mod chain;
mod config;
mod device;
mod down;
mod fetch;
mod host;
mod light;
mod metadata;
mod roce;
pub mod stages;
mod time;
mod up;

pub use any::AnyServer;
pub use app::{App, Event, Io, Open, QueryRecord};
pub use config::{Access, LossyVnics, ServerConfig, VirtualConfig, WhenFull};
pub use device::Server;
pub use fetch::{Plan, PrefetchStep};
pub use host::Host;
pub use stages::StageConfig;
pub use stages::credits::CreditsConfig;
pub use stages::tunnels::{HYPERVISOR, TunnelConfig};
pub use stages::xco::{XcoControllerConfig, XcoGateConfig, XcoReport};

/// The accounts of a server: every packet is in one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLedger {
    /// Sent by its guests.
    pub from_guests: u64,
    /// Received by its guests.
    pub to_guests: u64,
    /// Frames that the server's stages made, repetitions among them.
    pub from_hypervisor: u64,
    /// Frames that the server's stages consumed.
    pub to_hypervisor: u64,
    /// Received from the wire, pause frames not counted.
    pub from_wire: u64,
    /// Sent to the wire, pause frames not counted.
    pub to_wire: u64,
    /// Dropped.
    pub dropped: u64,
    /// Still inside.
    pub queued: u64,
    /// Copies of sent frames, kept for repetition.
    pub copies: u64,
}

impl ServerLedger {
    /// Whether every frame that went in came out, was dropped or is inside.
    pub fn balances(&self) -> bool {
        let inward = self.from_guests + self.from_hypervisor + self.from_wire;
        inward == self.to_guests + self.to_hypervisor + self.to_wire + self.dropped + self.queued
    }
}
