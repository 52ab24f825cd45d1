//! Programs that a second process starts again when they die.

use super::Global;
use super::failure::Failure;
use sluicenet_vswitchd::supervisor::supervise;
use std::ffi::OsString;
use std::process::Command;

/// Runs this program with these arguments until it ends by itself, and starts it again if it dies.
pub(super) fn run(what: &str, args: impl IntoIterator<Item = OsString>, global: Global) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::Failed(format!("this program: {e}")))?;
    let mut command = Command::new(program);
    command.args(args);
    if global.json {
        command.arg("--json");
    }
    if global.quiet {
        command.arg("--quiet");
    }
    match supervise(&mut command, what) {
        Ok(0) => Ok(()),
        // It has said why.
        Ok(_) => Err(Failure::Told),
        Err(e) => Err(Failure::Failed(format!("the {what} cannot be started: {e}"))),
    }
}
