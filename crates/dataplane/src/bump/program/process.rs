//! The process of a lane: it is started, killed and waited for by threads of its own, so that the loop never waits.

use super::lane::{Lane, State};
use crate::process::Program;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sluicenet_proto::netbump::Port;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// How long a program may take until it accepts frames.
pub(super) const START_MAX: Duration = Duration::from_secs(10);

/// Bytes of a line of a program's standard error that are kept, and most such lines of a process in a second.
const LINE_MAX: usize = 200;
const LINES_MAX: u32 = 10;
/// Bytes of standard error that are read at once, and the pause after them: 4 MB/s, so that a flood costs little.
const ERRORS_BYTES: usize = 4_096;
const ERRORS_PAUSE: Duration = Duration::from_millis(1);
/// Reads of standard error after the end of its process: what a pipe holds.
const ERRORS_AFTER: usize = 16;
/// The number of the process that only tries the program out; those of lanes are higher.
const TRIAL: u32 = 0;

/// How the process of a program is started. Its standard input is the lane's memory.
#[derive(Clone)]
pub struct Starter {
    /// The program: a shared library.
    pub program: Arc<[u8]>,
    /// The command that serves it, for a number that no other lane of this process has.
    pub command: Arc<dyn Fn(u32) -> Command + Send + Sync>,
    /// Takes the lines of its standard error.
    pub said: Arc<dyn Fn(&str) + Send + Sync>,
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

/// A new number for a lane, from 1 on.
pub(super) fn new_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(TRIAL + 1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A process that was started, and what the bump has of it.
struct Begun {
    memory: Lane,
    child: Program,
    handle: Handle,
    errors: Errors,
}

/// The standard error of a process: a pipe, because the process could truncate a file.
struct Errors {
    pipe: OwnedFd,
    line: Vec<u8>,
    /// The start of a second, and the lines in it.
    since: Instant,
    lines: u32,
    left_out: u64,
}

impl Errors {
    fn new(pipe: OwnedFd) -> io::Result<Errors> {
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Errors { pipe, line: Vec::new(), since: Instant::now(), lines: 0, left_out: 0 })
    }

    /// Takes what is there, if anything is, without waiting; returns whether something was.
    fn take(&mut self, said: &dyn Fn(&str)) -> bool {
        let mut bytes = [0; ERRORS_BYTES];
        let Ok(len) = rustix::io::read(&self.pipe, &mut bytes) else { return false };
        for &byte in &bytes[..len] {
            match byte {
                b'\n' => self.end_line(said),
                _ if self.line.len() < LINE_MAX => self.line.push(byte),
                _ => {}
            }
        }
        len > 0
    }

    fn end_line(&mut self, said: &dyn Fn(&str)) {
        if self.since.elapsed() >= Duration::from_secs(1) {
            self.say_left_out(said);
            (self.since, self.lines) = (Instant::now(), 0);
        }
        if self.lines < LINES_MAX {
            self.lines += 1;
            said(&String::from_utf8_lossy(&self.line).replace(char::is_control, " "));
        } else {
            self.left_out += 1;
        }
        self.line.clear();
    }

    fn say_left_out(&mut self, said: &dyn Fn(&str)) {
        if self.left_out > 0 {
            said(&format!("({} more lines)", self.left_out));
            self.left_out = 0;
        }
    }

    /// Takes lines until the process has ended.
    fn listen(mut self, process: &OwnedFd, said: &dyn Fn(&str)) {
        let mut has_ended = false;
        let mut is_open = true;
        while !has_ended {
            let mut all = vec![PollFd::new(process, PollFlags::IN)];
            if is_open {
                all.push(PollFd::new(&self.pipe, PollFlags::IN));
            }
            match poll(&mut all, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            has_ended = !all[0].revents().is_empty();
            let is_shown = all.get(1).is_some_and(|pipe| !pipe.revents().is_empty());
            if is_shown {
                // At its end a pipe is readable, and nothing is there.
                is_open = self.take(said);
                std::thread::sleep(ERRORS_PAUSE);
            }
        }
        // A program may have given the pipe to somebody else, who goes on writing.
        for _ in 0..ERRORS_AFTER {
            if !self.take(said) {
                break;
            }
        }
        if !self.line.is_empty() {
            self.end_line(said);
        }
        self.say_left_out(said);
    }
}

impl Starter {
    /// Starts a process on a thread of its own, which tells the loop about it.
    pub(super) fn start(
        &self,
        ports: Vec<Port>,
        (lane, of_lane): (usize, u32),
        number: u64,
        news: Sender<News>,
    ) -> io::Result<()> {
        let starter = self.clone();
        let run = move || {
            if let Ok(Begun { memory, mut child, handle, errors }) = starter.spawn(&ports, of_lane)
                && let Ok(process) = handle.0.try_clone()
                && news.send((lane, number, What::Started(Box::new(memory), handle))).is_ok()
            {
                errors.listen(&process, &*starter.said);
                // Its end is all that matters.
                let _ = child.wait();
            }
            // The loop may have ended.
            let _ = news.send((lane, number, What::Ended));
        };
        std::thread::Builder::new().name("program".into()).spawn(run).map(drop)
    }

    fn spawn(&self, ports: &[Port], of_lane: u32) -> io::Result<Begun> {
        let (memory, file) = Lane::create(&self.program, ports)?;
        let (errors, their_end) = io::pipe()?;
        let errors = Errors::new(errors.into())?;
        let mut command = (self.command)(of_lane);
        command.stdin(Stdio::from(file)).stdout(Stdio::null()).stderr(Stdio::from(their_end));
        let child = Program::spawn(command, None)?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        let handle = Handle(pidfd_open(pid, PidfdFlags::empty())?.as_fd().try_clone_to_owned()?);
        Ok(Begun { memory, child, handle, errors })
    }

    /// Starts the program once, for a moment; returns whether it chooses the virtual queues of its frames.
    ///
    /// # Errors
    /// The program cannot be used, or does not start in time.
    pub fn try_out(&self) -> io::Result<bool> {
        let begun = self.spawn(&[], TRIAL).map_err(|e| io::Error::other(format!("its process does not start: {e}")))?;
        let Begun { memory, mut child, handle: _handle, mut errors } = begun;
        let started = Instant::now();
        loop {
            // It may fail, and end at once.
            let ended = child.try_wait()?;
            let state = memory.state();
            // Before it fails it may say why.
            errors.take(&*self.said);
            match state {
                State::Ready(chooses) => return Ok(chooses),
                State::Failed => return Err(io::Error::other(memory.why())),
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
