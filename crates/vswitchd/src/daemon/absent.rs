//! Ports of the file that could not be opened: they are reported, and opened later if possible.

use super::super::config::{PortConfig, PortKind};
use super::super::helper::Helper;
use super::super::opened::{Attempt, Opening, may_open};
use super::super::status::{Absent, Again};
use super::{Daemon, Running, reserve};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long a look at absent ports waits for the devices that the helper opens for them. Those that take longer are looked at again
/// a second later.
const LOOKS_FOR: Duration = Duration::from_millis(200);

impl Daemon {
    /// Puts a port of the file into service. A port that could not be opened stays absent, and its address stays reserved.
    pub(super) fn begin(&self, port: PortConfig, attempt: Attempt) -> Result<(), String> {
        let (opened, opening) = attempt.split();
        let reason = match opened.and_then(|opened| self.plug(&port, opened)) {
            Ok(places) => {
                info!(port = port.name, kind = port.kind.name(), "port added");
                self.state().add(port, places);
                return Ok(());
            }
            Err(failure) => failure.reason,
        };
        let config = port.clone();
        let reserved = self.remote.run(move |engine| reserve(engine, &config));
        reserved.and_then(|reserved| reserved).map_err(|e| format!("port {}: {e}", port.name))?;
        let mut state = self.state();
        let running = state.add(port, Vec::new());
        running.be_absent(reason, self.helper.as_ref());
        running.opening = opening;
        Ok(())
    }

    /// Opens absent ports. Each has an attempt of its own, so that a tenant can delay none but its own port.
    pub(super) fn try_again(&self) {
        // A reload opens ports itself; it is waited for until the next second.
        let Ok(_shared) = self.changes.try_read() else { return };
        let (ports, vale) = (self.configs(), self.state().config.vale.clone());
        let waits = |p: &&mut Running| p.absent.as_ref().is_some_and(|absent| absent.again == Again::EverySecond);
        let absent: Vec<(u64, PortConfig, Option<Opening>)> =
            self.state().ports.iter_mut().filter(waits).map(|p| (p.id, p.config.clone(), p.opening.take())).collect();
        // Without the lock: other requests are answered meanwhile, and may remove the port.
        let attempts: Vec<(u64, PortConfig, Attempt)> = absent
            .into_iter()
            .map(|(id, port, opening)| match opening {
                // An attempt that began before a reload changed the port is given up.
                Some(opening) if *opening.port == port => (id, port, Attempt::Goes(opening)),
                _ => {
                    let attempt = Attempt::begin(&port, &ports, &vale, self.helper.as_ref());
                    (id, port, attempt)
                }
            })
            .collect();
        let until = Instant::now() + LOOKS_FOR;
        for (id, port, attempt) in attempts {
            let attempt = attempt.wait(until, &vale);
            let mut state = self.state();
            let same = |p: &&mut Running| p.id == id && p.config == port;
            let Some(running) = state.ports.iter_mut().filter(waits).find(same) else { continue };
            match attempt {
                Attempt::Goes(opening) => running.opening = Some(opening),
                Attempt::Over(opened) => match opened.and_then(|opened| self.plug(&port, opened)) {
                    Ok(places) => {
                        (running.absent, running.places) = (None, places);
                        info!(port = port.name, kind = port.kind.name(), "port added");
                    }
                    Err(failure) => {
                        running.absent.iter_mut().for_each(|absent| absent.reason.clone_from(&failure.reason));
                    }
                },
            }
        }
    }

    /// Takes ports out of service whose namespace was deleted, or deleted and made again. The port itself keeps the old
    /// namespace alive, and would serve it for ever.
    pub(super) fn look_for_lost(&self) {
        let Ok(_shared) = self.changes.try_read() else { return };
        let mut state = self.state();
        for port in state.ports.iter_mut().filter(|port| port.absent.is_none()) {
            let Some(reason) = port.places.iter().find_map(|(name, was)| lost(name, *was)) else { continue };
            self.unplug(&port.config.name);
            port.be_absent(reason, self.helper.as_ref());
        }
    }

    /// A port broke; the engine has removed it already.
    pub(super) fn port_broke(&self, name: &str, reason: &str) {
        // A port in shared memory is created again for the next program.
        let may_break =
            |port: &&mut Running| port.config.name == name && !matches!(port.config.kind, PortKind::Shm { .. });
        if let Some(port) = self.state().ports.iter_mut().find(may_break) {
            port.be_absent(reason.to_owned(), self.helper.as_ref());
        }
    }
}

impl Running {
    /// The port could not be opened, or went out of service by itself. Returns the reason as it is shown.
    pub(super) fn be_absent(&mut self, reason: String, helper: Option<&Arc<Helper>>) -> &Absent {
        let again = if may_open(&self.config.kind, helper).is_none() { Again::EverySecond } else { Again::NextStart };
        let absent = Absent { reason, again };
        warn!(port = self.config.name, kind = self.config.kind.name(), reason = absent.to_string(), "port absent");
        self.absent.insert(absent)
    }
}

/// Why a namespace is not the one that it was.
fn lost(name: &str, was: (u64, u64)) -> Option<String> {
    match Namespace::identity_of(name) {
        Ok(now) if now == was => None,
        Ok(_) => Some(format!("the network namespace {name} was deleted and made again")),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Some(format!("the network namespace {name} was deleted"))
        }
        // The process behind a path in /proc may be another user's.
        Err(_) => None,
    }
}
