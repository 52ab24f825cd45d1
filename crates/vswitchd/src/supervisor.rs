//! Starts a bump or an agent again when it dies. One that ends in order, or that cannot start, is not started again.

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};
use tracing::warn;

/// The pause before the first restart, and the longest one: each restart in a row doubles it.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A program that ran for this time had started well.
const WELL: Duration = Duration::from_secs(10);

/// Runs `command`, which is `what`, until it ends in order, and passes this process's signals on to it. Returns its exit code.
///
/// # Errors
/// It cannot be started.
pub fn supervise(command: &mut Command, what: &str) -> io::Result<i32> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (handle, child, ending) = (signals.handle(), Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
    let (to, ends) = (Arc::clone(&child), Arc::clone(&ending));
    let thread = std::thread::spawn(move || {
        for signal in signals.forever() {
            ends.fetch_or(signal != SIGHUP, Ordering::SeqCst);
            let signal = if signal == SIGHUP { Signal::HUP } else { Signal::TERM };
            if let Some(pid) = Pid::from_raw(to.load(Ordering::SeqCst)) {
                // It may have just ended.
                let _ = kill_process(pid, signal);
            }
        }
    });
    let mut pause = PAUSE;
    let outcome = loop {
        let started = Instant::now();
        let mut running = match command.spawn() {
            Ok(running) => running,
            Err(e) => break Err(e),
        };
        child.store(running.id() as i32, Ordering::SeqCst);
        let ended = match running.wait() {
            Ok(ended) => ended,
            Err(e) => break Err(e),
        };
        child.store(0, Ordering::SeqCst);
        if !died(ended) || ending.load(Ordering::SeqCst) {
            break Ok(ended.code().unwrap_or(1));
        }
        if started.elapsed() >= WELL {
            pause = PAUSE;
        }
        warn!(status = %ended, ran_s = started.elapsed().as_secs_f64(), "{what} died; it is started again");
        std::thread::sleep(pause);
        pause = (2 * pause).min(PAUSE_MAX);
    };
    handle.close();
    let _ = thread.join();
    outcome
}

/// Whether a process was killed, or ended by a fault of its own: exit code 101 is that of a panic.
fn died(ended: ExitStatus) -> bool {
    ended.signal().is_some() || ended.code() == Some(101)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dies_is_started_again_and_what_ends_is_not() {
        let folder = std::env::temp_dir().join(format!("sluicenet-supervise-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let log = folder.join("runs");
        // Killed twice, then ended with code 3.
        let script = format!("echo x >> {0}; test $(wc -l < {0}) -ge 3 && exit 3; kill -9 $$", log.display());
        assert_eq!(supervise(Command::new("sh").args(["-c", &script]), "bump").unwrap(), 3);
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 3);
        assert!(supervise(&mut Command::new("/nonexistent/program"), "bump").is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
