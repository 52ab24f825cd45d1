//! Waiting.

use crate::mirror::keeping_errno;
use crate::wait::Looking;
use crate::{kernel, registered, table};
use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let _looking = Looking::at_entries(fds, count as usize);
        kernel::poll(fds, count, timeout)
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let _looking = Looking::at_entries(fds, count as usize);
        kernel::ppoll(fds, count, timeout, mask)
    }
}

/// # Safety
/// As the C library's, of programs compiled with -D_FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, size: size_t) -> c_int {
    check(count, size);
    // SAFETY: the caller's arguments.
    unsafe { poll(fds, count, timeout) }
}

/// # Safety
/// As the C library's, of programs compiled with -D_FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    size: size_t,
) -> c_int {
    check(count, size);
    // SAFETY: the caller's arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

fn check(count: nfds_t, size: size_t) {
    if count as usize > size / size_of::<pollfd>() {
        crate::environment::say("buffer overflow detected");
        std::process::abort();
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let _looking = Looking::at_sets(count, [read, write, other]);
        kernel::select(count, read, write, other, timeout)
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    other: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        let _looking = Looking::at_sets(count, [read, write, other]);
        kernel::pselect(count, read, write, other, timeout, mask)
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if operation != libc::EPOLL_CTL_DEL
        && let Some(sock) = table::get(fd)
    {
        // SAFETY: the caller's event, if it has one.
        let edge =
            !event.is_null() && unsafe { (&raw const (*event).events).read_unaligned() } & libc::EPOLLET as u32 != 0;
        keeping_errno(|| sock.ends.look_always(edge));
    }
    // SAFETY: the caller's arguments.
    let done = unsafe { kernel::epoll_ctl(epoll, operation, fd, event) };
    if done == 0 {
        // SAFETY: the caller's event, which the kernel has read.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        keeping_errno(|| registered::record(epoll, operation, fd, event));
    }
    done
}
