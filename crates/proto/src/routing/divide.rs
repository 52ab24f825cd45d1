//! Division by a number known when the network is built, as one multiplication.

/// A divisor of 32-bit numbers.
#[derive(Clone, Copy, Debug)]
pub struct Divisor {
    magic: u64,
    /// All ones for a divisor of 1, whose magic number does not fit; keeps the quotient free of branches.
    identity: u32,
    divisor: u32,
}

impl Divisor {
    /// Prepares division by `divisor`, which must not be 0.
    pub const fn new(divisor: u32) -> Divisor {
        assert!(divisor != 0);
        // ceil(2^64 / d): exact for every 32-bit dividend (Lemire, Kaser, Kurz 2019); 2^64 itself does not fit for d = 1.
        let identity = if divisor == 1 { u32::MAX } else { 0 };
        Divisor { magic: (u64::MAX / divisor as u64).wrapping_add(1), identity, divisor }
    }

    /// `n / divisor`.
    #[inline(always)]
    pub const fn quotient(self, n: u32) -> u32 {
        ((self.magic as u128 * n as u128) >> 64) as u32 | (n & self.identity)
    }

    /// `n % divisor`.
    #[inline(always)]
    pub const fn remainder(self, n: u32) -> u32 {
        n - self.quotient(n) * self.divisor
    }

    /// The divisor itself.
    #[inline(always)]
    pub const fn get(self) -> u32 {
        self.divisor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_hardware() {
        let mut n = 1u32;
        for d in (1..2_000).chain([65_535, 1 << 20, u32::MAX - 1, u32::MAX]) {
            let q = Divisor::new(d);
            for _ in 0..50 {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                for n in [n, n % (4 * d.min(1 << 29)), d, d - 1, u32::MAX, 0] {
                    assert_eq!((q.quotient(n), q.remainder(n)), (n / d, n % d), "{n} / {d}");
                }
            }
        }
    }
}
