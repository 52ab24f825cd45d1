//! A program behind a control socket, metrics and captures: a switch, a bump, a controller or an agent.

use super::control::{Answer, Request};
use super::log::Log;
use super::metrics;
use super::status::Status;
use rustix::net::Shutdown;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use sluicenet_dataplane::shm;
use sluicenet_dataplane::tap::Capture;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use tracing::{info, warn};

/// The state of a program from its start until it is asked to stop.
#[derive(Debug)]
pub(crate) struct Life {
    stopping: AtomicBool,
    started: Instant,
    /// The listener of the control socket.
    listener: OwnedFd,
    /// Log messages that are limited to one per second.
    pub log: Log,
}

impl Life {
    /// Begins now.
    pub fn new(listener: OwnedFd) -> Life {
        Life { stopping: AtomicBool::new(false), started: Instant::now(), listener, log: Log::default() }
    }

    /// The time since then, in seconds.
    pub fn uptime_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

/// A running program, as its other threads see it.
pub(crate) trait Served: Send + Sync + 'static {
    /// What it has in common with the others.
    fn life(&self) -> &Life;

    /// Whether it was asked to stop.
    fn is_stopping(&self) -> bool {
        self.life().stopping.load(Ordering::Relaxed)
    }

    /// Asks it to stop.
    fn stop(&self) {
        self.life().stopping.store(true, Ordering::Relaxed);
        // Ends the wait for the next connection. Connecting to our own socket could need a privilege that was given up.
        let _ = rustix::net::shutdown(&self.life().listener, Shutdown::Both);
    }

    /// Its state and its counters.
    ///
    /// # Errors
    /// It has stopped.
    fn status(&self) -> io::Result<Status>;

    /// Reads the file again and becomes what it says; returns what has changed.
    ///
    /// # Errors
    /// Why nothing, or not all, has changed.
    fn reload(&self) -> Result<String, String>;

    /// Carries out a request that not every program knows.
    fn answer(&self, request: Request) -> Answer;

    /// Creates the shared memory of a port for a program.
    ///
    /// # Errors
    /// No port of kind shm has this name, or a program is attached to it.
    fn attach(&self, name: &str) -> Result<Attached<'_>, String>;

    /// Starts a capture at a port, with up to `snaplen` bytes of each frame.
    ///
    /// # Errors
    /// The port is not in service, or it has a capture already.
    fn capture(&self, name: &str, snaplen: u32) -> Result<Capture, String>;

    /// Ends a capture; the frames captured so far can still be read.
    fn close(&self, capture: &Capture);

    /// A port broke; it has been removed already.
    fn broke(&self, name: &str, reason: &str);

    /// Called once a second.
    fn every_second(&self);
}

/// Reloads, and logs the outcome.
pub(crate) fn reload(served: &impl Served) -> Answer {
    match served.reload() {
        Ok(done) => {
            info!(done, "reloaded");
            Answer::Ok(done)
        }
        Err(error) => {
            warn!(error, "not reloaded");
            Answer::Error(error)
        }
    }
}

/// Starts the thread that handles signals, until the handle is closed.
pub(crate) fn listen_to_signals(served: &Arc<impl Served>) -> io::Result<(Handle, JoinHandle<()>)> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (handle, served) = (signals.handle(), Arc::clone(served));
    let thread = std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                reload(&*served);
            } else {
                served.stop();
            }
        }
    });
    Ok((handle, thread))
}

/// Starts the thread that serves metrics, if there is a server. It ends with the process: nothing waits for a slow client.
pub(crate) fn serve_metrics(served: &Arc<impl Served>, metrics: Option<metrics::Server>) -> io::Result<()> {
    let Some(metrics) = metrics else { return Ok(()) };
    let served = Arc::clone(served);
    std::thread::Builder::new().name("metrics".into()).spawn(move || metrics.serve(&served)).map(drop)
}

/// A port in shared memory that a program uses; released when dropped.
pub(crate) struct Attached<'a> {
    pub access: shm::Access,
    /// The MAC address of the port's endpoint in the file.
    pub mac: Option<[u8; 6]>,
    /// The only IPv4 address from which the port may send.
    pub ip: Option<Ipv4Addr>,
    /// The size of the largest IP packet that reaches other servers, in bytes.
    pub mtu: Option<u32>,
    pub release: Option<Box<dyn FnOnce() + 'a>>,
}

impl Attached<'_> {
    /// The descriptors of memory, kick and wake.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.access.memory.as_fd(), self.access.kick.as_fd(), self.access.wake.as_fd()]
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}
