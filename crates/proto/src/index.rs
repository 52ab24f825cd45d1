//! An index of numbers by key, for look-ups on a frame's path.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

/// Places at which a key may be in the table, one behind the other.
const WAYS: usize = 4;
/// Places for each key, at least. With two of them, one key in hundreds finds none free.
const PLACES: usize = 2;
/// No number.
const NONE: u32 = u32::MAX;
/// Odd, and without a pattern: the golden ratio's fraction.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    /// [`NONE`] in a free place.
    number: u32,
}

/// Numbers by key. A key's hash says where it is in a table. A key whose places are taken is in a search tree. So the usual
/// look-up reads one cache line, and none takes long, whatever keys a peer chooses.
#[derive(Clone, Debug)]
pub struct Index<K> {
    /// A power of two of places, and those behind the last one; empty before the first key.
    table: Vec<Entry<K>>,
    /// The upper bits of a hash that are a place are those from this one on.
    shift: u32,
    others: BTreeMap<K, u32>,
    len: usize,
}

impl<K> Default for Index<K> {
    fn default() -> Index<K> {
        Index { table: Vec::new(), shift: u64::BITS - 1, others: BTreeMap::new(), len: 0 }
    }
}

impl<K: Copy + Ord + Hash> Index<K> {
    /// Number of keys.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn home(&self, key: &K) -> usize {
        let mut hash = Spread(0);
        key.hash(&mut hash);
        (hash.0 >> (self.shift & 63)) as usize
    }

    /// The number of a key.
    #[inline(always)]
    pub fn get(&self, key: &K) -> Option<usize> {
        let home = self.home(key);
        // An empty table has no place.
        for entry in self.table.get(home..home + WAYS)? {
            if entry.key == *key && entry.number != NONE {
                return Some(entry.number as usize);
            }
        }
        self.find_other(key)
    }

    /// The address of a key's first place, for a caller that prefetches memory.
    #[inline(always)]
    pub fn place_line(&self, key: &K) -> *const u8 {
        self.table.as_ptr().wrapping_add(self.home(key)).cast()
    }

    #[cold]
    fn find_other(&self, key: &K) -> Option<usize> {
        self.others.get(key).map(|&number| number as usize)
    }

    /// Adds a key that has no number yet.
    pub fn insert(&mut self, key: K, number: usize) {
        debug_assert!(self.get(&key).is_none());
        assert!(number < NONE as usize);
        self.len += 1;
        if self.table.len() < PLACES * self.len + WAYS - 1 {
            self.grow(key);
        }
        self.enter(key, number as u32);
    }

    fn enter(&mut self, key: K, number: u32) {
        let home = self.home(&key);
        match self.table[home..home + WAYS].iter_mut().find(|entry| entry.number == NONE) {
            Some(place) => *place = Entry { key, number },
            None => _ = self.others.insert(key, number),
        }
    }

    /// Doubles the table. A free place has `any` key.
    fn grow(&mut self, any: K) {
        let keys: Vec<(K, usize)> = self.iter().collect();
        let places = (PLACES * self.len).next_power_of_two().max(8);
        self.others.clear();
        self.table.clear();
        self.table.resize(places + WAYS - 1, Entry { key: any, number: NONE });
        self.shift = u64::BITS - places.trailing_zeros();
        keys.into_iter().for_each(|(key, number)| self.enter(key, number as u32));
    }

    /// Removes a key. Returns its number.
    pub fn remove(&mut self, key: &K) -> Option<usize> {
        let home = self.home(key);
        let entry = self.table.get_mut(home..home + WAYS)?.iter_mut().find(|e| e.key == *key && e.number != NONE);
        let number = match entry {
            Some(entry) => core::mem::replace(&mut entry.number, NONE),
            None => self.others.remove(key)?,
        };
        self.len -= 1;
        Some(number as usize)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        *self = Index::default();
    }

    /// All keys and their numbers, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (K, usize)> + '_ {
        let entries = self.table.iter().filter(|entry| entry.number != NONE).map(|entry| (entry.key, entry.number));
        let others = self.others.iter().map(|(&key, &number)| (key, number));
        entries.chain(others).map(|(key, number)| (key, number as usize))
    }
}

/// A hash whose upper bits depend on all bits of a key. The same key has the same hash everywhere.
struct Spread(u64);

impl Spread {
    #[inline(always)]
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(SPREAD);
    }
}

impl Hasher for Spread {
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            self.add(part.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        }
    }
    #[inline(always)]
    fn write_u8(&mut self, word: u8) {
        self.add(word.into());
    }
    #[inline(always)]
    fn write_u16(&mut self, word: u16) {
        self.add(word.into());
    }
    #[inline(always)]
    fn write_u32(&mut self, word: u32) {
        self.add(word.into());
    }
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }
    #[inline(always)]
    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// A key whose hash its owner chooses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Chosen(u16, u8);

    impl Hash for Chosen {
        fn hash<H: Hasher>(&self, hash: &mut H) {
            hash.write_u8(self.1);
        }
    }

    fn it_is_a_map<K: Copy + Ord + Hash + core::fmt::Debug>(mut key: impl FnMut(&mut Rng) -> K) -> usize {
        let mut rng = Rng::from_words(&[3]);
        let (mut index, mut expected) = (Index::default(), BTreeMap::new());
        let mut others = 0;
        for number in 0..20_000 {
            let key = key(&mut rng);
            assert_eq!(index.get(&key), expected.get(&key).copied());
            match expected.remove(&key) {
                Some(number) => assert_eq!(index.remove(&key), Some(number)),
                None => {
                    index.insert(key, number);
                    expected.insert(key, number);
                }
            }
            if number % 100 == 0 {
                let mut all: Vec<(K, usize)> = index.iter().collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(expected.iter().map(|(&key, &number)| (key, number))));
            }
            assert_eq!((index.len(), index.is_empty()), (expected.len(), expected.is_empty()));
            others = others.max(index.others.len());
        }
        index.clear();
        assert!(index.is_empty() && expected.keys().all(|key| index.get(key).is_none()));
        others
    }

    #[test]
    fn keys_of_servers_are_in_the_table_and_keys_of_one_hash_in_the_tree() {
        let others = it_is_a_map(|rng| (rng.below(300) as u32) << 8 | rng.below(2) as u32);
        assert!(others <= 8, "{others}");
        it_is_a_map(|rng| (rng.below(3) as u16, [rng.below(50) as u8; 6]));
        assert!(it_is_a_map(|rng| Chosen(rng.below(500) as u16, 1)) > 200);
    }
}
