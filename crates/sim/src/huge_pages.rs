//! Huge pages behind the largest lists of a world.
//!
//! Events meet boxes, wires and frames that lie far apart. In a world that exceeds the nearest caches, a look-up of the page
//! then takes as long as that of the data: docs/results/speed.md has the gain.

/// Least size of a list that is worth it: several huge pages.
const LEAST_BYTES: usize = 8 << 20;

/// Bytes of the pages between which the system can divide its memory.
const PAGE: usize = 4096;

/// Asks for huge pages behind the memory that begins at `start`, if it is large and the system offers them. The memory is
/// not yet written: pages that exist stay as they are.
pub fn ask(start: *const u8, bytes: usize) {
    let before = start.align_offset(PAGE).min(bytes);
    let bytes = (bytes - before) / PAGE * PAGE;
    if bytes >= LEAST_BYTES {
        advise(start.wrapping_add(before), bytes);
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn advise(start: *const u8, bytes: usize) {
    let start = start.cast_mut().cast();
    // SAFETY: the advice changes how the system backs these pages, never what they contain. A system without huge pages
    // refuses it, which costs only speed.
    let _ = unsafe { rustix::mm::madvise(start, bytes, rustix::mm::Advice::LinuxHugepage) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: *const u8, _bytes: usize) {}
