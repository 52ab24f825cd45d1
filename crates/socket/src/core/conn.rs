//! Streams: opening, sending, reading, closing.

use super::{Core, EPHEMERAL, SEGMENT_HEADERS, Socket, Waiting};
use crate::Ready;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sluicenet_proto::transport::tcplight::{End, Stream};
use sluicenet_wire::ethernet::{self, MacAddress};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4};
use std::time::Instant;

/// Pieces of a program's memory that go into one frame; further pieces go into more frames.
pub(super) const PARTS_MAX: usize = 16;

/// The peer of a stream, and the port here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub mac: MacAddress,
    pub peer: SocketAddrV4,
    pub local: u16,
}

pub(crate) struct Conn {
    pub machine: Stream,
    pub key: Key,
    /// Whether the neighbour's address is known, and it can be sent to.
    pub resolved: bool,
    /// Whether the stream was ever open.
    pub opened: bool,
    pub received: VecDeque<u8>,
    pub waiting: Waiting,
    pub news: u32,
    /// Whether a program holds it.
    pub held: bool,
    pub shut_read: bool,
    pub shut_write: bool,
    /// The error that ended the stream, for the first call that asks.
    pub error: Option<Errno>,
    pub starved: bool,
    pub room: u32,
    /// The destination number under which it waits to send a pending segment.
    pub pending: Option<u16>,
    /// When the stream was begun, or closed by its program.
    pub since: Instant,
    /// The time of the stream's last segment, and that of the last question whether the other end still has the stream.
    pub heard: Instant,
    pub probed: Instant,
    /// The port of the listener that it waits at to be accepted.
    pub waits_at: Option<u16>,
    /// The stream's part of the shared memory.
    pub counted: u64,
}

impl Conn {
    pub fn is_gone(&self) -> bool {
        !matches!(self.machine.end(), End::Orderly) || self.machine.is_closed()
    }

    /// Whether all there will ever be was read, or is not wanted.
    fn is_at_end(&self) -> bool {
        self.received.is_empty() && (self.machine.is_peer_closed() || self.is_gone() || self.shut_read)
    }

    pub fn ready(&self) -> Ready {
        let gone = self.is_gone();
        Ready {
            readable: !self.received.is_empty() || self.is_at_end() || self.error.is_some(),
            writable: gone || self.shut_write || self.error.is_some() || (self.machine.room() > 0 && !self.starved),
            peer_closed: self.machine.is_peer_closed() || gone,
            closed: gone,
            error: self.error.is_some(),
            news: self.news,
            room: self.room,
        }
    }

    /// A sender that found no buffer may try again.
    pub fn retry(&mut self) {
        self.starved = false;
        self.room = self.room.wrapping_add(1);
    }

    pub fn is_opening(&self) -> bool {
        !self.machine.is_open() && !self.is_gone()
    }
}

/// 32 random bits that cannot be guessed.
fn random() -> u32 {
    let mut bytes = [0; 4];
    // The call returns so few bytes at once, once the system has started.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u32::from_ne_bytes(bytes)
}

impl Core {
    pub(super) fn new_conn(&self, machine: Stream, key: Key) -> Conn {
        Conn {
            machine,
            key,
            resolved: true,
            opened: false,
            received: VecDeque::new(),
            waiting: Waiting::default(),
            news: 0,
            held: false,
            shut_read: false,
            shut_write: false,
            error: None,
            starved: false,
            room: 0,
            pending: None,
            since: self.now,
            heard: self.now,
            probed: self.now,
            waits_at: None,
            counted: 0,
        }
    }

    pub fn conn(&self, id: usize) -> &Conn {
        self.conns.get(id).expect("held by its handle")
    }
    pub fn conn_mut(&mut self, id: usize) -> &mut Conn {
        self.conns.get_mut(id).expect("held by its handle")
    }

    /// Opens a stream; its success shows when it is [ready](Core::ready).
    pub fn connect(&mut self, peer: SocketAddrV4, local: Option<u16>) -> io::Result<usize> {
        self.check()?;
        if !self.config.reaches(*peer.ip()) || peer.ip().is_broadcast() || peer.ip().is_multicast() {
            return Err(Errno::NETUNREACH.into());
        }
        if peer.port() == 0 || peer.ip().is_unspecified() {
            return Err(Errno::ADDRNOTAVAIL.into());
        }
        if self.conns.len() >= self.config.streams {
            return Err(Errno::NOBUFS.into());
        }
        let local = match local {
            Some(local) if self.outgoing.contains_key(&(peer, local)) => return Err(Errno::ADDRINUSE.into()),
            Some(local) => local,
            None => self.free_port(|core, port| {
                !core.outgoing.contains_key(&(peer, port)) && !core.listeners.contains_key(&port)
            })?,
        };
        self.now = Instant::now();
        let machine = Stream::connect(random(), self.memory.first());
        let key = Key { mac: MacAddress::BROADCAST, peer, local };
        let conn = Conn { resolved: false, held: true, ..self.new_conn(machine, key) };
        let id = self.conns.insert(conn);
        self.count(id);
        self.outgoing.insert((peer, local), id);
        let own = *peer.ip() == self.config.address;
        if own && (self.config.answers || self.listeners.contains_key(&peer.port())) {
            self.resolved(id, self.mac);
        } else if let Err(e) = self.resolve_stream(*peer.ip(), id) {
            self.free(id);
            return Err(e);
        }
        self.look_soon();
        Ok(id)
    }

    /// A free port, for a socket without a port of its own.
    pub(super) fn free_port(&self, is_free: impl Fn(&Core, u16) -> bool) -> io::Result<u16> {
        let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
        let first = random() % count;
        (0..count)
            .map(|i| EPHEMERAL.start() + ((first + i) % count) as u16)
            .find(|&port| is_free(self, port))
            .ok_or_else(|| Errno::ADDRNOTAVAIL.into())
    }

    /// Whether a stream still waits for that neighbour: its number may be another one's by now.
    pub(super) fn awaits(&self, id: usize, ip: Ipv4Addr) -> bool {
        self.conns.get(id).is_some_and(|conn| !conn.resolved && *conn.key.peer.ip() == ip)
    }

    /// The neighbour of a stream is known: it can be sent to.
    pub(super) fn resolved(&mut self, id: usize, mac: MacAddress) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| !conn.resolved) else { return };
        conn.resolved = true;
        conn.key.mac = mac;
        let key = conn.key;
        if self.by_key.contains_key(&key) {
            // Of a connection from there that uses the same ports.
            self.lose(id, Errno::ADDRINUSE);
            return;
        }
        self.by_key.insert(key, id);
        self.know(mac);
        self.transmit(id);
    }

    /// Sends a stream's control messages, without data.
    pub(super) fn transmit(&mut self, id: usize) {
        while let Some(conn) = self.conns.get(id).filter(|c| c.resolved && c.machine.wants_transmit()) {
            let key = conn.key;
            if key.mac != self.mac && self.is_up() && !self.may_send_control(key.mac) {
                self.owe(id, key.mac);
                return;
            }
            if let Some(segment) = self.conn_mut(id).machine.poll_transmit(1) {
                debug_assert_eq!(segment.len, 0, "data goes when it is written");
                self.send_segment(None, &key, &segment, &[]);
            }
        }
        self.free_if_over(id);
    }

    /// Sends bytes of a program, as many as the window and the free buffers take; `None` when there is no room.
    pub fn send(&mut self, id: usize, slices: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        if let Some(done) = self.cannot_send(id) {
            return done;
        }
        let mss = usize::from(self.config.mtu) + ethernet::HEADER_LEN - SEGMENT_HEADERS;
        let (mut sent, mut at, mut within) = (0, 0, 0);
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if total > 0 && self.conn(id).machine.wants_transmit() {
            // A segment that found no buffer goes first: the answer to a SYN carries no data.
            self.transmit(id);
            if self.conn(id).machine.wants_transmit() {
                self.starve(Socket::Stream(id), self.conn(id).key.mac);
                return None;
            }
        }
        while sent < total {
            let conn = self.conn(id);
            let most = (conn.machine.room().min(mss as u64)) as usize;
            if most == 0 {
                break;
            }
            let mac = conn.key.mac;
            if mac != self.mac && !self.has_buffers_for(Socket::Stream(id), mac) {
                self.starve(Socket::Stream(id), mac);
                break;
            }
            let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
            let (mut count, mut len) = (0, 0);
            while count < PARTS_MAX && len < most && at < slices.len() {
                let rest = &slices[at][within..];
                let part = &rest[..rest.len().min(most - len)];
                if !part.is_empty() {
                    parts[count] = part;
                    count += 1;
                    len += part.len();
                }
                within += part.len();
                if within == slices[at].len() {
                    (at, within) = (at + 1, 0);
                }
            }
            let conn = self.conn_mut(id);
            conn.machine.write(len as u64);
            let key = conn.key;
            let segment = conn.machine.poll_transmit(len as u32).expect("there is room for it");
            let went = self.send_segment(Some(Socket::Stream(id)), &key, &segment, &parts[..count]);
            if !went {
                // The port broke: its streams are gone.
                break;
            }
            sent += len;
        }
        if sent > 0 || total == 0 {
            self.touch(Socket::Stream(id));
            return Some(Ok(sent));
        }
        if self.is_up() { None } else { self.cannot_send(id).unwrap_or(None) }
    }

    /// Why a program cannot send on a stream, now (`Some(None)`) or any more.
    fn cannot_send(&mut self, id: usize) -> Option<Option<io::Result<usize>>> {
        let conn = self.conn_mut(id);
        if let Some(error) = conn.error.take() {
            self.touch(Socket::Stream(id));
            return Some(Some(Err(error.into())));
        }
        if conn.is_gone() || conn.shut_write {
            return Some(Some(Err(Errno::PIPE.into())));
        }
        conn.is_opening().then_some(None)
    }

    /// Reads into a program's memory; `None` when there is nothing yet. With `peek`, the bytes stay to be read.
    pub fn receive(&mut self, id: usize, into: &mut [io::IoSliceMut<'_>], peek: bool) -> Option<io::Result<usize>> {
        let wanted: usize = into.iter().map(|slice| slice.len()).sum();
        let conn = self.conn_mut(id);
        if conn.received.is_empty() {
            if conn.machine.is_peer_closed() || conn.shut_read || (wanted == 0 && !conn.is_opening()) {
                return Some(Ok(0));
            }
            if let Some(error) = conn.error.take() {
                self.touch(Socket::Stream(id));
                return Some(Err(error.into()));
            }
            return conn.is_gone().then_some(Ok(0));
        }
        let mut copied = 0;
        let (front, back) = conn.received.as_slices();
        for slice in into {
            let mut filled = 0;
            while filled < slice.len() && copied < front.len() + back.len() {
                let rest = if copied < front.len() { &front[copied..] } else { &back[copied - front.len()..] };
                let len = rest.len().min(slice.len() - filled);
                slice[filled..filled + len].copy_from_slice(&rest[..len]);
                filled += len;
                copied += len;
            }
        }
        if !peek {
            conn.received.drain(..copied);
            conn.machine.read(copied as u64);
            let most = if conn.machine.is_peer_closed() { 0 } else { u64::from(conn.machine.buffer()) };
            if conn.received.is_empty() && conn.received.capacity() as u64 > most.max(64 << 10) {
                conn.received = VecDeque::new();
            }
            self.widen(id);
            self.transmit(id);
            self.touch(Socket::Stream(id));
        }
        Some(Ok(copied))
    }

    /// The program sends, or reads, no more.
    pub fn shutdown(&mut self, id: usize, how: Shutdown) -> io::Result<()> {
        let conn = self.conn_mut(id);
        if conn.is_opening() || (conn.is_gone() && !conn.machine.is_peer_closed()) {
            return Err(Errno::NOTCONN.into());
        }
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            conn.shut_read = true;
            let rest = conn.received.len() as u64;
            conn.received = VecDeque::new();
            conn.machine.read(rest);
            self.count(id);
        }
        let conn = self.conn_mut(id);
        if matches!(how, Shutdown::Write | Shutdown::Both) && !std::mem::replace(&mut conn.shut_write, true) {
            conn.machine.close();
        }
        self.transmit(id);
        self.touch(Socket::Stream(id));
        Ok(())
    }

    /// Gives a stream up at once.
    pub fn abort(&mut self, id: usize) {
        let conn = self.conn_mut(id);
        conn.machine.abort();
        conn.received = VecDeque::new();
        self.count(id);
        self.transmit(id);
        self.touch(Socket::Stream(id));
    }

    /// The error that ended a stream, if it was not yet reported.
    pub fn take_error(&mut self, id: usize) -> Option<Errno> {
        let error = self.conn_mut(id).error.take();
        self.touch(Socket::Stream(id));
        error
    }

    /// The host ends: bytes that its programs sent are delivered, and then all streams are closed.
    pub fn end_streams(&mut self) {
        for id in self.conns.ids() {
            // As the kernel does when a process ends: with bytes unread a stream is reset, else it has its end.
            if let Some(conn) = self.conns.get_mut(id)
                && conn.machine.is_open()
                && conn.received.is_empty()
            {
                conn.machine.close();
            }
            self.transmit(id);
            if let Some(conn) = self.conns.get_mut(id) {
                conn.machine.abort();
                self.transmit(id);
            }
        }
    }

    /// The program has done with a stream. Bytes that it sent are still delivered; bytes that it did not read make the other
    /// end's sending fail.
    pub fn close(&mut self, id: usize, at_once: bool) {
        self.now = Instant::now();
        let now = self.now;
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.held = false;
        conn.since = now;
        conn.waiting.watch = None;
        if at_once || conn.is_opening() || !conn.received.is_empty() {
            conn.machine.abort();
        } else if !conn.shut_write {
            conn.machine.close();
        }
        conn.received = VecDeque::new();
        self.count(id);
        self.transmit(id);
        self.free_if_over(id);
        self.rouse();
    }

    /// A stream is gone without its other end's doing; the other end is not told.
    pub(super) fn lose(&mut self, id: usize, why: Errno) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !conn.is_gone() {
            conn.machine.abort();
            // The abort's own segments are not sent.
            while conn.machine.poll_transmit(1).is_some() {}
            conn.error = Some(why);
        }
        self.count(id);
        self.touch(Socket::Stream(id));
        self.drop_if_waiting(id);
        self.free_if_over(id);
    }

    /// Forgets a stream that has ended and that no program holds.
    pub(super) fn free_if_over(&mut self, id: usize) {
        let over =
            |conn: &Conn| !conn.held && conn.waits_at.is_none() && conn.is_gone() && !conn.machine.wants_transmit();
        if self.conns.get(id).is_some_and(over) {
            self.free(id);
        }
    }

    pub(super) fn free(&mut self, id: usize) {
        let Some(conn) = self.conns.remove(id) else { return };
        self.memory.release(conn.counted);
        if let Some(destination) = conn.pending {
            self.destinations.disown(destination, id);
        }
        if conn.starved {
            self.destinations.feed(Socket::Stream(id));
        }
        if self.by_key.get(&conn.key) == Some(&id) {
            self.by_key.remove(&conn.key);
            self.forget(conn.key.mac);
        }
        let path = (conn.key.peer, conn.key.local);
        if self.outgoing.get(&path) == Some(&id) {
            self.outgoing.remove(&path);
        }
    }
}
