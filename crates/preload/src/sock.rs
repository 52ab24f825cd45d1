//! A light socket as a program has it.

use crate::environment::Wanted;
use crate::mirror::Ends;
use crate::spin::Spin;
use crate::{kernel, number, options, process, registered, relay, table};
use libc::{c_int, c_void, socklen_t};
use light::{LightDatagram, TcplightListener, TcplightStream};
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, Ordering};

/// The kind of a socket.
pub enum Kind {
    /// A socket with an address that is neither connected nor listening.
    Bound(SocketAddrV4),
    Stream(TcplightStream),
    Listener(TcplightListener, SocketAddrV4),
    Datagram(LightDatagram),
    /// A listener of the process this one was forked from: attempts to connect come through its descriptor.
    Attempts(SocketAddrV4),
    /// A stream or datagram socket of the parent process, which cannot be used here.
    Foreign,
}

pub struct Sock {
    pub kind: Kind,
    pub ends: Arc<Ends>,
    pub is_stream: bool,
    pub options: Arc<Options>,
}

/// The options of `setsockopt` that have an effect here.
#[derive(Default)]
pub struct Options {
    /// Milliseconds for which reading and writing wait; 0 for ever.
    pub receive_timeout: AtomicI32,
    pub send_timeout: AtomicI32,
    /// Seconds of SO_LINGER, or -1.
    pub linger: AtomicI32,
    /// Whether the stream was opening when `connect` returned, and `connect` has not reported the result since.
    pub connecting: AtomicBool,
    /// Whether `connect` has reported a failure, so that the socket can connect again.
    pub failed: AtomicBool,
    /// The port it was bound to before it was connected; 0 where none.
    pub bound_port: AtomicU16,
    /// Values of the options without an effect here, for `getsockopt`. Held across a fork.
    pub values: Spin<Vec<(Name, c_int)>>,
}

/// The level and the name of an option.
pub type Name = (c_int, c_int);

impl Options {
    /// The options that an accepted connection inherits from its listener, as in the kernel.
    fn of_accepted(&self) -> Options {
        let copy = |value: &AtomicI32| AtomicI32::new(value.load(Ordering::Relaxed));
        Options {
            receive_timeout: copy(&self.receive_timeout),
            send_timeout: copy(&self.send_timeout),
            linger: copy(&self.linger),
            values: Spin::new(self.values.with(|values| values.clone())),
            ..Options::default()
        }
    }
}

impl Sock {
    /// A socket of another kind on the same descriptor.
    fn with(&self, kind: Kind) -> Arc<Sock> {
        let Sock { ends, is_stream, options, .. } = self;
        Arc::new(Sock { kind, ends: ends.clone(), is_stream: *is_stream, options: options.clone() })
    }

    /// Every descriptor of this socket becomes one of another kind.
    pub fn become_kind(self: &Arc<Sock>, kind: Kind) -> Arc<Sock> {
        let new = self.with(kind);
        new.watch();
        table::replace(self, &new);
        new
    }

    /// Turns every descriptor of this failed stream into a socket that can connect, on a new pair: the old pair stays hung
    /// up.
    pub fn begin_anew(self: &Arc<Sock>, address: SocketAddrV4) -> Result<Arc<Sock>, i32> {
        let ends = Ends::new()?;
        for (fd, _) in table::all().iter().filter(|(_, sock)| Arc::ptr_eq(sock, self)) {
            ends.put_at(*fd)?;
            look_again(*fd, &ends);
        }
        let Sock { is_stream, options, .. } = &**self;
        options.failed.store(false, Ordering::Relaxed);
        let new = Arc::new(Sock { kind: Kind::Bound(address), ends, is_stream: *is_stream, options: options.clone() });
        new.watch();
        drop(table::replace(self, &new));
        Ok(new)
    }

    /// The socket as a child of this process has it.
    pub fn inherited(&self) -> Arc<Sock> {
        self.with(match &self.kind {
            Kind::Bound(address) => Kind::Bound(*address),
            Kind::Listener(_, address) => Kind::Attempts(*address),
            Kind::Attempts(address) => Kind::Attempts(*address),
            Kind::Stream(_) | Kind::Datagram(_) | Kind::Foreign => Kind::Foreign,
        })
    }

    /// Has the pair show the socket's readiness.
    fn watch(&self) {
        let ends = self.ends.clone();
        let watch: light::Watch = Box::new(move |ready| ends.on_ready(ready));
        match &self.kind {
            Kind::Stream(stream) => {
                stream.set_nonblocking(true);
                stream.set_watch(Some(watch));
            }
            Kind::Listener(listener, _) => {
                listener.set_nonblocking(true);
                listener.set_watch(Some(watch));
            }
            Kind::Datagram(datagram) => {
                datagram.set_nonblocking(true);
                datagram.set_watch(Some(watch));
            }
            // As the kernel has it: nothing to read, and hung up.
            Kind::Bound(_) => self.ends.on_ready(light::Ready { writable: true, ..light::Ready::default() }),
            Kind::Attempts(_) | Kind::Foreign => {}
        }
    }

    /// Attempts to connect go through the descriptor from now on, for whichever process accepts first.
    pub fn divert(&self) {
        let Kind::Listener(listener, _) = &self.kind else { return };
        if !self.ends.diverted.load(Ordering::Relaxed) {
            self.ends.divert();
            let ends = self.ends.clone();
            let open = listener.divert(Box::new(move |attempt| ends.put_attempt(attempt)));
            // Open streams cannot move to another process's port: they go on by way of this process.
            open.into_iter().for_each(|stream| relay::offer(&self.ends, stream));
        }
    }

    /// Whether a call with these flags may wait.
    pub fn may_wait(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && !self.ends.nonblocking.load(Ordering::Relaxed)
    }

    /// Repeats a call that returns `EAGAIN` until it succeeds, unless it may not wait.
    pub fn patiently<R>(
        &self,
        may_wait: bool,
        events: i16,
        mut f: impl FnMut() -> std::io::Result<R>,
    ) -> Result<R, i32> {
        loop {
            match f() {
                Ok(done) => return Ok(done),
                Err(e) if may_wait && e.kind() == std::io::ErrorKind::WouldBlock => {
                    let timeout = if events & libc::POLLIN != 0 {
                        self.options.receive_timeout.load(Ordering::Relaxed)
                    } else {
                        self.options.send_timeout.load(Ordering::Relaxed)
                    };
                    self.ends.wait(events, if timeout == 0 { -1 } else { timeout })?;
                }
                Err(e) => return Err(number(&e)),
            }
        }
    }
}

impl Drop for Sock {
    fn drop(&mut self) {
        if let Kind::Stream(stream) = &self.kind
            && self.options.linger.load(Ordering::Relaxed) == 0
        {
            stream.abort();
        }
    }
}

/// A descriptor is now one end of another pair, which its `epoll` has to watch instead.
fn look_again(fd: c_int, ends: &Ends) {
    if let Some(edge) = registered::redo(fd) {
        ends.look_always(edge);
    }
}

/// An option of a kernel's socket.
fn option<T: Default>(fd: c_int, name: c_int) -> Option<T> {
    option_at(fd, (libc::SOL_SOCKET, name))
}

fn option_at<T: Default>(fd: c_int, (level, name): Name) -> Option<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: room for a value of this size.
    let got = unsafe { kernel::getsockopt(fd, level, name, (&raw mut value).cast::<c_void>(), &raw mut len) };
    (got == 0 && len as usize == size_of::<T>()).then_some(value)
}

/// Whether a descriptor is a kernel's socket that can become a light one: IPv4, for streams (`Some(true)`) or datagrams.
pub fn can_be_light(fd: c_int) -> Option<bool> {
    if option::<c_int>(fd, libc::SO_DOMAIN)? != libc::AF_INET {
        return None;
    }
    match (option::<c_int>(fd, libc::SO_TYPE)?, option::<c_int>(fd, libc::SO_PROTOCOL)?) {
        (libc::SOCK_STREAM, libc::IPPROTO_TCP) => Some(true),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Some(false),
        _ => None,
    }
}

/// Puts a light socket in the place of a kernel's.
pub fn adopt(fd: c_int, is_stream: bool, kind: Kind) -> Result<Arc<Sock>, i32> {
    if fd as usize >= table::FDS {
        return Err(libc::EMFILE);
    }
    let ends = Ends::new()?;
    let options = Options::default();
    options.linger.store(-1, Ordering::Relaxed);
    if let Some([on, seconds]) = option::<[c_int; 2]>(fd, libc::SO_LINGER)
        && on != 0
    {
        options.linger.store(seconds, Ordering::Relaxed);
    }
    let timeout = |name| option::<[i64; 2]>(fd, name).map_or(0, milliseconds);
    options.receive_timeout.store(timeout(libc::SO_RCVTIMEO), Ordering::Relaxed);
    options.send_timeout.store(timeout(libc::SO_SNDTIMEO), Ordering::Relaxed);
    let kept = options::KEPT.iter().filter(|(name, _)| is_stream || name.0 != libc::IPPROTO_TCP);
    let kept = kept.filter_map(|&(name, _)| Some((name, option_at(fd, name)?))).collect();
    options.values.with(|values| *values = kept);
    ends.put_at(fd)?;
    let sock = Arc::new(Sock { kind, ends, is_stream, options: Arc::new(options) });
    sock.watch();
    drop(table::set(fd, Some(sock.clone())));
    look_again(fd, &sock.ends);
    Ok(sock)
}

/// A descriptor for a stream that is still to be accepted; closed again where none is.
pub struct ReservedDescriptor {
    ends: Arc<Ends>,
    fd: OwnedFd,
}

impl ReservedDescriptor {
    /// A new descriptor with the flags of `accept4`.
    pub fn new(flags: c_int) -> Result<ReservedDescriptor, i32> {
        let ends = Ends::new()?;
        let command = if flags & libc::SOCK_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
        // SAFETY: descriptors, and no memory.
        let fd = unsafe { kernel::fcntl(ends.app(), command, 0) };
        if fd < 0 {
            return Err(kernel::errno());
        }
        // SAFETY: a descriptor without another owner.
        let reserved = ReservedDescriptor { ends, fd: unsafe { OwnedFd::from_raw_fd(fd) } };
        if fd as usize >= table::FDS {
            return Err(libc::EMFILE);
        }
        if flags & libc::SOCK_NONBLOCK != 0 {
            // SAFETY: the descriptor made just now.
            unsafe { kernel::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize) };
            reserved.ends.nonblocking.store(true, Ordering::Relaxed);
        }
        Ok(reserved)
    }

    /// The descriptor, which is from now on a kernel's socket.
    pub fn present_socket(self, socket: &OwnedFd) -> Result<c_int, i32> {
        // SAFETY: descriptors, and no memory.
        unsafe {
            let (cloexec, status) =
                (kernel::fcntl(self.fd.as_raw_fd(), libc::F_GETFD, 0), self.ends.nonblocking.load(Ordering::Relaxed));
            let flags = if cloexec & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
            if kernel::dup3(socket.as_raw_fd(), self.fd.as_raw_fd(), flags) < 0 {
                return Err(kernel::errno());
            }
            if status {
                kernel::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK as usize);
            }
        }
        Ok(self.fd.into_raw_fd())
    }

    /// The descriptor, which is from now on this stream's, of a listener with these options.
    pub fn present(self, stream: TcplightStream, options: &Options) -> c_int {
        let options = options.of_accepted();
        let ReservedDescriptor { ends, fd } = self;
        let sock = Arc::new(Sock { kind: Kind::Stream(stream), ends, is_stream: true, options: Arc::new(options) });
        sock.watch();
        let fd = fd.into_raw_fd();
        drop(table::set(fd, Some(sock)));
        fd
    }
}

/// Milliseconds of seconds and microseconds; a timeout that is too long becomes endless.
pub fn milliseconds([seconds, micros]: [i64; 2]) -> c_int {
    let least = i64::from(seconds > 0 || micros > 0);
    seconds.saturating_mul(1_000).saturating_add(micros / 1_000).max(least).try_into().unwrap_or(0)
}

/// A datagram socket in the place of a kernel's, at a port or any.
pub fn adopt_datagram(fd: c_int, wanted: &Wanted, port: u16) -> Result<Arc<Sock>, i32> {
    let datagram = process::host(wanted)?.bind_datagram(port).map_err(|e| number(&e))?;
    adopt(fd, false, Kind::Datagram(datagram))
}
