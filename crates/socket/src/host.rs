//! A host: its port, its lock, and the thread that takes in frames that no caller waits for.

#[cfg(test)]
mod tests;

use crate::attach::{Attachment, Granted, PortAddress, answer};
use crate::config::MTU_MIN;
use crate::core::{BUFFERS_MIN, Core, Counters, Link, Socket, Wakers};
use crate::{Attempt, Config, LightDatagram, Ready, TcplightListener, TcplightStream, Watch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sluicenet_dataplane::shm::{self, Client};
use sluicenet_wire::ethernet::MacAddress;
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames taken in before others get the lock.
const BATCH: u32 = 128;
/// How long a host that ends waits for the switch to take its last frames.
const ENDS_IN: Duration = Duration::from_secs(2);
/// How long the holder of an attempt to connect waits for a switch.
const LOOKED_FOR: Duration = Duration::from_secs(1);

/// A port of a switch with an address; copies are the same host. The host ends, and the port is given up, with the last of
/// the copies and of its sockets. When the switch ends, the host's streams end too, and its other sockets are silent. The
/// host goes on with the next switch at the same control socket that has the port.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Owner>);

pub(crate) struct Shared {
    core: Mutex<Core>,
    wakers: Arc<Wakers>,
    stop: AtomicBool,
    /// Held while the thread has descriptors that are not yet behind the host's numbers.
    exchanging: AtomicBool,
}

/// Ends the host when its last owner drops it.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The connection that makes the port ours, closed after the last frame was sent.
    connection: Option<Arc<OwnedFd>>,
    descriptors: Vec<RawFd>,
}

/// The way to the switch, as the host's thread has it.
struct SwitchConnection {
    connection: Option<Arc<OwnedFd>>,
    /// Where the port is looked for when the switch has ended.
    address: Option<PortAddress>,
    /// The program's settings, whatever each switch allows of them.
    config: Config,
}

impl Host {
    /// Takes a port into use.
    ///
    /// # Errors
    /// When the memory is not a port's, has too few buffers, the file of the switch gives the port another address, or the
    /// system has no thread left.
    pub fn open(port: Attachment, config: Config) -> io::Result<Host> {
        config.check().map_err(|(field, expected)| invalid(format!("{field}: {expected} is expected")))?;
        let (granted, connection, address) = port.into_parts();
        let Fit { client, mac, mtu } = Fit::of(&granted, &config)?;
        let mac = mac.map_or_else(random_mac, Ok)?;
        let shm::Access { kick, wake, .. } = granted.access;
        let wakers = Arc::new(Wakers { kick, wake });
        let connection = connection.map(|stream| Arc::new(OwnedFd::from(stream)));
        let mut descriptors = vec![wakers.kick.as_raw_fd(), wakers.wake.as_raw_fd()];
        descriptors.extend(connection.as_ref().map(|connection| connection.as_raw_fd()));
        let core = Core::new(client, wakers.clone(), mac, Config { mtu, ..config.clone() }, address.is_some());
        let shared = Arc::new(Shared::new(core, wakers));
        // Neighbours that wait for the host, and the overlay, learn that it is there (as kernels say with `arp_notify`).
        shared.call(Core::announce);
        let (of_thread, switch) =
            (shared.clone(), SwitchConnection { connection: connection.clone(), address, config });
        let thread = std::thread::Builder::new().name("sluicenet-host".into()).spawn(move || of_thread.run(&switch))?;
        Ok(Host(Arc::new(Owner { shared, thread: Some(thread), connection, descriptors })))
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

    /// Counters of frames and streams.
    pub fn counters(&self) -> Counters {
        self.shared().lock().counters()
    }

    /// Opens a stream and waits until it is open.
    ///
    /// # Errors
    /// `ECONNREFUSED` when nobody listens there, `EHOSTUNREACH` and `ETIMEDOUT` when nobody answers, `ENETUNREACH` for
    /// addresses outside the host's network, `ENETDOWN` when the switch has ended, `EADDRNOTAVAIL` when no port is left,
    /// `ENOBUFS` when there are too many streams.
    pub fn connect(&self, to: SocketAddrV4) -> io::Result<TcplightStream> {
        let stream = self.connect_from(None, to)?;
        stream.finish_connect()?;
        Ok(stream)
    }

    /// Begins to open a stream, from a given port or any; it is writable once it is open, or was refused.
    ///
    /// # Errors
    /// As for [`Host::connect`], for errors that show at once; `EADDRINUSE` where the port has a stream there already.
    pub fn connect_from(&self, port: Option<u16>, to: SocketAddrV4) -> io::Result<TcplightStream> {
        let id = self.shared().call(|core| core.connect(to, port))?;
        Ok(TcplightStream::new(self.clone(), id))
    }

    /// Listens at a port, any with 0; `backlog` connections wait to be accepted at most (128 to 4096).
    ///
    /// # Errors
    /// `EADDRINUSE` when another listener has the port, `EADDRNOTAVAIL` when no port is left.
    pub fn listen(&self, port: u16, backlog: usize) -> io::Result<TcplightListener> {
        let port = self.shared().call(|core| core.listen(port, backlog))?;
        Ok(TcplightListener::new(self.clone(), port))
    }

    /// Takes a port for datagrams, any with 0.
    ///
    /// # Errors
    /// `EADDRINUSE` when another socket has the port, `EADDRNOTAVAIL` when no port is left.
    pub fn bind_datagram(&self, port: u16) -> io::Result<LightDatagram> {
        let id = self.shared().call(|core| core.bind(port))?;
        Ok(LightDatagram::new(self.clone(), id))
    }

    /// Opens the stream of an attempt to connect that a listener of this address has [diverted](TcplightListener::divert).
    /// Its other end learns by the answer that the stream is at this host's port of the switch.
    ///
    /// # Errors
    /// `ECONNABORTED` when there are too many streams, there is one between the same ports, or the switch has ended.
    pub fn take_attempt(&self, attempt: Attempt) -> io::Result<TcplightStream> {
        // The process that passed the attempt on may have found the next switch already.
        self.shared().look_for_switch();
        let id = self.shared().call(|core| core.take_attempt(attempt))?;
        Ok(TcplightStream::new(self.clone(), id))
    }

    /// Ends all streams as when the host ends, and waits until the switch has taken all sent bytes, 2 s at most: for programs
    /// that end while they hold sockets.
    pub fn end(&self) {
        self.shared().end();
    }

    /// The connection that makes the port this process's. The port stays so for as long as the connection is open here or in
    /// a process that was forked from this one, which therefore has to close it.
    pub fn connection(&self) -> Option<BorrowedFd<'_>> {
        self.0.connection.as_ref().map(|connection| connection.as_fd())
    }

    /// Has the host make no descriptors until [`Host::end_fork`]: a process forked meanwhile would keep an unknown one.
    pub fn begin_fork(&self) {
        while self.shared().exchanging.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Ends the fork, in the process that called [`Host::begin_fork`].
    pub fn end_fork(&self) {
        self.shared().exchanging.store(false, Ordering::Release);
    }

    /// The numbers of all descriptors it has open, as long as it lives: also when another switch is behind them.
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

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// A granted port, checked against the program's settings.
struct Fit {
    client: Client,
    /// The host's address, if the program or the switch gives one.
    mac: Option<MacAddress>,
    mtu: u16,
}

impl Fit {
    fn of(granted: &Granted, config: &Config) -> io::Result<Fit> {
        if let Some(ip) = granted.ip.filter(|&ip| ip != config.address) {
            return Err(invalid(format!("the switch lets this port send from {ip} only, not from {}", config.address)));
        }
        let mtu = granted.mtu.map_or(config.mtu, |told| told.min(config.mtu));
        if mtu < MTU_MIN {
            return Err(invalid(format!(
                "packets to other servers have at most {mtu} bytes: light sockets take {MTU_MIN}"
            )));
        }
        let client = Client::open(granted.access.memory.try_clone()?)?;
        if 2 * client.half() < BUFFERS_MIN {
            return Err(invalid(format!("a port of {} buffers: light sockets take {BUFFERS_MIN}", 2 * client.half())));
        }
        let mac = config.mac.or(granted.mac);
        if mac.is_some_and(|mac| mac.is_group()) {
            return Err(invalid(format!("the switch gives this port the address of a group, {mac:?}")));
        }
        Ok(Fit { client, mac, mtu })
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

impl SwitchConnection {
    /// Nothing more is wanted of the switch that was there, if it is.
    fn leave(&self) {
        if let Some(connection) = &self.connection {
            let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
        }
    }

    /// Asks the switch that is there now for the port.
    fn ask(&self) -> io::Result<()> {
        let (Some(address), Some(connection)) = (&self.address, &self.connection) else {
            return Err(Errno::NETDOWN.into());
        };
        put_behind(&address.ask()?.into(), connection)
    }

    /// The granted port. Its descriptors are behind the host's numbers from then on.
    fn take_answer(&self, wakers: &Wakers) -> io::Result<Fit> {
        let granted = answer(self.connection.as_ref().ok_or(Errno::NETDOWN)?)?;
        let fit = Fit::of(&granted, &self.config)?;
        put_behind(&granted.access.kick, &wakers.kick)?;
        put_behind(&granted.access.wake, &wakers.wake)?;
        Ok(fit)
    }
}

/// Puts a file behind the number of another one, even if the number is in use meanwhile. Programs count on a host's numbers,
/// and a lock for each use would cost more than this.
#[allow(unsafe_code)]
fn put_behind(new: &OwnedFd, old: &OwnedFd) -> io::Result<()> {
    // SAFETY: the number stays open and its owner's: it is not dropped here, and `dup3` has another file behind it in one step.
    let mut number = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) });
    Ok(rustix::io::dup3(new, &mut number, rustix::io::DupFlags::CLOEXEC)?)
}

impl Shared {
    fn new(core: Core, wakers: Arc<Wakers>) -> Shared {
        let (stop, exchanging) = (AtomicBool::new(false), AtomicBool::new(false));
        Shared { core: Mutex::new(core), wakers, stop, exchanging }
    }

    pub fn lock(&self) -> MutexGuard<'_, Core> {
        // A thread that panicked with the lock, in a closure of a caller, left nothing half done.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the host.
    pub fn call<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let answer = f(&mut core);
        core.finish();
        answer
    }

    /// Repeats `f` until it returns a result; `EAGAIN` after `patience`.
    pub fn wait<R>(
        &self,
        socket: Socket,
        patience: Patience,
        mut f: impl FnMut(&mut Core) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut core = self.lock();
        let mut answer = f(&mut core);
        if answer.is_none() {
            // The data may be there, and not yet taken in.
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
            // Changes of the time while the last call was finished, such as new buffers, are not announced again.
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

    /// Where the switch has ended, waits for the result of the next attempt to find one.
    fn look_for_switch(&self) {
        let mut core = self.lock();
        core.hurry();
        core.finish();
        let (tries, changed) = (core.link.tries(), core.link_changed.clone());
        let is_open = |core: &mut Core| matches!(core.link, Link::Away { .. } | Link::Asked { .. });
        drop(changed.wait_timeout_while(core, LOOKED_FOR, |core| is_open(core) && core.link.tries() == tries));
    }

    /// The host's thread: takes in frames for sockets without a waiting caller, repeats questions, goes to sleep, and looks
    /// for the next switch.
    fn run(&self, switch: &SwitchConnection) {
        loop {
            let (wait, link) = {
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
                (wait, core.link)
            };
            let left = link.deadline().map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                self.go_on_looking(switch, link);
                continue;
            }
            let mut fds = vec![PollFd::new(&self.wakers.wake, PollFlags::IN)];
            if let Some(connection) = &switch.connection
                && matches!(link, Link::Attached | Link::Asked { .. })
            {
                fds.push(PollFd::new(connection, PollFlags::IN));
            }
            let wait = wait.into_iter().chain(left).min();
            let timeout =
                wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
            let polled = rustix::event::poll(&mut fds, timeout.as_ref());
            let is_told = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
            // An empty counter is no error.
            let _ = rustix::io::read(&self.wakers.wake, &mut [0u8; 8]);
            match link {
                Link::Attached if is_told || !matches!(polled, Ok(_) | Err(Errno::INTR)) => {
                    self.call(Core::end);
                    switch.leave();
                }
                Link::Asked { .. } if is_told => self.enter(switch),
                _ => {}
            }
        }
        self.end();
    }

    /// Looks for the next switch, or gives up one that does not answer.
    fn go_on_looking(&self, switch: &SwitchConnection, link: Link) {
        // A switch that broke the rules may be there still.
        switch.leave();
        let is_asked = matches!(link, Link::Away { .. }) && self.exchange(|| switch.ask()).is_ok();
        self.call(|core| if is_asked { core.link.ask(Instant::now()) } else { core.find_none() });
    }

    /// The switch that was asked has answered.
    fn enter(&self, switch: &SwitchConnection) {
        match self.exchange(|| switch.take_answer(&self.wakers)) {
            Ok(Fit { client, mac, mtu }) => self.call(|core| core.revive(client, mac, mtu)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => {
                switch.leave();
                self.call(Core::find_none);
            }
        }
    }

    /// Does something that makes descriptors, and not while the process is forked.
    fn exchange<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.exchanging.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        let answer = f();
        self.exchanging.store(false, Ordering::Release);
        answer
    }

    /// Ends all streams, and waits until the switch has the last segments.
    fn end(&self) {
        let until = Instant::now() + ENDS_IN;
        let mut said = false;
        loop {
            // The holder of the lock may be this very thread, interrupted by a handler of a signal that ends the process.
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
        let _ = rustix::io::write(&self.shared.wakers.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A watch that holds the last socket would have its own thread wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
