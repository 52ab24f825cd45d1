//! Flows with an end: when they begin, and when their last byte has arrived.

use super::plan::Finite;
use super::rounds::{connected, nap, prepare, std, take, write};
use crate::flows::ends::{PATIENCE, Pace};
use crate::flows::{Beside, style};
use crate::pa::{Endpoint, Endpoints, Namespaces, PaError, Style};
use sluicenet_scenario::{Scenario, Transport};
use std::io::ErrorKind;
use std::net::{SocketAddrV4, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The port of the first flow's receiver.
const FIRST_PORT: u16 = 30_001;
/// Bytes of IP and UDP around the payload of a datagram.
const IP_UDP: u32 = 28;

/// A flow while it runs: nanoseconds from its beginning to its end; 0 before the end.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// In nanoseconds since the first flow was opened.
    begun: AtomicU64,
    took: AtomicU64,
}

impl Running {
    /// How long it took, once it has ended.
    pub fn took(&self) -> Option<Duration> {
        Some(self.took.load(Ordering::Relaxed)).filter(|&ns| ns > 0).map(Duration::from_nanos)
    }

    fn begin(&self, epoch: Instant) {
        self.begun.store(epoch.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn end(&self, epoch: Instant) {
        let ns = (epoch.elapsed().as_nanos() as u64).saturating_sub(self.begun.load(Ordering::Relaxed));
        self.took.store(ns.max(1), Ordering::Relaxed);
    }
}

/// Opens the sockets of flows. Returns the work of their senders and receivers.
///
/// # Errors
/// A request that the system refused.
pub(super) fn open<'a>(
    scenario: &'a Scenario,
    all: &'a [(Finite, Running)],
    endpoints: &'a Endpoints,
    mtu: u32,
) -> Result<Vec<Beside<'a>>, PaError> {
    let mut namespaces = Namespaces::new()?;
    let mut work: Vec<Beside<'a>> = Vec::new();
    let epoch = Instant::now();
    for ((finite, running), port) in all.iter().zip(FIRST_PORT..) {
        let style = style(scenario, finite.flow.priority);
        let (from, to) = (endpoints.kernel(finite.flow.from)?, endpoints.kernel(finite.flow.to)?);
        let at = SocketAddrV4::new(to.address, port);
        if finite.flow.transport == Transport::Udp {
            let receiver = namespaces.datagrams(to, port, style)?;
            let sender = namespaces.datagrams(from, 0, style)?;
            sender.connect(at).map_err(|e| PaError::io("connecting a datagram socket", &e))?;
            work.push(Box::new(move |over| send_datagrams(finite, running, &sender, (epoch, mtu), over)));
            work.push(Box::new(move |over| receive_datagrams(finite, running, &receiver, epoch, over)));
        } else {
            let listener = namespaces.listen(to, port, style)?;
            work.push(Box::new(move |over| send_bytes(finite, running, (from, at, style), epoch, over)));
            work.push(Box::new(move |over| receive_bytes(finite, running, &listener, epoch, over)));
        }
    }
    Ok(work)
}

/// Whether a call only waited, or was told that nobody listens any more.
fn passes(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    )
}

fn send_datagrams(
    finite: &Finite,
    running: &Running,
    socket: &UdpSocket,
    (epoch, mtu): (Instant, u32),
    over: &AtomicBool,
) -> Result<(), PaError> {
    let failed = |e: std::io::Error| PaError::io("a flow's socket", &e);
    socket.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut pace = finite.flow.rate.map(Pace::new);
    let payload = vec![0; (mtu - IP_UDP) as usize];
    nap(std(finite.start), over);
    running.begin(epoch);
    let mut left = finite.bytes as usize;
    while left > 0 && !over.load(Ordering::Relaxed) {
        let len = left.min(payload.len());
        match socket.send(&payload[..len]) {
            Ok(_) => {
                left -= len;
                if let Some(pace) = &mut pace {
                    pace.wait(len as u32);
                }
            }
            Err(e) if passes(&e) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(())
}

fn receive_datagrams(
    finite: &Finite,
    running: &Running,
    socket: &UdpSocket,
    epoch: Instant,
    over: &AtomicBool,
) -> Result<(), PaError> {
    let failed = |e: std::io::Error| PaError::io("a flow's socket", &e);
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut bytes = vec![0; 1 << 16];
    let mut left = finite.bytes as usize;
    while left > 0 && !over.load(Ordering::Relaxed) {
        match socket.recv(&mut bytes) {
            Ok(len) => left = left.saturating_sub(len),
            Err(e) if passes(&e) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    if left == 0 {
        running.end(epoch);
    }
    Ok(())
}

fn send_bytes(
    finite: &Finite,
    running: &Running,
    (from, at, style): (&Endpoint, SocketAddrV4, Style),
    epoch: Instant,
    over: &AtomicBool,
) -> Result<(), PaError> {
    // This thread moves into the namespace of the host.
    let mut namespaces = Namespaces::new()?;
    nap(std(finite.start), over);
    if over.load(Ordering::Relaxed) {
        return Ok(());
    }
    running.begin(epoch);
    let stream = namespaces.connect(from, at, style)?;
    let Some(mut stream) = connected(stream, over)? else { return Ok(()) };
    prepare(&stream)?;
    write(&mut stream, finite.bytes, Duration::ZERO, over)
}

fn receive_bytes(
    finite: &Finite,
    running: &Running,
    listener: &TcpListener,
    epoch: Instant,
    over: &AtomicBool,
) -> Result<(), PaError> {
    let Some(mut stream) = super::rounds::accepted(listener, over)? else { return Ok(()) };
    prepare(&stream)?;
    if take(&mut stream, finite.bytes, over)?.is_some() {
        running.end(epoch);
    }
    Ok(())
}
