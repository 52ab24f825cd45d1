//! The C library's own functions, which those of the same names here stand in front of.

use libc::{
    FILE, c_char, c_int, c_void, iovec, mmsghdr, msghdr, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Functions found behind this library, each when it is first called.
macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(
            pub unsafe fn $name($($arg: $type),*) -> $answer {
                // Two threads may look for it at once. With a lock, a child that is forked meanwhile would wait for ever.
                static FOUND: AtomicUsize = AtomicUsize::new(0);
                let mut found = FOUND.load(Ordering::Relaxed);
                if found == 0 {
                    found = find(concat!(stringify!($name), "\0"));
                    FOUND.store(found, Ordering::Relaxed);
                }
                // SAFETY: the C library's function of this name has this type.
                let function: unsafe extern "C-unwind" fn($($type),*) -> $answer = unsafe { std::mem::transmute(found) };
                // SAFETY: the caller's own arguments.
                unsafe { function($($arg),*) }
            }
        )*
    };
}

fn find(name: &str) -> usize {
    // SAFETY: a name that ends with zero; the function is called by its own type only.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
    if found.is_null() {
        // Without the C library's function there is nothing to call, and no program that could go on.
        std::process::abort();
    }
    found as usize
}

real! {
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    recv(fd: c_int, into: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, into: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut libc::timespec) -> c_int;
    read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, into: *const iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: u32) -> ssize_t;
    close(fd: c_int) -> c_int;
    close_range(first: u32, last: u32, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    poll(fds: *mut pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: libc::nfds_t, timeout: *const libc::timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, other: *mut libc::fd_set, timeout: *mut libc::timeval) -> c_int;
    pselect(count: c_int, read: *mut libc::fd_set, write: *mut libc::fd_set, other: *mut libc::fd_set, timeout: *const libc::timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    fileno(file: *mut FILE) -> c_int;
    freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    _exit(status: c_int) -> ();
}

/// The error number that the last call left.
pub fn errno() -> i32 {
    // SAFETY: the place of this thread's error number.
    unsafe { *libc::__errno_location() }
}
