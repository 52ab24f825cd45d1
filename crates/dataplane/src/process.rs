//! Programs that this one starts and that must not outlive it.
#![allow(unsafe_code)]

use crate::kernel::netns::Namespace;
use crate::leftovers::{self, Leftover};
use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

/// A program that was started here: killed and waited for when this is dropped, and by the kernel when this process ends, however it does.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// As it was written down.
    thing: Option<Leftover>,
}

impl Program {
    /// Starts it in `namespace`, or in that of the thread that was the first to start one.
    ///
    /// # Errors
    /// As [`Command::spawn`]; when the namespace cannot be entered.
    pub fn spawn(mut command: Command, namespace: Option<&Namespace>) -> io::Result<Program> {
        let namespace = namespace.map(|n| n.as_fd().try_clone_to_owned()).transpose()?;
        let parent = getpid();
        let begin = move || {
            if let Some(namespace) = &namespace {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // It may have ended before this was said.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        };
        // SAFETY: between fork and exec it makes four system calls and nothing else: it takes no memory and no lock, and its errors are
        // numbers.
        unsafe { command.pre_exec(begin) };
        let child = on_the_keeper(command)?;
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let thing = leftovers::started(pid).map(|started| Leftover::Program { pid, started });
        // The kernel ends it in any case.
        let thing = thing.filter(|thing| leftovers::add(thing.clone()).is_ok());
        Ok(Program { child, thing })
    }
}

impl Deref for Program {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(thing) = &self.thing {
            leftovers::forget(thing);
        }
    }
}

type Job = (Command, SyncSender<io::Result<Child>>);

/// Has a thread fork that lasts as long as this process: what the kernel waits for is the end of the thread that did
/// (`PR_SET_PDEATHSIG`).
fn on_the_keeper(command: Command) -> io::Result<Child> {
    static KEEPER: Mutex<Option<Sender<Job>>> = Mutex::new(None);
    let (answer, answered) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts programs has ended");
    {
        let mut keeper = KEEPER.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.is_none() {
            let (jobs, next) = channel::<Job>();
            let serve = move || {
                for (mut command, answer) in next {
                    // Whoever asked waits for it.
                    let _ = answer.send(command.spawn());
                }
            };
            std::thread::Builder::new().name("keeper".into()).spawn(serve)?;
            *keeper = Some(jobs);
        }
        keeper.as_ref().map_or(Err(gone()), |jobs| jobs.send((command, answer)).map_err(|_| gone()))?;
    }
    answered.recv().map_err(|_| gone())?
}
