//! Settings of a server.

use super::stages::StageConfig;
use crate::adapter::AdapterConfig;
use crate::packet::{Address, Framing};
use alloc::sync::Arc;
use alloc::vec::Vec;
use sluicenet_proto::frame::{HostId, Priority};
use sluicenet_proto::overlay::policy::Policy;
use sluicenet_proto::tcp;
use sluicenet_proto::time::Duration;
use sluicenet_proto::transport::roce;

/// A sender's behaviour when the adapter's buffer is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The sender waits: the adapter stops its host.
    Stop,
    /// The sender sends all the same and the adapter drops the frame, as a device queue without backpressure does.
    Drop,
}

/// A second vNIC of every machine, over a lossy stack beside the first one's (Crisan 2014, Table 5.2). It has an address,
/// ports and queues of its own. Hosts outside of the virtual network can reach only second vNICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossyVnics {
    /// The priority of its frames.
    pub priority: Priority,
    /// Machines of a server. First vNICs have the numbers below this one, second vNICs the numbers from this one on.
    pub machines: u8,
    /// The first host outside, which has one vNIC.
    pub outside: HostId,
}

impl LossyVnics {
    /// The second vNIC of the machine that has the vNIC `a`; for a host outside, its only vNIC.
    pub fn second(&self, a: Address) -> Address {
        if a.host() >= self.outside || a.vm() >= self.machines {
            return a;
        }
        Address::new(a.host(), a.vm() + self.machines)
    }

    /// The first vNIC of the machine that has the vNIC `a`.
    pub fn machine(&self, a: Address) -> Address {
        let is_second = a.host() < self.outside && (self.machines..2 * self.machines).contains(&a.vm());
        if is_second { Address::new(a.host(), a.vm() - self.machines) } else { a }
    }

    /// Whether the lossy stack serves an address.
    #[inline]
    pub fn serves(&self, a: Address) -> bool {
        a.host() >= self.outside || a.vm() >= self.machines
    }
}

/// Access between machines, which are named by their first vNICs.
#[derive(Clone, Debug)]
pub struct Access {
    /// Policy between machines.
    pub policy: Policy<Address>,
    /// The first host outside.
    pub outside: HostId,
}

/// The virtual network of a server.
#[derive(Clone, Debug)]
pub struct VirtualConfig {
    /// Frames in each queue of the vSwitch.
    pub slots: u32,
    /// Whether the vSwitch holds frames back instead of dropping them.
    pub lossless: bool,
    /// Speed of a VM's port: picoseconds a byte, in units of 2^-16 ps.
    pub vm_ps_per_byte_q16: u64,
    /// VMs that receive more slowly, and their speeds, in the same unit.
    pub slow: Vec<(u8, u64)>,
    /// Bytes of the outer header of a packet between servers; 0 without one.
    pub encapsulation: u16,
    /// The stages between the vSwitch and the adapter, from the vSwitch down.
    pub network: Vec<Arc<dyn StageConfig>>,
}

impl VirtualConfig {
    /// Speed at which a VM receives.
    pub fn receive_ps_per_byte_q16(&self, vm: usize) -> u64 {
        let slow = self.slow.iter().find(|s| usize::from(s.0) == vm);
        slow.map_or(self.vm_ps_per_byte_q16, |s| s.1)
    }
}

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The framing of a packet on the wire.
    pub framing: Framing,
    /// Largest IP packet of a guest.
    pub mtu: u16,
    /// The guests' TCP.
    pub tcp: tcp::Config,
    /// Time from a TCP socket to the guest's network port.
    pub tcp_tx_delay: Duration,
    /// Time from the guest's network port to a TCP socket.
    pub tcp_rx_delay: Duration,
    /// Time from a UDP socket to the guest's network port.
    pub udp_tx_delay: Duration,
    /// Time from the guest's network port to a UDP socket.
    pub udp_rx_delay: Duration,
    /// Send buffer of a UDP socket in bytes: the most that may be on the way to the guest's network port.
    pub udp_buffer: u32,
    /// Receive buffer of a TCPlight socket in bytes: the most that a sender may be ahead of the reader.
    pub light_buffer: u32,
    /// Time from a TCPlight socket to the guest's network port.
    pub light_tx_delay: Duration,
    /// Time from the guest's network port to a TCPlight socket.
    pub light_rx_delay: Duration,
    /// Queue pairs of the adapter.
    pub roce: roce::Config,
    /// A sender's behaviour when the adapter is full.
    pub when_full: WhenFull,
    /// The stages below the guests, from the guests down.
    pub gate: Vec<Arc<dyn StageConfig>>,
    /// The virtual network, if there is one.
    pub virtual_network: Option<VirtualConfig>,
    /// The second vNICs of machines, where they have any.
    pub lossy_vnics: Option<LossyVnics>,
    /// Access between machines, where it is restricted.
    pub access: Option<Arc<Access>>,
    /// The adapter.
    pub adapter: Arc<AdapterConfig>,
    /// Seed of the run.
    pub seed: u64,
}
