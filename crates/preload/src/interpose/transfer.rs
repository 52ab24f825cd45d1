//! Sending and receiving.

use crate::sock::Kind;
use crate::transfer::{Got, receive, receive_message, send as send_light, send_file, sender, to_fill, to_send};
use crate::{address, answer, fail, kernel, table};
use libc::{c_int, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};

/// A program's memory to be read from.
unsafe fn bytes<'a>(at: *const c_void, len: size_t) -> IoSlice<'a> {
    if len == 0 {
        return IoSlice::new(&[]);
    }
    // SAFETY: the caller's memory.
    IoSlice::new(unsafe { std::slice::from_raw_parts(at.cast(), len) })
}

/// A program's memory to be written to.
unsafe fn room<'a>(at: *mut c_void, len: size_t) -> IoSliceMut<'a> {
    if len == 0 {
        return IoSliceMut::new(&mut []);
    }
    // SAFETY: the caller's memory.
    IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(at.cast(), len) })
}

/// Bytes received, or, with `MSG_TRUNC`, those of the whole datagram.
fn length(got: &Got, flags: c_int) -> usize {
    if flags & libc::MSG_TRUNC != 0 && got.from.is_some() { got.whole } else { got.len }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::send(fd, from, len, flags) };
    };
    // SAFETY: the caller's memory.
    answer(send_light(&sock, &mut [unsafe { bytes(from, len) }], flags, None))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: the caller's address.
    match unsafe { sender(fd, to, to_len) } {
        // SAFETY: the caller's memory.
        Ok(Some((sock, to))) => answer(send_light(&sock, &mut [unsafe { bytes(from, len) }], flags, to)),
        Err(e) => fail(e),
        // SAFETY: the caller's arguments.
        Ok(None) => unsafe { kernel::sendto(fd, from, len, flags, to, to_len) },
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's message.
    let m = unsafe { &*message };
    // SAFETY: the caller's address.
    match unsafe { sender(fd, m.msg_name.cast(), m.msg_namelen) } {
        // SAFETY: the caller's memory.
        Ok(Some((sock, to))) => answer(
            unsafe { to_send(m.msg_iov, m.msg_iovlen) }.and_then(|mut from| send_light(&sock, &mut from, flags, to)),
        ),
        Err(e) => fail(e),
        // SAFETY: the caller's arguments.
        Ok(None) => unsafe { kernel::sendmsg(fd, message, flags) },
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
    if !table::is_light(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::sendmmsg(fd, messages, count, flags) };
    }
    for i in 0..count.min(1024) {
        // SAFETY: the caller's messages, one after the other.
        let sent = unsafe {
            let message = messages.add(i as usize);
            let sent = sendmsg(fd, &raw const (*message).msg_hdr, flags);
            if sent >= 0 {
                (*message).msg_len = sent as u32;
            }
            sent
        };
        if sent < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
    }
    count.min(1024) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::recv(fd, into, len, flags) };
    };
    // SAFETY: the caller's memory.
    answer(receive(&sock, &mut [unsafe { room(into, len) }], flags).map(|got| length(&got, flags)))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::recvfrom(fd, into, len, flags, from, from_len) };
    };
    // SAFETY: the caller's memory.
    let got = receive(&sock, &mut [unsafe { room(into, len) }], flags);
    answer(got.map(|got| {
        match got.from {
            // SAFETY: the caller's room.
            Some(sender) => unsafe { address::write(sender, from, from_len) },
            // SAFETY: as above; a stream's bytes have no sender's address.
            None if !from_len.is_null() => unsafe { *from_len = 0 },
            None => {}
        }
        length(&got, flags)
    }))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(sock) = table::get(fd).filter(|_| !message.is_null()) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::recvmsg(fd, message, flags) };
    };
    // SAFETY: the caller's message.
    answer(unsafe { receive_message(&sock, message, flags) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    if !table::is_light(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::recvmmsg(fd, messages, count, flags, timeout) };
    }
    for i in 0..count.min(1024) {
        let wait_less = flags & !libc::MSG_WAITFORONE | if i > 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: the caller's messages, one after the other.
        let got = unsafe {
            let message = messages.add(i as usize);
            let got = recvmsg(fd, &raw mut (*message).msg_hdr, wait_less);
            if got >= 0 {
                (*message).msg_len = got as u32;
            }
            got
        };
        if got < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
    }
    count.min(1024) as c_int
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
    if !table::is_light(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::read(fd, into, len) };
    }
    // SAFETY: as above.
    unsafe { recv(fd, into, len, 0) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    if !table::is_light(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::write(fd, from, len) };
    }
    // SAFETY: as above.
    unsafe { send(fd, from, len, 0) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::readv(fd, into, count) };
    };
    // SAFETY: the caller's memory.
    let pieces = unsafe { to_fill(into, count.max(0) as usize) };
    answer(pieces.and_then(|mut pieces| receive(&sock, &mut pieces, 0)).map(|got| got.len))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::writev(fd, from, count) };
    };
    // SAFETY: the caller's memory.
    let pieces = unsafe { to_send(from, count.max(0) as usize) };
    answer(pieces.and_then(|mut pieces| send_light(&sock, &mut pieces, 0, None)))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let Some(sock) = table::get(out) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::sendfile(out, from, offset, count) };
    };
    if !matches!(sock.kind, Kind::Stream(_)) {
        return fail(libc::ENOTCONN);
    }
    // SAFETY: the caller's offset.
    answer(unsafe { send_file(&sock, from, offset, count) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's arguments; offsets are of 64 bits in either.
    unsafe { sendfile(out, from, offset, count) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut i64,
    to: c_int,
    to_at: *mut i64,
    len: size_t,
    flags: u32,
) -> ssize_t {
    if table::is_light(from) || table::is_light(to) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller's arguments.
    unsafe { kernel::splice(from, from_at, to, to_at, len, flags) }
}

// The functions called by programs that were compiled with -D_FORTIFY_SOURCE. They take also the size of the memory, where
// the compiler could not compare it itself.

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, into: *mut c_void, len: size_t, size: size_t) -> ssize_t {
    check(len, size);
    // SAFETY: the caller's arguments.
    unsafe { read(fd, into, len) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, size);
    // SAFETY: the caller's arguments.
    unsafe { recv(fd, into, len, flags) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    len: size_t,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    check(len, size);
    // SAFETY: the caller's arguments.
    unsafe { recvfrom(fd, into, len, flags, from, from_len) }
}

/// A program that would write behind its memory ends, as in the C library.
fn check(len: size_t, size: size_t) {
    if len > size {
        crate::environment::say("buffer overflow detected");
        std::process::abort();
    }
}
