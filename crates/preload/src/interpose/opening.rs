//! From an address to a connection.

use crate::environment::wanted;
use crate::relay::Waiting;
use crate::sock::{Kind, ReservedDescriptor, Sock, adopt, adopt_datagram, can_be_light};
use crate::{address, answer, kernel, number, options, process, table};
use libc::{c_int, c_void, sockaddr, socklen_t};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    if table::is_light(fd) {
        return answer(Err(libc::EINVAL)) as c_int;
    }
    // SAFETY: the caller's address.
    let light = unsafe { address::read(to, len) }.zip(wanted()).filter(|(to, wanted)| wanted.is_own(*to.ip()));
    if let Some((to, wanted)) = light
        && let Some(is_stream) = can_be_light(fd)
    {
        let at = SocketAddrV4::new(wanted.address, to.port());
        let bound = if is_stream { adopt(fd, true, Kind::Bound(at)) } else { adopt_datagram(fd, wanted, to.port()) };
        return answer(bound.map(|_| 0)) as c_int;
    }
    // SAFETY: the caller's arguments.
    unsafe { kernel::bind(fd, to, len) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::listen(fd, backlog) };
    };
    answer(begin_to_listen(&sock, backlog).map(|()| 0)) as c_int
}

fn begin_to_listen(sock: &Arc<Sock>, backlog: c_int) -> Result<(), i32> {
    let backlog = backlog.max(0) as usize;
    match &sock.kind {
        Kind::Bound(at) if sock.is_stream => {
            let host = process::host(wanted().ok_or(libc::ENETDOWN)?)?;
            let listener = host.listen(at.port(), backlog).map_err(|e| number(&e))?;
            let at = listener.local_addr();
            sock.become_kind(Kind::Listener(listener, at));
            Ok(())
        }
        Kind::Listener(listener, _) => {
            listener.set_backlog(backlog);
            Ok(())
        }
        Kind::Attempts(_) => Ok(()),
        Kind::Bound(_) | Kind::Datagram(_) => Err(libc::EOPNOTSUPP),
        Kind::Stream(_) | Kind::Foreign => Err(libc::EINVAL),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { accept4(fd, from, len, 0) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::accept4(fd, from, len, flags) };
    };
    match accept_next(&sock, flags) {
        Ok((fd, peer)) => {
            // SAFETY: the caller's room.
            unsafe { address::write(peer, from, len) };
            fd
        }
        Err(e) => answer(Err(e)) as c_int,
    }
}

/// Accepts a connection once there is everything to present it: a connection that was accepted and then has no descriptor
/// would be lost.
fn accept_next(sock: &Sock, flags: c_int) -> Result<(c_int, SocketAddrV4), i32> {
    loop {
        sock.patiently(sock.may_wait(0), libc::POLLIN, || match has_connection(sock) {
            true => Ok(()),
            false => Err(std::io::Error::from_raw_os_error(libc::EAGAIN)),
        })?;
        let reserved = ReservedDescriptor::new(flags)?;
        match next_connection(sock) {
            // Another thread was faster.
            Err(libc::EAGAIN) if sock.may_wait(0) => {}
            next => {
                return match next? {
                    Next::Stream(stream) => {
                        let peer = stream.peer_addr();
                        Ok((reserved.present(stream, &sock.options), peer))
                    }
                    Next::Relayed(peer, socket) => Ok((reserved.present_socket(&socket)?, peer)),
                };
            }
        }
    }
}

/// Whether `next_connection` returns a connection or an error.
fn has_connection(sock: &Sock) -> bool {
    match &sock.kind {
        Kind::Listener(listener, _) if !sock.ends.diverted.load(Ordering::Relaxed) => listener.ready().readable,
        Kind::Listener(..) | Kind::Attempts(_) => sock.ends.has_attempt(),
        _ => true,
    }
}

/// A connection to be accepted.
enum Next {
    Stream(light::TcplightStream),
    /// A connection that the listening process keeps, and the socket that leads to it.
    Relayed(SocketAddrV4, OwnedFd),
}

/// The next connection, if there is one.
fn next_connection(sock: &Sock) -> Result<Next, i32> {
    match &sock.kind {
        Kind::Listener(listener, _) if !sock.ends.diverted.load(Ordering::Relaxed) => {
            listener.accept().map(|(stream, _)| Next::Stream(stream)).map_err(|e| number(&e))
        }
        Kind::Listener(..) | Kind::Attempts(_) => {
            let host = process::host(wanted().ok_or(libc::ENETDOWN)?)?;
            match sock.ends.next_attempt()? {
                Waiting::Attempt(attempt) => host.take_attempt(attempt).map(Next::Stream).map_err(|e| number(&e)),
                Waiting::Open(peer, socket) => Ok(Next::Relayed(peer, socket)),
            }
        }
        Kind::Bound(_) | Kind::Stream(_) => Err(libc::EINVAL),
        Kind::Datagram(_) | Kind::Foreign => Err(libc::EOPNOTSUPP),
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's address.
    let address = unsafe { address::read(to, len) };
    let sock = table::get(fd);
    let light = address.zip(wanted()).filter(|(to, wanted)| wanted.reaches(*to.ip()));
    // SAFETY: the caller's arguments, for a socket that is the kernel's.
    let of_kernel = || unsafe { kernel::connect(fd, to, len) };
    // SAFETY: the caller's address.
    let is_none = unsafe { address::is_none(to, len) };
    let connected = match (sock, light) {
        (Some(sock), _) if is_none && matches!(sock.kind, Kind::Datagram(_)) => {
            if let Kind::Datagram(datagram) = &sock.kind {
                datagram.connect(None);
            }
            Ok(())
        }
        (Some(sock), light) => connect_light(sock, light.map(|(to, _)| to)),
        (None, None) => return of_kernel(),
        (None, Some((to, wanted))) => {
            let sock = match can_be_light(fd) {
                None => return of_kernel(),
                Some(true) => adopt(fd, true, Kind::Bound(SocketAddrV4::new(wanted.address, 0))),
                Some(false) => adopt_datagram(fd, wanted, 0),
            };
            sock.and_then(|sock| connect_light(sock, Some(to)))
        }
    };
    answer(connected.map(|()| 0)) as c_int
}

fn connect_light(sock: Arc<Sock>, to: Option<SocketAddrV4>) -> Result<(), i32> {
    let to = to.ok_or(libc::ENETUNREACH);
    match &sock.kind {
        Kind::Datagram(datagram) => {
            datagram.connect(Some(to?));
            Ok(())
        }
        Kind::Bound(at) if sock.is_stream => {
            let host = process::host(wanted().ok_or(libc::ENETDOWN)?)?;
            let port = (at.port() != 0).then_some(at.port());
            let stream = host.connect_from(port, to?).map_err(|e| number(&e))?;
            sock.options.bound_port.store(at.port(), Ordering::Relaxed);
            sock.options.connecting.store(true, Ordering::Relaxed);
            let sock = sock.become_kind(Kind::Stream(stream));
            if !sock.may_wait(0) {
                return Err(libc::EINPROGRESS);
            }
            finish_connect(&sock)
        }
        Kind::Stream(stream) if stream.is_opening() => {
            if sock.may_wait(0) {
                finish_connect(&sock)
            } else {
                Err(libc::EALREADY)
            }
        }
        // A program that calls `connect` again for the result gets it once.
        Kind::Stream(_) if sock.options.connecting.load(Ordering::Relaxed) => finish_connect(&sock),
        Kind::Stream(stream) if sock.options.failed.load(Ordering::Relaxed) => {
            let port = sock.options.bound_port.load(Ordering::Relaxed);
            let anew = sock.begin_anew(SocketAddrV4::new(*stream.local_addr().ip(), port))?;
            // With the old stream its port is free.
            drop(sock);
            connect_light(anew, Some(to?))
        }
        Kind::Stream(_) => Err(libc::EISCONN),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// Waits until a stream is open, or was refused.
fn finish_connect(sock: &Sock) -> Result<(), i32> {
    let Kind::Stream(stream) = &sock.kind else { return Ok(()) };
    let opened = || match stream.is_opening() {
        true => Err(std::io::ErrorKind::WouldBlock.into()),
        false => Ok(()),
    };
    match sock.patiently(true, libc::POLLOUT, opened) {
        Err(libc::EAGAIN) => return Err(libc::EINPROGRESS),
        waited => waited?,
    }
    sock.options.connecting.store(false, Ordering::Relaxed);
    if !stream.ready().closed {
        return Ok(());
    }
    // As in the kernel after SO_ERROR has reported the reason already: the connection is gone all the same.
    sock.options.failed.store(true, Ordering::Relaxed);
    Err(stream.take_error().map_or(libc::ECONNABORTED, |e| number(&e)))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::shutdown(fd, how) };
    };
    let done = match (how, &sock.kind) {
        (libc::SHUT_RD, Kind::Stream(stream)) => stream.shutdown(Shutdown::Read).map_err(|e| number(&e)),
        (libc::SHUT_WR, Kind::Stream(stream)) => stream.shutdown(Shutdown::Write).map_err(|e| number(&e)),
        (libc::SHUT_RDWR, Kind::Stream(stream)) => stream.shutdown(Shutdown::Both).map_err(|e| number(&e)),
        (libc::SHUT_RD | libc::SHUT_RDWR, Kind::Datagram(datagram)) => {
            datagram.shutdown_read();
            Ok(())
        }
        (libc::SHUT_WR, Kind::Datagram(_)) => Ok(()),
        (libc::SHUT_RD..=libc::SHUT_RDWR, Kind::Foreign) => Err(libc::EOPNOTSUPP),
        (libc::SHUT_RD..=libc::SHUT_RDWR, _) => Err(libc::ENOTCONN),
        _ => Err(libc::EINVAL),
    };
    answer(done.map(|()| 0)) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, into: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::getsockname(fd, into, len) };
    };
    let own = match &sock.kind {
        Kind::Bound(at) | Kind::Listener(_, at) | Kind::Attempts(at) => *at,
        Kind::Stream(stream) => stream.local_addr(),
        Kind::Datagram(datagram) => datagram.local_addr(),
        Kind::Foreign => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
    };
    // SAFETY: the caller's room.
    unsafe { address::write(own, into, len) };
    0
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, into: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::getpeername(fd, into, len) };
    };
    let peer = match &sock.kind {
        // A stream that is gone had a peer, too, which servers like to log.
        Kind::Stream(stream) if !stream.is_opening() => Some(stream.peer_addr()),
        Kind::Datagram(datagram) => datagram.peer_addr(),
        _ => None,
    };
    let Some(peer) = peer else { return answer(Err(libc::ENOTCONN)) as c_int };
    // SAFETY: the caller's room.
    unsafe { address::write(peer, into, len) };
    0
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    into: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::getsockopt(fd, level, name, into, len) };
    };
    // SAFETY: the caller's room.
    answer(unsafe { options::get(&sock, level, name, into, len) }) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::setsockopt(fd, level, name, value, len) };
    };
    // SAFETY: the caller's value.
    answer(unsafe { options::set(&sock, level, name, value, len) }) as c_int
}
