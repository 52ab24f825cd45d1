//! Extended generalised fat-trees (Crisan 2014, 2.2.1; Öhring et al. 1995): shapes, names and links.
//!
//! Several links may join a node and its parent: this is a parallel-ports generalised fat-tree (PGFT; Zahavi 2012).

use alloc::vec::Vec;

/// PGFT(h; m_1..m_h; w_1..w_h; p_1..p_h): a node of level i has `m_i` children, and a node of level i-1 has `w_i`
/// parents, with `p_i` links to each. With one link each it is XGFT(h; m_1..m_h; w_1..w_h).
///
/// Downward port `c + m_i k` of a node is link `k` to child `c`. Upward ports follow: the `j + w k`th is link `k` to
/// parent `j`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xgft {
    m: Vec<u32>,
    w: Vec<u32>,
    p: Vec<u32>,
}

/// A switch by level (1 to h), group of leaves below it and position among the switches above that group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SwitchName {
    /// 1 for edge switches, h for roots.
    pub level: u8,
    /// Number of the group of `m_1 * ... * m_level` leaves below the switch.
    pub group: u32,
    /// Number among the `w_1 * ... * w_level` switches above that group.
    pub position: u32,
}

/// Reason why a shape is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShapeError {
    /// There must be one to eight levels, and as many `w` as `m`.
    Levels,
    /// Every `m` and `w` must be at least 1.
    Zero,
    /// More leaves or ports than the limits.
    TooLarge,
}

/// Most leaves of a tree.
pub const MAX_LEAVES: u64 = 1 << 23;

impl Xgft {
    /// Checks a shape with one link between a node and its parent.
    pub fn new(m: &[u32], w: &[u32]) -> Result<Xgft, ShapeError> {
        Xgft::with_links(m, w, &[1; 8][..m.len().min(8)])
    }

    /// Checks a shape; allocates only the lists. `p[i]` links join a node of level `i` and each of its parents.
    pub fn with_links(m: &[u32], w: &[u32], p: &[u32]) -> Result<Xgft, ShapeError> {
        if m.is_empty() || m.len() > 8 || m.len() != w.len() || m.len() != p.len() {
            return Err(ShapeError::Levels);
        }
        if m.iter().chain(w).chain(p).any(|&x| x == 0) {
            return Err(ShapeError::Zero);
        }
        let tree = Xgft { m: m.to_vec(), w: w.to_vec(), p: p.to_vec() };
        let product = |xs: &[u32]| xs.iter().try_fold(1u64, |a, &x| a.checked_mul(x as u64));
        let leaves = product(m).ok_or(ShapeError::TooLarge)?;
        let mut ports = leaves.saturating_mul(w[0] as u64 * p[0] as u64);
        for l in 1..=m.len() {
            let groups = product(&m[l..]).ok_or(ShapeError::TooLarge)?;
            let positions = product(&w[..l]).ok_or(ShapeError::TooLarge)?;
            let up = w.get(l).zip(p.get(l)).map_or(0, |(&w, &p)| w as u64 * p as u64);
            let radix = (m[l - 1] as u64 * p[l - 1] as u64).saturating_add(up);
            ports = ports.saturating_add(groups.saturating_mul(positions).saturating_mul(radix));
            if radix > 4096 {
                return Err(ShapeError::TooLarge);
            }
        }
        if leaves > MAX_LEAVES || ports > 8 * MAX_LEAVES { Err(ShapeError::TooLarge) } else { Ok(tree) }
    }

    /// The k-ary n-tree: k^n leaves, n levels of k^(n-1) switches (Crisan 2014, 2.2.1).
    pub fn k_ary_n_tree(k: u32, n: u32) -> Result<Xgft, ShapeError> {
        let levels = n.min(9) as usize;
        let mut w = alloc::vec![k; levels];
        if let Some(first) = w.first_mut() {
            *first = 1;
        }
        Xgft::new(&alloc::vec![k; levels], &w)
    }

    /// The three-level fat-tree of k-port switches: k^3/4 leaves (Al-Fares 2012, 3.1).
    pub fn fat_tree(k: u32) -> Result<Xgft, ShapeError> {
        Xgft::new(&[k / 2, k / 2, k], &[1, k / 2, k / 2])
    }

    /// Number of levels of switches.
    pub fn levels(&self) -> u8 {
        self.m.len() as u8
    }
    /// Children of a node of `level` (1 to h).
    pub fn children(&self, level: u8) -> u32 {
        self.m[level as usize - 1]
    }
    /// Parents of a node of `level` (0 to h-1); 0 for a root.
    pub fn parents(&self, level: u8) -> u32 {
        self.w.get(level as usize).copied().unwrap_or(0)
    }
    /// Links between a node of `level` (0 to h-1) and each of its parents; 1 for a root.
    pub fn links(&self, level: u8) -> u32 {
        self.p.get(level as usize).copied().unwrap_or(1)
    }
    /// Downward ports of a switch of `level`.
    pub fn down_ports(&self, level: u8) -> u32 {
        self.children(level) * self.links(level - 1)
    }
    /// Upward ports of a node of `level` (0 to h-1); 0 for a root.
    pub fn up_ports(&self, level: u8) -> u32 {
        self.parents(level) * self.links(level)
    }
    /// Whether several links join some node and its parent.
    pub fn has_parallel_links(&self) -> bool {
        self.p.iter().any(|&p| p > 1)
    }
    /// Leaves below a switch of `level`; 1 for level 0.
    pub fn leaves_below(&self, level: u8) -> u32 {
        self.m[..level as usize].iter().product()
    }
    /// Number of leaves.
    pub fn leaves(&self) -> u32 {
        self.leaves_below(self.levels())
    }
    /// Switches above each group of leaves at `level`.
    pub fn positions(&self, level: u8) -> u32 {
        self.w[..level as usize].iter().product()
    }
    /// Groups of leaves at `level`.
    pub fn groups(&self, level: u8) -> u32 {
        self.m[level as usize..].iter().product()
    }
    /// Switches of `level`.
    pub fn switches_at(&self, level: u8) -> u32 {
        self.groups(level) * self.positions(level)
    }
    /// All switches, edge level first, group by group.
    pub fn switches(&self) -> impl Iterator<Item = SwitchName> + '_ {
        (1..=self.levels()).flat_map(move |level| {
            (0..self.groups(level)).flat_map(move |group| {
                (0..self.positions(level)).map(move |position| SwitchName { level, group, position })
            })
        })
    }
    /// The position of a switch in [`Xgft::switches`].
    pub fn index(&self, s: SwitchName) -> u32 {
        let before: u32 = (1..s.level).map(|l| self.switches_at(l)).sum();
        before + s.group * self.positions(s.level) + s.position
    }
    /// The switch at a position in [`Xgft::switches`].
    pub fn name(&self, index: u32) -> SwitchName {
        let (mut level, mut rest) = (1, index);
        while rest >= self.switches_at(level) {
            rest -= self.switches_at(level);
            level += 1;
        }
        SwitchName { level, group: rest / self.positions(level), position: rest % self.positions(level) }
    }
    /// Parent number `j` of a switch.
    pub fn parent(&self, s: SwitchName, j: u32) -> SwitchName {
        SwitchName {
            level: s.level + 1,
            group: s.group / self.children(s.level + 1),
            position: s.position + j * self.positions(s.level),
        }
    }
    /// Parent number `j` of a leaf.
    pub fn leaf_parent(&self, leaf: u32, j: u32) -> SwitchName {
        SwitchName { level: 1, group: leaf / self.m[0], position: j }
    }
    /// The level at which the paths up from two leaves first meet: a path has twice as many links.
    pub fn nca_level(&self, a: u32, b: u32) -> u8 {
        (0..=self.levels()).find(|&l| a / self.leaves_below(l) == b / self.leaves_below(l)).unwrap_or(self.levels())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_definition() {
        // Crisan 2014, figure 3.1.
        let t = Xgft::new(&[16, 4, 4], &[1, 2, 2]).unwrap();
        assert_eq!(t.leaves(), 256);
        assert_eq!([1, 2, 3].map(|l| t.switches_at(l)), [16, 8, 4]);
        // A k-ary n-tree has n k^(n-1) switches.
        let t = Xgft::k_ary_n_tree(2, 3).unwrap();
        assert_eq!((t.leaves(), t.switches().count()), (8, 12));
        let t = Xgft::fat_tree(4).unwrap();
        assert_eq!((t.leaves(), t.switches().count()), (16, 20));
        assert_eq!((t.nca_level(0, 1), t.nca_level(0, 2), t.nca_level(0, 4), t.nca_level(3, 3)), (1, 2, 3, 0));
    }

    #[test]
    fn parallel_links_are_ports_and_no_other_switches() {
        // Two pods of two edge switches with four hosts each; two links between switches.
        let t = Xgft::with_links(&[4, 2, 2], &[1, 2, 2], &[1, 2, 2]).unwrap();
        assert_eq!((t.leaves(), [1, 2, 3].map(|l| t.switches_at(l))), (16, [4, 4, 4]));
        assert_eq!([1, 2, 3].map(|l| (t.down_ports(l), t.up_ports(l))), [(4, 4), (4, 4), (4, 0)]);
        assert!(t.has_parallel_links() && !Xgft::fat_tree(4).unwrap().has_parallel_links());
    }

    #[test]
    fn every_switch_is_where_its_index_says() {
        let t = Xgft::new(&[3, 4, 2], &[2, 3, 5]).unwrap();
        for (i, s) in t.switches().enumerate() {
            assert_eq!((t.index(s), t.name(i as u32)), (i as u32, s));
        }
    }

    #[test]
    fn absurd_shapes_are_refused() {
        assert_eq!(Xgft::new(&[1_000, 1_000, 1_000], &[1, 1, 1]), Err(ShapeError::TooLarge));
        assert_eq!(Xgft::new(&[u32::MAX; 8], &[u32::MAX; 8]), Err(ShapeError::TooLarge));
        assert_eq!(Xgft::new(&[2, 0], &[1, 1]), Err(ShapeError::Zero));
        assert_eq!(Xgft::new(&[2], &[1, 1]), Err(ShapeError::Levels));
        assert_eq!(Xgft::k_ary_n_tree(2, 4_000_000_000), Err(ShapeError::Levels));
        assert_eq!(Xgft::with_links(&[2, 2], &[1, 1], &[1]), Err(ShapeError::Levels));
        assert_eq!(Xgft::with_links(&[2, 2], &[1, 1], &[1, 0]), Err(ShapeError::Zero));
        assert_eq!(Xgft::with_links(&[2, 2], &[1, 1], &[1, 1_000_000_000]), Err(ShapeError::TooLarge));
        assert_eq!(Xgft::with_links(&[u32::MAX; 2], &[u32::MAX; 2], &[u32::MAX; 2]), Err(ShapeError::TooLarge));
    }
}
