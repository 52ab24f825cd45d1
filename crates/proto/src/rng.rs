//! Randomness provided by the caller: a mixing function for content-based choices and a small seeded generator.

/// Mixes 64 bits so that every input bit moves every output bit (the finaliser of SplitMix64).
#[inline(always)]
pub const fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A value that depends only on `words`: it is the same on every machine and thread.
pub fn hash_words(words: &[u64]) -> u64 {
    let mut h = 0x9e37_79b9_7f4a_7c15u64;
    for &w in words {
        h = mix64(h.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ w);
    }
    h
}

/// SplitMix64: one word of state, so that every guest and every query can own a stream.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A stream of its own for each list of words: a seed and the names of the stream's user.
    pub fn from_words(words: &[u64]) -> Rng {
        Rng(hash_words(words))
    }
    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }
    /// Uniform in `0..n`; `n` must not be 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((self.next_u64() as u128 * n as u128) >> 64) as u64
    }
    /// Uniform in `[0, 1)`, with 53 bits.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
    /// Shuffles a list; all orders are equally likely.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_repeat() {
        let mut a = Rng::from_words(&[1, 2]);
        let mut b = Rng::from_words(&[1, 3]);
        let x = a.next_u64();
        assert_ne!(x, b.next_u64());
        assert_eq!(x, Rng::from_words(&[1, 2]).next_u64());
    }

    #[test]
    fn every_order_is_as_likely() {
        let mut r = Rng::from_words(&[8]);
        let mut seen = alloc::collections::BTreeMap::new();
        for _ in 0..60_000 {
            let mut list = [0, 1, 2];
            r.shuffle(&mut list);
            *seen.entry(list).or_insert(0) += 1;
        }
        assert!(seen.len() == 6 && seen.values().all(|n| (9_500..10_500).contains(n)), "{seen:?}");
    }

    #[test]
    fn below_is_even() {
        let mut r = Rng::from_words(&[7]);
        let mut seen = [0u32; 5];
        for _ in 0..50_000 {
            seen[r.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
    }
}
