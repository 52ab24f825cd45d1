//! A marker and a stage, a file each, tried out alone.
//!
//! `cargo run -p sluicenet-node --example parts`
//!
//! `docs/extending/` puts each file into the crate as it stands; here it finds the same names one level up.

extern crate alloc;

use sluicenet_node::device::PortId;
use sluicenet_node::packet::{Address, FlowKey, Framing, Packet};
use sluicenet_node::pool::Handle;
use sluicenet_node::server::stages::{Context, Lane, Report, Stage, StageConfig};
use sluicenet_node::switch::{Backlog, Mark, Verdict};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;
use sluicenet_wire::ipv4::Ecn;

mod fixed_probability;
mod token_bucket;

const FRAMES: usize = 10_000;

fn main() {
    println!("frames marked of {FRAMES}");
    for probability in [0.001, 0.01, 0.1] {
        println!("{probability:>8} {:>8}", marked(probability));
    }
    let stage = token_bucket::limit(Rate::gbps(1)).stage(0, 2, 1);
    println!("a stage for two VMs: {stage:?}");
}

/// Frames that the marker of a port marks.
fn marked(probability: f64) -> usize {
    let marker = fixed_probability::FixedProbability::new(probability, 1, 0).expect("a probability above 0");
    let mut marker = marker.of_port(0);
    let backlog = Backlog { port: 0, class: 0, class_bytes: 0, port_bytes: 0 };
    let flow = FlowKey { src: Address::new(0, 0), dst: Address::new(1, 0), sport: 1, dport: 2 };
    let is_marked = |_: &usize| {
        let mut frame = Packet::udp(flow, 0, 1_000, 0, Framing::ETHERNET);
        frame.set_ecn(Ecn::Ect0);
        let verdict = marker.on_arrival(Instant::ZERO, backlog, &mut frame);
        matches!(verdict, Verdict::Forward) && frame.ecn() == Ecn::Ce
    };
    (0..FRAMES).filter(is_marked).count()
}
