//! Ctrl-C: the first one stops a run at the end of the epoch with records readable, the second one kills.

use super::output::note;
use sluicenet_records::NewFile;
use std::sync::atomic::{AtomicBool, Ordering};

/// Raised by the first Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

/// The flag that runs look at, which write records; from here on Ctrl-C raises it.
pub(super) fn of_a_run() -> &'static AtomicBool {
    raise_with(|| note("\nstopping: records will be readable; Ctrl-C again to quit at once"), || {});
    &STOP
}

/// The flag for work that only has to end; from here on Ctrl-C raises it.
pub(super) fn flag() -> &'static AtomicBool {
    // After the first interrupt, the program removes everything that it made. After the second, it leaves everything.
    raise_with(|| {}, || note("\nquitting at once: `sluicenet clean` removes what is left"));
    &STOP
}

/// From here on Ctrl-C ends the program at once, without the files that it was writing.
pub(super) fn ends_at_once() {
    let _ = ctrlc::set_handler(|| {
        NewFile::remove_all();
        std::process::exit(130);
    });
}

fn raise_with(say: fn(), say_again: fn()) {
    // Where no handler can be had, Ctrl-C kills at once, and records are readable up to their last flush all the same.
    let _ = ctrlc::set_handler(move || {
        if STOP.swap(true, Ordering::SeqCst) {
            say_again();
            std::process::exit(130);
        }
        say();
    });
}

/// Whether it was raised.
pub(super) fn raised() -> bool {
    STOP.load(Ordering::SeqCst)
}
