//! Guest memory whose file became shorter while it was mapped (HOSTILE 12).
//!
//! Access to a mapping beyond the end of its file raises SIGBUS, and no seal keeps a frontend from shortening the file. The
//! handler here puts pages of zeros in place of the missing ones, notes the access, and lets the program go on. Only
//! [registered](Watch) mappings are treated so; any other fault has the effect it had before.
#![allow(unsafe_code)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most mappings at once.
const MAX_WATCHES: usize = 4096;

/// A mapping the handler knows of: free while `base` is 0, being changed while it is 1.
struct Range {
    base: AtomicUsize,
    end: AtomicUsize,
    page: AtomicUsize,
    hit: AtomicBool,
}

static RANGES: [Range; MAX_WATCHES] = [const {
    Range {
        base: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        hit: AtomicBool::new(false),
    }
}; MAX_WATCHES];

/// How many of them were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The action for SIGBUS before ours.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// A mapping of shared memory that may become shorter.
#[derive(Debug)]
pub struct Watch(usize);

impl Watch {
    /// Watches over `len` bytes at `base`, of pages of `page` bytes.
    pub fn new(base: usize, len: usize, page: usize) -> io::Result<Watch> {
        install()?;
        for (k, range) in RANGES.iter().enumerate() {
            if range.base.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                range.end.store(base + len, Ordering::Relaxed);
                range.page.store(page, Ordering::Relaxed);
                range.hit.store(false, Ordering::Relaxed);
                range.base.store(base, Ordering::Release);
                USED.fetch_max(k + 1, Ordering::Release);
                return Ok(Watch(k));
            }
        }
        Err(io::Error::other(format!("more than {MAX_WATCHES} regions of guest memory")))
    }

    /// Whether a missing part of the mapping was accessed.
    #[inline(always)]
    pub fn was_hit(&self) -> bool {
        RANGES[self.0].hit.load(Ordering::Relaxed)
    }

    /// The mapping is going to be removed.
    pub fn end(&mut self) {
        RANGES[self.0].base.store(0, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    let before = BEFORE.get_or_init(|| {
        // SAFETY: `sigaction` is plain numbers, for which zeros are a value.
        let (mut new, mut old) = unsafe { std::mem::zeroed::<(libc::sigaction, libc::sigaction)>() };
        new.sa_sigaction = on_sigbus as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid; the handler does only permitted work.
        match unsafe { libc::sigaction(libc::SIGBUS, &new, &mut old) } {
            0 => Ok(old),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    });
    before.map(drop).map_err(io::Error::from_raw_os_error)
}

/// Does only work that is allowed in a signal handler: atomics, `mmap`, `sigaction`.
extern "C" fn on_sigbus(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid one.
    let at = unsafe { (*info).si_addr() } as usize;
    for range in &RANGES[..USED.load(Ordering::Acquire)] {
        let base = range.base.load(Ordering::Acquire);
        let end = range.end.load(Ordering::Relaxed);
        if base > 1 && (base..end).contains(&at) {
            let from = at & !(range.page.load(Ordering::Relaxed) - 1);
            let from = from.max(base);
            // SAFETY: replaces pages of a mapping of ours, which can no longer be reached, by pages of zeros; `errno` is kept
            // for the interrupted code.
            let mapped = unsafe {
                let errno = *libc::__errno_location();
                let access = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
                let mapped = libc::mmap(from as *mut libc::c_void, end - from, access, flags, -1, 0);
                *libc::__errno_location() = errno;
                mapped
            };
            if mapped != libc::MAP_FAILED {
                range.hit.store(true, Ordering::Relaxed);
                return;
            }
        }
    }
    // Not ours: the instruction runs again and has the effect it had before.
    // SAFETY: `sigaction` is plain numbers, for which zeros are a value: the default action.
    let default = unsafe { std::mem::zeroed() };
    let before = BEFORE.get().and_then(|b| b.as_ref().ok()).unwrap_or(&default);
    // SAFETY: a valid action.
    unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Layout, Memory};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn memory_that_is_gone_reads_as_zeros_and_is_noticed() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 0x4000).unwrap();
        let memory = Memory::default().with(Layout { guest: 0, user: 0, len: 0x4000, offset: 0 }, &file).unwrap();
        let other = Memory::default().with(Layout { guest: 0, user: 0, len: 0x1000, offset: 0 }, &file).unwrap();
        memory.write(memory.find(0x0ff0, 16).unwrap(), 0, &[7; 16]);
        memory.write(memory.find(0x3000, 16).unwrap(), 0, &[7; 16]);
        ftruncate(&file, 0x1000).unwrap();
        assert!(!memory.is_lost());
        let mut bytes = [1; 32];
        memory.read(memory.find(0x0ff0, 32).unwrap(), 0, &mut bytes);
        assert_eq!(bytes[..16], [7; 16]);
        assert_eq!(bytes[16..], [0; 16]);
        assert!(memory.is_lost() && !other.is_lost());
        // Writing is as harmless.
        memory.write(memory.find(0x3000, 16).unwrap(), 0, &[7; 16]);
    }
}
