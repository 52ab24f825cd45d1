//! `FILE *` of light sockets: those that `fdopen` makes read and write by the calls here, since the C library's own go past them.

use super::descriptors::close;
use super::transfer::{recv, send};
use crate::mirror::keeping_errno;
use crate::spin::Spin;
use crate::{fail, kernel, process, registered, table};
use libc::{FILE, c_char, c_int, c_void, size_t, ssize_t};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Those there are, by their address, with their descriptors.
pub static FILES: Spin<Vec<(usize, c_int)>> = Spin::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The C library's `cookie_io_functions_t`.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C-unwind" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
}

unsafe extern "C-unwind" fn read_cookie(cookie: *mut c_void, into: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the C library's own memory.
    unsafe { recv(cookie as usize as c_int, into.cast(), len, 0) }
}

unsafe extern "C-unwind" fn write_cookie(cookie: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // Nothing written is how a failure is told here.
    // SAFETY: as above.
    unsafe { send(cookie as usize as c_int, from.cast(), len, 0) }.max(0)
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
    let functions = CookieFunctions { read: read_cookie, write: write_cookie, seek: None, close: close_cookie };
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
        // SAFETY: the caller's argument; what it has to write goes while it is still known.
        let flushed = unsafe { libc::fflush(file) };
        let why = kernel::errno();
        FILES.with(|files| files.retain(|(known, _)| *known != file as usize));
        COUNT.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller's argument, which closes the descriptor by the call here.
        let closed = unsafe { kernel::fclose(file) };
        return if flushed != 0 { fail(why) as c_int } else { closed };
    }
    // One that was made before its socket became light, or of anything else: the C library closes the number past us.
    // SAFETY: the caller's argument.
    let fd = if file.is_null() { -1 } else { keeping_errno(|| unsafe { kernel::fileno(file) }) };
    let sock = if table::is_light(fd) && process::owns_memory() { table::set(fd, None) } else { None };
    registered::forget(fd);
    // SAFETY: as above.
    let closed = unsafe { kernel::fclose(file) };
    keeping_errno(|| drop(sock));
    closed
}

/// The process ends: what waits in them to be written goes while there is somebody to write to.
pub fn flush() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        for (file, _) in FILES.with(|files| files.clone()) {
            // SAFETY: one that was not closed.
            unsafe { libc::fflush(file as *mut FILE) };
        }
    }
}
