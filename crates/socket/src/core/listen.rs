//! Listeners, and their bounded queues of connections that wait to be accepted.

use super::conn::Key;
use super::{Core, Socket, Waiting};
use crate::Ready;
use rustix::io::Errno;
use sluicenet_proto::transport::tcplight::{Segment, Stream};
use sluicenet_wire::ethernet::MacAddress;
use sluicenet_wire::tcplight::Flags;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddrV4;
use std::time::Instant;

/// The least number of connections that may wait at a listener before more are refused. Refused clients do not try again, as
/// they do with TCP, so that a backlog of 1 or 5 would turn away clients that connect at the same time.
const BACKLOG_MIN: usize = 128;
const BACKLOG_MAX: usize = 4096;

pub(crate) struct Listener {
    backlog: usize,
    pub waiting: Waiting,
    news: u32,
    queue: VecDeque<usize>,
    /// The receiver of attempts to connect in place of the queue.
    divert: Option<Divert>,
}

/// An attempt to connect, for the host that is to accept it: a host of the same address, in this process or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    mac: MacAddress,
    peer: SocketAddrV4,
    port: u16,
    connection: u32,
    limit: u32,
}

/// Takes an attempt to connect, or returns that it has no room. It is called with the host's lock held, and must not call
/// anything of this crate.
pub type Divert = Box<dyn FnMut(Attempt) -> bool + Send>;

impl Attempt {
    /// Bytes of one.
    pub const BYTES: usize = 24;

    /// The attempt as bytes, for another process on this machine.
    pub fn to_bytes(self) -> [u8; Attempt::BYTES] {
        let mut bytes = [0; Attempt::BYTES];
        bytes[..6].copy_from_slice(&self.mac.0);
        bytes[6..10].copy_from_slice(&self.peer.ip().octets());
        bytes[10..12].copy_from_slice(&self.peer.port().to_ne_bytes());
        bytes[12..14].copy_from_slice(&self.port.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.connection.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.limit.to_ne_bytes());
        bytes
    }

    /// The attempt in bytes that [`Attempt::to_bytes`] made.
    pub fn from_bytes(bytes: &[u8; Attempt::BYTES]) -> Attempt {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let [a, b, c, d, e, f, g, h, i, j, ..] = *bytes;
        Attempt {
            mac: MacAddress([a, b, c, d, e, f]),
            peer: SocketAddrV4::new([g, h, i, j].into(), half(10)),
            port: half(12),
            connection: word(16),
            limit: word(20),
        }
    }
}

impl Listener {
    pub fn ready(&self) -> Ready {
        Ready { readable: !self.queue.is_empty(), news: self.news, ..Ready::default() }
    }
}

impl Core {
    /// Listens at a port, or at one that is free with 0; returns which.
    pub fn listen(&mut self, port: u16, backlog: usize) -> io::Result<u16> {
        self.check_for_good()?;
        let port = match port {
            0 => self.free_port(|core, port| !core.listeners.contains_key(&port) && !core.is_local(port))?,
            port => port,
        };
        if self.listeners.contains_key(&port) {
            return Err(Errno::ADDRINUSE.into());
        }
        let backlog = backlog.clamp(BACKLOG_MIN, BACKLOG_MAX);
        let (waiting, queue) = (Waiting::default(), VecDeque::new());
        self.listeners.insert(port, Listener { backlog, waiting, news: 0, queue, divert: None });
        Ok(port)
    }

    /// Whether a stream that this host opened has a port.
    fn is_local(&self, port: u16) -> bool {
        self.outgoing.keys().any(|&(_, local)| local == port)
    }

    /// How many may wait at a listener from now on.
    pub fn set_backlog(&mut self, port: u16, backlog: usize) {
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.backlog = backlog.clamp(BACKLOG_MIN, BACKLOG_MAX);
        }
    }

    /// Handles an attempt to connect.
    pub(super) fn on_syn(&mut self, key: Key, syn: &Segment) {
        let full = self.conns.len() >= self.config.streams;
        let Some(listener) = self.listeners.get_mut(&key.local) else { return self.refuse(key, syn) };
        if let Some(divert) = &mut listener.divert {
            let Key { mac, peer, local: port } = key;
            if !divert(Attempt { mac, peer, port, connection: syn.connection, limit: syn.limit }) {
                self.counters.overflows += 1;
                self.refuse(key, syn);
            }
            return;
        }
        if full || listener.queue.len() >= listener.backlog {
            self.counters.overflows += 1;
            return self.refuse(key, syn);
        }
        let Some(id) = self.open_accepted(key, syn) else {
            self.counters.malformed += 1;
            return self.refuse(key, syn);
        };
        self.conn_mut(id).waits_at = Some(key.local);
        self.count(id);
        if let Some(listener) = self.listeners.get_mut(&key.local) {
            listener.queue.push_back(id);
            listener.news = listener.news.wrapping_add(1);
        }
        self.touch(Socket::Listener(key.local));
        self.transmit(id);
    }

    /// The stream that a segment opens, if it does open one.
    fn open_accepted(&mut self, key: Key, syn: &Segment) -> Option<usize> {
        let machine = Stream::accept(syn, self.memory.first())?;
        let mut conn = self.new_conn(machine, key);
        conn.opened = true;
        let id = self.conns.insert(conn);
        self.by_key.insert(key, id);
        self.know(key.mac);
        Some(id)
    }

    /// Passes attempts to connect to `divert` from now on; returns the streams that wait already, as accepted.
    pub fn divert(&mut self, port: u16, divert: Divert) -> VecDeque<usize> {
        let Some(listener) = self.listeners.get_mut(&port) else { return VecDeque::new() };
        listener.divert = Some(divert);
        let waiting = std::mem::take(&mut listener.queue);
        for &id in &waiting {
            let conn = self.conn_mut(id);
            (conn.held, conn.waits_at) = (true, None);
        }
        self.touch(Socket::Listener(port));
        waiting
    }

    /// Opens the stream of an attempt to connect that a listener of this address has diverted.
    pub fn take_attempt(&mut self, attempt: Attempt) -> io::Result<usize> {
        self.check().map_err(|_| Errno::CONNABORTED)?;
        self.now = Instant::now();
        let Attempt { mac, peer, port, connection, limit } = attempt;
        let key = Key { mac, peer, local: port };
        let syn = Segment { flags: Flags::SYN, connection, limit, ..Segment::default() };
        if self.conns.len() >= self.config.streams || self.by_key.contains_key(&key) {
            self.counters.overflows += 1;
            self.refuse(key, &syn);
            return Err(Errno::CONNABORTED.into());
        }
        let id = self.open_accepted(key, &syn).ok_or(Errno::CONNABORTED)?;
        self.conn_mut(id).held = true;
        self.count(id);
        self.transmit(id);
        self.look_soon();
        Ok(id)
    }

    /// The next connection at a listener.
    pub fn accept(&mut self, port: u16) -> Option<io::Result<usize>> {
        let Some(listener) = self.listeners.get_mut(&port) else { return Some(Err(Errno::INVAL.into())) };
        let Some(id) = listener.queue.pop_front() else {
            return if self.is_gone() { Some(Err(Errno::NETDOWN.into())) } else { None };
        };
        let conn = self.conn_mut(id);
        conn.held = true;
        conn.waits_at = None;
        self.touch(Socket::Listener(port));
        Some(Ok(id))
    }

    /// Drops a waiting connection that ended before it was accepted and without a byte to read.
    pub(super) fn drop_if_waiting(&mut self, id: usize) {
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.is_gone() && conn.received.is_empty()) else {
            return;
        };
        let Some(port) = conn.waits_at.take() else { return };
        if let Some(listener) = self.listeners.get_mut(&port) {
            listener.queue.retain(|&other| other != id);
        }
        self.touch(Socket::Listener(port));
    }

    /// Stops listening; waiting connections are refused.
    pub fn unlisten(&mut self, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        listener.waiting.changed.notify_all();
        for id in listener.queue {
            self.conn_mut(id).waits_at = None;
            self.close(id, true);
        }
    }
}
