//! Child programs that must not outlive this process.
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

/// A child program. It is killed and waited for when this is dropped. The kernel kills it when this process ends in any way.
#[derive(Debug)]
pub struct Program {
    child: Child,
    /// Its entry in the record of leftovers.
    thing: Option<Leftover>,
}

impl Program {
    /// Starts it in `namespace`, or in the namespace of the thread that started the first program. It has a process group of its
    /// own: Ctrl-C reaches only this process, which then asks its programs for their figures and ends them.
    ///
    /// # Errors
    /// Those of [`Command::spawn`]; the namespace cannot be entered.
    pub fn spawn(mut command: Command, namespace: Option<&Namespace>) -> io::Result<Program> {
        let namespace = namespace.map(|n| n.as_fd().try_clone_to_owned()).transpose()?;
        let parent = getpid();
        let begin = move || {
            if let Some(namespace) = &namespace {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the signal was set.
            if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
        };
        // SAFETY: between fork and exec it only makes four system calls. It allocates no memory and takes no lock, and its
        // errors are numbers.
        unsafe { command.pre_exec(begin) };
        command.process_group(0);
        let child = on_the_keeper(command)?;
        let pid = i32::try_from(child.id()).unwrap_or(0);
        let thing = leftovers::started(pid).map(|started| Leftover::Program { pid, started });
        // Without an entry, the kernel still kills it.
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
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(thing) = &self.thing {
            leftovers::forget(thing);
        }
    }
}

type Job = (Command, SyncSender<io::Result<Child>>);

/// Forks on a thread that lives as long as this process: the kernel kills the child when the forking thread ends
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
                    // The caller waits for the answer.
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
