//! A host without threads: its port, its neighbours, its sockets. The caller holds the host's lock.
//! Bytes from a program go into the switch's buffers at once or not at all. So only control segments of the host itself wait
//! here (windows, ends, refusals), and each of them is part of its stream's state. Arriving frames are taken in by the host's
//! thread, or by a thread that reads from a socket.

mod conn;
mod datagram;
mod destinations;
mod full;
mod link;
mod listen;
mod memory;
mod neighbour;
mod receive;
mod slab;
mod timers;

use crate::config::Config;
use conn::{Conn, Key};
use datagram::Datagram;
use destinations::Destinations;
pub(crate) use link::Link;
use listen::Listener;
pub use listen::{Attempt, Divert};
use memory::Memory;
use neighbour::Neighbour;
use rustix::io::Errno;
use slab::Slab;
use sluicenet_dataplane::port::{BrokenPort, Descriptor};
use sluicenet_dataplane::shm::Client;
use sluicenet_proto::transport::tcplight::Segment;
use sluicenet_wire::ethernet::{self, EtherType, MacAddress};
use sluicenet_wire::{ipv4, tcplight};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar};
use std::time::Instant;

/// Buffers that are reserved for control segments of the host.
const RESERVE: u32 = 8;
/// The smallest port a host can work with.
pub(crate) const BUFFERS_MIN: u32 = 64;
/// The most frames that a port delivers before its host returns a buffer.
const BATCH_MAX: u32 = 1 << 16;
/// The range of ephemeral ports (as in Linux).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Bytes of headers of a segment, with Ethernet's.
const SEGMENT_HEADERS: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + tcplight::HEADER_LEN;

/// Counters of frames, also of those that no socket got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken in.
    pub received: u64,
    /// Frames given to the switch.
    pub sent: u64,
    /// Frames that were truncated, had an inconsistent header, or were of an unknown kind.
    pub malformed: u64,
    /// Frames for another host.
    pub elsewhere: u64,
    /// Refused segments of unknown connections.
    pub refused: u64,
    /// Connections that were dropped because the backlog was full, or there were too many streams.
    pub overflows: u64,
    /// Datagrams for ports without a socket, or not from the peer of a connected socket.
    pub no_socket: u64,
    /// Datagrams lost at sockets that were not read for too long.
    pub stalled: u64,
    /// Streams that ended because the peer no longer answered.
    pub dead: u64,
    /// Datagrams to addresses that did not resolve.
    pub unresolved: u64,
    /// How often a new switch replaced one that had ended.
    pub attached_again: u64,
    /// Bytes that are unread or may still arrive, beyond the guaranteed buffer of each stream; the current value.
    pub promised: u64,
}

/// The waiting threads of a socket, and its observer.
#[derive(Default)]
pub(crate) struct Waiting {
    pub changed: Arc<Condvar>,
    pub waiters: u32,
    pub watch: Option<crate::Watch>,
    /// Incremented, with wrap-around, whenever the waiting threads are told.
    pub changes: u32,
    last: crate::Ready,
    touched: bool,
}

/// A socket by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    Stream(usize),
    Listener(u16),
    Datagram(usize),
}

/// The descriptors that wake the switch and the host's thread. With a new switch, other files are behind the same numbers.
pub(crate) struct Wakers {
    pub kick: OwnedFd,
    pub wake: OwnedFd,
}

pub(crate) struct Core {
    pub config: Config,
    pub mac: MacAddress,
    pub now: Instant,
    pub counters: Counters,
    /// The state of the switch, whether the host looks for a new one after its end, and the threads that wait for that.
    pub link: Link,
    comes_back: bool,
    pub link_changed: Arc<Condvar>,
    client: Client,
    wakers: Arc<Wakers>,
    scratch: Box<[u8]>,
    conns: Slab<Conn>,
    memory: Memory,
    by_key: HashMap<Key, usize>,
    /// The streams that this host opened, by peer and local port.
    outgoing: HashMap<(SocketAddrV4, u16), usize>,
    listeners: HashMap<u16, Listener>,
    datagrams: Slab<Datagram>,
    datagram_ports: HashMap<u16, Vec<usize>>,
    neighbours: HashMap<Ipv4Addr, Neighbour>,
    /// When a host was last heard, and when it was last asked.
    peers: HashMap<MacAddress, timers::Peer>,
    /// Frames of this host to itself.
    loopback: VecDeque<Vec<u8>>,
    destinations: Destinations,
    /// Datagram sockets that want to send, and wait for a socket of this host or for a neighbour's address.
    parked: Vec<usize>,
    touched: Vec<Socket>,
    /// Datagram sockets whose senders wait in the switch, and the frames for them that wait in the port's memory.
    pressed: Vec<usize>,
    aside: u32,
    /// Copies of frames that wait for datagram sockets.
    copied: u32,
    /// A frame that found no room, and its socket: no later frame is taken in.
    held: Option<(Descriptor, usize)>,
    /// Senders that wait in the switch may go on: the switch must check, even if it sleeps.
    wakes_switch: bool,
    /// The host's thread has to check again: there is a new deadline, or something waits for buffers.
    rouse: bool,
    /// When timers were last checked, and when they are checked next.
    looked: Instant,
    look_at: Instant,
    /// How often the host still announces itself, and when next.
    announcements: u32,
    announce_at: Instant,
}

impl Core {
    /// A host at a port; with `comes_back`, it looks for another switch when this one has ended.
    pub fn new(client: Client, wakers: Arc<Wakers>, mac: MacAddress, config: Config, comes_back: bool) -> Core {
        let (now, memory) = (Instant::now(), Memory::new(&config));
        Core {
            config,
            mac,
            now,
            counters: Counters::default(),
            link: Link::Attached,
            comes_back,
            link_changed: Arc::default(),
            client,
            wakers,
            scratch: vec![0; 2048].into_boxed_slice(),
            conns: Slab::default(),
            memory,
            by_key: HashMap::new(),
            outgoing: HashMap::new(),
            listeners: HashMap::new(),
            datagrams: Slab::default(),
            datagram_ports: HashMap::new(),
            neighbours: HashMap::new(),
            peers: HashMap::new(),
            loopback: VecDeque::new(),
            destinations: Destinations::default(),
            parked: Vec::new(),
            touched: Vec::new(),
            pressed: Vec::new(),
            aside: 0,
            copied: 0,
            held: None,
            wakes_switch: false,
            rouse: false,
            looked: now,
            look_at: now,
            announcements: neighbour::ANNOUNCEMENTS,
            announce_at: now,
        }
    }

    /// The counters, with the current value of promised bytes.
    pub fn counters(&self) -> Counters {
        Counters { promised: self.memory.beyond(), ..self.counters }
    }

    /// An error if there is no switch; then the host looks for one soon, because a caller needs it.
    pub fn check(&mut self) -> io::Result<()> {
        self.hurry();
        if self.is_up() { Ok(()) } else { Err(Errno::NETDOWN.into()) }
    }

    /// An error if there will never be a switch again.
    fn check_for_good(&self) -> io::Result<()> {
        if self.is_gone() { Err(Errno::NETDOWN.into()) } else { Ok(()) }
    }

    /// A datagram socket of the caller, which exists as long as the caller holds it.
    pub fn waiting(&mut self, socket: Socket) -> Option<&mut Waiting> {
        match socket {
            Socket::Stream(id) => self.conns.get_mut(id).map(|conn| &mut conn.waiting),
            Socket::Listener(port) => self.listeners.get_mut(&port).map(|listener| &mut listener.waiting),
            Socket::Datagram(id) => self.datagrams.get_mut(id).map(|datagram| &mut datagram.waiting),
        }
    }

    /// How often the waiting threads of a socket were told.
    pub fn changes(&mut self, socket: Socket) -> u32 {
        self.waiting(socket).map_or(0, |waiting| waiting.changes)
    }

    /// The readiness of a socket.
    pub fn ready(&self, socket: Socket) -> crate::Ready {
        if self.is_gone() && !matches!(socket, Socket::Stream(_)) {
            // Every call fails at once. (Streams have ended by themselves.)
            return crate::Ready {
                readable: true,
                writable: true,
                peer_closed: true,
                closed: true,
                error: true,
                news: 0,
                room: 0,
            };
        }
        match socket {
            Socket::Stream(id) => self.conns.get(id).map(Conn::ready),
            Socket::Listener(port) => self.listeners.get(&port).map(Listener::ready),
            Socket::Datagram(id) => self.datagrams.get(id).map(Datagram::ready),
        }
        .unwrap_or_default()
    }

    /// Sets the observer of a socket's readiness, called now and on each change; `None` removes it.
    pub fn set_watch(&mut self, socket: Socket, mut watch: Option<crate::Watch>) {
        let ready = self.ready(socket);
        if let Some(watch) = &mut watch {
            watch(ready);
        }
        if let Some(waiting) = self.waiting(socket) {
            (waiting.watch, waiting.last) = (watch, ready);
        }
    }

    /// The readiness of a socket may have changed.
    fn touch(&mut self, socket: Socket) {
        if let Some(waiting) = self.waiting(socket)
            && !std::mem::replace(&mut waiting.touched, true)
        {
            self.touched.push(socket);
        }
    }

    /// Makes the host's thread check again after this call.
    fn rouse(&mut self) {
        self.rouse = true;
    }

    /// Whether there are buffers for data.
    fn has_buffers(&mut self) -> bool {
        match self.client.sendable(RESERVE + 1) {
            Ok(buffers) => buffers > RESERVE,
            Err(BrokenPort) => {
                self.fail();
                false
            }
        }
    }

    /// Sends a frame that consists of `parts`, for a socket or for the host itself; returns whether there was a buffer.
    fn send_frame(&mut self, of: Option<Socket>, to: MacAddress, parts: &[&[u8]]) -> bool {
        if !self.is_up() {
            return false;
        }
        if to == self.mac {
            self.loopback.push_back(parts.concat());
            return true;
        }
        let destination = self.destination(to);
        if let Some(socket) = of {
            self.count_run(socket, destination);
        }
        match self.client.send_parts_under([destination, of.map_or(0, destinations::account)], parts) {
            Ok(sent) => {
                self.counters.sent += u64::from(sent);
                sent
            }
            Err(BrokenPort) => {
                self.fail();
                false
            }
        }
    }

    /// Sends a segment with the socket data `payload`, which may be empty; returns whether there was a buffer.
    fn send_segment(&mut self, of: Option<Socket>, key: &Key, segment: &Segment, payload: &[&[u8]]) -> bool {
        let mut headers = [0; SEGMENT_HEADERS];
        let (front, back) = headers.split_at_mut(ethernet::HEADER_LEN + ipv4::HEADER_LEN);
        self.put_headers(
            front,
            key.mac,
            *key.peer.ip(),
            tcplight::PROTOCOL,
            tcplight::HEADER_LEN + segment.len as usize,
        );
        let header = tcplight::Repr {
            source_port: key.local,
            destination_port: key.peer.port(),
            flags: segment.flags,
            connection: segment.connection,
            offset: segment.offset,
            limit: segment.limit,
        };
        header.emit(back);
        let mut parts: [&[u8]; conn::PARTS_MAX + 1] = [&[]; conn::PARTS_MAX + 1];
        parts[0] = &headers;
        parts[1..=payload.len()].copy_from_slice(payload);
        self.send_frame(of, key.mac, &parts[..=payload.len()])
    }

    /// Writes the headers of Ethernet and IPv4 for `len` bytes.
    fn put_headers(&self, into: &mut [u8], to: MacAddress, ip: Ipv4Addr, protocol: ipv4::Protocol, len: usize) {
        let (frame, packet) = into.split_at_mut(ethernet::HEADER_LEN);
        ethernet::Repr { destination: to, source: self.mac, ethertype: EtherType::IPV4 }.emit(frame);
        ipv4::Repr {
            source: self.config.address,
            destination: ip,
            protocol,
            dscp: 0,
            ecn: ipv4::Ecn::NotEct,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            payload_len: len as u16,
        }
        .emit(packet);
    }

    /// The end of every call: handles frames of the host to itself and waiting segments, and tells the switch and waiting
    /// threads.
    pub fn finish(&mut self) {
        while let Some(frame) = self.loopback.pop_front() {
            self.take(&frame);
        }
        self.send_pending_segments();
        self.tell_starved();
        if self.is_up() && (self.client.publish() | std::mem::take(&mut self.wakes_switch)) {
            let _ = rustix::io::write(&self.wakers.kick, &1u64.to_ne_bytes());
        }
        self.tell();
        if std::mem::take(&mut self.rouse) {
            let _ = rustix::io::write(&self.wakers.wake, &1u64.to_ne_bytes());
        }
    }

    /// Tells the threads and observers of sockets that may have changed.
    fn tell(&mut self) {
        while let Some(socket) = self.touched.pop() {
            let ready = self.ready(socket);
            let Some(waiting) = self.waiting(socket) else { continue };
            waiting.touched = false;
            waiting.changes = waiting.changes.wrapping_add(1);
            if waiting.waiters > 0 {
                waiting.changed.notify_all();
            }
            let changed = std::mem::replace(&mut waiting.last, ready) != ready;
            if let Some(watch) = waiting.watch.as_mut().filter(|_| changed) {
                watch(ready);
            }
        }
    }

    /// Prepares to sleep until the switch delivers frames or awaited buffers; returns whether the host may sleep.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.is_up() {
            return true;
        }
        if self.held.is_some() {
            // A frame that blocks all others is tried again when its time is up, or its socket was read.
            return true;
        }
        // Any returned buffer may be of the destination that is waited for.
        let enough = if self.destinations.is_waited_for() { u32::MAX } else { 0 };
        self.client.fall_asleep_until(enough).unwrap_or_else(|BrokenPort| {
            self.fail();
            true
        })
    }

    /// Whether the switch still has undelivered frames of the host.
    pub fn is_flushed(&mut self) -> bool {
        let half = self.client.half();
        !self.destinations.has_pending() && (!self.is_up() || self.client.sendable(half).is_ok_and(|n| n == half))
    }
}
