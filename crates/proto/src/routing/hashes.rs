//! Policies that use a hash.

use super::{Choose, Fields, Key, Ports};
use crate::rng::mix64;

/// A new choice for every frame (Crisan 2014, 2.3.3): Valiant load balancing per packet. It needs resequencing at the
/// destination.
pub struct Random;

impl Choose for Random {
    const KEY: Key = Key::Frame;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.pick(frame.frame_hash())
    }
}

/// By a hash of the frame: the hashed routing of Crisan 2014, Figure 2.18, whose "hashing-key is computed per-packet".
/// [`Random`] draws from the same hash, so both choose the same ports; the source shows identical results, too.
pub struct HashPacket;

impl Choose for HashPacket {
    const KEY: Key = Key::Frame;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        Random::choose(ports, frame)
    }
}

/// By a hash of the flow (Crisan 2014, 2.3.4): ECMP, to which Valiant load balancing per flow is "effectively equivalent"
/// (Al-Fares 2012, 2.2.1). The choices of different switches are independent, so each flow crosses a random core.
pub struct Hash;

impl Choose for Hash {
    const KEY: Key = Key::Flow;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.pick(frame.flow_hash())
    }
}

/// By a hash of the destination alone, like ECMP in Hedera's testbed (Al-Fares 2012, 4.4).
pub struct HashDestination;

impl Choose for HashDestination {
    const KEY: Key = Key::Destination;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.pick(mix64(frame.destination() as u64))
    }
}
