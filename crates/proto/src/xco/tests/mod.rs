//! Scripts with a clock, and properties of random campaigns.

mod control;
mod hierarchy;
mod literal;
mod rates;
mod slices;
mod world;

use super::topology::{Link, Topology, Vertex};
use alloc::vec::Vec;

/// 1 Gb/s.
const GBPS: u32 = 1_000_000;

/// A tree of racks in rows below one core, as in section 5.2: hosts have 1 Gb/s, and switches above racks have `up`.
pub(super) fn rows(rows: u32, racks: u32, hosts: u32, up: u32) -> Topology {
    let nodes = rows * racks * hosts;
    let (first_rack, first_row) = (nodes, nodes + rows * racks);
    let core = first_row + rows;
    let mut links: Vec<Link> = Vec::new();
    let mut link = |a: Vertex, b: Vertex, kbps| links.push(Link { ends: [a, b], kbps });
    (0..nodes).for_each(|n| link(n, first_rack + n / hosts, GBPS));
    (0..rows * racks).for_each(|r| link(first_rack + r, first_row + r / racks, up));
    (0..rows).for_each(|r| link(first_row + r, core, up));
    let mut topology = Topology::new(nodes, core as usize + 1, &links).unwrap();
    topology.add_tree(core).unwrap();
    topology
}
