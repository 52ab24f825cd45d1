//! The helper of a switch: a process with the privileges to open devices, which the process that forwards frames has given
//! up.
//!
//! ```text
//! switch run     reads the file, starts the helper, gives up its privileges, forwards frames
//!   └ helper     starts the worker, and starts it again if it dies
//!       └ worker opens devices and hands over their descriptors; keeps the queues of tenants
//! ```
//! The worker trusts nothing that the switch says. It opens a device only if the file that the switch was started with, the file
//! as it is now, or the record of a command names it for that port (see [`known`]). Both end when the switch has ended.
//!
//! The switch has a socket to the worker, and one for each open port ([`keeper`]). A worker that was started again has the first
//! one, and a port gets another one when it needs it.

pub(crate) mod device;
mod in_force;
mod keeper;
mod known;
mod message;
mod serve;
mod supervise;

use crate::failure::Failure;
use crate::privileges;
use crate::status::HelperStatus;
pub(crate) use device::{Device, Facts, Handed, Place};
pub use in_force::load;
use keeper::RemoteKeeper;
use message::{Ask, Call, Called, Channel, Told, no_answer};
pub use serve::serve;
use sluicenet_dataplane::kernel::keeper::Keeper;
use sluicenet_dataplane::kernel::parts::Parts;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
pub use supervise::supervise;

/// How long the answer to a call may take: the worker may have to be started again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to open a device. The worker waits at most 7 s for the kernel to poll it.
const OPENS_IN: Duration = Duration::from_secs(60);
/// How long the end of a switch waits for its helper, which ends by itself in any case.
const ENDS_IN: Duration = Duration::from_secs(1);

/// Where a switch finds its helper.
#[derive(Debug)]
pub enum From<'a> {
    /// The switch starts it by this command, which [supervises](supervise()) one, if it has the privileges for that.
    Command(&'a mut Command),
    /// A service manager starts it for each connection to this socket.
    Socket(&'a Path),
}

/// The process of a helper.
#[derive(Debug)]
enum Process {
    /// A child of this process.
    Child { child: Mutex<Child>, pid: u32 },
    /// One that a service manager has started.
    Service,
}

/// The helper of this process.
#[derive(Debug)]
pub(crate) struct Helper {
    /// The first socket; closed at the end.
    calls: Mutex<Option<Channel>>,
    /// The same socket, to be shut down while a call waits for its answer.
    hangs_up: OwnedFd,
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
        let calls = Channel::connect(path)
            .map_err(|e| io::Error::new(e.kind(), format!("the helper at {}: {e}", path.display())))?;
        Helper::new(calls, Process::Service)
    }

    fn new(calls: Channel, process: Process) -> io::Result<Helper> {
        let hangs_up = calls.try_clone()?;
        Ok(Helper { calls: Mutex::new(Some(calls.patient(PATIENCE)?)), hangs_up, process, ended: Mutex::new(None) })
    }

    fn start(command: &mut Command) -> io::Result<Helper> {
        let (ours, theirs) = Channel::pair()?;
        let child = supervise::spawn(command, theirs.into_socket(), Stdio::null());
        let child = child.map_err(|e| io::Error::new(e.kind(), format!("the helper cannot be started: {e}")))?;
        let pid = child.id();
        Helper::new(ours, Process::Child { child: Mutex::new(child), pid })
    }

    fn call(&self, call: &Call, descriptors: usize) -> io::Result<Option<Channel>> {
        let calls = lock(&self.calls);
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "the helper has ended");
        let (answer, mut came) = calls.as_ref().ok_or_else(ended)?.ask::<Called>(call, None)?;
        match answer {
            Called::Done if came.len() == descriptors => came.pop().map(Channel::of).transpose(),
            Called::Done => Err(another()),
            Called::Refused(why) => Err(io::Error::other(why)),
        }
    }

    /// Has the first sockets of a port's device opened.
    ///
    /// # Errors
    /// The helper's reason.
    pub fn listen(self: &Arc<Helper>, port: &str, device: Device) -> Result<Begun, Failure> {
        let channel = self.port()?.patient(OPENS_IN)?;
        let ask = Ask::Listen { port: port.to_owned(), device: device.clone() };
        match channel.ask(&ask, Some(0))?.0 {
            Told::Listening => Ok(Begun { helper: Arc::clone(self), port: port.to_owned(), device, channel }),
            Told::Failed(failure) => Err(failure),
            _ => Err(another().into()),
        }
    }

    /// A socket for a port.
    fn port(&self) -> io::Result<Channel> {
        self.call(&Call::Port, 1)?.ok_or_else(another)
    }

    /// Tells it that the switch obeys the file as it is now.
    pub fn reloaded(&self) {
        // A helper that has ended needs no file.
        let _ = self.call(&Call::Reloaded, 0);
    }

    /// Notices its end, which `first` is told: no process is left that opens devices.
    pub fn look(&self, first: impl FnOnce(&str)) {
        // While a call waits for its answer, it is not looked.
        let Ok(calls) = self.calls.try_lock() else { return };
        let mut ended = lock(&self.ended);
        if ended.is_none() && calls.as_ref().is_some_and(Channel::has_ended) {
            let status = match &self.process {
                Process::Child { child, .. } => lock(child).try_wait().ok().flatten(),
                Process::Service => None,
            };
            let how = status.map_or_else(|| "it has closed its socket".to_owned(), |status| status.to_string());
            first(&how);
            *ended = Some(how);
        }
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
            Process::Child { pid, .. } => Some(*pid),
            Process::Service => None,
        }
    }

    /// Its state.
    pub fn status(&self) -> HelperStatus {
        HelperStatus { pid: self.pid(), ended: lock(&self.ended).clone() }
    }

    /// Ends it: nothing is opened any more.
    pub fn end(&self) {
        // A call that waits for its answer fails, and lets go of the socket.
        let _ = rustix::net::shutdown(&self.hangs_up, rustix::net::Shutdown::Both);
        lock(&self.calls).take();
        let Process::Child { child, .. } = &self.process else { return };
        let (mut child, until) = (lock(child), Instant::now() + ENDS_IN);
        // Without privileges this process cannot kill it; it ends once all its sockets are closed.
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A port's device of which the first sockets are open, in the helper.
#[derive(Debug)]
pub(crate) struct Begun {
    helper: Arc<Helper>,
    port: String,
    device: Device,
    channel: Channel,
}

impl Begun {
    /// Has the rest opened, and does not wait for it.
    ///
    /// # Errors
    /// The helper has ended.
    pub fn go(self) -> Result<Opening, Failure> {
        self.channel.tell(&Ask::Open)?;
        Ok(Opening { begun: Box::new(self), until: Instant::now() + OPENS_IN })
    }

    /// Has the rest opened.
    ///
    /// # Errors
    /// The helper's reason.
    pub fn open(self) -> Result<Handed, Failure> {
        self.go()?.finish()
    }

    fn receive(self) -> Result<Handed, Failure> {
        let Begun { helper, port, device, channel } = self;
        match channel.told::<Told>(None)? {
            (Told::Open { facts, places }, descriptors) => {
                let keeper: Option<Box<dyn Keeper>> = match &facts {
                    Facts::Packet(_) => None,
                    _ => Some(Box::new(RemoteKeeper::new(helper, port, device, channel)?)),
                };
                Ok(Handed { parts: Parts { facts, descriptors }, keeper, places })
            }
            (Told::Failed(failure), _) => Err(failure),
            _ => Err(another().into()),
        }
    }
}

/// A port's device that the helper is opening. A tenant can delay that: with a filter at its device, for example.
#[derive(Debug)]
pub(crate) struct Opening {
    begun: Box<Begun>,
    /// When it is given up.
    until: Instant,
}

impl Opening {
    /// The outcome, if it is there by a time. Otherwise this is given back, or has failed because it took too long.
    pub fn wait(self, until: Instant) -> Result<Result<Handed, Failure>, Opening> {
        match self.begun.channel.has_message(until.min(self.until)) {
            Ok(true) => Ok(self.begun.receive()),
            Ok(false) if Instant::now() < self.until => Err(self),
            Ok(false) => Ok(Err(no_answer().into())),
            Err(e) => Ok(Err(e.into())),
        }
    }

    /// Waits for the outcome.
    pub fn finish(self) -> Result<Handed, Failure> {
        let until = self.until;
        self.wait(until).unwrap_or_else(|_| Err(no_answer().into()))
    }
}

fn another() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the helper's answer is to another request")
}
