//! Datagrams that are never dropped for want of room.

use crate::core::Socket;
use crate::host::{Host, Patience};
use crate::{Ready, Watch};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A socket for UDP datagrams, which wait where there is no room; copies are the same socket.
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

    /// Whom it is connected to.
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

    /// Sends a datagram, to whom it is connected where `to` is absent.
    ///
    /// # Errors
    /// `EAGAIN` when it would wait and may not, `EMSGSIZE` beyond what fits in a packet, `EDESTADDRREQ` without anybody to send to,
    /// `ENETUNREACH` where the host has no way to, `ENETDOWN` while there is no switch, `EHOSTUNREACH` or `ENETDOWN` when an earlier one found nobody, or none.
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

    /// Reads the next datagram; returns its length, which may be more than there was room for, and who sent it. With `peek` it
    /// stays.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and it may not wait; `EHOSTUNREACH` when one that was sent found nobody.
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

    /// Reads no more: who waits is woken, and what comes has no socket.
    pub fn shutdown_read(&self) {
        self.0.host.shared().call(|core| core.shut_datagram(self.0.id));
    }

    /// Bytes of the datagram that is read next.
    pub fn next_len(&self) -> Option<usize> {
        self.0.host.shared().lock().datagram_mut(self.0.id).next_len()
    }

    /// An error of one that was sent, if nobody was told yet.
    pub fn take_error(&self) -> Option<io::Error> {
        self.0.host.shared().lock().datagram_mut(self.0.id).error.take().map(Into::into)
    }

    /// What would not block.
    pub fn ready(&self) -> Ready {
        self.0.host.ready(self.socket())
    }

    /// Has somebody told what it is ready for.
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
