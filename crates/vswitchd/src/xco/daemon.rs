//! The controller as a process: its loop has its own thread, and other threads handle requests.

use super::config::Config;
use super::status::XcoStatus;
use crate::config::default_control;
use crate::control::{Answer, Request, Socket};
use crate::log::Log;
use crate::metrics;
use crate::opened::{PACKET_BUFFERS, namespace};
use crate::privileges::{self, Becomes, Rights};
use crate::served::{Attached, Served};
use crate::status::{PortStatus, Status};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sluicenet_dataplane::controller::unguessable;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::packet::PacketDevice;
use sluicenet_dataplane::remote::Remote;
use sluicenet_dataplane::tap::Capture;
use sluicenet_dataplane::xco::{ControllerLoop, ControllerReport};
use sluicenet_proto::time::Instant as Time;
use sluicenet_proto::xco::controller::{Controller, ControllerConfig};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::xco::ETHERTYPE;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// How often the log looks at what has changed.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// A running controller.
#[derive(Debug)]
pub struct Daemon {
    remote: Remote<ControllerLoop>,
    config: Mutex<Config>,
    stopping: AtomicBool,
    started: Instant,
    listener: OwnedFd,
    log: Log,
}

/// The number of a controller's start: later ones are higher, modulo 2^16, if starts are less than 22 days apart. Coordinators
/// without a controller take any.
fn epoch() -> u16 {
    (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60) as u16
}

/// Opens the device; returns the controller's loop and its address.
fn open(config: &Config) -> io::Result<(ControllerLoop, MacAddress)> {
    let space = namespace(&config.netns)?;
    let device = PacketDevice::open_for_type(&space, &config.device, PACKET_BUFFERS, ETHERTYPE)?;
    let own = match config.mac {
        Some(mac) => mac,
        None => MacAddress(space.enter(|| Links::open()?.get(&config.device))??.mac),
    };
    let settings = ControllerConfig { seed: unguessable()?.next_u64(), ..config.controller.clone() };
    // The first of a pair listens for half a lease, whether the other works; the second one for a lease longer.
    let paired = settings.peer.is_some();
    let now = if config.standby { Time::ZERO + settings.lease } else { Time::ZERO };
    let controller = Controller::new(now, config.topology.clone(), settings, epoch(), paired);
    Ok((ControllerLoop::new(Box::new(device), controller, own, config.priority), own))
}

impl Daemon {
    fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a controller until the control socket or a signal stops it.
    ///
    /// # Errors
    /// The device or the control socket cannot be opened, or the device is gone.
    pub fn run(config: Config) -> io::Result<Status> {
        let socket = Socket::bind(&config.control)?;
        let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
        let becomes = config.user.as_deref().map(Becomes::user).transpose()?.flatten();
        let (mut controller, own) = open(&config)?;
        // Before the first thread starts: each thread has its own privileges.
        let left = privileges::drop_all_but(Rights::NONE.run, becomes.as_ref())?;
        let remote = controller.remote()?;
        let (hosts, links) = config.size();
        info!(
            name = config.name,
            pid = std::process::id(),
            control = %config.control.display(),
            device = config.device,
            mac = %own,
            hosts,
            links,
            metrics = metrics.as_ref().map(|m| m.address().to_string()),
            uid = left.uid,
            gid = left.gid,
            capabilities = left.capabilities,
            "controller started"
        );
        let daemon = Arc::new(Daemon {
            remote,
            config: Mutex::new(config),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
            listener: socket.listener()?,
            log: Log::default(),
        });
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let (handle, signalled) = (signals.handle(), Arc::clone(&daemon));
        let signal_thread = std::thread::spawn(move || {
            for signal in signals.forever() {
                if signal == SIGHUP {
                    signalled.answer(Request::Reload);
                } else {
                    signalled.stop();
                }
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (stops, ends) = (Arc::clone(&stop), Arc::clone(&daemon));
        let thread = std::thread::Builder::new().name("controller".into()).spawn(move || {
            let outcome = controller.run(&stops);
            // A controller without its device ends.
            ends.stop();
            (outcome, controller.report())
        })?;
        if let Some(metrics) = metrics {
            let served = Arc::clone(&daemon);
            // The thread ends with the process: nothing waits for a slow client.
            std::thread::Builder::new().name("metrics".into()).spawn(move || metrics.serve(&served))?;
        }
        let watched = Arc::clone(&daemon);
        let watcher = std::thread::Builder::new().name("log".into()).spawn(move || watched.watch())?;
        let outcome = socket.serve(&daemon);
        stop.store(true, Ordering::Relaxed);
        // An empty job wakes the loop, which then sees `stop`.
        let _ = daemon.remote.post(|_| {});
        let (ran, last) = thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        handle.close();
        let _ = signal_thread.join();
        watcher.thread().unpark();
        let _ = watcher.join();
        outcome?;
        ran?;
        info!(members = last.members, directives = last.controller.directives, "controller stopped");
        Ok(daemon.status_of(&last))
    }

    /// Logs what changes: the role, hosts that join and leave, and refused messages.
    fn watch(&self) {
        let mut before: Option<XcoStatus> = None;
        while !self.is_stopping() {
            std::thread::park_timeout(LOOKS_EVERY);
            let Some(now) = self.status().ok().and_then(|status| status.xco) else { continue };
            if before.as_ref().is_none_or(|before| before.role != now.role) {
                info!(role = now.role, epoch = now.epoch, "role");
            }
            if before.as_ref().is_none_or(|before| before.members != now.members) {
                info!(members = now.members, hosts = now.hosts, "members");
            }
            for reason in REFUSED {
                let of = |status: &XcoStatus| status.events.get(reason).copied().unwrap_or_default();
                let (new, total) = (of(&now) - before.as_ref().map_or(0, of), of(&now));
                if new > 0 {
                    warn!(reason, messages = new, total, "messages refused");
                }
            }
            before = Some(*now);
        }
    }

    fn status_of(&self, report: &ControllerReport) -> Status {
        let config = self.config();
        let port = PortStatus {
            name: config.device.clone(),
            kind: "packet".into(),
            number: Some(0),
            counters: report.device.iter().map(|&(name, n)| (name.to_owned(), n)).collect(),
            ..PortStatus::default()
        };
        Status {
            name: config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs_f64(),
            slots: u32::MAX,
            ports: vec![port],
            xco: Some(Box::new(XcoStatus::of(report, config.kind.name(), config.topology.nodes()))),
            ..Status::default()
        }
    }

    /// Reads the file again and applies its weights.
    fn reload(&self) -> Result<String, String> {
        let file = self.config().file.clone();
        let mut new = Config::load(&file).map_err(|e| e.to_string())?;
        {
            let old = self.config();
            // The default path depends on the process's user, who may have changed since the start.
            if new.control == default_control(&new.name) {
                new.control.clone_from(&old.control);
            }
            if new.fixed != old.fixed || new.name != old.name || new.control != old.control {
                return Err("only [[xco.weight]] can change while the controller runs; nothing was changed".into());
            }
        }
        let weights = new.controller.weights.clone();
        let count = weights.flows.len() + weights.nodes.len();
        self.remote.run(move |controller| controller.set_weights(weights)).map_err(|e| e.to_string())?;
        *self.config() = new;
        Ok(format!("{count} weights"))
    }
}

/// Events that name the reason of a refused message.
const REFUSED: [&str; 5] = ["impostors", "forged", "flooded", "no_such_node", "misdirected"];

impl Served for Daemon {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Ends the wait for the next connection.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }

    fn status(&self) -> io::Result<Status> {
        let report = self.remote.run(|controller| controller.report())?;
        Ok(self.status_of(&report))
    }

    fn answer(&self, request: Request) -> Answer {
        let outcome = match request {
            Request::Show => {
                return self.status().map_or_else(|e| Answer::Error(e.to_string()), |s| Answer::Status(Box::new(s)));
            }
            Request::Reload => {
                let outcome = self.reload();
                match &outcome {
                    Ok(done) => info!(done, "reloaded"),
                    Err(error) => warn!(error, "not reloaded"),
                }
                outcome
            }
            Request::AddPort { .. }
            | Request::DelPort { .. }
            | Request::Attach { .. }
            | Request::Capture { .. }
            | Request::Stop => Err(NO_PORTS.into()),
        };
        outcome.map_or_else(Answer::Error, Answer::Ok)
    }

    fn attach(&self, _name: &str) -> Result<Attached<'_>, String> {
        Err(NO_PORTS.into())
    }

    fn capture(&self, _name: &str, _snaplen: u32) -> Result<Capture, String> {
        Err(NO_PORTS.into())
    }

    fn close(&self, _capture: &Capture) {}

    fn log(&self) -> &Log {
        &self.log
    }

    fn broke(&self, _name: &str, _reason: &str) {}

    fn every_second(&self) {}
}

const NO_PORTS: &str = "a controller of XCo has no ports";
