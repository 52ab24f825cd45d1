//! A routing policy in one file, tried out alone: how many ports of a switch the flows of two hosts use.
//!
//! `cargo run -p sluicenet-proto --example routing`
//!
//! `docs/extending/routing.md` puts `hash_pair.rs` into the crate as it stands; here it finds the same names one level up.

use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::mix64;
use sluicenet_proto::routing::{Choose, Fields, Key, Ports};
use std::collections::BTreeSet;

mod hash_pair;

/// The ports up of a switch of a fat-tree.
struct Up(u32);

impl Ports for Up {
    fn count(&self) -> u32 {
        self.0
    }
    fn digit(&self, host: HostId) -> u32 {
        host % self.0
    }
    fn index(&self, host: HostId) -> u32 {
        host % self.0
    }
    fn pick(&self, hash: u64) -> u32 {
        (mix64(hash) % u64::from(self.0)) as u32
    }
}

/// By a hash of the flow, to compare with.
struct ByFlow;

impl Choose for ByFlow {
    const KEY: Key = Key::Flow;

    fn choose(ports: &impl Ports, frame: &impl Fields) -> u32 {
        ports.pick(frame.flow_hash())
    }
}

/// A frame of a flow from host 0 to host 15.
struct Probe(u64);

impl Fields for Probe {
    fn source(&self) -> HostId {
        0
    }
    fn destination(&self) -> HostId {
        15
    }
    fn flow_hash(&self) -> u64 {
        mix64(self.0)
    }
    fn frame_hash(&self) -> u64 {
        mix64(self.0)
    }
}

fn main() {
    println!("ports used by 100 flows of two hosts");
    println!("{:>10} {:>10} {:>10}", "ports", "by flow", "by hosts");
    for count in [2, 8, 32] {
        println!("{count:>10} {:>10} {:>10}", used::<ByFlow>(count), used::<hash_pair::HashPair>(count));
    }
}

fn used<P: Choose>(count: u32) -> usize {
    (0..100).map(|flow| P::choose(&Up(count), &Probe(flow))).collect::<BTreeSet<u32>>().len()
}
