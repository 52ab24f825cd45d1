//! Descriptors: closed, copied, set.

use crate::environment::say;
use crate::mirror::keeping_errno;
use crate::sock::{Kind, Sock};
use crate::{answer, kernel, own, process, registered, table};
use libc::{c_int, c_ulong};
use std::sync::atomic::Ordering;

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if own::is_own(fd) {
        // The program has not opened this number: it closes all numbers there may be.
        return answer(Err(libc::EBADF)) as c_int;
    }
    if process::owns_memory() {
        registered::forget(fd);
    }
    // The child of a vfork closes its own copies, and leaves the memory of its parent alone.
    let sock = if table::is_light(fd) && process::owns_memory() { table::set(fd, None) } else { None };
    // SAFETY: the caller's argument.
    let closed = unsafe { kernel::close(fd) };
    keeping_errno(|| drop(sock));
    closed
}

/// Descriptors from `first` to `last` are no light sockets any more.
fn forget(first: u32, last: u32) {
    if process::owns_memory() {
        let gone = table::all().into_iter().filter(|(fd, _)| (first..=last).contains(&(*fd as u32)));
        keeping_errno(|| gone.for_each(|(fd, _)| drop(table::set(fd, None))));
        (first..=last.min(table::FDS as u32 - 1)).for_each(|fd| registered::forget(fd as c_int));
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    if flags as u32 & libc::CLOSE_RANGE_CLOEXEC == 0 {
        forget(first, last);
    }
    if first > last {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::close_range(first, last, flags) };
    }
    // SAFETY: parts of the range that the caller closes.
    let all =
        own::others(first, last).into_iter().map(|(first, last)| unsafe { kernel::close_range(first, last, flags) });
    all.min().unwrap_or(0)
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0) as u32;
    forget(first, u32::MAX);
    for (first, last) in own::others(first, u32::MAX) {
        // SAFETY: parts of the range that the caller closes.
        unsafe {
            if last == u32::MAX {
                kernel::closefrom(first as c_int);
            } else if kernel::close_range(first, last, 0) != 0 {
                // An old kernel does not have that call.
                for fd in first..=last {
                    kernel::close(fd as c_int);
                }
            }
        }
    }
}

/// A descriptor is a copy of another one now.
fn copied(from: c_int, to: c_int) -> c_int {
    if to < 0 || to == from || !process::owns_memory() {
        return to;
    }
    registered::forget(to);
    let sock = table::get(from);
    if sock.is_some() && to as usize >= table::FDS {
        say("a copy of a light socket has too large a number: it stays the kernel's");
    }
    keeping_errno(|| drop(table::set(to, sock)));
    to
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the caller's argument.
    copied(fd, unsafe { kernel::dup(fd) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if own::is_own(to) {
        return answer(Err(libc::EBADF)) as c_int;
    }
    // SAFETY: the caller's arguments.
    copied(fd, unsafe { kernel::dup2(fd, to) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if own::is_own(to) {
        return answer(Err(libc::EBADF)) as c_int;
    }
    // SAFETY: the caller's arguments.
    copied(fd, unsafe { kernel::dup3(fd, to, flags) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments.
    let answer = unsafe { kernel::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, answer),
        libc::F_SETFL if answer == 0 => {
            if let Some(sock) = table::get(fd) {
                sock.ends.nonblocking.store(argument as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
            }
            answer
        }
        _ => answer,
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { fcntl(fd, command, argument) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    let Some(sock) = table::get(fd) else {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::ioctl(fd, request, argument) };
    };
    let place = argument as *mut c_int;
    match request {
        libc::FIONREAD | libc::TIOCOUTQ if place.is_null() => answer(Err(libc::EFAULT)) as c_int,
        libc::FIONREAD => {
            // SAFETY: the caller's number.
            unsafe { *place = readable(&sock) as c_int };
            0
        }
        // Nothing waits to be sent: sent bytes are the switch's.
        libc::TIOCOUTQ => {
            // SAFETY: as above.
            unsafe { *place = 0 };
            0
        }
        _ => {
            // SAFETY: the caller's arguments.
            let done = unsafe { kernel::ioctl(fd, request, argument) };
            if request == libc::FIONBIO && done == 0 {
                // SAFETY: the number that the kernel has read.
                sock.ends.nonblocking.store(unsafe { *place } != 0, Ordering::Relaxed);
            }
            done
        }
    }
}

fn readable(sock: &Sock) -> usize {
    match &sock.kind {
        Kind::Stream(stream) => stream.readable_bytes(),
        Kind::Datagram(datagram) => datagram.next_len().unwrap_or(0),
        _ => 0,
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    process::end();
    // SAFETY: the caller's argument.
    unsafe { kernel::_exit(status) };
    unreachable!("the process has ended")
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: the caller's argument.
    unsafe { _exit(status) }
}
