//! A set of upward ports of a switch, counted from the first upward port.

use super::PORTS_MAX;

/// A set of at most 127 upward ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpPorts(u128);

const _: () = assert!(PORTS_MAX / 2 < u128::BITS);

impl UpPorts {
    /// The empty set.
    pub const NONE: UpPorts = UpPorts(0);

    /// Ports 0 to `count`-1.
    pub fn first(count: u32) -> UpPorts {
        assert!(count < u128::BITS);
        UpPorts((1 << count) - 1)
    }

    /// Whether `port` is in the set.
    pub fn contains(self, port: u16) -> bool {
        u32::from(port) < u128::BITS && self.0 >> port & 1 != 0
    }

    /// Adds `port`.
    pub fn insert(&mut self, port: u16) {
        self.0 |= 1 << port;
    }

    /// Removes `port`.
    pub fn remove(&mut self, port: u16) {
        self.0 &= !(1 << port);
    }

    /// The ports that are not in `other`.
    pub fn without(self, other: UpPorts) -> UpPorts {
        UpPorts(self.0 & !other.0)
    }

    /// The ports in both sets.
    pub fn and(self, other: UpPorts) -> UpPorts {
        UpPorts(self.0 & other.0)
    }

    /// The ports in either set.
    pub fn or(self, other: UpPorts) -> UpPorts {
        UpPorts(self.0 | other.0)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Number of ports in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The ports in the set, lowest first.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let port = left.trailing_zeros() as u16;
            left &= left.checked_sub(1)?;
            Some(port)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn ports_are_counted_and_come_in_order() {
        let mut set = UpPorts::first(127);
        assert_eq!((set.count(), set.contains(126), set.contains(127), set.contains(500)), (127, true, false, false));
        (0..125).for_each(|p| set.remove(p));
        assert_eq!(set.iter().collect::<Vec<_>>(), [125, 126]);
        set.insert(3);
        assert_eq!(set.without(UpPorts::first(10)).iter().collect::<Vec<_>>(), [125, 126]);
        assert!(UpPorts::NONE.is_empty() && UpPorts::NONE.iter().next().is_none());
    }
}
