//! Datagrams that are never dropped for want of room.

use crate::core::Socket;
use crate::host::{Host, Patience};
use crate::{Ready, Watch};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A socket for UDP datagrams, which wait where there is no room; clones are the same socket.
#[derive(Clone)]
pub struct LightDatagram(Arc<Inner>);

struct Inner {
    host: Host,
    id: usize,
    nonblocking: AtomicBool,
}

impl LightDatagram {
    pub(crate) fn new(host: Host, id: usize) -> LightDatagram {
        LightDatagram(Arc::new(Inner { host, id, nonblocking: AtomicBool::new(false) }))
    }

    fn socket(&self) -> Socket {
        Socket::Datagram(self.0.id)
    }

    fn patience(&self) -> Patience {
        let nonblocking = self.0.nonblocking.load(Ordering::Relaxed);
        if nonblocking { Patience::Nonblocking } else { Patience::Until(None) }
    }

    /// Its own address.
    pub fn local_addr(&self) -> SocketAddrV4 {
        let mut core = self.0.host.shared().lock();
        SocketAddrV4::new(core.config.address, core.datagram_mut(self.0.id).port)
    }

    /// The address it is connected to.
    pub fn peer_addr(&self) -> Option<SocketAddrV4> {
        self.0.host.shared().lock().datagram_mut(self.0.id).peer
    }

    /// Sends to one other socket and takes datagrams from no other, or from all again.
    pub fn connect(&self, peer: Option<SocketAddrV4>) {
        self.0.host.shared().lock().datagram_mut(self.0.id).peer = peer;
    }

    /// Whether calls that would wait fail with `EAGAIN` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Sends a datagram to `to`, or to the connected address.
    ///
    /// # Errors
    /// - `EAGAIN` when the call would wait and may not.
    /// - `EMSGSIZE` beyond the size of a packet.
    /// - `EDESTADDRREQ` without an address to send to.
    /// - `ENETUNREACH` for addresses outside the host's network.
    /// - `ENETDOWN` while there is no switch.
    /// - `EHOSTUNREACH` or `ENETDOWN` when an earlier datagram found no host, or no switch.
    pub fn send(&self, to: Option<SocketAddrV4>, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let to = to.or_else(|| self.peer_addr()).ok_or(Errno::DESTADDRREQ)?;
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), self.patience(), |core| core.send_to(id, to, from))
    }

    /// Sends a datagram to a socket.
    ///
    /// # Errors
    /// As for [`LightDatagram::send`].
    pub fn send_to(&self, from: &[u8], to: SocketAddrV4) -> io::Result<usize> {
        self.send(Some(to), &[IoSlice::new(from)])
    }

    /// Reads the next datagram; returns its length, which may exceed the room, and its sender. With `peek`, the datagram
    /// stays.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and the call may not wait; `EHOSTUNREACH` when a sent datagram found no host.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<(usize, SocketAddrV4)> {
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), self.patience(), |core| core.receive_from(id, into, peek))
    }

    /// Reads the next datagram.
    ///
    /// # Errors
    /// As for [`LightDatagram::receive`].
    pub fn recv_from(&self, into: &mut [u8]) -> io::Result<(usize, SocketAddrV4)> {
        self.receive(&mut [IoSliceMut::new(into)], false)
    }

    /// Stops reading: waiting callers are woken, and later datagrams have no socket.
    pub fn shutdown_read(&self) {
        self.0.host.shared().call(|core| core.shut_datagram(self.0.id));
    }

    /// Bytes of the datagram that is read next.
    pub fn next_len(&self) -> Option<usize> {
        self.0.host.shared().lock().datagram_mut(self.0.id).next_len()
    }

    /// The error of a sent datagram, if it was not yet reported.
    pub fn take_error(&self) -> Option<io::Error> {
        self.0.host.shared().lock().datagram_mut(self.0.id).error.take().map(Into::into)
    }

    /// The calls that would not block.
    pub fn ready(&self) -> Ready {
        self.0.host.ready(self.socket())
    }

    /// Sets the observer of the socket's readiness.
    pub fn set_watch(&self, watch: Option<Watch>) {
        self.0.host.watch(self.socket(), watch);
    }
}

impl std::fmt::Debug for LightDatagram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LightDatagram({})", self.local_addr())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.shared().call(|core| core.unbind(self.id));
    }
}
