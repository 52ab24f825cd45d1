//! Serial numbers that wrap.

use core::cmp::Ordering;

/// A TCP sequence number: compared modulo 2^32 (RFC 9293, 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Distance from `other` to `self`, negative when `self` comes first.
    #[inline(always)]
    pub fn since(self, other: SeqNumber) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl core::ops::Add<u32> for SeqNumber {
    type Output = SeqNumber;
    #[inline(always)]
    fn add(self, bytes: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(bytes))
    }
}

impl core::ops::Sub<u32> for SeqNumber {
    type Output = SeqNumber;
    #[inline(always)]
    fn sub(self, bytes: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_sub(bytes))
    }
}

impl PartialOrd for SeqNumber {
    #[inline(always)]
    fn partial_cmp(&self, other: &SeqNumber) -> Option<Ordering> {
        self.since(*other).partial_cmp(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_wraps() {
        let a = SeqNumber(u32::MAX - 1);
        assert!(a < a + 3);
        assert_eq!((a + 3).since(a), 3);
        assert_eq!((a + 3) - 3, a);
    }
}
