//! Equal-cost routing in a graph of any shape, by tables of shortest paths.

use super::{Key, Policy, Ports};
use crate::frame::{Frame, HostId};
use crate::rng::mix64;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// For each destination, the ports on its shortest paths.
#[derive(Clone, Debug)]
pub struct TableRouter {
    /// The set of ports for each host.
    set_of: Vec<u32>,
    /// Bounds of each set in `ports`.
    bounds: Vec<(u32, u32)>,
    ports: Vec<u16>,
    policy: Policy,
    salt: u64,
}

/// A router under construction: the ports towards one host after the other.
#[derive(Clone, Debug, Default)]
pub struct TableBuilder {
    known: BTreeMap<Vec<u16>, u32>,
    set_of: Vec<u32>,
    bounds: Vec<(u32, u32)>,
    ports: Vec<u16>,
}

impl TableBuilder {
    /// Adds the sorted list of ports towards the next host; hosts with equal lists share one set.
    pub fn add(&mut self, list: &[u16]) {
        let set = match self.known.get(list) {
            Some(&set) => set,
            None => {
                let (set, start) = (self.bounds.len() as u32, self.ports.len() as u32);
                self.ports.extend_from_slice(list);
                self.bounds.push((start, self.ports.len() as u32));
                self.known.insert(list.to_vec(), set);
                set
            }
        };
        self.set_of.push(set);
    }

    /// Adds the ports towards the next host: those towards the earlier host `like`.
    pub fn add_like(&mut self, like: HostId) {
        self.set_of.push(self.set_of[like as usize]);
    }

    /// The router. `node` makes its choices by a hash independent of other boxes.
    pub fn router(self, policy: Policy, seed: u64, node: u64) -> TableRouter {
        let TableBuilder { set_of, bounds, ports, .. } = self;
        TableRouter { set_of, bounds, ports, policy, salt: mix64(seed ^ mix64(node + 1)) }
    }
}

impl TableRouter {
    /// A router from the sorted list of ports towards each host.
    pub fn new(towards: impl Iterator<Item = Vec<u16>>, policy: Policy, seed: u64, node: u64) -> TableRouter {
        let mut builder = TableBuilder::default();
        towards.for_each(|list| builder.add(&list));
        builder.router(policy, seed, node)
    }

    /// The port towards the frame's destination.
    #[inline(always)]
    pub fn route<F: Frame>(&self, frame: &F) -> Option<u16> {
        let dst = frame.destination();
        let (start, end) = self.bounds[*self.set_of.get(dst as usize)? as usize];
        let choice = match end - start {
            0 => return None,
            1 => 0,
            count => self.policy.choose(&Equal { count, salt: self.salt }, frame),
        };
        Some(self.ports[(start + choice) as usize])
    }

    /// All ports that frames between the same two hosts can take.
    pub fn candidate_ports<F: Frame>(&self, frame: &F) -> Vec<u16> {
        if matches!(self.policy.key(), Key::Destination | Key::Ends) {
            return self.route(frame).into_iter().collect();
        }
        let set = self.set_of.get(frame.destination() as usize);
        let (start, end) = set.map_or((0, 0), |&set| self.bounds[set as usize]);
        self.ports[start as usize..end as usize].to_vec()
    }

    /// The policy for the choice among equal ports.
    pub fn policy(&self) -> Policy {
        self.policy
    }
}

/// A number of ports on shortest paths.
struct Equal {
    count: u32,
    salt: u64,
}

impl Ports for Equal {
    #[inline(always)]
    fn count(&self) -> u32 {
        self.count
    }
    #[inline(always)]
    fn digit(&self, host: HostId) -> u32 {
        host % self.count
    }
    #[inline(always)]
    fn index(&self, host: HostId) -> u32 {
        host % self.count
    }
    #[inline(always)]
    fn pick(&self, hash: u64) -> u32 {
        ((mix64(hash ^ self.salt) as u128 * self.count as u128) >> 64) as u32
    }
}
