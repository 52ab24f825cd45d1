//! Virtual time in whole picoseconds.
//!
//! A byte at 10/25/40/100/200/400/800 Gb/s takes 800/320/200/80/40/20/10 ps: whole in picoseconds, never in nanoseconds.

use core::ops::{Add, AddAssign, Sub, SubAssign};

/// A duration in picoseconds, at most 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(pub u64);

/// A point in virtual time, in picoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Duration {
    /// No time.
    pub const ZERO: Duration = Duration(0);
    /// The longest duration, for a deadline that never comes.
    pub const MAX: Duration = Duration(u64::MAX);

    /// From picoseconds.
    pub const fn from_ps(ps: u64) -> Duration {
        Duration(ps)
    }
    /// From nanoseconds.
    pub const fn from_ns(ns: u64) -> Duration {
        Duration(ns * 1_000)
    }
    /// From microseconds.
    pub const fn from_us(us: u64) -> Duration {
        Duration(us * 1_000_000)
    }
    /// From milliseconds.
    pub const fn from_ms(ms: u64) -> Duration {
        Duration(ms * 1_000_000_000)
    }
    /// From seconds.
    pub const fn from_secs(s: u64) -> Duration {
        Duration(s * 1_000_000_000_000)
    }
    /// In picoseconds.
    #[inline(always)]
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// In whole microseconds, rounded down.
    #[inline(always)]
    pub const fn as_us(self) -> u64 {
        self.0 / 1_000_000
    }
    /// In seconds, for people and plots; never used in a model.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 * 1e-12
    }
    /// The sum, or the longest duration.
    #[inline(always)]
    pub const fn saturating_add(self, other: Duration) -> Duration {
        Duration(self.0.saturating_add(other.0))
    }
    /// The product, or the longest duration.
    #[inline(always)]
    pub const fn saturating_mul(self, factor: u64) -> Duration {
        Duration(self.0.saturating_mul(factor))
    }
}

impl Instant {
    /// The start of the run.
    pub const ZERO: Instant = Instant(0);
    /// A point in time that never comes.
    pub const MAX: Instant = Instant(u64::MAX);

    /// In picoseconds since the start.
    #[inline(always)]
    pub const fn as_ps(self) -> u64 {
        self.0
    }
    /// Time since `earlier`, or zero if `earlier` is later.
    #[inline(always)]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
    /// The sum, or the point in time that never comes.
    #[inline(always)]
    pub const fn saturating_add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline(always)]
    fn add(self, d: Duration) -> Instant {
        Instant(self.0 + d.0)
    }
}
impl AddAssign<Duration> for Instant {
    #[inline(always)]
    fn add_assign(&mut self, d: Duration) {
        self.0 += d.0;
    }
}
impl Sub<Duration> for Instant {
    type Output = Instant;
    #[inline(always)]
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0 - d.0)
    }
}
impl Add for Duration {
    type Output = Duration;
    #[inline(always)]
    fn add(self, d: Duration) -> Duration {
        Duration(self.0 + d.0)
    }
}
impl AddAssign for Duration {
    #[inline(always)]
    fn add_assign(&mut self, d: Duration) {
        self.0 += d.0;
    }
}
impl Sub for Duration {
    type Output = Duration;
    #[inline(always)]
    fn sub(self, d: Duration) -> Duration {
        Duration(self.0 - d.0)
    }
}
impl SubAssign for Duration {
    #[inline(always)]
    fn sub_assign(&mut self, d: Duration) {
        self.0 -= d.0;
    }
}
