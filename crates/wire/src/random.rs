//! Random inputs for property tests; a failure names its case, and the next run repeats the same cases.

use std::vec::Vec;

/// Cases of a property test.
pub const CASES: u64 = 20_000;

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 to `below - 1`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.u64() % below
    }

    pub fn bool(&mut self) -> bool {
        self.u64() & 1 == 1
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        core::array::from_fn(|_| self.u64() as u8)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.u64() as u8).collect()
    }

    pub fn ipv4(&mut self) -> core::net::Ipv4Addr {
        core::net::Ipv4Addr::from(self.array::<4>())
    }
}

/// Runs `property` with a generator of its own for every case, and names the case that panics.
pub fn check(mut property: impl FnMut(&mut Random)) {
    for case in 0..CASES {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| property(&mut Random(case))));
        if let Err(panic) = result {
            std::eprintln!("failed in case {case}: property(&mut Random({case}))");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Feeds `parse` random bytes, and truncated or changed versions of `valid` frames: it must never panic.
///
/// `parse` returns whether it accepted the bytes; a parser that accepts everything or nothing fails the test.
pub fn never_panics(valid: impl Fn(&mut Random) -> Vec<u8>, parse: impl Fn(&[u8]) -> bool) {
    let mut seen = [false; 2];
    check(|random| {
        let len = random.below(100) as usize;
        seen[parse(&random.bytes(len)) as usize] = true;
        let mut bytes = valid(random);
        seen[parse(&bytes) as usize] = true;
        parse(&bytes[..random.below(bytes.len() as u64 + 1) as usize]);
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.u64() as u8;
        }
        parse(&bytes);
    });
    assert_eq!(seen, [true, true], "both refused and accepted something");
}
