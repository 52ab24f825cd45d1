//! A port for a QEMU guest, or any other virtio network driver: vhost-user.
//!
//! The frontend (QEMU) hands over the guest's memory and the locations of its queues through a socket (`control`). From then on
//! frames move only by the virtqueues (`queue`, `guest`), without a system call while both sides are busy. The guest and its
//! frontend may be hostile: everything is read once into private memory and checked there. A violation of the rules breaks only
//! its own queue.
//!
//! - Frames stay in the guest's buffers until they are delivered: a full transmit queue is the guest's backpressure, down to
//!   its sockets.
//! - Chains are given back in the order of delivery. Chains in flight are written to a [`record`], so that a switch that is
//!   restarted after a crash goes on with the chains that are owed.
//! - When the frontend stops a queue or goes away, frames in flight are copied out first: nothing is lost.
//! - A sender may leave checksums and segments to be done. Such frames are passed on unchanged to a guest that takes them,
//!   and finished here for a guest that does not.
//!
//! [`driver`] is the other end: a guest without a machine around it, for tests and measurements.

mod control;
pub mod driver;
pub mod guest;
pub mod header;
pub mod memory;
pub mod queue;
pub mod record;
mod sigbus;

use crate::agent::Agent;
use crate::clock::Clock;
use crate::confine::files::folder_of;
use crate::port::{BrokenPort, Delivery, Descriptor, Inside, Offload, Passed};
use guest::Guest;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::agent::LEN;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A guest that never kicks is looked at so often while the switch sleeps.
const LOOK_EVERY: Duration = Duration::from_ms(10);

/// Which end of the socket the switch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Socket {
    /// The frontend connects: `-chardev socket,path=...,reconnect=1`.
    Listen(PathBuf),
    /// The frontend listens: `-chardev socket,path=...,server=on`.
    Connect(PathBuf),
}

impl Socket {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        match self {
            Socket::Listen(path) | Socket::Connect(path) => path,
        }
    }

    /// The file for chains in flight, when the frontend does not keep them itself.
    fn record(&self) -> Option<PathBuf> {
        match self {
            Socket::Listen(path) => {
                let mut path = path.clone().into_os_string();
                path.push(".inflight");
                Some(path.into())
            }
            Socket::Connect(_) => None,
        }
    }
}

/// The group whose members may connect to the sockets at which this process listens; default none.
static SHARED_WITH: OnceLock<u32> = OnceLock::new();

/// Lets a group connect to the sockets of all ports that this process opens from now on. Their folders have to give it to them:
/// they have this group, and the set-group-ID bit.
///
/// # Errors
/// Another group may do that already.
pub fn share_sockets(group: u32) -> io::Result<()> {
    match SHARED_WITH.get_or_init(|| group) {
        shared if *shared == group => Ok(()),
        shared => Err(io::Error::other(format!("the sockets of guests are shared with group {shared} already"))),
    }
}

/// Why a group cannot connect to a socket, and what mends its folder.
pub fn not_shared(socket: &Path, group: u32) -> String {
    let folder = folder_of(socket).display();
    format!(
        "{}: group {group} of `socket_group` could not connect; the folder has to give it to new sockets: \
         `chgrp {group} {folder}; chmod g+xs {folder}`",
        socket.display()
    )
}

type Job = Box<dyn FnOnce(&mut Guest) + Send>;

/// The state that the socket's thread and the switch's thread share.
#[derive(Debug)]
struct Shared {
    /// Jobs that were sent and not done.
    jobs: AtomicU64,
    /// Wakes the switch for a job.
    bell: OwnedFd,
    /// The port is gone.
    closed: AtomicBool,
    /// Wakes the thread at the socket when the port is gone.
    close_bell: OwnedFd,
    /// The connection there is, to be shut down by the switch.
    connection: Mutex<Option<UnixStream>>,
    connected: AtomicBool,
    connections: AtomicU64,
    bad_messages: AtomicU64,
}

impl Shared {
    fn new() -> io::Result<Shared> {
        let event = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Shared {
            jobs: AtomicU64::new(0),
            bell: event()?,
            closed: AtomicBool::new(false),
            close_bell: event()?,
            connection: Mutex::new(None),
            connected: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            bad_messages: AtomicU64::new(0),
        })
    }

    /// Ends the connection there is; the thread at the socket notices.
    fn hang_up(&self) {
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // The connection may have ended already.
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// How the thread at the socket has the switch's thread do something.
#[derive(Clone, Debug)]
struct Handle {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

/// The port is gone.
#[derive(Clone, Copy, Debug)]
struct Gone;

impl Handle {
    /// Has `job` done between two rounds of the switch, waits for it, and returns its result.
    fn run<R: Send + 'static>(&self, job: impl FnOnce(&mut Guest) -> R + Send + 'static) -> Result<R, Gone> {
        let (answer, answered) = channel();
        // The caller waits for the answer. Without a caller, the answer is dropped.
        let job: Job = Box::new(move |guest| drop(answer.send(job(guest))));
        self.jobs.send(job).map_err(|_| Gone)?;
        self.shared.jobs.fetch_add(1, Ordering::Release);
        // The write fails only if the counter is full, and then a wake-up is pending already.
        let _ = rustix::io::write(&self.shared.bell, &1u64.to_ne_bytes());
        answered.recv().map_err(|_| Gone)
    }
}

/// The switch's end of a vhost-user port.
///
/// Counters, beside those of [`guest::Counters`]: `connected` (0 or 1), `connections` so far, `bad_message` (connections that
/// were ended for an invalid message), `broken_queues` now.
#[derive(Debug)]
pub struct Port {
    guest: Guest,
    jobs: Receiver<Job>,
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
    record: Option<PathBuf>,
    now: Instant,
    asleep: bool,
    /// The connection to the agent in the guest, which reports the guest's free room.
    agent: Option<Box<Agent>>,
    /// Whether the guest received when it was last looked.
    receives: bool,
    /// Since when no guest receives.
    alone_since: Option<Instant>,
}

impl Port {
    /// A port at a socket, which only its owner may connect to, and the group of [`share_sockets`]. Beside a socket that the
    /// switch listens at lies the record of chains in flight, in `<path>.inflight`, for the next switch.
    pub fn open(socket: Socket) -> io::Result<Port> {
        let shared = Arc::new(Shared::new()?);
        let (sender, jobs) = channel();
        let handle = Handle { shared: shared.clone(), jobs: sender };
        let record = socket.record();
        let thread = Some(control::spawn(socket, handle)?);
        Ok(Port {
            guest: Guest::default(),
            jobs,
            shared,
            thread,
            record,
            now: Instant::ZERO,
            asleep: false,
            agent: None,
            receives: false,
            alone_since: None,
        })
    }

    /// Takes grants of an agent in the guest as the guest's free room.
    pub fn with_agent(mut self) -> io::Result<Port> {
        self.agent = Some(Box::new(Agent::new()?));
        Ok(self)
    }

    /// Limits the guest's frames to the agent's grants, and sends marks for the handed frames.
    #[cold]
    fn mind_agent(&mut self) {
        let Port { agent: Some(agent), guest, now, receives, .. } = self else { return };
        let handed = guest.counters.handed;
        let before = std::mem::replace(receives, guest.receive_queues() > 0);
        if *receives && !before {
            agent.lease.start(*now, handed);
        }
        agent.on_round(*now, handed);
        let parts = guest.receive_queues() as u8;
        if agent.lease.wants_mark(*now, handed) && guest.deliver_to_each(|part| agent.mark(part, parts)) {
            agent.lease.mark(*now, handed);
        }
        guest.limit = agent.lease.limit();
    }

    /// The next frame that is not its agent's.
    #[cold]
    fn next_beside_agent(&mut self) -> Option<Descriptor> {
        let Port { agent: Some(agent), guest, now, .. } = self else { return None };
        while let Some(frame) = guest.next_frame() {
            if !Agent::is_word(guest.first_bytes(frame.buffer)) {
                return Some(frame);
            }
            if !agent.may_speak() {
                return None;
            }
            let mut bytes = [0; LEN];
            let len = LEN.min(frame.len as usize);
            guest.read(frame.buffer, &mut bytes[..len]);
            guest.accept();
            guest.give_back(frame.buffer);
            agent.take(*now, &bytes[..len]);
            guest.limit = agent.lease.limit();
        }
        None
    }

    /// The first half of [`publish`](crate::port::Port::publish): see [`Guest::show_used`].
    #[inline]
    #[must_use]
    pub fn show_used(&mut self) -> bool {
        self.guest.show_used()
    }

    /// Its second half.
    #[inline]
    pub fn call_if_wanted(&mut self) {
        self.guest.call_if_wanted();
    }

    /// Passes a run of frames to another guest: see [`Guest::pass_run`].
    #[inline(always)]
    pub fn pass_run(&mut self, to: &mut Port, first_bytes: [u64; 2], mask: u64, limit: u32) -> Passed {
        self.guest.pass_run(&mut to.guest, first_bytes, mask, limit)
    }

    /// Looks whether a guest receives. Frames wait for one for `patience` after the port came into service or the last guest left,
    /// or for ever. After that they are taken and dropped. Returns whether they wait.
    #[cold]
    pub fn awaits_guest(&mut self, now: Instant, patience: Option<Duration>) -> bool {
        self.note_guest(now);
        let waited = self.alone_since.map(|since| now.since(since));
        self.guest.nobody = matches!((waited, patience), (Some(waited), Some(patience)) if waited >= patience);
        waited.is_some() && !self.guest.nobody
    }

    fn note_guest(&mut self, now: Instant) {
        self.alone_since = match self.guest.receive_queues() {
            0 => self.alone_since.or(Some(now)),
            _ => None,
        };
    }

    #[cold]
    fn do_jobs(&mut self) {
        // The counter is reset before the jobs are read: later jobs are seen the next time.
        self.shared.jobs.store(0, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        while let Ok(job) = self.jobs.try_recv() {
            job(&mut self.guest);
        }
        self.note_guest(self.now);
    }

    /// Stops serving the guest: a part of its memory is gone.
    #[cold]
    fn lose(&mut self) {
        self.guest.counters.memory_lost += 1;
        self.guest.detach();
        self.shared.hang_up();
    }
}

impl Drop for Port {
    /// Frames that the switch still held are not given back: the next switch takes them up again by the record.
    fn drop(&mut self) {
        self.guest.publish();
        self.shared.closed.store(true, Ordering::Release);
        // Callers that wait for an answer get an error instead.
        self.jobs = channel().1;
        // The write fails only if the counter is full, and then a wake-up is pending already.
        let _ = rustix::io::write(&self.shared.close_bell, &1u64.to_ne_bytes());
        self.shared.hang_up();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing that is needed.
            let _ = thread.join();
        }
        if let (0, Some(record)) = (self.guest.lent(), &self.record) {
            // A missing record is no error.
            let _ = std::fs::remove_file(record);
        }
    }
}

impl crate::port::Port for Port {
    fn on_plug(&mut self, clock: Clock) {
        self.note_guest(clock.now());
    }

    #[inline]
    fn on_round(&mut self, now: Instant) -> Result<(), BrokenPort> {
        self.now = now;
        if self.shared.jobs.load(Ordering::Acquire) > 0 {
            self.do_jobs();
        }
        if self.guest.is_lost() {
            self.lose();
        }
        self.guest.look_ahead();
        if self.agent.is_some() {
            self.mind_agent();
        }
        Ok(())
    }

    #[inline]
    fn next_frame(&mut self) -> Result<Option<Descriptor>, BrokenPort> {
        Ok(if self.agent.is_some() { self.next_beside_agent() } else { self.guest.next_frame() })
    }

    fn defer(&mut self) -> bool {
        if let Some(agent) = &mut self.agent {
            // The agent's messages wait behind this frame.
            agent.lease.excuse(self.now);
        }
        false
    }

    fn lost_agent(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.was_lost())
    }

    #[inline]
    fn first_bytes(&self, buffer: u32) -> [u64; 2] {
        self.guest.first_bytes(buffer)
    }

    #[inline]
    fn accept(&mut self) {
        self.guest.accept();
    }

    #[inline]
    fn read(&self, buffer: u32, into: &mut [u8]) {
        self.guest.read(buffer, into);
    }

    #[inline]
    fn offload(&self, buffer: u32) -> Offload {
        self.guest.offload(buffer)
    }

    #[inline]
    fn give_back(&mut self, buffer: u32) {
        self.guest.give_back(buffer);
    }

    #[inline]
    fn lent(&self) -> u32 {
        self.guest.lent()
    }

    fn waiting_max(&self) -> u32 {
        self.guest.waiting_max()
    }

    #[inline]
    fn max_frame(&self) -> u32 {
        self.guest.max_frame()
    }

    fn takes_offload(&self, _offload: &Offload) -> bool {
        // The port does the offloads that the guest has not negotiated.
        true
    }

    #[inline]
    fn reserve(&mut self, len: u32, offload: &Offload) -> Result<bool, BrokenPort> {
        Ok(self.guest.reserve(len, offload))
    }

    #[inline]
    fn deliver(&mut self, frame: &Delivery<'_>) {
        self.guest.deliver(frame);
    }

    #[inline]
    fn publish(&mut self) -> Result<(), BrokenPort> {
        self.guest.publish();
        Ok(())
    }

    fn fall_asleep(&mut self, blocked: bool) -> Result<bool, BrokenPort> {
        self.asleep = true;
        Ok(self.guest.fall_asleep(blocked) && self.shared.jobs.load(Ordering::Acquire) == 0)
    }

    fn wake_up(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.guest.wake_up();
            // Nothing to read is as good as something.
            let _ = rustix::io::read(&self.shared.bell, &mut [0u8; 8]);
        }
    }

    fn wakers<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        fds.push(PollFd::new(&self.shared.bell, PollFlags::IN));
        let kicks = self.guest.queues().filter(|q| q.is_live()).filter_map(|q| q.setup.kick.as_ref());
        fds.extend(kicks.map(|kick| PollFd::new(kick, PollFlags::IN)));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.guest.has_queues().then(|| self.now + LOOK_EVERY)
    }

    fn inside(&self) -> Inside {
        let (guest, mut inside) = (&self.guest, Inside::default());
        inside.lost.count_many(DropReason::TooBig, guest.lost_too_big, 0);
        inside.lost.count_many(DropReason::Malformed, guest.lost_malformed, 0);
        inside.lost.count_many(DropReason::PortGone, guest.lost_gone, 0);
        // Some of the malformed frames were on their way to the guest.
        let bad = guest.counters.bad_length + guest.counters.bad_vnet_hdr - guest.lost_malformed;
        inside.refused.count_many(DropReason::Malformed, bad, 0);
        inside
    }

    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.guest.counters;
        for (name, value) in [
            ("connected", u64::from(self.shared.connected.load(Ordering::Relaxed))),
            ("connections", self.shared.connections.load(Ordering::Relaxed)),
            ("bad_message", self.shared.bad_messages.load(Ordering::Relaxed)),
            ("broken_queues", self.guest.broken_queues()),
            ("bad_descriptor", c.bad_descriptor),
            ("bad_chain", c.bad_chain),
            ("bad_indirect", c.bad_indirect),
            ("bad_index", c.bad_index),
            ("bad_entry", c.bad_entry),
            ("bad_length", c.bad_length),
            ("bad_vnet_hdr", c.bad_vnet_hdr),
            ("memory_lost", c.memory_lost),
            ("too_long", c.too_long),
            ("checksummed", c.checksummed),
            ("segmented", c.segmented),
            ("evacuated", c.evacuated),
            ("resumed", c.resumed),
            ("calls", c.calls),
            ("chained", c.chained),
            ("over_budget", c.over_budget),
        ] {
            show(name, value);
        }
        if let Some(agent) = &self.agent {
            agent.counters(c.handed, show);
        }
    }
}
