//! Rates and sizes.

use crate::time::Duration;

/// A transmission rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

impl Rate {
    /// From gigabits per second.
    pub const fn gbps(g: u64) -> Rate {
        Rate(g * 1_000_000_000)
    }
    /// From megabits per second.
    pub const fn mbps(m: u64) -> Rate {
        Rate(m * 1_000_000)
    }
    /// In bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }
    /// In kb/s, at most 2^32 - 1.
    pub fn as_kbps(self) -> u32 {
        u32::try_from(self.0 / 1_000).unwrap_or(u32::MAX)
    }
    /// Time to send `bytes`, rounded up to a picosecond.
    pub fn time_for(self, bytes: u64) -> Duration {
        let ps = (bytes as u128 * 8_000_000_000_000).div_ceil(self.0 as u128);
        Duration(u64::try_from(ps).unwrap_or(u64::MAX))
    }
    /// Bytes sent in `d`, rounded up.
    pub fn bytes_in(self, d: Duration) -> u64 {
        let bytes = (d.0 as u128 * self.0 as u128).div_ceil(8_000_000_000_000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
    /// Picoseconds per byte, in units of 2^-16 ps, rounded up: exact for every rate at which a byte takes a whole number of
    /// picoseconds.
    pub fn ps_per_byte_q16(self) -> u64 {
        (8_000_000_000_000u128 << 16).div_ceil(self.0 as u128) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_whole_in_picoseconds_at_every_ethernet_rate() {
        for (gbps, ps) in [(10, 800), (25, 320), (40, 200), (100, 80), (200, 40), (400, 20), (800, 10)] {
            assert_eq!(Rate::gbps(gbps).time_for(1), Duration(ps));
            assert_eq!(Rate::gbps(gbps).ps_per_byte_q16(), ps << 16);
        }
    }

    #[test]
    fn time_and_bytes_are_inverse() {
        let r = Rate::gbps(10);
        assert_eq!(r.bytes_in(r.time_for(1538)), 1538);
        assert_eq!(Rate(3_000_000_000).time_for(3), Duration(8_000));
    }
}
