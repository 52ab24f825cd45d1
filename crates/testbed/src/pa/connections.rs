//! The connections of the applications: opened, accepted, written, read, closed.

use super::PaError;
use super::app::App;
use super::apps::World;
use super::part::Answer;
use super::sockets::{Stream, verify};
use super::stream::{Brought, Incoming, NUMBER_BYTES, Outgoing};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use sluicenet_dataplane::tcp_info::tcp_info;
use sluicenet_proto::frame::HostId;
use sluicenet_socket::TcplightListener;
use std::io::ErrorKind;
use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The first port of workloads, below the kernel's ephemeral ports.
pub(super) const PORTS: u16 = 20_000;
/// The purpose of a connection.
#[derive(Clone, Copy)]
pub(super) enum Role {
    Asks { app: usize },
    Answers { app: usize },
    Sends { start: Instant, bytes: u64 },
    Sinks,
}

pub(super) struct Connection {
    pub stream: Stream,
    pub role: Role,
    pub out: Outgoing,
    pub into: Incoming,
    /// The other end, if it is in this process.
    pub peer: Option<usize>,
    pub open: bool,
    /// The query that this connection answers, with its timeouts and retransmissions before. Used if the aggregator is
    /// elsewhere.
    pub answers: Option<(u64, Trouble)>,
}

/// Timeouts, if the kernel counts them, and retransmissions.
pub(super) type Trouble = (Option<u32>, u32);

/// A listening socket.
pub(super) enum Listener {
    Kernel(TcpListener),
    Light(TcplightListener),
}

/// Event numbers: connections are below `LISTENER`, listeners are below `DOORBELL`.
pub(super) const LISTENER: u64 = 1 << 32;
pub(super) const DOORBELL: u64 = 1 << 33;
/// The most connections to a light socket that may wait to be accepted: as many as a socket can have.
pub(super) const BACKLOG: usize = 4096;

impl World<'_> {
    pub(super) fn watch(&self, source: impl AsFd, number: u64, flags: EventFlags) -> Result<(), PaError> {
        epoll::add(&self.epoll, source, EventData::new_u64(number), flags).map_err(|e| PaError::io("epoll", &e.into()))
    }

    pub(super) fn connect(
        &mut self,
        app: usize,
        from: (HostId, u8),
        to: (HostId, u8),
        role: Role,
    ) -> Result<usize, PaError> {
        let port = PORTS + app as u16;
        let (stream, to) = if self.apps[app].is_light() {
            let to = SocketAddrV4::new(self.hosts.host(to)?.address(), port);
            let from = self.hosts.host(from)?;
            let what = || format!("a stream from {} to {to}", from.address());
            let stream = from.connect_from(None, to).map_err(|e| PaError::io(&what(), &e))?;
            stream.set_nonblocking(true);
            (Stream::Light(stream), to)
        } else {
            let to = SocketAddrV4::new(self.endpoints.kernel(to)?.address, port);
            (Stream::Kernel(self.namespaces.connect(self.endpoints.kernel(from)?, to, self.style(app))?), to)
        };
        let local = stream.local_addr().map_err(|e| PaError::io("the address of a socket", &e))?;
        let at = self.add(stream, role)?;
        self.opened.insert((local, to.into()), at);
        Ok(at)
    }

    fn add(&mut self, stream: Stream, role: Role) -> Result<usize, PaError> {
        let at = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        // Edge-triggered: a connection is read and written until it would block.
        match &stream {
            Stream::Kernel(stream) => {
                self.watch(stream, at as u64, EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET)?;
            }
            Stream::Light(stream) => stream.set_watch(Some(self.doorbell.watch(at as u64))),
        }
        let (out, into) = Default::default();
        self.connections[at] = Some(Connection { stream, role, out, into, peer: None, open: false, answers: None });
        Ok(at)
    }

    /// The total of timeouts and retransmissions of connections, at both ends.
    pub(super) fn trouble(&self, connections: impl Iterator<Item = usize>) -> Trouble {
        let mut all = (Some(0), 0);
        for c in connections.filter_map(|at| self.connections[at].as_ref()) {
            let other = c.peer.and_then(|p| self.connections[p].as_ref());
            for end in [Some(c), other].into_iter().flatten() {
                // Light sockets have no timers of their own.
                let Stream::Kernel(stream) = &end.stream else { continue };
                let info = tcp_info(stream).unwrap_or_default();
                all.0 = all.0.zip(info.timeouts).map(|(sum, n)| sum + u32::from(n));
                all.1 += info.retransmitted;
            }
        }
        all
    }

    /// Records the timeouts and retransmissions of a connection's last answer, and starts counting for `next`.
    pub(super) fn settle(&mut self, at: usize, next: Option<u64>) {
        let now = self.trouble(std::iter::once(at));
        let Some(c) = &mut self.connections[at] else { return };
        let before = std::mem::replace(&mut c.answers, next.map(|query| (query, now)));
        if let Some((query, before)) = before
            && before != now
        {
            let timeouts = now.0.zip(before.0).map(|(now, before)| now - before);
            self.answers.push(Answer { query, timeouts, retransmitted: now.1 - before.1 });
        }
    }

    /// Waits for at most `wait`, and serves the sockets that are ready.
    pub(super) fn serve(&mut self, wait: Duration) -> Result<(), PaError> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(PaError::io("epoll", &e.into())),
        }
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            if number == DOORBELL {
                for number in self.doorbell.clone().take() {
                    self.serve_one(number, true, true)?;
                }
                continue;
            }
            let comes = flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            self.serve_one(number, comes, flags.contains(EventFlags::OUT))?;
        }
        Ok(())
    }

    fn serve_one(&mut self, number: u64, comes: bool, goes: bool) -> Result<(), PaError> {
        if number >= LISTENER {
            return self.accept((number - LISTENER) as usize);
        }
        let at = number as usize;
        if goes {
            self.write(at)?;
        }
        if comes {
            self.read(at)?;
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) -> Result<(), PaError> {
        loop {
            let (socket, app) = &self.listeners[listener];
            let app = *app;
            let accepted = match socket {
                Listener::Kernel(socket) => socket.accept().map(|(stream, from)| (Stream::Kernel(stream), from)),
                Listener::Light(socket) => socket.accept().map(|(stream, from)| (Stream::Light(stream), from.into())),
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(PaError::io("a connection that comes in", &e)),
            };
            let local = stream.local_addr().map_err(|e| PaError::io("the address of a socket", &e))?;
            stream.set_nonblocking().map_err(|e| PaError::io("a connection that comes in", &e))?;
            if let Stream::Kernel(stream) = &stream {
                self.namespaces.prepare(stream, self.style(app))?;
            }
            let role = match &self.apps[app] {
                App::Pa(_) => Role::Answers { app },
                App::Background { .. } => Role::Sinks,
            };
            let at = self.add(stream, role)?;
            // If both ends are here, they know each other. A stranger's connection is served like any other, and does
            // not count.
            let opener = self.opened.get(&(from, local)).copied();
            if let Some(c) = &mut self.connections[at] {
                (c.open, c.peer) = (true, opener);
            }
            if let Some(c) = opener.and_then(|o| self.connections[o].as_mut()) {
                c.peer = Some(at);
            }
        }
    }

    pub(super) fn write(&mut self, at: usize) -> Result<(), PaError> {
        let Some(c) = &mut self.connections[at] else { return Ok(()) };
        if !c.open
            && let Stream::Light(stream) = &c.stream
        {
            if stream.is_opening() {
                return Ok(());
            }
            if let Some(e) = stream.take_error() {
                return Err(PaError::io("a connection", &e));
            }
            c.open = true;
        }
        if !c.open
            && let Stream::Kernel(stream) = &c.stream
        {
            match rustix::net::sockopt::socket_error(stream) {
                Ok(Ok(())) if stream.peer_addr().is_ok() => {
                    verify(stream, self.outcome.congestion).map_err(|ran| PaError::Congestion {
                        wanted: self.outcome.congestion,
                        ran,
                        namespace: "of an open connection".into(),
                        allowed: String::new(),
                    })?;
                    c.open = true;
                }
                Ok(Ok(())) => return Ok(()),
                Ok(Err(e)) | Err(e) => return Err(PaError::io("a connection", &e.into())),
            }
        }
        let had = !c.out.is_empty();
        c.out.send(&mut c.stream).map_err(|e| PaError::io("sending", &e))?;
        if had && c.out.is_empty() && matches!(c.role, Role::Sends { .. }) {
            // The sink reads to the end of the flow.
            c.stream.end_writing().map_err(|e| PaError::io("the end of a flow", &e))?;
        }
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<(), PaError> {
        let Some(c) = &mut self.connections[at] else { return Ok(()) };
        let sizes = |app: usize| match &self.apps[app] {
            App::Pa(pa) => (pa.workload.request.as_bytes(), pa.workload.response.as_bytes()),
            App::Background { .. } => (NUMBER_BYTES, NUMBER_BYTES),
        };
        let len = match c.role {
            Role::Asks { app } => sizes(app).1,
            Role::Answers { app } => sizes(app).0,
            Role::Sends { .. } | Role::Sinks => u64::MAX,
        };
        let Brought { numbers, closed } =
            c.into.receive(&mut c.stream, len).map_err(|e| PaError::io("receiving", &e))?;
        match c.role {
            Role::Asks { .. } => {
                for query in numbers {
                    self.answered(query);
                }
            }
            Role::Answers { app } => {
                let response = sizes(app).1;
                numbers.iter().for_each(|&query| c.out.push(query, response));
                if self.here.is_some() {
                    numbers.iter().for_each(|&query| self.settle(at, Some(query)));
                }
                self.write(at)?;
            }
            Role::Sinks if closed => {
                let opener = c.peer.and_then(|p| self.connections[p].as_ref());
                if let Some(Connection { role: Role::Sends { start, bytes }, .. }) = opener {
                    self.outcome.flows.push((*bytes, start.elapsed()));
                }
            }
            // The sink is elsewhere, and has closed because it has read the whole flow.
            Role::Sends { start, bytes } if closed && self.here.is_some() && c.out.is_empty() && !self.over => {
                self.outcome.flows.push((bytes, start.elapsed()));
            }
            Role::Sends { .. } | Role::Sinks => {}
        }
        if closed && self.here.is_some() {
            self.settle(at, None);
        }
        if closed {
            self.close(at);
        }
        Ok(())
    }

    pub(super) fn close(&mut self, at: usize) {
        let Some(c) = self.connections[at].take() else { return };
        if let (Ok(local), Ok(peer)) = (c.stream.local_addr(), c.stream.peer_addr()) {
            self.opened.remove(&(local, peer));
        }
        if let Some(p) = c.peer.and_then(|p| self.connections[p].as_mut()) {
            p.peer = None;
        }
        self.free.push(at);
    }
}
