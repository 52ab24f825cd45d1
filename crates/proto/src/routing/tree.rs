//! Up to the nearest common ancestor, then down: routing in an extended generalised fat-tree by arithmetic.
//!
//! If hosts have several links, the tree consists of planes that share only the hosts: a host's choice of a link selects
//! the plane.

use super::divide::Divisor;
use super::xgft::{SwitchName, Xgft};
use super::{Key, Policy, Ports};
use crate::frame::{Frame, HostId};
use crate::rng::mix64;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The decision of one switch of an [`Xgft`], or of a host with several links; downward ports come first, then upward
/// ports, then external hosts.
#[derive(Clone, Debug)]
pub struct TreeRouter {
    below: Divisor,
    below_child: Divisor,
    children: Divisor,
    /// Divisor of a host's number; the quotient gives the digit that selects an upward port.
    digit: Divisor,
    /// The upward ports: parallel links count one by one.
    ups: Divisor,
    first_up: u32,
    group: u32,
    own_position: u32,
    leaves: u32,
    /// Leaves below this number are found by arithmetic alone: all of them, or none where parallel links lead down.
    simple: u32,
    /// The links to each child, where there are several.
    bundle: Option<Box<Bundle>>,
    policy: Policy,
    salt: u64,
    /// Port towards each external host, in the order of their numbers after the leaves.
    external: Vec<u16>,
    /// Port towards each leaf, or [`ASK`] if the destination alone does not decide; empty in trees with many leaves.
    ports: Vec<u8>,
}

/// The parallel links from a switch to one child.
#[derive(Clone, Debug)]
struct Bundle {
    links: Divisor,
    /// Divisor of a host's number; the quotient counts the child's upward ports.
    digit: Divisor,
    /// The child's parents: its upward ports go round them.
    parents: Divisor,
    salt: u64,
}

impl Ports for Bundle {
    fn count(&self) -> u32 {
        self.links.get()
    }
    /// The link by which the child would send to such a host.
    fn digit(&self, host: HostId) -> u32 {
        self.links.remainder(self.parents.quotient(self.digit.quotient(host)))
    }
    fn index(&self, host: HostId) -> u32 {
        self.digit(host)
    }
    fn pick(&self, hash: u64) -> u32 {
        pick(hash, self.salt, self.count())
    }
}

/// One of `count` ports, by a hash that is independent of those of other boxes.
#[inline(always)]
fn pick(hash: u64, salt: u64, count: u32) -> u32 {
    ((mix64(hash ^ salt) as u128 * count as u128) >> 64) as u32
}

/// Divisor of a host's number for the digit by which a node of `level` (0 to h-1) chooses an upward port. Hosts and edge
/// switches both choose by the host's index under its edge switch: the lowest digit is the hosts'.
fn digit(tree: &Xgft, level: u8) -> u32 {
    match level {
        0 => 1,
        1 => tree.up_ports(0),
        _ => tree.leaves_below(level - 1),
    }
}

/// The port must be computed.
const ASK: u8 = u8::MAX;

/// Most leaves for which ports are stored. The arithmetic branches on whether the path leads up or down, which processors
/// predict badly. A table needs no branch, as long as the tables of all switches fit into the nearest caches.
const FEW_LEAVES: u32 = 512;

impl TreeRouter {
    /// The router of switch `s`; `external[i]` is the root to which external host `leaves + i` is attached.
    pub fn new(tree: &Xgft, s: SwitchName, policy: Policy, seed: u64, external: &[SwitchName]) -> TreeRouter {
        let (up, first_up) = (tree.up_ports(s.level), tree.down_ports(s.level));
        // A position at level l is the mixed-radix number of the parents chosen on the way up: one digit selects the next
        // parent.
        let parent = |root: &SwitchName| root.position / tree.positions(s.level) % tree.parents(s.level).max(1);
        let mut at_this_root = 0;
        let external = (0..)
            .zip(external)
            .map(|(number, root)| {
                if up > 0 {
                    // Over one of parallel links, by the external host.
                    let link = number % tree.links(s.level);
                    (first_up + parent(root) + tree.parents(s.level) * link) as u16
                } else if *root == s {
                    at_this_root += 1;
                    (first_up + at_this_root - 1) as u16
                } else {
                    u16::MAX
                }
            })
            .collect();
        let salt = mix64(seed ^ mix64(tree.index(s) as u64 + 1));
        let bundle = (tree.links(s.level - 1) > 1).then(|| {
            Box::new(Bundle {
                links: Divisor::new(tree.links(s.level - 1)),
                digit: Divisor::new(digit(tree, s.level - 1)),
                parents: Divisor::new(tree.parents(s.level - 1)),
                salt,
            })
        });
        let mut router = TreeRouter {
            below: Divisor::new(tree.leaves_below(s.level)),
            below_child: Divisor::new(tree.leaves_below(s.level - 1)),
            children: Divisor::new(tree.children(s.level)),
            digit: Divisor::new(digit(tree, s.level)),
            ups: Divisor::new(up.max(1)),
            first_up,
            group: s.group,
            own_position: if s.level == 1 { s.group } else { s.position },
            leaves: tree.leaves(),
            simple: if bundle.is_some() { 0 } else { tree.leaves() },
            bundle,
            policy,
            salt,
            external,
            ports: Vec::new(),
        };
        if router.leaves <= FEW_LEAVES {
            router.ports = (0..router.leaves).map(|dst| router.by_destination(dst)).collect();
        }
        router
    }

    /// The port towards a leaf, or [`ASK`] if the destination alone does not decide.
    fn by_destination(&self, dst: HostId) -> u8 {
        let port = match &self.bundle {
            _ if !self.leads_down(dst) => self.policy.by_destination(self, dst).map(|up| self.first_up + up),
            None => Some(self.down(dst)),
            Some(bundle) => self.policy.by_destination(&**bundle, dst).map(|link| self.down_by(dst, link)),
        };
        port.and_then(|port| u8::try_from(port).ok()).unwrap_or(ASK)
    }

    /// The router of leaf `host`: a switch without children, whose ports all lead up. A frame leaves and arrives over links
    /// of the same number: the switches above link `j` of all leaves reach no other links.
    pub fn of_leaf(tree: &Xgft, host: HostId, policy: Policy, seed: u64, external: &[SwitchName]) -> TreeRouter {
        let (links, parents) = (tree.up_ports(0), tree.parents(0));
        let plane = |(number, root): (u32, &SwitchName)| root.position % parents + parents * (number % tree.links(0));
        TreeRouter {
            below: Divisor::new(1),
            below_child: Divisor::new(1),
            children: Divisor::new(1),
            digit: Divisor::new(1),
            ups: Divisor::new(links),
            first_up: 0,
            group: host,
            own_position: host % tree.children(1),
            leaves: tree.leaves(),
            simple: tree.leaves(),
            bundle: None,
            policy,
            // Switches use numbers below 2^32.
            salt: mix64(seed ^ mix64(1 << 32 | host as u64)),
            external: (0..).zip(external).map(|external| plane(external) as u16).collect(),
            ports: Vec::new(),
        }
    }

    /// The port towards the frame's destination.
    #[inline(always)]
    pub fn route<F: Frame>(&self, frame: &F) -> Option<u16> {
        let dst = frame.destination();
        if let Some(&port) = self.ports.get(dst as usize)
            && port != ASK
        {
            return Some(port as u16);
        }
        if dst >= self.simple {
            if dst >= self.leaves {
                return self.external.get((dst - self.leaves) as usize).copied().filter(|&p| p != u16::MAX);
            }
            return Some(self.among_parallel(frame));
        }
        if self.leads_down(dst) {
            return Some(self.down(dst) as u16);
        }
        Some((self.first_up + self.policy.choose(self, frame)) as u16)
    }

    /// The port towards a leaf, by a switch with parallel links to its children.
    #[cold]
    fn among_parallel<F: Frame>(&self, frame: &F) -> u16 {
        let dst = frame.destination();
        let port = match &self.bundle {
            Some(bundle) if self.leads_down(dst) => self.down_by(dst, self.policy.choose(&**bundle, frame)),
            _ => self.first_up + self.policy.choose(self, frame),
        };
        port as u16
    }

    #[inline(always)]
    fn leads_down(&self, dst: HostId) -> bool {
        self.below.quotient(dst) == self.group
    }

    #[inline(always)]
    fn down(&self, dst: HostId) -> u32 {
        self.children.remainder(self.below_child.quotient(dst))
    }

    /// The downward port of one of the links to the child that leads to a leaf.
    fn down_by(&self, dst: HostId, link: u32) -> u32 {
        self.down(dst) + self.children.get() * link
    }

    /// All ports that frames between the same two hosts can take.
    pub fn candidate_ports<F: Frame>(&self, frame: &F) -> Vec<u16> {
        let dst = frame.destination();
        if dst < self.leaves && matches!(self.policy.key(), Key::Flow | Key::Frame) {
            let ports = match &self.bundle {
                _ if !self.leads_down(dst) => (0..self.ups.get()).map(|up| self.first_up + up).collect(),
                None => Vec::from([self.down(dst)]),
                Some(bundle) => (0..bundle.count()).map(|link| self.down_by(dst, link)).collect(),
            };
            return ports.into_iter().map(|port| port as u16).collect();
        }
        self.route(frame).into_iter().collect()
    }

    /// The policy for the choice among upward ports.
    pub fn policy(&self) -> Policy {
        self.policy
    }
}

/// The upward ports.
impl Ports for TreeRouter {
    #[inline(always)]
    fn count(&self) -> u32 {
        self.ups.get()
    }
    #[inline(always)]
    fn digit(&self, host: HostId) -> u32 {
        self.ups.remainder(self.digit.quotient(host))
    }
    /// The number of upward ports equals the number of hosts under an edge switch.
    #[inline(always)]
    fn index(&self, host: HostId) -> u32 {
        self.ups.remainder(self.ups.remainder(host) + self.own_position)
    }
    #[inline(always)]
    fn pick(&self, hash: u64) -> u32 {
        pick(hash, self.salt, self.ups.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::routing::probe::Probe;
    use alloc::vec;

    /// The link by which a frame leaves its host, the switches on its path, and the link by which it arrives.
    fn walk(tree: &Xgft, policy: Policy, probe: &Probe, roots: &[SwitchName]) -> (u16, Vec<SwitchName>, u16) {
        let out = TreeRouter::of_leaf(tree, probe.src, policy, 1, roots).route(probe).unwrap();
        assert!(u32::from(out) < tree.up_ports(0));
        let mut at = tree.leaf_parent(probe.src, u32::from(out) % tree.parents(0));
        let mut passed = vec![at];
        loop {
            assert!(passed.len() < 2 * tree.levels() as usize, "{passed:?}");
            let port = TreeRouter::new(tree, at, policy, 1, roots).route(probe).unwrap() as u32;
            let (children, first_up) = (tree.children(at.level), tree.down_ports(at.level));
            let child = at.group * children + port % children;
            if let Some(up) = port.checked_sub(first_up).filter(|_| at.level < tree.levels()) {
                assert!(up < tree.up_ports(at.level));
                at = tree.parent(at, up % tree.parents(at.level));
            } else if at.level == 1 || port >= first_up {
                assert!(port >= first_up || child == probe.dst, "{at:?} {child} is not {}", probe.dst);
                return (out, passed, (at.position + tree.parents(0) * (port / children)) as u16);
            } else {
                at = SwitchName {
                    level: at.level - 1,
                    group: child,
                    position: at.position % tree.positions(at.level - 1),
                };
            }
            passed.push(at);
        }
    }

    #[test]
    fn every_frame_arrives_whatever_the_shape_the_policy_and_the_links_of_a_host() {
        let mut rng = Rng::from_words(&[5]);
        for case in 0..400 {
            let levels = 1 + rng.below(3) as usize;
            let mut draw = |least: u64| -> Vec<u32> { (0..levels).map(|_| (least + rng.below(3)) as u32).collect() };
            let (m, w, p) = (draw(2), draw(1), if case % 2 == 0 { vec![1; levels] } else { draw(1) });
            let tree = Xgft::with_links(&m, &w, &p).unwrap();
            let policy = Policy::ALL[case % Policy::ALL.len()];
            let (src, dst) = (rng.below(tree.leaves() as u64) as u32, rng.below(tree.leaves() as u64) as u32);
            if src == dst {
                continue;
            }
            let probe = Probe { src, dst, flow: rng.next_u64(), frame: rng.next_u64() };
            let (out, passed, into) = walk(&tree, policy, &probe, &[]);
            assert_eq!(passed.len(), 2 * tree.nca_level(src, dst) as usize - 1, "the path is shortest");
            // Planes share only the hosts.
            let plane = |port: u16| u32::from(port) % tree.parents(0);
            let in_plane = |s: &SwitchName| s.position % tree.parents(0) == plane(out);
            assert!(plane(out) == plane(into) && passed.iter().all(in_plane), "{out} {passed:?} {into}");
        }
    }

    #[test]
    fn what_is_written_down_is_what_the_arithmetic_says() {
        let mut rng = Rng::from_words(&[6]);
        let mut written = 0;
        for case in 0..200 {
            let levels = 1 + rng.below(3) as usize;
            let mut draw = |least: u64| -> Vec<u32> { (0..levels).map(|_| (least + rng.below(4)) as u32).collect() };
            let (m, w, p) = (draw(2), draw(1), if case % 2 == 0 { vec![1; levels] } else { draw(1) });
            let tree = Xgft::with_links(&m, &w, &p).unwrap();
            let switches: Vec<SwitchName> = tree.switches().collect();
            let s = switches[rng.below(switches.len() as u64) as usize];
            let router = TreeRouter::new(&tree, s, Policy::ALL[case % Policy::ALL.len()], 1, &[]);
            assert_eq!(router.ports.len() as u32, tree.leaves());
            let arithmetic = TreeRouter { ports: Vec::new(), ..router.clone() };
            for dst in 0..tree.leaves() {
                let probe = Probe { src: 0, dst, flow: rng.next_u64(), frame: rng.next_u64() };
                assert_eq!(router.route(&probe), arithmetic.route(&probe));
                written += (router.ports[dst as usize] != ASK) as u32;
            }
        }
        assert!(written > 1_000);
    }

    #[test]
    fn every_way_that_is_drawn_is_among_those_there_are_and_all_of_them_are_drawn() {
        for links in [[1, 1], [1, 2], [2, 3]] {
            every_way_is_drawn(&Xgft::with_links(&[3, 2], &[2, 3], &links).unwrap());
        }
    }

    fn every_way_is_drawn(tree: &Xgft) {
        let roots: Vec<SwitchName> = tree.switches().filter(|s| s.level == 2).take(2).collect();
        for (policy, s) in Policy::ALL.iter().flat_map(|&p| tree.switches().map(move |s| (p, s))) {
            let router = TreeRouter::new(tree, s, policy, 1, &roots);
            for dst in 0..tree.leaves() + 2 {
                let probe = |n: u64| Probe { src: 0, dst, flow: n, frame: n };
                let mut drawn: Vec<u16> = (0..200).filter_map(|n| router.route(&probe(n))).collect();
                drawn.sort_unstable();
                drawn.dedup();
                assert_eq!(router.candidate_ports(&probe(0)), drawn, "{policy:?} {s:?} {dst}");
            }
        }
    }

    #[test]
    fn digits_of_the_destination_or_the_source_choose_the_link() {
        let tree = Xgft::new(&[4, 4], &[2, 2]).unwrap();
        let mut roots = vec![0u32; 4];
        for dst in 4..16 {
            let probe = Probe { src: 0, dst, flow: 0, frame: 0 };
            let (link, passed, _) = walk(&tree, Policy::DModK, &probe, &[]);
            assert_eq!(link as u32, dst % 2);
            roots[passed[1].position as usize] += 1;
        }
        // The edge switches use another digit than the hosts, so no root is left out.
        assert_eq!(roots, [3; 4]);
        for src in 0..16 {
            let probe = Probe { src, dst: (src + 5) % 16, flow: 0, frame: 0 };
            assert_eq!(walk(&tree, Policy::SModK, &probe, &[]).0 as u32, src % 2);
            assert_eq!(walk(&tree, Policy::TwoLevel, &probe, &[]).0 as u32, (probe.dst + src % 4) % 2);
        }
    }

    #[test]
    fn a_hash_gives_links_about_equal_shares() {
        let tree = Xgft::new(&[4], &[3]).unwrap();
        let (mut of_flows, mut of_frames) = ([0u32; 3], [0u32; 3]);
        for n in 0..3_000 {
            let probe = Probe { src: 0, dst: 1, flow: n, frame: n };
            of_flows[walk(&tree, Policy::Hash, &probe, &[]).0 as usize] += 1;
            of_frames[walk(&tree, Policy::Random, &Probe { flow: 0, ..probe }, &[]).0 as usize] += 1;
        }
        assert!(of_flows.iter().chain(&of_frames).all(|&n| (900..1_100).contains(&n)), "{of_flows:?} {of_frames:?}");
    }

    #[test]
    fn a_hash_gives_parallel_links_about_equal_shares_upward_and_downward() {
        // Two edge switches, two spines, three links between each: six links up, three down.
        let tree = Xgft::with_links(&[4, 2], &[1, 2], &[1, 3]).unwrap();
        let [edge, spine] = [1, 2].map(|level| tree.switches().find(|s| s.level == level).unwrap());
        let shares = |s: SwitchName| {
            let router = TreeRouter::new(&tree, s, Policy::Hash, 1, &[]);
            let mut ports = [0u32; 10];
            for n in 0..6_000 {
                ports[usize::from(router.route(&Probe { src: 0, dst: 7, flow: n, frame: 0 }).unwrap())] += 1;
            }
            ports
        };
        assert!(shares(edge)[..4] == [0; 4] && shares(edge)[4..].iter().all(|n| (900..1_100).contains(n)));
        // Child 1 is at ports 1, 3 and 5.
        let down = shares(spine);
        assert!([1, 3, 5].iter().all(|&port| (1_850..2_150).contains(&down[port])), "{down:?}");
        assert_eq!(down.iter().sum::<u32>(), 6_000);
    }

    #[test]
    fn a_hash_of_the_destination_spreads_hosts_over_all_roots_and_flows_to_one_over_none() {
        let tree = Xgft::fat_tree(8).unwrap();
        let mut roots = [0u32; 16];
        for dst in 16..128 {
            let probe = |flow| Probe { src: 0, dst, flow, frame: flow };
            let root = walk(&tree, Policy::HashDestination, &probe(1), &[]).1[2].position;
            assert!((2..20).all(|f| walk(&tree, Policy::HashDestination, &probe(f), &[]).1[2].position == root));
            roots[root as usize] += 1;
        }
        assert!(roots.iter().all(|&n| (1..20).contains(&n)), "{roots:?}");
    }

    #[test]
    fn flows_by_a_hash_go_over_all_cores_alike_as_if_each_had_drawn_one() {
        // Valiant load balancing per flow (Al-Fares 2012, 2.2.1): 16 cores, 16,000 flows.
        let tree = Xgft::fat_tree(8).unwrap();
        let mut cores = [0u32; 16];
        for flow in 0..16_000 {
            let probe = Probe { src: 0, dst: 64, flow: mix64(flow), frame: 0 };
            cores[walk(&tree, Policy::Hash, &probe, &[]).1[2].position as usize] += 1;
        }
        assert!(cores.iter().all(|&n| (880..1_120).contains(&n)), "{cores:?}");
    }

    #[test]
    fn an_external_host_is_reached_over_the_plane_of_its_root() {
        let tree = Xgft::new(&[3, 2], &[2, 2]).unwrap();
        let roots: Vec<SwitchName> = tree.switches().filter(|s| s.level == 2).collect();
        for &policy in Policy::ALL {
            for (i, root) in roots.iter().enumerate() {
                let probe = Probe { src: 4, dst: tree.leaves() + i as u32, flow: 9, frame: 9 };
                let (link, passed, _) = walk(&tree, policy, &probe, &roots);
                assert_eq!((link as u32, passed.last()), (root.position % 2, Some(root)));
            }
        }
    }
}
