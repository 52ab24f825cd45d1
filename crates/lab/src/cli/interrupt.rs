//! Ctrl-C: the first one stops at the end of the epoch with records readable, the second one kills.

use super::output::note;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised by the first Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// The flag that runs look at; from here on Ctrl-C raises it.
pub(super) fn flag() -> &'static AtomicBool {
    // Where no handler can be had, Ctrl-C kills at once, and records are readable up to their last flush all the same.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        note("\nstopping: records will be readable; Ctrl-C again to quit at once");
    });
    &STOP
}

/// The same where ending is all there is to it.
pub(super) fn quietly() -> &'static AtomicBool {
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
    &STOP
}

/// Whether it was raised.
pub(super) fn raised() -> bool {
    STOP.load(Ordering::SeqCst)
}
