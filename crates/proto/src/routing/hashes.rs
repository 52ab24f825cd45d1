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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::HostId;

    struct Four;

    impl Ports for Four {
        fn count(&self) -> u32 {
            4
        }
        fn digit(&self, host: HostId) -> u32 {
            host % 4
        }
        fn index(&self, host: HostId) -> u32 {
            host % 4
        }
        fn pick(&self, hash: u64) -> u32 {
            (hash % 4) as u32
        }
    }

    /// A frame of a flow whose hash is 1.
    struct Numbered(u64);

    impl Fields for Numbered {
        fn source(&self) -> HostId {
            7
        }
        fn destination(&self) -> HostId {
            9
        }
        fn flow_hash(&self) -> u64 {
            1
        }
        fn frame_hash(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn hashes_of_frames_spread_a_flow_and_hashes_of_flows_keep_it_together() {
        for number in 0..100 {
            let frame = Numbered(mix64(number));
            let of_frame = (frame.0 % 4) as u32;
            assert_eq!((Random::choose(&Four, &frame), HashPacket::choose(&Four, &frame)), (of_frame, of_frame));
            assert_eq!(Hash::choose(&Four, &frame), 1);
            assert_eq!(HashDestination::choose(&Four, &frame), (mix64(9) % 4) as u32);
        }
    }
}
