//! The system calls of BPF programs and their maps.

use super::{check, owned};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Commands of bpf(2).
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;
/// Kinds of maps.
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
/// Kinds of programs, and places where they are attached.
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_XDP: u32 = 37;
const BPF_TCX_INGRESS: u32 = 46;
/// Bytes of a program's name, and of the attributes of a command.
const NAME_BYTES: usize = 16;
const ATTRIBUTE_WORDS: usize = 32;

/// A command whose attributes are these words, and zeros.
///
/// # Safety
/// Pointers among the words must be valid for the command.
unsafe fn bpf(command: libc::c_long, words: &[u32]) -> libc::c_long {
    let mut attributes = [0u32; ATTRIBUTE_WORDS];
    attributes[..words.len()].copy_from_slice(words);
    // SAFETY: the attributes are alive, bytes behind those that the kernel knows are 0, and the caller vouches for pointers.
    unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) }
}

/// The two words of a pointer.
fn halves(pointer: u64) -> [u32; 2] {
    [pointer as u32, (pointer >> 32) as u32]
}

/// The words of a name.
fn name_words(name: &str) -> [u32; NAME_BYTES / 4] {
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    std::array::from_fn(|n| u32::from_ne_bytes([0, 1, 2, 3].map(|at| bytes[4 * n + at])))
}

/// Loads a program of a kind.
fn load(kind: u32, name: &str, flags: u32, program: &[u64]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let mut words = vec![kind, program.len() as u32];
    words.extend(halves(program.as_ptr() as u64));
    words.extend(halves(license.as_ptr() as u64));
    // No log: level, size, buffer; kernel version.
    words.extend([0, 0, 0, 0, 0, flags]);
    words.extend(name_words(name));
    // SAFETY: the program and the license are alive.
    owned(unsafe { bpf(BPF_PROG_LOAD, &words) })
}

/// Puts the program `return XDP_PASS` in front of a device's stack for as long as the descriptor is open.
///
/// The program is of the generic kind, which leaves the device unchanged: a device with such a program merges no TCP
/// segments.
pub(in crate::kernel) fn attach_pass(device: u32) -> io::Result<OwnedFd> {
    const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
    /// Frames in several pieces need not be made one piece first, for which there may be no memory.
    const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
    // r0 = XDP_PASS; exit.
    let program = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];
    let loaded = load(BPF_PROG_TYPE_XDP, "", BPF_F_XDP_HAS_FRAGS, &program)?;
    // SAFETY: the attributes are numbers only.
    owned(unsafe { bpf(BPF_LINK_CREATE, &[loaded.as_raw_fd() as u32, device, BPF_XDP, XDP_FLAGS_SKB_MODE]) })
}

/// Sends all frames that arrive at a device out of the device `to` of the same namespace, from now on and after this process.
/// The program has this name.
pub(in crate::kernel) fn redirect_all(device: u32, to: u32, name: &str) -> io::Result<()> {
    // r1 = to; r2 = 0; call bpf_redirect; exit.
    let program = [0x0000_0000_0000_01b7 | u64::from(to) << 32, 0x0000_0000_0000_02b7, 0x0000_0017_0000_0085, 0x95];
    let loaded = load(BPF_PROG_TYPE_SCHED_CLS, name, 0, &program)?;
    // SAFETY: the attributes are numbers only.
    let attached = unsafe { bpf(BPF_PROG_ATTACH, &[device, loaded.as_raw_fd() as u32, BPF_TCX_INGRESS, 0]) };
    check(attached).map(drop)
}

/// Keeps all frames that arrive at a device from its stack and from later programs, for as long as the descriptor is open.
/// Packet sockets still get them.
pub(in crate::kernel) fn keep_all(device: u32, name: &str) -> io::Result<OwnedFd> {
    const BPF_F_BEFORE: u32 = 1 << 3;
    // r0 = TCX_DROP; exit.
    let loaded = load(BPF_PROG_TYPE_SCHED_CLS, name, 0, &[0x0000_0002_0000_00b7, 0x95])?;
    // SAFETY: the attributes are numbers only.
    owned(unsafe { bpf(BPF_LINK_CREATE, &[loaded.as_raw_fd() as u32, device, BPF_TCX_INGRESS, BPF_F_BEFORE]) })
}

/// The programs of this name that were attached to a device and outlive their process.
pub(in crate::kernel) fn attached(device: u32, name: &str) -> io::Result<Vec<OwnedFd>> {
    const PROGRAMS_MAX: usize = 64;
    /// Where the name stands in the kernel's description of a program.
    const NAME_AT: usize = 64;
    let mut ids = [0u32; PROGRAMS_MAX];
    let mut words = [0; ATTRIBUTE_WORDS];
    words[..2].copy_from_slice(&[device, BPF_TCX_INGRESS]);
    words[4..6].copy_from_slice(&halves(ids.as_mut_ptr() as u64));
    words[6] = PROGRAMS_MAX as u32;
    // SAFETY: the kernel writes the count into the attributes and at most as many numbers, both of which are alive.
    let found = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_QUERY, words.as_mut_ptr(), size_of_val(&words)) };
    check(found)?;
    let mut programs = Vec::new();
    for &id in &ids[..(words[6] as usize).min(PROGRAMS_MAX)] {
        // SAFETY: the attributes are numbers only.
        let Ok(program) = owned(unsafe { bpf(BPF_PROG_GET_FD_BY_ID, &[id]) }) else { continue };
        let mut info = [0u8; NAME_AT + NAME_BYTES];
        let [low, high] = halves(info.as_mut_ptr() as u64);
        let words = [program.as_raw_fd() as u32, info.len() as u32, low, high];
        // SAFETY: the kernel writes no more than the given number of bytes into `info`, which is alive.
        if check(unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &words) }).is_ok()
            && info[NAME_AT..].split(|&b| b == 0).next() == Some(name.as_bytes())
        {
            programs.push(program);
        }
    }
    Ok(programs)
}

/// Detaches a program from a device.
pub(in crate::kernel) fn detach(device: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attributes are numbers only.
    let detached = unsafe { bpf(BPF_PROG_DETACH, &[device, program.as_raw_fd() as u32, BPF_TCX_INGRESS, 0]) };
    check(detached).map(drop)
}

/// Loads a program that looks at each frame of a device (`BPF_PROG_TYPE_SCHED_CLS`).
pub(in crate::kernel) fn load_classifier(name: &str, program: &[u64]) -> io::Result<OwnedFd> {
    load(BPF_PROG_TYPE_SCHED_CLS, name, 0, program)
}

/// A map of this kind, of `entries` values of so many bytes with keys of four bytes.
fn map(kind: u32, name: &str, entries: usize, value_bytes: usize, flags: u32) -> io::Result<OwnedFd> {
    let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
    // No inner map, any node.
    let mut words = vec![kind, 4, value_bytes as u32, entries.max(1), flags, 0, 0];
    words.extend(name_words(name));
    // SAFETY: the attributes are numbers only.
    owned(unsafe { bpf(BPF_MAP_CREATE, &words) })
}

/// A map from words to words. Programs see the words' bytes in memory.
pub(in crate::kernel) fn table(name: &str, entries: &[([u8; 4], u32)]) -> io::Result<OwnedFd> {
    let table = map(BPF_MAP_TYPE_HASH, name, entries.len(), 4, 0)?;
    for (key, value) in entries {
        let [key_low, key_high] = halves(key.as_ptr() as u64);
        let [low, high] = halves((&raw const *value) as u64);
        let words = [table.as_raw_fd() as u32, 0, key_low, key_high, low, high, 0, 0];
        // SAFETY: the kernel reads four bytes of the key and of the value, both of which are alive.
        check(unsafe { bpf(BPF_MAP_UPDATE_ELEM, &words) })?;
    }
    Ok(table)
}

/// An array of words that a program in the kernel and this process change at the same time. Its elements are `N` words each.
#[derive(Debug)]
pub(in crate::kernel) struct SharedArray<const N: usize> {
    map: OwnedFd,
    words: NonNull<[AtomicU64; N]>,
    len: usize,
}

// SAFETY: the memory belongs to this value, which unmaps it, and only atomic operations reach it.
unsafe impl<const N: usize> Send for SharedArray<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Sync for SharedArray<N> {}

impl<const N: usize> SharedArray<N> {
    /// An array of `len` elements of zeros (Linux 5.5).
    pub fn new(name: &str, len: usize) -> io::Result<SharedArray<N>> {
        const BPF_F_MMAPABLE: u32 = 1 << 10;
        let len = len.max(1);
        let map = map(BPF_MAP_TYPE_ARRAY, name, len, 8 * N, BPF_F_MMAPABLE)?;
        let (bytes, access) = (len * 8 * N, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new mapping at an address that the kernel chooses. The map has these bytes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedArray { map, words, len })
    }

    /// The map, for a program.
    pub fn map(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.map.as_fd()
    }

    /// The elements.
    pub fn elements(&self) -> &[[AtomicU64; N]] {
        // SAFETY: the mapping has so many elements, begins at a page, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl<const N: usize> Drop for SharedArray<N> {
    fn drop(&mut self) {
        // SAFETY: this value mapped so many bytes here, and nothing borrows them any more.
        unsafe { libc::munmap(self.words.as_ptr().cast(), self.len * 8 * N) };
    }
}

/// Bytes of `__sk_buff`.
#[cfg(test)]
pub(in crate::kernel) const CONTEXT_BYTES: usize = 192;

/// Has a classifier look at a frame that no device carries. `context` is the kernel's `__sk_buff`, before and after. Returns
/// the program's result.
#[cfg(test)]
pub(in crate::kernel) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: &mut [u8; CONTEXT_BYTES],
) -> io::Result<u32> {
    const BPF_PROG_TEST_RUN: libc::c_long = 10;
    let mut words = [0; ATTRIBUTE_WORDS];
    let at = |pointer: u64| halves(pointer);
    // Descriptor, result, bytes in and out, pointers of these, repeat, duration, context bytes in and out, their pointers.
    words[0] = program.as_raw_fd() as u32;
    words[2] = frame.len() as u32;
    words[4..6].copy_from_slice(&at(frame.as_ptr() as u64));
    words[8] = 1;
    (words[10], words[11]) = (context.len() as u32, context.len() as u32);
    words[12..14].copy_from_slice(&at(context.as_ptr() as u64));
    words[14..16].copy_from_slice(&at(context.as_mut_ptr() as u64));
    // SAFETY: the frame and the context are alive, and the kernel writes at most as many bytes as the context has, and its
    // answer into the attributes.
    let done = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, words.as_mut_ptr(), size_of_val(&words)) };
    check(done)?;
    Ok(words[1])
}
