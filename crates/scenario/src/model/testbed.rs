//! How a scenario is run between real tenants.

use crate::units::POSITIVE_TIME;
use crate::{choices, settings};
use sluicenet_proto::time::Duration;

/// With the slowest link of 10 Gb/s, 10 kb/s, this is possible.
const SLOWDOWN_MAX: u64 = 1_000_000;

choices! {
    /// How the testbed runs a virtual machine.
    pub enum TenantKind {
        /// As a network namespace.
        Namespaces = "namespaces",
        /// As a QEMU guest.
        Guests = "guests",
    }
}

choices! {
    /// A server's virtual switch.
    pub enum VirtualSwitch {
        /// Ours, with the overlay.
        Zvale = "zvale",
        /// A Linux bridge, for comparison.
        Bridge = "bridge",
    }
}

settings! {
    /// how the scenario is run between real tenants on one machine; without effect on a simulation
    pub model struct Testbed in "testbed" (s) {
        /// divides the rate of every link; multiplies delays and times between arrivals
        slowdown: u64 [1..=SLOWDOWN_MAX] = 1,
        /// how the testbed runs a VM
        tenants: TenantKind = TenantKind::Namespaces,
        /// a server's virtual switch; a Linux bridge has no overlay and no backpressure
        switch: VirtualSwitch = VirtualSwitch::Zvale,
        /// time from the sending of a pause frame to a server until that server has stopped
        // A program that is woken by a frame stops after tens of microseconds; on a machine with too few cores it stops
        // after some of the scheduler's slices [d].
        response: Duration [POSITIVE_TIME] = Duration::from_ms(50),
    }
}
