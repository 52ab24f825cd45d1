//! The overlay's controller as a daemon, and a server's socket to the controller (`docs/controller.md`).

use crate::clock::Clock;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::rand::{GetRandomFlags, getrandom};
use sluicenet_proto::overlay::controller::{Controller, ControllerConfig, ControllerCounters};
use sluicenet_proto::overlay::seal::Key;
use sluicenet_proto::rng::Rng;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::controller::LEN;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Datagrams taken in one go.
const BURST: usize = 64;

/// The longest time until a daemon notices a stop.
const LOOKS_EVERY: Duration = Duration::from_ms(50);

/// Random words that cannot be guessed.
pub fn entropy<const N: usize>() -> io::Result<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        // Up to 256 bytes are never returned in part (getrandom(2)).
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}

/// A generator with a seed that cannot be guessed.
pub fn unguessable() -> io::Result<Rng> {
    Ok(Rng::from_words(&entropy::<4>()?))
}

/// A number above those of all earlier messages of this server: nanoseconds of the wall clock.
pub fn first_request() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64)
}

/// The controller and its socket.
#[derive(Debug)]
pub struct Daemon {
    controller: Controller,
    socket: UdpSocket,
    /// The port at which servers receive changes.
    servers_port: u16,
    clock: Clock,
    unsent: u64,
}

impl Daemon {
    /// A controller that listens at `address` and tells servers of changes at `servers_port`.
    pub fn bind(address: SocketAddrV4, servers_port: u16, config: ControllerConfig) -> io::Result<Daemon> {
        let [epoch] = entropy()?;
        let socket = bound(address)?;
        socket.set_nonblocking(true)?;
        let clock = Clock::start();
        let mut controller = Controller::new(config, (epoch as u32).max(1));
        controller.learns(clock.now());
        Ok(Daemon { controller, socket, servers_port, clock, unsent: 0 })
    }

    /// The address at which it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Adds a server of the overlay with its key.
    pub fn admit(&mut self, server: Ipv4Addr, key: Key) {
        self.controller.admit(server, key);
    }

    /// Its counters, and the datagrams that the kernel did not take.
    pub fn counters(&self) -> (&ControllerCounters, u64) {
        (self.controller.counters(), self.unsent)
    }

    /// Stations it knows.
    pub fn stations(&self) -> usize {
        self.controller.stations()
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn send(&mut self, to: SocketAddr, datagram: &[u8; LEN]) {
        // A server that misses the datagram asks again, or is told again.
        self.unsent += u64::from(self.socket.send_to(datagram, to).is_err());
    }

    /// Answers arrived messages and sends pending ones, without waiting; returns whether there may be more.
    pub fn round(&mut self) -> io::Result<bool> {
        let now = self.now();
        self.controller.handle_timeout(now);
        // One byte more than a message, to detect longer datagrams.
        let mut bytes = [0; LEN + 1];
        let mut taken = 0;
        while taken < BURST {
            match self.socket.recv_from(&mut bytes) {
                Ok((len, from)) => {
                    taken += 1;
                    if let SocketAddr::V4(server) = from
                        && let Some(answer) = self.controller.handle(now, *server.ip(), &bytes[..len])
                    {
                        self.send(from, &answer);
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // A server is unreachable (an ICMP error), or a signal arrived.
                Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        while let Some((server, datagram)) = self.controller.poll_transmit(now) {
            self.send(SocketAddrV4::new(server, self.servers_port).into(), &datagram);
        }
        Ok(taken == BURST)
    }

    /// Serves until `stop`.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            if self.round()? {
                continue;
            }
            let deadline = self.controller.poll_timeout().map_or(LOOKS_EVERY, |at| at.since(self.now()));
            // Rounded up, so that no wake-up precedes the deadline.
            let wait = deadline.min(LOOKS_EVERY).0.div_ceil(1_000);
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait as i64 };
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Replaces a server's socket to the controller if all run in one program, with its clock.
#[derive(Clone, Debug, Default)]
pub struct Mailbox(Arc<Mutex<Letters>>);

#[derive(Debug, Default)]
struct Letters {
    to_controller: VecDeque<[u8; LEN]>,
    to_server: VecDeque<[u8; LEN]>,
}

impl Mailbox {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// The next datagram of the server.
    pub fn take(&self) -> Option<[u8; LEN]> {
        self.letters().to_controller.pop_front()
    }
    /// A datagram for the server.
    pub fn put(&self, datagram: [u8; LEN]) {
        self.letters().to_server.push_back(datagram);
    }
}

#[derive(Debug)]
enum Transport {
    Socket(UdpSocket),
    Within(Mailbox),
}

/// A server's connection to the controller.
#[derive(Debug)]
pub struct ControllerLink {
    transport: Transport,
    /// Datagrams that the kernel did not take, and errors in receiving.
    failed: u64,
}

impl ControllerLink {
    /// A socket of `server` that receives only from the controller at `controller`.
    pub fn open(server: SocketAddrV4, controller: SocketAddrV4) -> io::Result<ControllerLink> {
        Ok(ControllerLink::of(ControllerLink::socket(server, controller)?))
    }

    /// Such a socket.
    pub fn socket(server: SocketAddrV4, controller: SocketAddrV4) -> io::Result<UdpSocket> {
        let socket = bound(server)?;
        socket.connect(controller)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// A connection by such a socket, which another process may have opened.
    pub fn of(socket: UdpSocket) -> ControllerLink {
        ControllerLink { transport: Transport::Socket(socket), failed: 0 }
    }

    /// A connection through a mailbox, without a socket.
    pub fn within(mailbox: Mailbox) -> ControllerLink {
        ControllerLink { transport: Transport::Within(mailbox), failed: 0 }
    }

    /// Sends a datagram. If the kernel does not take it, its sender repeats it later.
    pub fn send(&mut self, datagram: &[u8; LEN]) {
        match &self.transport {
            Transport::Socket(socket) => self.failed += u64::from(socket.send(datagram).is_err()),
            Transport::Within(mailbox) => mailbox.letters().to_controller.push_back(*datagram),
        }
    }

    /// The next datagram; `None` when there is none.
    pub fn receive(&mut self, into: &mut [u8; LEN + 1]) -> Option<usize> {
        let socket = match &self.transport {
            Transport::Socket(socket) => socket,
            Transport::Within(mailbox) => {
                let datagram = mailbox.letters().to_server.pop_front()?;
                into[..LEN].copy_from_slice(&datagram);
                return Some(LEN);
            }
        };
        match socket.recv(into) {
            Ok(len) => Some(len),
            Err(e) => {
                self.failed += u64::from(e.kind() != io::ErrorKind::WouldBlock);
                None
            }
        }
    }

    /// Datagrams that the kernel did not take, and errors in receiving: the controller is not there.
    pub fn failed(&self) -> u64 {
        self.failed
    }

    /// The descriptor that becomes readable when a datagram has arrived.
    pub fn waker(&self) -> Option<BorrowedFd<'_>> {
        match &self.transport {
            Transport::Socket(socket) => Some(socket.as_fd()),
            Transport::Within(_) => None,
        }
    }
}

/// A UDP socket at an address; an error names the address.
fn bound(address: SocketAddrV4) -> io::Result<UdpSocket> {
    UdpSocket::bind(address).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::AddrNotAvailable => ": no interface here has this address",
            _ => "",
        };
        io::Error::new(e.kind(), format!("a UDP socket at {address}: {e}{hint}"))
    })
}
