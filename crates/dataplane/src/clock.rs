//! The processor's time-stamp counter, to measure the cost of a frame, the kernel's clock, and the clock of a loop.
#![allow(unsafe_code)]

use sluicenet_proto::time::{Duration, Instant};

/// The clock of a loop: the time since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock(std::time::Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Clock {
        Clock(std::time::Instant::now())
    }

    /// The time.
    pub fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.0.elapsed().as_nanos() as u64)
    }
}

/// The kernel's clock in nanoseconds (`CLOCK_MONOTONIC`): other programs on the computer read the same.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The value of the processor's time-stamp counter, or `None` on a processor without one.
#[inline]
pub fn ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every x86-64 has the instruction, and Linux lets programs use it.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Ticks since [`ticks`] showed `before`.
pub fn since(before: Option<u64>) -> Option<u64> {
    Some(ticks()?.wrapping_sub(before?))
}
