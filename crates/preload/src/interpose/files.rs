//! `FILE *` of light sockets: those that `fdopen` makes read and write by the calls here, since the C library's own go past
//! them.

use super::descriptors::{close, dup3};
use super::transfer::{read, write};
use crate::mirror::keeping_errno;
use crate::spin::Spin;
use crate::{fail, kernel, process, registered, table};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The light files, by their address, with their descriptors.
pub static FILES: Spin<Vec<(usize, c_int)>> = Spin::new(Vec::new());
/// The modes of a `FILE`, in its first word (glibc's `_IO_NO_READS`, `_IO_NO_WRITES`, `_IO_IS_APPENDING`, part of its ABI).
const NO_READS: c_int = 0x4;
const NO_WRITES: c_int = 0x8;
const IS_APPENDING: c_int = 0x1000;
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The C library's `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
    fn __fpurge(file: *mut FILE);
}

unsafe extern "C-unwind" fn read_cookie(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's own memory.
    unsafe { read(cookie as usize as c_int, into.cast(), len) }
}

unsafe extern "C-unwind" fn write_cookie(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // A failure is reported here as nothing written.
    // SAFETY: as above.
    unsafe { write(cookie as usize as c_int, from.cast(), len) }.max(0)
}

unsafe extern "C-unwind" fn seek_cookie(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    let fd = cookie as usize as c_int;
    if table::is_light(fd) {
        return fail(libc::ESPIPE) as c_int;
    }
    // `freopen` has put another file in place of the socket.
    // SAFETY: the C library's own number.
    let at = unsafe { libc::lseek(fd, *offset, whence) };
    if at < 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { *offset = at };
    0
}

unsafe extern "C-unwind" fn close_cookie(cookie: *mut c_void) -> c_int {
    // SAFETY: a descriptor.
    unsafe { close(cookie as usize as c_int) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if !table::is_light(fd) {
        // SAFETY: the caller's arguments.
        return unsafe { kernel::fdopen(fd, mode) };
    }
    // SAFETY: the caller's text.
    if mode.is_null() || !matches!(unsafe { *mode } as u8, b'r' | b'w' | b'a') {
        fail(libc::EINVAL);
        return null_mut();
    }
    let functions = CookieFunctions { read: read_cookie, write: write_cookie, seek: seek_cookie, close: close_cookie };
    // SAFETY: functions of ours, that take a number for a cookie.
    let file = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !file.is_null() {
        FILES.with(|files| files.push((file as usize, fd)));
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    file
}

/// The descriptor of one of those here.
fn descriptor(file: *mut FILE) -> Option<c_int> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    FILES.with(|files| files.iter().find(|(known, _)| *known == file as usize).map(|&(_, fd)| fd))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fileno(file: *mut FILE) -> c_int {
    // SAFETY: the caller's argument.
    descriptor(file).unwrap_or_else(|| unsafe { kernel::fileno(file) })
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fileno_unlocked(file: *mut FILE) -> c_int {
    // SAFETY: the caller's argument.
    unsafe { fileno(file) }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if descriptor(file).is_some() {
        // SAFETY: the caller's argument; its unwritten bytes are sent while it is still known.
        let flushed = unsafe { libc::fflush(file) };
        let why = kernel::errno();
        FILES.with(|files| files.retain(|(known, _)| *known != file as usize));
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller's argument, which closes the descriptor by the call here.
        let closed = unsafe { kernel::fclose(file) };
        return if flushed != 0 { fail(why) as c_int } else { closed };
    }
    // The file was made before its socket became light, or belongs to anything else: the C library closes the number itself.
    // SAFETY: the caller's argument.
    let fd = if file.is_null() { -1 } else { keeping_errno(|| unsafe { kernel::fileno(file) }) };
    let sock = if table::is_light(fd) && process::owns_memory() { table::set(fd, None) } else { None };
    registered::forget(fd);
    // SAFETY: as above.
    let closed = unsafe { kernel::fclose(file) };
    keeping_errno(|| drop(sock));
    closed
}

/// A mode of `fopen`: flags for `open`, whether it reads and whether it writes.
fn flags_of(mode: &[u8]) -> Option<(c_int, bool, bool)> {
    let both = mode.contains(&b'+');
    let (flags, reads, writes) = match mode.first()? {
        b'r' => (0, true, both),
        b'w' => (libc::O_CREAT | libc::O_TRUNC, both, true),
        b'a' => (libc::O_CREAT | libc::O_APPEND, both, true),
        _ => return None,
    };
    let way = match (reads, writes) {
        (true, true) => libc::O_RDWR,
        (true, false) => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let once = if mode.contains(&b'x') { libc::O_EXCL } else { 0 };
    let cloexec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some((flags | way | once | cloexec, reads, writes))
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    let Some(fd) = descriptor(file) else {
        // The C library closes the number past us, as in `fclose`.
        // SAFETY: the caller's argument.
        let fd = if file.is_null() { -1 } else { keeping_errno(|| unsafe { kernel::fileno(file) }) };
        let sock = if table::is_light(fd) && process::owns_memory() { table::set(fd, None) } else { None };
        registered::forget(fd);
        // SAFETY: the caller's arguments.
        let opened = unsafe { kernel::freopen(path, mode, file) };
        keeping_errno(|| drop(sock));
        return opened;
    };
    // SAFETY: the caller's file, and texts; those that `open` and `dup3` take.
    unsafe {
        // The C library leaves a file alone that is not of its own kind: the file behind it is replaced.
        libc::fflush(file);
        let opened = if path.is_null() || mode.is_null() {
            // There is no path to a socket.
            Err(if mode.is_null() { libc::EINVAL } else { libc::ENXIO })
        } else {
            flags_of(CStr::from_ptr(mode).to_bytes()).ok_or(libc::EINVAL).and_then(|(flags, reads, writes)| {
                let opened = libc::open(path, flags, 0o666);
                if opened < 0 { Err(kernel::errno()) } else { Ok((opened, flags & libc::O_CLOEXEC, reads, writes)) }
            })
        };
        let put = opened.and_then(|(opened, cloexec, reads, writes)| {
            let put = dup3(opened, fd, cloexec);
            let why = kernel::errno();
            kernel::close(opened);
            if put < 0 { Err(why) } else { Ok((reads, writes)) }
        });
        match put {
            Ok((reads, writes)) => {
                __fpurge(file);
                libc::clearerr(file);
                let flags = file.cast::<c_int>();
                *flags &= !(NO_READS | NO_WRITES | IS_APPENDING);
                *flags |= if reads { 0 } else { NO_READS } | if writes { 0 } else { NO_WRITES };
                file
            }
            Err(why) => {
                fclose(file);
                fail(why);
                null_mut()
            }
        }
    }
}

/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // SAFETY: the caller's arguments.
    unsafe { freopen(path, mode, file) }
}

/// The process ends: unwritten bytes are sent while the connection is open.
pub fn flush() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        for (file, _) in FILES.with(|files| files.clone()) {
            // SAFETY: one that was not closed.
            unsafe { libc::fflush(file as *mut FILE) };
        }
    }
}
