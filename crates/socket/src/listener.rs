//! Listeners.

use crate::core::Socket;
use crate::host::{Host, Patience};
use crate::{Divert, Ready, TcplightStream, Watch};
use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port at which streams can be opened; copies are the same one, which listens no more with the last of them.
#[derive(Clone)]
pub struct TcplightListener(Arc<Inner>);

struct Inner {
    host: Host,
    port: u16,
    nonblocking: AtomicBool,
}

impl TcplightListener {
    pub(crate) fn new(host: Host, port: u16) -> TcplightListener {
        TcplightListener(Arc::new(Inner { host, port, nonblocking: AtomicBool::new(false) }))
    }

    /// The next incoming stream, and its peer.
    ///
    /// # Errors
    /// `EAGAIN` when there is none and the call may not wait; `ENETDOWN` when the switch has ended and the address of another
    /// one is unknown.
    pub fn accept(&self) -> io::Result<(TcplightStream, SocketAddrV4)> {
        let nonblocking = self.0.nonblocking.load(Ordering::Relaxed);
        let patience = if nonblocking { Patience::Nonblocking } else { Patience::Until(None) };
        let port = self.0.port;
        let id = self.0.host.shared().wait(Socket::Listener(port), patience, |core| core.accept(port))?;
        let stream = TcplightStream::new(self.0.host.clone(), id);
        let peer = stream.peer_addr();
        Ok((stream, peer))
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.0.host.address(), self.0.port)
    }

    /// How many may wait to be accepted from now on (128 to 4096).
    pub fn set_backlog(&self, backlog: usize) {
        self.0.host.shared().call(|core| core.set_backlog(self.0.port, backlog));
    }

    /// Passes attempts to connect to `divert` from now on, for [`Host::take_attempt`] of a host of this address. Returns the
    /// streams that wait to be accepted already.
    pub fn divert(&self, divert: Divert) -> Vec<TcplightStream> {
        let waiting = self.0.host.shared().call(|core| core.divert(self.0.port, divert));
        waiting.into_iter().map(|id| TcplightStream::new(self.0.host.clone(), id)).collect()
    }

    /// Whether accepting fails with `EAGAIN` when it would wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Whether there is a stream to accept.
    pub fn ready(&self) -> Ready {
        self.0.host.ready(Socket::Listener(self.0.port))
    }

    /// Sets the observer of the listener's readiness.
    pub fn set_watch(&self, watch: Option<Watch>) {
        self.0.host.watch(Socket::Listener(self.0.port), watch);
    }
}

impl std::fmt::Debug for TcplightListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcplightListener({})", self.local_addr())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.host.shared().call(|core| core.unlisten(self.port));
    }
}
