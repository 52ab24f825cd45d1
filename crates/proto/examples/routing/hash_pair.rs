//! ECMP over addresses: all connections between two hosts take one path.

use super::{Choose, Fields, Key, Ports};

/// By a hash of source and destination.
pub struct HashPair;

impl Choose for HashPair {
    const KEY: Key = Key::Ends;

    #[inline(always)]
    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.pick(u64::from(frame.source()) << 32 | u64::from(frame.destination()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A box with eight ports to choose from.
    struct Eight;

    impl Ports for Eight {
        fn count(&self) -> u32 {
            8
        }
        fn digit(&self, host: u32) -> u32 {
            host % 8
        }
        fn index(&self, host: u32) -> u32 {
            host % 8
        }
        fn pick(&self, hash: u64) -> u32 {
            // The upper bits of a product depend on all bits of the factor.
            (hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as u32
        }
    }

    /// A frame from a host to a host, of a flow.
    struct Probe(u32, u32, u64);

    impl Fields for Probe {
        fn source(&self) -> u32 {
            self.0
        }
        fn destination(&self) -> u32 {
            self.1
        }
        fn flow_hash(&self) -> u64 {
            self.2
        }
        fn frame_hash(&self) -> u64 {
            self.2
        }
    }

    #[test]
    fn flows_of_two_hosts_share_a_port_and_pairs_of_hosts_are_spread() {
        let port = |from, to, flow| HashPair::choose(&Eight, &Probe(from, to, flow));
        assert!((0..100).all(|flow| port(1, 2, flow) == port(1, 2, 0)));
        let mut pairs = [0; 8];
        (0..800).for_each(|to| pairs[port(1, to, 0) as usize] += 1);
        assert!(pairs.iter().all(|count| (60..=140).contains(count)), "{pairs:?}");
    }
}
