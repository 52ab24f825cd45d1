//! How other threads reach a loop that runs: they send it jobs, which it does between two iterations.

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

#[derive(Debug)]
struct Bell {
    rung: AtomicBool,
    event: OwnedFd,
}

/// A handle to the owner of a loop, `T`; copies reach the same one.
pub struct Remote<T: ?Sized> {
    jobs: Sender<Job<T>>,
    bell: Arc<Bell>,
}

impl<T: ?Sized> Clone for Remote<T> {
    fn clone(&self) -> Remote<T> {
        Remote { jobs: self.jobs.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<T: ?Sized> fmt::Debug for Remote<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("bell", &self.bell).finish_non_exhaustive()
    }
}

impl<T: ?Sized> Remote<T> {
    /// Runs `job` between two iterations and waits for its result.
    ///
    /// # Errors
    /// The loop has ended.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce(&mut T) -> R + Send + 'static) -> io::Result<R> {
        let (answer, answered) = sync_channel(1);
        // The caller may have given up; the result is then dropped.
        self.post(move |owner| drop(answer.send(job(owner))))?;
        answered.recv().map_err(|_| stopped())
    }

    /// Runs `job` between two iterations and does not wait.
    ///
    /// # Errors
    /// The loop has ended.
    pub fn post(&self, job: impl FnOnce(&mut T) + Send + 'static) -> io::Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| stopped())?;
        self.bell.rung.store(true, Ordering::Release);
        match rustix::io::write(&self.bell.event, &1u64.to_ne_bytes()) {
            // A counter at its maximum still wakes the loop.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the switch has stopped")
}

/// The loop's end.
pub(crate) struct Jobs<T: ?Sized> {
    incoming: Option<(Receiver<Job<T>>, Remote<T>)>,
}

impl<T: ?Sized> Default for Jobs<T> {
    fn default() -> Jobs<T> {
        Jobs { incoming: None }
    }
}

impl<T: ?Sized> Jobs<T> {
    pub(crate) fn remote(&mut self) -> io::Result<Remote<T>> {
        if let Some((_, remote)) = &self.incoming {
            return Ok(remote.clone());
        }
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, receiver) = channel();
        let remote = Remote { jobs: sender, bell: Arc::new(Bell { rung: AtomicBool::new(false), event }) };
        self.incoming = Some((receiver, remote.clone()));
        Ok(remote)
    }

    #[inline(always)]
    pub(crate) fn are_there(&self) -> bool {
        self.incoming.as_ref().is_some_and(|(_, remote)| remote.bell.rung.load(Ordering::Relaxed))
    }

    pub(crate) fn next(&mut self) -> Option<Job<T>> {
        let (receiver, remote) = self.incoming.as_ref()?;
        // Cleared before the look: a job that is sent after the look rings again.
        remote.bell.rung.swap(false, Ordering::Acquire);
        receiver.try_recv().ok()
    }

    pub(crate) fn waker<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if let Some((_, remote)) = &self.incoming {
            fds.push(PollFd::new(&remote.bell.event, PollFlags::IN));
        }
    }

    pub(crate) fn wake_up(&self) {
        if let Some((_, remote)) = &self.incoming {
            let _ = rustix::io::read(&remote.bell.event, &mut [0u8; 8]);
        }
    }
}
