//! What a socket is ready for.

/// What would not block.
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
    /// An error waits for whoever asks next.
    pub error: bool,
    /// Grows, and wraps, with all that comes to be read or accepted.
    pub news: u32,
    /// Grows, and wraps, each time that who found no buffer to send with, or nobody to send to, may try again: that may have come so
    /// soon that nobody saw it not `writable`.
    pub room: u32,
}

/// Told what a socket is ready for, at once and whenever that changes. It is called with the host's lock held, and must
/// not call anything of this crate.
pub type Watch = Box<dyn FnMut(Ready) + Send>;
