//! The map from destinations to virtual queues: the ports of the next switch, and the speeds of their links (Al-Fares 2012,
//! 5.2.1, "Packet Classification").

use crate::rng::mix64;
use crate::units::Rate;
use alloc::vec::Vec;

/// The least size of the table: searches in a small map nearly always end at the first slot, so that the processor can
/// predict them.
const SIZE_MIN: usize = 512;

/// The number of a virtual queue in a bump's table.
pub type QueueId = u16;

/// A port of the next switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Speed of its link.
    pub rate: Rate,
    /// The buffer of the port in bytes, if it is known.
    pub buffer_bytes: Option<u64>,
}

/// Which virtual queue the packets to a destination belong to. A destination is a number: that of a host in the simulator, a
/// MAC address on a wire.
///
/// The map is a hash table whose size is fixed when it is made: packets to a million unknown destinations use no memory.
#[derive(Clone, Debug)]
pub struct Map {
    /// A power of two, at most half full.
    slots: Vec<(u64, Option<QueueId>)>,
    /// The queue of destinations that are not listed.
    others: Option<QueueId>,
}

impl Map {
    /// A map of these destinations; where one is listed twice, the last entry counts. `others` is the queue of all other
    /// destinations: without one their packets pass the bump unseen.
    pub fn new(entries: &[(u64, QueueId)], others: Option<QueueId>) -> Map {
        let size = (2 * entries.len()).next_power_of_two().max(SIZE_MIN);
        let mut map = Map { slots: alloc::vec![(0, None); size], others };
        for &(destination, queue) in entries {
            let at = map.find(destination);
            map.slots[at] = (destination, Some(queue));
        }
        map
    }

    /// Where a destination is, or the vacant slot where its search ends.
    #[inline(always)]
    fn find(&self, destination: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = mix64(destination) as usize & mask;
        while self.slots[at].1.is_some() && self.slots[at].0 != destination {
            at = (at + 1) & mask;
        }
        at
    }

    /// The virtual queue of packets to `destination`.
    #[inline(always)]
    pub fn queue_of(&self, destination: u64) -> Option<QueueId> {
        self.slots[self.find(destination)].1.or(self.others)
    }

    /// Listed destinations with their queues, by number.
    pub fn entries(&self) -> Vec<(u64, QueueId)> {
        let mut entries: Vec<_> = self.slots.iter().filter_map(|&(to, queue)| Some((to, queue?))).collect();
        entries.sort_unstable();
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_destination_has_its_queue_and_others_have_theirs() {
        let entries: Vec<(u64, QueueId)> = (0..1_000).map(|n| (n * n * 7_919, (n % 48) as QueueId)).collect();
        let map = Map::new(&entries, Some(48));
        for &(to, queue) in &entries {
            assert_eq!(map.queue_of(to), Some(queue));
        }
        assert_eq!(map.queue_of(u64::MAX), Some(48));
        assert_eq!(Map::new(&entries, None).queue_of(3), None);
        assert_eq!(Map::new(&[], None).queue_of(0), None);
        assert_eq!(map.entries().len(), 1_000);
    }

    #[test]
    fn the_last_entry_of_a_destination_counts() {
        assert_eq!(Map::new(&[(5, 1), (5, 2)], None).queue_of(5), Some(2));
    }
}
