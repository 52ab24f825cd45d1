//! Source routing in a tree (Crisan 2014, 2.3.1): the source of a frame names a switch of the top level, and with it the
//! path. On a wire this is the frame's VLAN.
//!
//! The number of a path is the position of its top-level switch. Paths whose lower digits are equal are the same path for
//! hosts that meet further down.

use super::xgft::{SwitchName, Xgft};
use crate::frame::HostId;
use alloc::vec::Vec;

/// The path of a frame, where its source chooses one; the default path without a number.
pub type Path = Option<u16>;

/// VLAN of the path with number 0; the others follow. VLAN 1 and frames without a VLAN take the default path.
pub const FIRST_VID: u16 = 2;
/// Paths that VLANs can name: 4095 is reserved (802.1Q, 9.6).
pub const PATHS_MAX: u32 = 4095 - FIRST_VID as u32;

/// The path that a VLAN names, among so many; none for the default path.
///
/// # Errors
/// If the VLAN names no path.
pub fn path_of_vid(vid: u16, paths: u32) -> Result<Path, NoPath> {
    match vid.checked_sub(FIRST_VID) {
        None => Ok(None),
        Some(path) if u32::from(path) < paths => Ok(Some(path)),
        Some(_) => Err(NoPath),
    }
}

/// The VLAN of a path.
pub fn vid_of_path(path: u16) -> u16 {
    path + FIRST_VID
}

/// The named path does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPath;

/// The paths of a tree whose hosts have one link each, and whose switches have one to each parent.
#[derive(Clone, Debug)]
pub struct Paths(Xgft);

impl Paths {
    /// The paths of a tree; none if its hosts have several links, if links are parallel, or if VLANs cannot name all
    /// paths.
    pub fn new(tree: &Xgft) -> Option<Paths> {
        let has_names =
            tree.parents(0) == 1 && !tree.has_parallel_links() && tree.positions(tree.levels()) <= PATHS_MAX;
        has_names.then(|| Paths(tree.clone()))
    }

    /// All paths.
    pub fn count(&self) -> u32 {
        self.0.positions(self.0.levels())
    }

    /// The path from any host that meets `dst` at `level`, by the digits of the destination (D-mod-k).
    fn by_destination(&self, dst: HostId, level: u8) -> u32 {
        let digit = |l: u8| {
            let below = if l == 1 { 1 } else { self.0.leaves_below(l - 1) };
            dst / below % self.0.parents(l) * self.0.positions(l)
        };
        (1..level).map(digit).sum()
    }

    /// The paths between two hosts beside the default one.
    pub fn others(&self, src: HostId, dst: HostId) -> Vec<u16> {
        if src.max(dst) >= self.0.leaves() {
            return Vec::new();
        }
        let level = self.0.nca_level(src, dst);
        let default = self.by_destination(dst, level);
        (0..self.0.positions(level)).filter(|&path| path != default).map(|path| path as u16).collect()
    }
}

/// The upward ports of one switch by path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPorts {
    first_up: u16,
    parents: u32,
    positions: u32,
    leaves: HostId,
    paths: u32,
}

impl PathPorts {
    /// Those of switch `s` of a tree without parallel links.
    pub fn new(tree: &Xgft, s: SwitchName) -> PathPorts {
        debug_assert!(!tree.has_parallel_links());
        PathPorts {
            first_up: tree.children(s.level) as u16,
            parents: tree.parents(s.level),
            positions: tree.positions(s.level),
            leaves: tree.leaves(),
            paths: tree.positions(tree.levels()),
        }
    }

    /// Whether a port leads up.
    #[inline(always)]
    pub fn is_up(&self, port: u16) -> bool {
        port >= self.first_up && u32::from(port - self.first_up) < self.parents
    }

    /// The upward ports.
    pub fn ups(&self) -> core::ops::Range<u16> {
        self.first_up..self.first_up + self.parents as u16
    }

    /// The port for a frame to `dst` on a path, where `routed` is the port of the default path.
    ///
    /// # Errors
    /// If the frame names a path that does not exist.
    #[inline(always)]
    pub fn port(&self, path: Path, dst: HostId, routed: u16) -> Result<u16, NoPath> {
        let Some(path) = path else { return Ok(routed) };
        if u32::from(path) >= self.paths {
            return Err(NoPath);
        }
        if !self.is_up(routed) || dst >= self.leaves {
            return Ok(routed);
        }
        Ok(self.first_up + (u32::from(path) / self.positions % self.parents) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::Policy;
    use crate::routing::probe::Probe;
    use crate::routing::tree::TreeRouter;
    use alloc::collections::BTreeSet;
    use alloc::vec;

    /// The switches that a frame passes on a path.
    fn walk(tree: &Xgft, (src, dst): (HostId, HostId), path: Path) -> Vec<SwitchName> {
        let probe = Probe { src, dst, flow: 0, frame: 0 };
        let mut at = tree.leaf_parent(src, 0);
        let mut passed = vec![at];
        loop {
            let router = TreeRouter::new(tree, at, Policy::DModK, 1, &[]);
            let routed = router.route(&probe).unwrap();
            let port = u32::from(PathPorts::new(tree, at).port(path, dst, routed).unwrap());
            let children = tree.children(at.level);
            at = match port.checked_sub(children) {
                Some(parent) => tree.parent(at, parent),
                None if at.level == 1 => {
                    assert_eq!(at.group * children + port, dst);
                    return passed;
                }
                None => {
                    let position = at.position % tree.positions(at.level - 1);
                    SwitchName { level: at.level - 1, group: at.group * children + port, position }
                }
            };
            passed.push(at);
        }
    }

    #[test]
    fn each_path_is_another_one_and_every_frame_arrives() {
        for tree in [Xgft::k_ary_n_tree(2, 4), Xgft::fat_tree(4), Xgft::new(&[3, 2, 2], &[1, 2, 3])] {
            let tree = tree.unwrap();
            let paths = Paths::new(&tree).unwrap();
            for src in 0..tree.leaves() {
                for dst in (0..tree.leaves()).filter(|&dst| dst != src) {
                    let others = paths.others(src, dst);
                    let walks: BTreeSet<Vec<SwitchName>> =
                        others.iter().map(|&path| walk(&tree, (src, dst), Some(path))).collect();
                    assert_eq!(walks.len(), others.len(), "{src} {dst}: each is another path");
                    assert!(!walks.contains(&walk(&tree, (src, dst), None)), "{src} {dst}: none is the default path");
                    assert_eq!(others.len() as u32 + 1, tree.positions(tree.nca_level(src, dst)));
                }
            }
        }
    }

    #[test]
    fn a_path_that_does_not_exist_is_refused() {
        let tree = Xgft::k_ary_n_tree(2, 3).unwrap();
        let ports = PathPorts::new(&tree, tree.leaf_parent(0, 0));
        assert_eq!((ports.port(Some(4), 7, 2), ports.port(Some(3), 7, 2)), (Err(NoPath), Ok(3)));
        assert_eq!(Paths::new(&tree).unwrap().count(), 4);
        assert!(Paths::new(&Xgft::new(&[2, 2], &[2, 2]).unwrap()).is_none(), "hosts with two links");
        assert!(Paths::new(&Xgft::with_links(&[2, 2], &[1, 2], &[1, 2]).unwrap()).is_none(), "parallel links");
        assert!(Paths::new(&Xgft::new(&[2, 2, 2], &[1, 64, 64]).unwrap()).is_none(), "4,096 paths");
        assert_eq!((path_of_vid(0, 4), path_of_vid(1, 4), path_of_vid(2, 4)), (Ok(None), Ok(None), Ok(Some(0))));
        assert_eq!((path_of_vid(5, 4), path_of_vid(6, 4), vid_of_path(3)), (Ok(Some(3)), Err(NoPath), 5));
    }
}
