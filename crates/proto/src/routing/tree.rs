//! Up to the nearest common ancestor, then down: routing in an extended generalised fat-tree by arithmetic.

use super::Policy;
use super::divide::Divisor;
use super::xgft::{SwitchName, Xgft};
use crate::frame::{Frame, HostId};
use crate::rng::mix64;
use alloc::vec::Vec;

/// The decision of one switch of an [`Xgft`]; ports 0 to m-1 lead down, m to m+w-1 up, then come external hosts.
#[derive(Clone, Debug)]
pub struct TreeRouter {
    below: Divisor,
    below_child: Divisor,
    children: Divisor,
    parents: Divisor,
    group: u32,
    own_position: u32,
    leaves: u32,
    policy: Policy,
    salt: u64,
    /// Port towards each external host, in the order of their numbers after the leaves.
    external: Vec<u16>,
}

impl TreeRouter {
    /// The router of switch `s`; `external[i]` is the root to which external host `leaves + i` is attached.
    pub fn new(tree: &Xgft, s: SwitchName, policy: Policy, seed: u64, external: &[SwitchName]) -> TreeRouter {
        let up = tree.parents(s.level);
        // A position at level l is the mixed-radix number of the parents chosen on the way up: one digit names the next.
        let digit = |root: &SwitchName| root.position / tree.positions(s.level) % up.max(1);
        let mut at_this_root = 0;
        let external = external
            .iter()
            .map(|root| {
                if up > 0 {
                    (tree.children(s.level) + digit(root)) as u16
                } else if *root == s {
                    at_this_root += 1;
                    (tree.children(s.level) + at_this_root - 1) as u16
                } else {
                    u16::MAX
                }
            })
            .collect();
        TreeRouter {
            below: Divisor::new(tree.leaves_below(s.level)),
            below_child: Divisor::new(tree.leaves_below(s.level - 1)),
            children: Divisor::new(tree.children(s.level)),
            parents: Divisor::new(up.max(1)),
            group: s.group,
            own_position: if s.level == 1 { s.group } else { s.position },
            leaves: tree.leaves(),
            policy,
            salt: mix64(seed ^ mix64(tree.index(s) as u64 + 1)),
            external,
        }
    }

    /// The port towards the frame's destination.
    #[inline(always)]
    pub fn route<F: Frame>(&self, frame: &F) -> Option<u16> {
        let dst = frame.destination();
        if dst >= self.leaves {
            return self.external.get((dst - self.leaves) as usize).copied().filter(|&p| p != u16::MAX);
        }
        if self.below.quotient(dst) == self.group {
            return Some(self.children.remainder(self.below_child.quotient(dst)) as u16);
        }
        Some((self.children.get() + self.up(frame, dst)) as u16)
    }

    #[inline(always)]
    fn up<F: Frame>(&self, frame: &F, dst: HostId) -> u32 {
        match self.policy {
            Policy::DModK => self.parents.remainder(self.below_child.quotient(dst)),
            Policy::SModK => self.parents.remainder(self.below_child.quotient(frame.source())),
            Policy::TwoLevel => {
                // The host's index under its edge switch: there are as many ways up as hosts under an edge switch.
                self.parents.remainder(self.parents.remainder(dst) + self.own_position)
            }
            Policy::Hash => self.pick(frame.flow_hash()),
            Policy::Random => self.pick(frame.frame_hash()),
        }
    }

    #[inline(always)]
    fn pick(&self, hash: u64) -> u32 {
        ((mix64(hash ^ self.salt) as u128 * self.parents.get() as u128) >> 64) as u32
    }
}
