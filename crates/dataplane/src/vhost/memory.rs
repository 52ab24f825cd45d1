//! A guest's memory, as its frontend shares it, and the queues in it.
//!
//! The guest may write any byte at any time, and its frontend may shorten the file. So no function here returns a reference
//! to plain bytes: ring words are atomics, and bytes are copied. Every address is checked when it is found, and again when it
//! is used. A file that became shorter reads as zeros from there on ([`Memory::is_lost`]).
#![allow(unsafe_code)]

use super::sigbus::Watch;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Regions a guest may have.
pub const MAX_REGIONS: usize = 64;

/// Where a region of guest memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First address as the guest counts them.
    pub guest: u64,
    /// First address as its frontend counts them.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// The offset of the region in its file.
    pub offset: u64,
}

/// A region, mapped.
#[derive(Debug)]
struct Region {
    layout: Layout,
    /// The start of the mapping, which is that of the file.
    base: NonNull<u8>,
    mapped: usize,
    watch: Watch,
}

// SAFETY: the mapping belongs to this value until it is dropped, on any thread; all access to it is by atomics, and by copies
// that allow for other writers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(layout: Layout, file: impl AsFd) -> io::Result<Region> {
        let wrong = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let stat = rustix::fs::fstat(&file)?;
        let end = layout.offset.checked_add(layout.len).ok_or_else(|| wrong("guest memory that wraps"))?;
        if layout.len == 0 || end > stat.st_size as u64 {
            return Err(wrong("guest memory beyond the end of its file"));
        }
        if [layout.guest, layout.user].iter().any(|at| at.checked_add(layout.len).is_none()) {
            return Err(wrong("guest memory that wraps"));
        }
        // A mapping of huge pages has to consist of whole ones; this is their size.
        let page = (stat.st_blksize as u64).clamp(4096, 1 << 30).next_power_of_two();
        let mapped = usize::try_from(end.next_multiple_of(page)).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), mapped, access, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        match Watch::new(base.as_ptr() as usize, mapped, page as usize) {
            Ok(watch) => Ok(Region { layout, base, mapped, watch }),
            Err(e) => {
                // SAFETY: mapped above, and not shared with other code.
                let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), mapped) };
                Err(e)
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.watch.end();
        // SAFETY: mapped by us, and nothing that was lent outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A piece of guest memory that was found to lie in one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The offset of the span in its region.
    at: u64,
    region: u32,
    /// Bytes.
    pub len: u32,
}

impl Span {
    /// The span without its first `bytes` bytes; it must have as many.
    #[inline(always)]
    pub fn skip(self, bytes: u32) -> Span {
        Span { at: self.at + u64::from(bytes), region: self.region, len: self.len - bytes }
    }
}

/// All memory of a guest.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: Vec<Arc<Region>>,
}

impl Memory {
    /// This memory with one more region, of `file`.
    pub fn with(&self, layout: Layout, file: impl AsFd) -> io::Result<Memory> {
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.regions.len() == MAX_REGIONS {
            return wrong("more regions of guest memory than there may be");
        }
        let overlap = |a: u64, b: u64, b_len: u64| a < b.saturating_add(b_len) && b < a.saturating_add(layout.len);
        if self.regions.iter().any(|r| overlap(layout.guest, r.layout.guest, r.layout.len)) {
            return wrong("regions of guest memory that overlap");
        }
        let mut regions = self.regions.clone();
        regions.push(Arc::new(Region::map(layout, file)?));
        Ok(Memory { regions })
    }

    /// This memory without the region that begins at these addresses, if there is one.
    pub fn without(&self, guest: u64, user: u64, len: u64) -> Option<Memory> {
        let is = |r: &&Arc<Region>| (r.layout.guest, r.layout.user, r.layout.len) != (guest, user, len);
        let regions: Vec<_> = self.regions.iter().filter(is).cloned().collect();
        (regions.len() < self.regions.len()).then_some(Memory { regions })
    }

    /// Whether a part of the memory is gone.
    #[inline(always)]
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|r| r.watch.was_hit())
    }

    /// Up to `len` bytes at an address of the guest's, as many as lie in one region.
    #[inline(always)]
    pub fn find(&self, guest: u64, len: u32) -> Option<Span> {
        for (k, r) in self.regions.iter().enumerate() {
            let into = guest.wrapping_sub(r.layout.guest);
            if into < r.layout.len {
                let len = u64::from(len).min(r.layout.len - into) as u32;
                return Some(Span { at: into, region: k as u32, len });
            }
        }
        None
    }

    /// A pointer to `len` bytes, `skip` bytes after the start of a span; panics if they are not inside.
    #[inline(always)]
    fn checked_pointer(&self, span: Span, skip: usize, len: usize) -> *mut u8 {
        let region = &self.regions[span.region as usize];
        let at = span.at + skip as u64;
        assert!(at <= region.layout.len && len as u64 <= region.layout.len - at, "outside of the guest's memory");
        // SAFETY: inside the mapping, or its end: the file up to `offset + len`.
        unsafe { region.base.as_ptr().add((region.layout.offset + at) as usize) }
    }

    /// Copies bytes out, from `skip` behind the start of a span.
    #[inline(always)]
    pub fn read(&self, span: Span, skip: usize, into: &mut [u8]) {
        let from = self.checked_pointer(span, skip, into.len());
        // SAFETY: inside the mapping; `into` is ours alone. Bytes that change meanwhile are torn, which callers allow for:
        // they use the copy.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in.
    #[inline(always)]
    pub fn write(&self, span: Span, skip: usize, from: &[u8]) {
        let into = self.checked_pointer(span, skip, from.len());
        // SAFETY: inside the mapping; `from` is plain memory of ours and not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }

    /// Copies `len` bytes from `skip` behind the start of a span to `to_skip` behind the start of one of another guest.
    #[inline(always)]
    pub fn copy(&self, span: Span, skip: usize, to: &Memory, to_span: Span, to_skip: usize, len: usize) {
        let (from, into) = (self.checked_pointer(span, skip, len), to.checked_pointer(to_span, to_skip, len));
        // SAFETY: both inside their mappings, which are two even where two guests share a file; bytes that change meanwhile
        // are torn, which callers allow for.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into, len) }
    }

    /// Has the first two cache lines of a span fetched.
    #[inline(always)]
    pub fn prefetch(&self, span: Span) {
        let at = self.checked_pointer(span, 0, 0);
        prefetch(at);
        prefetch(at.wrapping_add(64));
    }

    /// Prefetches a span for writing.
    #[inline(always)]
    pub fn prefetch_to_write(&self, span: Span) {
        let at = self.checked_pointer(span, 0, 0);
        prefetch_to_write(at);
        prefetch_to_write(at.wrapping_add(64));
    }

    /// `len` bytes at an address of the frontend's, aligned, all in one region.
    fn words(&self, user: u64, len: u64, align: u64) -> Option<NonNull<u8>> {
        let region = self.regions.iter().find(|r| user.wrapping_sub(r.layout.user) < r.layout.len)?;
        let at = user - region.layout.user;
        if len > region.layout.len - at {
            return None;
        }
        // SAFETY: inside the mapping.
        let pointer = unsafe { region.base.add((region.layout.offset + at) as usize) };
        (pointer.as_ptr() as u64 % align == 0).then_some(pointer)
    }
}

#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetches or does not; it never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[inline(always)]
fn prefetch_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetches or does not; it never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_ET0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// A descriptor, read once (virtio 1.2, 2.7.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// Where the buffer is, as the guest counts.
    pub addr: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// [`Desc::NEXT`], [`Desc::WRITE`], [`Desc::INDIRECT`].
    pub flags: u16,
    /// The descriptor that continues it.
    pub next: u16,
}

impl Desc {
    /// Another one continues it.
    pub const NEXT: u16 = 1;
    /// For the device to write.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Bytes of one.
    pub const BYTES: u32 = 16;

    /// From its bytes.
    #[inline(always)]
    pub fn from_halves(addr: u64, rest: u64) -> Desc {
        Desc { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
    /// The second half of the entry.
    #[inline(always)]
    pub fn rest(self) -> u64 {
        u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48
    }
}

/// The three parts of a split virtqueue (virtio 1.2, 2.7), in the guest's memory. Either side may use it.
#[derive(Clone, Debug)]
pub struct Ring {
    desc: NonNull<u8>,
    avail: NonNull<u8>,
    used: NonNull<u8>,
    mask: u16,
    _memory: Arc<Memory>,
}

// SAFETY: it keeps the memory alive, and all access is by atomics.
unsafe impl Send for Ring {}

/// Little-endian in memory, ours in registers.
macro_rules! word {
    ($(#[$doc:meta])* $get:ident, $set:ident, $type:ident, $atomic:ident, $load:ident, $store:ident, |$ring:ident $(, $i:ident: $index:ty)?| $at:expr) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $get(&self $(, $i: $index)?) -> $type {
            let $ring = self;
            // SAFETY: inside the memory that `new` checked and `_memory` keeps, aligned; an atomic may be written by others.
            $type::from_le(unsafe { $atomic::from_ptr($at.cast()) }.load(Ordering::$load))
        }
        $(#[$doc])*
        #[inline(always)]
        pub fn $set(&self $(, $i: $index)?, value: $type) {
            let $ring = self;
            // SAFETY: as above.
            unsafe { $atomic::from_ptr($at.cast()) }.store(value.to_le(), Ordering::$store)
        }
    };
}

impl Ring {
    /// A ring of `size` entries, a power of two, at addresses of the frontend's; `None` when they are not in the memory.
    pub fn new(memory: &Arc<Memory>, size: u16, desc: u64, avail: u64, used: u64) -> Option<Ring> {
        assert!(size.is_power_of_two());
        let n = u64::from(size);
        Some(Ring {
            desc: memory.words(desc, 16 * n, 16)?,
            avail: memory.words(avail, 6 + 2 * n, 2)?,
            used: memory.words(used, 6 + 8 * n, 4)?,
            mask: size - 1,
            _memory: memory.clone(),
        })
    }

    /// Entries.
    #[inline(always)]
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    #[inline(always)]
    fn desc_at(&self, i: u16) -> *mut u8 {
        // SAFETY: inside, by the mask.
        unsafe { self.desc.as_ptr().add(16 * usize::from(i & self.mask)) }
    }
    #[inline(always)]
    fn avail_at(&self, bytes: usize) -> *mut u8 {
        debug_assert!(bytes <= 4 + 2 * usize::from(self.mask) + 2);
        // SAFETY: callers name a flag, an index, an entry by the mask, or the word behind the entries.
        unsafe { self.avail.as_ptr().add(bytes) }
    }
    #[inline(always)]
    fn used_at(&self, bytes: usize) -> *mut u8 {
        debug_assert!(bytes <= 4 + 8 * (usize::from(self.mask) + 1));
        // SAFETY: as above.
        unsafe { self.used.as_ptr().add(bytes) }
    }

    word!(
        /// First half of a descriptor.
        desc_addr, set_desc_addr, u64, AtomicU64, Relaxed, Relaxed, |r, i: u16| r.desc_at(i));
    word!(
        /// Second half of a descriptor.
        desc_rest, set_desc_rest, u64, AtomicU64, Relaxed, Relaxed, |r, i: u16| r.desc_at(i).wrapping_add(8));
    word!(
        /// The driver's request: 1 for no interrupts.
        avail_flags, set_avail_flags, u16, AtomicU16, Relaxed, Relaxed, |r| r.avail_at(0));
    word!(
        /// How many chains the driver has made available, modulo 2^16.
        avail_idx, set_avail_idx, u16, AtomicU16, Acquire, Release, |r| r.avail_at(2));
    word!(
        /// The first descriptor of the chain made available as number `i`.
        avail_entry, set_avail_entry, u16, AtomicU16, Relaxed, Relaxed, |r, i: u16| r.avail_at(4 + 2 * usize::from(i & r.mask)));
    word!(
        /// The used entry after which the driver wants an interrupt.
        used_event, set_used_event, u16, AtomicU16, Relaxed, Relaxed, |r| r.avail_at(6 + 2 * usize::from(r.mask)));
    word!(
        /// The device's request: 1 for no kicks.
        used_flags, set_used_flags, u16, AtomicU16, Relaxed, Relaxed, |r| r.used_at(0));
    word!(
        /// How many chains the device has given back, modulo 2^16.
        used_idx, set_used_idx, u16, AtomicU16, Acquire, Release, |r| r.used_at(2));
    word!(
        /// The first descriptor of the returned chain number `i`.
        used_id, set_used_id, u32, AtomicU32, Relaxed, Relaxed, |r, i: u16| r.used_at(4 + 8 * usize::from(i & r.mask)));
    word!(
        /// Bytes written into the returned chain number `i`.
        used_len, set_used_len, u32, AtomicU32, Relaxed, Relaxed, |r, i: u16| r.used_at(8 + 8 * usize::from(i & r.mask)));
    word!(
        /// The available entry at which the device wants a kick.
        avail_event, set_avail_event, u16, AtomicU16, Relaxed, Relaxed, |r| r.used_at(12 + 8 * usize::from(r.mask)));

    /// A descriptor, read once.
    #[inline(always)]
    pub fn desc(&self, i: u16) -> Desc {
        Desc::from_halves(self.desc_addr(i), self.desc_rest(i))
    }
    /// Writes a descriptor.
    #[inline(always)]
    pub fn set_desc(&self, i: u16, desc: Desc) {
        self.set_desc_addr(i, desc.addr);
        self.set_desc_rest(i, desc.rest());
    }
    /// Has a used entry fetched to be written.
    #[inline(always)]
    pub fn prefetch_used(&self, i: u16) {
        prefetch_to_write(self.used_at(4 + 8 * usize::from(i & self.mask)));
    }
    /// Has a descriptor fetched.
    #[inline(always)]
    pub fn prefetch_desc(&self, i: u16) {
        prefetch(self.desc_at(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;

    fn file(len: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }
    fn layout(guest: u64, len: u64, offset: u64) -> Layout {
        Layout { guest, user: guest + (1 << 40), len, offset }
    }

    #[test]
    fn what_is_found_lies_inside_and_ends_with_its_region() {
        let file = file(0x5000);
        let memory = Memory::default().with(layout(0x1000, 0x2000, 0x1000), &file).unwrap();
        let memory = memory.with(layout(0x3000, 0x1000, 0x4000), &file).unwrap();
        assert_eq!(memory.find(0xfff, 1), None);
        assert_eq!(memory.find(0x4000, 1), None);
        assert_eq!(memory.find(u64::MAX, 2), None);
        assert_eq!(memory.find(0x1000, u32::MAX).unwrap().len, 0x2000);
        let end = memory.find(0x2ffe, 4).unwrap();
        assert_eq!(end.len, 2);
        memory.write(end, 0, &[1, 2]);
        memory.write(memory.find(0x3000, 1).unwrap(), 0, &[3]);
        let mut bytes = [0; 2];
        memory.read(end, 0, &mut bytes);
        assert_eq!(bytes, [1, 2]);
        let mut bytes = [0; 3];
        rustix::io::pread(&file, &mut bytes[..2], 0x2ffe).unwrap();
        rustix::io::pread(&file, &mut bytes[2..], 0x4000).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
    }

    #[test]
    fn regions_that_wrap_overlap_or_are_not_in_their_file_are_refused() {
        let file = file(0x5000);
        let memory = Memory::default().with(layout(0x1000, 0x2000, 0), &file).unwrap();
        for bad in [
            layout(0x2fff, 0x1000, 0),
            layout(0, 0x1001, 0),
            layout(0x8000, 0, 0),
            layout(0x8000, 0x1000, 0x4001),
            layout(0x8000, 0x1000, u64::MAX),
            Layout { guest: u64::MAX - 5, user: 0, len: 0x1000, offset: 0 },
            Layout { guest: 0x8000, user: u64::MAX - 5, len: 0x1000, offset: 0 },
        ] {
            assert!(memory.with(bad, &file).is_err(), "{bad:?}");
        }
        assert!(memory.without(0x1000, 0, 0x2000).is_none());
        assert!(memory.without(0x1000, 0x1000 + (1 << 40), 0x2000).is_some());
    }

    #[test]
    fn a_ring_outside_of_the_memory_or_askew_is_refused() {
        let file = file(0x4000);
        let memory = Arc::new(
            Memory::default().with(Layout { guest: 0, user: 0x10000, len: 0x4000, offset: 0 }, &file).unwrap(),
        );
        let ring = |desc, avail, used| Ring::new(&memory, 256, desc, avail, used);
        assert!(ring(0x10000, 0x11000, 0x12000).is_some());
        for (desc, avail, used) in [
            (0, 0x11000, 0x12000),
            (0x10008, 0x11000, 0x12000),
            (0x13010, 0x11000, 0x12000),
            (0x10000, 0x11001, 0x12000),
            (0x10000, 0x13f00, 0x12000),
            (0x10000, 0x11000, 0x12002),
            (0x10000, 0x11000, 0x13f00),
            (0x10000, 0x11000, u64::MAX),
        ] {
            assert!(ring(desc, avail, used).is_none());
        }
    }

    #[test]
    #[should_panic(expected = "outside of the guest's memory")]
    fn nothing_is_reached_beyond_the_end() {
        let memory = Memory::default().with(layout(0x1000, 0x1000, 0), file(0x1000)).unwrap();
        memory.read(memory.find(0x1fff, 1).unwrap(), 0, &mut [0; 2]);
    }
}
