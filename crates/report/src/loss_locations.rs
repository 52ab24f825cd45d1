//! Where frames wait and die: places by name, ports by level.

use std::collections::BTreeMap;

use sluicenet_records::{DropRow, PortRow, Text};

/// Where frames died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossLocation {
    /// A socket's receive buffer.
    Socket,
    /// A queue of a virtual switch.
    Vswitch,
    /// A buffer of an adapter.
    Adapter,
    /// A buffer of a switch of this level.
    Switch(u8),
    /// Bit errors, no route, resequencing.
    Other,
}

impl LossLocation {
    /// From the reason, and for a switch from the level of the box.
    pub(super) fn of(drop: &DropRow, levels: &BTreeMap<&Text, u8>) -> LossLocation {
        match &*drop.reason {
            "vswitch_uplink" | "vswitch_vm" => LossLocation::Vswitch,
            "adapter_tx" | "adapter_rx" => LossLocation::Adapter,
            "socket_rx" => LossLocation::Socket,
            "switch_buffer" | "headroom_exceeded" => match levels.get(&drop.node) {
                Some(0) => LossLocation::Adapter,
                Some(level) => LossLocation::Switch(*level),
                None => LossLocation::Other,
            },
            _ => LossLocation::Other,
        }
    }

    /// Whether the place is in the virtual network: inside a server, before the adapter.
    pub(super) fn is_virtual(self) -> bool {
        matches!(self, LossLocation::Socket | LossLocation::Vswitch)
    }
}

/// The ports of one level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Level {
    /// How many, over all seeds.
    pub ports: u64,
    /// Sum of the time their transmitters were held.
    pub paused_ps: f64,
    /// Longest queue of any of them.
    pub max_queue_bytes: u64,
    /// Sum of their utilisations.
    pub utilisation: f64,
}

impl Level {
    pub(super) fn add(&mut self, port: &PortRow) {
        self.ports += 1;
        self.paused_ps += port.paused_ps as f64;
        self.max_queue_bytes = self.max_queue_bytes.max(port.max_queue_bytes);
        self.utilisation += port.utilisation;
    }

    /// Takes another run's in.
    pub(super) fn merge(&mut self, other: &Level) {
        self.ports += other.ports;
        self.paused_ps += other.paused_ps;
        self.max_queue_bytes = self.max_queue_bytes.max(other.max_queue_bytes);
        self.utilisation += other.utilisation;
    }
}
