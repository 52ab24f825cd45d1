//! Equal-cost routing in a graph of any shape, by tables of shortest paths.

use super::Policy;
use crate::frame::Frame;
use crate::rng::mix64;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// For each destination the ports on a shortest path to it.
#[derive(Clone, Debug)]
pub struct TableRouter {
    /// Which set of ports leads to a host.
    set_of: Vec<u32>,
    /// Bounds of each set in `ports`.
    bounds: Vec<(u32, u32)>,
    ports: Vec<u16>,
    policy: Policy,
    salt: u64,
}

impl TableRouter {
    /// From the sorted list of ports towards each host; hosts with the same list share it. `node` sets
    /// its draws apart from those of others.
    pub fn new(towards: impl Iterator<Item = Vec<u16>>, policy: Policy, seed: u64, node: u64) -> TableRouter {
        let mut known: BTreeMap<Vec<u16>, u32> = BTreeMap::new();
        let (mut bounds, mut ports) = (Vec::new(), Vec::new());
        let set_of = towards
            .map(|list| {
                *known.entry(list).or_insert_with_key(|list| {
                    let start = ports.len() as u32;
                    ports.extend_from_slice(list);
                    bounds.push((start, ports.len() as u32));
                    bounds.len() as u32 - 1
                })
            })
            .collect();
        TableRouter { set_of, bounds, ports, policy, salt: mix64(seed ^ mix64(node + 1)) }
    }

    /// The port towards the frame's destination.
    #[inline(always)]
    pub fn route<F: Frame>(&self, frame: &F) -> Option<u16> {
        let dst = frame.destination();
        let (start, end) = self.bounds[*self.set_of.get(dst as usize)? as usize];
        let candidates = end - start;
        let choice = match (candidates, self.policy) {
            (0, _) => return None,
            (1, _) => 0,
            (_, Policy::DModK | Policy::TwoLevel) => dst % candidates,
            (_, Policy::SModK) => frame.source() % candidates,
            (_, Policy::HashDestination) => self.pick(mix64(dst as u64), candidates),
            (_, Policy::Hash) => self.pick(frame.flow_hash(), candidates),
            (_, Policy::Random) => self.pick(frame.frame_hash(), candidates),
        };
        Some(self.ports[(start + choice) as usize])
    }

    /// All ports that frames between the ends of this one can be sent to.
    pub fn candidate_ports<F: Frame>(&self, frame: &F) -> Vec<u16> {
        if !matches!(self.policy, Policy::Hash | Policy::Random) {
            return self.route(frame).into_iter().collect();
        }
        let set = self.set_of.get(frame.destination() as usize);
        let (start, end) = set.map_or((0, 0), |&set| self.bounds[set as usize]);
        self.ports[start as usize..end as usize].to_vec()
    }

    /// How it chooses among several.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    fn pick(&self, hash: u64, candidates: u32) -> u32 {
        ((mix64(hash ^ self.salt) as u128 * candidates as u128) >> 64) as u32
    }
}
