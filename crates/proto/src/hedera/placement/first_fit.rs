//! Global First Fit (Al-Fares 2012, figure 4.2): the first path on whose links a flow still fits, reserved for it.

use crate::hedera::tree::{Faults, Link, Path, Tree};
use crate::hedera::{Host, LINK};
use alloc::vec;
use alloc::vec::Vec;

/// Set in the reservation of a link that is down: no flow fits there.
const DOWN: u32 = 1 << 31;

const _: () = assert!(LINK < DOWN);

/// Reserved bandwidth of each direction of each link, in parts of [`LINK`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFit {
    tree: Tree,
    /// Between edge and aggregation switches, by edge switch and position.
    edge_up: Vec<u32>,
    edge_down: Vec<u32>,
    /// Between aggregation switches and cores, by pod and core.
    core_up: Vec<u32>,
    core_down: Vec<u32>,
}

impl FirstFit {
    /// A network without reservations.
    pub fn new(tree: Tree) -> FirstFit {
        let (edges, cores) = ((tree.edges() * tree.aggregations_per_pod) as usize, (tree.pods * tree.cores()) as usize);
        FirstFit {
            tree,
            edge_up: vec![0; edges],
            edge_down: vec![0; edges],
            core_up: vec![0; cores],
            core_down: vec![0; cores],
        }
    }

    /// Reserves the first path on which a flow of `rate` fits, aggregation switch by aggregation switch; a flow of a whole
    /// link fits on empty links.
    pub fn place(&mut self, src: Host, dst: Host, rate: u32) -> Option<Path> {
        assert!(rate <= LINK);
        let path = self.find(src, dst, rate)?;
        self.change(src, dst, path, |reserved| *reserved += rate);
        Some(path)
    }

    /// Reserves a known path, if the flow fits there.
    pub fn reserve(&mut self, src: Host, dst: Host, path: Path, rate: u32) -> bool {
        assert!(rate <= LINK);
        let mut fits = true;
        self.change(src, dst, path, |reserved| fits &= *reserved <= LINK - rate);
        if fits {
            self.change(src, dst, path, |reserved| *reserved += rate);
        }
        fits
    }

    /// Releases the reservation of a flow.
    pub fn release(&mut self, src: Host, dst: Host, path: Path, rate: u32) {
        self.change(src, dst, path, |reserved| {
            debug_assert!(*reserved & !DOWN >= rate);
            *reserved -= rate;
        });
    }

    /// Releases all reservations.
    pub fn clear(&mut self) {
        for links in [&mut self.edge_up, &mut self.edge_down, &mut self.core_up, &mut self.core_down] {
            links.iter_mut().for_each(|reserved| *reserved &= DOWN);
        }
    }

    /// Takes the state of a link from [`Faults`]. Reservations on a link that is down stay until they are released.
    pub fn set_link(&mut self, link: Link, faults: &Faults) {
        let (index, up, down) = match link {
            Link::Edge { edge, aggregation } => {
                (edge * self.tree.aggregations_per_pod + aggregation, &mut self.edge_up, &mut self.edge_down)
            }
            Link::Core { pod, core } => (pod * self.tree.cores() + core, &mut self.core_up, &mut self.core_down),
        };
        let mark = if faults.carries(link) { 0 } else { DOWN };
        for reserved in [&mut up[index as usize], &mut down[index as usize]] {
            *reserved = *reserved & !DOWN | mark;
        }
    }

    /// Memory held, in bytes.
    pub fn state_bytes(&self) -> usize {
        2 * (self.edge_up.len() + self.core_up.len()) * size_of::<u32>()
    }

    fn find(&self, src: Host, dst: Host, rate: u32) -> Option<Path> {
        let t = &self.tree;
        let (from, to) = (t.edge_of(src), t.edge_of(dst));
        if from == to {
            return Some(Path::Edge);
        }
        let fits = |(up, down): (&u32, &u32)| (*up <= LINK - rate) & (*down <= LINK - rate);
        let row = |at: u32, len: u32| (at * len) as usize..((at + 1) * len) as usize;
        let n = t.aggregations_per_pod;
        let up = &self.edge_up[row(from, n)];
        let down = &self.edge_down[row(to, n)];
        let mut aggregations = (0..n).filter(|&a| fits((&up[a as usize], &down[a as usize])));
        let (from, to) = (t.pod_of_edge(from), t.pod_of_edge(to));
        if from == to {
            return aggregations.next().map(|a| Path::Aggregation(a as u16));
        }
        let up = &self.core_up[row(from, t.cores())];
        let down = &self.core_down[row(to, t.cores())];
        aggregations.find_map(|a| {
            let mut cores = (0..t.cores_per_aggregation).map(|up| t.core(a, up));
            cores.find(|&core| fits((&up[core as usize], &down[core as usize]))).map(|core| Path::Core(core as u16))
        })
    }

    fn change(&mut self, src: Host, dst: Host, path: Path, mut each: impl FnMut(&mut u32)) {
        let t = self.tree;
        let (from, to) = (t.edge_of(src), t.edge_of(dst));
        let aggregation = match path {
            Path::Edge => return,
            Path::Aggregation(a) => a as u32,
            Path::Core(core) => {
                let core = core as u32;
                each(&mut self.core_up[(t.pod_of_edge(from) * t.cores() + core) as usize]);
                each(&mut self.core_down[(t.pod_of_edge(to) * t.cores() + core) as usize]);
                t.aggregation_of(core)
            }
        };
        each(&mut self.edge_up[(from * t.aggregations_per_pod + aggregation) as usize]);
        each(&mut self.edge_down[(to * t.aggregations_per_pod + aggregation) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Al-Fares 2012, figure 4.2; its `<` would leave a flow of a whole link without a path.
    #[test]
    fn figure_4_2_takes_the_first_path_with_room_and_fills_links_exactly() {
        let mut f = FirstFit::new(Tree::fat_tree(4).unwrap());
        // Whole links from the two hosts of one edge switch to other pods.
        assert_eq!(f.place(0, 4, LINK), Some(Path::Core(0)));
        assert_eq!(f.place(1, 8, LINK), Some(Path::Core(1)));
        assert_eq!(f.place(0, 12, 1), None, "both links up are full");
        // From the pod's other edge switch: its own links have room, but the pod's links to cores 0 and 1 are full.
        assert_eq!(f.place(2, 12, LINK / 2), Some(Path::Core(2)));
        assert_eq!(f.place(3, 12, LINK / 2), Some(Path::Core(2)));
        assert_eq!(f.place(3, 13, 1), Some(Path::Core(3)));
        // Within a pod, and under one switch.
        assert_eq!(f.place(5, 6, LINK), Some(Path::Aggregation(0)));
        assert_eq!(f.place(4, 6, LINK), Some(Path::Aggregation(1)));
        assert_eq!(f.place(4, 5, LINK), Some(Path::Edge));
        // Reservations are cleared when flows expire (4.2.3).
        f.release(0, 4, Path::Core(0), LINK);
        assert_eq!(f.place(0, 14, LINK / 2), Some(Path::Core(0)));
        assert!(!f.reserve(0, 14, Path::Core(0), LINK));
        assert!(f.reserve(0, 14, Path::Core(0), LINK / 2));
    }

    #[test]
    fn what_is_down_is_skipped_and_comes_back() {
        let tree = Tree::fat_tree(4).unwrap();
        let (mut f, mut faults) = (FirstFit::new(tree), Faults::new(tree));
        let links = [Link::Core { pod: 1, core: 0 }, Link::Edge { edge: 0, aggregation: 1 }];
        assert!(f.reserve(0, 4, Path::Core(0), LINK / 2));
        for link in links {
            faults.set_link(link, false);
            f.set_link(link, &faults);
        }
        assert_eq!(f.place(0, 4, LINK / 4), Some(Path::Core(2)));
        assert_eq!(f.place(0, 5, LINK / 4), Some(Path::Core(2)));
        assert_eq!(f.place(1, 4, LINK / 2), None);
        f.release(0, 4, Path::Core(0), LINK / 2);
        for link in links {
            faults.set_link(link, true);
            f.set_link(link, &faults);
        }
        assert_eq!(f.place(0, 4, LINK / 2), Some(Path::Core(0)));
    }

    #[test]
    fn no_link_is_ever_promised_twice_and_all_is_given_back() {
        let tree = Tree::fat_tree(6).unwrap();
        let mut f = FirstFit::new(tree);
        let mut rng = Rng::from_words(&[42]);
        let mut held = Vec::new();
        let mut refused = 0;
        for _ in 0..20_000 {
            let hosts = tree.hosts() as u64;
            let (src, dst, rate) =
                (rng.below(hosts) as u32, rng.below(hosts) as u32, 1 + rng.below(LINK as u64) as u32);
            match f.place(src, dst, rate) {
                Some(path) => held.push((src, dst, path, rate)),
                None => refused += 1,
            }
            if held.len() as u64 > rng.below(100) {
                let (src, dst, path, rate) = held.swap_remove(rng.below(held.len() as u64) as usize);
                f.release(src, dst, path, rate);
            }
            let all = [&f.edge_up, &f.edge_down, &f.core_up, &f.core_down];
            assert!(all.iter().all(|links| links.iter().all(|&reserved| reserved <= LINK)));
        }
        assert!(refused > 100);
        held.into_iter().for_each(|(src, dst, path, rate)| f.release(src, dst, path, rate));
        assert!(
            f.edge_up.iter().chain(&f.edge_down).chain(&f.core_up).chain(&f.core_down).all(|&reserved| reserved == 0)
        );
    }
}
