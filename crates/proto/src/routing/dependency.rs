//! Cyclic buffer dependencies: the static check that lossless classes cannot deadlock.

use alloc::vec::Vec;

/// A directed graph of channels: an edge from `a` to `b` means that frames in `a`'s buffer can wait for space in `b`'s.
#[derive(Clone, Debug, Default)]
pub struct Dependencies {
    next: Vec<Vec<u32>>,
}

impl Dependencies {
    /// A graph of `channels` channels without edges.
    pub fn new(channels: usize) -> Dependencies {
        Dependencies { next: alloc::vec![Vec::new(); channels] }
    }

    /// Frames in `a` can wait for `b`.
    pub fn add(&mut self, a: u32, b: u32) {
        let list = &mut self.next[a as usize];
        if let Err(at) = list.binary_search(&b) {
            list.insert(at, b);
        }
    }

    /// The channels of a cycle, if there is one (Dally and Seitz 1987: without a cycle no deadlock is possible).
    pub fn cycle(&self) -> Option<Vec<u32>> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = alloc::vec![NEW; self.next.len()];
        for root in 0..self.next.len() as u32 {
            if state[root as usize] != NEW {
                continue;
            }
            // Depth first, with an explicit path: graphs may be deeper than the call stack.
            let mut path: Vec<(u32, usize)> = alloc::vec![(root, 0)];
            state[root as usize] = OPEN;
            while let Some((at, i)) = path.last_mut() {
                let Some(&to) = self.next[*at as usize].get(*i) else {
                    state[*at as usize] = DONE;
                    path.pop();
                    continue;
                };
                *i += 1;
                match state[to as usize] {
                    NEW => {
                        state[to as usize] = OPEN;
                        path.push((to, 0));
                    }
                    OPEN => {
                        let start = path.iter().position(|&(c, _)| c == to).unwrap_or(0);
                        return Some(path[start..].iter().map(|&(c, _)| c).collect());
                    }
                    _ => {}
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_found_and_a_line_is_not() {
        let mut d = Dependencies::new(6);
        for (a, b) in [(0, 1), (1, 2), (2, 3), (0, 3), (4, 2)] {
            d.add(a, b);
        }
        assert_eq!(d.cycle(), None);
        d.add(3, 5);
        d.add(5, 1);
        assert_eq!(d.cycle(), Some(alloc::vec![1, 2, 3, 5]));
    }
}
