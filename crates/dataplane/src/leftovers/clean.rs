//! Removes the leftovers of processes that have ended.

use super::{Device, Leftover, records, started};
use crate::kernel::KernelError;
use crate::kernel::classes::Classes;
use crate::kernel::departures::Departures;
use crate::kernel::netns::Namespace;
use crate::kernel::wire::Wire;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// How long a killed program may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of a clean-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Removed.
    pub gone: Vec<String>,
    /// Kept, and why.
    pub kept: Vec<String>,
    /// Why the other things could not be removed.
    pub failed: Vec<String>,
}

/// Removes the leftovers of processes that have ended, of those whose numbers are `wanted`.
///
/// # Errors
/// A record cannot be read or written.
pub fn clean(wanted: impl Fn(i32) -> bool) -> io::Result<Cleaned> {
    let mut cleaned = Cleaned::default();
    let own = rustix::process::getpid().as_raw_pid();
    for mut record in records()?.into_iter().filter(|r| wanted(r.pid) && r.pid != own) {
        if record.is_alive() {
            let things: Vec<String> = record.things.iter().map(Leftover::to_string).collect();
            cleaned.kept.push(format!(
                "of process {}, which runs ({}): {}",
                record.pid,
                record.command,
                things.join(", ")
            ));
            continue;
        }
        // Programs come first in the order of things.
        for thing in std::mem::take(&mut record.things) {
            match remove(&thing) {
                Ok(true) => cleaned.gone.push(thing.to_string()),
                Ok(false) => {}
                Err(e) => {
                    cleaned.failed.push(e.to_string());
                    record.things.insert(thing);
                }
            }
        }
        record.write()?;
    }
    Ok(cleaned)
}

/// Removes a thing; whether it was there.
fn remove(thing: &Leftover) -> io::Result<bool> {
    match thing {
        Leftover::Program { pid, started: since } => {
            let runs = || started(*pid) == Some(*since);
            let (true, Some(number)) = (runs(), Pid::from_raw(*pid)) else { return Ok(false) };
            match kill_process(number, Signal::KILL) {
                // It has just ended.
                Err(rustix::io::Errno::SRCH) => return Ok(false),
                other => other?,
            }
            let until = Instant::now() + PATIENCE;
            while runs() {
                if Instant::now() > until {
                    return Err(io::Error::new(ErrorKind::TimedOut, format!("{thing} was killed and does not end")));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(true)
        }
        Leftover::Namespace(name) => match Namespace::delete(name) {
            Ok(()) => Ok(true),
            Err(e) if e.why().kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e.into()),
        },
        Leftover::Wire(at) => removed_at(at, Wire::remove),
        Leftover::Classes(at) => removed_at(at, Classes::remove),
        Leftover::Departures(at) => removed_at(at, Departures::remove),
        Leftover::Folder(path) => match std::fs::remove_dir_all(path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(io::Error::new(e.kind(), format!("{}: {e}", path.display()))),
        },
    }
}

/// Removes what is at a device; whether it was there.
fn removed_at(at: &Device, remove: fn(&Namespace, &str) -> Result<bool, KernelError>) -> io::Result<bool> {
    match Namespace::open(&at.namespace) {
        Ok(namespace) => Ok(remove(&namespace, &at.device)?),
        // Its devices are gone with it.
        Err(e) if e.why().kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}
