//! The programs of a testbed.

use super::files::TestbedDir;
use rustix::process::{Pid, Signal};
use sluicenet_dataplane::leftovers::started;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// A program of a testbed. Its start time tells it from a later process with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program's name.
    pub name: String,
    /// The process id.
    pub pid: i32,
    /// The start time, in the kernel's ticks since boot.
    started: u64,
}

impl Program {
    /// The program that runs as process `pid` now.
    pub fn new(name: &str, pid: i32) -> Program {
        Program { name: name.into(), pid, started: started(pid).unwrap_or_default() }
    }

    /// Whether the program is still running.
    pub fn is_running(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Sends the program a signal, if it runs.
    pub fn signal(&self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_running(), Pid::from_raw(self.pid)) {
            // The program may have ended just now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Adds the program to the testbed's list.
    ///
    /// # Errors
    /// The list cannot be written.
    pub fn record(&self, dir: &TestbedDir) -> io::Result<()> {
        let line = format!("{} {} {}\n", self.name, self.pid, self.started);
        OpenOptions::new().append(true).open(dir.programs())?.write_all(line.as_bytes())
    }

    /// All programs in the testbed's list.
    pub fn read_all(dir: &TestbedDir) -> Vec<Program> {
        let text = std::fs::read_to_string(dir.programs()).unwrap_or_default();
        let program = |line: &str| {
            let mut words = line.split(' ');
            let (name, pid, started) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Program { name: name.into(), pid, started })
        };
        text.lines().filter_map(program).collect()
    }
}
