//! The readiness of a socket.

/// The calls that would not block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Reading, or accepting: bytes, the end of the stream, or an error.
    pub readable: bool,
    /// Writing: there is room, or it would fail.
    pub writable: bool,
    /// The other end sends no more.
    pub peer_closed: bool,
    /// Nothing goes either way any more.
    pub closed: bool,
    /// An error waits for the next call that asks.
    pub error: bool,
    /// Grows, and wraps, with all that comes to be read or accepted.
    pub news: u32,
    /// Grows, and wraps, each time that a sender without a buffer or a receiver may try again. The change may be so quick
    /// that `writable` was never seen as false.
    pub room: u32,
}

/// The observer of a socket's readiness, called at once and on each change. It is called with the host's lock held, and must
/// not call anything of this crate.
pub type Watch = Box<dyn FnMut(Ready) + Send>;
