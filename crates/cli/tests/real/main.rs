//! The command in the real world: switches, testbeds and guests as processes, most of them as root.

mod attach;
mod bump;
mod bump_map;
mod clean;
#[path = "../command/command.rs"]
mod command;
mod guests;
mod interrupted;
mod overload;
mod sockets;
mod switch;
mod switch_locked;
mod switch_restart;
mod switch_start;
mod switch_tcp;
mod switch_uplink;
mod switch_watched;
mod switching;
mod testbed;
mod testbed_bump;
mod testbed_fattree;
mod testbed_flows;
mod testbed_guests;
mod testbed_notified;
mod testbed_xco;
mod xco;
mod xco_guest;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The machine's only testbed. Tests that bring one up hold this, and tests that call `clean`, which would remove it.
pub fn testbed_lock() -> MutexGuard<'static, ()> {
    static TESTBED: Mutex<()> = Mutex::new(());
    TESTBED.lock().unwrap_or_else(PoisonError::into_inner)
}
