//! Streams.

use crate::core::Socket;
use crate::host::{Host, Patience};
use crate::{Ready, Watch};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A TCPlight stream, open or opening; copies are the same stream, which is closed with the last of them.
#[derive(Clone)]
pub struct TcplightStream(Arc<Inner>);

struct Inner {
    host: Host,
    id: usize,
    nonblocking: AtomicBool,
    /// How long reading and writing may wait.
    timeouts: Mutex<[Option<Duration>; 2]>,
}

impl TcplightStream {
    pub(crate) fn new(host: Host, id: usize) -> TcplightStream {
        let inner = Inner { host, id, nonblocking: AtomicBool::new(false), timeouts: Mutex::default() };
        TcplightStream(Arc::new(inner))
    }

    fn socket(&self) -> Socket {
        Socket::Stream(self.0.id)
    }

    fn patience(&self, way: usize) -> Patience {
        if self.0.nonblocking.load(Ordering::Relaxed) {
            return Patience::Nonblocking;
        }
        Patience::Until(self.0.timeouts.lock().unwrap_or_else(PoisonError::into_inner)[way])
    }

    /// Waits until it is open.
    pub(crate) fn finish_connect(&self) -> io::Result<()> {
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), Patience::Until(None), |core| {
            let conn = core.conn_mut(id);
            if conn.is_opening() {
                return None;
            }
            Some(conn.error.take().map_or(Ok(()), |error| Err(error.into())))
        })
    }

    /// Whether the stream is still being opened.
    pub fn is_opening(&self) -> bool {
        self.0.host.shared().lock().conn(self.0.id).is_opening()
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> SocketAddrV4 {
        self.0.host.shared().lock().conn(self.0.id).key.peer
    }

    /// The address of this end.
    pub fn local_addr(&self) -> SocketAddrV4 {
        let core = self.0.host.shared().lock();
        SocketAddrV4::new(core.config.address, core.conn(self.0.id).key.local)
    }

    /// Whether calls that would wait fail with `EAGAIN` instead.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// How long a read may wait before it fails with `EAGAIN`; for ever with `None`.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        self.0.timeouts.lock().unwrap_or_else(PoisonError::into_inner)[0] = timeout;
    }

    /// How long a write may wait before it fails with `EAGAIN`; for ever with `None`.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) {
        self.0.timeouts.lock().unwrap_or_else(PoisonError::into_inner)[1] = timeout;
    }

    /// Reads into several pieces of memory; nothing at the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` when there is nothing and the call may not wait. `ECONNRESET`, `ECONNREFUSED`, `ETIMEDOUT` or `EPROTO`, once,
    /// when the other end or the end of the switch ended the stream, its host is dead, or it broke the protocol. `ENETDOWN`
    /// when the switch ended before the stream was open.
    pub fn receive(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), self.patience(0), |core| core.receive(id, into, false))
    }

    /// Reads like [`TcplightStream::receive`], but the bytes stay to be read.
    ///
    /// # Errors
    /// As for [`TcplightStream::receive`].
    pub fn peek(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), self.patience(0), |core| core.receive(id, into, true))
    }

    /// Sends as many bytes as fit into the window and the free buffers, at least one.
    ///
    /// # Errors
    /// `EAGAIN` when that is nothing and it may not wait; `EPIPE` when it sends no more, and else as
    /// [`TcplightStream::receive`].
    pub fn send(&self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let id = self.0.id;
        self.0.host.shared().wait(self.socket(), self.patience(1), |core| core.send(id, from))
    }

    /// Sends no more, reads no more, or neither.
    ///
    /// # Errors
    /// `ENOTCONN` when it is not open.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.host.shared().call(|core| core.shutdown(self.0.id, how))
    }

    /// Ends the stream at once: the other end sees `ECONNRESET`.
    pub fn abort(&self) {
        self.0.host.shared().call(|core| core.abort(self.0.id));
    }

    /// The error that ended the stream, if it was not yet reported.
    pub fn take_error(&self) -> Option<io::Error> {
        self.0.host.shared().call(|core| core.take_error(self.0.id)).map(Into::into)
    }

    /// Bytes that can be read.
    pub fn readable_bytes(&self) -> usize {
        self.0.host.shared().lock().conn(self.0.id).received.len()
    }

    /// The calls that would not block.
    pub fn ready(&self) -> Ready {
        self.0.host.ready(self.socket())
    }

    /// Sets the observer of the stream's readiness.
    pub fn set_watch(&self, watch: Option<Watch>) {
        self.0.host.watch(self.socket(), watch);
    }
}

impl Read for &TcplightStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.receive(&mut [IoSliceMut::new(into)])
    }
    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.receive(into)
    }
}

impl Write for &TcplightStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(from)])
    }
    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl std::fmt::Debug for TcplightStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcplightStream({} to {})", self.local_addr(), self.peer_addr())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.shared().call(|core| core.close(self.id, false));
    }
}
