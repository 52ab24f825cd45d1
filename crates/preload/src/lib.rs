//! `libsluicenet_socket.so`: light sockets under unmodified programs, by `LD_PRELOAD` (`docs/sockets.md`).
//!
//! Each light socket stands on one end of a pair of kernel sockets, whose number is the program's. Numbers, copies,
//! close-on-exec, `poll`, `epoll` and inheritance remain the kernel's business. The light socket's readiness is mirrored into
//! the pair while a caller waits for it; bytes never pass the pair.
//!
//! C programs call all functions here in place of the C library's functions of the same names, so that all are `unsafe` by
//! nature: pointers are trusted as far as the C library trusts them. The rest of the project is reached through safe calls
//! only.

mod address;
mod environment;
mod fork;
mod interpose;
mod kernel;
mod mirror;
mod options;
mod own;
mod process;
mod registered;
mod relay;
mod sock;
mod spin;
mod table;
mod transfer;
mod wait;

/// Sets the error number, and returns the value of a failed call.
fn fail(errno: i32) -> isize {
    // SAFETY: the place of this thread's error number.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// The C return value of a call.
fn answer(result: Result<usize, i32>) -> isize {
    match result {
        Ok(n) => n as isize,
        Err(errno) => fail(errno),
    }
}

/// The number of an error of the library's.
fn number(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Called by the loader before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        fork::register();
    }
    begin
};
