//! Bytes and datagrams to light sockets and from them.

use crate::environment::wanted;
use crate::sock::{Kind, Sock, adopt_datagram, can_be_light};
use crate::{address, kernel, table};
use libc::{c_int, iovec, msghdr, sockaddr, socklen_t};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddrV4;
use std::sync::Arc;

/// Pieces of memory in one call (as Linux has it).
const PIECES_MAX: usize = 1024;
/// Bytes of a file that are sent in one piece.
const FILE_PIECE: usize = 256 << 10;

const SEND_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM | libc::MSG_DONTROUTE;
const RECEIVE_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_TRUNC | libc::MSG_CMSG_CLOEXEC;

/// Pieces of a program's memory.
///
/// # Safety
/// As for `readv` of the C library.
unsafe fn pieces<'a>(of: *const iovec, count: usize) -> Result<&'a [iovec], i32> {
    match count {
        0 => Ok(&[]),
        // SAFETY: by the caller's promise.
        1..=PIECES_MAX => Ok(unsafe { std::slice::from_raw_parts(of, count) }),
        _ => Err(libc::EMSGSIZE),
    }
}

/// # Safety
/// As for `writev` of the C library.
pub unsafe fn to_send<'a>(of: *const iovec, count: usize) -> Result<Vec<IoSlice<'a>>, i32> {
    // SAFETY: by the caller's promise.
    let pieces = unsafe { pieces(of, count)? }.iter().filter(|piece| piece.iov_len > 0);
    // SAFETY: as above.
    Ok(pieces.map(|p| IoSlice::new(unsafe { std::slice::from_raw_parts(p.iov_base.cast(), p.iov_len) })).collect())
}

/// # Safety
/// As for `readv` of the C library.
pub unsafe fn to_fill<'a>(of: *const iovec, count: usize) -> Result<Vec<IoSliceMut<'a>>, i32> {
    // SAFETY: by the caller's promise.
    let pieces = unsafe { pieces(of, count)? }.iter().filter(|piece| piece.iov_len > 0);
    // SAFETY: as above.
    Ok(pieces
        .map(|p| IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(p.iov_base.cast(), p.iov_len) }))
        .collect())
}

/// Sends; on a stream all bytes, if it may wait.
pub fn send(sock: &Sock, mut from: &mut [IoSlice<'_>], flags: c_int, to: Option<SocketAddrV4>) -> Result<usize, i32> {
    if flags & !SEND_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let may_wait = sock.may_wait(flags);
    match &sock.kind {
        Kind::Stream(stream) => {
            let mut sent = 0;
            loop {
                match sock.patiently(may_wait, libc::POLLOUT, || stream.send(from)) {
                    Ok(n) => {
                        sent += n;
                        IoSlice::advance_slices(&mut from, n);
                        if from.is_empty() || !may_wait {
                            return Ok(sent);
                        }
                    }
                    Err(_) if sent > 0 => return Ok(sent),
                    Err(libc::EPIPE) if flags & libc::MSG_NOSIGNAL == 0 => {
                        // SAFETY: the kernel's sockets do the same to a program that does not want to know.
                        unsafe { libc::raise(libc::SIGPIPE) };
                        return Err(libc::EPIPE);
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Kind::Datagram(datagram) => sock.patiently(may_wait, libc::POLLOUT, || datagram.send(to, from)),
        Kind::Foreign => Err(libc::EOPNOTSUPP),
        Kind::Bound(_) | Kind::Listener(..) | Kind::Attempts(_) => Err(libc::ENOTCONN),
    }
}

/// A sending socket, and the destination, if the call names one.
pub type Sender = (Arc<Sock>, Option<SocketAddrV4>);

/// The result of a receiving call.
pub struct Got {
    /// Bytes in the program's memory, and of the datagram.
    pub len: usize,
    pub whole: usize,
    pub from: Option<SocketAddrV4>,
}

/// Receives.
pub fn receive(sock: &Sock, into: &mut [IoSliceMut<'_>], flags: c_int) -> Result<Got, i32> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(libc::EAGAIN);
    }
    if flags & !RECEIVE_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let may_wait = sock.may_wait(flags);
    let peek = flags & libc::MSG_PEEK != 0;
    match &sock.kind {
        Kind::Stream(stream) => {
            let (mut got, mut rest) = (0, &mut into[..]);
            loop {
                let read = sock
                    .patiently(may_wait, libc::POLLIN, || if peek { stream.peek(rest) } else { stream.receive(rest) });
                match read {
                    Ok(n) => {
                        got += n;
                        if n > 0 && !peek && may_wait && flags & libc::MSG_WAITALL != 0 {
                            IoSliceMut::advance_slices(&mut rest, n);
                            if !rest.is_empty() {
                                continue;
                            }
                        }
                        return Ok(Got { len: got, whole: got, from: None });
                    }
                    Err(_) if got > 0 => return Ok(Got { len: got, whole: got, from: None }),
                    Err(e) => return Err(e),
                }
            }
        }
        Kind::Datagram(datagram) => {
            let room: usize = into.iter().map(|slice| slice.len()).sum();
            let (whole, from) = sock.patiently(may_wait, libc::POLLIN, || datagram.receive(into, peek))?;
            Ok(Got { len: whole.min(room), whole, from: Some(from) })
        }
        Kind::Foreign => Err(libc::EOPNOTSUPP),
        Kind::Bound(_) | Kind::Listener(..) | Kind::Attempts(_) => Err(libc::ENOTCONN),
    }
}

/// The light socket of a descriptor, also one that becomes light because its datagram goes to the light network; `None` for
/// one of the kernel's.
///
/// # Safety
/// `to` has to be an address of `len` bytes, or null.
pub unsafe fn sender(fd: c_int, to: *const sockaddr, len: socklen_t) -> Result<Option<Sender>, i32> {
    // SAFETY: by the caller's promise.
    let to = unsafe { address::read(to, len) };
    if let Some(sock) = table::get(fd) {
        return Ok(Some((sock, to)));
    }
    match to.zip(wanted()).filter(|(to, wanted)| wanted.reaches(*to.ip())) {
        Some((light, wanted)) if can_be_light(fd) == Some(false) => {
            Ok(Some((adopt_datagram(fd, wanted, 0)?, Some(light))))
        }
        _ => Ok(None),
    }
}

/// # Safety
/// As for `recvmsg` of the C library.
pub unsafe fn receive_message(sock: &Sock, message: *mut msghdr, flags: c_int) -> Result<usize, i32> {
    // SAFETY: by the caller's promise.
    let message = unsafe { &mut *message };
    // SAFETY: as above.
    let mut into = unsafe { to_fill(message.msg_iov, message.msg_iovlen)? };
    let got = receive(sock, &mut into, flags)?;
    match got.from {
        // SAFETY: as above.
        Some(from) => unsafe { address::write(from, message.msg_name.cast(), &raw mut message.msg_namelen) },
        None => message.msg_namelen = 0,
    }
    message.msg_controllen = 0;
    message.msg_flags = if got.whole > got.len { libc::MSG_TRUNC } else { 0 };
    Ok(if flags & libc::MSG_TRUNC != 0 { got.whole } else { got.len })
}

/// Sends a part of a file.
///
/// # Safety
/// As for `sendfile` of the C library.
pub unsafe fn send_file(sock: &Sock, file: c_int, offset: *mut libc::off_t, count: usize) -> Result<usize, i32> {
    // SAFETY: the caller's offset, or the file's own.
    let begin = unsafe { if offset.is_null() { libc::lseek(file, 0, libc::SEEK_CUR) } else { *offset } };
    if begin < 0 {
        return Err(libc::EINVAL);
    }
    let mut bytes = vec![0u8; FILE_PIECE.min(count)];
    let mut sent = 0;
    while sent < count {
        let want = bytes.len().min(count - sent);
        // SAFETY: room of ours.
        let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), want, begin + sent as i64) };
        let done = match got {
            0 => break,
            1.. => send(sock, &mut [IoSlice::new(&bytes[..got as usize])], 0, None),
            _ => Err(kernel::errno()),
        };
        match done {
            Ok(n) => {
                sent += n;
                if n < got as usize {
                    break;
                }
            }
            Err(_) if sent > 0 => break,
            Err(e) => return Err(e),
        }
    }
    // SAFETY: as above.
    unsafe {
        if offset.is_null() {
            libc::lseek(file, begin + sent as i64, libc::SEEK_SET);
        } else {
            *offset = begin + sent as i64;
        }
    }
    Ok(sent)
}
