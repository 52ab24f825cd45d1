//! The requirements of a testbed's guests, checked before they start.

use super::machine::TRANSLATED_MIB;
use super::{Contents, GuestError, Image, Nic, Parts};
use std::path::Path;

/// The most guests of a testbed: each is emulated on this machine's processors.
pub const GUESTS_MAX: usize = 64;
/// MiB that QEMU itself takes for a guest, besides the guest's memory and its code.
const QEMU_MIB: u64 = 48;

/// The parts and the image of a testbed's guests.
#[derive(Debug)]
pub struct Needs {
    /// The installed parts.
    pub parts: Parts,
    /// The image from which the guests start.
    pub image: Image,
}

impl Needs {
    /// Finds the parts of `guests` guests, writes their image to `path`, and checks that the guests fit in memory.
    ///
    /// # Errors
    /// A missing program or kernel, or too little memory.
    pub fn find(guests: usize, contents: &Contents, path: &Path) -> Result<Needs, GuestError> {
        let parts = Parts::find(Nic::Virtio)?;
        let image = Image::write(&parts, contents, path)?;
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        fit(guests, image.memory_mib(), &meminfo)?;
        Ok(Needs { parts, image })
    }
}

/// Checks that the guests fit in the memory that the kernel says is available; succeeds if the kernel does not tell.
fn fit(guests: usize, memory_mib: u32, meminfo: &str) -> Result<(), GuestError> {
    let each = u64::from(memory_mib) + u64::from(TRANSLATED_MIB) + QEMU_MIB;
    let needed = guests as u64 * each;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kb: Option<u64> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    match kb.map(|kb| kb >> 10) {
        Some(free) if free < needed => Err(GuestError::Memory(guests, needed, free)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_do_not_fit_are_refused_with_what_they_need() {
        let meminfo = "MemTotal: 9999999 kB\nMemAvailable:   1048576 kB\n";
        assert!(fit(3, 200, meminfo).is_ok());
        let e = fit(4, 200, meminfo).unwrap_err().to_string();
        assert!(e.contains("4 guests need 1248 MiB") && e.contains("1024 MiB to give"), "{e}");
        assert!(fit(4, 200, "").is_ok());
    }
}
