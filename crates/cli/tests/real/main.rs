//! The command in the real world: switches, testbeds and guests as processes, most of them as root.

mod attach;
mod bump;
mod bump_map;
mod clean;
mod cni;
#[path = "../command/command.rs"]
mod command;
mod guests;
mod interrupted;
mod overload;
mod sockets;
mod switch;
mod switch_helper;
mod switch_locked;
mod switch_overlay;
mod switch_paused;
mod switch_replaced;
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

use sluicenet_testkit::repository;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A file of another package: built by the test runner, which says so in a variable, or as this test was built, now.
pub fn built(package: &str, file: &str, variable: &str) -> PathBuf {
    if let Some(built) = std::env::var_os(variable) {
        return built.into();
    }
    // One test builds, and the others wait.
    static BUILDS: Mutex<()> = Mutex::new(());
    let _builds = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Path::new(env!("CARGO_BIN_EXE_sluicenet")).parent().unwrap();
    let profile = if folder.ends_with("release") { "release" } else { "test" };
    let options = ["build", "--quiet", "--offline", "--locked", "-p", package, "--profile", profile];
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(options).arg("--target-dir").arg(folder.parent().unwrap()).current_dir(repository(""));
    assert!(cargo.status().unwrap().success(), "{file} was not built");
    folder.join(file)
}

/// The machine's only testbed. Tests that bring one up hold this, and tests that call `clean`, which would remove it.
pub fn testbed_lock() -> MutexGuard<'static, ()> {
    static TESTBED: Mutex<()> = Mutex::new(());
    TESTBED.lock().unwrap_or_else(PoisonError::into_inner)
}
