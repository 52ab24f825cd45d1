//! The library's own descriptors: their numbers are not in a program's way, and a program that closes all it did not open
//! leaves them.

use crate::kernel;
use crate::mirror::Whole;
use crate::table::FDS;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The library takes numbers from here on, where the process may have more than that: `select` takes those below.
const HIGH: u64 = 1024;

static OWN: [AtomicBool; FDS] = [const { AtomicBool::new(false) }; FDS];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The smallest number the library takes. Where a process may have few numbers, their upper half is enough.
pub fn least() -> RawFd {
    // SAFETY: a limit of zeros is one, and is overwritten.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the limit.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if got == 0 { (limit.rlim_cur / 2).min(HIGH) as RawFd } else { HIGH as RawFd }
}

/// Whether a descriptor is the library's.
#[inline]
pub fn is_own(fd: RawFd) -> bool {
    OWN.get(fd as usize).is_some_and(|own| own.load(Ordering::Relaxed))
}

/// A descriptor is the library's from now on, or no more.
pub fn set_own(fd: RawFd, is: bool) {
    if let Some(own) = OWN.get(fd as usize)
        && own.swap(is, Ordering::Relaxed) != is
    {
        COUNT.fetch_add(if is { 1 } else { u32::MAX }, Ordering::Relaxed);
    }
}

/// The parts of a range of descriptors that are not the library's.
pub fn others(first: u32, last: u32) -> Vec<(u32, u32)> {
    let mut parts = Vec::new();
    let mut from = Some(first);
    if COUNT.load(Ordering::Relaxed) > 0 {
        for own in (first..=last.min(FDS as u32 - 1)).filter(|&fd| is_own(fd as RawFd)) {
            if let Some(from) = from.filter(|&from| from < own) {
                parts.push((from, own - 1));
            }
            from = own.checked_add(1);
        }
    }
    parts.extend(from.filter(|&from| from <= last).map(|from| (from, last)));
    parts
}

/// A descriptor of the library's, as long as this value lives.
#[derive(Debug)]
pub struct Own(RawFd);

impl Own {
    /// A copy of `fd` with a large number, or `fd` itself where no large number is left.
    pub fn new(fd: OwnedFd) -> Own {
        let fd = fd.into_raw_fd();
        // SAFETY: a descriptor of ours.
        let copy = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, least() as usize) };
        let own = if copy >= 0 {
            close(fd);
            copy
        } else {
            fd
        };
        set_own(own, true);
        Own(own)
    }
}

/// Closes a descriptor of ours. The kernel's `close` is a point where a thread may be cancelled; this one is not.
fn close(fd: RawFd) {
    let _whole = Whole::begin();
    // SAFETY: a descriptor without another owner.
    unsafe { kernel::close(fd) };
}

impl AsRawFd for Own {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        set_own(self.0, false);
        close(self.0);
    }
}
