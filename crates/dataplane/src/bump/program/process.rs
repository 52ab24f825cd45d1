//! The process of a lane: it is started, killed and waited for by threads of its own, so that the loop never waits.

use super::lane::{Lane, State};
use crate::process::Program;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sluicenet_proto::netbump::Port;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long a program may take until it accepts frames.
pub(super) const START_MAX: Duration = Duration::from_secs(10);

/// How the process of a program is started. Its standard input is the lane's memory.
#[derive(Clone)]
pub struct Starter {
    /// The program: a shared library.
    pub program: Arc<[u8]>,
    /// The command that serves it.
    pub command: Arc<dyn Fn() -> Command + Send + Sync>,
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Starter({} bytes)", self.program.len())
    }
}

/// News of a process: its lane, and its number among those of that lane.
pub(super) type News = (usize, u64, What);

/// What happened to a process.
pub(super) enum What {
    /// It was started.
    Started(Box<Lane>, Handle),
    /// It has ended, or could not be started.
    Ended,
}

/// A running process. It is killed when this is dropped; its thread waits for it.
pub(super) struct Handle(OwnedFd);

impl Handle {
    pub fn kill(&self) {
        // It may have ended.
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Starter {
    /// Starts a process on a thread of its own, which tells the loop about it.
    pub(super) fn start(&self, ports: Vec<Port>, lane: usize, number: u64, news: Sender<News>) -> io::Result<()> {
        let starter = self.clone();
        let run = move || {
            if let Ok((memory, mut child, handle)) = starter.spawn(&ports)
                && news.send((lane, number, What::Started(Box::new(memory), handle))).is_ok()
            {
                // Its end is all that matters.
                let _ = child.wait();
            }
            // The loop may have ended.
            let _ = news.send((lane, number, What::Ended));
        };
        std::thread::Builder::new().name("program".into()).spawn(run).map(drop)
    }

    fn spawn(&self, ports: &[Port]) -> io::Result<(Lane, Program, Handle)> {
        let (lane, file) = Lane::create(&self.program, ports)?;
        let mut command = (self.command)();
        command.stdin(Stdio::from(file)).stdout(Stdio::null());
        let child = Program::spawn(command, None)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let handle = Handle(pidfd_open(pid, PidfdFlags::empty())?.as_fd().try_clone_to_owned()?);
        Ok((lane, child, handle))
    }

    /// Starts the program once, for a moment; returns whether it chooses the virtual queues of its frames.
    ///
    /// # Errors
    /// The program cannot be used, or does not start in time.
    pub fn try_out(&self) -> io::Result<bool> {
        let (lane, mut child, _handle) = self.spawn(&[])?;
        let started = Instant::now();
        loop {
            // It may fail, and end at once.
            let ended = child.try_wait()?;
            match lane.state() {
                State::Ready(chooses) => return Ok(chooses),
                State::Failed => return Err(io::Error::other(lane.why())),
                State::Loading => {}
            }
            if let Some(status) = ended {
                return Err(io::Error::other(format!("its process ended while it loaded it: {status}")));
            }
            if started.elapsed() > START_MAX {
                return Err(io::Error::other(format!("it did not load within {} s", START_MAX.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
