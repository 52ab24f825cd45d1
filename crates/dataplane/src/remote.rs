//! How other threads reach a switch that runs: they send it something to do between two turns.

use crate::engine::Engine;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};

type Job = Box<dyn FnOnce(&mut Engine) + Send>;

#[derive(Debug)]
struct Bell {
    rung: AtomicBool,
    event: OwnedFd,
}

/// A handle to a switch; copies reach the same one.
#[derive(Clone, Debug)]
pub struct Remote {
    jobs: Sender<Job>,
    bell: Arc<Bell>,
}

impl Remote {
    /// Has the switch do `job` between two turns and waits for the answer; an error when the switch has stopped.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce(&mut Engine) -> R + Send + 'static) -> io::Result<R> {
        let (answer, answered) = sync_channel(1);
        // Who does not wait for the answer any more does not want it.
        self.post(move |engine| drop(answer.send(job(engine))))?;
        answered.recv().map_err(|_| Remote::stopped())
    }

    /// The same without waiting.
    pub fn post(&self, job: impl FnOnce(&mut Engine) + Send + 'static) -> io::Result<()> {
        self.jobs.send(Box::new(job)).map_err(|_| Remote::stopped())?;
        self.bell.rung.store(true, Ordering::Release);
        match rustix::io::write(&self.bell.event, &1u64.to_ne_bytes()) {
            // A full counter is readable, too.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn stopped() -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, "the switch has stopped")
    }
}

/// The switch's end.
#[derive(Default)]
pub(crate) struct Jobs {
    incoming: Option<(Receiver<Job>, Remote)>,
}

impl Jobs {
    pub(crate) fn remote(&mut self) -> io::Result<Remote> {
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

    pub(crate) fn next(&mut self) -> Option<Job> {
        let (receiver, remote) = self.incoming.as_ref()?;
        // Before looking: what is sent after the look rings again, and what rang before is seen.
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
