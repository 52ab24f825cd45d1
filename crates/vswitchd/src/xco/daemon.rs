//! A program of XCo as a process: its loop has its own thread, and other threads handle requests.

use super::config::Common;
use super::status::XcoStatus;
use crate::config::keep_control;
use crate::control::{Answer, Request, Socket};
use crate::metrics;
use crate::privileges::{self, Becomes};
use crate::served::{Attached, Life, Served, listen_to_signals, serve_metrics};
use crate::status::{PortStatus, Status};
use rustix::thread::CapabilitySet;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::tap::Capture;
use sluicenet_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::{info, warn};

/// How often the log looks at what has changed.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// Events that name the reason of a refused message.
const REFUSED: [&str; 8] =
    ["impostors", "strangers", "forged", "flooded", "backwards", "too_long", "no_such_node", "misdirected"];
/// Events of an agent whose queues cannot carry out what its controller says, and what helps.
const UNSUITED: [(&str, &str); 2] = [
    ("slices_refused", "permissions are not renewed in time: departure times need a controller of kind = \"rate\""),
    ("lapsed", "permissions end while frames wait: directives are lost, or the controller has changed to timeslices"),
];
const NO_PORTS: &str = "a program of XCo has no ports";

/// A program of XCo: the controller, or an agent.
pub(super) trait Program: Sized + Send + 'static {
    /// The settings in its file.
    type Config: Clone + Send + 'static;
    /// What it is called in the log.
    const WHAT: &str;

    /// The settings that all programs have.
    fn common(config: &Self::Config) -> &Common;
    /// The same, to be changed.
    fn common_mut(config: &mut Self::Config) -> &mut Common;
    /// Reads its file.
    ///
    /// # Errors
    /// The first error in the file.
    fn load(path: &Path) -> sluicenet_scenario::Result<Self::Config>;
    /// The capabilities that it needs while it runs.
    fn rights() -> CapabilitySet;
    /// Opens its device; returns its address, too.
    ///
    /// # Errors
    /// The device is not available.
    fn open(config: &Self::Config) -> io::Result<(Self, MacAddress)>;
    /// The handle of other threads.
    ///
    /// # Errors
    /// No more file descriptors.
    fn remote(&mut self) -> io::Result<Remote<Self>>;
    /// Runs until `stop`.
    ///
    /// # Errors
    /// The device is gone.
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()>;
    /// Its state, and the counters of its device.
    fn status(&self, config: &Self::Config) -> (XcoStatus, BTreeMap<String, u64>);
    /// Applies what may change; says what it did.
    ///
    /// # Errors
    /// Something else has changed.
    fn reload(remote: &Remote<Self>, old: &Self::Config, new: &Self::Config) -> Result<String, String>;
}

/// A running program.
#[derive(Debug)]
pub(super) struct Daemon<P: Program> {
    remote: Remote<P>,
    config: Mutex<P::Config>,
    life: Life,
}

impl<P: Program> Daemon<P> {
    fn config(&self) -> MutexGuard<'_, P::Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a program until the control socket or a signal stops it.
    ///
    /// # Errors
    /// The device or the control socket cannot be opened, or the device is gone.
    pub fn run(config: P::Config) -> io::Result<Status> {
        let common = P::common(&config).clone();
        let socket = Socket::bind(&common.control)?;
        let metrics = common.metrics.map(metrics::Server::bind).transpose()?;
        let becomes = common.user.as_deref().map(Becomes::user).transpose()?.flatten();
        let (mut program, own) = P::open(&config)?;
        // Before the first thread starts: each thread has its own privileges.
        let left = privileges::drop_all_but(P::rights(), becomes.as_ref())?;
        let remote = program.remote()?;
        info!(
            name = common.name,
            pid = std::process::id(),
            control = %common.control.display(),
            device = common.device,
            mac = %own,
            metrics = metrics.as_ref().map(|m| m.address().to_string()),
            uid = left.uid,
            gid = left.gid,
            capabilities = left.capabilities,
            "{} started",
            P::WHAT
        );
        let daemon = Arc::new(Daemon { remote, config: Mutex::new(config), life: Life::new(socket.listener()?) });
        let (signals, signal_thread) = listen_to_signals(&daemon)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, ends) = (Arc::clone(&stop), Arc::clone(&daemon));
        let thread = std::thread::Builder::new().name(P::WHAT.into()).spawn(move || {
            let outcome = program.run(&stops);
            // A program without its device ends.
            ends.stop();
            let (xco, counters) = program.status(&ends.config());
            (outcome, ends.with(xco, counters))
        })?;
        serve_metrics(&daemon, metrics)?;
        let watched = Arc::clone(&daemon);
        let watcher = std::thread::Builder::new().name("log".into()).spawn(move || watched.watch())?;
        let outcome = socket.serve(&daemon);
        stop.store(true, Ordering::Relaxed);
        // An empty job wakes the loop, which then sees `stop`.
        let _ = daemon.remote.post(|_| {});
        let (ran, last) = thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        signals.close();
        let _ = signal_thread.join();
        watcher.thread().unpark();
        let _ = watcher.join();
        outcome?;
        ran?;
        info!("{} stopped", P::WHAT);
        Ok(last)
    }

    /// Logs what changes: the role, hosts that join and leave, and refused messages.
    fn watch(&self) {
        let mut before: Option<XcoStatus> = None;
        while !self.is_stopping() {
            std::thread::park_timeout(LOOKS_EVERY);
            let Some(now) = self.status().ok().and_then(|status| status.xco) else { continue };
            if before.as_ref().is_none_or(|before| (&before.role, &before.kind) != (&now.role, &now.kind)) {
                info!(role = now.role, kind = now.kind, epoch = now.epoch, "role");
            }
            if before.as_ref().is_none_or(|before| before.members != now.members) {
                info!(members = now.members, hosts = now.hosts, "members");
            }
            let more = |event: &str| {
                let of = |status: &XcoStatus| status.events.get(event).copied().unwrap_or_default();
                (of(&now) - before.as_ref().map_or(0, of), of(&now))
            };
            for reason in REFUSED {
                let (new, total) = more(reason);
                if new > 0 {
                    warn!(reason, messages = new, total, "messages refused");
                }
            }
            for (event, why) in UNSUITED {
                let (new, total) = more(event);
                if new > 0 {
                    warn!(event, new, total, "{why}");
                }
            }
            before = Some(*now);
        }
    }

    fn with(&self, xco: XcoStatus, counters: BTreeMap<String, u64>) -> Status {
        let config = self.config();
        let common = P::common(&config);
        let port = PortStatus {
            name: common.device.clone(),
            kind: "packet".into(),
            number: Some(0),
            counters,
            ..PortStatus::default()
        };
        Status {
            name: common.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.life.uptime_s(),
            slots: u32::MAX,
            ports: vec![port],
            xco: Some(Box::new(xco)),
            ..Status::default()
        }
    }
}

impl<P: Program> Served for Daemon<P> {
    fn life(&self) -> &Life {
        &self.life
    }

    fn status(&self) -> io::Result<Status> {
        let config = self.config().clone();
        let (xco, counters) = self.remote.run(move |program| program.status(&config))?;
        Ok(self.with(xco, counters))
    }

    fn reload(&self) -> Result<String, String> {
        let old = self.config().clone();
        let mut new = P::load(&P::common(&old).file).map_err(|e| e.to_string())?;
        let (before, after) = (P::common(&old), P::common_mut(&mut new));
        keep_control(&mut after.control, &after.name, &before.control);
        if after != before {
            return Err(format!("the {}'s own settings cannot change while it runs; nothing was changed", P::WHAT));
        }
        let done = P::reload(&self.remote, &old, &new)?;
        *self.config() = new;
        Ok(done)
    }

    fn answer(&self, _request: Request) -> Answer {
        Answer::Error(NO_PORTS.into())
    }

    fn attach(&self, _name: &str) -> Result<Attached<'_>, String> {
        Err(NO_PORTS.into())
    }

    fn capture(&self, _name: &str, _snaplen: u32) -> Result<Capture, String> {
        Err(NO_PORTS.into())
    }

    fn close(&self, _capture: &Capture) {}

    fn broke(&self, _name: &str, _reason: &str) {}

    fn every_second(&self) {}
}
