//! The two ends of a flow, each a thread.

use super::Flow;
use crate::light::Hosts;
use crate::pa::{CONNECT_TIME, Endpoint, Namespaces, PaError, Stream, Style};
use sluicenet_proto::units::Rate;
use sluicenet_scenario::Transport;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a call may block before the thread checks for the end of the run.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes of IP and UDP around the payload of a datagram.
pub(crate) const IP_UDP: u32 = 28;
/// The most bytes per write to a connection, and per read.
const CHUNK: usize = 64 << 10;

/// The counters of a flow.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Received bytes of payload.
    pub received: AtomicU64,
    pub datagrams_sent: AtomicU64,
    pub datagrams_received: AtomicU64,
}

/// A limit in bytes per second.
#[derive(Debug)]
pub(crate) struct Pace {
    seconds_per_byte: f64,
    free_at: Option<Instant>,
}

impl Pace {
    pub fn new(rate: Rate) -> Pace {
        Pace { seconds_per_byte: 8.0 / rate.as_bps() as f64, free_at: None }
    }

    /// Counts sent bytes, and waits until the next may be sent.
    pub fn wait(&mut self, bytes: u32) {
        let now = Instant::now();
        let time = Duration::from_secs_f64(f64::from(bytes) * self.seconds_per_byte);
        let until = self.free_at.unwrap_or(now).max(now) + time;
        self.free_at = Some(until);
        std::thread::sleep(until.saturating_duration_since(now));
    }
}

enum Sockets {
    Udp { sender: UdpSocket, receiver: UdpSocket },
    Stream { sender: Stream, receiver: Stream },
}

/// A flow's connected sockets.
pub(super) struct Ends {
    sockets: Sockets,
    counts: Arc<Counts>,
}

impl Ends {
    /// Opens both ends of a flow.
    pub fn open(
        namespaces: &mut Namespaces,
        flow: &Flow,
        from: &Endpoint,
        to: &Endpoint,
        port: u16,
        style: Style,
    ) -> Result<Ends, PaError> {
        let at = SocketAddrV4::new(to.address, port);
        let sockets = match flow.transport {
            Transport::Udp => {
                let receiver = namespaces.datagrams(to, port, style)?;
                let sender = namespaces.datagrams(from, 0, style)?;
                sender.connect(at).map_err(|e| PaError::io("connecting a datagram socket", &e))?;
                Sockets::Udp { sender, receiver }
            }
            _ => {
                let listener = namespaces.listen(to, port, style)?;
                let sender = namespaces.connect(from, at, style)?;
                let receiver = accept(&listener, &format!("{} with {at}", from.address))?;
                sender.set_nonblocking(false).map_err(|e| PaError::io("a connection", &e))?;
                Sockets::Stream { sender: Stream::Kernel(sender), receiver: Stream::Kernel(receiver) }
            }
        };
        Ok(Ends { sockets, counts: Arc::default() })
    }

    /// Opens both ends of a flow between light sockets.
    pub fn open_light(hosts: &mut Hosts<'_>, flow: &Flow, port: u16) -> Result<Ends, PaError> {
        let failed = |e: std::io::Error| PaError::io("a light socket", &e);
        let to = hosts.host(flow.to)?;
        let at = SocketAddrV4::new(to.address(), port);
        let listener = to.listen(port, 1).map_err(failed)?;
        let from = hosts.host(flow.from)?;
        let what = || format!("a stream from {} to {at}", from.address());
        let sender = from.connect(at).map_err(|e| PaError::io(&what(), &e))?;
        // After connecting, the connection can be accepted at once.
        let (receiver, _) = listener.accept().map_err(failed)?;
        let sockets = Sockets::Stream { sender: Stream::Light(sender), receiver: Stream::Light(receiver) };
        Ok(Ends { sockets, counts: Arc::default() })
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// The sender and the receiver.
    pub fn split(self, flow: &Flow, mtu: u32) -> [End; 2] {
        let counts = self.counts;
        match self.sockets {
            Sockets::Udp { sender, receiver } => {
                let len = (mtu - IP_UDP) as usize;
                let offered = flow.rate.map(Pace::new);
                [
                    End::SendDatagrams { socket: sender, len, pace: offered, counts: counts.clone() },
                    End::ReceiveDatagrams { socket: receiver, counts },
                ]
            }
            Sockets::Stream { sender, receiver } => {
                [End::SendBytes { stream: sender }, End::ReceiveBytes { stream: receiver, counts }]
            }
        }
    }
}

/// Waits for a connection.
pub(crate) fn accept(listener: &TcpListener, what: &str) -> Result<TcpStream, PaError> {
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

/// Sleeps until an instant, or until the run is over.
pub(crate) fn nap(until: Instant, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) && Instant::now() < until {
        std::thread::sleep(PATIENCE.min(until.saturating_duration_since(Instant::now())));
    }
}

/// Whether an error does not end a flow: a timeout, an interrupt, or an error message from the other end.
pub(crate) fn passes(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

/// One end of a flow.
pub(super) enum End {
    SendDatagrams { socket: UdpSocket, len: usize, pace: Option<Pace>, counts: Arc<Counts> },
    ReceiveDatagrams { socket: UdpSocket, counts: Arc<Counts> },
    SendBytes { stream: Stream },
    ReceiveBytes { stream: Stream, counts: Arc<Counts> },
}

impl End {
    /// Sends or receives from `begin` until the end of the run.
    pub fn run(self, begin: Instant, over: &AtomicBool) -> Result<(), PaError> {
        let is_over = || over.load(Ordering::Relaxed);
        nap(begin, over);
        let failed = |e: std::io::Error| PaError::io("a flow's socket", &e);
        match self {
            End::SendDatagrams { socket, len, mut pace, counts } => {
                socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
                let payload = vec![0; len];
                while !is_over() {
                    match socket.send(&payload) {
                        Ok(_) => {
                            counts.datagrams_sent.fetch_add(1, Ordering::Relaxed);
                            if let Some(pace) = &mut pace {
                                pace.wait(len as u32);
                            }
                        }
                        Err(e) if passes(&e) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::ReceiveDatagrams { socket, counts } => {
                socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
                let mut bytes = vec![0; CHUNK];
                while !is_over() {
                    match socket.recv(&mut bytes) {
                        Ok(len) => {
                            counts.received.fetch_add(len as u64, Ordering::Relaxed);
                            counts.datagrams_received.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) if passes(&e) => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::SendBytes { mut stream } => {
                stream.set_timeouts(PATIENCE).map_err(failed)?;
                let payload = vec![0; CHUNK];
                while !is_over() {
                    match stream.write(&payload) {
                        Ok(_) => {}
                        // The receiver may notice the end of the run first.
                        Err(e) if passes(&e) || is_over() => {}
                        Err(e) => return Err(failed(e)),
                    }
                }
            }
            End::ReceiveBytes { mut stream, counts } => {
                stream.set_timeouts(PATIENCE).map_err(failed)?;
                let mut bytes = vec![0; CHUNK];
                while !is_over() {
                    match stream.read(&mut bytes) {
                        Ok(0) => break,
                        Ok(len) => {
                            counts.received.fetch_add(len as u64, Ordering::Relaxed);
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
