//! Which machines may talk to each other, and the second vNICs that keep lossy traffic apart.

use crate::packet::{Address, Packet};
use crate::server::{Access, LossyVnics};
use alloc::sync::Arc;
use core::fmt::Debug;
use sluicenet_proto::frame::HostId;

/// The isolation between the machines of a virtual network.
pub trait Isolation: Debug + Send {
    /// Whether a packet's source may talk to its destination.
    fn allows(&self, packet: &Packet) -> bool;
    /// The number of machines of a server with so many vNICs: vNICs from this number on are second ones.
    fn machines(&self, vnics: usize) -> usize;
    /// The uplink of second vNICs, if there are any.
    fn second(&self) -> Option<&SecondUplink>;
    /// The same, to change.
    fn second_mut(&mut self) -> Option<&mut SecondUplink>;
}

/// The vSwitch's second port to the network: it loses frames when it is full.
#[derive(Debug)]
pub struct SecondUplink {
    /// Whether the vSwitch may have a frame for it.
    pub ready: bool,
    /// The first host outside of the virtual network, whose frames have no outer header.
    pub outside: HostId,
}

/// Every machine has one vNIC and may talk to all others.
#[derive(Debug)]
pub struct Anyone;

impl Isolation for Anyone {
    #[inline(always)]
    fn allows(&self, _packet: &Packet) -> bool {
        true
    }
    #[inline(always)]
    fn machines(&self, vnics: usize) -> usize {
        vnics
    }
    #[inline(always)]
    fn second(&self) -> Option<&SecondUplink> {
        None
    }
    #[inline(always)]
    fn second_mut(&mut self) -> Option<&mut SecondUplink> {
        None
    }
}

/// Machines have second vNICs, a policy restricts which machines may talk, or both.
#[derive(Debug)]
pub struct Partitioned {
    lossy: Option<LossyVnics>,
    access: Option<Arc<Access>>,
    second: Option<SecondUplink>,
}

impl Partitioned {
    /// From the settings of a server.
    pub fn new(lossy: Option<LossyVnics>, access: Option<Arc<Access>>) -> Partitioned {
        // Every consumer starts asleep, so that the first frame wakes it.
        Partitioned { lossy, access, second: lossy.map(|v| SecondUplink { ready: true, outside: v.outside }) }
    }
}

impl Isolation for Partitioned {
    /// First vNICs talk to each other, second ones and hosts outside to each other, and machines as the policy says.
    fn allows(&self, packet: &Packet) -> bool {
        let (src, dst) = (packet.src(), packet.dst());
        if self.lossy.as_ref().is_some_and(|v| v.serves(src) != v.serves(dst)) {
            return false;
        }
        self.access.as_ref().is_none_or(|access| {
            let machine = |a: Address| {
                let first = self.lossy.map_or(a, |v| v.machine(a));
                (a.host() < access.outside).then_some(first)
            };
            access.policy.allows(machine(src), machine(dst))
        })
    }
    fn machines(&self, vnics: usize) -> usize {
        self.lossy.map_or(vnics, |v| v.machines as usize)
    }
    fn second(&self) -> Option<&SecondUplink> {
        self.second.as_ref()
    }
    fn second_mut(&mut self) -> Option<&mut SecondUplink> {
        self.second.as_mut()
    }
}
