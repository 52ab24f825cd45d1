//! The process that starts a worker, and starts it again if it dies: without one, tenants whose queues are held could send no more.

use super::in_force::InForce;
use super::serve::{begin, kept};
use crate::config::Config;
use crate::privileges;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tracing::warn;

/// The pause before the first restart, and the longest one: each restart in a row doubles it.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A worker that ran for this time had started well.
const WELL: Duration = Duration::from_secs(10);

/// Starts a process of a helper, whose standard input is the socket to the switch. Its standard output is not for people.
pub(super) fn spawn(command: &mut Command, socket: OwnedFd, output: Stdio) -> io::Result<Child> {
    let child = command.stdin(Stdio::from(socket)).stdout(output).spawn();
    // The command would keep them open.
    command.stdin(Stdio::null()).stdout(Stdio::null());
    child
}

/// Runs workers, which `command` starts, for the switch at the other end of a socket, until the switch ends.
///
/// # Errors
/// The socket is none of a switch, or no worker can be started.
pub fn supervise(config: &Config, socket: OwnedFd, command: &mut Command) -> io::Result<()> {
    let calls = begin(socket)?;
    privileges::drop_all_but(kept(config), None)?;
    let (in_force, mut pause) = (InForce::new()?, PAUSE);
    loop {
        let started = Instant::now();
        let mut worker = spawn(command, calls.try_clone()?, Stdio::from(in_force.try_clone()?))?;
        let status = worker.wait()?;
        if calls.has_ended() {
            return Ok(());
        }
        if started.elapsed() >= WELL {
            pause = PAUSE;
        }
        warn!(%status, ran_s = started.elapsed().as_secs_f64(), "helper died; it is started again");
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    }
}
