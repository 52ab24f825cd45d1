//! A multi-rooted tree of three levels, its paths by their top switch, and its faults.

use super::Host;
use alloc::vec;
use alloc::vec::Vec;

/// Most hosts of a pod: the link loads of all of them are added in 31 bits of 2^-20 of a link (k = 90 has 2,025).
pub const POD_HOSTS_MAX: u32 = 2_047;

/// Most hosts of a tree: estimates of demand name them in 20 bits.
pub const HOSTS_MAX: u64 = 1 << 20;

/// Hosts under edge switches, pods of edge and aggregation switches with a link between each edge and each aggregation
/// switch, and cores above.
///
/// Cores are numbered as in [`Xgft`](crate::routing::xgft::Xgft): core `j * aggregations_per_pod + a` is at upward port `j`
/// of the aggregation switch at position `a` of every pod. The downward ports of a switch come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Pods.
    pub pods: u32,
    /// Edge switches of a pod.
    pub edges_per_pod: u32,
    /// Hosts of an edge switch.
    pub hosts_per_edge: u32,
    /// Aggregation switches of a pod.
    pub aggregations_per_pod: u32,
    /// Cores above an aggregation switch.
    pub cores_per_aggregation: u32,
}

/// Reason why a shape is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// Switches of a fat-tree have an even number of ports, at least 2.
    Odd,
    /// Every number must be at least 1.
    Zero,
    /// More hosts in a pod than [`POD_HOSTS_MAX`], or in the tree than [`HOSTS_MAX`], or ports of a switch than 4,096.
    TooLarge,
}

/// The path of a frame from one edge switch to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Both hosts have the same edge switch.
    Edge,
    /// Within the pod, over the aggregation switch at this position.
    Aggregation(u16),
    /// Over this core.
    Core(u16),
}

/// A link between switches, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Between an edge switch, numbered through the tree, and the aggregation switch of its pod at a position.
    Edge {
        /// The edge switch.
        edge: u32,
        /// Position of the aggregation switch.
        aggregation: u32,
    },
    /// Between a core and its aggregation switch in a pod.
    Core {
        /// The pod.
        pod: u32,
        /// The core.
        core: u32,
    },
}

/// A switch of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// An edge switch, numbered through the tree.
    Edge(u32),
    /// The aggregation switch of a pod at a position.
    Aggregation {
        /// The pod.
        pod: u32,
        /// Its position.
        position: u32,
    },
    /// A core.
    Core(u32),
}

impl Tree {
    /// The fat-tree of k-port switches (Al-Fares 2012, 3.1).
    pub fn fat_tree(k: u32) -> Result<Tree, TreeError> {
        if k % 2 != 0 || k == 0 {
            return Err(TreeError::Odd);
        }
        let half = k / 2;
        Tree {
            pods: k,
            edges_per_pod: half,
            hosts_per_edge: half,
            aggregations_per_pod: half,
            cores_per_aggregation: half,
        }
        .checked()
    }

    /// The tree itself, if its numbers are valid.
    pub fn checked(self) -> Result<Tree, TreeError> {
        let Tree { pods, edges_per_pod, hosts_per_edge, aggregations_per_pod, cores_per_aggregation } = self;
        let all = [pods, edges_per_pod, hosts_per_edge, aggregations_per_pod, cores_per_aggregation];
        if all.contains(&0) {
            return Err(TreeError::Zero);
        }
        let pod_hosts = edges_per_pod as u64 * hosts_per_edge as u64;
        let cores = aggregations_per_pod as u64 * cores_per_aggregation as u64;
        if all.iter().any(|&n| n > 4_096)
            || pod_hosts > POD_HOSTS_MAX as u64
            || pod_hosts * pods as u64 > HOSTS_MAX
            || cores > u16::MAX as u64
        {
            return Err(TreeError::TooLarge);
        }
        Ok(self)
    }

    /// Hosts of the tree.
    pub fn hosts(&self) -> u32 {
        self.pods * self.hosts_per_pod()
    }
    /// Hosts of a pod.
    pub fn hosts_per_pod(&self) -> u32 {
        self.edges_per_pod * self.hosts_per_edge
    }
    /// Edge switches of the tree.
    pub fn edges(&self) -> u32 {
        self.pods * self.edges_per_pod
    }
    /// Cores of the tree.
    pub fn cores(&self) -> u32 {
        self.aggregations_per_pod * self.cores_per_aggregation
    }
    /// The edge switch of a host.
    pub fn edge_of(&self, host: Host) -> u32 {
        host / self.hosts_per_edge
    }
    /// The pod of a host.
    pub fn pod_of(&self, host: Host) -> u32 {
        host / self.hosts_per_pod()
    }
    /// The pod of an edge switch.
    pub fn pod_of_edge(&self, edge: u32) -> u32 {
        edge / self.edges_per_pod
    }
    /// Position of the aggregation switches below a core.
    pub fn aggregation_of(&self, core: u32) -> u32 {
        core % self.aggregations_per_pod
    }
    /// The core at upward port `up` of the aggregation switches at a position.
    pub fn core(&self, aggregation: u32, up: u32) -> u32 {
        up * self.aggregations_per_pod + aggregation
    }
    /// Whether the link exists.
    pub fn has_link(&self, link: Link) -> bool {
        match link {
            Link::Edge { edge, aggregation } => edge < self.edges() && aggregation < self.aggregations_per_pod,
            Link::Core { pod, core } => pod < self.pods && core < self.cores(),
        }
    }
    /// Whether the switch exists.
    pub fn has_switch(&self, switch: Switch) -> bool {
        match switch {
            Switch::Edge(edge) => edge < self.edges(),
            Switch::Aggregation { pod, position } => pod < self.pods && position < self.aggregations_per_pod,
            Switch::Core(core) => core < self.cores(),
        }
    }
    /// Links of a switch to other switches.
    pub fn links_of(&self, switch: Switch) -> Vec<Link> {
        match switch {
            Switch::Edge(edge) => {
                (0..self.aggregations_per_pod).map(|aggregation| Link::Edge { edge, aggregation }).collect()
            }
            Switch::Aggregation { pod, position: a } => {
                let edges = pod * self.edges_per_pod..(pod + 1) * self.edges_per_pod;
                let down = edges.map(|edge| Link::Edge { edge, aggregation: a });
                let up = (0..self.cores_per_aggregation).map(|up| Link::Core { pod, core: self.core(a, up) });
                down.chain(up).collect()
            }
            Switch::Core(core) => (0..self.pods).map(|pod| Link::Core { pod, core }).collect(),
        }
    }
    /// Number of paths between two hosts.
    pub fn paths(&self, src: Host, dst: Host) -> u32 {
        if self.edge_of(src) == self.edge_of(dst) {
            1
        } else if self.pod_of(src) == self.pod_of(dst) {
            self.aggregations_per_pod
        } else {
            self.cores()
        }
    }
    /// Path number `n` between two hosts, in the order of cores or of aggregation switches.
    pub fn path(&self, src: Host, dst: Host, n: u32) -> Path {
        if self.edge_of(src) == self.edge_of(dst) {
            Path::Edge
        } else if self.pod_of(src) == self.pod_of(dst) {
            Path::Aggregation(n as u16)
        } else {
            Path::Core(n as u16)
        }
    }
    /// The upward port of the source's edge switch on this path; `None` if the destination has the same edge switch.
    pub fn edge_port(&self, path: Path) -> Option<u32> {
        let aggregation = match path {
            Path::Edge => return None,
            Path::Aggregation(a) => a as u32,
            Path::Core(c) => self.aggregation_of(c as u32),
        };
        Some(self.hosts_per_edge + aggregation)
    }
    /// The upward port of the aggregation switch in the source's pod on this path; `None` if the path leads over no core.
    pub fn aggregation_port(&self, path: Path) -> Option<u32> {
        match path {
            Path::Edge | Path::Aggregation(_) => None,
            Path::Core(c) => Some(self.edges_per_pod + c as u32 / self.aggregations_per_pod),
        }
    }
}

/// Reasons for which a link is down: the link itself, the switch at its lower end, the switch at its upper end.
const ITSELF: u8 = 1;
const LOWER: u8 = 2;
const UPPER: u8 = 4;

/// The links that are down: failed links, and links of failed switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    tree: Tree,
    edge_links: Vec<u8>,
    core_links: Vec<u8>,
    down: u32,
}

impl Faults {
    /// A tree without faults.
    pub fn new(tree: Tree) -> Faults {
        Faults {
            tree,
            edge_links: vec![0; (tree.edges() * tree.aggregations_per_pod) as usize],
            core_links: vec![0; (tree.pods * tree.cores()) as usize],
            down: 0,
        }
    }

    /// Whether no link is down.
    pub fn is_empty(&self) -> bool {
        self.down == 0
    }

    /// Whether a link carries frames.
    pub fn carries(&self, link: Link) -> bool {
        self.reasons(link) == 0
    }

    /// Memory held, in bytes.
    pub fn state_bytes(&self) -> usize {
        self.edge_links.len() + self.core_links.len()
    }

    fn index(&self, link: Link) -> usize {
        match link {
            Link::Edge { edge, aggregation } => (edge * self.tree.aggregations_per_pod + aggregation) as usize,
            Link::Core { pod, core } => (pod * self.tree.cores() + core) as usize,
        }
    }

    fn reasons(&self, link: Link) -> u8 {
        match link {
            Link::Edge { .. } => self.edge_links[self.index(link)],
            Link::Core { .. } => self.core_links[self.index(link)],
        }
    }

    /// Sets or clears a reason; returns whether the link's state changed.
    fn set(&mut self, link: Link, reason: u8, up: bool) -> bool {
        let index = self.index(link);
        let reasons = match link {
            Link::Edge { .. } => &mut self.edge_links[index],
            Link::Core { .. } => &mut self.core_links[index],
        };
        let before = *reasons == 0;
        *reasons = if up { *reasons & !reason } else { *reasons | reason };
        let after = *reasons == 0;
        self.down = self.down + before as u32 - after as u32;
        before != after
    }

    /// A link of the tree goes down or comes up; returns whether its state changed.
    pub fn set_link(&mut self, link: Link, up: bool) -> bool {
        self.set(link, ITSELF, up)
    }

    /// A switch of the tree goes down or comes up; returns the links whose state changed.
    pub fn set_switch(&mut self, switch: Switch, up: bool) -> Vec<Link> {
        let mut links = self.tree.links_of(switch);
        links.retain(|&link| {
            let is_lower = match (switch, link) {
                (Switch::Edge(_), _) => true,
                (Switch::Aggregation { .. }, Link::Core { .. }) => true,
                (Switch::Aggregation { .. }, Link::Edge { .. }) | (Switch::Core(_), _) => false,
            };
            self.set(link, if is_lower { LOWER } else { UPPER }, up)
        });
        links
    }

    /// Whether every link of a path between two hosts carries frames.
    pub fn leaves(&self, src: Host, dst: Host, path: Path) -> bool {
        let t = &self.tree;
        let (from, to) = (t.edge_of(src), t.edge_of(dst));
        let edges = |aggregation| {
            self.carries(Link::Edge { edge: from, aggregation }) && self.carries(Link::Edge { edge: to, aggregation })
        };
        match path {
            Path::Edge => true,
            Path::Aggregation(a) => edges(a as u32),
            Path::Core(c) => {
                let (core, from, to) = (c as u32, t.pod_of_edge(from), t.pod_of_edge(to));
                edges(t.aggregation_of(core))
                    && self.carries(Link::Core { pod: from, core })
                    && self.carries(Link::Core { pod: to, core })
            }
        }
    }

    /// A path chosen by a hash among the paths that carry frames.
    pub fn hashed(&self, src: Host, dst: Host, hash: u64) -> Option<Path> {
        let paths = self.tree.paths(src, dst);
        let pick = |among: u32| ((hash as u128 * among as u128) >> 64) as usize;
        if self.is_empty() {
            return Some(self.tree.path(src, dst, pick(paths) as u32));
        }
        let mut left = (0..paths).map(|n| self.tree.path(src, dst, n)).filter(|&p| self.leaves(src, dst, p));
        let among = left.clone().count() as u32;
        left.nth(pick(among))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fat_tree_has_the_numbers_of_chapter_3() {
        let t = Tree::fat_tree(48).unwrap();
        assert_eq!((t.hosts(), t.cores(), t.edges(), t.hosts_per_pod()), (27_648, 576, 1_152, 576));
        assert_eq!(Tree::fat_tree(4).unwrap().paths(0, 4), 4);
        for (k, error) in [(0, TreeError::Odd), (7, TreeError::Odd), (92, TreeError::TooLarge)] {
            assert_eq!(Tree::fat_tree(k), Err(error));
        }
        assert_eq!(Tree::fat_tree(u32::MAX - 1), Err(TreeError::TooLarge));
        assert_eq!(Tree { pods: 0, ..t }.checked(), Err(TreeError::Zero));
    }

    #[test]
    fn a_path_is_two_ports_on_the_way_up() {
        let t = Tree::fat_tree(4).unwrap();
        let ports = |path| (t.edge_port(path), t.aggregation_port(path));
        assert_eq!(ports(t.path(0, 1, 0)), (None, None));
        assert_eq!(ports(t.path(0, 2, 1)), (Some(3), None));
        let up: Vec<_> = (0..4).map(|n| ports(t.path(0, 15, n))).collect();
        assert_eq!(up, [(2, 2), (3, 2), (2, 3), (3, 3)].map(|(e, a)| (Some(e), Some(a))));
    }

    #[test]
    fn a_link_is_down_for_as_long_as_it_or_one_of_its_switches_is() {
        let t = Tree::fat_tree(4).unwrap();
        let mut f = Faults::new(t);
        let link = Link::Core { pod: 1, core: 3 };
        assert!(f.set_link(link, false));
        assert!(!f.set_link(link, false));
        assert_eq!(f.set_switch(Switch::Core(3), false).len(), 3);
        assert_eq!(f.set_switch(Switch::Aggregation { pod: 1, position: 1 }, false).len(), 3);
        assert!(f.set_switch(Switch::Edge(0), false).len() == 2 && !f.leaves(0, 4, Path::Core(0)));
        assert!(!f.set_link(link, true));
        assert_eq!(f.set_switch(Switch::Edge(0), true).len(), 2);
        assert_eq!(f.hashed(0, 4, u64::MAX), Some(Path::Core(2)));
        assert_eq!(f.hashed(8, 12, u64::MAX), Some(Path::Core(2)));
        f.set_switch(Switch::Aggregation { pod: 1, position: 0 }, false);
        assert_eq!((f.hashed(0, 4, 1), f.hashed(4, 6, 1), f.hashed(4, 5, 1)), (None, None, Some(Path::Edge)));
        for (switch, links) in
            [(Switch::Aggregation { pod: 1, position: 0 }, 4), (Switch::Aggregation { pod: 1, position: 1 }, 3)]
        {
            assert_eq!(f.set_switch(switch, true).len(), links);
        }
        assert_eq!(f.set_switch(Switch::Core(3), true).len(), 4);
        assert!(f.is_empty());
    }
}
