//! Programs for experiments: senders at full speed, and sinks that count.
//! They use plain UDP sockets with default buffers. Each datagram carries a number, so that a sink detects missing, duplicate
//! and reordered datagrams.

use super::error::{KernelError, Tried};
use super::netns::Namespace;
use super::sys::{self, BATCH, BufferRange, Received, Wait};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

/// Datagrams in one system call of a sender.
const BURST: usize = 32;
/// The shortest datagram, in bytes: the sender's number and the datagram's number.
pub const SHORTEST: usize = 8;
/// The longest datagram.
pub const LONGEST: usize = 65_507;

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
        assert!((SHORTEST..=LONGEST).contains(&payload));
        let socket = namespace.enter(|| {
            let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any)?;
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
        let socket = namespace.enter(|| {
            let socket = UdpSocket::bind(at)?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            Ok::<_, io::Error>(socket)
        })?;
        let socket = socket.tried(|| format!("a UDP socket at {at} in {}", namespace.name()))?;
        let memory = vec![0; BATCH * payload];
        Ok(Sink { socket, memory, slot: payload, received: 0, next: vec![0; senders.into()], disordered: 0 })
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
