//! Traffic between hosts: TCP at full speed or UDP at the rate of a link, and the count of received bytes.

use super::network::Network;
use super::pattern::Job;
use crate::namespaces::check;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use serde::Serialize;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_proto::frame::HostId;
use sluicenet_proto::rng::{Rng, hash_words};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The port at which hosts receive.
const PORT: u16 = 5001;
/// The port at which hosts receive probes.
const PROBE_PORT: u16 = 9;
/// Source ports of flows: the lowest, and their number.
const FROM_PORT: u16 = 10_000;
const FROM_PORTS: u64 = 50_000;
/// Separates the random sending times of datagrams from other uses of the seed.
const MOMENTS: u64 = 0x4d4f_4d45;
/// How long a thread waits for its socket before it checks for a stop.
const LOOK: Duration = Duration::from_millis(100);
/// The time limit for a probe of every pair to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// A full frame without its check sequence, and its payload with UDP, and with TCP with timestamps.
const FRAME_BYTES: u32 = 1_514;
const UDP_BYTES: usize = 1_472;
const TCP_BYTES: u32 = 1_448;

/// The transport protocol of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP at full speed.
    Tcp,
    /// UDP at the rate of the sender's link, regardless of losses.
    Udp,
}

impl Transport {
    /// The largest share of a link's rate that is application payload.
    pub fn goodput(self) -> f64 {
        let payload = match self {
            Transport::Tcp => TCP_BYTES,
            Transport::Udp => UDP_BYTES as u32,
        };
        f64::from(payload) / f64::from(FRAME_BYTES)
    }
}

/// A running or finished flow.
#[derive(Debug)]
pub struct Flow {
    /// The sender.
    pub src: HostId,
    /// The receiver.
    pub dst: HostId,
    /// Received bytes.
    pub arrived: AtomicU64,
    /// The time of sending the first byte, and of receiving the last one.
    pub times: Mutex<(Option<Instant>, Option<Instant>)>,
}

/// Running senders and receivers.
#[derive(Debug)]
pub struct Traffic {
    /// The flows in the order of the jobs.
    pub flows: Arc<Vec<Flow>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Data that all threads of one traffic share.
#[derive(Clone)]
struct Shared {
    flows: Arc<Vec<Flow>>,
    stop: Arc<AtomicBool>,
    seed: u64,
    bytes: Option<u64>,
}

impl Traffic {
    /// Starts the traffic. With `bytes`, each flow has this size, and a host's next flow begins when the last has
    /// arrived.
    ///
    /// # Errors
    /// A socket that cannot be opened.
    pub fn start(
        network: &Network,
        jobs: &[Job],
        transport: Transport,
        bytes: Option<u64>,
        seed: u64,
    ) -> io::Result<Traffic> {
        let flow = |src, dst| Flow { src, dst, arrived: AtomicU64::new(0), times: Mutex::default() };
        let flows = jobs.iter().flat_map(|job| job.to.iter().map(|&dst| flow(job.src, dst))).collect();
        let shared = Shared { flows: Arc::new(flows), stop: Arc::default(), seed, bytes };
        let mut traffic =
            Traffic { flows: Arc::clone(&shared.flows), stop: Arc::clone(&shared.stop), threads: Vec::new() };
        for host in 0..network.tree().hosts() {
            let at = SocketAddrV4::new(network.address(host), PORT);
            let shared = shared.clone();
            let thread = match transport {
                Transport::Udp => {
                    let socket = network.host(host).enter(|| UdpSocket::bind(at))??;
                    socket.set_read_timeout(Some(LOOK))?;
                    std::thread::spawn(move || receive(&socket, &shared))
                }
                Transport::Tcp => {
                    let listener = network.host(host).enter(|| TcpListener::bind(at))??;
                    set_socket_timeout(&listener, Timeout::Recv, Some(LOOK))?;
                    std::thread::spawn(move || accept(&listener, &shared))
                }
            };
            traffic.threads.push(thread);
        }
        let mut next = 0;
        for job in jobs {
            let numbers = next..next + job.to.len();
            next = numbers.end;
            let space = Namespace::open(network.host(job.src).name())?;
            let from = network.address(job.src);
            let to: Vec<Ipv4Addr> = job.to.iter().map(|&dst| network.address(dst)).collect();
            let (shared, rate_bps) = (shared.clone(), network.settings.rate_bps);
            traffic.threads.push(std::thread::spawn(move || {
                for (number, to) in numbers.zip(to) {
                    let to = SocketAddrV4::new(to, PORT);
                    let sent = match transport {
                        Transport::Udp => send_datagrams(&shared, &space, number, from, to, rate_bps),
                        Transport::Tcp => send_stream(&shared, &space, number, from, to),
                    };
                    // Results show a flow of which nothing arrived; an error after the stop is expected.
                    if sent.is_err() && shared.is_over() {
                        return;
                    }
                }
            }));
        }
        Ok(traffic)
    }

    /// Whether all bytes of all flows have arrived; flows without an end never finish.
    pub fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.times().1.is_some())
    }
}

impl Flow {
    /// The times at which the flow began and ended.
    pub fn times(&self) -> (Option<Instant>, Option<Instant>) {
        *self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).0.get_or_insert_with(Instant::now);
    }

    fn end(&self) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).1.get_or_insert_with(Instant::now);
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The source port of a flow, by which hashing switches tell flows apart. Another `attempt` gives another port.
    fn port(&self, number: usize, attempt: u64) -> u16 {
        FROM_PORT + (hash_words(&[self.seed, number as u64, attempt]) % FROM_PORTS) as u16
    }

    /// The flow whose number is in front of its bytes.
    fn flow(&self, head: [u8; 4]) -> Option<&Flow> {
        self.flows.get(u32::from_be_bytes(head) as usize)
    }
}

/// Whether an error says only that the socket has waited.
fn waited(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn receive(socket: &UdpSocket, shared: &Shared) {
    let mut buffer = [0; 2_048];
    while !shared.is_over() {
        let Ok(len) = socket.recv(&mut buffer) else { continue };
        if let Some(flow) = buffer[..len].first_chunk().and_then(|head| shared.flow(*head)) {
            flow.arrived.fetch_add(len as u64, Ordering::Relaxed);
        }
    }
}

fn send_datagrams(
    shared: &Shared,
    space: &Namespace,
    number: usize,
    from: Ipv4Addr,
    to: SocketAddrV4,
    rate_bps: u64,
) -> io::Result<()> {
    let socket = space.enter(|| UdpSocket::bind((from, shared.port(number, 0))))??;
    socket.connect(to)?;
    let mut payload = [0; UDP_BYTES];
    payload[..4].copy_from_slice(&(number as u32).to_be_bytes());
    let gap = Duration::from_secs_f64(f64::from(8 * FRAME_BYTES) / rate_bps as f64);
    // Each datagram leaves at a random moment of its slot. Senders in step with each other stay in step with a full
    // queue, which would have room for the same senders every time.
    let mut rng = Rng::from_words(&[shared.seed, number as u64, MOMENTS]);
    let mut slot = Instant::now();
    while !shared.is_over() {
        let moment = slot + gap.mul_f64(rng.unit_f64());
        std::thread::sleep(moment.saturating_duration_since(Instant::now()));
        // The host's queue drops a datagram that does not fit.
        if socket.send(&payload).is_ok() {
            shared.flows[number].begin();
        }
        slot += gap;
        let now = Instant::now();
        // A thread that was late does not send a burst.
        if now.saturating_duration_since(slot) > 4 * gap {
            slot = now;
        }
    }
    Ok(())
}

fn accept(listener: &TcpListener, shared: &Shared) {
    let mut connections = Vec::new();
    while !shared.is_over() {
        let Ok((stream, _)) = listener.accept() else { continue };
        let shared = shared.clone();
        connections.push(std::thread::spawn(move || read(stream, &shared)));
    }
    for connection in connections {
        let _ = connection.join();
    }
}

fn read(mut stream: TcpStream, shared: &Shared) {
    let mut head = [0; 4];
    let mut buffer = vec![0; 1 << 16];
    if stream.set_read_timeout(Some(LOOK)).is_err() {
        return;
    }
    let mut have = 0;
    let mut flow: Option<&Flow> = None;
    while !shared.is_over() {
        let into = if flow.is_none() { &mut head[have..] } else { &mut buffer[..] };
        match stream.read(into) {
            Ok(0) => {
                flow.map(Flow::end);
                return;
            }
            Ok(len) => match flow {
                Some(flow) => _ = flow.arrived.fetch_add(len as u64, Ordering::Relaxed),
                None => {
                    have += len;
                    if have == head.len() {
                        let Some(known) = shared.flow(head) else { return };
                        flow = Some(known);
                    }
                }
            },
            Err(e) if waited(&e) => {}
            Err(_) => return,
        }
    }
}

fn send_stream(shared: &Shared, space: &Namespace, number: usize, from: Ipv4Addr, to: SocketAddrV4) -> io::Result<()> {
    let mut attempt = 0;
    let mut stream = loop {
        match open(shared, space, SocketAddrV4::new(from, shared.port(number, attempt)), to) {
            Ok(stream) => break stream,
            Err(e) if shared.is_over() => return Err(e),
            Err(_) => {
                attempt += 1;
                std::thread::sleep(LOOK);
            }
        }
    };
    let write = |stream: &mut TcpStream, mut bytes: &[u8]| {
        while !bytes.is_empty() {
            match stream.write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(e) if waited(&e) && !shared.is_over() => {}
                Err(e) => return Err(e),
            }
            if shared.is_over() {
                return Err(ErrorKind::Interrupted.into());
            }
        }
        Ok(())
    };
    write(&mut stream, &(number as u32).to_be_bytes())?;
    shared.flows[number].begin();
    let chunk = vec![0; 1 << 14];
    let mut left = shared.bytes.unwrap_or(u64::MAX);
    while left > 0 {
        let len = left.min(chunk.len() as u64);
        write(&mut stream, &chunk[..len as usize])?;
        if shared.bytes.is_some() {
            left -= len;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(LOOK))?;
    // The receiver closes when it has read all bytes.
    loop {
        match stream.read(&mut [0; 16]) {
            Err(e) if waited(&e) && !shared.is_over() => {}
            _ => return Ok(()),
        }
    }
}

/// Opens a connection from a chosen port.
fn open(shared: &Shared, space: &Namespace, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<TcpStream> {
    let stream = space.enter(|| -> io::Result<TcpStream> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddr::V4(from))?;
        Ok(TcpStream::from(socket))
    })??;
    stream.set_write_timeout(Some(LOOK))?;
    while !shared.is_over() {
        match connect(&stream, &SocketAddr::V4(to)) {
            Ok(()) | Err(Errno::ISCONN) => return Ok(stream),
            Err(Errno::INPROGRESS | Errno::ALREADY | Errno::AGAIN | Errno::INTR) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(e) => return Err(e.into()),
        }
    }
    Err(ErrorKind::Interrupted.into())
}

/// Sends probes between all pairs before the measurement, so that ARP has found every address.
///
/// # Errors
/// A pair without a received probe.
pub fn reach(network: &Network, jobs: &[Job], stop: &AtomicBool) -> io::Result<()> {
    let socket = |host| -> io::Result<UdpSocket> {
        let at = (network.address(host), PROBE_PORT);
        let socket = network.host(host).enter(|| UdpSocket::bind(at))??;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        Ok(socket)
    };
    let sockets = (0..network.tree().hosts()).map(socket).collect::<io::Result<Vec<_>>>()?;
    let until = Instant::now() + PATIENCE;
    for (src, dst) in jobs.iter().flat_map(|job| job.to.iter().map(|&dst| (job.src, dst))) {
        let (from, to) = (network.address(src), network.address(dst));
        loop {
            check(stop)?;
            if Instant::now() > until {
                return Err(io::Error::new(ErrorKind::TimedOut, format!("nothing comes from {from} to {to}")));
            }
            let _ = sockets[src as usize].send_to(&from.octets(), (to, PROBE_PORT));
            let mut buffer = [0; 64];
            match sockets[dst as usize].recv_from(&mut buffer) {
                // Late probes of another pair are ignored.
                Ok((4, source)) if source.ip() == from => break,
                _ => {}
            }
        }
    }
    Ok(())
}
