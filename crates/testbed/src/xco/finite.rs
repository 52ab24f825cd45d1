//! Flows with an end: when they begin, and when their last byte has arrived.

use super::plan::Finite;
use super::rounds::{accepted, connected, take, write};
use crate::flows::ends::{IP_UDP, PATIENCE, Pace, nap, passes};
use crate::flows::{Beside, style};
use crate::pa::{Endpoint, Endpoints, Namespaces, PaError, Style};
use sluicenet_scenario::{Scenario, Transport};
use std::net::{SocketAddrV4, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The port of the first flow's receiver.
const FIRST_PORT: u16 = 30_001;

/// A flow while it runs.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// When it began, in nanoseconds since the first flow was opened; 0 before that.
    begun: AtomicU64,
    /// Nanoseconds from its beginning to its end; 0 before the end.
    took: AtomicU64,
}

impl Running {
    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// How long it took, once it has ended.
    pub fn took(&self) -> Option<Duration> {
        Some(self.took.load(Ordering::Relaxed)).filter(|&ns| ns > 0).map(Duration::from_nanos)
    }

    fn begin(&self, epoch: Instant) {
        self.begun.store((epoch.elapsed().as_nanos() as u64).max(1), Ordering::Relaxed);
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

/// Waits for the beginning of a flow; whether it came before the end of the run.
fn begins(finite: &Finite, running: &Running, epoch: Instant, over: &AtomicBool) -> bool {
    nap(Instant::now() + finite.flow.start, over);
    let begins = !over.load(Ordering::Relaxed);
    if begins {
        running.begin(epoch);
    }
    begins
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
    if !begins(finite, running, epoch, over) {
        return Ok(());
    }
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
    if !begins(finite, running, epoch, over) {
        return Ok(());
    }
    let stream = namespaces.connect(from, at, style)?;
    let Some(mut stream) = connected(stream, over)? else { return Ok(()) };
    write(&mut stream, finite.bytes, Duration::ZERO, over)
}

fn receive_bytes(
    finite: &Finite,
    running: &Running,
    listener: &TcpListener,
    epoch: Instant,
    over: &AtomicBool,
) -> Result<(), PaError> {
    let Some(mut stream) = accepted(listener, over)? else { return Ok(()) };
    if take(&mut stream, finite.bytes, over)?.is_some() {
        running.end(epoch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::Flow;

    fn of(start: Duration) -> (Finite, Running) {
        let flow = Flow { from: (0, 0), to: (1, 0), transport: Transport::Udp, rate: None, priority: 0, start };
        (Finite { flow, bytes: 1 }, Running::default())
    }

    #[test]
    fn a_flow_that_the_run_ends_before_has_not_begun() {
        let (now, over) = (Instant::now(), AtomicBool::new(true));
        let (finite, running) = of(Duration::ZERO);
        assert!(!begins(&finite, &running, now, &over) && !running.has_begun());
        over.store(false, Ordering::Relaxed);
        assert!(begins(&finite, &running, now, &over) && running.has_begun() && running.took().is_none());
        running.end(now);
        assert!(running.took().is_some());
    }
}
