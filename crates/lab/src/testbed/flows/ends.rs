//! The two ends of a flow, each a thread.

use super::Flow;
use crate::scenario::Transport;
use crate::testbed::pa::{Namespaces, PaError, Place, Style};
use sluicenet_proto::units::Rate;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a call may block before it is looked whether all is over.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long a connection may take to be there.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// Bytes of IP and UDP, and of Ethernet with its check sequence, around the payload of a datagram.
const IP_UDP: u32 = 28;
const ETHERNET: u32 = 18;
/// Written to a connection at once; what a slow program reads at once is a datagram's worth.
const CHUNK: usize = 64 << 10;

/// What passed.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Bytes of payload.
    pub received: AtomicU64,
    pub datagrams_sent: AtomicU64,
    pub datagrams_received: AtomicU64,
}

/// At most so many bytes a second, by all that share it.
#[derive(Debug)]
pub(super) struct Pace {
    seconds_per_byte: f64,
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    pub fn new(rate: Rate) -> Pace {
        Pace { seconds_per_byte: 8.0 / rate.as_bps() as f64, free_at: Mutex::new(None) }
    }

    /// So many bytes passed: waits until the next may.
    fn wait(&self, bytes: u32) {
        let now = Instant::now();
        let until = {
            let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
            let until =
                free_at.unwrap_or(now).max(now) + Duration::from_secs_f64(f64::from(bytes) * self.seconds_per_byte);
            *free_at = Some(until);
            until
        };
        std::thread::sleep(until.saturating_duration_since(now));
    }
}

pub(super) fn style(congestion: &'static str, nagle: bool, flow: &Flow) -> Style {
    Style { congestion, nagle, priority: flow.priority }
}

/// What makes sockets, wherever they are to be.
pub(super) struct Makers(Namespaces);

enum Sockets {
    Udp { sender: UdpSocket, receiver: UdpSocket },
    Tcp { sender: TcpStream, receiver: TcpStream },
}

/// A flow's sockets, connected.
pub(super) struct Ends {
    sockets: Sockets,
    counts: Arc<Counts>,
}

impl Makers {
    pub fn new() -> Result<Makers, PaError> {
        Ok(Makers(Namespaces::new()?))
    }

    /// Opens both ends of a flow.
    pub fn open(&mut self, flow: &Flow, from: &Place, to: &Place, port: u16, style: Style) -> Result<Ends, PaError> {
        let at = SocketAddrV4::new(to.address, port);
        let sockets = match flow.transport {
            Transport::Udp => {
                let receiver = self.0.datagrams(to, port, style)?;
                let sender = self.0.datagrams(from, 0, style)?;
                sender.connect(at).map_err(|e| PaError::io("connecting a datagram socket", &e))?;
                Sockets::Udp { sender, receiver }
            }
            _ => {
                let listener = self.0.listen(to, port, style)?;
                let sender = self.0.connect(from, at, style)?;
                let receiver = accept(&listener, &format!("{} with {at}", from.address))?;
                sender.set_nonblocking(false).map_err(|e| PaError::io("a connection", &e))?;
                Sockets::Tcp { sender, receiver }
            }
        };
        Ok(Ends { sockets, counts: Arc::default() })
    }
}

fn accept(listener: &TcpListener, what: &str) -> Result<TcpStream, PaError> {
    let start = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).map_err(|e| PaError::io("a connection", &e))?;
                return Ok(stream);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock && start.elapsed() < CONNECT_TIME => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(PaError::Connect { what: what.into() }),
            Err(e) => return Err(PaError::io("accepting a connection", &e)),
        }
    }
}

/// One end.
pub(super) enum End {
    SendDatagrams { socket: UdpSocket, len: usize, pace: Option<Pace>, counts: Arc<Counts> },
    ReceiveDatagrams { socket: UdpSocket, pace: Option<Arc<Pace>>, counts: Arc<Counts> },
    SendBytes { stream: TcpStream },
    ReceiveBytes { stream: TcpStream, pace: Option<Arc<Pace>>, mtu: u32, counts: Arc<Counts> },
}

impl Ends {
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// The sender and the receiver, which reads no faster than `pace`.
    pub fn split(self, flow: &Flow, pace: Option<Arc<Pace>>, mtu: u32) -> [End; 2] {
        let counts = self.counts;
        match self.sockets {
            Sockets::Udp { sender, receiver } => {
                let len = (mtu - IP_UDP) as usize;
                let offered = flow.rate.map(Pace::new);
                [
                    End::SendDatagrams { socket: sender, len, pace: offered, counts: counts.clone() },
                    End::ReceiveDatagrams { socket: receiver, pace, counts },
                ]
            }
            Sockets::Tcp { sender, receiver } => {
                [End::SendBytes { stream: sender }, End::ReceiveBytes { stream: receiver, pace, mtu, counts }]
            }
        }
    }
}

impl End {
    /// Sends or receives until all is over.
    pub fn run(self, over: &AtomicBool) -> Result<(), PaError> {
        let is_over = || over.load(Ordering::Relaxed);
        let failed = |e: std::io::Error| PaError::io("a flow's socket", &e);
        // It blocked for too long, was interrupted, or is told of what the other end said.
        let passes = |e: &std::io::Error| {
            matches!(
                e.kind(),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
            )
        };
        match self {
            End::SendDatagrams { socket, len, pace, counts } => {
                socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
                let payload = vec![0; len];
                while !is_over() {
                    match socket.send(&payload) {
                        Ok(_) => {
                            counts.datagrams_sent.fetch_add(1, Ordering::Relaxed);
                            if let Some(pace) = &pace {
                                pace.wait(len as u32);
                            }
                        }
                        Err(e) if passes(&e) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::ReceiveDatagrams { socket, pace, counts } => {
                socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
                let mut bytes = vec![0; CHUNK];
                while !is_over() {
                    match socket.recv(&mut bytes) {
                        Ok(len) => {
                            counts.received.fetch_add(len as u64, Ordering::Relaxed);
                            counts.datagrams_received.fetch_add(1, Ordering::Relaxed);
                            if let Some(pace) = &pace {
                                pace.wait(len as u32 + IP_UDP + ETHERNET);
                            }
                        }
                        Err(e) if passes(&e) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::SendBytes { mut stream } => {
                stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
                let payload = vec![0; CHUNK];
                while !is_over() {
                    match stream.write(&payload) {
                        Ok(_) => {}
                        // The receiver saw that all is over before.
                        Err(e) if passes(&e) || is_over() => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::ReceiveBytes { mut stream, pace, mtu, counts } => {
                stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
                let mut bytes = vec![0; if pace.is_some() { mtu as usize } else { CHUNK }];
                while !is_over() {
                    match stream.read(&mut bytes) {
                        Ok(0) => break,
                        Ok(len) => {
                            counts.received.fetch_add(len as u64, Ordering::Relaxed);
                            if let Some(pace) = &pace {
                                pace.wait(len as u32 + ETHERNET);
                            }
                        }
                        Err(e) if passes(&e) || is_over() => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
        }
        Ok(())
    }
}
