//! Sets of ports.

use super::Port;

/// The most ports of a switch.
pub const PORTS_MAX: usize = 1024;
const WORDS: usize = PORTS_MAX / 64;

/// A set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports([u64; WORDS]);

impl Ports {
    /// No port.
    pub const NONE: Ports = Ports([0; WORDS]);
    /// All ports.
    pub const ALL: Ports = Ports([u64::MAX; WORDS]);

    /// Adds a port.
    #[inline]
    pub fn insert(&mut self, k: Port) {
        self.0[k / 64] |= 1 << (k % 64);
    }

    /// Removes a port.
    #[inline]
    pub fn remove(&mut self, k: Port) {
        self.0[k / 64] &= !(1 << (k % 64));
    }

    /// Whether a port is in the set.
    #[inline]
    pub fn contains(&self, k: Port) -> bool {
        self.0[k / 64] >> (k % 64) & 1 != 0
    }

    /// Adds the ports of words of 64 bits each.
    pub fn add_words(&mut self, words: &[u64]) {
        self.0.iter_mut().zip(words).for_each(|(own, word)| *own |= word);
    }

    /// The ports, in order.
    pub fn iter(&self) -> impl Iterator<Item = Port> + '_ {
        (0..PORTS_MAX).filter(|&k| self.contains(k))
    }
}

impl FromIterator<Port> for Ports {
    fn from_iter<I: IntoIterator<Item = Port>>(ports: I) -> Ports {
        let mut set = Ports::NONE;
        ports.into_iter().for_each(|k| set.insert(k));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_set_has_what_was_put_in() {
        let own = [0, 5, 63, 64, 511, 1_023];
        let mut set: Ports = own.into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), own);
        set.remove(64);
        set.add_words(&[2, 0, 4]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 1, 5, 63, 130, 511, 1_023]);
        assert!(!set.contains(64) && Ports::ALL.contains(64) && Ports::NONE == Ports::default());
    }
}
