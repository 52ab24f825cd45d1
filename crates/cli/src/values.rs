//! Values of options with a range of their own.

use sluicenet_dataplane::kernel::load::{LONGEST, SHORTEST};

/// A rate in Mb/s.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(rate),
        _ => Err("Mb/s from more than 0 to 1000000 are expected".into()),
    }
}

/// A time in seconds.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("from more than 0 to 3600 is expected".into()),
    }
}

/// A number of buffers.
pub(super) fn buffers(text: &str) -> Result<u32, String> {
    let buffers = text.parse().map_err(|_| "not a number".to_owned())?;
    if u32::is_power_of_two(buffers) && (4..=65_536).contains(&buffers) {
        Ok(buffers)
    } else {
        Err("a power of two from 4 to 65536 is expected".into())
    }
}

/// A datagram's payload in bytes.
pub(super) fn payload(text: &str) -> Result<usize, String> {
    let range = || format!("{SHORTEST} to {LONGEST} is expected");
    text.parse().ok().filter(|n| (SHORTEST..=LONGEST).contains(n)).ok_or_else(range)
}
