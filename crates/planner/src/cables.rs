//! The packaging of a fat-tree, and the length of its cables (Al-Fares 2012, 3.3, figure 3.10).
//!
//! A pod's switches stand in one rack in its middle, as one "pod switch" wired inside. Its machines stand in racks
//! around it, and the cores are spread over the pods. Only cables between racks are counted by length.

use serde::Serialize;
use sluicenet_proto::routing::fat_tree::FatTree;

/// The number of machines in a rack, one rack unit each.
pub const RACK_MACHINES: u32 = 48;

/// The distances on the floor, in metres. The source gives no lengths: these are those of a common raised floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// Side of the square that a rack takes with its share of the aisles.
    pub rack_m: f64,
    /// The width of the aisle between two pods.
    pub aisle_m: f64,
    /// The height from a rack to the tray, at each end of a cable.
    pub rise_m: f64,
}

impl Default for Floor {
    fn default() -> Floor {
        Floor { rack_m: 1.2, aisle_m: 1.2, rise_m: 2.0 }
    }
}

/// Cables of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// The number of cables.
    pub cables: u64,
    /// The number of bundles of cables.
    pub bundles: u64,
    /// The most cables in a bundle.
    pub bundle_cables: u32,
    /// The length of all cables, in metres.
    pub length_m: f64,
    /// The length of the longest cable.
    pub longest_m: f64,
}

/// The cables of a fat-tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cables {
    /// Ports of a switch.
    pub k: u32,
    /// Racks of a pod's machines.
    pub pod_racks: u32,
    /// Racks in all, including those of the pod switches.
    pub racks: u32,
    /// Switches of a pod, which are packaged as one pod switch.
    pub pod_switches: u32,
    /// The most cores that stand in a pod.
    pub pod_cores: u32,
    /// Ports of a pod switch to machines and cores.
    pub user_ports: u32,
    /// All ports of a pod switch's switches.
    pub total_ports: u32,
    /// Cables inside a pod switch, between edge and aggregation.
    pub internal_cables: u32,
    /// Columns and rows of the grid of pods.
    pub grid: [u32; 2],
    /// Cells of this grid without a pod.
    pub grid_empty: u32,
    /// The floor for which lengths are computed.
    pub floor: Floor,
    /// Cables between racks and their pod switch.
    pub machines: Run,
    /// Cables between pod switches and cores in the same pod.
    pub cores_near: Run,
    /// Cables between pod switches and cores in other pods.
    pub cores_far: Run,
    /// The length of all cables that leave a rack, in metres.
    pub total_length_m: f64,
    /// The same length if racks and pods stand in one row each, for comparison.
    pub row_length_m: f64,
}

/// A grid of racks or pods on the floor.
#[derive(Clone, Copy)]
struct Grid {
    columns: u32,
}

impl Grid {
    fn square(places: u32) -> Grid {
        Grid { columns: (1..).find(|c| c * c >= places).unwrap_or(1) }
    }
    fn rows(self, places: u32) -> u32 {
        places.div_ceil(self.columns)
    }
    fn distance(self, a: u32, b: u32) -> u32 {
        let place = |n: u32| (n % self.columns, n / self.columns);
        let ((x, y), (u, v)) = (place(a), place(b));
        x.abs_diff(u) + y.abs_diff(v)
    }
    /// The cell with the smallest sum of distances to all others.
    fn middle(self, places: u32) -> u32 {
        let sum = |&n: &u32| (0..places).map(|m| self.distance(n, m)).sum::<u32>();
        (0..places).min_by_key(sum).unwrap_or(0)
    }
}

impl Cables {
    /// Computes the cables of a fat-tree on a floor.
    pub fn new(tree: FatTree, floor: Floor) -> Cables {
        let (k, half) = (tree.k(), tree.half());
        let pod_machines = half * half;
        let pod_racks = pod_machines.div_ceil(RACK_MACHINES);
        let pod_grid = Grid::square(pod_racks + 1);
        let grid = Grid::square(k);
        let (machines, near, far) = lengths(tree, floor, pod_grid, grid);
        let row = Grid { columns: u32::MAX };
        let (m, n, f) = lengths(tree, floor, row, row);
        let total = |runs: [Run; 3]| runs.iter().map(|r| r.length_m).sum::<f64>();
        Cables {
            k,
            pod_racks,
            racks: k * (pod_racks + 1),
            pod_switches: k,
            pod_cores: near.bundle_cables,
            user_ports: 2 * pod_machines,
            total_ports: k * k,
            internal_cables: pod_machines,
            grid: [grid.columns, grid.rows(k)],
            grid_empty: grid.columns * grid.rows(k) - k,
            floor,
            machines,
            cores_near: near,
            cores_far: far,
            total_length_m: total([machines, near, far]),
            row_length_m: total([m, n, f]),
        }
    }
}

/// The cables if racks and pods stand in these grids: to machines, to cores of the same pod, and to cores of other
/// pods.
fn lengths(tree: FatTree, floor: Floor, pod_grid: Grid, grid: Grid) -> (Run, Run, Run) {
    let (k, half) = (tree.k(), tree.half());
    let pod_machines = half * half;
    let racks = pod_machines.div_ceil(RACK_MACHINES);
    let rise = 2.0 * floor.rise_m;
    let middle = pod_grid.middle(racks + 1);
    let mut machines = Run::default();
    for (i, place) in (0..=racks).filter(|&place| place != middle).enumerate() {
        let cables = RACK_MACHINES.min(pod_machines - i as u32 * RACK_MACHINES);
        let length = rise + f64::from(pod_grid.distance(place, middle)) * floor.rack_m;
        machines.add(k.into(), cables, length);
    }
    let side = |places: u32, grid: Grid| f64::from(grid.columns.min(places));
    // A pod is as deep as it is wide. In a row of racks it is one rack deep, and the next pod still stands beside it.
    let pitch = side(racks + 1, pod_grid) * floor.rack_m + floor.aisle_m;
    // Core n stands in pod n mod k: k/4 in each where 4 divides k.
    let cores_at = |pod: u32| pod_machines / k + u32::from(pod < pod_machines % k);
    let (mut near, mut far) = (Run::default(), Run::default());
    for at in 0..k {
        for from in 0..k {
            let length = rise + f64::from(grid.distance(at, from)) * pitch;
            let run = if at == from { &mut near } else { &mut far };
            run.add(1, cores_at(at), length);
        }
    }
    (machines, near, far)
}

impl Run {
    /// Adds `times` bundles of `cables` cables of one length.
    fn add(&mut self, times: u64, cables: u32, length_m: f64) {
        if cables == 0 {
            return;
        }
        self.cables += times * u64::from(cables);
        self.bundles += times;
        self.bundle_cables = self.bundle_cables.max(cables);
        self.length_m += times as f64 * f64::from(cables) * length_m;
        self.longest_m = self.longest_m.max(length_m);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packaging_of_3_3() {
        let c = Cables::new(FatTree::new(48).unwrap(), Floor::default());
        // "each pod consists of 12 racks with 48 machines each", "1,152 user-facing ports", "2,304 total ports".
        assert_eq!((c.pod_racks, c.user_ports, c.total_ports, c.internal_cables), (12, 1_152, 2_304, 576));
        // "each will house 12 of the required core switches"; cables "move in sets of 12 from pod to pod and in sets of 48 from
        // racks to pod switches"; "a 7x7 grid (with one missing spot)".
        assert_eq!((c.pod_cores, c.cores_far.bundle_cables, c.machines.bundle_cables), (12, 12, 48));
        assert_eq!((c.grid, c.grid_empty), ([7, 7], 1));
        assert_eq!((c.machines.cables, c.machines.bundles), (27_648, 576));
        assert_eq!((c.cores_near.cables, c.cores_far.cables, c.cores_far.bundles), (576, 27_072, 48 * 47));
        assert!(c.total_length_m < c.row_length_m / 3.0, "{} {}", c.total_length_m, c.row_length_m);
    }

    #[test]
    fn every_link_is_a_cable_whatever_the_size() {
        for k in [2, 4, 6, 10, 48, 254] {
            let tree = FatTree::new(k).unwrap();
            let c = Cables::new(tree, Floor::default());
            assert_eq!(c.machines.cables, u64::from(tree.hosts()));
            assert_eq!(c.cores_near.cables + c.cores_far.cables, u64::from(tree.hosts()), "k = {k}");
            assert_eq!(u64::from(c.internal_cables * k), u64::from(tree.hosts()));
            assert!(c.total_length_m <= c.row_length_m + 1e-6);
        }
    }

    #[test]
    fn a_length_by_hand() {
        // k = 4: one rack beside each pod switch, four pods in a square of 2 x 2; a core in each.
        let c = Cables::new(FatTree::new(4).unwrap(), Floor { rack_m: 1.0, aisle_m: 2.0, rise_m: 0.5 });
        assert_eq!((c.pod_racks, c.grid, c.machines.longest_m), (1, [2, 2], 2.0));
        assert_eq!(c.machines.length_m, 16.0 * 2.0);
        // A pod is two racks wide: 4 m from pod to pod, 8 m across.
        assert_eq!(c.cores_near.length_m, 4.0);
        assert_eq!(c.cores_far.length_m, 4.0 * (5.0 + 5.0 + 9.0));
    }
}
