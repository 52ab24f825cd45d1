//! Rounds in which several hosts send to one at once, over TCP: barrier-synchronised reads, sequences of short flows, and
//! small messages from time to time.
//!
//! Connections that stay carry the requests of the receiver, too. Where each round has connections of its own, the senders are
//! told by a flag when they may connect, as in the simulator.

use super::plan::Rounds;
use crate::flows::ends::{PATIENCE, accept, nap};
use crate::flows::{Beside, real, style};
use crate::pa::{Endpoints, Namespaces, PaError, Style, set_timeouts};
use rustix::event::{PollFd, PollFlags, Timespec};
use sluicenet_scenario::Scenario;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The port of the first connection's receiver.
const FIRST_PORT: u16 = 20_001;
/// Bytes of a request, and of the time in front of the bytes that are sent.
const HEAD: usize = 8;
/// The most bytes per write and per read.
const CHUNK: usize = 64 << 10;

/// The time of a finished round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time {
    /// From the request to the last byte.
    pub whole: Duration,
    /// From the first byte of any sender to the last byte.
    pub transfer: Duration,
    /// Whether it began after the warm-up.
    pub counts: bool,
}

/// The rounds of one workload while they run.
#[derive(Debug)]
pub(super) struct Running {
    of: Rounds,
    warmup: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// When the run began, from which times are counted.
    epoch: Instant,
    /// Rounds that have begun.
    begun: u64,
    /// When this one was asked for.
    asked_at: Instant,
    /// Senders of which bytes are missing.
    missing: usize,
    first_sent: Duration,
    times: Vec<Time>,
    /// The receiver's ends, by which it asks.
    requests: Vec<TcpStream>,
}

impl Running {
    /// Rounds that have not begun.
    pub fn new(of: &Rounds, warmup: Duration) -> Running {
        let now = Instant::now();
        let state = State {
            epoch: now,
            begun: 0,
            asked_at: now,
            missing: 0,
            first_sent: Duration::MAX,
            times: Vec::new(),
            requests: Vec::new(),
        };
        Running { of: of.clone(), warmup, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The finished rounds, and whether one has begun and not ended.
    pub fn times(&self) -> (Vec<Time>, bool) {
        let state = self.lock();
        (state.times.clone(), state.missing > 0)
    }

    fn elapsed(&self) -> Duration {
        self.lock().epoch.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a round.
    fn begin(&self, over: &AtomicBool) -> Result<(), PaError> {
        let mut state = self.lock();
        state.begun += 1;
        (state.missing, state.first_sent, state.asked_at) = (self.of.senders.len(), Duration::MAX, Instant::now());
        for request in &mut state.requests {
            // A connection that is gone has been noticed by its reader.
            match request.write_all(&[0; HEAD]) {
                Err(e) if !over.load(Ordering::Relaxed) => return Err(PaError::io("a request", &e)),
                _ => {}
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// All bytes of a sender have arrived; the last one begins the next round.
    fn arrived(&self, sent: Duration, over: &AtomicBool) -> Result<(), PaError> {
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut state = self.lock();
        state.missing -= 1;
        state.first_sent = state.first_sent.min(sent);
        if state.missing > 0 {
            return Ok(());
        }
        let now = state.epoch.elapsed();
        let asked = state.asked_at.duration_since(state.epoch);
        let (whole, transfer) = (now.saturating_sub(asked), now.saturating_sub(state.first_sent));
        state.times.push(Time { whole, transfer, counts: asked >= self.warmup });
        if state.begun == self.of.rounds {
            return Ok(());
        }
        drop(state);
        nap(Instant::now() + real(self.of.gap), over);
        self.begin(over)
    }

    /// Waits until round `n` has begun; whether it has.
    fn wait_for(&self, n: u64, over: &AtomicBool) -> bool {
        let mut state = self.lock();
        while state.begun < n && !over.load(Ordering::Relaxed) {
            let waited = self.changed.wait_timeout(state, PATIENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.begun >= n
    }
}

/// Opens the sockets of rounds. Returns the work of their senders and receivers.
///
/// # Errors
/// A request that the system refused.
pub(super) fn open<'a>(
    scenario: &'a Scenario,
    all: &'a [Running],
    endpoints: &'a Endpoints,
) -> Result<Vec<Beside<'a>>, PaError> {
    let mut namespaces = Namespaces::new()?;
    let mut work: Vec<Beside<'a>> = Vec::new();
    let mut port = FIRST_PORT;
    for running in all {
        let style = style(scenario, running.of.priority);
        let to = endpoints.kernel((running.of.receiver, 0))?;
        for (i, &sender) in running.of.senders.iter().enumerate() {
            let from = endpoints.kernel((sender, 0))?;
            let listener = namespaces.listen(to, port, style)?;
            let at = SocketAddrV4::new(to.address, port);
            port += 1;
            if running.of.fresh {
                work.push(Box::new(move |over| send_fresh(running, from, at, style, over)));
                work.push(Box::new(move |over| receive_fresh(running, i, &listener, over)));
            } else {
                let stream = namespaces.connect(from, at, style)?;
                let receiver = accept(&listener, &format!("{} with {at}", from.address))?;
                let failed = |e: std::io::Error| PaError::io("a connection", &e);
                let (stream, receiver) = (ready(stream)?, ready(receiver)?);
                running.lock().requests.push(receiver.try_clone().map_err(failed)?);
                work.push(Box::new(move |over| send_again(running, stream, over)));
                work.push(Box::new(move |over| receive_again(running, i, receiver, over)));
            }
        }
    }
    // From here on times are counted.
    all.iter().for_each(|running| running.lock().epoch = Instant::now());
    Ok(work)
}

/// The first receiver begins the first round.
fn first(running: &Running, i: usize, over: &AtomicBool) -> Result<(), PaError> {
    if i == 0 {
        nap(Instant::now() + real(running.of.start), over);
        running.begin(over)?;
    }
    Ok(())
}

fn send_again(running: &Running, mut stream: TcpStream, over: &AtomicBool) -> Result<(), PaError> {
    let mut request = [0; HEAD];
    while read(&mut stream, &mut request, over)? {
        let sent = running.elapsed();
        write(&mut stream, running.of.bytes, sent, over)?;
    }
    Ok(())
}

fn receive_again(running: &Running, i: usize, mut stream: TcpStream, over: &AtomicBool) -> Result<(), PaError> {
    first(running, i, over)?;
    while let Some(sent) = take(&mut stream, running.of.bytes, over)? {
        running.arrived(sent, over)?;
    }
    Ok(())
}

fn send_fresh(
    running: &Running,
    from: &crate::pa::Endpoint,
    at: SocketAddrV4,
    style: Style,
    over: &AtomicBool,
) -> Result<(), PaError> {
    // This thread moves into the namespace of the host.
    let mut namespaces = Namespaces::new()?;
    for round in 1..=running.of.rounds {
        if !running.wait_for(round, over) {
            return Ok(());
        }
        let sent = running.elapsed();
        let stream = namespaces.connect(from, at, style)?;
        let Some(mut stream) = connected(stream, over)? else { return Ok(()) };
        write(&mut stream, running.of.bytes, sent, over)?;
        // The connection closes when the receiver has all bytes.
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    Ok(())
}

fn receive_fresh(running: &Running, i: usize, listener: &TcpListener, over: &AtomicBool) -> Result<(), PaError> {
    first(running, i, over)?;
    for _ in 0..running.of.rounds {
        let Some(mut stream) = accepted(listener, over)? else { return Ok(()) };
        let Some(sent) = take(&mut stream, running.of.bytes, over)? else { return Ok(()) };
        drop(stream);
        running.arrived(sent, over)?;
    }
    Ok(())
}

/// Waits for a connection; none if the run is over first.
pub(super) fn accepted(listener: &TcpListener, over: &AtomicBool) -> Result<Option<TcpStream>, PaError> {
    while !over.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => return ready(stream).map(Some),
            Err(e) if e.kind() == ErrorKind::WouldBlock => wait(listener, PollFlags::IN),
            Err(e) => return Err(PaError::io("accepting a connection", &e)),
        }
    }
    Ok(None)
}

/// Waits for a socket, or for a while.
fn wait(socket: impl AsFd, events: PollFlags) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: PATIENCE.subsec_nanos().into() };
    let socket = socket.as_fd();
    let _ = rustix::event::poll(&mut [PollFd::new(&socket, events)], Some(&timeout));
}

/// Waits until a connection is open; none if the run is over first.
pub(super) fn connected(stream: TcpStream, over: &AtomicBool) -> Result<Option<TcpStream>, PaError> {
    while !over.load(Ordering::Relaxed) {
        wait(&stream, PollFlags::OUT);
        if let Some(e) = stream.take_error().ok().flatten() {
            return Err(PaError::io("connecting", &e));
        }
        if stream.peer_addr().is_ok() {
            return ready(stream).map(Some);
        }
    }
    Ok(None)
}

/// A connection whose calls block, but not for long.
fn ready(stream: TcpStream) -> Result<TcpStream, PaError> {
    let set = stream.set_nonblocking(false).and_then(|()| set_timeouts(&stream, PATIENCE));
    set.map(|()| stream).map_err(|e| PaError::io("a connection", &e))
}

/// Whether a call only waited.
fn waited(e: &std::io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Reads so many bytes; whether they came before the run was over.
fn read(stream: &mut TcpStream, into: &mut [u8], over: &AtomicBool) -> Result<bool, PaError> {
    let mut at = 0;
    while at < into.len() && !over.load(Ordering::Relaxed) {
        match stream.read(&mut into[at..]) {
            Ok(0) => return Ok(false),
            Ok(len) => at += len,
            Err(_) if over.load(Ordering::Relaxed) => return Ok(false),
            Err(e) if waited(&e) => {}
            Err(e) => return Err(PaError::io("receiving", &e)),
        }
    }
    Ok(at == into.len())
}

/// Sends so many bytes, and a time in front of them.
pub(super) fn write(stream: &mut TcpStream, bytes: u64, sent: Duration, over: &AtomicBool) -> Result<(), PaError> {
    let mut chunk = vec![0; CHUNK];
    chunk[..HEAD].copy_from_slice(&(sent.as_nanos() as u64).to_be_bytes());
    let mut left = bytes as usize;
    let mut at = 0;
    while left > 0 && !over.load(Ordering::Relaxed) {
        match stream.write(&chunk[at..CHUNK.min(at + left)]) {
            Ok(len) => {
                left -= len;
                // What follows the head is nothing but zeros.
                at = if at + len < HEAD { at + len } else { HEAD };
            }
            Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
            Err(e) if waited(&e) => {}
            Err(e) => return Err(PaError::io("sending", &e)),
        }
    }
    Ok(())
}

/// Receives so many bytes; the time in front of them, or none if the run was over first.
pub(super) fn take(stream: &mut TcpStream, bytes: u64, over: &AtomicBool) -> Result<Option<Duration>, PaError> {
    let mut head = [0; HEAD];
    let first = HEAD.min(bytes as usize);
    if !read(stream, &mut head[..first], over)? {
        return Ok(None);
    }
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes as usize - first;
    while left > 0 && !over.load(Ordering::Relaxed) {
        let len = left.min(CHUNK);
        match stream.read(&mut chunk[..len]) {
            Ok(0) => return Ok(None),
            Ok(len) => left -= len,
            Err(_) if over.load(Ordering::Relaxed) => return Ok(None),
            Err(e) if waited(&e) => {}
            Err(e) => return Err(PaError::io("receiving", &e)),
        }
    }
    Ok((left == 0).then(|| Duration::from_nanos(u64::from_be_bytes(head))))
}
