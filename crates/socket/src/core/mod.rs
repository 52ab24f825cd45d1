//! What a host is and does, without threads: its port, who its neighbours are, its sockets. Whoever calls holds the host's lock.
//!
//! Bytes that a program sends go into the switch's buffers at once or not at all, so that nothing waits here to be sent but what the
//! host itself has to say (limits, ends, refusals), each of which is a state of its stream. What comes is taken in by whoever
//! finds it there, the host's thread or one that wants to read.

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

/// Buffers that streams' data and datagrams leave for what the host has to say itself.
const RESERVE: u32 = 8;
/// The smallest port a host can work with.
pub(crate) const BUFFERS_MIN: u32 = 64;
/// Frames that a port brings at most before its host has given any buffer back.
const BATCH_MAX: u32 = 1 << 16;
/// Ports that are chosen for who asks for none (as Linux has them).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 32_768..=60_999;

/// Bytes of headers of a segment, with Ethernet's.
const SEGMENT_HEADERS: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN + tcplight::HEADER_LEN;

/// What happened to frames that no socket got, and to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken in.
    pub received: u64,
    /// Frames given to the switch.
    pub sent: u64,
    /// Cut short, with a header that contradicts itself, or of a kind that is nothing to a host.
    pub malformed: u64,
    /// For another host.
    pub elsewhere: u64,
    /// Segments of connections there are not, refused.
    pub refused: u64,
    /// Connections not accepted because too many waited to be, or there were too many.
    pub overflows: u64,
    /// Datagrams for ports without a socket, or not from whom the socket is connected to.
    pub no_socket: u64,
    /// Datagrams lost at sockets whose programs had not read for too long.
    pub stalled: u64,
    /// Streams that ended because the other host did not answer any more.
    pub dead: u64,
    /// Datagrams that were sent to addresses nobody answered for.
    pub unresolved: u64,
    /// Times that a switch was there again after one had ended.
    pub attached_again: u64,
    /// Bytes that streams have not read and that may still come for them, beyond what each of them has without asking: now.
    pub promised: u64,
}

/// Who waits at a socket, and who is told.
#[derive(Default)]
pub(crate) struct Waiting {
    pub changed: Arc<Condvar>,
    pub waiters: u32,
    pub watch: Option<crate::Watch>,
    /// Grows, and wraps, each time that those who wait are told.
    pub changes: u32,
    last: crate::Ready,
    touched: bool,
}

/// A socket by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    Stream(usize),
    Listener(u16),
    Datagram(usize),
}

/// What wakes the switch, and what wakes the host's thread: other files behind the same numbers once another switch is there.
pub(crate) struct Wakers {
    pub kick: OwnedFd,
    pub wake: OwnedFd,
}

pub(crate) struct Core {
    pub config: Config,
    pub mac: MacAddress,
    pub now: Instant,
    pub counters: Counters,
    /// How it stands with its switch, whether another one is looked for when that has ended, and who waits for that.
    pub link: Link,
    comes_back: bool,
    pub link_changed: Arc<Condvar>,
    client: Client,
    wakers: Arc<Wakers>,
    scratch: Box<[u8]>,
    conns: Slab<Conn>,
    memory: Memory,
    by_key: HashMap<Key, usize>,
    /// Those this host opened, by who they go to and the port here.
    outgoing: HashMap<(SocketAddrV4, u16), usize>,
    listeners: HashMap<u16, Listener>,
    datagrams: Slab<Datagram>,
    datagram_ports: HashMap<u16, Vec<usize>>,
    neighbours: HashMap<Ipv4Addr, Neighbour>,
    /// When a host was last heard of, and last asked.
    peers: HashMap<MacAddress, timers::Peer>,
    /// Frames of this host to itself.
    loopback: VecDeque<Vec<u8>>,
    destinations: Destinations,
    /// Datagram sockets whose programs want to send, and wait for a socket of this host or for a neighbour's address.
    parked: Vec<usize>,
    touched: Vec<Socket>,
    /// Datagram sockets for which the switch holds senders back, and the frames that wait for them in the port's memory.
    pressed: Vec<usize>,
    aside: u32,
    /// A frame, and the socket it is for, that may not wait so: nothing behind it is taken in.
    held: Option<(Descriptor, usize)>,
    /// Whoever was held back by the switch may go on: it has to look, also where it sleeps.
    wakes_switch: bool,
    /// The host's thread has to look again: something has a deadline, or waits for buffers.
    rouse: bool,
    /// When timers were last looked at, and when they are next.
    looked: Instant,
    look_at: Instant,
    /// How often it says once more that it is there, and when next.
    announcements: u32,
    announce_at: Instant,
}

impl Core {
    /// One at a port; whether another switch is looked for when that has ended.
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
            held: None,
            wakes_switch: false,
            rouse: false,
            looked: now,
            look_at: now,
            announcements: neighbour::ANNOUNCEMENTS,
            announce_at: now,
        }
    }

    /// What happened, and what is promised now.
    pub fn counters(&self) -> Counters {
        Counters { promised: self.memory.beyond(), ..self.counters }
    }

    /// An error where nothing goes: who asks for what needs the switch has it looked for.
    pub fn check(&mut self) -> io::Result<()> {
        self.hurry();
        if self.is_up() { Ok(()) } else { Err(Errno::NETDOWN.into()) }
    }

    /// An error where nothing will ever go again.
    fn check_for_good(&self) -> io::Result<()> {
        if self.is_gone() { Err(Errno::NETDOWN.into()) } else { Ok(()) }
    }

    /// The socket of a caller, who holds it.
    pub fn waiting(&mut self, socket: Socket) -> Option<&mut Waiting> {
        match socket {
            Socket::Stream(id) => self.conns.get_mut(id).map(|conn| &mut conn.waiting),
            Socket::Listener(port) => self.listeners.get_mut(&port).map(|listener| &mut listener.waiting),
            Socket::Datagram(id) => self.datagrams.get_mut(id).map(|datagram| &mut datagram.waiting),
        }
    }

    /// How often those who wait at a socket were told something.
    pub fn changes(&mut self, socket: Socket) -> u32 {
        self.waiting(socket).map_or(0, |waiting| waiting.changes)
    }

    /// What a socket is ready for.
    pub fn ready(&self, socket: Socket) -> crate::Ready {
        if self.is_gone() && !matches!(socket, Socket::Stream(_)) {
            // Whatever is tried fails at once. (Streams are gone by themselves.)
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

    /// Has somebody told what a socket is ready for, now and whenever that changes; nobody any more with `None`.
    pub fn set_watch(&mut self, socket: Socket, mut watch: Option<crate::Watch>) {
        let ready = self.ready(socket);
        if let Some(watch) = &mut watch {
            watch(ready);
        }
        if let Some(waiting) = self.waiting(socket) {
            (waiting.watch, waiting.last) = (watch, ready);
        }
    }

    /// What a socket is ready for may have changed.
    fn touch(&mut self, socket: Socket) {
        if let Some(waiting) = self.waiting(socket)
            && !std::mem::replace(&mut waiting.touched, true)
        {
            self.touched.push(socket);
        }
    }

    /// The host's thread looks again, as soon as this call is over.
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

    /// Sends a frame of a socket, or of the host itself, whose bytes are those of `parts`; whether there was a buffer.
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

    /// Sends a segment with the bytes of `payload`, which are a socket's, if any; whether there was a buffer.
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

    /// The headers of Ethernet and IPv4 in front of so many bytes.
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

    /// What every call ends with: the host's frames to itself, what had no buffer, the switch and whoever waits are told.
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

    /// Tells those at sockets that were touched.
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

    /// Goes to sleep until the switch brings something, or buffers that somebody waits for; whether it may.
    pub fn fall_asleep(&mut self) -> bool {
        if !self.is_up() {
            return true;
        }
        if self.held.is_some() {
            // What holds everything back is looked at again when its time is up, or its socket was read.
            return true;
        }
        // Whatever comes back may be of the host that somebody waits for.
        let enough = if self.destinations.is_waited_for() { u32::MAX } else { 0 };
        self.client.fall_asleep_until(enough).unwrap_or_else(|BrokenPort| {
            self.fail();
            true
        })
    }

    /// Whether the switch still has frames of the host that it did not deliver.
    pub fn is_flushed(&mut self) -> bool {
        let half = self.client.half();
        !self.destinations.has_pending() && (!self.is_up() || self.client.sendable(half).is_ok_and(|n| n == half))
    }
}
