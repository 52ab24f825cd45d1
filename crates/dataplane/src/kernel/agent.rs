//! The agent inside a guest: looks at its UDP sockets and tells the switch's port how many more frames they take.
//!
//! What is said and when is [`sluicenet_proto::agent`]'s; here are the sockets it takes.

use super::diag;
use super::error::{KernelError, Tried};
use super::link::Links;
use super::netlink::Netlink;
use super::sys::{self, BATCH, BufferRange, Received, Wait};
use rustix::event::{PollFd, PollFlags, Timespec};
use sluicenet_proto::agent::room::{BUFFER_DEFAULT, Room, Rooms};
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

/// How long a word may be believed when no other comes: longer than a busy host keeps a guest from its processor.
const LIFETIME: Duration = Duration::from_secs(3);
/// When an interface that is gone is looked for again.
const BACK_AGAIN: Duration = Duration::from_ms(200);
/// Bytes read of the kernel's counts of sockets.
const STAT_BYTES: usize = 1024;

/// How an agent is set up.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The interface to the switch.
    pub interface: String,
    /// A socket that is full and takes nothing for so long is left out.
    pub detection_time: Option<Duration>,
}

/// What an agent did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounters {
    /// Times it looked at the sockets.
    pub looks: u64,
    /// Marks it saw.
    pub marks: u64,
    /// Grants it sent.
    pub grants: u64,
    /// Those that the interface had no room for; they are sent again.
    pub unsent: u64,
}

/// Something to tell whoever started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// So many sockets are full and nobody reads them: they no longer hold the others back.
    Stuck(u32),
    /// So many sockets are too small to be waited for.
    Small(u32),
    /// The interface is gone; it is waited for.
    Gone,
    /// It is back.
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
    /// What the kernel counts of datagrams in fragments, over IPv4 and IPv6.
    stats: Vec<File>,
    /// Nobody else is the agent at this interface.
    _only: UnixDatagram,
    buffer: u32,
    started: std::time::Instant,
    marks: Marks,
    noticed: Room,
    memory: Vec<u8>,
    /// What it did.
    pub counters: AgentCounters,
}

impl Agent {
    /// An agent at an interface of this namespace.
    ///
    /// # Errors
    /// When the interface is not there, another agent is at it, or packet sockets are not to be had.
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
            // A namespace of its own has none in some kernels.
            buffer: buffer.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(BUFFER_DEFAULT),
            config,
            wire,
            _only: only,
            started: std::time::Instant::now(),
            marks: Marks::default(),
            noticed: Room::default(),
            memory: vec![0; BATCH * LEN],
            counters: AgentCounters::default(),
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_ns(self.started.elapsed().as_nanos() as u64)
    }

    /// Speaks for the guest until `stop`, and then says good-bye. A guest whose interface goes away is spoken for when it is back.
    ///
    /// # Errors
    /// When the kernel does not say what its sockets hold.
    pub fn run(&mut self, stop: &AtomicBool, tell: &mut dyn FnMut(Notice)) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let page = rustix::param::page_size() as u32;
            let mut rooms = Rooms::new(self.wire.mtu, page, self.buffer, self.config.detection_time);
            let mut talk = Talk::new(rooms.most(), LIFETIME);
            while !stop.load(Ordering::Relaxed) {
                match self.turn(&mut rooms, &mut talk, tell) {
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
        // Where it cannot be sent, the last word runs out by itself.
        let _ = self.send(0, Duration::ZERO);
        Ok(())
    }

    /// Looks, and speaks if there is something to say; for how long there is nothing more to do.
    fn turn(&mut self, rooms: &mut Rooms, talk: &mut Talk, tell: &mut dyn FnMut(Notice)) -> io::Result<Duration> {
        // In this order: what moves on meanwhile is counted twice, not never.
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
        if room.small > self.noticed.small {
            tell(Notice::Small(room.small));
        }
        self.noticed = room;
    }

    /// Reads the marks that came.
    fn read_marks(&mut self) -> io::Result<()> {
        let ranges: [BufferRange; BATCH] = std::array::from_fn(|i| BufferRange { at: i * LEN, len: LEN, rest: (0, 0) });
        loop {
            let mut received = [Received::default(); BATCH];
            let fd = self.wire.packet.as_fd();
            let n = match sys::receive(fd, Wait::No, false, (&mut self.memory, &mut []), &ranges, &mut received) {
                // Said once by an interface that is switched off.
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

    /// Bytes of fragments whose datagrams are not whole and in no socket yet.
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

    /// Sends a word; whether the interface had room for it.
    fn send(&self, room: u32, lifetime: Duration) -> io::Result<bool> {
        let lifetime_ms = (lifetime.as_us() / 1_000) as u16;
        let message = Message::Grant { number: self.marks.last(), lifetime_ms, room };
        let frame = Repr { source: self.wire.mac, message }.emit();
        match sys::send(self.wire.packet.as_fd(), Wait::No, &[&frame], None) {
            Ok(n) => Ok(n == 1),
            // An interface that is switched off sends nothing, and gets nothing.
            Err(e) if is_full(&e) || e.raw_os_error() == Some(libc::ENETDOWN) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Waits for a mark, `pause` at the most.
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
        // Past what waits at the interface's queue: that may be what waits for this.
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
