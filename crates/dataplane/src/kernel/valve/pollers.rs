//! The sockets by which a device is polled. How a poll is done is set at its socket, and to set that takes privileges. So there is
//! a socket for each kind of poll, set once. A frame to their common port tells all of them the number of the receive queue.

use crate::kernel::error::{KernelError, Tried};
use crate::kernel::netns::Namespace;
use crate::kernel::parts::Descriptors;
use crate::kernel::sys;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// The longest time of a busy poll. The device is polled once in any case, but 0 would disable busy polling.
const BUSY_POLL_US: i32 = 20;

/// UDP sockets that receive only from the device. They learn the number of the receive queue from the first frame to their port.
#[derive(Debug)]
pub struct Pollers {
    /// Polls as many frames as there is room for. From then on only busy polls poll the device.
    pub(super) busy: OwnedFd,
    /// The same, but as few frames as possible.
    pub(super) least: OwnedFd,
    /// Polls, and then the device may raise interrupts.
    pub(super) calm: OwnedFd,
    /// Their port.
    pub(super) port: u16,
}

impl Pollers {
    /// Sockets at a device of this thread's namespace.
    pub(super) fn open(device: &str, budget: u32) -> Result<Pollers, KernelError> {
        let what = || format!("a UDP socket at {device}");
        let socket = |prefers: bool, budget: u32, port: u16| {
            let fd = sys::udp_socket().tried(what)?;
            let set = |name, value| sys::set_option(fd.as_fd(), libc::SOL_SOCKET, name, value);
            sys::bind_to_device(fd.as_fd(), device).tried(what)?;
            if port != 0 {
                set(libc::SO_REUSEADDR, 1).tried(what)?;
            }
            rustix::net::bind(&fd, &SocketAddr::from(([0, 0, 0, 0], port))).tried(what)?;
            // The port of the first socket is its own until the others join it.
            set(libc::SO_REUSEADDR, 1).tried(what)?;
            let options = [
                (sys::PREFER_BUSY_POLL, i32::from(prefers)),
                (libc::SO_BUSY_POLL, BUSY_POLL_US),
                (sys::BUSY_POLL_BUDGET, budget as i32),
            ];
            let all = options.into_iter().try_for_each(|(name, value)| set(name, value));
            all.tried(|| "busy polling (CONFIG_NET_RX_BUSY_POLL)".to_owned())?;
            Ok::<_, KernelError>(fd)
        };
        let busy = socket(true, budget, 0)?;
        let bound = rustix::net::getsockname(&busy).tried(what)?;
        let port = SocketAddr::try_from(bound).tried(what)?.port();
        Ok(Pollers { busy, least: socket(true, 1, port)?, calm: socket(false, budget, port)?, port })
    }

    /// Whether they know the number. The frame that told it waits in each of them; until it is fetched, a poll is none.
    pub(super) fn learn(&self) -> io::Result<bool> {
        for fd in [&self.busy, &self.least, &self.calm] {
            if sys::napi_id(fd.as_fd())? == 0 {
                return Ok(false);
            }
        }
        [&self.busy, &self.least, &self.calm].into_iter().for_each(|fd| sys::busy_poll(fd.as_fd()));
        Ok(true)
    }

    /// The sockets and their port, for another process.
    pub fn into_parts(self) -> (u16, [OwnedFd; 3]) {
        (self.port, [self.busy, self.least, self.calm])
    }

    /// The sockets of another process.
    pub fn of(port: u16, [busy, least, calm]: [OwnedFd; 3]) -> Pollers {
        Pollers { busy, least, calm, port }
    }

    pub(super) fn next(port: u16, all: &mut Descriptors) -> io::Result<Pollers> {
        Ok(Pollers::of(port, [all.next()?, all.next()?, all.next()?]))
    }
}

/// A device that is polled.
#[derive(Debug)]
pub struct Polls {
    pub(super) namespace: Namespace,
    pub(super) device: String,
    pub(super) budget: u32,
}

impl Polls {
    /// New sockets at it.
    pub(in crate::kernel) fn pollers(&self) -> Result<Pollers, KernelError> {
        self.namespace.enter(|| Pollers::open(&self.device, self.budget))?.map_err(|e| e.within(self.namespace.name()))
    }
}
