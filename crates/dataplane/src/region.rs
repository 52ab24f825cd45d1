//! Memory shared with a program that may be hostile.
//! The other side may write any byte at any time. So no function returns a reference to plain bytes: words are accessed as
//! atomics, and bytes are copied, out of the region or into another region. Only the copies are checked and used. [`RingCells`]
//! and [`Buffers`] check once, when they are created, that everything they will access is inside.
#![allow(unsafe_code)]

use crate::ring::Cells;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapped piece of shared memory.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, on any thread; all access to it is by atomics, and by copies
// that allow for other writers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory, all zero and of fixed size, and its file, for another process.
    pub fn create(name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        // An access to a mapping whose file has shrunk kills the process (HOSTILE 12).
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Region::map(&file, len)?, file))
    }

    /// Opens the memory of a region that another process created.
    pub fn open(file: OwnedFd) -> io::Result<Region> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "shared memory that may shrink"));
        }
        let len = rustix::fs::fstat(&file)?.st_size;
        Region::map(&file, usize::try_from(len).map_err(io::Error::other)?)
    }

    fn map(file: &OwnedFd, len: usize) -> io::Result<Region> {
        if len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "shared memory of no bytes"));
        }
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Region { base, len })
    }

    /// Its size in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// A pointer to `len` bytes at `at`; panics if they are not inside. Callers first check numbers that others have written.
    #[inline(always)]
    fn checked_pointer(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= self.len && len <= self.len - at, "outside of the region");
        // SAFETY: `at` is inside the mapping, or its end.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// The 32-bit word at `at`.
    #[inline(always)]
    pub fn word(&self, at: usize) -> &AtomicU32 {
        let pointer = self.checked_pointer(at, 4);
        assert!(at % 4 == 0);
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned, since mappings begin at a page. An atomic
        // may have other writers.
        unsafe { AtomicU32::from_ptr(pointer.cast()) }
    }

    /// The 64-bit word at `at`.
    #[inline(always)]
    pub fn long(&self, at: usize) -> &AtomicU64 {
        let pointer = self.checked_pointer(at, 8);
        assert!(at % 8 == 0);
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(pointer.cast()) }
    }

    /// Copies bytes at `at`; panics if they are not inside.
    #[inline]
    pub fn read_bytes(&self, at: usize, into: &mut [u8]) {
        let from = self.checked_pointer(at, into.len()).cast_const();
        // SAFETY: inside the mapping; `into` is ours alone. Bytes that change meanwhile are torn, which callers allow for: they
        // use the copy.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes to `at`; panics if they are not inside.
    #[inline]
    pub fn write_bytes(&self, at: usize, from: &[u8]) {
        let into = self.checked_pointer(at, from.len());
        // SAFETY: inside the mapping; `from` is plain memory of ours and not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) }
    }
}

/// The shared words of a ring in a region: the producer's index; in the next cache line, whether the consumer sleeps, which the
/// producer reads each time; two lines further the consumer's index; two lines further the entries. The processor does not
/// fetch the lines of the two sides together.
#[derive(Clone, Debug)]
pub struct RingCells {
    base: NonNull<u8>,
    mask: u32,
    _region: Arc<Region>,
}

// SAFETY: it keeps the region alive, and all access is by atomics.
unsafe impl Send for RingCells {}

const ASLEEP: usize = 64;
const CONSUMED: usize = 128;
const ENTRIES: usize = 256;

impl RingCells {
    /// Bytes of a ring of `size` entries.
    pub const fn bytes(size: u32) -> usize {
        (ENTRIES + 8 * size as usize).next_multiple_of(256)
    }

    /// The ring of `size` entries, a power of two, at `at`, a multiple of 256; panics when it is not inside.
    pub fn new(region: &Arc<Region>, at: usize, size: u32) -> RingCells {
        assert!(size.is_power_of_two() && at.is_multiple_of(256));
        let base = NonNull::new(region.checked_pointer(at, RingCells::bytes(size))).expect("mapped");
        RingCells { base, mask: size - 1, _region: region.clone() }
    }
}

impl Cells for RingCells {
    #[inline(always)]
    fn produced(&self) -> &AtomicU32 {
        // SAFETY: inside the region that `new` checked and `_region` keeps, aligned to 256; an atomic may be written by others.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }
    }
    #[inline(always)]
    fn consumed(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(CONSUMED).cast()) }
    }
    #[inline(always)]
    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(ASLEEP).cast()) }
    }
    #[inline(always)]
    fn entry(&self, i: u32) -> &AtomicU64 {
        // SAFETY: as above; the mask keeps the entry inside of the ring.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(ENTRIES + 8 * (i & self.mask) as usize).cast()) }
    }
    #[inline(always)]
    fn mask(&self) -> u32 {
        self.mask
    }
}

/// Bytes of a buffer: room for a frame of up to 1,536 bytes, and more.
pub const BUFFER_BYTES: usize = 2048;

/// The buffers of a region, all of [`BUFFER_BYTES`], aligned to cache lines.
#[derive(Clone, Debug)]
pub struct Buffers {
    base: NonNull<u8>,
    count: u32,
    _region: Arc<Region>,
}

// SAFETY: it keeps the region alive, and all access is by atomics and copies.
unsafe impl Send for Buffers {}

impl Buffers {
    /// `count` buffers at `at`, a multiple of 4096; panics when they are not inside.
    pub fn new(region: &Arc<Region>, at: usize, count: u32) -> Buffers {
        assert!(at.is_multiple_of(4096));
        let base = NonNull::new(region.checked_pointer(at, count as usize * BUFFER_BYTES)).expect("mapped");
        Buffers { base, count, _region: region.clone() }
    }

    /// The number of buffers.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    fn checked_pointer(&self, buffer: u32) -> *mut u8 {
        assert!(buffer < self.count);
        // SAFETY: inside the range that `new` checked.
        unsafe { self.base.as_ptr().add(buffer as usize * BUFFER_BYTES) }
    }

    /// The first 16 bytes of a buffer, as two numbers, little endian.
    #[inline(always)]
    pub fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        let pointer = self.checked_pointer(buffer);
        // SAFETY: inside the buffer and aligned; an atomic may be written by others.
        let half = |at| unsafe { AtomicU64::from_ptr(pointer.add(at).cast()) }.load(Ordering::Relaxed);
        [u64::from_le(half(0)), u64::from_le(half(8))]
    }

    /// Copies the first bytes of a buffer.
    #[inline(always)]
    pub fn read(&self, buffer: u32, into: &mut [u8]) {
        assert!(into.len() <= BUFFER_BYTES);
        // SAFETY: inside the buffer; `into` is ours alone. Bytes that change meanwhile are torn, which callers allow for:
        // they use the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(self.checked_pointer(buffer).cast_const(), into.as_mut_ptr(), into.len())
        }
    }

    /// Copies bytes into a buffer.
    #[inline(always)]
    pub fn write(&self, buffer: u32, from: &[u8]) {
        self.write_at(buffer, 0, from);
    }

    /// Copies bytes into a buffer, from offset `at`.
    #[inline(always)]
    pub fn write_at(&self, buffer: u32, at: usize, from: &[u8]) {
        assert!(at <= BUFFER_BYTES && from.len() <= BUFFER_BYTES - at);
        // SAFETY: inside the buffer; `from` is plain memory of ours and not part of it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.checked_pointer(buffer).add(at), from.len()) }
    }

    /// Copies a frame of `len` bytes into a buffer of another port, in whole cache lines, with `first_bytes` instead of its
    /// first 16 bytes.
    #[inline(always)]
    pub fn copy(&self, buffer: u32, len: usize, first_bytes: [u64; 2], to: &Buffers, to_buffer: u32) {
        assert!(len <= BUFFER_BYTES);
        let (from, into) = (self.checked_pointer(buffer).cast_const(), to.checked_pointer(to_buffer));
        if len <= 64 {
            // SAFETY: both inside their buffers. `ptr::copy` allows them to be the same, which the owner of both could cause.
            unsafe { std::ptr::copy(from.cast::<[u8; 64]>(), into.cast(), 1) };
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy(from, into, len.next_multiple_of(64)) };
        }
        for (at, half) in [(0, first_bytes[0]), (8, first_bytes[1])] {
            // SAFETY: inside the buffer and aligned.
            unsafe { AtomicU64::from_ptr(into.add(at).cast()) }.store(half.to_le(), Ordering::Relaxed);
        }
    }

    /// Copies a frame of `len` bytes into a buffer of another port in whole cache lines, except the first line.
    #[inline(always)]
    pub fn copy_behind_first_line(&self, buffer: u32, len: usize, to: &Buffers, to_buffer: u32) {
        const LINE: usize = 64;
        assert!((LINE..=BUFFER_BYTES).contains(&len));
        let (from, into) = (self.checked_pointer(buffer).cast_const(), to.checked_pointer(to_buffer));
        // SAFETY: both inside their buffers, whose size is a multiple of a line. `ptr::copy` allows them to be the same, which
        // the owner of both could cause.
        unsafe { std::ptr::copy(from.add(LINE), into.add(LINE), len.next_multiple_of(LINE) - LINE) };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nothing that was lent outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_the_same_bytes_and_neither_can_shrink() {
        let (region, file) = Region::create("test", 8192).unwrap();
        let other = Region::open(file.try_clone().unwrap()).unwrap();
        other.long(8).store(7, Ordering::Relaxed);
        assert_eq!(region.word(8).load(Ordering::Relaxed), 7);
        let (ours, theirs) = (Buffers::new(&Arc::new(region), 4096, 2), Buffers::new(&Arc::new(other), 4096, 2));
        let frame: Vec<u8> = (0..100).collect();
        ours.write(1, &frame);
        let mut bytes = [0; 100];
        theirs.read(1, &mut bytes);
        assert_eq!(bytes[..], frame);
        // The checked bytes are delivered, whatever the sender writes meanwhile.
        let first_bytes = theirs.first_bytes(1);
        ours.write(1, &[99; 16]);
        theirs.copy(1, 100, first_bytes, &ours, 0);
        ours.read(0, &mut bytes);
        assert_eq!(bytes[..], frame);
        assert!(rustix::fs::ftruncate(&file, 10).is_err() && rustix::fs::ftruncate(&file, 20_000).is_err());
    }

    #[test]
    fn memory_that_may_shrink_is_refused() {
        let file = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(Region::open(file).is_err());
        let file = rustix::fs::memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
        assert!(Region::open(file).is_err());
    }

    #[test]
    #[should_panic(expected = "outside of the region")]
    fn nothing_is_reached_beyond_the_end() {
        Region::create("test", 4096).unwrap().0.word(4096);
    }
}
