//! Programs for experiments: senders at full speed, and sinks that count.
//! They use plain UDP sockets with default buffers. Each datagram carries a number, so that a sink detects missing, duplicate
//! and reordered datagrams.

use super::error::{KernelError, Tried};
use super::netns::Namespace;
use super::sys::{self, BATCH, BufferRange, Received, Wait};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// Datagrams in one system call of a sender.
const BURST: usize = 32;
/// The shortest datagram, in bytes: the sender's number and the datagram's number.
pub const SHORTEST: usize = 8;
/// The longest datagram.
pub const LONGEST: usize = 65_507;

/// The protocol of a program's datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    #[default]
    Udp,
    /// UDP-Lite (RFC 3828).
    UdpLite,
}

impl Transport {
    /// A socket bound to an address. A socket for a group `shares` its address with others.
    fn socket(self, at: SocketAddr, shares: bool) -> io::Result<UdpSocket> {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let protocol = match self {
            Transport::Udp => rustix::net::ipproto::UDP,
            Transport::UdpLite => rustix::net::ipproto::UDPLITE,
        };
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol))?;
        sockopt::set_socket_reuseaddr(&socket, shares)?;
        sockopt::set_socket_broadcast(&socket, true)?;
        rustix::net::bind(&socket, &at)?;
        Ok(socket.into())
    }
}

/// A program that sends.
#[derive(Debug)]
pub struct Sender {
    socket: UdpSocket,
    number: u16,
    payload: usize,
    memory: Vec<u8>,
    sent: u64,
}

impl Sender {
    /// Sender `number` in a namespace; its datagrams carry `payload` bytes, from [`SHORTEST`] to [`LONGEST`].
    pub fn new(namespace: &Namespace, number: u16, to: SocketAddr, payload: usize) -> Result<Sender, KernelError> {
        let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        Sender::over(namespace, Transport::Udp, number, any, to, payload)
    }

    /// Such a sender over a transport, bound to an address; datagrams for a group leave by the device that has the address.
    pub fn over(
        namespace: &Namespace,
        transport: Transport,
        number: u16,
        from: SocketAddr,
        to: SocketAddr,
        payload: usize,
    ) -> Result<Sender, KernelError> {
        assert!((SHORTEST..=LONGEST).contains(&payload));
        let socket = namespace.enter(|| {
            let socket = transport.socket(from, false)?;
            socket.connect(to)?;
            // So that a stop does not wait forever for a blocked socket.
            socket.set_write_timeout(Some(Duration::from_millis(50)))?;
            Ok::<_, io::Error>(socket)
        })?;
        let socket = socket.tried(|| format!("a UDP socket to {to} in {}", namespace.name()))?;
        Ok(Sender { socket, number, payload, memory: vec![0; BURST * payload], sent: 0 })
    }

    /// Sends up to `most` datagrams and at most a burst; waits up to 50 ms for room for the first. Returns how many were sent.
    pub fn send(&mut self, most: u64) -> io::Result<usize> {
        let count = most.min(BURST as u64) as usize;
        let mut frames: [&[u8]; BURST] = [&[]; BURST];
        let each = self.memory.chunks_exact_mut(self.payload);
        for (i, (frame, bytes)) in frames.iter_mut().zip(each).enumerate().take(count) {
            let number = u64::from(self.number) << 48 | (self.sent + i as u64);
            bytes[..SHORTEST].copy_from_slice(&number.to_be_bytes());
            *frame = bytes;
        }
        match sys::send(self.socket.as_fd(), Wait::Yes, &frames[..count], None) {
            Ok(n) => {
                self.sent += n as u64;
                Ok(n)
            }
            // No room; or an ICMP error about an earlier datagram.
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
                ) || e.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                Ok(0)
            }
            Err(e) => Err(e),
        }
    }

    /// Datagrams the kernel took.
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// A group, and the device at which a socket joins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// By an address of the device.
    V4(Ipv4Addr, Ipv4Addr),
    /// By the number of the device.
    V6(Ipv6Addr, u32),
}

/// A program that receives.
#[derive(Debug)]
pub struct Sink {
    socket: UdpSocket,
    memory: Vec<u8>,
    slot: usize,
    received: u64,
    /// The next number of each sender.
    next: Vec<u64>,
    disordered: u64,
}

impl Sink {
    /// A socket in a namespace, for datagrams of up to `payload` bytes of senders numbered below `senders`.
    pub fn bind(namespace: &Namespace, at: SocketAddr, payload: usize, senders: u16) -> Result<Sink, KernelError> {
        Sink::over(namespace, Transport::Udp, at, None, payload, senders)
    }

    /// Such a socket over a transport. A `member` of a group has joined it at the device with an address, or of a number; other
    /// members may share its own address.
    pub fn over(
        namespace: &Namespace,
        transport: Transport,
        at: SocketAddr,
        member: Option<Membership>,
        payload: usize,
        senders: u16,
    ) -> Result<Sink, KernelError> {
        let socket = namespace.enter(|| {
            let socket = transport.socket(at, member.is_some())?;
            match member {
                Some(Membership::V4(group, own)) => socket.join_multicast_v4(&group, &own)?,
                Some(Membership::V6(group, device)) => socket.join_multicast_v6(&group, device)?,
                None => {}
            }
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            Ok::<_, io::Error>(socket)
        })?;
        let socket = socket.tried(|| format!("a UDP socket at {at} in {}", namespace.name()))?;
        let memory = vec![0; BATCH * payload];
        Ok(Sink { socket, memory, slot: payload, received: 0, next: vec![0; senders.into()], disordered: 0 })
    }

    /// Lets the kernel hold this many bytes of datagrams for the socket, its own bookkeeping included. By default it holds about a
    /// hundred datagrams, and loses the next while the receiver does not run.
    pub fn hold(&self, bytes: i32) -> io::Result<()> {
        sys::set_option(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
    }

    /// Receives up to `most` datagrams and at most a batch; waits up to 50 ms for the first. Returns how many there were.
    pub fn receive(&mut self, most: usize) -> io::Result<usize> {
        let place = |i| BufferRange { at: i * self.slot, len: self.slot, rest: (0, 0) };
        let places: Vec<BufferRange> = (0..most.min(BATCH)).map(place).collect();
        let mut received = [Received::default(); BATCH];
        let memory = (&mut self.memory[..], &mut [][..]);
        let n = sys::receive(self.socket.as_fd(), Wait::Yes, false, memory, &places, &mut received)?;
        for (i, received) in received.iter().enumerate().take(n) {
            let bytes = &self.memory[i * self.slot..i * self.slot + received.len];
            let number = bytes.first_chunk().map_or(u64::MAX, |b| u64::from_be_bytes(*b));
            let Some(next) = self.next.get_mut((number >> 48) as usize) else {
                self.disordered += 1;
                continue;
            };
            let number = number & ((1 << 48) - 1);
            if number != *next {
                self.disordered += 1;
            }
            *next = number + 1;
        }
        self.received += n as u64;
        Ok(n)
    }

    /// Datagrams received.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Datagrams that were not the next of their sender: after a gap, duplicate, too late, or of an unknown sender.
    pub fn disordered(&self) -> u64 {
        self.disordered
    }
}
