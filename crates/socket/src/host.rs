//! A host: its port, its lock, and the thread that takes in what nobody waits for.

#[cfg(test)]
mod tests;

use crate::attach::Attachment;
use crate::config::MTU_MIN;
use crate::core::{BUFFERS_MIN, Core, Counters, Socket};
use crate::{Attempt, Config, LightDatagram, Ready, TcplightListener, TcplightStream, Watch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sluicenet_dataplane::shm::{self, Client};
use sluicenet_wire::ethernet::MacAddress;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames taken in before others get the lock.
const BATCH: u32 = 128;
/// How long a host that ends waits for the switch to take what it said last.
const ENDS_IN: Duration = Duration::from_secs(2);

/// A port of a switch with an address; copies are the same host. It ends, and the port is given up, with the last of them
/// and of its sockets.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Owner>);

pub(crate) struct Shared {
    core: Mutex<Core>,
    wake: OwnedFd,
    stop: AtomicBool,
}

/// What ends the host when nobody has it any more.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The connection that makes the port ours, closed after the last word was said.
    attachment: Arc<Attachment>,
    descriptors: Vec<RawFd>,
}

impl Host {
    /// Takes a port into use.
    ///
    /// # Errors
    /// When the memory is not a port's, has too few buffers, the file of the switch gives the port another address, or the
    /// system has no thread left.
    pub fn open(port: Attachment, mut config: Config) -> io::Result<Host> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if let Some(ip) = port.ip.filter(|&ip| ip != config.address) {
            return Err(invalid(format!("the switch lets this port send from {ip} only, not from {}", config.address)));
        }
        config.check().map_err(|(field, expected)| invalid(format!("{field}: {expected} is expected")))?;
        if let Some(told) = port.mtu.filter(|&told| told < config.mtu) {
            if told < MTU_MIN {
                return Err(invalid(format!(
                    "packets to other servers have at most {told} bytes: light sockets take {MTU_MIN}"
                )));
            }
            config.mtu = told;
        }
        let shm::Access { memory, kick, wake } = &port.access;
        let mut descriptors: Vec<RawFd> = [memory, kick, wake].map(AsRawFd::as_raw_fd).to_vec();
        descriptors.extend(port.connection().map(|connection| connection.as_raw_fd()));
        let mut copy = |of: &OwnedFd| -> io::Result<OwnedFd> {
            let copy = rustix::io::fcntl_dupfd_cloexec(of, of.as_raw_fd())?;
            descriptors.push(copy.as_raw_fd());
            Ok(copy)
        };
        let client = Client::open(copy(memory)?)?;
        if 2 * client.half() < BUFFERS_MIN {
            return Err(invalid(format!("a port of {} buffers: light sockets take {BUFFERS_MIN}", 2 * client.half())));
        }
        let mac = config.mac.or(port.mac).map_or_else(random_mac, Ok)?;
        if mac.is_group() {
            return Err(invalid(format!("the switch gives this port the address of a group, {mac}")));
        }
        let (kick, wake, wake_of_core) = (copy(kick)?, copy(wake)?, copy(wake)?);
        let core = Core::new(client, kick, wake_of_core, mac, config);
        let shared = Arc::new(Shared { core: Mutex::new(core), wake, stop: AtomicBool::new(false) });
        // Whoever waits for it, and the overlay, learn that it is there (as kernels say with `arp_notify`).
        shared.call(Core::announce);
        let attachment = Arc::new(port);
        let (of_thread, watched) = (shared.clone(), attachment.clone());
        let thread =
            std::thread::Builder::new().name("sluicenet-host".into()).spawn(move || of_thread.run(&watched))?;
        Ok(Host(Arc::new(Owner { shared, thread: Some(thread), attachment, descriptors })))
    }

    /// Its MAC address.
    pub fn mac(&self) -> MacAddress {
        self.shared().lock().mac
    }

    /// Its address.
    pub fn address(&self) -> std::net::Ipv4Addr {
        self.shared().lock().config.address
    }

    /// Bytes of its largest IP packet.
    pub fn mtu(&self) -> u16 {
        self.shared().lock().config.mtu
    }

    /// What happened to frames.
    pub fn counters(&self) -> Counters {
        self.shared().lock().counters()
    }

    /// Opens a stream and waits until it is open.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody listens there, `EHOSTUNREACH` and `ETIMEDOUT` when nobody answers, `ENETUNREACH` where the host
    /// has no way to, `EADDRNOTAVAIL` when no port is left, `ENOBUFS` when there are too many streams.
    pub fn connect(&self, to: SocketAddrV4) -> io::Result<TcplightStream> {
        let stream = self.connect_from(None, to)?;
        stream.finish_connect()?;
        Ok(stream)
    }

    /// Begins to open a stream, from a given port or any; it is writable once it is open, or was refused.
    ///
    /// # Errors
    /// As for [`Host::connect`], as far as they show at once; `EADDRINUSE` where the port has a stream there already.
    pub fn connect_from(&self, port: Option<u16>, to: SocketAddrV4) -> io::Result<TcplightStream> {
        let id = self.shared().call(|core| core.connect(to, port))?;
        Ok(TcplightStream::new(self.clone(), id))
    }

    /// Listens at a port, any with 0; `backlog` connections wait to be accepted at most (128 to 4096).
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody does already, `EADDRNOTAVAIL` when no port is left.
    pub fn listen(&self, port: u16, backlog: usize) -> io::Result<TcplightListener> {
        let port = self.shared().call(|core| core.listen(port, backlog))?;
        Ok(TcplightListener::new(self.clone(), port))
    }

    /// Takes a port for datagrams, any with 0.
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody has it, `EADDRNOTAVAIL` when no port is left.
    pub fn bind_datagram(&self, port: u16) -> io::Result<LightDatagram> {
        let id = self.shared().call(|core| core.bind(port))?;
        Ok(LightDatagram::new(self.clone(), id))
    }

    /// Opens the stream of an attempt to connect that a listener of this address has [diverted](TcplightListener::divert). Its other
    /// end learns by the answer that the stream is at this host's port of the switch.
    ///
    /// # Errors
    /// `ECONNABORTED` when there are too many streams, or there is one between the same ports.
    pub fn take_attempt(&self, attempt: Attempt) -> io::Result<TcplightStream> {
        let id = self.shared().call(|core| core.take_attempt(attempt))?;
        Ok(TcplightStream::new(self.clone(), id))
    }

    /// Ends all streams as when the host ends, and waits until the switch has taken what was sent, 2 s at most: for programs that end
    /// while they hold sockets.
    pub fn end(&self) {
        self.shared().end();
    }

    /// What makes the port this process's for as long as it is open here or in a process that was forked from this one, which
    /// therefore has to close it.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.0.attachment.connection()
    }

    /// The numbers of all descriptors it has open, as long as it lives.
    pub fn descriptors(&self) -> &[RawFd] {
        &self.0.descriptors
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn ready(&self, socket: Socket) -> Ready {
        self.shared().call(|core| {
            core.pump(BATCH);
            core.ready(socket)
        })
    }

    pub(crate) fn watch(&self, socket: Socket, watch: Option<Watch>) {
        self.shared().call(|core| core.set_watch(socket, watch));
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.address())
    }
}

/// An address of a station, administered locally.
fn random_mac() -> io::Result<MacAddress> {
    let mut bytes = [0; 6];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    bytes[0] = bytes[0] & 0xFC | 0x02;
    Ok(MacAddress(bytes))
}

/// How long a call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    Nonblocking,
    Until(Option<Duration>),
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        // Whoever panicked with it, in a closure of a caller, left nothing half done.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the host.
    pub fn call<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let answer = f(&mut core);
        core.finish();
        answer
    }

    /// Does something as soon as it can be done, which `f` says; `EAGAIN` when that takes longer than `patience`.
    pub fn wait<R>(
        &self,
        socket: Socket,
        patience: Patience,
        mut f: impl FnMut(&mut Core) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut core = self.lock();
        let mut answer = f(&mut core);
        if answer.is_none() {
            // Perhaps it is there, and nobody has looked.
            core.pump(BATCH);
            answer = f(&mut core);
        }
        let mut seen = core.changes(socket);
        core.finish();
        let Patience::Until(patience) = patience else { return answer.unwrap_or(Err(Errno::AGAIN.into())) };
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(answer) = answer {
                return answer;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Errno::AGAIN.into());
            }
            let Some(waiting) = core.waiting(socket) else { return Err(Errno::BADF.into()) };
            // What came while the last call was finished, such as buffers, is told to nobody again.
            if waiting.changes == seen {
                waiting.waiters += 1;
                let changed = waiting.changed.clone();
                core = match left {
                    Some(left) => changed.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0,
                    None => changed.wait(core).unwrap_or_else(PoisonError::into_inner),
                };
                if let Some(waiting) = core.waiting(socket) {
                    waiting.waiters -= 1;
                }
            }
            answer = f(&mut core);
            seen = core.changes(socket);
            core.finish();
        }
    }

    /// The host's thread: takes in what nobody waits for, asks again, and goes to sleep.
    fn run(&self, attachment: &Attachment) {
        loop {
            let wait = {
                let mut core = self.lock();
                let all = core.pump(BATCH);
                let wait = core.look();
                core.finish();
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                if !all || !core.fall_asleep() {
                    drop(core);
                    std::thread::yield_now();
                    continue;
                }
                wait
            };
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            if let Some(connection) = attachment.connection() {
                fds.push(PollFd::from_borrowed_fd(connection, PollFlags::IN));
            }
            let timeout =
                wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
            let polled = rustix::event::poll(&mut fds, timeout.as_ref());
            let ended = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            // Nothing to read is as good as something.
            let _ = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
            if ended || !matches!(polled, Ok(_) | Err(Errno::INTR)) {
                self.call(Core::fail);
                if ended {
                    // There is nothing to wait for any more but the end.
                    while !self.stop.load(Ordering::Relaxed) {
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                }
            }
        }
        self.end();
    }

    /// Says the last words, and waits until the switch has them.
    fn end(&self) {
        let until = Instant::now() + ENDS_IN;
        let mut said = false;
        loop {
            // Who holds the lock may have been interrupted by a handler of a signal, which ends the process: this is its thread then.
            let locked = match self.core.try_lock() {
                Ok(core) => Some(core),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let flushed = locked.is_some_and(|mut core| {
                if !std::mem::replace(&mut said, true) {
                    core.end_streams();
                }
                core.pump(BATCH);
                let flushed = core.is_flushed();
                core.finish();
                flushed
            });
            if flushed || Instant::now() >= until {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A watch that holds the last socket would have its own thread wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
