//! The process of a helper.

use super::device::{Device, Handed};
use super::in_force::InForce;
use super::known::Known;
use super::message::{Ask, Call, Called, Channel, Told};
use crate::config::Config;
use crate::failure::Failure;
use crate::privileges;
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use sluicenet_dataplane::kernel::keeper::Keeper;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::warn;

/// The most sockets of ports beside those of all ports of the switch: ports that are being opened.
const BEYOND: usize = 64;
/// Refused requests are logged at most so often.
const TELLS_EVERY: Duration = Duration::from_secs(1);

/// What the threads of a helper share.
struct Shared {
    known: Mutex<Known>,
    /// Ports that are served.
    ports: AtomicUsize,
    ports_max: usize,
    /// When a refused request was logged last.
    told: Mutex<Option<Instant>>,
}

/// Begins a process of a helper: it ignores signals that a terminal and a service manager send to all processes of a switch, and
/// ends after the switch.
pub(super) fn begin(socket: OwnedFd) -> io::Result<Channel> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&ignored))?;
    }
    Channel::of(socket)
}

/// Opens devices for the switch at the other end of a socket, until the switch ends.
///
/// # Errors
/// The socket is none of a switch, or the system refuses.
pub fn serve(config: Config, socket: OwnedFd) -> io::Result<()> {
    let calls = begin(socket)?;
    privileges::drop_all_but(kept(&config), None)?;
    let ports_max = config.ports_max + BEYOND;
    let shared = Arc::new(Shared {
        known: Mutex::new(Known::new(config, InForce::own())),
        ports: AtomicUsize::new(0),
        ports_max,
        told: Mutex::new(None),
    });
    loop {
        let call = match calls.receive(Some(0)) {
            Ok(Some((call, _))) => call,
            Ok(None) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                calls.send(&Called::Refused(shared.refuse(e.to_string())), &[])?;
                continue;
            }
            Err(e) => return Err(e),
        };
        match call {
            Call::Reloaded => {
                shared.known.lock().unwrap_or_else(PoisonError::into_inner).reloaded();
                calls.send(&Called::Done, &[])?;
            }
            Call::Port => match shared.begin() {
                Ok(port) => calls.send(&Called::Done, &[port.as_fd()])?,
                Err(e) => calls.send(&Called::Refused(shared.refuse(e.to_string())), &[])?,
            },
        }
    }
}

/// The capabilities of a helper: those to open devices, those to open the namespace of any process by its path in `/proc`,
/// and those for a socket at a port below 1024.
pub(super) fn kept(config: &Config) -> CapabilitySet {
    let listen = config.uplink.as_ref().and_then(|uplink| uplink.overlay.as_ref()).map(|overlay| overlay.listen);
    let low = listen.is_some_and(|port| port < 1024);
    let bind = if low { CapabilitySet::NET_BIND_SERVICE } else { CapabilitySet::empty() };
    privileges::TO_OPEN | CapabilitySet::SYS_PTRACE | bind
}

impl Shared {
    /// Starts a thread for a port; returns the switch's end of its socket.
    fn begin(self: &Arc<Shared>) -> io::Result<Channel> {
        let (ours, theirs) = Channel::pair()?;
        let served = Served(Arc::clone(self));
        if self.ports.fetch_add(1, Ordering::Relaxed) >= self.ports_max {
            return Err(io::Error::other(format!("the helper has {} ports, and no other is free", self.ports_max)));
        }
        std::thread::Builder::new().name("port".into()).spawn(move || {
            let served = served;
            served.0.port(&ours);
        })?;
        Ok(theirs)
    }

    /// Opens the device of a port, or takes over an open one, and keeps it until the switch closes the socket.
    fn port(&self, channel: &Channel) {
        // The switch may close the socket at any time.
        let keeper = match channel.receive(Some(0)) {
            Ok(Some((Ask::Listen { port, device }, _))) => self.open(channel, &port, device),
            Ok(Some((Ask::Keep { port, device }, _))) => {
                let keeper = self.allows(&port, &device).and_then(|()| device.keeper());
                match keeper {
                    Ok(keeper) => channel.send(&Told::Done, &[]).is_ok().then_some(keeper),
                    Err(failure) => return drop(channel.send(&Told::Failed(failure), &[])),
                }
            }
            _ => None,
        };
        if let Some(mut keeper) = keeper {
            while let Ok(Some((ask, _))) = channel.receive_short(Some(0)) {
                if keep(channel, &mut *keeper, &ask).is_err() {
                    return;
                }
            }
        }
    }

    /// Opens a device; returns its keeper, if the switch needs one and goes on.
    fn open(&self, channel: &Channel, port: &str, device: Device) -> Option<Box<dyn Keeper>> {
        let failed = |failure| drop(channel.send(&Told::Failed(failure), &[]));
        let begun = self.allows(port, &device).and_then(|()| device.listen()).map_err(failed).ok()?;
        channel.send(&Told::Listening, &[]).ok()?;
        let Ok(Some((Ask::Open, _))) = channel.receive(Some(0)) else { return None };
        let Handed { parts, keeper, places } = begun.open().map_err(failed).ok()?;
        let descriptors: Vec<_> = parts.descriptors.iter().map(AsFd::as_fd).collect();
        channel.send(&Told::Open { facts: parts.facts, places }, &descriptors).ok()?;
        keeper
    }

    fn allows(&self, port: &str, device: &Device) -> Result<(), Failure> {
        let allowed = self.known.lock().unwrap_or_else(PoisonError::into_inner).allows(port, device);
        allowed.map_err(|why| Failure::lasting(self.refuse(why)))
    }

    /// Logs that a request was refused: a switch in order asks for nothing else.
    fn refuse(&self, why: String) -> String {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() >= TELLS_EVERY) {
            *told = Some(Instant::now());
            warn!(reason = why, "helper refused a request");
        }
        why
    }
}

/// Does what a port asks for.
fn keep(channel: &Channel, keeper: &mut dyn Keeper, ask: &Ask) -> io::Result<()> {
    let failed = |e: io::Error| channel.send(&Told::Failed(e.into()), &[]);
    let done = match ask {
        Ask::OpenQueue => keeper.open(),
        Ask::ShutQueue => keeper.shut(),
        Ask::Pollers => match keeper.pollers() {
            Ok(pollers) => {
                let (port, sockets) = pollers.into_parts();
                return channel.send(&Told::Pollers(port), &sockets.each_ref().map(AsFd::as_fd));
            }
            Err(e) => return failed(e),
        },
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "this port is open already")),
    };
    match done {
        Ok(()) => channel.send(&Told::Done, &[]),
        Err(e) => failed(e),
    }
}

/// A port that is served.
struct Served(Arc<Shared>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.ports.fetch_sub(1, Ordering::Relaxed);
    }
}
