//! The helper of a switch: a process with the privileges to open devices, which the process that forwards frames has given
//! up.
//!
//! ```text
//! switch run   reads the file, starts the helper, gives up its privileges, forwards frames
//!   └ helper   reads the file, too; opens devices and hands over their descriptors
//! ```
//! The helper trusts nothing that the switch says. It opens a device only if its own copy of the file, the file as it is now,
//! or the record of a command names it for that port (see [`known`]). It ends when the switch has ended.

pub(crate) mod device;
mod known;
mod message;
mod serve;

use crate::failure::Failure;
use crate::privileges;
use crate::status::HelperStatus;
pub(crate) use device::{Device, Facts};
use message::{Ask, Call, Called, Channel, Told};
use rustix::thread::CapabilitySet;
pub use serve::serve;
use sluicenet_dataplane::kernel::parts::Parts;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the end of a switch waits for its helper.
const ENDS_IN: Duration = Duration::from_secs(5);

/// Where a switch finds its helper.
#[derive(Debug)]
pub enum From<'a> {
    /// The switch starts it by this command, which [serves](serve()) its standard input, if it has the privileges for that.
    Command(&'a mut Command),
    /// A service manager starts it for each connection to this socket.
    Socket(&'a Path),
}

/// The process of a helper.
#[derive(Debug)]
enum Process {
    /// A child of this process.
    Child(Mutex<Child>, u32),
    /// One that a service manager has started.
    Service,
}

/// The helper of this process.
#[derive(Debug)]
pub(crate) struct Helper {
    /// The first socket; closed at the end.
    calls: Mutex<Option<Channel>>,
    process: Process,
    /// How it ended, once it has.
    ended: Mutex<Option<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    /// The helper of a switch; none if the switch has no privileges to start one.
    ///
    /// # Errors
    /// It cannot be started, or nobody is at its socket.
    pub fn of(from: From<'_>) -> io::Result<Option<Helper>> {
        match from {
            From::Socket(path) => Helper::connect(path).map(Some),
            From::Command(command) if privileges::own().contains(privileges::TO_OPEN) => {
                Helper::start(command).map(Some)
            }
            From::Command(_) => Ok(None),
        }
    }

    fn connect(path: &Path) -> io::Result<Helper> {
        if let Some(missing) = privileges::missing("tenant's queue", CapabilitySet::NET_ADMIN, privileges::own()) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, missing));
        }
        let calls = Channel::connect(path)
            .map_err(|e| io::Error::new(e.kind(), format!("the helper at {}: {e}", path.display())))?;
        Ok(Helper::new(calls, Process::Service))
    }

    fn new(calls: Channel, process: Process) -> Helper {
        Helper { calls: Mutex::new(Some(calls)), process, ended: Mutex::new(None) }
    }

    fn start(command: &mut Command) -> io::Result<Helper> {
        let (ours, theirs) = Channel::pair()?;
        let child = command.stdin(Stdio::from(theirs.into_socket())).stdout(Stdio::null()).spawn();
        let child = child.map_err(|e| io::Error::new(e.kind(), format!("the helper cannot be started: {e}")))?;
        let pid = child.id();
        Ok(Helper::new(ours, Process::Child(Mutex::new(child), pid)))
    }

    fn call(&self, call: &Call, descriptors: usize) -> io::Result<Option<Channel>> {
        let calls = lock(&self.calls);
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the helper has ended");
        let (answer, mut came) = calls.as_ref().ok_or_else(ended)?.ask::<Called>(call, None)?;
        match answer {
            Called::Done if came.len() == descriptors => came.pop().map(Channel::of).transpose(),
            Called::Done => Err(io::Error::new(io::ErrorKind::InvalidData, "the helper's answer has no socket")),
            Called::Refused(why) => Err(io::Error::other(why)),
        }
    }

    /// Has the first sockets of a port's device opened.
    ///
    /// # Errors
    /// The helper's reason.
    pub fn listen(&self, port: &str, device: Device) -> Result<Begun, Failure> {
        let channel = self.call(&Call::Port, 1)?;
        let channel = channel.ok_or_else(|| Failure::lasting("the helper's answer has no socket".into()))?;
        match channel.ask(&Ask::Listen { port: port.to_owned(), device }, Some(0))?.0 {
            Told::Listening => Ok(Begun(channel)),
            Told::Failed(failure) => Err(failure),
            Told::Open(_) => Err(Failure::lasting("the helper's answer is another one's".into())),
        }
    }

    /// Tells it that the switch obeys the file as it is now.
    pub fn reloaded(&self) {
        // A helper that has ended needs no file.
        let _ = self.call(&Call::Reloaded, 0);
    }

    /// How it ended, if it has; noticed for the first time by `first`.
    pub fn end_of(&self, first: impl FnOnce(&str)) -> Option<String> {
        let mut ended = lock(&self.ended);
        if ended.is_none() {
            let how = match &self.process {
                Process::Child(child, _) => match lock(child).try_wait() {
                    Ok(None) => return None,
                    Ok(Some(status)) => status.to_string(),
                    Err(e) => e.to_string(),
                },
                // A socket that is in use belongs to a helper that answers.
                Process::Service => match self.calls.try_lock().as_deref() {
                    Ok(Some(calls)) if calls.has_ended() => "it has closed its socket".to_owned(),
                    _ => return None,
                },
            };
            first(&how);
            *ended = Some(how);
        }
        ended.clone()
    }

    /// The reason for which it opens nothing, if it has ended.
    pub fn missing(&self) -> Option<String> {
        lock(&self.ended).as_ref().map(|how| {
            format!(
                "the helper, which opens devices, has ended ({how}); the next start of the switch starts another one"
            )
        })
    }

    /// Its process id, if it is a child.
    pub fn pid(&self) -> Option<u32> {
        match &self.process {
            Process::Child(_, pid) => Some(*pid),
            Process::Service => None,
        }
    }

    /// Its state.
    pub fn status(&self) -> HelperStatus {
        HelperStatus { pid: self.pid(), ended: lock(&self.ended).clone() }
    }

    /// Ends it: nothing is opened any more.
    pub fn end(&self) {
        lock(&self.calls).take();
        let Process::Child(child, _) = &self.process else { return };
        let (mut child, until) = (lock(child), Instant::now() + ENDS_IN);
        // Without privileges this process cannot kill it; it ends once all its sockets are closed.
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A port's device of which the first sockets are open, in the helper.
pub(crate) struct Begun(Channel);

impl Begun {
    /// Has the rest opened.
    ///
    /// # Errors
    /// The helper's reason.
    pub fn open(self) -> Result<Parts<Facts>, Failure> {
        match self.0.ask(&Ask::Open, None)? {
            (Told::Open(facts), descriptors) => Ok(Parts { facts, descriptors }),
            (Told::Failed(failure), _) => Err(failure),
            (Told::Listening, _) => Err(Failure::lasting("the helper's answer is another one's".into())),
        }
    }
}

impl AsFd for Begun {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
