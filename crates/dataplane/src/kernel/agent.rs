//! The agent inside a guest: it checks the guest's UDP sockets and tells the switch's port how many more frames they can take.
//! The protocol is in [`sluicenet_proto::agent`]; this is its input and output.

use super::diag;
use super::error::{KernelError, Tried};
use super::link::Links;
use super::netlink::Netlink;
use super::sys::{self, BATCH, BufferRange, Received, Wait};
use crate::clock::Clock;
use rustix::event::{PollFd, PollFlags, Timespec};
use sluicenet_proto::agent::room::{BUFFER_DEFAULT, Deadlines, Room, Rooms};
use sluicenet_proto::agent::talk::{Marks, Talk};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::agent::{DESTINATION, ETHERTYPE, LEN, Message, PARTS_MAX, Repr};
use sluicenet_wire::ethernet::MacAddress;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};

/// How long a message is valid without a further one: longer than a busy host keeps a guest from its processor.
const LIFETIME: Duration = Duration::from_secs(3);
/// When a missing interface is looked for again.
const BACK_AGAIN: Duration = Duration::from_ms(200);
/// Bytes read of the kernel's socket statistics.
const STAT_BYTES: usize = 1024;

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The interface to the switch.
    pub interface: String,
    /// After which times a full socket that takes nothing is reported, and left out.
    pub deadlines: Deadlines,
}

/// The counters of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounters {
    /// Checks of the sockets.
    pub looks: u64,
    /// Marks received.
    pub marks: u64,
    /// Grants sent.
    pub grants: u64,
    /// Grants for which the interface had no room; they are sent again.
    pub unsent: u64,
}

/// An event to report to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This number of sockets is full and not read; all frames for the guest wait.
    Stuck(u32),
    /// This number of sockets is full and not read for so long that they no longer make senders wait.
    Isolated(u32),
    /// This number of sockets is too small for waiting senders.
    Small(u32),
    /// The interface is gone; the agent waits for it.
    Gone,
    /// The interface is back.
    Back,
}

/// The interface to the switch.
#[derive(Debug)]
struct Wire {
    packet: OwnedFd,
    mac: MacAddress,
    mtu: u32,
}

/// An agent that may run.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    wire: Wire,
    diag: Netlink,
    /// The kernel's statistics of fragmented datagrams, for IPv4 and IPv6.
    stats: Vec<File>,
    /// The claim to be the only agent at this interface.
    _only: UnixDatagram,
    buffer: u32,
    clock: Clock,
    marks: Marks,
    noticed: Room,
    memory: Vec<u8>,
    /// The counters.
    pub counters: AgentCounters,
}

impl Agent {
    /// An agent at an interface of this namespace.
    ///
    /// # Errors
    /// The interface does not exist, another agent uses it, or packet sockets are not available.
    pub fn open(config: AgentConfig) -> Result<Agent, KernelError> {
        let wire = Wire::open(&config.interface)?;
        let only = SocketAddr::from_abstract_name(format!("sluicenet-agent-{}", config.interface))
            .and_then(|name| UnixDatagram::bind_addr(&name))
            .tried(|| format!("being the only agent at {}", config.interface))?;
        let stats = ["/proc/thread-self/net/sockstat", "/proc/thread-self/net/sockstat6"];
        let buffer = std::fs::read_to_string("/proc/sys/net/core/rmem_default");
        let asking = || "asking for UDP sockets (sock_diag: the kernel's modules inet_diag and udp_diag)".to_owned();
        let mut diag = Netlink::diag().tried(asking)?;
        diag::all_sockets(&mut diag, libc::AF_INET, &mut Vec::new()).tried(asking)?;
        Ok(Agent {
            diag,
            stats: stats.iter().filter_map(|path| File::open(path).ok()).collect(),
            // In some kernels a new namespace has none.
            buffer: buffer.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(BUFFER_DEFAULT),
            config,
            wire,
            _only: only,
            clock: Clock::start(),
            marks: Marks::default(),
            noticed: Room::default(),
            memory: vec![0; BATCH * LEN],
            counters: AgentCounters::default(),
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Reports for the guest until `stop`, and then ends the report. If the interface disappears, it continues when the
    /// interface is back.
    ///
    /// # Errors
    /// The kernel does not report the contents of its sockets.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(Notice)) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let page = rustix::param::page_size() as u32;
            let mut rooms = Rooms::new(self.wire.mtu, page, self.buffer, self.config.deadlines);
            let mut talk = Talk::new(rooms.most(), LIFETIME);
            while !stop.load(Ordering::Relaxed) {
                match self.round(&mut rooms, &mut talk, tell) {
                    Ok(pause) => self.wait(pause)?,
                    Err(e) if is_gone(&e) => break,
                    Err(e) => return Err(e),
                }
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            tell(Notice::Gone);
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(BACK_AGAIN.as_us() / 1_000));
                if let Ok(wire) = Wire::open(&self.config.interface) {
                    self.wire = wire;
                    tell(Notice::Back);
                    break;
                }
            }
        }
        // If the message cannot be sent, the last one expires by itself.
        let _ = self.send(0, Duration::ZERO);
        Ok(())
    }

    /// Checks the sockets and sends a message if necessary; returns the time until the next check.
    fn round(&mut self, rooms: &mut Rooms, talk: &mut Talk, tell: &mut dyn FnMut(Notice)) -> io::Result<Duration> {
        // In this order, a frame that moves on meanwhile is counted twice instead of never.
        self.read_marks()?;
        let pending = self.fragments();
        let mut sockets = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            diag::all_sockets(&mut self.diag, family, &mut sockets)?;
        }
        let now = self.now();
        let room = rooms.of(now, &sockets, pending);
        self.counters.looks += 1;
        self.notice(room, tell);
        if talk.find(now, self.marks.last(), room.frames) {
            if !self.send(room.frames, LIFETIME)? {
                self.counters.unsent += 1;
                return Ok(talk.pause_unsent());
            }
            self.counters.grants += 1;
            talk.say(now, self.marks.last(), room.frames);
        }
        Ok(talk.pause(now))
    }

    fn notice(&mut self, room: Room, tell: &mut dyn FnMut(Notice)) {
        if room.stuck > self.noticed.stuck {
            tell(Notice::Stuck(room.stuck));
        }
        if room.isolated > self.noticed.isolated {
            tell(Notice::Isolated(room.isolated));
        }
        if room.small > self.noticed.small {
            tell(Notice::Small(room.small));
        }
        self.noticed = room;
    }

    /// Reads the arrived marks.
    fn read_marks(&mut self) -> io::Result<()> {
        let ranges: [BufferRange; BATCH] = std::array::from_fn(|i| BufferRange { at: i * LEN, len: LEN, rest: (0, 0) });
        loop {
            let mut received = [Received::default(); BATCH];
            let fd = self.wire.packet.as_fd();
            let n = match sys::receive(fd, Wait::No, false, (&mut self.memory, &mut []), &ranges, &mut received) {
                // Reported once by an interface that is switched off.
                Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => return Ok(()),
                other => other?,
            };
            for (received, range) in received.iter().zip(&ranges).take(n) {
                let Ok(repr) = Repr::parse(&self.memory[range.at..range.at + received.len.min(LEN)]) else { continue };
                let Message::Mark { number, part, parts } = repr.message else { continue };
                const { assert!(PARTS_MAX <= 64) };
                self.counters.marks += u64::from(self.marks.take(number, part, parts));
            }
            if n < BATCH {
                return Ok(());
            }
        }
    }

    /// Bytes of fragments of incomplete datagrams, which are in no socket yet.
    fn fragments(&self) -> u64 {
        let of = |file: &File| {
            let mut bytes = [0; STAT_BYTES];
            let len = file.read_at(&mut bytes, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..len]);
            let line = text.lines().find(|line| line.starts_with("FRAG"));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        self.stats.iter().map(of).sum()
    }

    /// Sends a message; returns whether the interface had room.
    fn send(&self, room: u32, lifetime: Duration) -> io::Result<bool> {
        let lifetime_ms = (lifetime.as_us() / 1_000) as u16;
        let message = Message::Grant { number: self.marks.last(), lifetime_ms, room };
        let frame = Repr { source: self.wire.mac, message }.emit();
        match sys::send(self.wire.packet.as_fd(), Wait::No, &[&frame], None) {
            Ok(n) => Ok(n == 1),
            // An interface that is switched off neither sends nor receives.
            Err(e) if is_full(&e) || e.raw_os_error() == Some(libc::ENETDOWN) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Waits for a mark, for `pause` at most.
    fn wait(&self, pause: Duration) -> io::Result<()> {
        let ns = pause.as_ps() / 1_000;
        let timeout = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        match rustix::event::poll(&mut [PollFd::new(&self.wire.packet, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl Wire {
    fn open(interface: &str) -> Result<Wire, KernelError> {
        let what = || format!("a packet socket at {interface}");
        let link = Links::open()?.get(interface)?;
        let packet = sys::packet_socket().tried(what)?;
        // Past the interface's queue, where frames may wait for this message.
        sys::set_option(packet.as_fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).tried(what)?;
        sys::join_group(packet.as_fd(), link.index, DESTINATION.0).tried(what)?;
        sys::bind_packet(packet.as_fd(), link.index, ETHERTYPE.0).tried(what)?;
        Ok(Wire { packet, mac: MacAddress(link.mac), mtu: link.mtu })
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || e.raw_os_error() == Some(libc::ENOBUFS)
}

/// Whether the interface is gone.
fn is_gone(e: &io::Error) -> bool {
    [libc::ENXIO, libc::ENODEV].map(Some).contains(&e.raw_os_error())
}
