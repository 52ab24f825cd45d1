//! `libsluicenet_socket.so`: light sockets under unmodified programs, by `LD_PRELOAD` (`docs/sockets.md`).
//!
//! Each light socket stands on one end of a pair of kernel sockets, whose number is the program's: numbers, copies, close-on-exec,
//! `poll`, `epoll` and what a child inherits remain the kernel's business. What the light socket is ready for is mirrored into the
//! pair while somebody looks; bytes never pass it.
//!
//! Everything here is called by C programs in place of the C library's functions of the same names, so that all of it is
//! `unsafe` by nature: what a pointer says is believed as far as the C library believes it. The rest of the project is reached
//! through safe calls only.

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

/// Sets the number that says what failed, and returns what a failed call returns.
fn fail(errno: i32) -> isize {
    // SAFETY: the place of this thread's error number.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// What a call returns to C.
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
