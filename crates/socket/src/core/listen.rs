//! Listeners: connections that wait to be accepted, at most so many.

use super::conn::Key;
use super::{Core, Socket, Waiting};
use crate::Ready;
use rustix::io::Errno;
use sluicenet_proto::transport::tcplight::{Segment, Stream};
use std::collections::VecDeque;
use std::io;

/// Connections that wait at a listener at least before more are refused: nobody asks twice here, as TCP does, so that a
/// program that listens with 1 or 5 would turn away who comes at once with others.
const BACKLOG_MIN: usize = 128;
const BACKLOG_MAX: usize = 4096;

pub(crate) struct Listener {
    backlog: usize,
    pub waiting: Waiting,
    queue: VecDeque<usize>,
}

impl Listener {
    pub fn ready(&self) -> Ready {
        Ready { readable: !self.queue.is_empty(), ..Ready::default() }
    }
}

impl Core {
    /// Listens at a port, or at one that is free with 0; returns which.
    pub fn listen(&mut self, port: u16, backlog: usize) -> io::Result<u16> {
        self.check()?;
        let port = match port {
            0 => self.free_port(|core, port| !core.listeners.contains_key(&port) && !core.is_local(port))?,
            port => port,
        };
        if self.listeners.contains_key(&port) {
            return Err(Errno::ADDRINUSE.into());
        }
        let backlog = backlog.clamp(BACKLOG_MIN, BACKLOG_MAX);
        self.listeners.insert(port, Listener { backlog, waiting: Waiting::default(), queue: VecDeque::new() });
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

    /// Somebody wants to connect.
    pub(super) fn on_syn(&mut self, key: Key, syn: &Segment) {
        let full = self.conns.len() >= self.config.streams;
        let Some(listener) = self.listeners.get_mut(&key.local) else { return self.refuse(key, syn) };
        if full || listener.queue.len() >= listener.backlog {
            self.counters.overflows += 1;
            return self.refuse(key, syn);
        }
        let Some(machine) = Stream::accept(syn, self.config.receive_buffer) else {
            self.counters.malformed += 1;
            return self.refuse(key, syn);
        };
        let mut conn = self.new_conn(machine, key);
        conn.waits_at = Some(key.local);
        conn.opened = true;
        let id = self.conns.insert(conn);
        self.by_key.insert(key, id);
        self.know(key.mac);
        if let Some(listener) = self.listeners.get_mut(&key.local) {
            listener.queue.push_back(id);
        }
        self.touch(Socket::Listener(key.local));
        self.transmit(id);
    }

    /// The next connection at a listener.
    pub fn accept(&mut self, port: u16) -> Option<io::Result<usize>> {
        let Some(listener) = self.listeners.get_mut(&port) else { return Some(Err(Errno::INVAL.into())) };
        let Some(id) = listener.queue.pop_front() else {
            return if self.down { Some(Err(Errno::NETDOWN.into())) } else { None };
        };
        let conn = self.conn_mut(id);
        conn.held = true;
        conn.waits_at = None;
        self.touch(Socket::Listener(port));
        Some(Ok(id))
    }

    /// A connection that nobody has accepted yet, and that is gone without a byte to read, waits no more.
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

    /// Listens no more; who was not accepted is refused.
    pub fn unlisten(&mut self, port: u16) {
        let Some(listener) = self.listeners.remove(&port) else { return };
        listener.waiting.changed.notify_all();
        for id in listener.queue {
            self.conn_mut(id).waits_at = None;
            self.close(id, true);
        }
    }
}
