//! The fixed parts of a virtualised server, composed by type: the outer header, the isolation of machines, second vNICs,
//! the adapter.

use crate::adapter::{Any, Basic, Kind};
use crate::packet::{Address, Packet};
use crate::server::{Access, LossyVnics, ServerConfig};
use alloc::sync::Arc;
use core::fmt::Debug;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::overlay::bridge::ecn_in;

/// The fixed parts of a chain.
pub trait Parts: Debug + Send {
    /// The kind of adapter.
    type Adapter: Kind;
    /// Whether the adapter gives the chain one frame at an instant from each link, so that a frame may be handed to its VM
    /// at once. Of several frames, those of the first VM come first.
    const ONE_AT_A_TIME: bool;

    /// Puts a packet for another server into its tunnel.
    fn encapsulate(&self, packet: &mut Packet);
    /// Bytes of the outer header.
    fn outer(&self) -> u16;
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

#[inline(always)]
fn encapsulate(packet: &mut Packet, outer: u16) {
    packet.encapsulate(ecn_in(packet.ecn()), outer);
}

/// An overlay in which every machine has one vNIC and may talk to all others, over a basic adapter.
#[derive(Debug)]
pub struct Usual {
    outer: u16,
}

impl Usual {
    /// With outer headers of so many bytes.
    pub fn new(outer: u16) -> Usual {
        Usual { outer }
    }
}

impl Parts for Usual {
    type Adapter = Basic;
    const ONE_AT_A_TIME: bool = true;

    #[inline(always)]
    fn encapsulate(&self, packet: &mut Packet) {
        encapsulate(packet, self.outer);
    }
    #[inline(always)]
    fn outer(&self) -> u16 {
        self.outer
    }
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

/// Any parts: no outer header, second vNICs, a policy that restricts which machines may talk, any adapter.
#[derive(Debug)]
pub struct Unusual {
    outer: u16,
    lossy: Option<LossyVnics>,
    access: Option<Arc<Access>>,
    second: Option<SecondUplink>,
}

impl Unusual {
    /// From the settings of a server; `outer` is the length of the outer header, 0 without one.
    pub fn new(config: &ServerConfig, outer: u16) -> Unusual {
        let lossy = config.lossy_vnics;
        // Every consumer starts asleep, so that the first frame wakes it.
        let second = lossy.map(|v| SecondUplink { ready: true, outside: v.outside });
        Unusual { outer, lossy, access: config.access.clone(), second }
    }
}

impl Parts for Unusual {
    type Adapter = Any;
    const ONE_AT_A_TIME: bool = false;

    #[inline(always)]
    fn encapsulate(&self, packet: &mut Packet) {
        let is_outside = self.second.as_ref().is_some_and(|second| packet.dst().host() >= second.outside);
        if self.outer > 0 && !is_outside {
            encapsulate(packet, self.outer);
        }
    }
    #[inline(always)]
    fn outer(&self) -> u16 {
        self.outer
    }
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
