//! The network as the controller knows it: links with capacities, and spanning trees.
//!
//! A path is walked from its two ends to the node where they meet, so there is no table of all pairs (`P_sd` of 3.2.1 is
//! computed each time). A step takes a few nanoseconds; a datacenter tree has at most six links between two nodes.

use super::Node;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// Most vertices of a topology: nodes and switches.
pub const VERTICES_MAX: usize = 1 << 24;
/// Most different capacities of links. Waiting flows are sorted by their rates, and a datacenter has few kinds of links.
pub const CAPACITIES_MAX: usize = 8;

/// No vertex, or no link.
const NONE: u32 = u32::MAX;

/// A vertex: nodes come first, then switches.
pub type Vertex = u32;
/// A direction of a link: link `n` of the list has the directions `2n`, from its first end to its second, and `2n + 1`.
pub type LinkId = u32;

/// A link between two vertices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its ends.
    pub ends: [Vertex; 2],
    /// Its capacity in each direction, in kb/s.
    pub kbps: u32,
}

/// Reason why a topology is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// More than [`VERTICES_MAX`] vertices, or fewer than there are nodes.
    Size,
    /// A link has an end that does not exist, or both ends at one vertex.
    NoSuchVertex {
        /// The place of the link in the list.
        link: usize,
    },
    /// A link has no capacity.
    NoCapacity {
        /// The place of the link in the list.
        link: usize,
    },
    /// Links have more than [`CAPACITIES_MAX`] different capacities.
    TooManyCapacities,
    /// A spanning tree does not reach a node, or has a cycle.
    NotATree {
        /// A node that it does not reach.
        node: Node,
    },
    /// The root of a spanning tree is not a switch.
    Root,
}

/// A spanning tree.
#[derive(Clone, Debug)]
struct Tree {
    /// For each vertex the direction of the link to its parent, and the parent; for the root and vertices outside of the
    /// tree [`NONE`].
    up: Vec<(LinkId, Vertex)>,
    depth: Vec<u32>,
}

/// A network.
#[derive(Clone, Debug)]
pub struct Topology {
    nodes: u32,
    vertices: usize,
    ends: Vec<[Vertex; 2]>,
    /// The capacity of each direction.
    capacity: Vec<u32>,
    /// The different capacities, ascending.
    capacities: Vec<u32>,
    trees: Vec<Tree>,
    /// The tree of the traffic to each node, where they do not share it evenly.
    tree_of: Vec<u16>,
}

impl Topology {
    /// A network without spanning trees.
    ///
    /// # Errors
    /// A wrong size, a link without ends or capacity, too many different capacities.
    pub fn new(nodes: u32, vertices: usize, links: &[Link]) -> Result<Topology, TopologyError> {
        if vertices > VERTICES_MAX || vertices < nodes as usize || links.len() > VERTICES_MAX {
            return Err(TopologyError::Size);
        }
        let mut capacities = Vec::new();
        for (n, link) in links.iter().enumerate() {
            let [a, b] = link.ends;
            if a == b || a.max(b) as usize >= vertices {
                return Err(TopologyError::NoSuchVertex { link: n });
            }
            if link.kbps == 0 {
                return Err(TopologyError::NoCapacity { link: n });
            }
            if let Err(at) = capacities.binary_search(&link.kbps) {
                capacities.insert(at, link.kbps);
            }
            if capacities.len() > CAPACITIES_MAX {
                return Err(TopologyError::TooManyCapacities);
            }
        }
        let capacity = links.iter().flat_map(|link| [link.kbps; 2]).collect();
        let ends = links.iter().map(|link| link.ends).collect();
        Ok(Topology { nodes, vertices, ends, capacity, capacities, trees: Vec::new(), tree_of: Vec::new() })
    }

    /// Adds the spanning tree of shortest paths from a switch. Among links of equal distance the first of the list is
    /// taken, as a bridge takes the port of the lowest number (802.1D, 17.3).
    ///
    /// # Errors
    /// A root that is no switch, or a node that no path reaches.
    pub fn add_tree(&mut self, root: Vertex) -> Result<(), TopologyError> {
        let all: Vec<usize> = (0..self.ends.len()).collect();
        self.add_tree_of(root, &all)
    }

    /// Adds the spanning tree that the switches report: these links, seen from a switch.
    ///
    /// # Errors
    /// A root that is no switch, or a node that the links do not reach.
    pub fn add_tree_of(&mut self, root: Vertex, links: &[usize]) -> Result<(), TopologyError> {
        if root < self.nodes || root as usize >= self.vertices {
            return Err(TopologyError::Root);
        }
        // The links of each vertex, in the order of the list, in one array.
        let mut first = vec![0u32; self.vertices + 1];
        let ends = || links.iter().filter_map(|&n| Some((n as LinkId, self.ends.get(n)?)));
        for (_, [a, b]) in ends() {
            first[*a as usize + 1] += 1;
            first[*b as usize + 1] += 1;
        }
        for v in 0..self.vertices {
            first[v + 1] += first[v];
        }
        let mut next = first.clone();
        let mut away = vec![(0, 0); first[self.vertices] as usize];
        for (n, &[a, b]) in ends() {
            for (direction, from, to) in [(2 * n, a, b), (2 * n + 1, b, a)] {
                away[next[from as usize] as usize] = (direction, to);
                next[from as usize] += 1;
            }
        }
        let mut tree = Tree { up: vec![(NONE, NONE); self.vertices], depth: vec![NONE; self.vertices] };
        tree.depth[root as usize] = 0;
        let mut reached = VecDeque::from([root]);
        while let Some(v) = reached.pop_front() {
            if v < self.nodes {
                // Nodes do not forward.
                continue;
            }
            for &(direction, to) in &away[first[v as usize] as usize..first[v as usize + 1] as usize] {
                if tree.depth[to as usize] == NONE {
                    tree.depth[to as usize] = tree.depth[v as usize] + 1;
                    tree.up[to as usize] = (direction ^ 1, v);
                    reached.push_back(to);
                }
            }
        }
        if let Some(node) = (0..self.nodes).find(|&node| tree.depth[node as usize] == NONE) {
            return Err(TopologyError::NotATree { node });
        }
        self.trees.push(tree);
        Ok(())
    }

    /// Says which tree the traffic to each node takes, by the order in which the trees were added. Without this, trees take
    /// turns by the number of the node.
    ///
    /// # Panics
    /// With a tree that does not exist, or another number of nodes.
    pub fn assign_trees(&mut self, by_destination: Vec<u16>) {
        assert!(by_destination.len() == self.nodes as usize, "each node has a tree");
        assert!(by_destination.iter().all(|&tree| usize::from(tree) < self.trees.len()), "the tree exists");
        self.tree_of = by_destination;
    }

    /// Nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }
    /// Directions of links.
    pub fn links(&self) -> usize {
        self.capacity.len()
    }
    /// The capacity of a direction in kb/s (`C_ij`).
    #[inline]
    pub fn capacity(&self, link: LinkId) -> u32 {
        self.capacity[link as usize]
    }
    /// The different capacities of links, ascending.
    pub fn capacities(&self) -> &[u32] {
        &self.capacities
    }
    /// The direction of the link from a node in the tree of its traffic to `to`.
    pub fn first_link(&self, node: Node, to: Node) -> LinkId {
        self.tree(to).up[node as usize].0
    }
    /// The path of frames between two nodes (`P_sd`): the directions of its links, in no particular order. Several trees
    /// share the traffic by destination.
    #[inline]
    pub fn path(&self, from: Node, to: Node) -> Path<'_> {
        Path { tree: self.tree(to), from, to }
    }
    /// The lowest capacity of a path, in kb/s.
    pub fn bottleneck(&self, from: Node, to: Node) -> u32 {
        self.path(from, to).map(|link| self.capacity(link)).min().unwrap_or(0)
    }

    /// The level at which two nodes meet: 0 at one switch, 1 one level above, and so on.
    pub fn level(&self, from: Node, to: Node) -> usize {
        let tree = self.tree(to);
        let (from_depth, to_depth) = (tree.depth[from as usize] as usize, tree.depth[to as usize] as usize);
        let met = (from_depth + to_depth - self.path(from, to).count()) / 2;
        (from_depth.max(to_depth) - met).saturating_sub(1)
    }

    #[inline]
    fn tree(&self, to: Node) -> &Tree {
        match &self.trees[..] {
            [only] => only,
            trees => match self.tree_of.get(to as usize) {
                Some(&tree) => &trees[usize::from(tree)],
                None => &trees[to as usize % trees.len()],
            },
        }
    }
}

/// The directions of the links of a path.
#[derive(Clone, Debug)]
pub struct Path<'a> {
    tree: &'a Tree,
    from: Vertex,
    to: Vertex,
}

impl Iterator for Path<'_> {
    type Item = LinkId;

    #[inline]
    fn next(&mut self) -> Option<LinkId> {
        let (from, to) = (self.from as usize, self.to as usize);
        if from == to {
            return None;
        }
        // The deeper end climbs, so that both meet where the branches do.
        if self.tree.depth[from] >= self.tree.depth[to] {
            let (link, parent) = self.tree.up[from];
            self.from = parent;
            Some(link)
        } else {
            let (link, parent) = self.tree.up[to];
            self.to = parent;
            Some(link ^ 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(a: Vertex, b: Vertex, kbps: u32) -> Link {
        Link { ends: [a, b], kbps }
    }

    /// Two racks of two nodes, and two cores above both.
    fn two_racks() -> Topology {
        let links = [
            link(0, 4, 1),
            link(1, 4, 1),
            link(2, 5, 1),
            link(5, 3, 1),
            link(4, 6, 10),
            link(5, 6, 10),
            link(4, 7, 4),
            link(7, 5, 4),
        ];
        Topology::new(4, 8, &links).unwrap()
    }

    fn path(topology: &Topology, from: Node, to: Node) -> Vec<LinkId> {
        let mut path: Vec<LinkId> = topology.path(from, to).collect();
        path.sort_unstable();
        path
    }

    #[test]
    fn a_path_goes_up_and_down() {
        let mut t = two_racks();
        t.add_tree(6).unwrap();
        assert_eq!(path(&t, 0, 1), [0, 3]);
        assert_eq!(path(&t, 0, 2), [0, 5, 8, 11]);
        // The link of node 3 is listed from the switch.
        assert_eq!(path(&t, 3, 0), [1, 7, 9, 10]);
        assert_eq!((t.bottleneck(0, 2), t.first_link(3, 0), t.capacity(8)), (1, 7, 10));
        assert_eq!(t.capacities(), [1, 4, 10]);
        assert_eq!((t.level(0, 1), t.level(0, 2)), (0, 1));
    }

    #[test]
    fn trees_share_the_traffic_by_destination() {
        let mut t = two_racks();
        t.add_tree(6).unwrap();
        t.add_tree(7).unwrap();
        assert_eq!(path(&t, 0, 2), [0, 5, 8, 11]);
        assert_eq!(path(&t, 0, 3), [0, 6, 12, 14]);
        // Node 3 is reached from core 6, and node 2 is not.
        let mut t = two_racks();
        t.add_tree(6).unwrap();
        t.add_tree(7).unwrap();
        t.assign_trees(vec![0, 0, 1, 0]);
        assert_eq!((path(&t, 0, 3), path(&t, 0, 2)), (vec![0, 6, 8, 11], vec![0, 5, 12, 14]));
    }

    #[test]
    fn a_tree_of_named_links() {
        let mut t = two_racks();
        // Without the link from the first rack to core 6.
        t.add_tree_of(6, &[0, 1, 2, 3, 5, 6, 7]).unwrap();
        assert_eq!(path(&t, 0, 2), [0, 5, 12, 14]);
        assert_eq!(t.add_tree_of(6, &[0, 1, 2, 3, 4]), Err(TopologyError::NotATree { node: 2 }));
        assert_eq!(t.add_tree(3), Err(TopologyError::Root));
    }

    #[test]
    fn nodes_do_not_forward() {
        let mut t = Topology::new(2, 4, &[link(0, 2, 1), link(0, 3, 1), link(3, 1, 1)]).unwrap();
        assert_eq!(t.add_tree(2), Err(TopologyError::NotATree { node: 1 }));
    }

    #[test]
    fn bad_topologies() {
        let new = |links: &[Link]| Topology::new(2, 3, links).map(|_| ()).unwrap_err();
        assert_eq!(new(&[link(0, 3, 1)]), TopologyError::NoSuchVertex { link: 0 });
        assert_eq!(new(&[link(0, 2, 1), link(1, 1, 1)]), TopologyError::NoSuchVertex { link: 1 });
        assert_eq!(new(&[link(0, 2, 0)]), TopologyError::NoCapacity { link: 0 });
        let many: Vec<Link> = (1..10).map(|kbps| link(0, 2, kbps)).collect();
        assert_eq!(new(&many), TopologyError::TooManyCapacities);
        assert_eq!(Topology::new(2, 1, &[]).map(|_| ()), Err(TopologyError::Size));
    }
}
