//! The processor's time-stamp counter, to measure the cost of a frame.
#![allow(unsafe_code)]

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
