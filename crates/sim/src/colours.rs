//! Two colours for the boxes of a world, if no link joins boxes of one colour.

/// Sets of boxes that links join, each box with its colour relative to that of its set's root.
///
/// A fat-tree, a leaf-spine fabric or any other tree of levels has two colours: links join boxes of neighbouring levels only.
pub struct Colours {
    /// A box of the same set, in the upper bits, and in the lowest one whether its colour differs; a root names itself.
    parents: Vec<u32>,
    /// Whether a link joins two boxes of one colour.
    clash: bool,
}

impl Colours {
    /// No links yet.
    pub fn new(boxes: usize) -> Colours {
        Colours { parents: (0..boxes as u32).map(|n| n << 1).collect(), clash: false }
    }

    /// A link joins `a` and `b`.
    pub fn join(&mut self, a: u32, b: u32) {
        let ((a, of_a), (b, of_b)) = (self.find(a), self.find(b));
        let differ = of_a ^ of_b ^ 1;
        if a == b {
            self.clash |= differ == 1;
        } else {
            // The smaller number becomes the root, so that paths to it are short: links are laid from the servers up.
            self.parents[a.max(b) as usize] = a.min(b) << 1 | differ;
        }
    }

    /// The root of a box, and whether its colour differs from the root's.
    fn find(&mut self, mut n: u32) -> (u32, u32) {
        let mut differs = 0;
        loop {
            let parent = self.parents[n as usize];
            if parent >> 1 == n {
                return (n, differs);
            }
            // The box moves up to its grandparent.
            let grandparent = self.parents[(parent >> 1) as usize];
            let differ = (parent ^ grandparent) & 1;
            self.parents[n as usize] = grandparent & !1 | differ;
            differs ^= differ;
            n = grandparent >> 1;
        }
    }

    /// The colour of each box, 0 or 1, if links join different colours only and all of the first `hosts` boxes have colour 0.
    pub fn of_all(mut self, hosts: u32) -> Option<Vec<u8>> {
        // A root is the smallest box of its set: a server, if the set has one.
        let colours: Vec<u8> = (0..self.parents.len() as u32).map(|n| self.find(n).1 as u8).collect();
        let servers_differ = colours[..hosts as usize].contains(&1);
        (!self.clash && !servers_differ).then_some(colours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colours(boxes: usize, hosts: u32, links: &[(u32, u32)]) -> Option<Vec<u8>> {
        let mut colours = Colours::new(boxes);
        links.iter().for_each(|&(a, b)| colours.join(a, b));
        colours.of_all(hosts)
    }

    #[test]
    fn links_join_two_colours() {
        // Two hosts, two edge switches, two spines, in any order of links; a box without links.
        let links = [(2, 4), (3, 5), (0, 2), (4, 3), (1, 3), (5, 2)];
        for shift in 0..links.len() {
            let mut links = links;
            links.rotate_left(shift);
            assert_eq!(colours(7, 2, &links), Some(vec![0, 0, 1, 1, 0, 0, 0]));
        }
        // A cycle of five switches; hosts at switches of two levels; hosts at each other.
        assert_eq!(colours(6, 1, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 1)]), None);
        assert_eq!(colours(4, 2, &[(0, 2), (1, 3), (2, 3)]), None);
        assert_eq!(colours(2, 2, &[(0, 1)]), None);
        // A long chain, laid from its end: roots move often.
        let chain: Vec<(u32, u32)> = (0..999).rev().map(|n| (n, n + 1)).collect();
        let expected: Vec<u8> = (0..1_000).map(|n| (n % 2) as u8).collect();
        assert_eq!(colours(1_000, 1, &chain), Some(expected));
    }
}
