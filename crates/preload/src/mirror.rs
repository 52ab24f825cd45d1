//! The pair of kernel sockets under a light socket, which shows the light socket's readiness.
//!
//! The program has one end. A byte for that end makes it readable; unread bytes from it make it not writable; a shutdown of
//! the other end makes it hung up. The pair is updated only while a caller looks: for sockets in `epoll` always, for others
//! while a call waits.

use crate::kernel::errno;
use crate::own::Own;
use crate::relay::{self, Waiting};
use crate::spin::Spin;
use crate::{fail, kernel};
use light::Ready;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes by which the program's end is not writable: more than a quarter of the smallest send buffer there is.
const FILLING: [u8; 1024] = [0; 1024];

/// Both ends, with a copy of the program's.
pub struct Ends {
    own: Own,
    app: Own,
    /// Whether calls of the program that would wait fail instead.
    pub nonblocking: AtomicBool,
    /// Whether the program's end carries attempts to connect.
    pub diverted: AtomicBool,
    /// Held across a fork: the host's thread, which the child has not, may be just here.
    pub shown: Spin<Shown>,
}

#[derive(Default)]
pub struct Shown {
    latest: Ready,
    readable: bool,
    full: bool,
    ended: bool,
    hung_up: bool,
    /// The number of waiting callers, and whether the socket is in `epoll`, where each arrival counts.
    lookers: u32,
    always: bool,
    edge: bool,
    news: u32,
    room: u32,
}

impl Ends {
    /// A new pair.
    pub fn new() -> Result<Arc<Ends>, i32> {
        let mut fds = [0; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: room for two descriptors.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) } != 0 {
            return Err(errno());
        }
        // SAFETY: new descriptors, without another owner.
        let [own, app] = fds.map(|fd| Own::new(unsafe { OwnedFd::from_raw_fd(fd) }));
        let least: i32 = 1;
        // SAFETY: an option of this type; without it no more than time is lost.
        unsafe {
            let value = (&raw const least).cast();
            kernel::setsockopt(app.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, size_of::<i32>() as u32);
        }
        let (nonblocking, diverted) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Ends { own, app, nonblocking, diverted, shown: Spin::new(Shown::default()) }))
    }

    /// The library's copy of the program's end.
    pub fn app(&self) -> RawFd {
        self.app.as_raw_fd()
    }

    /// Puts the program's end in the place of a descriptor, with the same flags.
    pub fn put_at(&self, fd: RawFd) -> Result<(), i32> {
        // SAFETY: descriptors, and no memory.
        unsafe {
            let status = kernel::fcntl(fd, libc::F_GETFL, 0);
            let cloexec = kernel::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC != 0;
            if kernel::dup3(self.app(), fd, if cloexec { libc::O_CLOEXEC } else { 0 }) < 0 {
                return Err(errno());
            }
            kernel::fcntl(fd, libc::F_SETFL, (status & libc::O_NONBLOCK) as usize);
            self.nonblocking.store(status & libc::O_NONBLOCK != 0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The light socket reports its readiness.
    pub fn on_ready(&self, ready: Ready) {
        // The host's lock and this one are held: no thread may be cancelled here.
        let _whole = Whole::begin();
        self.shown.with(|shown| {
            shown.latest = ready;
            self.show(shown);
        });
    }

    /// The caller is going to wait for the program's end of the pair.
    pub fn look(&self) {
        let _whole = Whole::begin();
        self.shown.with(|shown| {
            shown.lookers += 1;
            self.show(shown);
        });
    }

    /// The caller no longer waits.
    pub fn look_away(&self) {
        self.shown.with(|shown| shown.lookers -= 1);
    }

    /// From now on the pair is always up to date.
    pub fn look_always(&self, edge: bool) {
        let _whole = Whole::begin();
        self.shown.with(|shown| {
            shown.always = true;
            shown.edge |= edge;
            self.show(shown);
        });
    }

    /// From now on the program's end carries attempts to connect, which wake the waiting callers.
    pub fn divert(&self) {
        self.shown.with(|_| {
            if !self.diverted.swap(true, Ordering::Relaxed) {
                drain(self.app.as_raw_fd());
            }
        });
    }

    fn show(&self, shown: &mut Shown) {
        if (shown.lookers == 0 && !shown.always) || self.diverted.load(Ordering::Relaxed) {
            return;
        }
        let ready = shown.latest;
        let (own, app) = (self.own.as_raw_fd(), self.app.as_raw_fd());
        // First of all: each of these steps wakes waiting callers, and a caller that learns of the end has to learn of the
        // hang-up at once.
        if ready.closed && !std::mem::replace(&mut shown.hung_up, true) {
            // SAFETY: a descriptor of ours.
            unsafe { kernel::shutdown(own, libc::SHUT_RDWR) };
        }
        let news = std::mem::replace(&mut shown.news, ready.news) != ready.news;
        let room = std::mem::replace(&mut shown.room, ready.room) != ready.room;
        if ready.readable && (!shown.readable || (shown.edge && news)) {
            put(own, &[0]);
            shown.readable = true;
        } else if !ready.readable && shown.readable {
            drain(app);
            shown.readable = false;
        }
        if ready.writable && shown.full {
            drain(own);
            shown.full = false;
        } else if !ready.writable && !shown.full {
            put(app, &FILLING);
            shown.full = true;
        } else if ready.writable && shown.edge && room {
            // A sender that was refused, and could send again before the refusal was shown, waits for an edge.
            put(app, &FILLING);
            drain(own);
        }
        if ready.peer_closed && !std::mem::replace(&mut shown.ended, true) {
            // SAFETY: a descriptor of ours.
            unsafe { kernel::shutdown(own, libc::SHUT_WR) };
        }
    }

    /// Waits until the light socket is ready for one of `events`, at most `milliseconds`.
    pub fn wait(&self, events: i16, milliseconds: i32) -> Result<(), i32> {
        // A thread may be cancelled here, and nowhere else in a call that waits: it holds no lock.
        let _look = Look::at(self);
        let mut fd = libc::pollfd { fd: self.app.as_raw_fd(), events, revents: 0 };
        // SAFETY: one entry of ours.
        let polled = unsafe { kernel::poll(&raw mut fd, 1, milliseconds) };
        match polled {
            0 => Err(libc::EAGAIN),
            1.. => Ok(()),
            _ => Err(errno()),
        }
    }

    /// Whether there is an attempt to connect in the program's end, or a reason why none will be.
    pub fn has_attempt(&self) -> bool {
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let mut byte = 0u8;
        // SAFETY: room of ours.
        let got = unsafe { kernel::recv(self.app.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        got >= 0 || errno() != libc::EAGAIN
    }

    /// The next attempt to connect in the program's end, or connection.
    pub fn next_attempt(&self) -> Result<Waiting, i32> {
        relay::take(self.app.as_raw_fd())
    }

    /// Puts an open connection into the program's end, as a kernel socket; returns whether there was room.
    pub fn put_open(&self, peer: std::net::SocketAddrV4, socket: RawFd) -> bool {
        relay::put(self.own.as_raw_fd(), peer, socket)
    }

    /// Puts an attempt to connect into the program's end; returns whether there was room.
    pub fn put_attempt(&self, attempt: light::Attempt) -> bool {
        put(self.own.as_raw_fd(), &attempt.to_bytes()) == light::Attempt::BYTES as isize
    }
}

fn put(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: bytes of ours.
    unsafe { kernel::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
}

fn drain(fd: RawFd) {
    let mut bytes = [0u8; 2048];
    // SAFETY: room of ours.
    while unsafe { kernel::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) } == 2048 {}
}

/// A waiting caller, until this is dropped.
struct Look<'a>(&'a Ends);

impl<'a> Look<'a> {
    fn at(ends: &'a Ends) -> Look<'a> {
        ends.look();
        Look(ends)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        keeping_errno(|| self.0.look_away());
    }
}

/// No thread is cancelled while it has one of these: its locks would stay locked.
pub struct Whole(i32);

unsafe extern "C" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

impl Whole {
    pub fn begin() -> Whole {
        const PTHREAD_CANCEL_DISABLE: i32 = 1;
        let mut before = 0;
        // SAFETY: room for a number.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        Whole(before)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: the state from before.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// Keeps the error number of the caller through something that may set it.
pub fn keeping_errno<R>(f: impl FnOnce() -> R) -> R {
    let before = errno();
    let answer = f();
    fail(before);
    answer
}
