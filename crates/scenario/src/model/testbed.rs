//! How a scenario is run between real tenants.

use serde::Serialize;
use sluicenet_proto::time::Duration;

use crate::units::canonical;

/// What stands for a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantKind {
    /// A network namespace.
    Namespaces,
    /// A QEMU guest.
    Guests,
}

/// What a server's virtual switch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VirtualSwitch {
    /// Ours, with the overlay.
    Zvale,
    /// A Linux bridge, for comparison.
    Bridge,
}

/// The testbed of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Testbed {
    /// What rates are divided by, and delays and times between arrivals multiplied.
    pub slowdown: u64,
    /// What a virtual machine is.
    pub tenants: TenantKind,
    /// What a server's virtual switch is.
    pub switch: VirtualSwitch,
    /// From a pause frame's being sent to a server to the server's standing still.
    #[serde(serialize_with = "canonical")]
    pub response: Duration,
}
